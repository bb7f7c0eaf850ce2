/* vec.h: the vector vocabulary of the _simd.c files; the build compiles each file once per line of isa.def.
 *
 *   kr_v    a vector of KR_VL floats        kr_vi  as many int32        kr_vm  a mask of as many lanes
 *   KR_FN(name)  the name with the ISA's suffix: every non-static function of a _simd.c is declared through it
 *
 *   kr_v_load(p) store(p, v) loadn(p, n) storen(p, v, n)   n < KR_VL lanes, zeros beyond; unaligned is fine
 *   kr_v_load_from(p, n)   lanes n.. of the vector at p; earlier lanes are zero and not accessed
 *   kr_v_load_h/store_h (float16), _b (bfloat16), also ...n forms; p is const uint16_t *
 *   kr_v_load_i8(p)   KR_VL signed bytes as floats
 *   kr_levels_of(scale, base)   the sixteen values scale q + base; load_levels(p, low, high, &l, &h) = those of the low
 *                               four bits of KR_VL bytes in `low`, of the high four in `high`
 *   set1 zero add sub mul div min max sqrt neg abs; fma(a,b,c) = ab+c; fnma(a,b,c) = c-ab
 *   lost(a,b) = the rounding error of ab, fma(a, b, -ab)
 *   sum(v) largest(v) -> float; lanes added in a fixed tree; sum_each(r) = lane i the sum of r[i], KR_VL vectors
 *   gt(a,b) lt(a,b) isnan(a) -> mask; select(m, a, b) = m ? a : b
 *   round_i(v) -> kr_vi to nearest even; vi_to_v; scale2(v, i) = v 2^i for i in -126..127
 *   add_exponent(v, t) = v 2^n where t = n + KR_ROUND_MAGIC, by bits: v and the result must be normal; a v of 0 gives
 *                        the number whose exponent bits are n, 0 to 255
 *   split(v, &e) = m in [sqrt(1/2), sqrt(2)) with v = m 2^e, for normal positive v
 *   transpose(r)  KR_VL vectors as a square, in place
 *   load_apart(v, p, n) store_apart(p, v, n)   n interleaved vectors, 2 to 4: lane l of v[i] at p[n l + i]
 * min and max return the second operand if either is NaN (x86 rule on every ISA). Functions on top: vec_math.h. */
#ifndef KR_VEC_H
#define KR_VEC_H

#include <stdint.h>

#define KR_CAT2(a, b) a##_##b
#define KR_CAT(a, b) KR_CAT2(a, b)
#define KR_FN(name) KR_CAT(name, KR_ISA_NAME)
/* For kernel bodies specialised by constant arguments. */
#define KR_INLINE static inline __attribute__((always_inline))
/* 1.5 2^23: added to |v| < 2^22 it rounds v to an integer, nearest even, kept in the low bits. */
#define KR_ROUND_MAGIC 12582912.0f

#if defined(KR_ISA_avx512)
#include "vec_avx512.h"
#elif defined(KR_ISA_avx2)
#include "vec_avx2.h"
#elif defined(KR_ISA_neon)
#include "vec_neon.h"
#elif defined(KR_ISA_scalar)
#include "vec_scalar.h"
#else
#error "a _simd.c is compiled once per ISA: src/cpu/meson.build defines KR_ISA_<name> and KR_ISA_NAME"
#endif

#endif

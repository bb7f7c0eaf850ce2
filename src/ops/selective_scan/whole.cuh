/* whole.cuh: what the two modules for the usual call share (selective_scan_whole.cu, selective_scan_whole_bwd.cu): packs of 16
 * bytes, E elements, that a lane copies past the registers to a place of its own, step sizes, and exponentials by multiply-adds. */
#ifndef KR_SCAN_WHOLE_CUH
#define KR_SCAN_WHOLE_CUH

#include "gate.cuh"
#include "pack.cuh"
#include "scan_plan.h"

enum { E = KR_DTYPE == KRAIT_F32 ? 4 : 8 };

KR_DEV void copy_pack(kr_raw16 *to, const char *from, int exists) {
#if KR_TIER >= 80 || defined(KR_EMULATE)
  kr_copy_or_zero<16>(to, from, exists);
#else
  if (exists) kr_copy16(to, from);
  else *to = kr_raw16{{0, 0, 0, 0}};
#endif
}

/* What follows is computed from these 16 bytes again, instead of being kept in registers: only they are. */
KR_DEV void keep_packed(kr_raw16 &raw) {
#ifndef KR_EMULATE
#pragma unroll
  for (int k = 0; k < 4; k++) asm volatile("" : "+r"(raw.w[k]));
#else
  (void)raw;
#endif
}

/* log(1 + e^v): log(1 + e) is e times a polynomial for e = e^-|v|, so that small values keep their digits and one special function does.
 * Relative error 2^-22.7 and that of the exponential. */
KR_DEV float softplus_of(float v) {
  const float e = kr_exp2(__builtin_fabsf(v) * -KR_LOG2E);
  float q = 0.00536481058f;
  q = kr_fma(q, e, -0.0300657395f), q = kr_fma(q, e, 0.079204455f), q = kr_fma(q, e, -0.137537956f), q = kr_fma(q, e, 0.191536516f);
  q = kr_fma(q, e, -0.248571634f), q = kr_fma(q, e, 0.33321324f), q = kr_fma(q, e, -0.499996483f), q = kr_fma(q, e, 1.0f);
  return kr_fma(q, e, __builtin_fmaxf(v, 0.0f));
}

/* 2^(a b) without the unit of special functions: rounded down, the fraction by a polynomial that is 1 and 2 at its ends, the exponent's
 * bits by an integer addition. Relative error 2^-22.6; below 2^-126 zero, above 2^127 no
 * more than 2^128, of NaN zero. */
KR_DEV float exp2_of_product(float a, float b) {
  const float one = 12582912.0f; /* 1.5 * 2^23: its last bit is 1 */
  float t, f, q = 0.00187931862f;
#ifdef KR_EMULATE
  const double exact = (double)a * b;
  t = (float)__builtin_floor(exact + one), f = kr_fma(a, b, one - t), f = f > 0.0f ? f < 1.0f ? f : 1.0f : 0.0f;
#else
  asm("fma.rm.ftz.f32 %0, %1, %2, %3;" : "=f"(t) : "f"(a), "f"(b), "f"(one));
  asm("fma.rn.ftz.sat.f32 %0, %1, %2, %3;" : "=f"(f) : "f"(a), "f"(b), "f"(one - t));
#endif
  q = kr_fma(q, f, 0.00899099559f), q = kr_fma(q, f, 0.0558186769f), q = kr_fma(q, f, 0.240159273f), q = kr_fma(q, f, 0.693151712f);
  q = kr_fma(q, f, 1.0f);
  const float n = __builtin_fminf(__builtin_fmaxf(t, one - 127.0f), one + 127.0f);
  return kr_bits_to_float(kr_float_to_bits(q) + (kr_float_to_bits(n) << 23));
}

/* dt of a pack of delta. */
KR_DEV void step_sizes(int softplus, const kr_raw16 &delta, float bias, float (&dt)[E]) {
#pragma unroll
  for (int k = 0; k < E; k++) dt[k] = pack_at(delta, k, KR_DTYPE) + bias;
  if (!softplus) return;
#pragma unroll
  for (int k = 0; k < E; k++) dt[k] = softplus_of(dt[k]);
}

/* A sum over a run of n lanes. */
KR_DEV float sum_packs(const int n, float v) {
#pragma unroll
  for (int by = 1; by < n; by *= 2) v += kr_shuffle_xor(v, by);
  return v;
}

#endif

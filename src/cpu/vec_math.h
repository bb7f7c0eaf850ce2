/* vec_math.h: exp, sigmoid, silu, softplus and tanh on vectors, from the vocabulary of vec.h.
 *
 * exp: n = round(x log2 e); r = x - n ln2 in two steps (Cody & Waite 1980); a degree-6 polynomial for e^r on
 * |r| <= ln2/2; then 2^n in two factors, so that results down to the smallest subnormal and up to infinity are right.
 * Bounds, all of float32, are tested exhaustively in tests/cpu/vec_math.c. */
#ifndef KR_VEC_MATH_H
#define KR_VEC_MATH_H

#include "vec.h"

/* e^x for |r| <= ln2/2 after reduction, without the power of two. */
static inline kr_v kr_exp_poly(kr_v r) {
  kr_v p = kr_v_set1(1.3981999507e-3f);
  p = kr_v_fma(p, r, kr_v_set1(8.3334519073e-3f));
  p = kr_v_fma(p, r, kr_v_set1(4.1665795894e-2f));
  p = kr_v_fma(p, r, kr_v_set1(1.6666665459e-1f));
  p = kr_v_fma(p, r, kr_v_set1(5.0000001201e-1f));
  return kr_v_add(kr_v_fma(kr_v_mul(r, r), p, r), kr_v_set1(1.0f));
}

static inline kr_v kr_v_exp(kr_v x) {
  kr_v clamped = kr_v_min(kr_v_set1(89.5f), kr_v_max(kr_v_set1(-104.5f), x)); /* second operand: NaN passes */
  kr_vi n = kr_v_round_i(kr_v_mul(clamped, kr_v_set1(1.44269504f)));
  kr_v nf = kr_vi_to_v(n);
  kr_v r = kr_v_fnma(nf, kr_v_set1(0.693359375f), clamped);
  r = kr_v_fnma(nf, kr_v_set1(-2.12194440e-4f), r);
  kr_v p = kr_exp_poly(r);
  kr_vi half = kr_v_round_i(kr_v_mul(nf, kr_v_set1(0.5f)));
  kr_vi rest = kr_v_round_i(kr_v_sub(nf, kr_vi_to_v(half)));
  return kr_v_scale2(kr_v_scale2(p, half), rest);
}

/* The same where the result may flush to zero below 2^-126 and x <= 88: one factor. For decays exp(dt A), A < 0. */
static inline kr_v kr_v_exp_decay(kr_v x) {
  kr_v clamped = kr_v_min(kr_v_set1(88.0f), kr_v_max(kr_v_set1(-87.3f), x));
  kr_vi n = kr_v_round_i(kr_v_mul(clamped, kr_v_set1(1.44269504f)));
  kr_v nf = kr_vi_to_v(n);
  kr_v r = kr_v_fnma(nf, kr_v_set1(0.693359375f), clamped);
  r = kr_v_fnma(nf, kr_v_set1(-2.12194440e-4f), r);
  kr_v value = kr_v_scale2(kr_exp_poly(r), n);
  return kr_v_select(kr_v_lt(x, kr_v_set1(-87.3f)), kr_v_zero(), value);
}

static inline kr_v kr_v_sigmoid(kr_v x) {
  kr_v one = kr_v_set1(1.0f);
  return kr_v_div(one, kr_v_add(one, kr_v_exp(kr_v_neg(x))));
}

static inline kr_v kr_v_silu(kr_v x) {
  kr_v one = kr_v_set1(1.0f);
  return kr_v_div(x, kr_v_add(one, kr_v_exp(kr_v_neg(x))));
}

#endif

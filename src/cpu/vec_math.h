/* vec_math.h: exp, log1p, sigmoid, silu, softplus and tanh on vectors, from the vocabulary of vec.h.
 *
 * exp: n = round(x log2 e); r = x - n ln2 in two steps (Cody & Waite 1980); e^r = 1 + r + r^2 P(r), P of degree 4
 * (minimax in ulps on |r| <= ln2/2); then 2^n. The others are built on it without cancellation. Bounds
 * (tests/cpu/vec_math.c walks every float32): exp 1.1 ulp, log1p 1, tanh 1.5, sigmoid, silu and softplus 2, exp2 2.2.
 * NaN gives NaN, infinities their limits (silu(-inf) is -inf * 0, NaN), subnormal results are kept. silu_fast and
 * softplus_fast, for inner loops: 2.5 and 3 ulp; they give 0 below 2^-126 (silu_fast: 32 * 2^-126). */
#ifndef KR_VEC_MATH_H
#define KR_VEC_MATH_H

#include <math.h>

#include "vec.h"

/* v 2^n for |v| in (0.5, 256) or 0 and integral n in -175..130, rounded once. */
static inline kr_v kr_v_ldexp(kr_v v, kr_v n) {
#ifdef KR_ISA_avx512
  return _mm512_scalef_ps(v, n);
#else
  const kr_v magic = kr_v_set1(KR_ROUND_MAGIC), one = kr_v_set1(1.0f);
  kr_v most = kr_v_min(kr_v_set1(127.0f), kr_v_max(kr_v_set1(-125.0f), n));
  kr_v rest = kr_v_sub(n, most);
  kr_v scaled = kr_v_mul(v, kr_v_add_exponent(one, kr_v_add(most, magic)));
  return kr_v_mul(scaled, kr_v_add_exponent(one, kr_v_add(rest, magic)));
#endif
}

/* e^(x - n ln2) - 1. */
static inline kr_v kr_expm1_poly(kr_v x, kr_v n) {
  kr_v r = kr_v_fnma(n, kr_v_set1(0.693359375f), x);
  r = kr_v_fnma(n, kr_v_set1(-2.12194440e-4f), r);
  kr_v p = kr_v_set1(1.3780406443e-03f);
  p = kr_v_fma(p, r, kr_v_set1(8.3688469604e-03f));
  p = kr_v_fma(p, r, kr_v_set1(4.1669085622e-02f));
  p = kr_v_fma(p, r, kr_v_set1(1.6666519642e-01f));
  p = kr_v_fma(p, r, kr_v_set1(4.9999991059e-01f));
  return kr_v_fma(kr_v_mul(r, r), p, r);
}
static inline kr_v kr_exp_poly(kr_v x, kr_v n) { return kr_v_add(kr_expm1_poly(x, n), kr_v_set1(1.0f)); }

static inline kr_v kr_v_exp(kr_v x) {
  const kr_v magic = kr_v_set1(KR_ROUND_MAGIC);
  kr_v c = kr_v_min(kr_v_set1(89.5f), kr_v_max(kr_v_set1(-104.5f), x)); /* second operand: NaN propagates */
  kr_v n = kr_v_sub(kr_v_fma(c, kr_v_set1(1.44269504f), magic), magic);
  return kr_v_ldexp(kr_exp_poly(c, n), n);
}

/* 2^-r for |r| <= 1/2, exactly 1 for 0. */
static inline kr_v kr_exp2_minus_poly(kr_v r) {
  kr_v p = kr_v_set1(-1.3225707226e-03f);
  p = kr_v_fma(p, r, kr_v_set1(9.6717625856e-03f));
  p = kr_v_fma(p, r, kr_v_set1(-5.5508915335e-02f));
  p = kr_v_fma(p, r, kr_v_set1(2.4022236466e-01f));
  p = kr_v_fma(p, r, kr_v_set1(-6.9314682484e-01f));
  return kr_v_fma(p, r, kr_v_set1(1.0f));
}

/* 2^(a b) for |a b| <= 126: the decays exp(dt A) of a scan, with log2 e folded into A once. Undefined beyond that range
 * and for NaN. */
static inline kr_v kr_v_exp2_product(kr_v a, kr_v b) {
  const kr_v magic = kr_v_set1(KR_ROUND_MAGIC);
  kr_v t = kr_v_fma(a, b, magic), n = kr_v_sub(t, magic), p = kr_exp2_minus_poly(kr_v_fnma(a, b, n));
#ifdef KR_ISA_avx512
  return kr_v_ldexp(p, n); /* one operation; the bits of t would take two */
#else
  return kr_v_add_exponent(p, t);
#endif
}

/* The same for any a b, with exp2's infinities, zeros and NaN. */
static inline kr_v kr_v_exp2_any(kr_v a, kr_v b) {
#ifdef KR_ISA_avx512
  const kr_v v = kr_v_mul(a, b), r = _mm512_reduce_ps(v, 8); /* v - n, to nearest; 0 of infinities */
  return kr_v_ldexp(kr_exp2_minus_poly(kr_v_neg(r)), kr_v_sub(v, r));
#else
  const kr_v magic = kr_v_set1(KR_ROUND_MAGIC);
  kr_v v = kr_v_min(kr_v_set1(130.0f), kr_v_max(kr_v_set1(-151.0f), kr_v_mul(a, b)));
  kr_v n = kr_v_sub(kr_v_add(v, magic), magic);
  return kr_v_ldexp(kr_exp2_minus_poly(kr_v_sub(n, v)), n);
#endif
}

/* cos and sin of a b, for decays of complex states, within 2e-7 absolute: n = round(a b / pi), r = a b - n pi in three
 * steps, polynomials on |r| <= pi/2. near: |a b| up to KR_MOST_ANGLE. The product's rounding error is added back. */
#define KR_MOST_ANGLE 20000.0f
static inline kr_v kr_v_cos_sin_near(kr_v a, kr_v b, kr_v *sine) {
  const kr_v magic = kr_v_set1(KR_ROUND_MAGIC), one = kr_v_set1(1.0f);
  kr_v angle = kr_v_mul(a, b), lost = kr_v_lost(a, b);
  kr_v n = kr_v_sub(kr_v_fma(angle, kr_v_set1(0.31830988618f), magic), magic);
  kr_v r = kr_v_fnma(n, kr_v_set1(3.140625f), angle);
  r = kr_v_fnma(n, kr_v_set1(9.67502593994140625e-4f), r);
  r = kr_v_add(kr_v_fnma(n, kr_v_set1(1.509957990978376432e-7f), r), lost);
  kr_v half = kr_v_mul(kr_v_set1(0.5f), n),
       odd = kr_v_sub(half, kr_v_sub(kr_v_add(half, magic), magic)); /* 0, or +-1/2 where n is odd */
  kr_v sign = kr_v_fnma(kr_v_mul(odd, odd), kr_v_set1(8.0f), one), s = kr_v_mul(r, r);
  kr_v p = kr_v_set1(2.5999032350e-06f);
  p = kr_v_fma(p, s, kr_v_set1(-1.9806547093e-04f));
  p = kr_v_fma(p, s, kr_v_set1(8.3330163552e-03f));
  p = kr_v_fma(p, s, kr_v_set1(-1.6666657059e-01f));
  *sine = kr_v_mul(sign, kr_v_fma(kr_v_mul(r, s), p, r));
  kr_v q = kr_v_set1(-2.6075662438e-07f);
  q = kr_v_fma(q, s, kr_v_set1(2.4761808148e-05f));
  q = kr_v_fma(q, s, kr_v_set1(-1.3888402069e-03f));
  q = kr_v_fma(q, s, kr_v_set1(4.1666640625e-02f));
  q = kr_v_fma(q, s, kr_v_set1(-4.9999999547e-01f));
  return kr_v_mul(sign, kr_v_fma(s, q, one));
}

/* The same for any a b, lane by lane. */
static inline kr_v kr_v_cos_sin_any(kr_v a, kr_v b, kr_v *sine) {
  float x[KR_VL], y[KR_VL], cosines[KR_VL], sines[KR_VL];
  kr_v_store(x, a);
  kr_v_store(y, b);
  for (int lane = 0; lane < KR_VL; lane++) {
    const double angle = (double)x[lane] * (double)y[lane];
    cosines[lane] = (float)cos(angle);
    sines[lane] = (float)sin(angle);
  }
  *sine = kr_v_load(sines);
  return kr_v_load(cosines);
}

/* For n vectors, at most KR_EACH_MOST, interleaved step by step to hide latency. In: c in -88.8 .. 87.9. Out: e^-c = p
 * 2^n, n = round(-c log2 e), s = c + n ln2, p = 1 - s + s^2 P(s), minimax in ulps; 2^n is built from bits: 0 for n =
 * -127, infinity for n = 128. */
enum { KR_EACH_MOST = 4 };
KR_INLINE void kr_exp_minus_each(const kr_v *c, kr_v *p, kr_v *power, int n) {
  static const float terms[] = {-8.36871053e-03f, 4.16683874e-02f, -1.66665207e-01f, 4.99999935e-01f, -1.0f, 1.0f};
  const kr_v magic = kr_v_set1(KR_ROUND_MAGIC + 127.0f);
  kr_v s[KR_EACH_MOST];
  for (int k = 0; k < n; k++) power[k] = kr_v_fnma(c[k], kr_v_set1(1.44269504f), magic);
  for (int k = 0; k < n; k++) p[k] = kr_v_sub(power[k], magic);
  for (int k = 0; k < n; k++) s[k] = kr_v_fma(p[k], kr_v_set1(0.693359375f), c[k]);
  for (int k = 0; k < n; k++) s[k] = kr_v_fma(p[k], kr_v_set1(-2.12194440e-4f), s[k]);
  for (int k = 0; k < n; k++) p[k] = kr_v_set1(1.38146118e-03f);
  for (int i = 0; i < 6; i++)
    for (int k = 0; k < n; k++) p[k] = kr_v_fma(p[k], s[k], kr_v_set1(terms[i]));
  for (int k = 0; k < n; k++) power[k] = kr_v_add_exponent(kr_v_zero(), power[k]);
}
static inline kr_v kr_exp_minus(kr_v c) {
  kr_v p, power;
  kr_exp_minus_each(&c, &p, &power, 1);
  return kr_v_mul(p, power);
}

/* e^-|x|, 0 below 2^-126: the basis of softplus and its slope. */
static inline kr_v kr_exp_minus_size(kr_v x) { return kr_exp_minus(kr_v_min(kr_v_set1(87.9f), kr_v_abs(x))); }

/* x / (1 + e^-x), n vectors in place: if e^-x is 0 or infinity the quotient is x, 0 or NaN, as required. */
KR_INLINE void kr_v_silu_fast_each(kr_v *x, int n) {
  kr_v c[KR_EACH_MOST], p[KR_EACH_MOST], power[KR_EACH_MOST];
  for (int k = 0; k < n; k++) c[k] = kr_v_min(kr_v_set1(87.9f), kr_v_max(kr_v_set1(-88.8f), x[k]));
  kr_exp_minus_each(c, p, power, n);
  for (int k = 0; k < n; k++) p[k] = kr_v_fma(p[k], power[k], kr_v_set1(1.0f));
  for (int k = 0; k < n; k++) x[k] = kr_v_div(x[k], p[k]);
}
static inline kr_v kr_v_silu_fast(kr_v x) {
  kr_v_silu_fast_each(&x, 1);
  return x;
}

/* silu and its slope from one exponential, clamped to 2^+-126; e s is sigmoid(-x), without cancellation. */
static inline kr_v kr_v_silu_and_slope(kr_v x, kr_v *slope) {
  const kr_v one = kr_v_set1(1.0f), least = kr_v_set1(-87.33654f), most = kr_v_set1(86.9f);
  kr_v e = kr_exp_minus(kr_v_min(most, kr_v_max(least, x)));
  kr_v s = kr_v_select(kr_v_lt(x, least), kr_v_zero(), kr_v_div(one, kr_v_add(one, e))), value = kr_v_mul(x, s);
  *slope = kr_v_fma(value, kr_v_mul(e, s), s);
  return value;
}

/* log(1 + e) for e in 0..1 is e - e^2 Q(e); Q in two halves, for shorter latency. */
static inline kr_v kr_log1p_rest(kr_v e) {
  kr_v e2 = kr_v_mul(e, e), e4 = kr_v_mul(e2, e2);
  kr_v low = kr_v_fma(kr_v_set1(2.4958586693e-01f), e2,
                      kr_v_fma(kr_v_set1(-3.3330512047e-01f), e, kr_v_set1(4.9999931455e-01f)));
  kr_v middle = kr_v_fma(kr_v_set1(1.5355394781e-01f), e, kr_v_set1(-1.9695399702e-01f));
  kr_v high = kr_v_fma(kr_v_set1(5.7664431632e-02f), e, kr_v_set1(-1.0680554062e-01f));
  kr_v top = kr_v_fma(kr_v_set1(3.3184716012e-03f), e, kr_v_set1(-2.0204579458e-02f));
  low = kr_v_fma(kr_v_mul(e2, e), middle, low);
  return kr_v_fma(kr_v_mul(e4, e), kr_v_fma(e2, top, high), low);
}
static inline kr_v kr_log1p_unit(kr_v e) { return kr_v_fnma(kr_v_mul(e, e), kr_log1p_rest(e), e); }

/* log(1 + e^x) = max(x, 0) + log1p(e^-|x|); above 20 this is x in float32, consistent with upstream's threshold. */
static inline kr_v kr_v_softplus_fast(kr_v x) {
  return kr_v_add(kr_v_max(kr_v_zero(), x), kr_log1p_unit(kr_exp_minus_size(x)));
}

/* softplus and its slope, sigmoid(x), from one exponential. */
static inline kr_v kr_v_softplus_and_slope(kr_v x, kr_v *slope) {
  const kr_v one = kr_v_set1(1.0f);
  kr_v e = kr_exp_minus_size(x);
  *slope = kr_v_div(kr_v_select(kr_v_lt(x, kr_v_zero()), e, one), kr_v_add(one, e));
  return kr_v_add(kr_v_max(kr_v_zero(), x), kr_log1p_unit(e));
}

/* P in log(1 + f) = f - f^2/2 + f^3 P(f), for 1 + f in sqrt(1/2) .. sqrt(2). */
static inline kr_v kr_log1p_series(kr_v f) {
  kr_v p = kr_v_set1(6.7466340959e-02f);
  p = kr_v_fma(p, f, kr_v_set1(-1.1675645411e-01f));
  p = kr_v_fma(p, f, kr_v_set1(1.1888162047e-01f));
  p = kr_v_fma(p, f, kr_v_set1(-1.2405589968e-01f));
  p = kr_v_fma(p, f, kr_v_set1(1.4219552279e-01f));
  p = kr_v_fma(p, f, kr_v_set1(-1.6667996347e-01f));
  p = kr_v_fma(p, f, kr_v_set1(2.0002119243e-01f));
  p = kr_v_fma(p, f, kr_v_set1(-2.5000008941e-01f));
  p = kr_v_fma(p, f, kr_v_set1(3.3333313465e-01f));
  return p;
}

/* e^-|x| = (high + low) 2^n before the last rounding; also as e + e_low, e at least about 2^-126, for sums with 1. */
typedef struct kr_exp_parts {
  kr_v high, low, n, e, e_low;
} kr_exp_parts;

static inline kr_exp_parts kr_exp_split(kr_v x) {
  const kr_v magic = kr_v_set1(KR_ROUND_MAGIC), one = kr_v_set1(1.0f);
  kr_v c = kr_v_max(kr_v_set1(-120.0f), kr_v_neg(kr_v_abs(x)));
  kr_exp_parts p;
  p.n = kr_v_sub(kr_v_fma(c, kr_v_set1(1.44269504f), magic), magic);
  kr_v t = kr_expm1_poly(c, p.n);
  p.high = kr_v_add(one, t);
  p.low = kr_v_sub(t, kr_v_sub(p.high, one));
  p.e = kr_v_mul(p.high, kr_v_add_exponent(one, kr_v_add(kr_v_max(kr_v_set1(-126.0f), p.n), magic)));
  p.e_low = kr_v_mul(kr_v_mul(p.e, p.low), kr_v_sub(kr_v_set1(2.0f), p.high)); /* 2 - high is near enough to 1 / high */
  return p;
}

/* (top + top_low) / (1 + e + e_low) from one division and its parts' rounding errors; 1 - e/2 is near enough to 1 / (1
 * + e). */
static inline kr_v kr_divide_by_one_plus(kr_v top, kr_v top_low, const kr_exp_parts *p) {
  const kr_v one = kr_v_set1(1.0f);
  kr_v sum = kr_v_add(one, p->e), lost = kr_v_add(kr_v_sub(p->e, kr_v_sub(sum, one)), p->e_low);
  kr_v q = kr_v_div(top, sum);
  return kr_v_fma(kr_v_fnma(q, lost, top_low), kr_v_fnma(kr_v_set1(0.5f), p->e, one), q);
}

static inline kr_v kr_v_sigmoid(kr_v x) {
  const kr_v zero = kr_v_zero();
  kr_exp_parts p = kr_exp_split(x);
  kr_vm low = kr_v_lt(x, zero);
  kr_v q = kr_divide_by_one_plus(kr_v_select(low, p.high, kr_v_set1(1.0f)), kr_v_select(low, p.low, zero), &p);
  return kr_v_ldexp(q, kr_v_select(low, p.n, zero));
}

static inline kr_v kr_v_silu(kr_v x) {
  const kr_v zero = kr_v_zero();
  kr_exp_parts p = kr_exp_split(x);
  kr_vm low = kr_v_lt(x, zero);
  kr_v c = kr_v_max(kr_v_set1(-120.0f), x), top = kr_v_mul(c, kr_v_select(low, p.high, kr_v_set1(1.0f)));
  kr_v top_low = kr_v_fma(c, p.low, kr_v_fma(c, p.high, kr_v_neg(top)));
  kr_v q = kr_divide_by_one_plus(top, kr_v_select(low, top_low, zero), &p);
  q = kr_v_fma(x, zero, kr_v_ldexp(q, kr_v_select(low, p.n, zero))); /* the product: NaN for infinities */
  return kr_v_select(kr_v_gt(x, kr_v_set1(40.0f)), x, q);
}

/* log1p(e) = k ln2 + log(1 + f), k = 0 or 1; its two large terms and max(x, 0) are added exactly. */
static inline kr_v kr_v_softplus(kr_v x) {
  const kr_v zero = kr_v_zero(), half = kr_v_set1(0.5f), one = kr_v_set1(1.0f);
  kr_exp_parts p = kr_exp_split(x);
  kr_vm large = kr_v_gt(p.e, kr_v_set1(0.41421354f));
  kr_v f = kr_v_select(large, kr_v_mul(half, kr_v_sub(p.e, one)), p.e),
       f_low = kr_v_select(large, kr_v_mul(half, p.e_low), p.e_low);
  kr_v square = kr_v_mul(f, f),
       tail = kr_v_fma(f_low, kr_v_sub(one, f), kr_v_select(large, kr_v_set1(-2.12194440e-4f), zero));
  tail = kr_v_fnma(half, square, kr_v_fma(kr_v_mul(square, f), kr_log1p_series(f), tail));
  kr_v high = kr_v_select(large, kr_v_set1(0.693359375f), zero), sum = kr_v_add(high, f),
       lost = kr_v_sub(f, kr_v_sub(sum, high));
  kr_v m = kr_v_max(zero, x), all = kr_v_add(m, sum), part = kr_v_sub(all, m); /* Knuth's two-sum */
  lost = kr_v_add(lost, kr_v_add(kr_v_sub(m, kr_v_sub(all, part)), kr_v_sub(sum, part)));
  kr_v result = kr_v_add(all, kr_v_add(lost, tail));
  result = kr_v_select(kr_v_gt(x, kr_v_set1(40.0f)), x, result);
  return kr_v_select(kr_v_lt(x, kr_v_set1(-80.0f)), kr_v_ldexp(p.high, p.n), result);
}

/* u = 1 + x = m 2^k, f = m - 1; log1p = k ln2 + log(1 + f) + (x - (u - 1)) / u; if k = 0, f is x itself. */
static inline kr_v kr_v_log1p(kr_v x) {
  const kr_v one = kr_v_set1(1.0f);
  kr_v k, u = kr_v_add(one, x), m = kr_v_split(u, &k);
  kr_vm near_one = kr_v_lt(kr_v_abs(k), kr_v_set1(0.5f));
  kr_v lost = kr_v_select(kr_v_gt(x, kr_v_set1(16777216.0f)), kr_v_zero(), kr_v_div(kr_v_sub(x, kr_v_sub(u, one)), u));
  kr_v f = kr_v_select(near_one, x, kr_v_sub(m, one));
  lost = kr_v_select(near_one, kr_v_zero(), lost);
  kr_v square = kr_v_mul(f, f);
  kr_v tail = kr_v_fma(kr_v_mul(square, f), kr_log1p_series(f), kr_v_fma(k, kr_v_set1(-2.12194440e-4f), lost));
  tail = kr_v_fnma(kr_v_set1(0.5f), square, tail);
  kr_v result = kr_v_fma(k, kr_v_set1(0.693359375f), kr_v_add(f, tail));
  result = kr_v_select(kr_v_gt(x, kr_v_set1(3.4028234e38f)), x, result);
  const kr_v infinity = kr_v_div(one, kr_v_zero());
  kr_v limit = kr_v_select(kr_v_lt(u, kr_v_zero()), kr_v_sub(infinity, infinity), kr_v_neg(infinity));
  return kr_v_select(kr_v_lt(u, kr_v_set1(1e-30f)), limit, result);
}

static inline kr_v kr_v_tanh(kr_v x) {
  const kr_v one = kr_v_set1(1.0f);
  kr_v size = kr_v_abs(x), s = kr_v_mul(x, x);
  kr_v p = kr_v_set1(-5.7049868628e-03f);
  p = kr_v_fma(p, s, kr_v_set1(2.0639088005e-02f));
  p = kr_v_fma(p, s, kr_v_set1(-5.3739715368e-02f));
  p = kr_v_fma(p, s, kr_v_set1(1.3331441581e-01f));
  p = kr_v_fma(p, s, kr_v_set1(-3.3333280683e-01f));
  kr_v small = kr_v_fma(kr_v_mul(x, s), p, x);
  kr_v e = kr_v_exp(kr_v_min(kr_v_set1(40.0f), kr_v_add(size, size)));
  kr_v large = kr_v_sub(one, kr_v_div(kr_v_set1(2.0f), kr_v_add(e, one)));
  large = kr_v_select(kr_v_lt(x, kr_v_zero()), kr_v_neg(large), large);
  return kr_v_select(kr_v_lt(size, kr_v_set1(0.625f)), small, large);
}

#endif

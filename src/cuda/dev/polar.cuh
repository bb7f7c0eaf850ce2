/* polar.cuh: angles and powers in float32, to about 2e-7: device code links no toolkit math library. */
#ifndef KR_POLAR_CUH
#define KR_POLAR_CUH

#include "kernel.cuh"

/* The nearest whole number, |x| below 2^22. */
KR_DEV float kr_nearest(float x) {
  const float magic = 12582912.0f;
  return (x + magic) - magic;
}

/* atan2 as in C, including signed zeros and infinities. Values near pi are rounded once: the side of pi they land on
 * decides the sign of their sine. */
KR_DEV float kr_atan2(float y, float x) {
  const float ax = __builtin_fabsf(x), ay = __builtin_fabsf(y), high = ax > ay ? ax : ay, low = ax > ay ? ay : ax;
  const float t = high == low ? (high > 0.0f ? 1.0f : 0.0f) : low / high, z = t * t;
  float a = kr_fma(z, 0.00283406419f, -0.0160050299f);
  a = kr_fma(z, a, 0.0425876081f), a = kr_fma(z, a, -0.0749544576f), a = kr_fma(z, a, 0.106367543f),
  a = kr_fma(z, a, -0.142025709f);
  a = kr_fma(z, a, 0.199924842f), a = kr_fma(z, a, -0.333330661f), a = kr_fma(z * t, a, t);
  if (ay > ax) a = 1.5707964f - (a + 4.371139e-8f);
  if (kr_float_to_bits(x) >> 31) a = 3.1415927f - (a + 8.742278e-8f);
  if (x != x || y != y) return x + y;
  return kr_bits_to_float(kr_float_to_bits(a) | (kr_float_to_bits(y) & 0x80000000u));
}

/* Angles up to a few thousand. */
KR_DEV void kr_sine_cosine(float x, float &sine, float &cosine) {
  const float turns = kr_nearest(x * 0.63661977f),
              r = kr_fma(turns, 1.7763568e-15f, kr_fma(turns, 4.371139e-8f, kr_fma(turns, -1.5707964f, x))), z = r * r;
  const float s = kr_fma(
      r * z, kr_fma(z, kr_fma(z, kr_fma(z, 2.72439775e-6f, -0.000198400405f), 0.00833333191f), -0.166666672f), r);
  const float c = kr_fma(z, kr_fma(z, kr_fma(z, -1.71195921e-7f, 2.46885029e-5f), -0.00138885353f), 0.0416666642f),
              cosine_r = kr_fma(z * z, c, kr_fma(z, -0.5f, 1.0f));
  const int quarter = (int)turns & 3;
  sine = quarter & 1 ? cosine_r : s, cosine = quarter & 1 ? s : cosine_r;
  if (quarter & 2) sine = -sine;
  if (quarter == 1 || quarter == 2) cosine = -cosine;
}

/* x^power, x at least 0. Exponent and mantissa of x are treated separately: their sum would lose digits. */
KR_DEV float kr_power(float x, float power) {
  if (power == 1.0f) return x;
  if (power == 0.0f) return 1.0f;
  const uint32_t bits = kr_float_to_bits(x);
  if (bits - 0x00800000u >= 0x7f000000u) return kr_exp2(power * kr_log2(x)); /* 0, subnormal, infinite, negative, NaN */
  const int exponent = (int)((bits - 0x3f3504f3u) & 0xff800000u) >> 23; /* the mantissa is then in 0.707 .. 1.414 */
  const float rest = kr_bits_to_float(bits - ((uint32_t)exponent << 23)), t = (rest - 1.0f) / (rest + 1.0f), z = t * t;
  const float log2_rest = 2.8853900818f * t * kr_fma(z, kr_fma(z, kr_fma(z, 0.14285714f, 0.2f), 0.33333333f), 1.0f);
  const float high = power * (float)exponent, whole = kr_nearest(high), low = kr_fma(power, (float)exponent, -whole);
  return kr_exp2(whole) * kr_exp2(kr_fma(power, log2_rest, low));
}

#endif

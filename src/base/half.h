/* half.h: float16 and bfloat16 as uint16_t, scalar conversions, round to nearest even; NaN stays NaN. The exact bit
 * arithmetic is defined here, so that all implementations and tests agree on it. */
#ifndef KR_HALF_H
#define KR_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t kr_float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float kr_bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline float kr_bf16_to_float(uint16_t h) { return kr_bits_float((uint32_t)h << 16); }

static inline uint16_t kr_float_to_bf16(float value) {
  uint32_t bits = kr_float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static inline float kr_f16_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
  if (exponent == 31) return kr_bits_float(sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0));
  if (exponent) return kr_bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
  float magnitude = (float)mantissa * 0x1p-24f; /* subnormal: exact */
  return sign ? -magnitude : magnitude;
}

static inline uint16_t kr_float_to_f16(float value) {
  uint32_t bits = kr_float_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00); /* rounds to infinity */
  if (magnitude >= 0x38800000u)
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13));
  /* Subnormal result: adding 0.5 makes the floating-point unit round at bit 2^-24. */
  return (uint16_t)(sign | (kr_float_bits(kr_bits_float(magnitude) + 0.5f) - 0x3f000000u));
}

#endif

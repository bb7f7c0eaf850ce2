/* halves.cuh: float32 numbers as sums of two float16 ones of 11 bits each, high and low, of factors scaled by powers of
 * two. An infinite or NaN number's parts are not finite. */
#ifndef KR_HALVES_CUH
#define KR_HALVES_CUH

#include "kernel.cuh"

/* Bits of a number's magnitude, which compare like the numbers and, unlike these, know NaN. */
KR_DEV uint32_t kr_magnitude(float x) { return kr_float_to_bits(x) & 0x7fffffffu; }
KR_DEV uint32_t kr_larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* log2 of the scale that brings a largest magnitude of these bits to 2^14 to 2^15; infinities and NaN count as the
 * largest finite numbers. */
KR_DEV int kr_halves_scale(uint32_t largest) {
  const int exponent = (int)(largest >> 23), most = exponent > 254 ? 254 : exponent,
            wanted = exponent == 0 ? 0 : 14 + 127 - most;
  return wanted > 126 ? 126 : wanted;
}
KR_DEV float kr_power_of_two(int exponent) { return kr_bits_to_float((uint32_t)(127 + exponent) << 23); }

/* The parts of two scaled neighbours, as pairs; the low ones `apart` times too large. */
KR_DEV void kr_halve(float a, float b, float apart, uint32_t &high, uint32_t &low) {
  high = kr_pack_f16(a, b);
  const float rest_a = a - kr_unpack(high, 0, KRAIT_F16), rest_b = b - kr_unpack(high, 1, KRAIT_F16);
  low = kr_pack_f16(rest_a * apart, rest_b * apart);
}

/* Makes sums here: the compiler would move additions to where their sums are read, and keep the products until then. */
#ifdef KR_EMULATE
KR_DEV void kr_hold(float (&)[4]) {}
#else
KR_DEV void kr_hold(float (&d)[4]) { asm volatile("" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])); }
#endif

#endif

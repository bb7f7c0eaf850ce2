/* gemm_split.cu: float32 matrices as sums of 16-bit ones, for gemm_hopper.cu.
 *   kr_gemm_split         three bfloat16 parts, cut, not rounded: 8 significant bits each, so that their sum is exact
 *                         and the first part of a finite number is finite; a thread splits eight neighbours along the
 *                         contiguous dimension
 *   kr_gemm_split_halves  two float16 parts of 11 bits, the second 2^11 times too large, of a line scaled by a power
 *                         of two that brings its largest number to 2^14 to 2^15; a warp splits a line */
#include "gemm_params.h"
#include "kernel.cuh"

/* The upper 16 bits of a number, which are a bfloat16, and the remainder. Infinities and NaN have no remainder. */
KR_DEV uint32_t cut(float &x) {
  const uint32_t high = kr_float_to_bits(x) & 0xffff0000u;
  const int is_finite = (high & 0x7f800000u) != 0x7f800000u;
  x = is_finite ? x - kr_bits_to_float(high) : 0.0f;
  return high;
}

KR_KERNEL void KR_BOUNDS(KR_SPLIT_THREADS, 4) kr_gemm_split(const kr_split_params p) {
  const int64_t packs = p.line / 8, index = (int64_t)kr_block_x() * KR_SPLIT_THREADS + kr_thread(), row = index / packs;
  const int at = (int)(index - row * packs) * 8, left = p.n_along - at;
  if (row >= (int64_t)p.P * p.n_across) return;
  const int64_t batch = row / p.n_across, across = row - batch * p.n_across;
  const float *from = p.from + batch * p.from_batch + across * p.from_across + at * p.from_along;
  float x[8];
  if (p.packs && left >= 8) {
    const kr_float4 low = *(const kr_float4 *)from, high = *(const kr_float4 *)(from + 4);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = i < 4 ? low.v[i & 3] : high.v[i & 3];
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = i < left ? from[i * p.from_along] : 0.0f;
  }
  uint16_t *to = p.to + row * p.line + at;
#pragma unroll
  for (int part = 0; part < KR_N_PARTS; part++, to += (int64_t)p.P * p.n_across * p.line) {
    kr_raw16 raw;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t first = cut(x[2 * i]), second = cut(x[2 * i + 1]);
      raw.w[i] = first >> 16 | second;
    }
    *(kr_raw16 *)to = raw;
  }
}

KR_DEV void read_line(const kr_split_params &p, const float *from, int at, float (&x)[8]) {
  const int left = p.n_along - at;
  if (p.packs && left >= 8) {
    const kr_float4 low = *(const kr_float4 *)(from + at), high = *(const kr_float4 *)(from + at + 4);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = i < 4 ? low.v[i & 3] : high.v[i & 3];
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = i < left ? from[at + i] : 0.0f;
  }
}

KR_KERNEL void KR_BOUNDS(KR_SPLIT_THREADS, 4) kr_gemm_split_halves(const kr_split_params p) {
  const int lane = kr_thread() & 31;
  const int64_t row = ((int64_t)kr_block_x() * KR_SPLIT_THREADS + kr_thread()) / 32;
  if (row >= (int64_t)p.P * p.n_across) return;
  const int64_t batch = row / p.n_across, across = row - batch * p.n_across;
  const float *from = p.from + batch * p.from_batch + across * p.from_across;
  uint32_t largest = 0; /* bits of the magnitude, which compare like the numbers */
  float x[8];
  for (int at = 8 * lane; at < p.n_along; at += 256) {
    read_line(p, from, at, x);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t bits = kr_float_to_bits(x[i]) & 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    }
  }
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const uint32_t other = kr_float_to_bits(kr_shuffle_xor(kr_bits_to_float(largest), d));
    largest = other > largest ? other : largest;
  }
  /* 2^up; infinities and NaN, whose sums are computed again, count as the largest finite numbers */
  const int exponent = (int)(largest >> 23), most = exponent > 254 ? 254 : exponent,
            wanted = exponent == 0 ? 0 : 14 + 127 - most, up = wanted > 126 ? 126 : wanted;
  const float scale = kr_bits_to_float((uint32_t)(127 + up) << 23);
  if (lane == 0) p.unscale[row] = kr_bits_to_float((uint32_t)(127 - up) << 23);
  uint16_t *to = p.to + row * p.line;
  const int64_t second = (int64_t)p.P * p.n_across * p.line;
  for (int at = 8 * lane; at < p.n_along; at += 256) {
    kr_raw16 high, low;
    read_line(p, from, at, x);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float a = x[2 * i] * scale, b = x[2 * i + 1] * scale;
      high.w[i] = kr_pack_f16(a, b);
      const float rest_a = a - kr_unpack(high.w[i], 0, KRAIT_F16), rest_b = b - kr_unpack(high.w[i], 1, KRAIT_F16);
      low.w[i] = kr_pack_f16(rest_a * KR_HALVES_APART, rest_b * KR_HALVES_APART);
    }
    *(kr_raw16 *)(to + at) = high, *(kr_raw16 *)(to + second + at) = low;
  }
}

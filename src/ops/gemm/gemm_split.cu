/* gemm_split.cu: float32 matrices as sums of three bfloat16 ones, for gemm_hopper.cu. The parts are cut, not rounded: 8
 * significant bits each, so that their sum is exact and the first part of a finite number is finite. A thread splits
 * eight neighbours along the contiguous dimension. */
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

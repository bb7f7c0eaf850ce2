/* tile_norm.cu: instance norms after products of tile64.cuh: moments merged from the tiles', and the normalisation. */
#include "pack.cuh"
#include "tile_norm.h"

KR_DEV kr_float4 load4(const float *from) { return *(const kr_float4 *)from; }
KR_DEV int64_t thread_index(void) { return (int64_t)kr_block_x() * kr_block_threads() + kr_thread(); }

/* ---- instance norm: all tiles of eight channels per block -------------------------------------------------------- */

enum {
  MOMENT_CHANNELS = KR_TILE_MOMENTS_CHANNELS,
  MOMENT_THREADS = KR_TILE_MOMENTS_THREADS,
  MOMENT_PARTS = MOMENT_THREADS / MOMENT_CHANNELS
};

KR_DEV double shuffle_xor(double v, int mask) {
  const uint64_t bits = __builtin_bit_cast(uint64_t, v);
  const uint32_t low = kr_float_to_bits(kr_shuffle_xor(kr_bits_to_float((uint32_t)bits), mask));
  const uint32_t high = kr_float_to_bits(kr_shuffle_xor(kr_bits_to_float((uint32_t)(bits >> 32)), mask));
  return __builtin_bit_cast(double, (uint64_t)high << 32 | low);
}

/* The sum over the threads of a channel, returned to all of them; first within the warp. */
KR_DEV double sum_parts(double own, double *sums) {
#pragma unroll
  for (int d = MOMENT_CHANNELS; d < 32; d <<= 1) own += shuffle_xor(own, d);
  if ((kr_thread() & 31) < MOMENT_CHANNELS) sums[kr_thread() / 32 * MOMENT_CHANNELS + (kr_thread() & 31)] = own;
  kr_sync();
  double sum = 0;
#pragma unroll
  for (int i = 0; i < MOMENT_THREADS / 32; i++) sum += sums[i * MOMENT_CHANNELS + kr_thread() % MOMENT_CHANNELS];
  return sum;
}

/* Sums of squares around zero, of float32 means in double: enough digits to survive the cancellation. */
KR_KERNEL void KR_BOUNDS(MOMENT_THREADS, 1) kr_tile_moments(const kr_tile_moments_params p) {
  KR_SHARED double sums[3][MOMENT_THREADS / 32 * MOMENT_CHANNELS];
  const int own = kr_block_x() * MOMENT_CHANNELS + kr_thread() % MOMENT_CHANNELS, item = kr_block_y(),
            c = own < p.C ? own : 0;
  double n = 0, sum = 0, squares = 0;
#pragma unroll 4
  for (int i = kr_thread() / MOMENT_CHANNELS; i < p.n_tiles; i += MOMENT_PARTS) {
    const float *tile = p.partial + ((int64_t)item * p.n_tiles + i) * 3 * p.C + c;
    const double count = (double)tile[0], mean = (double)tile[p.C];
    n += count;
    sum += count * mean;
    squares += (double)tile[2 * p.C] + count * mean * mean;
  }
  n = sum_parts(n, sums[0]);
  const double mean = sum_parts(sum, sums[1]) / n, variance = sum_parts(squares, sums[2]) / n - mean * mean;
  if (kr_thread() >= MOMENT_CHANNELS || own >= p.C) return;
  const double weight = (double)(p.weight ? p.weight[c] : p.weight_one),
               scale = weight / __builtin_sqrt((variance > 0 ? variance : 0) + (double)p.eps);
  p.scale[(int64_t)item * p.C + c] = (float)scale;
  p.shift[(int64_t)item * p.C + c] = (float)((p.bias ? p.bias[c] : p.bias_one) - mean * scale);
}

/* ---- four values at a time --------------------------------------------------------------------------------------- */

KR_KERNEL void KR_BOUNDS(KR_TILE_NORM_THREADS, 8) kr_tile_norm(const kr_tile_norm_params p) {
  const int64_t i = thread_index() * 4;
  const int c = (int)(i % p.C);
  if (i >= p.n) return;
  kr_float4 v = load4(p.x + i);
#pragma unroll
  for (int j = 0; j < 4; j++)
    if (p.beta) v.v[j] = kr_fma(p.beta[c + j], v.v[j], v.v[j]);
  if (p.affine.scale) {
    const int64_t at = i / p.per_item * p.C + c;
    const kr_float4 scale = load4(p.affine.scale + at), shift = load4(p.affine.shift + at),
                    slope = load4(p.affine.slope + c);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      v.v[j] = kr_fma(v.v[j], scale.v[j], shift.v[j]);
      v.v[j] = v.v[j] < 0.0f ? v.v[j] * slope.v[j] : v.v[j];
    }
  }
  *(kr_float4 *)(p.x + i) = v;
}

/* mean_product.cu: the mean over a sequence, and its product with a matrix: one sequence per block. */
#include "mean_product_params.h"
#include "pack.cuh"

KR_DEV kr_float4 load4(const float *from) { return *(const kr_float4 *)from; }

enum { POOL_THREADS = 256, POOL_HELD = 8, POOL_WEIGHTS = 16 };

/* The sum of every lanes-th row of a sequence; four channels. */
KR_DEV kr_float4 sum_sequence(const kr_mean_product_params &p, const float *x, int64_t step, int first, int lanes) {
  kr_float4 sum = {{0.0f, 0.0f, 0.0f, 0.0f}};
  for (int i = first; i < p.S; i += POOL_HELD * lanes) {
    kr_float4 v[POOL_HELD];
#pragma unroll
    for (int j = 0; j < POOL_HELD; j++) v[j] = load4(x + (i + j * lanes < p.S ? i + j * lanes : i) * step);
#pragma unroll
    for (int j = 0; j < POOL_HELD; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) sum.v[k] += kr_select(i + j * lanes < p.S, v[j].v[k], 0.0f);
  }
  return sum;
}

/* Threads beyond whole rows, and beyond whole parts of the product, are idle. */
KR_KERNEL void KR_BOUNDS(POOL_THREADS, 4) kr_mean_product(const kr_mean_product_params p) {
  KR_SHARED float sums[POOL_THREADS * 4];
  KR_SHARED float mean[128];
  const int sequence = kr_block_x(), per_row = p.C / 4, lanes = POOL_THREADS / per_row, lane = kr_thread() / per_row,
            c = kr_thread() % per_row * 4;
  const uint32_t i = kr_divide((uint32_t)sequence, p.J), j = sequence - i * p.J.by;
  const int parts = POOL_THREADS / p.C, part = kr_thread() / p.C, out = kr_thread() % p.C,
            share = (p.C + parts - 1) / parts, k0 = part * share;
  float w[POOL_WEIGHTS];
#pragma unroll
  for (int k = 0; k < POOL_WEIGHTS; k++)
    w[k] = k < share && k0 + k < p.C ? p.weight[(int64_t)(k0 + k) * p.weight_in + out] : 0.0f;
  *(kr_float4 *)(sums + kr_thread() * 4) =
      sum_sequence(p, p.x + i * p.x_i + j * p.x_j + c, p.x_s, lane < lanes ? lane : p.S, lanes);
  kr_sync();
  if (kr_thread() < p.C) {
    float total = 0.0f;
#pragma unroll 8
    for (int n = 0; n < lanes; n++) total += sums[n * p.C + kr_thread()];
    mean[kr_thread()] = total / (float)p.S;
  }
  kr_sync();
  float y = 0.0f;
#pragma unroll
  for (int k = 0; k < POOL_WEIGHTS; k++)
    if (k < share && k0 + k < p.C) y = kr_fma(mean[k0 + k], w[k], y);
  sums[kr_thread()] = y;
  kr_sync();
  if (kr_thread() >= p.C) return;
  y = p.bias ? p.bias[kr_thread()] : 0.0f;
  for (int n = 0; n < parts; n++) y += sums[n * p.C + kr_thread()];
  p.out[(int64_t)sequence * p.C + kr_thread()] = y;
}

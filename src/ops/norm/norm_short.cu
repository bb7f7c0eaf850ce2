/* norm_short.cu: norm of short rows and its gradient (equations in add_norm_ref.c): M / 4 threads per row, four
 * features each, so that a warp has several rows in flight. Memory-bound.
 *   kr_norm_short           KR_SHORT_ROWS rows per thread
 *   kr_norm_short_back      dx; a block accumulates dweight and dbias over its part of the rows
 *   kr_norm_short_back_sum  a warp reduces the partial results of one sum, in fixed order
 * One module per row type KR_DTYPE; parameters and sums are float32. */
#include "norm_short_params.h"
#include "element.cuh"
#include "pack.cuh"

enum { AHEAD = 2 }; /* rows in flight per thread */

#if KR_DTYPE == 0
KR_DEV kr_float4 load_four(const void *from, int64_t at, int exists) {
  return exists ? *(const kr_float4 *)((const float *)from + at) : kr_float4{{0.0f, 0.0f, 0.0f, 0.0f}};
}
KR_DEV void store_four(void *to, int64_t at, const kr_float4 &v) { *(kr_float4 *)((float *)to + at) = v; }
#else
KR_DEV kr_float4 load_four(const void *from, int64_t at, int exists) {
  const uint64_t raw = exists ? *(const uint64_t *)((const element *)from + at) : 0;
  const uint32_t low = (uint32_t)raw, high = (uint32_t)(raw >> 32);
  return kr_float4{{kr_unpack(low, 0, KR_DTYPE), kr_unpack(low, 1, KR_DTYPE), kr_unpack(high, 0, KR_DTYPE),
                    kr_unpack(high, 1, KR_DTYPE)}};
}
KR_DEV void store_four(void *to, int64_t at, const kr_float4 &v) {
  *(uint64_t *)((element *)to + at) =
      kr_pack(v.v[0], v.v[1], KR_DTYPE) | (uint64_t)kr_pack(v.v[2], v.v[3], KR_DTYPE) << 32;
}
#endif
KR_DEV kr_float4 parameter(const float *from, int m, float other) {
  return from ? kr_float4{{from[m], from[m + 1], from[m + 2], from[m + 3]}} : kr_float4{{other, other, other, other}};
}
KR_DEV float sum_row(const kr_norm_short_params &p, float v) {
  for (int d = 1; d < p.lanes; d <<= 1) v += kr_shuffle_xor(v, d);
  return v;
}
/* v = (v - mean) / deviation; returns 1 / deviation. */
KR_DEV float normalise(const kr_norm_short_params &p, kr_float4 &v) {
  const float mean = p.rms ? 0.0f : sum_row(p, (v.v[0] + v.v[1]) + (v.v[2] + v.v[3])) * p.inverse_M;
  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < 4; k++) v.v[k] -= mean, squares = kr_fma(v.v[k], v.v[k], squares);
  const float scale = kr_rsqrt(kr_fma(sum_row(p, squares), p.inverse_M, p.eps));
#pragma unroll
  for (int k = 0; k < 4; k++) v.v[k] *= scale;
  return scale;
}

KR_KERNEL void KR_BOUNDS(KR_SHORT_THREADS, 4) kr_norm_short(const kr_norm_short_params p) {
  const int lane = kr_thread() & (p.lanes - 1), m = lane * 4, rows = KR_SHORT_THREADS / p.lanes;
  const int64_t first = (int64_t)kr_block_x() * KR_SHORT_ROWS * rows + kr_thread() / p.lanes;
  const kr_float4 weight = parameter(p.weight, m, 1.0f), bias = parameter(p.bias, m, 0.0f);
  kr_float4 v[KR_SHORT_ROWS];
#pragma unroll
  for (int i = 0; i < KR_SHORT_ROWS; i++)
    v[i] = load_four(p.x, (first + i * rows) * p.x_row + m, first + i * rows < p.R);
#pragma unroll
  for (int i = 0; i < KR_SHORT_ROWS; i++) {
    normalise(p, v[i]);
#pragma unroll
    for (int k = 0; k < 4; k++) v[i].v[k] = kr_fma(v[i].v[k], weight.v[k], bias.v[k]);
    if (first + i * rows < p.R) store_four(p.out, (first + i * rows) * p.out_row + m, v[i]);
  }
}

KR_KERNEL void KR_BOUNDS(KR_SHORT_THREADS, 4) kr_norm_short_back(const kr_norm_short_params p) {
  KR_SHARED float shared[8 * KR_SHORT_THREADS];
  const int lane = kr_thread() & (p.lanes - 1), m = lane * 4, rows = KR_SHORT_THREADS / p.lanes,
            row = kr_thread() / p.lanes;
  const int64_t first = kr_block_x() * p.rows, end = min64(p.R, first + p.rows);
  const kr_float4 weight = parameter(p.weight, m, 1.0f);
  float sums[8] = {};
  for (int64_t r0 = first; r0 < end; r0 += AHEAD * rows) {
    kr_float4 x[AHEAD], dout[AHEAD], second[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const int64_t r = r0 + i * rows + row;
      x[i] = load_four(p.x, r * p.x_row + m, r < end), dout[i] = load_four(p.dout, r * p.dout_row + m, r < end);
      if (p.second) second[i] = load_four(p.second, r * p.second_row + m, r < end);
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const int64_t r = r0 + i * rows + row;
      const int exists = r < end;
      const float scale = normalise(p, x[i]);
      float along = 0.0f, level = 0.0f;
#pragma unroll
      for (int k = 0; k < 4; k++) {
        float &d = dout[i].v[k];
        sums[k] = kr_fma(d, exists ? x[i].v[k] : 0.0f, sums[k]), sums[4 + k] += d;
        d *= weight.v[k];
        along = kr_fma(d, x[i].v[k], along), level += d;
      }
      along = sum_row(p, along) * p.inverse_M;
      level = p.rms ? 0.0f : sum_row(p, level) * p.inverse_M;
#pragma unroll
      for (int k = 0; k < 4; k++) dout[i].v[k] = (dout[i].v[k] - kr_fma(x[i].v[k], along, level)) * scale;
      if (p.second) {
#pragma unroll
        for (int k = 0; k < 4; k++) dout[i].v[k] += second[i].v[k];
      }
      if (exists && p.out) store_four(p.out, r * p.out_row + m, dout[i]);
    }
  }
#pragma unroll
  for (int k = 0; k < 8; k++) shared[k * KR_SHORT_THREADS + kr_thread()] = sums[k];
  for (int half = rows / 2; half > 0; half /= 2) {
    kr_sync();
    if (row >= half) continue;
#pragma unroll
    for (int k = 0; k < 8; k++)
      shared[k * KR_SHORT_THREADS + kr_thread()] = sums[k] +=
          shared[k * KR_SHORT_THREADS + kr_thread() + half * p.lanes];
  }
  if (row) return;
#pragma unroll
  for (int k = 0; k < 8; k++) p.partial[((int64_t)kr_block_x() * 2 + k / 4) * p.M + m + k % 4] = sums[k];
}

KR_KERNEL void KR_BOUNDS(KR_SHORT_THREADS, 4) kr_norm_short_back_sum(const kr_norm_short_params p) {
  const int lane = kr_thread() & 31, column = kr_block_x() * (KR_SHORT_THREADS / 32) + kr_thread() / 32,
            which = column / p.M, m = column - which * p.M;
  const kr_view &to = which ? p.dbias : p.dweight;
  float sum = 0.0f;
#pragma unroll 8
  for (int part = lane; part < (which < 2 ? p.n_parts : 0); part += 32)
    sum += p.partial[((int64_t)part * 2 + which) * p.M + m];
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) sum += kr_shuffle_xor(sum, d);
  if (lane == 0 && which < 2 && to.data) ((float *)to.data)[m * to.stride[0]] = sum;
}

/* gated_filter.cu: two filters along H, multiplied. A thread has four channels of a position, a block adjacent
 * positions along H: neighbours' rows hit the L1 cache. */
#include "gated_filter_params.h"
#include "pack.cuh"

KR_DEV kr_float4 load4(const float *from) { return *(const kr_float4 *)from; }

KR_DEV void add_tap(kr_float4 &sum, const kr_float4 &tap, const kr_float4 &x) {
#pragma unroll
  for (int j = 0; j < 4; j++) sum.v[j] = kr_fma(tap.v[j], x.v[j], sum.v[j]);
}

/* Zeros where the filter reaches past the ends, in which case `from` is the position itself. */
KR_DEV kr_float4 load_within(const float *from, int within) {
  kr_float4 v = load4(from);
#pragma unroll
  for (int j = 0; j < 4; j++) v.v[j] = kr_select(within, v.v[j], 0.0f);
  return v;
}

/* TAPS: if known, so that all loads precede the first sum; 0: any number. */
template <int TAPS>
KR_DEV void filter(const kr_gated_filter_params &p) {
  const int per_row = p.C / 4, h = kr_block_y() * (kr_block_threads() / per_row) + kr_thread() / per_row,
            c = kr_thread() % per_row * 4, C = p.C;
  if (h >= p.H) return;
  const float *x = p.x + kr_block_z() * p.x_b + h * p.x_h + (int64_t)kr_block_x() * p.x_w + c, *tap = p.weight + c;
  kr_float4 a = {{0.0f, 0.0f, 0.0f, 0.0f}}, b = a, xa[TAPS ? TAPS : 1], xb[TAPS ? TAPS : 1];
  if (p.bias) a = load4(p.bias + c), b = load4(p.bias + C + c);
  if (TAPS) {
#pragma unroll
    for (int i = 0; i < TAPS; i++) {
      const int at = h + i - p.P, within = at >= 0 && at < p.H;
      const float *from = x + (within ? i - p.P : 0) * p.x_h;
      xa[i] = load_within(from, within), xb[i] = load_within(from + C, within);
    }
#pragma unroll
    for (int i = 0; i < TAPS; i++)
      add_tap(a, load4(tap + i * p.tap), xa[i]), add_tap(b, load4(tap + i * p.tap + C), xb[i]);
  } else {
    for (int i = 0; i < p.K; i++) {
      if (h + i < p.P || h + i - p.P >= p.H) continue;
      const float *from = x + (i - p.P) * p.x_h;
      add_tap(a, load4(tap + (int64_t)i * p.tap), load4(from)),
          add_tap(b, load4(tap + (int64_t)i * p.tap + C), load4(from + C));
    }
  }
#pragma unroll
  for (int j = 0; j < 4; j++) a.v[j] *= b.v[j];
  *(kr_float4 *)(p.out + kr_block_z() * p.out_b + h * p.out_h + (int64_t)kr_block_x() * p.out_w + c) = a;
}

KR_KERNEL void KR_BOUNDS(KR_GATED_FILTER_THREADS, 8) kr_gated_filter_3(const kr_gated_filter_params p) { filter<3>(p); }
KR_KERNEL void KR_BOUNDS(KR_GATED_FILTER_THREADS, 6) kr_gated_filter(const kr_gated_filter_params p) { filter<0>(p); }

/* conv2d.cu: channels-last convolutions (conv2d_ref.c has the equations). 32 adjacent threads take 32 channels.
 *   kr_filter_strip, _one  KR_CONV_STRIP outputs along H per thread (or one, if taps are dilated): each input is loaded
 *                          once for all of them, with weights shifted through registers
 *   kr_filter_KHxKW        the same for tap sizes used by models, all weights in registers: only loads and
 *                          multiply-adds remain
 *   kr_taps_many, _one     gradients of KR_CONV_TAPS taps along H (or of one), inputs shifted through registers
 *   kr_taps_KHxKW          of all taps at once: the gradients are in registers, and inputs stream past those of
 *                          KR_CONV_STRIP outputs
 *   kr_taps_sum            reduces the parts in a fixed order
 *   kr_unfold, kr_fold     one element of out per thread
 * One module per activation type, KR_DTYPE; parameters and sums are float32. With 16-bit types a thread of the kernels
 * for known tap sizes takes two adjacent channels. */
#include "conv2d_params.h"
#include "element.cuh"
#include "pack.cuh"

#if KR_DTYPE == 0
typedef float several; /* what a thread loads at a time */
enum { V = 1 };
KR_DEV float one_of(several v, int) { return v; }
KR_DEV several put_together(const float (&v)[V]) { return v[0]; }
#else
typedef uint32_t several;
enum { V = 2 };
KR_DEV float one_of(several v, int k) { return element_value((element)(k ? v >> 16 : v)); }
KR_DEV several put_together(const float (&v)[V]) { return kr_pack(v[0], v[1], KR_DTYPE); }
#endif
KR_DEV several values(const element *p) { return *(const several *)p; }
KR_DEV float get(const kr_view &v, int64_t at) { return ((const float *)v.data)[at]; }

typedef struct strip {
  const element *in; /* of input row 0 */
  int64_t step;    /* row stride */
  const float *weight; /* of this column of taps: tap i at i * step_weight, in the inputs' order */
  int step_weight;
} strip;

/* One column of taps: streams inputs of rows first, first + apart, ... below H, shifting the weights along. INSIDE: all
 * rows are in bounds. */
template <int N, int INSIDE>
KR_DEV void pass_by(const strip &s, int KH, int apart, int first, int H, float (&sum)[N]) {
  float w[N];
#pragma unroll
  for (int o = 0; o < N; o++) w[o] = 0.0f;
#pragma unroll 8
  for (int k = 0; k < KH + N - 1; k++) {
#pragma unroll
    for (int o = N - 1; o > 0; o--) w[o] = w[o - 1];
    w[0] = k < KH ? s.weight[k * s.step_weight] : 0.0f;
    const int y = first + k * apart;
    if (!INSIDE && (y < 0 || y >= H)) continue;
    const float v = value(s.in, y * s.step);
    if (k >= N - 1 && k < KH) {
#pragma unroll
      for (int o = 0; o < N; o++) sum[o] = kr_fma(w[o], v, sum[o]);
    } else {
#pragma unroll
      for (int o = 0; o < N; o++)
        if (k >= o && k - o < KH) sum[o] = kr_fma(w[o], v, sum[o]);
    }
  }
}

/* A thread goes down its column of n_strips strips: rows shared by two of them are still in cache. */
template <int N>
KR_DEV void filter(const kr_filter_params &p) {
  KR_DYNAMIC_SHARED(bytes);
  float *const weight = (float *)bytes;
  const int lane = kr_thread() & 31, slot = kr_thread() >> 5, taps = p.KH * p.KW;
  uint32_t block = (uint32_t)kr_block_x();
  const int w = (int)(block % p.n_columns) * (KR_CONV_THREADS / 32) + slot;
  block /= p.n_columns;
  const int begin = (int)(block % p.n_runs) * p.n_strips * N, end = (int)min64(p.H, begin + p.n_strips * N);
  block /= p.n_runs;
  const int64_t c = (int64_t)(block % p.n_channels) * 32 + lane, b = block / p.n_channels;
  for (int tap = slot; tap < taps; tap += KR_CONV_THREADS / 32) {
    const int from = p.flip ? taps - 1 - tap : tap;
    weight[tap * 32 + lane] = c < p.C ? get(p.weight, c * p.weight.stride[0] + from / p.KW * p.weight.stride[1] +
                                                          from % p.KW * p.weight.stride[2])
                                      : 0.0f;
  }
  kr_sync();
  if (w >= p.W || c >= p.C) return;
  const float bias = p.bias.data ? get(p.bias, c * p.bias.stride[0]) : 0.0f;
  element *const out = (element *)p.out.data + b * p.out.stride[0] + w * p.out.stride[2] + c * p.out.stride[3];
  for (int h = begin; h < end; h += N) {
    float sum[N];
#pragma unroll
    for (int o = 0; o < N; o++) sum[o] = bias;
    const int first = h - p.PH, last = first + (p.KH + N - 2) * p.DH;
    for (int j = 0; j < p.KW; j++) {
      const int x = w + j * p.DW - p.PW;
      if (x < 0 || x >= p.W) continue;
      const strip s = {(const element *)p.in.data + b * p.in.stride[0] + x * p.in.stride[2] + c * p.in.stride[3],
                       p.in.stride[1], weight + j * 32 + lane, p.KW * 32};
      if (first >= 0 && last < p.H) pass_by<N, 1>(s, p.KH, p.DH, first, (int)p.H, sum);
      else pass_by<N, 0>(s, p.KH, p.DH, first, (int)p.H, sum);
    }
#pragma unroll
    for (int o = 0; o < N; o++)
      if (h + o < end) put(out, (h + o) * p.out.stride[1], sum[o]);
  }
}

KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 4) kr_filter_strip(const kr_filter_params p) { filter<KR_CONV_STRIP>(p); }
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 4) kr_filter_one(const kr_filter_params p) { filter<1>(p); }

/* Rows first, first + 1, ... of a column, all loads in flight at once. INSIDE: all are in bounds. */
template <int INSIDE, int N>
KR_DEV void load_column(several (&v)[N], const element *column, int64_t step, int first, int H) {
#pragma unroll
  for (int k = 0; k < N; k++) v[k] = INSIDE || (first + k >= 0 && first + k < H) ? values(column + k * step) : 0;
}

/* Known tap size: weights in registers, DH is 1. */
template <int KH, int KW>
KR_DEV void filter_known(const kr_filter_params &p) {
  enum { N = KR_CONV_STRIP };
  const int lane = kr_thread() & 31, slot = kr_thread() >> 5, H = (int)p.H;
  uint32_t block = (uint32_t)kr_block_x();
  const int w = (int)(block % p.n_columns) * (KR_CONV_THREADS / 32) + slot;
  block /= p.n_columns;
  const int begin = (int)(block % p.n_runs) * p.n_strips * N, end = (int)min64(p.H, begin + p.n_strips * N);
  block /= p.n_runs;
  const int64_t c = ((int64_t)(block % p.n_channels) * 32 + lane) * V, b = block / p.n_channels;
  if (w >= p.W || c >= p.C) return;
  float weight[KH][KW][V], bias[V];
#pragma unroll
  for (int i = 0; i < KH; i++)
#pragma unroll
    for (int j = 0; j < KW; j++)
#pragma unroll
      for (int e = 0; e < V; e++)
        weight[i][j][e] = get(p.weight, (c + e) * p.weight.stride[0] + (p.flip ? KH - 1 - i : i) * p.weight.stride[1] +
                                            (p.flip ? KW - 1 - j : j) * p.weight.stride[2]);
#pragma unroll
  for (int e = 0; e < V; e++) bias[e] = p.bias.data ? get(p.bias, (c + e) * p.bias.stride[0]) : 0.0f;
  const element *const in = (const element *)p.in.data + b * p.in.stride[0] + c * p.in.stride[3];
  element *const out = (element *)p.out.data + b * p.out.stride[0] + w * p.out.stride[2] + c * p.out.stride[3];
  for (int h = begin; h < end; h += N) {
    float sum[N][V];
#pragma unroll
    for (int o = 0; o < N; o++)
#pragma unroll
      for (int e = 0; e < V; e++) sum[o][e] = bias[e];
    const int first = h - p.PH, inside = first >= 0 && first + KH + N - 2 < H;
#pragma unroll
    for (int j = 0; j < KW; j++) {
      const int x = w + j * p.DW - p.PW;
      if (x < 0 || x >= p.W) continue;
      several v[KH + N - 1];
      if (inside) load_column<1>(v, in + x * p.in.stride[2] + first * p.in.stride[1], p.in.stride[1], first, H);
      else load_column<0>(v, in + x * p.in.stride[2] + first * p.in.stride[1], p.in.stride[1], first, H);
#pragma unroll
      for (int k = 0; k < KH + N - 1; k++) {
        if (!inside && (first + k < 0 || first + k >= H)) continue; /* keeps an infinite weight from zero padding */
#pragma unroll
        for (int o = 0; o < N; o++)
          if (k >= o && k - o < KH)
#pragma unroll
            for (int e = 0; e < V; e++) sum[o][e] = kr_fma(weight[k - o][j][e], one_of(v[k], e), sum[o][e]);
      }
    }
#pragma unroll
    for (int o = 0; o < N; o++)
      if (h + o < end) *(several *)(out + (h + o) * p.out.stride[1]) = put_together(sum[o]);
  }
}

KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 2) kr_filter_3x3(const kr_filter_params p) { filter_known<3, 3>(p); }

typedef struct alignas(4 * V) weights {
  float v[V];
} weights;

/* Row y of a column, or zeros. */
KR_DEV several row_of(const element *column, int64_t step, int y, int H, int there) {
  return there && y >= 0 && y < H ? values(column + y * step) : 0;
}

/* Taps along H only: a thread keeps rows shared by its strips in registers and prefetches the next strip's. Weights are
 * streamed from shared memory. */
template <int KH>
KR_DEV void filter_along(const kr_filter_params &p) {
  enum { N = KR_CONV_STRIP, KEPT = KH - 1, CHANNELS = 32 * V };
  KR_DYNAMIC_SHARED(bytes);
  float *const shared = (float *)bytes; /* (KH, CHANNELS) */
  const int lane = kr_thread() & 31, slot = kr_thread() >> 5, H = (int)p.H;
  uint32_t block = (uint32_t)kr_block_x();
  const int w = (int)(block % p.n_columns) * (KR_CONV_THREADS / 32) + slot;
  block /= p.n_columns;
  const int begin = (int)(block % p.n_runs) * p.n_strips * N, end = (int)min64(p.H, begin + p.n_strips * N);
  block /= p.n_runs;
  const int64_t c0 = (int64_t)(block % p.n_channels) * CHANNELS, c = c0 + lane * V, b = block / p.n_channels;
  for (int i = kr_thread(); i < KH * CHANNELS; i += KR_CONV_THREADS) {
    const int tap = i % KH, channel = i / KH;
    shared[(p.flip ? KH - 1 - tap : tap) * CHANNELS + channel] =
        c0 + channel < p.C ? get(p.weight, (c0 + channel) * p.weight.stride[0] + tap * p.weight.stride[1]) : 0.0f;
  }
  kr_sync();
  if (w >= p.W || c >= p.C) return;
  const int x = w - p.PW, there = x >= 0 && x < p.W;
  const int64_t step = p.in.stride[1], out_step = p.out.stride[1];
  const element *const in =
      (const element *)p.in.data + b * p.in.stride[0] + (there ? x : 0) * p.in.stride[2] + c * p.in.stride[3];
  element *const out = (element *)p.out.data + b * p.out.stride[0] + w * p.out.stride[2] + c * p.out.stride[3];
  several v[KEPT + N], next[N];
  float bias[V];
#pragma unroll
  for (int e = 0; e < V; e++) bias[e] = p.bias.data ? get(p.bias, (c + e) * p.bias.stride[0]) : 0.0f;
#pragma unroll
  for (int k = 0; k < KEPT; k++) v[k] = row_of(in, step, begin - p.PH + k, H, there);
#pragma unroll
  for (int o = 0; o < N; o++) next[o] = row_of(in, step, begin - p.PH + KEPT + o, H, there);
#pragma unroll 1
  for (int h = begin; h < end; h += N) {
    const int first = h - p.PH, inside = first >= 0 && first + KEPT + N - 1 < H;
    float sum[N][V];
    weights tap[N];
#pragma unroll
    for (int o = 0; o < N; o++) v[KEPT + o] = next[o];
    if (h + N < end) {
#pragma unroll
      for (int o = 0; o < N; o++) next[o] = row_of(in, step, first + N + KEPT + o, H, there);
    }
#pragma unroll
    for (int o = 0; o < N; o++)
#pragma unroll
      for (int e = 0; e < V; e++) sum[o][e] = bias[e];
#pragma unroll
    for (int k = 0; k < KEPT + N; k++) {
#pragma unroll
      for (int o = N - 1; o > 0; o--) tap[o] = tap[o - 1];
      if (k < KH) tap[0] = *(const weights *)(shared + k * CHANNELS + lane * V);
      if (!there || (!inside && (first + k < 0 || first + k >= H)))
        continue; /* keeps an infinite weight from zero padding */
#pragma unroll
      for (int o = 0; o < N; o++)
        if (k >= o && k - o < KH)
#pragma unroll
          for (int e = 0; e < V; e++) sum[o][e] = kr_fma(tap[o].v[e], one_of(v[k], e), sum[o][e]);
    }
#pragma unroll
    for (int o = 0; o < N; o++)
      if (h + o < end) *(several *)(out + (h + o) * out_step) = put_together(sum[o]);
#pragma unroll
    for (int k = 0; k < KEPT; k++) v[k] = v[k + N];
  }
}

KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 3) kr_filter_3x1(const kr_filter_params p) { filter_along<3>(p); }
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 3) kr_filter_11x1(const kr_filter_params p) { filter_along<11>(p); }
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, V == 1 ? 3 : 2) kr_filter_23x1(const kr_filter_params p) {
  filter_along<23>(p);
}
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, V == 1 ? 3 : 2) kr_filter_31x1(const kr_filter_params p) {
  filter_along<31>(p);
}

/* ---- gradients of the taps ---- */

template <int N>
KR_DEV void sum_taps(const kr_taps_params &p) {
  KR_SHARED float shared[(N + 1) * KR_CONV_THREADS];
  const int lane = kr_thread() & 31, slot = kr_thread() >> 5, per_column = (p.KH + N - 1) / N;
  uint32_t block = (uint32_t)kr_block_x();
  const int part = (int)(block % p.n_columns);
  block /= p.n_columns;
  const int group = (int)(block % p.n_groups), j = group / per_column, i = group % per_column * N,
            with_bias = group == 0 && p.dbias.data != 0;
  block /= p.n_groups;
  const int64_t c = (int64_t)(block % p.n_channels) * 32 + lane, b = block / p.n_channels;
  const int H = (int)p.H, begin = part * KR_CONV_COLUMNS, end = (int)min64(p.W, begin + KR_CONV_COLUMNS);
  float sum[N], bias = 0.0f;
#pragma unroll
  for (int o = 0; o < N; o++) sum[o] = 0.0f;
  for (int w = begin + slot; w < end && c < p.C; w += KR_CONV_THREADS / 32) {
    const int x = w + j * p.DW - p.PW, first = i * p.DH - p.PH, there = x >= 0 && x < p.W;
    const element *const in =
        (const element *)p.x.data + b * p.x.stride[0] + (there ? x : 0) * p.x.stride[2] + c * p.x.stride[3];
    const element *const dout =
        (const element *)p.dout.data + b * p.dout.stride[0] + w * p.dout.stride[2] + c * p.dout.stride[3];
    if (!there && !with_bias) continue;
    float v[N];
#pragma unroll
    for (int o = 0; o < N - 1; o++) {
      const int y = first + o;
      v[o + 1] = there && y >= 0 && y < H ? value(in, y * p.x.stride[1]) : 0.0f;
    }
#pragma unroll 4
    for (int h = 0; h < H; h++) {
#pragma unroll
      for (int o = 0; o < N - 1; o++) v[o] = v[o + 1];
      const int y = h + first + N - 1;
      v[N - 1] = there && y >= 0 && y < H ? value(in, y * p.x.stride[1]) : 0.0f;
      const float d = value(dout, h * p.dout.stride[1]);
      bias += d;
#pragma unroll
      for (int o = 0; o < N; o++) sum[o] = kr_fma(d, v[o], sum[o]);
    }
  }
#pragma unroll
  for (int o = 0; o < N; o++) shared[o * KR_CONV_THREADS + kr_thread()] = sum[o];
  shared[N * KR_CONV_THREADS + kr_thread()] = bias;
  kr_sync();
  for (int o = slot; o <= N; o += KR_CONV_THREADS / 32) {
    float all = 0.0f;
    for (int k = 0; k < KR_CONV_THREADS / 32; k++) all += shared[o * KR_CONV_THREADS + k * 32 + lane];
    const int tap = o == N ? p.KH * p.KW : (i + o) * p.KW + j;
    if (c < p.C && (o == N ? with_bias : i + o < p.KH))
      p.partial[((b * p.n_columns + part) * (p.KH * p.KW + 1) + tap) * p.C + c] = all;
  }
}

KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 4) kr_taps_many(const kr_taps_params p) { sum_taps<KR_CONV_TAPS>(p); }
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 4) kr_taps_few(const kr_taps_params p) { sum_taps<3>(p); }
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 4) kr_taps_one(const kr_taps_params p) { sum_taps<1>(p); }

/* Reduces the block's sums of its taps and of the bias over the slots, in a fixed order. */
template <int TAPS>
KR_DEV void put_sums(const kr_taps_params &p, int64_t part, int64_t c, const float (&sum)[TAPS + 1][V], float *shared) {
  enum { SLOTS = KR_CONV_THREADS / 32 };
  const int lane = kr_thread() & 31, slot = kr_thread() >> 5;
  for (int turn = 0; turn < SLOTS; turn++) {
    if (slot == turn) {
#pragma unroll
      for (int o = 0; o <= TAPS; o++)
#pragma unroll
        for (int e = 0; e < V; e++) {
          float *const at = shared + (o * V + e) * 32 + lane;
          *at = (turn ? *at : 0.0f) + sum[o][e];
        }
    }
    kr_sync();
  }
  for (int o = slot; o <= TAPS; o += SLOTS)
#pragma unroll
    for (int e = 0; e < V; e++)
      if (c < p.C) p.partial[(part * (TAPS + 1) + o) * p.C + c + e] = shared[(o * V + e) * 32 + lane];
}

/* All taps, KH along H unrolled. */
template <int KH, int KW>
KR_DEV void sum_all_taps(const kr_taps_params &p) {
  enum { N = KR_CONV_STRIP, TAPS = KH * KW, SLOTS = KR_CONV_THREADS / 32 };
  KR_SHARED float shared[(TAPS + 1) * 32 * V];
  const int lane = kr_thread() & 31, slot = kr_thread() >> 5;
  uint32_t block = (uint32_t)kr_block_x();
  const int part = (int)(block % p.n_columns);
  block /= p.n_columns;
  const int64_t c = ((int64_t)(block % p.n_channels) * 32 + lane) * V, b = block / p.n_channels;
  const int H = (int)p.H, begin = part * KR_CONV_COLUMNS, end = (int)min64(p.W, begin + KR_CONV_COLUMNS);
  float sum[TAPS + 1][V];
#pragma unroll
  for (int o = 0; o <= TAPS; o++)
#pragma unroll
    for (int e = 0; e < V; e++) sum[o][e] = 0.0f;
  for (int w = begin + slot; w < end && c < p.C; w += SLOTS) {
    const element *const dout =
        (const element *)p.dout.data + b * p.dout.stride[0] + w * p.dout.stride[2] + c * p.dout.stride[3];
    const element *const in = (const element *)p.x.data + b * p.x.stride[0] + c * p.x.stride[3];
    for (int h = 0; h < H; h += N) {
      several d[N];
#pragma unroll
      for (int o = 0; o < N; o++) d[o] = h + o < H ? values(dout + (h + o) * p.dout.stride[1]) : 0;
#pragma unroll
      for (int o = 0; o < N; o++)
#pragma unroll
        for (int e = 0; e < V; e++) sum[TAPS][e] += one_of(d[o], e);
#pragma unroll
      for (int j = 0; j < KW; j++) {
        const int x = w + j * p.DW - p.PW, first = h - p.PH;
        if (x < 0 || x >= p.W) continue;
        several v[KH + N - 1];
        if (first >= 0 && first + KH + N - 2 < H)
          load_column<1>(v, in + x * p.x.stride[2] + first * p.x.stride[1], p.x.stride[1], first, H);
        else load_column<0>(v, in + x * p.x.stride[2] + first * p.x.stride[1], p.x.stride[1], first, H);
#pragma unroll
        for (int k = 0; k < KH + N - 1; k++)
#pragma unroll
          for (int o = 0; o < N; o++)
            if (k >= o && k - o < KH)
#pragma unroll
              for (int e = 0; e < V; e++)
                sum[(k - o) * KW + j][e] = kr_fma(one_of(d[o], e), one_of(v[k], e), sum[(k - o) * KW + j][e]);
      }
    }
  }
  put_sums<TAPS>(p, b * p.n_columns + part, c, sum, shared);
}

/* The same for taps along H only: a thread keeps rows shared by its strips in registers. */
template <int KH>
KR_DEV void sum_taps_along(const kr_taps_params &p) {
  enum { N = KR_CONV_STRIP, KEPT = KH - 1, SLOTS = KR_CONV_THREADS / 32 };
  KR_SHARED float shared[(KH + 1) * 32 * V];
  const int lane = kr_thread() & 31, slot = kr_thread() >> 5;
  uint32_t block = (uint32_t)kr_block_x();
  const int part = (int)(block % p.n_columns);
  block /= p.n_columns;
  const int64_t c = ((int64_t)(block % p.n_channels) * 32 + lane) * V, b = block / p.n_channels, step = p.x.stride[1],
                d_step = p.dout.stride[1];
  const int H = (int)p.H, begin = part * KR_CONV_COLUMNS, end = (int)min64(p.W, begin + KR_CONV_COLUMNS);
  float sum[KH + 1][V];
#pragma unroll
  for (int o = 0; o <= KH; o++)
#pragma unroll
    for (int e = 0; e < V; e++) sum[o][e] = 0.0f;
  for (int w = begin + slot; w < end && c < p.C; w += SLOTS) {
    const int x = w - p.PW, there = x >= 0 && x < p.W;
    const element *const dout =
        (const element *)p.dout.data + b * p.dout.stride[0] + w * p.dout.stride[2] + c * p.dout.stride[3];
    const element *const in =
        (const element *)p.x.data + b * p.x.stride[0] + (there ? x : 0) * p.x.stride[2] + c * p.x.stride[3];
    several v[KEPT + N], d[N];
#pragma unroll
    for (int k = 0; k < KEPT; k++) v[k] = row_of(in, step, k - p.PH, H, there);
#pragma unroll 1
    for (int h = 0; h < H; h += N) {
#pragma unroll
      for (int o = 0; o < N; o++)
        v[KEPT + o] = row_of(in, step, h + KEPT + o - p.PH, H, there), d[o] = row_of(dout, d_step, h + o, H, 1);
#pragma unroll
      for (int o = 0; o < N; o++)
#pragma unroll
        for (int e = 0; e < V; e++) sum[KH][e] += one_of(d[o], e);
#pragma unroll
      for (int k = 0; k < KEPT + N; k++)
#pragma unroll
        for (int o = 0; o < N; o++)
          if (k >= o && k - o < KH)
#pragma unroll
            for (int e = 0; e < V; e++) sum[k - o][e] = kr_fma(one_of(d[o], e), one_of(v[k], e), sum[k - o][e]);
#pragma unroll
      for (int k = 0; k < KEPT; k++) v[k] = v[k + N];
    }
  }
  put_sums<KH>(p, b * p.n_columns + part, c, sum, shared);
}

KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 2) kr_taps_3x3(const kr_taps_params p) { sum_all_taps<3, 3>(p); }
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 2) kr_taps_3x1(const kr_taps_params p) { sum_taps_along<3>(p); }
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 2) kr_taps_11x1(const kr_taps_params p) { sum_taps_along<11>(p); }
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 2) kr_taps_23x1(const kr_taps_params p) { sum_all_taps<23, 1>(p); }
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 2) kr_taps_31x1(const kr_taps_params p) { sum_all_taps<31, 1>(p); }

/* 32 channels per block, one slice of the parts per warp; block_y: the tap, or the bias. */
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 4) kr_taps_sum(const kr_taps_params p) {
  KR_SHARED float shared[KR_CONV_THREADS];
  const int lane = kr_thread() & 31, slice = kr_thread() >> 5, tap = kr_block_y(), taps = p.KH * p.KW;
  const int64_t c = (int64_t)kr_block_x() * 32 + lane, n_parts = p.B * p.n_columns;
  const int wanted = tap == taps ? p.dbias.data != 0 : p.dweight.data != 0;
  float sum = 0.0f;
#pragma unroll 8
  for (int64_t part = slice; part < n_parts && c < p.C && wanted; part += KR_CONV_THREADS / 32)
    sum += p.partial[(part * (taps + 1) + tap) * p.C + c];
  shared[kr_thread()] = sum;
  kr_sync();
  if (slice || c >= p.C || !wanted) return;
  for (int k = 1; k < KR_CONV_THREADS / 32; k++) sum += shared[k * 32 + lane];
  if (tap == taps) ((float *)p.dbias.data)[c * p.dbias.stride[0]] = sum;
  else
    ((float *)p.dweight
         .data)[c * p.dweight.stride[0] + tap / p.KW * p.dweight.stride[1] + tap % p.KW * p.dweight.stride[2]] = sum;
}

/* ---- unfold and fold ---- */

KR_KERNEL void KR_BOUNDS(KR_WINDOW_THREADS, 4) kr_unfold(const kr_windows_plan p) {
  const int64_t thread = (int64_t)kr_block_x() * KR_WINDOW_THREADS + kr_thread();
  if (thread >= p.n) return;
  const uint32_t row = kr_divide((uint32_t)thread, p.inner), k = (uint32_t)thread - row * p.inner.by,
                 tap = kr_divide(k, p.C), c = k - tap * p.C.by;
  const uint32_t plane = kr_divide(row, p.columns), j = row - plane * p.columns.by, b = kr_divide(plane, p.rows),
                 i = plane - b * p.rows.by;
  const uint32_t above = kr_divide(tap, p.taps);
  const int y = (int)i * p.SH + (int)above - p.PH, x = (int)j * p.SW + (int)(tap - above * p.taps.by) - p.PW;
  const int inside = y >= 0 && y < p.H && x >= 0 && x < p.W;
  ((element *)p.out.data)[b * p.out.stride[0] + i * p.out.stride[1] + j * p.out.stride[2] + k * p.out.stride[3]] =
      inside ? ((const element *)p.x.data)[b * p.x.stride[0] + y * p.x.stride[1] + x * p.x.stride[2] +
                                           c * p.x.stride[3]]
             : (element)0;
}

KR_DEV int rounded_up(int a, int by) { return a <= 0 ? 0 : (a + by - 1) / by; }

KR_KERNEL void KR_BOUNDS(KR_WINDOW_THREADS, 4) kr_fold(const kr_windows_plan p) {
  const int64_t thread = (int64_t)kr_block_x() * KR_WINDOW_THREADS + kr_thread();
  if (thread >= p.n) return;
  const uint32_t row = kr_divide((uint32_t)thread, p.C), c = (uint32_t)thread - row * p.C.by,
                 plane = kr_divide(row, p.columns), w = row - plane * p.columns.by;
  const uint32_t b = kr_divide(plane, p.rows), h = plane - b * p.rows.by;
  const int y = (int)h + p.PH, x = (int)w + p.PW, last_i = y / p.SH < p.OH - 1 ? y / p.SH : p.OH - 1,
            last_j = x / p.SW < p.OW - 1 ? x / p.SW : p.OW - 1;
  float sum = 0.0f;
  for (int i = rounded_up(y - p.KH + 1, p.SH); i <= last_i; i++)
    for (int j = rounded_up(x - p.KW + 1, p.SW); j <= last_j; j++) {
      const int64_t k = ((int64_t)(y - i * p.SH) * p.KW + (x - j * p.SW)) * p.C.by + c;
      sum += value((const element *)p.x.data,
                   b * p.x.stride[0] + i * p.x.stride[1] + j * p.x.stride[2] + k * p.x.stride[3]);
    }
  put((element *)p.out.data, b * p.out.stride[0] + h * p.out.stride[1] + w * p.out.stride[2] + c * p.out.stride[3],
      sum);
}

/* causal_conv1d.cu: the short causal convolution forward and its last inputs (causal_conv1d_ref.c has the equation).
 *   kr_conv_rows   a thread makes 16 bytes of one row; its left neighbours come through the cache. W up to 4
 *   kr_conv_last   channels innermost: a thread makes 16 bytes of channels for a run of steps. W up to 4
 *   kr_conv_walk   a block walks along one row; any W up to 128, packed sequences, and out may be x
 *   kr_conv_final  the last W-1 inputs
 * Bound by memory: 2 accesses of 16 bytes per 8 outputs. */
#include "conv.cuh"

/* One branch for all of them. */
KR_DEV void activate(const kr_conv_plan &p, float (&y)[8]) {
  if (!p.silu) return;
#pragma unroll
  for (int k = 0; k < E; k++) y[k] = kr_silu(y[k]);
}

KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 4) kr_conv_rows(const kr_conv_plan p) {
    const uint32_t i = (uint32_t)kr_block_x() * KR_CONV_THREADS + kr_thread(), row = kr_divide(i, p.packs_per_row), b32 = kr_divide(row, p.rows);
  if (b32 >= p.B) return;
  const int64_t b = b32, d = row - b32 * p.rows.by, t = (int64_t)(i - row * p.packs_per_row.by) * E;
  const int64_t at = b * p.x.b + d * p.x.row + t * p.x.t;
  float now[8], before[4], w[4], y[8];
  read_pack(p.x, KR_DTYPE, at, p.L - t, now);
  read_before(p, b, d, t, before);
  load_taps(p, d, w);
  const float bias = load_bias(p, d);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    float sum = bias;
#pragma unroll
    for (int j = 0; j < 4; j++) sum = kr_fma(w[j], k - 3 + j >= 0 ? now[k - 3 + j < 0 ? 0 : k - 3 + j] : before[k + j + 1 > 3 ? 3 : k + j + 1], sum);
    y[k] = sum;
  }
  activate(p, y);
  write_pack(p.out, KR_DTYPE, b * p.out.b + d * p.out.row + t * p.out.t, min64(E, p.L - t), y);
}

/* Here a pack runs along channels: x.row is 1. */
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 2) kr_conv_last(const kr_conv_plan p) {
    const uint32_t i = (uint32_t)kr_block_x() * KR_CONV_THREADS + kr_thread(), run = kr_divide(i, p.packs_per_row), b32 = kr_divide(run, p.runs);
  if (b32 >= p.B) return;
  const int64_t d = (int64_t)(i - run * p.packs_per_row.by) * E, t0 = (int64_t)(run - b32 * p.runs.by) * KR_CONV_RUN, b = b32;
  kr_rows in = p.x, out = p.out;
  in.packs = out.packs = 1, in.t = out.t = 1;
  float w[8][4], bias[8], window[4][8];
#pragma unroll
  for (int k = 0; k < 8; k++) {
    if (k < E) load_taps(p, d + k, w[k]);
    bias[k] = k < E ? load_bias(p, d + k) : 0.0f;
  }
#pragma unroll
  for (int j = 1; j < 4; j++) {
    int64_t t = t0 - 4 + j;
    read_pack(in, KR_DTYPE, b * p.x.b + d + t * p.x.t, t >= 0 ? E : 0, window[j]);
  }
#pragma unroll
  for (int s = 0; s < KR_CONV_RUN; s++) {
    int64_t t = t0 + s;
    if (t >= p.L) break;
    float y[8];
#pragma unroll
    for (int j = 0; j < 3; j++)
#pragma unroll
      for (int k = 0; k < 8; k++) window[j][k] = window[j + 1][k];
    read_pack(in, KR_DTYPE, b * p.x.b + d + t * p.x.t, E, window[3]);
#pragma unroll
    for (int k = 0; k < 8; k++) {
      float sum = bias[k];
#pragma unroll
      for (int j = 0; j < 4; j++) sum = kr_fma(w[k][j], window[j][k], sum);
      y[k] = sum;
    }
    activate(p, y);
    write_pack(out, KR_DTYPE, b * p.out.b + d + t * p.out.t, E, y);
  }
}

KR_KERNEL void KR_BOUNDS(KR_CONV_WALK, 4) kr_conv_walk(const kr_conv_plan p) {
  KR_SHARED float window[KR_CONV_MOST_TAPS + KR_CONV_WALK];
  const int64_t b = kr_block_x() / p.D, d = kr_block_x() % p.D;
  const int thread = kr_thread(), keep = (int)p.W - 1;
  const float bias = load_bias(p, d);
  for (int k = thread; k < keep; k += KR_CONV_WALK) window[k] = input_at(p, b, d, k - keep);
  for (int64_t t0 = 0; t0 < p.L; t0 += KR_CONV_WALK) {
    int64_t t = t0 + thread;
    if (t < p.L) window[keep + thread] = kr_load(p.x.data, b * p.x.b + d * p.x.row + t * p.x.t, p.x.dtype);
    kr_sync(); /* every input of this stretch is read before any output of it is written */
    if (t < p.L) {
      float sum = bias;
      int32_t mine = p.seq_idx ? sequence_at(p, b, t) : 0;
      for (int w = 0; w <= keep; w++)
        if (!p.seq_idx || (t - keep + w >= 0 && sequence_at(p, b, t - keep + w) == mine)) sum = kr_fma(weight_at(p, d, w), window[thread + w], sum);
      if (p.silu) sum = kr_silu(sum);
      kr_store(p.out.data, b * p.out.b + d * p.out.row + t * p.out.t, p.out.dtype, mine < 0 ? 0.0f : sum);
    }
    kr_sync();
    float kept = thread < keep ? window[KR_CONV_WALK + thread] : 0.0f;
    kr_sync();
    if (thread < keep) window[thread] = kept;
  }
}

KR_KERNEL void kr_conv_final(const kr_conv_plan p) {
  const int64_t keep = p.W - 1, i = (int64_t)kr_block_x() * kr_block_threads() + kr_thread();
  if (i >= p.B * p.D * keep) return;
  const int64_t k = i % keep, d = i / keep % p.D, b = i / keep / p.D;
  kr_store(p.final.data, b * p.final.b + d * p.final.row + k * p.final.t, p.final.dtype, input_at(p, b, d, p.L - keep + k));
}

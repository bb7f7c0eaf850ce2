/* causal_conv1d_bwd.cu: gradients of the short causal convolution (causal_conv1d_bwd_ref.c has the equation).
 *   kr_conv_bwd_rows  blocks share a channel; a thread takes packs of 16 bytes, W up to 4, and sums its own part of the
 *                     weights' gradient, which the block then adds up in a fixed order
 *   kr_conv_bwd_any   the same element by element: any W up to 128, packed sequences
 *   kr_conv_bwd_sum   adds the parts of a channel
 *   kr_conv_bwd_initial  gradient of the inputs before the start
 * The pre-activation is recomputed: three reads and a write of the tensor in all. */
#include "conv.cuh"

/* silu'(pre). */
KR_DEV float slope(float pre) {
  const float s = kr_sigmoid(pre);
  return s * kr_fma(pre, 1.0f - s, 1.0f);
}

/* Adds v over the block, in the same order always; thread 0 has the sum. */
KR_DEV float block_sum(float v, float *shared) {
  for (int d = 16; d; d >>= 1) v += kr_shuffle_xor(v, d);
  kr_sync();
  if ((kr_thread() & 31) == 0) shared[kr_thread() >> 5] = v;
  kr_sync();
  if (kr_thread() == 0)
    for (int k = 1; k < kr_block_threads() >> 5; k++) v += shared[k];
  return v;
}

KR_DEV void keep_part(const kr_conv_plan &p, int64_t d, int64_t part, int64_t slot, float v, float *shared) {
  v = block_sum(v, shared);
  if (kr_thread() == 0) p.part[(d * p.n_parts + part) * (p.W + 1) + slot] = v;
}

KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 3) kr_conv_bwd_rows(const kr_conv_plan p) {
  KR_SHARED float shared[32];
    const int64_t n_packs = p.packs_per_row.by, d = kr_block_x() / p.n_parts, part = kr_block_x() % p.n_parts;
  float w[4], dw[4] = {0, 0, 0, 0}, db = 0;
  load_taps(p, d, w);
  const float bias = load_bias(p, d);
  for (int64_t i = part * KR_CONV_THREADS + kr_thread(); i < p.B * n_packs; i += (int64_t)p.n_parts * KR_CONV_THREADS) {
    const uint32_t b32 = kr_divide((uint32_t)i, p.packs_per_row);
    const int64_t b = b32, t = (int64_t)((uint32_t)i - b32 * p.packs_per_row.by) * E, left = p.L - t;
    const int64_t at = b * p.x.b + d * p.x.row + t * p.x.t, g_at = b * p.dout.b + d * p.dout.row + t * p.dout.t;
    float x[16], before[4], now[8], g[12], slopes[12], next[8];
    read_pack(p.x, KR_DTYPE, at, left, now);
    read_before(p, b, d, t, before);
    read_pack(p.x, KR_DTYPE, at + E * p.x.t, left - E < 3 ? left - E : p.x.packs ? left - E : 3, next);
#pragma unroll
    for (int k = 0; k < 3; k++) x[k] = before[k + 1];
#pragma unroll
    for (int k = 0; k < 11; k++) x[k + 3] = k < E ? now[k < 8 ? k : 0] : next[k - E];
    read_pack(p.dout, KR_DTYPE, g_at, left, now);
    read_pack(p.dout, KR_DTYPE, g_at + E * p.dout.t, left - E < 3 ? left - E : p.dout.packs ? left - E : 3, next);
#pragma unroll
    for (int k = 0; k < 11; k++) {
      g[k] = 0.0f;
      if (k >= E + 3) continue;
      float pre = bias;
#pragma unroll
      for (int j = 0; j < 4; j++) pre = kr_fma(w[j], x[k + j], pre);
      slopes[k] = pre;
      g[k] = k < E ? now[k < 8 ? k : 0] : next[k - E];
    }
    if (p.silu) {
#pragma unroll
      for (int k = 0; k < E + 3; k++) g[k] *= slope(slopes[k]);
    }
    float dx[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
      dx[k] = 0.0f;
      if (k >= E) continue;
#pragma unroll
      for (int j = 0; j < 4; j++) dx[k] = kr_fma(w[j], g[k + 3 - j], dx[k]), dw[j] = kr_fma(g[k], x[k + j], dw[j]);
      db += g[k];
    }
    if (p.dfinal.data) {
#pragma unroll
      for (int k = 0; k < 8; k++) {
        int64_t q = t + k - (p.L - (p.W - 1));
        if (k < E && k < left && q >= 0) dx[k] += kr_load(p.dfinal.data, b * p.dfinal.b + d * p.dfinal.row + q * p.dfinal.t, p.dfinal.dtype);
      }
    }
    if (p.dx.data) write_pack(p.dx, KR_DTYPE, b * p.dx.b + d * p.dx.row + t * p.dx.t, min64(E, left), dx);
  }
#pragma unroll
  for (int j = 0; j < 4; j++)
    if (j >= 4 - p.W) keep_part(p, d, part, j - 4 + p.W, dw[j], shared);
  keep_part(p, d, part, p.W, db, shared);
}

/* The gradient at the pre-activation of step t, 0 outside. */
KR_DEV float gradient_at(const kr_conv_plan &p, int64_t b, int64_t d, int64_t t) {
  if (t >= p.L || (p.seq_idx && sequence_at(p, b, t) < 0)) return 0.0f;
  float pre = load_bias(p, d), dout = kr_load(p.dout.data, b * p.dout.b + d * p.dout.row + t * p.dout.t, p.dout.dtype);
  if (!p.silu) return dout;
  for (int64_t w = 0; w < p.W; w++) {
    int64_t from = t - (p.W - 1) + w;
    if (!p.seq_idx || (from >= 0 && sequence_at(p, b, from) == sequence_at(p, b, t))) pre = kr_fma(weight_at(p, d, w), input_at(p, b, d, from), pre);
  }
  return dout * slope(pre);
}

KR_DEV int same_sequence(const kr_conv_plan &p, int64_t b, int64_t from, int64_t t) {
  return !p.seq_idx || (from >= 0 && sequence_at(p, b, from) == sequence_at(p, b, t));
}

KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 2) kr_conv_bwd_any(const kr_conv_plan p) {
  KR_SHARED float shared[32];
  const int64_t d = kr_block_x() / p.n_parts, part = kr_block_x() % p.n_parts, step = (int64_t)p.n_parts * KR_CONV_THREADS;
  float db = 0;
  for (int64_t i = part * KR_CONV_THREADS + kr_thread(); i < p.B * p.L; i += step) {
    const int64_t b = i / p.L, t = i % p.L;
    float dx = 0;
    db += gradient_at(p, b, d, t);
    for (int64_t w = 0; w < p.W && p.dx.data; w++) {
      int64_t to = t + p.W - 1 - w;
      if (to < p.L && same_sequence(p, b, t, to)) dx = kr_fma(weight_at(p, d, w), gradient_at(p, b, d, to), dx);
    }
    int64_t q = t - (p.L - (p.W - 1));
    if (p.dfinal.data && q >= 0) dx += kr_load(p.dfinal.data, b * p.dfinal.b + d * p.dfinal.row + q * p.dfinal.t, p.dfinal.dtype);
    if (p.dx.data) kr_store(p.dx.data, b * p.dx.b + d * p.dx.row + t * p.dx.t, p.dx.dtype, dx);
  }
  keep_part(p, d, part, p.W, db, shared);
  for (int64_t w = 0; w < p.W; w++) {
    float dw = 0;
    for (int64_t i = part * KR_CONV_THREADS + kr_thread(); i < p.B * p.L; i += step) {
      const int64_t b = i / p.L, t = i % p.L, from = t - (p.W - 1) + w;
      if (same_sequence(p, b, from, t)) dw = kr_fma(gradient_at(p, b, d, t), input_at(p, b, d, from), dw);
    }
    keep_part(p, d, part, w, dw, shared);
  }
}

KR_KERNEL void kr_conv_bwd_sum(const kr_conv_plan p) {
  const int64_t i = (int64_t)kr_block_x() * kr_block_threads() + kr_thread(), d = i / (p.W + 1), slot = i % (p.W + 1);
  if (d >= p.D) return;
  float sum = 0;
  for (int k = 0; k < p.n_parts; k++) sum += p.part[(d * p.n_parts + k) * (p.W + 1) + slot];
  if (slot < p.W && p.dweight) kr_store(p.dweight, d * p.dweight_d + slot * p.dweight_w, p.dweight_dtype, sum);
  if (slot == p.W && p.dbias) kr_store(p.dbias, d * p.dbias_d, p.dbias_dtype, sum);
}

KR_KERNEL void kr_conv_bwd_initial(const kr_conv_plan p) {
  const int64_t keep = p.W - 1, i = (int64_t)kr_block_x() * kr_block_threads() + kr_thread();
  if (i >= p.B * p.D * keep) return;
  const int64_t k = i % keep, d = i / keep % p.D, b = i / keep / p.D, t = k - keep;
  float dx = 0;
  for (int64_t w = 0; w < p.W; w++)
    if (t + keep - w >= 0) dx = kr_fma(weight_at(p, d, w), gradient_at(p, b, d, t + keep - w), dx);
  int64_t q = t - (p.L - keep); /* short sequences: the last inputs reach before the start */
  if (p.dfinal.data && q >= 0) dx += kr_load(p.dfinal.data, b * p.dfinal.b + d * p.dfinal.row + q * p.dfinal.t, p.dfinal.dtype);
  kr_store(p.dinitial.data, b * p.dinitial.b + d * p.dinitial.row + k * p.dinitial.t, p.dinitial.dtype, dx);
}

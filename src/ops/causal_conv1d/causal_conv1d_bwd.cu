/* causal_conv1d_bwd.cu: gradients of the short causal convolution (causal_conv1d_bwd_ref.c has the equation).
 *   kr_conv_bwd_rows   blocks share a channel; a thread takes packs of 16 bytes, W up to 4, and sums its own part of the
 *                      weights' gradient, which the block then adds up in a fixed order
 *   kr_conv_bwd_whole  the same where rows are whole packs: two neighbouring packs a thread, so that fewer steps are computed twice
 *   kr_conv_bwd_last   channels innermost: a thread takes 4 channels and walks along runs of steps
 *   kr_conv_bwd_any    the same element by element: any W up to 128, packed sequences, no dout
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

/* What dfinal adds to the gradient of the input at t. */
KR_DEV float from_final(const kr_conv_plan &p, int64_t b, int64_t d, int64_t t) {
  const int64_t q = t - (p.L - (p.W - 1));
  return p.dfinal.data && q >= 0 && t < p.L ? kr_load(p.dfinal.data, b * p.dfinal.b + d * p.dfinal.row + q * p.dfinal.t, p.dfinal.dtype) : 0.0f;
}

KR_DEV kr_raw16 whole(const kr_rows &v, int64_t offset) { return *(const kr_raw16 *)((const char *)v.data + offset * (16 / E)); }

KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 3) kr_conv_bwd_whole(const kr_conv_plan p) {
  KR_SHARED float shared[32];
  enum { M = 2 * E };
  const int64_t n_pairs = p.packs_per_row.by, d = kr_block_x() / p.n_parts, part = kr_block_x() % p.n_parts;
  float w[4], dw[4] = {0, 0, 0, 0}, db = 0;
  load_taps(p, d, w);
  const float bias = load_bias(p, d);
  for (int64_t i = part * KR_CONV_THREADS + kr_thread(); i < p.B * n_pairs; i += (int64_t)p.n_parts * KR_CONV_THREADS) {
    const uint32_t b32 = kr_divide((uint32_t)i, p.packs_per_row);
    const int64_t b = b32, t = (int64_t)((uint32_t)i - b32 * p.packs_per_row.by) * M;
    const int64_t at = b * p.x.b + d * p.x.row + t, g_at = b * p.dout.b + d * p.dout.row + t;
    const int two = t + E < p.L, more = t + M < p.L;
    const kr_raw16 none = {{0, 0, 0, 0}}, xs[2] = {whole(p.x, at), two ? whole(p.x, at + E) : none}, gs[2] = {whole(p.dout, g_at), two ? whole(p.dout, g_at + E) : none};
    const quad x_left = t > 0 ? load_quad(p.x, at - 4) : no_quad(), x_right = more ? load_quad(p.x, at + M) : no_quad(), g_right = more ? load_quad(p.dout, g_at + M) : no_quad();
    float x[M + 6], g[M + 3], dx[M];
#pragma unroll
    for (int k = 0; k < 3; k++) x[k] = quad_at(x_left, k + 1), x[M + 3 + k] = quad_at(x_right, k), g[M + k] = quad_at(g_right, k);
#pragma unroll
    for (int k = 0; k < M; k++) x[k + 3] = pack_at(xs[k / E], k % E, KR_DTYPE), g[k] = pack_at(gs[k / E], k % E, KR_DTYPE);
    if (p.silu) {
#pragma unroll
      for (int k = 0; k < M + 3; k++) g[k] *= slope(kr_fma(w[3], x[k + 3], kr_fma(w[2], x[k + 2], kr_fma(w[1], x[k + 1], kr_fma(w[0], x[k], bias)))));
    }
#pragma unroll
    for (int k = 0; k < M; k++) {
      dx[k] = kr_fma(w[0], g[k + 3], kr_fma(w[1], g[k + 2], kr_fma(w[2], g[k + 1], w[3] * g[k])));
#pragma unroll
      for (int j = 0; j < 4; j++) dw[j] = kr_fma(g[k], x[k + j], dw[j]);
      db += g[k];
    }
    if (!p.dx.data) continue;
    const int64_t dx_at = b * p.dx.b + d * p.dx.row + t;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      kr_raw16 raw;
      if (h && !two) break;
#pragma unroll
      for (int k = 0; k < 4; k++) raw.w[k] = E == 4 ? kr_float_to_bits(dx[h * E + k]) : kr_pack(dx[(h * E + 2 * k) % M], dx[(h * E + 2 * k + 1) % M], KR_DTYPE);
      *(kr_raw16 *)((char *)p.dx.data + (dx_at + h * E) * (16 / E)) = raw;
    }
  }
#pragma unroll
  for (int j = 0; j < 4; j++)
    if (j >= 4 - p.W) keep_part(p, d, part, j - 4 + p.W, dw[j], shared);
  keep_part(p, d, part, p.W, db, shared);
}

/* The warps of a block take runs of the same 128 channels by turns: task = batch and run. */
KR_KERNEL void KR_BOUNDS(KR_CONV_THREADS, 2) kr_conv_bwd_last(const kr_conv_plan p) {
  KR_SHARED float sums[KR_CONV_THREADS / 32][32 * 20];
  enum { WARPS = KR_CONV_THREADS / 32 };
  const int lane = kr_thread() & 31, warp = kr_thread() >> 5;
  const int64_t d = ((int64_t)(kr_block_x() / p.n_parts) * 32 + lane) * 4, part = kr_block_x() % p.n_parts, n_tasks = p.B * p.runs.by;
  const int exists = d < p.D;
  float w[4][4], bias[4], dw[4][4], db[4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    load_taps(p, exists ? d + k : 0, w[k]);
    bias[k] = load_bias(p, exists ? d + k : 0), db[k] = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) dw[k][j] = 0;
  }
  const int64_t x_step = p.x.t * (16 / E), g_step = p.dout.t * (16 / E), dx_step = p.dx.t * (16 / E);
  for (int64_t task = part * WARPS + warp; task < n_tasks && exists; task += (int64_t)p.n_parts * WARPS) {
    const uint32_t b = kr_divide((uint32_t)task, p.runs);
    const int64_t t0 = (int64_t)((uint32_t)task - b * p.runs.by) * KR_CONV_RUN;
    const int own = (int)min64(p.L - t0, KR_CONV_RUN), n = (int)min64(p.L - t0, KR_CONV_RUN + 3), n_before = t0 > 0 ? 3 : 0;
    const char *from = quad_pointer(p.x, b * p.x.b + d + (t0 - n_before) * p.x.t), *g_from = quad_pointer(p.dout, b * p.dout.b + d + t0 * p.dout.t);
    char *to = p.dx.data ? quad_pointer(p.dx, b * p.dx.b + d + (t0 - 3) * p.dx.t) : 0;
    float x[8][4], g[8][4]; /* four steps before the four at hand, and those */
    load_steps(from, x_step, n_before, x + 4);
    from += (n_before - 4) * x_step;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      x[7][k] = x[6][k], x[6][k] = x[5][k], x[5][k] = x[4][k];
      g[5][k] = g[6][k] = g[7][k] = 0.0f;
    }
#pragma unroll 1
    for (int t = 0; t < own + 3; t += 4) {
#pragma unroll
      for (int j = 1; j < 4; j++)
#pragma unroll
        for (int k = 0; k < 4; k++) x[j][k] = x[j + 4][k], g[j][k] = g[j + 4][k];
      load_steps(from, x_step, n - t, x + 4);
      load_steps(g_from, g_step, n - t, g + 4);
#pragma unroll
      for (int s = 0; s < 4; s++) {
        float dx[4];
        if (p.silu) {
#pragma unroll
          for (int k = 0; k < 4; k++)
            g[s + 4][k] *= slope(kr_fma(w[k][3], x[s + 4][k], kr_fma(w[k][2], x[s + 3][k], kr_fma(w[k][1], x[s + 2][k], kr_fma(w[k][0], x[s + 1][k], bias[k])))));
        }
        if (t + s < own) {
#pragma unroll
          for (int k = 0; k < 4; k++) {
#pragma unroll
            for (int j = 0; j < 4; j++) dw[k][j] = kr_fma(g[s + 4][k], x[s + 1 + j][k], dw[k][j]);
            db[k] += g[s + 4][k];
          }
        }
#pragma unroll
        for (int k = 0; k < 4; k++) dx[k] = kr_fma(w[k][0], g[s + 4][k], kr_fma(w[k][1], g[s + 3][k], kr_fma(w[k][2], g[s + 2][k], w[k][3] * g[s + 1][k])));
        if (t + s >= 3 && t + s < own + 3 && p.dx.data) store_quad(to, dx);
        to += dx_step;
      }
    }
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
#pragma unroll
    for (int j = 0; j < 4; j++) sums[warp][(k * 5 + j) * 32 + lane] = dw[k][j];
    sums[warp][(k * 5 + 4) * 32 + lane] = db[k];
  }
  kr_sync();
  for (int i = kr_thread(); i < 32 * 20; i += KR_CONV_THREADS) {
    const int64_t channel = ((int64_t)(kr_block_x() / p.n_parts) * 32 + i % 32) * 4 + i / 160, slot = i / 32 % 5 < 4 ? i / 32 % 5 - 4 + p.W : p.W;
    float sum = 0;
    for (int k = 0; k < WARPS; k++) sum += sums[k][i];
    if (channel < p.D && slot >= 0) p.part[(channel * p.n_parts + part) * (p.W + 1) + slot] = sum;
  }
}

/* The gradient at the pre-activation of step t, 0 outside. */
KR_DEV float gradient_at(const kr_conv_plan &p, int64_t b, int64_t d, int64_t t) {
  if (!p.dout.data || t >= p.L || (p.seq_idx && sequence_at(p, b, t) < 0)) return 0.0f;
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
    dx += from_final(p, b, d, t);
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

/* A warp for each channel: its parts by turns, then the lanes, always in the same order. */
KR_KERNEL void kr_conv_bwd_sum(const kr_conv_plan p) {
  const int64_t d = ((int64_t)kr_block_x() * kr_block_threads() + kr_thread()) >> 5;
  const int lane = kr_thread() & 31;
  if (d >= p.D) return;
  for (int64_t slot = 0; slot <= p.W; slot++) {
    float sum = 0;
    for (int k = lane; k < p.n_parts; k += 32) sum += p.part[(d * p.n_parts + k) * (p.W + 1) + slot];
    for (int i = 16; i; i >>= 1) sum += kr_shuffle_xor(sum, i);
    if (lane) continue;
    if (slot < p.W && p.dweight) kr_store(p.dweight, d * p.dweight_d + slot * p.dweight_w, p.dweight_dtype, sum);
    if (slot == p.W && p.dbias) kr_store(p.dbias, d * p.dbias_d, p.dbias_dtype, sum);
  }
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

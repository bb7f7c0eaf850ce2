/* attention_base_bwd.cu: the gradient of attention for every type, size and option. Probabilities are recomputed from
 * the scores and the rows' log-sum-exp; with P the probabilities, D the dropout factors and delta the sum of dout out
 * less dlse: dS = P (D (dout V^T) - delta).
 * kr_attention_delta      delta; kr_attention_dsinks  from it, the gradient of the sinks
 * kr_attention_dq_kK      a warp takes a few rows and loops over their keys
 * kr_attention_dkv_kK     a warp takes a few keys and loops over the rows that see them, of each head sharing them */
#include "attention_base.cuh"

KR_DEV int64_t delta_at(const kr_attention_params &p, const sequence &s, int h, int i) {
  return h * p.delta_h + (int64_t)s.q_b * p.Lq + s.q_at + i;
}
KR_DEV float lse_of(const kr_attention_params &p, const sequence &s, int h, int i) {
  return ((const float *)p.lse.data)[query_at(p.lse, s, h, i)];
}

KR_KERNEL void KR_BOUNDS(KR_ATTENTION_BASE_THREADS, 8) kr_attention_delta(const kr_attention_params p) {
  const task at = task_of((p.rows_q + WARPS - 1) / WARPS, p.H);
  const sequence s = sequence_of(p, at.b);
  const int i = at.tile * WARPS + warp_of();
  if (i >= s.n_q) return;
  float sum = 0;
  for (int d = lane_of(); d < p.Dv; d += 32)
    sum = kr_fma(kr_load(p.out.data, query_at(p.out, s, at.h, i) + d * p.out.d, p.out.dtype),
                 kr_load(p.dout.data, query_at(p.dout, s, at.h, i) + d * p.dout.d, p.dout.dtype), sum);
  sum = sum_lanes(sum);
  if (p.dlse.data && lse_of(p, s, at.h, i) < __builtin_inff())
    sum -= ((const float *)p.dlse.data)[query_at(p.dlse, s, at.h, i)];
  if (lane_of() == 0) p.delta[delta_at(p, s, at.h, i)] = sum;
}

/* The same for 16-bit rows in aligned packs: LANES lanes per row, a block's rows of one head; adjacent blocks have the
 * other heads of the same rows. */
template <int LANES>
KR_DEV void delta_of_packs(const kr_attention_params &p) {
  const int ROWS = KR_ATTENTION_DELTA_ROWS(LANES), STEP = ROWS / 4, chunk = kr_thread() % LANES,
            rest = kr_block_x() / p.H, h = kr_block_x() - rest * p.H, n_tiles = (p.rows_q + ROWS - 1) / ROWS,
            b = rest / n_tiles, first = (rest - b * n_tiles) * ROWS + kr_thread() / LANES;
  const sequence s = sequence_of(p, b);
  kr_raw16 out[4], dout[4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int i = first + k * STEP, there = i < s.n_q && chunk * 8 < p.Dv;
    out[k] = dout[k] = (kr_raw16){{0, 0, 0, 0}};
    if (there) {
      out[k] = *(const kr_raw16 *)((const uint16_t *)p.out.data + query_at(p.out, s, h, i) + chunk * 8);
      dout[k] = *(const kr_raw16 *)((const uint16_t *)p.dout.data + query_at(p.dout, s, h, i) + chunk * 8);
    }
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int i = first + k * STEP;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < 8; w++)
      sum = kr_fma(kr_unpack(out[k].w[w / 2], w & 1, p.out.dtype), kr_unpack(dout[k].w[w / 2], w & 1, p.dout.dtype),
                   sum);
#pragma unroll
    for (int d = 1; d < LANES; d <<= 1) sum += kr_shuffle_xor(sum, d);
    if (chunk || i >= s.n_q) continue;
    if (p.dlse.data && lse_of(p, s, h, i) < __builtin_inff())
      sum -= ((const float *)p.dlse.data)[query_at(p.dlse, s, h, i)];
    p.delta[delta_at(p, s, h, i)] = sum;
  }
}
KR_KERNEL void KR_BOUNDS(KR_ATTENTION_BASE_THREADS, 8) kr_attention_delta_64(const kr_attention_params p) {
  delta_of_packs<8>(p);
}
KR_KERNEL void KR_BOUNDS(KR_ATTENTION_BASE_THREADS, 8) kr_attention_delta_128(const kr_attention_params p) {
  delta_of_packs<16>(p);
}

/* One block per head; a thread always sums the same rows. */
KR_KERNEL void KR_BOUNDS(KR_ATTENTION_BASE_THREADS, 8) kr_attention_dsinks(const kr_attention_params p) {
  KR_SHARED float sums[WARPS];
  const int h = kr_block_x();
  const float sink = kr_load(p.sinks, h * p.sinks_h, p.sinks_dtype);
  float sum = 0;
  for (int b = 0; b < p.B; b++) {
    const sequence s = sequence_of(p, b);
    for (int i = kr_thread(); i < s.n_q; i += KR_ATTENTION_BASE_THREADS) {
      const float lse = lse_of(p, s, h, i);
      if (lse != __builtin_inff()) sum -= kr_exp(sink - lse) * p.delta[delta_at(p, s, h, i)];
    }
  }
  sum = sum_lanes(sum);
  if (lane_of() == 0) sums[warp_of()] = sum;
  kr_sync();
  if (kr_thread()) return;
  for (int w = 1; w < WARPS; w++) sum += sums[w];
  kr_store(p.dsinks.data, h * p.dsinks.h, p.dsinks.dtype, sum);
}

/* dS, without the scale, and the probability after dropout. */
KR_DEV float score_gradient(const kr_attention_params &p, const task &at, int h, int i, int j, int shift, float slope,
                            float product, float by_dout, float lse, float delta, float *probability) {
  const float P = kr_exp(score_of(p, product, slope, i, j, shift) - lse),
              keep = p.rng.data ? kept(p, at.b, h, i, j) : 1.0f;
  *probability = P * keep;
  return P * kr_fma(by_dout, keep, -delta) * score_slope(p, product);
}

template <int K>
KR_DEV void gradient_of_queries(const kr_attention_params &p) {
  const int R = KR_ATTENTION_BASE_ROWS(K);
  KR_DYNAMIC_SHARED(shared);
  float *const tile = (float *)shared, *const rows = tile + TILE * KR_ATTENTION_BASE_PITCH(K),
               *const drows = rows + WARPS * R * 32 * K;
  const task at = task_of(p.n_q_tiles, p.H);
  const sequence s = sequence_of(p, at.b);
  const int block_row = at.tile * WARPS * R, row0 = block_row + warp_of() * R, kv = at.h / p.heads;
  if (block_row >= s.rows_q) return;
  const float slope = slope_of(p, at.b, at.h);
  float dq[R][K] = {}, lse[R], delta[R];
#pragma unroll
  for (int r = 0; r < R; r++) {
    const int there = row0 + r < s.n_q;
    lse[r] = there ? lse_of(p, s, at.h, row0 + r) : 0, delta[r] = there ? p.delta[delta_at(p, s, at.h, row0 + r)] : 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
      const int d = lane_of() + 32 * k, to = (warp_of() * R + r) * 32 * K + d;
      rows[to] = there && d < p.D ? kr_load(p.q.data, query_at(p.q, s, at.h, row0 + r) + d * p.q.d, p.q.dtype) : 0.0f;
      drows[to] = there && d < p.Dv
                      ? kr_load(p.dout.data, query_at(p.dout, s, at.h, row0 + r) + d * p.dout.d, p.dout.dtype)
                      : 0.0f;
    }
  }
  const int last = at_most(block_row + WARPS * R, s.n_q) - 1, end = end_key(p, s, last);
  for (int j0 = first_key(p, s, block_row) / TILE * TILE; j0 < end; j0 += TILE) {
    float products[R], by_dout[R], ds[R];
    kr_sync();
    load_keys<K>(p, tile, p.v, s, kv, j0, end, p.Dv);
    kr_sync();
    multiply<K, R>(by_dout, tile, drows);
    kr_sync();
    load_keys<K>(p, tile, p.k, s, kv, j0, end, p.D);
    kr_sync();
    multiply<K, R>(products, tile, rows);
#pragma unroll
    for (int r = 0; r < R; r++) {
      const int i = row0 + r, j = j0 + lane_of(), seen = i < s.n_q && j >= first_key(p, s, i) && j < end_key(p, s, i);
      float probability;
      ds[r] = seen ? score_gradient(p, at, at.h, i, j, s.shift, slope, products[r], by_dout[r], lse[r], delta[r],
                                    &probability)
                   : 0.0f;
    }
    accumulate<K, R>(dq, ds, tile);
  }
#pragma unroll
  for (int r = 0; r < R; r++)
    if (row0 + r < s.rows_q) store_row<K>(p.dq, query_at(p.dq, s, at.h, row0 + r), dq[r], p.scale, p.D);
}

template <int K>
KR_DEV void gradient_of_keys(const kr_attention_params &p) {
  const int R = KR_ATTENTION_BASE_ROWS(K), H = p.H / p.heads;
  KR_DYNAMIC_SHARED(shared);
  float *const tile = (float *)shared, *const keys = tile + TILE * KR_ATTENTION_BASE_PITCH(K),
               *const values = keys + WARPS * R * 32 * K;
  const task at = task_of((p.rows_k + WARPS * R - 1) / (WARPS * R), H);
  const sequence s = sequence_of(p, at.b);
  const int block_key = at.tile * WARPS * R, key0 = block_key + warp_of() * R;
  if (block_key >= s.rows_k) return;
  float dk[R][K] = {}, dv[R][K] = {};
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int k = 0; k < K; k++) {
      const int d = lane_of() + 32 * k, to = (warp_of() * R + r) * 32 * K + d, there = key0 + r < s.n_k;
      keys[to] = there && d < p.D ? kr_load(p.k.data, key_at(p, p.k, s, at.h, key0 + r) + d * p.k.d, p.k.dtype) : 0.0f;
      values[to] =
          there && d < p.Dv ? kr_load(p.v.data, key_at(p, p.v, s, at.h, key0 + r) + d * p.v.d, p.v.dtype) : 0.0f;
    }
  const int last = at_most(block_key + WARPS * R, s.n_k) - 1, end = end_row(p, s, last);
  for (int h = at.h * p.heads; h < (at.h + 1) * p.heads; h++) {
    const float slope = slope_of(p, at.b, h);
    for (int i0 = first_row(p, s, block_key) / TILE * TILE; i0 < end; i0 += TILE) {
      const int i = i0 + lane_of(), there = i < end;
      const float lse = there ? lse_of(p, s, h, i) : 0, delta = there ? p.delta[delta_at(p, s, h, i)] : 0;
      float products[R], by_dout[R], probabilities[R], ds[R];
      kr_sync();
      load_queries<K>(tile, p.q, s, h, i0, end, p.D);
      kr_sync();
      multiply<K, R>(products, tile, keys);
      kr_sync();
      load_queries<K>(tile, p.dout, s, h, i0, end, p.Dv);
      kr_sync();
      multiply<K, R>(by_dout, tile, values);
#pragma unroll
      for (int r = 0; r < R; r++) {
        const int j = key0 + r, seen = there && j >= first_key(p, s, i) && j < end_key(p, s, i);
        probabilities[r] = 0;
        ds[r] = seen ? score_gradient(p, at, h, i, j, s.shift, slope, products[r], by_dout[r], lse, delta,
                                      &probabilities[r])
                     : 0.0f;
      }
      accumulate<K, R>(dv, probabilities, tile);
      kr_sync();
      load_queries<K>(tile, p.q, s, h, i0, end, p.D);
      kr_sync();
      accumulate<K, R>(dk, ds, tile);
    }
  }
#pragma unroll
  for (int r = 0; r < R; r++) {
    if (key0 + r >= s.rows_k) continue;
    if (p.dk.data) store_row<K>(p.dk, key_at(p, p.dk, s, at.h, key0 + r), dk[r], p.scale, p.D);
    if (p.dv.data) store_row<K>(p.dv, key_at(p, p.dv, s, at.h, key0 + r), dv[r], 1.0f, p.Dv);
  }
}

KR_KERNEL void KR_BOUNDS(KR_ATTENTION_BASE_THREADS, 4) kr_attention_dq_k2(const kr_attention_params p) {
  gradient_of_queries<2>(p);
}
KR_KERNEL void KR_BOUNDS(KR_ATTENTION_BASE_THREADS, 4) kr_attention_dq_k4(const kr_attention_params p) {
  gradient_of_queries<4>(p);
}
KR_KERNEL void KR_BOUNDS(KR_ATTENTION_BASE_THREADS, 4) kr_attention_dq_k8(const kr_attention_params p) {
  gradient_of_queries<8>(p);
}
KR_KERNEL void KR_BOUNDS(KR_ATTENTION_BASE_THREADS, 4) kr_attention_dkv_k2(const kr_attention_params p) {
  gradient_of_keys<2>(p);
}
KR_KERNEL void KR_BOUNDS(KR_ATTENTION_BASE_THREADS, 3) kr_attention_dkv_k4(const kr_attention_params p) {
  gradient_of_keys<4>(p);
}
KR_KERNEL void KR_BOUNDS(KR_ATTENTION_BASE_THREADS, 2) kr_attention_dkv_k8(const kr_attention_params p) {
  gradient_of_keys<8>(p);
}

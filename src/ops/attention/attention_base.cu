/* attention_base.cu: attention for every type, size and option: a warp takes a few rows and loops over the keys they
 * see, 32 at a time. kr_attention_kK: heads of up to 32 K channels. */
#include "attention_base.cuh"

template <int K>
KR_DEV void forward(const kr_attention_params &p) {
  const int R = KR_ATTENTION_BASE_ROWS(K);
  KR_DYNAMIC_SHARED(shared);
  float *const tile = (float *)shared, *const rows = tile + TILE * KR_ATTENTION_BASE_PITCH(K);
  const task at = task_of(p.n_q_tiles, p.H);
  const sequence s = sequence_of(p, at.b);
  const int block_row = at.tile * WARPS * R, row0 = block_row + warp_of() * R, kv = at.h / p.heads;
  if (block_row >= s.rows_q) return;
  const float slope = slope_of(p, at.b, at.h);
  float o[R][K] = {}, most[R], sum[R];
#pragma unroll
  for (int r = 0; r < R; r++) {
    most[r] = MINUS_INFINITY, sum[r] = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
      const int d = lane_of() + 32 * k;
      rows[(warp_of() * R + r) * 32 * K + d] =
          row0 + r < s.n_q && d < p.D ? kr_load(p.q.data, query_at(p.q, s, at.h, row0 + r) + d * p.q.d, p.q.dtype)
                                      : 0.0f;
    }
  }
  const int last = at_most(block_row + WARPS * R, s.n_q) - 1, end = end_key(p, s, last);
  for (int j0 = first_key(p, s, block_row) / TILE * TILE; j0 < end; j0 += TILE) {
    float products[R], weights[R];
    kr_sync();
    load_keys<K>(p, tile, p.k, s, kv, j0, end, p.D);
    kr_sync();
    multiply<K, R>(products, tile, rows);
#pragma unroll
    for (int r = 0; r < R; r++) {
      const int i = row0 + r, j = j0 + lane_of(), seen = i < s.n_q && j >= first_key(p, s, i) && j < end_key(p, s, i);
      const float score = seen ? score_of(p, products[r], slope, i, j, s.shift) : MINUS_INFINITY,
                  highest = highest_lane(score);
      const float now = highest > most[r] ? highest : most[r],
                  shrink = now == MINUS_INFINITY ? 1.0f : kr_exp(most[r] - now);
      weights[r] = score == MINUS_INFINITY ? 0.0f : kr_exp(score - now);
      sum[r] = kr_fma(sum[r], shrink, sum_lanes(weights[r])), most[r] = now;
      if (p.rng.data && seen) weights[r] *= kept(p, at.b, at.h, i, j);
#pragma unroll
      for (int k = 0; k < K; k++) o[r][k] *= shrink;
    }
    kr_sync();
    load_keys<K>(p, tile, p.v, s, kv, j0, end, p.Dv);
    kr_sync();
    accumulate<K, R>(o, weights, tile);
  }
#pragma unroll
  for (int r = 0; r < R; r++) {
    const int i = row0 + r;
    if (i >= s.rows_q) continue;
    float scale = 1;
    if (p.sinks && sum[r] != 0) {
      const float sink = kr_load(p.sinks, at.h * p.sinks_h, p.sinks_dtype), now = sink > most[r] ? sink : most[r];
      scale = kr_exp(most[r] - now), sum[r] = kr_fma(sum[r], scale, kr_exp(sink - now)), most[r] = now;
    }
    store_row<K>(p.out, query_at(p.out, s, at.h, i), o[r], sum[r] != 0 ? scale / sum[r] : 0.0f, p.Dv);
    if (p.lse.data && lane_of() == 0)
      ((float *)p.lse.data)[query_at(p.lse, s, at.h, i)] =
          sum[r] != 0 ? most[r] + KR_LN2 * kr_log2(sum[r]) : -MINUS_INFINITY;
  }
}

KR_KERNEL void KR_BOUNDS(KR_ATTENTION_BASE_THREADS, 4) kr_attention_k2(const kr_attention_params p) { forward<2>(p); }
KR_KERNEL void KR_BOUNDS(KR_ATTENTION_BASE_THREADS, 4) kr_attention_k4(const kr_attention_params p) { forward<4>(p); }
KR_KERNEL void KR_BOUNDS(KR_ATTENTION_BASE_THREADS, 3) kr_attention_k8(const kr_attention_params p) { forward<8>(p); }

/* attention_ampere_bwd_f32.cu: the gradient of attention of float32 on warp-level tensor cores, factors as in
 * attention_ampere_f32.cu; otherwise as attention_ampere_bwd.cu, with tiles in two stages:
 * kr_attention_floats_dq_D    a block takes 64 rows and loops over tiles of keys
 * kr_attention_floats_dkv_64  a block takes 64 keys and loops over tiles of 16 rows of every head that shares them
 * kr_attention_floats_dk_128, kr_attention_floats_dv_128  the same for one of the two: registers hold no more sums */
#include "attention_f32.cuh"
#include "attention_f32_bwd.h"
#include "attention_gradients.cuh"

enum { OWN = KR_FLOATS_BWD_OWN, OF_KEYS = 1, OF_VALUES = 2 };

/* ROWS rows of D channels, from element `from`, stride t: zeros from `n` on and beyond the head's channels. */
template <int D, int ROWS>
KR_DEV void copy_rows(float *to, const void *data, int64_t from, int64_t t, int n, int channels) {
  const int PER_ROW = D / 4, STEP = THREADS / PER_ROW, column = kr_thread() % PER_ROW * 4, row = kr_thread() / PER_ROW;
  const float *at = (const float *)data + from + row * t + column;
#pragma unroll 4
  for (int k = 0; k < ROWS / STEP; k++, at += STEP * t) {
    const int there = column < channels && row + k * STEP < n;
    kr_copy_some(to + place_of<D>(row + k * STEP, column), there ? at : (const float *)data, there ? 16 : 0);
  }
}

template <int D>
KR_DEV void store_rows(const kr_attention_tensor &to, const float (&o)[D / 8][4], const int64_t (&at)[2],
                       const int (&there)[2], float scale, int channels) {
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int j = 0; j < D / 8; j++)
      if (there[r] && 8 * j < channels)
        *(kr_float2 *)((float *)to.data + at[r] + 8 * j + kr_thread() % 4 * 2) =
            kr_float2{{o[j][2 * r] * scale, o[j][2 * r + 1] * scale}};
}

template <int D, int ANY>
KR_DEV void gradient_of_queries(const kr_attention_params &p) {
  const int N = KR_FLOATS_BWD_KEYS(D), TILE = N * D;
  KR_DYNAMIC_SHARED(shared);
  float *const q = (float *)shared, *const dout = q + OWN * D, *const tiles = dout + OWN * D; /* of k and v */
  const task mine = task_of(p, kr_block_x());
  const block at = {sequence_of(p, mine.b), mine.h, mine.b};
  const int row = mine.tile * OWN, kv = at.h / p.heads, lane = kr_thread() & 31,
            warp_row = row + (kr_thread() >> 5) * 16;
  if (row >= at.s.rows_q) return;
  const float slope = ANY ? slope_of(p, at.b, at.h) : 0.0f;
  const int last = at_most(row + OWN, at.s.n_q) - 1, end = row < at.s.n_q ? end_key(p, at.s, last) : 0,
            first = row < at.s.n_q ? first_key(p, at.s, row) / N : 0;
  const int64_t k_at = end ? key_at(p, p.k, at.s, kv, 0) : 0, v_at = end ? key_at(p, p.v, at.s, kv, 0) : 0;
  float dq[D / 8][4] = {}, lse[1][2], delta[1][2];
  int first_of[1][2], end_of[1][2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int i = warp_row + lane / 4 + 8 * r, there = i < at.s.n_q;
    lse[0][r] = there ? lse_of(p, at.s, at.h, i) * KR_LOG2E : -MINUS_INFINITY,
    delta[0][r] = there ? p.delta[delta_at(p, at.s, at.h, i)] : 0.0f;
    first_of[0][r] = first_key(p, at.s, i), end_of[0][r] = there ? end_key(p, at.s, i) : 0;
  }
  const int there_all = warp_row + 16 <= at.s.n_q, all_from = first_key(p, at.s, warp_row + 15),
            all_to = there_all ? end_key(p, at.s, warp_row) : 0;
  const float *const own_q = q + (warp_row - row) * D, *const own_dout = own_q + OWN * D;
  int n = (end + N - 1) / N - 1, buffer = 0;
  if (n >= first) {
    copy_rows<D, OWN>(q, p.q.data, query_at(p.q, at.s, at.h, row), p.q.t, at.s.n_q - row, p.D);
    copy_rows<D, OWN>(dout, p.dout.data, query_at(p.dout, at.s, at.h, row), p.dout.t, at.s.n_q - row, p.D);
    copy_rows<D, N>(tiles, p.k.data, k_at + (int64_t)n * N * p.k.t, p.k.t, at.s.n_k - n * N, p.D);
    copy_rows<D, N>(tiles + TILE, p.v.data, v_at + (int64_t)n * N * p.v.t, p.v.t, at.s.n_k - n * N, p.D);
    kr_commit_copies();
  }
#pragma unroll 1
  for (; n >= first; n--, buffer ^= 1) {
    float *const k = tiles + buffer * 2 * TILE, *const next = tiles + (buffer ^ 1) * 2 * TILE;
    float s[1][N / 8][4], dp[1][N / 8][4];
    kr_copied<0>();
    kr_sync();
    if (n > first) {
      copy_rows<D, N>(next, p.k.data, k_at + (int64_t)(n - 1) * N * p.k.t, p.k.t, at.s.n_k - (n - 1) * N, p.D);
      copy_rows<D, N>(next + TILE, p.v.data, v_at + (int64_t)(n - 1) * N * p.v.t, p.v.t, at.s.n_k - (n - 1) * N, p.D);
    }
    kr_commit_copies();
    make_scores<D, N>(s[0], own_q, k);
    make_scores<D, N>(dp[0], own_dout, k + TILE);
    if (!ANY && n * N >= all_from && n * N + N <= all_to)
      weigh_keys<ANY, 1, 1, N>(p, at, slope, s, dp, lse, delta, warp_row, n * N, first_of, end_of);
    else weigh_keys<ANY, 0, 1, N>(p, at, slope, s, dp, lse, delta, warp_row, n * N, first_of, end_of);
    add_output<D, N>(dq, s[0], k);
  }
  int64_t to[2];
  int there[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int i = warp_row + lane / 4 + 8 * r;
    there[r] = i < at.s.rows_q, to[r] = query_at(p.dq, at.s, at.h, i);
  }
  store_rows<D>(p.dq, dq, to, there, p.scale, p.D);
}

/* Rows of a head from i0: q, dout, and the rows' log-sum-exp and delta. */
template <int D, int N>
KR_DEV void copy_stage(const kr_attention_params &p, const block &at, float *to, int h, int i0) {
  copy_rows<D, N>(to, p.q.data, query_at(p.q, at.s, h, i0), p.q.t, at.s.n_q - i0, p.D);
  copy_rows<D, N>(to + N * D, p.dout.data, query_at(p.dout, at.s, h, i0), p.dout.t, at.s.n_q - i0, p.D);
  float *const values = to + 2 * N * D;
  const int thread = kr_thread(), i = i0 + thread % N;
  if (thread < 2 * N) {
    const float *const from =
        thread < N ? (const float *)p.lse.data + query_at(p.lse, at.s, h, i) : p.delta + delta_at(p, at.s, h, i);
    if (i < at.s.n_q) kr_copy4(values + thread, from);
    else values[thread] = -MINUS_INFINITY; /* rows out of range: probability 0, whatever delta */
  }
  kr_commit_copies();
}

template <int D, int ANY, int OF>
KR_DEV void gradient_of_keys(const kr_attention_params &p) {
  const int N = KR_FLOATS_BWD_ROWS, STAGE = 2 * N * D + 2 * N;
  KR_DYNAMIC_SHARED(shared);
  float *const k = (float *)shared, *const v = k + OWN * D, *const stages = v + OWN * D;
  const int n_tiles = (p.rows_k + OWN - 1) / OWN, lane = kr_thread() & 31, warp = kr_thread() >> 5;
  const task mine = task_of_keys(p, n_tiles);
  const int first_of_block = (p.left < 0 ? mine.tile : n_tiles - 1 - mine.tile) * OWN;
  const block at = {sequence_of(p, mine.b), mine.h, mine.b};
  if (first_of_block >= at.s.rows_k) return;
  float dk[D / 8][4] = {}, dv[D / 8][4] = {};
  const int has_keys = first_of_block < at.s.n_k, last = at_most(first_of_block + OWN, at.s.n_k) - 1;
  const int i_first = has_keys ? first_row(p, at.s, first_of_block) / N : 0,
            i_end = has_keys ? (end_row(p, at.s, last) + N - 1) / N : 0, per_head = at_least(i_end - i_first, 0),
            n_steps = per_head * p.heads;
  const float *const own_k = k + warp * 16 * D, *const own_v = own_k + OWN * D;
  const int key0 = first_of_block + warp * 16, there_all = key0 + 16 <= at.s.n_k,
            all_from = there_all ? first_row(p, at.s, key0 + 15) : at.s.n_q + N, all_to = end_row(p, at.s, key0);
  if (n_steps) {
    copy_rows<D, OWN>(k, p.k.data, key_at(p, p.k, at.s, at.h, first_of_block), p.k.t, at.s.n_k - first_of_block, p.D);
    copy_rows<D, OWN>(v, p.v.data, key_at(p, p.v, at.s, at.h, first_of_block), p.v.t, at.s.n_k - first_of_block, p.D);
    copy_stage<D, N>(p, at, stages, at.h * p.heads, i_first * N);
  }
#pragma unroll 1
  for (int step = 0, h = at.h * p.heads, tile = i_first, buffer = 0; step < n_steps; step++, buffer ^= 1) {
    float *const q = stages + buffer * STAGE;
    const float *const lse = q + 2 * N * D, *const delta = lse + N;
    const int next_tile = tile + 1 == i_end ? i_first : tile + 1, next_h = tile + 1 == i_end ? h + 1 : h, i0 = tile * N;
    const float slope = ANY ? slope_of(p, at.b, h) : 0.0f;
    float s[1][N / 8][4], dp[1][N / 8][4] = {};
    kr_copied<0>();
    kr_sync();
    if (step + 1 < n_steps) copy_stage<D, N>(p, at, stages + (buffer ^ 1) * STAGE, next_h, next_tile * N);
    make_scores<D, N>(s[0], own_k, q);
    if (OF & OF_KEYS) make_scores<D, N>(dp[0], own_v, q + N * D);
    if (!ANY && i0 >= all_from && i0 + N <= all_to)
      weigh_rows<ANY, 1, 1, N>(p, at, h, slope, s, dp, lse, delta, i0, key0);
    else weigh_rows<ANY, 0, 1, N>(p, at, h, slope, s, dp, lse, delta, i0, key0);
    if (OF & OF_VALUES) add_output<D, N>(dv, s[0], q + N * D);
    if (OF & OF_KEYS) add_output<D, N>(dk, dp[0], q);
    tile = next_tile, h = next_h;
  }
  int64_t to_k[2], to_v[2];
  int there[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int key = key0 + lane / 4 + 8 * r;
    there[r] = key < at.s.rows_k, to_k[r] = key_at(p, p.dk, at.s, at.h, key),
    to_v[r] = key_at(p, p.dv, at.s, at.h, key);
  }
  if (OF & OF_KEYS && p.dk.data) store_rows<D>(p.dk, dk, to_k, there, p.scale, p.D);
  if (OF & OF_VALUES && p.dv.data) store_rows<D>(p.dv, dv, to_v, there, 1.0f, p.D);
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_floats_dq_64(const kr_attention_params p) {
  gradient_of_queries<64, 0>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_floats_dq_64_any(const kr_attention_params p) {
  gradient_of_queries<64, 1>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_floats_dq_128(const kr_attention_params p) {
  gradient_of_queries<128, 0>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_floats_dq_128_any(const kr_attention_params p) {
  gradient_of_queries<128, 1>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_floats_dkv_64(const kr_attention_params p) {
  gradient_of_keys<64, 0, OF_KEYS | OF_VALUES>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_floats_dkv_64_any(const kr_attention_params p) {
  gradient_of_keys<64, 1, OF_KEYS | OF_VALUES>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_floats_dk_128(const kr_attention_params p) {
  gradient_of_keys<128, 0, OF_KEYS>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_floats_dk_128_any(const kr_attention_params p) {
  gradient_of_keys<128, 1, OF_KEYS>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_floats_dv_128(const kr_attention_params p) {
  gradient_of_keys<128, 0, OF_VALUES>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_floats_dv_128_any(const kr_attention_params p) {
  gradient_of_keys<128, 1, OF_VALUES>(p);
}

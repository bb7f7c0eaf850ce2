/* attention_ampere_bwd.cu: the gradient of attention on warp-level tensor cores, in two kernels that each recompute the
 * probabilities (attention_base_bwd.cu has the equation): every sum is computed by one block in a fixed order. Compiled
 * per type (KR_HALF: float16); _any: also softcap, slopes, dropout.
 * kr_attention_dq_D    a block takes 128 rows (turing: 64 of more than 64 channels) and loops over tiles of 32 keys
 * kr_attention_dkv_D   a block takes 64 or 128 keys and loops over tiles of 16 to 64 rows of every head that shares
 *                      them; its scores are transposed: a row is a key
 * Tiles in which every row sees every key, nearly all of them, skip the masks. */
#include "attention_gradients.cuh"
#include "attention_mma.cuh"

/* Begins to copy ROWS rows of D channels, from element `from`, stride t: zeros from `n` on and beyond the head's
 * channels. */
template <int D, int ROWS>
KR_DEV void copy_rows(copier<D, ROWS> &c, uint32_t to, const void *data, int64_t from, int64_t t, int n,
                      int channels) {
  const int chunk = kr_thread() % c.PER_ROW, row = kr_thread() / c.PER_ROW, exists = chunk * 8 < channels;
  const uint16_t *at = (const uint16_t *)data + from + row * t + chunk * 8;
  const int64_t step = c.STEP * t;
  if (n >= ROWS && channels == D) { /* a full tile: no bounds checks */
#pragma unroll
    for (int k = 0; k < c.N; k++, at += step) kr_begin_copy(c.flights[k], c.place_of(to, k), at);
    return;
  }
#pragma unroll
  for (int k = 0; k < c.N; k++, at += step) {
    const int there = exists && row + k * c.STEP < n;
    kr_begin_copy(c.flights[k], c.place_of(to, k), there ? at : (const uint16_t *)data, there);
  }
}

template <int D, int M>
KR_DEV void store_rows(const kr_attention_tensor &to, const float (&o)[M][D / 8][4], const int64_t (&at)[M][2],
                       const int (&there)[M][2], float scale, int channels) {
  const int lane = kr_thread() & 31;
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int j = 0; j < D / 8; j += 4) {
        uint32_t w[4];
#pragma unroll
        for (int k = 0; k < 4; k++) w[k] = kr_pack(o[m][j + k][2 * r] * scale, o[m][j + k][2 * r + 1] * scale, DTYPE);
        const kr_raw16 eight = gather_quad(w[0], w[1], w[2], w[3]);
        const int column = 8 * j + lane % 4 * 8;
        if (there[m][r] && column < channels) *(kr_raw16 *)((uint16_t *)to.data + at[m][r] + column) = eight;
      }
}

/* ---- dq ---------------------------------------------------------------------------------------------------------- */

template <int D, int ANY>
KR_DEV void gradient_of_queries(const kr_attention_params &p) {
  const int M = KR_AMPERE_DQ_M(D, KR_IS_TURING), N = 32, ROWS = 64 * M, TILE = N * D * 2;
  KR_DYNAMIC_SHARED(shared);
  const uint32_t q = kr_shared_at(shared), dout = q + ROWS * D * 2, tiles = dout + ROWS * D * 2; /* two of k and v */
  const task mine = task_of(p, kr_block_x());
  const block at = {sequence_of(p, mine.b), mine.h, mine.b};
  const int row = mine.tile * ROWS, kv = at.h / p.heads, lane = kr_thread() & 31,
            warp_row = row + (kr_thread() >> 5) * 16 * M;
  if (row >= at.s.rows_q) return;
  const float slope = ANY ? slope_of(p, at.b, at.h) : 0.0f;
  const int last = at_most(row + ROWS, at.s.n_q) - 1, end = row < at.s.n_q ? end_key(p, at.s, last) : 0,
            first = row < at.s.n_q ? first_key(p, at.s, row) / N : 0;
  const int64_t k_at = end ? key_at(p, p.k, at.s, kv, 0) : 0, v_at = end ? key_at(p, p.v, at.s, kv, 0) : 0;
  float dq[M][D / 8][4] = {}, lse[M][2], delta[M][2];
  int first_of[M][2], end_of[M][2];
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int i = warp_row + 16 * m + lane / 4 + 8 * r, there = i < at.s.n_q;
      lse[m][r] = there ? lse_of(p, at.s, at.h, i) * KR_LOG2E : -MINUS_INFINITY,
      delta[m][r] = there ? p.delta[delta_at(p, at.s, at.h, i)] : 0.0f;
      first_of[m][r] = first_key(p, at.s, i), end_of[m][r] = there ? end_key(p, at.s, i) : 0;
    }
  const int there_all = warp_row + 16 * M <= at.s.n_q, all_from = first_key(p, at.s, warp_row + 16 * M - 1),
            all_to = there_all ? end_key(p, at.s, warp_row) : 0;
  int n = (end + N - 1) / N - 1, buffer = 0;
  const uint32_t lane_q = q + (warp_row - row) * D * 2 + lane_of_rows<D>(), lane_dout = lane_q + ROWS * D * 2;
  if (n >= first) {
    copier<D, ROWS> qs, douts;
    copier<D, N> ks, vs;
    copy_rows<D, ROWS>(qs, q, p.q.data, query_at(p.q, at.s, at.h, row), p.q.t, at.s.n_q - row, p.D);
    copy_rows<D, ROWS>(douts, dout, p.dout.data, query_at(p.dout, at.s, at.h, row), p.dout.t, at.s.n_q - row, p.D);
    copy_rows<D, N>(ks, tiles, p.k.data, k_at + (int64_t)n * N * p.k.t, p.k.t, at.s.n_k - n * N, p.D);
    copy_rows<D, N>(vs, tiles + TILE, p.v.data, v_at + (int64_t)n * N * p.v.t, p.v.t, at.s.n_k - n * N, p.D);
    kr_commit_copies();
    qs.end(qs, q), douts.end(douts, dout), ks.end(ks, tiles), vs.end(vs, tiles + TILE);
  }
  for (; n >= first; n--, buffer ^= 1) {
    const uint32_t k = tiles + buffer * 2 * TILE, next = tiles + (buffer ^ 1) * 2 * TILE;
    float s[M][N / 8][4], dp[M][N / 8][4];
    uint32_t w[M][N / 16][4];
    copier<D, N> ks, vs;
    kr_copied<0>();
    kr_sync();
    if (n > first) {
      const int at_key = (n - 1) * N, left = at.s.n_k - at_key;
      copy_rows<D, N>(ks, next, p.k.data, k_at + (int64_t)at_key * p.k.t, p.k.t, left, p.D);
      copy_rows<D, N>(vs, next + TILE, p.v.data, v_at + (int64_t)at_key * p.v.t, p.v.t, left, p.D);
    }
    kr_commit_copies();
    make_scores<D, M, N>(s, lane_q, k + lane_of_columns<D>());
    make_scores<D, M, N>(dp, lane_dout, k + TILE + lane_of_columns<D>());
    if (!ANY && n * N >= all_from && n * N + N <= all_to)
      weigh_keys<ANY, 1, M, N>(p, at, slope, s, dp, lse, delta, warp_row, n * N, first_of, end_of);
    else weigh_keys<ANY, 0, M, N>(p, at, slope, s, dp, lse, delta, warp_row, n * N, first_of, end_of);
    pack_weights<M, N>(s, w);
    if (n > first) ks.end(ks, next), vs.end(vs, next + TILE);
    add_output<D, M, N>(dq, w, k + lane_of_rows<D>());
  }
  int64_t to[M][2];
  int there[M][2];
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int i = warp_row + 16 * m + lane / 4 + 8 * r;
      there[m][r] = i < at.s.rows_q, to[m][r] = query_at(p.dq, at.s, at.h, i);
    }
  store_rows<D, M>(p.dq, dq, to, there, p.scale, p.D);
}

/* ---- dk, dv ------------------------------------------------------------------------------------------------------ */

template <int D, int N>
struct walk {
  enum {
    ROWS = N,
    TILE = ROWS * D * 2,
    STAGE = KR_AMPERE_DKV_STAGE(D, ROWS)
  };
};

template <int D, int N>
struct stage_copier {
  copier<D, N> q, dout;
  float value; /* turing's share of log-sum-exp and delta */
};

/* Rows of a head from i0. */
template <int D, int N>
KR_DEV void copy_stage(stage_copier<D, N> &c, const kr_attention_params &p, const block &at, unsigned char *shared,
                       uint32_t to, int h, int i0) {
  const int ROWS = walk<D, N>::ROWS, TILE = walk<D, N>::TILE;
  copy_rows<D, ROWS>(c.q, to, p.q.data, query_at(p.q, at.s, h, i0), p.q.t, at.s.n_q - i0, p.D);
  copy_rows<D, ROWS>(c.dout, to + TILE, p.dout.data, query_at(p.dout, at.s, h, i0), p.dout.t, at.s.n_q - i0, p.D);
  float *const values = (float *)(shared + (to - kr_shared_at(shared)) + 2 * TILE);
  const int thread = kr_thread(), i = i0 + thread % ROWS;
  if (thread >= 2 * ROWS) return;
  const float *const from =
      thread < ROWS ? (const float *)p.lse.data + query_at(p.lse, at.s, h, i) : p.delta + delta_at(p, at.s, h, i);
  /* rows out of range: probability 0, whatever delta */
  if (KR_IS_TURING) c.value = i < at.s.n_q ? *from : -MINUS_INFINITY;
  else if (i < at.s.n_q) kr_copy4(values + thread, from);
  else values[thread] = -MINUS_INFINITY;
}

template <int D, int N>
KR_DEV void end_stage(const stage_copier<D, N> &c, unsigned char *shared, uint32_t to) {
  const int ROWS = walk<D, N>::ROWS, TILE = walk<D, N>::TILE;
  c.q.end(c.q, to), c.dout.end(c.dout, to + TILE);
  if (KR_IS_TURING && kr_thread() < 2 * ROWS)
    ((float *)(shared + (to - kr_shared_at(shared)) + 2 * TILE))[kr_thread()] = c.value;
}

template <int D, int ANY>
KR_DEV void gradient_of_keys(const kr_attention_params &p) {
  const int KEYS = KR_AMPERE_DKV_KEYS(D, ANY), M = KEYS / 64, N = KR_AMPERE_DKV_ROWS(D, ANY, KR_IS_TURING),
            TILE = walk<D, N>::TILE, STAGE = walk<D, N>::STAGE;
  KR_DYNAMIC_SHARED(shared);
  const uint32_t k = kr_shared_at(shared), v = k + KEYS * D * 2, stages = v + KEYS * D * 2;
  const int n_tiles = (p.rows_k + KEYS - 1) / KEYS, lane = kr_thread() & 31, warp = kr_thread() >> 5;
  const task mine = task_of_keys(p, n_tiles);
  const int first_of_block = (p.left < 0 ? mine.tile : n_tiles - 1 - mine.tile) * KEYS;
  const block at = {sequence_of(p, mine.b), mine.h, mine.b};
  if (first_of_block >= at.s.rows_k) return;
  float dk[M][D / 8][4] = {}, dv[M][D / 8][4] = {};
  const int has_keys = first_of_block < at.s.n_k, last = at_most(first_of_block + KEYS, at.s.n_k) - 1;
  const int i_first = has_keys ? first_row(p, at.s, first_of_block) / N : 0,
            i_end = has_keys ? (end_row(p, at.s, last) + N - 1) / N : 0, per_head = at_least(i_end - i_first, 0),
            n_steps = per_head * p.heads;
  const uint32_t lane_k = k + warp * 16 * M * D * 2 + lane_of_rows<D>(), lane_v = lane_k + KEYS * D * 2;
  const int key0 = first_of_block + warp * 16 * M, there_all = key0 + 16 * M <= at.s.n_k,
            all_from = there_all ? first_row(p, at.s, key0 + 16 * M - 1) : at.s.n_q + N,
            all_to = end_row(p, at.s, key0);
  if (n_steps) {
    const int left = at.s.n_k - first_of_block;
    copier<D, KEYS> ks, vs;
    stage_copier<D, N> rows;
    copy_rows<D, KEYS>(ks, k, p.k.data, key_at(p, p.k, at.s, at.h, first_of_block), p.k.t, left, p.D);
    copy_rows<D, KEYS>(vs, v, p.v.data, key_at(p, p.v, at.s, at.h, first_of_block), p.v.t, left, p.D);
    copy_stage<D, N>(rows, p, at, shared, stages, at.h * p.heads, i_first * N);
    kr_commit_copies();
    ks.end(ks, k), vs.end(vs, v), end_stage<D, N>(rows, shared, stages);
  }
  for (int step = 0, h = at.h * p.heads, tile = i_first, buffer = 0; step < n_steps; step++, buffer ^= 1) {
    const uint32_t q = stages + buffer * STAGE;
    const float *const lse = (const float *)(shared + (q - k) + 2 * TILE), *const delta = lse + N;
    const int next_tile = tile + 1 == i_end ? i_first : tile + 1, next_h = tile + 1 == i_end ? h + 1 : h, i0 = tile * N;
    const float slope = ANY ? slope_of(p, at.b, h) : 0.0f;
    float s[M][N / 8][4], dp[M][N / 8][4];
    uint32_t w[M][N / 16][4];
    stage_copier<D, N> rows;
    const uint32_t next = stages + (buffer ^ 1) * STAGE;
    kr_copied<0>();
    kr_sync();
    if (step + 1 < n_steps) copy_stage<D, N>(rows, p, at, shared, next, next_h, next_tile * N);
    kr_commit_copies();
    make_scores<D, M, N>(s, lane_k, q + lane_of_columns<D>());
    make_scores<D, M, N>(dp, lane_v, q + TILE + lane_of_columns<D>());
    if (!ANY && i0 >= all_from && i0 + N <= all_to)
      weigh_rows<ANY, 1, M, N>(p, at, h, slope, s, dp, lse, delta, i0, key0);
    else weigh_rows<ANY, 0, M, N>(p, at, h, slope, s, dp, lse, delta, i0, key0);
    pack_weights<M, N>(s, w);
    add_output<D, M, N>(dv, w, q + TILE + lane_of_rows<D>());
    pack_weights<M, N>(dp, w);
    if (step + 1 < n_steps) end_stage<D, N>(rows, shared, next);
    add_output<D, M, N>(dk, w, q + lane_of_rows<D>());
    tile = next_tile, h = next_h;
  }
  int64_t to_k[M][2], to_v[M][2];
  int there[M][2];
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int key = key0 + 16 * m + lane / 4 + 8 * r;
      there[m][r] = key < at.s.rows_k, to_k[m][r] = key_at(p, p.dk, at.s, at.h, key),
      to_v[m][r] = key_at(p, p.dv, at.s, at.h, key);
    }
  if (p.dk.data) store_rows<D, M>(p.dk, dk, to_k, there, p.scale, p.D);
  if (p.dv.data) store_rows<D, M>(p.dv, dv, to_v, there, 1.0f, p.D);
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_dq_64(const kr_attention_params p) { gradient_of_queries<64, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_dq_128(const kr_attention_params p) {
  gradient_of_queries<128, 0>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_dq_64_any(const kr_attention_params p) {
  gradient_of_queries<64, 1>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_dq_128_any(const kr_attention_params p) {
  gradient_of_queries<128, 1>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_dkv_64(const kr_attention_params p) { gradient_of_keys<64, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_dkv_128(const kr_attention_params p) { gradient_of_keys<128, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_dkv_64_any(const kr_attention_params p) {
  gradient_of_keys<64, 1>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_dkv_128_any(const kr_attention_params p) {
  gradient_of_keys<128, 1>(p);
}

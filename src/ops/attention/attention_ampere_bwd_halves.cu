/* attention_ampere_bwd_halves.cu: the gradient of attention of float32 on warp-level tensor cores, every factor as two
 * float16 parts as in attention_ampere_halves.cu, whose kr_attention_halve makes those of q, k, v and dout. What is
 * summed over keys, or rows, takes the scale of the other factor's row, and then one of its own row that grows with the
 * largest number so far, as a softmax's maximum does. Otherwise as attention_ampere_bwd.cu, without softcap, slopes and
 * dropout:
 * kr_attention_halves_dq_D    a block takes 64 or 128 rows and loops over tiles of keys
 * kr_attention_halves_dkv_D   a block takes 64 keys and loops over tiles of rows of every head that shares them */
#include "attention_gradients.cuh"
#include "attention_halves.cuh"

enum { N = KR_HALVES_BWD_TILE };

/* Exponents of the scales of a warp's rows of sums, 16 M of them. */
template <int M>
struct row_scales {
  int32_t up[M][2];
};

/* 2^up, also where that is no normal number: then 0. */
KR_DEV float power_of(int32_t up) { return kr_bits_to_float((uint32_t)at_least(127 + up, 0) << 23); }

/* Scales w to float16's range: rows that exceed it take a smaller scale from here on, and so do their sums o. */
template <int D, int M>
KR_DEV void fit(float (&w)[M][N / 8][4], row_scales<M> &rows, float (&o)[M][D / 8][4]) {
  int32_t wanted[M][2], shrinks = 0;
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float most = 0;
#pragma unroll
      for (int j = 0; j < N / 8; j++)
        most = higher(most, higher(__builtin_fabsf(w[m][j][2 * r]), __builtin_fabsf(w[m][j][2 * r + 1])));
      most = higher(most, kr_shuffle_xor(most, 1)), most = higher(most, kr_shuffle_xor(most, 2));
      wanted[m][r] = 14 + 127 - at_most((int32_t)(kr_float_to_bits(most) >> 23), 254);
      shrinks |= wanted[m][r] < rows.up[m][r];
    }
  if (kr_any_lane(shrinks)) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int32_t now = at_most(rows.up[m][r], wanted[m][r]);
        const float shrink = power_of(now - rows.up[m][r]);
        rows.up[m][r] = now;
#pragma unroll
        for (int j = 0; j < D / 8; j++) o[m][j][2 * r] *= shrink, o[m][j][2 * r + 1] *= shrink;
      }
  }
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float scale = power_of(rows.up[m][r]);
#pragma unroll
      for (int j = 0; j < N / 8; j++) w[m][j][2 * r] *= scale, w[m][j][2 * r + 1] *= scale;
    }
}

/* Numbers of a tile's columns, its keys or rows: 2^-up of both of their factors as bits and, of rows, log-sum-exp and
 * delta. */
struct columns {
  int32_t first[N], second[N];
  float lse[N], delta[N];
};

/* w times 2^-up of its column. */
template <int M>
KR_DEV void weigh_columns(float (&w)[M][N / 8][4], const int32_t *unscale) {
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    const kr_float2 by = *(const kr_float2 *)(unscale + 8 * j + kr_thread() % 4 * 2);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) w[m][j][i] *= by.v[i % 2];
  }
}

template <int M>
KR_DEV void unscale(float (&s)[M][N / 8][4], const int32_t *columns, const int32_t (&of_rows)[M][2]) {
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    const int32_t *const two = columns + 8 * j + kr_thread() % 4 * 2;
    const int32_t of_columns[2] = {two[0], two[1]};
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[m][j][i] *= unscale_of(of_columns[i % 2], of_rows[m][i / 2]);
  }
}

template <int D, int M>
KR_DEV void store_rows(const kr_attention_tensor &to, const float (&o)[M][D / 8][4], const row_scales<M> &rows,
                       const int64_t (&at)[M][2], const int (&there)[M][2], float scale, int channels) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float by = power_of(-rows.up[m][r]) * scale;
#pragma unroll
      for (int j = 0; j < D / 8; j++)
        if (there[m][r] && 8 * j < channels)
          *(kr_float2 *)((float *)to.data + at[m][r] + 8 * j + kr_thread() % 4 * 2) =
              kr_float2{{o[m][j][2 * r] * by, o[m][j][2 * r + 1] * by}};
    }
}

/* 2^-up of rows of two tensors as bits; 0 of those that do not exist. */
KR_DEV void read_columns(columns &to, const kr_halves &first, const kr_halves &second, int64_t row, int n) {
  const int j = kr_thread();
  if (j >= N) return;
  to.first[j] = j < n ? (127 - first.up[row + j]) * (1 << 23) : 0;
  to.second[j] = j < n ? (127 - second.up[row + j]) * (1 << 23) : 0;
}

/* Parts of a block's own rows, or keys, of two tensors, of which n exist, and 2^-up of the thread's as bits. place: of
 * columns' numbers, later. limit: of the second one's scales. */
template <int D, int OWN>
KR_DEV void halve_two(unsigned char *to, columns *place, const kr_attention_params &p, const kr_attention_tensor &first,
                      const kr_attention_tensor &second, int64_t at_first, int64_t at_second, int n, int limit,
                      int32_t (&of_first)[OWN / 64][2], int32_t (&of_second)[OWN / 64][2]) {
  static_assert(2 * OWN * sizeof(int32_t) <= KR_HALVES_BWD_STAGES(D) * sizeof(columns), "no place for scales");
  int32_t *const up = (int32_t *)place;
  halve_own<D, OWN>(to, up, first, at_first, p.D, n, 126);
  halve_own<D, OWN>(to + 4 * OWN * D, up + OWN, second, at_second, p.D, n, limit);
  kr_sync();
#pragma unroll
  for (int m = 0; m < OWN / 64; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int i = (kr_thread() >> 5) * (OWN / 4) + 16 * m + (kr_thread() & 31) / 4 + 8 * r;
      of_first[m][r] = up[i] * -(1 << 23), of_second[m][r] = up[OWN + i] * -(1 << 23);
    }
  kr_sync();
}

/* Both tensors' parts of N rows from `row` on. */
template <int D>
KR_DEV void copy_two(uint32_t to, const kr_halves &first, const kr_halves &second, int64_t row, int n) {
  copy_halves<D, N>(to, first, row, n);
  copy_halves<D, N>(to + 4 * N * D, second, row, n);
}

/* ---- dq ---------------------------------------------------------------------------------------------------------- */

template <int D>
KR_DEV void gradient_of_queries(const kr_attention_halves_params &a) {
  const kr_attention_params &p = a.params;
  const int OWN = KR_HALVES_DQ_ROWS(D), M = OWN / 64, STAGES = KR_HALVES_BWD_STAGES(D), STAGE = 8 * N * D;
  KR_DYNAMIC_SHARED(shared);
  const uint32_t q = kr_shared_at(shared), dout = q + 4 * OWN * D, stages = dout + 4 * OWN * D;
  columns *const scales = (columns *)(shared + (8 * OWN * D + STAGES * STAGE));
  const task mine = task_of(p, kr_block_x());
  const block at = {sequence_of(p, mine.b), mine.h, mine.b};
  const int row = mine.tile * OWN, kv = at.h / p.heads, lane = kr_thread() & 31,
            warp_row = row + (kr_thread() >> 5) * 16 * M;
  if (row >= at.s.rows_q) return;
  const int last = at_most(row + OWN, at.s.n_q) - 1, end = row < at.s.n_q ? end_key(p, at.s, last) : 0,
            first = row < at.s.n_q ? first_key(p, at.s, row) / N : 0;
  const int64_t key_row = row_of_key(p, at.s, kv, 0);
  float dq[M][D / 8][4] = {}, lse[M][2], delta[M][2];
  int first_of[M][2], end_of[M][2];
  int32_t up_q[M][2], up_dout[M][2];
  row_scales<M> sums;
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int i = warp_row + 16 * m + lane / 4 + 8 * r, there = i < at.s.n_q;
      lse[m][r] = there ? lse_of(p, at.s, at.h, i) * KR_LOG2E : -MINUS_INFINITY,
      delta[m][r] = there ? p.delta[delta_at(p, at.s, at.h, i)] : 0.0f;
      first_of[m][r] = first_key(p, at.s, i), end_of[m][r] = there ? end_key(p, at.s, i) : 0;
      up_q[m][r] = up_dout[m][r] = 0, sums.up[m][r] = 126;
    }
  const int there_all = warp_row + 16 * M <= at.s.n_q, all_from = first_key(p, at.s, warp_row + 16 * M - 1),
            all_to = there_all ? end_key(p, at.s, warp_row) : 0;
  const uint32_t lane_q = q + (warp_row - row) * D * 2 + lane_of_rows<D>(), lane_dout = lane_q + 4 * OWN * D;
  int n = (end + N - 1) / N - 1, buffer = 0;
  if (n >= first)
    halve_two<D, OWN>(shared, scales, p, p.q, p.dout, query_at(p.q, at.s, at.h, row), query_at(p.dout, at.s, at.h, row),
                      at.s.n_q - row, 126, up_q, up_dout);
#pragma unroll 1
  for (int ahead = 0; n >= first; n--, buffer ^= STAGES - 1) {
    float s[M][N / 8][4], dp[M][N / 8][4];
    for (; ahead < STAGES && n - ahead >= first; ahead++) { /* the first time, as many as there are stages */
      const int to = STAGES == 1 ? 0 : buffer ^ ahead, key = (n - ahead) * N;
      copy_two<D>(stages + to * STAGE, a.of[KR_HALVES_K], a.of[KR_HALVES_V], key_row + key, at.s.n_k - key);
      read_columns(scales[to], a.of[KR_HALVES_K], a.of[KR_HALVES_V], key_row + key, at.s.n_k - key);
      kr_commit_copies();
    }
    if (ahead == 2) kr_copied<1>();
    else kr_copied<0>();
    kr_sync();
    const uint32_t k = stages + buffer * STAGE;
    make_scores_of_halves<D, M, N, OWN>(s, lane_q, k + lane_of_columns<D>());
    unscale<M>(s, scales[buffer].first, up_q);
    make_scores_of_halves<D, M, N, OWN>(dp, lane_dout, k + 4 * N * D + lane_of_columns<D>());
    unscale<M>(dp, scales[buffer].second, up_dout);
    if (n * N >= all_from && n * N + N <= all_to)
      weigh_keys<0, 1, M, N>(p, at, 0, s, dp, lse, delta, warp_row, n * N, first_of, end_of);
    else weigh_keys<0, 0, M, N>(p, at, 0, s, dp, lse, delta, warp_row, n * N, first_of, end_of);
    weigh_columns<M>(s, scales[buffer].first);
    fit<D, M>(s, sums, dq);
    add_output_of_halves<D, M, N>(dq, s, k + lane_of_rows<D>());
    kr_sync();
    ahead--;
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
  store_rows<D, M>(p.dq, dq, sums, to, there, p.scale, p.D);
}

/* ---- dk, dv ------------------------------------------------------------------------------------------------------ */

/* Rows of a head from i0. */
template <int D>
KR_DEV void copy_stage(const kr_attention_halves_params &a, const block &at, uint32_t to, columns &numbers, int h,
                       int i0) {
  const kr_attention_params &p = a.params;
  const int64_t row = row_of_q(p, at.s, h, i0);
  copy_two<D>(to, a.of[KR_HALVES_Q], a.of[KR_HALVES_DOUT], row, at.s.n_q - i0);
  read_columns(numbers, a.of[KR_HALVES_Q], a.of[KR_HALVES_DOUT], row, at.s.n_q - i0);
  const int i = kr_thread();
  if (i < N) { /* rows out of range: probability 0, whatever delta */
    numbers.lse[i] = i0 + i < at.s.n_q ? lse_of(p, at.s, h, i0 + i) : -MINUS_INFINITY;
    numbers.delta[i] = i0 + i < at.s.n_q ? p.delta[delta_at(p, at.s, h, i0 + i)] : 0.0f;
  }
  kr_commit_copies();
}

template <int D>
KR_DEV void gradient_of_keys(const kr_attention_halves_params &a) {
  const kr_attention_params &p = a.params;
  const int OWN = KR_HALVES_DKV_KEYS, M = OWN / 64, STAGES = KR_HALVES_BWD_STAGES(D), STAGE = 8 * N * D;
  KR_DYNAMIC_SHARED(shared);
  const uint32_t k = kr_shared_at(shared), v = k + 4 * OWN * D, stages = v + 4 * OWN * D;
  columns *const numbers = (columns *)(shared + (8 * OWN * D + STAGES * STAGE));
  const int n_tiles = (p.rows_k + OWN - 1) / OWN, lane = kr_thread() & 31, warp = kr_thread() >> 5;
  const task mine = task_of_keys(p, n_tiles);
  const int first_of_block = (p.left < 0 ? mine.tile : n_tiles - 1 - mine.tile) * OWN;
  const block at = {sequence_of(p, mine.b), mine.h, mine.b};
  if (first_of_block >= at.s.rows_k) return;
  float dk[M][D / 8][4] = {}, dv[M][D / 8][4] = {};
  row_scales<M> of_dk, of_dv;
  int32_t up_k[M][2], up_v[M][2];
  const int has_keys = first_of_block < at.s.n_k, last = at_most(first_of_block + OWN, at.s.n_k) - 1;
  const int i_first = has_keys ? first_row(p, at.s, first_of_block) / N : 0,
            i_end = has_keys ? (end_row(p, at.s, last) + N - 1) / N : 0, per_head = at_least(i_end - i_first, 0),
            n_steps = per_head * p.heads;
  const uint32_t lane_k = k + warp * 16 * M * D * 2 + lane_of_rows<D>(), lane_v = lane_k + 4 * OWN * D;
  const int key0 = first_of_block + warp * 16 * M, there_all = key0 + 16 * M <= at.s.n_k,
            all_from = there_all ? first_row(p, at.s, key0 + 16 * M - 1) : at.s.n_q + N,
            all_to = end_row(p, at.s, key0);
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) up_k[m][r] = up_v[m][r] = 0, of_dk.up[m][r] = of_dv.up[m][r] = 126;
  if (n_steps)
    halve_two<D, OWN>(shared, numbers, p, p.k, p.v, key_at(p, p.k, at.s, at.h, first_of_block),
                      key_at(p, p.v, at.s, at.h, first_of_block), at.s.n_k - first_of_block, KR_HALVES_MOST_UP, up_k,
                      up_v);
  int h = at.h * p.heads, tile = i_first; /* of the next copy */
#pragma unroll 1
  for (int step = 0, copied = 0, buffer = 0, i0 = i_first * N; step < n_steps; step++, buffer ^= STAGES - 1) {
    float s[M][N / 8][4], dp[M][N / 8][4];
    for (; copied < n_steps && copied < step + STAGES; copied++) {
      const int to = STAGES == 1 ? 0 : copied & 1;
      copy_stage<D>(a, at, stages + to * STAGE, numbers[to], h, tile * N);
      if (++tile == i_end) tile = i_first, h++;
    }
    if (copied > step + 1) kr_copied<1>();
    else kr_copied<0>();
    kr_sync();
    const uint32_t q = stages + buffer * STAGE;
    const columns &now = numbers[buffer];
    make_scores_of_halves<D, M, N, OWN>(s, lane_k, q + lane_of_columns<D>());
    unscale<M>(s, now.first, up_k);
    make_scores_of_halves<D, M, N, OWN>(dp, lane_v, q + 4 * N * D + lane_of_columns<D>());
    unscale<M>(dp, now.second, up_v);
    if (i0 >= all_from && i0 + N <= all_to)
      weigh_rows<0, 1, M, N>(p, at, 0, 0, s, dp, now.lse, now.delta, i0, key0);
    else weigh_rows<0, 0, M, N>(p, at, 0, 0, s, dp, now.lse, now.delta, i0, key0);
    weigh_columns<M>(s, now.second);
    fit<D, M>(s, of_dv, dv);
    add_output_of_halves<D, M, N>(dv, s, q + 4 * N * D + lane_of_rows<D>());
    weigh_columns<M>(dp, now.first);
    fit<D, M>(dp, of_dk, dk);
    add_output_of_halves<D, M, N>(dk, dp, q + lane_of_rows<D>());
    i0 = i0 / N + 1 == i_end ? i_first * N : i0 + N;
    kr_sync();
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
  if (p.dk.data) store_rows<D, M>(p.dk, dk, of_dk, to_k, there, p.scale, p.D);
  if (p.dv.data) store_rows<D, M>(p.dv, dv, of_dv, to_v, there, 1.0f, p.D);
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_halves_dq_64(const kr_attention_halves_params a) {
  gradient_of_queries<64>(a);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_halves_dq_128(const kr_attention_halves_params a) {
  gradient_of_queries<128>(a);
}
KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_attention_halves_dkv_64(const kr_attention_halves_params a) {
  gradient_of_keys<64>(a);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_halves_dkv_128(const kr_attention_halves_params a) {
  gradient_of_keys<128>(a);
}

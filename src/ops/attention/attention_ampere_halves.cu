/* attention_ampere_halves.cu: attention of float32 on warp-level tensor cores, whose products of float16 are twice to
 * three times as fast as those of tf32: q, k, v and the weights as two float16 parts of 11 bits each. So that no row is
 * out of float16's range,
 * kr_attention_halve      scales each row of k and v by a power of two and splits it, as each block does with its own
 *                         rows of q; and in
 * kr_attention_halves_D   the values' scales are exponents of the weights: a weight is 2^(score + e - most), with the
 *                         greatest score + e of the row as `most`, and sums of weights take it times 2^-e.
 * _small: blocks of 64 rows instead of 128. In the turing tier (KR_TURING) tiles of keys and values are half as long,
 * and wait in registers until there is room for them in shared memory. A factor that is infinite gives NaN. Otherwise
 * as attention_ampere.cu, without softcap, slopes and dropout. */
#include "attention_halves.cuh"
#include "attention_softmax.cuh"

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* The row that this thread's D / 8 lanes take, of rows that begin at a block of their own. */
template <int D>
KR_DEV void halve_row(const kr_attention_tensor &from, const kr_halves &to, int64_t row, int L, int H, int channels,
                      int limit) {
  const int column = kr_thread() % (D / 8) * 8, is_there = row < to.n_rows && column < channels;
  const int64_t head = row / L, i = row - head * L, b = head / H, h = head - b * H;
  const float *const at = (const float *)from.data + b * from.b + h * from.h + i * from.t + column;
  const halved made = halve_lane<D>(is_there ? at : nullptr, limit);
  if (row >= to.n_rows) return;
  uint16_t *const out = to.parts + row * D + column;
  *(kr_raw16 *)out = made.high, *(kr_raw16 *)(out + to.n_rows * D) = made.low;
  if (column == 0) to.up[row] = made.up;
}

/* Rows of two tensors, k and v or q and dout, follow one another. */
template <int D>
KR_DEV void halve_rows(const kr_attention_halves_params &a) {
  const kr_attention_params &p = a.params;
  const int H = p.H / p.heads;
  int64_t row = (int64_t)kr_block_x() * KR_HALVE_ROWS(D) + kr_thread() / (D / 8), n;
#define KR_HALVE_OR_NEXT(which, from, L, H, limit)                                                        \
  n = (a.of[which].n_rows + KR_HALVE_ROWS(D) - 1) / KR_HALVE_ROWS(D) * KR_HALVE_ROWS(D);                  \
  if (row < n) return halve_row<D>(from, a.of[which], row, L, H, p.D, limit);                             \
  row -= n;
  KR_HALVE_OR_NEXT(KR_HALVES_Q, p.q, p.Lq, p.H, 126)
  KR_HALVE_OR_NEXT(KR_HALVES_K, p.k, p.Lk, H, 126)
  KR_HALVE_OR_NEXT(KR_HALVES_V, p.v, p.Lk, H, KR_HALVES_MOST_UP)
  KR_HALVE_OR_NEXT(KR_HALVES_DOUT, p.dout, p.Lq, p.H, 126)
#undef KR_HALVE_OR_NEXT
}

KR_KERNEL void KR_BOUNDS(KR_HALVE_THREADS, 4) kr_attention_halve_64(const kr_attention_halves_params a) {
  halve_rows<64>(a);
}
KR_KERNEL void KR_BOUNDS(KR_HALVE_THREADS, 4) kr_attention_halve_128(const kr_attention_halves_params a) {
  halve_rows<128>(a);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* Of a tile's keys: 2^-up of the key as a float's bits, the exponent e of its values, 2^-e. */
template <int N>
struct key_scales {
  int32_t unscale[N];
  float e[N], weight[N];
};

template <int N>
KR_DEV void read_scales(key_scales<N> &to, const kr_attention_halves_params &a, int64_t row, int n) {
  const int j = kr_thread();
  if (j >= N) return;
  const int up_k = j < n ? a.of[KR_HALVES_K].up[row + j] : 127, up_v = j < n ? a.of[KR_HALVES_V].up[row + j] : 0;
  to.unscale[j] = (127 - up_k) * (1 << 23), to.e[j] = (float)-up_v;
  to.weight[j] = j < n ? kr_bits_to_float((uint32_t)(127 + up_v) << 23) : 0.0f;
}

template <int M, int N>
KR_DEV void unscale(float (&s)[M][N / 8][4], const key_scales<N> &keys, const int32_t (&of_rows)[M][2]) {
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    const int32_t *const two = keys.unscale + 8 * j + kr_thread() % 4 * 2;
    const int32_t of_keys[2] = {two[0], two[1]};
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[m][j][i] *= unscale_of(of_keys[i % 2], of_rows[m][i / 2]);
  }
}

/* Weights are at most 2^TOP, within float16's range. */
#define TOP 14.0f

/* As attention_softmax.cuh's weigh, weights times 2^TOP. */
template <int D, int M, int N>
KR_DEV void weigh_halves(float (&s)[M][N / 8][4], const key_scales<N> &keys, float scale,
                         float (&most)[M][2], float (&sum)[M][2], float (&o)[M][D / 8][4]) {
  float high[M][2];
  int grows = 0;
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    const kr_float2 e = *(const kr_float2 *)(keys.e + 8 * j + kr_thread() % 4 * 2);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        s[m][j][i] = kr_fma(s[m][j][i], scale, e.v[i % 2]);
        if (i % 2) {
          const float two = higher(s[m][j][i - 1], s[m][j][i]);
          high[m][i / 2] = j == 0 ? two : higher(high[m][i / 2], two);
        }
      }
  }
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float a = higher(high[m][r], kr_shuffle_xor(high[m][r], 1));
      high[m][r] = higher(a, kr_shuffle_xor(a, 2));
      grows |= high[m][r] > most[m][r];
    }
  if (kr_any_lane(grows)) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float now = higher(most[m][r], high[m][r]),
                    shrink = now == MINUS_INFINITY ? 1.0f : kr_exp2(most[m][r] - now);
        most[m][r] = now, sum[m][r] *= shrink;
#pragma unroll
        for (int j = 0; j < D / 8; j++) o[m][j][2 * r] *= shrink, o[m][j][2 * r + 1] *= shrink;
      }
  }
#pragma unroll
  for (int j = 0; j < N / 8; j++) {
    const kr_float2 weight = *(const kr_float2 *)(keys.weight + 8 * j + kr_thread() % 4 * 2);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float offset = most[m][i / 2] == MINUS_INFINITY ? 0.0f : most[m][i / 2] - TOP;
        s[m][j][i] = kr_exp2(s[m][j][i] - offset);
        sum[m][i / 2] = kr_fma(s[m][j][i], weight.v[i % 2], sum[m][i / 2]);
      }
  }
}

template <int D, int M>
KR_DEV void finish(const kr_attention_params &p, const block &at, const float (&most)[M][2],
                   const float (&sum)[M][2], const float (&o)[M][D / 8][4]) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int i = at.warp_row + 16 * m + at.lane / 4 + 8 * r;
      const float by = end_sum(p, at.s, at.h, i, 1.0f, most[m][r] - TOP, sum[m][r], at.lane % 4 == 0);
      float *const to = (float *)p.out.data + query_at(p.out, at.s, at.h, i) + at.lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < D / 8; j++)
        if (i < at.s.rows_q && 8 * j < p.D)
          *(kr_float2 *)(to + 8 * j) =
              by != 0 ? kr_float2{{o[m][j][2 * r] * by, o[m][j][2 * r + 1] * by}} : kr_float2{{0, 0}};
    }
}

template <int D, int M>
KR_DEV void run(const kr_attention_halves_params &a) {
  const kr_attention_params &p = a.params;
  const int N = KR_HALVES_KEYS(D, KR_IS_TURING), ROWS = 64 * M, TILE = 2 * N * D * 2;
  const int OTHER = KR_IS_TURING ? 0 : TILE; /* buffer of keys */
  KR_DYNAMIC_SHARED(shared);
  const uint32_t q = kr_shared_at(shared), k0 = q + 2 * ROWS * D * 2, v = k0 + OTHER + TILE;
  key_scales<N> *const scales = (key_scales<N> *)(shared + (2 * ROWS * D * 2 + OTHER + 2 * TILE));
  const task mine = task_of(p, kr_block_x());
  block at = {sequence_of(p, mine.b), mine.tile * ROWS, mine.h, mine.h / p.heads, mine.b, 0, kr_thread() & 31};
  if (at.row >= at.s.rows_q) return;
  at.warp_row = at.row + (kr_thread() >> 5) * 16 * M;
  const float scale = p.scale * KR_LOG2E;
  float o[M][D / 8][4] = {}, most[M][2], sum[M][2];
  int32_t of_rows[M][2];
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) most[m][r] = MINUS_INFINITY, sum[m][r] = 0, of_rows[m][r] = 0;
  const int last = at_most(at.row + ROWS, at.s.n_q) - 1, end = at.row < at.s.n_q ? end_key(p, at.s, last) : 0,
            first = at.row < at.s.n_q ? first_key(p, at.s, at.row) / N : 0;
  const int all_from = first_key(p, at.s, at.warp_row + 16 * M - 1), all_to = end_key(p, at.s, at.warp_row);
  const int64_t key_row = row_of_key(p, at.s, at.kv, 0);
  const uint32_t lane_q = q + (at.warp_row - at.row) * D * 2 + lane_of_rows<D>(), lane_k = lane_of_columns<D>(),
                 lane_v = v + lane_of_rows<D>();
  int n = (end + N - 1) / N - 1, buffer = 0;
  if (n >= first) {
    copy_halves<D, N>(k0, a.of[KR_HALVES_K], key_row + n * N, at.s.n_k - n * N);
    kr_commit_copies();
    read_scales<N>(scales[0], a, key_row + n * N, at.s.n_k - n * N);
    int32_t *const up = (int32_t *)(shared + (2 * ROWS * D * 2 + OTHER + TILE)); /* where values will be */
    halve_own<D, ROWS>(shared, up, p.q, query_at(p.q, at.s, at.h, at.row), p.D, at.s.n_q - at.row, 126);
    kr_sync();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int r = 0; r < 2; r++)
        of_rows[m][r] = up[at.warp_row - at.row + 16 * m + at.lane / 4 + 8 * r] * -(1 << 23);
  }
  for (; n >= first; n--, buffer ^= 1) {
    float s[M][N / 8][4];
    halves_copier<D, N> values, keys;
    const uint32_t next = k0 + (buffer ^ 1) * OTHER;
    const int64_t next_row = key_row + (n - 1) * N;
    const int n_next = n > first ? at.s.n_k - (n - 1) * N : 0;
    kr_copied<0>();
    kr_sync();
    values.begin(values, v, a.of[KR_HALVES_V], key_row + n * N, at.s.n_k - n * N);
    kr_commit_copies();
    if (!KR_IS_TURING && n > first) keys.begin(keys, next, a.of[KR_HALVES_K], next_row, n_next);
    if (n > first) read_scales<N>(scales[buffer ^ 1], a, next_row, n_next);
    kr_commit_copies();
    make_scores_of_halves<D, M, N, ROWS>(s, lane_q, k0 + buffer * OTHER + lane_k);
    values.end(values, v);
    if (KR_IS_TURING && n > first) keys.begin(keys, next, a.of[KR_HALVES_K], next_row, n_next);
    unscale<M, N>(s, scales[buffer], of_rows);
    if (n * N < all_from || n * N + N > all_to) hide<M, N>(p, at, n * N, s);
    weigh_halves<D, M, N>(s, scales[buffer], scale, most, sum, o);
    kr_copied<1>();
    kr_sync();
    if (n > first) keys.end(keys, next);
    add_output_of_halves<D, M, N>(o, s, lane_v);
  }
  finish<D, M>(p, at, most, sum, o);
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_halves_64(const kr_attention_halves_params a) { run<64, 2>(a); }
KR_KERNEL void KR_BOUNDS(THREADS, KR_IS_TURING ? 2 : 3)
    kr_attention_halves_64_small(const kr_attention_halves_params a) {
  run<64, 1>(a);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_halves_128_small(const kr_attention_halves_params a) {
  run<128, 1>(a);
}
#ifndef KR_TURING /* whose shared memory has no room for it */
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_halves_128(const kr_attention_halves_params a) { run<128, 2>(a); }
#endif

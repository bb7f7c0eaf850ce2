/* attention_ampere_f32.cu: attention of float32 on warp-level tensor cores: every factor, the weights as well, is a sum
 * of two tf32 parts, as accurate as float32 multiply-adds; a factor that is infinite gives NaN. Otherwise as
 * attention_ampere.cu, with 64 rows a block. kr_attention_floats_D: heads of up to D channels, all options but softcap,
 * slopes and dropout; kr_attention_floats_D_any: those, too. */
#include "attention_f32.cuh"
#include "attention_softmax.cuh"

enum { ROWS = KR_ATTENTION_FLOATS_ROWS };

/* Copies rows of a tile asynchronously, 16 bytes per thread; zeros from `end` on and beyond the head's channels. */
template <int D, int N, int OF_KEYS>
KR_DEV void copy_rows(const kr_attention_params &p, float *to, const kr_attention_tensor &v, const block &at, int first,
                      int end) {
  const int PER_ROW = D / 4, STEP = THREADS / PER_ROW, column = kr_thread() % PER_ROW * 4, exists = column < p.D;
  const float *const data = (const float *)v.data + column;
#pragma unroll 4
  for (int k = 0; k < N / STEP; k++) {
    const int row = kr_thread() / PER_ROW + k * STEP, i = first + row, there = exists && i < end;
    const float *from = (const float *)v.data;
    if (there) from = data + (OF_KEYS ? key_at(p, v, at.s, at.kv, i) : query_at(v, at.s, at.h, i));
    kr_copy_some(to + place_of<D>(row, column), from, there ? 16 : 0);
  }
}

template <int D>
KR_DEV void finish(const kr_attention_params &p, const block &at, float scale, const float (&most)[1][2],
                   const float (&sum)[1][2], const float (&o)[1][D / 8][4]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int i = at.warp_row + at.lane / 4 + 8 * r;
    const float by = end_sum(p, at.s, at.h, i, scale, most[0][r], sum[0][r], at.lane % 4 == 0);
    float *const to = (float *)p.out.data + query_at(p.out, at.s, at.h, i) + at.lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < D / 8; j++)
      if (i < at.s.rows_q && 8 * j < p.D)
        *(kr_float2 *)(to + 8 * j) =
            by != 0 ? kr_float2{{o[0][j][2 * r] * by, o[0][j][2 * r + 1] * by}} : kr_float2{{0, 0}};
  }
}

template <int D, int ANY>
KR_DEV void run(const kr_attention_params &p) {
  const int N = KR_ATTENTION_FLOATS_KEYS(D), TILE = N * D;
  KR_DYNAMIC_SHARED(shared);
  float *const q = (float *)shared, *const keys = q + ROWS * D, *const values = keys + 2 * TILE;
  const task mine = task_of(p, kr_block_x());
  block at = {sequence_of(p, mine.b), mine.tile * ROWS, mine.h, mine.h / p.heads, mine.b, 0, kr_thread() & 31};
  if (at.row >= at.s.rows_q) return;
  at.warp_row = at.row + (kr_thread() >> 5) * 16;
  const float *const own = q + (at.warp_row - at.row) * D;
  const float scale = ANY ? 1.0f : p.scale * KR_LOG2E, slope = ANY ? slope_of(p, at.b, at.h) : 0.0f;
  float o[1][D / 8][4] = {}, most[1][2] = {{MINUS_INFINITY, MINUS_INFINITY}}, sum[1][2] = {{0, 0}};
  const int last = at_most(at.row + ROWS, at.s.n_q) - 1, end = at.row < at.s.n_q ? end_key(p, at.s, last) : 0,
            first = at.row < at.s.n_q ? first_key(p, at.s, at.row) / N : 0;
  const int all_from = first_key(p, at.s, at.warp_row + 15), all_to = end_key(p, at.s, at.warp_row);
  int n = (end + N - 1) / N - 1, buffer = 0;
  if (n >= first) {
    copy_rows<D, ROWS, 0>(p, q, p.q, at, at.row, at.s.n_q);
    copy_rows<D, N, 1>(p, keys, p.k, at, n * N, at.s.n_k);
    kr_commit_copies();
  }
#pragma unroll 1
  for (; n >= first; n--, buffer ^= 1) {
    float s[1][N / 8][4];
    kr_copied<0>();
    kr_sync();
    copy_rows<D, N, 1>(p, values, p.v, at, n * N, at.s.n_k);
    kr_commit_copies();
    if (n > first) copy_rows<D, N, 1>(p, keys + (buffer ^ 1) * TILE, p.k, at, (n - 1) * N, at.s.n_k);
    kr_commit_copies();
    make_scores<D, N>(s[0], own, keys + buffer * TILE);
    if (ANY) make_any_scores<1, N>(p, at, slope, n * N, s);
    if (n * N < all_from || n * N + N > all_to) hide<1, N>(p, at, n * N, s);
    weigh<D, 1, N>(s, scale, most, sum, o);
    if (ANY && p.rng.data) drop<1, N>(p, at, n * N, s);
    kr_copied<1>();
    kr_sync();
    add_output<D, N>(o[0], s[0], values);
  }
  finish<D>(p, at, scale, most, sum, o);
}

KR_KERNEL void KR_BOUNDS(THREADS, 3) kr_attention_floats_64(const kr_attention_params p) { run<64, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_floats_128(const kr_attention_params p) { run<128, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_floats_64_any(const kr_attention_params p) { run<64, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_floats_128_any(const kr_attention_params p) { run<128, 1>(p); }

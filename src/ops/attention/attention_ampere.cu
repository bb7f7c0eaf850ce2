/* attention_ampere.cu: attention on warp-level tensor cores (mma): a block of four warps takes a tile of rows and loops
 * over tiles of keys, last first. Keys are copied one tile ahead, values during the score product: asynchronously or,
 * in the turing tier, through registers, so that one buffer of keys is enough.
 * Compiled per type (KR_HALF: float16; the turing tier's takes bfloat16 as scaled float16). kr_attention_ampere_D:
 * heads of up to D channels, all options but softcap, slopes and dropout; kr_attention_ampere_D_any: those, too. */
#include "attention_mma.cuh"
#include "attention_softmax.cuh"
#ifdef KR_TURING
#include "attention_turing.h"
#include "halves.cuh"

typedef kr_attention_turing_params call;
KR_DEV const kr_attention_params &params_of(const call &c) { return c.params; }
#else
typedef kr_attention_params call;
KR_DEV const kr_attention_params &params_of(const call &c) { return c; }
#endif

/* A row of queries or keys. */
template <int KEYS>
KR_DEV const uint16_t *row_of(const kr_attention_params &p, const kr_attention_tensor &v, const block &at, int row) {
  const uint16_t *const data = (const uint16_t *)v.data;
  return data + (KEYS ? key_at(p, v, at.s, at.kv, row) : query_at(v, at.s, at.h, row));
}

/* Zeros from `end` on and beyond the head's channels. */
template <int D, int ROWS, int KEYS>
KR_DEV void copy_part(const kr_attention_params &p, uint32_t to, const kr_attention_tensor &v, const block &at,
                      int first, int end) {
  typedef copier<D, ROWS> share;
  const int chunk = kr_thread() % share::PER_ROW, row = first + kr_thread() / share::PER_ROW;
#pragma unroll 1
  for (int k = 0; k < share::N; k++) {
    const int there = chunk * 8 < p.D && row + k * share::STEP < end;
    kr_flight one;
    kr_begin_copy(one, share::place_of(to, k),
                  there ? row_of<KEYS>(p, v, at, row + k * share::STEP) + chunk * 8 : (const uint16_t *)v.data, there);
    kr_end_copy(one, share::place_of(to, k));
  }
}

template <int D, int ROWS, int KEYS>
KR_DEV int is_whole(const kr_attention_params &p, const block &at, int first, int end) {
  return p.D == D && first + ROWS <= end && (!KEYS || !at.s.pages);
}

/* Begins to copy the rows of a tile. The turing tier copies parts of tiles when it waits for them. */
template <int D, int ROWS, int KEYS>
KR_DEV void copy_rows(copier<D, ROWS> &c, const kr_attention_params &p, uint32_t to, const kr_attention_tensor &v,
                      const block &at, int first, int end) {
  if (is_whole<D, ROWS, KEYS>(p, at, first, end)) {
    const uint16_t *from = row_of<KEYS>(p, v, at, first + kr_thread() / c.PER_ROW) + kr_thread() % c.PER_ROW * 8;
    const int64_t step = c.STEP * v.t;
#pragma unroll
    for (int k = 0; k < c.N; k++, from += step) kr_begin_copy(c.flights[k], c.place_of(to, k), from);
  } else if (!KR_IS_TURING) {
    copy_part<D, ROWS, KEYS>(p, to, v, at, first, end);
  }
}

template <int D, int ROWS, int KEYS>
KR_DEV void end_rows(const copier<D, ROWS> &c, const kr_attention_params &p, uint32_t to, const kr_attention_tensor &v,
                     const block &at, int first, int end) {
  if (is_whole<D, ROWS, KEYS>(p, at, first, end)) c.end(c, to);
  else if (KR_IS_TURING) copy_part<D, ROWS, KEYS>(p, to, v, at, first, end);
}

/* What a head's scores and its results are to be multiplied by: the scales of bfloat16's copies. Products of q and k
 * below 2^-70, which do not matter in a score, may become smaller. */
KR_DEV float unscale_scores(const call &c, const block &at) {
#ifdef KR_TURING
  const kr_attention_params &p = c.params;
  if (c.up_q) {
    const int up = c.up_q[at.s.q_b * p.H + at.h] + c.up_k[at.s.k_b * (p.H / p.heads) + at.kv];
    return kr_power_of_two(-(up > 100 ? 100 : up < -100 ? -100 : up));
  }
#endif
  return (void)c, (void)at, 1.0f;
}
KR_DEV float unscale_values(const call &c, const block &at) {
#ifdef KR_TURING
  if (c.up_v) return kr_power_of_two(-c.up_v[at.s.k_b * (c.params.H / c.params.heads) + at.kv]);
#endif
  return (void)c, (void)at, 1.0f;
}

/* A pair of results. Those of bfloat16's copies in less code than kr_pack's: what is not a number has the bits
 * 0x7fffffff as the result of an operation, to which the addition that rounds adds nothing. */
template <int SCALED>
KR_DEV uint32_t pack_results(const call &c, float low, float high) {
#if defined(KR_TURING) && !defined(KR_EMULATE)
  if (SCALED && c.up_v) {
    uint32_t pair;
    asm("{ .reg .b32 l, h, o;\n\t"
        "bfe.u32 o, %1, 16, 1;\n\tadd.s32 o, o, 0x7fff;\n\tadd.sat.s32 l, %1, o;\n\t"
        "bfe.u32 o, %2, 16, 1;\n\tadd.s32 o, o, 0x7fff;\n\tadd.sat.s32 h, %2, o;\n\t"
        "prmt.b32 %0, l, h, 0x7632; }"
        : "=r"(pair)
        : "r"(kr_float_to_bits(low)), "r"(kr_float_to_bits(high)));
    return pair;
  }
  return kr_pack(low, high, DTYPE);
#else
  return kr_pack(low, high, KR_IS_TURING ? params_of(c).out.dtype : DTYPE);
#endif
}

template <int D, int M, int N, int ANY>
KR_DEV void finish(const call &c, const block &at, float scale, const float (&most)[M][2],
                   const float (&sum)[M][2], const float (&o)[M][D / 8][4]) {
  const kr_attention_params &p = params_of(c);
  const float of_values = ANY ? 1.0f : unscale_values(c, at);
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int i = at.warp_row + 16 * m + at.lane / 4 + 8 * r;
      const float by = end_sum(p, at.s, at.h, i, scale, most[m][r], sum[m][r], at.lane % 4 == 0);
      uint16_t *const to = (uint16_t *)p.out.data + query_at(p.out, at.s, at.h, i);
#pragma unroll
      for (int j = 0; j < D / 8; j += 4) {
        uint32_t w[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
          w[k] = by != 0 ? pack_results<!ANY>(c, o[m][j + k][2 * r] * by * of_values,
                                             o[m][j + k][2 * r + 1] * by * of_values)
                        : 0;
        const kr_raw16 eight = gather_quad(w[0], w[1], w[2], w[3]);
        const int column = 8 * j + at.lane % 4 * 8;
        if (i < at.s.rows_q && column < p.D) *(kr_raw16 *)(to + column) = eight;
      }
    }
}

template <int D, int ANY>
KR_DEV void run(const call &c) {
  const kr_attention_params &p = params_of(c);
  const int M = KR_AMPERE_M(D), N = KR_AMPERE_KEYS(D, KR_IS_TURING), ROWS = 64 * M, TILE = N * D * 2;
  const int OTHER = KR_IS_TURING ? 0 : 1; /* buffer of keys */
  KR_DYNAMIC_SHARED(shared);
  const uint32_t q = kr_shared_at(shared), k0 = q + ROWS * D * 2, v = k0 + (1 + OTHER) * TILE;
  const task mine = task_of(p, kr_block_x());
  block at = {sequence_of(p, mine.b), mine.tile * ROWS, mine.h, mine.h / p.heads, mine.b, 0, kr_thread() & 31};
  if (at.row >= at.s.rows_q) return;
  at.warp_row = at.row + (kr_thread() >> 5) * 16 * M;
  const float scale = ANY ? 1.0f : p.scale * KR_LOG2E * unscale_scores(c, at),
              slope = ANY ? slope_of(p, at.b, at.h) : 0.0f;
  float o[M][D / 8][4] = {}, most[M][2], sum[M][2];
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) most[m][r] = MINUS_INFINITY, sum[m][r] = 0;
  const int last = at_most(at.row + ROWS, at.s.n_q) - 1, end = at.row < at.s.n_q ? end_key(p, at.s, last) : 0,
            first = at.row < at.s.n_q ? first_key(p, at.s, at.row) / N : 0;
  const int all_from = first_key(p, at.s, at.warp_row + 16 * M - 1), all_to = end_key(p, at.s, at.warp_row);
  /* the lane's ldmatrix rows: 16 rows by 16 channels of q, 16 keys by 16 channels of k, v transposed */
  const int l = at.lane, low = (l & 7) + (l >> 3 & 1) * 8;
  const uint32_t lane_q = q + (at.warp_row - at.row) * D * 2 + kr_swizzle<D * 2>(low, l >> 4),
                 lane_k = kr_swizzle<D * 2>((l & 7) + (l >> 4) * 8, l >> 3 & 1),
                 lane_v = v + kr_swizzle<D * 2>(low, l >> 4);
  int n = (end + N - 1) / N - 1, buffer = 0;
  if (n >= first) {
    copier<D, ROWS> rows;
    copier<D, N> keys;
    copy_rows<D, ROWS, 0>(rows, p, q, p.q, at, at.row, at.s.n_q);
    copy_rows<D, N, 1>(keys, p, k0, p.k, at, n * N, at.s.n_k);
    kr_commit_copies();
    end_rows<D, ROWS, 0>(rows, p, q, p.q, at, at.row, at.s.n_q);
    end_rows<D, N, 1>(keys, p, k0, p.k, at, n * N, at.s.n_k);
  }
  for (; n >= first; n--, buffer ^= OTHER) {
    float s[M][N / 8][4];
    uint32_t w[M][N / 16][4];
    copier<D, N> values, keys;
    kr_copied<0>();
    kr_sync();
    copy_rows<D, N, 1>(values, p, v, p.v, at, n * N, at.s.n_k);
    kr_commit_copies();
    make_scores<D, M, N>(s, lane_q, k0 + buffer * TILE + lane_k);
    end_rows<D, N, 1>(values, p, v, p.v, at, n * N, at.s.n_k);
    if (n > first) copy_rows<D, N, 1>(keys, p, k0 + (buffer ^ OTHER) * TILE, p.k, at, (n - 1) * N, at.s.n_k);
    kr_commit_copies();
    if (ANY) make_any_scores<M, N>(p, at, slope, n * N, s);
    if (n * N < all_from || n * N + N > all_to) hide<M, N>(p, at, n * N, s);
    weigh<D, M, N>(s, scale, most, sum, o);
    if (ANY && p.rng.data) drop<M, N>(p, at, n * N, s);
    pack_weights<M, N>(s, w);
    kr_copied<1>();
    kr_sync();
    if (n > first) end_rows<D, N, 1>(keys, p, k0, p.k, at, (n - 1) * N, at.s.n_k);
    add_output<D, M, N>(o, w, lane_v);
  }
  finish<D, M, N, ANY>(c, at, scale, most, sum, o);
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_ampere_64(const call p) { run<64, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_ampere_128(const call p) { run<128, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_ampere_256(const call p) { run<256, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_ampere_64_any(const call p) { run<64, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_ampere_128_any(const call p) { run<128, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_attention_ampere_256_any(const call p) { run<256, 1>(p); }

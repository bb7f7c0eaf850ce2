/* attention_ampere_sums.cu: the gradient of attention on warp-level tensor cores in a single pass, for callers who
 * allow any summation order (KRAIT_ATTENTION_ANY_ORDER; see attention_sums.cuh). A block takes KEYS keys and loops over
 * tiles of ROWS rows of every head that shares them; its scores are transposed: a row is a key. Two warps share 32
 * keys. Each computes half of the rows' scores, and dk and dv of half of the channels from its own probabilities in
 * registers and the other's in shared memory; then dq of half of the rows and its share of the channels. So a tile's
 * five products, which are bound by shared memory, read 544 KiB of it with 128 channels (16 keys a warp: 736). Compiled
 * per type (KR_HALF: float16). kr_attention_sums_D, and _small: for at most 99 KiB of shared memory per block. */
#include "attention_mma.cuh"
#include "attention_sums.cuh"

#ifdef KR_EMULATE
KR_DEV void add_float(float *to, float v) { *to += v; }
#else
KR_DEV void add_float(float *to, float v) {
  asm volatile("red.global.add.f32 [%0], %1;" : : "l"(to), "f"(v) : "memory");
}
#endif

/* N rows of D channels, from element `from`, stride t: zeros from `n` on and beyond the head's channels. */
template <int D, int N, int WALKERS>
KR_DEV void copy_rows(uint32_t to, const void *data, int64_t from, int64_t t, int n, int channels) {
  const int PER_ROW = D / 8, STEP = WALKERS / PER_ROW, chunk = kr_thread() % PER_ROW, row = kr_thread() / PER_ROW;
  const int exists = chunk * 8 < channels;
  const uint16_t *at = (const uint16_t *)data + from + row * t + chunk * 8;
  const int64_t step = STEP * t;
  to += kr_swizzle<D * 2>(row, chunk);
  if (n >= N && channels == D) { /* a full tile: no bounds checks */
#pragma unroll
    for (int k = 0; k < N / STEP; k++, at += step) kr_copy_some_at(to + k * STEP * D * 2, at, 16);
    return;
  }
#pragma unroll
  for (int k = 0; k < N / STEP; k++, at += step) {
    const int there = exists && row + k * STEP < n;
    kr_copy_some_at(to + k * STEP * D * 2, there ? at : (const uint16_t *)data, there ? 16 : 0);
  }
}

KR_DEV int64_t delta_at(const kr_attention_params &p, const sequence &s, int h, int i) {
  return h * p.delta_h + (int64_t)s.q_b * p.Lq + s.q_at + i;
}

/* q, dout, and the rows' log-sum-exp and delta. */
template <int D, int ROWS, int WALKERS>
KR_DEV void copy_stage(const kr_attention_params &p, const unit &u, unsigned char *shared, uint32_t to, int h, int i0) {
  copy_rows<D, ROWS, WALKERS>(to, p.q.data, query_at(p.q, u.s, h, i0), p.q.t, u.s.n_q - i0, p.D);
  copy_rows<D, ROWS, WALKERS>(to + ROWS * D * 2, p.dout.data, query_at(p.dout, u.s, h, i0), p.dout.t, u.s.n_q - i0,
                              p.D);
  float *const values = (float *)(shared + (to - kr_shared_at(shared)) + 2 * ROWS * D * 2);
  const int thread = kr_thread(), i = i0 + thread % ROWS;
  if (thread >= 2 * ROWS) return;
  const float *const from =
      thread < ROWS ? (const float *)p.lse.data + query_at(p.lse, u.s, h, i) : p.delta + delta_at(p, u.s, h, i);
  if (i < u.s.n_q) kr_copy4(values + thread, from);
  else values[thread] = thread < ROWS ? -MINUS_INFINITY : 0.0f; /* rows out of range: probability 0 */
}

template <int D>
KR_DEV void store_keys(const kr_attention_tensor &to, int64_t at, int t, const float (&o)[D / 8][4],
                       const int (&there)[2], const int (&counts)[2], float scale, int channels) {
  const int lane = kr_thread() & 31;
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int j = 0; j < D / 8; j += 4) {
      uint32_t w[4];
#pragma unroll
      for (int k = 0; k < 4; k++)
        w[k] = counts[r] ? kr_pack(o[j + k][2 * r] * scale, o[j + k][2 * r + 1] * scale, DTYPE) : 0;
      const kr_raw16 eight = gather_quad(w[0], w[1], w[2], w[3]);
      const int column = 8 * j + lane % 4 * 8;
      if (there[r] && column < channels) *(kr_raw16 *)((uint16_t *)to.data + at + (int64_t)8 * r * t + column) = eight;
    }
}

/* Keys from 32 pair; rows, and channels, of half `half`. */
typedef struct pair_place {
  int lane, pair, half;
} pair_place;

/* P or dS of 32 keys and HALF rows, transposed, to [key][row]. */
template <int HALF>
KR_DEV void share_weights(unsigned char *tile, const pair_place &me, const uint32_t (&w)[2][HALF / 16][4]) {
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int j = 0; j < HALF / 8; j++)
#pragma unroll
      for (int r = 0; r < 2; r++)
        *(uint32_t *)(tile +
                      kr_swizzle<HALF * 4>(32 * me.pair + 16 * m + me.lane / 4 + 8 * r, HALF / 8 * me.half + j) +
                      me.lane % 4 * 4) = w[m][j / 2][j % 2 * 2 + r];
}

/* o += w rows of 16 tokens, half of their channels; lane_v: the lane's first ldmatrix row. */
template <int D>
KR_DEV void add_rows(float (&o)[2][D / 16][4], const uint32_t (&w)[2][4], uint32_t lane_v) {
#pragma unroll
  for (int j = 0; j < D / 32; j++) {
    uint32_t b[4];
    kr_load_matrices_turned_at(b, lane_v ^ j * 32);
#pragma unroll
    for (int m = 0; m < 2; m++)
      kr_mma_as(element(), o[m][2 * j], w[m], b[0], b[1]), kr_mma_as(element(), o[m][2 * j + 1], w[m], b[2], b[3]);
  }
}

/* o += (P or dS) rows, for its own half of the rows, from registers. lane_rows: in the tile of rows, at the warp's
 * channels. */
template <int D, int HALF>
KR_DEV void add_own(float (&o)[2][D / 16][4], const pair_place &me, const uint32_t (&own)[2][HALF / 16][4],
                    uint32_t lane_rows) {
#pragma unroll
  for (int t = 0; t < HALF / 16; t++) {
    const uint32_t w[2][4] = {{own[0][t][0], own[0][t][1], own[0][t][2], own[0][t][3]},
                              {own[1][t][0], own[1][t][1], own[1][t][2], own[1][t][3]}};
    add_rows<D>(o, w, lane_rows + (HALF * me.half + 16 * t) * D * 2);
  }
}
/* The same for the other half, from shared memory. */
template <int D, int HALF>
KR_DEV void add_other(float (&o)[2][D / 16][4], const pair_place &me, uint32_t tile, uint32_t lane_rows) {
  const uint32_t other = (tile + me.pair * 32 * HALF * 4 + lane_of_rows<2 * HALF>()) ^ (1 - me.half) * HALF * 2;
#pragma unroll
  for (int t = 0; t < HALF / 16; t++) {
    uint32_t w[2][4];
#pragma unroll
    for (int m = 0; m < 2; m++) kr_load_matrices_at(w[m], (other ^ t * 32) + m * 16 * HALF * 4);
    add_rows<D>(o, w, lane_rows + (HALF * (1 - me.half) + 16 * t) * D * 2);
  }
}

/* dq = dS k of HALF rows and the pair's share of the channels, added to the tile's sums. */
template <int D, int KEYS, int HALF>
KR_DEV void add_queries(const pair_place &me, uint32_t ds, uint32_t k, float *sums) {
  const int M = HALF / 16, CHANNELS = D / (KEYS / 32);
  const uint32_t lane_k = k + lane_of_rows<D>(),
                 lane_ds = ds + kr_swizzle<HALF * 4>((me.lane & 7) + (me.lane >> 4) * 8,
                                                     HALF / 8 * me.half + (me.lane >> 3 & 1));
  float o[M][CHANNELS / 8][4] = {};
#pragma unroll
  for (int t = 0; t < KEYS / 16; t++) {
    uint32_t a[M][4], b[4];
#pragma unroll
    for (int m = 0; m < M; m++) kr_load_matrices_turned_at(a[m], (lane_ds ^ m * 32) + t * 16 * HALF * 4);
#pragma unroll
    for (int j = 0; j < CHANNELS / 16; j++) {
      kr_load_matrices_turned_at(b, (lane_k ^ (me.pair * (CHANNELS / 16) + j) * 32) + t * 16 * D * 2);
#pragma unroll
      for (int m = 0; m < M; m++)
        kr_mma_as(element(), o[m][2 * j], a[m], b[0], b[1]), kr_mma_as(element(), o[m][2 * j + 1], a[m], b[2], b[3]);
    }
  }
  sums += (M * me.half * (D / 8) + me.pair * (CHANNELS / 8)) * 128 + me.lane;
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int j = 0; j < CHANNELS / 8; j++)
#pragma unroll
      for (int c = 0; c < 4; c++) add_float(sums + (m * (D / 8) + j) * 128 + c * 32, o[m][j][c]);
}

/* P and dS from the products of 32 keys and HALF rows, as mma operands. ALL: every row sees every key. */
template <int HALF, int ALL>
KR_DEV void weigh(const kr_attention_params &p, const unit &u, const pair_place &me, float (&s)[2][HALF / 8][4],
                  float (&dp)[2][HALF / 8][4], const float *lse, const float *delta, int i0) {
  const float scale = p.scale * KR_LOG2E;
  int lo[2][2], hi[2][2]; /* rows that see the lane's keys */
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int key = u.key0 + 32 * me.pair + 16 * m + me.lane / 4 + 8 * r;
      lo[m][r] = first_row(p, u.s, key) - i0 - me.lane % 4 * 2;
      hi[m][r] = key < u.s.n_k ? end_row(p, u.s, key) - i0 - me.lane % 4 * 2 : 0;
    }
#pragma unroll
  for (int j = 0; j < HALF / 8; j++) {
    const kr_float2 l = *(const kr_float2 *)(lse + 8 * j + me.lane % 4 * 2),
                    d = *(const kr_float2 *)(delta + 8 * j + me.lane % 4 * 2);
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const float offset = -KR_LOG2E * l.v[c % 2];
#pragma unroll
      for (int m = 0; m < 2; m++) {
        const int seen = ALL || (8 * j + c % 2 >= lo[m][c / 2] && 8 * j + c % 2 < hi[m][c / 2]);
        const float v = kr_exp2(kr_fma(s[m][j][c], scale, offset)), w = v * (dp[m][j][c] - d.v[c % 2]);
        s[m][j][c] = seen ? v : 0.0f, dp[m][j][c] = seen ? w : 0.0f;
      }
    }
  }
}

template <int D, int KEYS, int ROWS>
KR_DEV void walk(const kr_attention_params &p) {
  const int TILE = ROWS * D * 2, STAGE = 2 * TILE + 2 * ROWS * 4, WEIGHTS = KEYS * ROWS * 2, WALKERS = KEYS * 2,
            HALF = ROWS / 2;
  KR_DYNAMIC_SHARED(shared);
  const uint32_t k = kr_shared_at(shared), v = k + KEYS * D * 2, P_at = v + KEYS * D * 2, dS_at = P_at + WEIGHTS,
                 stages = dS_at + WEIGHTS;
  const unit u = unit_here<KEYS, ROWS>(p);
  if (u.key0 >= u.s.rows_k) return;
  const int warp = kr_thread() >> 5;
  const pair_place me = {(int)(kr_thread() & 31), warp % (KEYS / 32), warp / (KEYS / 32)};
  const int n_steps = (u.end - u.first) * p.heads, key = u.key0 + 32 * me.pair,
            all_from = key + 32 <= u.s.n_k ? first_row(p, u.s, key + 31) : u.s.n_q, all_to = end_row(p, u.s, key);
  const int64_t head_sums = (int64_t)p.n_splits * 64 * D;
  float *sums = p.partial + u.kv * p.heads * head_sums + (int64_t)sums_tile(p, u.s, u.b) * 64 * D;
  float dk[2][D / 16][4] = {}, dv[2][D / 16][4] = {};
  const uint32_t lane_k = k + me.pair * 32 * D * 2 + lane_of_rows<D>(), lane_v = lane_k + KEYS * D * 2;
  if (n_steps) {
    copy_rows<D, KEYS, WALKERS>(k, p.k.data, key_at(p, p.k, u.s, u.kv, u.key0), p.k.t, u.s.n_k - u.key0, p.D);
    copy_rows<D, KEYS, WALKERS>(v, p.v.data, key_at(p, p.v, u.s, u.kv, u.key0), p.v.t, u.s.n_k - u.key0, p.D);
    copy_stage<D, ROWS, WALKERS>(p, u, shared, stages, u.kv * p.heads, u.start * ROWS);
    kr_commit_copies();
  }
  for (int step = 0, h = u.kv * p.heads, tile = u.start, left = u.end - u.first, buffer = 0; step < n_steps;
       step++, buffer ^= 1) {
    const uint32_t q = stages + buffer * STAGE, rows = q + me.half * HALF * D * 2 + lane_of_columns<D>(),
                   channels = q + (lane_of_rows<D>() ^ me.half * D);
    const float *const lse = (const float *)(shared + (q - k) + 2 * TILE) + HALF * me.half;
    const int is_last = --left == 0, next = is_last ? u.start : tile + 1 == u.end ? u.first : tile + 1,
              i0 = tile * ROWS + HALF * me.half;
    float s[2][HALF / 8][4], dp[2][HALF / 8][4];
    uint32_t P[2][HALF / 16][4], dS[2][HALF / 16][4];
    kr_copied<0>();
    kr_sync();
    if (step + 1 < n_steps)
      copy_stage<D, ROWS, WALKERS>(p, u, shared, stages + (buffer ^ 1) * STAGE, h + is_last, next * ROWS);
    kr_commit_copies();
    make_scores<D, 2, HALF>(s, lane_k, rows);
    make_scores<D, 2, HALF>(dp, lane_v, rows + TILE);
    if (i0 >= all_from && i0 + HALF <= all_to) weigh<HALF, 1>(p, u, me, s, dp, lse, lse + ROWS, i0);
    else weigh<HALF, 0>(p, u, me, s, dp, lse, lse + ROWS, i0);
    pack_weights<2, HALF>(s, P);
    pack_weights<2, HALF>(dp, dS);
    share_weights<HALF>(shared + (P_at - k), me, P);
    share_weights<HALF>(shared + (dS_at - k), me, dS);
    add_own<D, HALF>(dv, me, P, channels + TILE), add_own<D, HALF>(dk, me, dS, channels);
    kr_sync();
    add_other<D, HALF>(dv, me, P_at, channels + TILE), add_other<D, HALF>(dk, me, dS_at, channels);
    add_queries<D, KEYS, HALF>(me, dS_at, k, sums + (int64_t)tile * ROWS * D);
    tile = next;
    if (is_last) h++, left = u.end - u.first, sums += head_sums;
  }
#pragma unroll
  for (int m = 0; m < 2; m++) {
    const int key = u.key0 + 32 * me.pair + 16 * m + me.lane / 4, from = me.half * (D / 2);
    const int there[2] = {key < u.s.rows_k, key + 8 < u.s.rows_k}, counts[2] = {key < u.s.n_k, key + 8 < u.s.n_k};
    store_keys<D / 2>(p.dk, key_at(p, p.dk, u.s, u.kv, key) + from, (int)p.dk.t, dk[m], there, counts, p.scale,
                      p.D - from);
    store_keys<D / 2>(p.dv, key_at(p, p.dv, u.s, u.kv, key) + from, (int)p.dv.t, dv[m], there, counts, 1.0f,
                      p.D - from);
  }
}

KR_KERNEL void KR_BOUNDS(128, 2) kr_attention_sums_64(const kr_attention_params p) { walk<64, 64, 64>(p); }
KR_KERNEL void KR_BOUNDS(256, 1) kr_attention_sums_128(const kr_attention_params p) { walk<128, 128, 64>(p); }
KR_KERNEL void KR_BOUNDS(128, 3) kr_attention_sums_64_small(const kr_attention_params p) { walk<64, 64, 32>(p); }
KR_KERNEL void KR_BOUNDS(128, 2) kr_attention_sums_128_small(const kr_attention_params p) { walk<128, 64, 32>(p); }
KR_KERNEL void KR_BOUNDS(256, 4) kr_attention_sums_clear_64(const kr_attention_params p) { clear_sums<64>(p); }
KR_KERNEL void KR_BOUNDS(256, 4) kr_attention_sums_clear_128(const kr_attention_params p) { clear_sums<128>(p); }
KR_KERNEL void KR_BOUNDS(128, 4) kr_attention_sums_end_64(const kr_attention_params p) { end_sums<64, 0>(p, DTYPE); }
KR_KERNEL void KR_BOUNDS(128, 4) kr_attention_sums_end_128(const kr_attention_params p) { end_sums<128, 0>(p, DTYPE); }

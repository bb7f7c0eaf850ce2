/* expert_tiles.cu: products of many rows with experts' matrices on tensor cores.
 *   kr_expert_sort   the pairs (row, choice) by expert, and the tiles that they fill
 *   kr_expert_tile_* a block computes a tile: pairs of one expert by rows of its matrix, each warp 32 by 64 of it
 *   kr_expert_sum    sums a row's choices in their order
 * The order of an expert's pairs depends on which thread comes first; no result depends on it. */
#include "mma.cuh"
#include "q4k.cuh"

#include "expert_tiles_params.h"

enum { BM = KR_EXPERT_TILE_ROWS, BN = KR_EXPERT_TILE_COLUMNS, BK = 64, LINES = KR_EXPERT_TILE_THREADS / 8 };

/* ---- the order ---- */

#ifdef KR_EMULATE
KR_DEV int add_shared(int32_t *to, int n) {
  const int before = *to;
  *to += n;
  return before;
}
#else
KR_DEV int add_shared(int32_t *to, int n) { return __nvvm_atom_add_gen_i(to, n); }
#endif

/* E: none. */
KR_DEV int expert_of(const kr_expert_gemm_args &a, int pair) {
  const int64_t t = pair / (int)a.J, j = pair % (int)a.J;
  const int e = ((const int32_t *)a.index.data)[t * a.index.stride[0] + j * a.index.stride[1]];
  return e < 0 || e >= a.E ? (int)a.E : e;
}

KR_KERNEL void KR_BOUNDS(KR_EXPERT_SORT_THREADS, 1) kr_expert_sort(const kr_expert_tiles_params p) {
  KR_SHARED int32_t count[KR_EXPERT_SORT_MOST + 1], next[KR_EXPERT_SORT_MOST + 1];
  const int me = kr_thread(), E = (int)p.a.E, n = (int)(p.a.T * p.a.J);
  int first = 0, tile = 0;
  if (me <= E) count[me] = 0;
  kr_sync();
  for (int pair = me; pair < n; pair += KR_EXPERT_SORT_THREADS) add_shared(&count[expert_of(p.a, pair)], 1);
  kr_sync();
  if (me <= E) {
#pragma unroll 8
    for (int e = 0; e < me; e++) first += count[e], tile += (count[e] + BM - 1) / BM;
    next[me] = first;
    for (int at = 0; at < count[me]; at += BM)
      p.tiles[tile++] = kr_expert_tile{me, first + at, count[me] - at < BM ? count[me] - at : BM};
    if (me == E) *p.n_tiles = tile;
  }
  kr_sync();
  for (int pair = me; pair < n; pair += KR_EXPERT_SORT_THREADS)
    p.pairs[add_shared(&next[expert_of(p.a, pair)], 1)] = pair;
}

/* ---- to shared memory ---- */

/* A thread copies the same 16 bytes of every LINES-th line. */
struct lines {
  const uint16_t *a[BM / LINES], *b[BN / LINES];
  uint32_t exists; /* bit i: b[i] is a row of the matrix */
};

/* Of a gated tile's rows, the last 32 of every 64 belong to B2. */
template <int GATED>
KR_DEV void find_lines(const kr_expert_tiles_params &p, const kr_expert_tile &tile, int n, lines &c) {
  const kr_expert_gemm_args &a = p.a;
  const int line = kr_thread() / 8, chunk = kr_thread() % 8 * 8;
#pragma unroll
  for (int i = 0; i < BM / LINES; i++) {
    const int row = line + i * LINES, pair = p.pairs[tile.first + (row < tile.n ? row : 0)];
    const int64_t t = pair / (int)a.J, j = a.S > 1 ? pair % (int)a.J : 0;
    c.a[i] = (const uint16_t *)a.A.data + t * a.A.stride[0] + j * a.A.stride[1] + chunk;
  }
  c.exists = 0;
  if (!a.Bmat.data) return;
#pragma unroll
  for (int i = 0; i < BN / LINES; i++) {
    const int row = line + i * LINES, column = n + (GATED ? row / 64 * 32 + row % 32 : row);
    const kr_view &from = GATED && row & 32 ? a.B2 : a.Bmat;
    if (column < a.N) c.exists |= 1u << i;
    c.b[i] = (const uint16_t *)from.data + tile.expert * from.stride[0] +
             (column < a.N ? column : 0) * from.stride[1] + chunk;
  }
}

KR_DEV void copy_rows(lines &c, unsigned char *stage, int left) {
  const int line = kr_thread() / 8, chunk = kr_thread() % 8, bytes = left > chunk * 8 ? 16 : 0;
#pragma unroll
  for (int i = 0; i < BM / LINES; i++) {
    kr_copy_some(stage + kr_swizzle<128>(line + i * LINES, chunk), c.a[i], bytes);
    c.a[i] += BK;
  }
}

KR_DEV void copy_matrix(lines &c, unsigned char *stage, int left) {
  const int line = kr_thread() / 8, chunk = kr_thread() % 8, bytes = left > chunk * 8 ? 16 : 0;
#pragma unroll
  for (int i = 0; i < BN / LINES; i++) {
    kr_copy_some(stage + BM * 128 + kr_swizzle<128>(line + i * LINES, chunk), c.b[i], c.exists >> i & 1 ? bytes : 0);
    c.b[i] += BK;
  }
}

/* ---- 4-bit words: a thread widens a row's 64 weights of a stage ---- */

typedef struct words {
  kr_raw16 head, q[2];
} words;

KR_DEV words read_words(const kr_expert_gemm_args &a, int expert, int column, int k) {
  const int32_t *from = (const int32_t *)a.qweight.data + expert * a.qweight.stride[0] +
                        (column < a.N ? column : 0) * a.qweight.stride[1] + k / 256 * KR_Q4K_SUPER_WORDS;
  const kr_raw16 *q = (const kr_raw16 *)(from + 4 + k % 256 / 64 * 8);
  return words{*(const kr_raw16 *)from, {q[0], q[1]}};
}

template <int TYPE>
KR_DEV void put_words(const words &w, unsigned char *stage, int k) {
#pragma unroll
  for (int high = 0; high < 2; high++) {
    float scale, base;
    kr_q4k_part(w.head.w, k % 256 / 32 + high, scale, base);
#pragma unroll
    for (int chunk = 0; chunk < 4; chunk++) {
      kr_raw16 to;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int byte = chunk * 8 + 2 * i;
        const uint32_t two = w.q[byte / 16].w[byte / 4 % 4] >> (byte % 4 * 8 + 4 * high);
        to.w[i] = kr_pack(kr_fma(scale, (float)(two & 15), base), kr_fma(scale, (float)(two >> 8 & 15), base), TYPE);
      }
      *(kr_raw16 *)(stage + BM * 128 + kr_swizzle<128>(kr_thread(), 4 * high + chunk)) = to;
    }
  }
}

/* ---- a tile ---- */

template <typename element>
KR_DEV void multiply_stage(const unsigned char *stage, int row, int column, float (&d)[2][8][4]) {
  const int lane = kr_thread() & 31, second = lane / 8 & 1, upper = lane / 16, within = lane & 7;
#pragma unroll
  for (int step = 0; step < BK / 16; step++) {
    uint32_t a[2][4], b[4][4];
#pragma unroll
    for (int i = 0; i < 2; i++)
      kr_load_matrices(a[i], stage + kr_swizzle<128>(row + 16 * i + second * 8 + within, step * 2 + upper));
#pragma unroll
    for (int j = 0; j < 4; j++)
      kr_load_matrices(b[j],
                       stage + BM * 128 + kr_swizzle<128>(column + 16 * j + upper * 8 + within, step * 2 + second));
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) kr_mma_as(element(), d[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
  }
}

KR_DEV void store_two(const kr_expert_tiles_params &p, int pair, int n, float v, float w) {
  const kr_expert_gemm_args &a = p.a;
  if (n >= a.N) return;
  if (p.y) {
    *(kr_float2 *)(p.y + (int64_t)pair * a.N + n) = kr_float2{{v, w}};
    return;
  }
  const int64_t at = pair / (int)a.J * a.out.stride[0] + pair % (int)a.J * a.out.stride[1] + n;
  if (a.out.dtype == KRAIT_F32)
    *(kr_float2 *)((float *)a.out.data + at) = kr_float2{{v, w}};
  else
    *(uint32_t *)((uint16_t *)a.out.data + at) = kr_pack(v, w, a.out.dtype);
}

template <int GATED>
KR_DEV void store_tile(const kr_expert_tiles_params &p, const kr_expert_tile &tile, int row, int n,
                       float (&d)[2][8][4]) {
  const int lane = kr_thread() & 31, g = lane / 4, q = lane % 4;
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int at = row + 16 * i + 8 * h + g;
      if (at >= tile.n) continue;
      const int pair = p.pairs[tile.first + at];
#pragma unroll
      for (int j = 0; j < (GATED ? 4 : 8); j++) {
        float v[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
          const float x = d[i][j][2 * h + k];
          v[k] = p.a.activation == KRAIT_ACT_SILU ? kr_silu(x) : x;
          if (GATED) v[k] *= d[i][(j + 4) % 8][2 * h + k];
        }
        store_two(p, pair, n + 8 * j + 2 * q, v[0], v[1]);
      }
    }
}

template <typename element, int TYPE, int GATED, int WORDS>
KR_DEV void run_tile(const kr_expert_tiles_params &p) {
  KR_DYNAMIC_SHARED(shared);
  enum { STAGES = KR_EXPERT_TILE_STAGES, WIDTH = GATED ? BN / 2 : BN };
  const int number = kr_block_x() / (int)p.across, n = (kr_block_x() - number * (int)p.across) * WIDTH;
  if (number >= *p.n_tiles) return;
  const kr_expert_tile tile = p.tiles[number];
  const int warp = kr_thread() / 32, row = warp % 2 * 32, column = warp / 2 * 64,
            K = tile.expert < p.a.E ? (int)p.a.K : 0, n_blocks = (K + BK - 1) / BK;
  float d[2][8][4];
  lines c = {};
  words ahead;
#pragma unroll
  for (int i = 0; i < 64; i++) d[i / 32][i / 4 % 8][i % 4] = 0.0f;
  if (K) find_lines<GATED>(p, tile, n, c);
  const auto begin_stage = [&](int block) {
    unsigned char *stage = shared + block % STAGES * KR_EXPERT_STAGE_BYTES;
    if (block < n_blocks) copy_rows(c, stage, K - block * BK);
    if (!WORDS && block < n_blocks) copy_matrix(c, stage, K - block * BK);
    kr_commit_copies();
  };
  for (int block = 0; block < STAGES - 1; block++) begin_stage(block);
  if (WORDS && K) ahead = read_words(p.a, tile.expert, n + kr_thread(), 0);
  for (int block = 0; block < n_blocks; block++) {
    unsigned char *stage = shared + block % STAGES * KR_EXPERT_STAGE_BYTES;
    if (WORDS) put_words<TYPE>(ahead, stage, block * BK); /* which all have read, STAGES - 1 blocks ago */
    if (WORDS && block + 1 < n_blocks) ahead = read_words(p.a, tile.expert, n + kr_thread(), (block + 1) * BK);
    kr_copied<STAGES - 2>();
    kr_sync();
    begin_stage(block + STAGES - 1);
    multiply_stage<element>(stage, row, column, d);
  }
  store_tile<GATED>(p, tile, row, n + (GATED ? column / 2 : column), d);
}

KR_KERNEL void KR_BOUNDS(KR_EXPERT_TILE_THREADS, 3) kr_expert_tile_f16(const kr_expert_tiles_params p) {
  run_tile<kr_f16, KRAIT_F16, 0, 0>(p);
}
KR_KERNEL void KR_BOUNDS(KR_EXPERT_TILE_THREADS, 3) kr_expert_tile_f16_gated(const kr_expert_tiles_params p) {
  run_tile<kr_f16, KRAIT_F16, 1, 0>(p);
}
KR_KERNEL void KR_BOUNDS(KR_EXPERT_TILE_THREADS, 3) kr_expert_tile_f16_q4k(const kr_expert_tiles_params p) {
  run_tile<kr_f16, KRAIT_F16, 0, 1>(p);
}
KR_KERNEL void KR_BOUNDS(KR_EXPERT_TILE_THREADS, 3) kr_expert_tile_bf16(const kr_expert_tiles_params p) {
  run_tile<kr_bf16, KRAIT_BF16, 0, 0>(p);
}
KR_KERNEL void KR_BOUNDS(KR_EXPERT_TILE_THREADS, 3) kr_expert_tile_bf16_gated(const kr_expert_tiles_params p) {
  run_tile<kr_bf16, KRAIT_BF16, 1, 0>(p);
}

/* ---- sums ---- */

KR_KERNEL void KR_BOUNDS(KR_EXPERT_SUM_THREADS, 8) kr_expert_sum(const kr_expert_tiles_params p) {
  const kr_expert_gemm_args &a = p.a;
  const int64_t i = ((int64_t)kr_block_x() * KR_EXPERT_SUM_THREADS + kr_thread()) * KR_EXPERT_SUM_EACH, t = i / a.N,
                n = i - t * a.N;
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  if (t >= a.T) return;
  for (int64_t j = 0; j < a.J; j++) {
    const float by = kr_load(a.weights.data, t * a.weights.stride[0] + j * a.weights.stride[1], KRAIT_F32);
    const kr_float4 y = *(const kr_float4 *)(p.y + (t * a.J + j) * a.N + n);
#pragma unroll
    for (int k = 0; k < 4; k++) sum[k] = kr_fma(by, y.v[k], sum[k]);
  }
#pragma unroll
  for (int k = 0; k < 4; k++)
    kr_store(a.out.data, t * a.out.stride[0] + (n + k) * a.out.stride[1], a.out.dtype, sum[k]);
}

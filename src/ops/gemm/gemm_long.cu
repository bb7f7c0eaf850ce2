/* gemm_long.cu: very many rows times a small matrix, by tensor cores: bound by reading A and writing out once. Blocks
 * stay: each has all of B in shared memory, as its products read it, and takes every so many-th tile of KR_LONG_BM rows
 * of A, which come past the registers into a ring of stages. Eight warps are 4 by 2 over a tile's rows and columns.
 * float32 factors are rounded to tf32 (KR_TF32), else of 16 bits (KR_HALF: float16). */
#include "gemm_finish.cuh"
#include "gemm_long.h"
#include "mma.cuh"

#if defined(KR_TF32)
typedef kr_tf32 element;
typedef uint32_t stored;
#elif defined(KR_HALF)
typedef kr_f16 element;
typedef uint16_t stored;
#else
typedef kr_bf16 element;
typedef uint16_t stored;
#endif
enum { BM = KR_LONG_BM, CHUNK = 16 / sizeof(stored), STEP_K = 2 * CHUNK, IS_TF32 = sizeof(stored) == 4 };

/* Two neighbouring elements of B (one of float32, rounded) from row k of column n. */
KR_DEV uint32_t word_of_b(const kr_gemm_plan &p, int k, int n) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < (IS_TF32 ? 1 : 2); i++)
    if (k + i < p.K && n < p.N)
      word |= (uint32_t)((const stored *)p.B.data)[(k + i) * p.B.row + n * p.B.column] << 16 * i;
  return IS_TF32 ? kr_round_tf32(word) : word;
}

/* [step][two times eight columns][lane][4]: the registers of two products. */
KR_DEV void load_b(const kr_gemm_plan &p, uint32_t *b, int pairs) {
  const int n_words = p.K / STEP_K * pairs * 128;
  for (int i = kr_thread(); i < n_words; i += KR_LONG_THREADS) {
    const int of_pair = i / 128, step = of_pair / pairs, lane = i / 4 % 32, part = i % 4;
    const int n = (of_pair - step * pairs) * 16 + part / 2 * 8 + lane / 4;
    b[i] = word_of_b(p, step * STEP_K + part % 2 * CHUNK + lane % 4 * (IS_TF32 ? 1 : 2), n);
  }
}

/* A tile's rows; those behind the last one are zeros. */
KR_DEV void begin_tile(const kr_gemm_long_plan &p, int tile, unsigned char *stage) {
  const int per_row = p.plan.K / CHUNK, row_bytes = p.plan.K * (int)sizeof(stored);
  if (tile < p.n_tiles)
    for (int i = kr_thread(); i < BM * per_row; i += KR_LONG_THREADS) {
      const int row = i / per_row, chunk = i - row * per_row;
      const int64_t m = (int64_t)tile * BM + row;
      const int exists = m < p.plan.M;
      kr_copy_some(stage + row * row_bytes + (chunk ^ (row & 7)) * 16,
                   (const stored *)p.plan.A.data + (exists ? m : 0) * p.plan.A.row + chunk * CHUNK, exists ? 16 : 0);
    }
  kr_commit_copies();
}

/* Lanes 2 i and 2 i + 1 have two columns each of two times eight; now the first has four of the first eight, the other
 * four of the others. */
KR_DEV void gather_four(const float (&first)[2], const float (&second)[2], int is_second, float (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float kept = kr_select(is_second, second[i], first[i]),
                got = kr_shuffle_xor(kr_select(is_second, first[i], second[i]), 1);
    v[i] = kr_select(is_second, got, kept), v[2 + i] = kr_select(is_second, kept, got);
  }
}

template <int TILES>
KR_DEV void finish(const kr_gemm_plan &p, const float *bias, int64_t m, int n, const float (&d)[TILES][4]) {
  const int is_second = kr_thread() & 1, q = kr_thread() & 3;
#pragma unroll
  for (int pair = 0; pair < TILES / 2; pair++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float first[2] = {d[2 * pair][2 * half], d[2 * pair][2 * half + 1]},
                  second[2] = {d[2 * pair + 1][2 * half], d[2 * pair + 1][2 * half + 1]};
      const int column = n + pair * 16 + is_second * 8 + q / 2 * 4;
      const kr_float4 four = *(const kr_float4 *)(bias + column);
      kr_column_terms<4> terms;
      float v[4];
      gather_four(first, second, is_second, v);
#pragma unroll
      for (int i = 0; i < 4; i++) terms.bias[i] = four.v[i];
      kr_finish_run<4, 0>(p, terms, 0, (int)m + 8 * half, column, v, v);
    }
}

/* TILES: of eight columns, that a warp has; STAGES of the ring. */
template <int TILES, int STAGES>
KR_DEV void run(const kr_gemm_long_plan &p) {
  KR_DYNAMIC_SHARED(shared);
  const int row_bytes = p.plan.K * (int)sizeof(stored), steps = p.plan.K / STEP_K;
  uint32_t *const b = (uint32_t *)shared;
  float *const bias = (float *)(shared + row_bytes * TILES * 16);
  unsigned char *const stages = (unsigned char *)(bias + TILES * 16);
  const int lane = kr_thread() & 31, warp = kr_thread() / 32, row = warp % 4 * 16, side = warp / 4;
  const int a_row = row + lane % 16, a_chunk = lane / 16, swizzle = a_row & 7;
  int tile = kr_block_x();
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) begin_tile(p, tile + s * p.n_blocks, stages + s * BM * row_bytes);
  load_b(p.plan, b, TILES);
  for (int n = kr_thread(); n < TILES * 16; n += KR_LONG_THREADS)
    bias[n] = p.plan.bias.data && n < p.plan.N ? kr_load(p.plan.bias.data, n * p.plan.bias.row, p.plan.bias.dtype) : 0;
  int at = 0;
  for (; tile < p.n_tiles; tile += p.n_blocks) {
    kr_copied<STAGES - 2>();
    kr_sync(); /* the tile is there, and the one before was read */
    const int before = at ? at - 1 : STAGES - 1;
    begin_tile(p, tile + (STAGES - 1) * p.n_blocks, stages + before * BM * row_bytes);
    const unsigned char *const from = stages + at * BM * row_bytes + a_row * row_bytes;
    at = at + 1 == STAGES ? 0 : at + 1;
    float d[TILES][4] = {};
#pragma unroll 1
    for (int of_line = 0; of_line < steps; of_line += 4)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int step = of_line + i;
        uint32_t a[4];
        kr_load_matrices(a, from + ((step * 2 + a_chunk) ^ swizzle) * 16);
        if (IS_TF32) {
#pragma unroll
          for (int r = 0; r < 4; r++) a[r] = kr_round_tf32(a[r]);
        }
        const kr_raw16 *const of_step = (const kr_raw16 *)b + ((step * 2 + side) * (TILES / 2)) * 32 + lane;
#pragma unroll
        for (int pair = 0; pair < TILES / 2; pair++) {
          const kr_raw16 w = of_step[pair * 32];
          kr_mma_as(element(), d[2 * pair], a, w.w[0], w.w[1]);
          kr_mma_as(element(), d[2 * pair + 1], a, w.w[2], w.w[3]);
        }
      }
    finish<TILES>(p.plan, bias, (int64_t)tile * BM + row + lane / 4, side * TILES * 8, d);
  }
  kr_copied<0>();
}

KR_KERNEL void KR_BOUNDS(KR_LONG_THREADS, 2) kr_gemm_long_4(const kr_gemm_long_plan p) { run<4, 3>(p); }
KR_KERNEL void KR_BOUNDS(KR_LONG_THREADS, 2) kr_gemm_long_8(const kr_gemm_long_plan p) { run<8, 3>(p); }
KR_KERNEL void KR_BOUNDS(KR_LONG_THREADS, 2) kr_gemm_long_10(const kr_gemm_long_plan p) { run<10, 3>(p); }
KR_KERNEL void KR_BOUNDS(KR_LONG_THREADS, 2) kr_gemm_long_16(const kr_gemm_long_plan p) { run<16, 3>(p); }
KR_KERNEL void KR_BOUNDS(KR_LONG_THREADS, 1) kr_gemm_long_4_two(const kr_gemm_long_plan p) { run<4, 2>(p); }
KR_KERNEL void KR_BOUNDS(KR_LONG_THREADS, 1) kr_gemm_long_8_two(const kr_gemm_long_plan p) { run<8, 2>(p); }
KR_KERNEL void KR_BOUNDS(KR_LONG_THREADS, 1) kr_gemm_long_10_two(const kr_gemm_long_plan p) { run<10, 2>(p); }
KR_KERNEL void KR_BOUNDS(KR_LONG_THREADS, 1) kr_gemm_long_16_two(const kr_gemm_long_plan p) { run<16, 2>(p); }

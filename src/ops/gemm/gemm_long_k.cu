/* gemm_long_k.cu: a small product with a very long K (a layer's weight gradient, whose rows are k), by tensor cores,
 * float32 factors rounded to tf32: bound by reading both factors once. A block computes the whole result for one split
 * of K, whose rows cp.async copies into a ring of stages; gemm_base.cu's kr_gemm_sum reduces the splits. */
#include "gemm_finish.cuh"
#include "gemm_long_k.h"
#include "mma.cuh"

/* Consecutive rows of a factor start 8 banks apart, so that an mma's reads of four rows do not conflict. */
enum { STEP_K = 8, DEPTH = KR_TERMS_DEPTH, PAD = KR_TERMS_PAD, STAGES = KR_TERMS_STAGES };

/* DEPTH rows of a factor, a given number of them in bounds; WIDTH elements each, `n` in bounds. */
template <int WIDTH>
KR_DEV void bring(const float *from, int64_t stride, int n, int left_k, float *to) {
#pragma unroll
  for (int i = kr_thread(); i < DEPTH * (WIDTH / 4); i += KR_TERMS_THREADS) {
    const int row = i / (WIDTH / 4), at = i % (WIDTH / 4) * 4, exist = row < left_k && at < n;
    kr_copy_some(to + row * (WIDTH + PAD) + at, from + (exist ? row * stride + at : 0), exist ? 16 : 0);
  }
}

/* 16 columns of a factor from `column` and STEP_K of its rows, as operand a of kr_mma or, AS_B, as two operands b. */
template <int WIDTH, int AS_B>
KR_DEV void read_columns(uint32_t (&f)[4], const float *rows, int column) {
  const int g = (kr_thread() & 31) / 4, q = kr_thread() & 3;
#pragma unroll
  for (int r = 0; r < 4; r++)
    f[r] = kr_round_tf32(kr_float_to_bits(
        rows[((AS_B ? r % 2 : r / 2) * 4 + q) * (WIDTH + PAD) + column + (AS_B ? r / 2 : r % 2) * 8 + g]));
}

/* WM by 8 / WM warps cover the result; each has MT times 16 rows and NT times 16 columns. */
template <int WM, int MT, int NT>
KR_DEV void run(const kr_gemm_params &p) {
  enum { M = WM * MT * 16, N = 8 / WM * NT * 16, STAGE = DEPTH * (M + N + 2 * PAD) };
  KR_DYNAMIC_SHARED(shared);
  float *const stages = (float *)shared;
  const int lane = kr_thread() & 31, warp = kr_thread() / 32, row = warp % WM * MT * 16, column = warp / WM * NT * 16;
  const int begin = kr_block_x() * p.k_split, end = p.K - begin < p.k_split ? p.K : begin + p.k_split;
  const auto begin_stage = [&](int k, int place) {
    float *const to = stages + place * STAGE;
    if (k < end) {
      bring<M>((const float *)p.A.data + (int64_t)k * p.A.column, p.A.column, p.M, end - k, to);
      bring<N>((const float *)p.B.data + (int64_t)k * p.B.row, p.B.row, p.N, end - k, to + DEPTH * (M + PAD));
    }
    kr_commit_copies();
  };
  float d[MT][NT][2][4] = {};
#pragma unroll 1
  for (int s = 0; s < STAGES - 1; s++) begin_stage(begin + s * DEPTH, s);
  int at = 0;
#pragma unroll 1
  for (int k = begin; k < end; k += DEPTH) {
    kr_copied<STAGES - 2>();
    kr_sync(); /* the stage has arrived, and all have read the previous one */
    begin_stage(k + (STAGES - 1) * DEPTH, at ? at - 1 : STAGES - 1);
    const float *const left = stages + at * STAGE, *const right = left + DEPTH * (M + PAD);
    at = at + 1 == STAGES ? 0 : at + 1;
#pragma unroll
    for (int step = 0; step < DEPTH; step += STEP_K) {
      uint32_t a[MT][4], b[NT][4];
#pragma unroll
      for (int i = 0; i < MT; i++) read_columns<M, 0>(a[i], left + step * (M + PAD), row + i * 16);
#pragma unroll
      for (int j = 0; j < NT; j++) read_columns<N, 1>(b[j], right + step * (N + PAD), column + j * 16);
#pragma unroll
      for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++) {
          kr_mma_as(kr_tf32(), d[i][j][0], a[i], b[j][0], b[j][1]);
          kr_mma_as(kr_tf32(), d[i][j][1], a[i], b[j][2], b[j][3]);
        }
    }
  }
  kr_copied<0>();
#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const int m = row + i * 16 + lane / 4 + r % 2 * 8, n = column + j * 16 + r / 2 * 8 + (lane & 3) * 2;
        if (m < p.M && n < p.partial_row)
          *(kr_float2 *)(p.partial + ((int64_t)kr_block_x() * p.M + m) * p.partial_row + n) =
              (kr_float2){{d[i][j][r / 2][r % 2 * 2], d[i][j][r / 2][r % 2 * 2 + 1]}};
      }
}

KR_KERNEL void KR_BOUNDS(KR_TERMS_THREADS, 2) kr_gemm_long_k_64x64(const kr_gemm_params p) { run<4, 1, 2>(p); }
KR_KERNEL void KR_BOUNDS(KR_TERMS_THREADS, 2) kr_gemm_long_k_128x64(const kr_gemm_params p) { run<4, 2, 2>(p); }
KR_KERNEL void KR_BOUNDS(KR_TERMS_THREADS, 2) kr_gemm_long_k_256x64(const kr_gemm_params p) { run<4, 4, 2>(p); }
KR_KERNEL void KR_BOUNDS(KR_TERMS_THREADS, 2) kr_gemm_long_k_64x128(const kr_gemm_params p) { run<2, 2, 2>(p); }
KR_KERNEL void KR_BOUNDS(KR_TERMS_THREADS, 2) kr_gemm_long_k_64x256(const kr_gemm_params p) { run<2, 2, 4>(p); }
KR_KERNEL void KR_BOUNDS(KR_TERMS_THREADS, 2) kr_gemm_long_k_128x128(const kr_gemm_params p) { run<4, 2, 4>(p); }

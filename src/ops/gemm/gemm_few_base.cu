/* gemm_few_base.cu: up to 16 rows of A times weights contiguous in k, of any types, by float32 multiply-adds, for every
 * GPU: bound by reading the weights once. n_splits warps share the K of four columns; in each step a lane takes eight
 * consecutive k of these columns and of up to four rows of A. Blocks of the same columns and other rows are neighbours:
 * they find the weights in the L2 cache. The first weights are loaded before the preceding kernel has ended
 * (overlap.cuh). Compiled once per type of the weights (KR_DTYPE). */
#include "gemm_few_base.h"
#include "gemm_finish.cuh"
#include "overlap.cuh"
#include "row_lanes.cuh"

enum { COLUMNS = KR_FEW_BASE_COLUMNS, RUN = KR_FEW_BASE_RUN, EACH = RUN / 32, WARPS = KR_FEW_BASE_THREADS / 32 };

/* What a warp computes: columns from n, rows from m, its share of K. */
typedef struct task {
  int n, m, batch, part;
} task;

KR_DEV task task_of(const kr_gemm_few_base_params &p) {
  const int warp = kr_thread() / 32, group = warp / p.n_splits, chunk = kr_block_x() % p.n_chunks;
  const int block = kr_block_x() / p.n_chunks, n_blocks = (int)(kr_grid_x() / p.n_chunks) / p.params.P;
  return (task){(block % n_blocks * (WARPS / p.n_splits) + group) * COLUMNS, chunk * KR_FEW_BASE_ROWS, block / n_blocks,
                warp - group * p.n_splits};
}

/* sum[r][c] += the products of a warp's share of K: rows from m, columns of B from n. waits: for the preceding kernel,
 * behind the first weights. */
template <int ROWS>
KR_DEV void add_products(const kr_gemm_few_base_params &p, const kr_gemm_matrix &weights, const task &at, int waits,
                         float (&sum)[ROWS][COLUMNS]) {
  const kr_gemm_params &g = p.params;
  kr_gemm_matrix B = weights;
  B.dtype = KR_DTYPE;
  for (int k = at.part * RUN + (kr_thread() & 31) * EACH; k < g.K || waits; k += p.n_splits * RUN) {
    float b[COLUMNS][EACH];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
      const int n = at.n + c < g.N ? at.n + c : g.N - 1;
      kr_read_run<EACH>(B, at.batch * B.batch + n * B.column + k, 1, g.K - k, b[c]);
    }
    if (waits) kr_griddep_wait();
    waits = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int m = at.m + r < g.M ? at.m + r : g.M - 1;
      float a[EACH];
      kr_read_run<EACH>(g.A, at.batch * g.A.batch + m * g.A.row + k, 1, g.K - k, a);
#pragma unroll
      for (int c = 0; c < COLUMNS; c++)
#pragma unroll
        for (int i = 0; i < EACH; i++) sum[r][c] = kr_fma(a[i], b[c][i], sum[r][c]);
    }
  }
}

/* The sums over lanes, then over the warps that share K: lane r of the first of them gets row r. */
template <int ROWS>
KR_DEV void add_up(const kr_gemm_few_base_params &p, const task &at, float (*shared)[ROWS][COLUMNS],
                   const float (&sum)[ROWS][COLUMNS], float (&v)[COLUMNS]) {
  const int lane = kr_thread() & 31, warp = kr_thread() / 32;
  kr_sync();
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
      const float whole = kr_sum_lanes(sum[r][c]);
      if (lane == 0) shared[warp][r][c] = whole;
    }
  kr_sync();
#pragma unroll
  for (int c = 0; c < COLUMNS; c++) v[c] = 0.0f;
  if (at.part || lane >= ROWS) return;
#pragma unroll 1
  for (int s = 0; s < p.n_splits; s++) {
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) v[c] += shared[warp + s][lane][c];
  }
}

template <int ROWS, int GATED>
KR_DEV void run(const kr_gemm_few_base_params &p) {
  KR_SHARED float shared[WARPS][ROWS][COLUMNS];
  const task at = task_of(p);
  float sum[ROWS][COLUMNS] = {}, v[COLUMNS], second[COLUMNS] = {};
  kr_launch_dependents();
  add_products<ROWS>(p, p.params.B, at, 1, sum);
  add_up<ROWS>(p, at, shared, sum, v);
  if (GATED) {
    float other[ROWS][COLUMNS] = {};
    add_products<ROWS>(p, p.params.B2, at, 0, other);
    add_up<ROWS>(p, at, shared, other, second);
  }
  const int row = kr_thread() & 31;
  if (at.part || row >= ROWS || at.n >= p.params.N) return;
  kr_column_terms<COLUMNS> terms;
  kr_read_terms<COLUMNS>(p.params, at.n, terms);
  kr_finish_run<COLUMNS, GATED>(p.params, terms, at.batch, at.m + row, at.n, v, second);
}

KR_KERNEL void KR_BOUNDS(KR_FEW_BASE_THREADS, 3) kr_gemm_few_1(const kr_gemm_few_base_params p) { run<1, 0>(p); }
KR_KERNEL void KR_BOUNDS(KR_FEW_BASE_THREADS, 2) kr_gemm_few_4(const kr_gemm_few_base_params p) {
  run<KR_FEW_BASE_ROWS, 0>(p);
}
KR_KERNEL void KR_BOUNDS(KR_FEW_BASE_THREADS, 3) kr_gemm_few_gated_1(const kr_gemm_few_base_params p) { run<1, 1>(p); }
KR_KERNEL void KR_BOUNDS(KR_FEW_BASE_THREADS, 2) kr_gemm_few_gated_4(const kr_gemm_few_base_params p) {
  run<KR_FEW_BASE_ROWS, 1>(p);
}

/* gemm_base.cu: products of factors of any type and strides by float32 FMAs, for every GPU. A block of 256 threads
 * computes a 128 x 128 tile; a thread has rows 4 y + {0..3} and those + 64, columns 4 x + {0..3} and those + 64. In a
 * gated product the second half of the tile's columns belongs to B2, so one thread holds both factors of a result. The
 * next stage is prefetched into registers while the current one is multiplied. kr_gemm_sum then reduces the split-K
 * parts. */
#include "gemm_finish.cuh"
#include "overlap.cuh"

enum { BM = KR_BASE_BM, BN = KR_BASE_BN, BK = KR_BASE_BK, ROW = BM + 4 };

/* A thread's share of copying a factor: eight elements, contiguous in memory if any are. */
typedef struct copier {
  const kr_gemm_matrix *matrix;
  int64_t at, advance, along; /* in elements: next stage, stride between stages, stride between the eight */
  int row, k, left,
      turned; /* place in the stage; rows in bounds from the first; turned: the eight are rows, not k */
} copier;

/* first: row (m or n) in the matrix; place: in the stage. */
KR_DEV copier copier_of(const kr_gemm_matrix &matrix, int64_t row_stride, int64_t k_stride, int batch, int first,
                        int place, int limit, int turned, int k) {
  copier c = {&matrix, 0, BK * k_stride, turned ? row_stride : k_stride, place, 0, 0, turned};
  c.k = turned ? kr_thread() / 16 : kr_thread() % 2 * 8;
  c.left = limit - first;
  c.at = batch * matrix.batch + first * row_stride + (k + c.k) * k_stride;
  return c;
}

/* left_k: k in bounds from the stage's first. */
KR_DEV void fetch(copier &c, int left_k, float (&v)[8]) {
  const int left = c.turned ? (c.k < left_k ? c.left : 0) : (c.left > 0 ? left_k - c.k : 0);
  kr_read_run<8>(*c.matrix, c.at, c.along, left, v);
  c.at += c.advance;
}

KR_DEV void put(const copier &c, float *stage, const float (&v)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i++) stage[c.turned ? c.k * ROW + c.row + i : (c.k + i) * ROW + c.row] = v[i];
}

KR_DEV void multiply(float (&d)[8][8], const float *a, const float *b) {
#pragma unroll 4
  for (int k = 0; k < BK; k++) {
    float va[8], vb[8];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      *(kr_float4 *)(va + 4 * h) = *(const kr_float4 *)(a + k * ROW + 64 * h);
      *(kr_float4 *)(vb + 4 * h) = *(const kr_float4 *)(b + k * ROW + 64 * h);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
      for (int j = 0; j < 8; j++) d[i][j] = kr_fma(va[i], vb[j], d[i][j]);
  }
}

/* Goes through shared memory, 64 rows at a time, to give each thread eight contiguous columns. */
template <int GATED>
KR_DEV void finish_tile(const kr_gemm_params &p, float *staged, const float (&d)[8][8], int slab, int m, int n) {
  const int RUNS = GATED ? 8 : 16, x = kr_thread() % 16 * 4, y = kr_thread() / 16 * 4, column = kr_thread() % RUNS * 8;
  kr_column_terms<8> terms;
  kr_read_terms<8>(p, n + column, terms);
#pragma unroll
  for (int half = 0; half < 2; half++) {
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const float *v = d[4 * half + i] + 4 * h;
        *(kr_float4 *)(staged + (y + i) * ROW + 64 * h + x) = (kr_float4){{v[0], v[1], v[2], v[3]}};
      }
    kr_sync();
#pragma unroll 1
    for (int row = kr_thread() / RUNS; row < 64; row += KR_BASE_THREADS / RUNS) {
      float v[8], second[8];
#pragma unroll
      for (int i = 0; i < 8; i++)
        v[i] = staged[row * ROW + column + i], second[i] = GATED ? staged[row * ROW + 64 + column + i] : 0.0f;
      if (!GATED && p.n_splits > 1) kr_keep_run<8>(p, slab, m + 64 * half + row, n + column, v);
      else kr_finish_run<8, GATED>(p, terms, slab % p.P, m + 64 * half + row, n + column, v, second);
    }
    kr_sync();
  }
}

template <int GATED>
KR_DEV void run(const kr_gemm_params &p) {
  KR_SHARED float __attribute__((aligned(16))) stages[2][2][BK * ROW]; /* reused for 64 rows of the result */
  const kr_gemm_unit u = kr_gemm_unit_at(p, kr_block_x());
  const int m = u.m * BM, n = u.n * (GATED ? BN / 2 : BN), slab = u.slab, batch = u.batch;
  const int begin = u.split * p.k_split, end = p.K - begin < p.k_split ? p.K : begin + p.k_split;
  const int a_turned = p.A.row == 1 && p.A.column != 1, b_turned = p.B.column == 1 && (!GATED || p.B2.column == 1),
            a_row = a_turned ? kr_thread() % 16 * 8 : kr_thread() / 2,
            b_row = b_turned ? kr_thread() % 16 * 8 : kr_thread() / 2;
  copier from_a = copier_of(p.A, p.A.row, p.A.column, batch, m + a_row, a_row, p.M, a_turned, begin);
  const kr_gemm_matrix &B = GATED && b_row >= 64 ? p.B2 : p.B;
  copier from_b = copier_of(B, B.column, B.row, batch, n + (GATED ? b_row % 64 : b_row), b_row, p.N, b_turned, begin);
  const float *a = &stages[0][0][kr_thread() / 16 * 4], *b = &stages[0][1][kr_thread() % 16 * 4];
  float d[8][8], next_a[8], next_b[8];
#pragma unroll
  for (int i = 0; i < 64; i++) d[i / 8][i % 8] = 0.0f;
  fetch(from_a, end - begin, next_a), fetch(from_b, end - begin, next_b);
  put(from_a, stages[0][0], next_a), put(from_b, stages[0][1], next_b);
  kr_sync();
  int which = 0;
  for (int k = begin; k < end; k += BK, which ^= 1) {
    const int more = k + BK < end;
    if (more) fetch(from_a, end - k - BK, next_a), fetch(from_b, end - k - BK, next_b);
    multiply(d, a + which * 2 * BK * ROW, b + which * 2 * BK * ROW);
    if (more) put(from_a, stages[which ^ 1][0], next_a), put(from_b, stages[which ^ 1][1], next_b);
    kr_sync();
  }
  finish_tile<GATED>(p, &stages[0][0][0], d, slab, m, n);
}

KR_KERNEL void KR_BOUNDS(KR_BASE_THREADS, 2) kr_gemm_base(kr_gemm_params params) { run<0>(params); }
KR_KERNEL void KR_BOUNDS(KR_BASE_THREADS, 2) kr_gemm_base_gated(kr_gemm_params params) { run<1>(params); }

/* sum_lanes threads reduce the parts of eight columns, each every sum_lanes-th part in order; the first runs the
 * epilogue. */
KR_KERNEL void KR_BOUNDS(KR_SUM_THREADS, 4) kr_gemm_sum(kr_gemm_params p) {
  const int per_row = (int)(p.partial_row / 8);
  const int lane = kr_thread() & (p.sum_lanes - 1);
  const int64_t index = ((int64_t)kr_block_x() * KR_SUM_THREADS + kr_thread()) / p.sum_lanes;
  const int row = (int)(index / per_row), n = (int)(index % per_row) * 8, batch = row / p.M, m = row % p.M;
  float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  kr_launch_dependents(), kr_griddep_wait();
  const int64_t slab = (int64_t)p.P * p.M * p.partial_row;
  const float *from = p.partial + (int64_t)row * p.partial_row + n + lane * slab;
  for (int s = batch < p.P ? lane : p.n_splits; s < p.n_splits; s += p.sum_lanes, from += p.sum_lanes * slab) {
    const kr_float4 low = *(const kr_float4 *)from, high = *(const kr_float4 *)(from + 4);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] += low.v[i], v[4 + i] += high.v[i];
  }
#pragma unroll 1
  for (int mask = p.sum_lanes / 2; mask > 0; mask /= 2) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] += kr_shuffle_xor(v[i], mask);
  }
  if (batch >= p.P || lane > 0) return;
  kr_column_terms<8> terms;
  kr_read_terms<8>(p, n, terms);
  kr_finish_run<8, 0>(p, terms, batch, m, n, v, v);
}

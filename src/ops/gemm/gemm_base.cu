/* gemm_base.cu: products of factors of any type and strides by float32 FMAs, for every GPU. A block of 128 threads
 * computes a 128 x 128 tile; a thread has rows y + {0..3} and those + 64, columns x + {0..3} and those + 32, 64 and 96.
 * In a gated product the second half of the tile's columns belongs to B2, so one thread holds both factors of a result.
 * The next stage is prefetched into registers while the current one is multiplied: in whole aligned tiles of one type
 * as it is, by 16 bytes (8 of 16 bits) that neighbouring threads read side by side. kr_gemm_sum then reduces the
 * split-K parts. */
#include "gemm_finish.cuh"
#include "overlap.cuh"

enum { BM = KR_BASE_BM, BN = KR_BASE_BN, BK = KR_BASE_BK };
enum { ANY, FLOATS, HALVES }; /* a stage's factors: of any kind, or whole, aligned and both of float32 or of 16 bits */
enum { PIECES = 4, COLUMNS = 16 }; /* of a thread's share of copying a factor; of its results */

/* A thread's share of copying a factor: fours of elements, contiguous in memory if any are, two pieces of each half of
 * the rows: 32 rows apart, or (turned) 8 of k. */
typedef struct copier {
  const kr_gemm_matrix *matrix[2]; /* of each half, as in the following */
  int64_t at[2], advance[2], along[2], apart[2]; /* in elements: next stage, stride between stages, between the four,
                                                  * between pieces */
  int left[2], row, k, turned; /* rows in bounds from the first; place in the stage; turned: the four are rows, not k */
} copier;

/* first: a half's first row (m or n) in its matrix. */
KR_DEV void add_half(copier &c, int half, const kr_gemm_matrix &matrix, int64_t row_stride, int64_t k_stride, int batch,
                     int first, int limit, int k) {
  c.matrix[half] = &matrix;
  c.advance[half] = BK * k_stride, c.along[half] = c.turned ? row_stride : k_stride;
  c.apart[half] = c.turned ? 8 * k_stride : 32 * row_stride;
  c.left[half] = limit - first - c.row;
  c.at[half] = batch * matrix.batch + (first + c.row) * row_stride + (k + c.k) * k_stride;
}
KR_DEV copier copier_of(int turned) {
  copier c;
  c.turned = turned;
  c.k = turned ? kr_thread() / 16 : kr_thread() % 4 * 4;
  c.row = turned ? kr_thread() % 16 * 4 : kr_thread() / 4;
  return c;
}

/* Bits of the pieces' elements: four words a piece, of 16 bits two. left_k: k in bounds from the stage's first. */
template <int KIND>
KR_DEV void fetch(copier &c, int left_k, uint32_t (&w)[PIECES][4]) {
#pragma unroll
  for (int i = 0; i < PIECES; i++) {
    const int h = i / 2, second = i % 2;
    const int64_t at = c.at[h] + (second ? c.apart[h] : 0);
    if (KIND == FLOATS) {
      const kr_raw16 four = *(const kr_raw16 *)((const float *)c.matrix[h]->data + at);
#pragma unroll
      for (int e = 0; e < 4; e++) w[i][e] = four.w[e];
    } else if (KIND == HALVES) {
      const uint64_t four = *(const uint64_t *)((const uint16_t *)c.matrix[h]->data + at);
      w[i][0] = (uint32_t)four, w[i][1] = (uint32_t)(four >> 32);
    } else {
      const int left =
          c.turned ? (c.k + 8 * second < left_k ? c.left[h] : 0) : (c.left[h] > 32 * second ? left_k - c.k : 0);
      float v[4];
      kr_read_run<4>(*c.matrix[h], at, c.along[h], left, v);
#pragma unroll
      for (int e = 0; e < 4; e++) w[i][e] = kr_float_to_bits(v[e]);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) c.at[h] += c.advance[h];
}

/* Place in a stage, without conflicts between banks for fours of rows and for eight rows by four fours of k. */
KR_DEV int place_of(int k, int row) { return k * BM + (row ^ (k >> 2 & 3) << 3); }

template <int KIND>
KR_DEV void put(const copier &c, float *stage, const uint32_t (&w)[PIECES][4]) {
#pragma unroll
  for (int i = 0; i < PIECES; i++) {
    const int row = c.row + 64 * (i / 2), second = i % 2;
    kr_float4 v;
#pragma unroll
    for (int e = 0; e < 4; e++)
      v.v[e] = KIND == HALVES ? kr_unpack(w[i][e / 2], e % 2, c.matrix[0]->dtype) : kr_bits_to_float(w[i][e]);
    if (c.turned) {
      *(kr_float4 *)(stage + place_of(c.k + 8 * second, row)) = v;
      continue;
    }
#pragma unroll
    for (int e = 0; e < 4; e++) stage[place_of(c.k, row + 32 * second) + e * BM] = v.v[e];
  }
}

/* y, x: the thread's first row and column. The register file gives a cycle one operand of each of two banks, even and
 * odd registers, beside what the last multiply-add read and keeps: so columns take turns in the order of rows, and
 * finish_tile stores pairs of rows in turn, which gives a sum the other bank than its row's factor. */
KR_DEV void multiply(float (&d)[8][COLUMNS], const float *a, const float *b, int y, int x) {
#pragma unroll 1
  for (int four = 0; four < BK / 4; four++) {
    const float *const rows = a + place_of(4 * four, y), *const columns = b + place_of(4 * four, x);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      float va[8], vb[COLUMNS];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const kr_float4 of_a = *(const kr_float4 *)(rows + k * BM + 64 * h);
#pragma unroll
        for (int i = 0; i < 4; i++) va[4 * h + i] = of_a.v[i];
      }
#pragma unroll
      for (int h = 0; h < COLUMNS / 4; h++) {
        const kr_float4 of_b = *(const kr_float4 *)(columns + k * BM + 32 * h);
#pragma unroll
        for (int i = 0; i < 4; i++) vb[4 * h + i] = of_b.v[i];
      }
#pragma unroll
      for (int j = 0; j < COLUMNS; j++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
          const int r = j % 2 ? 7 - i : i;
          d[r][j] = kr_fma(va[r], vb[j], d[r][j]);
        }
    }
  }
}

/* Place of a result of 64 rows in shared memory: columns one after another, fours of rows in different banks. */
KR_DEV int staged_at(int row, int column) { return column * 64 + (row ^ (column >> 3 & 7) << 2); }

/* Goes through shared memory, 64 rows at a time and pairs of rows in turn, to give each thread eight contiguous
 * columns. */
template <int GATED>
KR_DEV void finish_tile(const kr_gemm_params &p, float *staged, const float (&d)[8][COLUMNS], int slab, int m, int n,
                        int y, int x) {
  const int RUNS = GATED ? 8 : 16, column = kr_thread() % RUNS * 8;
  kr_column_terms<8> terms;
  kr_read_terms<8>(p, n + column, terms);
#pragma unroll
  for (int half = 0; half < 2; half++) {
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      const int i = 4 * half;
      *(kr_float4 *)(staged + staged_at(y, x + 32 * (j / 4) + j % 4)) =
          (kr_float4){{d[i + 1][j], d[i][j], d[i + 3][j], d[i + 2][j]}};
    }
    kr_sync();
#pragma unroll 1
    for (int row = kr_thread() / RUNS; row < 64; row += KR_BASE_THREADS / RUNS) {
      float v[8], second[8];
#pragma unroll
      for (int i = 0; i < 8; i++)
        v[i] = staged[staged_at(row ^ 1, column + i)],
        second[i] = GATED ? staged[staged_at(row ^ 1, 64 + column + i)] : 0.0f;
      if (!GATED && p.n_splits > 1) kr_keep_run<8>(p, slab, m + 64 * half + row, n + column, v);
      else kr_finish_run<8, GATED>(p, terms, slab % p.P, m + 64 * half + row, n + column, v, second);
    }
    kr_sync();
  }
}

template <int KIND>
KR_DEV void add_stages(float (&d)[8][COLUMNS], float *stages, copier from_a, copier from_b, int n_k, int y, int x) {
  const int FACTOR = BK * BM;
  uint32_t next_a[PIECES][4], next_b[PIECES][4];
  fetch<KIND>(from_a, n_k, next_a), fetch<KIND>(from_b, n_k, next_b);
  put<KIND>(from_a, stages, next_a), put<KIND>(from_b, stages + FACTOR, next_b);
  kr_sync();
  int which = 0;
#pragma unroll 1
  for (int left = n_k; left > 0; left -= BK, which ^= 1) {
    float *const now = stages + which * 2 * FACTOR, *const next = stages + (which ^ 1) * 2 * FACTOR;
    const int more = left > BK;
    if (more) fetch<KIND>(from_a, left - BK, next_a), fetch<KIND>(from_b, left - BK, next_b);
    multiply(d, now, now + FACTOR, y, x);
    if (more) put<KIND>(from_a, next, next_a), put<KIND>(from_b, next + FACTOR, next_b);
    kr_sync();
  }
}

/* Whether the four elements of every thread are contiguous and aligned. */
KR_DEV int is_aligned(const copier &c) {
  return c.matrix[0]->packs && c.matrix[1]->packs && c.along[0] == 1 && c.along[1] == 1;
}

template <int GATED>
KR_DEV void run(const kr_gemm_params &p) {
  KR_SHARED float __attribute__((aligned(16))) stages[2 * 2 * BK * BM]; /* reused for 64 rows of the result */
  const int WIDTH = GATED ? BN / 2 : BN, warp = kr_thread() / 32, lane = kr_thread() % 32;
  const kr_gemm_unit u = kr_gemm_unit_at(p, kr_block_x());
  const int m = u.m * BM, n = u.n * WIDTH, begin = u.split * p.k_split,
            end = p.K - begin < p.k_split ? p.K : begin + p.k_split, n_k = end - begin;
  const int y = (warp / 2 * 8 + (lane >> 1 & 7)) * 4, x = (warp % 2 * 4 + (lane & 1) + (lane >> 4) * 2) * 4;
  const kr_gemm_matrix &B2 = GATED ? p.B2 : p.B;
  copier from_a = copier_of(p.A.row == 1 && p.A.column != 1), from_b = copier_of(p.B.column == 1 && B2.column == 1);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const kr_gemm_matrix &of = h ? B2 : p.B;
    add_half(from_a, h, p.A, p.A.row, p.A.column, u.batch, m + 64 * h, p.M, begin);
    add_half(from_b, h, of, of.column, of.row, u.batch, GATED ? n : n + 64 * h, p.N, begin);
  }
  const int dtype = p.A.dtype, whole = n_k % BK == 0 && m + BM <= p.M && n + WIDTH <= p.N && is_aligned(from_a) &&
                                       is_aligned(from_b) && p.B.dtype == dtype && B2.dtype == dtype;
  float d[8][COLUMNS];
#pragma unroll
  for (int i = 0; i < 8 * COLUMNS; i++) d[i / COLUMNS][i % COLUMNS] = 0.0f;
  if (whole && dtype == KRAIT_F32) add_stages<FLOATS>(d, stages, from_a, from_b, n_k, y, x);
  else if (whole) add_stages<HALVES>(d, stages, from_a, from_b, n_k, y, x);
  else add_stages<ANY>(d, stages, from_a, from_b, n_k, y, x);
  finish_tile<GATED>(p, stages, d, u.slab, m, n, y, x);
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

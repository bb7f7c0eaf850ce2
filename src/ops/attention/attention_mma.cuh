/* attention_mma.cuh: the two products of attention on a warp's tensor cores, from swizzled shared-memory tiles with
 * rows of D channels; for the forward and gradient kernels. */
#ifndef KR_ATTENTION_MMA_CUH
#define KR_ATTENTION_MMA_CUH

#include "attention_fragments.cuh"
#include "turing.cuh"

#ifdef KR_HALF
typedef kr_f16 element;
enum { DTYPE = KRAIT_F16 };
#else
typedef kr_bf16 element;
enum { DTYPE = KRAIT_BF16 };
#endif
enum { THREADS = KR_ATTENTION_AMPERE_THREADS };

/* A thread's share of copying a tile of ROWS rows: 16 bytes of every STEP-th row. */
template <int D, int ROWS>
struct copier {
  enum { PER_ROW = D / 8, STEP = THREADS / PER_ROW, N = ROWS / STEP };
  kr_flight flights[N];

  /* Of the k-th row; the swizzle's period is eight rows. */
  KR_DEV uint32_t place_of(uint32_t tile, int k) {
    const uint32_t lane = tile + kr_swizzle<D * 2>(kr_thread() / PER_ROW, kr_thread() % PER_ROW);
    return (STEP == 4 && k % 2 ? lane ^ 64 : lane) + k * STEP * D * 2;
  }
  /* Where nobody reads any more what was there before. */
  KR_DEV void end(const copier &c, uint32_t tile) {
#pragma unroll
    for (int k = 0; k < N; k++) kr_end_copy(c.flights[k], place_of(tile, k));
  }
};

/* Address of a lane's ldmatrix row in a tile: for an operand whose rows are m, or keys summed over, and for one whose
 * rows are n. */
template <int D>
KR_DEV uint32_t lane_of_rows(void) {
  const int lane = kr_thread() & 31;
  return kr_swizzle<D * 2>((lane & 7) + (lane >> 3 & 1) * 8, lane >> 4);
}
template <int D>
KR_DEV uint32_t lane_of_columns(void) {
  const int lane = kr_thread() & 31;
  return kr_swizzle<D * 2>((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
}

/* s = q k^T of the warp's 16 M rows. lane_q, lane_k: addresses of the lane's ldmatrix rows. */
template <int D, int M, int N>
KR_DEV void make_scores(float (&s)[M][N / 8][4], uint32_t lane_q, uint32_t lane_k) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[m][j][i] = 0;
  uint32_t a[2][M][4], b[2][4]; /* double-buffered: the next ones load during the product */
#pragma unroll
  for (int m = 0; m < M; m++) kr_load_matrices_at(a[0][m], lane_q + m * 16 * D * 2);
  kr_load_matrices_at(b[0], lane_k);
#pragma unroll
  for (int t = 0; t < D / 16 * (N / 16); t++) {
    const int k = t / (N / 16), j = t % (N / 16), next_k = (t + 1) / (N / 16), next_j = (t + 1) % (N / 16);
    if (t + 1 < D / 16 * (N / 16)) kr_load_matrices_at(b[(t + 1) & 1], (lane_k ^ next_k * 32) + next_j * 16 * D * 2);
    if (j == 0 && k + 1 < D / 16) {
#pragma unroll
      for (int m = 0; m < M; m++) kr_load_matrices_at(a[(k + 1) & 1][m], (lane_q ^ (k + 1) * 32) + m * 16 * D * 2);
    }
#pragma unroll
    for (int step = 0; step < KR_MMA_STEPS; step++)
#pragma unroll
      for (int m = 0; m < M; m++)
        kr_mma_step(step, element(), s[m][2 * j], a[k & 1][m], b[t & 1][0], b[t & 1][1]),
            kr_mma_step(step, element(), s[m][2 * j + 1], a[k & 1][m], b[t & 1][2], b[t & 1][3]);
  }
}

/* o += w v. */
template <int D, int M, int N>
KR_DEV void add_output(float (&o)[M][D / 8][4], const uint32_t (&w)[M][N / 16][4], uint32_t lane_v) {
  uint32_t b[2][4];
  kr_load_matrices_turned_at(b[0], lane_v);
#pragma unroll
  for (int t = 0; t < N / 16 * (D / 16); t++) {
    const int k = t / (D / 16), j = t % (D / 16), next_k = (t + 1) / (D / 16), next_j = (t + 1) % (D / 16);
    if (t + 1 < N / 16 * (D / 16))
      kr_load_matrices_turned_at(b[(t + 1) & 1], (lane_v ^ next_j * 32) + next_k * 16 * D * 2);
#pragma unroll
    for (int step = 0; step < KR_MMA_STEPS; step++)
#pragma unroll
      for (int m = 0; m < M; m++)
        kr_mma_step(step, element(), o[m][2 * j], w[m][k], b[t & 1][0], b[t & 1][1]),
            kr_mma_step(step, element(), o[m][2 * j + 1], w[m][k], b[t & 1][2], b[t & 1][3]);
  }
}

template <int M, int N>
KR_DEV void pack_weights(const float (&s)[M][N / 8][4], uint32_t (&w)[M][N / 16][4]) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int k = 0; k < N / 16; k++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        w[m][k][i] = kr_pack(s[m][2 * k + i / 2][i % 2 * 2], s[m][2 * k + i / 2][i % 2 * 2 + 1], DTYPE);
}

#endif

/* ssd_f32.cuh: shared by the SSD's and its gradient's tensor-core kernels of float32: rows in shared memory, a chunk's
 * update of a state in accumulators. */
#ifndef KR_SSD_F32_CUH
#define KR_SSD_F32_CUH

#include "ssd_mma.cuh"
#include "tf32_parts.cuh"

/* ---- rows in shared memory --------------------------------------------------------------------------------------- */

/* Place of an element in rows of W: conflict-free are four rows (from a multiple of four on) by eight columns, and
 * pairs of columns of eight rows. */
template <int W>
KR_DEV int place_of(int row, int column) {
  return row * W + (column ^ (row & 3) << 3);
}

/* A chunk's rows, zeros beyond its tokens and columns; by the block's THREADS threads. */
template <int W, int THREADS>
KR_DEV void copy_floats(float *to, const kr_ssd_tensor &v, int64_t from, int64_t t0, int64_t end, int n_columns) {
  const int per_row = W / 4, rows = THREADS / per_row, row = kr_thread() / per_row, column = kr_thread() % per_row * 4;
  const int n = end - t0 < (int64_t)Q ? (int)(end - t0) : (int)Q, left = (n_columns - column) * 4,
            bytes = left < 0 ? 0 : left < 16 ? left : 16;
  const float *at = (const float *)v.data + from + (t0 + row) * v.t + column;
  to += place_of<W>(row, column); /* rows a multiple of four apart share one swizzle */
#pragma unroll 4
  for (int k = 0; k < Q / rows; k++, at += rows * v.t) {
    const int there = row + k * rows < n ? bytes : 0;
    kr_copy_some(to + k * rows * W, there ? at : (const float *)v.data, there);
  }
}

KR_DEV float *products_of(const kr_ssd_params &p, int b, int g, int64_t chunk) {
  return p.products + (((int64_t)b * ((p.L + Q - 1) / Q) + chunk) * (p.H / p.heads) + g) * Q * Q;
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

/* A warp's lane. */
typedef struct lane_place {
  int g, q, c; /* c: first of its two channels of the block's, eight apart */
} lane_place;

/* Anew in every phase: addresses made of it would otherwise stay in registers from chunk to chunk. */
KR_DEV lane_place lane(void) {
  const int thread = anew(kr_thread());
  return lane_place{thread >> 2 & 7, thread & 3, (thread >> 5) * 16 + (thread >> 2 & 7)};
}

/* X^T of eight tokens as an A operand. */
KR_DEV void read_channels(float (&a)[4], const lane_place &me, const float *x, int k) {
#pragma unroll
  for (int r = 0; r < 4; r++) a[r] = x[place_of<PB>(8 * k + r / 2 * 4 + me.q, me.c + r % 2 * 8)];
}

/* S = keeps S + (weights X)^T B, for a warp's 16 channels; OUT as in take_chunk. Returns whether a dropped state was
 * not finite. */
template <int N, int PARTS, int OUT>
KR_DEV int take_floats(float (&s)[N / 8][4], const lane_place &me, const float *x, const float *B,
                       const chunk_steps &steps, int has_sequences) {
  const int spoilt = keep_of_state<N / 8>(s, state_left(steps));
#pragma unroll 1
  for (int k = 0; k < Q / 8; k++) {
    const int i = 8 * k + me.q;
    const float low = OUT ? state_reaches(steps, i) : input_left(steps, has_sequences, i),
                high = OUT ? state_reaches(steps, i + 4) : input_left(steps, has_sequences, i + 4);
    float elements[4];
    read_channels(elements, me, x, k);
    elements[0] *= low, elements[1] *= low, elements[2] *= high, elements[3] *= high;
    const kr_factor<PARTS, 4> a = kr_split<PARTS>(elements);
#pragma unroll
    for (int n = 0; n < N / 8; n++)
      kr_multiply<PARTS>(s[n], a, {B[place_of<N>(i, 8 * n + me.g)], B[place_of<N>(i + 4, 8 * n + me.g)]});
  }
  return spoilt;
}

#endif

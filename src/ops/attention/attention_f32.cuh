/* attention_f32.cuh: the two products of attention of float32 on a warp's tensor cores, all factors in two tf32 parts,
 * from shared-memory tiles with rows of D channels; for the forward and gradient kernels. */
#ifndef KR_ATTENTION_F32_CUH
#define KR_ATTENTION_F32_CUH

#include "attention_params.h"
#include "tf32_parts.cuh"

enum { THREADS = KR_ATTENTION_AMPERE_THREADS };

/* Place of an element in a tile. Conflict-free are pairs of columns of four rows from a multiple of four on, and even,
 * or odd, rows of eight by eight columns. */
template <int D>
KR_DEV int place_of(int row, int column) {
  return row * D + (column ^ ((row >> 1 & 3) ^ (row & 1) << 1) << 3);
}

/* Of unknown origin to the compiler: addresses made of it would otherwise stay in registers from tile to tile. */
KR_DEV int lane_anew(void) {
  int lane = kr_thread() & 31;
#ifndef KR_EMULATE
  asm volatile("" : "+r"(lane));
#endif
  return lane;
}

/* s = q k^T of the warp's 16 rows: channels 2 q and 2 q + 1 of eight count as columns q and q + 4. */
template <int D, int N>
KR_DEV void make_scores(float (&s)[N / 8][4], const float *q, const float *keys) {
  const int lane = lane_anew(), g = lane >> 2, column = lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < N / 8; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) s[j][i] = 0;
#pragma unroll 2
  for (int k = 0; k < D / 8; k++) {
    const kr_float2 low = *(const kr_float2 *)(q + place_of<D>(g, 8 * k + column)),
                    high = *(const kr_float2 *)(q + place_of<D>(g + 8, 8 * k + column));
    const kr_factor<1, 4> a = kr_split<1>({low.v[0], high.v[0], low.v[1], high.v[1]});
#pragma unroll
    for (int j = 0; j < N / 8; j++)
      kr_multiply<1>(s[j], a, ((const kr_float2 *)(keys + place_of<D>(8 * j + g, 8 * k + column)))->v);
  }
}

/* o += w v: keys 2 q and 2 q + 1 of eight count as rows q and q + 4, so that the accumulators are the operand. */
template <int D, int N>
KR_DEV void add_output(float (&o)[D / 8][4], const float (&w)[N / 8][4], const float *values) {
  const int lane = lane_anew(), g = lane >> 2, row = lane % 4 * 2;
#pragma unroll
  for (int k = 0; k < N / 8; k++) {
    const kr_factor<1, 4> a = kr_split<1>({w[k][0], w[k][2], w[k][1], w[k][3]});
    const float *const low = values + (8 * k + row) * D, *const high = low + D;
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
      if (j % 4 == 0) kr_sync_warp(); /* or all reads would be moved here, and registers to local memory */
      const int column = place_of<D>(row, 8 * (j % 4) + g) - row * D + j / 4 * 32; /* few addresses */
      kr_multiply<1>(o[j], a, {low[column], high[column ^ 16]});
    }
  }
}

#endif

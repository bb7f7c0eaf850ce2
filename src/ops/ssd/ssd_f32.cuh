/* ssd_f32.cuh: shared by the SSD's and its gradient's tensor-core kernels of float32: rows in shared memory, products
 * of float16 parts. */
#ifndef KR_SSD_F32_CUH
#define KR_SSD_F32_CUH

#include "halves.cuh"
#include "ssd_mma.cuh"
#include "tf32_parts.cuh"

/* ---- rows in shared memory --------------------------------------------------------------------------------------- */

/* Place of an element in rows of W: conflict-free are four rows (from a multiple of four on) by eight columns, and
 * pairs of columns of eight rows. */
template <int W>
KR_DEV int place_of(int row, int column) {
  return row * W + (column ^ (row & 3) << 3);
}

/* Place of x: conflict-free are four rows two apart by eight columns. */
KR_DEV int place_of_x(int row, int column) { return row * PB + (column ^ (row >> 1 & 3) << 3); }

/* Where a row's four neighbours are: as place_of or place_of_x has them, or 16 bytes as operands' loads swizzle them.
 */
enum { FOR_FLOATS, FOR_CHANNELS, FOR_PARTS };

/* A chunk's rows, zeros beyond its tokens and columns; by the block's THREADS threads. */
template <int W, int THREADS, int ORDER>
KR_DEV void copy_floats(float *to, const kr_ssd_tensor &v, int64_t from, int64_t t0, int64_t end, int n_columns) {
  const int per_row = W / 4, rows = THREADS / per_row, row = kr_thread() / per_row, column = kr_thread() % per_row * 4;
  const int n = end - t0 < (int64_t)Q ? (int)(end - t0) : (int)Q, left = (n_columns - column) * 4,
            bytes = left < 0 ? 0 : left < 16 ? left : 16;
  const float *at = (const float *)v.data + from + (t0 + row) * v.t + column;
  to += ORDER == FOR_FLOATS     ? place_of<W>(row, column) /* rows four apart share one swizzle, the others' eight */
        : ORDER == FOR_CHANNELS ? place_of_x(row, column)
                                : kr_swizzle<4 * W>(row, column / 4) / 4;
#pragma unroll 4
  for (int k = 0; k < Q / rows; k++, at += rows * v.t) {
    const int there = row + k * rows < n ? bytes : 0;
    kr_copy_some(to + k * rows * W, there ? at : (const float *)v.data, there);
  }
}

KR_DEV float *products_of(const kr_ssd_params &p, int b, int g, int64_t chunk) {
  return p.products + (((int64_t)b * ((p.L + Q - 1) / Q) + chunk) * (p.H / p.heads) + g) * Q * Q;
}

/* ---- products of float16 parts ----------------------------------------------------------------------------------- */

/* An operand's registers. */
template <int PARTS>
struct operand {
  uint32_t high[4], low[4];
};

/* d += a b for 16 columns; the small terms first, and added outside of the tensor core, which rounds sums towards
 * zero. */
template <int PARTS>
KR_DEV void multiply_pair(float (&d0)[4], float (&d1)[4], const operand<PARTS> &a, const operand<PARTS> &b) {
  if (!PARTS) return kr_mma_pair(kr_f16(), d0, d1, a.high, b.high);
  float sum[2][4];
  clear(sum[0]), clear(sum[1]);
  kr_mma_pair(kr_f16(), sum[0], sum[1], a.low, b.high);
  kr_mma_pair(kr_f16(), sum[0], sum[1], a.high, b.low);
  kr_mma_pair(kr_f16(), sum[0], sum[1], a.high, b.high);
#pragma unroll
  for (int r = 0; r < 4; r++) d0[r] += sum[0][r], d1[r] += sum[1][r];
  kr_hold(d0), kr_hold(d1);
}

/* The largest magnitude among lanes that differ in the bits from 1 to below LANES. */
template <int LANES>
KR_DEV uint32_t largest_of_lanes(uint32_t largest) {
#pragma unroll
  for (int d = 1; d < LANES; d <<= 1)
    largest = kr_larger(largest, kr_float_to_bits(kr_shuffle_xor(kr_bits_to_float(largest), d)));
  return largest;
}

/* Of A, times a power of two: of its rows g and g + 8, eight numbers of 16 columns, as accumulators have them. */
template <int PARTS>
KR_DEV void scale_operand(operand<PARTS> &a, const float (&first)[4], const float (&second)[4],
                          const float (&scale)[2]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float *const two = (i < 2 ? first : second) + i % 2 * 2;
    kr_halve(two[0] * scale[i % 2], two[1] * scale[i % 2], 1.0f, a.high[i], a.low[i]);
  }
}

/* Scales of a lane's rows g and g + 8, whose largest numbers are among those of its quad, and one over them. */
typedef struct row_scales {
  float up[2], down[2];
} row_scales;

KR_DEV row_scales scales_of_rows(const uint32_t (&largest)[2]) {
  row_scales s;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int up = kr_halves_scale(largest_of_lanes<4>(largest[h]));
    s.up[h] = kr_power_of_two(up), s.down[h] = kr_power_of_two(-up);
  }
  return s;
}
KR_DEV void find_larger(uint32_t (&largest)[2], const float (&x)[4]) {
#pragma unroll
  for (int r = 0; r < 4; r++) largest[r / 2] = kr_larger(largest[r / 2], kr_magnitude(x[r]));
}

/* ---- a warp's channels ------------------------------------------------------------------------------------------- */

/* Anew in every phase: addresses made of it would otherwise stay in registers from chunk to chunk. */
KR_DEV warp_place warp(void) { return place_of_thread(anew(kr_thread())); }

/* 16 tokens of the warp's channels, weighed. */
KR_DEV void read_tokens(float (&first)[4], float (&second)[4], const warp_place &me, const float *x,
                        const float *weights, int k) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int t = 16 * k + 8 * h + 2 * me.q;
    const kr_float2 w = *(const kr_float2 *)(weights + t);
    float(&v)[4] = h ? second : first;
#pragma unroll
    for (int r = 0; r < 4; r++) v[r] = x[place_of_x(t + r % 2, me.row + r / 2 * 8)] * w.v[r % 2];
  }
}

#endif

/* ssd_bwd_parts.cuh: rows of float32 in shared memory that become float16 parts, all of a tile with one scale, and
 * operands read from these: of the SSD's gradient. */
#ifndef KR_SSD_BWD_PARTS_CUH
#define KR_SSD_BWD_PARTS_CUH

#include "ssd_f32.cuh"

/* Rows of W numbers: the high parts of all, then the low ones. */
template <int W, int PARTS>
struct row_of {
  enum { BYTES = (1 + PARTS) * 2 * W };
};
template <int W, int PARTS>
KR_DEV void read_rows(operand<PARTS> &a, const unsigned char *rows, const warp_place &me, int k) {
  load_a<row_of<W, PARTS>::BYTES>(a.high, rows, me, k);
  if (PARTS) load_a<row_of<W, PARTS>::BYTES>(a.low, rows, me, k + W / 16);
}
template <int W, int PARTS>
KR_DEV void read_columns(operand<PARTS> &b, const unsigned char *rows, const warp_place &me, int first, int k) {
  load_b<row_of<W, PARTS>::BYTES>(b.high, rows, me, first, k);
  if (PARTS) load_b<row_of<W, PARTS>::BYTES>(b.low, rows, me, first, k + W / 16);
}
template <int W, int PARTS>
KR_DEV void read_columns_turned(operand<PARTS> &b, const unsigned char *rows, const warp_place &me, int k, int chunk) {
  load_b_turned<row_of<W, PARTS>::BYTES>(b.high, rows, me, k, chunk);
  if (PARTS) load_b_turned<row_of<W, PARTS>::BYTES>(b.low, rows, me, k, chunk + W / 8);
}

/* Two neighbours, still scaled. */
template <int W, int PARTS>
KR_DEV kr_float2 two_at(const unsigned char *rows, int at, int column) {
  enum { BYTES = row_of<W, PARTS>::BYTES };
  const uint32_t high = *(const uint32_t *)(rows + kr_swizzle<BYTES>(at, column / 8) + column % 8 * 2);
  kr_float2 two = {{kr_unpack(high, 0, KRAIT_F16), kr_unpack(high, 1, KRAIT_F16)}};
  if (PARTS) {
    const uint32_t low = *(const uint32_t *)(rows + kr_swizzle<BYTES>(at, column / 8 + W / 8) + column % 8 * 2);
    two.v[0] += kr_unpack(low, 0, KRAIT_F16), two.v[1] += kr_unpack(low, 1, KRAIT_F16);
  }
  return two;
}

/* 16 floats of a row of W, which become parts, in their place or elsewhere: all are read before any is left. Of
 * padding, which may be of any size and must not decide the scale, zeros. */
typedef struct sixteen {
  kr_float4 of[4];
} sixteen;

template <int W>
KR_DEV uint32_t read_sixteen(sixteen &v, const unsigned char *rows, const chunk_steps &steps, int item) {
  const int at = item / (W / 16), first = item % (W / 16) * 4, is_padding = steps.segment[at] < 0;
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    v.of[i] = *(const kr_float4 *)(rows + kr_swizzle<4 * W>(at, first + i));
    if (is_padding) v.of[i] = kr_float4{{0, 0, 0, 0}};
#pragma unroll
    for (int k = 0; k < 4; k++) largest = kr_larger(largest, kr_magnitude(v.of[i].v[k]));
  }
  return largest;
}
template <int W, int PARTS>
KR_DEV void leave_sixteen(unsigned char *rows, const sixteen &v, int item, float scale) {
  const int at = item / (W / 16), first = item % (W / 16) * 2;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    kr_raw16 high, low;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float *const two = v.of[2 * half + i / 2].v + i % 2 * 2;
      kr_halve(two[0] * scale, two[1] * scale, 1.0f, high.w[i], low.w[i]);
    }
    *(kr_raw16 *)(rows + kr_swizzle<row_of<W, PARTS>::BYTES>(at, first + half)) = high;
    if (PARTS) *(kr_raw16 *)(rows + kr_swizzle<row_of<W, PARTS>::BYTES>(at, first + half + W / 8)) = low;
  }
}

/* What the warps find largest: all of a block know it behind the next barrier. */
KR_DEV void leave_largest(uint32_t *of_warps, uint32_t largest) {
  largest = largest_of_lanes<32>(largest);
  if ((kr_thread() & 31) == 0) of_warps[kr_thread() >> 5] = largest;
}
template <int WARPS>
KR_DEV int scale_of_largest(const uint32_t *of_warps) {
  uint32_t largest = of_warps[0];
#pragma unroll
  for (int w = 1; w < WARPS; w++) largest = kr_larger(largest, of_warps[w]);
  return kr_halves_scale(largest);
}

#endif

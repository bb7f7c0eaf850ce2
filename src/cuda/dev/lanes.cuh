/* lanes.cuh: what products of one row or two by multiply-adds share: sums over a warp's lanes, and rows that are normed
 * while they are read. A product with sum v w k of a row v is scaled by one over the root of the mean square of v when it
 * is done: nobody waits for the norm. */
#ifndef KR_LANES_CUH
#define KR_LANES_CUH

#include "lanes.h"
#include "overlap.cuh"

/* Every lane gets the sum over the warp's. */
KR_DEV float kr_sum_lanes(float v) {
#pragma unroll
  for (int d = 16; d; d /= 2) v += kr_shuffle_xor(v, d);
  return v;
}

/* Of four values: lane i gets the sum of value i % 4. */
KR_DEV float kr_sum_lanes_of_four(const float *v) {
  const int lane = kr_thread() & 31;
  const float low = kr_select(lane & 1, v[1], v[0]) + kr_shuffle_xor(kr_select(lane & 1, v[0], v[1]), 1),
              high = kr_select(lane & 1, v[3], v[2]) + kr_shuffle_xor(kr_select(lane & 1, v[2], v[3]), 1);
  float sum = kr_select(lane & 2, high, low) + kr_shuffle_xor(kr_select(lane & 2, low, high), 2);
#pragma unroll
  for (int d = 4; d < 32; d *= 2) sum += kr_shuffle_xor(sum, d);
  return sum;
}

enum { KR_NO_NORM, KR_ADD_NORM, KR_GATED_NORM }; /* of what: the row, the row and what is added, the row times silu(z) */

/* Eight inputs from k on of row m become v times the norm's weight, and their squares are counted; `writes`: this
 * thread stores v. */
template <int NORM, int DTYPE>
KR_DEV void kr_norm_run(const kr_normed &p, int m, int k, int exists, int writes, float (&x)[8], float &squares) {
  kr_raw16 weight = {{0, 0, 0, 0}};
  if (exists) weight = *(const kr_raw16 *)((const uint16_t *)p.weight + k);
  if (p.other && exists) {
    float other[8];
    if (NORM == KR_ADD_NORM && p.other_is_float) {
      const kr_float4 *from = (const kr_float4 *)((const float *)p.other + m * p.other_row + k);
      const kr_float4 low = from[0], high = from[1];
#pragma unroll
      for (int i = 0; i < 8; i++) other[i] = i < 4 ? low.v[i] : high.v[i % 4];
    } else {
      const kr_raw16 raw = *(const kr_raw16 *)((const uint16_t *)p.other + m * p.other_row + k);
#pragma unroll
      for (int i = 0; i < 8; i++) other[i] = kr_unpack(raw.w[i / 2], i % 2, DTYPE);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = NORM == KR_ADD_NORM ? x[i] + other[i] : x[i] * kr_silu(other[i]);
  }
#pragma unroll
  for (int i = 0; i < 8; i++) squares = kr_fma(x[i], x[i], squares);
  if (NORM == KR_ADD_NORM && writes && exists && p.sum) {
    if (p.sum_is_float) {
      kr_float4 *to = (kr_float4 *)((float *)p.sum + m * p.sum_row + k);
      to[0] = kr_float4{{x[0], x[1], x[2], x[3]}}, to[1] = kr_float4{{x[4], x[5], x[6], x[7]}};
    } else {
      kr_raw16 raw;
#pragma unroll
      for (int i = 0; i < 4; i++) raw.w[i] = kr_pack(x[2 * i], x[2 * i + 1], DTYPE);
      *(kr_raw16 *)((uint16_t *)p.sum + m * p.sum_row + k) = raw;
    }
  }
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] *= kr_unpack(weight.w[i / 2], i % 2, DTYPE);
}

#endif

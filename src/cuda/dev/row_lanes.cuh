/* row_lanes.cuh: shared by FMA products of one or two rows (gemm_m16.cu, gemm_q8.cu): warp reductions, rows normalised
 * as they are loaded, and a fused convolution step. The product of a row v is scaled by one over the root mean square
 * of v at the end: nobody waits for the norm. */
#ifndef KR_ROW_LANES_CUH
#define KR_ROW_LANES_CUH

#include "row_lanes.h"
#include "overlap.cuh"

/* The warp's sum, in every lane. */
KR_DEV float kr_sum_lanes(float v) {
#pragma unroll
  for (int d = 16; d; d /= 2) v += kr_shuffle_xor(v, d);
  return v;
}

/* Four values: lane i gets the sum of value i % 4. */
KR_DEV float kr_sum_lanes_of_four(const float *v) {
  const int lane = kr_thread() & 31;
  const float low = kr_select(lane & 1, v[1], v[0]) + kr_shuffle_xor(kr_select(lane & 1, v[0], v[1]), 1),
              high = kr_select(lane & 1, v[3], v[2]) + kr_shuffle_xor(kr_select(lane & 1, v[2], v[3]), 1);
  float sum = kr_select(lane & 2, high, low) + kr_shuffle_xor(kr_select(lane & 2, low, high), 2);
#pragma unroll
  for (int d = 4; d < 32; d *= 2) sum += kr_shuffle_xor(sum, d);
  return sum;
}

/* Eight neighbours of a row as they lie in memory, 16 bytes aligned. */
template <int DTYPE>
struct kr_eight {
  kr_raw16 part[DTYPE == KRAIT_F32 ? 2 : 1];
};
template <int DTYPE>
KR_DEV float kr_eight_at(const kr_eight<DTYPE> &from, int i) {
  if (DTYPE == KRAIT_F32) return kr_bits_to_float(from.part[i / 4 % (DTYPE == KRAIT_F32 ? 2 : 1)].w[i % 4]);
  return kr_unpack(from.part[0].w[i / 2], i % 2, DTYPE);
}

/* Of what: the row, the row plus an addend, the row times silu(z). */
enum {
  KR_NO_NORM,
  KR_ADD_NORM,
  KR_GATED_NORM
};

/* Eight inputs from k of row m become v times the norm's weight; accumulates their squares; `writes`: this thread
 * stores v. */
template <int NORM, int DTYPE>
KR_DEV void kr_norm_run(const kr_normed &p, const kr_eight<DTYPE> &weight, int m, int k, int exists, int writes,
                        float (&x)[8], float &squares) {
  if (p.other && exists) {
    float other[8];
    if (DTYPE == KRAIT_F32 || (NORM == KR_ADD_NORM && p.other_is_float)) {
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
    if (DTYPE == KRAIT_F32 || p.sum_is_float) {
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
  for (int i = 0; i < 8; i++) x[i] *= kr_eight_at<DTYPE>(weight, i);
}

typedef struct __attribute__((aligned(8))) kr_four_halves {
  uint32_t w[2];
} kr_four_halves;

template <int DTYPE>
KR_DEV void kr_store_four(void *out, int64_t at, int is_float, const float (&v)[4]) {
  if (DTYPE == KRAIT_F32 || is_float) *(kr_float4 *)((float *)out + at) = kr_float4{{v[0], v[1], v[2], v[3]}};
  else
    *(kr_four_halves *)((uint16_t *)out + at) =
        kr_four_halves{{kr_pack(v[0], v[1], DTYPE), kr_pack(v[2], v[3], DTYPE)}};
}

/* Four channels of a convolution step: the last three inputs of each, contiguous per channel, taps and bias. */
template <int DTYPE>
struct __attribute__((aligned(16))) kr_conv_run {
  kr_float4 state[3];
  kr_raw16 taps[DTYPE == KRAIT_F32 ? 4 : 2];
  uint32_t bias[DTYPE == KRAIT_F32 ? 4 : 2];
  int slot; /* negative: out is 0, nothing is written */
};

/* Of what lies in pairs of 16 bits, or in words of float32. */
template <int DTYPE>
KR_DEV float kr_conv_at(const uint32_t *words, int i) {
  return DTYPE == KRAIT_F32 ? kr_bits_to_float(words[i]) : kr_unpack(words[i / 2], i % 2, DTYPE);
}

template <int DTYPE>
KR_DEV void kr_load_conv(const kr_conv_step &p, int m, int c, kr_conv_run<DTYPE> &to) {
  const int bytes = DTYPE == KRAIT_F32 ? 4 : 2;
  to.slot = p.slots ? ((const int32_t *)p.slots)[m * p.slot_step] : m;
  if (to.slot >= p.n_states) to.slot = -1; /* unknown to the host */
  const kr_float4 *state = (const kr_float4 *)(p.state + (to.slot < 0 ? 0 : to.slot) * p.state_row + 3 * c);
#pragma unroll
  for (int i = 0; i < 3; i++) to.state[i] = state[i];
#pragma unroll
  for (int i = 0; i < bytes; i++) to.taps[i] = *((const kr_raw16 *)((const char *)p.weight + 4 * bytes * c) + i);
#pragma unroll
  for (int i = 0; i < bytes; i++) to.bias[i] = p.bias ? *((const uint32_t *)((const char *)p.bias + bytes * c) + i) : 0;
}

/* Asynchronous copies to shared memory by KR_CONV_PIECES threads, one piece each: the state's three, then taps, then
 * bias, and the slot by the last. */
enum { KR_CONV_PIECES = 8 };
template <int DTYPE>
KR_DEV void kr_fetch_conv(const kr_conv_step &p, int m, int c, int piece, kr_conv_run<DTYPE> &to) {
  const int bytes = DTYPE == KRAIT_F32 ? 4 : 2;
  int slot = p.slots ? ((const int32_t *)p.slots)[m * p.slot_step] : m;
  if (slot >= p.n_states) slot = -1; /* unknown to the host */
  const float *state = p.state + (slot < 0 ? 0 : slot) * p.state_row + 3 * c;
  if (piece < 3) kr_copy16(&to.state[piece], state + 4 * piece);
  else if (piece < 3 + bytes)
    kr_copy16(&to.taps[piece - 3], (const char *)p.weight + 4 * bytes * c + 16 * (piece - 3));
  if (piece == KR_CONV_PIECES - 1) to.slot = slot;
  if (piece < 5 || (DTYPE == KRAIT_F32 ? piece < 7 : piece == 7)) return;
  const char *bias = (const char *)p.bias + bytes * c;
#pragma unroll
  for (int i = 0; i < bytes; i++) {
    if (DTYPE != KRAIT_F32 && i != piece - 5) continue;
    if (p.bias) kr_copy4(&to.bias[i], bias + 4 * i);
    else to.bias[i] = 0;
  }
}

/* v: the newest inputs. */
template <int DTYPE>
KR_DEV void kr_convolve(const kr_conv_step &p, int m, int c, const kr_conv_run<DTYPE> &from, const float (&v)[4]) {
  float y[4], moved[12];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float sum = kr_conv_at<DTYPE>(from.bias, i);
#pragma unroll
    for (int s = 0; s < 4; s++) {
      const int at = 3 * i + s;
      const float input = s < 3 ? from.state[at / 4].v[at % 4] : v[i];
      const int tap = 4 * i + s, in_pack = DTYPE == KRAIT_F32 ? 4 : 8;
      sum = kr_fma(kr_conv_at<DTYPE>(from.taps[tap / in_pack].w, tap % in_pack), input, sum);
      if (s > 0) moved[at - 1] = input;
    }
    y[i] = from.slot < 0 ? 0.0f : kr_silu(sum);
  }
  kr_store_four<DTYPE>(p.out, m * p.out_row + c, p.out_is_float, y);
  if (from.slot < 0) return;
  kr_float4 *state = (kr_float4 *)(p.state + from.slot * p.state_row + 3 * c);
#pragma unroll
  for (int i = 0; i < 3; i++)
    state[i] = kr_float4{{moved[4 * i], moved[4 * i + 1], moved[4 * i + 2], moved[4 * i + 3]}};
}

#endif

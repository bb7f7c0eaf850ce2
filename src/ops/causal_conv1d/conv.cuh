/* conv.cuh: taps, inputs before the start and sequence indices, for the convolution kernels. */
#ifndef KR_CONV_CUH
#define KR_CONV_CUH

#include "pack.cuh"
#include "conv_params.h"

enum { E = KR_DTYPE == KRAIT_F32 ? 4 : 8 }; /* elements of x in 16 bytes; compiled once per storage type KR_DTYPE */

KR_DEV float weight_at(const kr_conv_params &p, int64_t d, int64_t w) {
  return kr_load(p.weight, d * p.weight_d + w * p.weight_w, p.weight_dtype);
}
KR_DEV float load_bias(const kr_conv_params &p, int64_t d) {
  return p.bias ? kr_load(p.bias, d * p.bias_d, p.bias_dtype) : 0.0f;
}
KR_DEV int32_t sequence_at(const kr_conv_params &p, int64_t b, int64_t t) {
  return p.seq_idx[b * p.seq_b + t * p.seq_t];
}

/* Four taps, the last for the current step; leading zeros if there are fewer. */
KR_DEV void load_taps(const kr_conv_params &p, int64_t d, float (&w)[4]) {
  if (p.taps_packed) {
    const kr_float4 q = *(const kr_float4 *)((const float *)p.weight + d * 4);
#pragma unroll
    for (int j = 0; j < 4; j++) w[j] = q.v[j];
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; j++) w[j] = j >= 4 - p.W ? weight_at(p, d, j - 4 + p.W) : 0.0f;
}

/* Four raw elements: along time, or along channels if the tensor is channels-last. */
#if KR_DTYPE == 0
typedef kr_raw16 quad;
#else
typedef struct __attribute__((aligned(8))) quad {
  uint32_t w[2];
} quad;
#endif
KR_DEV quad no_quad(void) { return quad{}; }
KR_DEV quad load_quad(const kr_rows &v, int64_t offset) {
  return *(const quad *)((const char *)v.data + offset * (16 / E));
}
KR_DEV char *quad_pointer(const kr_rows &v, int64_t offset) { return (char *)v.data + offset * (16 / E); }
KR_DEV float quad_at(const quad &q, int k) {
  return E == 4 ? kr_bits_to_float(q.w[k % (E == 4 ? 4 : 2)]) : kr_unpack(q.w[k >> 1], k & 1, KR_DTYPE);
}
KR_DEV void store_quad(char *to, const float (&y)[4]) {
  quad q;
#pragma unroll
  for (int k = 0; k < 16 / E; k++)
    q.w[k % (E == 4 ? 4 : 2)] = E == 4 ? kr_float_to_bits(y[k]) : kr_pack(y[2 * k % 4], y[(2 * k + 1) % 4], KR_DTYPE);
  *(quad *)to = q;
}

/* N parameters side by side, in float32 or KR_DTYPE. */
template <int N>
KR_DEV void load_packed(const void *from, int64_t at, int32_t dtype, float (&v)[N]) {
  if (E == 4 || dtype == KRAIT_F32) {
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = ((const kr_float4 *)((const float *)from + at))[j / 4].v[j % 4];
  } else {
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = quad_at(((const quad *)((const uint16_t *)from + at))[j / 4], j % 4);
  }
}

/* Loads two steps of four raw channels; zeros from step n. Advances the pointer. */
KR_DEV void fetch_steps(const char *&from, int64_t step_bytes, int n, quad (&q)[2]) {
#pragma unroll
  for (int s = 0; s < 2; s++) {
    q[s] = no_quad();
    if (s < n) q[s] = *(const quad *)from;
    from += step_bytes;
    kr_one_pointer(from);
  }
}

/* Appends two steps to the three before them. */
KR_DEV void take_steps(const quad (&q)[2], float (&v)[5][4]) {
#pragma unroll
  for (int s = 0; s < 5; s++)
#pragma unroll
    for (int k = 0; k < 4; k++) v[s][k] = s < 3 ? v[s < 3 ? s + 2 : 0][k] : quad_at(q[s < 3 ? 0 : s - 3], k);
}

/* What take_steps() needs before the first step: loads the last n_before (0 or 3) of the steps at the pointer and
 * advances it to the first step. */
KR_DEV void start_steps(const char *&from, int64_t step_bytes, int n_before, float (&v)[5][4]) {
#pragma unroll
  for (int s = 0; s < 3; s++) {
    quad q = no_quad();
    if (n_before) q = *(const quad *)(from + s * step_bytes);
#pragma unroll
    for (int k = 0; k < 4; k++) v[s + 2][k] = quad_at(q, k);
  }
  from += n_before * step_bytes;
}

KR_DEV float input_at(const kr_conv_params &p, int64_t b, int64_t d, int64_t t) {
  if (t >= 0) return kr_load(p.x.data, b * p.x.b + d * p.x.row + t * p.x.t, p.x.dtype);
  return p.initial.data ? kr_load(p.initial.data, b * p.initial.b + d * p.initial.row + (t + p.W - 1) * p.initial.t,
                                  p.initial.dtype)
                        : 0.0f;
}

/* The inputs at t - 4 ... t - 1, as far as the taps reach. */
KR_DEV void read_before(const kr_conv_params &p, int64_t b, int64_t d, int64_t t, float (&before)[4]) {
  if (p.x.packs && t > 0) {
    float v[8];
    read_pack(p.x, KR_DTYPE, b * p.x.b + d * p.x.row + (t - E) * p.x.t, E, v);
#pragma unroll
    for (int k = 0; k < 4; k++) before[k] = E == 4 ? v[k] : v[k + 4];
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; k++) before[k] = k >= 5 - p.W ? input_at(p, b, d, t - 4 + k) : 0.0f;
}

#endif

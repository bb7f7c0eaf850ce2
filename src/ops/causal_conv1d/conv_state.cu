/* conv_state.cu: the convolution with a running state, and the states of packed sequences (causal_conv1d_update_ref.c
 * and causal_conv1d_varlen_states_ref.c have the equations).
 *   kr_conv_update      one channel per thread; its last inputs are in registers. W up to 4
 *   kr_conv_update_any  the same with the last inputs in shared memory. W up to 128
 *   kr_varlen_states    one element per thread
 * The window is read first, then the state is shifted, then outputs are written: out may be x. */
#include "overlap.cuh"
#include "pack.cuh"
#include "conv_state_params.h"

typedef struct channel {
  int64_t b, d, row; /* row of conv_state; -1: out is 0, nothing is written */
  int exists;
} channel;

KR_DEV channel channel_of(const kr_conv_update_params &p, uint32_t i) {
  const uint32_t b = kr_divide(i, p.D);
  channel c = {b, i - b * p.D.by, b, b < p.a.B};
  if (!c.exists || !p.a.conv_state_indices.data) return c;
  c.row = ((const int32_t *)p.a.conv_state_indices.data)[c.b * p.a.conv_state_indices.stride[0]];
  if (c.row < 0 || c.row >= p.a.n_states) c.row = -1; /* unknown to the host */
  return c;
}

KR_DEV float get(const kr_view &v, int64_t offset) { return kr_load(v.data, offset, v.dtype); }
KR_DEV int64_t at3(const kr_view &v, int64_t i, int64_t j, int64_t k) {
  return i * v.stride[0] + j * v.stride[1] + k * v.stride[2];
}

/* Where step t (negative: before the first new one) is in the state. */
KR_DEV int64_t state_place(const kr_conv_update_params &p, const channel &c, int64_t t) {
  const kr_causal_conv1d_update_args &a = p.a;
  if (!a.cache_seqlens.data) return a.S + t;
  int64_t at = (((const int32_t *)a.cache_seqlens.data)[c.b * a.cache_seqlens.stride[0]] + t) % a.S;
  return at < 0 ? at + a.S : at;
}

KR_DEV float state_at(const kr_conv_update_params &p, const channel &c, int64_t t) {
  return get(p.a.conv_state, at3(p.a.conv_state, c.row, c.d, state_place(p, c, t)));
}
KR_DEV float input_at(const kr_conv_update_params &p, const channel &c, int64_t t) {
  return get(p.a.x, at3(p.a.x, c.b, c.d, t));
}

KR_DEV void move_state(const kr_conv_update_params &p, const channel &c) {
  const kr_causal_conv1d_update_args &a = p.a;
  if (a.cache_seqlens.data) {
    for (int64_t t = 0; t < a.L; t++)
      kr_store(a.conv_state.data, at3(a.conv_state, c.row, c.d, state_place(p, c, t)), a.conv_state.dtype,
               input_at(p, c, t));
    return;
  }
  for (int64_t s = 0; s < a.S; s++) {
    const float v =
        s + a.L < a.S ? get(a.conv_state, at3(a.conv_state, c.row, c.d, s + a.L)) : input_at(p, c, s + a.L - a.S);
    kr_store(a.conv_state.data, at3(a.conv_state, c.row, c.d, s), a.conv_state.dtype, v);
  }
}

/* One step of a state that is wholly in the window (from [1], right-aligned): none of it is read again. */
KR_DEV void move_window(const kr_conv_update_params &p, const channel &c, const float (&window)[4]) {
  const kr_view &to = p.a.conv_state;
  const int S = (int)p.a.S;
  const float x = input_at(p, c, 0);
#pragma unroll
  for (int s = 0; s < 3; s++)
    if (s >= 3 - S) kr_store(to.data, at3(to, c.row, c.d, s - 3 + S), to.dtype, s < 2 ? window[s + 2] : x);
}

KR_DEV void write_output(const kr_conv_update_params &p, const channel &c, int64_t t, float sum) {
  kr_store(p.a.out.data, at3(p.a.out, c.b, c.d, t), p.a.out.dtype,
           p.a.activation == KRAIT_ACT_SILU ? kr_silu(sum) : sum);
}

KR_DEV float bias_of(const kr_conv_update_params &p, const channel &c) {
  return p.a.bias.data ? get(p.a.bias, c.d * p.a.bias.stride[0]) : 0.0f;
}

KR_DEV void write_zeros(const kr_conv_update_params &p, const channel &c) {
  for (int64_t t = 0; t < p.a.L; t++) kr_store(p.a.out.data, at3(p.a.out, c.b, c.d, t), p.a.out.dtype, 0.0f);
}

KR_KERNEL void KR_BOUNDS(KR_CONV_UPDATE_THREADS, 8) kr_conv_update(const kr_conv_update_params p) {
  const int W = (int)p.a.W, ahead = (p.a.call.flags & KR_CALL_STATE_PDL) != 0;
  float window[4], tap[4]; /* the last tap is for the current step; leading zeros if there are fewer */
  kr_launch_dependents();
  if (!ahead) kr_griddep_wait();
  const channel c = channel_of(p, (uint32_t)kr_block_x() * KR_CONV_UPDATE_THREADS + kr_thread());
  if (!c.exists) return;
  if (c.row < 0) {
    kr_griddep_wait();
    return write_zeros(p, c);
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int w = k - 4 + W;
    tap[k] = w >= 0 ? get(p.a.weight, c.d * p.a.weight.stride[0] + w * p.a.weight.stride[1]) : 0.0f;
    window[k] = k > 0 && w > 0 ? state_at(p, c, k - 4) : 0.0f;
  }
#pragma unroll
  for (int k = 3; k > 0; k--) window[k] = k - 4 + W > 0 ? window[k] : 0.0f;
  const float bias = bias_of(p, c);
  kr_keep_near(p.a.x.data), kr_keep_near(p.a.x.stride[2]), kr_keep_near(p.a.out.data), kr_keep_near(p.a.out.stride[2]);
  if (ahead) kr_griddep_wait();
  if (p.a.L == 1 && p.a.S == W - 1 && !p.a.cache_seqlens.data) move_window(p, c, window);
  else move_state(p, c);
  for (int64_t t = 0; t < p.a.L; t++) {
    float sum = bias;
#pragma unroll
    for (int k = 0; k < 3; k++) window[k] = window[k + 1];
    window[3] = input_at(p, c, t);
#pragma unroll
    for (int k = 0; k < 4; k++) sum = kr_fma(tap[k], window[k], sum);
    write_output(p, c, t, sum);
  }
}

KR_KERNEL void kr_conv_update_any(const kr_conv_update_params p) {
  KR_SHARED float windows[KR_CONV_UPDATE_MOST_TAPS * KR_CONV_UPDATE_ANY_THREADS];
  float *window = windows + kr_thread(); /* a ring of W inputs, step t at t % W */
  const channel c = channel_of(p, (uint32_t)kr_block_x() * KR_CONV_UPDATE_ANY_THREADS + kr_thread());
  const int W = (int)p.a.W;
  if (!c.exists) return;
  if (c.row < 0) return write_zeros(p, c);
  for (int k = 1; k < W; k++) window[k * KR_CONV_UPDATE_ANY_THREADS] = state_at(p, c, k - W);
  const float bias = bias_of(p, c);
  move_state(p, c);
  int newest = 0;
  for (int64_t t = 0; t < p.a.L; t++) {
    float sum = bias;
    window[newest * KR_CONV_UPDATE_ANY_THREADS] = input_at(p, c, t);
    for (int w = 0, at = newest; w < W; w++) {
      at = at + 1 == W ? 0 : at + 1;
      sum = kr_fma(get(p.a.weight, c.d * p.a.weight.stride[0] + w * p.a.weight.stride[1]),
                   window[at * KR_CONV_UPDATE_ANY_THREADS], sum);
    }
    newest = newest + 1 == W ? 0 : newest + 1;
    write_output(p, c, t, sum);
  }
}

/* Offsets come from device memory: those that point outside x read as 0. */
KR_KERNEL void KR_BOUNDS(KR_CONV_UPDATE_THREADS, 8) kr_varlen_states(const kr_varlen_params p) {
  const kr_causal_conv1d_varlen_states_args &a = p.a;
  const uint32_t i = (uint32_t)kr_block_x() * KR_CONV_UPDATE_THREADS + kr_thread(), row = kr_divide(i, p.state_len),
                 s32 = kr_divide(row, p.D);
  if (s32 >= a.S) return;
  const int64_t k = i - row * p.state_len.by, d = row - s32 * p.D.by, s = s32;
  const int32_t *offsets = (const int32_t *)a.cu_seqlens.data;
  const int64_t begin = offsets[s * a.cu_seqlens.stride[0]], end = offsets[(s + 1) * a.cu_seqlens.stride[0]],
                from = end - a.state_len + k;
  const int inside = from >= begin && from >= 0 && from < a.total;
  const int64_t source = from * a.x.stride[0] + d * a.x.stride[1], to = at3(a.states, s, d, k);
  if (a.x.dtype == KRAIT_F32) ((uint32_t *)a.states.data)[to] = inside ? ((const uint32_t *)a.x.data)[source] : 0;
  else ((uint16_t *)a.states.data)[to] = inside ? ((const uint16_t *)a.x.data)[source] : 0;
}

/* mamba_decode.cuh: what mamba_decode's kernels know: 16-bit elements, a block's share of rows, states
 * of either type, and a step of the convolution. */
#ifndef KR_MAMBA_DECODE_CUH
#define KR_MAMBA_DECODE_CUH

#include "mamba_decode_params.h"
#include "mma.cuh"

#ifdef KR_HALF
typedef kr_f16 element;
enum { DTYPE = KRAIT_F16 };
#else
typedef kr_bf16 element;
enum { DTYPE = KRAIT_BF16 };
#endif
enum { MOST_TAPS = 4 };

KR_DEV float from_half(uint16_t h) { return DTYPE == KRAIT_F16 ? kr_from_f16(h) : kr_from_bf16(h); }
KR_DEV uint16_t to_half(float v) { return DTYPE == KRAIT_F16 ? kr_to_f16(v) : kr_to_bf16(v); }

typedef struct range {
  int from, n;
} range;

typedef struct __attribute__((aligned(8))) four_halves {
  uint32_t w[2];
} four_halves;

KR_DEV void unpack_four(const four_halves &h, float (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = kr_unpack(h.w[i / 2], i % 2, DTYPE);
}

KR_DEV float state_get(const kr_decode_state &s, int64_t at) {
  return s.is_float ? ((const float *)s.data)[at] : from_half(((const uint16_t *)s.data)[at]);
}
KR_DEV void state_put(const kr_decode_state &s, int64_t at, float v) {
  if (s.is_float)
    ((float *)s.data)[at] = v;
  else
    ((uint16_t *)s.data)[at] = to_half(v);
}

/* Convolution window and taps of a channel of a token; the last is the current step's. */
typedef struct taps {
  int64_t at;
  float window[MOST_TAPS - 1], tap[MOST_TAPS - 1], last, bias;
  int live;
} taps;

KR_DEV void place_taps(const kr_decode_params &p, int layer, int slot, int c, taps &t) {
  t.live = slot >= 0;
  t.at = layer * p.conv_state.layer + (t.live ? slot : 0) * p.conv_state.slot + c * p.conv_state.channel;
}

KR_DEV void read_taps(const kr_decode_params &p, int layer, int c, taps &t) {
  const uint16_t *from = p.conv.data + layer * p.conv.layer + c * p.conv.row;
  const int S = p.W - 1;
  t.bias = p.conv_bias.data ? from_half(p.conv_bias.data[layer * p.conv_bias.layer + c * p.conv_bias.row]) : 0.0f;
#pragma unroll
  for (int k = 0; k < MOST_TAPS - 1; k++)
    t.window[k] = k < S ? state_get(p.conv_state, t.at + k * p.conv_state.last) : 0.0f,
    t.tap[k] = k < S ? from_half(from[k]) : 0.0f;
  t.last = from_half(from[S]);
}

/* silu(conv); shifts the window. */
KR_DEV float convolve(const kr_decode_params &p, const taps &t, float newest) {
  const int S = p.W - 1;
  float sum = t.bias;
  if (!t.live) return 0.0f;
#pragma unroll
  for (int k = 0; k < MOST_TAPS - 1; k++) {
    sum = kr_fma(t.window[k], t.tap[k], sum);
    if (k > 0 && k < S) state_put(p.conv_state, t.at + (k - 1) * p.conv_state.last, t.window[k]);
  }
  state_put(p.conv_state, t.at + (S - 1) * p.conv_state.last, newest);
  return kr_silu(kr_fma(newest, t.last, sum));
}

#endif

/* rnn_units.cuh: one unit of a GRU or an LSTM, one step, with few exponentials and reciprocals. */
#ifndef KR_RNN_UNITS_CUH
#define KR_RNN_UNITS_CUH

#include "kernel.cuh"
#include "rnn_params.h"

/* Gate sums are scaled by gate_scale(g) for use as exponents: sigmoid(v) = 1 / (1 + 2^(-v log2 e)) and tanh(v) = (1 -
 * e) / (1 + e), e = 2^(-2 v log2 e). */
KR_DEV float gate_scale(int g) { return g == 2 ? -2.0f * KR_LOG2E : -KR_LOG2E; }

/* At most 2^40, so that a product of three does not overflow. */
KR_DEV float bounded_exp2(float x) { return kr_exp2(kr_at_most(x, 40.0f)); }

/* A unit's step with a minimum of reciprocals: fractions share a denominator. x: gates as above; for a GRU's third one
 * x is the input's part, own the recurrent one. */
template <int G>
KR_DEV void advance_unit(const float (&x)[4], float own, float *h, float *c) {
  if (G == 3) {
    const float r = kr_rcp(1.0f + bounded_exp2(x[0])), z = bounded_exp2(x[1]), n = bounded_exp2(kr_fma(r, own, x[2]));
    *h = kr_fma(*h, 1.0f + n, z * (1.0f - n)) * kr_rcp((1.0f + z) * (1.0f + n));
  } else {
    const float input = 1.0f + bounded_exp2(x[0]), forget = 1.0f + bounded_exp2(x[1]), cell = bounded_exp2(x[2]),
                new_part = input * (1.0f + cell);
    *c = kr_fma(*c, new_part, (1.0f - cell) * forget) * kr_rcp(new_part * forget);
    const float out = bounded_exp2(x[3]), t = bounded_exp2(gate_scale(2) * *c);
    *h = (1.0f - t) * kr_rcp((1.0f + out) * (1.0f + t));
  }
}

/* Unit i of a sequence: `in` is the input's part of its gates, `own` the recurrent one. */
KR_DEV void recurrent_unit(int G, const float (&in)[4], const float *own, int H, float *h, float *c) {
  float x[4];
#pragma unroll
  for (int g = 0; g < 4; g++)
    if (g < G) x[g] = gate_scale(g) * (G == 3 && g == 2 ? in[g] : in[g] + own[g * H]);
  if (G == 3) advance_unit<3>(x, gate_scale(2) * own[2 * H], h, c);
  else advance_unit<4>(x, 0.0f, h, c);
}

/* from: a step's input part at unit 0; gates are H apart. */
KR_DEV void load_gates(const float *from, int G, int H, int unit, float (&in)[4]) {
#pragma unroll
  for (int g = 0; g < 4; g++) in[g] = g < G ? from[g * H + unit] : 0.0f;
}

#endif

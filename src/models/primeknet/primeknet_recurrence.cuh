/* primeknet_recurrence.cuh: one unit of a GRU or an LSTM, one step. */
#ifndef KR_PRIMEKNET_RECURRENCE_CUH
#define KR_PRIMEKNET_RECURRENCE_CUH

#include "kernel.cuh"
#include "primeknet_plan.h"

KR_DEV float hyperbolic(float x) { return kr_select(x > 15.0f, 1.0f, kr_select(x < -15.0f, -1.0f, 1.0f - 2.0f * kr_rcp(1.0f + kr_exp(2.0f * x)))); }

/* Unit i of a sequence: in is the input's part of its gates, own the recurrent one. */
KR_DEV void recurrent_unit(int G, const float (&in)[4], const float *own, int H, float *h, float *c) {
  if (G == 3) {
    const float r = kr_sigmoid(in[0] + own[0]), z = kr_sigmoid(in[1] + own[H]), n = hyperbolic(in[2] + r * own[2 * H]);
    *h = n + z * (*h - n);
  } else {
    const float input = kr_sigmoid(in[0] + own[0]), forget = kr_sigmoid(in[1] + own[H]), cell = hyperbolic(in[2] + own[2 * H]);
    *c = forget * *c + input * cell;
    *h = kr_sigmoid(in[3] + own[3 * H]) * hyperbolic(*c);
  }
}

KR_DEV void load_gates(const pk_recurrence &p, int64_t row, int unit, float (&in)[4]) {
#pragma unroll
  for (int g = 0; g < 4; g++) in[g] = g < p.G ? p.gates[row * p.G * p.Hp + g * p.Hp + unit] : 0.0f;
}

#endif

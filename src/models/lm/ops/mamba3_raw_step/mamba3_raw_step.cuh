/* mamba3_raw_step.cuh: what kernels of a token of Mamba 3 share. */
#ifndef KR_MAMBA3_RAW_STEP_CUH
#define KR_MAMBA3_RAW_STEP_CUH

#include "turns.cuh"

/* Pair k of a lane's two. */
KR_DEV void turn_pair(kr_float4 &v, int k, const rotation &by) {
  const float x = v.v[2 * k], y = v.v[2 * k + 1];
  v.v[2 * k] = kr_fma(by.cosine, x, -(by.sine * y)), v.v[2 * k + 1] = kr_fma(by.sine, x, by.cosine * y);
}

/* max(act(v), floor); NaN stays NaN. */
KR_DEV float rate_of(uint32_t flags, float floor, float v) {
  const float rate = flags & KRAIT_MAMBA3_SOFTPLUS_A ? kr_softplus(v) : v < 0.0f ? 1.0f / (1.0f - v) : 1.0f + v;
  return rate < floor ? floor : rate;
}

#endif

/* conv_step.cu: one step of a four-tap convolution with SiLU and a running state, as in language models: four channels
 * of a sequence per thread, by packs (row_lanes.cuh). Compiled once per type. */
#include "conv_state_params.h"
#include "pack.cuh"
#include "row_lanes.cuh"

KR_KERNEL void KR_BOUNDS(KR_CONV_UPDATE_THREADS, 8) kr_conv_step_fours(const kr_conv_step_params p) {
  const uint32_t i = (uint32_t)kr_block_x() * KR_CONV_UPDATE_THREADS + kr_thread(), b = kr_divide(i, p.fours);
  const int exists = b < (uint32_t)p.B, c = exists ? (int)(i - b * p.fours.by) * 4 : 0, m = exists ? (int)b : 0;
  kr_conv_run<KR_DTYPE> run;
  kr_launch_dependents();
  if (!p.state_ahead) kr_griddep_wait();
  kr_load_conv<KR_DTYPE>(p.step, m, c, run);
  kr_keep_near(p.x), kr_keep_near(p.step.out);
  if (p.state_ahead) kr_griddep_wait();
  const int64_t at = m * p.x_row + c;
  float v[4];
#if KR_DTYPE == 0
  const kr_float4 raw = *(const kr_float4 *)((const float *)p.x + at);
#pragma unroll
  for (int k = 0; k < 4; k++) v[k] = raw.v[k];
#else
  const kr_four_halves raw = *(const kr_four_halves *)((const uint16_t *)p.x + at);
#pragma unroll
  for (int k = 0; k < 4; k++) v[k] = kr_unpack(raw.w[k / 2], k % 2, KR_DTYPE);
#endif
  if (exists) kr_convolve<KR_DTYPE>(p.step, m, c, run, v);
}

/* mamba3_decay.cu: Mamba 3's time steps and decays, an element per thread (mamba3_decay_ref.c has the equations). */
#include "pack.cuh"
#include "mamba3_decay_params.h"

KR_DEV float element_at(const kr_view &v, int64_t r, int64_t h) {
  return kr_load(v.data, r * v.stride[0] + h * v.stride[1], v.dtype);
}
KR_DEV void put_at(const kr_view &v, int64_t r, int64_t h, float value) {
  kr_store(v.data, r * v.stride[0] + h * v.stride[1], v.dtype, value);
}

/* max(act(v), floor); NaN stays NaN. */
KR_DEV float rate_of(const kr_mamba3_decay_args &a, float v) {
  const float rate = a.call.flags & KR_MAMBA3_SOFTPLUS_A ? kr_softplus(v) : v < 0.0f ? 1.0f / (1.0f - v) : 1.0f + v;
  return rate < a.A_floor ? a.A_floor : rate;
}

KR_KERNEL void KR_BOUNDS(KR_DECAY_THREADS, 4) kr_mamba3_decay(const kr_mamba3_decay_params p) {
  const uint32_t thread = (uint32_t)kr_block_x() * KR_DECAY_THREADS + (uint32_t)kr_thread();
  if (thread >= p.n_threads) return;
  const uint32_t r = kr_divide(thread, p.heads), h = thread - r * p.heads.by;
  float s = element_at(p.a.dt_raw, r, h);
  if (p.a.dt_bias.data) s += kr_load(p.a.dt_bias.data, h * p.a.dt_bias.stride[0], p.a.dt_bias.dtype);
  const float dt = kr_softplus(s);
  put_at(p.a.dt, r, h, dt);
  put_at(p.a.log_decay, r, h, -rate_of(p.a, element_at(p.a.A_raw, r, h)) * dt);
}

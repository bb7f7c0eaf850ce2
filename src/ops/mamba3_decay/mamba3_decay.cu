/* mamba3_decay.cu: Mamba 3's time steps and decays, an element per thread, and their gradient, a head per lane
 * (mamba3_decay_ref.c has the equations). */
#include "pack.cuh"
#include "mamba3_decay_params.h"

KR_DEV float element_at(const kr_view &v, int64_t r, int64_t h) {
  return kr_load(v.data, r * v.stride[0] + h * v.stride[1], v.dtype);
}
KR_DEV void put_at(const kr_view &v, int64_t r, int64_t h, float value) {
  kr_store(v.data, r * v.stride[0] + h * v.stride[1], v.dtype, value);
}

KR_DEV float bias_at(const kr_view &v, int64_t h) { return v.data ? kr_load(v.data, h * v.stride[0], v.dtype) : 0.0f; }

KR_DEV float activated(uint32_t flags, float v) {
  return flags & KRAIT_MAMBA3_SOFTPLUS_A ? kr_softplus(v) : v < 0.0f ? 1.0f / (1.0f - v) : 1.0f + v;
}
/* NaN stays NaN. */
KR_DEV float not_below(float floor, float v) { return v < floor ? floor : v; }

KR_KERNEL void KR_BOUNDS(KR_DECAY_THREADS, 4) kr_mamba3_decay(const kr_mamba3_decay_params p) {
  const uint32_t thread = (uint32_t)kr_block_x() * KR_DECAY_THREADS + (uint32_t)kr_thread();
  if (thread >= p.n_threads) return;
  const uint32_t r = kr_divide(thread, p.heads), h = thread - r * p.heads.by;
  const float dt = kr_softplus(element_at(p.a.dt_raw, r, h) + bias_at(p.a.dt_bias, h));
  put_at(p.a.dt, r, h, dt);
  put_at(p.a.log_decay, r, h, -not_below(p.a.A_floor, activated(p.a.call.flags, element_at(p.a.A_raw, r, h))) * dt);
}

/* Of act, from v and act(v). */
KR_DEV float slope_of(uint32_t flags, float v, float act) {
  return flags & KRAIT_MAMBA3_SOFTPLUS_A ? kr_sigmoid(v) : v < 0.0f ? act * act : 1.0f;
}

/* Writes the gradients of one element -> that of its time step before softplus. */
KR_DEV float back_at(const kr_mamba3_decay_bwd_args &a, int64_t r, int64_t h, float bias) {
  const float s = element_at(a.dt_raw, r, h) + bias, v = element_at(a.A_raw, r, h), act = activated(a.call.flags, v),
              d = element_at(a.dlog_decay, r, h),
              ds = (element_at(a.ddt, r, h) - not_below(a.A_floor, act) * d) * kr_sigmoid(s);
  if (a.ddt_raw.data) put_at(a.ddt_raw, r, h, ds);
  if (a.dA_raw.data)
    put_at(a.dA_raw, r, h, -kr_softplus(s) * d * (act < a.A_floor ? 0.0f : slope_of(a.call.flags, v, act)));
  return ds;
}

KR_KERNEL void KR_BOUNDS(KR_DECAY_THREADS, 4) kr_mamba3_decay_bwd(const kr_mamba3_decay_bwd_params p) {
  KR_SHARED float sums[KR_DECAY_THREADS];
  const int lane = kr_thread() & 31, warp = kr_thread() / 32, n_warps = KR_DECAY_THREADS / 32;
  const int64_t h = (int64_t)kr_block_y() * KR_DECAY_HEADS + lane, first = (int64_t)kr_block_x() * p.rows,
                end = min64(p.a.R, first + p.rows);
  const int exists = h < p.a.H;
  const float bias = exists ? bias_at(p.a.dt_bias, h) : 0.0f;
  float sum = 0.0f;
  for (int64_t r = first + warp; r < (exists ? end : first); r += n_warps) sum += back_at(p.a, r, h, bias);
  if (!p.partial) return;
  sums[kr_thread()] = sum;
  kr_sync();
  if (warp || !exists) return;
  for (int w = 1; w < n_warps; w++) sum += sums[w * 32 + lane];
  p.partial[kr_block_x() * p.a.H + h] = sum;
}

/* A warp adds up one head's parts, in fixed order. */
KR_KERNEL void KR_BOUNDS(KR_DECAY_THREADS, 4) kr_mamba3_decay_bwd_sum(const kr_mamba3_decay_bwd_params p) {
  const int lane = kr_thread() & 31;
  const int64_t h = (int64_t)kr_block_x() * (KR_DECAY_THREADS / 32) + kr_thread() / 32;
  float sum = 0.0f;
  for (int part = lane; part < (h < p.a.H ? p.n_parts : 0); part += 32) sum += p.partial[part * p.a.H + h];
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) sum += kr_shuffle_xor(sum, d);
  if (lane == 0 && h < p.a.H) kr_store(p.a.ddt_bias.data, h * p.a.ddt_bias.stride[0], p.a.ddt_bias.dtype, sum);
}

/* ssd_bwd_inner.cuh: shared by the SSD gradient's chunked kernels: what a block takes, and step-size gradients
 * from the per-token sums. */
#ifndef KR_SSD_BWD_INNER_CUH
#define KR_SSD_BWD_INNER_CUH

#include "ssd_bwd_sums.cuh"

enum { WALKERS = KR_SSD_THREADS, THREADS = KR_SSD_BWD_THREADS };

typedef struct place {
  int b, g, h, block, p0, chunk, n; /* n: tokens */
  int64_t t0;
} place;

/* The i-th (head, channel block) of this thread block. */
KR_DEV void go_to(place &at, const kr_ssd_params &f, int first, int i) {
  at.h = first + i / f.blocks_per_head, at.block = i % f.blocks_per_head, at.p0 = at.block * PB;
}

/* Sum over the four lanes of a row. */
KR_DEV float add_row(float v) {
  v += kr_shuffle_xor(v, 1);
  return v + kr_shuffle_xor(v, 2);
}

/* Sum over this lane and those above. */
KR_DEV float sum_down(float v) {
#pragma unroll
  for (int by = 1; by < 32; by <<= 1) {
    const float other = kr_shuffle_down(v, by, 32);
    if ((kr_thread() & 31) + by < 32) v += other;
  }
  return v;
}

/* One chunk of a head, by one warp: a lane takes tokens lane and lane + 32. slopes: gradients of dt. PAIRS: whether the
 * sums over pairs of tokens are those of float32 (token_sums). */
template <int PAIRS>
KR_DEV void finish_chunk(const kr_ssd_bwd_params &p, int b, int h, float *slopes) {
  const kr_ssd_params &f = p.f;
  const int lane = kr_thread() & 31, chunk = kr_block_x();
  const int64_t t0 = (int64_t)chunk * Q;
  /* Without clamps the slope follows from the step size alone: no reload of dt, whose tokens are far apart. */
  const int is_free = f.softplus && f.dt_min <= 0 && f.dt_max > 3e38f;
  raw_steps stored = {};
  if (!is_free) stored = load_steps<STEPS_ANY>(f, b, h, t0, f.L);
  const token_sums &sums = *sums_at(p, b, h, chunk);
  const chunk_steps &s = *steps_at(f, b, h, chunk);
  const float A = rate_of(f, h),
              dt_bias = f.bias.data ? kr_load(f.bias.data, h * f.bias.h, f.bias.dtype) : 0.0f, left = state_left(s),
              through = left == 0 ? 0.0f : left * sums.through;
  float *const parts = p.parts + (((int64_t)b * p.n_chunks + chunk) * f.H + h) * (f.P + 2);
  float begun[2], still[2], inputs[2], q[2], within[2] = {0, 0}, dA = 0, bias = 0;
  int finite = 1;
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const kr_float4 v = sums.of[lane + 32 * k];
    const float begins = PAIRS ? v.v[1] : v.v[3] - sums.taken[lane + 32 * k] + v.v[1];
    begun[k] = sum_up(begins), still[k] = sum_down(v.v[0]), inputs[k] = v.v[2];
    finite = finite && are_finite(v.v[0], begins) && are_finite(v.v[2], through);
    if (PAIRS) finite = finite && are_finite(v.v[3], 0.0f), within[k] = v.v[3];
  }
  /* The states that float16 kept may have left its range; and sums over a chunk pass NaN on to its other sequences. */
  if ((KR_DTYPE == KRAIT_F16 || f.seq_idx) && !finite) report_nonfinite_group(f, b, h);
  if (PAIRS) within[1] += sum_down(sums.taken[lane + 32]);
  /* Exclusive prefix sum; not inclusive minus own, as own may exceed the rest by more than a float's digits. */
  const float first = kr_shuffle_up(begun[0], 1, 32), second = kr_shuffle_up(begun[1], 1, 32);
  q[0] = within[0] + (lane ? first : 0.0f);
  q[1] = within[1] + kr_shuffle_from(begun[0], 31) + (lane ? second : 0.0f);
  still[0] += kr_shuffle_from(still[1], 0);
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int t = lane + 32 * k;
    const int64_t token = t0 + t;
    if (token >= f.L) continue;
    const float raw = is_free ? s.d[t] : dt_of<STEPS_ANY>(f, stored, k) + dt_bias; /* equal beyond 20 */
    const float passing = q[k] + still[k] + through, unclamped = f.softplus && !is_free ? kr_softplus(raw) : raw;
    const int counts = !f.seq_idx || s.segment[t] >= 0;
    float dd = !counts ? 0.0f : f.A.data ? kr_fma(A, passing, inputs[k]) : inputs[k];
    if (counts) dA = kr_fma(s.d[t], passing, dA);
    if (p.dlog_decay.data)
      kr_store(p.dlog_decay.data, b * p.dlog_decay.b + token * p.dlog_decay.t + h * p.dlog_decay.h, p.dlog_decay.dtype,
               counts ? passing : 0.0f);
    if (unclamped < f.dt_min || unclamped > f.dt_max) dd = 0;
    if (f.softplus && raw <= 20.0f) dd *= kr_softplus_slope(unclamped);
    slopes[t] = dd, bias += dd;
  }
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) dA += kr_shuffle_xor(dA, d), bias += kr_shuffle_xor(bias, d);
  if (lane == 0) parts[f.P] = dA, parts[f.P + 1] = bias;
}

/* A block takes adjacent heads and writes dt gradients token by token: those of adjacent heads are contiguous. */
template <int PAIRS>
KR_DEV void finish(const kr_ssd_bwd_params &p) {
  enum { HEADS = WALKERS / 32, ROW = Q + 8 };
  KR_SHARED float slopes[HEADS * ROW];
  const int first = kr_block_y() * HEADS, warp = kr_thread() >> 5, b = kr_block_z();
  const int64_t t0 = (int64_t)kr_block_x() * Q;
  if (first + warp < p.f.H) finish_chunk<PAIRS>(p, b, first + warp, slopes + warp * ROW);
  kr_sync();
#pragma unroll
  for (int i = 0; i < Q * HEADS / WALKERS; i++) {
    const int at = kr_thread() + i * WALKERS, t = at / HEADS, h = at % HEADS;
    if (p.ddt.data && first + h < p.f.H && t0 + t < p.f.L)
      kr_store(p.ddt.data, b * p.ddt.b + (t0 + t) * p.ddt.t + (first + h) * p.ddt.h, p.ddt.dtype, slopes[h * ROW + t]);
  }
}

#endif

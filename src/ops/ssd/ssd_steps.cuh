/* ssd_steps.cuh: step sizes and decays of a chunk's tokens, as the chunked kernels of all tiers prepare and read
 * them. */
#ifndef KR_SSD_STEPS_CUH
#define KR_SSD_STEPS_CUH

#include "kernel.cuh"

#include "ssd_params.h"

enum { Q = KR_SSD_CHUNK, PB = KR_SSD_P };

/* Decays of a chunk's tokens, computed by kr_ssd_steps for every head. a: cumulative log2-decay; from: a_j - log2 d_j,
 * so that 2^(total - from_j) weights token j's input at the chunk's end; segment: sequences begun since the chunk's
 * start, -1 at padding; with a D of each token, that. */
typedef struct chunk_steps {
  float a[Q], from[Q], d[Q], segment[Q];
  float total, last, pad[2]; /* a at the end, sequences begun */
} chunk_steps;

KR_DEV const chunk_steps *steps_at(const kr_ssd_params &p, int b, int h, int64_t chunk) {
  return (const chunk_steps *)p.steps + ((int64_t)b * p.H + h) * ((p.L + Q - 1) / Q) + chunk;
}

/* Decay to the chunk's end of the incoming state and of a token's input, and of the incoming state to a token. */
KR_DEV float state_left(const chunk_steps &s) { return s.last == 0 ? kr_exp2(s.total) : 0.0f; }
KR_DEV kr_float2 inputs_left(const chunk_steps &s, int has_sequences, int j) {
  const kr_float2 from = *(const kr_float2 *)&s.from[j];
  kr_float2 left = {{kr_exp2(s.total - from.v[0]), kr_exp2(s.total - from.v[1])}};
  if (has_sequences)
    left.v[0] = s.segment[j] == s.last ? left.v[0] : 0.0f, left.v[1] = s.segment[j + 1] == s.last ? left.v[1] : 0.0f;
  return left;
}
KR_DEV float state_reaches(const chunk_steps &s, int i) { return s.segment[i] == 0 ? kr_exp2(s.a[i]) : 0.0f; }

/* dt and sequence of the tokens of one lane of the preparing warp: lane and lane + 32 of a chunk. Kept in storage form:
 * a conversion or comparison would wait for the load. */
typedef struct raw_steps {
  uint32_t dt[2];
  float log_decay[2], D[2]; /* STEPS_ANY only */
  int32_t now[2], before[2];
} raw_steps;

/* Storage of step sizes. A run-time choice would make two loads to one register, the second waiting for the first: so
 * it is fixed at compile time, except for packed sequences and tokens with decays of their own. */
typedef enum steps_kind { STEPS_16_BITS, STEPS_32_BITS, STEPS_ANY } steps_kind;

KR_DEV steps_kind kind_of_steps(const kr_ssd_params &p) {
  return p.seq_idx || p.log_decay.data ? STEPS_ANY : p.dt.dtype == KRAIT_F32 ? STEPS_32_BITS : STEPS_16_BITS;
}

template <int KIND>
KR_DEV raw_steps load_steps(const kr_ssd_params &p, int b, int h, int64_t t0, int64_t end) {
  raw_steps r = {};
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int64_t t = t0 + (kr_thread() & 31) + 32 * k, at = b * p.dt.b + t * p.dt.t + h * p.dt.h;
    if (t >= end) continue;
    const int wide = KIND == STEPS_ANY ? p.dt.dtype == KRAIT_F32 : KIND == STEPS_32_BITS;
    r.dt[k] = wide ? ((const uint32_t *)p.dt.data)[at] : ((const uint16_t *)p.dt.data)[at];
    if (KIND == STEPS_ANY && p.log_decay.data)
      r.log_decay[k] = kr_load(p.log_decay.data, b * p.log_decay.b + t * p.log_decay.t + h * p.log_decay.h,
                               p.log_decay.dtype);
    if (KIND == STEPS_ANY && p.has_token_D)
      r.D[k] = kr_load(p.D.data, b * p.D.b + t * p.D.t + h * p.D.h, p.D.dtype);
    if (KIND != STEPS_ANY || !p.seq_idx) continue;
    r.now[k] = p.seq_idx[b * p.seq_b + t * p.seq_t];
    r.before[k] = t ? p.seq_idx[b * p.seq_b + (t - 1) * p.seq_t] : 0;
  }
  return r;
}

template <int KIND>
KR_DEV float dt_of(const kr_ssd_params &p, const raw_steps &r, int k) {
  return KIND == STEPS_32_BITS || (KIND == STEPS_ANY && p.dt.dtype == KRAIT_F32) ? kr_bits_to_float(r.dt[k])
                                                                                 : kr_unpack(r.dt[k], 0, p.dt.dtype);
}

KR_DEV float sum_up(float v) {
#pragma unroll
  for (int by = 1; by < 32; by <<= 1) {
    const float other = kr_shuffle_up(v, by, 32);
    if ((kr_thread() & 31) >= by) v += other;
  }
  return v;
}

/* A lane's values for its tokens: lane and lane + 32. */
typedef struct lane_steps {
  float raw[2], d[2], a[2], segment[2], D[2], total,
      last; /* raw: dt + dt_bias; segment: -1 at padding; total: a at the end; last: sequences begun */
} lane_steps;

/* A of head h; 0 where tokens have decays of their own. */
KR_DEV float rate_of(const kr_ssd_params &p, int h) {
  return p.A.data ? kr_load(p.A.data, h * p.A.h, KRAIT_F32) : 0.0f;
}

/* log2 of a token's decay; d: its step size, A log2 e. */
template <int KIND>
KR_DEV float log2_decay(const kr_ssd_params &p, const raw_steps &r, int k, float d, float A) {
  return KIND == STEPS_ANY && p.log_decay.data ? r.log_decay[k] * KR_LOG2E : d * A;
}

/* By one warp. */
template <int KIND>
KR_DEV lane_steps sum_steps(const kr_ssd_params &p, const raw_steps &r, float A, float bias, int64_t t0, int64_t end) {
  const int lane = kr_thread() & 31;
  lane_steps v = {};
#pragma unroll
  for (int k = 0; k < 2; k++) {
    v.raw[k] = dt_of<KIND>(p, r, k) + bias;
    float d = p.softplus ? kr_softplus(v.raw[k]) : v.raw[k];
    d = d < p.dt_min ? p.dt_min : d > p.dt_max ? p.dt_max : d;
    if (t0 + lane + 32 * k >= end) d = 0;
    v.a[k] = log2_decay<KIND>(p, r, k, d, A);
    v.a[k] = v.a[k] < -160.0f ? -160.0f : v.a[k]; /* 2^-160 is 0, and sums keep their digits */
    v.d[k] = r.now[k] < 0 ? 0.0f : d, v.D[k] = r.D[k];
  }
  v.a[0] = sum_up(v.a[0]);
  v.a[1] = sum_up(v.a[1]) + kr_shuffle_from(v.a[0], 31);
  if (KIND == STEPS_ANY && p.seq_idx) {
    v.segment[0] = sum_up(r.now[0] != r.before[0] ? 1.0f : 0.0f);
    v.segment[1] = sum_up(r.now[1] != r.before[1] ? 1.0f : 0.0f) + kr_shuffle_from(v.segment[0], 31);
  }
  v.total = kr_shuffle_from(v.a[1], 31), v.last = kr_shuffle_from(v.segment[1], 31);
#pragma unroll
  for (int k = 0; k < 2; k++) v.segment[k] = r.now[k] < 0 ? -1.0f : v.segment[k];
  return v;
}

/* Whether two values of an output that other states' kernels left are finite: their sum may have left float16's range
 * though the whole is in it, and then the head is recomputed. */
KR_DEV int are_finite(float low, float high) { return kr_fma(low, 0.0f, high * 0.0f) == 0; }

/* For a gradient, whose dB and dC are sums over a group's heads: these are recomputed together. */
KR_DEV void report_nonfinite_group(const kr_ssd_params &f, int b, int h) {
  for (int k = 0, first = h - h % f.heads; k < f.heads; k++) f.spoilt[(int64_t)b * f.H + first + k] = 1;
}

/* ---- in float32: sums of two floats ------------------------------------------------------------------------------ */

/* Sums of log-decays reach thousands, of which small differences count: they are sums of two floats. Here from[j] of
 * chunk_steps is the low part of a[j], and pad[0] that of total. */
typedef struct two_floats {
  float high, low;
} two_floats;

KR_DEV two_floats add(two_floats a, two_floats b) {
  const float sum = a.high + b.high, rest = sum - a.high;
  const float low = (a.high - (sum - rest)) + (b.high - rest) + (a.low + b.low), high = sum + low;
  return two_floats{high, low - (high - sum)};
}

KR_DEV two_floats sum_up_two(two_floats v) {
#pragma unroll
  for (int by = 1; by < 32; by <<= 1) {
    const two_floats other = {kr_shuffle_up(v.high, by, 32), kr_shuffle_up(v.low, by, 32)};
    if ((kr_thread() & 31) >= by) v = add(v, other);
  }
  return v;
}

KR_DEV two_floats from_lane(two_floats v, int lane) {
  return two_floats{kr_shuffle_from(v.high, lane), kr_shuffle_from(v.low, lane)};
}

/* Decay between two sums, the earlier one first; a token's input to the chunk's end. */
KR_DEV float decay(float from, float from_low, float to, float to_low) {
  return kr_exp2((to - from) + (to_low - from_low));
}
KR_DEV float input_left(const chunk_steps &s, int has_sequences, int j) {
  const float left = decay(s.a[j], s.from[j], s.total, s.pad[0]) * s.d[j];
  return has_sequences && s.segment[j] != s.last ? 0.0f : left;
}

/* One warp per chunk of a head. */
KR_DEV void leave_steps(const kr_ssd_params &p) {
  const int64_t chunk = kr_block_x(), t0 = chunk * Q;
  const int h = kr_block_y() * (KR_SSD_THREADS / 32) + (kr_thread() >> 5), b = kr_block_z(), lane = kr_thread() & 31;
  if (h >= p.H) return;
  const float A = rate_of(p, h) * KR_LOG2E,
              bias = p.bias.data ? kr_load(p.bias.data, h * p.bias.h, p.bias.dtype) : 0.0f;
  const raw_steps raw = load_steps<STEPS_ANY>(p, b, h, t0, p.L);
  const lane_steps v = sum_steps<STEPS_ANY>(p, raw, A, bias, t0, p.L);
  two_floats a[2];
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const float one = log2_decay<STEPS_ANY>(p, raw, k, v.d[k], A);
    a[k] = sum_up_two(two_floats{one < -160.0f ? -160.0f : one, 0.0f}); /* as in sum_steps */
  }
  a[1] = add(from_lane(a[0], 31), a[1]);
  const two_floats total = from_lane(a[1], 31);
  chunk_steps &s = *(chunk_steps *)steps_at(p, b, h, chunk);
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int i = lane + 32 * k;
    s.a[i] = a[k].high, s.from[i] = a[k].low, s.d[i] = v.d[k], s.segment[i] = v.segment[k];
  }
  if (lane == 0) s.total = total.high, s.pad[0] = total.low, s.last = v.last;
  if (lane == 0 && chunk == 0 && p.spoilt) p.spoilt[b * p.H + h] = 0;
}

#endif

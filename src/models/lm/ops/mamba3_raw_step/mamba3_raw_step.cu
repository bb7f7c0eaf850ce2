/* mamba3_raw_step.cu: one token of Mamba 3 of one rank for each of B sequences, from in_proj's columns (equations:
 * mamba3_raw_step_ref.c, mamba3_ref.c).
 *   kr_mamba3_raw_step, _same            states in float32, or in the inputs' type KR_DTYPE: a block per sequence and
 *                                        head
 *   kr_mamba3_raw_step_part, _part_same  several blocks a head, each thread with four channels: few heads
 * A decode step waits for memory and for itself, not for bytes. So the N / 4 lanes that share a channel make by
 * themselves what they need of the query and the key, two pairs each, and nothing passes through shared memory; four
 * channels at a time share a lane's factors and half of their sums' shuffles; all loads come before the first use,
 * those of states and parameters before the previous kernel ends. Blocks are small, so that they find room, and have
 * asked for all this, while that kernel still runs. All blocks of a head read its last key and its angles: each warp
 * counts itself when it has them, and the last of a head's replaces them. */
#include "arrivals.cuh"
#include "element.cuh"
#include "mamba3_raw_step.cuh"
#include "mamba3_raw_step_params.h"
#include "overlap.cuh"
#include "pack.cuh"

enum { CHANNELS = 4 };

/* Four elements of a row as they are stored, in one access. */
template <int DTYPE>
KR_DEV kr_raw16 load_four(const void *data, int64_t at) {
  if (DTYPE == KRAIT_F32) return *(const kr_raw16 *)((const float *)data + at);
  const kr_float2 two = *(const kr_float2 *)((const uint16_t *)data + at);
  return kr_raw16{{kr_float_to_bits(two.v[0]), kr_float_to_bits(two.v[1]), 0, 0}};
}
template <int DTYPE>
KR_DEV kr_float4 four_of(const kr_raw16 &raw) {
  kr_float4 f;
#pragma unroll
  for (int k = 0; k < 4; k++)
    f.v[k] = DTYPE == KRAIT_F32 ? kr_bits_to_float(raw.w[k]) : kr_unpack(raw.w[k >> 1], k & 1, DTYPE);
  return f;
}
template <int DTYPE>
KR_DEV void store_four(void *data, int64_t at, const kr_float4 &f) {
  if (DTYPE == KRAIT_F32)
    *(kr_float4 *)((float *)data + at) = f;
  else
    *(kr_float2 *)((uint16_t *)data + at) = kr_float2{
        {kr_bits_to_float(kr_pack(f.v[0], f.v[1], DTYPE)), kr_bits_to_float(kr_pack(f.v[2], f.v[3], DTYPE))}};
}
KR_DEV kr_float4 floats_at(const kr_view &v, int64_t at) { return *(const kr_float4 *)((const float *)v.data + at); }
KR_DEV float float_at(const kr_view &v, int64_t at) { return ((const float *)v.data)[at]; }

/* A thread's place: its block's sequence, head, part of the head and row of states; its lane among those of a channel,
 * whose states begin at n; its first four channels. */
typedef struct place {
  int b, h, g, part, row, lane, n, c;
} place;

KR_DEV place here(const kr_mamba3_raw_step_params &p) {
  const kr_view &rows = p.a.state_batch_indices;
  place at;
  const int head = (int)kr_divide((uint32_t)kr_block_x(), p.parts);
  at.part = kr_block_x() - head * (int)p.parts.by;
  at.b = (int)kr_divide((uint32_t)head, p.H), at.h = head - at.b * (int)p.H.by;
  at.g = (int)kr_divide((uint32_t)at.h, p.heads);
  at.row = rows.data ? ((const int32_t *)rows.data)[at.b * rows.stride[0]] : at.b;
  if (at.row >= p.a.n_states) at.row = -1; /* the host cannot check */
  at.lane = kr_thread() & (p.lanes - 1), at.n = 4 * at.lane;
  at.c = CHANNELS * ((at.part * p.threads + kr_thread()) >> p.lanes_shift);
  return at;
}

/* Of the angle about pair m, before and after the token. */
KR_DEV int64_t angle_place(const kr_view &v, const place &at, int m) {
  return at.row * v.stride[0] + at.h * v.stride[1] + m * v.stride[2];
}

/* States of four channels, and their last inputs; zeros where there are none. */
typedef struct channels {
  kr_raw16 s[CHANNELS];
  kr_float4 x_last;
} channels;

template <int STATE>
KR_DEV channels load_channels(const kr_mamba3_raw_step_params &p, const place &at, int c) {
  channels v = {};
  if (c >= p.P) return v;
  const kr_view &state = p.a.state;
  const int64_t first = at.row * state.stride[0] + at.h * state.stride[1] + c * state.stride[2] + at.n;
#pragma unroll
  for (int i = 0; i < CHANNELS; i++) v.s[i] = load_four<STATE>(state.data, first + i * state.stride[2]);
  v.x_last = floats_at(p.a.x_state, at.row * p.a.x_state.stride[0] + at.h * p.a.x_state.stride[1] + c);
  return v;
}

/* What a lane knows before the previous kernel ends. */
typedef struct known {
  kr_float4 k_last, k_norm, q_norm, k_bias, q_bias;
  float angle[2], dt_bias, D;
} known;

KR_DEV known load_known(const kr_mamba3_raw_step_params &p, const place &at) {
  const kr_mamba3_raw_step_args &a = p.a;
  known v;
  v.k_last = floats_at(a.B_state, at.row * a.B_state.stride[0] + at.h * a.B_state.stride[1] + at.n);
  v.k_norm = floats_at(a.B_norm, at.n), v.q_norm = floats_at(a.C_norm, at.n);
  v.k_bias = floats_at(a.B_bias, at.h * a.B_bias.stride[0] + at.n);
  v.q_bias = floats_at(a.C_bias, at.h * a.C_bias.stride[0] + at.n);
  v.dt_bias = float_at(a.dt_bias, at.h * a.dt_bias.stride[0]), v.D = float_at(a.Dvec, at.h * a.Dvec.stride[0]);
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int m = 2 * at.lane + k;
    v.angle[k] = m < p.M ? float_at(a.angle_state, angle_place(a.angle_state, at, m)) : 0.0f;
  }
  return v;
}

/* The token's columns. */
typedef struct columns {
  kr_raw16 k, q;
  element dt, A, trap, angle[2];
} columns;

KR_DEV element element_at(const kr_view &v, int64_t at) { return ((const element *)v.data)[at]; }

KR_DEV columns load_columns(const kr_mamba3_raw_step_params &p, const place &at) {
  const kr_mamba3_raw_step_args &a = p.a;
  columns v = {};
  v.k = load_four<KR_DTYPE>(a.Bmat.data, at.b * a.Bmat.stride[0] + at.g * a.Bmat.stride[1] + at.n);
  v.q = load_four<KR_DTYPE>(a.Cmat.data, at.b * a.Cmat.stride[0] + at.g * a.Cmat.stride[1] + at.n);
  v.dt = element_at(a.dt_raw, at.b * a.dt_raw.stride[0] + at.h * a.dt_raw.stride[1]);
  v.A = element_at(a.A_raw, at.b * a.A_raw.stride[0] + at.h * a.A_raw.stride[1]);
  v.trap = element_at(a.trap, at.b * a.trap.stride[0] + at.h * a.trap.stride[1]);
#pragma unroll
  for (int k = 0; k < 2; k++)
    if (2 * at.lane + k < p.M)
      v.angle[k] = element_at(a.angles, at.b * a.angles.stride[0] + (2 * at.lane + k) * a.angles.stride[1]);
  return v;
}

/* Over the `lanes` lanes of a channel, at most MOST: no branches, so that sums of several go on side by side. */
template <int MOST>
KR_DEV float add_lanes(float v, int lanes) {
#pragma unroll
  for (int d = 1; d < MOST; d <<= 1) v += kr_select(d < lanes, kr_shuffle_xor(v, d), 0.0f);
  return v;
}

KR_DEV float squares_of(const kr_float4 &v) {
  float squares = v.v[0] * v.v[0];
#pragma unroll
  for (int k = 1; k < 4; k++) squares = kr_fma(v.v[k], v.v[k], squares);
  return squares;
}

/* v / rms(v) weight + bias. */
KR_DEV kr_float4 normed(const kr_mamba3_raw_step_params &p, const kr_float4 &v, const kr_float4 &weight,
                        const kr_float4 &bias) {
  const float scale = kr_rsqrt(kr_fma(add_lanes<32>(squares_of(v), p.lanes), p.inverse_N, p.a.eps));
  kr_float4 to;
#pragma unroll
  for (int k = 0; k < 4; k++) to.v[k] = kr_fma(v.v[k] * scale, weight.v[k], bias.v[k]);
  return to;
}

/* What the states are advanced and read by. */
typedef struct factors {
  kr_float4 k_last, k, q; /* k_last, k: with beta, gamma */
  float alpha;
} factors;

/* The token's factors, key, and angles (of which those from p.M on are not there). */
typedef struct token {
  factors by;
  kr_float4 k;
  float angle[2];
} token;

KR_DEV token token_of(const kr_mamba3_raw_step_params &p, const place &at, const known &of, const columns &raw) {
  const float d = kr_softplus(element_value(raw.dt) + of.dt_bias), trap = element_value(raw.trap),
              alpha = kr_exp(-rate_of(p.a.call.flags, p.a.A_floor, element_value(raw.A)) * d),
              beta = kr_sigmoid(-trap) * d * alpha, gamma = kr_sigmoid(trap) * d;
  token t;
  t.k = normed(p, four_of<KR_DTYPE>(raw.k), of.k_norm, of.k_bias);
  t.by.q = normed(p, four_of<KR_DTYPE>(raw.q), of.q_norm, of.q_bias);
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const uint32_t turn = add_turns(turn_of_angle(of.angle[k]), turn_of_step(element_value(raw.angle[k]), d));
    const rotation by = rotation_of(turn);
    t.angle[k] = angle_of(turn);
    if (2 * at.lane + k < p.M) turn_pair(t.k, k, by), turn_pair(t.by.q, k, by);
  }
  t.by.alpha = alpha;
#pragma unroll
  for (int k = 0; k < 4; k++) t.by.k_last.v[k] = beta * of.k_last.v[k], t.by.k.v[k] = gamma * t.k.v[k];
  return t;
}

/* The sums over a channel's lanes of four channels, that of channel c in its quarter of them. */
KR_DEV float add_channels(const float (&y)[CHANNELS], int lanes, int &c) {
  const int half = lanes / 2, quarter = lanes / 4, high = (kr_thread() & half) != 0, odd = (kr_thread() & quarter) != 0;
  float two[2], one;
#pragma unroll
  for (int i = 0; i < 2; i++)
    two[i] = kr_select(high, y[i + 2], y[i]) + kr_shuffle_xor(kr_select(high, y[i], y[i + 2]), half);
  one = kr_select(odd, two[1], two[0]) + kr_shuffle_xor(kr_select(odd, two[0], two[1]), quarter);
  c = 2 * high + odd;
  return add_lanes<8>(one, quarter);
}

KR_DEV float pick(const kr_float4 &v, int c) {
  return kr_select(c & 2, kr_select(c & 1, v.v[3], v.v[2]), kr_select(c & 1, v.v[1], v.v[0]));
}

/* Four channels from c on; called by whole warps. */
template <int STATE>
KR_DEV void advance(const kr_mamba3_raw_step_params &p, const place &at, const factors &by, float D, int c,
                    const channels &v, const kr_raw16 &raw_x, element z) {
  const kr_mamba3_raw_step_args &a = p.a;
  const kr_float4 x = four_of<KR_DTYPE>(raw_x);
  const int64_t first = at.row * a.state.stride[0] + at.h * a.state.stride[1] + c * a.state.stride[2] + at.n;
  float y[CHANNELS];
  int own;
#pragma unroll
  for (int i = 0; i < CHANNELS; i++) {
    kr_float4 s = four_of<STATE>(v.s[i]);
    y[i] = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      s.v[k] = kr_fma(x.v[i], by.k.v[k], kr_fma(v.x_last.v[i], by.k_last.v[k], by.alpha * s.v[k]));
      y[i] = kr_fma(s.v[k], by.q.v[k], y[i]);
    }
    if (c < p.P) store_four<STATE>(a.state.data, first + i * a.state.stride[2], s);
  }
  float sum = add_channels(y, p.lanes, own);
  if (c >= p.P) return;
  sum = D == 0 ? sum : kr_fma(D, pick(x, own), sum);
  if (a.z.data) sum *= kr_silu(element_value(z));
  if ((at.lane & (p.lanes / 4 - 1)) == 0)
    put((element *)a.out.data,
        at.b * a.out.stride[0] + at.h * a.out.stride[1] + (c + own) * a.out.stride[2], sum);
  if (at.lane == 0)
    *(kr_float4 *)((float *)a.x_state.data + at.row * a.x_state.stride[0] + at.h * a.x_state.stride[1] + c) = x;
}

/* The inputs of four channels, and a lane's gate: of the channel whose sum it gets. */
KR_DEV void load_inputs(const kr_mamba3_raw_step_params &p, const place &at, int c, kr_raw16 &x, element &z) {
  const kr_mamba3_raw_step_args &a = p.a;
  const int own = c + at.lane / (p.lanes / 4);
  x = kr_raw16{{0, 0, 0, 0}}, z = 0;
  if (c >= p.P) return;
  x = load_four<KR_DTYPE>(a.x.data, at.b * a.x.stride[0] + at.h * a.x.stride[1] + c);
  if (a.z.data) z = element_at(a.z, at.b * a.z.stride[0] + at.h * a.z.stride[1] + own * a.z.stride[2]);
}

/* Key and angles for the next token, by some warp's first lanes; nobody reads those before any more. */
KR_DEV void keep(const kr_mamba3_raw_step_params &p, const place &at, const token &t) {
  const kr_mamba3_raw_step_args &a = p.a;
  if ((kr_thread() & 31) >= p.lanes) return;
  *(kr_float4 *)((float *)a.B_state.data + at.row * a.B_state.stride[0] + at.h * a.B_state.stride[1] + at.n) = t.k;
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int m = 2 * at.lane + k;
    if (m < p.M) ((float *)a.angle_state.data)[angle_place(a.angle_state, at, m)] = t.angle[k];
  }
}

/* Of the head's warps that have read what `keep` replaces. */
KR_DEV float *counter_of(const kr_mamba3_raw_step_params &p, const place &at) {
  const kr_view &arrivals = p.a.arrivals;
  return (float *)arrivals.data + at.b * arrivals.stride[0] + at.h * arrivals.stride[1];
}
KR_DEV float arrive(const kr_mamba3_raw_step_params &p, const place &at, const known &of) {
  const uint32_t read =
      kr_float_to_bits(of.k_last.v[0]) ^ kr_float_to_bits(of.angle[0]) ^ kr_float_to_bits(of.angle[1]);
  return kr_arrive(counter_of(p, at), read, p.one);
}

KR_DEV void write_zeros(const kr_mamba3_raw_step_params &p, const place &at) {
  const kr_view &out = p.a.out;
  for (int c = at.part * p.threads + kr_thread(); c < p.P; c += p.threads * (int)p.parts.by)
    put((element *)out.data, at.b * out.stride[0] + at.h * out.stride[1] + c * out.stride[2], 0.0f);
}

/* IN_PARTS: blocks share a head, and no thread has more than four channels. */
template <int STATE, int IN_PARTS>
KR_DEV void raw_step(const kr_mamba3_raw_step_params &p) {
  const int ahead = (p.a.call.flags & KR_CALL_STATE_PDL) != 0;
  kr_launch_dependents();
  if (!ahead) kr_griddep_wait();
  const place at = here(p);
  if (at.row < 0) {
    kr_griddep_wait();
    write_zeros(p, at);
    return;
  }
  const known of = load_known(p, at);
  channels v = load_channels<STATE>(p, at, at.c);
  float before = 0;
  kr_raw16 x;
  element z;
  if (ahead) {
    kr_keep_all_near(p);
    kr_griddep_wait();
  }
  const columns raw = load_columns(p, at);
  load_inputs(p, at, at.c, x, z);
  if (IN_PARTS) before = arrive(p, at, of); /* while these are on their way */
  const token t = token_of(p, at, of, raw);
  if (IN_PARTS) {
    advance<STATE>(p, at, t.by, of.D, at.c, v, x, z);
    if (kr_is_last(before, counter_of(p, at), p.n_warps)) keep(p, at, t);
    return;
  }
  const int each = CHANNELS * (p.threads >> p.lanes_shift);
#pragma unroll 1
  for (int c = at.c; c - at.c < p.P; c += each) { /* as often for all lanes of a warp */
    const channels now = v;
    const kr_raw16 now_x = x;
    const element now_z = z;
    if (c - at.c + each < p.P) v = load_channels<STATE>(p, at, c + each), load_inputs(p, at, c + each, x, z);
    advance<STATE>(p, at, t.by, of.D, c, now, now_x, now_z);
  }
  kr_sync();
  if (kr_thread() < 32) keep(p, at, t);
}

KR_KERNEL void KR_BOUNDS(KR_RAW_STEP_THREADS, 4) kr_mamba3_raw_step(const kr_mamba3_raw_step_params p) {
  raw_step<KRAIT_F32, 0>(p);
}
KR_KERNEL void KR_BOUNDS(KR_RAW_STEP_THREADS, 4) kr_mamba3_raw_step_same(const kr_mamba3_raw_step_params p) {
  raw_step<KR_DTYPE, 0>(p);
}
KR_KERNEL void KR_BOUNDS(KR_RAW_STEP_THREADS, 4) kr_mamba3_raw_step_part(const kr_mamba3_raw_step_params p) {
  raw_step<KRAIT_F32, 1>(p);
}
KR_KERNEL void KR_BOUNDS(KR_RAW_STEP_THREADS, 4) kr_mamba3_raw_step_part_same(const kr_mamba3_raw_step_params p) {
  raw_step<KR_DTYPE, 1>(p);
}

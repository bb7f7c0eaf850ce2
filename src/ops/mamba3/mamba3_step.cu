/* mamba3_step.cu: one token of Mamba 3 for each of B sequences (equation: mamba3_ref.c): a block per sequence and head.
 * Bound by reading and writing the state once, and for few sequences by waits: a thread issues the loads of its first
 * states, then those of all else that it needs, before it uses one.
 *   kr_mamba3_step_4    four states of a channel in one access
 *   kr_mamba3_step_any  any types and strides */
#include "mamba3_step_params.h"
#include "mamba3_views.cuh"

enum { THREADS = KR_MAMBA3_STEP_THREADS, WARPS = THREADS / 32, AHEAD = 8, MOST_PAIRS = 256 };

/* A block's place, and its rows in shared memory. */
typedef struct place {
  int b, h, g;
  int64_t row;
  float *k_last, *k, *q, *x_last, *x, *y, *z, *cosines, *sines;
} place;

KR_DEV place here(const kr_mamba3_step_params &p, float *shared) {
  const kr_mamba3_step_args &a = p.a;
  const int H = (int)a.H, R = (int)a.R;
  place at;
  at.b = kr_block_x() / H, at.h = kr_block_x() - at.b * H, at.g = at.h / (int)(a.H / a.G);
  at.row = a.state_batch_indices.data
               ? ((const int32_t *)a.state_batch_indices.data)[at.b * a.state_batch_indices.stride[0]]
               : at.b;
  if (at.row >= a.n_states) at.row = -1; /* the host cannot check */
  at.k_last = shared, at.k = at.k_last + R * p.row_N, at.q = at.k + R * p.row_N;
  at.x_last = at.q + R * p.row_N, at.x = at.x_last + R * p.row_P, at.y = at.x + R * p.row_P;
  at.z = at.y + R * p.row_P, at.cosines = at.z + p.row_P, at.sines = at.cosines + MOST_PAIRS;
  return at;
}

/* Four states, as they are stored. */
template <int FAST>
KR_DEV kr_raw16 load_states(const kr_view &v, int64_t at, int left) {
  kr_raw16 raw = {{0, 0, 0, 0}};
  if (FAST) {
    if (left <= 0) return raw;
    if (v.dtype == KRAIT_F32) return *(const kr_raw16 *)((const float *)v.data + at);
    const kr_float2 two = *(const kr_float2 *)((const uint16_t *)v.data + at);
    raw.w[0] = kr_float_to_bits(two.v[0]), raw.w[1] = kr_float_to_bits(two.v[1]);
    return raw;
  }
#pragma unroll
  for (int k = 0; k < 4; k++)
    if (k < left) raw.w[k] = kr_float_to_bits(get(v, at + k * v.stride[3]));
  return raw;
}
template <int FAST>
KR_DEV float state_of(const kr_view &v, const kr_raw16 &raw, int k) {
  return !FAST || v.dtype == KRAIT_F32 ? kr_bits_to_float(raw.w[k]) : kr_unpack(raw.w[k >> 1], k & 1, v.dtype);
}
template <int FAST>
KR_DEV void store_states(const kr_view &v, int64_t at, int left, const float (&s)[4]) {
  if (FAST) {
    if (left <= 0) return;
    if (v.dtype == KRAIT_F32)
      *(kr_float4 *)((float *)v.data + at) = kr_float4{{s[0], s[1], s[2], s[3]}};
    else
      *(kr_float2 *)((uint16_t *)v.data + at) =
          kr_float2{{kr_bits_to_float(kr_pack(s[0], s[1], v.dtype)), kr_bits_to_float(kr_pack(s[2], s[3], v.dtype))}};
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; k++)
    if (k < left) kr_store(v.data, at + k * v.stride[3], v.dtype, s[k]);
}

/* ---- the token's operands ---------------------------------------------------------------------------------------- */

/* An element as it is stored; zero if it does not exist. Its type is asked for again when it is used: a branch that
 * also converted would wait for it. */
KR_DEV uint32_t bits_at(const kr_view &v, int64_t at) {
  if (!v.data) return 0;
  if (v.dtype == KRAIT_F32) return ((const uint32_t *)v.data)[at];
  return ((const uint16_t *)v.data)[at];
}
KR_DEV float float_of(const kr_view &v, uint32_t bits) {
  return v.dtype == KRAIT_F32 ? kr_bits_to_float(bits) : kr_unpack(bits, 0, v.dtype);
}

/* What a thread has of a pair, of an entry of the rows, of a channel, and of the token. */
typedef struct pair_bits {
  uint32_t state, angle;
} pair_bits;
typedef struct entry_bits {
  uint32_t k_last, k, k_bias, q, q_bias;
} entry_bits;
typedef struct channel_bits {
  uint32_t x, x_last, z;
} channel_bits;
typedef struct step_bits {
  uint32_t d, trap, log_decay, D;
} step_bits;

KR_DEV pair_bits load_pair(const kr_mamba3_step_args &a, const place &at, int m) {
  if (m >= (int)a.M) return pair_bits{0, 0};
  return pair_bits{bits_at(a.angle_state, at3(a.angle_state, at.row, at.h, m)),
                   bits_at(a.angles, at3(a.angles, at.b, at.h, m))};
}
KR_DEV entry_bits load_entry(const kr_mamba3_step_params &p, const place &at, int i) {
  const kr_mamba3_step_args &a = p.a;
  const int r = i / p.row_N, n = i - r * p.row_N, row = r * (int)a.G + at.g;
  if (r >= (int)a.R || n >= (int)a.N) return entry_bits{0, 0, 0, 0, 0};
  return entry_bits{bits_at(a.B_state, at4(a.B_state, at.row, r, at.h, n)), bits_at(a.Bmat, at3(a.Bmat, at.b, row, n)),
                    bits_at(a.B_bias, at3(a.B_bias, at.h, r, n)), bits_at(a.Cmat, at3(a.Cmat, at.b, row, n)),
                    bits_at(a.C_bias, at3(a.C_bias, at.h, r, n))};
}
KR_DEV channel_bits load_channel(const kr_mamba3_step_args &a, const place &at, int c) {
  if (c >= (int)a.P) return channel_bits{0, 0, 0};
  return channel_bits{bits_at(a.x, at3(a.x, at.b, at.h, c)), bits_at(a.x_state, at3(a.x_state, at.row, at.h, c)),
                      bits_at(a.z, at3(a.z, at.b, at.h, c))};
}
KR_DEV step_bits load_step(const kr_mamba3_step_args &a, const place &at) {
  return step_bits{bits_at(a.dt, at2(a.dt, at.b, at.h)), bits_at(a.trap, at2(a.trap, at.b, at.h)),
                   bits_at(a.log_decay, at2(a.log_decay, at.b, at.h)), bits_at(a.Dvec, at.h * a.Dvec.stride[0])};
}

KR_DEV void turn_angles(const kr_mamba3_step_args &a, const place &at, const pair_bits &own, float d) {
  for (int m = kr_thread(); m < (int)a.M; m += THREADS) {
    const pair_bits pair = m == kr_thread() ? own : load_pair(a, at, m);
    const uint32_t turn = add_turns(turn_of_angle(kr_bits_to_float(pair.state)),
                                    turn_of_step(float_of(a.angles, pair.angle), d));
    const rotation by = rotation_of(turn);
    at.cosines[m] = by.cosine, at.sines[m] = by.sine;
    ((float *)a.angle_state.data)[at3(a.angle_state, at.row, at.h, m)] = angle_of(turn);
  }
}

/* Keys before; queries and keys with their biases, not turned. */
KR_DEV void put_rows(const kr_mamba3_step_params &p, const place &at, const entry_bits &own) {
  const kr_mamba3_step_args &a = p.a;
  for (int i = kr_thread(); i < (int)a.R * p.row_N; i += THREADS) {
    const entry_bits entry = i == kr_thread() ? own : load_entry(p, at, i);
    at.k_last[i] = float_of(a.B_state, entry.k_last);
    at.k[i] = float_of(a.Bmat, entry.k) + float_of(a.B_bias, entry.k_bias);
    at.q[i] = float_of(a.Cmat, entry.q) + float_of(a.C_bias, entry.q_bias);
  }
}

/* Inputs of every rank times their weights, and the gate; the input is kept for the next token. */
KR_DEV void put_inputs(const kr_mamba3_step_params &p, const place &at, const channel_bits &own) {
  const kr_mamba3_step_args &a = p.a;
  for (int c = kr_thread(); c < (int)a.P; c += THREADS) {
    const channel_bits channel = c == kr_thread() ? own : load_channel(a, at, c);
    const float x = float_of(a.x, channel.x), before = float_of(a.x_state, channel.x_last);
    for (int r = 0; r < (int)a.R; r++) {
      const float by = a.mimo_x.data ? get(a.mimo_x, at3(a.mimo_x, at.h, r, c)) : 1.0f;
      at.x[r * p.row_P + c] = by * x, at.x_last[r * p.row_P + c] = by * before;
    }
    at.z[c] = float_of(a.z, channel.z);
    kr_store(a.x_state.data, at3(a.x_state, at.row, at.h, c), a.x_state.dtype, x);
  }
}

KR_DEV void turn_row(const kr_mamba3_step_args &a, const place &at, float *row, int m) {
  const int halves = (a.call.flags & KRAIT_MAMBA3_HALVES) != 0, i = halves ? m : 2 * m,
            j = halves ? m + (int)a.N / 2 : 2 * m + 1;
  const float u = row[i], v = row[j], c = at.cosines[m], s = at.sines[m];
  row[i] = kr_fma(c, u, -(s * v)), row[j] = kr_fma(s, u, c * v);
}

KR_DEV void turn_rows(const kr_mamba3_step_params &p, const place &at) {
  const int M = (int)p.a.M;
  for (int i = kr_thread(); i < 2 * (int)p.a.R * M; i += THREADS) {
    const int row = i / M, r = row >> 1;
    turn_row(p.a, at, (row & 1 ? at.q : at.k) + r * p.row_N, i - row * M);
  }
}

KR_DEV void store_keys(const kr_mamba3_step_params &p, const place &at) {
  const kr_mamba3_step_args &a = p.a;
  for (int i = kr_thread(); i < (int)a.R * p.row_N; i += THREADS) {
    const int r = i / p.row_N, n = i - r * p.row_N;
    if (n < (int)a.N) kr_store(a.B_state.data, at4(a.B_state, at.row, r, at.h, n), a.B_state.dtype, at.k[i]);
  }
}

/* ---- states and output ------------------------------------------------------------------------------------------- */

typedef struct weights {
  float alpha, beta, gamma;
} weights;

KR_DEV weights weights_of(const kr_mamba3_step_args &a, const step_bits &own) {
  const float d = float_of(a.dt, own.d), trap = float_of(a.trap, own.trap),
              alpha = kr_exp(float_of(a.log_decay, own.log_decay));
  return weights{alpha, kr_sigmoid(-trap) * d * alpha, kr_sigmoid(trap) * d};
}

/* Four states of channel c from n on, and their shares of y of every rank; called by all lanes of a channel. */
template <int FAST>
KR_DEV void advance(const kr_mamba3_step_params &p, const place &at, const weights &by, const kr_raw16 &raw, int c,
                    int n, int is_first) {
  const kr_mamba3_step_args &a = p.a;
  const int left = (int)a.N - n, channel = c < (int)a.P ? c : 0;
  float s[4] = {};
#pragma unroll
  for (int k = 0; k < 4; k++) s[k] = by.alpha * state_of<FAST>(a.state, raw, k);
#pragma unroll 1
  for (int r = 0; r < (int)a.R && left > 0; r++) {
    const kr_float4 last = *(const kr_float4 *)(at.k_last + r * p.row_N + n),
                    now = *(const kr_float4 *)(at.k + r * p.row_N + n);
    const float x_last = by.beta * at.x_last[r * p.row_P + channel], x = by.gamma * at.x[r * p.row_P + channel];
#pragma unroll
    for (int k = 0; k < 4; k++) s[k] = kr_fma(x, now.v[k], kr_fma(x_last, last.v[k], s[k]));
  }
  if (c < (int)a.P) store_states<FAST>(a.state, at4(a.state, at.row, at.h, c, n), left, s);
#pragma unroll 1
  for (int r = 0; r < (int)a.R; r++) {
    float sum = 0;
    if (left > 0) {
      const kr_float4 q = *(const kr_float4 *)(at.q + r * p.row_N + n);
#pragma unroll
      for (int k = 0; k < 4; k++) sum = kr_fma(s[k], q.v[k], sum);
    }
    for (int d = 1; d < p.lanes; d <<= 1) sum += kr_shuffle_xor(sum, d);
    if ((kr_thread() & (p.lanes - 1)) == 0 && c < (int)a.P)
      at.y[r * p.row_P + c] = is_first ? sum : at.y[r * p.row_P + c] + sum;
  }
}

/* 1 / rms of a rank's y, by a warp. */
KR_DEV float norm_of(const kr_mamba3_step_args &a, const float *y) {
  float squares = 0;
  for (int c = kr_thread() & 31; c < (int)a.P; c += 32) squares = kr_fma(y[c], y[c], squares);
  return kr_rsqrt(add_warp(squares) / (float)a.P + a.eps);
}

/* o of a rank's channel. */
KR_DEV float gated(const kr_mamba3_step_args &a, const place &at, int r, int c, float y, float scale) {
  if (a.norm_weight.data) y *= scale * get(a.norm_weight, at2(a.norm_weight, at.h, c));
  if (!a.z.data) return y;
  const float by = a.mimo_z.data ? get(a.mimo_z, at3(a.mimo_z, at.h, r, c)) : 1.0f;
  return y * kr_silu(by * at.z[c]);
}

/* Adds D x to y, then the norm and the gate, a warp per rank; sums over ranks last. */
KR_DEV void write_ranks(const kr_mamba3_step_params &p, const place &at, float D) {
  const kr_mamba3_step_args &a = p.a;
  for (int r = kr_thread() >> 5; r < (int)a.R; r += WARPS) {
    float *const y = at.y + r * p.row_P;
    for (int c = kr_thread() & 31; c < (int)a.P; c += 32) y[c] = D == 0 ? y[c] : kr_fma(D, at.x[r * p.row_P + c], y[c]);
    kr_sync_warp();
    const float scale = a.norm_weight.data ? norm_of(a, y) : 1.0f;
    for (int c = kr_thread() & 31; c < (int)a.P; c += 32) {
      const float o = gated(a, at, r, c, y[c], scale);
      if (a.mimo_o.data)
        y[c] = o * get(a.mimo_o, at3(a.mimo_o, at.h, r, c));
      else
        kr_store(a.out.data, at3(a.out, at.b, r * a.H + at.h, c), a.out.dtype, o);
    }
  }
  if (!a.mimo_o.data) return;
  kr_sync();
  for (int c = kr_thread(); c < (int)a.P; c += THREADS) {
    float sum = 0;
    for (int r = 0; r < (int)a.R; r++) sum += at.y[r * p.row_P + c];
    kr_store(a.out.data, at3(a.out, at.b, at.h, c), a.out.dtype, sum);
  }
}

KR_DEV void write_nothing(const kr_mamba3_step_args &a, const place &at) {
  for (int r = 0; r < (a.mimo_o.data ? 1 : (int)a.R); r++)
    for (int c = kr_thread(); c < (int)a.P; c += THREADS)
      kr_store(a.out.data, at3(a.out, at.b, r * a.H + at.h, c), a.out.dtype, 0.0f);
}

template <int FAST>
KR_DEV void step(const kr_mamba3_step_params &p) {
  KR_DYNAMIC_SHARED(shared);
  const kr_mamba3_step_args &a = p.a;
  const place at = here(p, (float *)shared);
  const int lane = kr_thread() & (p.lanes - 1), first = kr_thread() / p.lanes, rows = THREADS / p.lanes;
  kr_raw16 raw[AHEAD];
  if (at.row < 0) {
    write_nothing(a, at);
    return;
  }
#pragma unroll
  for (int i = 0; i < AHEAD; i++) {
    const int c = first + i * rows;
    raw[i] =
        load_states<FAST>(a.state, at4(a.state, at.row, at.h, c, 4 * lane), c < (int)a.P ? (int)a.N - 4 * lane : 0);
  }
  const pair_bits pair = load_pair(a, at, kr_thread());
  const entry_bits entry = load_entry(p, at, kr_thread());
  const channel_bits channel = load_channel(a, at, kr_thread());
  const step_bits token = load_step(a, at);
  const weights by = weights_of(a, token);
  const float D = a.Dvec.data ? float_of(a.Dvec, token.D) : 0.0f;
  turn_angles(a, at, pair, float_of(a.dt, token.d));
  put_rows(p, at, entry);
  put_inputs(p, at, channel);
  kr_sync();
  turn_rows(p, at);
  kr_sync();
  store_keys(p, at);
#pragma unroll
  for (int i = 0; i < AHEAD; i++)
    if (i * rows < (int)a.P) advance<FAST>(p, at, by, raw[i], first + i * rows, 4 * lane, 1);
  for (int c = first; c - first < (int)a.P; c += rows)
    for (int n = 4 * lane; n - 4 * lane < (int)a.N; n += 4 * p.lanes) {
      if (n == 4 * lane && c - first < AHEAD * rows) continue;
      const kr_raw16 more =
          load_states<FAST>(a.state, at4(a.state, at.row, at.h, c, n), c < (int)a.P ? (int)a.N - n : 0);
      advance<FAST>(p, at, by, more, c, n, n == 4 * lane);
    }
  kr_sync();
  write_ranks(p, at, D);
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_step_4(const kr_mamba3_step_params p) { step<1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_step_any(const kr_mamba3_step_params p) { step<0>(p); }

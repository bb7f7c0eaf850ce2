/* mamba3_step.cu: one token of Mamba 3 for each of B sequences (equation: mamba3_ref.c): a block per sequence and head.
 * Bound by reading and writing the state once: a thread issues the loads of its first states before all else.
 *   kr_mamba3_step_4    four states of a channel in one access
 *   kr_mamba3_step_any  any types and strides */
#include "mamba3_step_params.h"
#include "mamba3_turns.cuh"

enum { THREADS = KR_MAMBA3_STEP_THREADS, WARPS = THREADS / 32, AHEAD = 8, MOST_PAIRS = 256 };

/* A block's place, and its rows in shared memory. */
typedef struct place {
  int b, h, g;
  int64_t row;
  float *k_last, *k, *q, *x_last, *x, *y, *cosines, *sines;
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
  at.cosines = at.y + R * p.row_P, at.sines = at.cosines + MOST_PAIRS;
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

KR_DEV void turn_angles(const kr_mamba3_step_args &a, const place &at) {
  const float d = get(a.dt, at2(a.dt, at.b, at.h));
  for (int m = kr_thread(); m < (int)a.M; m += THREADS) {
    float *const angle = (float *)a.angle_state.data + at3(a.angle_state, at.row, at.h, m);
    const uint32_t turn =
        add_turns(turn_of_angle(*angle), turn_of_step(get(a.angles, at3(a.angles, at.b, at.h, m)), d));
    const rotation by = rotation_of(turn);
    at.cosines[m] = by.cosine, at.sines[m] = by.sine;
    *angle = angle_of(turn);
  }
}

/* Keys before; queries and keys with their biases, not turned. */
KR_DEV void load_rows(const kr_mamba3_step_params &p, const place &at) {
  const kr_mamba3_step_args &a = p.a;
  const int N = (int)a.N;
  for (int i = kr_thread(); i < (int)a.R * p.row_N; i += THREADS) {
    const int r = i / p.row_N, n = i - r * p.row_N, row = r * (int)a.G + at.g;
    at.k_last[i] = at.k[i] = at.q[i] = 0;
    if (n >= N) continue;
    at.k_last[i] = get(a.B_state, at4(a.B_state, at.row, r, at.h, n));
    at.k[i] = get(a.Bmat, at3(a.Bmat, at.b, row, n)) + get(a.B_bias, at3(a.B_bias, at.h, r, n));
    at.q[i] = get(a.Cmat, at3(a.Cmat, at.b, row, n)) + get(a.C_bias, at3(a.C_bias, at.h, r, n));
  }
}

/* Inputs of every rank times their weights; the input is kept for the next token. */
KR_DEV void load_inputs(const kr_mamba3_step_params &p, const place &at) {
  const kr_mamba3_step_args &a = p.a;
  for (int c = kr_thread(); c < (int)a.P; c += THREADS) {
    const int64_t last = at3(a.x_state, at.row, at.h, c);
    const float x = get(a.x, at3(a.x, at.b, at.h, c)), before = get(a.x_state, last);
    for (int r = 0; r < (int)a.R; r++) {
      const float by = a.mimo_x.data ? get(a.mimo_x, at3(a.mimo_x, at.h, r, c)) : 1.0f;
      at.x[r * p.row_P + c] = by * x, at.x_last[r * p.row_P + c] = by * before;
    }
    kr_store(a.x_state.data, last, a.x_state.dtype, x);
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

KR_DEV weights weights_of(const kr_mamba3_step_args &a, const place &at) {
  const float d = get(a.dt, at2(a.dt, at.b, at.h)), trap = get(a.trap, at2(a.trap, at.b, at.h)),
              alpha = kr_exp(get(a.log_decay, at2(a.log_decay, at.b, at.h)));
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
  return y * kr_silu(by * get(a.z, at3(a.z, at.b, at.h, c)));
}

/* Adds D x to y, then the norm and the gate, a warp per rank; sums over ranks last. */
KR_DEV void write_ranks(const kr_mamba3_step_params &p, const place &at) {
  const kr_mamba3_step_args &a = p.a;
  const float D = a.Dvec.data ? get(a.Dvec, at.h * a.Dvec.stride[0]) : 0.0f;
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
  load_rows(p, at);
  load_inputs(p, at);
  turn_angles(a, at);
  kr_sync();
  turn_rows(p, at);
  kr_sync();
  store_keys(p, at);
  const weights by = weights_of(a, at);
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
  write_ranks(p, at);
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_step_4(const kr_mamba3_step_params p) { step<1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_step_any(const kr_mamba3_step_params p) { step<0>(p); }

/* selective_scan_general.cu: the scan and its gradient with every option, not tuned: complex A, B or C constant over
 * time, any N, packed sequences by offsets, both directions, mixed types (selective_scan_bwd_ref.c has the equations).
 *   kr_scan_general_fwd     one warp per (row, channel); lanes share the states
 *   kr_scan_general_bwd     one warp per (row, group, part), looping over its channels; all states of a channel are
 * kept kr_scan_general_sum     reduces the parts' dB and dC, and all other sums over rows */
#include "kernel.cuh"
#include "scan_any_params.h"

enum { PER_LANE = 16 }; /* 512 states */

typedef struct pair {
  float re, im;
} pair;

typedef struct any_walk {
  int64_t row, b, first, n, begin; /* step i is at time first + i step */
  int step;
} any_walk;

KR_DEV pair pair_of(float re) { return pair{re, 0.0f}; }
KR_DEV pair conjugate(pair a) { return pair{a.re, -a.im}; }
KR_DEV pair add(pair a, pair b) { return pair{a.re + b.re, a.im + b.im}; }
KR_DEV pair scale(float s, pair a) { return pair{s * a.re, s * a.im}; }
KR_DEV pair times(pair a, pair b) {
  if (a.im == 0.0f && b.im == 0.0f) return pair_of(a.re * b.re);
  return pair{kr_fma(a.re, b.re, -a.im * b.im), kr_fma(a.re, b.im, a.im * b.re)};
}

/* Sine and cosine: reduction to a quarter turn in three parts, then Taylor series. */
KR_DEV pair turn(float angle) {
  const int quarter = (int)(angle * 0.63661977f + (angle < 0 ? -0.5f : 0.5f));
  float r = kr_fma((float)quarter, -1.5703125f, angle);
  r = kr_fma((float)quarter, -4.8375129699707031e-4f, r);
  r = kr_fma((float)quarter, -7.5497899548918821e-8f, r);
  const float q = r * r;
  const float sine = kr_fma(r * q, kr_fma(q, kr_fma(q, -1.9515296e-4f, 8.3321609e-3f), -0.16666655f), r);
  const float cosine =
      kr_fma(q * q, kr_fma(q, kr_fma(q, 2.4433157e-5f, -1.3887316e-3f), 4.1666646e-2f), kr_fma(q, -0.5f, 1.0f));
  const float s = quarter & 1 ? cosine : sine, c = quarter & 1 ? sine : cosine;
  return pair{(quarter + 1) & 2 ? -c : c, quarter & 2 ? -s : s};
}

/* e^x within half an ulp beyond rounding: speed does not matter here, and long memories accumulate the fast one's
 * errors. */
KR_DEV float exponential_of(float x) {
  const float bounded = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
  const int n = (int)(bounded * KR_LOG2E + (bounded < 0 ? -0.5f : 0.5f));
  float r = kr_fma((float)n, -0.693359375f, bounded), y = 1.3888889e-3f;
  r = kr_fma((float)n, 2.1219444e-4f, r);
  y = kr_fma(y, r, 8.3333333e-3f), y = kr_fma(y, r, 4.1666667e-2f), y = kr_fma(y, r, 0.16666667f),
  y = kr_fma(y, r, 0.5f);
  y = kr_fma(y, r, 1.0f), y = kr_fma(y, r, 1.0f);
  return x < -87.0f ? 0.0f : y * kr_bits_to_float((uint32_t)(n + 127) << 23);
}

KR_DEV pair exponential(pair a) {
  const float size = exponential_of(a.re);
  return a.im == 0.0f ? pair_of(size) : scale(size, turn(a.im));
}

KR_DEV int64_t at2(const kr_view &v, int64_t i, int64_t j) { return i * v.stride[0] + j * v.stride[1]; }
KR_DEV int64_t at3(const kr_view &v, int64_t i, int64_t j, int64_t k) { return at2(v, i, j) + k * v.stride[2]; }
KR_DEV float get3(const kr_view &v, int64_t i, int64_t j, int64_t k) {
  return kr_load(v.data, at3(v, i, j, k), v.dtype);
}

KR_DEV pair get_pair(const kr_view &v, int64_t offset) {
  if (v.dtype != KRAIT_C64) return pair_of(kr_load(v.data, offset, v.dtype));
  return pair{((const float *)v.data)[2 * offset], ((const float *)v.data)[2 * offset + 1]};
}
KR_DEV void put_pair(const kr_view &v, int64_t offset, pair x) {
  if (v.dtype != KRAIT_C64) kr_store(v.data, offset, v.dtype, x.re);
  else ((float *)v.data)[2 * offset] = x.re, ((float *)v.data)[2 * offset + 1] = x.im;
}
KR_DEV pair read_pair(const float *at, int64_t i) { return pair{at[2 * i], at[2 * i + 1]}; }
KR_DEV void write_pair(float *at, int64_t i, pair x) { at[2 * i] = x.re, at[2 * i + 1] = x.im; }
KR_DEV void add_pair(float *at, int64_t i, pair x) { at[2 * i] += x.re, at[2 * i + 1] += x.im; }

KR_DEV int has_flag(const kr_scan_general_params &p, uint32_t flag) { return (p.a.call.flags & flag) != 0; }
KR_DEV int is_complex(const kr_scan_general_params &p) { return p.a.A.dtype == KRAIT_C64; }

KR_DEV pair parameter(const kr_scan_general_params &p, const kr_view &v, int constant, int64_t b, int64_t d,
                      int64_t n, int64_t t) {
  if (constant) return get_pair(v, at2(v, d, n));
  const int64_t at = at3(v, b, d / (p.a.D / p.a.G), n);
  if (!is_complex(p)) return pair_of(kr_load(v.data, at + t * v.stride[3], v.dtype));
  return pair{kr_load(v.data, at + 2 * t * v.stride[3], v.dtype),
              kr_load(v.data, at + (2 * t + 1) * v.stride[3], v.dtype)};
}
KR_DEV pair B_of(const kr_scan_general_params &p, int64_t b, int64_t d, int64_t n, int64_t t) {
  return parameter(p, p.a.Bmat, has_flag(p, KRAIT_SCAN_B_CONSTANT), b, d, n, t);
}
KR_DEV pair C_of(const kr_scan_general_params &p, int64_t b, int64_t d, int64_t n, int64_t t) {
  return parameter(p, p.a.Cmat, has_flag(p, KRAIT_SCAN_C_CONSTANT), b, d, n, t);
}

/* Offsets are clamped, so that bad ones stay in bounds. */
KR_DEV any_walk walk_of(const kr_scan_general_params &p, int64_t row, int reverse) {
  any_walk w = {row, row, 0, p.a.L, 0, reverse ? -1 : 1};
  if (p.a.cu_seqlens.data) {
    const int32_t *offsets = (const int32_t *)p.a.cu_seqlens.data;
    int64_t begin = offsets[row * p.a.cu_seqlens.stride[0]], end = offsets[(row + 1) * p.a.cu_seqlens.stride[0]];
    begin = begin < 0 ? 0 : begin > p.a.L ? p.a.L : begin;
    end = end < begin ? begin : end > p.a.L ? p.a.L : end;
    w.b = 0, w.begin = begin, w.n = end - begin;
  }
  w.first = reverse ? w.begin + w.n - 1 : w.begin;
  return w;
}

KR_DEV int32_t index_at(const kr_scan_general_params &p, const any_walk &w, int64_t t) {
  return ((const int32_t *)p.a.seq_idx.data)[w.b * p.a.seq_idx.stride[0] + t * p.a.seq_idx.stride[1]];
}
KR_DEV int restarts(const kr_scan_general_params &p, const any_walk &w, int64_t i) {
  return p.a.seq_idx.data && i > 0 &&
         index_at(p, w, w.first + i * w.step) != index_at(p, w, w.first + (i - 1) * w.step);
}
KR_DEV int silent(const kr_scan_general_params &p, const any_walk &w, int64_t t) {
  return p.a.seq_idx.data && index_at(p, w, t) < 0;
}

KR_DEV float raw_step(const kr_scan_general_params &p, int64_t b, int64_t d, int64_t t) {
  const float raw = get3(p.a.delta, b, d, t);
  return p.a.delta_bias.data ? raw + ((const float *)p.a.delta_bias.data)[d * p.a.delta_bias.stride[0]] : raw;
}
KR_DEV float step_size(const kr_scan_general_params &p, int64_t b, int64_t d, int64_t t) {
  const float raw = raw_step(p, b, d, t);
  return has_flag(p, KRAIT_SCAN_SOFTPLUS) ? kr_softplus(raw) : raw;
}
KR_DEV float skip_of(const kr_scan_general_params &p, int64_t d) {
  return p.a.Dvec.data ? ((const float *)p.a.Dvec.data)[d * p.a.Dvec.stride[0]] : 0.0f;
}

KR_DEV float warp_sum(float v) {
  for (int d = 16; d; d >>= 1) v += kr_shuffle_xor(v, d);
  return v;
}

KR_DEV pair initial_of(const kr_scan_general_params &p, const any_walk &w, int64_t d, int64_t n) {
  return p.a.initial_state.data ? get_pair(p.a.initial_state, at3(p.a.initial_state, w.row, d, n)) : pair_of(0);
}

/* One direction of a channel: adds y of each step to y[t]; stores every state in kept (step i of the walk, N) if given.
 * */
KR_DEV void replay(const kr_scan_general_params &p, const any_walk &w, int64_t d, const kr_view &A_view, float *y,
                   float *kept) {
  const int lane = kr_thread() & 31;
  pair x[PER_LANE], A[PER_LANE];
  for (int j = 0; j < PER_LANE; j++) {
    const int64_t n = lane + 32 * j;
    x[j] = n < p.a.N ? initial_of(p, w, d, n) : pair_of(0);
    A[j] = n < p.a.N ? get_pair(A_view, at2(A_view, d, n)) : pair_of(0);
  }
  for (int64_t i = 0; i < w.n; i++) {
    const int64_t t = w.first + i * w.step;
    const float dt = step_size(p, w.b, d, t), du = dt * get3(p.a.u, w.b, d, t);
    const int restart = restarts(p, w, i), leaves = !kept && p.a.states.data && i % 8 == 0;
    float sum = 0;
    for (int j = 0; j < PER_LANE; j++) {
      const int64_t n = lane + 32 * j;
      if (n >= p.a.N) break;
      if (leaves) put_pair(p.a.states, at3(p.a.states, w.b, d, n) + i / 8 * p.a.states.stride[3], x[j]);
      x[j] = add(restart ? pair_of(0) : times(exponential(scale(dt, A[j])), x[j]), scale(du, B_of(p, w.b, d, n, t)));
      if (y) sum += times(C_of(p, w.b, d, n, t), x[j]).re;
      if (kept) write_pair(kept, i * p.a.N + n, x[j]);
    }
    if (!y) continue;
    sum = warp_sum(sum);
    if (lane == 0) y[t] += is_complex(p) ? 2 * sum : sum;
  }
  if (!p.last_state.data) return;
  for (int j = 0; j < PER_LANE; j++)
    if (lane + 32 * j < p.a.N) put_pair(p.last_state, at3(p.last_state, w.row, d, lane + 32 * j), x[j]);
}

KR_KERNEL void KR_BOUNDS(32, 8) kr_scan_general_fwd(const kr_scan_general_params p) {
  const int64_t row = kr_block_x() / p.a.D, d = kr_block_x() % p.a.D;
  const int lane = kr_thread() & 31;
  const any_walk w = walk_of(p, row, has_flag(p, KRAIT_SCAN_REVERSE));
  float *y = p.y + (w.b * p.a.D + d) * p.a.L;
  for (int64_t i = lane; i < w.n; i += 32) y[w.begin + i] = 0.0f;
  kr_sync_warp();
  replay(p, w, d, p.a.A, y, 0);
  if (has_flag(p, KRAIT_SCAN_BOTH)) replay(p, walk_of(p, row, 1), d, p.a.A_reverse, y, 0);
  kr_sync_warp();
  for (int64_t i = lane; i < w.n; i += 32) {
    const int64_t t = w.begin + i;
    float v = kr_fma(skip_of(p, d), get3(p.a.u, w.b, d, t), y[t]);
    if (p.a.z.data) v *= kr_silu(get3(p.a.z, w.b, d, t));
    kr_store(p.out.data, at3(p.out, w.b, d, t), p.out.dtype, silent(p, w, t) ? 0.0f : v);
  }
}

KR_DEV float gradient_of(const kr_scan_general_params &p, const any_walk &w, int64_t d, int64_t t) {
  if (!p.a.dout.data || silent(p, w, t)) return 0.0f;
  const float g = get3(p.a.dout, w.b, d, t);
  return p.a.z.data ? g * kr_silu(get3(p.a.z, w.b, d, t)) : g;
}

/* One direction of a channel backward; its states are at p.x + slab. */
KR_DEV void back(const kr_scan_general_params &p, const any_walk &w, int64_t d, const kr_view &A_view, float *dA,
                 int64_t slab) {
  const int lane = kr_thread() & 31, constant_B = has_flag(p, KRAIT_SCAN_B_CONSTANT),
            constant_C = has_flag(p, KRAIT_SCAN_C_CONSTANT);
  const float *x = p.x + (slab + w.begin) * p.a.N * 2, k = is_complex(p) ? 2.0f : 1.0f;
  const int64_t own = (w.row * p.a.D + d) * p.a.N;
  pair carry[PER_LANE], A[PER_LANE];
  for (int j = 0; j < PER_LANE; j++) {
    const int64_t n = lane + 32 * j;
    carry[j] =
        n < p.a.N && p.a.dlast_state.data ? get_pair(p.a.dlast_state, at3(p.a.dlast_state, w.row, d, n)) : pair_of(0);
    A[j] = n < p.a.N ? get_pair(A_view, at2(A_view, d, n)) : pair_of(0);
  }
  for (int64_t i = w.n - 1; i >= 0; i--) {
    const int64_t t = w.first + i * w.step;
    const float dt = step_size(p, w.b, d, t), u = get3(p.a.u, w.b, d, t), g = gradient_of(p, w, d, t);
    const int restart = restarts(p, w, i);
    float sum_B = 0, sum_A = 0;
    for (int j = 0; j < PER_LANE; j++) {
      const int64_t n = lane + 32 * j;
      if (n >= p.a.N) break;
      const pair decay = exponential(scale(dt, A[j])), before = restart ? pair_of(0)
                                                                : i     ? read_pair(x, (i - 1) * p.a.N + n)
                                                                        : initial_of(p, w, d, n);
      const pair h = times(decay, before), B = B_of(p, w.b, d, n, t),
                 dx = add(scale(k * g, conjugate(C_of(p, w.b, d, n, t))), carry[j]);
      sum_B += times(conjugate(B), dx).re;
      sum_A += times(conjugate(times(A[j], h)), dx).re;
      add_pair(dA, own + n, scale(dt, times(conjugate(h), dx)));
      const pair to_B = scale(dt * u, dx), to_C = scale(k * g, conjugate(read_pair(x, i * p.a.N + n)));
      if (constant_B) add_pair(p.constant_dB, own + n, to_B);
      else add_pair(p.dB, (slab + t) * p.a.N + n, to_B);
      if (constant_C) add_pair(p.constant_dC, own + n, to_C);
      else add_pair(p.dC, (slab + t) * p.a.N + n, to_C);
      carry[j] = restart ? pair_of(0) : times(conjugate(decay), dx);
    }
    sum_B = warp_sum(sum_B), sum_A = warp_sum(sum_A);
    if (lane == 0) p.du[slab + t] += dt * sum_B, p.ddt[slab + t] += kr_fma(u, sum_B, sum_A);
  }
  if (!p.a.dinitial_state.data) return;
  for (int j = 0; j < PER_LANE; j++)
    if (lane + 32 * j < p.a.N) put_pair(p.a.dinitial_state, at3(p.a.dinitial_state, w.row, d, lane + 32 * j), carry[j]);
}

/* du, ddelta and dz of a channel; its contribution to dD and the bias gradient. */
KR_DEV void finish_channel(const kr_scan_general_params &p, const any_walk &w, int64_t d, int64_t slab) {
  float dD = 0, dbias = 0;
  const int lane = kr_thread() & 31;
  for (int64_t i = lane; i < w.n; i += 32) {
    const int64_t t = w.begin + i;
    const float g = gradient_of(p, w, d, t), u = get3(p.a.u, w.b, d, t), raw = raw_step(p, w.b, d, t);
    float ddelta = p.ddt[slab + t];
    if (has_flag(p, KRAIT_SCAN_SOFTPLUS)) ddelta *= kr_softplus_slope(kr_softplus(raw));
    dD += g * u, dbias += ddelta;
    if (p.a.du.data)
      kr_store(p.a.du.data, at3(p.a.du, w.b, d, t), p.a.du.dtype, kr_fma(skip_of(p, d), g, p.du[slab + t]));
    if (p.a.ddelta.data) kr_store(p.a.ddelta.data, at3(p.a.ddelta, w.b, d, t), p.a.ddelta.dtype, ddelta);
    if (!p.a.dz.data) continue;
    const float z = get3(p.a.z, w.b, d, t), s = kr_sigmoid(z),
                dout = p.a.dout.data && !silent(p, w, t) ? get3(p.a.dout, w.b, d, t) : 0.0f;
    kr_store(p.a.dz.data, at3(p.a.dz, w.b, d, t), p.a.dz.dtype,
             dout * kr_fma(skip_of(p, d), u, p.y[slab + t]) * kr_fma(z * s, 1.0f - s, s));
  }
  dD = warp_sum(dD), dbias = warp_sum(dbias);
  if (lane == 0) p.dD[w.row * p.a.D + d] = dD, p.dbias[w.row * p.a.D + d] = dbias;
}

KR_KERNEL void KR_BOUNDS(32, 8) kr_scan_general_bwd(const kr_scan_general_params p) {
  const int lane = kr_thread() & 31;
  const int64_t part = kr_block_x() % p.parts, g = kr_block_x() / p.parts % p.a.G, row = kr_block_x() / p.parts / p.a.G,
                per_group = p.a.D / p.a.G;
  const any_walk w = walk_of(p, row, has_flag(p, KRAIT_SCAN_REVERSE)), other = walk_of(p, row, 1);
  const int64_t slab = ((g * p.parts + part) * p.a.B + w.b) * p.a.L,
                end = (part + 1) * p.per_part < per_group ? (part + 1) * p.per_part : per_group;
  const int both = has_flag(p, KRAIT_SCAN_BOTH);
  float *x = p.x + (slab + w.begin) * p.a.N * 2;
  for (int64_t i = lane; i < w.n * p.a.N * 2; i += 32)
    p.dB[(slab + w.begin) * p.a.N * 2 + i] = p.dC[(slab + w.begin) * p.a.N * 2 + i] = 0.0f;
  for (int64_t d = g * per_group + part * p.per_part; d < g * per_group + end; d++) {
    for (int64_t i = lane; i < w.n; i += 32)
      p.y[slab + w.begin + i] = p.du[slab + w.begin + i] = p.ddt[slab + w.begin + i] = 0.0f;
    for (int64_t i = (row * p.a.D + d) * p.a.N * 2 + lane; i < (row * p.a.D + d + 1) * p.a.N * 2; i += 32)
      p.dA[i] = p.dA_reverse[i] = p.constant_dB[i] = p.constant_dC[i] = 0.0f;
    kr_sync_warp();
    if (both) {
      replay(p, other, d, p.a.A_reverse, p.y + slab, x);
      kr_sync_warp();
      back(p, other, d, p.a.A_reverse, p.dA_reverse, slab);
      kr_sync_warp();
    }
    replay(p, w, d, p.a.A, p.y + slab, x);
    kr_sync_warp();
    back(p, w, d, p.a.A, p.dA, slab);
    kr_sync_warp();
    finish_channel(p, w, d, slab);
    kr_sync_warp();
  }
}

/* One thread per (batch, group, state, step). */
KR_DEV void sum_matrices(const kr_scan_general_params &p, int64_t i) {
  const int64_t t = i % p.a.L, n = i / p.a.L % p.a.N, g = i / p.a.L / p.a.N % p.a.G, b = i / p.a.L / p.a.N / p.a.G;
  for (int is_C = 0; is_C < 2; is_C++) {
    const kr_view &v = is_C ? p.a.dC : p.a.dB;
    const float *from = is_C ? p.dC : p.dB;
    if (!v.data || has_flag(p, is_C ? KRAIT_SCAN_C_CONSTANT : KRAIT_SCAN_B_CONSTANT)) continue;
    pair sum = {0, 0};
    for (int64_t k = 0; k < p.parts; k++)
      sum = add(sum, read_pair(from, (((g * p.parts + k) * p.a.B + b) * p.a.L + t) * p.a.N + n));
    const int64_t at = at3(v, b, g, n);
    if (is_complex(p))
      kr_store(v.data, at + 2 * t * v.stride[3], v.dtype, sum.re),
          kr_store(v.data, at + (2 * t + 1) * v.stride[3], v.dtype, sum.im);
    else kr_store(v.data, at + t * v.stride[3], v.dtype, sum.re);
  }
}

KR_DEV void sum_rows(const kr_scan_general_params &p, const kr_view &v, const float *from, int64_t d, int64_t n) {
  pair sum = {0, 0};
  if (!v.data) return;
  for (int64_t row = 0; row < p.n_rows; row++) sum = add(sum, read_pair(from, (row * p.a.D + d) * p.a.N + n));
  put_pair(v, at2(v, d, n), sum);
}

/* One thread per (channel, state); the first of a channel also does dD and bias. */
KR_DEV void sum_parameters(const kr_scan_general_params &p, int64_t i) {
  const int64_t d = i / p.a.N, n = i % p.a.N;
  if (d >= p.a.D) return;
  sum_rows(p, p.a.dA, p.dA, d, n);
  sum_rows(p, p.a.dA_reverse, p.dA_reverse, d, n);
  if (has_flag(p, KRAIT_SCAN_B_CONSTANT)) sum_rows(p, p.a.dB, p.constant_dB, d, n);
  if (has_flag(p, KRAIT_SCAN_C_CONSTANT)) sum_rows(p, p.a.dC, p.constant_dC, d, n);
  if (n) return;
  float dD = 0, dbias = 0;
  for (int64_t row = 0; row < p.n_rows; row++) dD += p.dD[row * p.a.D + d], dbias += p.dbias[row * p.a.D + d];
  if (p.a.dDvec.data) ((float *)p.a.dDvec.data)[d * p.a.dDvec.stride[0]] = dD;
  if (p.a.ddelta_bias.data) ((float *)p.a.ddelta_bias.data)[d * p.a.ddelta_bias.stride[0]] = dbias;
}

KR_KERNEL void kr_scan_general_sum(const kr_scan_general_params p) {
  const int64_t n_steps = p.a.B * p.a.G * p.a.N * p.a.L, i = (int64_t)kr_block_x() * kr_block_threads() + kr_thread();
  if (i < n_steps) sum_matrices(p, i);
  else sum_parameters(p, i - n_steps);
}

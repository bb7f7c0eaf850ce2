/* selective_scan_time_over_lanes.cu: the forward scan with time over lanes (scan_time_over_lanes.cuh): for few
 * channels, short sequences, few states, packed sequences by offsets, mixed types (selective_scan_ref.c has the
 * equation). kr_scan_time_over_lanes_{t8,t32}  y of one chunk per block; _packed: with sequence indices; _any:
 * unaligned or mixed tensors kr_scan_time_over_lanes_state     the chunk's last state from zero, and its sum of dt:
 * phase one when time is chunked kr_scan_time_over_lanes_wide      y of one channel per block, all its lanes over time:
 * for the fewest channels kr_scan_short           at most eight steps: lanes share the states, steps are in registers
 * Per tile, a thread holds dt, dt u and y of its run; for each state in turn it advances its run from zero, the lanes
 * join their runs, and it advances its run again from the true state. B and C of a slab of states are in shared memory
 * as float32. */
#include "scan_gate.cuh"
#include "scan_time_over_lanes.cuh"

/* Stores the run's y: plus the other direction's, times silu(z), 0 where masked. */
KR_DEV void finish_run(const kr_scan_params &p, const lanes_place &w, const int TT, const int DIRECT, const int PACKED,
                       int64_t t0, uint32_t marks, float *turn, float (&y)[RUN]) {
  float v[RUN];
  if (p.add.data) {
    read_row(p, w, p.add, TT, DIRECT, t0, turn, v);
#pragma unroll
    for (int k = 0; k < RUN; k++) y[k] += v[k];
  }
  if (p.z.data) {
    read_row(p, w, p.z, TT, DIRECT, t0, turn, v);
#pragma unroll
    for (int k = 0; k < RUN; k++) y[k] *= gate_of(v[k]);
  }
  if (PACKED) {
#pragma unroll
    for (int k = 0; k < RUN; k++)
      if (marks >> (16 + k) & 1) y[k] = 0.0f;
  }
  write_row(p, w, p.out, TT, DIRECT, t0, turn, y);
}

/* Adds a state's part of y, in the order of scan_lanes, where it met NaN or infinity beside the first of a sequence:
 * what was before is left out. Rare, so that it takes few registers: all that a step needs is in local memory. */
KR_DEV void scan_spoilt_state(const lanes_place &w, const int TT, const float *row_b, const float *row_c, float A,
                              float first, float *carry, uint32_t marks, const float (&dt)[RUN], const float (&du)[RUN],
                              float (&y)[RUN]) {
  float steps[RUN], inputs[RUN], sums[RUN];
#pragma unroll
  for (int k = 0; k < RUN; k++) steps[k] = dt[k], inputs[k] = du[k], sums[k] = y[k];
  float x = kr_select(w.lane == 0, first, 0.0f), decay = 1;
#pragma unroll 1
  for (int k = 0; k < RUN; k++) {
    const int at = k / 4 * quarter_floats(TT) + w.lane * 4 + (k & 3);
    const float a = kr_exp2(steps[k] * A);
    x = step_state(CUT, marks, k, a, x, inputs[k] * row_b[at]);
    decay = marks >> k & 1 ? kr_bits_to_float(KR_LANES_FORGET) : decay * a;
  }
  join_up(TT, 1, w.lane, x, decay);
  const float before = kr_shuffle_up(x, 1, TT);
  kr_sync_warp();
  if (w.lane == TT - 1) *carry = x;
  x = kr_select(w.lane == 0, first, before);
#pragma unroll 1
  for (int k = 0; k < RUN; k++) {
    const int at = k / 4 * quarter_floats(TT) + w.lane * 4 + (k & 3);
    x = step_state(CUT, marks, k, kr_exp2(steps[k] * A), x, inputs[k] * row_b[at]);
    sums[k] = kr_fma(row_c[at], x, sums[k]);
  }
#pragma unroll
  for (int k = 0; k < RUN; k++) y[k] = sums[k];
}

KR_DEV void scan_lanes(const kr_scan_params &p, const int TT, const int DIRECT, const int PACKED) {
  KR_DYNAMIC_SHARED(shared);
  const lanes_place w = place_lanes(p, TT);
  const int SLOTS = THREADS / TT;
  float *s_A = (float *)shared, *s_carry = s_A + p.N * SLOTS, *s_bc = s_carry + p.N * SLOTS,
        *turn = s_bc + p.slab * 2 * row_floats(TT) + w.thread / 32 * 32 * TURN;
  const int64_t d = w.d0 + w.slot;
  const int exists = w.slot < w.n_channels;
  const float bias = p.bias && exists ? p.bias[d * p.bias_stride] : 0.0f,
              skip = p.D_vec && exists ? p.D_vec[d * p.D_stride] : 0.0f;
  fetch_states(p, w, TT, p.A + w.d0 * p.A_d, p.A_d, p.A_n, KR_LOG2E, s_A);
  if (p.n_chunks > 1)
    fetch_states(p, w, TT, state_slab(p, w, p.chunk_state, w.b * p.n_chunks + w.chunk), p.N_padded, 1, 1.0f, s_carry);
  else
    fetch_states(p, w, TT, p.initial.data ? p.initial.data + w.b * p.initial.b + w.d0 * p.initial.d : 0, p.initial.d,
                 p.initial.n, 1.0f, s_carry);
  for (int64_t t0 = w.begin; t0 < w.end; t0 += TT * RUN) {
    float dt[RUN], du[RUN], y[RUN], sum_dt = 0;
    run_bits u_bits, delta_bits;
    load_run(p, w, p.u, TT, DIRECT, t0, u_bits);
    load_run(p, w, p.delta, TT, DIRECT, t0, delta_bits);
    if (p.z.data) expect_run(w, p.z, t0);
    expect_run(w, p.u, t0 + TT * RUN);
    expect_run(w, p.delta, t0 + TT * RUN);
    const uint32_t marks = PACKED ? run_marks(p, w, t0) : 0;
    unpack_run(p, w, p.u, DIRECT, u_bits, turn, du);
    unpack_run(p, w, p.delta, DIRECT, delta_bits, turn, dt);
    step_sizes(p, w, bias, t0, dt);
#pragma unroll
    for (int k = 0; k < RUN; k++) y[k] = skip * du[k], du[k] *= dt[k], sum_dt += dt[k];
    for (int n0 = 0; n0 < p.N; n0 += p.slab) {
      const int n_states = p.N - n0 < p.slab ? p.N - n0 : p.slab;
      kr_sync();
      stage_both(p, w, TT, DIRECT, n0, n_states, t0, s_bc);
      kr_sync();
      const float *row = s_bc;
#pragma unroll 1
      for (int n = n0; n < n0 + n_states; n++, row += row_floats(TT)) {
        const float *row_c = row + n_states * row_floats(TT), A = s_A[n * SLOTS + w.slot];
        float a[RUN], b[RUN], C[RUN], after, *const carry = s_carry + n * SLOTS + w.slot;
        const float first = PACKED ? *carry : 0.0f;
        read_run(row, TT, w.lane, C);
        float x = join_state(w, TT, PACKED ? ZEROED : NO_RESETS, C, A, carry, marks, sum_dt, dt, du, a, b, after);
        if (PACKED && any_lane_says(after * 0.0f != 0)) {
          scan_spoilt_state(w, TT, row, row_c, A, first, carry, marks, dt, du, y);
          continue;
        }
        read_run(row_c, TT, w.lane, C);
#pragma unroll
        for (int k = 0; k < RUN; k++) {
          x = kr_fma(a[k], x, b[k]);
          y[k] = kr_fma(C[k], x, y[k]);
        }
      }
    }
    finish_run(p, w, TT, DIRECT, PACKED, t0, marks, turn, y);
  }
  kr_sync_warp();
  if (p.last.data && w.chunk + 1 >= p.n_chunks)
    keep_states(p, w, TT, s_carry, p.last.data + w.b * p.last.b + w.d0 * p.last.d, p.last.d, p.last.n);
}

KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_TIER < 80 ? 3 : 4) kr_scan_time_over_lanes_t8(const kr_scan_params p) {
  scan_lanes(p, 8, 1, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_TIER < 80 ? 2 : 4) kr_scan_time_over_lanes_t8_any(const kr_scan_params p) {
  scan_lanes(p, 8, 0, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_TIER < 80 ? 3 : 4) kr_scan_time_over_lanes_t32(const kr_scan_params p) {
  scan_lanes(p, 32, 1, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_TIER < 80 ? 2 : 4)
    kr_scan_time_over_lanes_t32_any(const kr_scan_params p) {
  scan_lanes(p, 32, 0, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_TIER < 80 ? 2 : 4) kr_scan_time_over_lanes_packed(const kr_scan_params p) {
  scan_lanes(p, 32, 0, 1);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_time_over_lanes_state(const kr_scan_params p) {
  sweep_lanes(p, 32, 1, 0, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_TIER < 80 ? 2 : 4)
    kr_scan_time_over_lanes_state_any(const kr_scan_params p) {
  sweep_lanes(p, 32, 0, 0, 0);
}

/* Loads a run of B or C straight from memory: rows in aligned groups of four. */
KR_DEV void load_states(const lanes_place &w, const kr_scan_mat &m, int n, int64_t t, raw4 (&raw)[QUARTERS]) {
  const char *from = (const char *)m.data + (w.b * m.b + w.g * m.g + n * m.n + t) * WORDS;
#pragma unroll
  for (int q = 0; q < QUARTERS; q++) raw[q] = load4(from + q * 4 * WORDS, t + q * 4 < w.end);
}

KR_DEV void unpack_states(const raw4 (&raw)[QUARTERS], float (&v)[RUN]) {
#pragma unroll
  for (int k = 0; k < RUN; k++) v[k] = element4(raw[k / 4], k & 3);
}

/* All of the block's lanes cover one channel, and its warps join their runs through shared memory: the shortest chain
 * for a channel, at the price of loading B and C anew for each. For tensors in aligned groups of four. */
KR_DEV void scan_wide(const kr_scan_params &p) {
  KR_DYNAMIC_SHARED(shared);
  const lanes_place w = place_lanes(p, THREADS);
  const int WARPS = THREADS / 32, warp = w.thread / 32;
  float *s_A = (float *)shared, *s_carry = s_A + p.N,
        *s_ends = s_carry + p.N; /* per state, by parity: each warp's end from zero and its decay */
  const float bias = p.bias ? p.bias[w.d0 * p.bias_stride] : 0.0f, skip = p.D_vec ? p.D_vec[w.d0 * p.D_stride] : 0.0f;
  fetch_states(p, w, THREADS, p.A + w.d0 * p.A_d, p.A_d, p.A_n, KR_LOG2E, s_A);
  fetch_states(p, w, THREADS, p.initial.data ? p.initial.data + w.b * p.initial.b + w.d0 * p.initial.d : 0, p.initial.d,
               p.initial.n, 1.0f, s_carry);
  for (int64_t t0 = w.begin; t0 < w.end; t0 += THREADS * RUN) {
    const int64_t t = t0 + w.lane * RUN;
    float dt[RUN], du[RUN], y[RUN], sum_dt = 0;
    run_bits bits, delta_bits;
    raw4 B[QUARTERS], C[QUARTERS];
    load_run(p, w, p.u, THREADS, 1, t0, bits);
    load_run(p, w, p.delta, THREADS, 1, t0, delta_bits);
    load_states(w, p.B_mat, 0, t, B);
    load_states(w, p.C_mat, 0, t, C);
    if (p.z.data) expect_run(w, p.z, t0);
    unpack_run(p, w, p.u, 1, bits, 0, du);
    unpack_run(p, w, p.delta, 1, delta_bits, 0, dt);
    step_sizes(p, w, bias, t0, dt);
#pragma unroll
    for (int k = 0; k < RUN; k++) y[k] = skip * du[k], du[k] *= dt[k], sum_dt += dt[k];
    kr_sync();
#pragma unroll 1
    for (int n = 0; n < p.N; n++) {
      float a[RUN], b[RUN], v[RUN], *ends = s_ends + (n & 1) * 2 * WARPS;
      const float A = s_A[n];
      float x = 0, decay = kr_exp2(A * sum_dt), first = s_carry[n];
      unpack_states(B, v);
#pragma unroll
      for (int k = 0; k < RUN; k++) {
        a[k] = kr_exp2(dt[k] * A);
        b[k] = du[k] * v[k];
        x = kr_fma(a[k], x, b[k]);
      }
      join_up(32, 0, w.at, x, decay);
      if (w.at == 31) ends[warp * 2] = x, ends[warp * 2 + 1] = decay;
      unpack_states(C, v);
      if (n + 1 < p.N) load_states(w, p.B_mat, n + 1, t, B), load_states(w, p.C_mat, n + 1, t, C);
      kr_sync();
#pragma unroll
      for (int i = 0; i < WARPS; i++) {
        const float after = kr_fma(ends[i * 2 + 1], first, ends[i * 2]);
        if (i < warp) first = after;
        else if (i == WARPS - 1 && warp == i && w.at == 31) s_carry[n] = after;
      }
      const float before = kr_shuffle_up(x, 1, 32), before_decay = kr_shuffle_up(decay, 1, 32);
      x = kr_select(w.at == 0, first, kr_fma(before_decay, first, before));
#pragma unroll
      for (int k = 0; k < RUN; k++) {
        x = kr_fma(a[k], x, b[k]);
        y[k] = kr_fma(v[k], x, y[k]);
      }
    }
    if (p.z.data) {
      float z[RUN];
      load_run(p, w, p.z, THREADS, 1, t0, bits);
      unpack_run(p, w, p.z, 1, bits, 0, z);
#pragma unroll
      for (int k = 0; k < RUN; k++) y[k] *= gate_of(z[k]);
    }
    write_row(p, w, p.out, THREADS, 1, t0, 0, y);
  }
  kr_sync();
  if (p.last.data)
    keep_states(p, w, THREADS, s_carry, p.last.data + w.b * p.last.b + w.d0 * p.last.d, p.last.d, p.last.n);
}

KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_TIER < 80 || KR_DTYPE == KRAIT_F32 ? 3 : 4)
    kr_scan_time_over_lanes_wide(const kr_scan_params p) {
  scan_wide(p);
}

enum { SHORT = 8 };

KR_DEV int64_t at_row(const kr_rows &v, int64_t b, int64_t d, int64_t t) { return b * v.b + d * v.row + t * v.t; }

/* p.T lanes of a channel share the states; each keeps all steps in registers. */
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_short(const kr_scan_params p) {
  const int64_t row = ((int64_t)kr_block_x() * KR_SCAN_THREADS + kr_thread()) >> p.T_shift;
  const int exists = row < p.B * p.D, lane = kr_thread() & (p.T - 1);
  const int64_t b = exists ? row / p.D : 0, d = exists ? row % p.D : 0, g = d / p.D_group;
  const float bias = p.bias ? p.bias[d * p.bias_stride] : 0.0f, skip = p.D_vec ? p.D_vec[d * p.D_stride] : 0.0f;
  uint32_t u_bits[SHORT], delta_bits[SHORT];
  float dt[SHORT], du[SHORT], y[SHORT];
#pragma unroll
  for (int k = 0; k < SHORT; k++) {
    u_bits[k] = k < p.L ? load_bits(p.u.data, at_row(p.u, b, d, k), KR_DTYPE) : 0;
    delta_bits[k] = k < p.L ? load_bits(p.delta.data, at_row(p.delta, b, d, k), p.delta.dtype) : 0;
  }
#pragma unroll
  for (int k = 0; k < SHORT; k++) {
    const float u = value_of(u_bits[k], KR_DTYPE), raw = value_of(delta_bits[k], p.delta.dtype) + bias;
    dt[k] = p.softplus ? kr_softplus(raw) : raw;
    dt[k] = k < p.L ? dt[k] : 0.0f;
    du[k] = dt[k] * u;
    y[k] = lane ? 0.0f : skip * u;
  }
#pragma unroll 1
  for (int n = lane; n < p.N; n += p.T) {
    const float A = p.A[d * p.A_d + n * p.A_n] * KR_LOG2E;
    float x = p.initial.data ? p.initial.data[b * p.initial.b + d * p.initial.d + n * p.initial.n] : 0.0f;
    uint32_t B[SHORT], C[SHORT];
#pragma unroll
    for (int k = 0; k < SHORT; k++) {
      B[k] = k < p.L
                 ? load_bits(p.B_mat.data, b * p.B_mat.b + g * p.B_mat.g + n * p.B_mat.n + k * p.B_mat.t, p.B_mat.dtype)
                 : 0;
      C[k] = k < p.L
                 ? load_bits(p.C_mat.data, b * p.C_mat.b + g * p.C_mat.g + n * p.C_mat.n + k * p.C_mat.t, p.C_mat.dtype)
                 : 0;
    }
#pragma unroll
    for (int k = 0; k < SHORT; k++) {
      x = kr_fma(kr_exp2(dt[k] * A), x, du[k] * value_of(B[k], p.B_mat.dtype));
      y[k] = kr_fma(value_of(C[k], p.C_mat.dtype), x, y[k]);
    }
    if (p.last.data && exists) p.last.data[b * p.last.b + d * p.last.d + n * p.last.n] = x;
  }
  for (int i = 1; i < p.T; i <<= 1) {
#pragma unroll
    for (int k = 0; k < SHORT; k++) y[k] += kr_shuffle_xor(y[k], i);
  }
#pragma unroll
  for (int k = 0; k < SHORT; k++) {
    if (!exists || k >= p.L || lane != (k & (p.T - 1))) continue;
    if (p.add.data) y[k] += ((const float *)p.add.data)[at_row(p.add, b, d, k)];
    if (p.z.data) y[k] *= gate_of(kr_load(p.z.data, at_row(p.z, b, d, k), p.z.dtype));
    kr_store(p.out.data, at_row(p.out, b, d, k), p.out.dtype, y[k]);
  }
}

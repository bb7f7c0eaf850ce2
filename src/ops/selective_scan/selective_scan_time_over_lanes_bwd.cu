/* selective_scan_time_over_lanes_bwd.cu: gradients of the scan with time over lanes (scan_time_over_lanes.cuh), real A
 * (selective_scan_bwd_ref.c has the equations).
 *   kr_scan_time_over_lanes_sweep, _sweep_packed     forward over each chunk: stores the state before every tile; not
 * needed for a single tile; if chunked, blocks with z = 1 compute the gradient of a chunk's first state from zero at
 * its end kr_scan_time_over_lanes_back_{t8,t16,packed}     one chunk per block, tiles from the last, from the gradient
 * of the chunk's last state each also _any: unaligned or mixed tensors A thread holds dt, dt u, g and three sums over
 * states of its run. For each state the lanes join their runs forward, then backward; partial dB and dC go to shared
 * memory, where the block reduces them over its channels, one barrier per state. With g = dout silu(z) and dx_t = g C +
 * a_{t+1} dx_{t+1}:  q = a dx x_{t-1};  s1 = sum_n dx B;  s2 = sum_n A q;  y = sum_n C x; du = D g + dt s1;  ddt = u s1
 * + s2;  dA += dt q;  dB += dx dt u;  dC += g x. */
#define KR_LANES_RUN 8
#include "scan_time_over_lanes.cuh"

/* A block's partial dB and dC: [B or C][half of a run][channel][lane][4]. */
enum {
  PLANE = THREADS * 4 + 16,
  PART = 4 * PLANE
};

/* g = dout silu(z); dout at masked outputs counts as 0. */
KR_DEV void gated_gradient(const kr_scan_params &p, const lanes_place &w, const int TT, const int DIRECT,
                           const int PACKED, int64_t t0, uint32_t marks, float *turn, float (&g)[RUN]) {
#pragma unroll
  for (int k = 0; k < RUN; k++) g[k] = 0.0f;
  if (!p.dout.data) return;
  read_row(p, w, p.dout, TT, DIRECT, t0, turn, g);
  if (PACKED) {
#pragma unroll
    for (int k = 0; k < RUN; k++)
      if (marks >> (16 + k) & 1) g[k] = 0.0f;
  }
  if (!p.z.data) return;
  float z[RUN];
  read_row(p, w, p.z, TT, DIRECT, t0, turn, z);
#pragma unroll
  for (int k = 0; k < RUN; k++) g[k] *= kr_silu(z[k]);
}

/* The states before the tile at t0: from the chunk's first state and the kept ones. */
KR_DEV void first_states(const kr_scan_params &p, const lanes_place &w, const int TT, int64_t t0, const float *s_A,
                         float *s_first) {
  if (t0 == w.begin) {
    if (p.n_chunks > 1)
      fetch_states(p, w, TT, state_slab(p, w, p.chunk_state, w.b * p.n_chunks + w.chunk), p.N_padded, 1, 1.0f, s_first);
    else
      fetch_states(p, w, TT, p.initial.data ? p.initial.data + w.b * p.initial.b + w.d0 * p.initial.d : 0, p.initial.d,
                   p.initial.n, 1.0f, s_first);
    return;
  }
  const int64_t kept = w.b * p.n_kept + t0 / (TT * RUN);
  fetch_states(p, w, TT, state_slab(p, w, p.kept_state, kept), p.N_padded, 1, 1.0f, s_first);
  if (p.n_chunks == 1 || w.slot >= w.n_channels) return;
  const float sum_dt = p.kept_dt[kept * p.D + w.d0 + w.slot],
              *first = state_slab(p, w, p.chunk_state, w.b * p.n_chunks + w.chunk) + w.slot * p.N_padded;
  for (int n = w.lane; n < p.N; n += TT) {
    const int at = n * (THREADS / TT) + w.slot;
    s_first[at] = kr_fma(kr_exp2(s_A[at] * sum_dt), first[n], s_first[at]);
  }
}

/* Reduces the block's partial sums of one state over its channels, in order. A thread keeps its steps across states:
 * see fold_of. */
typedef struct fold_place {
  int from[4], exists[4];
  float *to[4];
} fold_place;

/* The thread's output: its step of B's or C's row; rows of part_bc are n (B) and N_padded + n (C). */
KR_DEV fold_place fold_of(const kr_scan_params &p, const lanes_place &w, const int TT, int64_t t0, float *to) {
  const int TILE = TT * RUN;
  fold_place f;
#pragma unroll
  for (int v = 0; v < 2 * TILE / THREADS; v++) {
    const int id = w.thread + v * THREADS, m = id / TILE, t = id % TILE;
    f.from[v] = (m * 2 + (t >> 2 & 1)) * PLANE + t / RUN * 4 + (t & 3);
    f.exists[v] = t0 + t < w.end;
    f.to[v] = to + m * p.N_padded * p.L + t0 + t;
  }
  return f;
}

KR_DEV void fold_part(const kr_scan_params &p, const int TT, const float *part, fold_place &f) {
#pragma unroll
  for (int v = 0; v < 2 * TT * RUN / THREADS; v++) {
    const float *from = part + f.from[v];
    float sum = from[0];
#pragma unroll
    for (int c = 1; c < THREADS / TT; c++) sum += from[c * TT * 4];
    if (f.exists[v]) *f.to[v] = sum;
    f.to[v] += p.L;
  }
}

/* Stores a lane's partial sums; half 1 is 16 banks after half 0. */
KR_DEV void put_part(float *part, int thread, const float (&v)[RUN]) {
#pragma unroll
  for (int h = 0; h < 2; h++)
    *(kr_float4 *)(part + h * PLANE + thread * 4) = kr_float4{{v[h * 4], v[h * 4 + 1], v[h * 4 + 2], v[h * 4 + 3]}};
}

typedef struct back_run {
  float dt[RUN], du[RUN], g[RUN], s1[RUN], s2[RUN], y[RUN], sum_dt;
} back_run;

/* One state of a run, both ways. carry: gradient of the state after the tile, replaced by that of the state before it,
 * times its decay. RESETS: a sequence may begin in the tile; NaN stays on its side. */
KR_DEV void back_state(const lanes_place &w, const int TT, const int RESETS, const float *row_b, const float *row_c,
                       float A, float *first, float *carry, float *dA, uint32_t marks, float *part, back_run &r) {
  float a[RUN], x[RUN], B[RUN], v[RUN], dx[RUN], end;
  read_run(row_b, TT, w.lane, B);
  const float after = *carry, before = join_state(w, TT, RESETS, B, A, first, marks, r.sum_dt, r.dt, r.du, a, x, end);
  read_run(row_c, TT, w.lane, v);
#pragma unroll
  for (int k = 0; k < RUN; k++) {
    x[k] = step_state(RESETS, marks, k, a[k], k ? x[k ? k - 1 : 0] : before, x[k]);
    r.y[k] = kr_fma(v[k], x[k], r.y[k]);
    dx[k] = r.g[k] * v[k];
    v[k] = r.g[k] * x[k];
  }
  put_part(part + 2 * PLANE, w.thread, v);
  float h = dx[RUN - 1] + kr_select(w.lane == TT - 1, after, 0.0f), decay = kr_exp2(A * r.sum_dt);
  if (RESETS && marks & 0xffff) decay = kr_bits_to_float(KR_LANES_FORGET);
#pragma unroll
  for (int k = RUN - 2; k >= 0; k--) h = step_state(RESETS, marks, k + 1, a[k + 1], h, dx[k]);
  h = RESETS && marks & 1 ? 0.0f : h * a[0];
  join_down(TT, RESETS, w.lane, h, decay);
  const float later = kr_shuffle_down(h, 1, TT);
  kr_sync_warp(); /* all lanes have read it */
  if (w.lane == 0) *carry = h;
  dx[RUN - 1] += kr_select(w.lane == TT - 1, after, later);
#pragma unroll
  for (int k = RUN - 2; k >= 0; k--) dx[k] = step_state(RESETS, marks, k + 1, a[k + 1], dx[k + 1], dx[k]);
  float sum_A = 0;
#pragma unroll
  for (int k = 0; k < RUN; k++) {
    float q = a[k] * dx[k] * (k ? x[k ? k - 1 : 0] : before);
    if (RESETS && marks >> k & 1) q = 0.0f;
    r.s1[k] = kr_fma(dx[k], B[k], r.s1[k]);
    r.s2[k] = kr_fma(A, q, r.s2[k]);
    sum_A = kr_fma(r.dt[k], q, sum_A);
    v[k] = dx[k] * r.du[k];
  }
  put_part(part, w.thread, v);
  sum_A = sum_of_lanes(TT, sum_A);
  if (w.lane == 0) *dA += sum_A;
}

/* Stores the gradients of a run. u, dout and z are loaded again: they hit the cache, and registers are scarce. */
KR_DEV void finish_run(const kr_scan_params &p, const lanes_place &w, const int TT, const int DIRECT, const int PACKED,
                       int64_t t0, uint32_t marks, float skip, float *turn, back_run &r, float &dD, float &dbias) {
  const int64_t left = w.end - t0 - w.lane * RUN;
  float u[RUN], v[RUN];
  read_row(p, w, p.u, TT, DIRECT, t0, turn, u);
  if (p.z.data && p.dz.data) {
    float dout[RUN];
#pragma unroll
    for (int k = 0; k < RUN; k++) dout[k] = 0.0f;
    if (p.dout.data) read_row(p, w, p.dout, TT, DIRECT, t0, turn, dout);
    read_row(p, w, p.z, TT, DIRECT, t0, turn, v);
#pragma unroll
    for (int k = 0; k < RUN; k++) {
      const float s = kr_sigmoid(v[k]), gate = v[k] * s;
      if (PACKED && marks >> (16 + k) & 1) dout[k] = 0.0f;
      v[k] = dout[k] * kr_fma(skip, u[k], r.y[k]) * kr_fma(gate, 1.0f - s, s);
    }
    write_row(p, w, p.dz, TT, DIRECT, t0, turn, v);
  }
#pragma unroll
  for (int k = 0; k < RUN; k++) {
    v[k] = kr_fma(u[k], r.s1[k], KR_LN2 * r.s2[k]);
    if (p.softplus) v[k] *= kr_softplus_slope(r.dt[k]);
    v[k] = k < left ? v[k] : 0.0f;
    dbias += v[k];
    dD = kr_fma(r.g[k], u[k], dD);
  }
  if (p.ddelta.data) write_row(p, w, p.ddelta, TT, DIRECT, t0, turn, v);
  if (!p.du.data) return;
#pragma unroll
  for (int k = 0; k < RUN; k++) v[k] = kr_fma(skip, r.g[k], r.dt[k] * r.s1[k]);
  write_row(p, w, p.du, TT, DIRECT, t0, turn, v);
}

KR_DEV int64_t last_tile(const lanes_place &w, const int TT) {
  return w.end > w.begin ? w.begin + (w.end - w.begin - 1) / (TT * RUN) * (TT * RUN) : w.begin - TT * RUN;
}

KR_DEV void back_lanes(const kr_scan_params &p, const int TT, const int DIRECT, const int PACKED) {
  KR_DYNAMIC_SHARED(shared);
  const lanes_place w = place_lanes(p, TT);
  const int SLOTS = THREADS / TT, states = p.N * SLOTS;
  float *s_A = (float *)shared, *s_first = s_A + states, *s_carry = s_first + states, *s_dA = s_carry + states,
        *s_part = s_dA + states, *s_bc = s_part + 2 * PART,
        *turn = s_bc + p.slab * 2 * row_floats(TT) + w.thread / 32 * 32 * TURN;
  const int64_t d = w.d0 + w.slot, slab = w.b * p.n_chunks + w.chunk;
  const int exists = w.slot < w.n_channels;
  const float bias = p.bias && exists ? p.bias[d * p.bias_stride] : 0.0f,
              skip = p.D_vec && exists ? p.D_vec[d * p.D_stride] : 0.0f;
  float dD = 0, dbias = 0, *part_to = p.part_bc + (int64_t)kr_block_x() * p.L * 2 * p.N_padded;
  fetch_states(p, w, TT, p.A + w.d0 * p.A_d, p.A_d, p.A_n, KR_LOG2E, s_A);
  fetch_states(p, w, TT, 0, 0, 0, 1.0f, s_dA);
  if (p.n_chunks > 1) fetch_states(p, w, TT, state_slab(p, w, p.chunk_carry, slab), p.N_padded, 1, 1.0f, s_carry);
  else
    fetch_states(p, w, TT, p.dlast.data ? p.dlast.data + w.b * p.dlast.b + w.d0 * p.dlast.d : 0, p.dlast.d, p.dlast.n,
                 1.0f, s_carry);
  for (int64_t t0 = last_tile(w, TT); t0 >= w.begin; t0 -= TT * RUN) {
    back_run r;
    const uint32_t marks = PACKED ? run_marks(p, w, t0) : 0;
    const int resets = tile_resets(PACKED, marks);
    run_bits u_bits, delta_bits;
    load_run(p, w, p.u, TT, DIRECT, t0, u_bits);
    load_run(p, w, p.delta, TT, DIRECT, t0, delta_bits);
    kr_sync_warp();
    first_states(p, w, TT, t0, s_A, s_first);
    unpack_run(p, w, p.u, DIRECT, u_bits, turn, r.du);
    unpack_run(p, w, p.delta, DIRECT, delta_bits, turn, r.dt);
    gated_gradient(p, w, TT, DIRECT, PACKED, t0, marks, turn, r.g);
    expect_run(w, p.u, t0 - TT * RUN), expect_run(w, p.delta, t0 - TT * RUN);
    if (p.dout.data) expect_run(w, p.dout, t0 - TT * RUN);
    if (p.z.data) expect_run(w, p.z, t0 - TT * RUN);
    step_sizes(p, w, bias, t0, r.dt);
    r.sum_dt = 0;
#pragma unroll
    for (int k = 0; k < RUN; k++) r.du[k] *= r.dt[k], r.sum_dt += r.dt[k], r.s1[k] = r.s2[k] = r.y[k] = 0.0f;
    fold_place fold = fold_of(p, w, TT, t0, part_to);
    float *part = s_part, *other = s_part + PART; /* double buffer: one is written while the other may still be read */
    for (int n0 = 0; n0 < p.N; n0 += p.slab) {
      const int n_states = p.N - n0 < p.slab ? p.N - n0 : p.slab;
      kr_sync();
      stage_both(p, w, TT, DIRECT, n0, n_states, t0, s_bc);
      kr_sync();
      const float *row = s_bc;
#pragma unroll 1
      for (int n = n0; n < n0 + n_states; n++, row += row_floats(TT)) {
        const int at = n * SLOTS + w.slot;
        const float *row_c = row + n_states * row_floats(TT);
        if (resets)
          back_state(w, TT, CUT, row, row_c, s_A[at], s_first + at, s_carry + at, s_dA + at, marks, part, r);
        else
          back_state(w, TT, NO_RESETS, row, row_c, s_A[at], s_first + at, s_carry + at, s_dA + at, 0, part, r);
        kr_sync();
        fold_part(p, TT, part, fold);
        float *const swap = part;
        part = other, other = swap;
      }
    }
    finish_run(p, w, TT, DIRECT, PACKED, t0, marks, skip, turn, r, dD, dbias);
  }
  kr_sync_warp();
  keep_states(p, w, TT, s_dA, state_slab(p, w, p.part_A, slab), p.N_padded, 1);
  dD = sum_of_lanes(TT, dD), dbias = sum_of_lanes(TT, dbias);
  if (w.lane == 0 && exists) p.part_D[slab * p.D + d] = dD, p.part_bias[slab * p.D + d] = dbias;
  if (p.dinitial.data && w.chunk == 0)
    keep_states(p, w, TT, s_carry, p.dinitial.data + w.b * p.dinitial.b + w.d0 * p.dinitial.d, p.dinitial.d,
                p.dinitial.n);
}

/* The gradient of a chunk's first state from zero at its end. */
KR_DEV void carry_lanes(const kr_scan_params &p, const int TT, const int DIRECT) {
  KR_DYNAMIC_SHARED(shared);
  const lanes_place w = place_lanes(p, TT);
  const int SLOTS = THREADS / TT, states = p.N * SLOTS;
  float *s_A = (float *)shared, *s_carry = s_A + states, *s_bc = s_carry + states,
        *turn = s_bc + p.slab * row_floats(TT) + w.thread / 32 * 32 * TURN;
  const int64_t d = w.d0 + w.slot;
  const float bias = p.bias && w.slot < w.n_channels ? p.bias[d * p.bias_stride] : 0.0f;
  fetch_states(p, w, TT, p.A + w.d0 * p.A_d, p.A_d, p.A_n, KR_LOG2E, s_A);
  fetch_states(p, w, TT, 0, 0, 0, 1.0f, s_carry);
  for (int64_t t0 = last_tile(w, TT); t0 >= w.begin; t0 -= TT * RUN) {
    float dt[RUN], g[RUN], sum_dt = 0;
    read_row(p, w, p.delta, TT, DIRECT, t0, turn, dt);
    gated_gradient(p, w, TT, DIRECT, 0, t0, 0, turn, g);
    step_sizes(p, w, bias, t0, dt);
#pragma unroll
    for (int k = 0; k < RUN; k++) sum_dt += dt[k];
    for (int n0 = 0; n0 < p.N; n0 += p.slab) {
      const int n_states = p.N - n0 < p.slab ? p.N - n0 : p.slab;
      kr_sync();
      stage_states(p, w, p.C_mat, TT, DIRECT, n0, n_states, t0, s_bc);
      kr_sync();
#pragma unroll 1
      for (int n = n0; n < n0 + n_states; n++) {
        float C[RUN], *carry = s_carry + n * SLOTS + w.slot;
        const float A = s_A[n * SLOTS + w.slot];
        read_run(s_bc + (n - n0) * row_floats(TT), TT, w.lane, C);
        float h = kr_select(w.lane == TT - 1, *carry, 0.0f), decay = kr_exp2(A * sum_dt);
#pragma unroll
        for (int k = RUN - 1; k >= 0; k--) h = kr_exp2(A * dt[k]) * kr_fma(g[k], C[k], h);
        join_down(TT, 0, w.lane, h, decay);
        kr_sync_warp();
        if (w.lane == 0) *carry = h;
      }
    }
  }
  kr_sync_warp();
  keep_states(p, w, TT, s_carry, state_slab(p, w, p.chunk_carry, w.b * p.n_chunks + w.chunk), p.N_padded, 1);
}

KR_DEV void sweep_or_carry(const kr_scan_params &p, const int DIRECT) {
  if (kr_block_z()) carry_lanes(p, 8, DIRECT);
  else sweep_lanes(p, 8, DIRECT, 1, 0);
}

KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_time_over_lanes_sweep(const kr_scan_params p) {
  sweep_or_carry(p, 1);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_TIER < 80 ? 3 : 4)
    kr_scan_time_over_lanes_sweep_any(const kr_scan_params p) {
  sweep_or_carry(p, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_TIER < 80 ? 3 : 4)
    kr_scan_time_over_lanes_sweep_packed(const kr_scan_params p) {
  sweep_lanes(p, 8, 0, 1, 1);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_TIER < 80 ? 2 : 4)
    kr_scan_time_over_lanes_back_t8(const kr_scan_params p) {
  back_lanes(p, 8, 1, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_TIER < 80 ? 2 : 4)
    kr_scan_time_over_lanes_back_t16(const kr_scan_params p) {
  back_lanes(p, 16, 1, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_TIER < 80 ? 2 : 4)
    kr_scan_time_over_lanes_back_t8_any(const kr_scan_params p) {
  back_lanes(p, 8, 0, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_TIER < 80 ? 2 : 4)
    kr_scan_time_over_lanes_back_t16_any(const kr_scan_params p) {
  back_lanes(p, 16, 0, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_TIER < 80 ? 2 : 3)
    kr_scan_time_over_lanes_back_packed(const kr_scan_params p) {
  back_lanes(p, 8, 0, 1);
}

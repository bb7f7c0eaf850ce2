/* selective_scan.cu: the forward scan, real A, B and C per time step (selective_scan_ref.c has the equation).
 *   kr_scan_fwd_s{1,4}    y of one chunk per block from the chunk's first state; _packed: with sequence indices
 *   kr_scan_state_s{1,4}  the chunk's last state from zero, and its sum of dt: phase one when channels are few
 *   kr_scan_combine       scans the chunks of each state: phase two
 * A tile of TL steps is staged in shared memory as float32: dt and dt*u per channel, B and C per step. Each thread then
 * advances S states of 2 channels, so that one read of B and of C serves both, while the next tile's inputs are being
 * loaded into registers. */
#include "scan.cuh"

/* Stores the tile's y, plus D u, times silu(z). */
KR_DEV void write_rows(const kr_scan_params &p, const scan_place &w, const kr_raw16 *u, const kr_raw16 *z,
                       const float *skip, const float *s_y, int64_t t0, const int PACKED) {
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int row = w.row + i * ROWS;
    if (row >= w.n_channels) break;
    float y[E];
#pragma unroll
    for (int half = 0; half < E; half += 4) {
      kr_float4 q = *(const kr_float4 *)(s_y + row * WIDTH + w.at + half);
#pragma unroll
      for (int k = 0; k < 4; k++) y[half + k] = kr_fma(skip[i], element(u[i], half + k), q.v[k]);
    }
    if (p.add.data) {
      const float *add = (const float *)p.add.data + w.b * p.add.b + (w.d0 + row) * p.add.row + (t0 + w.at) * p.add.t;
#pragma unroll
      for (int k = 0; k < E; k++)
        if (t0 + w.at + k < w.end) y[k] += add[k * p.add.t];
    }
    if (p.z.data) {
#pragma unroll
      for (int k = 0; k < E; k++) y[k] *= gate_of(element(z[i], k));
    }
    if (PACKED) {
#pragma unroll
      for (int k = 0; k < E; k++)
        if (t0 + w.at + k < w.end && p.seq_idx[w.b * p.seq_b + (t0 + w.at + k) * p.seq_t] < 0) y[k] = 0.0f;
    }
    store_row(w, p.out, i, t0, y);
  }
}

/* Four steps of S states of two channels: dt, du and y are [channel].v[step]. */
KR_DEV void advance4(const int S, const int STATE, const int PACKED, const float *bc, int rows, int c_at,
                     const float (&A)[2][4], const kr_float4 (&dt)[2], const kr_float4 (&du)[2], float (&x)[2][4],
                     kr_float4 &y, int lane, uint32_t resets) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float sum[2], B[4], C[4];
    read_states(S, bc + i * rows, B);
    if (!STATE) read_states(S, bc + i * rows + c_at, C);
#pragma unroll
    for (int c = 0; c < 2; c++) {
#pragma unroll
      for (int s = 0; s < S; s++) {
        const float added = du[c].v[i] * B[s], after = kr_fma(kr_exp2(dt[c].v[i] * A[c][s]), x[c][s], added);
        x[c][s] = PACKED && resets >> i & 1 ? added : after; /* a decay of 0 would keep NaN */
        if (!STATE) sum[c] = s ? kr_fma(C[s], x[c][s], sum[c]) : C[s] * x[c][s];
      }
    }
    if (!STATE) y.v[i] = reduce_channels(sum[0], sum[1], lane);
  }
}

KR_DEV void first_states(const kr_scan_params &p, const scan_place &w, const int S, float (&x)[2][4]) {
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const int row = w.group + w.n_groups * c;
    const int64_t d = w.d0 + row;
#pragma unroll
    for (int s = 0; s < S; s++) {
      const int n = w.lane * S + s;
      x[c][s] = 0.0f;
      if (row >= w.n_channels || n >= p.N) continue;
      if (p.n_chunks > 1) x[c][s] = p.chunk_state[((w.b * p.n_chunks + w.chunk) * p.D + d) * p.N_padded + n];
      else if (p.initial.data) x[c][s] = p.initial.data[w.b * p.initial.b + d * p.initial.d + n * p.initial.n];
    }
  }
}

KR_DEV void scan_chunk(const kr_scan_params &p, const int S, const int STATE, const int PACKED) {
  KR_DYNAMIC_SHARED(shared);
  const scan_place w = place_block(p);
  const int rows = 2 * p.N_padded, NG = w.n_groups, n0 = w.lane * S;
  float *s_dt = (float *)shared, *s_du = s_dt + 2 * NG * WIDTH, *s_bc = s_du + 2 * NG * WIDTH;
  float A[2][4], x[2][4], sum_dt[2] = {0, 0}, bias[4], skip[4];
  load_A(p, w, S, A);
  load_parameters(w, p.bias, p.bias_stride, bias);
  load_parameters(w, p.D_vec, p.D_stride, skip);
  if (!STATE) first_states(p, w, S, x);
  else
#pragma unroll
    for (int s = 0; s < S; s++) x[0][s] = x[1][s] = 0.0f;
  kr_raw16 u_next[R], delta_next[R], u[R], z[R], bc_next;
  load_rows(w, p.u, w.begin, u_next);
  load_rows(w, p.delta, w.begin, delta_next);
  bc_next = prefetch_bc(p, w, w.begin);
  for (int64_t t0 = w.begin; t0 < w.end; t0 += TL) {
    stage_rows(p, w, u_next, delta_next, bias, s_dt, s_du, t0);
    stage_bc(p, w, s_bc, t0, bc_next);
    kr_sync();
    if (!STATE) {
#pragma unroll
      for (int i = 0; i < R; i++) u[i] = u_next[i];
      if (p.z.data) load_rows(w, p.z, t0, z);
    }
    if (t0 + TL < w.end) {
      load_rows(w, p.u, t0 + TL, u_next);
      load_rows(w, p.delta, t0 + TL, delta_next);
      bc_next = prefetch_bc(p, w, t0 + TL);
    }
    const uint32_t resets = PACKED ? reset_mask(p, w, t0) : 0;
#pragma unroll 1
    for (int k = 0; k < TL; k += 4) {
      kr_float4 dt[2], du[2], y;
#pragma unroll
      for (int c = 0; c < 2; c++) {
        dt[c] = *(const kr_float4 *)(s_dt + (w.group + NG * c) * WIDTH + k);
        du[c] = *(const kr_float4 *)(s_du + (w.group + NG * c) * WIDTH + k);
        if (STATE) sum_dt[c] += dt[c].v[0] + dt[c].v[1] + (dt[c].v[2] + dt[c].v[3]);
      }
      advance4(S, STATE, PACKED, s_bc + k * rows + n0, rows, p.N_padded, A, dt, du, x, y, w.lane, resets >> k);
      if (!STATE) reduce_rest(y, p.T);
      if (!STATE) kr_sync_warp(); /* all lanes have read du before y overwrites it */
      if (!STATE && w.lane < 2) *(kr_float4 *)(s_du + (w.group + NG * w.lane) * WIDTH + k) = y;
    }
    kr_sync();
    if (!STATE) write_rows(p, w, u, z, skip, s_du, t0, PACKED);
  }
  if (!STATE && (!p.last.data || w.chunk + 1 < p.n_chunks)) return;
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const int64_t d = w.d0 + w.group + NG * c;
    if (w.group + NG * c >= w.n_channels) break;
    if (STATE && w.lane == 0) p.chunk_dt[(w.b * p.n_chunks + w.chunk) * p.D + d] = sum_dt[c];
#pragma unroll
    for (int s = 0; s < S; s++) {
      if (!STATE && n0 + s >= p.N) continue;
      if (STATE) p.chunk_state[((w.b * p.n_chunks + w.chunk) * p.D + d) * p.N_padded + n0 + s] = x[c][s];
      else p.last.data[w.b * p.last.b + d * p.last.d + (n0 + s) * p.last.n] = x[c][s];
    }
  }
}

KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, KR_TIER < 80 ? 3 : 4) kr_scan_fwd_s4(const kr_scan_params p) {
  scan_chunk(p, 4, 0, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 3) kr_scan_fwd_s1(const kr_scan_params p) { scan_chunk(p, 1, 0, 0); }
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 3) kr_scan_fwd_s4_packed(const kr_scan_params p) { scan_chunk(p, 4, 0, 1); }
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_state_s4(const kr_scan_params p) { scan_chunk(p, 4, 1, 0); }
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_state_s1(const kr_scan_params p) { scan_chunk(p, 1, 1, 0); }

KR_KERNEL void kr_scan_combine(const kr_scan_params p) { walk_forward(p); }

/* selective_scan_bwd.cu: gradients of the scan, real A (selective_scan_bwd_ref.c has the equations).
 *   kr_scan_sweep_{s4,s1,packed}        forward over each chunk: stores the state before every 8 steps; if chunked,
 *                                       blocks with z = 1 compute the gradient of a chunk's first state from zero at
 *                                       its end
 *   kr_scan_bwd_{t4,t16,any,s1,packed}  one chunk per block, from the gradient of its last state; t4_two: two blocks
 *                                       per multiprocessor
 *   kr_scan_bwd_walk                    scans the chunks of each state from first to last and, y = 1, those of its
 *                                       gradient from last to first
 *   kr_scan_bwd_sum                     reduces the blocks' partial sums in a fixed order; _lanes: those of
 *                                       selective_scan_time_over_lanes_bwd.cu
 * A block processes the 16-step tiles of its chunk from the last: it recomputes 4 steps from the kept state into
 * registers and steps back through them, so every decay is computed 2.5 times and nothing is saved by the forward call.
 * A chunk is swept from zero; its first state's contribution is one exponential per kept state. Each thread's share of
 * dB and dC goes to shared memory, where the block reduces it every 4 steps. With g = dout silu(z) and carry = a_{t+1}
 * dx_{t+1}:  dx = g C + carry;  q = a dx x_{t-1};
 *   s1 = sum_n dx B;  s2 = sum_n A q;  du = D g + dt s1;  ddt = u s1 + s2;  dA += dt q;  dB += dx dt u;  dC += g x. */
#define KR_SCAN_PACKS (KR_DTYPE == 0 ? 4 : 2)
#include "scan.cuh"

/* A tile in shared memory: rows[channel][step]: dt, dt u, g, unused, replaced by dt, s1, s2, y; then B and C; then
 * partial sums. */
enum { ROW = KR_SCAN_BWD_ROW };
typedef struct bwd_shared {
  float *rows, *bc, *part;
  const float *first; /* the thread's part of its chunk's first state, eight floats; absent without chunking */
} bwd_shared;

KR_DEV int step_at(int k) { return k * 4 + (k >> 3) * 16; } /* the gap puts a row's halves in different banks */

typedef struct tile_raw {
  kr_raw16 u[R], delta[R], dout[R], z[R], bc;
} tile_raw;

KR_DEV bwd_shared lay_out(const kr_scan_params &p, const scan_place &w, float *base) {
  bwd_shared m = {base, base + 2 * w.n_groups * ROW, 0, 0};
  m.part = m.bc + TL * 2 * p.N_padded;
  return m;
}

KR_DEV void load_tile(const kr_scan_params &p, const scan_place &w, const int BACK, int64_t t0, tile_raw &raw) {
  const kr_raw16 none = {{0, 0, 0, 0}};
  load_rows(w, p.u, t0, raw.u);
  load_rows(w, p.delta, t0, raw.delta);
  raw.bc = prefetch_bc(p, w, t0);
#pragma unroll
  for (int i = 0; i < R; i++) raw.dout[i] = raw.z[i] = none;
  if (BACK && p.dout.data) load_rows(w, p.dout, t0, raw.dout);
  if (BACK && p.z.data) load_rows(w, p.z, t0, raw.z);
}

KR_DEV int masked(const kr_scan_params &p, const scan_place &w, int64_t t) {
  return t < w.end && p.seq_idx[w.b * p.seq_b + t * p.seq_t] < 0;
}

/* dt, dt u and g = dout silu(z) of the tile. dt is 0 past the end, which leaves the state unchanged; dout at masked
 * outputs counts as 0. */
KR_DEV void stage_tile(const kr_scan_params &p, const scan_place &w, const bwd_shared &m, const int BACK,
                       const int PACKED, const tile_raw &raw, const float *bias, int64_t t0) {
  const int left = (int)min64(TL, w.end - t0) - w.at;
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int row = w.row + i * ROWS;
    if (row >= 2 * w.n_groups) break;
    float dt[E], g[E];
#pragma unroll
    for (int k = 0; k < E; k++) {
      dt[k] = element(raw.delta[i], k) + bias[i];
      g[k] = BACK ? element(raw.dout[i], k) : 0.0f;
      if (BACK && PACKED && masked(p, w, t0 + w.at + k)) g[k] = 0.0f;
    }
    if (p.softplus) {
#pragma unroll
      for (int k = 0; k < E; k++) dt[k] = kr_softplus(dt[k]);
    }
    if (left < E) {
#pragma unroll
      for (int k = 0; k < E; k++) dt[k] = k < left ? dt[k] : 0.0f;
    }
    if (BACK && p.z.data) {
#pragma unroll
      for (int k = 0; k < E; k++) g[k] *= kr_silu(element(raw.z[i], k));
    }
    float *to = m.rows + row * ROW + step_at(w.at);
#pragma unroll
    for (int k = 0; k < E; k++)
      *(kr_float4 *)(to + k * 4) = kr_float4{{dt[k], dt[k] * element(raw.u[i], k), g[k], 0.0f}};
  }
  stage_bc(p, w, m.bc, t0, raw.bc);
}

/* Step k of the lane's two channels. */
KR_DEV void read_rows(const scan_place &w, const bwd_shared &m, int k, kr_float4 (&v)[2]) {
#pragma unroll
  for (int c = 0; c < 2; c++) v[c] = *(const kr_float4 *)(m.rows + (w.group + w.n_groups * c) * ROW + step_at(k));
}

typedef struct __attribute__((aligned(8))) float2_of_row {
  float v[2];
} float2_of_row;

/* dt and dt u only: half the shared-memory traffic. */
KR_DEV void read_steps(const scan_place &w, const bwd_shared &m, int k, float2_of_row (&v)[2]) {
#pragma unroll
  for (int c = 0; c < 2; c++) v[c] = *(const float2_of_row *)(m.rows + (w.group + w.n_groups * c) * ROW + step_at(k));
}

/* Four steps forward, states only. */
KR_DEV void forward4(const kr_scan_params &p, const scan_place &w, const bwd_shared &m, const int S, const int PACKED,
                     int k, uint32_t resets, const float (&A)[2][4], float (&x)[2][4], float (&sum_dt)[2]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float B[4];
    float2_of_row v[2];
    read_steps(w, m, k + i, v);
    read_states(S, m.bc + (k + i) * 2 * p.N_padded + w.lane * S, B);
#pragma unroll
    for (int c = 0; c < 2; c++) {
      sum_dt[c] += v[c].v[0];
#pragma unroll
      for (int s = 0; s < S; s++) {
        const float added = v[c].v[1] * B[s], after = kr_fma(kr_exp2(v[c].v[0] * A[c][s]), x[c][s], added);
        x[c][s] = PACKED && resets >> (k + i) & 1 ? added : after;
      }
    }
  }
}

/* Stores the lane's states in a (slab, D, N_padded) array. */
KR_DEV void keep_states(const kr_scan_params &p, const scan_place &w, const int S, float *to, int64_t slab,
                        const float (&x)[2][4]) {
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const int row = w.group + w.n_groups * c;
    float *at = to + (slab * p.D + w.d0 + row) * p.N_padded + w.lane * S;
    if (row >= w.n_channels) break;
    if (S == 1) *at = x[c][0];
    else *(kr_float4 *)at = kr_float4{{x[c][0], x[c][1], x[c][2], x[c][3]}};
  }
}

/* Offset of the lane's states in a slab of such an array. */
KR_DEV int64_t lane_states(const kr_scan_params &p, const scan_place &w, const int S, int64_t slab) {
  return (slab * p.D + w.d0 + w.group) * p.N_padded + w.lane * S;
}

KR_DEV void fetch_states(const kr_scan_params &p, const scan_place &w, const int S, const float *from,
                         float (&x)[2][4]) {
#pragma unroll
  for (int c = 0; c < 2; c++) {
    x[c][0] = x[c][1] = x[c][2] = x[c][3] = 0.0f;
    if (w.group + w.n_groups * c < w.n_channels) read_states(S, from + c * w.n_groups * p.N_padded, x[c]);
  }
}

KR_DEV void fetch_view(const kr_scan_params &p, const scan_place &w, const int S, const kr_scan_state &v,
                       float (&x)[2][4]) {
#pragma unroll
  for (int c = 0; c < 2; c++)
#pragma unroll
    for (int s = 0; s < S; s++) {
      const int row = w.group + w.n_groups * c, n = w.lane * S + s;
      x[c][s] = v.data && row < w.n_channels && n < p.N ? v.data[w.b * v.b + (w.d0 + row) * v.d + n * v.n] : 0.0f;
    }
}

KR_DEV int64_t kept_slab(const kr_scan_params &p, const scan_place &w, int64_t t) {
  return w.b * p.n_kept + t / KR_SCAN_KEPT;
}

/* Adds the chunk's first state's contribution to a state swept from zero. */
KR_DEV void add_first(const scan_place &w, const bwd_shared &m, const int S, const float (&A)[2][4],
                      const float (&sum_dt)[2], float (&x)[2][4]) {
#pragma unroll
  for (int c = 0; c < 2; c++) {
    float first[4];
    read_states(4, m.first + (c * KR_SCAN_THREADS + w.thread) * 4, first);
#pragma unroll
    for (int s = 0; s < S; s++) x[c][s] = kr_fma(kr_exp2(A[c][s] * sum_dt[c]), first[s], x[c][s]);
  }
}

KR_DEV void fetch_sums(const kr_scan_params &p, const scan_place &w, int64_t t, float (&sum_dt)[2]) {
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const int row = w.group + w.n_groups * c;
    sum_dt[c] = row < w.n_channels ? p.kept_dt[kept_slab(p, w, t) * p.D + w.d0 + row] : 0.0f;
  }
}

/* Prefetches a tile into L2 while the one after it is processed. */
KR_DEV void expect_rows(const scan_place &w, const kr_rows &v, int64_t t0) {
#ifndef KR_EMULATE
#pragma unroll
  for (int i = 0; i < R; i++)
    if (v.data && w.row + i * ROWS < w.n_channels)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(
          (const char *)v.data + (w.b * v.b + (w.d0 + w.row + i * ROWS) * v.row + (t0 + w.at) * v.t) * (16 / E)));
#else
  (void)w, (void)v, (void)t0;
#endif
}

/* Before step t: stores the state, and the sum of dt since the chunk's start. */
KR_DEV void keep(const kr_scan_params &p, const scan_place &w, const int S, int64_t t, const float (&x)[2][4],
                 const float (&sum_dt)[2]) {
  keep_states(p, w, S, p.kept_state, kept_slab(p, w, t), x);
  if (p.n_chunks == 1 || w.lane) return;
#pragma unroll
  for (int c = 0; c < 2; c++)
    if (w.group + w.n_groups * c < w.n_channels)
      p.kept_dt[kept_slab(p, w, t) * p.D + w.d0 + w.group + w.n_groups * c] = sum_dt[c];
}

/* Over a chunk, from zero if there are several, in which case its last state and sum of dt are stored too. */
KR_DEV void sweep(const kr_scan_params &p, const int S, const int PACKED) {
  KR_DYNAMIC_SHARED(shared);
  const scan_place w = place_block(p);
  const bwd_shared m = lay_out(p, w, (float *)shared);
  float A[2][4], bias[4], x[2][4], sum_dt[2] = {0, 0};
  load_A(p, w, S, A);
  load_parameters(w, p.bias, p.bias_stride, bias);
  if (p.n_chunks == 1) fetch_view(p, w, S, p.initial, x);
  else
#pragma unroll
    for (int s = 0; s < S; s++) x[0][s] = x[1][s] = 0.0f;
  tile_raw next;
  load_tile(p, w, 0, w.begin, next);
  for (int64_t t0 = w.begin; t0 < w.end; t0 += TL) {
    stage_tile(p, w, m, 0, PACKED, next, bias, t0);
    kr_sync();
    if (t0 + TL < w.end) load_tile(p, w, 0, t0 + TL, next);
    const uint32_t resets = PACKED ? reset_mask(p, w, t0) : 0;
#pragma unroll 1
    for (int k = 0; k < TL; k += KR_SCAN_KEPT) {
      keep(p, w, S, t0 + k, x, sum_dt);
#pragma unroll 1
      for (int j = k; j < k + KR_SCAN_KEPT; j += 4) forward4(p, w, m, S, PACKED, j, resets, A, x, sum_dt);
    }
    kr_sync();
  }
  if (p.n_chunks == 1) return;
  keep_states(p, w, S, p.chunk_state, w.b * p.n_chunks + w.chunk, x);
#pragma unroll
  for (int c = 0; c < 2; c++)
    if (w.lane == 0 && w.group + w.n_groups * c < w.n_channels)
      p.chunk_dt[(w.b * p.n_chunks + w.chunk) * p.D + w.d0 + w.group + w.n_groups * c] = sum_dt[c];
}

KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_sweep_packed(const kr_scan_params p) { sweep(p, 4, 1); }

/* One state per lane: reduces v over a warp's lane groups into part[warp][step of four][column]. */
KR_DEV void keep_warp_part(const kr_scan_params &p, const scan_place &w, float *part, int i, float (&v)[8]) {
  float *to = part + ((w.thread >> 5) * 4 + i) * 2 * p.N_padded;
  for (int d = p.T; d < 32; d <<= 1) {
#pragma unroll
    for (int k = 0; k < 2; k++) v[k] += kr_shuffle_xor(v[k], d);
  }
  if ((w.thread & 31) < p.T) to[w.lane] = v[0], to[p.N_padded + w.lane] = v[1];
}

/* Writes the block's share of four steps of dB and dC, from its four warps, to scratch. */
KR_DEV void write_part(const kr_scan_params &p, const scan_place &w, const float *part, int64_t t, float *to) {
  const int rows = 2 * p.N_padded;
  to += t * rows;
  for (int id = w.thread; id < 4 * rows; id += KR_SCAN_THREADS)
    if (t + (id >> p.rows_shift) < w.end)
      to[id] = part[id] + part[4 * rows + id] + (part[8 * rows + id] + part[12 * rows + id]);
}

KR_DEV void add4(kr_float4 &sum, const float *from) {
  const kr_float4 v = *(const kr_float4 *)from;
#pragma unroll
  for (int k = 0; k < 4; k++) sum.v[k] += v.v[k];
}

/* Four states per lane: part[step of four][B or C][thread] holds four floats each. Sixteen threads reduce the 128 of
 * one step and matrix, each the eight at q + 16 k, which belong to lane q mod T (T = 32: alternately lanes q and q +
 * 16). */
KR_DEV void fold_part(const kr_scan_params &p, const scan_place &w, const int T, const float *part, int64_t t,
                      float *to) {
  const int q = w.thread & 15;
  const float *from = part + ((w.thread >> 4) * KR_SCAN_THREADS + q) * 4;
  to += t * (2 * p.N_padded);
  t += w.thread >> 5;
  kr_float4 sum = *(const kr_float4 *)from, other = *(const kr_float4 *)(from + 64);
#pragma unroll
  for (int k = 2; k < 8; k += 2) add4(sum, from + k * 64), add4(other, from + k * 64 + 64);
  if (T == 32) {
    if (t < w.end) *(kr_float4 *)to = sum, *(kr_float4 *)(to + 64) = other;
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; k++) sum.v[k] += other.v[k];
  for (int d = T; d < 16; d <<= 1) {
#pragma unroll
    for (int k = 0; k < 4; k++) sum.v[k] += kr_shuffle_xor(sum.v[k], d);
  }
  if (q < T && t < w.end) *(kr_float4 *)to = sum;
}

/* Four steps: forward into registers from x, then back. s1, s2 and y of the lane's channel replace du, g and y.
 * RESETS: a sequence may begin at one of them; nothing of the sequence before reaches it nor the other way round, NaN
 * neither, so that it is left out rather than multiplied by 0. */
KR_DEV void back4(const kr_scan_params &p, const scan_place &w, const bwd_shared &m, const int S, const int T,
                  const int RESETS, int k, uint32_t resets, float *part, const float (&A)[2][4],
                  const float (&first)[2][4], float (&carry)[2][4], float (&dA)[2][4]) {
  const int rows = 2 * p.N_padded, n0 = w.lane * S;
  float x[5][2][4], a[4][2][4];
#pragma unroll
  for (int c = 0; c < 2; c++)
#pragma unroll
    for (int s = 0; s < S; s++) x[0][c][s] = first[c][s];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float B[4];
    float2_of_row r[2];
    read_steps(w, m, k + i, r);
    read_states(S, m.bc + (k + i) * rows + n0, B);
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
      for (int s = 0; s < S; s++) {
        const float added = r[c].v[1] * B[s];
        a[i][c][s] = kr_exp2(r[c].v[0] * A[c][s]);
        x[i + 1][c][s] = kr_fma(a[i][c][s], x[i][c][s], added);
        if (RESETS && resets >> (k + i) & 1) x[i + 1][c][s] = added;
      }
  }
#pragma unroll
  for (int i = 3; i >= 0; i--) {
    float B[4], C[4], v[8], sum1[2], sum2[2], sum_y[2];
    kr_float4 r[2], sums;
    read_rows(w, m, k + i, r);
    read_states(S, m.bc + (k + i) * rows + n0, B);
    read_states(S, m.bc + (k + i) * rows + p.N_padded + n0, C);
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const float dt = r[c].v[0], du = r[c].v[1], g = r[c].v[2];
#pragma unroll
      for (int s = 0; s < S; s++) {
        const float dx = kr_fma(g, C[s], carry[c][s]), after = x[i + 1][c][s];
        carry[c][s] = a[i][c][s] * dx;
        float q = carry[c][s] * x[i][c][s];
        if (RESETS && resets >> (k + i) & 1) carry[c][s] = q = 0.0f;
        sum1[c] = s ? kr_fma(dx, B[s], sum1[c]) : dx * B[s];
        sum2[c] = s ? kr_fma(A[c][s], q, sum2[c]) : A[c][s] * q;
        sum_y[c] = s ? kr_fma(C[s], after, sum_y[c]) : C[s] * after;
        v[s] = c ? kr_fma(dx, du, v[s]) : dx * du;
        v[S + s] = c ? kr_fma(g, after, v[S + s]) : g * after;
        dA[c][s] = kr_fma(dt, q, dA[c][s]);
      }
    }
    if (S == 1) keep_warp_part(p, w, part, i, v);
    else {
      float *to = part + (i * 2 * KR_SCAN_THREADS + w.thread) * 4;
      *(kr_float4 *)to = kr_float4{{v[0], v[1], v[2], v[3]}};
      *(kr_float4 *)(to + 4 * KR_SCAN_THREADS) =
          kr_float4{{v[4 % (2 * S)], v[5 % (2 * S)], v[6 % (2 * S)], v[7 % (2 * S)]}};
    }
    sums.v[0] = kr_select(w.lane & 1, r[1].v[0], r[0].v[0]);
    sums.v[1] = reduce_channels(sum1[0], sum1[1], w.lane);
    sums.v[2] = reduce_channels(sum2[0], sum2[1], w.lane);
    sums.v[3] = reduce_channels(sum_y[0], sum_y[1], w.lane);
    for (int d = 4; d < T; d <<= 1) {
#pragma unroll
      for (int j = 1; j < 4; j++) sums.v[j] += kr_shuffle_xor(sums.v[j], d);
    }
    kr_sync_warp(); /* all lanes have read the step before its sums overwrite it */
    if (w.lane < 2) *(kr_float4 *)(m.rows + (w.group + w.n_groups * w.lane) * ROW + step_at(k + i)) = sums;
  }
}

/* u, dout and z are loaded again: they hit the cache, and registers are scarce. */
KR_DEV void write_gradients(const kr_scan_params &p, const scan_place &w, const bwd_shared &m, const float (&skip)[4],
                            int64_t t0, const int PACKED, float (&dD)[2], float (&dbias)[2]) {
  kr_raw16 u_raw[R], dout_raw[R], z_raw[R];
  load_rows(w, p.u, t0, u_raw);
  const kr_raw16 none = {{0, 0, 0, 0}};
#pragma unroll
  for (int i = 0; i < R; i++) dout_raw[i] = none;
  if (p.dout.data) load_rows(w, p.dout, t0, dout_raw);
  if (p.z.data) load_rows(w, p.z, t0, z_raw);
  const int left = (int)min64(TL, w.end - t0) - w.at;
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int row = w.row + i * ROWS;
    if (row >= w.n_channels) break;
    float du[E], ddelta[E], g[E], dt[E], s1[E], y[E];
    const float *from = m.rows + row * ROW + step_at(w.at);
#pragma unroll
    for (int k = 0; k < E; k++) {
      const kr_float4 r = *(const kr_float4 *)(from + k * 4);
      dt[k] = r.v[0], s1[k] = r.v[1], y[k] = r.v[3];
      ddelta[k] = kr_fma(element(u_raw[i], k), r.v[1], KR_LN2 * r.v[2]);
      g[k] = element(dout_raw[i], k);
      if (PACKED && masked(p, w, t0 + w.at + k)) g[k] = 0.0f;
    }
    if (p.z.data) {
      float dz[E];
#pragma unroll
      for (int k = 0; k < E; k++) {
        const float z = element(z_raw[i], k), s = kr_sigmoid(z), gate = z * s;
        dz[k] = g[k] * kr_fma(skip[i], element(u_raw[i], k), y[k]) * kr_fma(gate, 1.0f - s, s);
        g[k] *= gate;
      }
      if (p.dz.data) store_row(w, p.dz, i, t0, dz);
    }
    if (p.softplus) {
#pragma unroll
      for (int k = 0; k < E; k++) ddelta[k] *= kr_softplus_slope(dt[k]);
    }
    if (left < E) {
#pragma unroll
      for (int k = 0; k < E; k++) ddelta[k] = k < left ? ddelta[k] : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < E; k++) {
      du[k] = kr_fma(skip[i], g[k], dt[k] * s1[k]);
      dD[i] = kr_fma(g[k], element(u_raw[i], k), dD[i]), dbias[i] += ddelta[k];
    }
    if (p.du.data) store_row(w, p.du, i, t0, du);
    if (p.ddelta.data) store_row(w, p.ddelta, i, t0, ddelta);
  }
}

KR_DEV void write_sums(const kr_scan_params &p, const scan_place &w, float (&dD)[2], float (&dbias)[2]) {
#pragma unroll
  for (int i = 0; i < R; i++) {
#pragma unroll
    for (int d = 1; d < PACKS; d <<= 1) {
      dD[i] += kr_shuffle_xor(dD[i], d);
      dbias[i] += kr_shuffle_xor(dbias[i], d);
    }
    const int row = w.row + i * ROWS;
    if (w.at || row >= w.n_channels) continue;
    const int64_t at = (w.b * p.n_chunks + w.chunk) * p.D + w.d0 + row;
    p.part_D[at] = dD[i];
    p.part_bias[at] = dbias[i];
  }
}

/* AHEAD: the next tile is prefetched into registers rather than L2. */
KR_DEV void scan_back(const kr_scan_params &p, const int S, const int T, const int PACKED, const int AHEAD) {
  KR_DYNAMIC_SHARED(shared);
  const scan_place w = place_block(p);
  bwd_shared m = lay_out(p, w, (float *)shared);
  float A[2][4], bias[4], skip[4], dD[2] = {0, 0}, dbias[2] = {0, 0}, carry[2][4], dA[2][4], kept[2][4];
  load_A(p, w, S, A);
  load_parameters(w, p.bias, p.bias_stride, bias);
  load_parameters(w, p.D_vec, p.D_stride, skip);
  if (p.n_chunks > 1) fetch_states(p, w, S, p.chunk_carry + lane_states(p, w, S, w.b * p.n_chunks + w.chunk), carry);
  else fetch_view(p, w, S, p.dlast, carry);
#pragma unroll
  for (int s = 0; s < S; s++) dA[0][s] = dA[1][s] = 0.0f;
  tile_raw next;
  int64_t t0 = w.end > w.begin ? w.begin + (w.end - w.begin - 1) / TL * TL : w.begin - TL;
  const float *kept_from = p.kept_state + lane_states(p, w, S, kept_slab(p, w, t0 + TL - KR_SCAN_KEPT));
  float *part_to = p.part_bc + (int64_t)kr_block_x() * p.L * 2 * p.N_padded;
  if (S == 4) part_to += (w.thread >> 5) * 2 * p.N_padded + (w.thread >> 4 & 1) * p.N_padded + (w.thread & 15) * 4;
  float sum_dt[2] = {0, 0};
  if (p.n_chunks > 1) {
    float *first = m.part + 2 * p.part_step + (p.part_step ? 0 : KR_SCAN_PART), x[2][4];
    m.first = first;
    fetch_states(p, w, S, p.chunk_state + lane_states(p, w, S, w.b * p.n_chunks + w.chunk), x);
#pragma unroll
    for (int c = 0; c < 2; c++)
      *(kr_float4 *)(first + (c * KR_SCAN_THREADS + w.thread) * 4) = kr_float4{{x[c][0], x[c][1], x[c][2], x[c][3]}};
    fetch_sums(p, w, t0 + TL - KR_SCAN_KEPT, sum_dt);
  }
  if (t0 >= w.begin) fetch_states(p, w, S, kept_from, kept);
  if (AHEAD && t0 >= w.begin) load_tile(p, w, 1, t0, next);
  for (; t0 >= w.begin; t0 -= TL) {
    if (!AHEAD) {
      load_tile(p, w, 1, t0, next);
      if (t0 > w.begin)
        expect_rows(w, p.u, t0 - TL), expect_rows(w, p.delta, t0 - TL), expect_rows(w, p.dout, t0 - TL),
            expect_rows(w, p.z, t0 - TL);
    }
    stage_tile(p, w, m, 1, PACKED, next, bias, t0);
    kr_sync();
    if (AHEAD && t0 > w.begin) load_tile(p, w, 1, t0 - TL, next);
    const uint32_t resets = PACKED ? reset_mask(p, w, t0) : 0;
#pragma unroll 1
    for (int k = TL - 4; k >= 0; k -= 4) {
      float *part = m.part + (k >> 2 & 1) * p.part_step, x[2][4];
#pragma unroll
      for (int s = 0; s < S; s++) x[0][s] = kept[0][s], x[1][s] = kept[1][s];
      if (k & 4) {
        float unused[2] = {0, 0};
        if (p.n_chunks > 1) {
          add_first(w, m, S, A, sum_dt, x);
#pragma unroll
          for (int s = 0; s < S; s++) kept[0][s] = x[0][s], kept[1][s] = x[1][s];
        }
        forward4(p, w, m, S, PACKED, k - 4, resets, A, x, unused);
      } else if (t0 + k > w.begin) {
        kept_from -= p.D * p.N_padded;
        fetch_states(p, w, S, kept_from, kept);
        if (p.n_chunks > 1) fetch_sums(p, w, t0 + k - KR_SCAN_KEPT, sum_dt);
      }
      if (PACKED && resets >> k & 15)
        back4(p, w, m, S, T, 1, k, resets, part, A, x, carry, dA);
      else
        back4(p, w, m, S, T, 0, k, 0, part, A, x, carry, dA);
      kr_sync();
      if (S == 1) write_part(p, w, part, t0 + k, part_to);
      else fold_part(p, w, T, part, t0 + k, part_to);
      if (p.part_step == 0) kr_sync(); /* with two buffers, the next four steps use the other one */
    }
    write_gradients(p, w, m, skip, t0, PACKED, dD, dbias);
    kr_sync();
  }
  keep_states(p, w, S, p.part_A, w.b * p.n_chunks + w.chunk, dA);
  write_sums(p, w, dD, dbias);
  if (!p.dinitial.data || w.chunk > 0) return;
#pragma unroll
  for (int c = 0; c < 2; c++)
#pragma unroll
    for (int s = 0; s < S; s++) {
      const int row = w.group + w.n_groups * c, n = w.lane * S + s;
      if (row < w.n_channels && n < p.N)
        p.dinitial.data[w.b * p.dinitial.b + (w.d0 + row) * p.dinitial.d + n * p.dinitial.n] = carry[c][s];
    }
}

KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 3) kr_scan_bwd_t4(const kr_scan_params p) { scan_back(p, 4, 4, 0, 0); }
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 2) kr_scan_bwd_t4_two(const kr_scan_params p) { scan_back(p, 4, 4, 0, 1); }
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 3) kr_scan_bwd_t16(const kr_scan_params p) { scan_back(p, 4, 16, 0, 0); }
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 3) kr_scan_bwd_any(const kr_scan_params p) { scan_back(p, 4, p.T, 0, 0); }
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 3) kr_scan_bwd_s1(const kr_scan_params p) { scan_back(p, 1, p.T, 0, 0); }
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 2) kr_scan_bwd_packed(const kr_scan_params p) { scan_back(p, 4, p.T, 1, 1); }

KR_DEV void carry_chunk(const kr_scan_params &p, const int S) {
  KR_DYNAMIC_SHARED(shared);
  const scan_place w = place_block(p);
  const bwd_shared m = lay_out(p, w, (float *)shared);
  float A[2][4], bias[4], carry[2][4];
  load_A(p, w, S, A);
  load_parameters(w, p.bias, p.bias_stride, bias);
#pragma unroll
  for (int s = 0; s < S; s++) carry[0][s] = carry[1][s] = 0.0f;
  tile_raw next;
  int64_t t0 = w.end > w.begin ? w.begin + (w.end - w.begin - 1) / TL * TL : w.begin - TL;
  if (t0 >= w.begin) load_tile(p, w, 1, t0, next);
  for (; t0 >= w.begin; t0 -= TL) {
    stage_tile(p, w, m, 1, 0, next, bias, t0);
    kr_sync();
    if (t0 > w.begin) load_tile(p, w, 1, t0 - TL, next);
#pragma unroll 4
    for (int k = TL - 1; k >= 0; k--) {
      float C[4];
      kr_float4 r[2];
      read_rows(w, m, k, r);
      read_states(S, m.bc + k * 2 * p.N_padded + p.N_padded + w.lane * S, C);
#pragma unroll
      for (int c = 0; c < 2; c++)
#pragma unroll
        for (int s = 0; s < S; s++) carry[c][s] = kr_exp2(r[c].v[0] * A[c][s]) * kr_fma(r[c].v[2], C[s], carry[c][s]);
    }
    kr_sync();
  }
  keep_states(p, w, S, p.chunk_carry, w.b * p.n_chunks + w.chunk, carry);
}

KR_DEV void sweep_or_carry(const kr_scan_params &p, const int S) {
  if (kr_block_z()) carry_chunk(p, S);
  else sweep(p, S, 0);
}

KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_sweep_s4(const kr_scan_params p) { sweep_or_carry(p, 4); }
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_sweep_s1(const kr_scan_params p) { sweep_or_carry(p, 1); }

/* One thread per (batch, channel, state): turns gradients of chunk starts from zero into gradients of chunk ends. */
KR_DEV void walk_back(const kr_scan_params &p) {
  int64_t i = (int64_t)kr_block_x() * kr_block_threads() + kr_thread();
  if (i >= p.B * p.D * p.N_padded) return;
  int64_t n = i % p.N_padded, d = i / p.N_padded % p.D, b = i / p.N_padded / p.D, step = p.D * p.N_padded;
  float A = n < p.N ? p.A[d * p.A_d + n * p.A_n] * KR_LOG2E : 0.0f;
  float carry = n < p.N && p.dlast.data ? p.dlast.data[b * p.dlast.b + d * p.dlast.d + n * p.dlast.n] : 0.0f;
  float *at = p.chunk_carry + (b * p.n_chunks * p.D + d) * p.N_padded + n;
  const float *dt = p.chunk_dt + b * p.n_chunks * p.D + d;
  for (int c = p.n_chunks - 1; c >= 0; c -= 8) {
    float start[8], decay[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
      start[k] = c - k >= 0 ? at[(c - k) * step] : 0.0f;
      decay[k] = c - k >= 0 ? kr_exp2(A * dt[(c - k) * p.D]) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
      if (c - k >= 0) at[(c - k) * step] = carry;
      carry = kr_fma(decay[k], carry, start[k]);
    }
  }
}

KR_KERNEL void kr_scan_bwd_walk(const kr_scan_params p) {
  if (kr_block_y()) walk_back(p);
  else walk_forward(p);
}

/* dB and dC: a block takes 32 steps of one (batch, group) and transposes (step, state) to (state, step) on output. */
KR_DEV void sum_matrices(const kr_scan_params &p, float (*tile)[33]) {
  const int rows = 2 * p.N_padded, x = kr_thread() & 31, y = kr_thread() >> 5;
  const int64_t n_times = (p.L + 31) / 32, t0 = kr_block_x() % n_times * 32, bg = kr_block_x() / n_times;
  for (int r0 = 0; r0 < rows; r0 += 32) {
    float sum[4] = {0, 0, 0, 0};
    const float *from = p.part_bc + (bg * p.blocks_per_group * p.L + t0 + y) * rows + r0 + x;
    for (int j = 0; j < p.blocks_per_group && r0 + x < rows; j++, from += p.L * rows) {
#pragma unroll
      for (int k = 0; k < 4; k++)
        if (t0 + y + 8 * k < p.L) sum[k] += from[8 * k * rows];
    }
#pragma unroll
    for (int k = 0; k < 4; k++) tile[y + 8 * k][x] = sum[k];
    kr_sync();
    for (int k = y; k < 32; k += 8) {
      const int r = r0 + k, is_C = r >= p.N_padded, n = is_C ? r - p.N_padded : r;
      const kr_scan_mat &v = is_C ? p.dC : p.dB;
      if (r < rows && n < p.N && t0 + x < p.L && v.data)
        kr_store(v.data, bg / p.G * v.b + bg % p.G * v.g + n * v.n + (t0 + x) * v.t, v.dtype, tile[x][k]);
    }
    kr_sync();
  }
}

/* The same for time over lanes, whose partial sums are (state, step) already: one thread per (batch, group, matrix,
 * state, time). */
KR_DEV void sum_matrices_of_lanes(const kr_scan_params &p) {
  const int64_t n_times = (p.L + 255) / 256, t = kr_block_x() % n_times * 256 + kr_thread(),
                row = kr_block_x() / n_times;
  const int r = (int)(row % (2 * p.N)), is_C = r >= p.N, n = is_C ? r - p.N : r;
  const int64_t bg = row / (2 * p.N), step = p.L * 2 * p.N_padded;
  const kr_scan_mat &v = is_C ? p.dC : p.dB;
  if (t >= p.L || !v.data) return;
  const float *from = p.part_bc + (bg * p.blocks_per_group * 2 * p.N_padded + (is_C ? p.N_padded : 0) + n) * p.L + t;
  float sum = 0;
#pragma unroll 8
  for (int j = 0; j < p.blocks_per_group; j++) sum += from[j * step];
  kr_store(v.data, bg / p.G * v.b + bg % p.G * v.g + n * v.n + t * v.t, v.dtype, sum);
}

/* dA, then dD and ddelta_bias: a block reduces 32 columns over batches and chunks, eight threads each. */
KR_DEV void sum_parameters(const kr_scan_params &p, float (*tile)[33]) {
  const int x = kr_thread() & 31, y = kr_thread() >> 5;
  const int64_t i = ((int64_t)kr_block_x() - p.n_matrix_blocks) * 32 + x, n_A = p.D * p.N_padded,
                parts = p.B * p.n_chunks, is_bias = i - n_A >= p.D;
  const float *from = i < n_A ? p.part_A + i : (is_bias ? p.part_bias : p.part_D) + (i - n_A) % p.D;
  const int64_t step = i < n_A ? n_A : p.D, d = i < n_A ? i / p.N_padded : (i - n_A) % p.D, n = i % p.N_padded;
  float sum = 0;
  if (i < n_A + 2 * p.D) {
#pragma unroll 4
    for (int64_t k = y; k < parts; k += 8) sum += from[k * step];
  }
  tile[y][x] = sum;
  kr_sync();
  if (y || i >= n_A + 2 * p.D) return;
#pragma unroll
  for (int k = 1; k < 8; k++) sum += tile[k][x];
  if (i < n_A) {
    if (p.dA && n < p.N) p.dA[d * p.dA_d + n * p.dA_n] = sum;
  } else if (is_bias) {
    if (p.dbias) p.dbias[d * p.dbias_stride] = sum;
  } else if (p.dD_vec) p.dD_vec[d * p.dD_stride] = sum;
}

/* The first blocks reduce dB and dC, the others all sums over batches. */
KR_KERNEL void KR_BOUNDS(256, 4) kr_scan_bwd_sum(const kr_scan_params p) {
  KR_SHARED float tile[32][33];
  if (kr_block_x() >= p.n_matrix_blocks) sum_parameters(p, tile);
  else sum_matrices(p, tile);
}

KR_KERNEL void KR_BOUNDS(256, 4) kr_scan_bwd_sum_lanes(const kr_scan_params p) {
  KR_SHARED float tile[8][33];
  if (kr_block_x() >= p.n_matrix_blocks) sum_parameters(p, tile);
  else sum_matrices_of_lanes(p);
}

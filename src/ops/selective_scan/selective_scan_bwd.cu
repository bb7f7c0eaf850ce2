/* selective_scan_bwd.cu: gradients of the scan, real A (selective_scan_bwd_ref.c has the equations).
 *   kr_scan_bwd_{t4,any,s1,packed}  one chunk per block, from its first state and the gradient of its last
 *   kr_scan_carry_{s4,s1}           gradient of a chunk's first state from zero at its end: when time is cut
 *   kr_scan_carry_combine           walks the chunks from the last to the first
 *   kr_scan_bwd_sum_bc, _sum_d      add the blocks' parts in a fixed order
 * A block first walks forward through its chunk and keeps the state before every tile of 16 steps in scratch. Then it takes
 * the tiles from the last: within a tile it keeps the state before every 4 steps in shared memory, recomputes 4 steps into
 * registers, and walks back through them. So every decay is computed 2.75 times, and nothing of the forward call is kept.
 * With g = dout silu(z) and carry = a_{t+1} dx_{t+1}:  dx = g C + carry;  q = a dx x_{t-1};
 *   s1 = sum_n dx B;  s2 = sum_n A q;  du = D g + dt s1;  ddt = u s1 + s2;  dA += dt q;  dB += dx dt u;  dC += g x. */
#define KR_SCAN_PACKS (KR_DTYPE == 0 ? 4 : 2)
#include "scan.cuh"

typedef struct bwd_shared {
  float *dt, *du, *g, *y, *bc, *bound, *part; /* du becomes s1, g becomes s2 */
} bwd_shared;

typedef struct tile_raw {
  kr_raw16 u[2], delta[2], dout[2], z[2], bc;
} tile_raw;

KR_DEV bwd_shared lay_out(const kr_scan_plan &p, const scan_place &w, const int S, float *base) {
  const int area = 2 * w.n_groups * WIDTH;
  bwd_shared m = {base, base + area, base + 2 * area, base + 3 * area, base + 4 * area, 0, 0};
  m.bound = m.bc + TL * 2 * p.N_padded;
  m.part = m.bound + 4 * 2 * S * KR_SCAN_THREADS;
  return m;
}

KR_DEV void load_tile(const kr_scan_plan &p, const scan_place &w, int64_t t0, tile_raw &raw) {
  const kr_raw16 none = {{0, 0, 0, 0}};
  load_rows(w, p.u, t0, raw.u);
  load_rows(w, p.delta, t0, raw.delta);
  load_rows(w, p.dout, t0, raw.dout);
  raw.z[0] = raw.z[1] = none;
  if (p.z.data) load_rows(w, p.z, t0, raw.z);
  raw.bc = prefetch_bc(p, w, t0);
}

KR_DEV int masked(const kr_scan_plan &p, const scan_place &w, int64_t t) { return t < w.end && p.seq_idx[w.b * p.seq_b + t * p.seq_t] < 0; }

/* g = dout silu(z); dout at masked outputs counts as 0. */
KR_DEV void stage_gradient(const kr_scan_plan &p, const scan_place &w, tile_raw &raw, float *s_g, int64_t t0, const int PACKED) {
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int row = w.row + i * ROWS;
    if (row >= 2 * w.n_groups) break;
    float g[E];
#pragma unroll
    for (int k = 0; k < E; k++) {
      g[k] = element(raw.dout[i], k);
      if (PACKED && masked(p, w, t0 + w.at + k)) g[k] = 0.0f;
    }
    if (p.z.data) {
#pragma unroll
      for (int k = 0; k < E; k++) g[k] *= kr_silu(element(raw.z[i], k));
    }
#pragma unroll
    for (int half = 0; half < E; half += 4) {
      kr_float4 q = {{g[half], g[half + 1], g[half + 2], g[half + 3]}};
      *(kr_float4 *)(s_g + row * WIDTH + w.at + half) = q;
    }
  }
}

KR_DEV void read4(const scan_place &w, const float *s, int k, kr_float4 (&v)[2]) {
#pragma unroll
  for (int c = 0; c < 2; c++) v[c] = *(const kr_float4 *)(s + (w.group + w.n_groups * c) * WIDTH + k);
}

/* Four steps forward, states only. */
KR_DEV void forward4(const scan_place &w, const bwd_shared &m, const int S, const int PACKED, int rows, int k, uint32_t resets, const float (&A)[2][4], float (&x)[2][4]) {
  kr_float4 dt[2], du[2];
  read4(w, m.dt, k, dt);
  read4(w, m.du, k, du);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float B[4];
    read_states(S, m.bc + (k + i) * rows + w.lane * S, B);
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
      for (int s = 0; s < S; s++) {
        float decay = kr_exp2(dt[c].v[i] * A[c][s]);
        if (PACKED && resets >> (k + i) & 1) decay = 0.0f;
        x[c][s] = kr_fma(decay, x[c][s], du[c].v[i] * B[s]);
      }
  }
}

KR_DEV int64_t state_at(const kr_scan_plan &p, int64_t slab, int64_t d, int n) { return (slab * p.D + d) * p.N + n; }

/* Moves the lane's states between registers and a (slab, D, N) array. */
KR_DEV void keep_states(const kr_scan_plan &p, const scan_place &w, const int S, float *to, int64_t slab, const float (&x)[2][4]) {
#pragma unroll
  for (int c = 0; c < 2; c++)
#pragma unroll
    for (int s = 0; s < S; s++) {
      const int row = w.group + w.n_groups * c, n = w.lane * S + s;
      if (row < w.n_channels && n < p.N) to[state_at(p, slab, w.d0 + row, n)] = x[c][s];
    }
}

KR_DEV void fetch_states(const kr_scan_plan &p, const scan_place &w, const int S, const float *from, int64_t slab, float (&x)[2][4]) {
#pragma unroll
  for (int c = 0; c < 2; c++)
#pragma unroll
    for (int s = 0; s < S; s++) {
      const int row = w.group + w.n_groups * c, n = w.lane * S + s;
      x[c][s] = row < w.n_channels && n < p.N ? from[state_at(p, slab, w.d0 + row, n)] : 0.0f;
    }
}

KR_DEV void fetch_view(const kr_scan_plan &p, const scan_place &w, const int S, const kr_scan_state &v, float (&x)[2][4]) {
#pragma unroll
  for (int c = 0; c < 2; c++)
#pragma unroll
    for (int s = 0; s < S; s++) {
      const int row = w.group + w.n_groups * c, n = w.lane * S + s;
      x[c][s] = v.data && row < w.n_channels && n < p.N ? v.data[w.b * v.b + (w.d0 + row) * v.d + n * v.n] : 0.0f;
    }
}

/* The walk forward: the state before each tile goes to scratch. */
KR_DEV void sweep(const kr_scan_plan &p, const scan_place &w, const bwd_shared &m, const int S, const int PACKED, const float (&A)[2][4], const float (&bias)[4]) {
  const int rows = 2 * p.N_padded;
  float x[2][4];
  if (p.n_chunks > 1) fetch_states(p, w, S, p.chunk_state, w.b * p.n_chunks + w.chunk, x);
  else fetch_view(p, w, S, p.initial, x);
  kr_raw16 u[2], delta[2], bc;
  load_rows(w, p.u, w.begin, u);
  load_rows(w, p.delta, w.begin, delta);
  bc = prefetch_bc(p, w, w.begin);
  for (int64_t t0 = w.begin; t0 < w.end; t0 += TL) {
    stage_rows(p, w, u, delta, bias, m.dt, m.du, t0);
    stage_bc(p, w, m.bc, t0, bc);
    kr_sync();
    if (t0 + TL < w.end) {
      load_rows(w, p.u, t0 + TL, u);
      load_rows(w, p.delta, t0 + TL, delta);
      bc = prefetch_bc(p, w, t0 + TL);
    }
    keep_states(p, w, S, p.tile_state, w.b * p.n_tiles + t0 / TL, x);
    const uint32_t resets = PACKED ? reset_mask(p, w, t0) : 0;
#pragma unroll 1
    for (int k = 0; k < TL; k += 4) forward4(w, m, S, PACKED, rows, k, resets, A, x);
    kr_sync();
  }
}

/* Sums v over the lane groups of a warp. With T = 4 and S = 4 the eight values part on the way: the lane keeps value
 * (lane & 4: of C), 2 (lane & 8), 1 (lane & 16) in v[0]; with S = 1 likewise by lane & 4. Otherwise every lane has all. */
KR_DEV void reduce_groups(const int S, const int T4, int thread, int T, float (&v)[8]) {
  if (S == 4 && T4) {
#pragma unroll
    for (int n = 4, d = 4; n >= 1; n >>= 1, d <<= 1) {
      const int high = thread & d;
#pragma unroll
      for (int k = 0; k < n; k++) v[k] = kr_select(high, v[k + n], v[k]) + kr_shuffle_xor(kr_select(high, v[k], v[k + n]), d);
    }
    return;
  }
  for (int d = T; d < 32; d <<= 1) {
#pragma unroll
    for (int k = 0; k < 2 * S; k++) v[k] += kr_shuffle_xor(v[k], d);
  }
}

/* The warp's share of dB and dC of step i of the four: part[warp][i][column]. */
KR_DEV void keep_warp_part(const kr_scan_plan &p, const scan_place &w, const int S, const int T4, float *part, int i, const float (&v)[8]) {
  const int rows = 2 * p.N_padded, lane = w.thread & 31;
  float *to = part + ((w.thread >> 5) * 4 + i) * rows;
  if (S == 4 && T4) {
    to[(lane & 4 ? p.N_padded : 0) + (lane & 3) * 4 + (lane & 8 ? 2 : 0) + (lane & 16 ? 1 : 0)] = v[0];
    return;
  }
  if (lane >= p.T) return;
#pragma unroll
  for (int s = 0; s < S; s++) to[w.lane * S + s] = v[s], to[p.N_padded + w.lane * S + s] = v[S + s];
}

/* The block's share of four steps of dB and dC, from its four warps, to scratch. */
KR_DEV void write_part(const kr_scan_plan &p, const scan_place &w, const float *part, int64_t t) {
  const int rows = 2 * p.N_padded;
  float *to = p.part_bc + ((int64_t)kr_block_x() * p.L + t) * rows;
  for (int id = w.thread; id < 4 * rows; id += KR_SCAN_THREADS)
    if (t + (id >> p.rows_shift) < w.end) to[id] = part[id] + part[4 * rows + id] + (part[8 * rows + id] + part[12 * rows + id]);
}

/* Four steps: forward into registers, then back. s1, s2 and y of the lane's channel replace du, g and y. */
KR_DEV void back4(const kr_scan_plan &p, const scan_place &w, const bwd_shared &m, const int S, const int T4, const int PACKED, int k, uint32_t resets, float *part, const float (&A)[2][4], float (&carry)[2][4], float (&dA)[2][4]) {
  const int rows = 2 * p.N_padded, n0 = w.lane * S;
  float x[5][2][4], a[4][2][4];
  kr_float4 dt[2], du[2], g[2], s1, s2, y;
  read4(w, m.dt, k, dt);
  read4(w, m.du, k, du);
  read4(w, m.g, k, g);
#pragma unroll
  for (int c = 0; c < 2; c++)
#pragma unroll
    for (int s = 0; s < S; s++) x[0][c][s] = m.bound[((k * S / 2) + c * S + s) * KR_SCAN_THREADS + w.thread];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float B[4];
    read_states(S, m.bc + (k + i) * rows + n0, B);
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
      for (int s = 0; s < S; s++) {
        a[i][c][s] = kr_exp2(dt[c].v[i] * A[c][s]);
        if (PACKED && resets >> (k + i) & 1) a[i][c][s] = 0.0f;
        x[i + 1][c][s] = kr_fma(a[i][c][s], x[i][c][s], du[c].v[i] * B[s]);
      }
  }
#pragma unroll
  for (int i = 3; i >= 0; i--) {
    float B[4], C[4], v[8], sum1[2] = {0, 0}, sum2[2] = {0, 0}, sum_y[2] = {0, 0};
    read_states(S, m.bc + (k + i) * rows + n0, B);
    read_states(S, m.bc + (k + i) * rows + p.N_padded + n0, C);
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
      for (int s = 0; s < S; s++) {
        const float dx = kr_fma(g[c].v[i], C[s], carry[c][s]);
        sum1[c] = kr_fma(dx, B[s], sum1[c]);
        sum_y[c] = kr_fma(C[s], x[i + 1][c][s], sum_y[c]);
        v[s] = c ? kr_fma(dx, du[c].v[i], v[s]) : dx * du[c].v[i];
        v[S + s] = c ? kr_fma(g[c].v[i], x[i + 1][c][s], v[S + s]) : g[c].v[i] * x[i + 1][c][s];
        carry[c][s] = a[i][c][s] * dx;
        const float q = carry[c][s] * x[i][c][s];
        sum2[c] = kr_fma(A[c][s], q, sum2[c]);
        dA[c][s] = kr_fma(dt[c].v[i], q, dA[c][s]);
      }
    s1.v[i] = reduce_channels(sum1[0], sum1[1], w.lane);
    s2.v[i] = reduce_channels(sum2[0], sum2[1], w.lane);
    y.v[i] = reduce_channels(sum_y[0], sum_y[1], w.lane);
    reduce_groups(S, T4, w.thread, T4 ? 4 : p.T, v);
    keep_warp_part(p, w, S, T4, part, i, v);
  }
  if (!T4) {
    reduce_rest(s1, p.T);
    reduce_rest(s2, p.T);
    reduce_rest(y, p.T);
  }
  kr_sync_warp(); /* the group has read du and g before s1 and s2 take their place */
  if (w.lane < 2) {
    const int at = (w.group + w.n_groups * w.lane) * WIDTH + k;
    *(kr_float4 *)(m.du + at) = s1;
    *(kr_float4 *)(m.g + at) = s2;
    *(kr_float4 *)(m.y + at) = y;
  }
}

KR_DEV void write_gradients(const kr_scan_plan &p, const scan_place &w, const bwd_shared &m, const tile_raw &raw, const float (&skip)[4], int64_t t0, const int PACKED, float (&dD)[2], float (&dbias)[2]) {
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int row = w.row + i * ROWS;
    if (row >= w.n_channels) break;
    float du[E], ddelta[E], dz[E];
#pragma unroll
    for (int k = 0; k < E; k++) {
      const int at = row * WIDTH + w.at + k;
      const float dt = m.dt[at], s1 = m.du[at], s2 = KR_LN2 * m.g[at], u = element(raw.u[i], k), z = element(raw.z[i], k);
      float dout = element(raw.dout[i], k), g = dout;
      if (PACKED && masked(p, w, t0 + w.at + k)) g = dout = 0.0f;
      dz[k] = 0.0f;
      if (p.z.data) {
        const float s = kr_sigmoid(z);
        dz[k] = dout * kr_fma(skip[i], u, m.y[at]) * s * kr_fma(z, 1.0f - s, 1.0f);
        g = dout * z * s;
      }
      du[k] = kr_fma(skip[i], g, dt * s1);
      ddelta[k] = kr_fma(u, s1, s2);
      if (p.softplus) ddelta[k] *= kr_softplus_slope(dt);
      if (t0 + w.at + k < w.end) dD[i] = kr_fma(g, u, dD[i]), dbias[i] += ddelta[k];
    }
    if (p.du.data) store_row(w, p.du, i, t0, du);
    if (p.ddelta.data) store_row(w, p.ddelta, i, t0, ddelta);
    if (p.dz.data) store_row(w, p.dz, i, t0, dz);
  }
}

KR_DEV void write_sums(const kr_scan_plan &p, const scan_place &w, float (&dD)[2], float (&dbias)[2]) {
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

KR_DEV void scan_back(const kr_scan_plan &p, const int S, const int T4, const int PACKED) {
  KR_DYNAMIC_SHARED(shared);
  const scan_place w = place_block(p);
  const bwd_shared m = lay_out(p, w, S, (float *)shared);
  const int rows = 2 * p.N_padded;
  float A[2][4], bias[4], skip[4], dD[2] = {0, 0}, dbias[2] = {0, 0}, carry[2][4], dA[2][4];
  load_A(p, w, S, A);
  load_parameters(w, p.bias, p.bias_stride, bias);
  load_parameters(w, p.D_vec, p.D_stride, skip);
  sweep(p, w, m, S, PACKED, A, bias);
  if (p.n_chunks > 1) fetch_states(p, w, S, p.chunk_carry, w.b * p.n_chunks + w.chunk, carry);
  else fetch_view(p, w, S, p.dlast, carry);
#pragma unroll
  for (int s = 0; s < S; s++) dA[0][s] = dA[1][s] = 0.0f;
  tile_raw raw, next;
  int64_t t0 = w.begin + (w.end - w.begin - 1) / TL * TL;
  if (t0 >= w.begin) load_tile(p, w, t0, next);
  for (; t0 >= w.begin; t0 -= TL) {
    raw = next;
    stage_rows(p, w, raw.u, raw.delta, bias, m.dt, m.du, t0);
    stage_gradient(p, w, raw, m.g, t0, PACKED);
    stage_bc(p, w, m.bc, t0, raw.bc);
    kr_sync();
    if (t0 > w.begin) load_tile(p, w, t0 - TL, next);
    const uint32_t resets = PACKED ? reset_mask(p, w, t0) : 0;
    float x[2][4];
    fetch_states(p, w, S, p.tile_state, w.b * p.n_tiles + t0 / TL, x);
#pragma unroll 1
    for (int k = 0; k < TL; k += 4) {
#pragma unroll
      for (int c = 0; c < 2; c++)
#pragma unroll
        for (int s = 0; s < S; s++) m.bound[((k * S / 2) + c * S + s) * KR_SCAN_THREADS + w.thread] = x[c][s];
      if (k + 4 < TL) forward4(w, m, S, PACKED, rows, k, resets, A, x);
    }
#pragma unroll 1
    for (int k = TL - 4; k >= 0; k -= 4) {
      float *part = m.part + (k >> 2 & 1) * 16 * rows;
      back4(p, w, m, S, T4, PACKED, k, resets, part, A, carry, dA);
      kr_sync(); /* one is enough: the next four steps use the other half of part */
      write_part(p, w, part, t0 + k);
    }
    write_gradients(p, w, m, raw, skip, t0, PACKED, dD, dbias);
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
      if (row < w.n_channels && n < p.N) p.dinitial.data[w.b * p.dinitial.b + (w.d0 + row) * p.dinitial.d + n * p.dinitial.n] = carry[c][s];
    }
}

KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 2) kr_scan_bwd_t4(const kr_scan_plan p) { scan_back(p, 4, 1, 0); }
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 2) kr_scan_bwd_any(const kr_scan_plan p) { scan_back(p, 4, 0, 0); }
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 2) kr_scan_bwd_s1(const kr_scan_plan p) { scan_back(p, 1, 0, 0); }
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 2) kr_scan_bwd_packed(const kr_scan_plan p) { scan_back(p, 4, 0, 1); }

KR_DEV void carry_chunk(const kr_scan_plan &p, const int S) {
  KR_DYNAMIC_SHARED(shared);
  const scan_place w = place_block(p);
  const bwd_shared m = lay_out(p, w, S, (float *)shared);
  const int rows = 2 * p.N_padded;
  float A[2][4], bias[4], carry[2][4];
  load_A(p, w, S, A);
  load_parameters(w, p.bias, p.bias_stride, bias);
#pragma unroll
  for (int s = 0; s < S; s++) carry[0][s] = carry[1][s] = 0.0f;
  for (int64_t t0 = w.begin + (w.end - w.begin - 1) / TL * TL; t0 >= w.begin; t0 -= TL) {
    tile_raw raw;
    load_tile(p, w, t0, raw);
    stage_rows(p, w, raw.u, raw.delta, bias, m.dt, m.du, t0);
    stage_gradient(p, w, raw, m.g, t0, 0);
    stage_bc(p, w, m.bc, t0, raw.bc);
    kr_sync();
#pragma unroll 1
    for (int k = TL - 4; k >= 0; k -= 4) {
      kr_float4 dt[2], g[2];
      read4(w, m.dt, k, dt);
      read4(w, m.g, k, g);
#pragma unroll
      for (int i = 3; i >= 0; i--) {
        float C[4];
        read_states(S, m.bc + (k + i) * rows + p.N_padded + w.lane * S, C);
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
          for (int s = 0; s < S; s++) carry[c][s] = kr_exp2(dt[c].v[i] * A[c][s]) * kr_fma(g[c].v[i], C[s], carry[c][s]);
      }
    }
    kr_sync();
  }
  keep_states(p, w, S, p.chunk_carry, w.b * p.n_chunks + w.chunk, carry);
}

KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_carry_s4(const kr_scan_plan p) { carry_chunk(p, 4); }
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_carry_s1(const kr_scan_plan p) { carry_chunk(p, 1); }

/* One thread per (batch, channel, state): gradients of chunk starts from zero become gradients of chunk ends. */
KR_KERNEL void kr_scan_carry_combine(const kr_scan_plan p) {
  int64_t i = (int64_t)kr_block_x() * kr_block_threads() + kr_thread();
  if (i >= p.B * p.D * p.N) return;
  int64_t n = i % p.N, d = i / p.N % p.D, b = i / p.N / p.D, step = p.D * p.N;
  float A = p.A[d * p.A_d + n * p.A_n] * KR_LOG2E;
  float carry = p.dlast.data ? p.dlast.data[b * p.dlast.b + d * p.dlast.d + n * p.dlast.n] : 0.0f;
  float *at = p.chunk_carry + (b * p.n_chunks * p.D + d) * p.N + n;
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

/* dB and dC: a block takes 32 steps of one (batch, group) and turns (step, state) into (state, step) on the way out. */
KR_KERNEL void KR_BOUNDS(256, 2) kr_scan_bwd_sum_bc(const kr_scan_plan p) {
  KR_SHARED float tile[32][33];
  const int rows = 2 * p.N_padded, x = kr_thread() & 31, y = kr_thread() >> 5;
  const int64_t n_times = (p.L + 31) / 32, t0 = kr_block_x() % n_times * 32, bg = kr_block_x() / n_times;
  for (int r0 = 0; r0 < rows; r0 += 32) {
    for (int k = y; k < 32; k += 8) {
      float sum = 0;
      if (t0 + k < p.L && r0 + x < rows) {
        const float *from = p.part_bc + (bg * p.blocks_per_group * p.L + t0 + k) * rows + r0 + x;
        for (int j = 0; j < p.blocks_per_group; j++) sum += from[(int64_t)j * p.L * rows];
      }
      tile[k][x] = sum;
    }
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

/* dA, then dD and ddelta_bias: one thread each, over batches and chunks. */
KR_KERNEL void kr_scan_bwd_sum_d(const kr_scan_plan p) {
  const int64_t i = (int64_t)kr_block_x() * kr_block_threads() + kr_thread(), n_A = p.D * p.N, parts = p.B * p.n_chunks;
  if (i < n_A) {
    float sum = 0;
    for (int64_t k = 0; k < parts; k++) sum += p.part_A[k * n_A + i];
    if (p.dA) p.dA[i / p.N * p.dA_d + i % p.N * p.dA_n] = sum;
  } else if (i < n_A + 2 * p.D) {
    const int64_t d = (i - n_A) % p.D, is_bias = i - n_A >= p.D;
    const float *from = is_bias ? p.part_bias : p.part_D;
    float sum = 0;
    for (int64_t k = 0; k < parts; k++) sum += from[k * p.D + d];
    if (is_bias && p.dbias) p.dbias[d * p.dbias_stride] = sum;
    if (!is_bias && p.dD_vec) p.dD_vec[d * p.dD_stride] = sum;
  }
}

/* scan.cuh: shared by the scan kernels: the block's position, register staging of row tiles, staging of B and C.
 * Compiled once per storage type KR_DTYPE of u, delta, z and the outputs: 16 bytes are E elements, a tile has PACKS
 * packs of E steps, and a thread holds one pack of each of R rows, thread / PACKS + ROWS i. */
#ifndef KR_SCAN_CUH
#define KR_SCAN_CUH

#include "scan_gate.cuh"
#include "pack.cuh"
#include "scan_params.h"

#ifndef KR_SCAN_PACKS
#define KR_SCAN_PACKS 4
#endif
enum {
  E = KR_DTYPE == KRAIT_F32 ? 4 : 8,
  PACKS = KR_SCAN_PACKS,
  TL = PACKS * E,
  WIDTH = TL + 4,
  ROWS = KR_SCAN_THREADS / PACKS,
  R = 64 / ROWS
};

typedef struct scan_place {
  int64_t b, chunk, d0, begin, end; /* first channel of the block; steps of the chunk */
  int g, n_channels;                /* group of B and C; valid channels of this block */
  int thread, lane, group, n_groups, row, at;
} scan_place;

KR_DEV scan_place place_block(const kr_scan_params &p) {
  scan_place w;
  int x = kr_block_x(), per_batch = p.blocks_per_group * p.G;
  w.b = x / per_batch;
  w.g = x % per_batch / p.blocks_per_group;
  w.thread = kr_thread();
  w.lane = w.thread & (p.T - 1);
  w.group = w.thread >> p.T_shift;
  w.n_groups = KR_SCAN_THREADS >> p.T_shift;
  w.row = w.thread / PACKS, w.at = (w.thread % PACKS) * E;
  int64_t c0 = (int64_t)(x % p.blocks_per_group) * (2 * w.n_groups);
  w.d0 = w.g * p.D_group + c0;
  w.n_channels = (int)min64(2 * w.n_groups, p.D_group - c0);
  w.chunk = kr_block_y();
  w.begin = w.chunk * p.chunk;
  w.end = min64(p.L, w.begin + p.chunk);
  return w;
}

KR_DEV float element(const kr_raw16 &raw, int k) { return pack_at(raw, k, KR_DTYPE); }

/* This thread's packs of the tile at t0; zeros past the end and for missing rows. */
KR_DEV void load_rows(const scan_place &w, const kr_rows &v, int64_t t0, kr_raw16 *raw) {
  const int64_t offset = w.b * v.b + (w.d0 + w.row) * v.row + (t0 + w.at) * v.t, step = ROWS * v.row;
  if (v.packs && t0 + TL <= w.end) {
#pragma unroll
    for (int i = 0; i < R; i++) {
      raw[i].w[0] = raw[i].w[1] = raw[i].w[2] = raw[i].w[3] = 0;
      if (w.row + i * ROWS < w.n_channels)
        raw[i] = *(const kr_raw16 *)((const char *)v.data + (offset + i * step) * (16 / E));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < R; i++)
    raw[i] =
        load_pack(v.data, offset + i * step, v.t, KR_DTYPE, 0, w.row + i * ROWS < w.n_channels ? w.end - t0 - w.at : 0);
}

KR_DEV void store_row(const scan_place &w, const kr_rows &v, int i, int64_t t0, const float (&y)[E]) {
  const int64_t offset = w.b * v.b + (w.d0 + w.row + i * ROWS) * v.row + (t0 + w.at) * v.t;
  if (v.packs && v.dtype == KR_DTYPE && t0 + TL <= w.end) {
    kr_raw16 raw;
#pragma unroll
    for (int k = 0; k < 4; k++)
      raw.w[k] = E == 4 ? kr_float_to_bits(y[k]) : kr_pack(y[2 * k % E], y[(2 * k + 1) % E], KR_DTYPE);
    *(kr_raw16 *)((char *)v.data + offset * (16 / E)) = raw;
    return;
  }
#pragma unroll
  for (int k = 0; k < E; k++)
    if (t0 + w.at + k < w.end) kr_store(v.data, offset + k * v.t, v.dtype, y[k]);
}

/* B and C of a tile: row r is state r of B, or r - N_padded of C; pack id covers row id % rows, steps id / rows * E
 * ... */
KR_DEV kr_raw16 load_bc(const kr_scan_params &p, const scan_place &w, int id, int64_t t0) {
  const int rows = 2 * p.N_padded, r = id & (rows - 1), is_C = r >= p.N_padded, n = is_C ? r - p.N_padded : r;
  const int64_t t = t0 + (id >> p.rows_shift) * E;
  const kr_scan_mat &m = is_C ? p.C_mat : p.B_mat;
  return load_pack(m.data, w.b * m.b + w.g * m.g + n * m.n + t * m.t, m.t, KR_DTYPE, m.packs, n < p.N ? w.end - t : 0);
}

KR_DEV void put_bc(const kr_scan_params &p, float *s_bc, int id, const kr_raw16 &raw) {
  const int rows = 2 * p.N_padded, r = id & (rows - 1), at = (id >> p.rows_shift) * E;
#pragma unroll
  for (int k = 0; k < E; k++) s_bc[(at + k) * rows + r] = element(raw, k);
}

/* Packs 0 ... 127 were prefetched; the rest, present when N exceeds 16, are loaded here. B or C of a type other than
 * u's are loaded element by element. */
KR_DEV void stage_bc(const kr_scan_params &p, const scan_place &w, float *s_bc, int64_t t0, const kr_raw16 &ready) {
  const int n_packs = 2 * PACKS * p.N_padded;
  if (!p.mixed) {
    if (w.thread < n_packs) put_bc(p, s_bc, w.thread, ready);
    for (int id = w.thread + KR_SCAN_THREADS; id < n_packs; id += KR_SCAN_THREADS)
      put_bc(p, s_bc, id, load_bc(p, w, id, t0));
    return;
  }
  const int rows = 2 * p.N_padded;
  for (int id = w.thread; id < rows * TL; id += KR_SCAN_THREADS) {
    const int r = id & (rows - 1), is_C = r >= p.N_padded, n = is_C ? r - p.N_padded : r;
    const int64_t t = t0 + (id >> p.rows_shift);
    const kr_scan_mat &m = is_C ? p.C_mat : p.B_mat;
    s_bc[id] = n < p.N && t < w.end ? kr_load(m.data, w.b * m.b + w.g * m.g + n * m.n + t * m.t, m.dtype) : 0.0f;
  }
}

KR_DEV kr_raw16 prefetch_bc(const kr_scan_params &p, const scan_place &w, int64_t t0) {
  kr_raw16 none = {{0, 0, 0, 0}};
  return !p.mixed && w.thread < 2 * PACKS * p.N_padded ? load_bc(p, w, w.thread, t0) : none;
}

/* dt and dt * u of the tile to shared memory, (channel, step). dt is 0 past the end, which leaves the state unchanged.
 * */
KR_DEV void stage_rows(const kr_scan_params &p, const scan_place &w, const kr_raw16 *u, const kr_raw16 *delta,
                       const float *bias, float *s_dt, float *s_du, int64_t t0) {
  const int left = (int)min64(TL, w.end - t0) - w.at;
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int row = w.row + i * ROWS;
    if (row >= 2 * w.n_groups) break;
    float dt[E];
#pragma unroll
    for (int k = 0; k < E; k++) dt[k] = element(delta[i], k) + bias[i];
    if (p.softplus) {
#pragma unroll
      for (int k = 0; k < E; k++) dt[k] = kr_softplus(dt[k]);
    }
    if (left < E) {
#pragma unroll
      for (int k = 0; k < E; k++) dt[k] = k < left ? dt[k] : 0.0f;
    }
#pragma unroll
    for (int half = 0; half < E; half += 4) {
      kr_float4 d = {{dt[half], dt[half + 1], dt[half + 2], dt[half + 3]}}, du;
#pragma unroll
      for (int k = 0; k < 4; k++) du.v[k] = d.v[k] * element(u[i], half + k);
      *(kr_float4 *)(s_dt + row * WIDTH + w.at + half) = d;
      *(kr_float4 *)(s_du + row * WIDTH + w.at + half) = du;
    }
  }
}

KR_DEV void load_parameters(const scan_place &w, const float *data, int64_t stride, float (&v)[4]) {
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int row = w.row + i * ROWS;
    v[i] = data && row < w.n_channels ? data[(w.d0 + row) * stride] : 0.0f;
  }
}

/* A in units of log 2, for the lane's S states of its 2 channels; 0 out of range. */
KR_DEV void load_A(const kr_scan_params &p, const scan_place &w, const int S, float (&A)[2][4]) {
#pragma unroll
  for (int c = 0; c < 2; c++)
#pragma unroll
    for (int s = 0; s < S; s++) {
      const int row = w.group + w.n_groups * c, n = w.lane * S + s;
      A[c][s] = row < w.n_channels && n < p.N ? p.A[(w.d0 + row) * p.A_d + n * p.A_n] * KR_LOG2E : 0.0f;
    }
}

/* S consecutive floats of shared memory. */
KR_DEV void read_states(const int S, const float *from, float (&v)[4]) {
  if (S == 1) {
    v[0] = from[0];
    return;
  }
  const kr_float4 q = *(const kr_float4 *)from;
#pragma unroll
  for (int k = 0; k < 4; k++) v[k] = q.v[k];
}

/* Bit k: the state is cleared before step t0 + k, because the sequence index changes. */
KR_DEV uint32_t reset_mask(const kr_scan_params &p, const scan_place &w, int64_t t0) {
  uint32_t mask = 0;
  const int32_t *index = p.seq_idx + w.b * p.seq_b;
  for (int k = 0; k < TL; k++) {
    int64_t t = t0 + k;
    if (t > 0 && t < p.L && index[t * p.seq_t] != index[(t - 1) * p.seq_t]) mask |= 1u << k;
  }
  return mask;
}

/* Reduces two values, one per channel, over the first four lanes of a group; the lane keeps channel lane & 1.
 * reduce_rest finishes the whole group. */
KR_DEV float reduce_channels(float y0, float y1, int lane) {
  const int odd = lane & 1;
  float r = kr_select(odd, y1, y0) + kr_shuffle_xor(kr_select(odd, y0, y1), 1);
  return r + kr_shuffle_xor(r, 2);
}

KR_DEV void reduce_rest(kr_float4 &y, int T) {
  for (int d = 4; d < T; d <<= 1) {
#pragma unroll
    for (int i = 0; i < 4; i++) y.v[i] += kr_shuffle_xor(y.v[i], d);
  }
}

/* One thread per (batch, channel, state): turns chunk ends from zero into chunk starts. */
KR_DEV void walk_forward(const kr_scan_params &p) {
  int64_t i = (int64_t)kr_block_x() * kr_block_threads() + kr_thread();
  if (i >= p.B * p.D * p.N_padded) return;
  int64_t n = i % p.N_padded, d = i / p.N_padded % p.D, b = i / p.N_padded / p.D, step = p.D * p.N_padded;
  float A = n < p.N ? p.A[d * p.A_d + n * p.A_n] * KR_LOG2E : 0.0f;
  float x = n < p.N && p.initial.data ? p.initial.data[b * p.initial.b + d * p.initial.d + n * p.initial.n] : 0.0f;
  float *state = p.chunk_state + (b * p.n_chunks * p.D + d) * p.N_padded + n;
  const float *dt = p.chunk_dt + b * p.n_chunks * p.D + d;
  for (int c = 0; c < p.n_chunks; c += 8) {
    float end[8], decay[8];
#pragma unroll
    for (int k = 0; k < 8; k++) { /* all loads first, so the dependent chain below waits for none */
      int exists = c + k < p.n_chunks - 1;
      end[k] = exists ? state[(c + k) * step] : 0.0f;
      decay[k] = exists ? kr_exp2(A * dt[(c + k) * p.D]) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
      if (c + k < p.n_chunks) state[(c + k) * step] = x;
      x = kr_fma(decay[k], x, end[k]);
    }
  }
}

#endif

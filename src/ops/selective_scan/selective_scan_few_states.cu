/* selective_scan_few_states.cu: gradients of the scan for up to four states (selective_scan_bwd_ref.c has the
 * equations), with rows, B and C of one 16-bit type in aligned 16-byte packs along time. A thread steps through a chunk
 * of one channel with all its states in registers, so that sums over states stay in a thread and no scan across runs is
 * needed; chunks of time fill the device. kr_scan_few_states_sweep   forward, without chunking: stores the state before
 * every run of 8 steps kr_scan_few_states_cut     forward over each chunk from zero: the same, the chunk's last state,
 * its sum of dt, and the gradient of its first state from zero at its end: the sum of g C times all decays from the
 *                       chunk's start
 *   kr_scan_few_states_back    backward, from the gradient of the chunk's last state; partial dB and dC of a block's
 * channels A block has p.few channels of 128 / p.few adjacent chunks. A warp copies the packs of its rows
 * cooperatively; results are staged in the same slots. A lane keeps state k in slot k ^ (lane & 3), and shared memory
 * holds B and C once per such order: so four lanes reduce dB and dC of a step without selects, each keeping one state;
 * the block does the rest once per tile. With g = dout silu(z) and h = a_{t+1} dx_{t+1}:  dx = g C + h;  q = a dx
 * x_{t-1};  s1 = sum_n dx B; s2 = sum_n A q;  y = sum_n C x; du = D g + dt s1;  ddt = u s1 + s2;  dA += dt q;  dB += dx
 * dt u;  dC += g x. */
#include "scan_packed_rows.cuh"

enum { S = 4, BYTES = 2, RUN = E, TILE = 2 * RUN, THREADS = KR_SCAN_THREADS, WARPS = THREADS / 32 };
/* Packs of a tile: [tensor][warp][half][row]; the second half's rows are permuted, row ^ 4. */
enum {
  U,
  DELTA,
  DOUT,
  Z,
  TENSOR = WARPS * 2 * 32
};
/* floats; odd padding against bank conflicts. */
enum {
  STEP_BC = 4 * 2 * S,
  HALF_BC = 8,
  CHUNK_BC = TILE * STEP_BC + 16,
  STEP_PART = 2 * THREADS + 4
};

typedef struct few_place {
  int64_t b, d0;                                      /* first channel of the block */
  int g, n_channels, n_subs, n_tiles; /* valid channels; chunks of the block; tiles of its longest chunk */
  int thread, at, slot, sub, order, chunk, begin,
      exists; /* slot: the thread's channel in the block; sub: its chunk there; begin: its first step */
  int warp_begin, warp_slot,
      whole_tiles; /* the warp's first chunk and channel; tiles complete in all channels and chunks of the block */
} few_place;

KR_DEV few_place place_few(const kr_scan_params &p) {
  few_place w;
  const int x = kr_block_x(), per_batch = p.blocks_per_group * p.G, length = (int)p.chunk;
  w.b = x / per_batch;
  w.g = x % per_batch / p.blocks_per_group;
  const int64_t c0 = (int64_t)(x % p.blocks_per_group) * p.few;
  w.d0 = w.g * p.D_group + c0;
  w.n_channels = (int)min64(p.few, p.D_group - c0);
  w.n_subs = THREADS >> p.few_shift;
  const int chunk = kr_block_y() * w.n_subs;
  w.n_tiles = (int)(min64(length, p.L - chunk * length) + TILE - 1) / TILE;
  w.thread = kr_thread(), w.at = w.thread & 31, w.order = w.at & 3;
  w.slot = w.thread & (p.few - 1), w.sub = w.thread >> p.few_shift;
  w.chunk = chunk + w.sub, w.begin = w.chunk * length;
  w.exists = w.slot < w.n_channels && w.chunk < p.n_chunks;
  w.warp_begin = (chunk + (w.thread >> 5 << 5 >> p.few_shift)) * length, w.warp_slot = (w.thread & ~31) & (p.few - 1);
  w.whole_tiles = w.n_channels < p.few ? 0 : (int)min64(length, p.L - (chunk + w.n_subs - 1) * length) / TILE;
  return w;
}

/* A sum, not a select: the compiler would turn that into a select of addresses, and copy the whole params to have some.
 * */
KR_DEV int64_t of_four(int k, int64_t v0, int64_t v1, int64_t v2, int64_t v3) {
  return (k == 0 ? v0 : 0) + (k == 1 ? v1 : 0) + (k == 2 ? v2 : 0) + (k == 3 ? v3 : 0);
}

/* ---- rows: packs of a tile, copied asynchronously ---- */

/* The lane's share of a warp's rows: tensor lane / 8, pack lane & 1 of rows lane / 2 % 4, then every fourth. All
 * tensors have the same row stride. Returns the first one's address in the chunk's first tile; 0 if the tensor is
 * absent. */
KR_DEV uint64_t share_rows(const kr_scan_params &p, const few_place &w, const kr_rows &v0, const kr_rows &v1,
                           const kr_rows &v2, const kr_rows &v3) {
  const int k = w.at / 8, slot = w.warp_slot + w.at / 2 % 4;
  const int64_t data = of_four(k, (int64_t)v0.data, (int64_t)v1.data, (int64_t)v2.data, (int64_t)v3.data),
                b = of_four(k, v0.b, v1.b, v2.b, v3.b);
  return data ? (uint64_t)data + (uint64_t)(w.b * b + (w.d0 + slot) * p.u.row + w.warp_begin + (w.at & 1) * E) * BYTES
              : 0;
}

KR_DEV char *row_at(const kr_scan_params &p, uint64_t share, int i, int tile) {
  const int by_half = (p.few == 16 ? (int)p.chunk : 16 * (int)p.u.row) * BYTES, by_four = (int)p.u.row * (4 * BYTES);
  char *at = (char *)(share + (uint64_t)(int64_t)(tile * (TILE * BYTES) + (i / 4 * by_half + i % 4 * by_four)));
  kr_one_pointer(at);
  return at;
}

/* The slot of the pack of the lane's row i. */
KR_DEV int row_place(const few_place &w, int i) {
  return w.at / 8 * TENSOR + w.thread / 32 * 64 + (w.at & 1) * 32 + w.at / 2 % 4 + ((i & 1) ^ (w.at & 1)) * 4 +
         i / 2 * 8;
}

/* Whether the lane's row i is in range at a tile. */
KR_DEV int row_exists(const kr_scan_params &p, const few_place &w, int i, int tile) {
  const int row = i * 4 + w.at / 2 % 4, slot = p.few == 16 ? row & 15 : w.warp_slot + row;
  return slot < w.n_channels &&
         w.warp_begin + (p.few == 16 ? row / 16 * (int)p.chunk : 0) + tile * TILE + (w.at & 1) * E < p.L;
}
KR_DEV void store_pack(char *to, const kr_raw16 &raw) {
  *(kr_float4 *)to = kr_float4{
      {kr_bits_to_float(raw.w[0]), kr_bits_to_float(raw.w[1]), kr_bits_to_float(raw.w[2]), kr_bits_to_float(raw.w[3])}};
}

KR_DEV void copy_rows(const kr_scan_params &p, const few_place &w, uint64_t share, int tile, kr_raw16 *rows) {
  if (!share) return;
  if (w.whole_tiles > tile) {
#pragma unroll
    for (int i = 0; i < 8; i++) kr_copy16(rows + row_place(w, i), row_at(p, share, i, tile));
    return;
  }
#pragma unroll 1
  for (int i = 0; i < 8; i++) copy_pack(rows + row_place(w, i), row_at(p, share, i, tile), row_exists(p, w, i, tile));
}

KR_DEV void store_rows(const kr_scan_params &p, const few_place &w, uint64_t share, int tile, const kr_raw16 *rows) {
  if (!share) return;
  if (w.whole_tiles > tile) {
#pragma unroll
    for (int i = 0; i < 8; i++) store_pack(row_at(p, share, i, tile), rows[row_place(w, i)]);
    return;
  }
#pragma unroll 1
  for (int i = 0; i < 8; i++)
    if (row_exists(p, w, i, tile)) store_pack(row_at(p, share, i, tile), rows[row_place(w, i)]);
}

/* Absent rows count as zeros. */
KR_DEV void clear_rows(const few_place &w, uint64_t share, int n_packs, kr_raw16 *rows) {
  if (share || row_place(w, 0) >= n_packs) return;
#pragma unroll
  for (int i = 0; i < 8; i++) rows[row_place(w, i)] = rows[n_packs + row_place(w, i)] = kr_raw16{{0, 0, 0, 0}};
}

/* The thread's pack of a run. */
KR_DEV kr_raw16 &run_place(const few_place &w, kr_raw16 *tensor, int run) {
  return tensor[w.thread / 32 * 64 + run * 32 + (w.at ^ run * 4)];
}
KR_DEV float at_step(const kr_raw16 &raw, int k) { return pack_at(raw, k, KR_DTYPE); }

/* Steps come in descending order; a pair is packed once its first step is known. */
KR_DEV void set_step(kr_raw16 &raw, int k, float v, float &after) {
  if (k % 2) after = v;
  else raw.w[k / 2] = kr_pack(v, after, KR_DTYPE);
}

/* dt of a run, bias in units of log 2; 0 past the end, which leaves the state unchanged. */
KR_DEV void run_sizes(const kr_scan_params &p, const kr_raw16 &raw, float bias, int left, float (&dt)[RUN]) {
#pragma unroll
  for (int k = 0; k < RUN; k++) dt[k] = kr_fma(at_step(raw, k), KR_LOG2E, bias);
#pragma unroll
  for (int k = 0; k < RUN; k++) dt[k] = kr_select(p.softplus, kr_softplus_log2(dt[k]), KR_LN2 * dt[k]);
  if (left >= RUN) return;
#pragma unroll
  for (int k = 0; k < RUN; k++) dt[k] = k < left ? dt[k] : 0.0f;
}

/* ---- B and C of a tile: [chunk][step][order][B, C][slot] ---- */

/* Copies raw packs asynchronously: [chunk][half][B, C][state]. */
KR_DEV void copy_bc(const kr_scan_params &p, const few_place &w, int tile, kr_raw16 *s_raw) {
  const int sub = w.thread / 16, is_C = w.thread >> 2 & 1, n = w.thread & 3,
            t = ((int)kr_block_y() * w.n_subs + sub) * (int)p.chunk + tile * TILE + (w.thread >> 3 & 1) * E;
  if (sub >= w.n_subs) return;
  const int64_t of_B = (int64_t)p.B_mat.data + (w.b * p.B_mat.b + w.g * p.B_mat.g + n * p.B_mat.n) * BYTES,
                of_C = (int64_t)p.C_mat.data + (w.b * p.C_mat.b + w.g * p.C_mat.g + n * p.C_mat.n) * BYTES;
  const char *from = (const char *)(of_four(is_C, of_B, of_C, 0, 0) + (int64_t)t * BYTES);
  kr_one_pointer(from);
  copy_pack(s_raw + w.thread, from, n < p.N && t < p.L);
}

/* Converts them to float, one element per thread at a time. */
KR_DEV void turn_bc(const few_place &w, const kr_raw16 *s_raw, float *s_bc) {
  const int row = w.thread & 15, n = row & 3;
  for (int id = w.thread; id < w.n_subs * 16 * E; id += THREADS) {
    const int k = id / 16 % E, sub = id / (16 * E);
    const kr_raw16 *raw = s_raw + sub * 16 + row;
    const float v = kr_unpack(((const uint16_t *)raw)[k], 0, KR_DTYPE);
    float *to = s_bc + sub * CHUNK_BC + (row >> 3) * (E * STEP_BC + HALF_BC) + k * STEP_BC + (row >> 2 & 1) * S;
#pragma unroll
    for (int o = 0; o < 4; o++) to[o * 2 * S + (n ^ o)] = v;
  }
}

/* B and C in the thread's order, at the first step of a run. */
KR_DEV const float *run_bc(const few_place &w, const float *s_bc, int run) {
  return s_bc + w.sub * CHUNK_BC + run * (RUN * STEP_BC + HALF_BC) + w.order * 2 * S;
}
KR_DEV kr_float4 bc_at(const float *bc, int k, int is_C) { return *(const kr_float4 *)(bc + k * STEP_BC + is_C * S); }

/* ---- states in scratch ---- */

KR_DEV int64_t slab_at(const kr_scan_params &p, const few_place &w) {
  return (w.b * p.n_chunks + w.chunk) * p.D + w.d0 + w.slot;
}
KR_DEV int64_t kept_at(const kr_scan_params &p, const few_place &w, int t) {
  return (w.b * p.n_kept + t / RUN) * p.D + w.d0 + w.slot;
}

/* The thread's states to and from an array, permuting to its order; out of range is 0. */
KR_DEV void fetch_places(const kr_scan_params &p, const few_place &w, const float *from, int64_t by_n, float factor,
                         float (&v)[S]) {
#pragma unroll
  for (int i = 0; i < S; i++)
    v[i] = from && w.exists && (i ^ w.order) < p.N ? from[(i ^ w.order) * by_n] * factor : 0.0f;
}
KR_DEV void keep_places(const few_place &w, float *to, int64_t by_n, int n_states, const float (&v)[S]) {
  if (!w.exists) return;
#pragma unroll
  for (int i = 0; i < S; i++)
    if ((i ^ w.order) < n_states) to[(i ^ w.order) * by_n] = v[i];
}
KR_DEV const float *of_channel(const kr_scan_state &v, const few_place &w) {
  return v.data && w.exists ? v.data + w.b * v.b + (w.d0 + w.slot) * v.d : 0;
}
KR_DEV void fetch_A(const kr_scan_params &p, const few_place &w, float (&A)[S]) {
  fetch_places(p, w, w.exists ? p.A + (w.d0 + w.slot) * p.A_d : 0, p.A_n, KR_LOG2E, A);
}

/* g = dout silu(z). */
KR_DEV float gated(const kr_scan_params &p, float dout, float z) {
  return dout * kr_select(p.z.data != 0, kr_silu(z), 1.0f);
}

KR_DEV void sweep_few(const kr_scan_params &p, const int CUT) {
  KR_DYNAMIC_SHARED(shared);
  const few_place w = place_few(p);
  const int TENSORS = CUT ? 4 : 2;
  kr_raw16 *s_rows = (kr_raw16 *)shared;
  kr_raw16 *s_raw = s_rows + 2 * TENSORS * TENSOR;
  float *s_bc = (float *)(s_raw + w.n_subs * 16);
  const float bias = p.bias && w.exists ? p.bias[(w.d0 + w.slot) * p.bias_stride] * KR_LOG2E : 0.0f;
  float A[S], x[S], decay[S], carry[S], sum = 0;
  fetch_A(p, w, A);
  fetch_places(p, w, CUT ? 0 : of_channel(p.initial, w), p.initial.n, 1.0f, x);
#pragma unroll
  for (int i = 0; i < S; i++) decay[i] = 1.0f, carry[i] = 0.0f;
  uint64_t in = share_rows(p, w, p.u, p.delta, p.dout, p.z);
  if (row_place(w, 0) >= TENSORS * TENSOR) in = 0;
  clear_rows(w, in, TENSORS * TENSOR, s_rows);
  copy_rows(p, w, in, 0, s_rows);
  copy_bc(p, w, 0, s_raw);
  kr_commit_copies();
  int64_t kept = kept_at(p, w, w.begin);
  kr_copied<0>();
  kr_sync();
  turn_bc(w, s_raw, s_bc);
  for (int tile = 0; tile < w.n_tiles; tile++) {
    kr_raw16 *rows = s_rows + (tile & 1) * TENSORS * TENSOR, *next = s_rows + ((tile + 1) & 1) * TENSORS * TENSOR;
    kr_sync();
    if (tile + 1 < w.n_tiles) copy_rows(p, w, in, tile + 1, next), copy_bc(p, w, tile + 1, s_raw);
    kr_commit_copies();
#pragma unroll 1
    for (int run = 0; run < TILE / RUN; run++) {
      const int t = w.begin + tile * TILE + run * RUN;
      const float *from = run_bc(w, s_bc, run);
      const kr_raw16 u = run_place(w, rows + U * TENSOR, run), delta = run_place(w, rows + DELTA * TENSOR, run);
      kr_raw16 dout, z;
      float dt[RUN];
      if (CUT) dout = run_place(w, rows + DOUT * TENSOR, run), z = run_place(w, rows + Z * TENSOR, run);
      if (w.exists && t < p.L) {
        *(kr_float4 *)(p.kept_state + kept * S) = kr_float4{{x[0], x[1], x[2], x[3]}};
        if (CUT) p.kept_dt[kept] = sum;
      }
      kept += p.D;
      run_sizes(p, delta, bias, (int)p.L - t, dt);
#pragma unroll
      for (int k = 0; k < RUN; k++) {
        const kr_float4 B = bc_at(from, k, 0), C = CUT ? bc_at(from, k, 1) : kr_float4{{0, 0, 0, 0}};
        const float du = dt[k] * at_step(u, k), g = CUT ? gated(p, at_step(dout, k), at_step(z, k)) : 0.0f;
        sum += dt[k];
#pragma unroll
        for (int i = 0; i < S; i++) {
          const float a = kr_exp2(dt[k] * A[i]);
          x[i] = kr_fma(a, x[i], du * B.v[i]);
          if (CUT) decay[i] *= a, carry[i] = kr_fma(decay[i], g * C.v[i], carry[i]);
        }
      }
    }
    kr_copied<0>();
    kr_sync();
    if (tile + 1 < w.n_tiles) turn_bc(w, s_raw, s_bc);
  }
  if (!CUT) return;
  keep_places(w, p.chunk_state + slab_at(p, w) * S, 1, S, x);
  keep_places(w, p.chunk_carry + slab_at(p, w) * S, 1, S, carry);
  if (w.exists) p.chunk_dt[slab_at(p, w)] = sum;
}

KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_few_states_sweep(const kr_scan_params p) { sweep_few(p, 0); }
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_few_states_cut(const kr_scan_params p) { sweep_few(p, 1); }

/* ---- backward ---- */

/* Reduces the states over four lanes; each lane keeps the state of its slot 0. */
KR_DEV float sum_of_four(float (&v)[S]) {
  v[0] += kr_shuffle_xor(v[2], 2);
  v[1] += kr_shuffle_xor(v[3], 2);
  return v[0] + kr_shuffle_xor(v[1], 1);
}

/* Reduces the block's partial dB and dC of a tile: a thread sums one state of one step. Rows of part_bc are n (B) and S
 * + n (C). */
KR_DEV void fold_tile(const kr_scan_params &p, const few_place &w, int tile, const float *s_part) {
  const int n = w.thread & 3, step = w.thread / 4 % TILE, is_C = w.thread / (4 * TILE) & 1, quads = p.few / 4;
  const float *from = s_part + step * STEP_PART + is_C * THREADS + n;
  float *to = p.part_bc + ((int64_t)kr_block_x() * 2 * S + is_C * S + n) * p.L;
  for (int sub = w.thread / (8 * TILE); sub < w.n_subs; sub += THREADS / (8 * TILE)) {
    const int t = ((int)kr_block_y() * w.n_subs + sub) * (int)p.chunk + tile * TILE + step;
    const float *at = from + sub * p.few;
    float sum = 0;
#pragma unroll 2
    for (int i = 0; i < quads; i += 4, at += 16) sum += (at[0] + at[4]) + (at[8] + at[12]);
    if (t < p.L) to[t] = sum;
  }
}

typedef struct back_sums {
  float A[S], h[S], dA[S], dD, dbias;
} back_sums;

/* Steps in descending order. x: states before each step and after the last; a: decays. Results replace u, delta and z.
 * */
KR_DEV void back_run(const kr_scan_params &p, const few_place &w, kr_raw16 *rows, int run, const float *bc,
                     const float (&dt)[RUN], const float (&x)[RUN + 1][S], const float (&a)[RUN][S], float skip,
                     float *part, back_sums &r) {
  const kr_raw16 u = run_place(w, rows + U * TENSOR, run), dout = run_place(w, rows + DOUT * TENSOR, run),
                 z = run_place(w, rows + Z * TENSOR, run);
  kr_raw16 du, ddelta, dz;
  float last_du = 0, last_ddelta = 0, last_dz = 0;
#pragma unroll
  for (int k = RUN - 1; k >= 0; k--) {
    const kr_float4 B = bc_at(bc, k, 0), C = bc_at(bc, k, 1);
    const float v = at_step(u, k), in = dt[k] * v, out = at_step(dout, k), s = kr_sigmoid(at_step(z, k)),
                silu = at_step(z, k) * s, g = out * kr_select(p.z.data != 0, silu, 1.0f);
    float s1 = 0, s2 = 0, y = 0, dB[S], dC[S];
#pragma unroll
    for (int i = 0; i < S; i++) {
      const float dx = kr_fma(g, C.v[i], r.h[i]);
      y = kr_fma(C.v[i], x[k + 1][i], y);
      dC[i] = g * x[k + 1][i];
      dB[i] = dx * in;
      s1 = kr_fma(dx, B.v[i], s1);
      r.h[i] = a[k][i] * dx;
      const float q = r.h[i] * x[k][i];
      s2 = kr_fma(r.A[i], q, s2);
      r.dA[i] = kr_fma(dt[k], q, r.dA[i]);
    }
    part[k * STEP_PART] = sum_of_four(dB);
    part[k * STEP_PART + THREADS] = sum_of_four(dC);
    const float d = kr_fma(v, s1, KR_LN2 * s2) * kr_select(p.softplus, kr_softplus_slope(dt[k]), 1.0f);
    r.dbias += d;
    r.dD = kr_fma(g, v, r.dD);
    set_step(du, k, kr_fma(skip, g, dt[k] * s1), last_du);
    set_step(ddelta, k, d, last_ddelta);
    set_step(dz, k, out * kr_fma(skip, v, y) * kr_fma(silu, 1.0f - s, s), last_dz);
  }
  run_place(w, rows + U * TENSOR, run) = du;
  run_place(w, rows + DELTA * TENSOR, run) = ddelta;
  run_place(w, rows + Z * TENSOR, run) = dz;
}

/* Per-tile values of a thread, parked in shared memory: registers are full, and spills would be slower. */
typedef struct __attribute__((aligned(16))) few_wait {
  uint64_t in, out;
  kr_float4 first;
  float bias, skip, unused[2];
} few_wait;

typedef struct kept_run {
  kr_float4 state;
  float dt;
} kept_run;

/* kept: kept_at(p, w, t). */
KR_DEV kept_run load_kept(const kr_scan_params &p, const few_place &w, int t, int64_t kept) {
  kept_run v = {{{0, 0, 0, 0}}, 0};
  if (!w.exists || t < w.begin || t >= p.L) return v;
  v.state = *(const kr_float4 *)(p.kept_state + kept * S);
  if (p.n_chunks > 1) v.dt = p.kept_dt[kept];
  return v;
}

KR_DEV void back_few(const kr_scan_params &p) {
  KR_DYNAMIC_SHARED(shared);
  const few_place w = place_few(p);
  kr_raw16 *s_rows = (kr_raw16 *)shared;
  kr_raw16 *s_raw = s_rows + 2 * 4 * TENSOR;
  few_wait *s_wait = (few_wait *)(s_raw + w.n_subs * 16);
  float *s_bc = (float *)(s_wait + THREADS), *s_part = s_bc + w.n_subs * CHUNK_BC;
  const int64_t d = w.d0 + w.slot;
  float first[S];
  back_sums r;
  r.dD = r.dbias = 0;
  fetch_A(p, w, r.A);
  fetch_places(p, w, 0, 0, 0.0f, r.dA);
  fetch_places(p, w, p.n_chunks > 1 && w.exists ? p.chunk_state + slab_at(p, w) * S : 0, 1, 1.0f, first);
  if (p.n_chunks > 1) fetch_places(p, w, w.exists ? p.chunk_carry + slab_at(p, w) * S : 0, 1, 1.0f, r.h);
  else fetch_places(p, w, of_channel(p.dlast, w), p.dlast.n, 1.0f, r.h);
  const int last = w.n_tiles - 1;
  int64_t at_kept = kept_at(p, w, w.begin + w.n_tiles * TILE - RUN);
  kept_run kept = load_kept(p, w, w.begin + w.n_tiles * TILE - RUN, at_kept);
  few_wait *const own = s_wait + w.thread;
  own->in = share_rows(p, w, p.u, p.delta, p.dout, p.z);
  own->out = w.at / 8 == DOUT ? 0 : share_rows(p, w, p.du, p.ddelta, p.dout, p.dz);
  own->bias = p.bias && w.exists ? p.bias[d * p.bias_stride] * KR_LOG2E : 0.0f;
  own->skip = p.D_vec && w.exists ? p.D_vec[d * p.D_stride] : 0.0f;
  own->first = kr_float4{{first[0], first[1], first[2], first[3]}};
  clear_rows(w, own->in, 4 * TENSOR, s_rows);
  copy_rows(p, w, own->in, last, s_rows);
  copy_bc(p, w, last, s_raw);
  kr_commit_copies();
  kr_copied<0>();
  kr_sync();
  turn_bc(w, s_raw, s_bc);
  kr_raw16 *rows = s_rows, *next = s_rows + 4 * TENSOR;
  for (int tile = last; tile >= 0; tile--) {
    kr_sync();
    if (tile > 0) copy_rows(p, w, own->in, tile - 1, next), copy_bc(p, w, tile - 1, s_raw);
    kr_commit_copies();
#pragma unroll 1
    for (int run = TILE / RUN - 1; run >= 0; run--) {
      const int t = w.begin + tile * TILE + run * RUN;
      const float *from = run_bc(w, s_bc, run);
      float dt[RUN], x[RUN + 1][S], a[RUN][S];
#pragma unroll
      for (int i = 0; i < S; i++)
        x[0][i] =
            p.n_chunks > 1 ? kr_fma(kr_exp2(r.A[i] * kept.dt), own->first.v[i], kept.state.v[i]) : kept.state.v[i];
      at_kept -= p.D;
      kept = load_kept(p, w, t - RUN, at_kept);
      const kr_raw16 u = run_place(w, rows + U * TENSOR, run), delta = run_place(w, rows + DELTA * TENSOR, run);
      run_sizes(p, delta, own->bias, (int)p.L - t, dt);
#pragma unroll
      for (int k = 0; k < RUN; k++) {
        const kr_float4 B = bc_at(from, k, 0);
#pragma unroll
        for (int i = 0; i < S; i++) {
          a[k][i] = kr_exp2(dt[k] * r.A[i]);
          x[k + 1][i] = kr_fma(a[k][i], x[k][i], dt[k] * at_step(u, k) * B.v[i]);
        }
      }
      back_run(p, w, rows, run, from, dt, x, a, own->skip, s_part + run * RUN * STEP_PART + thread_again(), r);
    }
    kr_copied<0>();
    kr_sync();
    store_rows(p, w, own->out, tile, rows);
    fold_tile(p, w, tile, s_part);
    if (tile > 0) turn_bc(w, s_raw, s_bc);
    kr_raw16 *const swap = rows;
    rows = next, next = swap;
  }
  keep_places(w, p.part_A + slab_at(p, w) * S, 1, S, r.dA);
  if (w.exists) p.part_D[slab_at(p, w)] = r.dD, p.part_bias[slab_at(p, w)] = r.dbias;
  if (p.dinitial.data && w.exists && w.chunk == 0)
    keep_places(w, p.dinitial.data + w.b * p.dinitial.b + d * p.dinitial.d, p.dinitial.n, p.N, r.h);
}

KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 3) kr_scan_few_states_back(const kr_scan_params p) { back_few(p); }

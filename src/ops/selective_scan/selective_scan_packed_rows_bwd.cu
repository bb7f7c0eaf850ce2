/* selective_scan_packed_rows_bwd.cu: backward kernel of the scan's gradient, common case (see
 * selective_scan_packed_rows.cu, whose sweep keeps the state before every 8 steps). Equations and partial sums as in
 * selective_scan_bwd.cu. kr_scan_packed_rows_back_t{4,8,16}   one chunk per block, from the gradient of its last state
 *   kr_scan_packed_rows_back_any         the same for N up to 16 and unaligned rows (scan_packed_rows.cuh)
 * Occupancy: four blocks of 128 threads per multiprocessor: 128 registers per thread, 56 KiB of shared memory a block.
 * So for four steps a thread keeps the states before them and the decays of the first two (the last is at hand, one is
 * recomputed), takes y and dC in the forward pass, where the states after the steps are at hand, and parks per-tile
 * values in shared memory: a spill that misses the small L1 costs a warp 300 cycles. A warp holds 2 * 32 / T channels,
 * four states of two of them per lane; a lane in the upper half of its group of T has the two swapped, so that the
 * halves exchange sums without selects. For the same reason the lanes of group g have state k in slot k ^ (g & 3), and
 * shared memory holds B and C once per such order: of two slots each lane keeps one and sends the other. The remaining
 * reduction, over warps, is left in shared memory until the end of the tile. */
#include "scan_packed_rows.cuh"

enum { PACKS = 2, TL = PACKS * E, ROW = TL * 4 + 4, THREADS = KR_SCAN_THREADS };

typedef struct back_place {
  int64_t b, d0;             /* d0: first channel of the warp */
  int begin, end, chunk, g, n_channels; /* steps of the chunk; valid channels of this warp */
  int thread, lane, warp, group, slot, swap, order;
  int row, pack;             /* the lane's share of a tile's rows: 16 bytes per tensor */
} back_place;

/* An opaque copy of v: a test of it is redone here instead of kept from the kernel's start. */
KR_DEV int again(int v) {
#ifndef KR_EMULATE
  asm volatile("" : "+r"(v));
#endif
  return v;
}

/* Indices from the thread's number. Lane bits: slot and group; with T = 4 the lowest is the group's highest, so that
 * adjacent lanes read the same B and C. */
KR_DEV void place_thread(back_place &w, const int T, int thread) {
  w.thread = thread;
  w.lane = w.thread & 31, w.warp = w.thread / 32;
  w.slot = (T == 4 ? w.lane >> 1 : w.lane) & (T - 1);
  w.group = T == 4 ? w.lane >> 3 | (w.lane & 1) << 2 : w.lane / T;
  w.swap = w.slot / (T / 2);
  w.order = w.group & 3;
  w.row = w.lane & (64 / T - 1), w.pack = w.lane / (64 / T);
}

KR_DEV back_place place_warp(const kr_scan_params &p, const int T) {
  back_place w;
  const int x = kr_block_x(), per_batch = p.blocks_per_group * p.G;
  place_thread(w, T, kr_thread());
  w.b = x / per_batch;
  w.g = x % per_batch / p.blocks_per_group;
  const int64_t c0 = (int64_t)(x % p.blocks_per_group) * (2 * THREADS / T) + w.warp * (64 / T), left = p.D_group - c0;
  w.d0 = w.g * p.D_group + c0;
  w.n_channels = left < 0 ? 0 : (int)min64(64 / T, left);
  w.chunk = kr_block_y();
  w.begin = w.chunk * (int)p.chunk;
  w.end = (int)min64(p.L, w.begin + p.chunk);
  return w;
}

/* The lane bit that selects the half of a group; the one for bit k of the group's number. */
KR_DEV int half_bit(const int T) { return T == 4 ? 4 : T / 2; }
KR_DEV int group_bit(const int T, int k) { return (T == 4 ? 8 : T) << k; }
/* Per multiprocessor, limited by shared memory. */
KR_DEV int n_blocks(const int T) {
  return T == 16 && E == 8 ? 3 : 4;
}
KR_DEV int n_orders(const int T) { return T == 16 ? 2 : 4; }

enum { U, DELTA, DOUT, Z, DU, DDELTA, DZ, NONE, B_BASE, C_BASE, N_INPUTS = DU };

/* Shared memory, in floats. A warp's rows: (dt, dt u, g, y) per step, replaced by (dt, s1, s2, y); the second half of
 * its channels is offset by 8 banks. B and C in one order; a step's partial dB and dC. kr_scan_packed_rows_back_bytes
 * adds it up. */
KR_DEV int second(const int T) { return 32 / T * ROW + 8; }
KR_DEV int at_row(const int T, int row) { return row * ROW + (row >= 32 / T ? 8 : 0); }
KR_DEV int bc_floats(const int T) { return TL * 8 * T + 16; }
KR_DEV int part_floats(const int T) { return T == 16 ? 128 : 64; }

typedef struct back_shared {
  float *rows, *bc, *parts, *sums; /* sums: the warp's sums of dt since the chunk's start */
  kr_raw16 *land; /* ANY: landing area of the warp's blocks */
  kr_raw16 *raw, *raw_bc,
      *kept; /* per thread, THREADS apart: u, delta, dout, z; B and C; states of two channels */
} back_shared;

KR_DEV int n_own_bc(const int T) { return T == 16 ? 2 : 1; }

/* ANY: blocks of a warp's rows, contiguous per row: PACKS + 1 for each of N_INPUTS and of half of B and C. They land in
 * the space of a tile's rows once these have been read, or, if that is too small, in an area of their own. */
KR_DEV int n_landed(const int T) { return (N_INPUTS * (64 / T) + 4 * T) * (PACKS + 1); }
KR_DEV int lands_apart(const int T) { return n_landed(T) * 4 > 2 * second(T); }

KR_DEV back_shared lay_out(const back_place &w, const int T, const int ANY, unsigned char *base) {
  back_shared m;
  m.raw = (kr_raw16 *)base + w.thread;
  m.raw_bc = m.raw + 4 * THREADS;
  m.kept = m.raw_bc + n_own_bc(T) * THREADS;
  m.bc = (float *)(m.kept - w.thread + 2 * THREADS);
  m.parts = m.bc + n_orders(T) * bc_floats(T);
  float *const rows = m.parts + 4 * TL * part_floats(T);
  m.rows = rows + w.warp * 2 * second(T);
  m.sums = rows + 8 * second(T) + w.warp * 32;
  if (ANY)
    m.land = lands_apart(T) ? (kr_raw16 *)(rows + 8 * second(T) + THREADS) + w.warp * n_landed(T) : (kr_raw16 *)m.rows;
  return m;
}

/* Base addresses of the warp's rows, in pairs: its first channel's first step, or B's and C's first state. They are
 * parked, one pair in a thread's slot of B, until the end of a tile: during the scan they would take registers, and
 * recomputing them 64-bit products per tile. */
enum { BYTES = 16 / E, TILE_BYTES = 16 * PACKS };

KR_DEV uint64_t first_of(const kr_rows &v, const back_place &w) {
  return (uint64_t)((const char *)v.data + (w.b * v.b + w.d0 * v.row) * BYTES);
}
KR_DEV uint64_t first_of(const kr_scan_mat &v, const back_place &w) {
  return (uint64_t)((const char *)v.data + (w.b * v.b + w.g * v.g) * BYTES);
}

/* The thread's entry of them; thread 0 has the warp's position. */
KR_DEV kr_raw16 entry_of(const kr_scan_params &p, const back_place &w) {
  uint64_t a = 0, b = 0;
  if (w.lane == 1 + U / 2) a = first_of(p.u, w), b = first_of(p.delta, w);
  if (w.lane == 1 + DOUT / 2) a = first_of(p.dout, w), b = first_of(p.z, w);
  if (w.lane == 1 + DU / 2) a = first_of(p.du, w), b = first_of(p.ddelta, w);
  if (w.lane == 1 + DZ / 2) a = first_of(p.dz, w);
  if (w.lane == 1 + B_BASE / 2) a = first_of(p.B_mat, w), b = first_of(p.C_mat, w);
  if (w.lane == 0)
    a = (uint32_t)w.b | (uint64_t)(uint32_t)w.d0 << 32, b = (uint32_t)w.g | (uint64_t)(uint32_t)w.n_channels << 32;
  return {{(uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32)}};
}

KR_DEV char *address(const back_place &w, const back_shared &m, int of) {
  return (char *)(uintptr_t)((const uint64_t *)(m.raw_bc - w.lane))[2 + of];
}

/* The lane's pack of a tile of u, delta, dout or z, for which it has a slot, or of du, ddelta or dz. */
KR_DEV char *pack_of(const kr_rows &v, const back_place &w, const back_shared &m, int of, int t0) {
  return address(w, m, of) + (int64_t)w.row * ((int)v.row * BYTES) + (t0 + w.pack * E) * BYTES;
}

/* Prefetches a line into L2. */
KR_DEV void expect(const char *from) {
#ifndef KR_EMULATE
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
#else
  (void)from;
#endif
}

/* Copies the tile at step t0, zeros out of range, and prefetches the one before it. Of B and C thread i has pack i mod
 * 16 T of the tile, with T = 4 the same in both halves of the block: rows first, then steps. */
KR_DEV void copy_tile(const kr_scan_params &p, const back_place &w, const back_shared &m, const int T, int t0) {
  const kr_rows *const rows[] = {&p.u, &p.delta, &p.dout, &p.z};
  const int is_row = w.row < w.n_channels && w.pack < PACKS && t0 + w.pack * E < w.end;
  const char *bc[2];
#pragma unroll
  for (int i = U; i < N_INPUTS; i++) {
    if (i >= DOUT && !rows[i]->data) {
      m.raw[i * THREADS] = kr_raw16{{0, 0, 0, 0}};
      continue;
    }
    const char *const from = pack_of(*rows[i], w, m, i, t0);
    copy_pack(m.raw + i * THREADS, from, is_row);
    if (is_row && t0 > w.begin) expect(from - TILE_BYTES);
  }
  int exist[2];
#pragma unroll
  for (int i = 0; i < n_own_bc(T); i++) {
    const unsigned id = (w.thread + i * THREADS) & (16 * T - 1), r = id & (8 * T - 1), is_C = r >= 4u * T,
                   n = r & (4 * T - 1);
    const int t = t0 + id / (8 * T) * E;
    bc[i] = address(w, m, B_BASE + is_C) + (int64_t)(int)n * ((int)(is_C ? p.C_mat.n : p.B_mat.n) * BYTES) + t * BYTES;
    exist[i] = (int)n < p.N && t < w.end;
  }
  kr_sync_warp(); /* all lanes have read the addresses */
#pragma unroll
  for (int i = 0; i < n_own_bc(T); i++) copy_pack(m.raw_bc + i * THREADS, bc[i], exist[i]);
}

/* ANY, T = 4 only: a warp has all packs of the rows of B or C it transposes. */
KR_DEV kr_raw16 *landing(const back_place &w, const back_shared &m, const int T, int input) {
  return m.land + (input < N_INPUTS
                       ? (input * (64 / T) + w.row) * (PACKS + 1) + w.pack
                       : N_INPUTS * (64 / T) * (PACKS + 1) + w.lane / PACKS * (PACKS + 1) + w.lane % PACKS);
}

/* Sets n to the row of B or C; returns the address of its pack. */
KR_DEV const char *bc_from(const kr_scan_params &p, const back_place &w, const back_shared &m, const int T, int t0,
                           int &n) {
  const unsigned r = (w.thread & (16 * T - 1)) / PACKS, is_C = r >= 4u * T;
  n = r & (4 * T - 1);
  return address(w, m, B_BASE + is_C) + (int64_t)n * ((int)(is_C ? p.C_mat.n : p.B_mat.n) * BYTES) +
         (t0 + w.lane % PACKS * E) * BYTES;
}

/* inside: the whole tile, and the pack after it, are in range. */
KR_DEV void copy_tile_any(const kr_scan_params &p, const back_place &w, const back_shared &m, const int T, int t0,
                          int inside) {
  const kr_rows *const rows[] = {&p.u, &p.delta, &p.dout, &p.z};
  const int begins = t0 == w.begin, is_row = w.row < w.n_channels, at = w.lane % PACKS;
#pragma unroll
  for (int i = U; i < N_INPUTS; i++) {
    if (i >= DOUT && !rows[i]->data) continue;
    const char *const from = pack_of(*rows[i], w, m, i, t0);
    copy_anywhere(landing(w, m, T, i), landing(w, m, T, i) + 1, from, is_row, (w.end - t0 - w.pack * E) * BYTES,
                  w.pack == PACKS - 1, inside, begins && w.pack == 0);
    if (is_row && t0 > w.begin) expect(from - TILE_BYTES);
  }
  int n;
  const char *const from = bc_from(p, w, m, T, t0, n);
  copy_anywhere(landing(w, m, T, N_INPUTS), landing(w, m, T, N_INPUTS) + 1, from, n < p.N,
                (w.end - t0 - at * E) * BYTES, at == PACKS - 1, inside, begins && at == 0);
}

/* Moves a tile's packs from the landing area to the lane's own slots. */
KR_DEV void take_tile_any(const kr_scan_params &p, const back_place &w, const back_shared &m, const int T) {
  const kr_rows *const rows[] = {&p.u, &p.delta, &p.dout, &p.z};
  kr_raw16 bc = {{0, 0, 0, 0}};
  int n;
  kr_sync_warp();
#pragma unroll
  for (int i = U; i < N_INPUTS; i++)
    if (w.row < w.n_channels && (i < DOUT || rows[i]->data))
      m.raw[i * THREADS] =
          read_anywhere(landing(w, m, T, i), landing(w, m, T, i) + 1, misfit(pack_of(*rows[i], w, m, i, 0)));
    else m.raw[i * THREADS] = kr_raw16{{0, 0, 0, 0}};
  const int before = misfit(bc_from(p, w, m, T, 0, n));
  if (n < p.N) bc = read_anywhere(landing(w, m, T, N_INPUTS), landing(w, m, T, N_INPUTS) + 1, before);
  kr_sync_warp(); /* addresses and landed data have been read */
  *m.raw_bc = bc;
}

KR_DEV void turn_bc(const back_place &w, const back_shared &m, const int T, const int ANY) {
#pragma unroll
  for (int i = 0; i < n_own_bc(T); i++) {
    const unsigned id = (w.thread + i * THREADS) & (16 * T - 1), first = T == 4 ? (unsigned)w.thread / 64 * 2 : 0,
                   r = ANY ? id / PACKS : id & (8 * T - 1);
    const kr_raw16 raw = m.raw_bc[i * THREADS];
    float *const to = m.bc + (ANY ? id % PACKS : id / (8 * T)) * E * 8 * T;
#pragma unroll
    for (int j = 0; j < (T == 4 ? 2 : n_orders(T)); j++) {
      float *const at = to + (first + j) * bc_floats(T) + (r ^ (first + j));
#pragma unroll
      for (int k = 0; k < E; k++) at[k * 8 * T] = pack_at(raw, k, KR_DTYPE);
    }
  }
}

/* dt, dt u and g = dout silu(z) of the lane's pack; dt is 0 past the end, which leaves state and gradient unchanged. */
KR_DEV void stage_rows(const kr_scan_params &p, const back_place &w, const back_shared &m, const int T, const int ANY,
                       int is_partial, int left, float bias) {
  if (w.pack >= PACKS) return;
  float dt[E], g[E];
  step_sizes(again(p.softplus), m.raw[DELTA * THREADS], bias, dt);
  const kr_raw16 u = m.raw[U * THREADS], dout = m.raw[DOUT * THREADS];
  if (is_partial) {
#pragma unroll
    for (int k = 0; k < E; k++) dt[k] = ANY ? until(dt[k], k, left) : left > 0 ? dt[k] : 0.0f;
  }
#pragma unroll
  for (int k = 0; k < E; k++) g[k] = pack_at(dout, k, KR_DTYPE);
  if (p.z.data) {
    const kr_raw16 z = m.raw[Z * THREADS];
#pragma unroll
    for (int k = 0; k < E; k++) g[k] *= kr_silu(pack_at(z, k, KR_DTYPE));
  }
  float *const to = m.rows + at_row(T, w.row) + w.pack * E * 4;
#pragma unroll
  for (int k = 0; k < E; k++)
    *(kr_float4 *)(to + k * 4) = kr_float4{{dt[k], dt[k] * pack_at(u, k, KR_DTYPE), g[k], 0.0f}};
}

/* The channel in slot c of a lane, as a row of the warp; offsets of states. */
KR_DEV int channel_of(const back_place &w, const int T, int c) {
  return (w.group & (32 / T - 1)) + 32 / T * (c ^ w.swap);
}
KR_DEV int64_t states_at(const kr_scan_params &p, const back_place &w, const int T, int64_t slab, int c) {
  return (slab * p.D + w.d0 + channel_of(w, T, c)) * p.N_padded + w.slot * 4;
}

/* Four states in memory are in order; in the lane, slot k has state k ^ order. */
KR_DEV void order_states(const back_place &w, const kr_float4 &from, float (&v)[4]) {
  float a[4];
#pragma unroll
  for (int k = 0; k < 4; k++) a[k] = kr_select(w.order & 1, from.v[k ^ 1], from.v[k]);
#pragma unroll
  for (int k = 0; k < 4; k++) v[k] = kr_select(w.order & 2, a[k ^ 2], a[k]);
}

KR_DEV void order_all(const back_place &w, float (&x)[2][4]) {
#pragma unroll
  for (int c = 0; c < 2; c++) order_states(w, kr_float4{{x[c][0], x[c][1], x[c][2], x[c][3]}}, x[c]);
}

KR_DEV void fetch_states(const kr_scan_params &p, const back_place &w, const int T, const float *from, int64_t slab,
                         float (&v)[2][4]) {
#pragma unroll
  for (int c = 0; c < 2; c++) {
    kr_float4 q = {{0, 0, 0, 0}};
    if (channel_of(w, T, c) < w.n_channels) q = *(const kr_float4 *)(from + states_at(p, w, T, slab, c));
    order_states(w, q, v[c]);
  }
}

KR_DEV void fetch_view(const back_place &w, const int T, int N, const kr_scan_state &view, float scale,
                       float (&v)[2][4]) {
#pragma unroll
  for (int c = 0; c < 2; c++)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int row = channel_of(w, T, c), n = w.slot * 4 + (k ^ w.order);
      v[c][k] = view.data && row < w.n_channels && n < N
                    ? view.data[w.b * view.b + (w.d0 + row) * view.d + n * view.n] * scale
                    : 0.0f;
    }
}

/* States kept every 8 steps, being copied to the thread's own slots: one for each of the rows `group` and group + 32 /
 * T. They arrive in order; the thread rewrites them in its own order. */
typedef struct back_kept {
  const float *from;
  int64_t step;
  int exist[2];
} back_kept;

KR_DEV void copy_kept(const back_shared &m, const int T, const back_kept &s) {
#pragma unroll
  for (int h = 0; h < 2; h++)
    if (s.exist[h]) kr_copy16(m.kept + h * THREADS, s.from + h * (32 / T) * 4 * T);
}

KR_DEV void read_kept(const back_place &w, const back_shared &m, float (&x)[2][4]) {
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const kr_float4 q = *(const kr_float4 *)(m.kept + (c ^ w.swap) * THREADS);
#pragma unroll
    for (int k = 0; k < 4; k++) x[c][k] = q.v[k];
  }
}

KR_DEV void put_kept(const back_place &w, const back_shared &m, const float (&x)[2][4]) {
#pragma unroll
  for (int c = 0; c < 2; c++)
    *(kr_float4 *)(m.kept + (c ^ w.swap) * THREADS) = kr_float4{{x[c][0], x[c][1], x[c][2], x[c][3]}};
}

/* Adds the chunk's decayed first state to the states kept before a step, which were swept from zero; sums: dt since the
 * chunk's start, per channel of the warp. The thread's part of the first state is in its own order. */
KR_DEV void add_first(const kr_scan_params &p, const back_place &w, const int T, const float *sums,
                      const float (&A)[2][4], float (&x)[2][4]) {
  float log_decay[2][4];
  int lives = 0;
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const float sum_dt = sums[channel_of(w, T, c)];
#pragma unroll
    for (int k = 0; k < 4; k++) log_decay[c][k] = A[c][k] * sum_dt, lives |= log_decay[c][k] > -160.0f;
  }
  if (!lives) return; /* a decay that underflows to zero */
  kr_float4 first[2];
#pragma unroll
  for (int c = 0; c < 2; c++) {
    first[c] = kr_float4{{0, 0, 0, 0}};
    if (channel_of(w, T, c) < w.n_channels)
      first[c] = *(const kr_float4 *)(p.chunk_state + states_at(p, w, T, w.b * p.n_chunks + w.chunk, c));
  }
#pragma unroll
  for (int c = 0; c < 2; c++)
#pragma unroll
    for (int k = 0; k < 4; k++) x[c][k] = kr_fma(kr_exp2(log_decay[c][k]), first[c].v[k], x[c][k]);
}

/* The sums of dt before every 8 steps of a tile, one channel of the warp per lane. */
KR_DEV void copy_sums(const kr_scan_params &p, const back_place &w, const back_shared &m, const int T, int t0) {
  const int row = again(w.lane & (64 / T - 1)), at = w.lane / (64 / T);
  if (p.n_chunks > 1 && row < w.n_channels && at < TL / KR_SCAN_KEPT)
    kr_copy4(m.sums + w.lane, p.kept_dt + (w.b * p.n_kept + t0 / KR_SCAN_KEPT + at) * p.D + w.d0 + row);
}

KR_DEV void order_first(const kr_scan_params &p, const back_place &w, const int T) {
#pragma unroll
  for (int c = 0; c < 2; c++) {
    if (channel_of(w, T, c) >= w.n_channels) continue;
    kr_float4 *const at = (kr_float4 *)(p.chunk_state + states_at(p, w, T, w.b * p.n_chunks + w.chunk, c));
    float v[4];
    order_states(w, *at, v);
    *at = kr_float4{{v[0], v[1], v[2], v[3]}};
  }
}

/* `near`, `far`: rows of the lane's first and second channel at the first of four steps; bc: B of its states. */
KR_DEV void forward4(const int T, const float *near, const float *far, const float *bc, const float (&A)[2][4],
                     float (&x)[2][4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const kr_float4 B = *(const kr_float4 *)(bc + i * 8 * T);
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const kr_float2 r = *(const kr_float2 *)((c ? far : near) + i * 4);
#pragma unroll
      for (int k = 0; k < 4; k++) x[c][k] = kr_fma(kr_exp2(r.v[0] * A[c][k]), x[c][k], r.v[1] * B.v[k]);
    }
  }
}

/* Reduces both channels over the lanes of a group; each lane gets its first one's sum. */
KR_DEV float sum_states(const int T, const float (&v)[2]) {
  float sum = v[0] + kr_shuffle_xor(v[1], half_bit(T));
#pragma unroll
  for (int by = half_bit(T) / 2; by >= (T == 4 ? 2 : 1); by /= 2) sum += kr_shuffle_xor(sum, by);
  return sum;
}

/* Reduces one step of one matrix's partial sums over the groups of a warp that hold the states in different orders. */
KR_DEV void keep_part(const int T, float (&v)[4], float *to) {
  v[0] += kr_shuffle_xor(v[1], group_bit(T, 0)), v[2] += kr_shuffle_xor(v[3], group_bit(T, 0));
  if (T < 16) *to = v[0] + kr_shuffle_xor(v[2], group_bit(T, 1));
  else to[0] = v[0], to[2] = v[2];
}

/* One step of the rows of the lane's two channels, and B and C of its states. */
typedef struct back_step {
  kr_float4 r[2], B, C;
} back_step;

KR_DEV back_step read_step(const int T, const float *near, const float *far, const float *bc, int i) {
  return {{*(const kr_float4 *)(near + i * 4), *(const kr_float4 *)(far + i * 4)},
          *(const kr_float4 *)(bc + i * 8 * T),
          *(const kr_float4 *)(bc + i * 8 * T + 4 * T)};
}

/* Four steps forward and back. The forward pass yields y and dC; the backward pass s1, s2, dB and dA. Each step is read
 * before the previous one writes: the compiler could not know that they do not alias. */
KR_DEV void back4(const int T, float *near, const float *far, const float *bc, float *part, int part_by, int writes,
                  const float (&A)[2][4], float (&x)[2][4], float (&carry)[2][4], float (&dA)[2][4]) {
  float a[4][2][4], before[4][2][4];
  back_step s = read_step(T, near, far, bc, 0);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float y[2], part_C[4];
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const float decay = kr_exp2(s.r[c].v[0] * A[c][k]);
        before[i][c][k] = x[c][k], a[i][c][k] = decay;
        x[c][k] = kr_fma(decay, x[c][k], s.r[c].v[1] * s.B.v[k]);
        y[c] = k ? kr_fma(s.C.v[k], x[c][k], y[c]) : s.C.v[0] * x[c][0];
        part_C[k] = c ? kr_fma(s.r[c].v[2], x[c][k], part_C[k]) : s.r[0].v[2] * x[0][k];
      }
    if (i < 3) s = read_step(T, near, far, bc, i + 1);
    const float sum = sum_states(T, y);
    if (writes) near[i * 4 + 3] = sum;
    keep_part(T, part_C, part + i * part_floats(T) + part_by);
  }
#pragma unroll
  for (int i = 3; i >= 0; i--) {
    float s1[2], s2[2], part_B[4];
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const float dx = kr_fma(s.r[c].v[2], s.C.v[k], carry[c][k]),
                    decay = i < 2 || n_blocks(T) == 3 ? a[i][c][k] : kr_exp2(s.r[c].v[0] * A[c][k]);
        carry[c][k] = decay * dx;
        const float q = carry[c][k] * before[i][c][k];
        s1[c] = k ? kr_fma(dx, s.B.v[k], s1[c]) : dx * s.B.v[0];
        s2[c] = k ? kr_fma(A[c][k], q, s2[c]) : A[c][0] * q;
        part_B[k] = c ? kr_fma(dx, s.r[c].v[1], part_B[k]) : dx * s.r[0].v[1];
        dA[c][k] = kr_fma(s.r[c].v[0], q, dA[c][k]);
      }
    if (i) s = read_step(T, near, far, bc, i - 1);
    const float sum1 = sum_states(T, s1), sum2 = sum_states(T, s2); /* all lanes have read the step by then */
    if (writes) near[i * 4 + 1] = sum1, near[i * 4 + 2] = sum2;
    keep_part(T, part_B, part + i * part_floats(T));
  }
}

KR_DEV void store_pack(char *to, const float (&y)[E]) {
  const kr_raw16 raw = round_pack(y);
#ifdef KR_EMULATE
  *(kr_raw16 *)to = raw;
#else
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "r"(raw.w[0]), "r"(raw.w[1]), "r"(raw.w[2]), "r"(raw.w[3]));
#endif
}

/* ANY: stores a gradient's packs by way of the lanes' slots of delta, free by then, as the warp's rows of the tile. */
KR_DEV void store_rows(const back_place &w, const back_shared &m, const kr_rows &to, int of, int t0,
                       const float (&v)[E]) {
  enum { WORDS = PACKS * 4, AT_ONCE = 32 / WORDS, ROWS = 16 };
  const int word = w.lane % WORDS, then = word < WORDS - 1 ? word + 1 : word;
  kr_raw16 *const own = m.raw + DELTA * THREADS;
  const uint32_t *const from = (const uint32_t *)(own - w.lane + w.lane / WORDS);
  char *row = address(w, m, of) + (int64_t)(w.lane / WORDS) * ((int)to.row * BYTES) + t0 * BYTES;
  *own = round_pack(v);
  kr_sync_warp();
#pragma unroll
  for (int i = 0; i < ROWS; i += AT_ONCE, row += (int64_t)AT_ONCE * ((int)to.row * BYTES))
    if (i + w.lane / WORDS < w.n_channels)
      store_word(row, word, WORDS, from[i * 4 + word / 4 * ROWS * 4 + word % 4],
                 from[i * 4 + then / 4 * ROWS * 4 + then % 4], w.end - t0);
  kr_sync_warp();
}

KR_DEV void write_pack(const back_place &w, const back_shared &m, const int ANY, const kr_rows &to, int of, char *pack,
                       int t0, const float (&v)[E]) {
  if (ANY) store_rows(w, m, to, of, t0, v);
  else store_pack(pack, v);
}

/* The lane's packs of the finished tile, which the next one's replace meanwhile, and the addresses of their gradients.
 * */
typedef struct back_end {
  kr_raw16 u, dout, z;
  char *du, *ddelta, *dz;
} back_end;

KR_DEV back_end end_of_tile(const kr_scan_params &p, const back_place &w, const back_shared &m, const int ANY, int t0) {
  if (ANY) return {m.raw[U * THREADS], m.raw[DOUT * THREADS], m.raw[Z * THREADS], 0, 0, 0};
  return {m.raw[U * THREADS],
          m.raw[DOUT * THREADS],
          m.raw[Z * THREADS],
          pack_of(p.du, w, m, DU, t0),
          pack_of(p.ddelta, w, m, DDELTA, t0),
          pack_of(p.dz, w, m, DZ, t0)};
}

/* One gradient after another: each reads the rows anew. */
KR_DEV void write_gradients(const kr_scan_params &p, const back_place &w, const back_shared &m, const int T,
                            const int ANY, back_end &end, int t0, float skip, float &dD, float &dbias) {
  const kr_float4 *const row = (const kr_float4 *)(m.rows + at_row(T, w.row) + w.pack * E * 4); /* dt, s1, s2, y */
  float v[E], g[E];
#pragma unroll
  for (int k = 0; k < E; k++) {
    const kr_float4 r = row[k];
    v[k] = kr_fma(pack_at(end.u, k, KR_DTYPE), r.v[1], KR_LN2 * r.v[2]), g[k] = r.v[0];
  }
  if (again(p.softplus)) {
#pragma unroll
    for (int k = 0; k < E; k++) v[k] *= kr_softplus_slope(g[k]);
  }
  const int left = w.end - t0 - w.pack * E;
  if (ANY && left < E) {
#pragma unroll
    for (int k = 0; k < E; k++) v[k] = until(v[k], k, left);
  }
#pragma unroll
  for (int k = 0; k < E; k += 2) dbias += v[k] + v[k + 1];
  if (p.ddelta.data) write_pack(w, m, ANY, p.ddelta, DDELTA, end.ddelta, t0, v);
  keep_packed(end.u);
#pragma unroll
  for (int k = 0; k < E; k++) g[k] = pack_at(end.dout, k, KR_DTYPE);
  if (p.z.data) {
#pragma unroll
    for (int k = 0; k < E; k++) {
      const float z = pack_at(end.z, k, KR_DTYPE), s = kr_sigmoid(z), gate = z * s;
      v[k] =
          g[k] * kr_fma(skip, pack_at(end.u, k, KR_DTYPE), ((const float *)(row + k))[3]) * kr_fma(gate, 1.0f - s, s);
      g[k] *= gate;
    }
    if (p.dz.data) write_pack(w, m, ANY, p.dz, DZ, end.dz, t0, v);
    keep_packed(end.u);
  }
#pragma unroll
  for (int k = 0; k < E; k++) {
    const kr_float2 r = *(const kr_float2 *)(row + k);
    v[k] = kr_fma(skip, g[k], r.v[0] * r.v[1]);
    dD = kr_fma(g[k], pack_at(end.u, k, KR_DTYPE), dD);
  }
  if (p.du.data) write_pack(w, m, ANY, p.du, DU, end.du, t0, v);
}

KR_DEV void add4(kr_float4 &sum, const float *from) {
  const kr_float4 v = *(const kr_float4 *)from;
#pragma unroll
  for (int k = 0; k < 4; k++) sum.v[k] += v.v[k];
}

/* The block's partial dB and dC of the tile to scratch: over four warps, with T = 4 over two halves of each. */
KR_DEV void write_parts(const kr_scan_params &p, const back_place &w, const back_shared &m, const int T, int t0,
                        int end) {
  float *const to = p.part_bc + ((int64_t)kr_block_x() * p.L + t0) * (8 * T);
#pragma unroll
  for (int i = 0; i < (TL * 2 * T + THREADS - 1) / THREADS; i++) {
    const unsigned id = w.thread + i * THREADS, step = id / (2 * T), j = id % (2 * T);
    if (TL * 2 * T < THREADS && id >= TL * 2u * T) break;
    const float *const from = m.parts + step * part_floats(T) + (T == 4 ? j / 4 * 32 + j % 4 * 4 : j * 4);
    const int half =
        T == 4 ? j / 4 * 16 : 0; /* C's columns start with the other half of the lanes than B's: other banks */
    kr_float4 sum = *(const kr_float4 *)(from + half);
    if (T == 4) add4(sum, from + 16 - half);
#pragma unroll
    for (int k = 1; k < 4; k++) {
      add4(sum, from + k * TL * part_floats(T) + half);
      if (T == 4) add4(sum, from + k * TL * part_floats(T) + 16 - half);
    }
    if (t0 + (int)step < end) *(kr_float4 *)(to + id * 4) = sum;
  }
}

/* Sums over the chunk: dA in scratch, dD and dbias over the packs of a row. */
KR_DEV void write_sums(const kr_scan_params &p, const back_place &w, const int T, const float (&dA)[2][4], float dD,
                       float dbias) {
  const int64_t slab = w.b * p.n_chunks + w.chunk;
#pragma unroll
  for (int c = 0; c < 2; c++) {
    float v[4];
    order_states(w, kr_float4{{dA[c][0], dA[c][1], dA[c][2], dA[c][3]}}, v);
    if (channel_of(w, T, c) < w.n_channels)
      *(kr_float4 *)(p.part_A + states_at(p, w, T, slab, c)) = kr_float4{{v[0], v[1], v[2], v[3]}};
  }
  dD += kr_shuffle_xor(dD, 64 / T), dbias += kr_shuffle_xor(dbias, 64 / T);
  if (w.pack == 0 && w.row < w.n_channels)
    p.part_D[slab * p.D + w.d0 + w.row] = dD, p.part_bias[slab * p.D + w.d0 + w.row] = dbias;
}

KR_DEV void write_initial(const kr_scan_params &p, const back_place &w, const int T, const float (&carry)[2][4]) {
#pragma unroll
  for (int c = 0; c < 2; c++)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int row = channel_of(w, T, c), n = w.slot * 4 + (k ^ w.order);
      if (row < w.n_channels && n < p.N)
        p.dinitial.data[w.b * p.dinitial.b + (w.d0 + row) * p.dinitial.d + n * p.dinitial.n] = carry[c][k];
    }
}

/* What the inner loop does not need is parked in the thread's slots of delta and B, which have been read by then. */
typedef struct back_own {
  float dD, dbias, bias, skip;
  kr_raw16 entry;
} back_own;

KR_DEV void put_own(const back_shared &m, const back_own &o) {
  *(kr_float4 *)(m.raw + DELTA * THREADS) = kr_float4{{o.dD, o.dbias, o.bias, o.skip}};
  *m.raw_bc = o.entry;
}

KR_DEV back_own take_own(const back_shared &m) {
  const kr_float4 v = *(const kr_float4 *)(m.raw + DELTA * THREADS);
  return {v.v[0], v.v[1], v.v[2], v.v[3], *m.raw_bc};
}

/* The thread's position in a tile's rows; the warp's is in its first thread's entry. */
KR_DEV back_place place_again(const back_place &w, const int T) {
  back_place v = w;
  place_thread(v, T, thread_again());
  return v;
}

KR_DEV void take_place(back_place &w, const back_shared &m) {
  const kr_raw16 q = *(m.raw_bc - w.lane);
  w.b = (int)q.w[0], w.d0 = (int)q.w[1], w.g = (int)q.w[2], w.n_channels = (int)q.w[3];
}

KR_DEV void scan_back(const kr_scan_params &p, const int T, const int ANY) {
  KR_DYNAMIC_SHARED(shared);
  const back_place w = place_warp(p, T);
  const back_shared m = lay_out(w, T, ANY, shared);
  const int writes = (w.slot & (T / 2 - 1)) == 0, group = w.group & (32 / T - 1),
            is_row = w.row < w.n_channels && w.pack < PACKS;
  int t0 = w.begin + (w.end - w.begin - 1) / TL * TL;
  float A[2][4], carry[2][4], dA[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
  back_own own = {0, 0, p.bias && is_row ? p.bias[(w.d0 + w.row) * p.bias_stride] : 0.0f,
                  p.D_vec && is_row ? p.D_vec[(w.d0 + w.row) * p.D_stride] : 0.0f, entry_of(p, w)};
  const kr_scan_state all_A = {(float *)p.A, 0, p.A_d, p.A_n};
  fetch_view(w, T, p.N, all_A, KR_LOG2E, A);
  if (p.n_chunks > 1) fetch_states(p, w, T, p.chunk_carry, w.b * p.n_chunks + w.chunk, carry);
  else fetch_view(w, T, p.N, p.dlast, 1.0f, carry);
  back_kept kept = {
      p.kept_state + ((w.b * p.n_kept + t0 / KR_SCAN_KEPT + TL / KR_SCAN_KEPT - 1) * p.D + w.d0 + group) * p.N_padded +
          w.slot * 4,
      p.D * p.N_padded,
      {group < w.n_channels, group + 32 / T < w.n_channels}};
  put_own(m, own);
  kr_sync_warp();
  if (ANY) copy_tile_any(p, w, m, T, t0, 0);
  else copy_tile(p, w, m, T, t0);
  m.kept[0] = m.kept[THREADS] = kr_raw16{{0, 0, 0, 0}}, m.sums[w.lane] = 0;
  copy_sums(p, w, m, T, t0);
  copy_kept(m, T, kept);
  kr_commit_copies();
  if (p.n_chunks > 1) order_first(p, w, T);
  float *near = m.rows + at_row(T, group) + (w.swap ? second(T) : 0) + (TL - 4) * 4,
        *far = near + (w.swap ? -second(T) : second(T));
  const float *bc = m.bc + (w.order & (n_orders(T) - 1)) * bc_floats(T) + w.slot * 4 + (TL - 4) * 8 * T;
  float *part =
      m.parts + (w.warp * TL + TL - 4) * part_floats(T) + (T == 4 ? (w.lane & 1) * 16 : 0) + w.slot * 4 + w.order;
  for (; t0 >= w.begin; t0 -= TL) {
    back_place v = place_again(w, T);
    back_shared at = lay_out(v, T, ANY, shared);
    kr_copied<0>();
    if (ANY) take_place(v, at), take_tile_any(p, v, at, T);
    stage_rows(p, v, at, T, ANY, t0 + TL > w.end, ANY ? w.end - t0 - v.pack * E : t0 + v.pack * E < w.end, own.bias);
    turn_bc(v, at, T, ANY);
    put_own(at, own);
    kr_sync();
#pragma unroll 1
    for (int k = TL - 4; k >= 0; k -= 4) {
      float x[2][4];
      if (k & 4) {
        kr_copied<0>();
        read_kept(w, m, x);
        order_all(w, x);
        if (p.n_chunks > 1) add_first(p, w, T, m.sums + k / 8 * (64 / T), A, x);
        put_kept(w, m, x);
        forward4(T, near - 16, far - 16, bc - 32 * T, A, x);
      } else {
        read_kept(w, m, x);
        kept.from -= kept.step;
        if (t0 + k > w.begin) copy_kept(m, T, kept);
        kr_commit_copies();
      }
      back4(T, near, far, bc, part, T == 4 ? 32 : 4 * T, writes, A, x, carry, dA);
      near -= 16, far -= 16, bc -= 32 * T, part -= 4 * part_floats(T);
    }
    near += TL * 4, far += TL * 4, bc += TL * 8 * T, part += TL * part_floats(T);
    kr_sync_warp();
    v = place_again(w, T);
    at = lay_out(v, T, ANY, shared);
    own = take_own(at);
    take_place(v, at);
    back_end end = end_of_tile(p, v, at, ANY, t0);
    if (ANY) {
      write_gradients(p, v, at, T, 1, end, t0, own.skip, own.dD, own.dbias);
      kr_sync_warp(); /* the rows have been read */
      if (t0 > w.begin && t0 + E <= w.end) copy_tile_any(p, v, at, T, t0 - TL, 1);
      else if (t0 > w.begin) copy_tile_any(p, v, at, T, t0 - TL, 0);
    } else if (t0 > w.begin) copy_tile(p, v, at, T, t0 - TL);
    if (t0 > w.begin) copy_sums(p, v, at, T, t0 - TL);
    kr_commit_copies();
    if (!ANY && v.row < v.n_channels && v.pack < PACKS && t0 + v.pack * E < w.end)
      write_gradients(p, v, at, T, 0, end, t0, own.skip, own.dD, own.dbias);
    kr_sync();
    write_parts(p, v, at, T, t0, w.end);
  }
  write_sums(p, w, T, dA, own.dD, own.dbias);
  if (p.dinitial.data && w.chunk == 0) write_initial(p, w, T, carry);
}

KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_back_t4(const kr_scan_params p) { scan_back(p, 4, 0); }
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_back_t8(const kr_scan_params p) { scan_back(p, 8, 0); }
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, E == 8 ? 3 : 4) kr_scan_packed_rows_back_t16(const kr_scan_params p) {
  scan_back(p, 16, 0);
}
KR_KERNEL void KR_BOUNDS(KR_SCAN_THREADS, 4) kr_scan_packed_rows_back_any(const kr_scan_params p) {
  scan_back(p, 4, 1);
}

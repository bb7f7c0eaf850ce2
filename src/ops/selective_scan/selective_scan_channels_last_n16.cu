/* selective_scan_channels_last_n16.cu: the forward scan of channels-last rows, common case (is_usual,
 * scan_channels_last_params.c): 16-bit, all rows present and aligned, softplus, 16 states, whole tiles.
 *   kr_scan_channels_last_n16_out        y of one chunk from its first state
 *   kr_scan_channels_last_n16_out_keep   also the state before every 8 steps
 * A block has 16 channels, so that only its two warps share a barrier and multiprocessors are loaded evenly. Adjacent
 * lanes are channels, then groups of four states; per-element work gives a thread four steps of two adjacent channels.
 * Pipeline per tile: raw rows, B and C arrive while the previous tile is processed; dt and dt u go to shared memory as
 * (channel, step), B and C as (step, state); the scan leaves y there per group of states; after a barrier the partial
 * sums are added, gated and stored. */
#include "overlap.cuh"
#include "scan_packed_rows.cuh"

enum {
  CHANNELS = KR_SCAN_CHANNELS_LAST_N16_CHANNELS,
  S = 4,
  N = 16,
  GROUPS = N / S, /* groups of states */
  THREADS = CHANNELS * GROUPS,
  TL = KR_SCAN_CHANNELS_LAST_TILE,
  STEPS = 4,
  WIDTH = TL + 4,
  VALUES = CHANNELS * WIDTH,
  PACKS = CHANNELS / 8, /* packs per row */
  ROW = CHANNELS / 2,   /* words */
  RAW = TL * ROW + TL / 4 * ROW,
  BC_PACKS = TL * 4 /* packs of 8 states: per step two of B, two of C */
};

/* A row's slot: padding after every fourth makes the staging reads conflict-free. */
KR_DEV int raw_at(int t) { return (t + t / 4) * ROW; }

/* Moves one decay in 16 off the special-function unit. */
KR_DEV float decay_of(int i, int s, float dt, float A) {
  return (i | s) == 0 ? exp2_of_product(dt, A) : kr_exp2(dt * A);
}

KR_DEV void read_floats(const float *from, float (&v)[4]) {
  const kr_float4 q = read_four(from);
#pragma unroll
  for (int k = 0; k < 4; k++) v[k] = q.v[k];
}

KR_DEV void put_floats(float *to, const float (&v)[4]) { *(kr_float4 *)to = kr_float4{{v[0], v[1], v[2], v[3]}}; }

/* The thread's indices: channel and group of states in the scan; channel pair and first step elsewhere. */
typedef struct usual_place {
  int64_t b, d0;
  int channel, group, pair, at;
} usual_place;

KR_DEV usual_place place_block(const kr_scan_params &p) {
  usual_place w;
  const int x = kr_block_x(), per_batch = (int)p.D / CHANNELS, lane = kr_thread() & 31, warp = kr_thread() / 32;
  w.b = x / per_batch;
  w.d0 = (int64_t)(x % per_batch) * CHANNELS;
  w.channel = kr_thread() % CHANNELS, w.group = kr_thread() / CHANNELS;
  w.pair = (lane & 3) | (lane >> 3 & 1) << 2;
  w.at = ((lane >> 2 & 1) | lane >> 4 << 1 | warp << 2) * STEPS;
  return w;
}

/* This thread's addresses of the next tile's packs, and of its outputs. */
typedef struct usual_rows {
  const char *u, *delta, *z, *bc;
  char *out;
} usual_rows;

KR_DEV int step_bytes(const kr_rows &v) { return (int)v.t * 2; }
KR_DEV const char *row_at(const kr_rows &v, const usual_place &w, int64_t t, int channel) {
  return (const char *)v.data + (w.b * v.b + w.d0 + channel + t * v.t) * 2;
}

KR_DEV usual_rows first_rows(const kr_scan_params &p, const usual_place &w, int64_t begin) {
  const int thread = kr_thread(), channel = thread % PACKS * 8;
  const int64_t t = begin + thread / PACKS, t_bc = begin + thread / 4, g = w.d0 / p.D_group;
  const kr_scan_mat &m = thread & 2 ? p.C_mat : p.B_mat;
  usual_rows r = {row_at(p.u, w, t, channel), row_at(p.delta, w, t, channel), row_at(p.z, w, t, channel),
                  (const char *)m.data + (w.b * m.b + g * m.g + t_bc * m.t + (thread & 1) * 8) * 2,
                  (char *)row_at(p.out, w, begin + w.at, w.pair * 2)};
  kr_one_pointer(r.u), kr_one_pointer(r.delta), kr_one_pointer(r.z), kr_one_pointer(r.bc), kr_one_pointer(r.out);
  return r;
}

KR_DEV void copy_tile(const kr_scan_params &p, uint32_t *raw, uint32_t *raw_bc, usual_rows &r) {
  const int thread = kr_thread(), AT_ONCE = THREADS / PACKS,
            bc_bytes = (int)(thread & 2 ? p.C_mat.t : p.B_mat.t) * 2;
#pragma unroll
  for (int k = 0; k < TL; k += AT_ONCE) {
    uint32_t *const to = raw + raw_at(k + thread / PACKS) + thread % PACKS * 4;
    copy_16(to, r.u + (int64_t)k * step_bytes(p.u));
    copy_16(to + RAW, r.delta + (int64_t)k * step_bytes(p.delta));
    copy_16(to + 2 * RAW, r.z + (int64_t)k * step_bytes(p.z));
  }
#pragma unroll
  for (int id = 0; id < BC_PACKS; id += THREADS)
    copy_16(raw_bc + (id + thread) * 4, r.bc + (int64_t)(id / 4) * bc_bytes);
  r.u += (int64_t)TL * step_bytes(p.u), r.delta += (int64_t)TL * step_bytes(p.delta);
  r.z += (int64_t)TL * step_bytes(p.z), r.bc += (int64_t)TL * bc_bytes;
}

/* What a thread keeps of a tile until its outputs are stored: two channels per word. */
typedef struct usual_tile {
  uint32_t u[STEPS], z[STEPS];
} usual_tile;

KR_DEV void stage(const usual_place &w, const uint32_t *raw, const uint32_t *raw_bc, const float (&bias)[2],
                  float *s_dt, float *s_bc, usual_tile &tile) {
  const uint32_t *const from = raw + raw_at(w.at) + w.pair;
  float dt[2][STEPS], du[2][STEPS];
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    const uint32_t delta = from[RAW + i * ROW];
    tile.u[i] = from[i * ROW], tile.z[i] = from[2 * RAW + i * ROW];
#pragma unroll
    for (int c = 0; c < 2; c++) {
      dt[c][i] = softplus_of(kr_unpack(delta, c, KR_DTYPE) + bias[c]);
      du[c][i] = dt[c][i] * kr_unpack(tile.u[i], c, KR_DTYPE);
    }
  }
#pragma unroll
  for (int c = 0; c < 2; c++) {
    float *const to = s_dt + (w.pair * 2 + c) * WIDTH + w.at;
    put_floats(to, dt[c]);
    put_floats(to + VALUES, du[c]);
  }
#pragma unroll
  for (int id = kr_thread(); id < BC_PACKS; id += THREADS) {
    const kr_raw16 pack = *(const kr_raw16 *)(raw_bc + id * 4);
#pragma unroll
    for (int h = 0; h < 8; h += 4)
      *(kr_float4 *)(s_bc + id * 8 + h) =
          kr_float4{{pack_at(pack, h, KR_DTYPE), pack_at(pack, h + 1, KR_DTYPE), pack_at(pack, h + 2, KR_DTYPE),
                     pack_at(pack, h + 3, KR_DTYPE)}};
  }
}

/* Stores y of a tile: the groups' partial sums, plus D u, times silu(z). */
KR_DEV void finish(const kr_scan_params &p, const usual_place &w, const float *s_y, const float (&skip)[2],
                   const usual_tile &tile, char *&out) {
  float y[2][STEPS];
#pragma unroll
  for (int c = 0; c < 2; c++) {
    const float *const from = s_y + (w.pair * 2 + c) * WIDTH + w.at;
    read_floats(from, y[c]);
#pragma unroll
    for (int k = 1; k < GROUPS; k++) {
      float part[STEPS];
      read_floats(from + k * VALUES, part);
#pragma unroll
      for (int i = 0; i < STEPS; i++) y[c][i] += part[i];
    }
  }
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
#pragma unroll
    for (int c = 0; c < 2; c++)
      y[c][i] = kr_fma(skip[c], kr_unpack(tile.u[i], c, KR_DTYPE), y[c][i]) *
                gate_of(kr_unpack(tile.z[i], c, KR_DTYPE));
    *(uint32_t *)(out + (int64_t)i * step_bytes(p.out)) = kr_pack(y[0][i], y[1][i], KR_DTYPE);
  }
  out += (int64_t)TL * step_bytes(p.out);
}

template <int KEEP>
KR_DEV void walk(const kr_scan_params &p, const usual_place &w, const float *s_dt, const float *s_bc,
                 const float (&A)[S], float (&x)[S], float *&kept, float *s_y) {
  const float *const step = s_dt + w.channel * WIDTH, *const bc = s_bc + w.group * S;
  float *const y_to = s_y + w.group * VALUES + w.channel * WIDTH;
  float dt[4], du[4];
  read_floats(step, dt), read_floats(step + VALUES, du);
#pragma unroll 2
  for (int k = 0; k < TL; k += 4) {
    float next_dt[4], next_du[4]; /* the last ones read the padding */
    read_floats(step + k + 4, next_dt), read_floats(step + VALUES + k + 4, next_du);
    float y[4];
    if (KEEP && k % KR_SCAN_KEPT == 0) put_floats(kept, x), kept += p.kept_k;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float B[S], C[S];
      read_floats(bc + (k + i) * 2 * N, B), read_floats(bc + (k + i) * 2 * N + N, C);
#pragma unroll
      for (int s = 0; s < S; s++) {
        x[s] = kr_fma(decay_of(i, s, dt[i], A[s]), x[s], du[i] * B[s]);
        y[i] = s ? kr_fma(C[s], x[s], y[i]) : C[0] * x[0];
      }
    }
    put_floats(y_to + k, y);
#pragma unroll
    for (int i = 0; i < 4; i++) dt[i] = next_dt[i], du[i] = next_du[i];
  }
}

/* The chunk's first state. exp2_of_product does not propagate NaN, so a NaN in A goes into the state here. */
KR_DEV void first_state(const kr_scan_params &p, const usual_place &w, int chunk, const float (&A)[S], float (&x)[S]) {
  const int64_t d = w.d0 + w.channel, step = p.n_chunks > 1 ? 1 : p.initial.n, n = w.group * S * step;
  const float *from = p.n_chunks > 1   ? p.chunk_state + ((w.b * p.n_chunks + chunk) * p.D + d) * N + n
                      : p.initial.data ? p.initial.data + w.b * p.initial.b + d * p.initial.d + n
                                       : 0;
#pragma unroll
  for (int s = 0; s < S; s++) {
    x[s] = from ? from[s * step] : 0.0f;
    if (A[s] != A[s]) x[s] = A[s];
  }
}

template <int KEEP>
KR_DEV void scan(const kr_scan_params &p) {
  KR_DYNAMIC_SHARED(shared);
  uint32_t *const raw = (uint32_t *)shared, *const raw_bc = raw + 3 * RAW;
  float *const s_bc = (float *)(raw_bc + BC_PACKS * 4), *const s_dt = s_bc + BC_PACKS * 8,
               *const s_y = s_dt + 2 * VALUES;
  const usual_place w = place_block(p);
  const int chunk = kr_block_y(), begin = chunk * (int)p.chunk, end = (int)min64(p.L, begin + p.chunk);
  usual_rows rows = first_rows(p, w, begin);
  kr_launch_dependents();
  if (!KR_AHEAD) kr_griddep_wait(), copy_tile(p, raw, raw_bc, rows), kr_commit_copies();
  const int64_t d = w.d0 + w.channel, d_pair = w.d0 + w.pair * 2;
  float A[S], x[S], bias[2], skip[2], *kept = 0;
#pragma unroll
  for (int s = 0; s < S; s++) A[s] = p.A[d * p.A_d + (w.group * S + s) * p.A_n] * KR_LOG2E;
#pragma unroll
  for (int c = 0; c < 2; c++) {
    bias[c] = p.bias ? p.bias[(d_pair + c) * p.bias_stride] : 0.0f;
    skip[c] = p.D_vec ? p.D_vec[(d_pair + c) * p.D_stride] : 0.0f;
  }
  if (KR_AHEAD) kr_griddep_wait(), copy_tile(p, raw, raw_bc, rows), kr_commit_copies();
  first_state(p, w, chunk, A, x);
  if (KEEP)
    kept = p.kept_state + w.b * p.kept_b + begin / KR_SCAN_KEPT * p.kept_k + d * p.kept_d + w.group * S;
  usual_tile tile;
#pragma unroll 1
  for (int t = begin; t < end; t += TL) {
    kr_copied<0>();
    kr_sync();
    if (t > begin) finish(p, w, s_y, skip, tile, rows.out);
    stage(w, raw, raw_bc, bias, s_dt, s_bc, tile);
    kr_sync();
    if (t + TL < end) copy_tile(p, raw, raw_bc, rows);
    kr_commit_copies();
    walk<KEEP>(p, w, s_dt, s_bc, A, x, kept, s_y);
  }
  kr_sync();
  finish(p, w, s_y, skip, tile, rows.out);
  if (!p.last.data || chunk + 1 < p.n_chunks) return;
#pragma unroll
  for (int s = 0; s < S; s++) p.last.data[w.b * p.last.b + d * p.last.d + (w.group * S + s) * p.last.n] = x[s];
}

KR_KERNEL void KR_BOUNDS(THREADS, 6) kr_scan_channels_last_n16_out(const kr_scan_params p) { scan<0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 6) kr_scan_channels_last_n16_out_keep(const kr_scan_params p) { scan<1>(p); }

/* scan_channels_last.cuh: shared by the channels-last scan kernels (selective_scan_channels_last.cu,
 * selective_scan_channels_last_bwd.cu): the block's position, asynchronous copies of a tile's rows to shared memory, B
 * and C, step sizes. A block has 32 channels and four warps; a lane is a channel, and each warp holds a quarter of its
 * states, S per lane. So B and C are warp-uniform and a sum over states is four per-lane partial sums; step sizes,
 * gates and all other per-element work use another mapping: a thread takes STEPS steps of two adjacent channels of a
 * tile of TL steps. ANY: rows may be unaligned (p.align: what divides all of them, 16, 4 or 2 bytes); the aligned words
 * that contain them are copied. */
#ifndef KR_SCAN_CHANNELS_LAST_CUH
#define KR_SCAN_CHANNELS_LAST_CUH

#include "scan_packed_rows.cuh"

enum {
  THREADS = KR_SCAN_THREADS,
  WARPS = THREADS / 32,
  CHANNELS = KR_SCAN_CHANNELS_LAST_CHANNELS,
  BYTES = KR_DTYPE == KRAIT_F32 ? 4 : 2
};
/* Words per raw row of a tile; padding against bank conflicts, and for a trailing half word. */
enum {
  ROW_WORDS = CHANNELS * BYTES / 4,
  RAW_ROW = ROW_WORDS + 4
};

typedef struct last_place {
  int64_t b, d0;                 /* d0: first channel of the block */
  int begin, end, chunk, g, n_channels; /* steps of the chunk; valid channels of this block */
  int thread, lane, warp;
  int pair, at;                  /* the thread's share of a tile: a channel pair and its first step */
} last_place;

/* Adjacent lanes have adjacent steps: conflict-free in shared memory both ways. */
KR_DEV last_place place_block(const kr_scan_params &p, const int STEPS) {
  last_place w;
  const int x = kr_block_x(), per_batch = p.blocks_per_group * p.G;
  w.b = x / per_batch;
  w.g = x % per_batch / p.blocks_per_group;
  w.thread = kr_thread(), w.lane = w.thread & 31, w.warp = w.thread / 32;
  const int64_t c0 = (int64_t)(x % p.blocks_per_group) * CHANNELS;
  w.d0 = w.g * p.D_group + c0;
  w.n_channels = (int)min64(CHANNELS, p.D_group - c0);
  w.chunk = kr_block_y();
  w.begin = w.chunk * (int)p.chunk;
  w.end = (int)min64(p.L, w.begin + p.chunk);
  if (STEPS == 4) w.pair = w.lane >> 1, w.at = (w.warp * 2 + (w.lane & 1)) * 4;
  else w.pair = w.lane >> 2 | (w.warp & 1) << 3, w.at = ((w.lane & 3) | w.warp >> 1 << 2) * 2;
  return w;
}

/* ---- raw rows ---- */

/* An aligned word of global memory, whose bytes first ... last - 1 belong to the tensor; zero if last is 0. */
KR_DEV void copy_word(uint32_t *to, const char *from, int first, int last) {
#ifdef KR_EMULATE
  if (last > first) __builtin_memset(to, 0xfb, 4), kr_emulated_copy((char *)to + first, from + first, last - first);
  else kr_emulated_copy(to, nullptr, 4);
#else
  (void)first;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :
               : "r"((uint32_t)(uintptr_t)(__attribute__((address_space(3))) void *)to), "l"(from),
                 "r"(last > 0 ? 4 : 0)
               : "memory");
#endif
}

/* The first n bytes of an aligned 16-byte block, zeros for the rest. */
KR_DEV void copy_part(uint32_t *to, const char *from, int n) {
#ifdef KR_EMULATE
  if (n > 0) kr_emulated_copy(to, from, n);
  if (n < 16) kr_emulated_copy((char *)to + (n > 0 ? n : 0), nullptr, 16 - (n > 0 ? n : 0));
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"((uint32_t)(uintptr_t)(__attribute__((address_space(3))) void *)to), "l"(from), "r"(n > 0 ? n : 0)
               : "memory");
#endif
}

/* The block's first channel at step t. Steps are less than 2^31 bytes apart: one 32-bit product. */
KR_DEV const char *row_at(const kr_rows &v, const last_place &w, int t) {
  return (const char *)v.data + (w.b * v.b + w.d0) * BYTES + (int64_t)t * ((int)v.t * BYTES);
}
KR_DEV int misfit_of(const kr_rows &v, const last_place &w, int t) {
  return BYTES == 4 ? 0 : (int)((uintptr_t)row_at(v, w, t) & 2);
}

/* A thread's share of a tensor's tile in memory: its first pack when it copies rows; its two channels at its first step
 * when it stores. ANY recomputes word addresses. */
enum { ROW_PACKS = ROW_WORDS / 4, ROWS_AT_ONCE = THREADS / ROW_PACKS };

KR_DEV int step_bytes(const kr_rows &v) { return (int)v.t * BYTES; }

KR_DEV const char *first_pack(const kr_rows &v, const last_place &w, int t0) {
  return v.data ? row_at(v, w, t0 + w.thread / ROW_PACKS) + w.thread % ROW_PACKS * 16 : 0;
}
KR_DEV char *first_two(const kr_rows &v, const last_place &w, int t0) {
  return v.data ? (char *)row_at(v, w, t0 + w.at) + w.pair * 2 * BYTES : 0;
}

/* Copies the tile at step t0 of one tensor; out of range is 0. */
KR_DEV void copy_rows(const int ANY, const kr_scan_params &p, const last_place &w, const kr_rows &v, const char *from,
                      const int TL, int t0, uint32_t *raw) {
  const int n_bytes = w.n_channels * BYTES;
  if (!ANY) {
    const int pack = w.thread % ROW_PACKS, row = w.thread / ROW_PACKS,
              n = n_bytes - pack * 16 < 16 ? n_bytes - pack * 16 : 16;
#pragma unroll
    for (int k = 0; k * ROWS_AT_ONCE < TL; k++)
      if (TL % ROWS_AT_ONCE == 0 || row + k * ROWS_AT_ONCE < TL)
        copy_part(raw + (row + k * ROWS_AT_ONCE) * RAW_ROW + pack * 4, from + k * ROWS_AT_ONCE * (int64_t)step_bytes(v),
                  t0 + row + k * ROWS_AT_ONCE < w.end ? n : 0);
    return;
  }
  enum { AT_ONCE = THREADS / ROW_WORDS };
  const int word = w.thread % ROW_WORDS;
#pragma unroll 1
  for (int t = w.thread / ROW_WORDS; t < TL; t += AT_ONCE) {
    const int before = misfit_of(v, w, t0 + t), exists = t0 + t < w.end, end = before + n_bytes;
    const char *const row = row_at(v, w, t0 + t) - before;
    copy_word(raw + t * RAW_ROW + word, row + word * 4, word ? 0 : before,
              !exists || end <= word * 4 ? 0
              : end - word * 4 < 4       ? end - word * 4
                                         : 4);
    if (BYTES == 2 && p.align == 2 && word == ROW_WORDS - 1)
      copy_word(raw + t * RAW_ROW + ROW_WORDS, row + ROW_WORDS * 4, 0, exists && end > ROW_WORDS * 4 ? 2 : 0);
  }
}

/* A step of the thread's two channels. */
typedef struct last_two {
  uint32_t w[BYTES / 2];
} last_two;

KR_DEV last_two read_two(const int ANY, const kr_scan_params &p, const last_place &w, const kr_rows &v,
                         const uint32_t *raw, int t0, int t) {
  const uint32_t *const from = raw + t * RAW_ROW + w.pair * (BYTES / 2);
  if (BYTES == 4) {
    const kr_float2 q = *(const kr_float2 *)from;
    last_two two;
    two.w[0] = kr_float_to_bits(q.v[0]), two.w[BYTES / 2 - 1] = kr_float_to_bits(q.v[1]);
    return two;
  }
  if (!ANY) return {{from[0]}};
  const uint32_t both = p.align == 2 ? shifted(from[0], from[1], misfit_of(v, w, t0 + t) * 8) : from[0];
  const int n = w.n_channels - w.pair * 2; /* the other half of the last channel's word is not ours */
  return {{n >= 2 ? both : n == 1 ? both & 0xffffu : 0}};
}

KR_DEV float value_of(const last_two &two, int c) {
  return BYTES == 4 ? kr_bits_to_float(two.w[c * (BYTES / 2 - 1)]) : kr_unpack(two.w[0], c, KR_DTYPE);
}

/* Stores the thread's two channels of a step. */
KR_DEV void store_two(const int ANY, const kr_scan_params &p, const last_place &w, char *to, float v0, float v1) {
  const int n = w.n_channels - w.pair * 2;
  if (n >= 2 && (!ANY || p.align == 16 || (BYTES == 2 && p.align == 4))) {
    if (BYTES == 2) *(uint32_t *)to = kr_pack(v0, v1, KR_DTYPE);
    else *(kr_float2 *)to = kr_float2{{v0, v1}};
    return;
  }
  if (n >= 1) kr_store(to, 0, KR_DTYPE, v0);
  if (n >= 2) kr_store(to, 1, KR_DTYPE, v1);
}

/* ---- B and C ---- */

/* The thread's packs of E states of a tile: pack id is states id % (ROWS / E) * E ... of step id / (ROWS / E); ROWS: 4
 * S states of B, then as many of C. They are held in registers until the previous tile is done. */
KR_DEV int n_bc_packs(const int TL, const int ROWS) { return (TL * ROWS / E + THREADS - 1) / THREADS; }

KR_DEV kr_raw16 load_states(const kr_scan_mat &m, int align, const char *from, int left) {
  kr_raw16 raw = {{0, 0, 0, 0}};
  if (align == 16 && left >= E) return *(const kr_raw16 *)from;
  if (align >= 4 && left >= E) {
#pragma unroll
    for (int k = 0; k < 4; k++) raw.w[k] = ((const uint32_t *)from)[k];
    return raw;
  }
#pragma unroll
  for (int k = 0; k < E; k++) {
    if (k >= left) continue;
    if (E == 4) raw.w[k & 3] = ((const uint32_t *)from)[k * m.n];
    else raw.w[k >> 1] |= (uint32_t)((const uint16_t *)from)[k * m.n] << ((k & 1) * 16);
  }
  return raw;
}

template <int N_PACKS>
struct last_bc {
  kr_raw16 raw[N_PACKS];
  const char *from[N_PACKS]; /* of the next tile */
};

template <int ROWS, int N_PACKS>
KR_DEV void find_bc(const kr_scan_params &p, const last_place &w, int t0, last_bc<N_PACKS> &bc) {
#pragma unroll
  for (int i = 0; i < N_PACKS; i++) {
    const int id = w.thread + i * THREADS, t = t0 + id / (ROWS / E), r = id % (ROWS / E) * E, is_C = r >= p.N_padded,
              n = is_C ? r - p.N_padded : r;
    const kr_scan_mat &m = is_C ? p.C_mat : p.B_mat;
    bc.from[i] = (const char *)m.data + (w.b * m.b + w.g * m.g + n * m.n) * BYTES + (int64_t)t * ((int)m.t * BYTES);
    kr_one_pointer(bc.from[i]);
  }
}

/* Loads the packs of the tile at t0; advances by `tiles` to the next one. */
template <int TL, int ROWS, int USUAL, int N_PACKS>
KR_DEV void load_bc(const kr_scan_params &p, const last_place &w, int t0, const int tiles, last_bc<N_PACKS> &bc) {
#pragma unroll
  for (int i = 0; i < N_PACKS; i++) {
    const int id = w.thread + i * THREADS, r = id % (ROWS / E) * E, is_C = r >= p.N_padded,
              n = is_C ? r - p.N_padded : r;
    const kr_scan_mat &m = is_C ? p.C_mat : p.B_mat;
    const int exists = (TL * (ROWS / E) % THREADS == 0 || id < TL * (ROWS / E)) && t0 + id / (ROWS / E) < w.end;
    bc.raw[i] = load_states(m, USUAL ? 16 : p.align_bc, bc.from[i], !exists ? 0 : USUAL ? E : p.N - n);
    bc.from[i] += (int64_t)(tiles * TL) * ((int)m.t * BYTES);
  }
}

template <int TL, int ROWS, int N_PACKS>
KR_DEV void put_bc(const last_place &w, const last_bc<N_PACKS> &bc, float *s_bc) {
#pragma unroll
  for (int i = 0; i < N_PACKS; i++) {
    const int id = w.thread + i * THREADS;
    if (TL * (ROWS / E) % THREADS && id >= TL * (ROWS / E)) break;
#pragma unroll
    for (int h = 0; h < E; h += 4)
      *(kr_float4 *)(s_bc + id * E + h) =
          kr_float4{{pack_at(bc.raw[i], h, KR_DTYPE), pack_at(bc.raw[i], h + 1, KR_DTYPE),
                     pack_at(bc.raw[i], h + 2, KR_DTYPE), pack_at(bc.raw[i], h + 3, KR_DTYPE)}};
  }
}

/* ---- values of a tile: (channel, step), float32 ---- */

KR_DEV int value_row(const int TL) { return TL + 4; }

/* STEPS steps of a channel. */
template <int STEPS>
KR_DEV void put_steps(float *to, const float (&v)[STEPS]) {
  if (STEPS == 4) *(kr_float4 *)to = kr_float4{{v[0], v[1], v[STEPS / 2], v[STEPS - 1]}};
  else *(kr_float2 *)to = kr_float2{{v[0], v[1]}};
}

template <int STEPS>
KR_DEV void get_steps(const float *from, float (&v)[STEPS]) {
  if (STEPS == 4) {
    const kr_float4 q = *(const kr_float4 *)from;
#pragma unroll
    for (int k = 0; k < STEPS; k++) v[k] = q.v[k];
  } else {
    const kr_float2 q = *(const kr_float2 *)from;
#pragma unroll
    for (int k = 0; k < STEPS; k++) v[k] = q.v[k & 1];
  }
}

/* A parameter of the thread's two channels. */
KR_DEV void load_two(const last_place &w, const float *data, int64_t stride, float (&v)[2]) {
#pragma unroll
  for (int c = 0; c < 2; c++)
    v[c] = data && w.pair * 2 + c < w.n_channels ? data[(w.d0 + w.pair * 2 + c) * stride] : 0.0f;
}

/* S floats of shared memory that all lanes read. */
template <int S>
KR_DEV void read_states(const float *from, float (&v)[S]) {
#pragma unroll
  for (int k = 0; k < S; k += 4) {
    const kr_float4 q = read_four(from + k);
#pragma unroll
    for (int j = 0; j < 4; j++) v[k + j] = q.v[j];
  }
}

/* The lane's states: rows warp * S ... of B and C. */
template <int S>
KR_DEV void load_view(const kr_scan_params &p, const last_place &w, const float *data, int64_t d_stride,
                      int64_t n_stride, float scale, float (&v)[S]) {
#pragma unroll
  for (int s = 0; s < S; s++) {
    const int n = w.warp * S + s;
    v[s] = data && w.lane < w.n_channels && n < p.N ? data[(w.d0 + w.lane) * d_stride + n * n_stride] * scale : 0.0f;
  }
}

/* Index into chunk_state and arrays of its layout. */
template <int S>
KR_DEV int64_t states_at(const kr_scan_params &p, const last_place &w, int64_t slab) {
  return (slab * p.D + w.d0 + w.lane) * p.N_padded + w.warp * S;
}

template <int S>
KR_DEV void put_states(const last_place &w, float *to, const float (&v)[S]) {
  if (w.lane >= w.n_channels) return;
#pragma unroll
  for (int s = 0; s < S; s += 4) *(kr_float4 *)(to + s) = kr_float4{{v[s], v[s + 1], v[s + 2], v[s + 3]}};
}

/* The lane's states kept before a group of 8 steps. */
template <int S>
KR_DEV float *kept_at(const kr_scan_params &p, const last_place &w, int kept) {
  return p.kept_state + w.b * p.kept_b + kept * p.kept_k + (w.d0 + w.lane) * p.kept_d + w.warp * S;
}

#endif

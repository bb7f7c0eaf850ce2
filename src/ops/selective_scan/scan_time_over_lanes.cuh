/* scan_time_over_lanes.cuh: shared by the scan kernels that lay time over the lanes of a warp: each of a channel's TT
 * lanes holds RUN consecutive steps, so that a warp covers a tile of TT * RUN steps of 32 / TT channels, and an
 * associative scan across those lanes joins the runs. Sums over states stay in a thread; parallelism needs only batch *
 * channels * time. Compiled once per storage type KR_DTYPE of u and the outputs. Rows of that type in aligned groups of
 * four elements are loaded straight into runs; all others element by element and transposed in shared memory. DIRECT:
 * the host has found all rows, B and C to be of the first kind. */
#ifndef KR_LANES_CUH
#define KR_LANES_CUH

#include "pack.cuh"
#include "scan_params.h"

#ifndef KR_LANES_RUN
#define KR_LANES_RUN 16
#endif
#define KR_LANES_FORGET 0x7fffffffu /* NaN: see join_up */
enum {
  RUN = KR_LANES_RUN,
  QUARTERS = RUN / 4,
  TURN = RUN + 4,
  THREADS = KR_SCAN_THREADS,
  WORDS = KR_DTYPE == KRAIT_F32 ? 4 : 2
};

typedef struct lanes_place {
  int64_t b, chunk, d0, begin, end; /* first channel of the block; steps of the chunk */
  int g, n_channels;                /* group of B and C; valid channels of this block */
  int thread, lane, at,
      slot; /* lane in the channel's time; at: lane in the warp; slot: the thread's channel in the block */
} lanes_place;

KR_DEV lanes_place place_lanes(const kr_scan_params &p, const int TT) {
  lanes_place w;
  const int x = kr_block_x(), per_batch = p.blocks_per_group * p.G;
  w.b = x / per_batch;
  w.g = x % per_batch / p.blocks_per_group;
  w.thread = kr_thread();
  w.at = w.thread & 31, w.lane = w.thread & (TT - 1), w.slot = w.thread / TT;
  const int64_t c0 = (int64_t)(x % p.blocks_per_group) * (THREADS / TT);
  w.d0 = w.g * p.D_group + c0;
  w.n_channels = (int)min64(THREADS / TT, p.D_group - c0);
  w.chunk = kr_block_y();
  w.begin = w.chunk * p.chunk;
  w.end = min64(p.L, w.begin + p.chunk);
  if (p.offsets) { /* clamped, so that bad offsets stay in bounds; a reversed scan counts from the far end */
    int64_t first = p.offsets[w.b * p.offsets_step], last = p.offsets[(w.b + 1) * p.offsets_step];
    first = first < 0 ? 0 : min64(first, p.L);
    last = last < first ? first : min64(last, p.L);
    w.begin = p.reverse ? p.L - last : first, w.end = p.reverse ? p.L - first : last;
  }
  return w;
}

/* ---- four raw elements ---- */

typedef struct __attribute__((aligned(4 * WORDS))) raw4 {
  uint32_t w[WORDS];
} raw4;

KR_DEV float element4(const raw4 &raw, int k) {
  return WORDS == 4 ? kr_bits_to_float(raw.w[k % WORDS]) : kr_unpack(raw.w[k / 2 % WORDS], k & 1, KR_DTYPE);
}

/* Four elements, or zeros out of range: a predicate rather than a branch. */
KR_DEV raw4 load4(const char *from, int exists) {
  raw4 raw;
#ifdef KR_EMULATE
  for (int k = 0; k < WORDS; k++) raw.w[k] = exists ? ((const uint32_t *)from)[k] : 0;
#elif KR_DTYPE == 0
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; @p "
      "ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "=&r"(raw.w[0]), "=&r"(raw.w[1]), "=&r"(raw.w[2]), "=&r"(raw.w[3])
      : "l"(from), "r"(exists));
#else
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0; @p ld.global.v2.u32 {%0, %1}, [%2]; }"
      : "=&r"(raw.w[0]), "=&r"(raw.w[1])
      : "l"(from), "r"(exists));
#endif
  return raw;
}

/* Groups of four are aligned, each wholly in or out of range. */
KR_DEV int is_aligned4(const kr_scan_params &p, const void *data, int64_t strides, int64_t step, int32_t dtype) {
  return dtype == KR_DTYPE && step == 1 && ((strides | p.L) & 3) == 0 && ((uintptr_t)data & (4 * WORDS - 1)) == 0 &&
         !p.offsets;
}

/* ---- one element of any type: raw bits first, converted later, so that loads overlap ---- */

KR_DEV uint32_t load_bits(const void *data, int64_t at, int32_t dtype) {
  return dtype == KRAIT_F32 ? ((const uint32_t *)data)[at] : ((const uint16_t *)data)[at];
}
KR_DEV float value_of(uint32_t bits, int32_t dtype) {
  return dtype == KRAIT_F32 ? kr_bits_to_float(bits) : kr_unpack(bits, 0, dtype);
}

/* ---- B and C of a tile in shared memory ----
 * A row is one state of B or C: quarters[RUN / 4][TT][4], padded between quarters against bank conflicts. */

KR_DEV int quarter_floats(const int TT) { return TT * 4 + 4; }
KR_DEV int row_floats(const int TT) { return QUARTERS * quarter_floats(TT); }

KR_DEV void read_run(const float *row, const int TT, int lane, float (&v)[RUN]) {
#pragma unroll
  for (int q = 0; q < QUARTERS; q++) {
    const kr_float4 f = *(const kr_float4 *)(row + q * quarter_floats(TT) + lane * 4);
#pragma unroll
    for (int k = 0; k < 4; k++) v[q * 4 + k] = f.v[k];
  }
}

/* n_states rows of B and C (or of one of them) from state n0, in aligned groups of four: a thread keeps its column from
 * row to row. The rows of C follow those of B. */
KR_DEV void stage_aligned(const lanes_place &w, const kr_scan_mat &m, const kr_scan_mat *also, const int TT, int n0,
                          int n_states, int64_t t0, float *to) {
  enum { AHEAD = RUN / 4 };
  const int PER_ROW = TT * QUARTERS, ROWS = THREADS / PER_ROW, at = w.thread % PER_ROW, l = at % TT, q = at / TT;
  const int64_t t = t0 + l * RUN + q * 4;
  const int exists = t < w.end, first = w.thread / PER_ROW, floats = ROWS * row_floats(TT);
  const int64_t step = ROWS * m.n * WORDS, also_step = also ? ROWS * also->n * WORDS : 0;
  const char *from = (const char *)m.data + (w.b * m.b + w.g * m.g + (n0 + first) * m.n + t) * WORDS,
             *also_from =
                 also ? (const char *)also->data + (w.b * also->b + w.g * also->g + (n0 + first) * also->n + t) * WORDS
                      : 0;
  to += first * row_floats(TT) + q * quarter_floats(TT) + l * 4;
#pragma unroll 1
  for (int r = first; r < n_states; r += ROWS * AHEAD) {
    raw4 raw[2][AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const int there = exists && r + i * ROWS < n_states;
      raw[0][i] = load4(from, there), from += step;
      if (also) raw[1][i] = load4(also_from, there), also_from += also_step;
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++, to += floats) {
      if (r + i * ROWS >= n_states) break;
      *(kr_float4 *)to =
          kr_float4{{element4(raw[0][i], 0), element4(raw[0][i], 1), element4(raw[0][i], 2), element4(raw[0][i], 3)}};
      if (also)
        *(kr_float4 *)(to + n_states * row_floats(TT)) =
            kr_float4{{element4(raw[1][i], 0), element4(raw[1][i], 1), element4(raw[1][i], 2), element4(raw[1][i], 3)}};
    }
  }
}

/* The same element by element, in any type. */
KR_DEV void stage_any(const lanes_place &w, const kr_scan_mat &m, const int TT, int n0, int n_states, int64_t t0,
                      float *to) {
  const int TILE = TT * RUN, AHEAD = 8;
  const char *from =
      (const char *)m.data + (w.b * m.b + w.g * m.g + n0 * m.n + t0 * m.t) * (m.dtype == KRAIT_F32 ? 4 : 2);
  const int n = n_states * TILE, left = (int)min64(TILE, w.end - t0);
  for (int first = w.thread; first < n; first += AHEAD * THREADS) {
    uint32_t bits[AHEAD];
    int64_t offset[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) { /* out of range: as in load_run */
      const int id = first + i * THREADS < n ? first + i * THREADS : n - 1, t = id % TILE;
      offset[i] = id / TILE * m.n + (t < left ? t : left - 1) * m.t;
    }
    if (m.dtype == KRAIT_F32) {
#pragma unroll
      for (int i = 0; i < AHEAD; i++) bits[i] = ((const uint32_t *)from)[offset[i]];
    } else {
#pragma unroll
      for (int i = 0; i < AHEAD; i++) bits[i] = ((const uint16_t *)from)[offset[i]];
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const int id = first + i * THREADS, k = id % RUN;
      if (id < n)
        to[id / TILE * row_floats(TT) + k / 4 * quarter_floats(TT) + id % TILE / RUN * 4 + (k & 3)] =
            id % TILE < left ? value_of(bits[i], m.dtype) : 0.0f;
    }
  }
}

KR_DEV int mat_is_aligned(const kr_scan_params &p, const kr_scan_mat &m) {
  return is_aligned4(p, m.data, m.b | m.g | m.n, m.t, m.dtype);
}

/* Rows of one matrix, or of B and then of C. */
KR_DEV void stage_states(const kr_scan_params &p, const lanes_place &w, const kr_scan_mat &m, const int TT,
                         const int DIRECT, int n0, int n_states, int64_t t0, float *to) {
  if (DIRECT || mat_is_aligned(p, m)) stage_aligned(w, m, 0, TT, n0, n_states, t0, to);
  else stage_any(w, m, TT, n0, n_states, t0, to);
}

KR_DEV void stage_both(const kr_scan_params &p, const lanes_place &w, const int TT, const int DIRECT, int n0,
                       int n_states, int64_t t0, float *to) {
  if (DIRECT || (mat_is_aligned(p, p.B_mat) && mat_is_aligned(p, p.C_mat))) {
    stage_aligned(w, p.B_mat, &p.C_mat, TT, n0, n_states, t0, to);
    return;
  }
#pragma unroll 1
  for (int i = 0; i < 2; i++)
    stage_any(w, i ? p.C_mat : p.B_mat, TT, n0, n_states, t0, to + i * n_states * row_floats(TT));
}

/* ---- rows: a thread's run of its channel ---- */

typedef struct run_bits {
  uint32_t w[RUN]; /* aligned: QUARTERS * WORDS words hold the run; else one element each of the warp's steps lane, lane
                    * + 32 ... */
} run_bits;

KR_DEV int is_direct(const kr_scan_params &p, const kr_rows &v, const int DIRECT) {
  return DIRECT || is_aligned4(p, v.data, v.b | v.row, v.t, v.dtype);
}

KR_DEV void load_run(const kr_scan_params &p, const lanes_place &w, const kr_rows &v, const int TT, const int DIRECT,
                     int64_t t0, run_bits &bits) {
  const int64_t base = w.b * v.b + w.d0 * v.row;
  if (is_direct(p, v, DIRECT)) {
    const int64_t t = t0 + w.lane * RUN;
    const int left = w.slot < w.n_channels ? (int)min64(RUN, w.end - t) : 0;
    const char *from = (const char *)v.data + (base + w.slot * v.row + t) * WORDS;
#pragma unroll
    for (int q = 0; q < QUARTERS; q++) {
      const raw4 raw = load4(from + q * 4 * WORDS, q * 4 < left);
#pragma unroll
      for (int k = 0; k < WORDS; k++) bits.w[(q * WORDS + k) % RUN] = raw.w[k];
    }
    return;
  }
  /* Out-of-range elements are read from the nearest valid address, without a branch, and then zeroed. */
  const int TILE = TT * RUN, slot0 = w.slot - w.at / TT, left = (int)min64(TILE, w.end - t0),
            n_rows = w.n_channels - slot0;
  const int64_t first = base + t0 * v.t + (n_rows > 0 ? slot0 : 0) * v.row;
  int at[RUN];
#pragma unroll
  for (int k = 0; k < RUN; k++) at[k] = w.at + k * 32 % TILE < left ? w.at + k * 32 % TILE : left - 1;
  if (v.dtype == KRAIT_F32) {
#pragma unroll
    for (int k = 0; k < RUN; k++)
      bits.w[k] =
          ((const uint32_t *)v.data)[first + (k * 32 / TILE < n_rows ? k * 32 / TILE : 0) * v.row + at[k] * v.t];
  } else {
#pragma unroll
    for (int k = 0; k < RUN; k++)
      bits.w[k] =
          ((const uint16_t *)v.data)[first + (k * 32 / TILE < n_rows ? k * 32 / TILE : 0) * v.row + at[k] * v.t];
  }
#pragma unroll
  for (int k = 0; k < RUN; k++) bits.w[k] = k * 32 / TILE < n_rows && w.at + k * 32 % TILE < left ? bits.w[k] : 0;
}

/* Converts a loaded run to float; `turn` is the warp's transpose buffer. */
KR_DEV void unpack_run(const kr_scan_params &p, const lanes_place &w, const kr_rows &v, const int DIRECT,
                       const run_bits &bits, float *turn, float (&to)[RUN]) {
  if (is_direct(p, v, DIRECT)) {
#pragma unroll
    for (int k = 0; k < RUN; k++)
      to[k] = WORDS == 4 ? kr_bits_to_float(bits.w[k]) : kr_unpack(bits.w[k / 2], k & 1, KR_DTYPE);
    return;
  }
  kr_sync_warp();
#pragma unroll
  for (int k = 0; k < RUN; k++) {
    const int id = w.at + k * 32;
    turn[id / RUN * TURN + id % RUN] = value_of(bits.w[k], v.dtype);
  }
  kr_sync_warp();
#pragma unroll
  for (int q = 0; q < RUN; q += 4) {
    const kr_float4 f = *(const kr_float4 *)(turn + w.at * TURN + q);
#pragma unroll
    for (int k = 0; k < 4; k++) to[q + k] = f.v[k];
  }
}

KR_DEV void read_row(const kr_scan_params &p, const lanes_place &w, const kr_rows &v, const int TT, const int DIRECT,
                     int64_t t0, float *turn, float (&to)[RUN]) {
  run_bits bits;
  load_run(p, w, v, TT, DIRECT, t0, bits);
  unpack_run(p, w, v, DIRECT, bits, turn, to);
}

KR_DEV void write_row(const kr_scan_params &p, const lanes_place &w, const kr_rows &v, const int TT, const int DIRECT,
                      int64_t t0, float *turn, const float (&from)[RUN]) {
  const int64_t base = w.b * v.b + w.d0 * v.row;
  if (is_direct(p, v, DIRECT)) {
    const int64_t t = t0 + w.lane * RUN;
    const int left = w.slot < w.n_channels ? (int)min64(RUN, w.end - t) : 0;
    char *to = (char *)v.data + (base + w.slot * v.row + t) * WORDS;
#pragma unroll
    for (int q = 0; q < RUN; q += 4) {
      raw4 raw;
#pragma unroll
      for (int k = 0; k < WORDS; k++)
        raw.w[k] = WORDS == 4 ? kr_float_to_bits(from[q + k])
                              : kr_pack(from[(q + 2 * k) % RUN], from[(q + 2 * k + 1) % RUN], KR_DTYPE);
      if (q < left) *(raw4 *)(to + q * WORDS) = raw;
    }
    return;
  }
  const int TILE = TT * RUN, slot0 = w.slot - w.at / TT, left = (int)min64(TILE, w.end - t0);
  kr_sync_warp();
#pragma unroll
  for (int q = 0; q < RUN; q += 4)
    *(kr_float4 *)(turn + w.at * TURN + q) = kr_float4{{from[q], from[q + 1], from[q + 2], from[q + 3]}};
  kr_sync_warp();
  int64_t offset = base + slot0 * v.row + (t0 + w.at) * v.t;
#pragma unroll 1
  for (int k = 0; k < RUN; k++) {
    const int id = w.at + k * 32;
    if (slot0 + id / TILE < w.n_channels && id % TILE < left)
      kr_store(v.data, offset, v.dtype, turn[id / RUN * TURN + id % RUN]);
    offset += 32 * v.t;
    if ((k + 1) * 32 % TILE == 0) offset += v.row - TILE * v.t;
  }
}

/* Prefetches a run into L2. */
KR_DEV void expect_run(const lanes_place &w, const kr_rows &v, int64_t t0) {
#ifndef KR_EMULATE
  if (v.packs && v.dtype == KR_DTYPE && w.slot < w.n_channels && t0 >= w.begin && t0 + w.lane * RUN < w.end)
    asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)v.data +
                                                  (w.b * v.b + (w.d0 + w.slot) * v.row + t0 + w.lane * RUN) * WORDS));
#else
  (void)w, (void)v, (void)t0;
#endif
}

/* dt of a run from delta; 0 past the end, which leaves the state unchanged. */
KR_DEV void step_sizes(const kr_scan_params &p, const lanes_place &w, float bias, int64_t t0, float (&dt)[RUN]) {
  const int64_t left = w.end - t0 - w.lane * RUN;
#pragma unroll
  for (int k = 0; k < RUN; k++) dt[k] += bias;
  if (p.softplus) {
#pragma unroll
    for (int k = 0; k < RUN; k++) dt[k] = kr_softplus(dt[k]);
  }
  if (left < RUN) {
#pragma unroll
    for (int k = 0; k < RUN; k++) dt[k] = k < left ? dt[k] : 0.0f;
  }
}

/* Bit k: the state is cleared before step k of the run, because the sequence index changes. Bit 16 + k: the output
 * there is 0. */
KR_DEV uint32_t run_marks(const kr_scan_params &p, const lanes_place &w, int64_t t0) {
  uint32_t marks = 0;
  const int32_t *index = p.seq_idx + w.b * p.seq_b;
  for (int k = 0; k < RUN; k++) {
    const int64_t t = t0 + w.lane * RUN + k;
    if (t >= w.end) break;
    if (t > 0 && index[t * p.seq_t] != index[(t - 1) * p.seq_t]) marks |= 1u << k;
    if (index[t * p.seq_t] < 0) marks |= 1u << (16 + k);
  }
  return marks;
}

/* ---- states ---- */

/* One step of join_up or join_down; WHERE: the predicate of lanes with a neighbour. */
#define KR_LANES_JOIN(WAY, WHERE, ENDS)                                                                       \
  asm volatile("{ .reg .pred p, q; .reg .f32 s, t; shfl.sync." WAY ".b32 s|p, %0, %2, %3, 0xffffffff;\n"      \
               "shfl.sync." WAY ".b32 t, %1, %2, %3, 0xffffffff;\n" WHERE " fma.rn.ftz.f32 %0, %1, s, %0;\n" \
               "@p mul.rn.ftz.f32 %1, %1, t; }"                                                               \
               : "+f"(x), "+f"(decay)                                                                         \
               : "n"(d), "n"(ENDS))

/* Inclusive scan over a channel's lanes: on entry x is the state after the lane's run from its own inputs (lane 0: from
 * the true first state) and decay the run's total decay; on return x is the true state after the run. RESETS: a decay
 * that is NaN says that the run forgets what was before it, which may be NaN, too; NaN stays NaN when it is multiplied,
 * so runs joined with such a one forget as well. */
KR_DEV void join_up(const int TT, const int RESETS, int lane, float &x, float &decay) {
#pragma unroll
  for (int d = 1; d < TT; d <<= 1) {
#ifdef KR_EMULATE
    const float before = kr_shuffle_up(x, d, TT), before_decay = kr_shuffle_up(decay, d, TT);
    if (lane >= d && !(RESETS && decay != decay)) x = kr_fma(decay, before, x);
    if (lane >= d) decay *= before_decay;
#else
    (void)lane;
    if (RESETS) KR_LANES_JOIN("up", "setp.num.and.f32 q, %1, %1, p; @q", (32 - TT) << 8);
    else KR_LANES_JOIN("up", "@p", (32 - TT) << 8);
#endif
  }
}

/* The same from the last lane. */
KR_DEV void join_down(const int TT, const int RESETS, int lane, float &x, float &decay) {
#pragma unroll
  for (int d = 1; d < TT; d <<= 1) {
#ifdef KR_EMULATE
    const float after = kr_shuffle_down(x, d, TT), after_decay = kr_shuffle_down(decay, d, TT);
    if (lane + d < TT && !(RESETS && decay != decay)) x = kr_fma(decay, after, x);
    if (lane + d < TT) decay *= after_decay;
#else
    (void)lane;
    if (RESETS) KR_LANES_JOIN("down", "setp.num.and.f32 q, %1, %1, p; @q", (32 - TT) << 8 | 31);
    else KR_LANES_JOIN("down", "@p", (32 - TT) << 8 | 31);
#endif
  }
}

/* States of the thread's channel between shared memory, n * channels + slot, and a tensor at the block's first channel;
 * the channel's lanes share the work; out of range is 0. */
KR_DEV void fetch_states(const kr_scan_params &p, const lanes_place &w, const int TT, const float *from, int64_t by_d,
                         int64_t by_n, float factor, float *to) {
  for (int n = w.lane; n < p.N; n += TT)
    to[n * (THREADS / TT) + w.slot] = from && w.slot < w.n_channels ? from[w.slot * by_d + n * by_n] * factor : 0.0f;
}

KR_DEV void keep_states(const kr_scan_params &p, const lanes_place &w, const int TT, const float *from, float *to,
                        int64_t by_d, int64_t by_n) {
  if (w.slot >= w.n_channels) return;
  for (int n = w.lane; n < p.N; n += TT) to[w.slot * by_d + n * by_n] = from[n * (THREADS / TT) + w.slot];
}

/* The block's first channel in slab i of a (slab, D, N_padded) array. */
KR_DEV float *state_slab(const kr_scan_params &p, const lanes_place &w, float *data, int64_t i) {
  return data + (i * p.D + w.d0) * p.N_padded;
}

KR_DEV float sum_of_lanes(const int TT, float v) {
#pragma unroll
  for (int i = 1; i < TT; i <<= 1) v += kr_shuffle_xor(v, i);
  return v;
}

/* Whether any lane of the warp says so; every tier's. */
KR_DEV int any_lane_says(int yes) {
#ifdef KR_EMULATE
  return kr_any_lane(yes);
#else
  return __nvvm_vote_any_sync(0xffffffffu, yes != 0);
#endif
}

/* How the state is forgotten where a sequence begins: nowhere does one; by leaving out what was before; by a decay of
 * 0, which is quicker, but keeps NaN: until the end of the lane's run, so that `after` of join_state shows it. */
enum { NO_RESETS, CUT, ZEROED };

/* CUT if a sequence begins in the warp's part of the tile. */
KR_DEV int tile_resets(const int PACKED, uint32_t marks) { return PACKED && any_lane_says(marks & 0xffff); }

/* The state after step k. */
KR_DEV float step_state(const int RESETS, uint32_t marks, int k, float a, float x, float b) {
  const float after = kr_fma(a, x, b);
  return RESETS == CUT && marks >> k & 1 ? b : after;
}

/* One state of a run: decays and inputs of its steps, the states after and before it. carry goes from the state before
 * the tile to the state after it, after to the state after the lane's run. */
KR_DEV float join_state(const lanes_place &w, const int TT, const int RESETS, const float (&B)[RUN], float A,
                        float *carry, uint32_t marks, float sum_dt, const float (&dt)[RUN], const float (&du)[RUN],
                        float (&a)[RUN], float (&b)[RUN], float &after) {
  const float first = *carry;
  float decay = kr_exp2(A * sum_dt), x = kr_select(w.lane == 0, first, 0.0f);
#pragma unroll
  for (int k = 0; k < RUN; k++) {
    a[k] = kr_exp2(dt[k] * A);
    if (RESETS == ZEROED && marks >> k & 1) a[k] = 0.0f;
    b[k] = du[k] * B[k];
    x = step_state(RESETS, marks, k, a[k], x, b[k]);
  }
  if (RESETS && marks & 0xffff) decay = RESETS == CUT ? kr_bits_to_float(KR_LANES_FORGET) : 0.0f;
  join_up(TT, RESETS == CUT, w.lane, x, decay);
  after = x;
  const float before = kr_shuffle_up(x, 1, TT);
  kr_sync_warp(); /* all lanes have read it */
  if (w.lane == TT - 1) *carry = x;
  return kr_select(w.lane == 0, first, before);
}

/* States only, over a chunk from zero or, if it is the only one, from the initial state. KEEP: stores the state before
 * every tile in p.kept_state and the sum of dt since the chunk's start in p.kept_dt. Chunks store their last state and
 * sum of dt. */
KR_DEV void sweep_lanes(const kr_scan_params &p, const int TT, const int DIRECT, const int KEEP, const int PACKED) {
  KR_DYNAMIC_SHARED(shared);
  const lanes_place w = place_lanes(p, TT);
  const int SLOTS = THREADS / TT;
  float *s_A = (float *)shared, *s_carry = s_A + p.N * SLOTS, *s_bc = s_carry + p.N * SLOTS,
        *turn = s_bc + p.slab * row_floats(TT) + w.thread / 32 * 32 * TURN;
  const int64_t d = w.d0 + w.slot;
  const int exists = w.slot < w.n_channels;
  const float bias = p.bias && exists ? p.bias[d * p.bias_stride] : 0.0f;
  float sum_chunk = 0;
  fetch_states(p, w, TT, p.A + w.d0 * p.A_d, p.A_d, p.A_n, KR_LOG2E, s_A);
  fetch_states(p, w, TT,
               p.n_chunks == 1 && p.initial.data ? p.initial.data + w.b * p.initial.b + w.d0 * p.initial.d : 0,
               p.initial.d, p.initial.n, 1.0f, s_carry);
  for (int64_t t0 = w.begin; t0 < w.end; t0 += TT * RUN) {
    float dt[RUN], du[RUN], sum_dt = 0;
    run_bits u_bits, delta_bits;
    load_run(p, w, p.u, TT, DIRECT, t0, u_bits);
    load_run(p, w, p.delta, TT, DIRECT, t0, delta_bits);
    expect_run(w, p.u, t0 + TT * RUN);
    expect_run(w, p.delta, t0 + TT * RUN);
    const uint32_t marks = PACKED ? run_marks(p, w, t0) : 0;
    const int resets = tile_resets(PACKED, marks);
    if (KEEP) {
      const int64_t kept = w.b * p.n_kept + t0 / (TT * RUN);
      kr_sync_warp();
      keep_states(p, w, TT, s_carry, state_slab(p, w, p.kept_state, kept), p.N_padded, 1);
      const float sum = sum_of_lanes(TT, sum_chunk);
      if (p.n_chunks > 1 && w.lane == 0 && exists) p.kept_dt[kept * p.D + d] = sum;
    }
    unpack_run(p, w, p.u, DIRECT, u_bits, turn, du);
    unpack_run(p, w, p.delta, DIRECT, delta_bits, turn, dt);
    step_sizes(p, w, bias, t0, dt);
#pragma unroll
    for (int k = 0; k < RUN; k++) du[k] *= dt[k], sum_dt += dt[k];
    sum_chunk += sum_dt;
    for (int n0 = 0; n0 < p.N; n0 += p.slab) {
      const int n_states = p.N - n0 < p.slab ? p.N - n0 : p.slab;
      kr_sync();
      stage_states(p, w, p.B_mat, TT, DIRECT, n0, n_states, t0, s_bc);
      kr_sync();
      const float *row = s_bc;
#pragma unroll 1
      for (int n = n0; n < n0 + n_states; n++, row += row_floats(TT)) {
        float a[RUN], b[RUN], B[RUN], after, *const carry = s_carry + n * SLOTS + w.slot;
        read_run(row, TT, w.lane, B);
        if (resets)
          join_state(w, TT, CUT, B, s_A[n * SLOTS + w.slot], carry, marks, sum_dt, dt, du, a, b, after);
        else
          join_state(w, TT, NO_RESETS, B, s_A[n * SLOTS + w.slot], carry, 0, sum_dt, dt, du, a, b, after);
      }
    }
  }
  kr_sync_warp();
  if (p.n_chunks == 1) return;
  const int64_t slab = w.b * p.n_chunks + w.chunk;
  sum_chunk = sum_of_lanes(TT, sum_chunk);
  if (w.lane == 0 && exists) p.chunk_dt[slab * p.D + d] = sum_chunk;
  keep_states(p, w, TT, s_carry, state_slab(p, w, p.chunk_state, slab), p.N_padded, 1);
}

#endif

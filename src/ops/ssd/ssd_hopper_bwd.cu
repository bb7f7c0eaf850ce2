/* ssd_hopper_bwd.cu: the SSD's gradient on warpgroups (sm_90a), chunk by chunk, given states S before and their
 * gradients M after each chunk (kr_ssd_hopper_states). Compiled for float16 and bfloat16 storage (KR_DTYPE) and up to
 * 64 or 128 states (KR_N). Notation as in ssd_bwd_chunks.cu. A block takes a chunk and several heads of a group in
 * turn, prefetched two ahead by one producer thread; a head's dy x^T runs while the previous head is being processed:
 *   the first warpgroup (receiving tokens i): W += (dy x^T) o 2^(a_i - a_j) d_j   dC += (2^a dy) S, finally dC += W B
 *     inter-chunk: dy o 2^a (C S^T); pairs: row sums of W o C B^T
 *   the second (source tokens j): dx = d (P^T dy + into B M^T) + D dy    dB += (into d x) M, finally dB += W^T C
 *     P^T = (B C^T) o 2^(a_i - a_j) in registers; to later chunks, and in total: x o those; pairs: d P^T o x dy^T
 *   three warps beside the producer: <S, M>, and sums of dy x for dD of each channel
 * kr_ssd_hopper_inner_packed   sequences, any D
 * kr_ssd_hopper_inner_plain    no sequences, one D per head or none, or one of each token, whose gradients are the
 *                              diagonal of dy x^T: in bfloat16 P^T includes step sizes, and D on its diagonal
 * kr_ssd_hopper_inner_channels no sequences, D of each channel
 * With one D per head, dD is the trace of dy x^T. */
#include "ssd_bwd_sums.cuh"
#include "ssd_hopper_tiles.cuh"

#include "ssd_hopper_bwd_params.h"

enum {
  THREADS = KR_SSD_HOPPER_BWD_THREADS,
  STAGES = KR_SSD_HOPPER_BWD_STAGES,
  STAGE = (2 + 2 * BLOCKS) * TILE, /* x, dy, S, M */
  B_AT = 0,
  C_AT = B_AT + BLOCKS * TILE,
  STAGES_AT = C_AT + BLOCKS * TILE,
  DX_AT = STAGES_AT + STAGES * STAGE,
  CB_AT = DX_AT + TILE,
  W_AT = CB_AT, /* at the end */
  STEPS_AT = CB_AT + TILE * 3 / 2,
  BOTH_FULL = STEPS_AT + STAGES * KR_SSD_STEPS_BYTES,
  FULL = BOTH_FULL + 8,
  EMPTY = FULL + 8 * STAGES,
  SIDE_SUMS = EMPTY + 8 * STAGES,
  D_AT = SIDE_SUMS + 16,
  ALL_BARRIER = 3,
  PRODUCER_REGS = 40,
  CONSUMER_REGS = 232 /* registers per thread */
};
static_assert(1024 + D_AT + 2 * PB * 4 <= KR_SSD_HOPPER_BWD_SHARED(N) && KR_SSD_HOPPER_BWD_SHARED(N) <= 227 * 1024,
              "all have a place");
static_assert(enough_registers(THREADS, PRODUCER_REGS, CONSUMER_REGS), "else who takes some waits for ever");

/* Kinds of call: sequences, any D; none, and no D or one per head; none, and D per channel. */
typedef enum call_kind { PACKED, PLAIN, CHANNELS } call_kind;

typedef struct place {
  int b, g, chunk, split, first, n; /* first head; channel blocks of heads */
} place;

KR_DEV place here(const kr_ssd_bwd_params &p) {
  place at;
  at.b = kr_block_z(), at.g = kr_block_y() / p.n_splits, at.chunk = kr_block_x(),
  at.split = kr_block_y() - at.g * p.n_splits;
  const int per_split = (p.f.heads + p.n_splits - 1) / p.n_splits, from = at.split * per_split, left = p.f.heads - from;
  at.first = at.g * p.f.heads + from, at.n = (left < per_split ? left : per_split) * p.f.blocks_per_head;
  if (at.n < 0) at.n = 0;
  return at;
}

/* The i-th slot of a block. */
typedef struct slot {
  int h, block, p0;
} slot;
KR_DEV slot slot_at(const kr_ssd_params &f, const place &at, int i) {
  const int head = f.blocks_per_head == 1 ? i : i / f.blocks_per_head, block = i - head * f.blocks_per_head;
  return slot{at.first + head, block, block * PB};
}

/* ---- helper warps ------------------------------------------------------------------------------------------------ */

KR_DEV void copy_slots(const kr_ssd_bwd_params &p, const place &at, uint64_t maps, uint32_t base) {
  const kr_ssd_params &f = p.f;
  const uint64_t map_x = maps, map_dy = maps + sizeof(kr_ssd_map), map_B = maps + 2 * sizeof(kr_ssd_map),
                 map_C = maps + 3 * sizeof(kr_ssd_map);
  const int t0 = at.chunk * Q;
  kr_barrier_expect(base + BOTH_FULL, 2 * BLOCKS * TILE);
#pragma unroll
  for (int n = 0; n < BLOCKS; n++) {
    kr_load_box(base + B_AT + n * TILE, map_B, base + BOTH_FULL, 64 * n, t0, at.g, at.b);
    kr_load_box(base + C_AT + n * TILE, map_C, base + BOTH_FULL, 64 * n, t0, at.g, at.b);
  }
  for (int i = 0; i < at.n; i++) {
    const int stage = i % STAGES;
    const slot s = slot_at(f, at, i);
    const uint32_t to = base + STAGES_AT + stage * STAGE, full = base + FULL + 8 * stage;
    const int64_t tile = kept_at(f, at.b, s.h, s.block, at.chunk, p.n_chunks);
    kr_barrier_await(base + EMPTY + 8 * stage, parity_of(i, STAGES) ^ 1);
    kr_barrier_expect(full, STAGE + KR_SSD_STEPS_BYTES);
    kr_load_box(to, map_x, full, s.p0, t0, s.h, at.b);
    kr_load_box(to + TILE, map_dy, full, s.p0, t0, s.h, at.b);
    kr_load_bytes(to + 2 * TILE, (const char *)p.S + tile, BLOCKS * TILE, full);
    kr_load_bytes(to + (2 + BLOCKS) * TILE, (const char *)p.M + tile, BLOCKS * TILE, full);
    kr_load_bytes(base + STEPS_AT + stage * KR_SSD_STEPS_BYTES, steps_at(f, at.b, s.h, at.chunk), KR_SSD_STEPS_BYTES,
                  full);
  }
}

/* Sums of dy x over the chunk for each channel: two per lane. */
template <int KIND>
KR_DEV void sum_dD(const kr_ssd_bwd_params &p, const place &at, const slot &s, const unsigned char *x,
                   const chunk_steps &steps) {
  const int lane = kr_thread() & 31;
  float low = 0, high = 0;
#pragma unroll 8
  for (int row = 0; row < Q; row++) {
    const int where = kr_swizzle<128>(row, lane >> 2) + 4 * (lane & 3);
    const uint32_t two = *(const uint32_t *)(x + where), dy = *(const uint32_t *)(x + TILE + where);
    const int counts = KIND != PACKED || steps.segment[row] >= 0;
    low = counts ? kr_fma(kr_unpack(two, 0, KR_DTYPE), kr_unpack(dy, 0, KR_DTYPE), low) : low,
    high = counts ? kr_fma(kr_unpack(two, 1, KR_DTYPE), kr_unpack(dy, 1, KR_DTYPE), high) : high;
  }
  float *const to = p.parts + (((int64_t)at.b * p.n_chunks + at.chunk) * p.f.H + s.h) * (p.f.P + 2) + s.p0 + 2 * lane;
  if (s.p0 + 2 * lane < p.f.P) to[0] = low;
  if (s.p0 + 2 * lane + 1 < p.f.P) to[1] = high;
}

/* <S, M> over every PARTS-th 16-byte piece of their tiles. */
template <int PARTS>
KR_DEV float pass_through(const unsigned char *S, int part) {
  enum { PIECES = BLOCKS * TILE / 512 };
  const unsigned char *const from = S + 16 * (kr_thread() & 31);
  float v = 0;
#pragma unroll 4
  for (int n = 0; n < (PIECES + PARTS - 1) / PARTS; n++) {
    const int i = part + n * PARTS;
    if (PIECES % PARTS && i >= PIECES) continue;
    const kr_raw16 s = *(const kr_raw16 *)(from + 512 * i), m = *(const kr_raw16 *)(from + BLOCKS * TILE + 512 * i);
#pragma unroll
    for (int k = 0; k < 4; k++)
      v = kr_fma(kr_unpack(s.w[k], 0, KR_DTYPE), kr_unpack(m.w[k], 0, KR_DTYPE),
                 kr_fma(kr_unpack(s.w[k], 1, KR_DTYPE), kr_unpack(m.w[k], 1, KR_DTYPE), v));
  }
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) v += kr_shuffle_xor(v, d);
  return v;
}

/* A helper warp's sums, slot by slot: dD by the first of three, unless the other warpgroup computes it; otherwise all
 * take a part of <S, M>, reduced in shared memory. */
template <int KIND>
KR_DEV void sum_beside(const kr_ssd_bwd_params &p, const place &at, int which, unsigned char *shared, uint32_t base) {
  float *const others = (float *)(shared + SIDE_SUMS);
  const int has_dD = KIND != PLAIN && p.dD.data && p.dD.n && p.part == 0, first = has_dD ? 1 : 0;
  for (int i = 0; i < at.n; i++) {
    const int stage = i % STAGES;
    const slot s = slot_at(p.f, at, i);
    const unsigned char *const x = shared + STAGES_AT + stage * STAGE;
    kr_barrier_await(base + FULL + 8 * stage, parity_of(i, STAGES));
    const float sum = !has_dD ? pass_through<3>(x + 2 * TILE, which)
                      : which ? pass_through<2>(x + 2 * TILE, which - 1)
                              : 0.0f;
    if (which < first)
      sum_dD<KIND>(p, at, s, x, *(const chunk_steps *)(shared + STEPS_AT + stage * KR_SSD_STEPS_BYTES));
    kr_sync_warp();
    if ((kr_thread() & 31) == 0) kr_barrier_arrive(base + EMPTY + 8 * stage);
    if (which < first) continue;
    if (which > first && (kr_thread() & 31) == 0) others[2 * (i & 1) + which - 1] = sum;
    if (has_dD) kr_sync_some<4, 64>();
    else kr_sync_some<4, 96>();
    if (which == first && (kr_thread() & 31) == 0) {
      float &to = sums_at(p, at.b, s.h, at.chunk)->through;
      to = sum + (has_dD ? 0.0f : others[2 * (i & 1)]) + others[2 * (i & 1) + 1] + (s.block || p.part ? to : 0.0f);
    }
  }
}

/* ---- the two warpgroups ------------------------------------------------------------------------------------------ */

/* Sum over the four lanes of a row. */
KR_DEV float add_row(float v) {
  v += kr_shuffle_xor(v, 1);
  return v + kr_shuffle_xor(v, 2);
}

KR_DEV void clear_all(float *d, int n) {
#pragma unroll
  for (int i = 0; i < n; i++) d[i] = 0;
}

/* Loads rows of a tile as an operand, unchanged. */
KR_DEV void take_factor(uint32_t (&w)[16], const unsigned char *tile, const lanes &me) {
#pragma unroll
  for (int k = 0; k < 4; k++) {
    uint32_t a[4];
    take_matrices(a, tile, me, 2 * k);
#pragma unroll
    for (int i = 0; i < 4; i++) w[4 * k + i] = a[i];
  }
}
KR_DEV void scale_factor(uint32_t (&w)[16], float low, float high) {
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const float by = i & 1 ? high : low;
    w[i] = pack(kr_unpack(w[i], 0, KR_DTYPE) * by, kr_unpack(w[i], 1, KR_DTYPE) * by);
  }
}

/* Row sums of a product, in accumulators, times an operand. */
KR_DEV void row_sums(const float (&d)[32], const uint32_t (&w)[16], float (&sums)[2]) {
  sums[0] = sums[1] = 0;
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int e = 0; e < 2; e++)
        sums[i & 1] =
            kr_fma(d[8 * k + 4 * (i >> 1) + 2 * (i & 1) + e], kr_unpack(w[4 * k + i], e, KR_DTYPE), sums[i & 1]);
}

/* Zeroes those of 32 columns that belong to another sequence. */
template <int HALF>
KR_DEV void drop_others(const lanes &me, const chunk_steps &s, float (&v)[32]) {
  const float own[2] = {s.segment[me.row], s.segment[me.row + 8]};
#pragma unroll
  for (int i = 0; i < 16; i++)
    v[16 * HALF + i] = s.segment[32 * HALF + 8 * (i >> 2) + 2 * me.q + (i & 1)] == own[i >> 1 & 1] ? v[16 * HALF + i]
                                                                                                   : 0.0f;
}

/* First warpgroup: 32 columns of W and of what rows take from pairs. xy becomes W's increment; its diagonal is added to
 * own. MASKED: the columns include the warp's own tokens, or later ones. */
template <int KIND, int HALF, int MASKED>
KR_DEV void add_half(const lanes &me, const chunk_steps &s, float (&xy)[32], const kr_float4 *CB, float (&W)[32],
                     float (&taken)[2], float (&own)[2], int last_rank) {
  const float a[2] = {s.a[me.row], s.a[me.row + 8]};
  const int diagonal = me.row - 2 * me.q - 32 * HALF, last = (me.row | last_rank) - 2 * me.q - 32 * HALF;
#pragma unroll
  for (int i = 0; MASKED && i < 16; i++)
    if ((i >> 2 & 1) == (i >> 1 & 1))
      own[i >> 1 & 1] += 8 * (i >> 2) + (i & 1) == diagonal + 8 * (i >> 1 & 1) &&
                     (KIND != PACKED || s.segment[me.row + 8 * (i >> 1 & 1)] >= 0)
                 ? xy[16 * HALF + i]
                 : 0.0f;
  kr_float2 from[4];
#pragma unroll
  for (int j = 0; j < 4; j++) from[j] = *(const kr_float2 *)&s.from[32 * HALF + 8 * j + 2 * me.q];
#pragma unroll
  for (int i = 0; i < 16; i++) {
    float &w = xy[16 * HALF + i];
    w *= kr_exp2(a[i >> 1 & 1] - from[i >> 2].v[i & 1]);
    if (MASKED) w = 8 * (i >> 2) + (i & 1) <= last + 8 * (i >> 1 & 1) ? w : 0.0f;
  }
  if (KIND == PACKED) drop_others<HALF>(me, s, xy);
  kr_float4 pairs[4];
#pragma unroll
  for (int j = 0; j < 4; j++) pairs[j] = CB[HALF ? 448 + 64 * j : 128 * j];
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const int at = 16 * HALF + i;
    W[at] += xy[at];
    taken[i >> 1 & 1] = kr_fma(xy[at], pairs[i >> 2].v[i & 3], taken[i >> 1 & 1]);
  }
}
template <int KIND>
KR_DEV void add_pairs(const lanes &me, const chunk_steps &s, float (&xy)[32], const kr_float4 *CB, float (&W)[32],
                      float (&taken)[2], float (&own)[2], int last_rank) {
  taken[0] = taken[1] = own[0] = own[1] = 0;
  if (me.warp < 2) {
    add_half<KIND, 0, 1>(me, s, xy, CB, W, taken, own, last_rank); /* the other half is causally masked */
  } else {
    add_half<KIND, 0, 0>(me, s, xy, CB, W, taken, own, last_rank);
    add_half<KIND, 1, 1>(me, s, xy, CB, W, taken, own, last_rank);
  }
}

/* Whether P^T includes step sizes and D on its diagonal: in bfloat16, whose range allows both. */
template <int KIND>
KR_DEV constexpr int has_sizes() { return KIND == PLAIN && KR_DTYPE == 2; }
/* Whether sums of n values as these stay in float16's range, in any order. */
KR_DEV int sums_stay_in_range(const float (&e)[8], int n) {
  const float most = 65504.0f / (float)n;
  int all = 1;
#pragma unroll
  for (int k = 0; k < 8; k++) all &= e[k] >= -most && e[k] <= most;
  return all;
}
/* a minus log2 of the step size (at least 2^-100 here), since what tokens take is divided by it. */
KR_DEV float from_of(const chunk_steps &s, int row) {
  const float most = s.a[row] + 100.0f, from = s.from[row];
  return from < most ? from : most;
}

/* Second warpgroup: P^T as an operand, what rows give to pairs, and to themselves and the ranks before them; with
 * sizes, all of them times the step size. */
template <int KIND, int HALF, int MASKED>
KR_DEV void weigh_half(const lanes &me, const chunk_steps &s, const float (&xy)[32], const float (&BC)[32],
                       uint32_t (&w)[16], float (&given)[2], float (&own)[2], const float (&D)[2], int last_rank) {
  const int sized = has_sizes<KIND>();
  const float a[2] = {sized ? from_of(s, me.row) : s.a[me.row], sized ? from_of(s, me.row + 8) : s.a[me.row + 8]};
  const int diagonal = me.row - 2 * me.q - 32 * HALF, first = (me.row & ~last_rank) - 2 * me.q - 32 * HALF;
  float v[32];
  kr_float2 to[4];
#pragma unroll
  for (int j = 0; j < 4; j++) to[j] = *(const kr_float2 *)&s.a[32 * HALF + 8 * j + 2 * me.q];
#pragma unroll
  for (int i = 0; i < 16; i++) {
    float &p = v[16 * HALF + i];
    p = BC[16 * HALF + i] * kr_exp2(to[i >> 2].v[i & 1] - a[i >> 1 & 1]);
    if (MASKED) p = 8 * (i >> 2) + (i & 1) >= first + 8 * (i >> 1 & 1) ? p : 0.0f;
  }
  if (KIND == PACKED) drop_others<HALF>(me, s, v);
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const int at = 16 * HALF + i, r = i >> 1 & 1, crosses = MASKED && (i >> 2 & 1) == r;
    const int is_own = 8 * (i >> 2) + (i & 1) <= diagonal + 8 * r && 8 * (i >> 2) + (i & 1) >= first + 8 * r;
    if (crosses) own[r] = is_own ? kr_fma(v[at], xy[at], own[r]) : own[r];
    given[r] = kr_fma(crosses && is_own ? 0.0f : v[at], xy[at], given[r]);
  }
#pragma unroll
  for (int i = 0; i < 16; i++)
    if (sized && MASKED && (i >> 2 & 1) == (i >> 1 & 1))
      v[16 * HALF + i] += 8 * (i >> 2) + (i & 1) == diagonal + 8 * (i >> 1 & 1) ? D[i >> 1 & 1] : 0.0f;
#pragma unroll
  for (int i = 0; i < 8; i++) w[8 * HALF + i] = pack(v[16 * HALF + 2 * i], v[16 * HALF + 2 * i + 1]);
}
template <int KIND>
KR_DEV void weigh_pairs(const lanes &me, const chunk_steps &s, const float (&xy)[32], const float (&BC)[32],
                        uint32_t (&w)[16], float (&given)[2], float (&own)[2], const float (&D)[2],
                        int last_rank) {
  given[0] = given[1] = own[0] = own[1] = 0;
  if (me.warp < 2) {
    weigh_half<KIND, 0, 1>(me, s, xy, BC, w, given, own, D, last_rank);
    weigh_half<KIND, 1, 0>(me, s, xy, BC, w, given, own, D, last_rank);
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) w[i] = 0; /* causally masked */
    weigh_half<KIND, 1, 1>(me, s, xy, BC, w, given, own, D, last_rank);
  }
}

/* Stores `columns` columns of a warp's tile rows to `to`, one token per row. */
KR_DEV void store_rows(const unsigned char *tile, const lanes &me, const kr_ssd_tensor &v, uint16_t *to, int n_rows,
                       int columns) {
  const int chunk = me.lane & 7, left = columns - 8 * chunk;
  to += (16 * me.warp + (me.lane >> 3)) * v.t + 8 * chunk;
  if (n_rows == Q && columns >= 64) {
    kr_raw16 eight[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      eight[i] = read_shared(tile + kr_swizzle<128>(16 * me.warp + 4 * i + (me.lane >> 3), chunk));
#pragma unroll
    for (int i = 0; i < 4; i++) write_global(to + 4 * i * v.t, eight[i]);
    return;
  }
#pragma unroll 1
  for (int i = 0; i < 4; i++, to += 4 * v.t) {
    const int row = 16 * me.warp + 4 * i + (me.lane >> 3);
    kr_raw16 eight = read_shared(tile + kr_swizzle<128>(row, chunk));
    if (row >= n_rows || left <= 0) continue;
    if (left >= 8) {
      write_global(to, eight);
      continue;
    }
#pragma unroll
    for (int n = 0; n < 7; n++)
      if (n < left) to[n] = (uint16_t)(eight.w[n >> 1] >> 16 * (n & 1));
  }
}

/* dB or dC, or a split's part of it. */
KR_DEV void store_matrix(const kr_ssd_bwd_params &p, const place &at, const lanes &me, const kr_ssd_tensor &whole,
                         const kr_ssd_tensor &part, unsigned char *tile, const float (&d)[N / 2]) {
  const int t0 = at.chunk * Q, n_rows = p.f.L - t0 < Q ? (int)(p.f.L - t0) : (int)Q;
  if (p.n_splits > 1) {
    float *const to = (float *)part.data + ((int64_t)at.split * p.f.B + at.b) * part.b + (t0 + me.row) * part.t +
                      at.g * part.h + 2 * me.q;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      const int n = 8 * (i >> 2) + (i & 1), r = 8 * (i >> 1 & 1);
      if (me.row + r < n_rows && n + 2 * me.q < p.f.N) to[r * part.t + n] = d[i];
    }
    return;
  }
  if (!whole.data) return;
#pragma unroll
  for (int k = 0; k < BLOCKS; k++) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const float *const e = d + 32 * k + 4 * j;
      put_matrices(tile, me, j, pack(e[0], e[1]), pack(e[2], e[3]), pack(e[4], e[5]), pack(e[6], e[7]));
    }
    kr_sync_warp();
    store_rows(tile, me, whole,
               (uint16_t *)whole.data + at.b * whole.b + (int64_t)t0 * whole.t + at.g * whole.h + 64 * k, n_rows,
               p.f.N - 64 * k);
    kr_sync_warp();
  }
}

KR_DEV void pack_all(const float (&d)[32], uint32_t (&w)[16]) {
#pragma unroll
  for (int i = 0; i < 16; i++) w[i] = pack(d[2 * i], d[2 * i + 1]);
}

/* Stores W to a tile, rows i. */
KR_DEV void put_factor(unsigned char *tile, const lanes &me, const uint32_t (&w)[16]) {
#pragma unroll
  for (int k = 0; k < 4; k++) put_matrices(tile, me, 2 * k, w[4 * k], w[4 * k + 1], w[4 * k + 2], w[4 * k + 3]);
}

/* Starts d = A F^T over a tile of 64 columns, asynchronously. */
KR_DEV void start_tile(uint32_t A, uint32_t F, float (&d)[32]) {
  const uint64_t a = kr_k_major(A), f = kr_k_major(F);
  kr_wgmma_begin();
#pragma unroll
  for (int k = 0; k < 4; k++)
    kr_wgmma_step<64, half_type, 0, 0>(d, further(a, k * KR_K_STEP_BYTES), further(f, k * KR_K_STEP_BYTES), k > 0);
  kr_wgmma_commit();
}

/* The sum of a head's dy x, if D is one number: each warp has a quarter of the channels' slots and writes its sum to
 * the first, 0 to the others. */
KR_DEV void leave_trace(const kr_ssd_bwd_params &p, const place &at, const slot &s, const lanes &me, float own) {
  const int n = p.f.P - s.p0 < PB ? (p.f.P - s.p0) / 4 : PB / 4;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) own += kr_shuffle_xor(own, d);
  if (me.lane < n)
    p.parts[(((int64_t)at.b * p.n_chunks + at.chunk) * p.f.H + s.h) * (p.f.P + 2) + s.p0 + n * me.warp + me.lane] =
        me.lane ? 0.0f : own;
}

/* The sums of dy x of tokens, each on one lane of its row. */
KR_DEV void leave_diagonal(const kr_ssd_bwd_params &p, const place &at, const slot &s, const lanes &me,
                           const float (&own)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int64_t t = (int64_t)at.chunk * Q + me.row + 8 * r;
    float *const to = (float *)p.dD.data + at.b * p.dD.b + t * p.dD.t + s.h * p.dD.h;
    const float sum = add_row(own[r]);
    if (me.q == 0 && t < p.f.L) *to = sum + (s.block ? *to : 0.0f);
  }
}

/* Eight columns of C B^T, masked to tokens before those of the rows. */
KR_DEV kr_float4 before_these(const lanes &me, int j, const float (&CB)[32]) {
  kr_float4 v;
#pragma unroll
  for (int i = 0; i < 4; i++)
    v.v[i] = 8 * j + 2 * me.q + (i & 1) < me.row + 8 * (i >> 1) ? CB[4 * j + i] : 0.0f;
  return v;
}

template <int KIND>
KR_DEV void take(const kr_ssd_bwd_params &p, const place &at, const lanes &whole, unsigned char *shared,
                 uint32_t base) {
  float W[32], dC[N / 2], xy[32];
  uint32_t w[16];
  clear_all(W, 32), clear_all(dC, N / 2);
  kr_barrier_await(base + BOTH_FULL, 0);
  start_product(base + C_AT, base + B_AT, xy);
  kr_wgmma_wait<64, 0>(xy);
  kr_float4 *const CB = (kr_float4 *)(shared + CB_AT) + whole.thread;
#pragma unroll
  for (int j = 0; j < 8; j++)
    if (j < 4 || whole.warp >= 2) /* the others have only later tokens there */
      CB[j < 4 ? 128 * j : 192 + 64 * j] = before_these(whole, j, xy);
  kr_barrier_await(base + FULL, 0);
  start_tile(base + STAGES_AT + TILE, base + STAGES_AT, xy);
  kr_wgmma_wait<64, 0>(xy);
#pragma unroll 1
  for (int i = 0; i < at.n; i++) {
    const lanes me = lanes_of(anew(kr_thread()));
    const int stage = i % STAGES, next = i + 1 < at.n ? i + 1 : i;
    const uint32_t x = uniform(base + STAGES_AT + stage * STAGE),
                   next_x = uniform(base + STAGES_AT + next % STAGES * STAGE);
    float d[32], taken[2], before[2], old[4], own[2];
    start_product(base + C_AT, x + 2 * TILE, d);
    const slot s = slot_at(p.f, at, i);
    const unsigned char *const dy = shared + anew(STAGES_AT + stage * STAGE + TILE);
    const chunk_steps &steps = *(const chunk_steps *)(shared + anew(STEPS_AT + stage * KR_SSD_STEPS_BYTES));
    const float low = KIND == PACKED ? state_reaches(steps, me.row) : kr_exp2(steps.a[me.row]),
                high = KIND == PACKED ? state_reaches(steps, me.row + 8) : kr_exp2(steps.a[me.row + 8]);
    add_pairs<KIND>(me, steps, xy, (const kr_float4 *)(shared + anew(CB_AT)) + me.thread, W, taken, own,
                    p.f.last_rank);
    kr_barrier_await(base + FULL + 8 * (next % STAGES), parity_of(next, STAGES));
    start_tile(next_x + TILE, next_x, xy);
    take_factor(w, dy, me);
    token_sums &to = *sums_at(p, at.b, s.h, at.chunk);
    const int adds = me.q == 0 && (s.block || p.part);
#pragma unroll
    for (int r = 0; r < 2; r++)
      old[2 * r] = adds ? to.taken[me.row + 8 * r] : 0.0f, old[2 * r + 1] = adds ? to.of[me.row + 8 * r].v[0] : 0.0f;
    kr_wgmma_wait<64, 1>(d);
    row_sums(d, w, before);
    scale_factor(w, low, high);
    start_sum<N>(x + 2 * TILE, w, dC, 1);
    if (p.dD.data && p.f.has_token_D) leave_diagonal(p, at, s, me, own);
    else if (p.dD.data && !p.dD.n && p.part == 0) leave_trace(p, at, s, me, own[0] + own[1]);
    taken[0] = add_row(taken[0]), taken[1] = add_row(taken[1]), before[0] = low * add_row(before[0]),
    before[1] = high * add_row(before[1]);
    if (me.q == 0) {
#pragma unroll
      for (int r = 0; r < 2; r++)
        to.taken[me.row + 8 * r] = taken[r] + old[2 * r], to.of[me.row + 8 * r].v[0] = before[r] + old[2 * r + 1];
    }
    kr_wgmma_wait<N, 0>(dC);
    kr_wgmma_wait<64, 0>(xy);
    release(base + EMPTY + 8 * stage, me);
  }
  pack_all(W, w);
  sync_group(whole); /* all have read C B^T */
  put_factor(shared + W_AT, whole, w);
  kr_show_to_copies();
  kr_sync_at<256>(ALL_BARRIER);
  start_sum<N>(base + B_AT, w, dC, 1);
  kr_wgmma_wait<N, 0>(dC);
  kr_sync_at<256>(ALL_BARRIER); /* the other warpgroup has read W */
  store_matrix(p, at, whole, p.dC, p.sum_C, shared + W_AT, dC);
}

KR_DEV float D_of(const kr_ssd_bwd_params &p, const slot &s, int channel) {
  return channel < PB && s.p0 + channel < p.f.P
             ? kr_load(p.f.D.data, s.h * p.f.D.h + (int64_t)(s.p0 + channel) * p.f.D.n, p.f.D.dtype)
             : 0.0f;
}

KR_DEV void sync_givers(void) { kr_sync_some<OWN_BARRIER + 1, 128>(); }

template <int KIND>
KR_DEV void give(const kr_ssd_bwd_params &p, const place &at, const lanes &whole, unsigned char *shared, uint32_t base,
                 uint64_t maps) {
  const int t0 = at.chunk * Q, sized = has_sizes<KIND>();
  unsigned char *const own = shared + DX_AT;
  float BC[32], dB[N / 2], xy[32];
  uint32_t w[16];
  clear_all(dB, N / 2);
  kr_barrier_await(base + BOTH_FULL, 0);
  start_product(base + B_AT, base + C_AT, BC);
  if (KIND != PLAIN && p.f.D.data && whole.thread < PB)
    ((float *)(shared + D_AT))[whole.thread] = D_of(p, slot_at(p.f, at, 0), whole.thread);
  kr_wgmma_wait<64, 0>(BC);
  kr_barrier_await(base + FULL, 0);
  start_tile(base + STAGES_AT, base + STAGES_AT + TILE, xy);
  kr_wgmma_wait<64, 0>(xy);
#pragma unroll 1
  for (int i = 0; i < at.n; i++) {
    const lanes me = lanes_of(anew(kr_thread()));
    const int stage = i % STAGES, next = i + 1 < at.n ? i + 1 : i;
    const uint32_t to_x = uniform(base + STAGES_AT + stage * STAGE), M = to_x + (2 + BLOCKS) * TILE,
                   next_x = uniform(base + STAGES_AT + next % STAGES * STAGE);
    float d[32], given[2], after[2], inputs[2], size[2], into[2], old[6], next_D = 0;
    uint32_t inner[16];
    start_product(base + B_AT, M, d);
    const slot s = slot_at(p.f, at, i);
    const unsigned char *const x = shared + anew(STAGES_AT + stage * STAGE);
    const chunk_steps &steps = *(const chunk_steps *)(shared + anew(STEPS_AT + stage * KR_SSD_STEPS_BYTES));
    const float *const D = (const float *)(shared + D_AT) + (i & 1) * PB;
    float own_D[2] = {0, 0};
    if (KIND == PLAIN && p.f.has_token_D)
      own_D[0] = steps.segment[me.row], own_D[1] = steps.segment[me.row + 8];
    else if (KIND == PLAIN && p.f.D.data)
      own_D[0] = own_D[1] = kr_load(p.f.D.data, s.h * p.f.D.h, p.f.D.dtype);
    if (KIND != PLAIN && p.f.D.data) {
      sync_givers();
      if (i + 1 < at.n) next_D = D_of(p, slot_at(p.f, at, i + 1), me.thread);
    }
    take_factor(w, x, me);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = me.row + 8 * r;
      const float from = sized ? from_of(steps, row) : steps.a[row], left = kr_exp2(steps.total - from);
      size[r] = sized ? kr_exp2(from - steps.a[row]) : steps.d[row];
      into[r] = KIND != PACKED || steps.segment[row] == steps.last ? left : 0.0f;
    }
    weigh_pairs<KIND>(me, steps, xy, BC, inner, given, inputs, own_D, p.f.last_rank);
    token_sums &to = *sums_at(p, at.b, s.h, at.chunk);
    const int adds = me.q == 0 && (s.block || p.part);
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int k = 0; k < 3; k++) old[3 * r + k] = adds ? to.of[me.row + 8 * r].v[1 + k] : 0.0f;
    kr_wgmma_wait<64, 0>(d);
#pragma unroll
    for (int k = 0; k < 32; k++) d[k] *= into[k >> 1 & 1];
    row_sums(d, w, after);
    start_sum<64>(to_x + TILE, inner, d, 1);
    scale_factor(w, sized ? into[0] : into[0] * size[0], sized ? into[1] : into[1] * size[1]);
    start_sum<N>(M, w, dB, 1);
    kr_barrier_await(base + FULL + 8 * (next % STAGES), parity_of(next, STAGES));
    start_tile(next_x, next_x + TILE, xy);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float passed = sized ? 1.0f : given_size(steps, me.row + 8 * r);
      inputs[r] = add_row(given[r] + inputs[r] + after[r]) * (sized ? size[r] : 1.0f);
      given[r] = passed * add_row(given[r]), after[r] = passed * add_row(after[r]);
    }
    if (me.q == 0) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float *const v = to.of[me.row + 8 * r].v;
        v[1] = after[r] + old[3 * r], v[2] = inputs[r] + old[3 * r + 1], v[3] = given[r] + old[3 * r + 2];
      }
    }
    if (KIND != PLAIN && p.f.D.data && me.thread < PB) ((float *)(shared + D_AT))[(~i & 1) * PB + me.thread] = next_D;
    const uint32_t there[2] = {KIND == PACKED && steps.segment[me.row] < 0 ? 0 : ~0u,
                               KIND == PACKED && steps.segment[me.row + 8] < 0 ? 0 : ~0u};
    kr_wgmma_wait<64, 2>(d);
    if (p.dx.data) {
      if (me.thread == 0) kr_stores_read<0>();
      sync_givers();
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        float e[8];
#pragma unroll
        for (int k = 0; k < 8; k++) e[k] = sized ? d[4 * j + k] : d[4 * j + k] * size[k >> 1 & 1];
        if (!sized && (KIND == PLAIN || p.f.D.data)) {
          uint32_t dy[4];
          take_matrices(dy, x + TILE, me, j);
#pragma unroll
          for (int k = 0; k < 8; k++)
            e[k] = kr_fma(KIND == PLAIN ? own_D[k >> 1 & 1] : D[8 * (j + (k >> 2)) + 2 * me.q + (k & 1)],
                          kr_unpack(dy[2 * (k >> 2) + (k >> 1 & 1)], k & 1, KR_DTYPE), e[k]);
        }
        if (KR_DTYPE == KRAIT_F16 && p.n_parts > 1 && !sums_stay_in_range(e, p.n_parts))
          report_nonfinite_group(p.f, at.b, s.h);
        uint32_t two[4];
#pragma unroll
        for (int k = 0; k < 4; k++) two[k] = pack(e[2 * k], e[2 * k + 1]) & there[k & 1];
        put_matrices(own, me, j, two[0], two[1], two[2], two[3]);
      }
      kr_show_to_copies();
      sync_givers();
      if (me.thread == 0) {
        if (p.part) kr_add_box<half_type>(maps + 4 * sizeof(kr_ssd_map), base + DX_AT, s.p0, t0, s.h, at.b);
        else kr_store_box(maps + 4 * sizeof(kr_ssd_map), base + DX_AT, s.p0, t0, s.h, at.b);
        kr_commit_stores();
      }
    }
    kr_wgmma_wait<N, 0>(dB);
    kr_wgmma_wait<64, 0>(xy);
    release(base + EMPTY + 8 * stage, me);
  }
  if (whole.thread == 0) kr_stores_read<0>();
  kr_sync_at<256>(ALL_BARRIER);
  kr_wgmma_begin();
#pragma unroll
  for (int k = 0; k < 4; k++)
    kr_wgmma_step<N, half_type, 1, 1>(dB, kr_mn_major(base + W_AT + k * KR_MN_STEP_BYTES, TILE),
                                      kr_mn_major(base + C_AT + k * KR_MN_STEP_BYTES, TILE), 1);
  kr_wgmma_commit();
  kr_wgmma_wait<N, 0>(dB);
  kr_sync_at<256>(ALL_BARRIER);
  store_matrix(p, at, whole, p.dB, p.sum_B, own, dB);
}

template <int KIND>
KR_DEV void run(const kr_ssd_bwd_params &p, uint64_t maps) {
  KR_DYNAMIC_SHARED(all);
  const uint32_t start = kr_shared_at(all), base = (start + 1023) & ~1023u;
  unsigned char *const shared = all + (base - start);
  const place at = here(p);
  kr_launch_dependents();
  if (kr_thread() == 0) {
    kr_barrier_open(base + BOTH_FULL, 1);
    for (int i = 0; i < STAGES; i++)
      kr_barrier_open(base + FULL + 8 * i, 1), kr_barrier_open(base + EMPTY + 8 * i, 4 + 4 + 3);
    kr_barriers_opened();
  }
  kr_griddep_wait();
  kr_sync();
  if (kr_thread() < 128) {
    kr_give_registers<PRODUCER_REGS>();
    if (kr_thread() == 0)
      copy_slots(p, at, maps, base);
    else if (kr_thread() >= 32)
      sum_beside<KIND>(p, at, kr_thread() / 32 - 1, shared, base);
  } else {
    kr_take_registers<CONSUMER_REGS>();
    const lanes me = lanes_of(kr_thread());
    if (me.w == 0)
      take<KIND>(p, at, me, shared, base);
    else
      give<KIND>(p, at, me, shared, base, maps);
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_ssd_hopper_inner_packed(const kr_ssd_hopper_bwd_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_ssd_hopper_inner_packed, maps);
  run<PACKED>(params.q, maps);
}
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_ssd_hopper_inner_plain(const kr_ssd_hopper_bwd_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_ssd_hopper_inner_plain, maps);
  run<PLAIN>(params.q, maps);
}
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_ssd_hopper_inner_channels(const kr_ssd_hopper_bwd_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_ssd_hopper_inner_channels, maps);
  run<CHANNELS>(params.q, maps);
}

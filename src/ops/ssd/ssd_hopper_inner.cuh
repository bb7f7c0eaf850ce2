/* ssd_hopper_inner.cuh: shared by kernels that compute a chunk's gradients on warpgroups (ssd_hopper_bwd.cu,
 * mamba3_inner.cu): barriers, pairs of tokens, their sums, and rows from registers to memory. */
#ifndef KR_SSD_HOPPER_INNER_CUH
#define KR_SSD_HOPPER_INNER_CUH

#include "ssd_bwd_sums.cuh"
#include "ssd_hopper_tiles.cuh"

#include "ssd_hopper_bwd_params.h"

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

typedef struct slot {
  int h, block, p0;
} slot;

/* A block's start: barriers of B and C, and of stages that `warps` warps release; then the kernel before has ended. */
KR_DEV void open_stages(uint32_t both_full, uint32_t full, uint32_t empty, int n_stages, int warps) {
  kr_launch_dependents();
  if (kr_thread() == 0) {
    kr_barrier_open(both_full, 1);
    for (int i = 0; i < n_stages; i++)
      kr_barrier_open(full + 8 * i, 1), kr_barrier_open(empty + 8 * i, warps);
    kr_barriers_opened();
  }
  kr_griddep_wait();
  kr_sync();
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
    v[16 * HALF + i] =
        s.segment[32 * HALF + 8 * (i >> 2) + 2 * me.q + (i & 1)] == own[i >> 1 & 1] ? v[16 * HALF + i] : 0.0f;
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
  values_of_columns<HALF>(s.from, me, from);
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
KR_DEV constexpr int has_sizes() {
  return KIND == PLAIN && KR_DTYPE == 2;
}
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
  values_of_columns<HALF>(s.a, me, to);
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
                        uint32_t (&w)[16], float (&given)[2], float (&own)[2], const float (&D)[2], int last_rank) {
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

/* dB or dC, or float32 sums of it: of float32 rows, or a split's part. */
KR_DEV void store_matrix(const kr_ssd_bwd_params &p, const place &at, const lanes &me, const kr_ssd_tensor &whole,
                         const kr_ssd_tensor &part, unsigned char *tile, const float (&d)[N / 2]) {
  const int t0 = at.chunk * Q, n_rows = p.f.L - t0 < Q ? (int)(p.f.L - t0) : (int)Q;
  if (p.leaves_sums) {
    float *const to = (float *)part.data + ((int64_t)at.split * p.f.B + at.b) * part.b + (t0 + me.row) * part.t +
                      at.g * part.h + 2 * me.q;
    const int in_twos = !((part.b | part.t | part.h | p.f.N) & 1);
#pragma unroll
    for (int i = 0; i < N / 2; i += 2) {
      const int n = 8 * (i >> 2), r = 8 * (i >> 1 & 1), left = p.f.N - n - 2 * me.q;
      if (me.row + r >= n_rows || left <= 0) continue;
      if (in_twos) {
        *(kr_float2 *)(to + r * part.t + n) = kr_float2{{d[i], d[i + 1]}};
        continue;
      }
      to[r * part.t + n] = d[i];
      if (left > 1) to[r * part.t + n + 1] = d[i + 1];
    }
    return;
  }
  if (!whole.data) return;
#pragma unroll
  for (int k = 0; k < BLOCKS; k++) {
    put_product(tile, me, d + 32 * k);
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

/* Starts d += A^T F over two tiles of 64 rows and N columns, asynchronously. */
KR_DEV void start_turned_sum(uint32_t A, uint32_t F, float (&d)[N / 2]) {
  kr_wgmma_begin();
#pragma unroll
  for (int k = 0; k < 4; k++)
    kr_wgmma_step<N, half_type, 1, 1>(d, kr_mn_major(A + k * KR_MN_STEP_BYTES, TILE),
                                      kr_mn_major(F + k * KR_MN_STEP_BYTES, TILE), 1);
  kr_wgmma_commit();
}

/* Sums over rows of what tokens give: to later ones in the chunk and behind it, and both with their own; given and
 * after are replaced. size: of the tokens, by which sums with step sizes (SIZED) have been multiplied. */
template <int SIZED>
KR_DEV void sum_given(const lanes &me, const chunk_steps &s, const float (&size)[2], float (&given)[2],
                      float (&after)[2], float (&inputs)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const float passed = SIZED ? 1.0f : given_size(s, me.row + 8 * r);
    inputs[r] = add_row(given[r] + inputs[r] + after[r]) * (SIZED ? size[r] : 1.0f);
    given[r] = passed * add_row(given[r]), after[r] = passed * add_row(after[r]);
  }
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
  for (int i = 0; i < 4; i++) v.v[i] = 8 * j + 2 * me.q + (i & 1) < me.row + 8 * (i >> 1) ? CB[4 * j + i] : 0.0f;
  return v;
}

KR_DEV void sync_givers(void) { kr_sync_some<OWN_BARRIER + 1, 128>(); }

#endif

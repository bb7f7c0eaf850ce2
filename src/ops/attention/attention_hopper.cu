/* attention_hopper.cu: attention on warpgroups (sm_90a), heads of up to 64, 128 or 256 channels (KR_D). Persistent
 * blocks take tiles of rows in turn: a producer warp copies boxes of q, k and v; two or three consumer warpgroups take
 * 64 rows each. While the tensor cores compute one warpgroup's scores and the output of its previous tile, the other
 * does its exponentials: they alternate (ORDER). Within a warpgroup a tile's exponentials overlap the output product of
 * the previous tile or, at the end of a tile of rows, the next one's first scores. The longest rows come first.
 * Compiled per type (KR_HALF: float16). kr_attention_hopper: every row sees every key; kr_attention_hopper_edged:
 * causal, windows; kr_attention_hopper_begin: resets the tile counter, where blocks take the next free tile. */
#include "attention_fragments.cuh"
#include "attention_hopper.h"
#include "overlap.cuh"
#include "wgmma.cuh"

#if defined KR_LARGE && !defined KR_EMULATE
#define KR_TO_23 KR_TO_9 ", " KR_TEN(1) ", %20, %21, %22, %23"
#define KR_INOUT_48 KR_INOUT8(0), KR_INOUT8(8), KR_INOUT8(16)
KR_WGMMA_SHAPES(48, KR_TO_23)
#endif

#ifdef KR_HALF
typedef kr_f16 element;
enum { DTYPE = KRAIT_F16 };
#else
typedef kr_bf16 element;
enum { DTYPE = KRAIT_BF16 };
#endif
enum {
  D = KR_D,
  GROUPS = KR_HOPPER_GROUPS(D),
  ROWS = KR_HOPPER_ROWS(D),
  STAGES = KR_HOPPER_KV_STAGES,
  BLOCKS = D / 64,
  THREADS = KR_HOPPER_THREADS_OF(D),
  ORDER = 1 /* named barriers: 1 to 3, then one per warpgroup */
};

typedef struct layout {
  uint32_t q, k, v, q_full, q_empty, k_full, k_empty, v_full, v_empty, units;
} layout;

template <int N>
KR_DEV layout lay_out(uint32_t base) {
  layout at;
  at.q = (base + 1023) & ~1023u;
  at.k = at.q + 2 * ROWS * D * 2;
  at.v = at.k + STAGES * N * D * 2;
  at.q_full = at.v + STAGES * N * D * 2;
  at.q_empty = at.q_full + 2 * 8;
  at.k_full = at.q_empty + 2 * 8, at.k_empty = at.k_full + STAGES * 8;
  at.v_full = at.k_empty + STAGES * 8, at.v_empty = at.v_full + STAGES * 8;
  at.units = at.v_empty + STAGES * 8;
  return at;
}

/* A tile of rows of a head, and the tiles of keys it sees: first to end - 1. apart: from a warpgroup's rows to the next
 * one's. */
typedef struct unit {
  sequence s;
  int row, apart, h, kv, b, first, end, has_rows;
} unit;

template <int N, int EDGED>
KR_DEV unit unit_at(const kr_attention_params &p, int index) {
  unit u;
  u.has_rows = 0, u.first = u.end = 0;
  const task at = task_of(p, index);
  const int pairs = EDGED && KR_HOPPER_PAIRS(p, D);
  u.b = at.b, u.h = at.h, u.kv = at.h / p.heads, u.row = at.tile * (pairs ? 64 : ROWS);
  u.apart = pairs ? 64 * (2 * (p.n_q_tiles - at.tile) - 1) : 64;
  u.s = sequence_of(p, u.b);
  u.has_rows = u.row < u.s.rows_q;
  if (!u.has_rows || u.row >= u.s.n_q) return u;
  const int behind = u.row + (GROUPS - 1) * u.apart < u.s.n_q || !pairs, /* the last rows exist */
      last = at_most(u.row + (behind ? (GROUPS - 1) * u.apart : 0) + 64, u.s.n_q) - 1;
  u.end = ((EDGED ? end_key(p, u.s, last) : u.s.n_k) + N - 1) / N;
  u.first = EDGED ? first_key(p, u.s, u.row) / N : 0;
  if (u.end < u.first) u.end = u.first;
  return u;
}

/* Which tile of rows a block takes next: if rows see different numbers of keys, the first free one. */
#ifdef KR_EMULATE
KR_DEV int take_one(int32_t *from) { return (*from)++; }
#else
KR_DEV int take_one(int32_t *from) {
  int taken;
  asm volatile("atom.global.add.s32 %0, [%1], 1;" : "=r"(taken) : "l"(from) : "memory");
  return taken;
}
#endif
KR_DEV int index_after(const kr_attention_params &p, int index) {
  return kr_grid_x() + (p.next_unit ? take_one(p.next_unit) : index);
}

/* Slot of the n-th use of a ring of two, and its phase parity. */
KR_DEV int stage_of(int use) { return use & 1; }
KR_DEV uint32_t parity_of(int use) { return (uint32_t)use >> 1 & 1; }

/* What the consumer warpgroups are told of a unit, in a ring of four: the barrier full q signals it. */
typedef struct told {
  int row, apart, h, first, end, shift, n_k, n_q, rows_q, q_b, q_at,
      spoilt; /* end -1: no more; spoilt: memory after the last key may hold anything */
} told;
enum { TOLD = 4 };
KR_DEV told *told_at(unsigned char *units, int index) { return (told *)units + (index & (TOLD - 1)); }

/* ---- the producer thread ----------------------------------------------------------------------------------------- */

template <int N>
KR_DEV void load_tile(uint32_t to, uint64_t map, uint32_t full, uint32_t empty, int use, const unit &u, int tile) {
  const int stage = stage_of(use);
  kr_barrier_await(empty + stage * 8, parity_of(use) ^ 1);
  kr_barrier_expect(full + stage * 8, N * D * 2);
#pragma unroll
  for (int i = 0; i < BLOCKS; i++)
    kr_load_box(to + stage * N * D * 2 + i * N * 128, map, full + stage * 8, 64 * i, (int)u.s.k_at + tile * N, u.kv,
                u.s.k_b);
}

template <int N, int EDGED>
KR_DEV void copy_tiles(const kr_attention_params &p, const layout &at, uint64_t maps, unsigned char *units) {
  const uint64_t map_q = maps, map_k = maps + sizeof(kr_attention_map), map_v = maps + 2 * sizeof(kr_attention_map);
  int q = 0, k = 0, v = 0;
  unit before;
  before.first = -1;
  for (int index = kr_block_x(); index < p.n_units; index = index_after(p, index)) {
    const unit u = unit_at<N, EDGED>(p, index);
    if (u.end == u.first) continue;
    const uint32_t full = at.q_full + stage_of(q) * 8;
    kr_barrier_await(at.q_empty + stage_of(q) * 8, parity_of(q) ^ 1);
    *told_at(units, q) = told{u.row,   u.apart, u.h,        u.first, u.end,         u.s.shift,
                              u.s.n_k, u.s.n_q, u.s.rows_q, u.s.q_b, (int)u.s.q_at, u.s.k_at + u.s.n_k < p.Lk};
    kr_barrier_expect(full, ROWS * D * 2);
    for (int g = 0; g < (EDGED && KR_HOPPER_PAIRS(p, D) ? GROUPS : 1); g++)
#pragma unroll
      for (int i = 0; i < BLOCKS; i++)
        kr_load_box(at.q + stage_of(q) * ROWS * D * 2 + i * ROWS * 128 + g * 64 * 128, map_q, full, 64 * i,
                    (int)u.s.q_at + u.row + g * u.apart, u.h, u.s.q_b);
    q++;
    load_tile<N>(at.k, map_k, at.k_full, at.k_empty, k++, u, u.end - 1);
    if (before.first >= 0) load_tile<N>(at.v, map_v, at.v_full, at.v_empty, v++, before, before.first);
    for (int n = u.end - 1; n > u.first; n--) {
      load_tile<N>(at.k, map_k, at.k_full, at.k_empty, k++, u, n - 1);
      load_tile<N>(at.v, map_v, at.v_full, at.v_empty, v++, u, n);
    }
    before = u;
  }
  if (before.first >= 0) load_tile<N>(at.v, map_v, at.v_full, at.v_empty, v++, before, before.first);
  kr_barrier_await(at.q_empty + stage_of(q) * 8, parity_of(q) ^ 1);
  told_at(units, q)->end = -1;
  kr_barrier_arrive(at.q_full + stage_of(q) * 8);
}

/* Rows without keys get output 0 and lse infinity; done by a warp beside the producer. */
template <int N, int EDGED>
KR_DEV void clear_rows(const kr_attention_params &p) {
  for (int index = kr_block_x(); index < p.n_units; index += kr_grid_x()) {
    const unit u = unit_at<N, EDGED>(p, index);
    if (!u.has_rows || u.end > u.first) continue;
    for (int r = 0; r < ROWS; r++) {
      const int i = u.row + r / 64 * u.apart + r % 64;
      if (i >= u.s.rows_q) continue;
      uint16_t *const to = (uint16_t *)p.out.data + query_at(p.out, u.s, u.h, i);
      for (int d = (kr_thread() & 31) * 8; d < p.D; d += 32 * 8) *(kr_raw16 *)(to + d) = (kr_raw16){{0, 0, 0, 0}};
      if (p.lse.data && (kr_thread() & 31) == 0) ((float *)p.lse.data)[query_at(p.lse, u.s, u.h, i)] = -MINUS_INFINITY;
    }
  }
}

/* ---- a consumer warpgroup ---------------------------------------------------------------------------------------- */

typedef struct lanes {
  int group, thread, first_row,
      column; /* the warpgroup's rows first_row and first_row + 8; a tile's keys 8 j + column and the next */
} lanes;
KR_DEV int row_of(const told *u, const lanes &me) { return u->row + me.group * (GROUPS == 2 ? u->apart : 64); }

/* The parts of the sequence that masks and outputs need. */
KR_DEV sequence sequence_told(const told *u) {
  sequence s = {u->q_at, 0, u->q_b, 0, u->n_q, u->n_k, u->shift, u->rows_q, 0, nullptr};
  return s;
}

/* Starts s = q k^T. */
template <int N>
KR_DEV void start_scores(const layout &at, const lanes &me, int q, int k, float (&s)[N / 2]) {
  kr_wgmma_begin();
#pragma unroll
  for (int i = 0; i < BLOCKS; i++)
#pragma unroll
    for (int step = 0; step < 4; step++)
      kr_wgmma_step<N, element, 0, 0>(
          s,
          kr_k_major(at.q + stage_of(q) * ROWS * D * 2 + i * ROWS * 128 + me.group * 64 * 128 + step * KR_K_STEP_BYTES),
          kr_k_major(at.k + stage_of(k) * N * D * 2 + i * N * 128 + step * KR_K_STEP_BYTES), i + step > 0);
  kr_wgmma_commit();
}

/* Starts o += w v. */
template <int N>
KR_DEV void start_output(const layout &at, int v, const uint32_t (&w)[N / 4], float (&o)[D / 2]) {
  kr_wgmma_begin();
#pragma unroll
  for (int step = 0; step < N / 16; step++)
    kr_wgmma_step_registers<D, element, 1>(
        o, w[4 * step], w[4 * step + 1], w[4 * step + 2], w[4 * step + 3],
        kr_mn_major(at.v + stage_of(v) * N * D * 2 + step * KR_MN_STEP_BYTES, N * 128), 1);
  kr_wgmma_commit();
}

/* Every row of the warpgroup sees tiles begin to end - 1 of keys. */
typedef struct span {
  int begin, end;
} span;
template <int N, int EDGED>
KR_DEV span seen_by_all(const kr_attention_params &p, const told *u, const lanes &me) {
  const sequence q = sequence_told(u);
  const int row = row_of(u, me);
  return EDGED ? span{(first_key(p, q, row + 63) + N - 1) / N, end_key(p, q, row) / N} : span{0, q.n_k / N};
}

template <int N, int EDGED>
KR_DEV void hide(const kr_attention_params &p, const told *u, const lanes &me, int n, float (&s)[N / 2]) {
  const sequence q = sequence_told(u);
  const int key = n * N;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int i = row_of(u, me) + me.first_row + 8 * r, before = key + me.column,
              first = (EDGED ? first_key(p, q, i) : 0) - before, end = (EDGED ? end_key(p, q, i) : q.n_k) - before;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
      for (int c = 0; c < 2; c++)
        if (8 * j + c < first || 8 * j + c >= end) s[4 * j + 2 * r + c] = MINUS_INFINITY;
  }
}

/* Turns scores into weights; most: a row's maximum product so far, or slightly less; returns whether o must be scaled,
 * by shrink. */
template <int N>
KR_DEV int weigh(float (&s)[N / 2], float scale, float (&most)[2], float (&sum)[2], float (&shrink)[2]) {
  float high[2], part[2][2] = {};
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float a = higher(s[2 * r], s[2 * r + 1]), b = higher(s[4 + 2 * r], s[5 + 2 * r]);
#pragma unroll
    for (int j = 2; j < N / 8; j += 2)
      a = higher(a, higher(s[4 * j + 2 * r], s[4 * j + 2 * r + 1])),
      b = higher(b, higher(s[4 * j + 4 + 2 * r], s[4 * j + 5 + 2 * r]));
    a = higher(a, b);
    a = higher(a, kr_shuffle_xor(a, 1));
    high[r] = higher(a, kr_shuffle_xor(a, 2));
  }
  const int grows = kr_any_lane((high[0] - most[0]) * scale > SLACK || (high[1] - most[1]) * scale > SLACK);
  float offset[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const float now = grows ? higher(most[r], high[r]) : most[r];
    offset[r] = now == MINUS_INFINITY ? 0.0f : now * scale;
    shrink[r] = grows ? kr_exp2(kr_fma(most[r], scale, -offset[r])) : 1.0f;
    most[r] = now, sum[r] *= shrink[r];
  }
#pragma unroll
  for (int j = 0; j < N / 8; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      s[4 * j + i] = kr_exp2(kr_fma(s[4 * j + i], scale, -offset[i / 2]));
      part[i / 2][i & 1] += s[4 * j + i];
    }
#pragma unroll
  for (int r = 0; r < 2; r++) sum[r] += part[r][0] + part[r][1];
  return grows;
}

template <int N>
KR_DEV void pack_weights(const float (&s)[N / 2], uint32_t (&w)[N / 4]) {
#pragma unroll
  for (int i = 0; i < N / 4; i++) w[i] = kr_pack(s[2 * i], s[2 * i + 1], DTYPE);
}

/* Clears values after the sequence's last key: they may be anything, and zero times anything need not be zero. */
template <int N>
KR_DEV void clear_behind(const layout &at, const told *u, const lanes &me, unsigned char *values, int v) {
  const int from = u->n_k - (u->end - 1) * N, rows = N - from;
  if (rows <= 0 || !u->spoilt) return;
  kr_barrier_await(at.v_full + stage_of(v) * 8, parity_of(v));
  values += stage_of(v) * N * D * 2;
  for (int i = me.thread; i < rows * 8 * BLOCKS; i += 128) {
    const int block = i / (rows * 8);
    *(kr_raw16 *)(values + block * N * 128 + from * 128 + (i - block * rows * 8) * 16) = (kr_raw16){{0, 0, 0, 0}};
  }
  kr_show_to_copies();
  kr_sync_at<128>(ORDER + 3 + me.group);
}

/* Rows without keys: output 0 and lse infinity. */
KR_DEV void finish(const kr_attention_params &p, const told *u, const lanes &me, float scale, const float (&most)[2],
                   const float (&sum)[2], const float (&o)[D / 2]) {
  const sequence q = sequence_told(u);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int i = row_of(u, me) + me.first_row + 8 * r;
    const int there = i < q.rows_q;
    const float by = end_sum(p, q, u->h, i, scale, most[r], sum[r], me.column == 0);
    uint16_t *const to = (uint16_t *)p.out.data + query_at(p.out, q, u->h, i);
#pragma unroll
    for (int j = 0; j < D / 8; j += 4) {
      uint32_t w[4];
#pragma unroll
      for (int k = 0; k < 4; k++)
        w[k] = by != 0 ? kr_pack(o[4 * (j + k) + 2 * r] * by, o[4 * (j + k) + 2 * r + 1] * by, DTYPE) : 0;
      const kr_raw16 eight = gather_quad(w[0], w[1], w[2], w[3]);
      const int column = 8 * j + 4 * me.column;
      if (there && column < p.D) *(kr_raw16 *)(to + column) = eight;
    }
  }
}

KR_DEV void take_turn(const lanes &me) { kr_sync_at<256>(ORDER + me.group); }
KR_DEV void give_turn(const lanes &me) { kr_arrive_at<256>(ORDER + (me.group + 1 == GROUPS ? 0 : me.group + 1)); }
KR_DEV void release(uint32_t empty, int use, const lanes &me) {
  if (me.thread == 0) kr_barrier_arrive(empty + stage_of(use) * 8);
}

/* The first of the unit's tiles of keys that none of the warpgroup's rows sees. */
template <int N, int EDGED>
KR_DEV int end_of_own(const kr_attention_params &p, const told *u, const lanes &me) {
  const sequence q = sequence_told(u);
  const int row = row_of(u, me);
  if (!EDGED || !KR_HOPPER_PAIRS(p, D)) return u->end;
  return row < q.n_q ? (end_key(p, q, at_most(row + 64, q.n_q) - 1) + N - 1) / N : 0;
}

/* Leaves key tile k to the other warpgroup, and the value tile before, for which the weights are 0. */
KR_DEV void pass_tile(const layout &at, const lanes &me, int k) {
  kr_barrier_await(at.k_full + stage_of(k) * 8, parity_of(k));
  take_turn(me);
  kr_barrier_await(at.v_full + stage_of(k - 1) * 8, parity_of(k - 1));
  give_turn(me);
  release(at.k_empty, k, me), release(at.v_empty, k - 1, me);
}

template <int N, int EDGED>
KR_DEV void multiply_tiles(const kr_attention_params &p, const layout &at, unsigned char *shared_v,
                           unsigned char *units) {
  const int thread = kr_thread() - 128, lane = thread & 31;
  const lanes me = {thread / 128, thread & 127, 16 * (thread / 32 & 3) + lane / 4, lane % 4 * 2};
  const float scale = p.scale * KR_LOG2E;
  float s[N / 2], o[D / 2], most[2] = {MINUS_INFINITY, MINUS_INFINITY}, sum[2] = {0, 0}, shrink[2];
  uint32_t w[N / 4];
  span all = {0, 0};
  int index = 0, k = 0, n, first, own = 0; /* the unit; uses of the key ring, one ahead of the value ring's */
  if (me.group == GROUPS - 1) give_turn(me);
  kr_barrier_await(at.q_full, 0);
  n = told_at(units, 0)->end - 1, first = told_at(units, 0)->first;
  if (n >= 0) {
    kr_barrier_await(at.k_full, 0);
    start_scores<N>(at, me, 0, k, s);
    kr_wgmma_wait<N, 0>(s);
    release(at.k_empty, k++, me);
    if (n == first) release(at.q_empty, 0, me);
    all = seen_by_all<N, EDGED>(p, told_at(units, 0), me), own = end_of_own<N, EDGED>(p, told_at(units, 0), me);
    if (n < all.begin || n >= all.end) hide<N, EDGED>(p, told_at(units, 0), me, n, s);
    weigh<N>(s, scale, most, sum, shrink);
    pack_weights<N>(s, w);
    clear_behind<N>(at, told_at(units, 0), me, shared_v, 0);
  }
  while (n >= 0) {
#pragma unroll
    for (int i = 0; i < D / 2; i++) o[i] = 0;
    for (n--; n >= first; n--) {
      if (EDGED && GROUPS == 2 && n >= own) {
        pass_tile(at, me, k++);
        if (n == first) release(at.q_empty, index, me);
        continue;
      }
      kr_barrier_await(at.k_full + stage_of(k) * 8, parity_of(k));
      take_turn(me);
      start_scores<N>(at, me, index, k, s);
      kr_barrier_await(at.v_full + stage_of(k - 1) * 8, parity_of(k - 1));
      start_output<N>(at, k - 1, w, o);
      give_turn(me);
      kr_wgmma_wait<N, 1>(s);
      release(at.k_empty, k++, me);
      if (n == first) release(at.q_empty, index, me);
      if (EDGED && (n < all.begin || n >= all.end))
        hide<N, EDGED>(p, told_at(units, index), me, n, s); /* else only the first tile extends beyond the keys */
      const int grows = weigh<N>(s, scale, most, sum, shrink);
      kr_wgmma_wait<D, 0>(o);
      release(at.v_empty, k - 2, me);
      pack_weights<N>(s, w);
      if (grows) {
#pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] *= shrink[i / 2 & 1];
      }
      if (EDGED && GROUPS == 2 && n + 1 >= own) { /* weights were 0 so far, and 0 times NaN is not */
#pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] = 0;
      }
    }
    kr_barrier_await(at.q_full + stage_of(index + 1) * 8, parity_of(index + 1));
    n = told_at(units, index + 1)->end - 1, first = told_at(units, index + 1)->first;
    if (n < 0) {
      kr_barrier_await(at.v_full + stage_of(k - 1) * 8, parity_of(k - 1));
      start_output<N>(at, k - 1, w, o);
      kr_wgmma_wait<D, 0>(o);
      finish(p, told_at(units, index), me, scale, most, sum, o);
      break;
    }
    float next_most[2] = {MINUS_INFINITY, MINUS_INFINITY}, next_sum[2] = {0, 0};
    kr_barrier_await(at.k_full + stage_of(k) * 8, parity_of(k));
    take_turn(me);
    start_scores<N>(at, me, index + 1, k, s);
    kr_barrier_await(at.v_full + stage_of(k - 1) * 8, parity_of(k - 1));
    start_output<N>(at, k - 1, w, o);
    give_turn(me);
    kr_wgmma_wait<N, 1>(s);
    release(at.k_empty, k++, me);
    if (n == first) release(at.q_empty, index + 1, me);
    all = seen_by_all<N, EDGED>(p, told_at(units, index + 1), me),
    own = end_of_own<N, EDGED>(p, told_at(units, index + 1), me);
    if (n < all.begin || n >= all.end) hide<N, EDGED>(p, told_at(units, index + 1), me, n, s);
    weigh<N>(s, scale, next_most, next_sum, shrink);
    kr_wgmma_wait<D, 0>(o);
    release(at.v_empty, k - 2, me);
    pack_weights<N>(s, w);
    finish(p, told_at(units, index), me, scale, most, sum, o);
    index++;
    clear_behind<N>(at, told_at(units, index), me, shared_v, k - 1);
#pragma unroll
    for (int r = 0; r < 2; r++) most[r] = next_most[r], sum[r] = next_sum[r];
  }
  if (me.group == 0) take_turn(me); /* leaves no barrier half-arrived */
}

template <int N, int EDGED>
KR_DEV void run(const kr_attention_params &p, uint64_t maps) {
  KR_DYNAMIC_SHARED(shared);
  const uint32_t base = kr_shared_at(shared);
  const layout at = lay_out<N>(base);
  kr_launch_dependents();
  if (kr_thread() == 0) {
    for (int i = 0; i < 2; i++) kr_barrier_open(at.q_full + i * 8, 1), kr_barrier_open(at.q_empty + i * 8, GROUPS);
    for (int i = 0; i < STAGES; i++) {
      kr_barrier_open(at.k_full + i * 8, 1), kr_barrier_open(at.k_empty + i * 8, GROUPS);
      kr_barrier_open(at.v_full + i * 8, 1), kr_barrier_open(at.v_empty + i * 8, GROUPS);
    }
    kr_barriers_opened();
    for (int i = 0; i < 3; i++) kr_fetch_map(maps + i * sizeof(kr_attention_map));
  }
  kr_sync();
  kr_griddep_wait();
  if (kr_thread() < 128) {
    kr_give_registers<GROUPS == 3 ? 32 : 40>();
    if (kr_thread() == 0) copy_tiles<N, EDGED>(p, at, maps, shared + (at.units - base));
    else if (kr_thread() >= 32 && kr_thread() < 64) clear_rows<N, EDGED>(p);
  } else {
    kr_take_registers<GROUPS == 3 ? 160 : 232>();
    multiply_tiles<N, EDGED>(p, at, shared + (at.v - base), shared + (at.units - base));
  }
}

#ifndef KR_LARGE /* large heads use one kernel for both */
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_attention_hopper(const kr_attention_hopper_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_attention_hopper, maps);
  run<KR_HOPPER_KEYS(D), 0>(params.params, maps);
}
#endif
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_attention_hopper_edged(const kr_attention_hopper_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_attention_hopper_edged, maps);
  run<KR_HOPPER_KEYS(D), 1>(params.params, maps);
}
KR_KERNEL void KR_BOUNDS(32, 1) kr_attention_hopper_begin(const kr_attention_hopper_params params) {
  if (kr_thread() == 0) *params.params.next_unit = 0;
}

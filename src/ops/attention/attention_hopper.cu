/* attention_hopper.cu: attention by warpgroups (sm_90a), heads of up to 64 or 128 channels (KR_D). A block is resident and takes tiles of rows in turn:
 * one warp copies boxes of q, k and v; two or three warpgroups take 64 rows each. While the tensor cores make a tile's scores and the output of the tile before,
 * the other warpgroup has its exponentials: they take turns (ORDER). Within a warpgroup the exponentials of a tile go beside the output of the tile
 * before. The longest rows first; from one round of blocks to the next the order is turned round, so that all get as much.
 * Compiled per type (KR_HALF: float16). kr_attention_hopper: every row sees every key; kr_attention_hopper_edged: causal, windows. */
#include "attention_fragments.cuh"
#include "wgmma.cuh"

#ifdef KR_HALF
typedef kr_f16 element;
enum { DTYPE = KRAIT_F16 };
#else
typedef kr_bf16 element;
enum { DTYPE = KRAIT_BF16 };
#endif
enum { D = KR_D, GROUPS = KR_HOPPER_GROUPS(D), ROWS = KR_HOPPER_ROWS(D), STAGES = KR_HOPPER_KV_STAGES, BLOCKS = D / 64, THREADS = KR_HOPPER_THREADS_OF(D), ORDER = 1 /* barriers: 1 to 3, then a warpgroup's own */ };

typedef struct layout {
  uint32_t q, k, v, q_full, q_empty, k_full, k_empty, v_full, v_empty;
} layout;

template <int N>
KR_DEV layout lay_out(uint32_t base) {
  layout at;
  at.q = (base + 1023) & ~1023u;
  at.k = at.q + ROWS * D * 2;
  at.v = at.k + STAGES * N * D * 2;
  at.q_full = at.v + STAGES * N * D * 2;
  at.q_empty = at.q_full + 8;
  at.k_full = at.q_empty + 8, at.k_empty = at.k_full + STAGES * 8;
  at.v_full = at.k_empty + STAGES * 8, at.v_empty = at.v_full + STAGES * 8;
  return at;
}

/* A tile of rows of a head, and the tiles of keys that it sees: first to end - 1. */
typedef struct unit {
  sequence s;
  int row, h, kv, b, first, end, has_rows;
} unit;

template <int N, int EDGED>
KR_DEV unit unit_at(const kr_attention_plan &p, int round) {
  const int from = round * kr_grid_x(), index = from + (round & 1 ? kr_grid_x() - 1 - kr_block_x() : kr_block_x());
  unit u;
  u.has_rows = 0, u.first = u.end = 0;
  if (index >= p.n_units) return u;
  const task at = task_of(p, index);
  u.b = at.b, u.h = at.h, u.kv = at.h / p.heads, u.row = at.tile * ROWS;
  u.s = sequence_of(p, u.b);
  u.has_rows = u.row < u.s.rows_q;
  if (!u.has_rows || u.row >= u.s.n_q) return u;
  const int last = at_most(u.row + ROWS, u.s.n_q) - 1;
  u.end = ((EDGED ? end_key(p, u.s, last) : u.s.n_k) + N - 1) / N;
  u.first = EDGED ? first_key(p, u.s, u.row) / N : 0;
  if (u.end < u.first) u.end = u.first;
  return u;
}

typedef struct place {
  int stage;
  uint32_t round;
} place;
KR_DEV void advance(place &at) {
  if (++at.stage == STAGES) at.stage = 0, at.round ^= 1;
}

/* ---- the copying thread ---------------------------------------------------------------------------------------------------- */

template <int N>
KR_DEV void load_tile(uint32_t to, uint64_t map, uint32_t full, uint32_t empty, place &at, const unit &u, int tile) {
  kr_barrier_await(empty + at.stage * 8, at.round);
  kr_barrier_expect(full + at.stage * 8, N * D * 2);
#pragma unroll
  for (int i = 0; i < BLOCKS; i++) kr_load_box(to + at.stage * N * D * 2 + i * N * 128, map, full + at.stage * 8, 64 * i, (int)u.s.k_at + tile * N, u.kv, u.s.k_b);
  advance(at);
}

template <int N, int EDGED>
KR_DEV void copy_tiles(const kr_attention_plan &p, const layout &at, uint64_t maps) {
  const uint64_t map_q = maps, map_k = maps + sizeof(kr_attention_map), map_v = maps + 2 * sizeof(kr_attention_map);
  place k = {0, 1}, v = {0, 1};
  uint32_t q_round = 1;
  for (int round = 0; round * kr_grid_x() < p.n_units; round++) {
    const unit u = unit_at<N, EDGED>(p, round);
    if (u.end == u.first) continue;
    kr_barrier_await(at.q_empty, q_round);
    q_round ^= 1;
    kr_barrier_expect(at.q_full, ROWS * D * 2);
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) kr_load_box(at.q + i * ROWS * 128, map_q, at.q_full, 64 * i, (int)u.s.q_at + u.row, u.h, u.s.q_b);
    load_tile<N>(at.k, map_k, at.k_full, at.k_empty, k, u, u.end - 1);
    for (int n = u.end - 1; n > u.first; n--) {
      load_tile<N>(at.k, map_k, at.k_full, at.k_empty, k, u, n - 1);
      load_tile<N>(at.v, map_v, at.v_full, at.v_empty, v, u, n);
    }
    load_tile<N>(at.v, map_v, at.v_full, at.v_empty, v, u, u.first);
  }
}

/* ---- a multiplying warpgroup ------------------------------------------------------------------------------------------------- */

typedef struct lanes {
  int group, thread, first_row, column; /* of the block's rows: first_row and + 8; of a tile's keys: 8 j + column and the next */
} lanes;

/* The keys that a lane's two rows see. */
typedef struct limits {
  int first[2], end[2], all_from, all_to; /* all of the warpgroup's rows see from all_from to all_to - 1 */
} limits;

template <int EDGED>
KR_DEV limits limits_of(const kr_attention_plan &p, const unit &u, const lanes &me) {
  limits l;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int i = u.row + me.first_row + 8 * r;
    l.first[r] = EDGED ? first_key(p, u.s, i) : 0, l.end[r] = EDGED ? end_key(p, u.s, i) : u.s.n_k;
  }
  const int row = u.row + 64 * me.group;
  l.all_from = EDGED ? first_key(p, u.s, row + 63) : 0, l.all_to = EDGED ? end_key(p, u.s, row) : u.s.n_k;
  return l;
}

/* s = q k^T, under way. */
template <int N>
KR_DEV void start_scores(const layout &at, const lanes &me, const place &k, float (&s)[N / 2]) {
  kr_wgmma_begin();
#pragma unroll
  for (int i = 0; i < BLOCKS; i++)
#pragma unroll
    for (int step = 0; step < 4; step++)
      kr_wgmma_step<N, element, 0, 0>(s, kr_k_major(at.q + i * ROWS * 128 + me.group * 64 * 128 + step * KR_K_STEP_BYTES), kr_k_major(at.k + k.stage * N * D * 2 + i * N * 128 + step * KR_K_STEP_BYTES),
                                      i + step > 0);
  kr_wgmma_commit();
}

/* o += w v, under way. */
template <int N>
KR_DEV void start_output(const layout &at, const place &v, const uint32_t (&w)[N / 4], float (&o)[D / 2]) {
  kr_wgmma_begin();
#pragma unroll
  for (int step = 0; step < N / 16; step++)
    kr_wgmma_step_registers<D, element, 1>(o, w[4 * step], w[4 * step + 1], w[4 * step + 2], w[4 * step + 3], kr_mn_major(at.v + v.stage * N * D * 2 + step * KR_MN_STEP_BYTES, N * 128), 1);
  kr_wgmma_commit();
}

template <int N>
KR_DEV void hide(const limits &l, const lanes &me, int key, float (&s)[N / 2]) {
#pragma unroll
  for (int j = 0; j < N / 8; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int at = key + 8 * j + me.column + (i & 1);
      if (at < l.first[i / 2] || at >= l.end[i / 2]) s[4 * j + i] = MINUS_INFINITY;
    }
}

/* Scores become weights; most: the highest product of a row so far, or a little less; returns whether o must be scaled, by shrink. */
template <int N>
KR_DEV int weigh(float (&s)[N / 2], float scale, float (&most)[2], float (&sum)[2], float (&shrink)[2]) {
  float high[2], part[2][2] = {};
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float a = higher(s[2 * r], s[2 * r + 1]), b = higher(s[4 + 2 * r], s[5 + 2 * r]);
#pragma unroll
    for (int j = 2; j < N / 8; j += 2) a = higher(a, higher(s[4 * j + 2 * r], s[4 * j + 2 * r + 1])), b = higher(b, higher(s[4 * j + 4 + 2 * r], s[4 * j + 5 + 2 * r]));
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

/* Values behind the sequence's last key may be anything, and zero times anything is not zero. */
template <int N>
KR_DEV void clear_behind(const kr_attention_plan &p, const unit &u, const lanes &me, unsigned char *values, int tile) {
  const int from = u.s.n_k - tile * N, rows = N - from;
  if (rows <= 0 || u.s.k_at + u.s.n_k >= p.Lk) return;
  for (int i = me.thread; i < rows * 8 * BLOCKS; i += 128) {
    const int block = i / (rows * 8);
    *(kr_raw16 *)(values + block * N * 128 + from * 128 + (i - block * rows * 8) * 16) = (kr_raw16){{0, 0, 0, 0}};
  }
  kr_show_to_copies();
  kr_sync_at<128>(ORDER + 3 + me.group);
}

/* Rows without keys: 0, and infinity. */
KR_DEV void finish(const kr_attention_plan &p, const unit &u, const lanes &me, float scale, const float (&most)[2], const float (&sum)[2], const float (&o)[D / 2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int i = u.row + me.first_row + 8 * r;
    const int there = i < u.s.rows_q;
    const float by = end_sum(p, u.s, u.h, i, scale, most[r], sum[r], me.column == 0);
    uint16_t *const to = (uint16_t *)p.out.data + query_at(p.out, u.s, u.h, i);
#pragma unroll
    for (int j = 0; j < D / 8; j += 4) {
      uint32_t w[4];
#pragma unroll
      for (int k = 0; k < 4; k++) w[k] = by > 0 ? kr_pack(o[4 * (j + k) + 2 * r] * by, o[4 * (j + k) + 2 * r + 1] * by, DTYPE) : 0;
      const kr_raw16 eight = gather_quad(w[0], w[1], w[2], w[3]);
      const int column = 8 * j + 4 * me.column;
      if (there && column < p.D) *(kr_raw16 *)(to + column) = eight;
    }
  }
}

KR_DEV void take_turn(const lanes &me) {
  if (KR_TURNS) kr_sync_at<256>(ORDER + me.group);
}
KR_DEV void give_turn(const lanes &me) {
  if (KR_TURNS) kr_arrive_at<256>(ORDER + (me.group + 1 == GROUPS ? 0 : me.group + 1));
}
KR_DEV void release(uint32_t empty, const place &at, const lanes &me) {
  if (me.thread == 0) kr_barrier_arrive(empty + at.stage * 8);
}

template <int N, int EDGED>
KR_DEV void multiply_unit(const kr_attention_plan &p, const layout &at, unsigned char *shared_v, const unit &u, const lanes &me, place &k, place &v, uint32_t q_round) {
  const float scale = p.scale * KR_LOG2E;
  float s[N / 2], o[D / 2], most[2] = {MINUS_INFINITY, MINUS_INFINITY}, sum[2] = {0, 0}, shrink[2];
  uint32_t w[N / 4];
  const limits l = limits_of<EDGED>(p, u, me);
#pragma unroll
  for (int i = 0; i < D / 2; i++) o[i] = 0;
  if (u.end > u.first) {
    int n = u.end - 1;
    kr_barrier_await(at.q_full, q_round);
    kr_barrier_await(at.k_full + k.stage * 8, k.round);
    start_scores<N>(at, me, k, s);
    kr_wgmma_wait<N, 0>(s);
    release(at.k_empty, k, me);
    advance(k);
    if (n == u.first && me.thread == 0) kr_barrier_arrive(at.q_empty);
    if (n * N < l.all_from || n * N + N > l.all_to) hide<N>(l, me, n * N, s);
    weigh<N>(s, scale, most, sum, shrink);
    pack_weights<N>(s, w);
    kr_barrier_await(at.v_full + v.stage * 8, v.round);
    clear_behind<N>(p, u, me, shared_v + v.stage * N * D * 2, n);
    for (n--; n >= u.first; n--) {
      kr_barrier_await(at.k_full + k.stage * 8, k.round);
      take_turn(me);
      start_scores<N>(at, me, k, s);
      kr_barrier_await(at.v_full + v.stage * 8, v.round);
      start_output<N>(at, v, w, o);
      give_turn(me);
      kr_wgmma_wait<N, 1>(s);
      release(at.k_empty, k, me);
      advance(k);
      if (n == u.first && me.thread == 0) kr_barrier_arrive(at.q_empty);
      if (n * N < l.all_from || n * N + N > l.all_to) hide<N>(l, me, n * N, s);
      const int grows = weigh<N>(s, scale, most, sum, shrink);
      kr_wgmma_wait<D, 0>(o);
      release(at.v_empty, v, me);
      advance(v);
      pack_weights<N>(s, w);
      if (grows) {
#pragma unroll
        for (int i = 0; i < D / 2; i++) o[i] *= shrink[i / 2 & 1];
      }
    }
    kr_barrier_await(at.v_full + v.stage * 8, v.round);
    start_output<N>(at, v, w, o);
    kr_wgmma_wait<D, 0>(o);
    release(at.v_empty, v, me);
    advance(v);
  }
  finish(p, u, me, scale, most, sum, o);
}

template <int N, int EDGED>
KR_DEV void multiply_tiles(const kr_attention_plan &p, const layout &at, unsigned char *shared_v) {
  const int thread = kr_thread() - 128, lane = thread & 31;
  const lanes me = {thread / 128, thread & 127, 64 * (thread / 128) + 16 * (thread / 32 & 3) + lane / 4, lane % 4 * 2};
  place k = {0, 0}, v = {0, 0};
  uint32_t q_round = 0;
  if (me.group == GROUPS - 1) give_turn(me);
  for (int round = 0; round * kr_grid_x() < p.n_units; round++) {
    const unit u = unit_at<N, EDGED>(p, round);
    if (!u.has_rows) continue;
    multiply_unit<N, EDGED>(p, at, shared_v, u, me, k, v, q_round);
    if (u.end > u.first) q_round ^= 1;
  }
  if (me.group == 0) take_turn(me); /* no barrier is left half arrived at */
}

template <int N, int EDGED>
KR_DEV void run(const kr_attention_plan &p, uint64_t maps) {
  KR_DYNAMIC_SHARED(shared);
  const uint32_t base = kr_shared_at(shared);
  const layout at = lay_out<N>(base);
  if (kr_thread() == 0) {
    kr_barrier_open(at.q_full, 1), kr_barrier_open(at.q_empty, GROUPS);
    for (int i = 0; i < STAGES; i++) {
      kr_barrier_open(at.k_full + i * 8, 1), kr_barrier_open(at.k_empty + i * 8, GROUPS);
      kr_barrier_open(at.v_full + i * 8, 1), kr_barrier_open(at.v_empty + i * 8, GROUPS);
    }
    kr_barriers_opened();
    for (int i = 0; i < 3; i++) kr_fetch_map(maps + i * sizeof(kr_attention_map));
  }
  kr_sync();
  if (kr_thread() < 128) {
    kr_give_registers<GROUPS == 3 ? 32 : 24>();
    if (kr_thread() == 0) copy_tiles<N, EDGED>(p, at, maps);
  } else {
    kr_take_registers<GROUPS == 3 ? 160 : 240>();
    multiply_tiles<N, EDGED>(p, at, shared + (at.v - base));
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_attention_hopper(const kr_attention_hopper_plan plan) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_attention_hopper, maps);
  run<KR_HOPPER_FULL(D), 0>(plan.plan, maps);
}
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_attention_hopper_edged(const kr_attention_hopper_plan plan) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_attention_hopper_edged, maps);
  run<KR_HOPPER_EDGED(D), 1>(plan.plan, maps);
}

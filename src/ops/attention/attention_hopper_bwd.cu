/* attention_hopper_bwd.cu: the gradient of attention on warpgroups (sm_90a), heads of up to 64 or 128 channels (KR_D),
 * in two kernels that each recompute the probabilities (attention_base_bwd.cu has the equation): every sum is computed
 * by one warpgroup in a fixed order, all of it in registers.
 * kr_attention_hopper_dq    a block takes 128 rows, 64 per warpgroup, and loops over tiles of keys
 * kr_attention_hopper_dkv   a block takes 128 keys and loops over tiles of 64 rows of every head that shares them, or
 *                           of a part of these heads; its scores are transposed: a row is a key
 * kr_attention_hopper_join  adds the parts' sums, in their order
 * One warp copies boxes into a ring; in the second kernel another copies the rows' log-sum-exp and delta. Compiled per
 * type (KR_HALF: float16). _edged: causal, windows. */
#include "attention_hopper_bwd.cuh"

enum { KEYS = KR_HOPPER_DQ_KEYS, ROWS = KR_HOPPER_DKV_ROWS, STAGES = KR_HOPPER_BWD_STAGES };

typedef struct place {
  int stage;
  uint32_t round;
} place;
KR_DEV void advance(place &at) {
  if (++at.stage == STAGES) at.stage = 0, at.round ^= 1;
}

/* Two tiles owned by the block, a ring of two tiles of N rows, and per stage 2 N floats. */
typedef struct layout {
  uint32_t own, ring, values, own_full, full, empty;
} layout;
template <int N>
KR_DEV layout lay_out(uint32_t base) {
  layout at;
  at.own = (base + 1023) & ~1023u;
  at.ring = at.own + 2 * OWN * D * 2;
  at.values = at.ring + STAGES * 2 * N * D * 2;
  at.own_full = at.values + STAGES * 2 * N * 4;
  at.full = at.own_full + 8;
  at.empty = at.full + STAGES * 8;
  return at;
}

KR_DEV void open_barriers(const layout &at, int announcers) {
  if (kr_thread() == 0) {
    kr_barrier_open(at.own_full, 1);
    for (int i = 0; i < STAGES; i++) kr_barrier_open(at.full + i * 8, announcers), kr_barrier_open(at.empty + i * 8, 2);
    kr_barriers_opened();
  }
  kr_sync();
}

/* ---- dq ---------------------------------------------------------------------------------------------------------- */

template <int EDGED>
KR_DEV void gradient_of_queries(const kr_attention_params &p, uint64_t maps) {
  KR_DYNAMIC_SHARED(shared);
  const uint32_t base = kr_shared_at(shared);
  const layout at = lay_out<KEYS>(base);
  const task mine = task_of(p, kr_block_x());
  const sequence s = sequence_of(p, mine.b);
  const int row = mine.tile * OWN, kv = mine.h / p.heads;
  if (row >= s.rows_q) return;
  const int last = at_most(row + OWN, s.n_q) - 1, seen = row < s.n_q ? EDGED ? end_key(p, s, last) : s.n_k : 0,
            end = (seen + KEYS - 1) / KEYS, first = EDGED && row < s.n_q ? first_key(p, s, row) / KEYS : 0,
            start = EDGED || end == 0 ? end - 1 : row / KEYS % end; /* blocks start at different keys */
  open_barriers(at, 1);
  if (kr_thread() < 128) {
    kr_give_registers<40>();
    if (kr_thread() != 0 || end <= first) return;
    const uint64_t q = maps, k = maps + sizeof(kr_attention_map), v = maps + 2 * sizeof(kr_attention_map),
                   dout = maps + 3 * sizeof(kr_attention_map);
    place to = {0, 1};
    kr_barrier_expect(at.own_full, 2 * OWN * D * 2);
    load_boxes<OWN>(at.own, q, at.own_full, (int)s.q_at + row, mine.h, s.q_b);
    load_boxes<OWN>(at.own + OWN * D * 2, dout, at.own_full, (int)s.q_at + row, mine.h, s.q_b);
    for (int i = first, n = start; i < end; i++, n = n == first ? end - 1 : n - 1, advance(to)) {
      const uint32_t stage = at.ring + to.stage * 2 * KEYS * D * 2, full = at.full + to.stage * 8;
      kr_barrier_await(at.empty + to.stage * 8, to.round);
      kr_barrier_expect(full, 2 * KEYS * D * 2);
      load_boxes<KEYS>(stage, k, full, (int)s.k_at + n * KEYS, kv, s.k_b);
      load_boxes<KEYS>(stage + KEYS * D * 2, v, full, (int)s.k_at + n * KEYS, kv, s.k_b);
    }
    return;
  }
  kr_take_registers<232>();
  const lanes me = lanes_here();
  const float scale = p.scale * KR_LOG2E;
  float dq[D / 2], lse[2], delta[2];
  int first_of[2], end_of[2];
#pragma unroll
  for (int i = 0; i < D / 2; i++) dq[i] = 0;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int i = row + me.first_row + 8 * r, there = i < s.n_q;
    lse[r] = there ? lse_of(p, s, mine.h, i) * KR_LOG2E : -MINUS_INFINITY,
    delta[r] = there ? p.delta[delta_at(p, s, mine.h, i)] : 0.0f;
    first_of[r] = EDGED ? first_key(p, s, i) : 0, end_of[r] = EDGED ? end_key(p, s, i) : s.n_k;
  }
  const int group_row = row + 64 * me.group, all_from = EDGED ? first_key(p, s, group_row + 63) : 0,
            all_to = EDGED ? end_key(p, s, group_row) : s.n_k;
  place from = {0, 0};
  if (end > first) kr_barrier_await(at.own_full, 0);
  int before = -1;
  if (me.group == 1) give_turn(me);
  float products[KEYS / 2], by_dout[KEYS / 2];
  uint32_t w[KEYS / 4];
  for (int i = first, n = start; i < end; i++, n = n == first ? end - 1 : n - 1) {
    const uint32_t stage = at.ring + from.stage * 2 * KEYS * D * 2;
    kr_barrier_await(at.full + from.stage * 8, from.round);
    if (n == end - 1) clear_behind<KEYS>(shared + (stage - base), me, s.n_k - n * KEYS);
    take_turn(me);
    start_scores<KEYS>(at.own, stage, me, products);
    start_scores<KEYS>(at.own + OWN * D * 2, stage + KEYS * D * 2, me, by_dout);
    give_turn(me);
    kr_wgmma_wait<KEYS, 1>(products);
    if (before >= 0 && me.thread == 0) kr_barrier_arrive(at.empty + before * 8);
    if (n * KEYS < all_from || n * KEYS + KEYS > all_to) hide<KEYS>(products, me, n * KEYS, first_of, end_of);
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) products[i] = kr_exp2(kr_fma(products[i], scale, -lse[i / 2 & 1]));
    kr_wgmma_wait<KEYS, 0>(by_dout);
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) products[i] *= by_dout[i] - delta[i / 2 & 1];
    pack_all<KEYS>(products, w);
    take_turn(me);
    start_sum<KEYS>(stage, w, dq);
    give_turn(me);
    before = from.stage;
    advance(from);
  }
  kr_wgmma_wait<D, 0>(dq);
  if (me.group == 0) take_turn(me); /* leaves no barrier half-arrived */
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int i = row + me.first_row + 8 * r;
    store_row(p, (uint16_t *)p.dq.data + query_at(p.dq, s, mine.h, i), me, r, dq, p.scale, i < s.rows_q, i < s.n_q);
  }
}

/* ---- dk, dv ------------------------------------------------------------------------------------------------------ */

template <int EDGED>
KR_DEV void gradient_of_keys(const kr_attention_params &p, uint64_t maps) {
  KR_DYNAMIC_SHARED(shared);
  const uint32_t base = kr_shared_at(shared);
  const layout at = lay_out<ROWS>(base);
  const walk of = walk_here(p);
  const task mine = task_of_keys(p, (p.rows_k + OWN - 1) / OWN, of.unit);
  const int b = mine.b, kv = mine.h, key0 = mine.tile * OWN;
  const sequence s = sequence_of(p, b);
  if (key0 >= s.rows_k) return;
  const int has_keys = key0 < s.n_k, last = at_most(key0 + OWN, s.n_k) - 1,
            first = EDGED && has_keys ? first_row(p, s, key0) / ROWS : 0;
  const int end = has_keys ? ((EDGED ? end_row(p, s, last) : s.n_q) + ROWS - 1) / ROWS : 0,
            n_steps = at_least(end - first, 0) * (of.end - of.first),
            start = EDGED || end == 0 ? first : key0 / ROWS % end; /* blocks start at different rows */
  open_barriers(at, 2);
  float *const values = (float *)(shared + (at.values - base));
  if (kr_thread() < 128) {
    kr_give_registers<40>();
    if (n_steps == 0) return;
    place to = {0, 1};
    if (kr_thread() == 0) {
      const uint64_t q = maps, k = maps + sizeof(kr_attention_map), v = maps + 2 * sizeof(kr_attention_map),
                     dout = maps + 3 * sizeof(kr_attention_map);
      kr_barrier_expect(at.own_full, 2 * OWN * D * 2);
      load_boxes<OWN>(at.own, k, at.own_full, (int)s.k_at + key0, kv, s.k_b);
      load_boxes<OWN>(at.own + OWN * D * 2, v, at.own_full, (int)s.k_at + key0, kv, s.k_b);
      for (int h = kv * p.heads + of.first; h < kv * p.heads + of.end; h++)
        for (int i = first, n = start; i < end; i++, n = n + 1 == end ? first : n + 1, advance(to)) {
          const uint32_t stage = at.ring + to.stage * 2 * ROWS * D * 2, full = at.full + to.stage * 8;
          kr_barrier_await(at.empty + to.stage * 8, to.round);
          kr_barrier_expect(full, 2 * ROWS * D * 2);
          load_boxes<ROWS>(stage, q, full, (int)s.q_at + n * ROWS, h, s.q_b);
          load_boxes<ROWS>(stage + ROWS * D * 2, dout, full, (int)s.q_at + n * ROWS, h, s.q_b);
        }
    } else if (kr_thread() >= 32 && kr_thread() < 64) {
      const int lane = kr_thread() & 31;
      for (int h = kv * p.heads + of.first; h < kv * p.heads + of.end; h++)
        for (int i = first, n = start; i < end; i++, n = n + 1 == end ? first : n + 1, advance(to)) {
          kr_barrier_await(at.empty + to.stage * 8, to.round);
          for (int r = lane; r < ROWS; r += 32) {
            const int row = n * ROWS + r, there = row < s.n_q;
            values[to.stage * 2 * ROWS + r] = there ? lse_of(p, s, h, row) * KR_LOG2E : -MINUS_INFINITY;
            values[to.stage * 2 * ROWS + ROWS + r] = there ? p.delta[delta_at(p, s, h, row)] : 0.0f;
          }
          kr_sync_warp();
          if (lane == 0) kr_barrier_arrive(at.full + to.stage * 8);
        }
    }
    return;
  }
  kr_take_registers<232>();
  const lanes me = lanes_here();
  const float scale = p.scale * KR_LOG2E;
  float dk[D / 2], dv[D / 2];
  int first_of[2], end_of[2];
#pragma unroll
  for (int i = 0; i < D / 2; i++) dk[i] = dv[i] = 0;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int key = key0 + me.first_row + 8 * r;
    first_of[r] = EDGED ? first_row(p, s, key) : 0, end_of[r] = EDGED ? end_row(p, s, key) : s.n_q;
  }
  const int group_key = key0 + 64 * me.group, all_from = EDGED ? first_row(p, s, group_key + 63) : 0,
            all_to = EDGED ? end_row(p, s, group_key) : INT32_MAX;
  place from = {0, 0};
  if (n_steps) kr_barrier_await(at.own_full, 0);
  int n = start;
  if (me.group == 1) give_turn(me);
  float products[ROWS / 2], by_dout[ROWS / 2];
  uint32_t w[ROWS / 4], dw[ROWS / 4];
  for (int step = 0; step < n_steps; step++) {
    const uint32_t stage = at.ring + from.stage * 2 * ROWS * D * 2;
    const float *const lse = values + from.stage * 2 * ROWS + me.column, *const delta = lse + ROWS;
    kr_barrier_await(at.full + from.stage * 8, from.round);
    if (n == end - 1) clear_behind<ROWS>(shared + (stage - base), me, s.n_q - n * ROWS);
    take_turn(me);
    start_scores<ROWS>(at.own, stage, me, products);
    start_scores<ROWS>(at.own + OWN * D * 2, stage + ROWS * D * 2, me, by_dout);
    give_turn(me);
    kr_wgmma_wait<ROWS, 1>(products);
    if (EDGED && (n * ROWS < all_from || n * ROWS + ROWS > all_to))
      hide<ROWS>(products, me, n * ROWS, first_of, end_of);
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++) {
      const kr_float2 l = *(const kr_float2 *)(lse + 8 * j);
#pragma unroll
      for (int c = 0; c < 4; c++) products[4 * j + c] = kr_exp2(kr_fma(products[4 * j + c], scale, -l.v[c & 1]));
    }
    kr_wgmma_wait<ROWS, 0>(by_dout);
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++) {
      const kr_float2 d = *(const kr_float2 *)(delta + 8 * j);
#pragma unroll
      for (int c = 0; c < 4; c++) by_dout[4 * j + c] = products[4 * j + c] * (by_dout[4 * j + c] - d.v[c & 1]);
    }
    pack_all<ROWS>(products, w);
    pack_all<ROWS>(by_dout, dw);
    take_turn(me);
    start_sum<ROWS>(stage + ROWS * D * 2, w, dv);
    start_sum<ROWS>(stage, dw, dk);
    give_turn(me);
    kr_wgmma_wait<D, 0>(dv); /* more in flight would need too many registers: the other warpgroup uses the tensor cores
                              * meanwhile */
    kr_wgmma_wait<D, 0>(dk);
    if (me.thread == 0) kr_barrier_arrive(at.empty + from.stage * 8);
    advance(from);
    if (++n == end) n = first;
  }
  if (me.group == 0) take_turn(me); /* leaves no barrier half-arrived */
  if (p.split_keys > 1) {
    kr_raw16 *const part = part_at(p, kr_block_x(), me);
    store_part(part, dk), store_part(part + 256 * (D / 8), dv);
    return;
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int key = key0 + me.first_row + 8 * r;
    if (p.dk.data)
      store_row(p, (uint16_t *)p.dk.data + key_at(p, p.dk, s, kv, key), me, r, dk, p.scale, key < s.rows_k,
                key < s.n_k);
    if (p.dv.data)
      store_row(p, (uint16_t *)p.dv.data + key_at(p, p.dv, s, kv, key), me, r, dv, 1.0f, key < s.rows_k, key < s.n_k);
  }
}

/* ---- parts of the heads that share keys ---------------------------------------------------------------------------
 */

KR_DEV void add_parts(const kr_attention_params &p, const lanes &me, int which, float (&o)[D / 2]) {
#pragma unroll
  for (int i = 0; i < D / 2; i++) o[i] = 0;
  for (int part = 0; part < p.split_keys; part++) {
    const kr_raw16 *const from = part_at(p, (int64_t)kr_block_x() * p.split_keys + part, me) + which * 256 * (D / 8);
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
      const kr_raw16 four = from[256 * j];
#pragma unroll
      for (int c = 0; c < 4; c++) o[4 * j + c] += kr_bits_to_float(four.w[c]);
    }
  }
}

/* A block's dk and dv of its parts' sums, in their order. */
KR_DEV void join_parts(const kr_attention_params &p) {
  const task mine = task_of_keys(p, (p.rows_k + OWN - 1) / OWN);
  const sequence s = sequence_of(p, mine.b);
  const int key0 = mine.tile * OWN;
  if (key0 >= s.rows_k) return;
  const lanes me = lanes_of(kr_thread());
  const kr_attention_tensor *const to[2] = {&p.dk, &p.dv};
#pragma unroll
  for (int which = 0; which < 2; which++) {
    if (!to[which]->data) continue;
    float o[D / 2];
    add_parts(p, me, which, o);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int key = key0 + me.first_row + 8 * r;
      store_row(p, (uint16_t *)to[which]->data + key_at(p, *to[which], s, mine.h, key), me, r, o,
                which ? 1.0f : p.scale, key < s.rows_k, key < s.n_k);
    }
  }
}

KR_KERNEL void KR_BOUNDS(256, 2) kr_attention_hopper_join(const kr_attention_hopper_params params) {
  join_parts(params.params);
}
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_attention_hopper_dq(const kr_attention_hopper_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_attention_hopper_dq, maps);
  gradient_of_queries<0>(params.params, maps);
}
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_attention_hopper_dq_edged(const kr_attention_hopper_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_attention_hopper_dq_edged, maps);
  gradient_of_queries<1>(params.params, maps);
}
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_attention_hopper_dkv(const kr_attention_hopper_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_attention_hopper_dkv, maps);
  gradient_of_keys<0>(params.params, maps);
}
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_attention_hopper_dkv_edged(const kr_attention_hopper_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_attention_hopper_dkv_edged, maps);
  gradient_of_keys<1>(params.params, maps);
}

/* attention_hopper_sums.cu: the gradient of attention on warpgroups (sm_90a) in a single pass, for callers who allow
 * any summation order (KRAIT_ATTENTION_ANY_ORDER): probabilities are computed once, dk and dv stay in registers, and
 * every block adds its keys' part of dq to float32 sums in memory, by reducing bulk copies.
 * kr_attention_hopper_sums   a block takes 128 keys, 64 per warpgroup, and loops over tiles of rows of every head that
 *                            shares them; scores are transposed: a row is a key. dS goes through shared memory, so that
 *                            each warpgroup computes half of the tile's dq: half of the channels, or with small heads
 *                            of the rows
 * kr_attention_sums_clear, kr_attention_sums_end   zero the sums before; convert them to dq after
 * Compiled per type (KR_HALF: float16). */
#include "attention_hopper_bwd.cuh"
#include "exchange.cuh"
#include "attention_sums.cuh"

enum {
  ROWS = KR_HOPPER_SUMS_ROWS(D),
  STAGES = KR_HOPPER_SUMS_STAGES,
  DS_BYTES = OWN * ROWS * 2,
  DQ_N = D == 128 ? 64 : D /* channels of a warpgroup's dq */,
  WARP_SUMS = 16 * DQ_N * 4
};
enum { EXCHANGE = 5 /* a named barrier */ };

typedef struct place {
  int stage;
  uint32_t round;
} place;
KR_DEV void advance(place &at) {
  if (++at.stage == STAGES) at.stage = 0, at.round ^= 1;
}

/* The block's keys and values, a ring of tiles of q and dout, two tiles of dS, each warp's sums in flight, the rows'
 * log-sum-exp and delta. */
typedef struct layout {
  uint32_t own, ring, ds, sums, values, own_full, full, empty;
} layout;
KR_DEV layout lay_out(uint32_t base) {
  layout at;
  at.own = (base + 1023) & ~1023u;
  at.ring = at.own + 2 * OWN * D * 2;
  at.ds = at.ring + STAGES * 2 * ROWS * D * 2;
  at.sums = at.ds + 2 * DS_BYTES;
  at.values = at.sums + 8 * WARP_SUMS;
  at.own_full = at.values + STAGES * 2 * ROWS * 4;
  at.full = at.own_full + 8;
  at.empty = at.full + STAGES * 8;
  return at;
}

KR_DEV void open_barriers(const layout &at) {
  if (kr_thread() == 0) {
    kr_barrier_open(at.own_full, 1);
    for (int i = 0; i < STAGES; i++) kr_barrier_open(at.full + i * 8, 2), kr_barrier_open(at.empty + i * 8, 2);
    kr_barriers_opened();
  }
  kr_sync();
}

/* ---- the producer warps ------------------------------------------------------------------------------------------ */

KR_DEV void copy_tiles(const kr_attention_params &p, const layout &at, const unit &u, const walk &of, uint64_t maps) {
  const uint64_t q = maps, k = maps + sizeof(kr_attention_map), v = maps + 2 * sizeof(kr_attention_map),
                 dout = maps + 3 * sizeof(kr_attention_map);
  place to = {0, 1};
  kr_barrier_expect(at.own_full, 2 * OWN * D * 2);
  load_boxes<OWN>(at.own, k, at.own_full, (int)u.s.k_at + u.key0, u.kv, u.s.k_b);
  load_boxes<OWN>(at.own + OWN * D * 2, v, at.own_full, (int)u.s.k_at + u.key0, u.kv, u.s.k_b);
  for (int h = u.kv * p.heads + of.first; h < u.kv * p.heads + of.end; h++)
    for (int i = u.first, n = u.start; i < u.end; i++, n = n + 1 == u.end ? u.first : n + 1, advance(to)) {
      const uint32_t stage = at.ring + to.stage * 2 * ROWS * D * 2, full = at.full + to.stage * 8;
      kr_barrier_await(at.empty + to.stage * 8, to.round);
      kr_barrier_expect(full, 2 * ROWS * D * 2);
      load_boxes<ROWS>(stage, q, full, (int)u.s.q_at + n * ROWS, h, u.s.q_b);
      load_boxes<ROWS>(stage + ROWS * D * 2, dout, full, (int)u.s.q_at + n * ROWS, h, u.s.q_b);
    }
}

KR_DEV void copy_values(const kr_attention_params &p, const layout &at, const unit &u, const walk &of, float *values) {
  const int lane = kr_thread() & 31;
  place to = {0, 1};
  for (int h = u.kv * p.heads + of.first; h < u.kv * p.heads + of.end; h++)
    for (int i = u.first, n = u.start; i < u.end; i++, n = n + 1 == u.end ? u.first : n + 1, advance(to)) {
      kr_barrier_await(at.empty + to.stage * 8, to.round);
      for (int r = lane; r < ROWS; r += 32) {
        const int row = n * ROWS + r, there = row < u.s.n_q;
        values[to.stage * 2 * ROWS + r] = there ? lse_of(p, u.s, h, row) * KR_LOG2E : -MINUS_INFINITY;
        values[to.stage * 2 * ROWS + ROWS + r] = there ? p.delta[delta_at(p, u.s, h, row)] : 0.0f;
      }
      kr_sync_warp();
      if (lane == 0) kr_barrier_arrive(at.full + to.stage * 8);
    }
}

/* ---- a consumer warpgroup ---------------------------------------------------------------------------------------- */

/* Clears keys after the sequence's last one: they may be anything, and would reach dq. */
KR_DEV void clear_keys(unsigned char *own, const lanes &me, int from) {
  if (from < OWN) {
    const int rows = OWN - from;
    for (int i = me.thread + 128 * me.group; i < rows * 8 * 2 * BLOCKS; i += 256) {
      const int block = i / (rows * 8);
      *(kr_raw16 *)(own + block * OWN * 128 + from * 128 + (i - block * rows * 8) * 16) = (kr_raw16){{0, 0, 0, 0}};
    }
    kr_show_to_copies();
  }
  kr_sync_at<256>(EXCHANGE);
}

/* Writes the warpgroup's dS, keys by rows, to shared memory: blocks of 64 rows, each with both warpgroups' keys,
 * swizzled like a box. */
KR_DEV void show_ds(uint32_t ds, const lanes &me, const uint32_t (&w)[ROWS / 4]) {
  const int lane = me.thread & 31, key = 16 * (me.thread / 32) + (lane >> 3 & 1) * 8 + (lane & 7);
  const uint32_t line = ds + me.group * 64 * 128 + key * 128;
#pragma unroll
  for (int j = 0; j < ROWS / 8; j += 2) {
    const int chunk = (j & 7) + (lane >> 4);
    kr_store_matrices(line + j / 8 * 2 * 64 * 128 + ((chunk ^ (key & 7)) << 4), w[2 * j], w[2 * j + 1], w[2 * j + 2],
                      w[2 * j + 3]);
  }
  kr_show_to_copies();
}

/* Starts dq = dS k of 64 rows. */
KR_DEV void start_dq(uint32_t ds, uint32_t own, const lanes &me, float (&dq)[DQ_N / 2]) {
  const uint32_t rows = D == 128 ? ds : ds + me.group * 2 * 64 * 128,
                 keys = D == 128 ? own + me.group * OWN * 128 : own;
  kr_wgmma_begin();
#pragma unroll
  for (int step = 0; step < OWN / 16; step++)
    kr_wgmma_step<DQ_N, element, 1, 1>(dq, kr_mn_major(rows + step * KR_MN_STEP_BYTES, 0),
                                       kr_mn_major(keys + step * KR_MN_STEP_BYTES, OWN * 128), step > 0);
  kr_wgmma_commit();
}

/* Adds a warp's 16 rows of it to the sums. */
KR_DEV void add_sums(unsigned char *stage, uint32_t stage_at, float *to, const float (&dq)[DQ_N / 2], int lane) {
  if (lane == 0) kr_stores_read<0>();
  kr_sync_warp();
#pragma unroll
  for (int j = 0; j < DQ_N / 8; j++)
    *(kr_raw16 *)(stage + (j * 32 + lane) * 16) =
        (kr_raw16){{kr_float_to_bits(dq[4 * j]), kr_float_to_bits(dq[4 * j + 1]), kr_float_to_bits(dq[4 * j + 2]),
                    kr_float_to_bits(dq[4 * j + 3])}};
  kr_show_to_copies();
  kr_sync_warp();
  if (lane == 0) kr_add_bytes(to, stage_at, WARP_SUMS), kr_commit_stores();
}

KR_DEV void multiply_tiles(const kr_attention_params &p, const layout &at, const unit &u, const walk &of,
                           unsigned char *shared, uint32_t base) {
  const lanes me = lanes_here();
  const int lane = me.thread & 31, warp = me.thread / 32, n_steps = (u.end - u.first) * (of.end - of.first);
  const float scale = p.scale * KR_LOG2E, *const values = (const float *)(shared + (at.values - base));
  const uint32_t own_sums = at.sums + (4 * me.group + warp) * WARP_SUMS;
  const int64_t head_sums = (int64_t)p.n_splits * 64 * D;
  float *sums = p.partial + (u.kv * p.heads + of.first) * head_sums +
                ((int64_t)sums_tile(p, u.s, u.b) * 4 + warp) * 16 * D +
                (D == 128 ? me.group * 16 * 64 : me.group * 64 * D);
  float dk[D / 2], dv[D / 2];
  int first_of[2], end_of[2];
#pragma unroll
  for (int i = 0; i < D / 2; i++) dk[i] = dv[i] = 0;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int key = u.key0 + me.first_row + 8 * r;
    first_of[r] = first_row(p, u.s, key), end_of[r] = key < u.s.n_k ? end_row(p, u.s, key) : 0;
  }
  /* Keys after the last one have scores of 0, whose probability exp(-lse) may be infinite: hidden like masked ones. */
  const int group_key = u.key0 + 64 * me.group, all_from = first_row(p, u.s, group_key + 63),
            all_to = group_key + 64 <= u.s.n_k ? end_row(p, u.s, group_key) : 0;
  place from = {0, 0};
  if (n_steps) {
    kr_barrier_await(at.own_full, 0);
    clear_keys(shared + (at.own - base), me, u.s.n_k - u.key0);
  }
  float products[ROWS / 2], by_dout[ROWS / 2], dq[DQ_N / 2];
  uint32_t w[ROWS / 4], dw[ROWS / 4];
  for (int step = 0, n = u.start, left = u.end - u.first; step < n_steps; step++) {
    const uint32_t stage = at.ring + from.stage * 2 * ROWS * D * 2, ds = at.ds + (step & 1) * DS_BYTES;
    const float *const lse = values + from.stage * 2 * ROWS + me.column, *const delta = lse + ROWS;
    kr_barrier_await(at.full + from.stage * 8, from.round);
    if (n == u.end - 1) clear_behind<ROWS>(shared + (stage - base), me, u.s.n_q - n * ROWS);
    start_scores<ROWS>(at.own, stage, me, products);
    start_scores<ROWS>(at.own + OWN * D * 2, stage + ROWS * D * 2, me, by_dout);
    kr_wgmma_wait<ROWS, 1>(products);
    if (n * ROWS < all_from || n * ROWS + ROWS > all_to) hide<ROWS>(products, me, n * ROWS, first_of, end_of);
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
    start_sum<ROWS>(stage + ROWS * D * 2, w, dv);
    pack_all<ROWS>(by_dout, dw);
    show_ds(ds, me, dw);
    kr_sync_at<256>(EXCHANGE); /* both have read the dS of two steps ago before the last barrier */
    kr_wgmma_wait<D, 0>(dv); /* keeping it in flight would take too many registers */
    start_dq(ds, at.own, me, dq);
    start_sum<ROWS>(stage, dw, dk);
    kr_wgmma_wait<DQ_N, 1>(dq);
    add_sums(shared + (own_sums - base), own_sums, sums + (int64_t)n * ROWS * D, dq, lane);
    kr_wgmma_wait<D, 0>(dk);
    if (me.thread == 0) kr_barrier_arrive(at.empty + from.stage * 8);
    advance(from);
    if (++n == u.end) n = u.first;
    if (--left == 0) n = u.start, left = u.end - u.first, sums += head_sums;
  }
  if (p.split_keys > 1) {
    kr_raw16 *const part = part_at(p, kr_block_x(), me);
    store_part(part, dk), store_part(part + 256 * (D / 8), dv);
    if (lane == 0) kr_stores_read<0>();
    return;
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int key = u.key0 + me.first_row + 8 * r;
    store_row(p, (uint16_t *)p.dk.data + key_at(p, p.dk, u.s, u.kv, key), me, r, dk, p.scale, key < u.s.rows_k,
              key < u.s.n_k);
    store_row(p, (uint16_t *)p.dv.data + key_at(p, p.dv, u.s, u.kv, key), me, r, dv, 1.0f, key < u.s.rows_k,
              key < u.s.n_k);
  }
  if (lane == 0) kr_stores_read<0>();
}

KR_DEV void gradient(const kr_attention_params &p, uint64_t maps) {
  KR_DYNAMIC_SHARED(shared);
  const uint32_t base = kr_shared_at(shared);
  const layout at = lay_out(base);
  const walk of = walk_here(p);
  const unit u = unit_here<OWN, ROWS>(p, of.unit);
  if (u.key0 >= u.s.rows_k) return;
  open_barriers(at);
  if (kr_thread() < 128) {
    kr_give_registers<24>();
    if (u.end == u.first) return;
    if (kr_thread() == 0)
      copy_tiles(p, at, u, of, maps);
    else if (kr_thread() >= 32 && kr_thread() < 64)
      copy_values(p, at, u, of, (float *)(shared + (at.values - base)));
    return;
  }
  kr_take_registers<240>();
  multiply_tiles(p, at, u, of, shared, base);
}

KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_attention_hopper_sums(const kr_attention_hopper_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_attention_hopper_sums, maps);
  gradient(params.params, maps);
}

/* ---- before and after -------------------------------------------------------------------------------------------- */

KR_KERNEL void KR_BOUNDS(256, 4) kr_attention_sums_clear(const kr_attention_hopper_params params) {
  clear_sums<D>(params.params);
}
KR_KERNEL void KR_BOUNDS(128, 4) kr_attention_sums_end(const kr_attention_hopper_params params) {
  end_sums<D, 1>(params.params, DTYPE);
}

/* mamba3_walk.cu: Mamba 3's scan on warpgroups (sm_90a), of one rank whose neighbours turn, up to 64 channels and 128
 * states, without keys and queries of every head in memory; compiled for float16 and bfloat16 storage (KR_DTYPE).
 * A block is two warpgroups that walk through a head's chunks of 64 tokens, each of four warps with 16 rows:
 *   the tokens' adds the bias to C and turns it to queries, an operand in registers; P = C B^T o decays, y = P x +
 *     reach (q S_before^T), gate, output
 *   the states' turns B to keys in shared memory; the state, in its accumulators, also as an operand in shared memory
 * A few threads ask for boxes of x, z, B and C, and for packets (mamba3_packets.cu), as soon as all have read those
 * before. A token's key is weighted as it reaches later tokens; its own output, the diagonal of P, has another weight,
 * and D. Two blocks a multiprocessor.
 * With S, for the gradient: states before chunks, queries, keys and products of tokens with themselves are kept.
 * NaN and infinity: such heads are flagged, for kr_mamba3_walk_again. */
#include "../ssd/ssd_hopper_tiles.cuh"
#include "mamba3_views.cuh"
#include "mamba3_walk_params.h"

enum {
  THREADS = KR_MAMBA3_WALK_THREADS,
  GROUP = 128,
  STAGES = 2,
  STEPS = N / 16,
  INPUTS_COPIER = 0, /* threads, of a warp each */
  GATE_COPIER = 32,
  QUERIES_KEEPER = 64,
  KEYS_COPIER = GROUP, /* also keeps keys and states */
  TOKENS_REGS = 136,
  STATES_REGS = 120
};
static_assert(GROUP * (TOKENS_REGS + STATES_REGS) * 2 <= 65536, "two blocks a multiprocessor");

/* Byte offsets from the first multiple of 1024 in shared memory. */
enum {
  C_AT = 0,
  B_AT = C_AT + BLOCKS * TILE,
  K_AT = B_AT + BLOCKS * TILE,
  STATE_AT = K_AT + BLOCKS * TILE,
  X_AT = STATE_AT + BLOCKS * TILE,
  Y_AT = X_AT + STAGES * TILE,
  Z_AT = Y_AT + TILE,
  STEPS_AT = Z_AT + TILE,
  BIASES_AT = STEPS_AT + STAGES * KR_MAMBA3_STEPS_BYTES, /* of queries, then keys, as lanes take them */
  KEYS_FULL = BIASES_AT + 2 * N * 4,
  FULL = KEYS_FULL + 8,
  GATE_FULL = FULL + 8 * STAGES,
  C_READ = GATE_FULL + 8,     /* by the tokens' warps, with rotations; so may the next keys' copies come */
  KEYS_READ = C_READ + 8,     /* and the state before: by them */
  KEYS_READY = KEYS_READ + 8, /* by the states' warps */
  STATE_READY = KEYS_READY + 8,
  INPUTS_READ = STATE_READY + 8,
  TURNS_AT = KR_MAMBA3_WALK_BESIDE
};
static_assert(INPUTS_READ + 8 * STAGES <= TURNS_AT && sizeof(kr_mamba3_chunk_steps) <= KR_MAMBA3_STEPS_BYTES,
              "all have a place");

/* ---- work partition ---------------------------------------------------------------------------------------------- */

typedef struct task {
  int unit, b, h, first, end; /* chunks first to end - 1 */
} task;

KR_DEV int range_at(const kr_mamba3_walk_params &w, int block) {
  return block * w.per_block + (block < w.longer ? block : w.longer);
}
KR_DEV int n_tasks(const kr_mamba3_walk_params &w) {
  return (range_at(w, kr_block_x() + 1) - 1) / w.f.n_chunks - range_at(w, kr_block_x()) / w.f.n_chunks + 1;
}
/* The i-th task of this block, last unit first: a unit that the range's end cuts off is done first, and its state
 * handed to the next block, which needs it last. */
KR_DEV task task_at(const kr_mamba3_walk_params &w, int i) {
  const int from = range_at(w, kr_block_x()), to = range_at(w, kr_block_x() + 1), n = w.f.n_chunks,
            unit = (to - 1) / n - i, begin = unit * n, b = unit / w.f.H;
  return task{unit, b, unit - b * w.f.H, from > begin ? from - begin : 0, to - begin < n ? to - begin : n};
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* Of one thread: where a task's copies come from. */
typedef struct sources {
  uint64_t maps;
  const unsigned char *packets;
  int g, packet_bytes, turns; /* turns: bytes */
} sources;

KR_DEV sources sources_of(const kr_mamba3_walk_params &w, const task &t, uint64_t maps) {
  return sources{maps, w.f.packets + (int64_t)t.unit * w.f.n_chunks * w.f.packet_bytes, t.h / (w.f.H / w.f.G),
                 w.f.packet_bytes, KR_MAMBA3_TURNS_BYTES(w.f.M)};
}
/* use: chunks of the block before this one. */
KR_DEV void copy_keys(const sources &from, const task &t, int c, int use, uint32_t base) {
  const uint64_t map_B = from.maps + 2 * sizeof(kr_ssd_map), map_C = map_B + sizeof(kr_ssd_map);
  kr_barrier_await(base + C_READ, parity_of(use, 1) ^ 1);
  kr_barrier_expect(base + KEYS_FULL, 2 * BLOCKS * TILE + from.turns);
#pragma unroll
  for (int n = 0; n < BLOCKS; n++) {
    kr_load_box(base + C_AT + n * TILE, map_C, base + KEYS_FULL, 64 * n, c * Q, from.g, t.b);
    kr_load_box(base + B_AT + n * TILE, map_B, base + KEYS_FULL, 64 * n, c * Q, from.g, t.b);
  }
  if (from.turns)
    kr_load_bytes(base + TURNS_AT, from.packets + (int64_t)c * from.packet_bytes + KR_MAMBA3_STEPS_BYTES, from.turns,
                  base + KEYS_FULL);
}
KR_DEV void copy_inputs(const sources &from, const task &t, int c, int use, uint32_t base) {
  const int stage = use % STAGES;
  const uint32_t full = base + FULL + 8 * stage;
  kr_barrier_await(base + INPUTS_READ + 8 * stage, parity_of(use, STAGES) ^ 1);
  kr_barrier_expect(full, TILE + KR_MAMBA3_STEPS_BYTES);
  kr_load_box(base + X_AT + stage * TILE, from.maps, full, 0, c * Q, t.h, t.b);
  kr_load_bytes(base + STEPS_AT + stage * KR_MAMBA3_STEPS_BYTES, from.packets + (int64_t)c * from.packet_bytes,
                KR_MAMBA3_STEPS_BYTES, full);
}
KR_DEV void copy_gate(const sources &from, const task &t, int c, uint32_t base) {
  kr_barrier_expect(base + GATE_FULL, TILE);
  kr_load_box(base + Z_AT, from.maps + sizeof(kr_ssd_map), base + GATE_FULL, 0, c * Q, t.h, t.b);
}

/* ---- the warpgroup ----------------------------------------------------------------------------------------------- */

KR_DEV void sync_walkers(int is_of_states) { kr_sync_at<GROUP>(OWN_BARRIER + is_of_states); }

/* Biases of a head's queries or keys, in the order of a lane's pairs: [column / 16][column / 2 % 4][column / 8 % 2]
 * [column % 2]. By a warpgroup. */
KR_DEV void put_walk_biases(const kr_mamba3_params &p, const kr_view &v, int h, int n, float *to) {
  to[n / 16 * 16 + n / 2 % 4 * 4 + n / 8 % 2 * 2 + n % 2] = n < p.N ? get(v, at3(v, h, 0, n)) : 0.0f;
}

/* Two neighbours with their biases, turned (TURNS). */
template <int TURNS>
KR_DEV uint32_t turned(uint32_t two, float first, float second, uint32_t by) {
  const float x = kr_unpack(two, 0, KR_DTYPE) + first, y = kr_unpack(two, 1, KR_DTYPE) + second;
  if (!TURNS) return pack(x, y);
  const float c = kr_unpack(by, 0, KRAIT_F16), s = kr_unpack(by, 1, KRAIT_F16);
  return pack(kr_fma(c, x, -(s * y)), kr_fma(s, x, c * y));
}

/* 64 columns of a warp's 16 tokens, from a tile of B or C, turned, to registers as an operand. */
template <int BLOCK, int TURNS>
KR_DEV void turn_block(const unsigned char *shared, const unsigned char *tile, const float *biases, const lanes &me,
                       uint32_t (&d)[16]) {
#pragma unroll
  for (int k = 0; k < 4; k++) {
    uint32_t two[4];
    take_matrices(two, tile, me, 2 * k);
#pragma unroll
    for (int i = 0; i < 4; i++) d[4 * k + i] = two[i];
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const kr_float4 own = *(const kr_float4 *)(biases + 64 * BLOCK + 16 * k + 4 * me.q);
    kr_raw16 by = {};
    if (TURNS) by = *(const kr_raw16 *)(shared + TURNS_AT + 2048 * (4 * BLOCK + k) + 16 * me.thread);
#pragma unroll
    for (int i = 0; i < 4; i++) d[4 * k + i] = turned<TURNS>(d[4 * k + i], own.v[i & 2], own.v[(i & 2) + 1], by.w[i]);
  }
}
KR_DEV void put_block(unsigned char *tile, const lanes &me, const uint32_t (&d)[16]) {
#pragma unroll
  for (int k = 0; k < 4; k++) put_matrices(tile, me, 2 * k, d[4 * k], d[4 * k + 1], d[4 * k + 2], d[4 * k + 3]);
}
/* n_turning: blocks of 64 columns, or 32 pairs. */
template <int BLOCK>
KR_DEV void turn_block_of(const unsigned char *shared, int n_turning, const unsigned char *tiles, const float *biases,
                          const lanes &me, uint32_t (&d)[16]) {
  if (n_turning > BLOCK)
    turn_block<BLOCK, 1>(shared, tiles + BLOCK * TILE, biases, me, d);
  else
    turn_block<BLOCK, 0>(shared, tiles + BLOCK * TILE, biases, me, d);
}
/* Queries; `keeps`: also in place of C. */
KR_DEV void turn_queries(unsigned char *shared, const lanes &me, int n_turning, int keeps, uint32_t (&q)[2][16]) {
  const float *const biases = (const float *)(shared + BIASES_AT);
  turn_block_of<0>(shared, n_turning, shared + C_AT, biases, me, q[0]);
  turn_block_of<1>(shared, n_turning, shared + C_AT, biases, me, q[1]);
  if (!keeps) return;
  kr_sync_warp();
  put_block(shared + C_AT, me, q[0]), put_block(shared + C_AT + TILE, me, q[1]);
  kr_show_to_copies();
}
KR_DEV void turn_keys(unsigned char *shared, const lanes &me, int n_turning) {
  const float *const biases = (const float *)(shared + BIASES_AT) + N;
  uint32_t k[16];
  turn_block_of<0>(shared, n_turning, shared + B_AT, biases, me, k), put_block(shared + K_AT, me, k);
  turn_block_of<1>(shared, n_turning, shared + B_AT, biases, me, k), put_block(shared + K_AT + TILE, me, k);
  kr_show_to_copies();
}

/* Starts d = q F^T, F of 64 rows; in flight on return. */
KR_DEV void start_queries(const uint32_t (&q)[2][16], uint32_t F, float (&d)[32]) {
  const uint64_t f = kr_k_major(F);
  kr_wgmma_begin();
#pragma unroll
  for (int k = 0; k < STEPS; k++)
    kr_wgmma_step_registers<64, half_type, 0>(d, q[k / 4][4 * (k & 3)], q[k / 4][4 * (k & 3) + 1],
                                              q[k / 4][4 * (k & 3) + 2], q[k / 4][4 * (k & 3) + 3],
                                              further(f, k / 4 * TILE + (k & 3) * KR_K_STEP_BYTES), k > 0);
  kr_wgmma_commit();
}

/* 32 columns of P as an operand, from C B^T. MASKED: they include the warp's own tokens, or later ones. own_products:
 * of a lane's tokens with themselves, if it has them. */
template <int HALF, int MASKED>
KR_DEV void weigh_half(const float (&cb)[Q / 2], uint32_t (&w)[Q / 4], const kr_mamba3_chunk_steps &s, const lanes &me,
                       float D, float (&own_products)[2]) {
  const float a[2] = {s.a[me.row], s.a[me.row + 8]}, own[2] = {s.own[me.row], s.own[me.row + 8]};
  const int last = me.row - 2 * me.q;
  kr_float2 from[4];
#pragma unroll
  for (int j = 0; j < 4; j++) from[j] = *(const kr_float2 *)&s.from[32 * HALF + 8 * j + 2 * me.q];
  float v[16];
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const int column = 32 * HALF + 8 * (i >> 2) + (i & 1), r = i >> 1 & 1;
    v[i] = cb[16 * HALF + i] * kr_exp2(a[r] - from[i >> 2].v[i & 1]);
    if (!MASKED) continue;
    v[i] = column < last + 8 * r ? v[i] : 0.0f;
    if ((i >> 2 & 1) == r && column == last + 8 * r)
      v[i] = kr_fma(cb[16 * HALF + i], own[r], D), own_products[r] = cb[16 * HALF + i];
  }
#pragma unroll
  for (int i = 0; i < 8; i++) w[8 * HALF + i] = pack(v[2 * i], v[2 * i + 1]);
}
KR_DEV void weigh(const float (&cb)[Q / 2], uint32_t (&w)[Q / 4], const kr_mamba3_chunk_steps &s, const lanes &me,
                  float D, float (&own_products)[2]) {
  if (me.warp < 2) {
    weigh_half<0, 1>(cb, w, s, me, D, own_products);
#pragma unroll
    for (int i = 0; i < 8; i++) w[8 + i] = 0; /* causally masked */
  } else {
    weigh_half<0, 0>(cb, w, s, me, D, own_products);
    weigh_half<1, 1>(cb, w, s, me, D, own_products);
  }
}

/* Y, times its gate, to the warp's rows of a tile. */
KR_DEV void put_output(int has_gate, const lanes &me, float (&y)[Q / 2], const unsigned char *gate,
                       unsigned char *tile) {
  if (has_gate) {
#pragma unroll
    for (int j = 0; j < Q / 8; j += 2) {
      uint32_t z[4];
      take_matrices(z, gate, me, j);
#pragma unroll
      for (int k = 0; k < 8; k++) y[4 * j + k] *= kr_silu(kr_unpack(z[k >> 1], k & 1, KR_DTYPE));
    }
  }
#pragma unroll
  for (int j = 0; j < Q / 8; j += 2)
    put_matrices(tile, me, j, pack(y[4 * j], y[4 * j + 1]), pack(y[4 * j + 2], y[4 * j + 3]),
                 pack(y[4 * j + 4], y[4 * j + 5]), pack(y[4 * j + 6], y[4 * j + 7]));
  kr_sync_warp();
}

/* A warp's rows of the tile to global memory. */
KR_DEV void write_output(const kr_mamba3_walk_params &w, const task &t, int c, const lanes &me,
                         const unsigned char *tile) {
  const kr_mamba3_params &p = w.f;
  const int first = 16 * me.warp + (me.lane >> 3), chunk = me.lane & 7,
            left = p.L - (int64_t)c * Q < Q ? (int)(p.L - (int64_t)c * Q) : (int)Q;
  uint16_t *to = (uint16_t *)p.out.data + at4(p.out, t.b, (int64_t)c * Q + first, t.h, 8 * chunk);
  kr_raw16 eight[4];
#pragma unroll
  for (int i = 0; i < 4; i++) eight[i] = read_shared(tile + kr_swizzle<128>(first + 4 * i, chunk));
#pragma unroll
  for (int i = 0; i < 4; i++, to += 4 * p.out.stride[1]) {
    if (first + 4 * i >= left || 8 * chunk >= p.P) continue;
    if (has_infinity(eight[i])) w.spoilt[t.unit] = 1; /* by the output, or by the state in 16 bits */
    write_global(to, eight[i]);
  }
  kr_sync_warp();
}

KR_DEV kr_float4 *handed(const kr_mamba3_walk_params &w, int block) {
  return (kr_float4 *)(w.states + (int64_t)block * 64 * N);
}
KR_DEV void begin_state(const kr_mamba3_walk_params &w, const task &t, const lanes &me, float (&s)[N / 2]) {
  if (t.first == 0) {
    clear_state(s);
    return;
  }
  if (me.thread == 0) kr_await(w.ready + kr_block_x() - 1, 1);
  sync_walkers(1);
  read_fragments(handed(w, kr_block_x() - 1), me, s);
}
KR_DEV void end_state(const kr_mamba3_walk_params &w, const task &t, const lanes &me, const float (&s)[N / 2],
                      int spoilt) {
  if (spoilt || nonfinite_state(s)) w.spoilt[t.unit] = 1;
  if (t.end == w.f.n_chunks) return;
  write_fragments(handed(w, kr_block_x()), me, s);
  sync_walkers(1);
  if (me.thread == 0) kr_publish(w.ready + kr_block_x(), 1);
}

/* Of one thread: a chunk's queries; its keys and the state before it, to memory. */
KR_DEV void keep_tile(uint64_t map, uint32_t from, const task &t, int c) {
#pragma unroll
  for (int n = 0; n < BLOCKS; n++) kr_store_box(map, from + n * TILE, 64 * n, c * Q, t.h, t.b);
}
KR_DEV void keep_state(const kr_mamba3_walk_params &w, const task &t, int c, uint32_t from) {
  kr_store_bytes((char *)w.S + (((int64_t)t.b * w.f.n_chunks + c) * w.f.H + t.h) * w.S_bytes, from, w.S_bytes);
}

/* The products of a chunk's tokens with themselves, and what then multiplies x in the gradient's SSD. */
KR_DEV void keep_products(const kr_mamba3_params &p, const task &t, int c, const lanes &me, float D,
                          const float (&products)[2]) {
  if (me.g >> 1 != me.q) return;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int64_t at = (int64_t)c * Q + me.row + 8 * r, place = (int64_t)t.unit * p.L + at;
    if (at >= p.L) continue;
    p.dots[place] = products[r], p.skips[place] = kr_fma(p.gamma[place], products[r], D);
  }
}

/* The tokens' warpgroup. use: chunks so far. */
KR_DEV void walk_tokens(const kr_mamba3_walk_params &w, const task &t, uint64_t maps, unsigned char *shared,
                        uint32_t base, int &use) {
  const kr_mamba3_params &p = w.f;
  const sources from = sources_of(w, t, maps);
  const float D = p.Dvec.data ? get(p.Dvec, t.h * p.Dvec.stride[0]) : 0.0f;
  const int n_turning = (p.M + 31) / 32, has_gate = p.z.data != nullptr, keeps = w.S != nullptr;
  if (kr_thread() == INPUTS_COPIER)
    for (int i = 0; i < 2 && t.first + i < t.end; i++) copy_inputs(from, t, t.first + i, use + i, base);
  if (has_gate && kr_thread() == GATE_COPIER) copy_gate(from, t, t.first, base);
  put_walk_biases(p, p.C_bias, t.h, kr_thread(), (float *)(shared + BIASES_AT));
  sync_walkers(0);
  for (int c = t.first; c < t.end; c++, use++) {
    const lanes me = lanes_of(anew(kr_thread())); /* addresses are recomputed for lack of registers */
    const int stage = use % STAGES;
    const kr_mamba3_chunk_steps &steps =
        *(const kr_mamba3_chunk_steps *)(shared + anew(STEPS_AT + stage * KR_MAMBA3_STEPS_BYTES));
    float cb[Q / 2], y[Q / 2], products[2] = {0, 0};
    uint32_t q[2][16], weighed[Q / 4];
    kr_barrier_await(base + KEYS_FULL, parity_of(use, 1));
    turn_queries(shared, me, n_turning, keeps, q);
    if (keeps) {
      sync_walkers(0);
      if (me.thread == QUERIES_KEEPER) keep_tile(maps + 4 * sizeof(kr_ssd_map), base + C_AT, t, c), kr_commit_stores();
    } else {
      release(base + C_READ, me);
    }
    kr_barrier_await(base + KEYS_READY, parity_of(use, 1));
    start_queries(q, uniform(base + K_AT), cb);
    kr_barrier_await(base + STATE_READY, parity_of(use, 1));
    start_queries(q, uniform(base + STATE_AT), y);
    if (c > t.first) write_output(w, t, c - 1, me, shared + Y_AT);
    kr_barrier_await(base + FULL + 8 * stage, parity_of(use, STAGES));
    kr_wgmma_wait<Q, 0>(cb);
    kr_wgmma_wait<PB, 0>(y);
    release(base + KEYS_READ, me);
    weigh(cb, weighed, steps, me, D, products);
    if (keeps) {
      keep_products(p, t, c, me, D, products);
      if (me.thread == QUERIES_KEEPER) kr_stores_read<0>();
      release(base + C_READ, me);
    }
    const float low = steps.reach[me.row], high = steps.reach[me.row + 8];
#pragma unroll
    for (int i = 0; i < PB / 2; i++) y[i] *= i & 2 ? high : low;
    start_sum<PB>(uniform(base + X_AT + stage * TILE), weighed, y, 1);
    kr_wgmma_wait<PB, 0>(y);
    if (has_gate) kr_barrier_await(base + GATE_FULL, parity_of(use, 1));
    put_output(has_gate, me, y, shared + Z_AT, shared + Y_AT);
    sync_walkers(0); /* all four warps have read inputs and the gate */
    if (me.thread == INPUTS_COPIER && c + 2 < t.end) copy_inputs(from, t, c + 2, use + 2, base);
    if (has_gate && me.thread == GATE_COPIER && c + 1 < t.end) copy_gate(from, t, c + 1, base);
  }
  write_output(w, t, t.end - 1, lanes_of(kr_thread()), shared + Y_AT);
}

/* The states' warpgroup. */
KR_DEV void walk_states(const kr_mamba3_walk_params &w, const task &t, uint64_t maps, unsigned char *shared,
                        uint32_t base, int &use) {
  const kr_mamba3_params &p = w.f;
  const lanes whole = lanes_of(kr_thread());
  const sources from = sources_of(w, t, maps);
  const int n_turning = (p.M + 31) / 32, keeps = w.S != nullptr;
  float s[N / 2];
  int spoilt = 0;
  if (kr_thread() == KEYS_COPIER) copy_keys(from, t, t.first, use, base);
  put_walk_biases(p, p.B_bias, t.h, whole.thread, (float *)(shared + BIASES_AT) + N);
  begin_state(w, t, whole, s);
  sync_walkers(1);
  for (int c = t.first; c < t.end; c++, use++) {
    const lanes me = lanes_of(anew(kr_thread()));
    const int stage = use % STAGES, is_copier = kr_thread() == KEYS_COPIER;
    const kr_mamba3_chunk_steps &steps =
        *(const kr_mamba3_chunk_steps *)(shared + anew(STEPS_AT + stage * KR_MAMBA3_STEPS_BYTES));
    uint32_t inputs[Q / 4];
    kr_barrier_await(base + KEYS_READ, parity_of(use, 1) ^ 1);
    share_state(shared + STATE_AT, me, s);
    release(base + STATE_READY, me);
    kr_barrier_await(base + KEYS_FULL, parity_of(use, 1));
    turn_keys(shared, me, n_turning);
    release(base + KEYS_READY, me);
    sync_walkers(1); /* all four warps have written keys and the state, and read B */
    if (keeps && is_copier) {
      keep_tile(maps + 5 * sizeof(kr_ssd_map), base + K_AT, t, c), keep_state(w, t, c, base + STATE_AT);
      kr_commit_stores();
    }
    kr_barrier_await(base + FULL + 8 * stage, parity_of(use, STAGES));
    spoilt |= decay_state(steps.keeps, s);
    weigh_inputs(shared + anew(X_AT + stage * TILE), inputs, steps.left, me);
    start_sum<N>(uniform(base + K_AT), inputs, s, steps.keeps != 0);
    if (is_copier && c + 1 < t.end) copy_keys(from, t, c + 1, use + 1, base);
    kr_wgmma_wait<N, 0>(s);
    release(base + INPUTS_READ + 8 * stage, me);
    if (keeps && is_copier) kr_stores_read<0>();
    sync_walkers(1); /* all four warps have read keys */
  }
  end_state(w, t, whole, s, spoilt);
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_walk(const kr_mamba3_walk_params params) {
  const kr_mamba3_walk_params &w = params;
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_mamba3_walk, maps);
  KR_DYNAMIC_SHARED(all);
  const uint32_t start = kr_shared_at(all), base = (start + 1023) & ~1023u;
  unsigned char *const shared = all + (base - start);
  if (kr_thread() == 0) {
    kr_barrier_open(base + KEYS_FULL, 1), kr_barrier_open(base + GATE_FULL, 1);
    for (int i = 0; i < STAGES; i++) kr_barrier_open(base + FULL + 8 * i, 1);
    for (int at = C_READ; at < INPUTS_READ + 8 * STAGES; at += 8) kr_barrier_open(base + at, GROUP / 32);
    kr_barriers_opened();
  }
  kr_sync();
  int use = 0;
  if (kr_thread() < GROUP) {
    kr_take_registers<TOKENS_REGS>();
    for (int i = 0, n = n_tasks(w); i < n; i++) walk_tokens(w, task_at(w, i), maps, shared, base, use);
  } else {
    kr_give_registers<STATES_REGS>();
    for (int i = 0, n = n_tasks(w); i < n; i++) walk_states(w, task_at(w, i), maps, shared, base, use);
  }
}

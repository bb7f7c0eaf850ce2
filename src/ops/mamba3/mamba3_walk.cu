/* mamba3_walk.cu: Mamba 3's scan on warpgroups (sm_90a), of one rank whose neighbours turn, up to 64 channels and 128
 * states, without keys and queries of every head in memory; compiled for float16 and bfloat16 storage (KR_DTYPE).
 * A block is a warpgroup that walks through a head's chunks of 64 tokens with the state in its accumulators. It adds
 * biases to B and C and turns them: a query is an operand in registers, of both its products; a key goes to shared
 * memory. A few threads ask for boxes of x, z, B and C, and for packets (mamba3_packets.cu), as soon as all have read
 * those before. A token's key is weighted as it reaches later tokens; its own output, the diagonal of P, has another
 * weight, and D. Two blocks a multiprocessor.
 * With S and `y`, of a forward call whose gradient follows: states before chunks, the output before its gate and the
 * products of tokens with themselves are kept. With S alone, of a gradient without these: the same without y, queries
 * and keys, and in place of the output dy before the gate and dz, whose tiles are those of dout and z.
 * NaN and infinity: such heads are flagged, for kr_mamba3_walk_again.
 *   kr_mamba3_walk       all of this
 *   kr_mamba3_walk_back  the gradients of the states after chunks, from dy and queries, of at most 32 pairs; with `y`
 *                        a second warpgroup makes dy and dz, of dout, z and what was kept */
#include "mamba3_turn.cuh"

enum { THREADS = KR_MAMBA3_WALK_THREADS, STAGES = 2, STEPS = N / 16 };
enum { FORTH = 1, BACK = 2 }; /* ways; also what a block says when it has handed on a state */
enum { STATES_BARRIER = 1, GATE_BARRIER = 2 };                  /* of a warpgroup */
enum { KEYS_COPIER = 0, INPUTS_COPIER = 32, GATE_COPIER = 64 }; /* threads, of a warp each */

/* Byte offsets from the first multiple of 1024 in shared memory. */
enum {
  C_AT = 0,
  B_AT = C_AT + BLOCKS * TILE,
  K_AT = B_AT + BLOCKS * TILE,
  STATE_AT = K_AT + BLOCKS * TILE,
  X_AT = STATE_AT + BLOCKS * TILE,
  Y_AT = X_AT + STAGES * TILE,
  Z_AT = Y_AT + TILE,
  GATES_AT = B_AT,   /* of the walk back: z, a stage each */
  OUTPUTS_AT = Y_AT, /* of the walk back: y before the gate, a stage each */
  STEPS_AT = Z_AT + TILE,
  BIASES_AT = STEPS_AT + STAGES * KR_MAMBA3_STEPS_BYTES, /* of queries, then keys, as lanes take them */
  KEYS_FULL = BIASES_AT + 2 * N * 4,
  FULL = KEYS_FULL + 8,
  GATE_FULL = FULL + 8 * STAGES,
  GIVEN = GATE_FULL + 8,       /* of the walk back: dy of a stage is there */
  STORED = GIVEN + 8 * STAGES, /* dy and dz have been stored */
  TURNS_AT = KR_MAMBA3_WALK_BESIDE
};
static_assert(STAGES == 2 && BLOCKS == 2, "z and y of the walk back have a stage each");
static_assert(STORED + 8 * STAGES <= TURNS_AT && sizeof(kr_mamba3_chunk_steps) <= KR_MAMBA3_STEPS_BYTES,
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

/* The tile of a chunk's output before the gate. */
KR_DEV unsigned char *output_at(const kr_mamba3_walk_params &w, const task &t, int c) {
  return w.y + (((int64_t)t.b * w.f.n_chunks + c) * w.f.H + t.h) * TILE;
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
KR_DEV void copy_keys(const sources &from, const task &t, int c, uint32_t base) {
  const uint64_t map_B = from.maps + 2 * sizeof(kr_ssd_map), map_C = map_B + sizeof(kr_ssd_map);
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
/* more: bytes that come beside. */
KR_DEV void copy_inputs(const sources &from, const task &t, int c, int stage, int more, uint32_t base) {
  const uint32_t full = base + FULL + 8 * stage;
  kr_barrier_expect(full, TILE + KR_MAMBA3_STEPS_BYTES + more);
  kr_load_box(base + X_AT + stage * TILE, from.maps, full, 0, c * Q, t.h, t.b);
  kr_load_bytes(base + STEPS_AT + stage * KR_MAMBA3_STEPS_BYTES, from.packets + (int64_t)c * from.packet_bytes,
                KR_MAMBA3_STEPS_BYTES, full);
}
KR_DEV void copy_gate(const sources &from, const task &t, int c, int goes_back, uint32_t base) {
  kr_barrier_expect(base + GATE_FULL, goes_back ? 2 * TILE : (int)TILE);
  kr_load_box(base + Z_AT, from.maps + sizeof(kr_ssd_map), base + GATE_FULL, 0, c * Q, t.h, t.b);
  if (goes_back) kr_load_box(base + Y_AT, from.maps + 6 * sizeof(kr_ssd_map), base + GATE_FULL, 0, c * Q, t.h, t.b);
}

/* ---- the warpgroup ----------------------------------------------------------------------------------------------- */

/* Two neighbours with their biases, turned (TURNS). */
template <int TURNS>
KR_DEV uint32_t turned(uint32_t two, float first, float second, uint32_t by) {
  const float x = kr_unpack(two, 0, KR_DTYPE) + first, y = kr_unpack(two, 1, KR_DTYPE) + second;
  if (!TURNS) return pack(x, y);
  const float c = kr_unpack(by, 0, KRAIT_F16), s = kr_unpack(by, 1, KRAIT_F16);
  return pack(kr_fma(c, x, -(s * y)), kr_fma(s, x, c * y));
}

/* 64 columns of a warp's 16 tokens: queries to registers as an operand, and (keeps) in place of C; keys to a tile. All
 * is loaded before the first store, which loads cannot pass. */
template <int BLOCK, int TURNS>
KR_DEV void turn_block(unsigned char *shared, const lanes &me, int keeps, uint32_t (&q)[4 * STEPS]) {
  const float *const biases = (const float *)(shared + BIASES_AT) + 64 * BLOCK + 4 * me.q;
  uint32_t B[4][4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    uint32_t C[4];
    take_matrices(C, shared + C_AT + BLOCK * TILE, me, 2 * k);
    take_matrices(B[k], shared + B_AT + BLOCK * TILE, me, 2 * k);
#pragma unroll
    for (int i = 0; i < 4; i++) q[16 * BLOCK + 4 * k + i] = C[i];
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const kr_float4 own_C = *(const kr_float4 *)(biases + 16 * k), own_B = *(const kr_float4 *)(biases + N + 16 * k);
    kr_raw16 by = {};
    if (TURNS) by = *(const kr_raw16 *)(shared + TURNS_AT + 2048 * (4 * BLOCK + k) + 16 * me.thread);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint32_t &own = q[16 * BLOCK + 4 * k + i];
      own = turned<TURNS>(own, own_C.v[i & 2], own_C.v[(i & 2) + 1], by.w[i]);
      B[k][i] = turned<TURNS>(B[k][i], own_B.v[i & 2], own_B.v[(i & 2) + 1], by.w[i]);
    }
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const uint32_t *const own = q + 16 * BLOCK + 4 * k;
    put_matrices(shared + K_AT + BLOCK * TILE, me, 2 * k, B[k][0], B[k][1], B[k][2], B[k][3]);
    if (keeps) put_matrices(shared + C_AT + BLOCK * TILE, me, 2 * k, own[0], own[1], own[2], own[3]);
  }
}
/* n_turning: blocks of 64 columns, or 32 pairs. */
KR_DEV void turn_tokens(unsigned char *shared, const lanes &me, int n_turning, int keeps, uint32_t (&q)[4 * STEPS]) {
  if (n_turning > 0)
    turn_block<0, 1>(shared, me, keeps, q);
  else
    turn_block<0, 0>(shared, me, keeps, q);
  if (n_turning > 1)
    turn_block<1, 1>(shared, me, keeps, q);
  else
    turn_block<1, 0>(shared, me, keeps, q);
  kr_show_to_copies();
}

/* Starts d = q F^T, F of 64 rows; in flight on return. */
KR_DEV void start_queries(const uint32_t (&q)[4 * STEPS], uint32_t F, float (&d)[32]) {
  const uint64_t f = kr_k_major(F);
  kr_wgmma_begin();
#pragma unroll
  for (int k = 0; k < STEPS; k++)
    kr_wgmma_step_registers<64, half_type, 0>(d, q[4 * k], q[4 * k + 1], q[4 * k + 2], q[4 * k + 3],
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
  values_of_columns<HALF>(s.from, me, from);
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

/* Y, times its gate, to the warp's rows of a tile; has_y: as it was, in place of the gate. Whether that is infinite. */
KR_DEV int put_output(int has_gate, int has_y, const lanes &me, float (&y)[Q / 2], unsigned char *gate,
                      unsigned char *tile) {
  int spoilt = 0;
  if (has_gate) {
#pragma unroll
    for (int j = 0; j < Q / 8; j += 2) {
      float *const e = y + 4 * j;
      uint32_t z[4];
      take_matrices(z, gate, me, j);
      if (has_y) {
        const kr_raw16 own = {{pack(e[0], e[1]), pack(e[2], e[3]), pack(e[4], e[5]), pack(e[6], e[7])}};
        kr_sync_warp();
        put_matrices(gate, me, j, own.w[0], own.w[1], own.w[2], own.w[3]);
        spoilt |= has_infinity(own);
      }
#pragma unroll
      for (int k = 0; k < 8; k++) e[k] *= kr_silu(kr_unpack(z[k >> 1], k & 1, KR_DTYPE));
    }
  }
  put_product(tile, me, y);
  return spoilt;
}

/* A warp's rows of y before the gate, in place of the gate and shown to copies, to memory. */
KR_DEV void keep_output(const kr_mamba3_walk_params &w, const task &t, int c, const lanes &me, uint32_t base) {
  kr_sync_warp();
  if (me.lane) return;
  kr_store_bytes(output_at(w, t, c) + me.warp * (TILE / 4), base + Z_AT + me.warp * (TILE / 4), TILE / 4);
  kr_commit_stores();
}

/* Of dout, z and y before the gate: dy and dz. */
KR_DEV void pass_back(float dout, float gate, float y, float &dy, float &dz) {
  const float s = kr_sigmoid(gate);
  dy = dout * gate * s;
  dz = dout == 0 ? 0.0f : dout * y * s * kr_fma(gate, 1.0f - s, 1.0f);
}

/* Of y, z and dout: dy before the gate in place of dout, dz in place of z. */
KR_DEV void leave_gate(const lanes &me, const float (&y)[Q / 2], unsigned char *gate, unsigned char *tile) {
#pragma unroll
  for (int j = 0; j < Q / 8; j += 2) {
    uint32_t z[4], d[4];
    take_matrices(z, gate, me, j);
    take_matrices(d, tile, me, j);
    kr_sync_warp();
    float dy[8], dz[8];
#pragma unroll
    for (int k = 0; k < 8; k++)
      pass_back(kr_unpack(d[k >> 1], k & 1, KR_DTYPE), kr_unpack(z[k >> 1], k & 1, KR_DTYPE), y[4 * j + k], dy[k],
                dz[k]);
    put_matrices(tile, me, j, pack(dy[0], dy[1]), pack(dy[2], dy[3]), pack(dy[4], dy[5]), pack(dy[6], dy[7]));
    put_matrices(gate, me, j, pack(dz[0], dz[1]), pack(dz[2], dz[3]), pack(dz[4], dz[5]), pack(dz[6], dz[7]));
  }
  kr_sync_warp();
}

/* A warp's rows of a tile to global memory. */
KR_DEV void write_output(const kr_mamba3_walk_params &w, const kr_view &out, const task &t, int c, const lanes &me,
                         const unsigned char *tile) {
  const kr_mamba3_params &p = w.f;
  const int first = 16 * me.warp + (me.lane >> 3), chunk = me.lane & 7,
            left = p.L - (int64_t)c * Q < Q ? (int)(p.L - (int64_t)c * Q) : (int)Q;
  uint16_t *to = (uint16_t *)out.data + at4(out, t.b, (int64_t)c * Q + first, t.h, 8 * chunk);
  kr_raw16 eight[4];
#pragma unroll
  for (int i = 0; i < 4; i++) eight[i] = read_shared(tile + kr_swizzle<128>(first + 4 * i, chunk));
#pragma unroll
  for (int i = 0; i < 4; i++, to += 4 * out.stride[1]) {
    if (first + 4 * i >= left || 8 * chunk >= p.P) continue;
    if (has_infinity(eight[i])) w.spoilt[t.unit] = 1; /* by the output, or by the state in 16 bits */
    write_global(to, eight[i]);
  }
  kr_sync_warp();
}

/* Of the warpgroup that has the state. */
KR_DEV void sync_states(void) { kr_sync_at<THREADS>(STATES_BARRIER); }

KR_DEV kr_float4 *handed(const kr_mamba3_walk_params &w, int block) {
  return (kr_float4 *)(w.states + (int64_t)block * 64 * N);
}
template <int WAY>
KR_DEV void begin_state(const kr_mamba3_walk_params &w, const task &t, const lanes &me, float (&s)[N / 2]) {
  if (t.first == 0) {
    clear_state(s);
    return;
  }
  if (me.thread == 0) kr_await(w.ready + kr_block_x() - 1, WAY);
  sync_states();
  read_fragments(handed(w, kr_block_x() - 1), me, s);
}

/* Of float16: whether a state has left its range. Its head is to be flagged before mamba3_inner.cu runs, which takes no
 * part in heads that are computed again: infinity in the sums made of it would be met too late. */
KR_DEV int leaves_range(const float (&s)[N / 2]) {
  int leaves = 0;
#pragma unroll
  for (int i = 0; i < N / 2; i++) leaves |= s[i] > 65504.0f || s[i] < -65504.0f;
  return KR_DTYPE == KRAIT_F16 && leaves;
}

template <int WAY>
KR_DEV void end_state(const kr_mamba3_walk_params &w, const task &t, const lanes &me, const float (&s)[N / 2],
                      int spoilt) {
  if (spoilt || nonfinite_state(s)) w.spoilt[t.unit] = 1;
  if (t.end == w.f.n_chunks) return;
  if (leaves_range(s)) w.spoilt[t.unit] = 1;
  write_fragments(handed(w, kr_block_x()), me, s);
  sync_states();
  if (me.thread == 0) kr_publish(w.ready + kr_block_x(), WAY);
}

/* Of one thread: a state to memory. */
KR_DEV void keep_state(const kr_mamba3_walk_params &w, const task &t, int c, uint32_t base) {
  kr_store_bytes((char *)w.S + (((int64_t)t.b * w.f.n_chunks + c) * w.f.H + t.h) * w.S_bytes, base + STATE_AT,
                 w.S_bytes);
  kr_commit_stores();
}

/* Of one thread: a chunk's queries, keys and the state before it, to memory. */
KR_DEV void keep_tiles(const kr_mamba3_walk_params &w, const task &t, int c, uint64_t maps, uint32_t base) {
  const uint64_t map_q = maps + 4 * sizeof(kr_ssd_map), map_k = map_q + sizeof(kr_ssd_map);
#pragma unroll
  for (int n = 0; n < BLOCKS && w.keeps_rows; n++) {
    kr_store_box(map_q, base + C_AT + n * TILE, 64 * n, c * Q, t.h, t.b);
    kr_store_box(map_k, base + K_AT + n * TILE, 64 * n, c * Q, t.h, t.b);
  }
  keep_state(w, t, c, base);
}

/* The products of a chunk's tokens with themselves; of a gradient, what then multiplies x in its SSD. */
KR_DEV void keep_products(const kr_mamba3_params &p, const task &t, int c, const lanes &me, float D,
                          const float (&products)[2]) {
  if (me.g >> 1 != me.q) return;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int64_t at = (int64_t)c * Q + me.row + 8 * r, place = (int64_t)t.unit * p.L + at;
    if (at >= p.L) continue;
    p.dots[place] = products[r];
    if (p.skips) p.skips[place] = kr_fma(p.gamma[place], products[r], D);
  }
}

KR_DEV void walk_task(const kr_mamba3_walk_params &w, const task &t, uint64_t maps, unsigned char *shared,
                      uint32_t base, int &use) {
  const kr_mamba3_params &p = w.f;
  const lanes whole = lanes_of(kr_thread());
  const sources from = sources_of(w, t, maps);
  const float D = p.Dvec.data ? get(p.Dvec, t.h * p.Dvec.stride[0]) : 0.0f;
  const int n_turning = (p.M + 31) / 32, has_gate = p.z.data != nullptr, keeps = w.S != nullptr, has_y = w.y != nullptr,
            goes_back = keeps && !has_y, has_rows = goes_back && w.keeps_rows;
  float s[N / 2];
  int spoilt = 0;
  if (whole.thread == KEYS_COPIER) copy_keys(from, t, t.first, base);
  if (whole.thread == INPUTS_COPIER) {
    copy_inputs(from, t, t.first, use % STAGES, 0, base);
    if (t.first + 1 < t.end) copy_inputs(from, t, t.first + 1, (use + 1) % STAGES, 0, base);
  }
  if (has_gate && whole.thread == GATE_COPIER) copy_gate(from, t, t.first, goes_back, base);
  begin_state<FORTH>(w, t, whole, s);
  put_own_biases(p.C_bias, t.h, p.N, whole.thread, (float *)(shared + BIASES_AT));
  put_own_biases(p.B_bias, t.h, p.N, whole.thread, (float *)(shared + BIASES_AT) + N);
  share_state(shared + STATE_AT, whole, s);
  kr_sync();
  for (int c = t.first; c < t.end; c++, use++) {
    const lanes me = lanes_of(anew(kr_thread())); /* addresses are recomputed for lack of registers */
    const int stage = use % STAGES;
    const unsigned char *const x = shared + anew(X_AT + stage * TILE);
    const kr_mamba3_chunk_steps &steps =
        *(const kr_mamba3_chunk_steps *)(shared + anew(STEPS_AT + stage * KR_MAMBA3_STEPS_BYTES));
    const uint32_t X = uniform(base + X_AT + stage * TILE), K = uniform(base + K_AT);
    float cb[Q / 2], y[Q / 2];
    uint32_t q[4 * STEPS], weighed[Q / 4], inputs[Q / 4];
    kr_barrier_await(base + KEYS_FULL, parity_of(use, 1));
    turn_tokens(shared, me, n_turning, has_rows, q);
    if (has_y && me.lane == 0) kr_stores_read<0>();
    kr_sync();
    if (keeps && me.thread == KEYS_COPIER) keep_tiles(w, t, c, maps, base);
    if (has_y && c > t.first && me.thread == GATE_COPIER) copy_gate(from, t, c, 0, base);
    if (!has_rows && me.thread == KEYS_COPIER && c + 1 < t.end) copy_keys(from, t, c + 1, base);
    start_queries(q, K, cb);
    start_queries(q, uniform(base + STATE_AT), y);
    if (!goes_back && c > t.first) write_output(w, p.out, t, c - 1, me, shared + Y_AT);
    kr_barrier_await(base + FULL + 8 * stage, parity_of(use, STAGES));
    kr_wgmma_wait<Q, 0>(cb);
    kr_wgmma_wait<PB, 0>(y);
    spoilt |= decay_state(steps.keeps, s);
    float products[2] = {0, 0};
    weigh(cb, weighed, steps, me, D, products);
    if (has_rows && me.thread == KEYS_COPIER) kr_stores_read<0>();
    if (has_rows && me.thread == KEYS_COPIER && c + 1 < t.end) copy_keys(from, t, c + 1, base);
    if (keeps) keep_products(p, t, c, me, D, products);
    const float low = steps.reach[me.row], high = steps.reach[me.row + 8];
#pragma unroll
    for (int i = 0; i < PB / 2; i++) y[i] *= i & 2 ? high : low;
    start_sum<PB>(X, weighed, y, 1);
    weigh_inputs(x, inputs, steps.left, me);
    start_sum<N>(K, inputs, s, steps.keeps != 0);
    kr_wgmma_wait<PB, 1>(y);
    if (has_gate) kr_barrier_await(base + GATE_FULL, parity_of(use, 1));
    if (goes_back) {
      leave_gate(me, y, shared + Z_AT, shared + Y_AT);
      kr_show_to_copies(); /* before the stores, which it would wait for */
      write_output(w, p.out, t, c, me, shared + Y_AT);
      if (w.dz.data) write_output(w, w.dz, t, c, me, shared + Z_AT);
    } else {
      spoilt |= put_output(has_gate, has_y, me, y, shared + Z_AT, shared + Y_AT);
    }
    kr_wgmma_wait<N, 0>(s);
    if (keeps && me.thread == KEYS_COPIER) kr_stores_read<0>();
    if (c + 1 == t.end) continue;
    kr_sync(); /* all four warps have read keys, inputs, the gate and the previous state */
    if (me.thread == INPUTS_COPIER && c + 2 < t.end) copy_inputs(from, t, c + 2, stage, 0, base);
    if (has_gate && !has_y && me.thread == GATE_COPIER) copy_gate(from, t, c + 1, goes_back, base);
    spoilt |= keeps && leaves_range(s);
    share_state(shared + STATE_AT, me, s);
    if (has_y) keep_output(w, t, c, me, base);
  }
  if (!goes_back) write_output(w, p.out, t, t.end - 1, whole, shared + Y_AT);
  if (has_y) {
    kr_show_to_copies();
    keep_output(w, t, t.end - 1, whole, base);
    if (whole.lane == 0) kr_stores_read<0>();
  }
  end_state<FORTH>(w, t, whole, s, spoilt);
}

/* ---- back -------------------------------------------------------------------------------------------------------- */

KR_DEV void copy_queries(const sources &from, const task &t, int c, uint32_t base) {
  kr_barrier_expect(base + KEYS_FULL, BLOCKS * TILE + from.turns);
#pragma unroll
  for (int n = 0; n < BLOCKS; n++)
    kr_load_box(base + C_AT + n * TILE, from.maps + 3 * sizeof(kr_ssd_map), base + KEYS_FULL, 64 * n, c * Q, from.g,
                t.b);
  kr_load_bytes(base + TURNS_AT, from.packets + (int64_t)c * from.packet_bytes + KR_MAMBA3_STEPS_BYTES, from.turns,
                base + KEYS_FULL);
}

/* x, or dout, with z and y. */
KR_DEV void copy_outputs(const kr_mamba3_walk_params &w, const sources &from, const task &t, int c, int stage,
                         uint32_t base) {
  const uint32_t full = base + FULL + 8 * stage;
  copy_inputs(from, t, c, stage, w.y ? 2 * TILE : 0, base);
  if (!w.y) return;
  kr_load_box(base + GATES_AT + stage * TILE, from.maps + sizeof(kr_ssd_map), full, 0, c * Q, t.h, t.b);
  kr_load_bytes(base + OUTPUTS_AT + stage * TILE, output_at(w, t, c), TILE, full);
}

/* Of tiles of dout, z and y before the gate: dy in place of dout, dz in place of z. Whether one is infinite. */
KR_DEV int leave_gate_of_tiles(const lanes &me, unsigned char *douts, unsigned char *gates, const unsigned char *ys) {
  int spoilt = 0;
#pragma unroll
  for (int j = 0; j < Q / 8; j += 2) {
    uint32_t z[4], d[4], y[4];
    kr_raw16 to[2];
    take_matrices(d, douts, me, j), take_matrices(z, gates, me, j), take_matrices(y, ys, me, j);
    kr_sync_warp();
#pragma unroll
    for (int k = 0; k < 4; k++) {
      float dy[2], dz[2];
#pragma unroll
      for (int e = 0; e < 2; e++)
        pass_back(kr_unpack(d[k], e, KR_DTYPE), kr_unpack(z[k], e, KR_DTYPE), kr_unpack(y[k], e, KR_DTYPE), dy[e],
                  dz[e]);
      to[0].w[k] = pack(dy[0], dy[1]), to[1].w[k] = pack(dz[0], dz[1]);
    }
    put_matrices(douts, me, j, to[0].w[0], to[0].w[1], to[0].w[2], to[0].w[3]);
    put_matrices(gates, me, j, to[1].w[0], to[1].w[1], to[1].w[2], to[1].w[3]);
    spoilt |= has_infinity(to[0]) | has_infinity(to[1]);
  }
  return spoilt;
}

/* Of one thread: a chunk's dy and dz to memory. */
KR_DEV void store_gate(const kr_mamba3_walk_params &w, const task &t, int c, int stage, uint64_t maps, uint32_t base) {
  kr_store_box(maps + 4 * sizeof(kr_ssd_map), base + X_AT + stage * TILE, 0, c * Q, t.h, t.b);
  if (w.dz.data) kr_store_box(maps + 5 * sizeof(kr_ssd_map), base + GATES_AT + stage * TILE, 0, c * Q, t.h, t.b);
  kr_commit_stores();
}
/* Of the same thread: a use of a stage has been stored. */
KR_DEV void leave_stage(int use, uint32_t base) {
  kr_stores_read<0>();
  kr_barrier_arrive(base + STORED + 8 * (use % STAGES));
}

/* A task's chunks are counted from the last one. */
KR_DEV void walk_back(const kr_mamba3_walk_params &w, const task &t, uint64_t maps, unsigned char *shared,
                      uint32_t base, int &use) {
  const kr_mamba3_params &p = w.f;
  const lanes whole = lanes_of(kr_thread());
  const sources from = sources_of(w, t, maps);
  const int last = p.n_chunks - 1, own_last = last - t.end + 1; /* the task's last chunk */
  float s[N / 2];
  int spoilt = 0;
  if (whole.thread == KEYS_COPIER) copy_queries(from, t, last - t.first, base);
  if (whole.thread == INPUTS_COPIER) {
    copy_outputs(w, from, t, last - t.first, use % STAGES, base);
    if (t.first + 1 < t.end) copy_outputs(w, from, t, last - t.first - 1, (use + 1) % STAGES, base);
  }
  begin_state<BACK>(w, t, whole, s);
  put_own_biases(p.C_bias, t.h, p.N, whole.thread, (float *)(shared + BIASES_AT));
  sync_states();
  for (int c = last - t.first; c >= own_last; c--, use++) {
    const lanes me = lanes_of(anew(kr_thread()));
    const int stage = use % STAGES;
    const kr_mamba3_chunk_steps &steps =
        *(const kr_mamba3_chunk_steps *)(shared + anew(STEPS_AT + stage * KR_MAMBA3_STEPS_BYTES));
    uint32_t inputs[Q / 4];
    spoilt |= leaves_range(s);
    share_state(shared + STATE_AT, me, s);
    kr_barrier_await(base + KEYS_FULL, parity_of(use, 1));
    turn_rows(shared + C_AT, shared + K_AT, (const float *)(shared + anew(BIASES_AT)), shared + anew(TURNS_AT), me);
    sync_states();
    if (me.thread == KEYS_COPIER) {
      if (c > own_last) copy_queries(from, t, c - 1, base);
      keep_state(w, t, c, base);
    }
    kr_barrier_await(base + FULL + 8 * stage, parity_of(use, STAGES));
    if (w.y) kr_barrier_await(base + GIVEN + 8 * stage, parity_of(use, STAGES));
    weigh_inputs(shared + anew(X_AT + stage * TILE), inputs, steps.reach, me);
    spoilt |= decay_state(steps.keeps, s);
    start_sum<N>(uniform(base + K_AT), inputs, s, steps.keeps != 0);
    kr_wgmma_wait<N, 0>(s);
    if (me.thread == KEYS_COPIER) kr_stores_read<0>();
    sync_states(); /* all four warps have read queries and inputs, and the state has been stored */
    if (me.thread == INPUTS_COPIER && c - 1 > own_last) {
      if (w.y) kr_barrier_await(base + STORED + 8 * stage, parity_of(use, STAGES));
      copy_outputs(w, from, t, c - 2, stage, base);
    }
  }
  end_state<BACK>(w, t, whole, s, spoilt);
}

/* The warpgroup beside that, given y: dy and dz. */
KR_DEV void pass_gate_back(const kr_mamba3_walk_params &w, const task &t, uint64_t maps, unsigned char *shared,
                           uint32_t base, int &use) {
  const int first = w.f.n_chunks - 1 - t.first, own_last = w.f.n_chunks - t.end;
  int spoilt = 0;
  for (int c = first; c >= own_last; c--, use++) {
    const lanes me = lanes_of(anew(kr_thread()));
    const int stage = use % STAGES;
    kr_barrier_await(base + FULL + 8 * stage, parity_of(use, STAGES));
    if (c < first && me.thread == 0) leave_stage(use - 1, base);
    spoilt |= leave_gate_of_tiles(me, shared + anew(X_AT + stage * TILE), shared + anew(GATES_AT + stage * TILE),
                                  shared + anew(OUTPUTS_AT + stage * TILE));
    kr_show_to_copies();
    release(base + GIVEN + 8 * stage, me);
    kr_sync_at<THREADS>(GATE_BARRIER);
    if (me.thread == 0) store_gate(w, t, c, stage, maps, base);
  }
  if (kr_thread() == THREADS) leave_stage(use - 1, base);
  if (spoilt) w.spoilt[t.unit] = 1;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

template <int WAY>
KR_DEV void walk_all(const kr_mamba3_walk_params &w, uint64_t maps) {
  KR_DYNAMIC_SHARED(all);
  const uint32_t start = kr_shared_at(all), base = (start + 1023) & ~1023u;
  unsigned char *const shared = all + (base - start);
  if (kr_thread() == 0) {
    kr_barrier_open(base + KEYS_FULL, 1), kr_barrier_open(base + GATE_FULL, 1);
    for (int i = 0; i < STAGES; i++)
      kr_barrier_open(base + FULL + 8 * i, 1), kr_barrier_open(base + GIVEN + 8 * i, THREADS / 32),
          kr_barrier_open(base + STORED + 8 * i, 1);
    kr_barriers_opened();
  }
  kr_sync();
  int use = 0;
  for (int i = 0, n = n_tasks(w); i < n; i++) {
    const task t = task_at(w, i);
    if (WAY == FORTH)
      walk_task(w, t, maps, shared, base, use);
    else if (kr_thread() < THREADS)
      walk_back(w, t, maps, shared, base, use);
    else
      pass_gate_back(w, t, maps, shared, base, use);
    kr_sync(); /* before the next task's copies */
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_mamba3_walk(const kr_mamba3_walk_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_mamba3_walk, maps);
  walk_all<FORTH>(params, maps);
}
KR_KERNEL void KR_BOUNDS(2 * THREADS, 2) kr_mamba3_walk_back(const kr_mamba3_walk_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_mamba3_walk_back, maps);
  walk_all<BACK>(params, maps);
}

/* ssd_hopper.cu: the SSD on warpgroups (sm_90a), same equation as ssd_chunks.cu; compiled for float16 and bfloat16
 * storage (KR_DTYPE) and up to 64, 128 or 256 states (KR_N). Persistent blocks: one producer thread copies boxes of B,
 * C and x, other producer warps compute cumulative log-decays, and two or three consumer warpgroups pass states through
 * time, each with one head's state (64 channels) in its accumulators, sharing B and C. C B^T and C S_before^T read
 * shared memory; P = C B^T o decays stays in registers as an operand, as does (2^(a_end - a_j) d_j X)^T.
 * kr_ssd_hopper        output. Blocks take ranges of equal length (ssd_hopper_params.h), last unit first: a unit cut
 * off at a range's end is thus done first, and its state handed to the next block, which needs it last.
 * kr_ssd_hopper_passed the same, without a gate, with one D for all channels of a head (kr_ssd_passes_D): on the
 * diagonal of P
 * A gate's rows are copied to where the output is put, once the chunk before has been written from there. For the
 * gradient with a gate, the output's kernel leaves the state before each chunk, too.
 * With fewer units than blocks a range lies within a unit, so its start state would come too late. Then, beforehand:
 * kr_ssd_hopper_ends   only the states at the ends of pieces, from zero; starting where a piece still contributes to
 *                      its end
 * kr_ssd_hopper_states for the gradient, up to 128 states: the state before each chunk; backwards, with dy and C for x
 *                      and B, the state gradient after each
 * kr_ssd_hopper_begin  clears the flags between blocks, and permutes initial states into fragment order
 * NaN and infinity: as in ssd_chunks.cu. */
#include "ssd_hopper_tiles.cuh"

enum {
  HEADS = KR_SSD_HOPPER_HEADS(KR_N),
  THREADS = KR_SSD_HOPPER_THREADS(KR_N),
  STEPS_STAGES = KR_SSD_HOPPER_STEPS_STAGES,
  C_STAGES = KR_SSD_HOPPER_C_STAGES(KR_N),
  STAGE = (BLOCKS + HEADS) * TILE, /* B, then x */
  STATE_FLOATS = 64 * KR_N,
  OUTPUT = 0,
  ENDS = 1,
  STATES = 2, /* state passing for the gradient */
  MOST_STAGES = 4,
  PRODUCER_REGS = HEADS == 3 ? 56 : 40,
  CONSUMER_REGS = HEADS == 3 ? 152 : 232 /* registers per producer and per consumer thread */
};
static_assert(enough_registers(THREADS, PRODUCER_REGS, CONSUMER_REGS), "else who takes some waits for ever");

/* Stages of B and x. Consumers are memory-bound; without output the space of C and of outputs holds more stages. */
KR_DEV constexpr int stages_of(int mode) { return mode == OUTPUT ? 2 : mode == STATES && N > 128 ? 3 : 4; }

/* Per chunk (ssd_mma.cuh); left: decay of a token's input to its end; reach: of the incoming state to a token; segment:
 * D of a token, if each has its own. */
typedef struct head_steps {
  float a[Q], from[Q], left[Q], reach[Q], segment[Q];
  float keeps, total, last, pad;
} head_steps;

/* Byte offsets from the first multiple of 1024 in shared memory. */
enum {
  STEPS_AT = 0,
  D_AT = STEPS_AT + STEPS_STAGES * HEADS * KR_SSD_HOPPER_STEPS_BYTES,
  C_FULL = D_AT + HEADS * PB * 4,
  C_EMPTY = C_FULL + 8 * C_STAGES,
  FULL = C_EMPTY + 8 * C_STAGES,
  EMPTY = FULL + 8 * MOST_STAGES,
  STEPS_FULL = EMPTY + 8 * MOST_STAGES,
  STEPS_EMPTY = STEPS_FULL + 8 * STEPS_STAGES * HEADS,
  GATE_FULL = STEPS_EMPTY + 8 * STEPS_STAGES * HEADS,
  GATE_EMPTY = GATE_FULL + 8 * HEADS,
  STAGES_AT = KR_SSD_HOPPER_BESIDE(KR_N),
  C_AT = STAGES_AT + 2 * STAGE + HEADS * BLOCKS * TILE, /* with output */
  Y_AT = C_AT + C_STAGES * BLOCKS * TILE,
  END = Y_AT + HEADS * TILE
};
KR_DEV constexpr int state_at(int mode) { return STAGES_AT + stages_of(mode) * STAGE; }
KR_DEV constexpr int end_of(int outputs) { return STAGES_AT + KR_SSD_HOPPER_TILES(KR_N, outputs) * TILE; }
static_assert(GATE_EMPTY + 8 * HEADS <= STAGES_AT && END <= end_of(1) && state_at(ENDS) <= end_of(0) &&
                  state_at(STATES) + HEADS * BLOCKS * TILE <= end_of(0),
              "all have a place");

/* ---- work partition ---------------------------------------------------------------------------------------------- */

typedef struct task {
  int unit, b, g, back, first, end, piece; /* chunks first to end - 1 of the unit; back: in reverse */
} task;

/* log2 of a decay that takes any float to 0, even 2^128. */
#define NOTHING_LEFT (-280.0f)

KR_DEV task unit_at(const kr_ssd_hopper_params &h, int unit) {
  const int row = unit / h.per_group, b = row / h.n_groups, second = b >= h.p.B;
  return task{unit, second ? b - h.p.B : b, row - b * h.n_groups, h.back || second, 0, 0, 0};
}
KR_DEV int range_at(const kr_ssd_hopper_params &h, int block) {
  return block * h.per_block + (block < h.longer ? block : h.longer);
}
KR_DEV int n_tasks(const kr_ssd_hopper_params &h) {
  return (range_at(h, kr_block_x() + 1) - 1) / h.n_chunks - range_at(h, kr_block_x()) / h.n_chunks + 1;
}
/* The i-th task of this block, last unit first; with ends there is only one, processed from chunk `start` on. */
template <int MODE>
KR_DEV task task_at(const kr_ssd_hopper_params &h, int i, int start) {
  const int from = range_at(h, kr_block_x()), to = range_at(h, kr_block_x() + 1);
  task t = unit_at(h, (to - 1) / h.n_chunks - i);
  const int begin = t.unit * h.n_chunks;
  t.first = from > begin ? from - begin : 0, t.end = to - begin < h.n_chunks ? to - begin : h.n_chunks;
  t.piece = kr_block_x() + t.unit;
  if (MODE == OUTPUT) t.back = 0; /* already so; spares the compiler the test */
  if (MODE == ENDS && i == 0 && start > t.first) t.first = start;
  return t;
}

KR_DEV int chunk_at(const kr_ssd_hopper_params &h, const task &t, int i) { return t.back ? h.n_chunks - 1 - i : i; }

/* A warpgroup's head and its first channel; -1: none. */
typedef struct slot {
  int h, p0;
} slot;
KR_DEV slot slot_at(const kr_ssd_hopper_params &h, const task &t, int w) {
  const int index = t.unit % h.per_group * h.n_heads + w,
            head = h.p.blocks_per_head == 1 ? index : index / h.p.blocks_per_head;
  if (w >= h.n_heads || head >= h.p.heads) return slot{-1, 0};
  return slot{t.g * h.p.heads + head, (index - head * h.p.blocks_per_head) * PB};
}

/* ---- producers --------------------------------------------------------------------------------------------------- */

/* A chunk's gate to where its heads' outputs are put, once the outputs before have been written; n: the chunks of each
 * head so far. */
KR_DEV void copy_gates(const task &t, const slot (&at)[HEADS], int c, uint64_t map_z, uint32_t base, int (&n)[HEADS]) {
#pragma unroll
  for (int w = 0; w < HEADS; w++) {
    if (at[w].h < 0) continue;
    kr_barrier_await(base + GATE_EMPTY + 8 * w, parity_of(n[w]++, 1) ^ 1);
    kr_barrier_expect(base + GATE_FULL + 8 * w, TILE);
    kr_load_box(base + Y_AT + w * TILE, map_z, base + GATE_FULL + 8 * w, at[w].p0, c * Q, at[w].h, t.b);
  }
}

/* A gate's copies wait for the chunk before to be done, so those of the next chunk come first. */
template <int MODE, int PASSED>
KR_DEV void copy_boxes(const kr_ssd_hopper_params &h, int start, uint64_t maps, uint32_t base) {
  const int STAGES = stages_of(MODE);
  const uint64_t map_C = maps + 2 * sizeof(kr_ssd_map), map_z = maps + 4 * sizeof(kr_ssd_map);
  const int has_gate = MODE == OUTPUT && !PASSED && h.p.z.data;
  int use = 0, n_gates[HEADS] = {};
  for (int i = 0, n = n_tasks(h); i < n; i++) {
    const task t = task_at<MODE>(h, i, start);
    if (MODE == ENDS && t.end == h.n_chunks) continue;
    const uint64_t map_x = maps + (t.back ? 3 * sizeof(kr_ssd_map) : 0),
                   map_B = t.back ? map_C : maps + sizeof(kr_ssd_map);
    slot at[HEADS];
    int n_heads = 0;
#pragma unroll
    for (int w = 0; w < HEADS; w++) at[w] = slot_at(h, t, w), n_heads += at[w].h >= 0;
    for (int k = t.first; k < t.end; k++, use++) {
      const int c = chunk_at(h, t, k), c_stage = use % C_STAGES, stage = use % STAGES;
      const uint32_t full = base + FULL + 8 * stage, to = base + STAGES_AT + stage * STAGE;
      if (MODE == OUTPUT) {
        kr_barrier_await(base + C_EMPTY + 8 * c_stage, parity_of(use, C_STAGES) ^ 1);
        kr_barrier_expect(base + C_FULL + 8 * c_stage, BLOCKS * TILE);
#pragma unroll
        for (int n = 0; n < BLOCKS; n++)
          kr_load_box(base + C_AT + (c_stage * BLOCKS + n) * TILE, map_C, base + C_FULL + 8 * c_stage, 64 * n, c * Q,
                      t.g, t.b);
      }
      kr_barrier_await(base + EMPTY + 8 * stage, parity_of(use, STAGES) ^ 1);
      kr_barrier_expect(full, (BLOCKS + n_heads) * TILE);
#pragma unroll
      for (int n = 0; n < BLOCKS; n++) kr_load_box(to + n * TILE, map_B, full, 64 * n, c * Q, t.g, t.b);
#pragma unroll
      for (int w = 0; w < HEADS; w++)
        if (at[w].h >= 0) kr_load_box(to + (BLOCKS + w) * TILE, map_x, full, at[w].p0, c * Q, at[w].h, t.b);
      if (has_gate && k > t.first) copy_gates(t, at, c - 1, map_z, base, n_gates);
    }
    if (has_gate) copy_gates(t, at, t.end - 1, map_z, base, n_gates);
  }
}

/* A chunk's step sizes in the form its warpgroup needs. */
template <int MODE>
KR_DEV void put_steps(head_steps &s, const lane_steps &v, int back, int has_token_D) {
  const int lane = kr_thread() & 31;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int j = lane + 32 * i;
    const float from = v.a[i] - kr_log2(v.d[i]),
                reach = v.segment[i] == 0 ? kr_exp2(v.a[i]) : 0.0f; /* the host guarantees d >= 0 */
    if (MODE == OUTPUT)
      s.a[j] = v.a[i], s.from[j] = from, s.segment[j] = has_token_D ? v.D[i] : v.segment[i], s.reach[j] = reach;
    s.left[j] = back ? reach : v.segment[i] == v.last ? kr_exp2(v.total - from) : 0.0f;
  }
  if (lane == 0) s.keeps = v.last == 0 ? kr_exp2(v.total) : 0.0f, s.total = v.total, s.last = v.last;
}

/* Kinds that only this file has: decays of tokens and all else in float32, no sequences; step sizes alone, of 16 or 32
 * bits, where no output is made. */
enum { STEPS_FLOATS = STEPS_ANY + 1, STEPS_ALONE };

KR_DEV int kind_here(const kr_ssd_params &p) {
  const int are_floats = p.log_decay.data && !p.seq_idx && p.dt.dtype == KRAIT_F32 && p.log_decay.dtype == KRAIT_F32 &&
                         (!p.has_token_D || p.D.dtype == KRAIT_F32);
  return are_floats ? (int)STEPS_FLOATS : (int)kind_of_steps(p);
}

/* Without a branch whose load the next one would wait for: of step sizes alone the upper half is loaded by itself, of
 * 16 bits the lower again, so that one code takes both: four copies of sum_steps for each kind would be most of what
 * the driver translates. */
typedef struct halved_steps {
  raw_steps raw;
  uint32_t upper[2];
} halved_steps;

template <int KIND>
KR_DEV halved_steps load_here(const kr_ssd_params &p, int b, int h, int64_t t0, int64_t end) {
  if (KIND <= STEPS_ANY) return halved_steps{load_steps<KIND>(p, b, h, t0, end), {}};
  halved_steps halved = {};
  raw_steps &r = halved.raw;
  const int is_wide = p.dt.dtype == KRAIT_F32;
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int64_t t = t0 + (kr_thread() & 31) + 32 * k;
    if (t >= end) continue;
    if (KIND == STEPS_ALONE) {
      const uint16_t *const at = (const uint16_t *)p.dt.data + ((b * p.dt.b + t * p.dt.t + h * p.dt.h) << is_wide);
      r.dt[k] = at[0], halved.upper[k] = at[is_wide];
      continue;
    }
    r.dt[k] = ((const uint32_t *)p.dt.data)[b * p.dt.b + t * p.dt.t + h * p.dt.h];
    r.log_decay[k] =
        ((const float *)p.log_decay.data)[b * p.log_decay.b + t * p.log_decay.t + h * p.log_decay.h];
    if (p.has_token_D) r.D[k] = ((const float *)p.D.data)[b * p.D.b + t * p.D.t + h * p.D.h];
  }
  return halved;
}

/* As load_steps leaves them. */
KR_DEV raw_steps join_halves(const kr_ssd_params &p, const halved_steps &halved) {
  raw_steps r = halved.raw;
#pragma unroll
  for (int k = 0; k < 2; k++) r.dt[k] |= p.dt.dtype == KRAIT_F32 ? halved.upper[k] << 16 : 0;
  return r;
}

template <int KIND>
KR_DEV lane_steps sum_here(const kr_ssd_params &p, const halved_steps &halved, float A, float bias, int64_t t0,
                           int64_t end) {
  enum { OF_ALL = KIND == STEPS_FLOATS ? (int)STEPS_ANY : KIND };
  if (KIND == STEPS_FLOATS && (p.seq_idx || !p.log_decay.data || p.dt.dtype != KRAIT_F32)) __builtin_unreachable();
  if (KIND != STEPS_ALONE) return sum_steps<OF_ALL>(p, halved.raw, A, bias, t0, end);
  raw_steps r = join_halves(p, halved);
#pragma unroll
  for (int k = 0; k < 2; k++) r.dt[k] = kr_float_to_bits(dt_of<STEPS_ANY>(p, r, k));
  return sum_steps<STEPS_32_BITS>(p, r, A, bias, t0, end);
}

/* By one warp, for one warpgroup. Where consumers wait for it, step sizes are prefetched into registers several chunks
 * ahead, that many per round: a copy between registers would wait for the load. With output there is slack, and shorter
 * code starts sooner. */
template <int MODE, int KIND>
KR_DEV void sum_chunks(const kr_ssd_hopper_params &h, int start, int w, unsigned char *shared, uint32_t base) {
  enum { AHEAD = MODE == OUTPUT || KIND == STEPS_ANY || N > 128 ? 2 : 4, ROUND = MODE == OUTPUT ? 1 : AHEAD };
  const kr_ssd_params &p = h.p;
  int use = 0;
  for (int i = 0, n = n_tasks(h); i < n; i++) {
    const task t = task_at<MODE>(h, i, start);
    const slot at = slot_at(h, t, w);
    if (MODE == ENDS && t.end == h.n_chunks) continue;
    if (at.h < 0) continue;
    const float A = rate_of(p, at.h) * KR_LOG2E,
                bias = p.bias.data ? kr_load(p.bias.data, at.h * p.bias.h, p.bias.dtype) : 0.0f;
    halved_steps raw[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
      raw[i] = load_here<KIND>(p, t.b, at.h,
                               (int64_t)chunk_at(h, t, t.first + i < t.end ? t.first + i : t.first) * Q, p.L);
    for (int first = t.first; first < t.end; first += ROUND)
#pragma unroll
      for (int i = 0; i < ROUND; i++) {
        const int k = first + i, place = use % STEPS_STAGES * HEADS + w;
        if (k >= t.end) continue;
        const lane_steps v = sum_here<KIND>(p, raw[i], A, bias, (int64_t)chunk_at(h, t, k) * Q, p.L);
        if (ROUND == 1) raw[0] = raw[1];
        if (k + AHEAD < t.end)
          raw[ROUND == 1 ? 1 : i] = load_here<KIND>(p, t.b, at.h, (int64_t)chunk_at(h, t, k + AHEAD) * Q, p.L);
        kr_barrier_await(base + STEPS_EMPTY + 8 * place, parity_of(use, STEPS_STAGES) ^ 1);
        put_steps<MODE>(*(head_steps *)(shared + STEPS_AT + place * KR_SSD_HOPPER_STEPS_BYTES), v, t.back,
                        (KIND == STEPS_ANY || KIND == STEPS_FLOATS) && p.has_token_D);
        kr_sync_warp();
        if ((kr_thread() & 31) == 0) kr_barrier_arrive(base + STEPS_FULL + 8 * place);
        use++;
      }
  }
}

/* The chunk of the first task from which on something survives to its end, by the whole block: one chunk per warp.
 * Non-finite values before it do not pass on; the output pass meets and flags them. */
KR_DEV int find_start(const kr_ssd_hopper_params &h, unsigned char *shared) {
  const kr_ssd_params &p = h.p;
  const int is_alone = kind_of_steps(p) != STEPS_ANY;
  float *const totals = (float *)(shared + STEPS_AT); /* [warp][head of the block] */
  const task t = task_at<ENDS>(h, 0, 0);
  const int warp = kr_thread() >> 5;
  float left[HEADS];
#pragma unroll
  for (int w = 0; w < HEADS; w++) left[w] = slot_at(h, t, w).h < 0 ? NOTHING_LEFT : 0.0f;
  if (t.end == h.n_chunks) return t.first;
  for (int last = t.end - 1; last >= t.first; last -= THREADS / 32) {
    const int k = last - warp > t.first ? last - warp : t.first;
    const int64_t t0 = (int64_t)chunk_at(h, t, k) * Q;
    halved_steps raw[HEADS];
#pragma unroll
    for (int w = 0; w < HEADS; w++) {
      const int head = slot_at(h, t, w).h < 0 ? 0 : slot_at(h, t, w).h;
      raw[w] = is_alone ? load_here<STEPS_ALONE>(p, t.b, head, t0, p.L) : load_here<STEPS_ANY>(p, t.b, head, t0, p.L);
    }
#pragma unroll
    for (int w = 0; w < HEADS; w++) {
      const int head = slot_at(h, t, w).h < 0 ? 0 : slot_at(h, t, w).h;
      const float A = rate_of(p, head) * KR_LOG2E,
                  bias = p.bias.data ? kr_load(p.bias.data, head * p.bias.h, p.bias.dtype) : 0.0f;
      const raw_steps joined = is_alone ? join_halves(p, raw[w]) : raw[w].raw;
      const float total = sum_steps<STEPS_ANY>(p, joined, A, bias, t0, p.L).total;
      if ((kr_thread() & 31) == 0) totals[warp * HEADS + w] = total;
    }
    kr_sync();
    int hopeless = 0;
    for (int i = 0; i < THREADS / 32 && last - i >= t.first; i++) {
      int passes = 0;
#pragma unroll
      for (int w = 0; w < HEADS; w++) left[w] += totals[i * HEADS + w], passes |= !(left[w] <= NOTHING_LEFT);
      if (!passes) return last - i;
    }
#pragma unroll
    for (int w = 0; w < HEADS; w++)
      hopeless |= !(left[w] * (float)(t.end - t.first) <= NOTHING_LEFT * (float)(t.end - last + THREADS / 32));
    if (hopeless) return t.first; /* at this rate no chunk would be skipped: stop looking */
    kr_sync();
  }
  return t.first;
}

/* ---- a consumer warpgroup ---------------------------------------------------------------------------------------- */

/* One row of a thread's two after the other: a shorter code. */
KR_DEV void write_state(const kr_ssd_params &p, const kr_ssd_tensor &v, int b, const slot &at, const lanes &me,
                        const float (&s)[N / 2]) {
  const int bytes = v.dtype == KRAIT_F32 ? 4 : 2, columns = p.N - 2 * me.q;
#pragma unroll 1
  for (int c = 0; c < 16 && at.p0 + me.row + c < p.P; c += 8) {
    char *to = (char *)v.data + (b * v.b + at.h * v.h + (at.p0 + me.row + c) * v.t + 2 * me.q * v.n) * bytes;
#pragma unroll
    for (int i = 0; i < N / 4; i++, to += (i % 2 ? 1 : 7) * v.n * bytes)
      if (i / 2 * 8 + i % 2 < columns) kr_store(to, 0, v.dtype, c ? s[i / 2 * 4 + i % 2 + 2] : s[i / 2 * 4 + i % 2]);
  }
}

/* A state in fragment order: four floats per thread at a time. */
KR_DEV kr_float4 *fragments_at(const kr_ssd_hopper_params &h, int64_t index, int w) {
  return (kr_float4 *)(h.states + (index * HEADS + w) * STATE_FLOATS);
}
KR_DEV kr_float4 *initial_at(const kr_ssd_hopper_params &h, int unit, int w) {
  return (kr_float4 *)(h.initial + ((int64_t)unit * HEADS + w) * STATE_FLOATS);
}

/* 32 columns of P as an operand, from C B^T. MASKED: they include the warp's own tokens, or later ones. PASSED: with D
 * on the diagonal. */
template <int HALF, int MASKED, int PASSED>
KR_DEV void weigh_half(const float (&cb)[Q / 2], uint32_t (&w)[Q / 4], const head_steps &s, const lanes &me,
                       int has_sequences, int last_rank, float D) {
  const float a[2] = {s.a[me.row], s.a[me.row + 8]};
  const int last = (me.row | last_rank) - 2 * me.q;
  /* The warp's 16 tokens are the first or second half of these columns; a lane holds two diagonal elements, or none. */
  const float own = me.g >> 1 == me.q ? D : 0.0f, even = me.g & 1 ? 0.0f : own, odd = me.g & 1 ? own : 0.0f;
  const float diagonal[2][2] = {{me.warp & 1 ? 0.0f : even, me.warp & 1 ? 0.0f : odd},
                                {me.warp & 1 ? even : 0.0f, me.warp & 1 ? odd : 0.0f}};
  kr_float2 from[4];
  values_of_columns<HALF>(s.from, me, from);
  float v[16];
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const int column = 32 * HALF + 8 * (i >> 2) + (i & 1), r = i >> 1 & 1;
    const float decay = kr_exp2(a[r] - from[i >> 2].v[i & 1]);
    v[i] = PASSED && MASKED && (i >> 2 & 1) == r ? kr_fma(cb[16 * HALF + i], decay, diagonal[i >> 3][i & 1])
                                                 : cb[16 * HALF + i] * decay;
    if (MASKED) v[i] = column <= last + 8 * r ? v[i] : 0.0f;
  }
  if (has_sequences) {
#pragma unroll
    for (int i = 0; i < 16; i++)
      v[i] = s.segment[32 * HALF + 8 * (i >> 2) + 2 * me.q + (i & 1)] == s.segment[me.row + 8 * (i >> 1 & 1)] ? v[i]
                                                                                                              : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) w[8 * HALF + i] = pack(v[2 * i], v[2 * i + 1]);
}
template <int PASSED>
KR_DEV void weigh(const float (&cb)[Q / 2], uint32_t (&w)[Q / 4], const head_steps &s, const lanes &me,
                  int has_sequences, int last_rank, float D) {
  if (me.warp < 2) {
    weigh_half<0, 1, PASSED>(cb, w, s, me, has_sequences, last_rank, D);
#pragma unroll
    for (int i = 0; i < 8; i++) w[8 + i] = 0; /* causally masked */
  } else {
    weigh_half<0, 0, PASSED>(cb, w, s, me, has_sequences, last_rank, D);
    weigh_half<1, 1, PASSED>(cb, w, s, me, has_sequences, last_rank, D);
  }
}

/* Y + D x to the warp's rows of a tile; times the gate, which the tile holds. */
template <int PASSED>
KR_DEV void put_output(const kr_ssd_params &p, const lanes &me, float (&y)[Q / 2], const unsigned char *x,
                       const float *D, unsigned char *tile, const head_steps &s) {
  if (!PASSED && p.D.data) {
#pragma unroll
    for (int j = 0; j < Q / 8; j += 2) {
      uint32_t own[4];
      take_matrices(own, x, me, j);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const kr_float2 of_channels = *(const kr_float2 *)&D[8 * (j + i) + 2 * me.q];
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const float of_token = s.segment[me.row + 8 * r];
#pragma unroll
          for (int k = 0; k < 2; k++)
            y[4 * (j + i) + 2 * r + k] =
                kr_fma(p.has_token_D ? of_token : of_channels.v[k], kr_unpack(own[2 * i + r], k, KR_DTYPE),
                       y[4 * (j + i) + 2 * r + k]);
        }
      }
    }
  }
  if (!PASSED && p.z.data) {
#pragma unroll
    for (int j = 0; j < Q / 8; j += 2) {
      uint32_t z[4];
      take_matrices(z, tile, me, j);
#pragma unroll
      for (int k = 0; k < 8; k++) y[4 * j + k] *= kr_silu(kr_unpack(z[k >> 1], k & 1, KR_DTYPE));
    }
  }
  if (!PASSED && p.seq_idx) {
#pragma unroll
    for (int i = 0; i < Q / 2; i++) y[i] = s.segment[me.row + 8 * (i >> 1 & 1)] < 0 ? 0.0f : y[i];
  }
  put_product(tile, me, y);
}

/* From the tile to global memory; to: the lane's first address. adds: accumulates. Where float16's range was left, by
 * the output or by the shared state, the head is recomputed. */
KR_DEV void write_output(const kr_ssd_params &p, int b, const slot &at, int c, const lanes &me,
                         const unsigned char *tile, uint16_t *to, int adds) {
  const int first = 16 * me.warp + (me.lane >> 3), chunk = me.lane & 7,
            left = p.L - (int64_t)c * Q < Q ? (int)(p.L - (int64_t)c * Q) : (int)Q;
  kr_raw16 eight[4];
#pragma unroll
  for (int i = 0; i < 4; i++) eight[i] = read_shared(tile + kr_swizzle<128>(first + 4 * i, chunk));
#pragma unroll
  for (int i = 0; i < 4; i++, to += 4 * p.out.t) {
    if (first + 4 * i >= left || at.p0 + 8 * chunk >= p.P) continue;
    if (adds) add_halves(eight[i], *(const kr_raw16 *)to);
    if (has_infinity(eight[i])) p.spoilt[b * p.H + at.h] = 1;
    write_global(to, eight[i]);
  }
  kr_sync_warp();
}

/* A chunk for a warpgroup without a head: only releases the shared stages. */
template <int MODE>
KR_DEV void pass_chunks(const task &t, const lanes &me, uint32_t base, int &use) {
  const int STAGES = stages_of(MODE);
  for (int i = t.first; i < t.end; i++, use++) {
    if (MODE == OUTPUT)
      kr_barrier_await(base + C_FULL + 8 * (use % C_STAGES), parity_of(use, C_STAGES)),
          release(base + C_EMPTY + 8 * (use % C_STAGES), me);
    kr_barrier_await(base + FULL + 8 * (use % STAGES), parity_of(use, STAGES)),
        release(base + EMPTY + 8 * (use % STAGES), me);
  }
}

/* The block whose range contains this chunk. */
KR_DEV int block_of(const kr_ssd_hopper_params &h, int chunk) {
  const int within = h.longer * (h.per_block + 1);
  return chunk < within ? chunk / (h.per_block + 1) : h.longer + (chunk - within) / h.per_block;
}

/* s += of * a state. */
KR_DEV void add_fragments(const kr_float4 *from, const lanes &me, float of, float (&s)[N / 2]) {
#pragma unroll
  for (int i = 0; i < N / 8; i++) {
    const kr_float4 v = from[i * 128 + me.thread];
#pragma unroll
    for (int k = 0; k < 4; k++) s[4 * i + k] = kr_fma(of, v.v[k], s[4 * i + k]);
  }
}

/* State passing: a piece's start state from the end states of those before it, latest first, until nothing more
 * survives. */
KR_DEV void join_state(const kr_ssd_hopper_params &h, const task &t, const lanes &me, float (&s)[N / 2]) {
  const int first = t.unit + block_of(h, t.unit * h.n_chunks);
  float left = 0;
  clear_state(s);
#pragma unroll 1
  for (int k = t.piece - 1; k >= first; k--) {
    const float decay = h.decays[k * HEADS + me.w];
    add_fragments(fragments_at(h, k, me.w), me, kr_exp2(left), s);
    left += decay;
    if (decay > 0 || left <= NOTHING_LEFT) return; /* 1: a sequence begins in between */
  }
  if (h.initial) add_fragments(initial_at(h, t.unit, me.w), me, kr_exp2(left), s);
}

/* A task's start state. */
template <int MODE>
KR_DEV void begin_state(const kr_ssd_hopper_params &h, const task &t, const lanes &me, float (&s)[N / 2]) {
  if (MODE == ENDS) {
    clear_state(s);
  } else if (t.first == 0) {
    if (h.initial)
      read_fragments(initial_at(h, t.unit, me.w), me, s);
    else
      clear_state(s);
  } else if (h.joins) {
    join_state(h, t, me, s);
  } else {
    if (me.thread == 0) kr_await(h.ready + (kr_block_x() - 1) * HEADS + me.w, 1);
    sync_group(me);
    read_fragments(fragments_at(h, kr_block_x() - 1, me.w), me, s);
  }
}

/* Stores a task's end state or hands it on. */
template <int MODE>
KR_DEV void end_state(const kr_ssd_hopper_params &h, const task &t, const slot &at, const lanes &me,
                      const float (&s)[N / 2], float decay, int spoilt) {
  if (MODE == ENDS) {
    write_fragments(fragments_at(h, t.piece, me.w), me, s);
    if (me.thread == 0) h.decays[t.piece * HEADS + me.w] = decay;
    return;
  }
  if (spoilt || nonfinite_state(s)) {
    if (MODE == OUTPUT && !h.S)
      h.p.spoilt[t.b * h.p.H + at.h] = 1;
    else
      report_nonfinite_group(h.p, t.b, at.h);
  }
  if (t.end == h.n_chunks) {
    const kr_ssd_tensor &final = MODE == STATES ? h.dinitial : h.p.final;
    if (final.data && (MODE == OUTPUT || t.back)) write_state(h.p, final, t.b, at, me, s);
  } else if (!h.joins) {
    write_fragments(fragments_at(h, kr_block_x(), me.w), me, s);
    sync_group(me);
    if (me.thread == 0) kr_publish(h.ready + kr_block_x() * HEADS + me.w, 1);
  }
}

/* Stores the state before a chunk (backwards: after it) in operand layout, for ssd_hopper_bwd.cu. */
KR_DEV void leave_state(const kr_ssd_hopper_params &h, const task &t, const slot &at, int c, const lanes &me,
                        const float (&s)[N / 2], unsigned char *tiles) {
  if (me.thread == 0) kr_stores_read<0>();
  sync_group(me);
  share_state(tiles, me, s);
  sync_group(me);
  if (me.thread == 0) {
    kr_store_bytes((char *)(t.back ? h.M : h.S) + kept_at(h.p, t.b, at.h, at.p0 / PB, c, h.n_chunks),
                   kr_shared_at(tiles), BLOCKS * TILE);
    kr_commit_stores();
  }
}

/* The tile of a warp's outputs, which it has read, may take the next gate. */
KR_DEV void release_outputs(const lanes &me, uint32_t base) {
  kr_show_to_copies();
  release(base + GATE_EMPTY + 8 * me.w, me);
}

/* Stores the state before a chunk, which is the next operand, for the gradient. */
KR_DEV void keep_state(const kr_ssd_hopper_params &h, const task &t, const slot &at, int c, const lanes &me,
                       uint32_t state) {
  if (!h.S || me.thread) return;
  kr_store_bytes((char *)h.S + kept_at(h.p, t.b, at.h, at.p0 / PB, c, h.n_chunks), state, BLOCKS * TILE);
  kr_commit_stores();
}
KR_DEV void await_kept(const kr_ssd_hopper_params &h, const lanes &me) {
  if (h.S && me.thread == 0) kr_stores_read<0>();
}

template <int MODE, int PASSED>
KR_DEV void walk_task(const kr_ssd_hopper_params &h, const task &t, const slot &at, const lanes &whole,
                      unsigned char *shared, uint32_t base, int &use, int &own_use) {
  const kr_ssd_params &p = h.p;
  const int STAGES = stages_of(MODE);
  unsigned char *const state = shared + state_at(MODE) + whole.w * BLOCKS * TILE, *const y_tile =
                                                                                shared + Y_AT + whole.w * TILE;
  float *const D = (float *)(shared + D_AT) + whole.w * PB;
  const float own_D = PASSED ? kr_load(p.D.data, at.h * p.D.h, p.D.dtype) : 0.0f;
  float s[N / 2], decay = 0;
  int spoilt = 0;
  uint16_t *out = (uint16_t *)p.out.data + t.b * p.out.b +
                  ((int64_t)t.first * Q + 16 * whole.warp + (whole.lane >> 3)) * p.out.t + at.h * p.out.h + at.p0 +
                  8 * (whole.lane & 7);
  begin_state<MODE>(h, t, whole, s);
  if (MODE == OUTPUT) {
    if (!PASSED && p.D.data && !p.has_token_D && whole.thread < PB)
      D[whole.thread] = at.p0 + whole.thread < p.P
                            ? kr_load(p.D.data, at.h * p.D.h + (int64_t)(at.p0 + whole.thread) * p.D.n, p.D.dtype)
                            : 0.0f;
    share_state(state, whole, s);
    sync_group(whole);
    if (!PASSED) keep_state(h, t, at, t.first, whole, base + state_at(MODE) + whole.w * BLOCKS * TILE);
  }
  for (int i = t.first; i < t.end; i++, use++, own_use++) {
    const lanes me = lanes_of(anew(kr_thread())); /* addresses are recomputed for lack of registers */
    const int stage = use % STAGES, c_stage = use % C_STAGES, own = own_use % STEPS_STAGES;
    const unsigned char *const x = shared + anew(STAGES_AT + stage * STAGE + (BLOCKS + me.w) * TILE);
    const head_steps &steps =
        *(const head_steps *)(shared + anew(STEPS_AT + (own * HEADS + me.w) * KR_SSD_HOPPER_STEPS_BYTES));
    const uint32_t B = uniform(base + STAGES_AT + stage * STAGE), C = uniform(base + C_AT + c_stage * BLOCKS * TILE),
                   steps_empty = base + STEPS_EMPTY + 8 * (own * HEADS + me.w);
    float cb[Q / 2], y[Q / 2];
    uint32_t w[Q / 4], inputs[Q / 4];
    kr_barrier_await(base + FULL + 8 * stage, parity_of(use, STAGES));
    if (MODE == OUTPUT) {
      kr_barrier_await(base + C_FULL + 8 * c_stage, parity_of(use, C_STAGES));
      start_product(C, B, cb);
      if (i > t.first) write_output(p, t.b, at, i - 1, me, y_tile, out, h.adds), out += Q * p.out.t;
      if (!PASSED && p.z.data && i > t.first) release_outputs(me, base);
    }
    kr_barrier_await(base + STEPS_FULL + 8 * (own * HEADS + me.w), parity_of(own_use, STEPS_STAGES));
    if (MODE == OUTPUT) {
      kr_wgmma_wait<Q, 0>(cb);
      weigh<PASSED>(cb, w, steps, me, !PASSED && p.seq_idx != nullptr, PASSED ? 0 : p.last_rank, own_D);
      start_product(C, base + state_at(MODE) + me.w * BLOCKS * TILE, y);
      spoilt |= decay_state(steps.keeps, s);
      kr_wgmma_wait<PB, 0>(y);
      release(base + C_EMPTY + 8 * c_stage, me);
      const float low = steps.reach[me.row], high = steps.reach[me.row + 8];
#pragma unroll
      for (int i = 0; i < PB / 2; i++) y[i] *= i & 2 ? high : low;
      start_sum<PB>(B + (BLOCKS + me.w) * TILE, w, y, 1);
      kr_wgmma_wait<PB, 0>(y);
    }
    if (MODE == STATES) leave_state(h, t, at, chunk_at(h, t, i), me, s, state);
    weigh_inputs(x, inputs, steps.left, me);
    if (MODE == ENDS) decay = steps.last != 0 ? 1.0f : decay <= 0 ? decay + steps.total : decay;
    if (MODE != OUTPUT) spoilt |= decay_state(steps.keeps, s);
    start_sum<N>(B, inputs, s, steps.keeps != 0);
    if (MODE == OUTPUT && !PASSED && p.z.data)
      kr_barrier_await(base + GATE_FULL + 8 * me.w, parity_of(own_use, 1));
    if (MODE == OUTPUT) put_output<PASSED>(p, me, y, x, D, y_tile, steps);
    kr_wgmma_wait<N, 0>(s);
    release(base + EMPTY + 8 * stage, me);
    release(steps_empty, me);
    if (MODE == OUTPUT && i + 1 < t.end) {
      if (!PASSED) await_kept(h, me);
      sync_group(me); /* all four warps have read the previous state */
      share_state(state, me, s);
      sync_group(me);
      if (!PASSED) keep_state(h, t, at, i + 1, me, base + state_at(MODE) + me.w * BLOCKS * TILE);
    }
  }
  if (MODE == OUTPUT) {
    write_output(p, t.b, at, t.end - 1, whole, y_tile, out, h.adds);
    if (!PASSED && p.z.data) release_outputs(whole, base);
    if (!PASSED) await_kept(h, whole);
    sync_group(whole);
  }
  end_state<MODE>(h, t, at, whole, s, decay, spoilt);
}

template <int MODE, int PASSED>
KR_DEV void walk(const kr_ssd_hopper_params &h, int start, unsigned char *shared, uint32_t base) {
  const lanes me = lanes_of(kr_thread());
  int use = 0, own_use = 0;
  for (int i = 0, n = n_tasks(h); i < n; i++) {
    const task t = task_at<MODE>(h, i, start);
    const slot at = slot_at(h, t, me.w);
    if (MODE == ENDS && t.end == h.n_chunks) continue;
    if (at.h < 0)
      pass_chunks<MODE>(t, me, base, use);
    else
      walk_task<MODE, PASSED>(h, t, at, me, shared, base, use, own_use);
  }
  if (MODE == STATES && me.thread == 0) kr_stores_read<0>();
}

template <int MODE, int PASSED>
KR_DEV void run(const kr_ssd_hopper_params &h, uint64_t maps) {
  KR_DYNAMIC_SHARED(all);
  const uint32_t start = kr_shared_at(all), base = (start + 1023) & ~1023u;
  unsigned char *const shared = all + (base - start);
  kr_launch_dependents();
  if (kr_thread() == 0) {
    for (int i = 0; MODE == OUTPUT && i < C_STAGES; i++)
      kr_barrier_open(base + C_FULL + 8 * i, 1), kr_barrier_open(base + C_EMPTY + 8 * i, 4 * HEADS);
    for (int i = 0; i < stages_of(MODE); i++)
      kr_barrier_open(base + FULL + 8 * i, 1), kr_barrier_open(base + EMPTY + 8 * i, 4 * HEADS);
    for (int i = 0; i < STEPS_STAGES * HEADS; i++)
      kr_barrier_open(base + STEPS_FULL + 8 * i, 1), kr_barrier_open(base + STEPS_EMPTY + 8 * i, 4);
    for (int i = 0; MODE == OUTPUT && i < HEADS; i++)
      kr_barrier_open(base + GATE_FULL + 8 * i, 1), kr_barrier_open(base + GATE_EMPTY + 8 * i, 4);
    kr_barriers_opened();
    for (int i = 0; i < (MODE == STATES ? 4 : 3); i++) kr_fetch_map(maps + i * sizeof(kr_ssd_map));
  }
  kr_griddep_wait();
  const int from = MODE == ENDS ? find_start(h, shared) : 0;
  kr_sync();
  if (kr_thread() < 128) {
    kr_give_registers<PRODUCER_REGS>();
    const int warp = kr_thread() >> 5;
    if (kr_thread() == 0)
      copy_boxes<MODE, PASSED>(h, from, maps, base);
    else if (warp > 0 && warp <= HEADS) {
      const int kind = PASSED ? (int)kind_of_steps(h.p) : kind_here(h.p), is_alone = kind < STEPS_ANY;
      if (MODE != OUTPUT && is_alone) sum_chunks<MODE, STEPS_ALONE>(h, from, warp - 1, shared, base);
      if (MODE == OUTPUT && kind == STEPS_16_BITS) sum_chunks<MODE, STEPS_16_BITS>(h, from, warp - 1, shared, base);
      if (MODE == OUTPUT && kind == STEPS_32_BITS) sum_chunks<MODE, STEPS_32_BITS>(h, from, warp - 1, shared, base);
      if (kind == STEPS_ANY) sum_chunks<MODE, STEPS_ANY>(h, from, warp - 1, shared, base);
      if (!PASSED && kind == STEPS_FLOATS) sum_chunks<MODE, STEPS_FLOATS>(h, from, warp - 1, shared, base);
    }
  } else {
    kr_take_registers<CONSUMER_REGS>();
    walk<MODE, PASSED>(h, from, shared, base);
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_ssd_hopper(const kr_ssd_hopper_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_ssd_hopper, maps);
  run<OUTPUT, 0>(params, maps);
}
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_ssd_hopper_passed(const kr_ssd_hopper_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_ssd_hopper_passed, maps);
  run<OUTPUT, 1>(params, maps);
}
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_ssd_hopper_ends(const kr_ssd_hopper_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_ssd_hopper_ends, maps);
  run<ENDS, 0>(params, maps);
}

KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_ssd_hopper_states(const kr_ssd_hopper_params params) {
#if KR_N <= 128 /* the gradient takes at most 128 states at once */
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_ssd_hopper_states, maps);
  run<STATES, 0>(params, maps);
#else
  (void)params;
#endif
}

/* ---- splits over time -------------------------------------------------------------------------------------------- */

/* Four elements of a unit's initial state in a warpgroup's fragment order: 8 states from 8 j on. */
KR_DEV kr_float4 elements_at(const kr_ssd_hopper_params &h, const task &t, const slot &at, int j) {
  const kr_ssd_tensor &v = t.back ? h.dfinal : h.p.initial;
  kr_float4 s;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int c = at.p0 + 16 * (kr_thread() >> 5) + ((kr_thread() & 31) >> 2) + 8 * (i >> 1),
              n = 8 * j + 2 * (kr_thread() & 3) + (i & 1);
    s.v[i] =
        v.data && c < h.p.P && n < h.p.N ? kr_load(v.data, t.b * v.b + at.h * v.h + c * v.t + n * v.n, v.dtype) : 0.0f;
  }
  return s;
}

/* One thread per flag between blocks and per head of p.spoilt; for initial states, one block per eight states, head of
 * the block, and unit. */
KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 4) kr_ssd_hopper_begin(const kr_ssd_hopper_params params) {
  const kr_ssd_hopper_params &h = params;
  const int64_t i = (int64_t)kr_block_x() * KR_SSD_THREADS + kr_thread();
  kr_launch_dependents();
  kr_griddep_wait();
  if (h.p.spoilt && !h.adds && i < (int64_t)h.p.B * h.p.H) h.p.spoilt[i] = 0;
  if (!h.joins && i < h.n_blocks * HEADS) h.ready[i] = 0;
  const int j = kr_block_x() % (N / 8), w = kr_block_x() / (N / 8) % HEADS, unit = kr_block_x() / (N / 8 * HEADS);
  if (!h.initial || unit >= h.n_units) return;
  const task t = unit_at(h, unit);
  const slot at = slot_at(h, t, w);
  if (at.h >= 0)
    initial_at(h, unit, w)[j * 128 + kr_thread()] = elements_at(h, t, at, j);
}

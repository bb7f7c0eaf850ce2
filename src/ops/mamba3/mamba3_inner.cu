/* mamba3_inner.cu: the walked gradient of Mamba 3's scan chunk by chunk on warpgroups (sm_90a), given states before and
 * their gradients after each chunk. A variant of ssd_hopper_bwd.cu (notation as there) for 128 states, whose queries
 * and keys are a group's C and B with biases of each head, turned. Compiled for float16 and bfloat16 storage
 * (KR_DTYPE). A block takes a chunk and several heads of a group in turn; B and C stay in shared memory. Three
 * warpgroups share a head:
 *   the first turns C to queries, and makes dq = 2^a (dy S) + W k
 *   the second turns B to keys, and makes dk = into d (x M) + W^T q
 *   the third makes what is of pairs of tokens: W, P, their sums, and dx
 * The first two turn their gradients back, add them up over heads in registers, and sum them over tokens, for biases.
 * W has on its diagonal the weight of a token's own output, so that dq and dk are complete. What turning a token's
 * query and key changes, a share of its angles' gradient (psi), is made of the rounded numbers that were multiplied:
 * what a pair of tokens gives to angles that turn both cancels exactly.
 *   kr_mamba3_inner        all of this
 *   kr_mamba3_inner_rows   of heads that met NaN or infinity, queries and keys in memory: these heads are computed
 *                          again token by token (redo_nonfinite in ssd_bwd_cuda.c)
 *   kr_mamba3_inner_again  their dq and dk, which are then in memory, onto dB and dC, and all else that comes of
 *                          them */
#include "../ssd/ssd_hopper_inner.cuh"
#include "mamba3_turn.cuh"

enum {
  THREADS = KR_MAMBA3_INNER_THREADS,
  CONSUMERS = THREADS - 128,
  STAGES = 2,
  STAGE = (2 + 2 * BLOCKS) * TILE, /* x, dy, S, M */
  TURNS = KR_MAMBA3_TURNS_BYTES(KR_MAMBA3_INNER_M),
  OWN_BYTES = 4 * Q,
  B_AT = 0,
  C_AT = B_AT + BLOCKS * TILE,
  K_AT = C_AT + BLOCKS * TILE,
  Q_AT = K_AT + BLOCKS * TILE,
  STAGES_AT = Q_AT + BLOCKS * TILE,
  P_AT = STAGES_AT + STAGES * STAGE, /* then dx */
  W_AT = P_AT + TILE,                /* and W^T */
  PSI_AT = W_AT + 2 * TILE,          /* of queries, then of keys */
  TURNS_AT = PSI_AT + 2 * TILE,
  STEPS_AT = TURNS_AT + STAGES * TURNS,
  OWN_AT = STEPS_AT + STAGES * KR_SSD_STEPS_BYTES,
  BIASES_AT = OWN_AT + STAGES * OWN_BYTES,    /* of queries, then keys, as lanes take them */
  COLUMNS_AT = BIASES_AT + 2 * N * 4,         /* sums of columns by each warp: of dq, dk, and of pairs */
  ROWS_AT = COLUMNS_AT + 4 * (2 * N + Q) * 4, /* sums of a token's products with the state behind, and itself */
  BOTH_FULL = ROWS_AT + 8 * Q,
  FULL = BOTH_FULL + 8,
  EMPTY = FULL + 8 * STAGES,
  SIDE_SUMS = EMPTY + 8 * STAGES,
  TRACE_AT = SIDE_SUMS + 16,
  PLACE_AT = TRACE_AT + 32,
  ALL_BARRIER = 3,  /* queries, keys and W are there */
  READ_BARRIER = 5, /* queries and keys have been read since, */
  W_BARRIER = 7,    /* and W */
  PRODUCER_REGS = 24,
  ROWS_REGS = 160,
  PAIRS_REGS = 168 /* registers per thread */
};
static_assert(1024 + PLACE_AT + sizeof(place) <= KR_MAMBA3_INNER_SHARED && KR_MAMBA3_INNER_SHARED <= 227 * 1024,
              "all have a place");
static_assert(KR_MAMBA3_INNER_TOKENS == Q && KR_MAMBA3_INNER_M * Q * 4 <= TILE && STEPS_AT % 16 == 0 &&
                  OWN_AT % 16 == 0 && 2 * KR_MAMBA3_INNER_M == 64,
              "copies are aligned, and the first tile's columns turn");
static_assert(PRODUCER_REGS + 2 * ROWS_REGS + PAIRS_REGS <= 65536 / 128, "else who takes some waits for ever");

KR_DEV slot slot_at(const place &at, int i) { return slot{at.first + i, 0, 0}; }
/* The block's place, from shared memory each time: registers are few, and what is spilled is not even in L1. */
KR_DEV place place_in(const unsigned char *shared) { return *(const place *)(shared + anew(PLACE_AT)); }
KR_DEV const unsigned char *packet_at(const kr_mamba3_inner_params &w, int b, int h, int64_t chunk) {
  return w.packets + (((int64_t)b * w.q.f.H + h) * w.q.n_chunks + chunk) * w.packet_bytes;
}

/* ---- helper warps ------------------------------------------------------------------------------------------------ */

KR_DEV void copy_heads(const kr_mamba3_inner_params &w, const place &at, uint64_t maps, uint32_t base) {
  const uint64_t map_x = maps, map_dy = maps + sizeof(kr_ssd_map), map_B = maps + 2 * sizeof(kr_ssd_map),
                 map_C = maps + 3 * sizeof(kr_ssd_map);
  const kr_ssd_bwd_params &p = w.q;
  const int t0 = at.chunk * Q;
  kr_barrier_expect(base + BOTH_FULL, 2 * BLOCKS * TILE);
#pragma unroll
  for (int n = 0; n < BLOCKS; n++) {
    kr_load_box(base + B_AT + n * TILE, map_B, base + BOTH_FULL, 64 * n, t0, at.g, at.b);
    kr_load_box(base + C_AT + n * TILE, map_C, base + BOTH_FULL, 64 * n, t0, at.g, at.b);
  }
  for (int i = 0; i < at.n; i++) {
    const int stage = i % STAGES, h = at.first + i;
    const uint32_t to = base + STAGES_AT + stage * STAGE, full = base + FULL + 8 * stage;
    const int64_t tile = kept_at(p.f, at.b, h, 0, at.chunk, p.n_chunks);
    const unsigned char *const packet = packet_at(w, at.b, h, at.chunk);
    kr_barrier_await(base + EMPTY + 8 * stage, parity_of(i, STAGES) ^ 1);
    kr_barrier_expect(full, STAGE + KR_SSD_STEPS_BYTES + OWN_BYTES + TURNS);
    kr_load_box(to, map_x, full, 0, t0, h, at.b);
    kr_load_box(to + TILE, map_dy, full, 0, t0, h, at.b);
    kr_load_bytes(to + 2 * TILE, (const char *)p.S + tile, BLOCKS * TILE, full);
    kr_load_bytes(to + (2 + BLOCKS) * TILE, (const char *)p.M + tile, BLOCKS * TILE, full);
    kr_load_bytes(base + STEPS_AT + stage * KR_SSD_STEPS_BYTES, steps_at(p.f, at.b, h, at.chunk), KR_SSD_STEPS_BYTES,
                  full);
    kr_load_bytes(base + OWN_AT + stage * OWN_BYTES, ((const kr_mamba3_chunk_steps *)packet)->own, OWN_BYTES, full);
    kr_load_bytes(base + TURNS_AT + stage * TURNS, packet + KR_MAMBA3_STEPS_BYTES, TURNS, full);
  }
}

/* <S, M> of each head, a third by each of three warps. */
KR_DEV void sum_beside(const kr_ssd_bwd_params &p, const place &at, int which, unsigned char *shared, uint32_t base) {
  float *const others = (float *)(shared + SIDE_SUMS);
  for (int i = 0; i < at.n; i++) {
    const int stage = i % STAGES;
    kr_barrier_await(base + FULL + 8 * stage, parity_of(i, STAGES));
    const float sum = pass_through<3>(shared + STAGES_AT + stage * STAGE + 2 * TILE, which);
    kr_sync_warp();
    if ((kr_thread() & 31) == 0) kr_barrier_arrive(base + EMPTY + 8 * stage);
    if (which && (kr_thread() & 31) == 0) others[2 * (i & 1) + which - 1] = sum;
    kr_sync_some<4, 96>();
    if (which == 0 && (kr_thread() & 31) == 0)
      sums_at(p, at.b, at.first + i, at.chunk)->through = sum + others[2 * (i & 1)] + others[2 * (i & 1) + 1];
  }
}

/* ---- keys and queries -------------------------------------------------------------------------------------------- */

/* What turning changes of 8 pairs of a lane's rows of keys or queries, given their gradients. */
KR_DEV kr_float4 shares_of(const unsigned char *tile, const float (&d)[N / 2], int k, const lanes &me) {
  uint32_t two[4];
  kr_float4 share;
  take_matrices(two, tile, me, 2 * k);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float *const e = d + 8 * k + 4 * (i >> 1) + 2 * (i & 1);
    share.v[i] = kr_fma(kr_unpack(two[i], 0, KR_DTYPE), e[1], -(kr_unpack(two[i], 1, KR_DTYPE) * e[0]));
  }
  return share;
}

KR_DEV void turn_rows_back(float (&d)[N / 2], const unsigned char *turns, const lanes &me) {
#pragma unroll
  for (int k = 0; k < TURNING; k++) {
    const kr_raw16 by = rotations_at(turns, me, k);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float *const e = d + 8 * k + 4 * (i >> 1) + 2 * (i & 1);
      const float c = kr_unpack(by.w[i], 0, KRAIT_F16), s = kr_unpack(by.w[i], 1, KRAIT_F16), x = e[0], y = e[1];
      e[0] = kr_fma(c, x, s * y), e[1] = kr_fma(c, y, -(s * x));
    }
  }
}

/* Sums of M values over a warp's eight rows of lanes, of which a lane keeps M / 8: its bits 4, 3 and 2 say which. */
template <int M>
KR_DEV void fold_rows(const lanes &me, float (&v)[M]) {
#pragma unroll
  for (int half = M / 2, lane = 16; lane >= 4; half >>= 1, lane >>= 1) {
    const int is_high = (me.lane & lane) != 0;
#pragma unroll
    for (int i = 0; i < half; i++) {
      const float kept = kr_select(is_high, v[i + half], v[i]), given = kr_select(is_high, v[i], v[i + half]);
      v[i] = kept + kr_shuffle_xor(given, lane);
    }
  }
}

/* A warp's sums of 2 M columns over its 16 tokens, given those over a lane's two; `to` has all columns. */
template <int M>
KR_DEV void put_columns(float (&v)[M], const lanes &me, float *to) {
  fold_rows<M>(me, v);
  const int first = 2 * M * (me.lane >> 4 & 1) + M * (me.lane >> 3 & 1) + M / 2 * (me.lane >> 2 & 1) + 2 * me.q;
#pragma unroll
  for (int j = 0; j < M / 16; j++) *(kr_float2 *)(to + first + 8 * j) = kr_float2{{v[2 * j], v[2 * j + 1]}};
}

/* A chunk's sum of dy x of a head. */
KR_DEV float *trace_at(const kr_mamba3_inner_params &w, int b, int h, int64_t chunk) {
  return w.factors + (((int64_t)b * w.q.n_chunks + chunk) * w.q.f.H + h + 1) * w.n_parts - 1;
}
KR_DEV float sum_of_four(const float *of) { return of[0] + of[1] + of[2] + of[3]; }

/* Sums of columns of dq, or (gives) dk, by warps. */
KR_DEV float *columns_of(unsigned char *shared, int gives) {
  return (float *)(shared + anew(COLUMNS_AT)) + 4 * N * gives;
}

/* A head's dq or dk onto those of the group, unless the head is computed again, and their sums. */
KR_DEV void add_head(const lanes &me, int counts, const float (&d)[N / 2], float (&sums)[N / 2], float *columns) {
  if (counts) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) sums[i] += d[i];
  }
  float v[N / 4];
#pragma unroll
  for (int i = 0; i < N / 4; i++) v[i] = d[4 * (i >> 1) + (i & 1)] + d[4 * (i >> 1) + 2 + (i & 1)];
  put_columns(v, me, columns + N * me.warp);
}

/* After a barrier: the chunk's sums of columns. */
KR_DEV void leave_columns(const kr_mamba3_inner_params &w, const place &at, int h, int gives, const float *columns) {
  const int n = kr_thread() & 127, n_states = w.q.f.N;
  if (n >= n_states) return;
  float *const to = w.biases + ((((int64_t)at.b * w.q.n_chunks + at.chunk) * w.q.f.H + h) * 2 + gives) * n_states;
  to[n] = columns[n] + columns[N + n] + columns[2 * N + n] + columns[3 * N + n];
}

/* ---- the three warpgroups ---------------------------------------------------------------------------------------- */

/* Starts d = A F over a tile of 64 rows and WIDTH columns, or d += with `adds`; TURNED: A^T F. In flight on return. */
template <int WIDTH, int TURNED>
KR_DEV void start_rows(uint32_t A, uint32_t F, float (&d)[WIDTH / 2], int adds) {
  const uint64_t a = TURNED ? kr_mn_major(A, TILE) : kr_k_major(A), f = kr_mn_major(F, TILE);
  kr_wgmma_begin();
#pragma unroll
  for (int k = 0; k < 4; k++)
    kr_wgmma_step<WIDTH, half_type, TURNED, 1>(d, further(a, k * (TURNED ? KR_MN_STEP_BYTES : KR_K_STEP_BYTES)),
                                               further(f, k * KR_MN_STEP_BYTES), k > 0 || adds);
  kr_wgmma_commit();
}

KR_DEV void scale_rows(float (&d)[32], const float (&by)[2]) {
#pragma unroll
  for (int i = 0; i < 32; i++) d[i] *= by[i >> 1 & 1];
}

/* Row sums of a product times a tile (row_sums with fewer registers). */
KR_DEV void sum_rows(const float (&d)[32], const unsigned char *tile, const lanes &me, float (&sums)[2]) {
  sums[0] = sums[1] = 0;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    uint32_t a[4];
    take_matrices(a, tile, me, 2 * k);
#pragma unroll
    for (int i = 0; i < 8; i++)
      sums[i >> 1 & 1] = kr_fma(d[8 * k + i], kr_unpack(a[i >> 1], i & 1, KR_DTYPE), sums[i >> 1 & 1]);
  }
}

/* What is left of a token's input at the chunk's end: with its step size, unless that is P's (sized). */
KR_DEV void share_of_inputs(const chunk_steps &steps, const lanes &me, float (&into)[2], float (&size)[2]) {
  const int sized = has_sizes<PLAIN>();
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = me.row + 8 * r;
    const float from = sized ? from_of(steps, row) : steps.a[row];
    size[r] = sized ? kr_exp2(from - steps.a[row]) : steps.d[row], into[r] = kr_exp2(steps.total - from);
  }
}

/* Which elements of a lane's are on the diagonal of 64 rows and columns: those of row r with is_diagonal(i, own). */
KR_DEV int own_elements(const lanes &me) { return me.q == me.g >> 1 ? 2 * me.warp + (me.g & 1) : -1; }
KR_DEV int is_diagonal(int i, int own) { return (i >> 2 & 1) == (i >> 1 & 1) && 2 * (i >> 3) + (i & 1) == own; }

/* A row's element of the diagonal, on the lane that has it; else 0. */
KR_DEV void take_diagonal(int own, const float (&v)[32], float (&to)[2]) {
  to[0] = to[1] = 0;
#pragma unroll
  for (int i = 0; i < 32; i++) to[i >> 1 & 1] = is_diagonal(i, own) ? v[i] : to[i >> 1 & 1];
}
KR_DEV void put_diagonal(int own, const float (&v)[2], float (&to)[32]) {
#pragma unroll
  for (int i = 0; i < 32; i++) to[i] = is_diagonal(i, own) ? v[i >> 1 & 1] : to[i];
}

/* Stores W^T to a tile, rows j. */
KR_DEV void put_turned(unsigned char *tile, const lanes &me, const uint32_t (&w)[16]) {
#pragma unroll
  for (int k = 0; k < 4; k++) {
#ifdef KR_EMULATE
    for (int i = 0; i < 8; i++) {
      const int row = me.row + 8 * (i >> 1 & 1), column = 16 * k + 8 * (i >> 2) + 2 * me.q + (i & 1);
      *(uint16_t *)(tile + kr_swizzle<128>(column, row >> 3) + 2 * (row & 7)) =
          (uint16_t)(w[4 * k + (i >> 1)] >> 16 * (i & 1));
    }
#else
    const int row = 16 * k + 8 * (me.lane >> 4) + (me.lane & 7);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(kr_shared_at(tile + kr_swizzle<128>(row, 2 * me.warp + (me.lane >> 3 & 1)))), "r"(w[4 * k]),
                   "r"(w[4 * k + 1]), "r"(w[4 * k + 2]), "r"(w[4 * k + 3])
                 : "memory");
#endif
  }
}

/* The shares of angles of a head's tokens, and their sums over a warp's. */
KR_DEV void leave_shares(const kr_mamba3_inner_params &w, const place &at, int h, const lanes &me,
                         const unsigned char *psi) {
  const kr_ssd_params &f = w.q.f;
  const int64_t unit = (int64_t)at.b * f.H + h, first = (int64_t)at.chunk * Q + 16 * me.warp,
                spans = (f.L + KR_MAMBA3_SPAN - 1) / KR_MAMBA3_SPAN;
  float *const low = w.psi + (unit * f.L + first + me.g) * w.M + me.q, *const high = low + 8 * w.M;
  const int has_low = first + me.g < f.L, has_high = first + me.g + 8 < f.L;
  float columns[2 * TURNING];
#pragma unroll
  for (int k = 0; k < TURNING; k++) {
    const kr_float4 *const both = (const kr_float4 *)psi + 128 * k + me.thread;
    const kr_float4 of_query = both[0], of_key = both[TILE / 16];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int m = 8 * k + 4 * i; /* and me.q further; M is a multiple of 4 */
      const float a = of_query.v[2 * i] + of_key.v[2 * i], b = of_query.v[2 * i + 1] + of_key.v[2 * i + 1];
      columns[2 * k + i] = a + b;
      if (has_low && m < w.M) low[m] = a;
      if (has_high && m < w.M) high[m] = b;
    }
  }
  fold_rows<2 * TURNING>(me, columns);
  const int m = 4 * (4 * (me.lane >> 4 & 1) + 2 * (me.lane >> 3 & 1) + (me.lane >> 2 & 1)) + me.q;
  if (first < f.L && m < w.M) w.later[(unit * spans + first / KR_MAMBA3_SPAN) * w.M + m] = columns[0];
}

/* An address in shared memory, which a register is not to hold from head to head. */
KR_DEV uint32_t at_base(uint32_t base, int offset) { return base + (uint32_t)anew(offset); }

/* A head's place in shared memory, and its stage's. */
typedef struct head_place {
  uint32_t x, dy, S, M;
  const unsigned char *tiles, *turns; /* x's tile first */
  const chunk_steps *steps;
} head_place;
KR_DEV head_place place_of(int i, unsigned char *shared, uint32_t base) {
  const int stage = i % STAGES;
  const uint32_t x = uniform(base + STAGES_AT + stage * STAGE);
  return head_place{x,
                    x + TILE,
                    x + 2 * TILE,
                    x + (2 + BLOCKS) * TILE,
                    shared + anew(STAGES_AT + stage * STAGE),
                    shared + anew(TURNS_AT + stage * TURNS),
                    (const chunk_steps *)(shared + anew(STEPS_AT + stage * KR_SSD_STEPS_BYTES))};
}

/* The next head's bias of a thread's column, loaded long before it is put. */
KR_DEV float next_bias(const kr_view &bias, const place &at, int i, int n_states) {
  const int n = kr_thread() & 127;
  return i + 1 < at.n && n < n_states ? get_ahead(bias, at3(bias, at.first + i + 1, 0, n)) : 0.0f;
}

/* Queries, or (gives) keys, and their gradients. */
KR_DEV void turn(const kr_mamba3_inner_params &w, unsigned char *shared, uint32_t base, int gives) {
  const kr_ssd_bwd_params &p = w.q;
  float sums[N / 2];
  clear_all(sums, N / 2);
#pragma unroll 1
  for (int i = 0; i < place_in(shared).n; i++) {
    const lanes me = lanes_of(anew(kr_thread()));
    const int stage = i % STAGES;
    const head_place own = place_of(i, shared, base);
    unsigned char *const rows = shared + anew(gives ? K_AT : Q_AT), *const psi = shared + anew(PSI_AT);
    float *const biases = (float *)(shared + anew(BIASES_AT)) + gives * N, *const columns = columns_of(shared, gives);
    float d[N / 2], by[2];
    uint32_t factor[16];
    kr_barrier_await(base + FULL + 8 * stage, parity_of(i, STAGES));
    turn_rows(shared + anew(gives ? B_AT : C_AT), rows, biases, own.turns, me);
    if (gives) {
      float size[2];
      share_of_inputs(*own.steps, me, by, size);
      if (!has_sizes<PLAIN>()) by[0] *= size[0], by[1] *= size[1];
    } else {
      by[0] = kr_exp2(own.steps->a[me.row]), by[1] = kr_exp2(own.steps->a[me.row + 8]);
    }
    take_factor(factor, own.tiles + (gives ? 0 : TILE), me);
    scale_factor(factor, by[0], by[1]);
    start_sum<N>(gives ? own.M : own.S, factor, d, 0);
    kr_wgmma_wait<N, 0>(d);
    kr_sync_at<CONSUMERS>(ALL_BARRIER);
    start_rows<N, 0>(at_base(base, W_AT + gives * TILE), at_base(base, gives ? Q_AT : K_AT), d, 1);
    const place at = place_in(shared);
    const int h = at.first + i, counts = !p.f.spoilt[at.b * p.f.H + h];
    const float bias = next_bias(gives ? w.B_bias : w.C_bias, at, i, p.f.N);
    kr_wgmma_wait<N, 0>(d);
    if (i + 1 < at.n) kr_arrive_at<CONSUMERS>(W_BARRIER);
#pragma unroll
    for (int k = 0; k < TURNING; k++)
      *((kr_float4 *)(psi + gives * TILE) + 128 * k + me.thread) = shares_of(rows, d, k, me);
    float back[N / 2]; /* ptxas serialises products whose accumulators are changed in place */
#pragma unroll
    for (int k = 0; k < N / 2; k++) back[k] = d[k];
    turn_rows_back(back, own.turns, me);
    add_head(me, counts, back, sums, columns);
    biases[bias_place(me.thread)] = bias;
    release(base + EMPTY + 8 * stage, me);
    kr_sync_at<CONSUMERS>(READ_BARRIER);
    leave_columns(w, at, h, gives, columns);
    if (!gives) leave_shares(w, at, h, me, psi);
  }
  store_matrix(p, place_in(shared), lanes_of(anew(kr_thread())), gives ? p.dB : p.dC, gives ? p.sum_B : p.sum_C,
               shared + (gives ? K_AT : Q_AT), sums);
}

/* Decays from tokens j to i, with (sized) step sizes; 0 from later ones. */
KR_DEV void make_decays(const lanes &me, const chunk_steps &s, float (&e)[32]) {
  const float a[2] = {s.a[me.row], s.a[me.row + 8]};
#pragma unroll
  for (int j = 0; j < 8; j++) {
    const int column = 8 * j + 2 * me.q;
    const kr_float2 to = *(const kr_float2 *)&s.a[column], from = *(const kr_float2 *)&s.from[column];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const float most = to.v[k] + 100.0f, least = from.v[k] < most ? from.v[k] : most, /* from_of */
          origin = has_sizes<PLAIN>() ? least : to.v[k];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float v = kr_exp2(a[r] - origin);
        e[4 * j + 2 * r + k] = column + k <= me.row + 8 * r ? v : 0.0f;
      }
    }
  }
}

/* The step sizes of a lane's columns where decays do not have them. */
KR_DEV kr_float2 sizes_at(const chunk_steps &s, int column) {
  if (has_sizes<PLAIN>()) return kr_float2{{1, 1}};
  return kr_float2{{given_size(s, column), given_size(s, column + 1)}};
}

/* W of a head as operands, W and W^T. pairs: dy x^T with decays, of earlier tokens; same: its diagonal. */
KR_DEV void make_W(const kr_mamba3_inner_params &w3, unsigned char *shared, uint32_t base, int i, float (&e)[32],
                   float (&pairs)[32], float (&same)[2]) {
  const kr_ssd_bwd_params &p = w3.q;
  const lanes me = lanes_of(anew(kr_thread()));
  const int stage = i % STAGES;
  const head_place own = place_of(i, shared, base);
  kr_barrier_await(base + FULL + 8 * stage, parity_of(i, STAGES));
  start_tile(own.dy, own.x, pairs);
  make_decays(me, *own.steps, e);
  kr_wgmma_wait<64, 0>(pairs);
  take_diagonal(own_elements(me), pairs, same);
  float W[32];
#pragma unroll
  for (int k = 0; k < 32; k += 2) {
    const kr_float2 size = sizes_at(*own.steps, 8 * (k >> 2) + 2 * me.q);
    pairs[k] *= e[k], pairs[k + 1] *= e[k + 1];
    W[k] = pairs[k] * size.v[0], W[k + 1] = pairs[k + 1] * size.v[1];
  }
  const float *const weights = (const float *)(shared + anew(OWN_AT + stage * OWN_BYTES));
  put_diagonal(own_elements(me), {same[0] * weights[me.row], same[1] * weights[me.row + 8]}, W);
  put_diagonal(own_elements(me), {0, 0}, pairs); /* which P's diagonal has */
  const place at = place_in(shared);
  if (p.dD.data) leave_diagonal(p, at, slot_at(at, i), me, same);
  const float trace = add_warp(same[0] + same[1]);
  if (me.lane == 0) ((float *)(shared + anew(TRACE_AT + 16 * (i & 1))))[me.warp] = trace;
  uint32_t w[16];
  pack_all(W, w);
  if (i) kr_sync_at<CONSUMERS>(W_BARRIER);
  put_factor(shared + anew(W_AT), me, w);
  put_turned(shared + anew(W_AT + TILE), me, w);
  kr_show_to_copies();
}

/* P in shared memory; what rows take, what columns give (by warps) and (own) give to themselves. */
KR_DEV void make_P(const lanes &me, const chunk_steps &s, float (&e)[32], const float (&pairs)[32],
                   const float (&CB)[32], const float (&same)[2], float (&taken)[2], float (&own)[2], float *columns,
                   unsigned char *tile) {
  const int elements = own_elements(me);
  float given[16], D[2];
  taken[0] = taken[1] = 0;
#pragma unroll
  for (int i = 0; i < 32; i++) {
    const int r = i >> 1 & 1, at = 2 * (i >> 2) + (i & 1), column = 8 * (i >> 2) + 2 * me.q;
    const float product = column + (i & 1) <= me.row + 8 * r ? CB[i] : 0.0f, /* of later tokens it may be infinite */
        pair = pairs[i] * product;
    taken[r] = has_sizes<PLAIN>() ? taken[r] + pair : kr_fma(pair, sizes_at(s, column).v[i & 1], taken[r]);
    given[at] = r ? given[at] + pair : pair;
    e[i] *= product;
  }
  take_diagonal(elements, e, own); /* decays there are 1, or (sized) step sizes */
#pragma unroll
  for (int r = 0; r < 2; r++)
    D[r] = own[r] + (has_sizes<PLAIN>() ? s.segment[me.row + 8 * r] : 0.0f), own[r] = add_row(own[r] * same[r]);
  put_diagonal(elements, D, e);
  uint32_t w[16];
  pack_all(e, w);
  put_factor(tile, me, w);
  put_columns(given, me, columns + Q * me.warp);
}

/* dx of a head, of its products with (sized) or without step sizes, and D dy then. */
KR_DEV void leave_inputs(const chunk_steps &steps, const lanes &me, const float (&d)[32], const float (&size)[2],
                         const unsigned char *dy_tile, unsigned char *to) {
  const int sized = has_sizes<PLAIN>();
  const float D[2] = {steps.segment[me.row], steps.segment[me.row + 8]};
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    float e[8];
#pragma unroll
    for (int k = 0; k < 8; k++) e[k] = sized ? d[4 * j + k] : d[4 * j + k] * size[k >> 1 & 1];
    if (!sized) {
      uint32_t dy[4];
      take_matrices(dy, dy_tile, me, j);
#pragma unroll
      for (int k = 0; k < 8; k++)
        e[k] = kr_fma(D[k >> 1 & 1], kr_unpack(dy[2 * (k >> 2) + (k >> 1 & 1)], k & 1, KR_DTYPE), e[k]);
    }
    put_matrices(to, me, j, pack(e[0], e[1]), pack(e[2], e[3]), pack(e[4], e[5]), pack(e[6], e[7]));
  }
  kr_show_to_copies();
}

/* The sums of a chunk's tokens, by a thread each. */
KR_DEV void leave_tokens(const kr_mamba3_inner_params &w, const place &at, int h, const chunk_steps &s,
                         const float *columns, const float (*rows)[2]) {
  const int j = kr_thread() & 127;
  if (j >= Q) return;
  const float given = columns[j] + columns[Q + j] + columns[2 * Q + j] + columns[3 * Q + j], after = rows[j][0],
              all = given + rows[j][1] + after, passed = has_sizes<PLAIN>() ? 1.0f : given_size(s, j);
  float *const v = sums_at(w.q, at.b, h, at.chunk)->of[j].v;
  v[1] = passed * after, v[2] = has_sizes<PLAIN>() ? all * kr_exp2(from_of(s, j) - s.a[j]) : all, v[3] = passed * given;
}

/* Pairs of tokens, and dx. */
KR_DEV void pair(const kr_mamba3_inner_params &w3, unsigned char *shared, uint32_t base, uint64_t maps) {
  const kr_ssd_bwd_params &p = w3.q;
#pragma unroll 1
  for (int i = 0; i < place_in(shared).n; i++) {
    float e[32], pairs[32], d[32], before_d[32], same[2], taken[2], own_sum[2], before[2], after[2], into[2], size[2];
    make_W(w3, shared, base, i, e, pairs, same);
    kr_sync_at<CONSUMERS>(ALL_BARRIER);
    start_product(at_base(base, Q_AT), at_base(base, K_AT), d);
    const lanes me = lanes_of(anew(kr_thread()));
    const head_place own = place_of(i, shared, base);
    float *const columns = columns_of(shared, 2);
    float(*const rows)[2] = (float(*)[2])(shared + anew(ROWS_AT));
    const place at = place_in(shared);
    const int h = at.first + i;
    if (w3.factors && me.thread == 0)
      *trace_at(w3, at.b, h, at.chunk) = sum_of_four((const float *)(shared + anew(TRACE_AT + 16 * (i & 1))));
    if (me.thread == 0) kr_stores_read<0>();
    kr_wgmma_wait<64, 0>(d);
    sync_givers(); /* dx has been read */
    make_P(me, *own.steps, e, pairs, d, same, taken, own_sum, columns, shared + anew(P_AT));
    kr_show_to_copies();
    start_product(at_base(base, K_AT), own.M, d);
    start_product(at_base(base, Q_AT), own.S, before_d);
    share_of_inputs(*own.steps, me, into, size);
    kr_wgmma_wait<64, 1>(d);
    scale_rows(d, into);
    sum_rows(d, own.tiles, me, after);
    after[0] = add_row(after[0]), after[1] = add_row(after[1]);
    if (me.q == 0) {
#pragma unroll
      for (int r = 0; r < 2; r++) rows[me.row + 8 * r][0] = after[r], rows[me.row + 8 * r][1] = own_sum[r];
    }
    sync_givers();
    start_rows<64, 1>(at_base(base, P_AT), own.dy, d, 1);
    kr_wgmma_wait<64, 1>(before_d);
    kr_arrive_at<CONSUMERS>(READ_BARRIER);
    sum_rows(before_d, own.tiles + TILE, me, before);
    token_sums &to = *sums_at(p, at.b, h, at.chunk);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = me.row + 8 * r;
      taken[r] = add_row(taken[r]), before[r] = kr_exp2(own.steps->a[row]) * add_row(before[r]);
      if (me.q == 0) to.taken[row] = taken[r], to.of[row].v[0] = before[r];
    }
    leave_tokens(w3, at, h, *own.steps, columns, rows);
    kr_wgmma_wait<64, 0>(d);
    if (p.dx.data) {
      sync_givers(); /* P has been read */
      leave_inputs(*own.steps, me, d, size, own.tiles + TILE, shared + anew(P_AT));
      sync_givers();
      if (me.thread == 0) {
        kr_store_box(maps + 4 * sizeof(kr_ssd_map), base + P_AT, 0, at.chunk * Q, h, at.b);
        kr_commit_stores();
      }
    }
    release(base + EMPTY + 8 * (i % STAGES), me);
  }
  if ((kr_thread() & 127) == 0) kr_stores_read<0>();
}

/* Before the first head: its biases, and the group's B and C. */
KR_DEV void begin(const kr_mamba3_inner_params &w, unsigned char *shared, uint32_t base) {
  const int n = kr_thread() - 128, first = place_in(shared).first;
  float *const biases = (float *)(shared + BIASES_AT);
  if (n < 2 * N) put_own_biases(n < N ? w.C_bias : w.B_bias, first, w.q.f.N, n % N, biases + n / N * N);
  kr_sync_at<CONSUMERS>(ALL_BARRIER);
  kr_barrier_await(base + BOTH_FULL, 0);
}

KR_DEV void run(const kr_mamba3_inner_params &w, uint64_t maps) {
  KR_DYNAMIC_SHARED(all);
  const uint32_t start = kr_shared_at(all), base = (start + 1023) & ~1023u;
  unsigned char *const shared = all + (base - start);
  if (kr_thread() == 0) *(place *)(shared + PLACE_AT) = here(w.q);
  open_stages(base + BOTH_FULL, base + FULL, base + EMPTY, STAGES, CONSUMERS / 32 + 3);
  if (kr_thread() < 128) {
    kr_give_registers<PRODUCER_REGS>();
    if (kr_thread() == 0)
      copy_heads(w, place_in(shared), maps, base);
    else if (kr_thread() >= 32)
      sum_beside(w.q, place_in(shared), kr_thread() / 32 - 1, shared, base);
    return;
  }
  const int role = (int)uniform(kr_thread() / 128) - 1;
  begin(w, shared, base);
  if (role < 2) {
    kr_take_registers<ROWS_REGS>();
    turn(w, shared, base, role);
  } else {
    kr_take_registers<PAIRS_REGS>();
    pair(w, shared, base, maps);
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_mamba3_inner(const kr_mamba3_inner_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_mamba3_inner, maps);
  run(params, maps);
}

/* ---- heads computed again ---------------------------------------------------------------------------------------- */

enum { AGAIN_PAIRS = N / 64 }; /* of a lane */

/* A token's pair m of B or C, with biases. */
KR_DEV kr_float2 biased_pair(const kr_view &v, const kr_view &bias, int b, int h, int g, int64_t t, int m,
                             int n_states) {
  const int64_t n = 2 * m, row = at4(v, b, t, g, n), own = at3(bias, h, 0, n);
  if (n >= n_states) return kr_float2{{0, 0}};
  return kr_float2{{get(v, row) + get(bias, own), get(v, row + v.stride[3]) + get(bias, own + bias.stride[2])}};
}
/* Cosine and sine of a token's pair m, which turns. */
KR_DEV kr_float2 rotation_at(const kr_mamba3_inner_params &w, int b, int h, int64_t t, int m) {
  const int j = (int)(t % Q), lane = 32 * (j >> 4) + 4 * (j & 7) + (m & 3);
  const uint32_t *const turns = (const uint32_t *)(packet_at(w, b, h, t / Q) + KR_MAMBA3_STEPS_BYTES);
  const uint32_t two = turns[(m >> 3) * 512 + lane * 4 + 2 * (m >> 2 & 1) + (j >> 3 & 1)];
  return kr_float2{{kr_unpack(two, 0, KRAIT_F16), kr_unpack(two, 1, KRAIT_F16)}};
}

/* What a warp has: KR_MAMBA3_INNER_TOKENS tokens, of a group. */
typedef struct share {
  int g, b;
  int64_t tile, t0, end;
} share;
KR_DEV share own_share(const kr_ssd_bwd_params &p) {
  const int64_t tile = (int64_t)kr_block_x() * (KR_MAMBA3_THREADS / 32) + (kr_thread() >> 5),
                t0 = tile * KR_MAMBA3_INNER_TOKENS, end = t0 + KR_MAMBA3_INNER_TOKENS;
  return share{(int)kr_block_y(), (int)kr_block_z(), tile, t0, end < p.f.L ? end : p.f.L};
}
KR_DEV int is_again(const kr_ssd_bwd_params &p, const share &own, int h) {
  return p.f.spoilt[own.b * p.f.H + h] && own.tile < p.n_chunks;
}

/* Whether any head of the group is, looked up at once. */
KR_DEV int has_again(const kr_ssd_bwd_params &p, const share &own) {
  int any = 0;
  for (int h = kr_thread() & 31; h < p.f.heads; h += 32) any |= p.f.spoilt[own.b * p.f.H + own.g * p.f.heads + h];
  return kr_any_lane(any);
}

KR_KERNEL void KR_BOUNDS(KR_MAMBA3_THREADS, 2) kr_mamba3_inner_rows(const kr_mamba3_inner_params params) {
  const kr_mamba3_inner_params &w = params;
  const kr_ssd_params &f = w.q.f;
  const share own = own_share(w.q);
  if (!has_again(w.q, own)) return;
#pragma unroll 1
  for (int h = own.g * f.heads; h < (own.g + 1) * f.heads; h++) {
    if (!is_again(w.q, own, h)) continue;
#pragma unroll 1
    for (int64_t t = own.t0; t < own.end; t++)
#pragma unroll
      for (int k = 0; k < AGAIN_PAIRS; k++) {
        const int m = (kr_thread() & 31) + 32 * k;
        const int64_t place = ((((int64_t)own.b * f.H + h) * f.L + t) * f.N >> 1) + m;
        kr_float2 by = {{1, 0}};
        if (m < w.M) by = rotation_at(w, own.b, h, t, m);
        if (2 * m >= f.N) continue;
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const kr_float2 v = biased_pair(i ? w.B : w.C, i ? w.B_bias : w.C_bias, own.b, h, own.g, t, m, f.N);
          const kr_float2 turned = {
              {kr_fma(by.v[0], v.v[0], -(by.v[1] * v.v[1])), kr_fma(by.v[1], v.v[0], by.v[0] * v.v[1])}};
          const kr_float2 &to = m < w.M ? turned : v; /* NaN of one that does not turn is not its neighbour's */
          ((uint32_t *)(i ? w.rows_k : w.rows_q))[place] = pack(to.v[0], to.v[1]);
        }
      }
  }
}

/* A token's dq and dk of a lane's pair, turned back, and complete; its share of angles onto `later`. */
KR_DEV void turn_pair_back(const kr_mamba3_inner_params &w, const share &own, int h, int64_t t, int m,
                           kr_float2 (&d)[2], float &later) {
  const kr_ssd_params &f = w.q.f;
  const int64_t place = ((int64_t)own.b * f.H + h) * f.L + t;
  const kr_float2 of[2] = {biased_pair(w.C, w.C_bias, own.b, h, own.g, t, m, f.N),
                           biased_pair(w.B, w.B_bias, own.b, h, own.g, t, m, f.N)};
  const float by = w.gamma[place] * w.products[place];
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int e = 0; e < 2; e++)
      d[i].v[e] = 2 * m < f.N ? ((const float *)(i ? w.dk : w.dq))[place * f.N + 2 * m + e] : 0.0f;
  if (m < w.M) {
    const kr_float2 turn = rotation_at(w, own.b, h, t, m);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float x = d[i].v[0], y = d[i].v[1];
      d[i].v[0] = kr_fma(turn.v[0], x, turn.v[1] * y), d[i].v[1] = kr_fma(turn.v[0], y, -(turn.v[1] * x));
      sum += kr_fma(of[i].v[0], d[i].v[1], -(of[i].v[1] * d[i].v[0]));
    }
    w.psi[place * w.M + m] = sum, later += sum;
  }
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int e = 0; e < 2; e++) d[i].v[e] = kr_fma(by, of[!i].v[e], d[i].v[e]);
}

/* Onto dC or dB. */
KR_DEV void add_pair(const kr_ssd_tensor &to, const share &own, int64_t t, int m, int n_states, const kr_float2 &d) {
  if (!to.data || 2 * m >= n_states) return;
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int64_t at = own.b * to.b + t * to.t + own.g * to.h + 2 * m + e;
    kr_store(to.data, at, KR_DTYPE, kr_load(to.data, at, KR_DTYPE) + d.v[e]);
  }
}

KR_KERNEL void KR_BOUNDS(KR_MAMBA3_THREADS, 2) kr_mamba3_inner_again(const kr_mamba3_inner_params params) {
  const kr_mamba3_inner_params &w = params;
  const kr_ssd_bwd_params &p = w.q;
  const share own = own_share(p);
  const int lane = kr_thread() & 31;
  if (!has_again(p, own)) return;
#pragma unroll 1
  for (int h = own.g * p.f.heads; h < (own.g + 1) * p.f.heads; h++) {
    if (!is_again(p, own, h)) continue;
    const int64_t unit = (int64_t)own.b * p.f.H + h;
    float *const biases = w.biases + (((int64_t)own.b * p.n_chunks + own.tile) * p.f.H + h) * 2 * p.f.N;
#pragma unroll 1
    for (int k = 0; k < AGAIN_PAIRS; k++) {
      const int m = lane + 32 * k;
      kr_float2 columns[2] = {};
      float later = 0;
#pragma unroll 1
      for (int64_t t = own.t0; t < own.end; t++) {
        kr_float2 d[2];
        if (t % KR_MAMBA3_SPAN == 0) later = 0;
        turn_pair_back(w, own, h, t, m, d, later);
        if (m < w.M)
          w.later[(unit * ((p.f.L + KR_MAMBA3_SPAN - 1) / KR_MAMBA3_SPAN) + t / KR_MAMBA3_SPAN) * w.M + m] = later;
        add_pair(p.dC, own, t, m, p.f.N, d[0]), add_pair(p.dB, own, t, m, p.f.N, d[1]);
#pragma unroll
        for (int i = 0; i < 2; i++) columns[i].v[0] += d[i].v[0], columns[i].v[1] += d[i].v[1];
      }
      for (int i = 0; i < 2 && 2 * m < p.f.N; i++) *(kr_float2 *)(biases + i * p.f.N + 2 * m) = columns[i];
    }
    if (!w.factors) continue;
    float trace = 0;
    for (int64_t t = own.t0 + lane; t < own.end; t += 32) trace += w.products[unit * p.f.L + t];
    trace = add_warp(trace);
    if (lane == 0) *trace_at(w, own.b, h, own.tile) = trace;
  }
}

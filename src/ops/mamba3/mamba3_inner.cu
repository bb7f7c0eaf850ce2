/* mamba3_inner.cu: the walked gradient of Mamba 3's scan chunk by chunk on warpgroups (sm_90a), given states before and
 * their gradients after each chunk. A variant of ssd_hopper_bwd.cu (notation as there) for 128 states, whose queries
 * and keys are a group's C and B with biases of each head, turned. Compiled for float16 and bfloat16 storage
 * (KR_DTYPE). A block takes a chunk and several heads of a group in turn; B and C stay in shared memory:
 *   the first warpgroup turns C to queries, and makes dq = (2^a dy) S + W k
 *   the second turns B to keys, and makes dk = (into d x) M + W^T q, and dx
 * Both turn their gradients back, add them up over heads in registers, and sum them over 16 tokens, for biases. W has
 * on its diagonal the weight of a token's own output, so that dq and dk are complete. What turning a token's query and
 * key changes, a share of its angles' gradient (psi), is made of the rounded numbers that were multiplied: what a pair
 * of tokens gives to angles that turn both cancels exactly.
 *   kr_mamba3_inner        all of this
 *   kr_mamba3_inner_rows   of heads that met NaN or infinity, queries and keys in memory: these heads are computed
 *                          again token by token (redo_nonfinite in ssd_bwd_cuda.c)
 *   kr_mamba3_inner_again  their dq and dk, which are then in memory, onto dB and dC, and all else that comes of
 *                          them */
#include "../ssd/ssd_hopper_inner.cuh"
#include "mamba3_turn.cuh"

enum {
  THREADS = KR_SSD_HOPPER_BWD_THREADS,
  STAGES = 2,
  STAGE = (2 + 2 * BLOCKS) * TILE, /* x, dy, S, M */
  TURNS = KR_MAMBA3_TURNS_BYTES(KR_MAMBA3_INNER_M),
  OWN_BYTES = 4 * Q,
  B_AT = 0,
  C_AT = B_AT + BLOCKS * TILE,
  K_AT = C_AT + BLOCKS * TILE,
  Q_AT = K_AT + BLOCKS * TILE,
  STAGES_AT = Q_AT + BLOCKS * TILE,
  DX_AT = STAGES_AT + STAGES * STAGE,
  W_AT = DX_AT + TILE,
  CB_AT = W_AT + TILE,
  PSI_AT = CB_AT + TILE * 3 / 2,
  TURNS_AT = PSI_AT + TILE,
  STEPS_AT = TURNS_AT + STAGES * TURNS,
  OWN_AT = STEPS_AT + STAGES * KR_SSD_STEPS_BYTES,
  BIASES_AT = OWN_AT + STAGES * OWN_BYTES, /* of queries, then keys, as lanes take them */
  BOTH_FULL = BIASES_AT + 2 * N * 4,
  FULL = BOTH_FULL + 8,
  EMPTY = FULL + 8 * STAGES,
  SIDE_SUMS = EMPTY + 8 * STAGES,
  TRACE_AT = SIDE_SUMS + 16,
  ALL_BARRIER = 3,
  W_BARRIER = 5,
  TAKEN_BARRIER = 6, /* the first warpgroup's products have been made, */
  GIVEN_BARRIER = 7, /* the second's */
  PRODUCER_REGS = 40,
  CONSUMER_REGS = 232 /* registers per thread */
};
static_assert(1024 + TRACE_AT + 16 <= KR_MAMBA3_INNER_SHARED && KR_MAMBA3_INNER_SHARED <= 227 * 1024,
              "all have a place");
static_assert(KR_MAMBA3_INNER_TOKENS == KR_MAMBA3_SPAN && KR_MAMBA3_INNER_M * Q * 4 <= TILE && STEPS_AT % 16 == 0 &&
                  OWN_AT % 16 == 0,
              "copies are aligned");
static_assert(enough_registers(THREADS, PRODUCER_REGS, CONSUMER_REGS), "else who takes some waits for ever");

KR_DEV slot slot_at(const place &at, int i) { return slot{at.first + i, 0, 0}; }
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
  take_matrices(two, tile + k / 4 * TILE, me, 2 * (k & 3));
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

/* A warp's sums of columns over its 16 tokens. */
KR_DEV void leave_columns(const float (&d)[N / 2], const lanes &me, int n_states, float *to) {
  float v[N / 4];
#pragma unroll
  for (int i = 0; i < N / 4; i++) v[i] = d[4 * (i >> 1) + (i & 1)] + d[4 * (i >> 1) + 2 + (i & 1)];
  fold_rows<N / 4>(me, v);
  const int first = N / 2 * (me.lane >> 4 & 1) + N / 4 * (me.lane >> 3 & 1) + N / 8 * (me.lane >> 2 & 1) + 2 * me.q;
#pragma unroll
  for (int j = 0; j < N / 64; j++)
    if (first + 8 * j < n_states) *(kr_float2 *)(to + first + 8 * j) = kr_float2{{v[2 * j], v[2 * j + 1]}};
}

/* A chunk's sum of dy x of a head. */
KR_DEV float *trace_at(const kr_mamba3_inner_params &w, int b, int h, int64_t chunk) {
  return w.factors + (((int64_t)b * w.q.n_chunks + chunk) * w.q.f.H + h + 1) * w.n_parts - 1;
}
KR_DEV float sum_of_four(const float *of) { return of[0] + of[1] + of[2] + of[3]; }

/* The end of a head: gradients turned back, onto those of the group unless the head is computed again. */
KR_DEV void leave_head(const kr_mamba3_inner_params &w, const place &at, int h, const lanes &me, int which, int counts,
                       const unsigned char *turns, float (&d)[N / 2], float (&sums)[N / 2]) {
  const kr_ssd_bwd_params &p = w.q;
  const int64_t tile = ((int64_t)at.b * p.n_chunks + at.chunk) * (Q / KR_MAMBA3_INNER_TOKENS) + me.warp;
  turn_rows_back(d, turns, me);
  if (counts) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) sums[i] += d[i];
  }
  leave_columns(d, me, p.f.N, w.biases + ((tile * p.f.H + h) * 2 + which) * p.f.N);
}

/* ---- the two warpgroups ------------------------------------------------------------------------------------------ */

/* On W's diagonal, the weight of a token's own output. */
KR_DEV void put_own_weights(const lanes &me, const float *weights, const float (&own)[2], float (&W)[32]) {
#pragma unroll
  for (int i = 0; i < 32; i++) {
    const int r = i >> 1 & 1, column = 8 * (i >> 2) + 2 * me.q + (i & 1);
    if ((i >> 2 & 1) == r && column == me.row + 8 * r) W[i] = own[r] * weights[me.row + 8 * r];
  }
}

/* The shares of angles of a head's tokens, and their sums over a warp's. */
KR_DEV void leave_shares(const kr_mamba3_inner_params &w, const place &at, int h, const lanes &me,
                         const kr_float4 (&of_queries)[TURNING], const unsigned char *shared) {
  const kr_ssd_params &f = w.q.f;
  const int64_t unit = (int64_t)at.b * f.H + h, first = (int64_t)at.chunk * Q + 16 * me.warp,
                spans = (f.L + KR_MAMBA3_SPAN - 1) / KR_MAMBA3_SPAN;
  float *const low = w.psi + (unit * f.L + first + me.g) * w.M + me.q, *const high = low + 8 * w.M;
  const int has_low = first + me.g < f.L, has_high = first + me.g + 8 < f.L;
  float columns[2 * TURNING];
#pragma unroll
  for (int k = 0; k < TURNING; k++) {
    const kr_float4 &of_query = of_queries[k], of_key = *((const kr_float4 *)(shared + PSI_AT) + 128 * k + me.thread);
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

KR_DEV void take(const kr_mamba3_inner_params &w3, const place &at, const lanes &whole, unsigned char *shared,
                 uint32_t base) {
  const kr_ssd_bwd_params &p = w3.q;
  float *const biases = (float *)(shared + BIASES_AT);
  float sums[N / 2];
  clear_all(sums, N / 2);
  put_own_biases(w3.C_bias, at.first, p.f.N, whole.thread, biases);
  sync_group(whole);
  kr_barrier_await(base + BOTH_FULL, 0);
#pragma unroll 1
  for (int i = 0; i < at.n; i++) {
    const lanes me = lanes_of(anew(kr_thread()));
    const int stage = i % STAGES;
    const slot s = slot_at(at, i);
    const uint32_t x = uniform(base + STAGES_AT + stage * STAGE);
    const unsigned char *const dy = shared + anew(STAGES_AT + stage * STAGE + TILE), *const turns =
                                                                                         shared +
                                                                                         anew(TURNS_AT + stage * TURNS);
    const chunk_steps &steps = *(const chunk_steps *)(shared + anew(STEPS_AT + stage * KR_SSD_STEPS_BYTES));
    kr_float4 *const CB = (kr_float4 *)(shared + anew(CB_AT)) + me.thread;
    float xy[32], d[32], W[32], dq[N / 2], taken[2], before[2], own[2];
    uint32_t w[16];
    const int counts = !p.f.spoilt[at.b * p.f.H + s.h];
    kr_barrier_await(base + FULL + 8 * stage, parity_of(i, STAGES));
    turn_rows(shared + C_AT, shared + Q_AT, biases, turns, me);
    kr_sync_at<256>(ALL_BARRIER); /* keys and queries are there, W and psi have been read */
    start_product(base + Q_AT, base + K_AT, d);
    start_tile(x + TILE, x, xy);
    kr_wgmma_wait<64, 1>(d);
#pragma unroll
    for (int j = 0; j < 8; j++)
      if (j < 4 || me.warp >= 2) /* the others have only later tokens there */
        CB[j < 4 ? 128 * j : 192 + 64 * j] = before_these(me, j, d);
    start_product(base + Q_AT, x + 2 * TILE, d);
    kr_wgmma_wait<64, 1>(xy);
    clear_all(W, 32);
    add_pairs<PLAIN>(me, steps, xy, CB, W, taken, own, 0);
    put_own_weights(me, (const float *)(shared + anew(OWN_AT + stage * OWN_BYTES)), own, W);
    if (p.dD.data) leave_diagonal(p, at, s, me, own);
    const float trace = add_warp(own[0] + own[1]);
    if (me.lane == 0) ((float *)(shared + TRACE_AT))[me.warp] = trace;
    pack_all(W, w);
    put_factor(shared + W_AT, me, w);
    kr_show_to_copies();
    kr_arrive_at<256>(W_BARRIER);
    uint32_t weighed[16];
    take_factor(weighed, dy, me);
    kr_wgmma_wait<64, 0>(d);
    row_sums(d, weighed, before);
    const float low = kr_exp2(steps.a[me.row]), high = kr_exp2(steps.a[me.row + 8]);
    scale_factor(weighed, low, high);
    start_sum<N>(x + 2 * TILE, weighed, dq, 0);
    start_sum<N>(base + K_AT, w, dq, 1);
    taken[0] = add_row(taken[0]), taken[1] = add_row(taken[1]), before[0] = low * add_row(before[0]),
    before[1] = high * add_row(before[1]);
    token_sums &to = *sums_at(p, at.b, s.h, at.chunk);
    if (me.q == 0) {
#pragma unroll
      for (int r = 0; r < 2; r++) to.taken[me.row + 8 * r] = taken[r], to.of[me.row + 8 * r].v[0] = before[r];
    }
    if (i + 1 < at.n) put_own_biases(w3.C_bias, s.h + 1, p.f.N, me.thread, biases);
    kr_wgmma_wait<N, 0>(dq);
    kr_arrive_at<256>(TAKEN_BARRIER);
    kr_float4 shares[TURNING];
#pragma unroll
    for (int k = 0; k < TURNING; k++) shares[k] = shares_of(shared + Q_AT, dq, k, me);
    leave_head(w3, at, s.h, me, 0, counts, turns, dq, sums);
    kr_sync_at<256>(GIVEN_BARRIER); /* queries have been read, and shares of keys are there */
    if (w3.factors && me.thread == 0)
      *trace_at(w3, at.b, s.h, at.chunk) = sum_of_four((const float *)(shared + TRACE_AT));
    leave_shares(w3, at, s.h, me, shares, shared);
    release(base + EMPTY + 8 * stage, me);
  }
  kr_sync_at<256>(ALL_BARRIER);
  store_matrix(p, at, whole, p.dC, p.sum_C, shared + W_AT, sums);
}

KR_DEV void give(const kr_mamba3_inner_params &w3, const place &at, const lanes &whole, unsigned char *shared,
                 uint32_t base, uint64_t maps) {
  const kr_ssd_bwd_params &p = w3.q;
  const int t0 = at.chunk * Q, sized = has_sizes<PLAIN>();
  unsigned char *const own = shared + DX_AT;
  float *const biases = (float *)(shared + BIASES_AT) + N;
  float sums[N / 2];
  clear_all(sums, N / 2);
  put_own_biases(w3.B_bias, at.first, p.f.N, whole.thread, biases);
  sync_group(whole);
  kr_barrier_await(base + BOTH_FULL, 0);
#pragma unroll 1
  for (int i = 0; i < at.n; i++) {
    const lanes me = lanes_of(anew(kr_thread()));
    const int stage = i % STAGES;
    const slot s = slot_at(at, i);
    const uint32_t X = uniform(base + STAGES_AT + stage * STAGE), M = X + (2 + BLOCKS) * TILE;
    const unsigned char *const x = shared + anew(STAGES_AT + stage * STAGE), *const turns =
                                                                                 shared +
                                                                                 anew(TURNS_AT + stage * TURNS);
    const chunk_steps &steps = *(const chunk_steps *)(shared + anew(STEPS_AT + stage * KR_SSD_STEPS_BYTES));
    float xy[32], BC[32], d[32], dk[N / 2], given[2], after[2], inputs[2], size[2], into[2];
    uint32_t w[16], inner[16];
    const int counts = !p.f.spoilt[at.b * p.f.H + s.h];
    kr_barrier_await(base + FULL + 8 * stage, parity_of(i, STAGES));
    turn_rows(shared + B_AT, shared + K_AT, biases, turns, me);
    kr_sync_at<256>(ALL_BARRIER);
    start_product(base + K_AT, base + Q_AT, BC);
    start_tile(X, X + TILE, xy);
    start_product(base + K_AT, M, d);
    take_factor(w, x, me);
    const float own_D[2] = {steps.segment[me.row], steps.segment[me.row + 8]};
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = me.row + 8 * r;
      const float from = sized ? from_of(steps, row) : steps.a[row];
      size[r] = sized ? kr_exp2(from - steps.a[row]) : steps.d[row], into[r] = kr_exp2(steps.total - from);
    }
    kr_wgmma_wait<64, 1>(BC);
    kr_wgmma_wait<64, 1>(xy);
    weigh_pairs<PLAIN>(me, steps, xy, BC, inner, given, inputs, own_D, 0);
    kr_wgmma_wait<64, 0>(d);
#pragma unroll
    for (int k = 0; k < 32; k++) d[k] *= into[k >> 1 & 1];
    row_sums(d, w, after);
    start_sum<64>(X + TILE, inner, d, 1);
    scale_factor(w, sized ? into[0] : into[0] * size[0], sized ? into[1] : into[1] * size[1]);
    start_sum<N>(M, w, dk, 0);
    sum_given<has_sizes<PLAIN>()>(me, steps, size, given, after, inputs);
    token_sums &to = *sums_at(p, at.b, s.h, at.chunk);
    if (me.q == 0) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float *const v = to.of[me.row + 8 * r].v;
        v[1] = after[r], v[2] = inputs[r], v[3] = given[r];
      }
    }
    if (i + 1 < at.n) put_own_biases(w3.B_bias, s.h + 1, p.f.N, me.thread, biases);
    kr_wgmma_wait<64, 1>(d);
    if (p.dx.data) {
      if (me.thread == 0) kr_stores_read<0>();
      sync_givers();
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        float e[8];
#pragma unroll
        for (int k = 0; k < 8; k++) e[k] = sized ? d[4 * j + k] : d[4 * j + k] * size[k >> 1 & 1];
        if (!sized) {
          uint32_t dy[4];
          take_matrices(dy, x + TILE, me, j);
#pragma unroll
          for (int k = 0; k < 8; k++)
            e[k] = kr_fma(own_D[k >> 1 & 1], kr_unpack(dy[2 * (k >> 2) + (k >> 1 & 1)], k & 1, KR_DTYPE), e[k]);
        }
        put_matrices(own, me, j, pack(e[0], e[1]), pack(e[2], e[3]), pack(e[4], e[5]), pack(e[6], e[7]));
      }
      kr_show_to_copies();
      sync_givers();
      if (me.thread == 0) {
        kr_store_box(maps + 4 * sizeof(kr_ssd_map), base + DX_AT, 0, t0, s.h, at.b);
        kr_commit_stores();
      }
    }
    kr_sync_at<256>(W_BARRIER);
    start_turned_sum(base + W_AT, base + Q_AT, dk);
    kr_wgmma_wait<N, 0>(dk);
#pragma unroll
    for (int k = 0; k < TURNING; k++)
      *((kr_float4 *)(shared + PSI_AT) + 128 * k + me.thread) = shares_of(shared + K_AT, dk, k, me);
    kr_arrive_at<256>(GIVEN_BARRIER);
    leave_head(w3, at, s.h, me, 1, counts, turns, dk, sums);
    kr_sync_at<256>(TAKEN_BARRIER); /* keys have been read */
    release(base + EMPTY + 8 * stage, me);
  }
  if (whole.thread == 0) kr_stores_read<0>();
  kr_sync_at<256>(ALL_BARRIER);
  store_matrix(p, at, whole, p.dB, p.sum_B, own, sums);
}

KR_DEV void run(const kr_mamba3_inner_params &w, uint64_t maps) {
  KR_DYNAMIC_SHARED(all);
  const uint32_t start = kr_shared_at(all), base = (start + 1023) & ~1023u;
  unsigned char *const shared = all + (base - start);
  const place at = here(w.q);
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
      copy_heads(w, at, maps, base);
    else if (kr_thread() >= 32)
      sum_beside(w.q, at, kr_thread() / 32 - 1, shared, base);
  } else {
    kr_take_registers<CONSUMER_REGS>();
    const lanes me = lanes_of(kr_thread());
    if (me.w == 0)
      take(w, at, me, shared, base);
    else
      give(w, at, me, shared, base, maps);
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
  return p.f.spoilt[own.b * p.f.H + h] && own.tile < p.n_chunks * (Q / KR_MAMBA3_INNER_TOKENS);
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
  enum { TOKENS = KR_MAMBA3_INNER_TOKENS, EACH = Q / TOKENS };
  const kr_mamba3_inner_params &w = params;
  const kr_ssd_bwd_params &p = w.q;
  const share own = own_share(p);
  const int lane = kr_thread() & 31;
  if (!has_again(p, own)) return;
#pragma unroll 1
  for (int h = own.g * p.f.heads; h < (own.g + 1) * p.f.heads; h++) {
    if (!is_again(p, own, h)) continue;
    const int64_t unit = (int64_t)own.b * p.f.H + h;
    float *const biases = w.biases + (((int64_t)own.b * p.n_chunks * EACH + own.tile) * p.f.H + h) * 2 * p.f.N;
#pragma unroll 1
    for (int k = 0; k < AGAIN_PAIRS; k++) {
      const int m = lane + 32 * k;
      kr_float2 columns[2] = {};
      float later = 0;
#pragma unroll 1
      for (int64_t t = own.t0; t < own.end; t++) {
        kr_float2 d[2];
        turn_pair_back(w, own, h, t, m, d, later);
        add_pair(p.dC, own, t, m, p.f.N, d[0]), add_pair(p.dB, own, t, m, p.f.N, d[1]);
#pragma unroll
        for (int i = 0; i < 2; i++) columns[i].v[0] += d[i].v[0], columns[i].v[1] += d[i].v[1];
      }
      if (m < w.M && own.t0 < p.f.L) w.later[(unit * ((p.f.L + TOKENS - 1) / TOKENS) + own.tile) * w.M + m] = later;
      for (int i = 0; i < 2 && 2 * m < p.f.N; i++) *(kr_float2 *)(biases + i * p.f.N + 2 * m) = columns[i];
    }
    if (!w.factors || own.tile % EACH) continue;
    float trace = 0;
    for (int64_t t = own.t0 + lane; t < own.t0 + Q && t < p.f.L; t += 32) trace += w.products[unit * p.f.L + t];
    trace = add_warp(trace);
    if (lane == 0) *trace_at(w, own.b, h, own.tile / EACH) = trace;
  }
}

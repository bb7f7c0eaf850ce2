/* ssd_hopper_bwd.cu: the SSD's gradient on warpgroups (sm_90a), chunk by chunk, given states S before and their
 * gradients M after each chunk (kr_ssd_hopper_states). Compiled for float16 and bfloat16 storage (KR_DTYPE) and up to
 * 64 or 128 states (KR_N). Notation as in ssd_bwd_chunks.cu. A block takes a chunk and several heads of a group in
 * turn, prefetched two ahead by one producer thread; a head's dy x^T runs while the previous head is being processed:
 *   the first warpgroup (receiving tokens i): W += (dy x^T) o 2^(a_i - a_j) d_j   dC += (2^a dy) S, finally dC += W B
 *     inter-chunk: dy o 2^a (C S^T); pairs: row sums of W o C B^T
 *   the second (source tokens j): dx = d (P^T dy + into B M^T) + D dy    dB += (into d x) M, finally dB += W^T C
 *     P^T = (B C^T) o 2^(a_i - a_j) in registers; to later chunks, and in total: x o those; pairs: d P^T o x dy^T
 *   three warps beside the producer: <S, M>, and sums of dy x for dD of each channel
 * kr_ssd_hopper_inner_packed   sequences, any D
 * kr_ssd_hopper_inner_plain    no sequences, one D per head or none, or one of each token, whose gradients are the
 *                              diagonal of dy x^T: in bfloat16 P^T includes step sizes, and D on its diagonal
 * kr_ssd_hopper_inner_channels no sequences, D of each channel
 * With one D per head, dD is the trace of dy x^T. */
#include "ssd_hopper_inner.cuh"

enum {
  THREADS = KR_SSD_HOPPER_BWD_THREADS,
  STAGES = KR_SSD_HOPPER_BWD_STAGES,
  STAGE = (2 + 2 * BLOCKS) * TILE, /* x, dy, S, M */
  B_AT = 0,
  C_AT = B_AT + BLOCKS * TILE,
  STAGES_AT = C_AT + BLOCKS * TILE,
  DX_AT = STAGES_AT + STAGES * STAGE,
  CB_AT = DX_AT + TILE,
  W_AT = CB_AT, /* at the end */
  STEPS_AT = CB_AT + TILE * 3 / 2,
  BOTH_FULL = STEPS_AT + STAGES * KR_SSD_STEPS_BYTES,
  FULL = BOTH_FULL + 8,
  EMPTY = FULL + 8 * STAGES,
  SIDE_SUMS = EMPTY + 8 * STAGES,
  D_AT = SIDE_SUMS + 16,
  ALL_BARRIER = 3,
  PRODUCER_REGS = 40,
  CONSUMER_REGS = 232 /* registers per thread */
};
static_assert(1024 + D_AT + 2 * PB * 4 <= KR_SSD_HOPPER_BWD_SHARED(N) && KR_SSD_HOPPER_BWD_SHARED(N) <= 227 * 1024,
              "all have a place");
static_assert(enough_registers(THREADS, PRODUCER_REGS, CONSUMER_REGS), "else who takes some waits for ever");

/* The i-th slot of a block. */
KR_DEV slot slot_at(const kr_ssd_params &f, const place &at, int i) {
  const int head = f.blocks_per_head == 1 ? i : i / f.blocks_per_head, block = i - head * f.blocks_per_head;
  return slot{at.first + head, block, block * PB};
}

/* ---- helper warps ------------------------------------------------------------------------------------------------ */

KR_DEV void copy_slots(const kr_ssd_bwd_params &p, const place &at, uint64_t maps, uint32_t base) {
  const kr_ssd_params &f = p.f;
  const uint64_t map_x = maps, map_dy = maps + sizeof(kr_ssd_map), map_B = maps + 2 * sizeof(kr_ssd_map),
                 map_C = maps + 3 * sizeof(kr_ssd_map);
  const int t0 = at.chunk * Q;
  kr_barrier_expect(base + BOTH_FULL, 2 * BLOCKS * TILE);
#pragma unroll
  for (int n = 0; n < BLOCKS; n++) {
    kr_load_box(base + B_AT + n * TILE, map_B, base + BOTH_FULL, 64 * n, t0, at.g, at.b);
    kr_load_box(base + C_AT + n * TILE, map_C, base + BOTH_FULL, 64 * n, t0, at.g, at.b);
  }
  for (int i = 0; i < at.n; i++) {
    const int stage = i % STAGES;
    const slot s = slot_at(f, at, i);
    const uint32_t to = base + STAGES_AT + stage * STAGE, full = base + FULL + 8 * stage;
    const int64_t tile = kept_at(f, at.b, s.h, s.block, at.chunk, p.n_chunks);
    kr_barrier_await(base + EMPTY + 8 * stage, parity_of(i, STAGES) ^ 1);
    kr_barrier_expect(full, STAGE + KR_SSD_STEPS_BYTES);
    kr_load_box(to, map_x, full, s.p0, t0, s.h, at.b);
    kr_load_box(to + TILE, map_dy, full, s.p0, t0, s.h, at.b);
    kr_load_bytes(to + 2 * TILE, (const char *)p.S + tile, BLOCKS * TILE, full);
    kr_load_bytes(to + (2 + BLOCKS) * TILE, (const char *)p.M + tile, BLOCKS * TILE, full);
    kr_load_bytes(base + STEPS_AT + stage * KR_SSD_STEPS_BYTES, steps_at(f, at.b, s.h, at.chunk), KR_SSD_STEPS_BYTES,
                  full);
  }
}

/* Sums of dy x over the chunk for each channel: two per lane. */
template <int KIND>
KR_DEV void sum_dD(const kr_ssd_bwd_params &p, const place &at, const slot &s, const unsigned char *x,
                   const chunk_steps &steps) {
  const int lane = kr_thread() & 31;
  float low = 0, high = 0;
#pragma unroll 8
  for (int row = 0; row < Q; row++) {
    const int where = kr_swizzle<128>(row, lane >> 2) + 4 * (lane & 3);
    const uint32_t two = *(const uint32_t *)(x + where), dy = *(const uint32_t *)(x + TILE + where);
    const int counts = KIND != PACKED || steps.segment[row] >= 0;
    low = counts ? kr_fma(kr_unpack(two, 0, KR_DTYPE), kr_unpack(dy, 0, KR_DTYPE), low) : low,
    high = counts ? kr_fma(kr_unpack(two, 1, KR_DTYPE), kr_unpack(dy, 1, KR_DTYPE), high) : high;
  }
  float *const to = p.parts + (((int64_t)at.b * p.n_chunks + at.chunk) * p.f.H + s.h) * (p.f.P + 2) + s.p0 + 2 * lane;
  if (s.p0 + 2 * lane < p.f.P) to[0] = low;
  if (s.p0 + 2 * lane + 1 < p.f.P) to[1] = high;
}

/* A helper warp's sums, slot by slot: dD by the first of three, unless the other warpgroup computes it; otherwise all
 * take a part of <S, M>, reduced in shared memory. */
template <int KIND>
KR_DEV void sum_beside(const kr_ssd_bwd_params &p, const place &at, int which, unsigned char *shared, uint32_t base) {
  float *const others = (float *)(shared + SIDE_SUMS);
  const int has_dD = KIND != PLAIN && p.dD.data && p.dD.n && p.part == 0, first = has_dD ? 1 : 0;
  for (int i = 0; i < at.n; i++) {
    const int stage = i % STAGES;
    const slot s = slot_at(p.f, at, i);
    const unsigned char *const x = shared + STAGES_AT + stage * STAGE;
    kr_barrier_await(base + FULL + 8 * stage, parity_of(i, STAGES));
    const float sum = !has_dD ? pass_through<3>(x + 2 * TILE, which)
                      : which ? pass_through<2>(x + 2 * TILE, which - 1)
                              : 0.0f;
    if (which < first)
      sum_dD<KIND>(p, at, s, x, *(const chunk_steps *)(shared + STEPS_AT + stage * KR_SSD_STEPS_BYTES));
    kr_sync_warp();
    if ((kr_thread() & 31) == 0) kr_barrier_arrive(base + EMPTY + 8 * stage);
    if (which < first) continue;
    if (which > first && (kr_thread() & 31) == 0) others[2 * (i & 1) + which - 1] = sum;
    if (has_dD) kr_sync_some<4, 64>();
    else kr_sync_some<4, 96>();
    if (which == first && (kr_thread() & 31) == 0) {
      float &to = sums_at(p, at.b, s.h, at.chunk)->through;
      to = sum + (has_dD ? 0.0f : others[2 * (i & 1)]) + others[2 * (i & 1) + 1] + (s.block || p.part ? to : 0.0f);
    }
  }
}

/* ---- the two warpgroups ------------------------------------------------------------------------------------------ */

/* The sum of a head's dy x, if D is one number: each warp has a quarter of the channels' slots and writes its sum to
 * the first, 0 to the others. */
KR_DEV void leave_trace(const kr_ssd_bwd_params &p, const place &at, const slot &s, const lanes &me, float own) {
  const int n = p.f.P - s.p0 < PB ? (p.f.P - s.p0) / 4 : PB / 4;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) own += kr_shuffle_xor(own, d);
  if (me.lane < n)
    p.parts[(((int64_t)at.b * p.n_chunks + at.chunk) * p.f.H + s.h) * (p.f.P + 2) + s.p0 + n * me.warp + me.lane] =
        me.lane ? 0.0f : own;
}

template <int KIND>
KR_DEV void take(const kr_ssd_bwd_params &p, const place &at, const lanes &whole, unsigned char *shared,
                 uint32_t base) {
  float W[32], dC[N / 2], xy[32];
  uint32_t w[16];
  clear_all(W, 32), clear_all(dC, N / 2);
  kr_barrier_await(base + BOTH_FULL, 0);
  start_product(base + C_AT, base + B_AT, xy);
  kr_wgmma_wait<64, 0>(xy);
  kr_float4 *const CB = (kr_float4 *)(shared + CB_AT) + whole.thread;
#pragma unroll
  for (int j = 0; j < 8; j++)
    if (j < 4 || whole.warp >= 2) /* the others have only later tokens there */
      CB[j < 4 ? 128 * j : 192 + 64 * j] = before_these(whole, j, xy);
  kr_barrier_await(base + FULL, 0);
  start_tile(base + STAGES_AT + TILE, base + STAGES_AT, xy);
  kr_wgmma_wait<64, 0>(xy);
#pragma unroll 1
  for (int i = 0; i < at.n; i++) {
    const lanes me = lanes_of(anew(kr_thread()));
    const int stage = i % STAGES, next = i + 1 < at.n ? i + 1 : i;
    const uint32_t x = uniform(base + STAGES_AT + stage * STAGE),
                   next_x = uniform(base + STAGES_AT + next % STAGES * STAGE);
    float d[32], taken[2], before[2], old[4], own[2];
    start_product(base + C_AT, x + 2 * TILE, d);
    const slot s = slot_at(p.f, at, i);
    const unsigned char *const dy = shared + anew(STAGES_AT + stage * STAGE + TILE);
    const chunk_steps &steps = *(const chunk_steps *)(shared + anew(STEPS_AT + stage * KR_SSD_STEPS_BYTES));
    const float low = KIND == PACKED ? state_reaches(steps, me.row) : kr_exp2(steps.a[me.row]),
                high = KIND == PACKED ? state_reaches(steps, me.row + 8) : kr_exp2(steps.a[me.row + 8]);
    add_pairs<KIND>(me, steps, xy, (const kr_float4 *)(shared + anew(CB_AT)) + me.thread, W, taken, own,
                    p.f.last_rank);
    kr_barrier_await(base + FULL + 8 * (next % STAGES), parity_of(next, STAGES));
    start_tile(next_x + TILE, next_x, xy);
    take_factor(w, dy, me);
    token_sums &to = *sums_at(p, at.b, s.h, at.chunk);
    const int adds = me.q == 0 && (s.block || p.part);
#pragma unroll
    for (int r = 0; r < 2; r++)
      old[2 * r] = adds ? to.taken[me.row + 8 * r] : 0.0f, old[2 * r + 1] = adds ? to.of[me.row + 8 * r].v[0] : 0.0f;
    kr_wgmma_wait<64, 1>(d);
    row_sums(d, w, before);
    scale_factor(w, low, high);
    start_sum<N>(x + 2 * TILE, w, dC, 1);
    if (p.dD.data && p.f.has_token_D) leave_diagonal(p, at, s, me, own);
    else if (p.dD.data && !p.dD.n && p.part == 0) leave_trace(p, at, s, me, own[0] + own[1]);
    taken[0] = add_row(taken[0]), taken[1] = add_row(taken[1]), before[0] = low * add_row(before[0]),
    before[1] = high * add_row(before[1]);
    if (me.q == 0) {
#pragma unroll
      for (int r = 0; r < 2; r++)
        to.taken[me.row + 8 * r] = taken[r] + old[2 * r], to.of[me.row + 8 * r].v[0] = before[r] + old[2 * r + 1];
    }
    kr_wgmma_wait<N, 0>(dC);
    kr_wgmma_wait<64, 0>(xy);
    release(base + EMPTY + 8 * stage, me);
  }
  pack_all(W, w);
  sync_group(whole); /* all have read C B^T */
  put_factor(shared + W_AT, whole, w);
  kr_show_to_copies();
  kr_sync_at<256>(ALL_BARRIER);
  start_sum<N>(base + B_AT, w, dC, 1);
  kr_wgmma_wait<N, 0>(dC);
  kr_sync_at<256>(ALL_BARRIER); /* the other warpgroup has read W */
  store_matrix(p, at, whole, p.dC, p.sum_C, shared + W_AT, dC);
}

KR_DEV float D_of(const kr_ssd_bwd_params &p, const slot &s, int channel) {
  return channel < PB && s.p0 + channel < p.f.P
             ? kr_load(p.f.D.data, s.h * p.f.D.h + (int64_t)(s.p0 + channel) * p.f.D.n, p.f.D.dtype)
             : 0.0f;
}

template <int KIND>
KR_DEV void give(const kr_ssd_bwd_params &p, const place &at, const lanes &whole, unsigned char *shared, uint32_t base,
                 uint64_t maps) {
  const int t0 = at.chunk * Q, sized = has_sizes<KIND>();
  unsigned char *const own = shared + DX_AT;
  float BC[32], dB[N / 2], xy[32];
  uint32_t w[16];
  clear_all(dB, N / 2);
  kr_barrier_await(base + BOTH_FULL, 0);
  start_product(base + B_AT, base + C_AT, BC);
  if (KIND != PLAIN && p.f.D.data && whole.thread < PB)
    ((float *)(shared + D_AT))[whole.thread] = D_of(p, slot_at(p.f, at, 0), whole.thread);
  kr_wgmma_wait<64, 0>(BC);
  kr_barrier_await(base + FULL, 0);
  start_tile(base + STAGES_AT, base + STAGES_AT + TILE, xy);
  kr_wgmma_wait<64, 0>(xy);
#pragma unroll 1
  for (int i = 0; i < at.n; i++) {
    const lanes me = lanes_of(anew(kr_thread()));
    const int stage = i % STAGES, next = i + 1 < at.n ? i + 1 : i;
    const uint32_t to_x = uniform(base + STAGES_AT + stage * STAGE), M = to_x + (2 + BLOCKS) * TILE,
                   next_x = uniform(base + STAGES_AT + next % STAGES * STAGE);
    float d[32], given[2], after[2], inputs[2], size[2], into[2], old[6], next_D = 0;
    uint32_t inner[16];
    start_product(base + B_AT, M, d);
    const slot s = slot_at(p.f, at, i);
    const unsigned char *const x = shared + anew(STAGES_AT + stage * STAGE);
    const chunk_steps &steps = *(const chunk_steps *)(shared + anew(STEPS_AT + stage * KR_SSD_STEPS_BYTES));
    const float *const D = (const float *)(shared + D_AT) + (i & 1) * PB;
    float own_D[2] = {0, 0};
    if (KIND == PLAIN && p.f.has_token_D)
      own_D[0] = steps.segment[me.row], own_D[1] = steps.segment[me.row + 8];
    else if (KIND == PLAIN && p.f.D.data)
      own_D[0] = own_D[1] = kr_load(p.f.D.data, s.h * p.f.D.h, p.f.D.dtype);
    if (KIND != PLAIN && p.f.D.data) {
      sync_givers();
      if (i + 1 < at.n) next_D = D_of(p, slot_at(p.f, at, i + 1), me.thread);
    }
    take_factor(w, x, me);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = me.row + 8 * r;
      const float from = sized ? from_of(steps, row) : steps.a[row], left = kr_exp2(steps.total - from);
      size[r] = sized ? kr_exp2(from - steps.a[row]) : steps.d[row];
      into[r] = KIND != PACKED || steps.segment[row] == steps.last ? left : 0.0f;
    }
    weigh_pairs<KIND>(me, steps, xy, BC, inner, given, inputs, own_D, p.f.last_rank);
    token_sums &to = *sums_at(p, at.b, s.h, at.chunk);
    const int adds = me.q == 0 && (s.block || p.part);
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int k = 0; k < 3; k++) old[3 * r + k] = adds ? to.of[me.row + 8 * r].v[1 + k] : 0.0f;
    kr_wgmma_wait<64, 0>(d);
#pragma unroll
    for (int k = 0; k < 32; k++) d[k] *= into[k >> 1 & 1];
    row_sums(d, w, after);
    start_sum<64>(to_x + TILE, inner, d, 1);
    scale_factor(w, sized ? into[0] : into[0] * size[0], sized ? into[1] : into[1] * size[1]);
    start_sum<N>(M, w, dB, 1);
    kr_barrier_await(base + FULL + 8 * (next % STAGES), parity_of(next, STAGES));
    start_tile(next_x, next_x + TILE, xy);
    sum_given<has_sizes<KIND>()>(me, steps, size, given, after, inputs);
    if (me.q == 0) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float *const v = to.of[me.row + 8 * r].v;
        v[1] = after[r] + old[3 * r], v[2] = inputs[r] + old[3 * r + 1], v[3] = given[r] + old[3 * r + 2];
      }
    }
    if (KIND != PLAIN && p.f.D.data && me.thread < PB) ((float *)(shared + D_AT))[(~i & 1) * PB + me.thread] = next_D;
    const uint32_t there[2] = {KIND == PACKED && steps.segment[me.row] < 0 ? 0 : ~0u,
                               KIND == PACKED && steps.segment[me.row + 8] < 0 ? 0 : ~0u};
    kr_wgmma_wait<64, 2>(d);
    if (p.dx.data) {
      if (me.thread == 0) kr_stores_read<0>();
      sync_givers();
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        float e[8];
#pragma unroll
        for (int k = 0; k < 8; k++) e[k] = sized ? d[4 * j + k] : d[4 * j + k] * size[k >> 1 & 1];
        if (!sized && (KIND == PLAIN || p.f.D.data)) {
          uint32_t dy[4];
          take_matrices(dy, x + TILE, me, j);
#pragma unroll
          for (int k = 0; k < 8; k++)
            e[k] = kr_fma(KIND == PLAIN ? own_D[k >> 1 & 1] : D[8 * (j + (k >> 2)) + 2 * me.q + (k & 1)],
                          kr_unpack(dy[2 * (k >> 2) + (k >> 1 & 1)], k & 1, KR_DTYPE), e[k]);
        }
        if (KR_DTYPE == KRAIT_F16 && p.n_parts > 1 && !sums_stay_in_range(e, p.n_parts))
          report_nonfinite_group(p.f, at.b, s.h);
        uint32_t two[4];
#pragma unroll
        for (int k = 0; k < 4; k++) two[k] = pack(e[2 * k], e[2 * k + 1]) & there[k & 1];
        put_matrices(own, me, j, two[0], two[1], two[2], two[3]);
      }
      kr_show_to_copies();
      sync_givers();
      if (me.thread == 0) {
        if (p.part) kr_add_box<half_type>(maps + 4 * sizeof(kr_ssd_map), base + DX_AT, s.p0, t0, s.h, at.b);
        else kr_store_box(maps + 4 * sizeof(kr_ssd_map), base + DX_AT, s.p0, t0, s.h, at.b);
        kr_commit_stores();
      }
    }
    kr_wgmma_wait<N, 0>(dB);
    kr_wgmma_wait<64, 0>(xy);
    release(base + EMPTY + 8 * stage, me);
  }
  if (whole.thread == 0) kr_stores_read<0>();
  kr_sync_at<256>(ALL_BARRIER);
  start_turned_sum(base + W_AT, base + C_AT, dB);
  kr_wgmma_wait<N, 0>(dB);
  kr_sync_at<256>(ALL_BARRIER);
  store_matrix(p, at, whole, p.dB, p.sum_B, own, dB);
}

template <int KIND>
KR_DEV void run(const kr_ssd_bwd_params &p, uint64_t maps) {
  KR_DYNAMIC_SHARED(all);
  const uint32_t start = kr_shared_at(all), base = (start + 1023) & ~1023u;
  unsigned char *const shared = all + (base - start);
  const place at = here(p);
  open_stages(base + BOTH_FULL, base + FULL, base + EMPTY, STAGES, 4 + 4 + 3);
  if (kr_thread() < 128) {
    kr_give_registers<PRODUCER_REGS>();
    if (kr_thread() == 0)
      copy_slots(p, at, maps, base);
    else if (kr_thread() >= 32)
      sum_beside<KIND>(p, at, kr_thread() / 32 - 1, shared, base);
  } else {
    kr_take_registers<CONSUMER_REGS>();
    const lanes me = lanes_of(kr_thread());
    if (me.w == 0)
      take<KIND>(p, at, me, shared, base);
    else
      give<KIND>(p, at, me, shared, base, maps);
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_ssd_hopper_inner_packed(const kr_ssd_hopper_bwd_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_ssd_hopper_inner_packed, maps);
  run<PACKED>(params.q, maps);
}
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_ssd_hopper_inner_plain(const kr_ssd_hopper_bwd_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_ssd_hopper_inner_plain, maps);
  run<PLAIN>(params.q, maps);
}
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_ssd_hopper_inner_channels(const kr_ssd_hopper_bwd_params params) {
  uint64_t maps;
  KR_PARAMETERS_ADDRESS(kr_ssd_hopper_inner_channels, maps);
  run<CHANNELS>(params.q, maps);
}

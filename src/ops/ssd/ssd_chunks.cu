/* ssd_chunks.cu: the SSD on tensor cores (equation in ssd_ref.c), Ampere and later, and Turing's tier of float16
 * (KR_TURING): a block of eight warps passes one head's state (64 channels, N states) through time in its accumulators,
 * in chunks of 64 tokens; compiled for float16 and bfloat16 storage. With a the cumulative sum of d A since the chunk's
 * start (log2):
 *   Y = 2^a (C S_before^T) + P X     P = C B^T o 2^(a_i - a_j) d_j, j <= i
 *   S = 2^a_end S_before + (2^(a_end - a_j) d_j X)^T B
 * Two warps share 16 rows of Y, and 16 channels of S, and split the columns; they exchange P through their 16 rows of
 * C, once both have read these. Decays are float32; exponents are differences, at most 0 for A <= 0. The next chunk's
 * copies are in flight meanwhile: to other shared memory or, in the turing tier, in registers.
 * kr_ssd_steps       cumulative log-decays of every chunk (chunk_steps)
 * kr_ssd_chunks_nN   output; from initial states, or from a segment's start state
 * kr_ssd_passed_nN   the same with one D for all channels of a head (kr_ssd_passes_D): on the diagonal of P
 * kr_ssd_ends_nN     only the state at the end of each segment, from zero
 * kr_ssd_join        state passing: start states of the segments from their end states
 * NaN or infinity in x or B reaches earlier tokens of its chunk through products with masking zeros. The state after
 * them holds it too: such a head is recomputed token by token (p.spoilt). */
#include "ssd_copies.cuh"
#include "ssd_place.cuh"

/* AT_ONCE: blocks on a multiprocessor; where copies wait in registers, one must do. */
enum { THREADS = KR_SSD_CHUNK_THREADS, AT_ONCE = KR_IS_TURING ? 1 : 2 };

template <int N>
KR_DEV constexpr int stage_bytes(void) { return X_BYTES + 2 * Q * N * 2; }

template <int N>
struct chunk_copier {
  kr_flight steps;
  row_copier<PB * 2, THREADS> x;
  row_copier<N * 2, THREADS> B, C;
};

KR_DEV row_source source_of_x(const kr_ssd_params &p, const place &at, int64_t t0) {
  return row_source{p.x, at.b * p.x.b + at.h * p.x.h + at.p0, t0, at.end, p.P - at.p0};
}
KR_DEV row_source source_of(const kr_ssd_params &p, const kr_ssd_tensor &v, const place &at, int64_t t0) {
  return row_source{v, at.b * v.b + at.g * v.h, t0, at.end, p.N};
}

template <int N, int ONLY_ENDS>
KR_DEV void begin_chunk(chunk_copier<N> &c, const kr_ssd_params &p, const place &at, unsigned char *stage,
                        chunk_steps *steps, int64_t t0) {
  begin_steps(c.steps, steps, steps_at(p, at.b, at.h, t0 / Q));
  begin_rows(c.x, stage, source_of_x(p, at, t0));
  begin_rows(c.B, stage + X_BYTES, source_of(p, p.Bmat, at, t0));
  if (!ONLY_ENDS) begin_rows(c.C, stage + X_BYTES + Q * N * 2, source_of(p, p.Cmat, at, t0));
  kr_commit_copies();
}

template <int N, int ONLY_ENDS>
KR_DEV void end_chunk(const chunk_copier<N> &c, const kr_ssd_params &p, const place &at, unsigned char *stage,
                      chunk_steps *steps, int64_t t0) {
  end_steps(c.steps, steps);
  end_rows(c.x, stage, source_of_x(p, at, t0));
  end_rows(c.B, stage + X_BYTES, source_of(p, p.Bmat, at, t0));
  if (!ONLY_ENDS) end_rows(c.C, stage + X_BYTES + Q * N * 2, source_of(p, p.Cmat, at, t0));
}

/* Barrier for the two warps that share 16 rows. */
KR_DEV void sync_pair(const warp_place &me) {
  if (me.m == 0) kr_sync_some<1, 64>();
  else if (me.m == 1) kr_sync_some<2, 64>();
  else if (me.m == 2) kr_sync_some<3, 64>();
  else kr_sync_some<4, 64>();
}

/* Stores the state as the next chunk's operand: [channel][state] in the storage type. */
template <int N>
KR_DEV void share_state(unsigned char *shared, const warp_place &me, const float (&s)[N / 16][4]) {
#pragma unroll
  for (int j = 0; j < N / 16; j++) {
    *(uint32_t *)(shared + kr_swizzle<N * 2>(me.row, me.n * (N / 16) + j) + 4 * me.q) = pack(s[j][0], s[j][1]);
    *(uint32_t *)(shared + kr_swizzle<N * 2>(me.row + 8, me.n * (N / 16) + j) + 4 * me.q) = pack(s[j][2], s[j][3]);
  }
}

/* Two elements of a row of P: tokens j and j + 1 for one that reads those up to `last`. D_FOLDED: with D on the
 * diagonal. */
template <int D_FOLDED>
KR_DEV uint32_t masked_pair(const chunk_steps &s, int has_sequences, int last, int j, float a, float segment,
                      float first, float second, const float (&D)[2]) {
  const kr_float2 from = *(const kr_float2 *)&s.from[j];
  if (D_FOLDED)
    first = j <= last ? kr_fma(first, kr_exp2(a - from.v[0]), D[0]) : 0.0f,
    second = j < last ? kr_fma(second, kr_exp2(a - from.v[1]), D[1]) : 0.0f;
  else
    first = j <= last ? first * kr_exp2(a - from.v[0]) : 0.0f,
    second = j < last ? second * kr_exp2(a - from.v[1]) : 0.0f;
  if (has_sequences) {
    const kr_float2 other = *(const kr_float2 *)&s.segment[j];
    first = other.v[0] == segment ? first : 0.0f, second = other.v[1] == segment ? second : 0.0f;
  }
  return pack(first, second);
}

/* Y = 2^a (C S^T) for tokens of the incoming state's sequence; P to rows of 128 bytes in place of C's. */
template <int N, int D_FOLDED>
KR_DEV void output_before(float (&y)[4][4], const warp_place &me, unsigned char *C, const unsigned char *B,
                          const unsigned char *state, const chunk_steps &steps, int has_sequences, int last_rank,
                          float D) {
  unsigned char *const passes = C + 16 * me.m * N * 2;
  float cb[4][4];
#pragma unroll
  for (int j = 0; j < 4; j++) clear(y[j]), clear(cb[j]);
#pragma unroll
  for (int k = 0; k < N / 16; k++) {
    uint32_t a[4], b[4];
    load_a<N * 2>(a, C, me, k);
#pragma unroll
    for (int j = 0; j < 2; j++) {
      load_b<N * 2>(b, state, me, 32 * me.n + 16 * j, k);
      kr_mma_pair(half_type(), y[2 * j], y[2 * j + 1], a, b);
    }
    if (me.m < 2 * me.n) continue; /* causally masked */
#pragma unroll
    for (int j = 0; j < 2; j++) {
      load_b<N * 2>(b, B, me, 32 * me.n + 16 * j, k);
      kr_mma_pair(half_type(), cb[2 * j], cb[2 * j + 1], a, b);
    }
  }
  const float a0 = steps.a[me.row], a1 = steps.a[me.row + 8], segment0 = steps.segment[me.row],
              segment1 = steps.segment[me.row + 8];
  const float low = state_reaches(steps, me.row), high = state_reaches(steps, me.row + 8);
#pragma unroll
  for (int j = 0; j < 4; j++) y[j][0] *= low, y[j][1] *= low, y[j][2] *= high, y[j][3] *= high;
  sync_pair(me);
  if (me.m >= 2 * me.n) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int column = 32 * me.n + 8 * j + 2 * me.q;
      /* In an even block of columns the diagonal is in a warp's first eight rows, else in the others. */
      const int from = me.row + 8 * (j & 1) - column;
      const float own[2] = {from == 0 ? D : 0.0f, from == 1 ? D : 0.0f}, none[2] = {0, 0};
      *(uint32_t *)(passes + kr_swizzle<Q * 2>(me.g, 4 * me.n + j) + 4 * me.q) = masked_pair<D_FOLDED>(
          steps, has_sequences, me.row | last_rank, column, a0, segment0, cb[j][0], cb[j][1], j & 1 ? none : own);
      *(uint32_t *)(passes + kr_swizzle<Q * 2>(me.g + 8, 4 * me.n + j) + 4 * me.q) = masked_pair<D_FOLDED>(
          steps, has_sequences, (me.row + 8) | last_rank, column, a1, segment1, cb[j][2], cb[j][3], j & 1 ? own : none);
    }
  }
}

/* Y += P X. */
template <int N>
KR_DEV void output_within(float (&y)[4][4], const warp_place &me, const unsigned char *C, const unsigned char *x) {
  const unsigned char *const passes = C + 16 * me.m * N * 2;
#pragma unroll
  for (int k = 0; k < Q / 16; k++) {
    uint32_t a[4], b[4];
    if (k > me.m) break;
    kr_load_matrices(a, passes + kr_swizzle<Q * 2>(me.lane & 15, 2 * k + (me.lane >> 4)));
#pragma unroll
    for (int j = 0; j < 2; j++) {
      load_b_turned<PB * 2>(b, x, me, k, 4 * me.n + 2 * j);
      kr_mma_pair(half_type(), y[2 * j], y[2 * j + 1], a, b);
    }
  }
}

/* Two adjacent elements; the second may not exist. */
KR_DEV uint32_t load_pair(const uint16_t *from, int both) { return both ? *(const uint32_t *)from : from[0]; }

/* (Y + D x) silu(z) to out, plus out's value from other states (p.adds). WHOLE: all tokens and channels of the chunk
 * exist, no gate, no padding, no accumulation. */
template <int WHOLE, int D_FOLDED>
KR_DEV void write_output(const kr_ssd_params &p, const place &at, const warp_place &me, const float (&y)[4][4],
                         const unsigned char *x, const float *D, const chunk_steps &steps, int64_t t0) {
  const int c0 = 32 * me.n + 2 * me.q, left = p.P - at.p0 - c0;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = me.row + 8 * half;
    const int64_t t = t0 + row;
    const int padding = !WHOLE && p.seq_idx && steps.segment[row] < 0;
    uint16_t *const to = (uint16_t *)p.out.data + at.b * p.out.b + t * p.out.t + at.h * p.out.h + at.p0 + c0;
    const uint16_t *const z = (const uint16_t *)p.z.data + at.b * p.z.b + t * p.z.t + at.h * p.z.h + at.p0 + c0;
    if (!WHOLE && t >= at.end) continue;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float low = y[j][2 * half], high = y[j][2 * half + 1];
      if (!WHOLE && 8 * j >= left) continue;
      if (!D_FOLDED && p.D.data) {
        const uint32_t two = *(const uint32_t *)(x + kr_swizzle<PB * 2>(row, 4 * me.n + j) + 4 * me.q);
        const kr_float2 d = *(const kr_float2 *)&D[c0 + 8 * j];
        low = kr_fma(d.v[0], kr_unpack(two, 0, KR_DTYPE), low),
        high = kr_fma(d.v[1], kr_unpack(two, 1, KR_DTYPE), high);
      }
      if (!WHOLE && p.adds) {
        const uint32_t two = load_pair(to + 8 * j, 8 * j + 1 < left);
        const float low_before = kr_unpack(two, 0, KR_DTYPE), high_before = kr_unpack(two, 1, KR_DTYPE);
        if (!are_finite(low_before, high_before)) report_nonfinite_group(p, at.b, at.h);
        low += low_before, high += high_before;
      }
      if (!WHOLE && p.z.data) {
        const uint32_t two = load_pair(z + 8 * j, 8 * j + 1 < left);
        low *= kr_silu(kr_unpack(two, 0, KR_DTYPE)), high *= kr_silu(kr_unpack(two, 1, KR_DTYPE));
      }
      const uint32_t two = padding ? 0 : pack(low, high);
      if (WHOLE || 8 * j + 1 < left) *(uint32_t *)(to + 8 * j) = two;
      else to[8 * j] = (uint16_t)two;
    }
  }
}

/* As write_output WHOLE, for rows of 16-byte pieces and 128 states: staged in the part of the warps' C rows that P
 * leaves free. Otherwise each store fills half of a 32-byte sector. */
template <int N, int D_FOLDED>
KR_DEV void write_pieces(const kr_ssd_params &p, const place &at, const warp_place &me, float (&y)[4][4],
                         const unsigned char *x, const float *D, unsigned char *C, int64_t t0) {
  unsigned char *const mine = C + 16 * me.m * N * 2 + 16 * Q * 2 + me.n * 16 * 64;
  uint16_t *const to = (uint16_t *)p.out.data + at.b * p.out.b + (t0 + 16 * me.m + (me.lane >> 2)) * p.out.t +
                       at.h * p.out.h + at.p0 + 32 * me.n + 8 * me.q;
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float low = y[j][2 * half], high = y[j][2 * half + 1];
      if (!D_FOLDED && p.D.data) {
        const uint32_t two = *(const uint32_t *)(x + kr_swizzle<PB * 2>(me.row + 8 * half, 4 * me.n + j) + 4 * me.q);
        const kr_float2 d = *(const kr_float2 *)&D[32 * me.n + 8 * j + 2 * me.q];
        low = kr_fma(d.v[0], kr_unpack(two, 0, KR_DTYPE), low),
        high = kr_fma(d.v[1], kr_unpack(two, 1, KR_DTYPE), high);
      }
      *(uint32_t *)(mine + kr_swizzle<64>(me.g + 8 * half, j) + 4 * me.q) = pack(low, high);
    }
  kr_sync_warp();
#pragma unroll
  for (int half = 0; half < 2; half++)
    write_global(to + 8 * half * p.out.t, read_shared(mine + kr_swizzle<64>(me.g + 8 * half, me.q)));
}

/* Whether a tensor's rows consist of aligned 16-byte pieces. */
KR_DEV int is_in_pieces(const kr_ssd_tensor &v) {
  return (((uint64_t)(uintptr_t)v.data >> 1 | (uint64_t)v.b | (uint64_t)v.t | (uint64_t)v.h) & 7) == 0;
}

template <int N, int ONLY_ENDS, int D_FOLDED>
KR_DEV void walk(const kr_ssd_params &p) {
  KR_DYNAMIC_SHARED(shared);
  const place at = here(p);
  const warp_place first = place_of_thread(kr_thread());
  const int OTHER = KR_IS_TURING ? 0 : 1; /* stage */
  unsigned char *const state = shared + (1 + OTHER) * stage_bytes<N>();
  chunk_steps *const steps = (chunk_steps *)(state + PB * N * 2);
  float *const D = (float *)(steps + 2); /* [channel] */
  const float own_D = D_FOLDED ? kr_load(p.D.data, at.h * p.D.h, p.D.dtype) : 0.0f;
  float s[N / 16][4], decay = 0;
  int spoilt = 0;
  const int whole = p.P - at.p0 >= PB && !p.z.data && !p.seq_idx && !p.adds && (N != 128 || is_in_pieces(p.out));
  if (at.begin >= at.end && p.n_segments > 1) return;
  if (kr_thread() < PB)
    D[kr_thread()] = p.D.data && at.p0 + kr_thread() < p.P
                         ? kr_load(p.D.data, at.h * p.D.h + (int64_t)(at.p0 + kr_thread()) * p.D.n, p.D.dtype)
                         : 0.0f;
  chunk_copier<N> copier;
  begin_chunk<N, ONLY_ENDS>(copier, p, at, shared, steps, at.begin);
  end_chunk<N, ONLY_ENDS>(copier, p, at, shared, steps, at.begin);
  if (ONLY_ENDS) {
#pragma unroll
    for (int j = 0; j < N / 16; j++) clear(s[j]);
  } else {
    load_state<N / 2>(p, p.n_segments > 1 ? segment_states(p, at) : p.initial, at.b, at.h, at.p0 + 16 * first.m,
                      first.n * (N / 2), s);
    share_state<N>(state, first, s);
  }
  int turn = 0;
  for (int64_t t0 = at.begin; t0 < at.end; t0 += Q, turn ^= OTHER) {
    /* Addresses are recomputed where no registers are left to keep them. */
    const warp_place me = N > 64 ? place_of_thread(anew(kr_thread())) : first;
    unsigned char *const x = shared + anew(turn * stage_bytes<N>()), *const B = x + X_BYTES, *const C = B + Q * N * 2;
    const chunk_steps &now = steps[turn];
    kr_copied<0>();
    kr_sync();
    if (t0 + Q < at.end)
      begin_chunk<N, ONLY_ENDS>(copier, p, at, shared + anew((turn ^ OTHER) * stage_bytes<N>()),
                                steps + (turn ^ OTHER), t0 + Q);
    if (!ONLY_ENDS) {
      float y[4][4];
      output_before<N, D_FOLDED>(y, me, C, B, state, now, p.seq_idx != 0, D_FOLDED ? 0 : p.last_rank, own_D);
      if (N > 128) { /* one block per multiprocessor: a single barrier for the state and for P */
        spoilt |= take_chunk<N, N / 2, 0>(s, me.m, me.n * (N / 16), x, B, now, p.seq_idx != 0);
        kr_sync();
        share_state<N>(state, me, s);
      } else {
        sync_pair(me);
      }
      output_within<N>(y, me, C, x);
      if (KR_DTYPE == KRAIT_F16) spoilt |= is_spoilt<4>(y); /* where a shared state left float16's range */
      if (whole && t0 + Q <= at.end) {
        if (N == 128) write_pieces<N, D_FOLDED>(p, at, me, y, x, D, C, t0);
        else write_output<1, D_FOLDED>(p, at, me, y, x, D, now, t0);
      } else {
        write_output<0, D_FOLDED>(p, at, me, y, x, D, now, t0);
      }
    }
    if (ONLY_ENDS || N <= 128) spoilt |= take_chunk<N, N / 2, 0>(s, me.m, me.n * (N / 16), x, B, now, p.seq_idx != 0);
    if (ONLY_ENDS) {
      if (now.last != 0) decay = 1.0f;
      else if (decay <= 0) decay += now.total;
    }
    if ((!ONLY_ENDS && N <= 128) || KR_IS_TURING) kr_sync();
    if (KR_IS_TURING && t0 + Q < at.end) end_chunk<N, ONLY_ENDS>(copier, p, at, shared, steps, t0 + Q);
    if (!ONLY_ENDS && N <= 128) share_state<N>(state, me, s);
  }
  if (!ONLY_ENDS && p.spoilt && (spoilt || is_spoilt<N / 16>(s))) p.spoilt[at.b * p.H + at.h] = 1;
  if (ONLY_ENDS) {
    store_state<N / 2>(p, segment_states(p, at), at.b, at.h, at.p0 + 16 * first.m, first.n * (N / 2), s);
    if (kr_thread() == 0 && at.p0 == 0)
      p.segment_decay[((int64_t)at.b * p.H + at.h) * p.n_segments + at.segment] = decay;
  } else if (p.final.data && at.segment == p.n_segments - 1) {
    store_state<N / 2>(p, p.final, at.b, at.h, at.p0 + 16 * first.m, first.n * (N / 2), s);
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, AT_ONCE) kr_ssd_chunks_n64(const kr_ssd_params p) { walk<64, 0, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_ends_n64(const kr_ssd_params p) { walk<64, 1, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, AT_ONCE) kr_ssd_chunks_n128(const kr_ssd_params p) { walk<128, 0, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_ends_n128(const kr_ssd_params p) { walk<128, 1, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, AT_ONCE) kr_ssd_passed_n64(const kr_ssd_params p) { walk<64, 0, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, AT_ONCE) kr_ssd_passed_n128(const kr_ssd_params p) { walk<128, 0, 1>(p); }
#ifndef KR_TURING /* whose shared memory has no room for them */
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_ssd_chunks_n256(const kr_ssd_params p) { walk<256, 0, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_ssd_ends_n256(const kr_ssd_params p) { walk<256, 1, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_ssd_passed_n256(const kr_ssd_params p) { walk<256, 0, 1>(p); }
#endif

/* One thread per element of a head's state. */
KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 4) kr_ssd_join(const kr_ssd_params p) {
  const int64_t i = (int64_t)kr_block_x() * KR_SSD_THREADS + kr_thread(), size = (int64_t)p.P * p.N;
  const int h = kr_block_y(), b = kr_block_z();
  if (i >= size) return;
  const int64_t head = (int64_t)b * p.H + h;
  const int c = (int)(i / p.N), n = (int)(i - (int64_t)c * p.N);
  float s = p.initial.data
                ? kr_load(p.initial.data, b * p.initial.b + h * p.initial.h + c * p.initial.t + n * p.initial.n,
                          p.initial.dtype)
                : 0.0f;
  for (int k = 0; k < p.n_segments; k++) {
    float *const place = p.segment_state + (head * p.n_segments + k) * size + i;
    const float end = *place, decay = p.segment_decay[head * p.n_segments + k];
    *place = s;
    s = decay > 0 ? end : kr_fma(kr_exp2(decay), s, end);
  }
}

/* One warp per chunk of a head; a block takes adjacent heads, whose step sizes are contiguous. */
KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 4) kr_ssd_steps(const kr_ssd_params p) {
  const int64_t chunk = kr_block_x(), t0 = chunk * Q;
  const int h = kr_block_y() * (KR_SSD_THREADS / 32) + (kr_thread() >> 5), b = kr_block_z(), lane = kr_thread() & 31;
  if (h >= p.H) return;
  const float A = rate_of(p, h) * KR_LOG2E,
              bias = p.bias.data ? kr_load(p.bias.data, h * p.bias.h, p.bias.dtype) : 0.0f;
  const lane_steps v = sum_steps<STEPS_ANY>(p, load_steps<STEPS_ANY>(p, b, h, t0, p.L), A, bias, t0, p.L);
  chunk_steps &s = *(chunk_steps *)steps_at(p, b, h, chunk);
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int i = lane + 32 * k;
    s.a[i] = v.a[k], s.from[i] = v.a[k] - kr_log2(v.d[k]), s.d[i] = v.d[k],
    s.segment[i] = p.has_token_D ? v.D[k] : v.segment[k]; /* the host guarantees d >= 0 */
  }
  if (lane == 0) s.total = v.total, s.last = v.last;
  if (lane == 0 && chunk == 0 && p.spoilt) p.spoilt[b * p.H + h] = 0;
}

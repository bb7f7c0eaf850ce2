/* ssd_bwd_chunks.cu: the SSD's gradient on tensor cores, Ampere and later; compiled for float16 and bfloat16 storage.
 * Chunks of 64 tokens, 64 channels of a head at a time. dy is dout after the gate (kr_ssd_bwd_gate, if there is one).
 * kr_ssd_bwd_states_nN  a block of four warps passes a head's state from chunk to chunk in its accumulators and stores
 *                       it, in the storage type, before each chunk: S forwards; M backwards, with dy, C for x, B
 * kr_ssd_bwd_inner_nN   a block of eight warps per chunk and several heads of a group, in turn; given S and M, chunks
 *                       are independent:
 *     dC += 2^a dy S          dB += into x M           W += (dy x^T) o 2^(a_i - a_j) d_j, j <= i
 *     dx = d (P^T dy + 2^(a_end - a) B M^T) + D dy     P = (C B^T) o 2^(a_i - a_j)
 *                       and after the last head dC += W B, dB += W^T C. Two warps share 16 tokens, and split columns.
 * kr_ssd_bwd_finish     step-size gradients from the per-token sums
 * kr_ssd_bwd_gate       dy and dz from y before the gate
 * kr_ssd_bwd_sum        reduces dB and dC over the blocks that shared a group's heads
 * More than 128 states are processed 128 at a time (p.part), accumulating into dx and the per-token sums. Exponents are
 * differences, at most 0 for A <= 0. The log-decay gradient is described in ssd_bwd.cu, whose kernels also recompute
 * groups of heads whose states or state gradients met NaN or infinity: products with masking zeros spread those to
 * tokens that the equation does not couple to them. */
#include "ssd_copies.cuh"
#include "ssd_bwd_inner.cuh"
#include "ssd_mma.cuh"

/* One chunk's P x N state tile in the storage type, N padded to the kernel's. */
template <int N>
KR_DEV uint16_t *tile_at(const kr_ssd_bwd_params &p, void *tiles, int b, int h, int block, int64_t chunk) {
  return (uint16_t *)tiles + ((((int64_t)b * p.f.H + h) * p.f.blocks_per_head + block) * p.n_chunks + chunk) * (PB * N);
}

/* ---- states ---- */

/* Stores a warp's 16 state rows to its tile. A lane's four words of 32 columns are contiguous there: each 16 words are
 * transposed four by four. B and C are permuted alike wherever they meet these tiles. */
template <int N>
KR_DEV void leave_state(uint16_t *tile, const float (&s)[N / 8][4]) {
  const int lane = kr_thread() & 31;
  uint16_t *const to = tile + (16 * (kr_thread() >> 5) + (lane >> 2)) * N + 8 * (lane & 3);
#pragma unroll
  for (int i = 0; i < N / 32; i++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      kr_raw16 words;
#pragma unroll
      for (int m = 0; m < 4; m++) words.w[m] = pack(s[4 * i + m][2 * h], s[4 * i + m][2 * h + 1]);
      *(kr_raw16 *)(to + h * 8 * N + 32 * i) = words;
    }
}

template <int N, int BACK>
KR_DEV void walk_states(const kr_ssd_bwd_params &p) {
  KR_DYNAMIC_SHARED(shared);
  const kr_ssd_params &f = p.f;
  const int STAGE = X_BYTES + Q * N * 2, h = kr_block_x() / f.blocks_per_head,
            block = kr_block_x() - h * f.blocks_per_head, g = h / f.heads, b = kr_block_z(), w = kr_thread() >> 5,
            p0 = block * PB;
  chunk_steps *const steps = (chunk_steps *)(shared + 2 * STAGE);
  const kr_ssd_tensor &rows = BACK ? f.dout : f.x, &matrix = BACK ? f.Cmat : f.Bmat;
  const int64_t row_at = b * rows.b + h * rows.h + p0, matrix_at = b * matrix.b + g * matrix.h;
  float s[N / 8][4];
  int spoilt = 0;
  load_state<N>(f, BACK ? p.dfinal : f.initial, b, h, p0 + 16 * w, 0, s);
  for (int i = -1; i < p.n_chunks; i++) {
    unsigned char *const now = shared + anew((i & 1) * STAGE), *const next = shared + anew((~i & 1) * STAGE);
    const int c = BACK ? p.n_chunks - 1 - i : i;
    const int64_t t0 = (int64_t)(BACK ? c - 1 : c + 1) * Q;
    kr_copied<0>();
    if (i >= 0) kr_sync();
    if (i + 1 < p.n_chunks) {
      row_copier<PB * 2, WALKERS> of_rows;
      row_copier<N * 2, WALKERS> of_matrix;
      begin_rows(of_rows, next, row_source{rows, row_at, t0, f.L, f.P - p0});
      begin_rows(of_matrix, next + X_BYTES, row_source{matrix, matrix_at, t0, f.L, f.N});
      copy_steps(steps + (~i & 1), steps_at(f, b, h, BACK ? c - 1 : c + 1));
      kr_commit_copies();
    }
    if (i < 0) continue;
    leave_state<N>(tile_at<N>(p, BACK ? p.M : p.S, b, h, block, c), s);
    spoilt |= take_chunk<N, N, BACK>(s, w, 0, now, now + X_BYTES, steps[i & 1], f.seq_idx != 0);
  }
  if (spoilt || is_spoilt<N / 8>(s)) report_nonfinite_group(f, b, h);
  if (BACK && p.dinitial.data) store_state<N>(f, p.dinitial, b, h, p0 + 16 * w, 0, s);
}

template <int N>
KR_DEV void walk_either(const kr_ssd_bwd_params &p) {
  if (kr_block_y()) walk_states<N, 1>(p);
  else walk_states<N, 0>(p);
}
KR_KERNEL void KR_BOUNDS(WALKERS, 4) kr_ssd_bwd_states_n64(const kr_ssd_bwd_params p) { walk_either<64>(p); }
KR_KERNEL void KR_BOUNDS(WALKERS, 3) kr_ssd_bwd_states_n128(const kr_ssd_bwd_params p) { walk_either<128>(p); }

/* ---- chunks ---- */

/* The warps' partial sums for each token of a head. */
typedef struct first_sums { /* double-buffered: one head's are read while the next head's arrive */
  float before[2][Q], given[2][Q], taken[4][Q], through[8];
} first_sums;
typedef struct second_sums { /* read before the next head's arrive */
  float after[2][Q], inputs[2][Q], dD[THREADS / 32][PB];
} second_sums;

template <int N>
KR_DEV void copy_tile(unsigned char *to, const uint16_t *from) {
  const int per_row = N / 8, rows = THREADS / per_row, row = kr_thread() / per_row, piece = kr_thread() % per_row;
  to += kr_swizzle<N * 2>(row, piece), from += row * N + piece * 8;
#pragma unroll
  for (int k = 0; k < PB / rows; k++) kr_copy_some(to + k * rows * N * 2, from + k * rows * N, 16);
}

/* Loads B or C in the column order of a state tile. */
template <int N>
KR_DEV void copy_matrix(unsigned char *to, const kr_ssd_params &f, const kr_ssd_tensor &v, const place &at) {
  const int per_row = N / 8, row = kr_thread() / per_row, piece = kr_thread() % per_row, left = f.N - piece * 8;
#pragma unroll
  for (int k = 0; k < Q * per_row / THREADS; k++) {
    const int t = row + k * (THREADS / per_row);
    const uint16_t *const from = (const uint16_t *)v.data + at.b * v.b + (at.t0 + t) * v.t + at.g * v.h + piece * 8;
    kr_raw16 words = {{0, 0, 0, 0}};
    if (t < at.n && left >= 8) words = *(const kr_raw16 *)from;
    else if (t < at.n) for (int n = 0; n < left; n++) words.w[n >> 1] |= (uint32_t)from[n] << 16 * (n & 1);
#pragma unroll
    for (int q = 0; q < 4; q++)
      *(uint32_t *)(to + kr_swizzle<N * 2>(t, (piece & ~3) + q) + 4 * (piece & 3)) = words.w[q];
  }
}

/* Copies x, dy, S, M and step sizes of a head. */
template <int N>
KR_DEV void copy_head(const kr_ssd_bwd_params &p, const place &at, int h, int block, unsigned char *stage,
                      chunk_steps *steps) {
  const kr_ssd_params &f = p.f;
  const int p0 = block * PB;
  row_copier<PB * 2, THREADS> c;
  begin_rows(c, stage, row_source{f.x, at.b * f.x.b + h * f.x.h + p0, at.t0, f.L, f.P - p0});
  begin_rows(c, stage + X_BYTES, row_source{f.dout, at.b * f.dout.b + h * f.dout.h + p0, at.t0, f.L, f.P - p0});
  copy_tile<N>(stage + 2 * X_BYTES, tile_at<N>(p, p.S, at.b, h, block, at.chunk));
  copy_tile<N>(stage + 2 * X_BYTES + PB * N * 2, tile_at<N>(p, p.M, at.b, h, block, at.chunk));
  copy_steps(steps, steps_at(f, at.b, h, at.chunk));
  kr_commit_copies();
}

/* The products before P is exchanged: P to shared memory, W, dC, and per-token sums. */
template <int N>
KR_DEV void first_half(const kr_ssd_params &f, const warp_place &me, const unsigned char *stage, const unsigned char *C,
                       unsigned char *passes, const chunk_steps &s, first_sums &sums, const float (&CB)[4][4],
                       float (&W)[4][4], float (&dC)[N / 16][4]) {
  const unsigned char *const x = stage, *const dy = stage + X_BYTES, *const S = dy + X_BYTES;
  float xy[4][4], t[N / 16][4];
#pragma unroll
  for (int j = 0; j < 4; j++) clear(xy[j]);
#pragma unroll
  for (int j = 0; j < N / 16; j++) clear(t[j]);
#pragma unroll
  for (int k = 0; k < PB / 16; k++) {
    uint32_t a[4], b[4];
    load_a<PB * 2>(a, dy, me, k);
#pragma unroll
    for (int j = 0; j < N / 32; j++) {
      load_b_turned<N * 2>(b, S, me, k, me.n * (N / 16) + 2 * j);
      kr_mma_as(half_type(), t[2 * j], a, b[0], b[1]);
      kr_mma_as(half_type(), t[2 * j + 1], a, b[2], b[3]);
    }
    if (me.m < 2 * me.n) continue; /* causally masked */
#pragma unroll
    for (int j = 0; j < 2; j++) {
      load_b<PB * 2>(b, x, me, 32 * me.n + 16 * j, k);
      kr_mma_as(half_type(), xy[2 * j], a, b[0], b[1]);
      kr_mma_as(half_type(), xy[2 * j + 1], a, b[2], b[3]);
    }
  }
  float before[2] = {0, 0};
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = me.row + 8 * h;
    const float out = state_reaches(s, row);
#pragma unroll
    for (int j = 0; j < N / 16; j++) {
      const uint32_t c = *(const uint32_t *)(C + kr_swizzle<N * 2>(row, me.n * (N / 16) + j) + 4 * me.q);
      const float low = out * t[j][2 * h], high = out * t[j][2 * h + 1];
      dC[j][2 * h] += low, dC[j][2 * h + 1] += high;
      before[h] = kr_fma(kr_unpack(c, 0, KR_DTYPE), low, kr_fma(kr_unpack(c, 1, KR_DTYPE), high, before[h]));
    }
    before[h] = add_row(before[h]);
    if (me.q == 0) sums.before[me.n][row] = before[h];
  }
  float given[2] = {0, 0}, taken[8];
  const float a0 = s.a[me.row], a1 = s.a[me.row + 8], segment0 = s.segment[me.row], segment1 = s.segment[me.row + 8];
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const int column = 32 * me.n + 8 * j + 2 * me.q;
    const kr_float2 a = *(const kr_float2 *)&s.a[column], d = *(const kr_float2 *)&s.d[column],
                    segment = *(const kr_float2 *)&s.segment[column];
    float pass[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int row = me.row + (k >> 1) * 8, from = column + (k & 1),
                same = !f.seq_idx || segment.v[k & 1] == (k >> 1 ? segment1 : segment0);
      const float decay = kr_exp2((k >> 1 ? a1 : a0) - a.v[k & 1]), v = xy[j][k] * decay * d.v[k & 1];
      const int reaches = from <= (row | f.last_rank) && same;
      const float w = reaches ? v : 0.0f, pair = from < row ? w * CB[j][k] : 0.0f;
      pass[k] = reaches ? CB[j][k] * decay : 0.0f;
      W[j][k] += w;
      given[k >> 1] += pair;
      taken[2 * j + (k & 1)] = k >> 1 ? taken[2 * j + (k & 1)] + pair : pair;
    }
    *(uint32_t *)(passes + kr_swizzle<Q * 2>(me.row, 4 * me.n + j) + 4 * me.q) = pack(pass[0], pass[1]);
    *(uint32_t *)(passes + kr_swizzle<Q * 2>(me.row + 8, 4 * me.n + j) + 4 * me.q) = pack(pass[2], pass[3]);
  }
#pragma unroll
  for (int i = 0; i < 8; i++) {
    taken[i] += kr_shuffle_xor(taken[i], 4);
    taken[i] += kr_shuffle_xor(taken[i], 8);
    taken[i] += kr_shuffle_xor(taken[i], 16);
    if (me.g == 0) sums.taken[me.m][32 * me.n + 8 * (i >> 1) + 2 * me.q + (i & 1)] = taken[i];
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    given[h] = add_row(given[h]);
    if (me.q == 0) sums.given[me.n][me.row + 8 * h] = given[h];
  }
}

/* A thread's share of <S, M>. */
template <int N>
KR_DEV void pass_through(const unsigned char *S, const unsigned char *M, first_sums &sums) {
  float v = 0;
#pragma unroll
  for (int i = 0; i < PB * N / 8 / THREADS; i++) {
    const int at = (i * THREADS + kr_thread()) * 16;
    const kr_raw16 s = *(const kr_raw16 *)(S + at), m = *(const kr_raw16 *)(M + at);
#pragma unroll
    for (int k = 0; k < 4; k++)
      v = kr_fma(kr_unpack(s.w[k], 0, KR_DTYPE), kr_unpack(m.w[k], 0, KR_DTYPE),
                 kr_fma(kr_unpack(s.w[k], 1, KR_DTYPE), kr_unpack(m.w[k], 1, KR_DTYPE), v));
  }
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) v += kr_shuffle_xor(v, d);
  if ((kr_thread() & 31) == 0) sums.through[kr_thread() >> 5] = v;
}

/* dx of the head, and dB. */
template <int N>
KR_DEV void second_half(const kr_ssd_bwd_params &p, const place &at, const warp_place &me, const unsigned char *stage,
                        const unsigned char *B, const unsigned char *passes, const chunk_steps &s, second_sums &sums,
                        const float *D, float (&dB)[N / 16][4]) {
  const kr_ssd_params &f = p.f;
  const unsigned char *const x = stage, *const dy = stage + X_BYTES, *const M = dy + X_BYTES + PB * N * 2;
  float within[4][4], after[4][4];
  uint32_t a[4], b[4];
#pragma unroll
  for (int j = 0; j < 4; j++) clear(within[j]), clear(after[j]);
#pragma unroll 1
  for (int k = me.m; k < Q / 16; k++) {
    kr_load_matrices_turned(
        a, passes + kr_swizzle<Q * 2>(16 * k + (me.lane & 7) + (me.lane >> 4) * 8, 2 * me.m + (me.lane >> 3 & 1)));
#pragma unroll
    for (int j = 0; j < 2; j++) {
      load_b_turned<PB * 2>(b, dy, me, k, 4 * me.n + 2 * j);
      kr_mma_as(half_type(), within[2 * j], a, b[0], b[1]);
      kr_mma_as(half_type(), within[2 * j + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int k = 0; k < N / 16; k++) {
    load_a<N * 2>(a, B, me, k);
#pragma unroll
    for (int j = 0; j < 2; j++) {
      load_b<N * 2>(b, M, me, 32 * me.n + 16 * j, k);
      kr_mma_as(half_type(), after[2 * j], a, b[0], b[1]);
      kr_mma_as(half_type(), after[2 * j + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = me.row + 8 * h;
    const float d = s.d[row], into = s.segment[row] == s.last ? kr_exp2(s.total - s.a[row]) : 0.0f;
    const int padding = s.segment[row] < 0, writes = p.dx.data && row < at.n;
    uint16_t *const to =
        (uint16_t *)p.dx.data + at.b * p.dx.b + (at.t0 + row) * p.dx.t + at.h * p.dx.h + at.p0 + 32 * me.n + 2 * me.q;
    float inputs = 0, from_after = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int chunk = 4 * me.n + j;
      const uint32_t two = *(const uint32_t *)(x + kr_swizzle<PB * 2>(row, chunk) + 4 * me.q);
      const float low = into * after[j][2 * h], high = into * after[j][2 * h + 1], all_low = within[j][2 * h] + low,
                  all_high = within[j][2 * h + 1] + high;
      const float x_low = kr_unpack(two, 0, KR_DTYPE), x_high = kr_unpack(two, 1, KR_DTYPE);
      float dx_low = d * all_low, dx_high = d * all_high;
      inputs = kr_fma(x_low, all_low, kr_fma(x_high, all_high, inputs)),
      from_after = kr_fma(x_low, low, kr_fma(x_high, high, from_after));
      if (f.D.data) {
        const uint32_t own = *(const uint32_t *)(dy + kr_swizzle<PB * 2>(row, chunk) + 4 * me.q);
        const kr_float2 skip = *(const kr_float2 *)&D[8 * chunk + 2 * me.q];
        dx_low = kr_fma(skip.v[0], kr_unpack(own, 0, KR_DTYPE), dx_low),
        dx_high = kr_fma(skip.v[1], kr_unpack(own, 1, KR_DTYPE), dx_high);
      }
      const int left = f.P - at.p0 - (8 * chunk + 2 * me.q);
      if (p.part && writes && left > 0) {
        const uint32_t before = left > 1 ? *(const uint32_t *)(to + 8 * j) : to[8 * j];
        const float low_before = kr_unpack(before, 0, KR_DTYPE), high_before = kr_unpack(before, 1, KR_DTYPE);
        if (!are_finite(low_before, high_before)) report_nonfinite_group(f, at.b, at.h);
        dx_low += low_before, dx_high += high_before;
      }
      const uint32_t dx = padding ? 0 : pack(dx_low, dx_high);
      if (writes && left > 1) *(uint32_t *)(to + 8 * j) = dx;
      if (writes && left == 1) to[8 * j] = (uint16_t)dx;
    }
    inputs = add_row(inputs), from_after = add_row(from_after);
    if (me.q == 0) sums.inputs[me.n][row] = inputs, sums.after[me.n][row] = given_size(s, row) * from_after;
  }
  float t[N / 16][4];
#pragma unroll
  for (int j = 0; j < N / 16; j++) clear(t[j]);
#pragma unroll
  for (int k = 0; k < PB / 16; k++) {
    load_a<PB * 2>(a, x, me, k);
#pragma unroll
    for (int j = 0; j < N / 32; j++) {
      load_b_turned<N * 2>(b, M, me, k, me.n * (N / 16) + 2 * j);
      kr_mma_as(half_type(), t[2 * j], a, b[0], b[1]);
      kr_mma_as(half_type(), t[2 * j + 1], a, b[2], b[3]);
    }
  }
  const float low = s.segment[me.row] == s.last ? kr_exp2(s.total - s.from[me.row]) : 0.0f,
              high = s.segment[me.row + 8] == s.last ? kr_exp2(s.total - s.from[me.row + 8]) : 0.0f;
#pragma unroll
  for (int j = 0; j < N / 16; j++)
    dB[j][0] = kr_fma(low, t[j][0], dB[j][0]), dB[j][1] = kr_fma(low, t[j][1], dB[j][1]),
    dB[j][2] = kr_fma(high, t[j][2], dB[j][2]), dB[j][3] = kr_fma(high, t[j][3], dB[j][3]);
}

/* Sums of dy x over the chunk for each channel: eight tokens per warp, two channels per lane. */
KR_DEV void sum_dD(const unsigned char *stage, const chunk_steps &s, int has_padding, second_sums &sums) {
  const int lane = kr_thread() & 31, w = kr_thread() >> 5;
  float low = 0, high = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int row = 8 * w + i, at = kr_swizzle<PB * 2>(row, lane >> 2) + 4 * (lane & 3);
    const uint32_t x = *(const uint32_t *)(stage + at), dy = *(const uint32_t *)(stage + X_BYTES + at);
    if (has_padding && s.segment[row] < 0) continue;
    low = kr_fma(kr_unpack(x, 0, KR_DTYPE), kr_unpack(dy, 0, KR_DTYPE), low),
    high = kr_fma(kr_unpack(x, 1, KR_DTYPE), kr_unpack(dy, 1, KR_DTYPE), high);
  }
  *(kr_float2 *)&sums.dD[w][2 * lane] = kr_float2{{low, high}};
}

/* Reduces the warps' sums for a head and stores them: by the block's first threads, one head late. */
KR_DEV void leave_sums(const kr_ssd_bwd_params &p, const place &at, const first_sums &sums, const second_sums &others) {
  const int t = kr_thread() & (Q - 1), c = at.p0 + t;
  token_sums &to = *sums_at(p, at.b, at.h, at.chunk);
  if (kr_thread() < Q) {
    kr_float4 v = {{sums.before[0][t] + sums.before[1][t], others.after[0][t] + others.after[1][t],
                    others.inputs[0][t] + others.inputs[1][t],
                    (sums.taken[0][t] + sums.taken[1][t]) + (sums.taken[2][t] + sums.taken[3][t])}};
    float taken = sums.given[0][t] + sums.given[1][t];
    if (at.block || p.part) {
      taken += to.taken[t];
      for (int k = 0; k < 4; k++) v.v[k] += to.of[t].v[k];
    }
    to.of[t] = v, to.taken[t] = taken;
  } else if (kr_thread() < 2 * Q && p.dD.data && c < p.f.P) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++) sum += others.dD[w][t];
    p.parts[(((int64_t)at.b * p.n_chunks + at.chunk) * p.f.H + at.h) * (p.f.P + 2) + c] = sum;
  } else if (kr_thread() == 2 * Q) {
    float sum = at.block || p.part ? to.through : 0.0f;
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++) sum += sums.through[w];
    to.through = sum;
  }
}

/* A lane's eight columns of a row, of which `left` are there. */
KR_DEV void store_floats(float *to, const float *d, int left, int in_fours) {
  if (in_fours && left >= 8) {
    *(kr_float4 *)to = kr_float4{{d[0], d[1], d[4], d[5]}};
    *(kr_float4 *)(to + 4) = kr_float4{{d[8], d[9], d[12], d[13]}};
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++)
    if (i < left) to[i] = d[4 * (i >> 1) + (i & 1)];
}

/* A warp's part of dB or dC: a lane's four words are eight columns (leave_state). */
template <int N>
KR_DEV void store_matrix(const kr_ssd_bwd_params &p, const place &at, const warp_place &me, const kr_ssd_tensor &whole,
                         const kr_ssd_tensor &part, int split, const float (&d)[N / 16][4]) {
  const int in_fours = !((part.b | part.t | part.h) & 3);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = me.row + 8 * h;
    if (row >= at.n) continue;
#pragma unroll
    for (int i = 0; i < N / 64; i++) {
      const int n = me.n * (N / 2) + 32 * i + 8 * me.q;
      float *const parts =
          (float *)part.data + ((int64_t)split * p.f.B + at.b) * part.b + (at.t0 + row) * part.t + at.g * part.h + n;
      uint16_t *const to = (uint16_t *)whole.data + at.b * whole.b + (at.t0 + row) * whole.t + at.g * whole.h + n;
      if (p.leaves_sums) {
        store_floats(parts, &d[4 * i][2 * h], p.f.N - n, in_fours);
        continue;
      }
#pragma unroll
      for (int m = 0; m < 4; m++) {
        const float low = d[4 * i + m][2 * h], high = d[4 * i + m][2 * h + 1];
        const uint32_t two = pack(low, high);
        const int left = p.f.N - n - 2 * m;
        if (left <= 0 || !whole.data) continue;
        if (left > 1) *(uint32_t *)(to + 2 * m) = two;
        else to[2 * m] = (uint16_t)two;
      }
    }
  }
}

/* dC += W B, dB += W^T C; W through shared memory. */
template <int N>
KR_DEV void add_within(const warp_place &me, unsigned char *shared_W, const unsigned char *B, const unsigned char *C,
                       const float (&W)[4][4], float (&dB)[N / 16][4], float (&dC)[N / 16][4]) {
  uint32_t a[4], b[4];
#pragma unroll
  for (int j = 0; j < 4; j++) {
    *(uint32_t *)(shared_W + kr_swizzle<Q * 2>(me.row, 4 * me.n + j) + 4 * me.q) = pack(W[j][0], W[j][1]);
    *(uint32_t *)(shared_W + kr_swizzle<Q * 2>(me.row + 8, 4 * me.n + j) + 4 * me.q) = pack(W[j][2], W[j][3]);
  }
  kr_sync();
#pragma unroll 1
  for (int k = 0; k < Q / 16; k++) {
    if (k <= me.m) {
      load_a<Q * 2>(a, shared_W, me, k);
#pragma unroll
      for (int j = 0; j < N / 32; j++) {
        load_b_turned<N * 2>(b, B, me, k, me.n * (N / 16) + 2 * j);
        kr_mma_as(half_type(), dC[2 * j], a, b[0], b[1]);
        kr_mma_as(half_type(), dC[2 * j + 1], a, b[2], b[3]);
      }
    }
    if (k >= me.m) {
      kr_load_matrices_turned(
          a, shared_W + kr_swizzle<Q * 2>(16 * k + (me.lane & 7) + (me.lane >> 4) * 8, 2 * me.m + (me.lane >> 3 & 1)));
#pragma unroll
      for (int j = 0; j < N / 32; j++) {
        load_b_turned<N * 2>(b, C, me, k, me.n * (N / 16) + 2 * j);
        kr_mma_as(half_type(), dB[2 * j], a, b[0], b[1]);
        kr_mma_as(half_type(), dB[2 * j + 1], a, b[2], b[3]);
      }
    }
  }
}

template <int N>
KR_DEV void inner(const kr_ssd_bwd_params &p) {
  KR_DYNAMIC_SHARED(shared);
  const int STAGE = 2 * X_BYTES + 2 * PB * N * 2, second_stage = p.n_stages > 1 ? STAGE : 0;
  const kr_ssd_params &f = p.f;
  const warp_place whole = place_of_thread(kr_thread());
  unsigned char *const B = shared + p.n_stages * STAGE, *const C = B + Q * N * 2, *const passes = C + Q * N * 2;
  chunk_steps *const steps = (chunk_steps *)(passes + Q * Q * 2);
  first_sums *const firsts = (first_sums *)(steps + 2);
  second_sums &seconds = *(second_sums *)(firsts + 2);
  float *const D = (float *)(&seconds + 1); /* [PB] */
  place at = {kr_block_z(), kr_block_y() / p.n_splits, 0, 0, 0, kr_block_x(), 0, (int64_t)kr_block_x() * Q}, next = at;
  const int split = kr_block_y() - at.g * p.n_splits, per_split = (f.heads + p.n_splits - 1) / p.n_splits,
            h0 = split * per_split, first = at.g * f.heads + h0;
  const int n_heads = f.heads - h0 < per_split ? f.heads - h0 : per_split,
            n = n_heads > 0 ? n_heads * f.blocks_per_head : 0;
  float CB[4][4], W[4][4], dB[N / 16][4], dC[N / 16][4];
  at.n = f.L - at.t0 < Q ? (int)(f.L - at.t0) : Q;
#pragma unroll
  for (int j = 0; j < N / 16; j++) clear(dB[j]), clear(dC[j]);
#pragma unroll
  for (int j = 0; j < 4; j++) clear(CB[j]), clear(W[j]);
  if (n) copy_head<N>(p, at, first, 0, shared, steps);
  copy_matrix<N>(B, f, f.Bmat, at);
  copy_matrix<N>(C, f, f.Cmat, at);
  kr_sync();
#pragma unroll
  for (int k = 0; k < N / 16; k++) {
    uint32_t a[4], b[4];
    load_a<N * 2>(a, C, whole, k);
#pragma unroll
    for (int j = 0; j < 2; j++) {
      load_b<N * 2>(b, B, whole, 32 * whole.n + 16 * j, k);
      kr_mma_as(half_type(), CB[2 * j], a, b[0], b[1]);
      kr_mma_as(half_type(), CB[2 * j + 1], a, b[2], b[3]);
    }
  }
#pragma unroll 1
  for (int i = 0; i < n; i++) {
    const warp_place me = place_of_thread(anew(kr_thread())); /* see ssd_chunks.cu */
    const int turn = i & 1, more = i + 1 < n;
    unsigned char *const stage = shared + anew(turn * second_stage), *const S = stage + 2 * X_BYTES;
    go_to(at, f, first, i);
    go_to(next, f, first, i + 1);
    kr_copied<0>();
    kr_sync();
    if (more && second_stage)
      copy_head<N>(p, at, next.h, next.block, shared + anew((turn ^ 1) * second_stage), steps + (turn ^ 1));
    const float own_D = f.D.data && kr_thread() < PB && at.p0 + kr_thread() < f.P
                            ? kr_load(f.D.data, at.h * f.D.h + (int64_t)(at.p0 + kr_thread()) * f.D.n, f.D.dtype)
                            : 0.0f;
    if (i) {
      place before = at;
      go_to(before, f, first, i - 1);
      leave_sums(p, before, firsts[turn ^ 1], seconds);
    }
    first_half<N>(f, me, stage, C, passes, steps[turn], firsts[turn], CB, W, dC);
    pass_through<N>(S, S + PB * N * 2, firsts[turn]);
    if (kr_thread() < PB) D[kr_thread()] = own_D;
    kr_sync();
    if (p.dD.data) sum_dD(stage, steps[turn], f.seq_idx != 0, seconds);
    second_half<N>(p, at, me, stage, B, passes, steps[turn], seconds, D, dB);
    if (more && !second_stage) {
      kr_sync();
      copy_head<N>(p, at, next.h, next.block, shared, steps + (turn ^ 1));
    }
  }
  kr_sync();
  if (n) leave_sums(p, at, firsts[(n - 1) & 1], seconds);
  add_within<N>(whole, passes, B, C, W, dB, dC);
  store_matrix<N>(p, at, whole, p.dB, p.sum_B, split, dB);
  store_matrix<N>(p, at, whole, p.dC, p.sum_C, split, dC);
}

KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_ssd_bwd_inner_n64(const kr_ssd_bwd_params p) { inner<64>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_ssd_bwd_inner_n128(const kr_ssd_bwd_params p) { inner<128>(p); }

KR_KERNEL void KR_BOUNDS(WALKERS, 4) kr_ssd_bwd_finish(const kr_ssd_bwd_params p) { finish<0>(p); }

/* Reduces a group's dB and dC over the blocks that shared its heads: one thread per element. */
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_ssd_bwd_sum(const kr_ssd_bwd_params p) {
  const kr_ssd_tensor &part = kr_block_y() ? p.sum_C : p.sum_B, &to = kr_block_y() ? p.dC : p.dB;
  const int64_t i = (int64_t)kr_block_x() * THREADS + kr_thread(), row = i / p.f.N, groups = p.f.H / p.f.heads,
                n = i - row * p.f.N, t = row / groups, g = row - t * groups;
  if (!to.data || t >= p.f.L) return;
  float sum = 0;
  for (int s = 0; s < p.n_splits; s++)
    sum += ((const float *)part.data)[((int64_t)s * p.f.B + kr_block_z()) * part.b + t * part.t + g * part.h + n];
  kr_store(to.data, kr_block_z() * to.b + t * to.t + g * to.h + n, to.dtype, sum);
}

/* What a gate gives of y and dout: dy, returned, and dz. */
KR_DEV float pass_gate(const kr_ssd_params &f, int b, int h, float y, float z, float dout, float &dz) {
  const float s = kr_sigmoid(z), dy = dout * z * s;
  if (KR_DTYPE == KRAIT_F16 && !are_finite(y, kr_from_f16(kr_to_f16(dy)))) report_nonfinite_group(f, b, h);
  dz = dout == 0 ? 0.0f : dout * y * s * kr_fma(z, 1.0f - s, 1.0f);
  return dy;
}

/* f.out: y before the gate, replaced by dy; also dz. A thread has a channel, or eight. */
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_ssd_bwd_gate(const kr_ssd_bwd_params p) {
  const kr_ssd_params &f = p.f;
  const int each = p.gates_eight ? 8 : 1, width = f.P / each;
  const int64_t i = (int64_t)kr_block_x() * THREADS + kr_thread(), row = i / width, c = (i - row * width) * each,
                t = row / f.H, h = row - t * f.H, b = kr_block_z();
  if (t >= f.L) return;
  const int64_t at = b * f.out.b + t * f.out.t + h * f.out.h + c, z_at = b * f.z.b + t * f.z.t + h * f.z.h + c,
                dout_at = b * p.gated.b + t * p.gated.t + h * p.gated.h + c,
                dz_at = b * f.dz.b + t * f.dz.t + h * f.dz.h + c;
  const int padding = f.seq_idx && f.seq_idx[b * f.seq_b + t * f.seq_t] < 0;
  if (!p.gates_eight) {
    float dz;
    const float dy = pass_gate(f, (int)b, (int)h, kr_load(f.out.data, at, f.out.dtype),
                               kr_load(f.z.data, z_at, f.z.dtype),
                               padding ? 0.0f : kr_load(p.gated.data, dout_at, p.gated.dtype), dz);
    if (f.dz.data) kr_store(f.dz.data, dz_at, f.dz.dtype, dz);
    kr_store(f.out.data, at, f.out.dtype, dy);
    return;
  }
  kr_raw16 *const to = (kr_raw16 *)((uint16_t *)f.out.data + at);
  kr_raw16 y = *to, dz = {};
  const kr_raw16 z = *(const kr_raw16 *)((const uint16_t *)f.z.data + z_at),
                 dout = padding ? kr_raw16{} : *(const kr_raw16 *)((const uint16_t *)p.gated.data + dout_at);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    float own[2], dy[2];
#pragma unroll
    for (int e = 0; e < 2; e++)
      dy[e] = pass_gate(f, (int)b, (int)h, kr_unpack(y.w[k], e, KR_DTYPE), kr_unpack(z.w[k], e, KR_DTYPE),
                        kr_unpack(dout.w[k], e, KR_DTYPE), own[e]);
    y.w[k] = pack(dy[0], dy[1]), dz.w[k] = pack(own[0], own[1]);
  }
  *to = y;
  if (f.dz.data) *(kr_raw16 *)((uint16_t *)f.dz.data + dz_at) = dz;
}

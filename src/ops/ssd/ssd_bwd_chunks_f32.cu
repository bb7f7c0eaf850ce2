/* ssd_bwd_chunks_f32.cu: the SSD's gradient of float32 on tensor cores (equations in ssd_bwd_chunks.cu), Ampere and
 * later. Factors are sums of two float16 parts, or (KRAIT_SSD_TF32) the first of these alone, of as many bits as tf32;
 * a chunk's x, dy, B, C, C B^T and 64 states each have one scale, a power of two. Step sizes and C B^T are of
 * ssd_chunks_f32.cu's kernels.
 * kr_ssd_bwd_states       states S before, and their gradients M after each chunk, in parts: a block per 64 channels by
 *                         64 states
 * kr_ssd_bwd_inner_nN     given S and M, for a chunk and several heads of a group, in turn: one block for dx and dB,
 *                         one for dC and W = sum (dy x^T) o 2^(a_i - a_j) d_j, one for dz, if asked for: so two have
 *                         room on a multiprocessor, and one in 99 KB. Rows arrive as floats and become parts in place
 * kr_ssd_bwd_matrices_nN  dC += W B, dB += W^T C (by tf32 parts), and the sums over the blocks that shared a group's
 *                         heads
 * kr_ssd_bwd_gate         dy, if there is a gate
 * kr_ssd_bwd_finish       step-size gradients from the per-token sums
 * the first two also as _tf32. */
#include "ssd_bwd_states.cuh"

KR_KERNEL void KR_BOUNDS(WALKERS, 3) kr_ssd_bwd_states(const kr_ssd_bwd_params p) { walk_states<1>(p); }
KR_KERNEL void KR_BOUNDS(WALKERS, 3) kr_ssd_bwd_states_tf32(const kr_ssd_bwd_params p) { walk_states<0>(p); }

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

/* The warps' partial sums for each token of a head: those of dC's blocks, and of dB's. */
typedef struct given_sums {
  float before[2][Q], far[Q], within[4][Q], through[THREADS / 32];
} given_sums;
typedef struct taken_sums {
  float inputs[2][Q], after[2][Q];
} taken_sums;

/* A block's shared memory: B or C, a head's x, dy and S or M, with the slices' scales; what warps find largest. Floats
 * arrive where they become parts; single parts have another place, so that the next head's floats may arrive meanwhile.
 */
typedef struct stage {
  unsigned char *matrix, *x, *dy, *state, *floats;
  chunk_steps *all_steps, *steps; /* steps: the head's */
  float *of_slices;
  uint32_t *largest;
  void *sums;
} stage;

template <int N, int PARTS>
KR_DEV stage stage_in(unsigned char *shared) {
  stage to;
  to.floats = shared, to.x = shared + (PARTS ? 0 : 2 * 4 * Q * PB), to.dy = to.x + Q * row_of<PB, PARTS>::BYTES;
  to.matrix = to.dy + Q * row_of<PB, PARTS>::BYTES, to.state = to.matrix + Q * row_of<N, PARTS>::BYTES;
  to.of_slices = (float *)(to.state + tile<N, PARTS>::ROWS_BYTES);
  to.steps = to.all_steps = (chunk_steps *)(to.state + tile<N, PARTS>::BYTES);
  to.largest = (uint32_t *)(to.steps + 2 - PARTS);
  to.sums = to.largest + 2 * THREADS / 32;
  return to;
}

/* One over the scales of a block's B or C and C B^T, and of a head's x and dy. */
typedef struct stage_scales {
  float matrix, x, dy;
  int products; /* log2 of the scale */
} stage_scales;

template <int N, int PARTS>
KR_DEV void copy_tile(const stage &head, const unsigned char *from) {
  const int per_row = row_of<N, PARTS>::BYTES / 16, rows = THREADS / per_row, row = kr_thread() / per_row,
            piece = kr_thread() % per_row;
  unsigned char *const to = head.state + kr_swizzle<row_of<N, PARTS>::BYTES>(row, piece);
  const unsigned char *const at = from + kr_thread() * 16;
#pragma unroll 4
  for (int k = 0; k < PB / rows; k++)
    kr_copy_some(to + k * rows * row_of<N, PARTS>::BYTES, at + k * THREADS * 16, 16);
  if (kr_thread() == 0) kr_copy_some(head.of_slices, from + tile<N, PARTS>::ROWS_BYTES, 16);
}

KR_DEV void copy_head(const kr_ssd_params &f, const place &at, const stage &to, chunk_steps *steps) {
  copy_floats<PB, THREADS, FOR_PARTS>((float *)to.floats, f.x, at.b * f.x.b + at.h * f.x.h + at.p0, at.t0, f.L,
                                      f.P - at.p0);
  copy_floats<PB, THREADS, FOR_PARTS>((float *)to.floats + Q * PB, f.dout,
                                      at.b * f.dout.b + at.h * f.dout.h + at.p0, at.t0, f.L, f.P - at.p0);
  copy_steps(steps, steps_at(f, at.b, at.h, at.chunk));
  kr_commit_copies();
}

#ifdef KR_EMULATE
KR_DEV void fetch_line(const void *) {}
#else
KR_DEV void fetch_line(const void *from) { asm volatile("prefetch.global.L2 [%0];" : : "l"(from)); }
#endif

/* Into the L2 cache, where shared memory has no room yet: two lines of a token's channels by neighbouring threads. */
KR_DEV void fetch_head(const kr_ssd_params &f, const place &at) {
  const int t = kr_thread() >> 1 & (Q - 1), column = (kr_thread() & 1) * (PB / 2);
  const kr_ssd_tensor &v = kr_thread() < 2 * Q ? f.x : f.dout;
  if (t < at.n && at.p0 + column < f.P)
    fetch_line((const float *)v.data + at.b * v.b + at.h * v.h + at.p0 + (at.t0 + t) * v.t + column);
}

/* B or C, in parts, and the scale of C B^T from the products that a head may take: neither those that all mask nor
 * padding count. */
template <int N, int PARTS>
KR_DEV stage_scales open_block(const kr_ssd_params &f, const place &at, const stage &to, const kr_ssd_tensor &v,
                               const float *CB) {
  enum { EACH = Q * N / 16 / THREADS };
  const int thread = kr_thread();
  stage_scales scales = {};
  uint32_t largest = 0;
  copy_floats<N, THREADS, FOR_PARTS>((float *)to.floats, v, at.b * v.b + at.g * v.h, at.t0, f.L, f.N);
  kr_commit_copies();
  const chunk_steps &steps = *steps_at(f, at.b, at.g * f.heads, at.chunk);
  for (int i = thread; i < Q * Q; i += THREADS) {
    const int row = i / Q, from = i % Q;
    if (from <= (row | f.last_rank) &&
        (!f.seq_idx || (steps.segment[row] >= 0 && steps.segment[from] == steps.segment[row])))
      largest = kr_larger(largest, kr_magnitude(CB[i]));
  }
  leave_largest(to.largest + THREADS / 32, largest);
  kr_copied<0>();
  kr_sync();
  sixteen eight[EACH];
  largest = 0;
#pragma unroll
  for (int k = 0; k < EACH; k++)
    largest = kr_larger(largest, read_sixteen<N>(eight[k], to.floats, steps, k * THREADS + thread));
  leave_largest(to.largest, largest);
  kr_sync();
  const int up = scale_of_largest<THREADS / 32>(to.largest);
  scales.matrix = kr_power_of_two(-up), scales.products = scale_of_largest<THREADS / 32>(to.largest + THREADS / 32);
#pragma unroll
  for (int k = 0; k < EACH; k++)
    leave_sixteen<N, PARTS>(to.matrix, eight[k], k * THREADS + thread, kr_power_of_two(up));
  kr_sync();
  return scales;
}

/* A head's x and dy, in parts, once their copies have arrived. */
template <int PARTS>
KR_DEV void open_head(const stage &head, stage_scales &scales) {
  const int thread = anew(kr_thread());
  sixteen x, dy;
  kr_copied<0>();
  kr_sync();
  leave_largest(head.largest, read_sixteen<PB>(x, head.floats, *head.steps, thread));
  leave_largest(head.largest + THREADS / 32, read_sixteen<PB>(dy, head.floats + 4 * Q * PB, *head.steps, thread));
  kr_sync();
  const int up_x = scale_of_largest<THREADS / 32>(head.largest),
            up_dy = scale_of_largest<THREADS / 32>(head.largest + THREADS / 32);
  leave_sixteen<PB, PARTS>(head.x, x, thread, kr_power_of_two(up_x));
  leave_sixteen<PB, PARTS>(head.dy, dy, thread, kr_power_of_two(up_dy));
  scales.x = kr_power_of_two(-up_x), scales.dy = kr_power_of_two(-up_dy);
  kr_sync();
}

/* dC += 2^a dy S, and its products with C. */
template <int N, int PARTS>
KR_DEV void give_before(const stage &head, const stage_scales &scales, const warp_place &me, given_sums &sums,
                        float (&dC)[N / 16][4]) {
  const float scale = scales.dy * head.of_slices[me.n * (N / 2) / SLICE],
              out[2] = {state_reaches(*head.steps, me.row) * scale, state_reaches(*head.steps, me.row + 8) * scale};
  float before[2] = {0, 0};
#pragma unroll
  for (int part = 0; part < N / 64; part++) {
    const int n = me.n * (N / 2) + 32 * part;
    float t[4][4];
#pragma unroll
    for (int j = 0; j < 4; j++) clear(t[j]);
#pragma unroll 1
    for (int k = 0; k < PB / 16; k++) {
      operand<PARTS> a;
      kr_sync_warp(); /* or all reads would be moved here, and their registers to local memory */
      read_rows<PB>(a, head.dy, me, k);
#pragma unroll
      for (int j = 0; j < 2; j++) {
        operand<PARTS> b;
        read_columns_turned<N>(b, head.state, me, k, n / 8 + 2 * j);
        multiply_pair(t[2 * j], t[2 * j + 1], a, b);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const kr_float2 c = two_at<N, PARTS>(head.matrix, me.row + 8 * h, n + 8 * j + 2 * me.q);
        const float low = out[h] * t[j][2 * h], high = out[h] * t[j][2 * h + 1];
        dC[4 * part + j][2 * h] += low, dC[4 * part + j][2 * h + 1] += high;
        before[h] = kr_fma(c.v[0], low, kr_fma(c.v[1], high, before[h]));
      }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    before[h] = add_row(before[h]) * scales.matrix;
    if (me.q == 0) sums.before[me.n][me.row + 8 * h] = before[h];
  }
}

/* A thread's share of <S, M>. */
template <int N, int PARTS>
KR_DEV void pass_through(const stage &head, const unsigned char *M, given_sums &sums) {
  enum { ROW = row_of<N, PARTS>::BYTES, PER_ROW = N / 8, ROWS = THREADS / PER_ROW };
  const int row = kr_thread() / PER_ROW, piece = kr_thread() % PER_ROW;
  float v = 0;
#pragma unroll 2
  for (int i = 0; i < PB / ROWS; i++) {
    const int at = row + i * ROWS;
    kr_raw16 s[1 + PARTS], m[1 + PARTS];
#pragma unroll
    for (int part = 0; part <= PARTS; part++)
      m[part] = *(const kr_raw16 *)(M + at * ROW + (piece + part * PER_ROW) * 16),
      s[part] = *(const kr_raw16 *)(head.state + kr_swizzle<ROW>(at, piece + part * PER_ROW));
#pragma unroll
    for (int k = 0; k < 8; k++) {
      float of_S = kr_unpack(s[0].w[k / 2], k % 2, KRAIT_F16), of_M = kr_unpack(m[0].w[k / 2], k % 2, KRAIT_F16);
      if (PARTS)
        of_S += kr_unpack(s[PARTS].w[k / 2], k % 2, KRAIT_F16), of_M += kr_unpack(m[PARTS].w[k / 2], k % 2, KRAIT_F16);
      v = kr_fma(of_S, of_M, v);
    }
  }
  const int slice = piece * 8 / SLICE;
  v = v * head.of_slices[slice] * ((const float *)(M + tile<N, PARTS>::ROWS_BYTES))[slice];
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) v += kr_shuffle_xor(v, d);
  if ((kr_thread() & 31) == 0) sums.through[kr_thread() >> 5] = v;
}

/* Sums of a row's pairs over the columns before each of its own; returns the sum of all. */
KR_DEV float sum_columns(float (&before)[8], const float (&pairs)[8], const warp_place &me) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    float upto = pairs[2 * j] + pairs[2 * j + 1];
    const float one = kr_shuffle_up(upto, 1, 4);
    upto += me.q >= 1 ? one : 0.0f;
    const float two = kr_shuffle_up(upto, 2, 4);
    upto += me.q >= 2 ? two : 0.0f;
    const float others = kr_shuffle_up(upto, 1, 4);
    before[2 * j] = sum + (me.q ? others : 0.0f), before[2 * j + 1] = before[2 * j] + pairs[2 * j];
    sum += kr_shuffle_from(upto, me.lane | 3);
  }
  return sum;
}

/* Two neighbours' decays. Tokens of a chunk have sequence 0 where there are none. */
typedef struct two_tokens {
  kr_float2 a, low, segment;
} two_tokens;
KR_DEV two_tokens tokens_at(const chunk_steps &s, int t) {
  return two_tokens{*(const kr_float2 *)&s.a[t], *(const kr_float2 *)&s.from[t], *(const kr_float2 *)&s.segment[t]};
}

/* W, and the sums over pairs of tokens. CB: C B^T, read when needed, which registers have no room for; all of a row
 * before any is used, and without branches, in which each would be waited for. */
template <int PARTS>
KR_DEV void give_pairs(const kr_ssd_params &f, const stage &head, const stage_scales &scales, const warp_place &me,
                       const float *CB, given_sums &sums, float (&W)[4][4]) {
  const chunk_steps &s = *head.steps;
  const float scale = scales.x * scales.dy;
  float xy[4][4], passed[8];
#pragma unroll
  for (int j = 0; j < 4; j++) clear(xy[j]);
#pragma unroll
  for (int i = 0; i < 8; i++) passed[i] = 0;
  if (me.m >= 2 * me.n) { /* else later than the rows */
#pragma unroll 1
    for (int k = 0; k < PB / 16; k++) {
      operand<PARTS> a;
      kr_sync_warp();
      read_rows<PB>(a, head.dy, me, k);
#pragma unroll
      for (int j = 0; j < 2; j++) {
        operand<PARTS> b;
        read_columns<PB>(b, head.x, me, 32 * me.n + 16 * j, k);
        multiply_pair(xy[2 * j], xy[2 * j + 1], a, b);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = me.row + 8 * h;
    const float a = s.a[row], low = s.from[row], segment = s.segment[row];
    float pairs[8], before[8];
    kr_float2 products[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
      products[j] = *(const kr_float2 *)(CB + row * Q + 32 * me.n + 8 * j + 2 * me.q);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int column = 32 * me.n + 8 * j + 2 * me.q;
      const two_tokens t = tokens_at(s, column);
      const kr_float2 d = *(const kr_float2 *)&s.d[column];
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const int from = column + c, reaches = (from <= (row | f.last_rank)) & (t.segment.v[c] == segment);
        const float w = xy[j][2 * h + c] * scale * (decay(t.a.v[c], t.low.v[c], a, low) * d.v[c]),
                    pair = w * products[j].v[c];
        W[j][2 * h + c] += reaches ? w : 0.0f;
        pairs[2 * j + c] = (reaches & (from < row)) ? pair : 0.0f;
      }
    }
    const float all = sum_columns(before, pairs, me);
#pragma unroll
    for (int i = 0; i < 8; i++) passed[i] += 32 * me.n + i / 2 * 8 + 2 * me.q + i % 2 <= row ? before[i] : 0.0f;
    if (me.q == 0 && me.n == 0) sums.far[row] = row >= 32 ? all : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) {
    passed[i] += kr_shuffle_xor(passed[i], 4);
    passed[i] += kr_shuffle_xor(passed[i], 8);
    passed[i] += kr_shuffle_xor(passed[i], 16);
    if (me.g == 0) sums.within[me.m][32 * me.n + i / 2 * 8 + 2 * me.q + i % 2] = passed[i];
  }
}

/* Sums of dy x over the chunk: a warp takes eight channels, four lanes a token. */
template <int PARTS>
KR_DEV void sum_dD(const kr_ssd_bwd_params &p, const place &at, const stage &head, const stage_scales &scales) {
  const int lane = kr_thread() & 31, c = (kr_thread() >> 5) * 8 + 2 * (lane & 3);
  float sum[2] = {0, 0};
#pragma unroll 2
  for (int i = 0; i < Q / 8; i++) {
    const int row = 8 * i + (lane >> 2);
    const kr_float2 x = two_at<PB, PARTS>(head.x, row, c), dy = two_at<PB, PARTS>(head.dy, row, c);
    if (!p.f.seq_idx || head.steps->segment[row] >= 0)
      sum[0] = kr_fma(x.v[0], dy.v[0], sum[0]), sum[1] = kr_fma(x.v[1], dy.v[1], sum[1]);
  }
#pragma unroll
  for (int k = 0; k < 2; k++) {
#pragma unroll
    for (int d = 4; d < 32; d <<= 1) sum[k] += kr_shuffle_xor(sum[k], d);
    if (lane < 4 && at.p0 + c + k < p.f.P)
      p.parts[(((int64_t)at.b * p.n_chunks + at.chunk) * p.f.H + at.h) * (p.f.P + 2) + at.p0 + c + k] =
          sum[k] * (scales.x * scales.dy);
  }
}

/* d = rows of B or C by those of M or S. */
template <int N, int PARTS>
KR_DEV void multiply_states(float (&d)[4][4], const stage &head, const stage_scales &scales, const warp_place &me) {
#pragma unroll
  for (int slice = 0; slice < N / SLICE; slice++) {
    const float scale = scales.matrix * head.of_slices[slice];
    float of_slice[4][4];
#pragma unroll
    for (int j = 0; j < 4; j++) clear(of_slice[j]);
#pragma unroll 1
    for (int k = slice * (SLICE / 16); k < (slice + 1) * (SLICE / 16); k++) {
      operand<PARTS> a;
      kr_sync_warp();
      read_rows<N>(a, head.matrix, me, k);
#pragma unroll
      for (int j = 0; j < 2; j++) {
        operand<PARTS> b;
        read_columns<N>(b, head.state, me, 32 * me.n + 16 * j, k);
        multiply_pair(of_slice[2 * j], of_slice[2 * j + 1], a, b);
      }
    }
#pragma unroll
    for (int r = 0; r < 16; r++)
      d[r / 4][r % 4] = kr_fma(of_slice[r / 4][r % 4], scale, slice ? d[r / 4][r % 4] : 0.0f);
  }
}

/* d += a by 16 tokens of x or dy, from 16 k on. */
template <int PARTS>
KR_DEV void multiply_tokens(float (&d)[4][4], const operand<PARTS> &a, const unsigned char *rows, const warp_place &me,
                            int k) {
#pragma unroll
  for (int j = 0; j < 2; j++) {
    operand<PARTS> b;
    read_columns_turned<PB>(b, rows, me, k, 4 * me.n + 2 * j);
    multiply_pair(d[2 * j], d[2 * j + 1], a, b);
  }
}

/* y += P x, P with step sizes, an operand made where it is needed. */
template <int PARTS>
KR_DEV void weigh_inputs(const kr_ssd_params &f, const stage &head, const stage_scales &scales, const warp_place &me,
                         const float *CB, float (&y)[4][4]) {
  const chunk_steps &s = *head.steps;
  const uint32_t largest =
      largest_of_lanes<32>(kr_larger(kr_magnitude(s.d[me.lane]), kr_magnitude(s.d[me.lane + 32])));
  const int sizes = kr_halves_scale(largest) - 14, products = scales.products - 1; /* log2: step sizes below 2 */
  const float up = kr_power_of_two(products), sized = kr_power_of_two(sizes),
              down = scales.x * kr_power_of_two(-products) * kr_power_of_two(-sizes), one[2] = {1, 1};
  float d[4][4];
#pragma unroll
  for (int j = 0; j < 4; j++) clear(d[j]);
#pragma unroll 1
  for (int k = 0; k <= me.m; k++) {
    float of[2][4];
    kr_float2 products[4];
    operand<PARTS> a;
#pragma unroll
    for (int r = 0; r < 4; r++)
      products[r] = *(const kr_float2 *)(CB + (me.row + r % 2 * 8) * Q + 16 * k + 2 * me.q + r / 2 * 8);
#pragma unroll
    for (int r = 0; r < 8; r++) {
      const int h = r / 2 % 2, i = me.row + 8 * h, first = 16 * k + 2 * me.q + r / 4 * 8, j = first + r % 2;
      const two_tokens t = tokens_at(s, first);
      const float passes = products[r / 4 * 2 + h].v[r % 2] * up *
                           (decay(t.a.v[r % 2], t.low.v[r % 2], s.a[i], s.from[i]) * (s.d[j] * sized));
      const int reaches = (j <= (i | f.last_rank)) & (s.segment[i] == t.segment.v[r % 2]) & (s.segment[i] >= 0);
      of[r / 4][r % 4] = reaches ? passes : 0.0f;
    }
    scale_operand(a, of[0], of[1], one);
    multiply_tokens(d, a, head.x, me, k);
  }
#pragma unroll
  for (int r = 0; r < 16; r++) y[r / 4][r % 4] = kr_fma(d[r / 4][r % 4], down, y[r / 4][r % 4]);
}

/* dz of the head, from y before the gate: 2^a C S^T (C S^T is in y) + P x + D x, P with step sizes. Returns whether y
 * is not finite. */
template <int PARTS>
KR_DEV int give_gate(const kr_ssd_bwd_params &p, const place &at, const stage &head, const stage_scales &scales,
                     const warp_place &me, const float *CB, float (&y)[4][4]) {
  const kr_ssd_params &f = p.f;
  const chunk_steps &s = *head.steps;
  const float low = state_reaches(s, me.row), high = state_reaches(s, me.row + 8);
#pragma unroll
  for (int j = 0; j < 4; j++) y[j][0] *= low, y[j][1] *= low, y[j][2] *= high, y[j][3] *= high;
  weigh_inputs<PARTS>(f, head, scales, me, CB, y);
#pragma unroll 1
  for (int h = 0; h < 2; h++) {
    const int row = me.row + 8 * h, c0 = 32 * me.n + 2 * me.q, padding = s.segment[row] < 0;
    const int64_t t = at.t0 + row;
    const kr_ssd_tensor &gated = p.gated;
    const float *const z_at = (const float *)f.z.data + at.b * f.z.b + t * f.z.t + at.h * f.z.h + at.p0 + c0,
                       *const dout_at = (const float *)gated.data + at.b * gated.b + t * gated.t + at.h * gated.h +
                                        at.p0 + c0;
    float *const to = (float *)f.dz.data + at.b * f.dz.b + t * f.dz.t + at.h * f.dz.h + at.p0 + c0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int c = j / 2 * 8 + j % 2;
      if (row >= at.n || at.p0 + c0 + c >= f.P) continue;
      const float z = z_at[c], dout = dout_at[c], gate = kr_sigmoid(z),
                  D = f.D.data ? kr_load(f.D.data, at.h * f.D.h + (at.p0 + c0 + c) * f.D.n, f.D.dtype) : 0.0f,
                  x = two_at<PB, PARTS>(head.x, row, c0 + (c & ~1)).v[c % 2] * scales.x,
                  all = kr_fma(D, x, h ? y[j / 2][2 + j % 2] : y[j / 2][j % 2]);
      const float dz = dout == 0 || padding ? 0.0f : dout * all * gate * kr_fma(z, 1.0f - gate, 1.0f);
      to[c] = p.part ? to[c] + dz : dz;
    }
  }
  return is_spoilt<4>(y);
}

/* By the block's first threads, while the next head's rows arrive; a head's other channels and states add to them. */
KR_DEV void leave_given(const kr_ssd_bwd_params &p, const place &at, const given_sums &sums) {
  const int t = kr_thread(), adds = at.block || p.part;
  token_sums &to = *sums_at(p, at.b, at.h, at.chunk);
  if (t < Q) {
    const float before = sums.before[0][t] + sums.before[1][t],
                within = (sums.within[0][t] + sums.within[1][t]) + (sums.within[2][t] + sums.within[3][t]);
    to.of[t].v[0] = adds ? to.of[t].v[0] + before : before;
    to.of[t].v[3] = adds ? to.of[t].v[3] + within : within;
    to.taken[t] = adds ? to.taken[t] + sums.far[t] : sums.far[t];
  } else if (t == Q) {
    float sum = adds ? to.through : 0.0f;
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++) sum += sums.through[w];
    to.through = sum;
  }
}

KR_DEV void leave_taken(const kr_ssd_bwd_params &p, const place &at, const taken_sums &sums) {
  const int t = kr_thread(), adds = at.block || p.part;
  token_sums &to = *sums_at(p, at.b, at.h, at.chunk);
  if (t >= Q) return;
  const float after = sums.after[0][t] + sums.after[1][t], inputs = sums.inputs[0][t] + sums.inputs[1][t];
  to.of[t].v[1] = adds ? to.of[t].v[1] + after : after;
  to.of[t].v[2] = adds ? to.of[t].v[2] + inputs : inputs;
}

/* dB += d 2^(a_end - a) x M. */
template <int N, int PARTS>
KR_DEV void take_after(const stage &head, const stage_scales &scales, const warp_place &me, int has_sequences,
                       float (&dB)[N / 16][4]) {
  const float scale = scales.x * head.of_slices[me.n * (N / 2) / SLICE],
              low = input_left(*head.steps, has_sequences, me.row) * scale,
              high = input_left(*head.steps, has_sequences, me.row + 8) * scale;
#pragma unroll
  for (int part = 0; part < N / 64; part++) {
    float t[4][4];
#pragma unroll
    for (int j = 0; j < 4; j++) clear(t[j]);
#pragma unroll 1
    for (int k = 0; k < PB / 16; k++) {
      operand<PARTS> a;
      kr_sync_warp();
      read_rows<PB>(a, head.x, me, k);
#pragma unroll
      for (int j = 0; j < 2; j++) {
        operand<PARTS> b;
        read_columns_turned<N>(b, head.state, me, k, me.n * (N / 16) + 4 * part + 2 * j);
        multiply_pair(t[2 * j], t[2 * j + 1], a, b);
      }
    }
#pragma unroll
    for (int r = 0; r < 16; r++)
      dB[4 * part + r / 4][r % 4] = kr_fma(r % 4 < 2 ? low : high, t[r / 4][r % 4], dB[4 * part + r / 4][r % 4]);
  }
}

/* all += P^T dy; P = (C B^T) o 2^(a_i - a_j), an operand made where it is needed. */
template <int PARTS>
KR_DEV void take_within(const kr_ssd_params &f, const stage &head, const stage_scales &scales, const warp_place &me,
                        const float *CB, float (&all)[4][4]) {
  const chunk_steps &s = *head.steps;
  const float up[2] = {kr_power_of_two(scales.products), kr_power_of_two(scales.products)},
              down = scales.dy * kr_power_of_two(-scales.products);
  float d[4][4];
#pragma unroll
  for (int j = 0; j < 4; j++) clear(d[j]);
#pragma unroll 1
  for (int k = me.m; k < Q / 16; k++) {
    float of[2][4], products[8];
    operand<PARTS> a;
#pragma unroll
    for (int r = 0; r < 8; r++)
      products[r] = CB[(16 * k + 2 * me.q + r % 2 + r / 4 * 8) * Q + me.row + r / 2 % 2 * 8];
#pragma unroll
    for (int r = 0; r < 8; r++) {
      const int first = 16 * k + 2 * me.q + r / 4 * 8, i = first + r % 2, j = me.row + r / 2 % 2 * 8;
      const two_tokens t = tokens_at(s, first);
      const float passes = products[r] * decay(s.a[j], s.from[j], t.a.v[r % 2], t.low.v[r % 2]);
      const int reaches = (j <= (i | f.last_rank)) & (s.segment[j] == t.segment.v[r % 2]) & (s.segment[j] >= 0);
      of[r / 4][r % 4] = reaches ? passes : 0.0f;
    }
    scale_operand(a, of[0], of[1], up);
    multiply_tokens(d, a, head.dy, me, k);
  }
#pragma unroll
  for (int r = 0; r < 16; r++) all[r / 4][r % 4] = kr_fma(d[r / 4][r % 4], down, all[r / 4][r % 4]);
}

/* dx of the head; returns whether it is not finite. */
template <int PARTS>
KR_DEV int take_inputs(const kr_ssd_bwd_params &p, const place &at, const stage &head, const stage_scales &scales,
                       const warp_place &me, const float *CB, taken_sums &sums, float (&all)[4][4]) {
  const kr_ssd_params &f = p.f;
  const chunk_steps &s = *head.steps;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = me.row + 8 * h;
    const float into = s.segment[row] == s.last ? decay(s.a[row], s.from[row], s.total, s.pad[0]) : 0.0f;
    float after = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const kr_float2 x = two_at<PB, PARTS>(head.x, row, 32 * me.n + 8 * j + 2 * me.q);
      all[j][2 * h] *= into, all[j][2 * h + 1] *= into;
      after = kr_fma(x.v[0], all[j][2 * h], kr_fma(x.v[1], all[j][2 * h + 1], after));
    }
    after = add_row(after);
    if (me.q == 0) sums.after[me.n][row] = s.d[row] * (after * scales.x);
  }
  take_within<PARTS>(f, head, scales, me, CB, all);
  const int c0 = at.p0 + 32 * me.n + 2 * me.q;
  float D[8];
  if (f.D.n == 0) { /* none, or one for all channels: one load */
    const float all_D = f.D.data ? kr_load(f.D.data, at.h * f.D.h, f.D.dtype) : 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++) D[j] = all_D;
  } else {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int c = c0 + j / 2 * 8 + j % 2;
      D[j] = f.D.data && c < f.P ? kr_load(f.D.data, at.h * f.D.h + c * f.D.n, f.D.dtype) : 0.0f;
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = me.row + 8 * h, padding = s.segment[row] < 0, writes = p.dx.data && row < at.n;
    float *const to = (float *)p.dx.data + at.b * p.dx.b + (at.t0 + row) * p.dx.t + at.h * p.dx.h + c0;
    const float d = s.d[row];
    float inputs = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int column = 32 * me.n + 8 * j + 2 * me.q, left = f.P - c0 - 8 * j;
      const kr_float2 x = two_at<PB, PARTS>(head.x, row, column), dy = two_at<PB, PARTS>(head.dy, row, column);
      inputs = kr_fma(x.v[0], all[j][2 * h], kr_fma(x.v[1], all[j][2 * h + 1], inputs));
      kr_float2 dx = {{d * all[j][2 * h], d * all[j][2 * h + 1]}};
      if (f.D.data)
        dx = kr_float2{{kr_fma(D[2 * j] * scales.dy, dy.v[0], dx.v[0]),
                        kr_fma(D[2 * j + 1] * scales.dy, dy.v[1], dx.v[1])}};
      if (!writes || left <= 0) continue;
      if (p.part) dx.v[0] += to[8 * j], dx.v[1] += left > 1 ? to[8 * j + 1] : 0.0f;
      if (padding) dx = kr_float2{{0, 0}};
      if (left > 1) *(kr_float2 *)(to + 8 * j) = dx;
      else to[8 * j] = dx.v[0];
    }
    inputs = add_row(inputs);
    if (me.q == 0) sums.inputs[me.n][row] = inputs * scales.x;
  }
  return is_spoilt<4>(all);
}

/* A warp's part of a block's dB or dC. */
template <int N>
KR_DEV void leave_matrix(const kr_ssd_bwd_params &p, const place &at, const warp_place &me, const kr_ssd_tensor &v,
                         int split, const float (&d)[N / 16][4]) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = me.row + 8 * h, n = me.n * (N / 2) + 2 * me.q;
    float *const to = (float *)v.data + ((int64_t)split * p.f.B + at.b) * v.b + (at.t0 + row) * v.t + at.g * v.h + n;
#pragma unroll
    for (int j = 0; j < N / 16; j++)
#pragma unroll
      for (int k = 0; k < 2; k++)
        if (row < at.n && n + 8 * j + k < p.f.N) to[8 * j + k] = d[j][2 * h + k];
  }
}

KR_DEV float *W_of(const kr_ssd_bwd_params &p, const place &at, int split) {
  const int64_t groups = p.f.H / p.f.heads;
  return p.W + ((((int64_t)split * p.f.B + at.b) * p.n_chunks + at.chunk) * groups + at.g) * Q * Q;
}

/* The heads of a block: its share of a group's. */
typedef struct share {
  int split, first, n; /* n: of heads by blocks of channels */
} share;

KR_DEV share share_of(const kr_ssd_bwd_params &p, const place &at, int split) {
  const int per_split = (p.f.heads + p.n_splits - 1) / p.n_splits, h0 = split * per_split, left = p.f.heads - h0,
            n_heads = left < per_split ? left : per_split;
  return share{split, at.g * p.f.heads + h0, n_heads > 0 ? n_heads * p.f.blocks_per_head : 0};
}

/* The i-th head's x and dy in parts; the next one's begin to arrive, or come nearer. */
template <int PARTS>
KR_DEV void begin_head(const kr_ssd_params &f, const place &at, const share &mine, int i, stage &head,
                       stage_scales &scales) {
  place next = at;
  go_to(next, f, mine.first, i + 1);
  head.steps = head.all_steps + (PARTS ? 0 : i & 1);
  if (PARTS || !i) copy_head(f, at, head, head.steps);
  open_head<PARTS>(head, scales);
  if (i + 1 >= mine.n) return;
  if (PARTS) fetch_head(f, next);
  else copy_head(f, next, head, head.all_steps + (~i & 1));
}

/* dC and W. */
template <int N, int PARTS>
KR_DEV void give(const kr_ssd_bwd_params &p, place at, const share &mine, stage head, stage_scales scales) {
  const kr_ssd_params &f = p.f;
  const float *const products = products_of(f, at.b, at.g, at.chunk);
  given_sums &sums = *(given_sums *)head.sums;
  float W[4][4], dC[N / 16][4];
#pragma unroll
  for (int j = 0; j < N / 16; j++) clear(dC[j]);
#pragma unroll
  for (int j = 0; j < 4; j++) clear(W[j]);
#pragma unroll 1
  for (int i = 0; i < mine.n; i++) {
    const warp_place me = warp();
    const place last = at;
    go_to(at, f, mine.first, i);
    if (!i) copy_tile<N, PARTS>(head, tile_at<PARTS>(p, p.S, at.b, at.h, at.block, at.chunk));
    else kr_sync(), leave_given(p, last, sums);
    const unsigned char *const M = tile_at<PARTS>(p, p.M, at.b, at.h, at.block, at.chunk);
    if (kr_thread() < tile<N, PARTS>::ROWS_BYTES / 128) fetch_line(M + 128 * kr_thread());
    begin_head<PARTS>(f, at, mine, i, head, scales);
    give_before<N, PARTS>(head, scales, me, sums, dC);
    pass_through<N, PARTS>(head, M, sums);
    kr_sync();
    if (i + 1 < mine.n) {
      place next = at;
      go_to(next, f, mine.first, i + 1);
      copy_tile<N, PARTS>(head, tile_at<PARTS>(p, p.S, next.b, next.h, next.block, next.chunk));
      kr_commit_copies();
    }
    give_pairs<PARTS>(f, head, scales, me, products, sums, W);
    if (p.dD.data && !p.part) sum_dD<PARTS>(p, at, head, scales);
  }
  kr_sync();
  if (mine.n) leave_given(p, at, sums);
  const warp_place me = warp();
  leave_matrix<N>(p, at, me, p.sum_C, mine.split, dC);
  float *const to = W_of(p, at, mine.split) + me.row * Q + 32 * me.n + 2 * me.q;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    *(kr_float2 *)(to + 8 * j) = kr_float2{{W[j][0], W[j][1]}};
    *(kr_float2 *)(to + 8 * Q + 8 * j) = kr_float2{{W[j][2], W[j][3]}};
  }
}

/* dx and dB. */
template <int N, int PARTS>
KR_DEV void take(const kr_ssd_bwd_params &p, place at, const share &mine, stage head, stage_scales scales) {
  const kr_ssd_params &f = p.f;
  const float *const products = products_of(f, at.b, at.g, at.chunk);
  taken_sums &sums = *(taken_sums *)head.sums;
  float dB[N / 16][4];
  int spoilt = 0;
#pragma unroll
  for (int j = 0; j < N / 16; j++) clear(dB[j]);
#pragma unroll 1
  for (int i = 0; i < mine.n; i++) {
    const warp_place me = warp();
    const place last = at;
    float all[4][4];
    go_to(at, f, mine.first, i);
    if (!i) copy_tile<N, PARTS>(head, tile_at<PARTS>(p, p.M, at.b, at.h, at.block, at.chunk));
    else kr_sync(), leave_taken(p, last, sums);
    begin_head<PARTS>(f, at, mine, i, head, scales);
    multiply_states<N, PARTS>(all, head, scales, me);
    take_after<N, PARTS>(head, scales, me, f.seq_idx != 0, dB);
    kr_sync();
    if (i + 1 < mine.n) {
      place next = at;
      go_to(next, f, mine.first, i + 1);
      copy_tile<N, PARTS>(head, tile_at<PARTS>(p, p.M, next.b, next.h, next.block, next.chunk));
      kr_commit_copies();
    }
    spoilt |= take_inputs<PARTS>(p, at, head, scales, me, products, sums, all);
  }
  kr_sync();
  if (mine.n) leave_taken(p, at, sums);
  if (spoilt) report_nonfinite_group(f, at.b, mine.first);
  leave_matrix<N>(p, at, warp(), p.sum_B, mine.split, dB);
}

/* dz. */
template <int N, int PARTS>
KR_DEV void pass_gate(const kr_ssd_bwd_params &p, place at, const share &mine, stage head, stage_scales scales) {
  const kr_ssd_params &f = p.f;
  int spoilt = 0;
  const float *const products = products_of(f, at.b, at.g, at.chunk);
#pragma unroll 1
  for (int i = 0; i < mine.n; i++) {
    go_to(at, f, mine.first, i);
    if (i) kr_sync();
    copy_tile<N, PARTS>(head, tile_at<PARTS>(p, p.S, at.b, at.h, at.block, at.chunk));
    kr_commit_copies();
    begin_head<PARTS>(f, at, mine, i, head, scales);
    const warp_place me = warp();
    float y[4][4];
    multiply_states<N, PARTS>(y, head, scales, me);
    spoilt |= give_gate<PARTS>(p, at, head, scales, me, products, y);
  }
  if (spoilt) report_nonfinite_group(f, at.b, mine.first);
}

template <int N, int PARTS>
KR_DEV void inner(const kr_ssd_bwd_params &p) {
  KR_DYNAMIC_SHARED(shared);
  const int roles = KR_SSD_BWD_FLOATS_ROLES(p.f.dz.data), unit = kr_block_y() / roles,
            role = kr_block_y() - unit * roles, g = unit / p.n_splits;
  place at = {kr_block_z(), g, 0, 0, 0, kr_block_x(), 0, (int64_t)kr_block_x() * Q};
  at.n = p.f.L - at.t0 < Q ? (int)(p.f.L - at.t0) : Q;
  const share mine = share_of(p, at, unit - g * p.n_splits);
  const stage head = stage_in<N, PARTS>(shared);
  const stage_scales scales =
      open_block<N, PARTS>(p.f, at, head, role ? p.f.Cmat : p.f.Bmat, products_of(p.f, at.b, at.g, at.chunk));
  if (role == 0) take<N, PARTS>(p, at, mine, head, scales);
  else if (role == 1) give<N, PARTS>(p, at, mine, head, scales);
  else pass_gate<N, PARTS>(p, at, mine, head, scales);
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_bwd_inner_n64(const kr_ssd_bwd_params p) { inner<64, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_bwd_inner_n64_tf32(const kr_ssd_bwd_params p) { inner<64, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_bwd_inner_n128(const kr_ssd_bwd_params p) { inner<128, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_bwd_inner_n128_tf32(const kr_ssd_bwd_params p) { inner<128, 0>(p); }

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

template <int N>
KR_DEV void copy_matrix(const kr_ssd_params &f, const place &at, float *to, const kr_ssd_tensor &v) {
  copy_floats<N, THREADS, FOR_FLOATS>(to, v, at.b * v.b + at.g * v.h, at.t0, f.L, f.N);
}

/* A warp's 16 rows of W columns as an A operand: columns 8 k on. */
template <int W>
KR_DEV void read_floats(float (&a)[4], const warp_place &me, const float *rows, int k) {
#pragma unroll
  for (int r = 0; r < 4; r++) a[r] = rows[place_of<W>(me.row + r % 2 * 8, 8 * k + me.q + r / 2 * 4)];
}

/* d += a by rows 8 k on of W columns, blocks of eight columns from column n on. */
template <int W, int BLOCKS, int PARTS>
KR_DEV void multiply_rows(float (&d)[BLOCKS][4], const warp_place &me, const kr_factor<PARTS, 4> &a, const float *rows,
                          int k, int n) {
#pragma unroll
  for (int j = 0; j < BLOCKS; j++)
    kr_multiply<PARTS>(d[j], a, {rows[place_of<W>(8 * k + me.q, n + 8 * j + me.g)],
                              rows[place_of<W>(8 * k + me.q + 4, n + 8 * j + me.g)]});
}

/* W, summed over the blocks that share a group. */
KR_DEV void sum_W(const kr_ssd_bwd_params &p, const place &at, float *to) {
#pragma unroll
  for (int k = 0; k < Q * Q / 4 / THREADS; k++) {
    const int i = k * THREADS + kr_thread();
    kr_float4 sum = {{0, 0, 0, 0}};
    for (int split = 0; split < p.n_splits; split++) {
      const kr_float4 v = *(const kr_float4 *)(W_of(p, at, split) + 4 * i);
#pragma unroll
      for (int r = 0; r < 4; r++) sum.v[r] += v.v[r];
    }
    *(kr_float4 *)(to + place_of<Q>(i / (Q / 4), i % (Q / 4) * 4)) = sum;
  }
}

/* d = the blocks' sum of parts; to v, in the end. */
template <int N>
KR_DEV void load_parts(const kr_ssd_bwd_params &p, const place &at, const warp_place &me, const kr_ssd_tensor &v,
                       float (&d)[N / 16][4]) {
#pragma unroll
  for (int j = 0; j < N / 16; j++) clear(d[j]);
  for (int split = 0; split < p.n_splits; split++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = me.row + 8 * h, n = me.n * (N / 2) + 2 * me.q;
      const float *const from =
          (const float *)v.data + ((int64_t)split * p.f.B + at.b) * v.b + (at.t0 + row) * v.t + at.g * v.h + n;
#pragma unroll
      for (int j = 0; j < N / 16; j++)
#pragma unroll
        for (int k = 0; k < 2; k++)
          if (row < at.n && n + 8 * j + k < p.f.N) d[j][2 * h + k] += from[8 * j + k];
    }
}

/* TURNED: dB += W^T C, else dC += W B: rows `matrix`. */
template <int N, int TURNED>
KR_DEV void finish_matrix(const kr_ssd_bwd_params &p, const place &at, const float *W, const float *matrix) {
  const warp_place me = warp();
  const kr_ssd_tensor &to = TURNED ? p.dB : p.dC;
  float d[N / 16][4];
  load_parts<N>(p, at, me, TURNED ? p.sum_B : p.sum_C, d);
#pragma unroll 1
  for (int k = TURNED ? 2 * me.m : 0; k < (TURNED ? Q / 8 : 2 * me.m + 2); k++) {
    float a[4];
    if (TURNED)
      for (int r = 0; r < 4; r++) a[r] = W[place_of<Q>(8 * k + me.q + r / 2 * 4, me.row + r % 2 * 8)];
    else read_floats<Q>(a, me, W, k);
    multiply_rows<N>(d, me, kr_split<1>(a), matrix, k, me.n * (N / 2));
  }
  if (is_spoilt<N / 16>(d)) report_nonfinite_group(p.f, at.b, at.g * p.f.heads);
  if (to.data) leave_matrix<N>(p, at, me, to, 0, d);
}

template <int N>
KR_DEV void finish_matrices(const kr_ssd_bwd_params &p) {
  KR_DYNAMIC_SHARED(shared);
  place at = {kr_block_z(), kr_block_y(), 0, 0, 0, kr_block_x(), 0, (int64_t)kr_block_x() * Q};
  float *const W = (float *)shared, *const B = W + Q * Q, *const C = B + Q * N;
  at.n = p.f.L - at.t0 < Q ? (int)(p.f.L - at.t0) : Q;
  copy_matrix<N>(p.f, at, B, p.f.Bmat);
  copy_matrix<N>(p.f, at, C, p.f.Cmat);
  kr_commit_copies();
  sum_W(p, at, W);
  kr_copied<0>();
  kr_sync();
  finish_matrix<N, 0>(p, at, W, B);
  finish_matrix<N, 1>(p, at, W, C);
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_bwd_matrices_n64(const kr_ssd_bwd_params p) { finish_matrices<64>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_bwd_matrices_n128(const kr_ssd_bwd_params p) { finish_matrices<128>(p); }

/* f.out: dy. One thread per element. */
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_ssd_bwd_gate(const kr_ssd_bwd_params p) {
  const kr_ssd_params &f = p.f;
  const int64_t i = (int64_t)kr_block_x() * THREADS + kr_thread(), row = i / f.P, c = i - row * f.P, t = row / f.H,
                h = row - t * f.H, b = kr_block_z();
  if (t >= f.L) return;
  const int padding = f.seq_idx && f.seq_idx[b * f.seq_b + t * f.seq_t] < 0;
  const float dout = ((const float *)p.gated.data)[b * p.gated.b + t * p.gated.t + h * p.gated.h + c],
              z = ((const float *)f.z.data)[b * f.z.b + t * f.z.t + h * f.z.h + c];
  ((float *)f.out.data)[b * f.out.b + t * f.out.t + h * f.out.h + c] = padding ? 0.0f : dout * kr_silu(z);
}

KR_KERNEL void KR_BOUNDS(WALKERS, 4) kr_ssd_bwd_finish(const kr_ssd_bwd_params p) { finish<1>(p); }

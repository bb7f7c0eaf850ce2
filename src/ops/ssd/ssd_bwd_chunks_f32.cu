/* ssd_bwd_chunks_f32.cu: the SSD's gradient of float32 on tensor cores (equations in ssd_bwd_chunks.cu), Ampere and
 * later; factors as in ssd_chunks_f32.cu, whose kernels also prepare step sizes and C B^T.
 * kr_ssd_bwd_states       states S before, and their gradients M after each chunk: a block per 64 channels by 64 states
 * kr_ssd_bwd_inner_nN     given S and M, for a chunk and several heads of a group, in turn: one block for dx and dB,
 *                         one for dC and W = sum (dy x^T) o 2^(a_i - a_j) d_j, one for dz, if asked for: so two have
 *                         room on a multiprocessor, and one in 99 KB
 * kr_ssd_bwd_matrices_nN  dC += W B, dB += W^T C, and the sums over the blocks that shared a group's heads
 * kr_ssd_bwd_gate         dy, if there is a gate
 * kr_ssd_bwd_finish       step-size gradients from the per-token sums
 * the first three also as _tf32. */
#include "ssd_bwd_inner.cuh"
#include "ssd_f32.cuh"

enum { SLICE = 64 }; /* states per block that passes them on */

/* The P x N state tile of a chunk, N padded to whole slices. */
KR_DEV int padded(const kr_ssd_params &f) { return f.N <= SLICE ? SLICE : 2 * SLICE; }
KR_DEV float *tile_at(const kr_ssd_bwd_params &p, void *tiles, int b, int h, int block, int64_t chunk) {
  return (float *)tiles +
         ((((int64_t)b * p.f.H + h) * p.f.blocks_per_head + block) * p.n_chunks + chunk) * (PB * padded(p.f));
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

template <int PARTS, int BACK>
KR_DEV void walk_states(const kr_ssd_bwd_params &p) {
  KR_DYNAMIC_SHARED(shared);
  const kr_ssd_params &f = p.f;
  const int width = padded(f), slices = width / SLICE, unit = kr_block_x() / slices,
            n0 = (kr_block_x() - unit * slices) * SLICE, h = unit / f.blocks_per_head,
            block = unit - h * f.blocks_per_head, p0 = block * PB, b = kr_block_z(), STAGE = Q * (PB + SLICE);
  chunk_steps *const steps = (chunk_steps *)(shared + 2 * STAGE * sizeof(float));
  const kr_ssd_tensor &rows = BACK ? f.dout : f.x, &matrix = BACK ? f.Cmat : f.Bmat;
  const int64_t row_at = b * rows.b + h * rows.h + p0, matrix_at = b * matrix.b + h / f.heads * matrix.h + n0;
  float s[SLICE / 8][4];
  int spoilt = 0;
  load_state<SLICE>(f, BACK ? p.dfinal : f.initial, b, h, p0 + kr_thread() / 32 * 16, n0, s);
#pragma unroll 1
  for (int i = -1; i < p.n_chunks; i++) {
    float *const now = (float *)shared + (i & 1) * STAGE, *const next = (float *)shared + (~i & 1) * STAGE;
    const int c = BACK ? p.n_chunks - 1 - i : i, following = BACK ? c - 1 : c + 1;
    const int64_t t0 = (int64_t)following * Q;
    kr_copied<0>();
    if (i >= 0) kr_sync();
    if (i + 1 < p.n_chunks) {
      copy_floats<PB, WALKERS>(next, rows, row_at, t0, f.L, f.P - p0);
      copy_floats<SLICE, WALKERS>(next + Q * PB, matrix, matrix_at, t0, f.L, f.N - n0);
      copy_steps(steps + (~i & 1), steps_at(f, b, h, following));
      kr_commit_copies();
    }
    if (i < 0) continue;
    const lane_place me = lane();
    float *const to = tile_at(p, BACK ? p.M : p.S, b, h, block, c) + me.c * width + n0 + 2 * me.q;
#pragma unroll
    for (int n = 0; n < SLICE / 8; n++) {
      *(kr_float2 *)(to + 8 * n) = kr_float2{{s[n][0], s[n][1]}};
      *(kr_float2 *)(to + 8 * width + 8 * n) = kr_float2{{s[n][2], s[n][3]}};
    }
    spoilt |= take_floats<SLICE, PARTS, BACK>(s, me, now, now + Q * PB, steps[i & 1], f.seq_idx != 0);
  }
  if (spoilt || is_spoilt<SLICE / 8>(s)) report_nonfinite_group(f, b, h);
  if (BACK && p.dinitial.data) store_state<SLICE>(f, p.dinitial, b, h, p0 + kr_thread() / 32 * 16, n0, s);
}

template <int PARTS>
KR_DEV void walk_either(const kr_ssd_bwd_params &p) {
  if (kr_block_y()) walk_states<PARTS, 1>(p);
  else walk_states<PARTS, 0>(p);
}
KR_KERNEL void KR_BOUNDS(WALKERS, 3) kr_ssd_bwd_states(const kr_ssd_bwd_params p) { walk_either<1>(p); }
KR_KERNEL void KR_BOUNDS(WALKERS, 3) kr_ssd_bwd_states_tf32(const kr_ssd_bwd_params p) { walk_either<0>(p); }

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

/* The warps' partial sums for each token of a head: those of dC's blocks, and of dB's. */
typedef struct given_sums {
  float before[2][Q], far[Q], within[4][Q], through[THREADS / 32];
} given_sums;
typedef struct taken_sums {
  float inputs[2][Q], after[2][Q];
} taken_sums;

/* A block's shared memory: B or C, then a head's x, dy and S or M. */
typedef struct stage {
  float *matrix, *x, *dy, *state;
  chunk_steps *steps;
  void *sums;
} stage;

template <int N>
KR_DEV stage stage_in(unsigned char *shared) {
  float *const matrix = (float *)shared, *const x = matrix + Q * N, *const dy = x + Q * PB, *const state = dy + Q * PB;
  chunk_steps *const steps = (chunk_steps *)(state + PB * N);
  return stage{matrix, x, dy, state, steps, steps + 1};
}

template <int N>
KR_DEV void copy_matrix(const kr_ssd_params &f, const place &at, float *to, const kr_ssd_tensor &v) {
  copy_floats<N, THREADS>(to, v, at.b * v.b + at.g * v.h, at.t0, f.L, f.N);
}

template <int N>
KR_DEV void copy_tile(float *to, const float *from) {
  const int per_row = N / 4, rows = THREADS / per_row, row = kr_thread() / per_row, column = kr_thread() % per_row * 4;
  to += place_of<N>(row, column), from += row * N + column;
#pragma unroll 4
  for (int k = 0; k < PB / rows; k++) kr_copy_some(to + k * rows * N, from + k * rows * N, 16);
}

KR_DEV void copy_head(const kr_ssd_params &f, const place &at, const stage &to) {
  copy_floats<PB, THREADS>(to.x, f.x, at.b * f.x.b + at.h * f.x.h + at.p0, at.t0, f.L, f.P - at.p0);
  copy_floats<PB, THREADS>(to.dy, f.dout, at.b * f.dout.b + at.h * f.dout.h + at.p0, at.t0, f.L, f.P - at.p0);
  copy_steps(to.steps, steps_at(f, at.b, at.h, at.chunk));
}

/* A warp's 16 rows of W columns as an A operand: columns 8 k on; in pairs: 2 q and 2 q + 1 count as q and q + 4. */
template <int W>
KR_DEV void read_rows(float (&a)[4], const warp_place &me, const float *rows, int k) {
#pragma unroll
  for (int r = 0; r < 4; r++) a[r] = rows[place_of<W>(me.row + r % 2 * 8, 8 * k + me.q + r / 2 * 4)];
}
template <int W>
KR_DEV void read_pairs(float (&a)[4], const warp_place &me, const float *rows, int k) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const kr_float2 two = *(const kr_float2 *)(rows + place_of<W>(me.row + r * 8, 8 * k + 2 * me.q));
    a[r] = two.v[0], a[r + 2] = two.v[1];
  }
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

/* d += a by columns 8 k on, in pairs, of the rows from n on. */
template <int W, int BLOCKS, int PARTS>
KR_DEV void multiply_pairs(float (&d)[BLOCKS][4], const warp_place &me, const kr_factor<PARTS, 4> &a, const float *rows,
                           int k, int n) {
#pragma unroll
  for (int j = 0; j < BLOCKS; j++)
    kr_multiply<PARTS>(d[j], a, ((const kr_float2 *)(rows + place_of<W>(n + 8 * j + me.g, 8 * k + 2 * me.q)))->v);
}

/* dC += 2^a dy S, and its products with C. */
template <int N, int PARTS>
KR_DEV void give_before(const stage &head, const warp_place &me, given_sums &sums, float (&dC)[N / 16][4]) {
  const float out[2] = {state_reaches(*head.steps, me.row), state_reaches(*head.steps, me.row + 8)};
  float before[2] = {0, 0};
#pragma unroll
  for (int part = 0; part < N / 64; part++) {
    const int n = me.n * (N / 2) + 32 * part;
    float t[4][4];
#pragma unroll
    for (int j = 0; j < 4; j++) clear(t[j]);
#pragma unroll 2
    for (int k = 0; k < PB / 8; k++) {
      float a[4];
      read_rows<PB>(a, me, head.dy, k);
      multiply_rows<N>(t, me, kr_split<PARTS>(a), head.state, k, n);
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const kr_float2 c =
            *(const kr_float2 *)(head.matrix + place_of<N>(me.row + 8 * h, n + 8 * j + 2 * me.q));
        const float low = out[h] * t[j][2 * h], high = out[h] * t[j][2 * h + 1];
        dC[4 * part + j][2 * h] += low, dC[4 * part + j][2 * h + 1] += high;
        before[h] = kr_fma(c.v[0], low, kr_fma(c.v[1], high, before[h]));
      }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    before[h] = add_row(before[h]);
    if (me.q == 0) sums.before[me.n][me.row + 8 * h] = before[h];
  }
}

/* A thread's share of <S, M>. */
template <int N>
KR_DEV void pass_through(const float *S, const float *M, given_sums &sums) {
  const int per_row = N / 4, rows = THREADS / per_row, row = kr_thread() / per_row, column = kr_thread() % per_row * 4;
  float v = 0;
#pragma unroll 2
  for (int i = 0; i < PB / rows; i++) {
    const kr_float4 s = *(const kr_float4 *)(S + place_of<N>(row + i * rows, column)),
                    m = *(const kr_float4 *)(M + (row + i * rows) * N + column);
#pragma unroll
    for (int k = 0; k < 4; k++) v = kr_fma(s.v[k], m.v[k], v);
  }
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

/* W, and the sums over pairs of tokens. CB: C B^T, read when needed, which registers have no room for. */
template <int PARTS>
KR_DEV void give_pairs(const kr_ssd_params &f, const stage &head, const warp_place &me, const float *CB,
                       given_sums &sums, float (&W)[4][4]) {
  const chunk_steps &s = *head.steps;
  float xy[4][4], passed[8];
#pragma unroll
  for (int j = 0; j < 4; j++) clear(xy[j]);
#pragma unroll
  for (int i = 0; i < 8; i++) passed[i] = 0;
  if (me.m >= 2 * me.n) { /* else later than the rows */
#pragma unroll 2
    for (int k = 0; k < PB / 8; k++) {
      float a[4];
      read_pairs<PB>(a, me, head.dy, k);
      multiply_pairs<PB>(xy, me, kr_split<PARTS>(a), head.x, k, 32 * me.n);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = me.row + 8 * h;
    const float a = s.a[row], low = s.from[row], segment = s.segment[row];
    float pairs[8], before[8];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int column = 32 * me.n + 8 * j + 2 * me.q;
      const kr_float2 product = *(const kr_float2 *)(CB + row * Q + column);
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const int from = column + c,
                  reaches = from <= (row | f.last_rank) && (!f.seq_idx || s.segment[from] == segment);
        const float w = xy[j][2 * h + c] * (decay(s.a[from], s.from[from], a, low) * s.d[from]);
        W[j][2 * h + c] += reaches ? w : 0.0f;
        pairs[2 * j + c] = reaches && from < row ? w * product.v[c] : 0.0f;
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

/* Sums of dy x over the chunk: a warp takes eight channels, of which four lanes share one. */
KR_DEV void sum_dD(const kr_ssd_bwd_params &p, const place &at, const stage &head) {
  const int lane = kr_thread() & 31, c = (kr_thread() >> 5) * 8 + (lane & 7);
  float sum = 0;
#pragma unroll 2
  for (int i = 0; i < Q / 4; i++) {
    const int row = 4 * i + (lane >> 3), where = place_of<PB>(row, c);
    if (!p.f.seq_idx || head.steps->segment[row] >= 0) sum = kr_fma(head.x[where], head.dy[where], sum);
  }
  sum += kr_shuffle_xor(sum, 8);
  sum += kr_shuffle_xor(sum, 16);
  if (lane < 8 && at.p0 + c < p.f.P)
    p.parts[(((int64_t)at.b * p.n_chunks + at.chunk) * p.f.H + at.h) * (p.f.P + 2) + at.p0 + c] = sum;
}

/* dz of the head, from y before the gate: 2^a C S^T + P x + D x, P with step sizes. Returns whether y is not finite. */
template <int N, int PARTS>
KR_DEV int give_gate(const kr_ssd_bwd_params &p, const place &at, const stage &head, const warp_place &me,
                     const float *CB) {
  const kr_ssd_params &f = p.f;
  const chunk_steps &s = *head.steps;
  float y[4][4];
#pragma unroll
  for (int j = 0; j < 4; j++) clear(y[j]);
#pragma unroll 1
  for (int k = 0; k < N / 8; k++) {
    float a[4];
    read_pairs<N>(a, me, head.matrix, k);
    multiply_pairs<N>(y, me, kr_split<PARTS>(a), head.state, k, 32 * me.n);
  }
  const float low = state_reaches(s, me.row), high = state_reaches(s, me.row + 8);
#pragma unroll
  for (int j = 0; j < 4; j++) y[j][0] *= low, y[j][1] *= low, y[j][2] *= high, y[j][3] *= high;
#pragma unroll 1
  for (int k = 0; k < 2 * me.m + 2; k++) {
    float a[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const int i = me.row + r % 2 * 8, j = 8 * k + me.q + r / 2 * 4;
      const float passes = CB[i * Q + j] * (decay(s.a[j], s.from[j], s.a[i], s.from[i]) * s.d[j]);
      a[r] = j <= (i | f.last_rank) && (!f.seq_idx || s.segment[i] == s.segment[j]) ? passes : 0.0f;
    }
    multiply_rows<PB>(y, me, kr_split<PARTS>(a), head.x, k, 32 * me.n);
  }
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
                  all = kr_fma(D, head.x[place_of<PB>(row, c0 + c)], h ? y[j / 2][2 + j % 2] : y[j / 2][j % 2]);
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

/* B M^T for 32 channels, and dB += d 2^(a_end - a) x M. */
template <int N, int PARTS>
KR_DEV void take_after(const stage &head, const warp_place &me, int has_sequences, float (&after)[4][4],
                       float (&dB)[N / 16][4]) {
#pragma unroll
  for (int j = 0; j < 4; j++) clear(after[j]);
#pragma unroll 2
  for (int k = 0; k < N / 8; k++) {
    float a[4];
    read_pairs<N>(a, me, head.matrix, k);
    multiply_pairs<N>(after, me, kr_split<PARTS>(a), head.state, k, 32 * me.n);
  }
  const float low = input_left(*head.steps, has_sequences, me.row),
              high = input_left(*head.steps, has_sequences, me.row + 8);
#pragma unroll 1
  for (int k = 0; k < PB / 8; k++) {
    float a[4];
    read_rows<PB>(a, me, head.x, k);
    a[0] *= low, a[1] *= high, a[2] *= low, a[3] *= high;
    multiply_rows<N>(dB, me, kr_split<PARTS>(a), head.state, k, me.n * (N / 2));
  }
}

/* all += P^T dy; P = (C B^T) o 2^(a_i - a_j), an operand made where it is needed. */
template <int PARTS>
KR_DEV void take_within(const kr_ssd_params &f, const stage &head, const warp_place &me, const float *CB,
                        float (&all)[4][4]) {
  const chunk_steps &s = *head.steps;
#pragma unroll 1
  for (int k = 2 * me.m; k < Q / 8; k++) {
    float a[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const int i = 8 * k + me.q + r / 2 * 4, j = me.row + r % 2 * 8;
      const float passes = CB[i * Q + j] * decay(s.a[j], s.from[j], s.a[i], s.from[i]);
      a[r] = j <= (i | f.last_rank) && (!f.seq_idx || s.segment[i] == s.segment[j]) ? passes : 0.0f;
    }
    multiply_rows<PB>(all, me, kr_split<PARTS>(a), head.dy, k, 32 * me.n);
  }
}

/* dx of the head; returns whether it is not finite. */
template <int PARTS>
KR_DEV int take_inputs(const kr_ssd_bwd_params &p, const place &at, const stage &head, const warp_place &me,
                       const float *CB, taken_sums &sums, float (&all)[4][4]) {
  const kr_ssd_params &f = p.f;
  const chunk_steps &s = *head.steps;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = me.row + 8 * h;
    const float into = s.segment[row] == s.last ? decay(s.a[row], s.from[row], s.total, s.pad[0]) : 0.0f;
    float after = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const kr_float2 x = *(const kr_float2 *)(head.x + place_of<PB>(row, 32 * me.n + 8 * j + 2 * me.q));
      all[j][2 * h] *= into, all[j][2 * h + 1] *= into;
      after = kr_fma(x.v[0], all[j][2 * h], kr_fma(x.v[1], all[j][2 * h + 1], after));
    }
    after = add_row(after);
    if (me.q == 0) sums.after[me.n][row] = s.d[row] * after;
  }
  take_within<PARTS>(f, head, me, CB, all);
  const int c0 = at.p0 + 32 * me.n + 2 * me.q;
  float D[8];
#pragma unroll
  for (int j = 0; j < 8; j++) {
    const int c = c0 + j / 2 * 8 + j % 2;
    D[j] = f.D.data && c < f.P ? kr_load(f.D.data, at.h * f.D.h + c * f.D.n, f.D.dtype) : 0.0f;
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = me.row + 8 * h, padding = s.segment[row] < 0, writes = p.dx.data && row < at.n;
    float *const to = (float *)p.dx.data + at.b * p.dx.b + (at.t0 + row) * p.dx.t + at.h * p.dx.h + c0;
    const float d = s.d[row];
    float inputs = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int where = place_of<PB>(row, 32 * me.n + 8 * j + 2 * me.q), left = f.P - c0 - 8 * j;
      const kr_float2 x = *(const kr_float2 *)(head.x + where), dy = *(const kr_float2 *)(head.dy + where);
      inputs = kr_fma(x.v[0], all[j][2 * h], kr_fma(x.v[1], all[j][2 * h + 1], inputs));
      kr_float2 dx = {{d * all[j][2 * h], d * all[j][2 * h + 1]}};
      if (f.D.data) dx = kr_float2{{kr_fma(D[2 * j], dy.v[0], dx.v[0]), kr_fma(D[2 * j + 1], dy.v[1], dx.v[1])}};
      if (!writes || left <= 0) continue;
      if (p.part) dx.v[0] += to[8 * j], dx.v[1] += left > 1 ? to[8 * j + 1] : 0.0f;
      if (padding) dx = kr_float2{{0, 0}};
      if (left > 1) *(kr_float2 *)(to + 8 * j) = dx;
      else to[8 * j] = dx.v[0];
    }
    inputs = add_row(inputs);
    if (me.q == 0) sums.inputs[me.n][row] = inputs;
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

/* Anew for every head: see lane(). */
KR_DEV warp_place warp(void) { return place_of_thread(anew(kr_thread())); }

/* dC and W. */
template <int N, int PARTS>
KR_DEV void give(const kr_ssd_bwd_params &p, place at, const share &mine, const stage &head) {
  const kr_ssd_params &f = p.f;
  const float *const products = products_of(f, at.b, at.g, at.chunk);
  given_sums &sums = *(given_sums *)head.sums;
  float W[4][4], dC[N / 16][4];
  copy_matrix<N>(f, at, head.matrix, f.Cmat);
#pragma unroll
  for (int j = 0; j < N / 16; j++) clear(dC[j]);
#pragma unroll
  for (int j = 0; j < 4; j++) clear(W[j]);
#pragma unroll 1
  for (int i = 0; i < mine.n; i++) {
    const warp_place me = warp();
    const place last = at;
    go_to(at, f, mine.first, i);
    if (!i) copy_tile<N>(head.state, tile_at(p, p.S, at.b, at.h, at.block, at.chunk));
    else kr_sync(), leave_given(p, last, sums);
    copy_head(f, at, head);
    kr_commit_copies();
    kr_copied<0>();
    kr_sync();
    give_before<N, PARTS>(head, me, sums, dC);
    pass_through<N>(head.state, tile_at(p, p.M, at.b, at.h, at.block, at.chunk), sums);
    kr_sync();
    if (i + 1 < mine.n) {
      place next = at;
      go_to(next, f, mine.first, i + 1);
      copy_tile<N>(head.state, tile_at(p, p.S, next.b, next.h, next.block, next.chunk));
      kr_commit_copies();
    }
    give_pairs<PARTS>(f, head, me, products, sums, W);
    if (p.dD.data && !p.part) sum_dD(p, at, head);
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
KR_DEV void take(const kr_ssd_bwd_params &p, place at, const share &mine, const stage &head) {
  const kr_ssd_params &f = p.f;
  const float *const products = products_of(f, at.b, at.g, at.chunk);
  taken_sums &sums = *(taken_sums *)head.sums;
  float dB[N / 16][4];
  int spoilt = 0;
  copy_matrix<N>(f, at, head.matrix, f.Bmat);
#pragma unroll
  for (int j = 0; j < N / 16; j++) clear(dB[j]);
#pragma unroll 1
  for (int i = 0; i < mine.n; i++) {
    const warp_place me = warp();
    const place last = at;
    float all[4][4];
    go_to(at, f, mine.first, i);
    if (!i) copy_tile<N>(head.state, tile_at(p, p.M, at.b, at.h, at.block, at.chunk));
    else kr_sync(), leave_taken(p, last, sums);
    copy_head(f, at, head);
    kr_commit_copies();
    kr_copied<0>();
    kr_sync();
    take_after<N, PARTS>(head, me, f.seq_idx != 0, all, dB);
    kr_sync();
    if (i + 1 < mine.n) {
      place next = at;
      go_to(next, f, mine.first, i + 1);
      copy_tile<N>(head.state, tile_at(p, p.M, next.b, next.h, next.block, next.chunk));
      kr_commit_copies();
    }
    spoilt |= take_inputs<PARTS>(p, at, head, me, products, sums, all);
  }
  kr_sync();
  if (mine.n) leave_taken(p, at, sums);
  if (spoilt) report_nonfinite_group(f, at.b, mine.first);
  leave_matrix<N>(p, at, warp(), p.sum_B, mine.split, dB);
}

/* dz. */
template <int N, int PARTS>
KR_DEV void pass_gate(const kr_ssd_bwd_params &p, place at, const share &mine, const stage &head) {
  const kr_ssd_params &f = p.f;
  int spoilt = 0;
  copy_matrix<N>(f, at, head.matrix, f.Cmat);
#pragma unroll 1
  for (int i = 0; i < mine.n; i++) {
    go_to(at, f, mine.first, i);
    if (i) kr_sync();
    copy_tile<N>(head.state, tile_at(p, p.S, at.b, at.h, at.block, at.chunk));
    copy_head(f, at, head);
    kr_commit_copies();
    kr_copied<0>();
    kr_sync();
    spoilt |= give_gate<N, PARTS>(p, at, head, warp(), products_of(f, at.b, at.g, at.chunk));
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
  if (role == 0) take<N, PARTS>(p, at, mine, stage_in<N>(shared));
  else if (role == 1) give<N, PARTS>(p, at, mine, stage_in<N>(shared));
  else pass_gate<N, PARTS>(p, at, mine, stage_in<N>(shared));
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_bwd_inner_n64(const kr_ssd_bwd_params p) { inner<64, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_bwd_inner_n64_tf32(const kr_ssd_bwd_params p) { inner<64, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_bwd_inner_n128(const kr_ssd_bwd_params p) { inner<128, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_bwd_inner_n128_tf32(const kr_ssd_bwd_params p) { inner<128, 0>(p); }

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

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
template <int N, int PARTS, int TURNED>
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
    else read_rows<Q>(a, me, W, k);
    multiply_rows<N>(d, me, kr_split<PARTS>(a), matrix, k, me.n * (N / 2));
  }
  if (is_spoilt<N / 16>(d)) report_nonfinite_group(p.f, at.b, at.g * p.f.heads);
  if (to.data) leave_matrix<N>(p, at, me, to, 0, d);
}

template <int N, int PARTS>
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
  finish_matrix<N, PARTS, 0>(p, at, W, B);
  finish_matrix<N, PARTS, 1>(p, at, W, C);
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_bwd_matrices_n64(const kr_ssd_bwd_params p) { finish_matrices<64, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_bwd_matrices_n64_tf32(const kr_ssd_bwd_params p) {
  finish_matrices<64, 0>(p);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_bwd_matrices_n128(const kr_ssd_bwd_params p) { finish_matrices<128, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_bwd_matrices_n128_tf32(const kr_ssd_bwd_params p) {
  finish_matrices<128, 0>(p);
}

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

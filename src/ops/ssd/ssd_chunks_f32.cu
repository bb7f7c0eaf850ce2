/* ssd_chunks_f32.cu: the SSD of float32 on tensor cores (equations in ssd_chunks.cu), Ampere and later: factors are
 * sums of two float16 parts of rows scaled by powers of two, as accurate as float32 multiply-adds, or (KRAIT_SSD_TF32)
 * the first of these alone, of as many bits as tf32. A block of eight warps passes one head's state through time; a
 * warp has 16 channels of it with half of their states, in the accumulators' layout, which is also an A operand's: so
 * Y^T = S C^T, a warp needs no other warp's state, and the state is never stored. Two warps with the same channels add
 * what their states give, each for half of the tokens.
 * kr_ssd_steps        cumulative log-decays of every chunk
 * kr_ssd_products_nN  C B^T of every chunk and group, by bfloat16 parts (bf16_parts.cuh), which are not scaled
 * kr_ssd_halves_nN    the same, its rows scaled, and parts of B and C, which all heads of the group read
 * kr_ssd_chunks_nN    output; from initial states, or from a segment's start state
 * kr_ssd_ends_nN      only the state at the end of each segment, from zero
 * each but the first also as _tf32. One stage of a chunk's rows is in shared memory: C arrives while the warps use x
 * and B, and the other way round. */
#include "bf16_parts.cuh"
#include "ssd_f32.cuh"
#include "ssd_halves.h"
#include "ssd_place.cuh"

enum { THREADS = KR_SSD_THREADS, WALKERS = KR_SSD_FLOAT_WALKERS };

/* ---- parts of B and C -------------------------------------------------------------------------------------------- */

/* A warp's lane. */
typedef struct lane_place {
  int g, q, c; /* c: first of its two channels of the block's, eight apart */
} lane_place;

/* Anew in every phase: addresses made of it would otherwise stay in registers from chunk to chunk. */
KR_DEV lane_place lane(void) {
  const int thread = anew(kr_thread());
  return lane_place{thread >> 2 & 7, thread & 3, (thread >> 5) * 16 + (thread >> 2 & 7)};
}

template <int N>
KR_DEV void copy_states(const kr_ssd_params &p, const place &at, float *to, const kr_ssd_tensor &v, int64_t t0) {
  copy_floats<N, THREADS, FOR_FLOATS>(to, v, at.b * v.b + at.g * v.h, t0, at.end, p.N);
}

/* One over the scales of a chunk's rows of C, of B and of C B^T. */
typedef struct chunk_scales {
  float C[Q], B[Q], products[Q];
} chunk_scales;

/* What the group's heads read of a chunk, behind all C B^T: rows of C, then of B, high parts before low ones; scales.
 */
template <int N, int PARTS>
struct halved {
  enum { ROWS_BYTES = (1 + PARTS) * Q * N * 2, BYTES = 2 * ROWS_BYTES + sizeof(chunk_scales) };
};

template <int N, int PARTS>
KR_DEV unsigned char *halves_of(const kr_ssd_params &p, int b, int g, int64_t chunk) {
  const int64_t n_chunks = (p.L + Q - 1) / Q, groups = p.H / p.heads;
  return (unsigned char *)(p.products + p.B * n_chunks * groups * (Q * Q)) +
         ((b * n_chunks + chunk) * groups + g) * halved<N, PARTS>::BYTES;
}

/* A chunk's rows in shared memory, to memory in parts; a lane takes eight numbers. */
template <int N, int PARTS>
KR_DEV void leave_halves(unsigned char *to, float *scales, const float *rows) {
  const int lanes = N / 8, column = kr_thread() % lanes * 8;
#pragma unroll 1
  for (int row = kr_thread() / lanes; row < Q; row += THREADS / lanes) {
    const float *const x = rows + place_of<N>(row, column);
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) largest = kr_larger(largest, kr_magnitude(x[i]));
    const int up = kr_halves_scale(largest_of_lanes<N / 8>(largest));
    const float scale = kr_power_of_two(up);
    kr_raw16 high, low;
#pragma unroll
    for (int i = 0; i < 4; i++) kr_halve(x[2 * i] * scale, x[2 * i + 1] * scale, 1.0f, high.w[i], low.w[i]);
    *(kr_raw16 *)(to + (row * N + column) * 2) = high;
    if (PARTS) *(kr_raw16 *)(to + ((Q + row) * N + column) * 2) = low;
    if (column == 0) scales[row] = kr_power_of_two(-up);
  }
}

/* Whether a chunk's token takes the product with another one; those that all heads mask must not scale the others. */
KR_DEV int is_taken(const kr_ssd_params &p, const chunk_steps &steps, int by, int token) {
  return token <= (by | p.last_rank) && (!p.seq_idx || steps.segment[token] == steps.segment[by]);
}

/* A block per chunk, group and sequence; a warp per 16 tokens, which are its rows. HALVES: for the walk below. */
template <int N, int PARTS, int HALVES>
KR_DEV void multiply_states(const kr_ssd_params &p) {
  KR_DYNAMIC_SHARED(shared);
  const lane_place me = lane();
  const int64_t chunk = kr_block_x();
  place at = {};
  at.g = kr_block_y(), at.b = kr_block_z(), at.end = p.L;
  float *const B = (float *)shared, *const C = B + Q * N, *const to = products_of(p, at.b, at.g, chunk);
  float d[Q / 8][4];
  copy_states<N>(p, at, B, p.Bmat, chunk * Q);
  copy_states<N>(p, at, C, p.Cmat, chunk * Q);
  kr_commit_copies();
#pragma unroll
  for (int j = 0; j < Q / 8; j++) clear(d[j]);
  kr_copied<0>();
  kr_sync();
#pragma unroll 1
  for (int k = 0; k < N / 16; k++) {
    float c[8];
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const kr_float2 two = *(const kr_float2 *)(C + place_of<N>(me.c + r % 2 * 8, 16 * k + r / 2 * 8 + 2 * me.q));
      c[r / 2 * 4 + r % 2] = two.v[0], c[r / 2 * 4 + r % 2 + 2] = two.v[1];
    }
    const kr_terms<PARTS, 4> a = kr_split_terms<PARTS>(c);
#pragma unroll
    for (int j = 0; j < Q / 8; j++) {
      const kr_float2 first = *(const kr_float2 *)(B + place_of<N>(8 * j + me.g, 16 * k + 2 * me.q)),
                      second = *(const kr_float2 *)(B + place_of<N>(8 * j + me.g, 16 * k + 8 + 2 * me.q));
      kr_multiply_terms<PARTS>(d[j], a, {first.v[0], first.v[1], second.v[0], second.v[1]});
    }
  }
  if (HALVES) {
    unsigned char *const halves = halves_of<N, PARTS>(p, at.b, at.g, chunk);
    chunk_scales &scales = *(chunk_scales *)(halves + 2 * halved<N, PARTS>::ROWS_BYTES);
    leave_halves<N, PARTS>(halves, scales.C, C);
    leave_halves<N, PARTS>(halves + halved<N, PARTS>::ROWS_BYTES, scales.B, B);
    const chunk_steps &steps = *steps_at(p, at.b, at.g * p.heads, chunk);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint32_t largest = 0;
#pragma unroll
      for (int j = 0; j < Q / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++)
          if (is_taken(p, steps, me.c + 8 * h, 8 * j + 2 * me.q + e))
            largest = kr_larger(largest, kr_magnitude(d[j][2 * h + e]));
      const int up = kr_halves_scale(largest_of_lanes<4>(largest));
#pragma unroll
      for (int j = 0; j < Q / 8; j++) d[j][2 * h] *= kr_power_of_two(up), d[j][2 * h + 1] *= kr_power_of_two(up);
      if (me.q == 0) scales.products[me.c + 8 * h] = kr_power_of_two(-up);
    }
  }
#pragma unroll
  for (int j = 0; j < Q / 8; j++) {
    *(kr_float2 *)(to + me.c * Q + 8 * j + 2 * me.q) = kr_float2{{d[j][0], d[j][1]}};
    *(kr_float2 *)(to + (me.c + 8) * Q + 8 * j + 2 * me.q) = kr_float2{{d[j][2], d[j][3]}};
  }
}

/* ---- products in parts ------------------------------------------------------------------------------------------- */

/* B operands of 16 columns by 16 k from rows of k (turned: of columns); low parts are Q rows behind. */
template <int ROW_BYTES, int PARTS>
KR_DEV void read_operand(operand<PARTS> &b, const unsigned char *rows, const warp_place &me, int first, int k) {
  load_b<ROW_BYTES>(b.high, rows, me, first, k);
  if (PARTS) load_b<ROW_BYTES>(b.low, rows + Q * ROW_BYTES, me, first, k);
}
template <int ROW_BYTES, int PARTS>
KR_DEV void read_operand_turned(operand<PARTS> &b, const unsigned char *rows, const warp_place &me, int k, int chunk) {
  load_b_turned<ROW_BYTES>(b.high, rows, me, k, chunk);
  if (PARTS) load_b_turned<ROW_BYTES>(b.low, rows + Q * ROW_BYTES, me, k, chunk);
}

/* ---- rows in shared memory --------------------------------------------------------------------------------------- */

/* Of a chunk's tokens: what the incoming state gives is divided by the scales of C, what other tokens give by those of
 * C B^T, what a token leaves to the chunk's end is divided by the scales of B. before: negative at padding. */
typedef struct chunk_factors {
  float before[Q], within[Q], left[Q], d[Q];
} chunk_factors;

/* A block's shared memory. P: also what two warps of the same channels give each other. */
typedef struct rooms {
  float *x;
  unsigned char *B, *C, *P;
  chunk_steps *steps;
  chunk_scales *scales;
  chunk_factors *factors;
} rooms;

template <int N, int PARTS>
KR_DEV rooms rooms_in(unsigned char *shared) {
  rooms to;
  to.x = (float *)shared, to.B = shared + Q * PB * 4;
  to.C = to.B + halved<N, PARTS>::ROWS_BYTES, to.P = to.C + halved<N, PARTS>::ROWS_BYTES;
  to.steps = (chunk_steps *)(to.P + KR_SSD_FLOAT_P_BYTES);
  to.scales = (chunk_scales *)(to.steps + 1), to.factors = (chunk_factors *)(to.scales + 1);
  return to;
}

KR_DEV void copy_channels(const kr_ssd_params &p, const place &at, float *to, int64_t t0) {
  const int thread = anew(kr_thread()), row = thread / (PB / 4), column = thread % (PB / 4) * 4,
            left = (p.P - at.p0 - column) * 4, n = at.end - t0 < (int64_t)Q ? (int)(at.end - t0) : (int)Q,
            bytes = left < 0    ? 0
                    : left < 16 ? left
                                : 16;
  const float *from = (const float *)p.x.data + at.b * p.x.b + at.h * p.x.h + at.p0 + (t0 + row) * p.x.t + column;
  to += place_of_x(row, column); /* rows a multiple of eight apart share one swizzle */
#pragma unroll
  for (int k = 0; k < Q * PB / 4 / WALKERS; k++) {
    const int step = k * (WALKERS / (PB / 4)), there = row + step < n ? bytes : 0;
    kr_copy_some(to + step * PB, there ? from + step * p.x.t : (const float *)p.x.data, there);
  }
}

template <int N, int PARTS>
KR_DEV void copy_rows(unsigned char *to, const unsigned char *from) {
  const int thread = anew(kr_thread()), per_row = N / 8;
  to += kr_swizzle<N * 2>(thread / per_row, thread % per_row), from += thread * 16;
#pragma unroll
  for (int k = 0; k < halved<N, PARTS>::ROWS_BYTES / 16 / WALKERS; k++)
    kr_copy_some(to + k * WALKERS * 16, from + k * WALKERS * 16, 16);
}

/* A chunk's step sizes and scales; and its C. */
template <int N, int PARTS>
KR_DEV void copy_tokens(const kr_ssd_params &p, const place &at, const rooms &to, int64_t chunk) {
  const unsigned char *const halves = halves_of<N, PARTS>(p, at.b, at.g, chunk);
  copy_steps(to.steps, steps_at(p, at.b, at.h, chunk));
  if (kr_thread() < (int)sizeof(chunk_scales) / 16)
    kr_copy_some((char *)to.scales + 16 * kr_thread(), halves + 2 * halved<N, PARTS>::ROWS_BYTES + 16 * kr_thread(),
                 16);
}
template <int N, int PARTS>
KR_DEV void copy_inputs(const kr_ssd_params &p, const place &at, const rooms &to, int64_t t0) {
  copy_channels(p, at, to.x, t0);
  copy_rows<N, PARTS>(to.B, halves_of<N, PARTS>(p, at.b, at.g, t0 / Q) + halved<N, PARTS>::ROWS_BYTES);
  kr_commit_copies();
}

/* ---- P ----------------------------------------------------------------------------------------------------------- */

/* A thread's share of the 16 x 16 blocks of C B^T on and below the diagonal: four neighbours each. */
enum { BLOCKS_OF_P = 10, SHARE = (BLOCKS_OF_P * 64 + WALKERS - 1) / WALKERS };
typedef struct share_of_P {
  kr_float4 of[SHARE];
} share_of_P;
KR_DEV int row_of_share(int item) {
  const int block = item >> 6, m = (block >= 1) + (block >= 3) + (block >= 6);
  return 16 * m + (item & 15);
}
KR_DEV int column_of_share(int item) {
  const int block = item >> 6, m = (block >= 1) + (block >= 3) + (block >= 6);
  return 16 * (block - m * (m + 1) / 2) + (item >> 4 & 3) * 4;
}
KR_DEV void load_share(share_of_P &mine, const float *products) {
#pragma unroll
  for (int k = 0; k < SHARE; k++) {
    const int item = k * WALKERS + anew(kr_thread());
    mine.of[k] = kr_float4{{0, 0, 0, 0}};
    if (item < BLOCKS_OF_P * 64)
      mine.of[k] = *(const kr_float4 *)(products + row_of_share(item) * Q + column_of_share(item));
  }
}

/* Decayed, in parts. */
template <int PARTS>
KR_DEV void leave_share(unsigned char *P, const share_of_P &mine, const chunk_steps &steps, int has_sequences,
                        int last_rank) {
#pragma unroll
  for (int k = 0; k < SHARE; k++) {
    const int item = k * WALKERS + anew(kr_thread());
    kr_sync_warp(); /* or all reads would be moved here */
    if (item >= BLOCKS_OF_P * 64) break;
    const int i = row_of_share(item), j = column_of_share(item);
    const float a = steps.a[i], low_of_a = steps.from[i], segment = steps.segment[i];
    float v[4];
    uint32_t high[2], low[2];
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const float passes = mine.of[k].v[r] * decay(steps.a[j + r], steps.from[j + r], a, low_of_a);
      v[r] = j + r <= (i | last_rank) && (!has_sequences || steps.segment[j + r] == segment) ? passes : 0.0f;
    }
    kr_halve(v[0], v[1], 1.0f, high[0], low[0]), kr_halve(v[2], v[3], 1.0f, high[1], low[1]);
    unsigned char *const to = P + kr_swizzle<Q * 2>(i, j / 8) + (j & 4) * 2;
    *(uint64_t *)to = (uint64_t)high[1] << 32 | high[0];
    if (PARTS) *(uint64_t *)(to + Q * Q * 2) = (uint64_t)low[1] << 32 | low[0];
  }
}

/* By the block's first threads, from the chunk's scales, which end here. */
KR_DEV void leave_factors(const rooms &at, int has_sequences) {
  const int i = anew(kr_thread());
  const chunk_steps &s = *at.steps;
  if (i >= Q) return;
  at.factors->before[i] = s.segment[i] < 0 ? -1.0f : state_reaches(s, i) * at.scales->C[i];
  at.factors->within[i] = at.scales->products[i];
  at.factors->left[i] = input_left(s, has_sequences, i) * at.scales->B[i];
  at.factors->d[i] = s.d[i];
}

/* ---- a warp's products ------------------------------------------------------------------------------------------- */

/* Y^T = S C^T of the warp's states, for all tokens, still scaled as C is. */
template <int N, int PARTS>
KR_DEV void output_before(float (&y)[Q / 8][4], const float (&s)[N / 16][4], const unsigned char *C) {
  const warp_place me = warp();
  const int STEPS = N / 32; /* of 16 states, at most two of them in registers as operands */
  uint32_t largest[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < N / 16; j++) find_larger(largest, s[j]);
  const row_scales scales = scales_of_rows(largest);
#pragma unroll
  for (int j = 0; j < Q / 8; j++) clear(y[j]);
#pragma unroll
  for (int first = 0; first < STEPS; first += 2) {
    operand<PARTS> a[2];
#pragma unroll
    for (int k = 0; k < 2; k++) scale_operand(a[k], s[2 * (first + k)], s[2 * (first + k) + 1], scales.up);
#pragma unroll
    for (int m = 0; m < Q / 16; m++) {
      kr_sync_warp(); /* or all reads would be moved here, and their registers to local memory */
#pragma unroll
      for (int k = 0; k < 2; k++) {
        operand<PARTS> b;
        read_operand<N * 2>(b, C, me, 16 * m, me.n * STEPS + first + k);
        multiply_pair<PARTS>(y[2 * m], y[2 * m + 1], a[k], b);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < Q / 8; j++)
#pragma unroll
    for (int r = 0; r < 4; r++) y[j][r] *= scales.down[r / 2];
#pragma unroll
  for (int j = 0; j < Q / 8; j++) kr_hold(y[j]);
}

/* Y^T += X^T P^T of half of the earlier tokens: the first and last 16, or those between. */
template <int PARTS>
KR_DEV void output_within(float (&y)[Q / 8][4], const rooms &at) {
  const warp_place me = warp();
  const chunk_factors &factors = *at.factors;
  float x[2][2][4];
  operand<PARTS> a[2];
  uint32_t largest[2] = {0, 0};
  const int of[2] = {me.n, 3 - me.n};
#pragma unroll
  for (int k = 0; k < 2; k++) {
    read_tokens(x[k][0], x[k][1], me, at.x, factors.d, of[k]);
    find_larger(largest, x[k][0]), find_larger(largest, x[k][1]);
  }
  const row_scales scales = scales_of_rows(largest);
#pragma unroll
  for (int k = 0; k < 2; k++) scale_operand(a[k], x[k][0], x[k][1], scales.up);
#pragma unroll
  for (int m = 0; m < Q / 16; m++) {
    float d[2][4];
    clear(d[0]), clear(d[1]);
    kr_sync_warp();
#pragma unroll
    for (int k = 0; k < 2; k++) {
      operand<PARTS> b;
      if (of[k] > m) continue;
      read_operand<Q * 2>(b, at.P, me, 16 * m, of[k]);
      multiply_pair(d[0], d[1], a[k], b);
    }
#pragma unroll
    for (int t = 0; t < 2; t++) {
      const int j = 2 * m + t;
      const kr_float2 before = *(const kr_float2 *)(factors.before + 8 * j + 2 * me.q),
                      within = *(const kr_float2 *)(factors.within + 8 * j + 2 * me.q);
#pragma unroll
      for (int r = 0; r < 4; r++)
        y[j][r] = kr_fma(d[t][r] * scales.down[r / 2], within.v[r % 2], y[j][r] * before.v[r % 2]);
      kr_hold(y[j]);
    }
  }
}

/* S = keeps S + (weights X)^T B for the warp's states. Returns whether a dropped state was not finite. */
template <int N, int PARTS>
KR_DEV int take_tokens(float (&s)[N / 16][4], const rooms &at, float keeps) {
  const warp_place me = warp();
  const int spoilt = keep_of_state<N / 16>(s, keeps);
  operand<PARTS> a[Q / 16];
  row_scales scales;
  {
    float x[Q / 16][2][4];
    uint32_t largest[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < Q / 16; k++) {
      read_tokens(x[k][0], x[k][1], me, at.x, at.factors->left, k);
      find_larger(largest, x[k][0]), find_larger(largest, x[k][1]);
    }
    scales = scales_of_rows(largest);
#pragma unroll
    for (int k = 0; k < Q / 16; k++) scale_operand(a[k], x[k][0], x[k][1], scales.up);
  }
#pragma unroll
  for (int n = 0; n < N / 32; n++) {
    float d[2][4];
    clear(d[0]), clear(d[1]);
    kr_sync_warp();
#pragma unroll
    for (int k = 0; k < Q / 16; k++) {
      operand<PARTS> b;
      read_operand_turned<N * 2>(b, at.B, me, k, me.n * (N / 16) + 2 * n);
      multiply_pair(d[0], d[1], a[k], b);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
      s[2 * n + i / 4][i % 4] = kr_fma(d[i / 4][i % 4], scales.down[i % 4 / 2], s[2 * n + i / 4][i % 4]);
    kr_hold(s[2 * n]), kr_hold(s[2 * n + 1]);
  }
  return spoilt;
}

/* ---- output ------------------------------------------------------------------------------------------------------ */

/* Half of the tokens' sums to the warp with the same channels, and the others from there. */
KR_DEV void exchange_output(float (&y)[Q / 16][4], const float (&given)[Q / 16][4], unsigned char *room) {
  const int thread = anew(kr_thread()), half = thread >> 7;
  float *const to = (float *)room + (thread & 127), *const mine = to + half * (Q * Q / 2),
               *const others = to + (half ^ 1) * (Q * Q / 2);
#pragma unroll
  for (int i = 0; i < Q / 4; i++) mine[i * 128] = given[i / 4][i % 4];
  kr_sync_at<64>(1 + (thread >> 5 & 3));
#pragma unroll
  for (int i = 0; i < Q / 4; i++) y[i / 4][i % 4] += others[i * 128];
}

/* (Y + D x) silu(z) to out, plus out's value from other states (p.adds), of the warp's half of the tokens. WHOLE: all
 * tokens and channels of the chunk exist, no padding, no accumulation. A lane's 16 z are read before its first store,
 * which no load may be moved across. */
template <int WHOLE>
KR_DEV void write_floats(const kr_ssd_params &p, const place &at, const float (&y)[Q / 16][4], const rooms &room,
                         const float (&D)[2], int64_t t0) {
  const warp_place me = warp();
  float *const out = (float *)p.out.data + at.b * p.out.b + at.h * p.out.h + at.p0 + me.row;
  const float *const z = (const float *)p.z.data + at.b * p.z.b + at.h * p.z.h + at.p0 + me.row;
  const int n = at.end - t0 < (int64_t)Q ? (int)(at.end - t0) : (int)Q, n_channels = p.P - at.p0;
  float gate[Q / 16][4];
#pragma unroll
  for (int j = 0; j < Q / 16; j++)
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const int i = me.n * (Q / 2) + 8 * j + 2 * me.q + r % 2, c = r / 2 * 8,
                exists = p.z.data && (WHOLE || (i < n && me.row + c < n_channels));
      gate[j][r] = exists ? z[(t0 + i) * p.z.t + c] : 0.0f;
    }
#pragma unroll
  for (int j = 0; j < Q / 16; j++)
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const int i = me.n * (Q / 2) + 8 * j + 2 * me.q + r % 2, c = r / 2 * 8;
      const int64_t t = t0 + i;
      float v = kr_fma(D[r / 2], room.x[place_of_x(i, me.row + c)], y[j][r]);
      if (!WHOLE && (i >= n || me.row + c >= n_channels)) continue;
      if (!WHOLE && p.adds) v += out[t * p.out.t + c];
      if (p.z.data) v *= kr_silu(gate[j][r]);
      if (!WHOLE && p.seq_idx && room.factors->before[i] < 0) v = 0.0f;
      out[t * p.out.t + c] = v;
    }
}

template <int N, int ONLY_ENDS, int PARTS>
KR_DEV void walk(const kr_ssd_params &p) {
  KR_DYNAMIC_SHARED(shared);
  place at = here(p);
  const rooms room = rooms_in<N, PARTS>(shared);
  const int half = kr_thread() >> 7, c = at.p0 + 16 * (kr_thread() >> 5 & 3), n0 = half * (N / 2),
            has_sequences = p.seq_idx != 0, whole = p.P - at.p0 >= PB && !has_sequences && !p.adds;
  float s[N / 16][4], D[2] = {0, 0}, total = 0;
  share_of_P mine;
  int spoilt = 0;
  if (at.begin >= at.end && p.n_segments > 1) return;
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int channel = c + (kr_thread() >> 2 & 7) + 8 * k;
    if (!ONLY_ENDS && p.D.data && channel < p.P) D[k] = kr_load(p.D.data, at.h * p.D.h + channel * p.D.n, p.D.dtype);
  }
  copy_tokens<N, PARTS>(p, at, room, at.begin / Q);
  if (!ONLY_ENDS) copy_rows<N, PARTS>(room.C, halves_of<N, PARTS>(p, at.b, at.g, at.begin / Q));
  kr_commit_copies();
  copy_inputs<N, PARTS>(p, at, room, at.begin);
  if (ONLY_ENDS) {
#pragma unroll
    for (int j = 0; j < N / 16; j++) clear(s[j]);
  } else {
    load_share(mine, products_of(p, at.b, at.g, at.begin / Q));
    load_state<N / 2>(p, p.n_segments > 1 ? segment_states(p, at) : p.initial, at.b, at.h, c, n0, s);
  }
#pragma unroll 1
  for (int64_t t0 = at.begin; t0 < at.end; t0 += Q) {
    const int64_t next = t0 + Q;
    float y[Q / 8][4];
    at.b = anew(at.b), at.h = anew(at.h), at.g = anew(at.g); /* or every address made of them would stay in registers */
    kr_copied<1>();
    kr_sync();
    const float keeps = state_left(*room.steps), last = room.steps->last, upto = room.steps->total;
    leave_factors(room, has_sequences);
    if (!ONLY_ENDS) {
      leave_share<PARTS>(room.P, mine, *room.steps, has_sequences, p.last_rank);
      output_before<N, PARTS>(y, s, room.C);
    }
    kr_copied<0>();
    kr_sync();
    if (next < at.end) {
      copy_tokens<N, PARTS>(p, at, room, next / Q);
      if (!ONLY_ENDS) copy_rows<N, PARTS>(room.C, halves_of<N, PARTS>(p, at.b, at.g, next / Q));
    }
    kr_commit_copies();
    if (!ONLY_ENDS) {
      output_within<PARTS>(y, room);
      spoilt |= is_spoilt<Q / 8>(y);
      kr_sync();
      float sum[Q / 16][4], given[Q / 16][4];
#pragma unroll
      for (int j = 0; j < Q / 16; j++)
#pragma unroll
        for (int r = 0; r < 4; r++)
          sum[j][r] = half ? y[j + Q / 16][r] : y[j][r], given[j][r] = half ? y[j][r] : y[j + Q / 16][r];
      exchange_output(sum, given, room.P);
      if (whole && next <= at.end)
        write_floats<1>(p, at, sum, room, D, t0);
      else
        write_floats<0>(p, at, sum, room, D, t0);
      if (next < at.end) load_share(mine, products_of(p, at.b, at.g, next / Q));
    }
    spoilt |= take_tokens<N, PARTS>(s, room, keeps);
    if (last != 0)
      total = 1.0f;
    else if (total <= 0)
      total += upto;
    kr_sync();
    if (next < at.end) copy_inputs<N, PARTS>(p, at, room, next);
  }
  if (!ONLY_ENDS && p.spoilt && (spoilt || is_spoilt<N / 16>(s))) p.spoilt[at.b * p.H + at.h] = 1;
  if (ONLY_ENDS) {
    store_state<N / 2>(p, segment_states(p, at), at.b, at.h, c, anew(n0), s);
    if (kr_thread() == 0 && at.p0 == 0)
      p.segment_decay[((int64_t)at.b * p.H + at.h) * p.n_segments + at.segment] = total;
  } else if (p.final.data && at.segment == p.n_segments - 1) {
    store_state<N / 2>(p, p.final, at.b, at.h, c, anew(n0), s);
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_products_n64(const kr_ssd_params p) { multiply_states<64, 1, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_halves_n64(const kr_ssd_params p) { multiply_states<64, 1, 1>(p); }
KR_KERNEL void KR_BOUNDS(WALKERS, 2) kr_ssd_chunks_n64(const kr_ssd_params p) { walk<64, 0, 1>(p); }
KR_KERNEL void KR_BOUNDS(WALKERS, 2) kr_ssd_ends_n64(const kr_ssd_params p) { walk<64, 1, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_products_n64_tf32(const kr_ssd_params p) { multiply_states<64, 0, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_halves_n64_tf32(const kr_ssd_params p) { multiply_states<64, 0, 1>(p); }
KR_KERNEL void KR_BOUNDS(WALKERS, 2) kr_ssd_chunks_n64_tf32(const kr_ssd_params p) { walk<64, 0, 0>(p); }
KR_KERNEL void KR_BOUNDS(WALKERS, 2) kr_ssd_ends_n64_tf32(const kr_ssd_params p) { walk<64, 1, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_products_n128(const kr_ssd_params p) { multiply_states<128, 1, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_halves_n128(const kr_ssd_params p) { multiply_states<128, 1, 1>(p); }
KR_KERNEL void KR_BOUNDS(WALKERS, 2) kr_ssd_chunks_n128(const kr_ssd_params p) { walk<128, 0, 1>(p); }
KR_KERNEL void KR_BOUNDS(WALKERS, 2) kr_ssd_ends_n128(const kr_ssd_params p) { walk<128, 1, 1>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_products_n128_tf32(const kr_ssd_params p) { multiply_states<128, 0, 0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_ssd_halves_n128_tf32(const kr_ssd_params p) { multiply_states<128, 0, 1>(p); }
KR_KERNEL void KR_BOUNDS(WALKERS, 2) kr_ssd_chunks_n128_tf32(const kr_ssd_params p) { walk<128, 0, 0>(p); }
KR_KERNEL void KR_BOUNDS(WALKERS, 2) kr_ssd_ends_n128_tf32(const kr_ssd_params p) { walk<128, 1, 0>(p); }

KR_KERNEL void KR_BOUNDS(KR_SSD_THREADS, 4) kr_ssd_steps(const kr_ssd_params p) { leave_steps(p); }

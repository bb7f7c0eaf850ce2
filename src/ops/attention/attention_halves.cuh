/* attention_halves.cuh: the two products of attention of float32 on a warp's tensor cores, every factor as two float16
 * parts, high and low, from swizzled shared-memory tiles with rows of D channels, the low parts behind the high ones;
 * for the forward and gradient kernels. Products are sums of three, the small ones first, and are added to the others
 * outside of the tensor core, which rounds sums towards zero. */
#ifndef KR_ATTENTION_HALVES_CUH
#define KR_ATTENTION_HALVES_CUH

#include "attention_halves.h"
#include "attention_mma.cuh"
#include "halves.cuh"

KR_DEV int64_t row_of_q(const kr_attention_params &p, const sequence &s, int h, int i) {
  return ((int64_t)s.q_b * p.H + h) * p.Lq + s.q_at + i;
}
KR_DEV int64_t row_of_key(const kr_attention_params &p, const sequence &s, int kv, int j) {
  return ((int64_t)s.k_b * (p.H / p.heads) + kv) * p.Lk + s.k_at + j;
}

/* A lane's eight numbers of a row of D, times 2^up, in parts. */
struct halved {
  kr_raw16 high, low;
  int32_t up;
};

/* Of the numbers at `at`, or of zeros (nullptr); all lanes of a row call it. limit: of up. */
template <int D>
KR_DEV halved halve_lane(const float *at, int limit) {
  float x[8] = {};
  if (at) {
    const kr_float4 first = *(const kr_float4 *)at, second = *(const kr_float4 *)(at + 4);
#pragma unroll
    for (int k = 0; k < 8; k++) x[k] = k < 4 ? first.v[k & 3] : second.v[k & 3];
  }
  uint32_t most = 0; /* bits of magnitudes, which compare like the numbers and, unlike these, know NaN */
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const uint32_t bits = kr_float_to_bits(x[k]) & 0x7fffffffu;
    most = bits > most ? bits : most;
  }
#pragma unroll
  for (int d = 1; d < D / 8; d <<= 1) {
    const uint32_t other = shuffle_word(most, d);
    most = other > most ? other : most;
  }
  const int exponent = (int)(most >> 23), finite = exponent > 254 ? 254 : exponent;
  halved row;
  row.up = exponent == 0 ? limit / 2 : at_most(14 + 127 - finite, limit);
  const float scale = kr_bits_to_float((uint32_t)(127 + row.up) << 23);
#pragma unroll
  for (int k = 0; k < 4; k++) kr_halve(x[2 * k] * scale, x[2 * k + 1] * scale, 1.0f, row.high.w[k], row.low.w[k]);
  return row;
}

/* Parts of ROWS rows of a head from `at` on, of which `n` exist, as copy_halves leaves them, and their scales' logs. */
template <int D, int ROWS>
KR_DEV void halve_own(unsigned char *to, int32_t *up, const kr_attention_tensor &from, int64_t at, int channels, int n,
                      int limit) {
  typedef copier<D, ROWS> share;
  const int mine = kr_thread() / share::PER_ROW, column = kr_thread() % share::PER_ROW * 8;
  const float *const rows = (const float *)from.data + at + column;
#pragma unroll 4
  for (int k = 0; k < share::N; k++) {
    const int i = mine + k * share::STEP;
    const halved row = halve_lane<D>(i < n && column < channels ? rows + i * from.t : nullptr, limit);
    unsigned char *const place = to + share::place_of(0, k);
    *(kr_raw16 *)place = row.high, *(kr_raw16 *)(place + ROWS * D * 2) = row.low;
    if (column == 0) up[i] = row.up;
  }
}

/* Both parts of ROWS rows on their way to a tile. */
template <int D, int ROWS>
struct halves_copier {
  typedef copier<D, ROWS> share;
  kr_flight flights[2][share::N];

  /* From `row` on, of which `n` exist: the others are zeros. */
  KR_DEV void begin(halves_copier &c, uint32_t to, const kr_halves &of, int64_t row, int n) {
    const int mine = kr_thread() / share::PER_ROW;
    const uint16_t *from = of.parts + (row + mine) * D + kr_thread() % share::PER_ROW * 8;
#pragma unroll
    for (int part = 0; part < 2; part++, to += ROWS * D * 2, from += of.n_rows * D)
#pragma unroll
      for (int k = 0; k < share::N; k++) {
        const int there = mine + k * share::STEP < n;
        kr_begin_copy(c.flights[part][k], share::place_of(to, k), there ? from + k * share::STEP * D : of.parts, there);
      }
  }
  /* Where nobody reads any more what was there before. */
  KR_DEV void end(const halves_copier &c, uint32_t to) {
#pragma unroll
    for (int part = 0; part < 2; part++)
#pragma unroll
      for (int k = 0; k < share::N; k++)
        kr_end_copy(c.flights[part][k], share::place_of(to, k) + part * ROWS * D * 2);
  }
};

template <int D, int ROWS>
KR_DEV void copy_halves(uint32_t to, const kr_halves &of, int64_t row, int n) {
  halves_copier<D, ROWS> c;
  c.begin(c, to, of, row, n), c.end(c, to);
}

#ifdef KR_TURING
/* Columns c and c + 1 of d += a b. A product of eight terms waits for the one before it that is added to the same sum,
 * so that the first eight terms of all products come first, and low parts have sums of their own. */
template <int M, int COLUMNS>
KR_DEV void multiply_columns(float (&d)[M][COLUMNS][4], int c, const uint32_t (&high)[M][4],
                             const uint32_t (&low)[M][4], const uint32_t (&b)[4], const uint32_t (&b_low)[4]) {
  enum { SUMS = M > 1 ? 1 : 2 }; /* registers have no more room */
  float sum[SUMS][2 * M][4] = {};
#pragma unroll
  for (int at = 0; at < 3 * KR_MMA_STEPS; at++) {
    const int step = at / 3, which = at % 3;
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
      const int first = i % 2 * 2;
      float(&to)[4] = sum[which < 2 ? 0 : SUMS - 1][i];
      if (which == 0) kr_mma_step(step, kr_f16(), to, low[i / 2], b[first], b[first + 1]);
      if (which == 1) kr_mma_step(step, kr_f16(), to, high[i / 2], b_low[first], b_low[first + 1]);
      if (which == 2) kr_mma_step(step, kr_f16(), to, high[i / 2], b[first], b[first + 1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2 * M; i++) {
#pragma unroll
    for (int k = 0; k < 4; k++)
      d[i / 2][c + i % 2][k] += SUMS > 1 ? sum[0][i][k] + sum[SUMS - 1][i][k] : sum[0][i][k];
    kr_hold(d[i / 2][c + i % 2]);
  }
}
#else

KR_DEV void multiply_halves(float (&d)[4], const uint32_t (&high)[4], const uint32_t (&low)[4], uint32_t high0,
                            uint32_t high1, uint32_t low0, uint32_t low1) {
  float sum[4] = {0, 0, 0, 0};
  kr_mma_as(kr_f16(), sum, low, high0, high1);
  kr_mma_as(kr_f16(), sum, high, low0, low1);
  kr_mma_as(kr_f16(), sum, high, high0, high1);
#pragma unroll
  for (int i = 0; i < 4; i++) d[i] += sum[i];
  kr_hold(d);
}

/* Columns c and c + 1 of d += a b. */
template <int M, int COLUMNS>
KR_DEV void multiply_columns(float (&d)[M][COLUMNS][4], int c, const uint32_t (&high)[M][4],
                             const uint32_t (&low)[M][4], const uint32_t (&b)[4], const uint32_t (&b_low)[4]) {
#pragma unroll
  for (int m = 0; m < M; m++)
    multiply_halves(d[m][c], high[m], low[m], b[0], b[1], b_low[0], b_low[1]),
        multiply_halves(d[m][c + 1], high[m], low[m], b[2], b[3], b_low[2], b_low[3]);
}
#endif

/* s = q k^T of the warp's 16 M rows, of the ROWS of its tile. lane_q, lane_k: addresses of the lane's ldmatrix rows. */
template <int D, int M, int N, int ROWS>
KR_DEV void make_scores_of_halves(float (&s)[M][N / 8][4], uint32_t lane_q, uint32_t lane_k) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[m][j][i] = 0;
#pragma unroll 1 /* or all reads would be moved to the front, and registers to local memory */
  for (int k = 0; k < D / 16; k++) {
    uint32_t high[M][4], low[M][4];
#pragma unroll
    for (int m = 0; m < M; m++)
      kr_load_matrices_at(high[m], (lane_q ^ k * 32) + m * 16 * D * 2),
          kr_load_matrices_at(low[m], (lane_q ^ k * 32) + (ROWS + m * 16) * D * 2);
#pragma unroll
    for (int j = 0; j < N / 16; j++) {
      uint32_t b[4], b_low[4];
      kr_load_matrices_at(b, (lane_k ^ k * 32) + j * 16 * D * 2);
      kr_load_matrices_at(b_low, (lane_k ^ k * 32) + (N + j * 16) * D * 2);
      multiply_columns(s, 2 * j, high, low, b, b_low);
    }
  }
}

/* o += w v. */
template <int D, int M, int N>
KR_DEV void add_output_of_halves(float (&o)[M][D / 8][4], const float (&w)[M][N / 8][4], uint32_t lane_v) {
#pragma unroll
  for (int k = 0; k < N / 16; k++) {
    uint32_t high[M][4], low[M][4];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        kr_halve(w[m][2 * k + i / 2][i % 2 * 2], w[m][2 * k + i / 2][i % 2 * 2 + 1], 1.0f, high[m][i], low[m][i]);
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
      uint32_t b[4], b_low[4];
      kr_sync_warp(); /* or all reads would be moved here, and registers to local memory */
      kr_load_matrices_turned_at(b, (lane_v ^ j * 32) + k * 16 * D * 2);
      kr_load_matrices_turned_at(b_low, (lane_v ^ j * 32) + (N + k * 16) * D * 2);
      multiply_columns(o, 2 * j, high, low, b, b_low);
    }
  }
}

/* A factor of 2^-up of a row and 2^-up of a column, of whose exponents one is in place; 0 where it is too small. */
KR_DEV float unscale_of(int32_t biased, int32_t other) {
  const int32_t bits = biased + other;
  return kr_bits_to_float((uint32_t)(bits < 0 ? 0 : bits));
}

#endif

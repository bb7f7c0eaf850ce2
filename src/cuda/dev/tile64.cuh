/* tile64.cuh: a thin product: a block multiplies 64 rows in shared memory with 64 columns of weights; results stay in
 * registers. In float32 by FMA; or with KR_HALVES, in separate modules, on tensor cores, ampere tier and up: operands
 * rounded to float16, with as many significant bits as TF32, sums in float32. Rows and columns keep their natural
 * order; the order the tensor cores need is established when weights are loaded. */
#ifndef KR_TILE64_CUH
#define KR_TILE64_CUH

#include "pack.cuh"
#include "tile64.h"

#ifdef __clang__
#define KR_CONSTANT __attribute__((device)) /* module memory; host memory in the emulator */
#else
#define KR_CONSTANT
#endif

/* BLOCKS: per multiprocessor. RESULTS: rows per thread, of four columns each. PARTS: warps that share a column. PITCH:
 * words per row, conflict-free for a warp's reads. */
#ifdef KR_HALVES
enum { THREADS = KR_TILE_THREADS_HALVES, BLOCKS = 2, PITCH = 48, RESULTS = 4, PARTS = 2 };
#else
enum { THREADS = KR_TILE_THREADS, BLOCKS = 3, PITCH = 68, RESULTS = 8, PARTS = 4 };
#endif
enum { ROWS = KR_TILE_ROWS, COLUMNS = KR_TILE_COLUMNS, WIDTH = 64, SIDE = KR_TILE_SIDE, FRAMES = SIDE * 32 / THREADS };

KR_DEV kr_float4 load4(const float *from) { return *(const kr_float4 *)from; }
KR_DEV kr_float2 load2(const float *from) { return *(const kr_float2 *)from; }
KR_DEV kr_float4 zero4(void) { return kr_float4{{0.0f, 0.0f, 0.0f, 0.0f}}; }

/* Read in place of missing map positions: selecting an address avoids a branch around the load. */
static KR_CONSTANT __attribute__((aligned(16))) const float nothing[4] = {0.0f, 0.0f, 0.0f, 0.0f};

/* Up to WIDTH columns of ROWS rows. */
typedef struct __attribute__((aligned(16))) tile {
  uint32_t words[ROWS * PITCH];
} tile;

#ifdef KR_HALVES
KR_DEV void put2(tile &to, int row, int column, float a, float b) {
  to.words[row * PITCH + column / 2] = kr_pack_f16(a, b);
}

KR_DEV void put4(tile &to, int row, int column, const kr_float4 &v) {
  const uint64_t pair = (uint64_t)kr_pack_f16(v.v[2], v.v[3]) << 32 | kr_pack_f16(v.v[0], v.v[1]);
  *(uint64_t *)(to.words + row * PITCH + column / 2) = pair;
}

/* A warp has 32 rows by 16 columns: 2 by 2 results of m16n8k16. */
typedef struct sums {
  float v[2][2][4];
} sums;

KR_DEV void clear(sums &s) {
#pragma unroll
  for (int i = 0; i < 16; i++) s.v[i / 8][i / 4 % 2][i % 4] = 0.0f;
}

KR_DEV int result_row(int i) {
  return (kr_thread() >> 5 & 1) * 32 + (i >> 1) * 16 + (i & 1) * 8 + ((kr_thread() & 31) >> 2);
}
KR_DEV int result_column(void) { return (kr_thread() >> 6) * 16 + (kr_thread() & 3) * 4; }

KR_DEV kr_float4 result(const sums &s, int i) {
  const float(&v)[2][4] = s.v[i >> 1];
  return kr_float4{{v[0][(i & 1) * 2], v[0][(i & 1) * 2 + 1], v[1][(i & 1) * 2], v[1][(i & 1) * 2 + 1]}};
}

/* The sum over a warp's lanes that have the same columns, in each of them. */
KR_DEV float sum_rows(float v) {
#pragma unroll
  for (int d = 4; d < 32; d <<= 1) v += kr_shuffle_xor(v, d);
  return v;
}
KR_DEV int row_part(void) { return kr_thread() >> 5 & 1; }
KR_DEV int first_of_rows(void) { return (kr_thread() & 31) < 4; }

/* A warp's rows as tensor-core operands, 16 inputs at a time; eight consecutive ones belong to one lane, four for one
 * step and four for the next. Columns from K on must be zeros in the tile. */
typedef struct factors {
  uint32_t a[2][4][4];
} factors;

KR_DEV void take(const tile &from, factors &f) {
  const uint32_t *row =
      from.words + ((kr_thread() >> 5 & 1) * 32 + ((kr_thread() & 31) >> 2)) * PITCH + (kr_thread() & 3) * 4;
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      const kr_raw16 eight = *(const kr_raw16 *)(row + i * 8 * PITCH + k * 8);
#pragma unroll
      for (int j = 0; j < 4; j++) f.a[i >> 1][k + j / 2][(i & 1) + j % 2 * 2] = eight.w[j];
    }
}

/* A lane's weights of 64 columns: per step two columns of four inputs each. */
typedef struct weights {
  kr_raw16 b[4];
} weights;

/* Columns from column0 of float16 rows, contiguous inputs per output, rows `ld` apart: N of them, K inputs, at most
 * WIDTH, a multiple of 16. Columns out of range are read as others, and their results are not stored. */
KR_DEV void fetch_rows(const void *w, int ld, int N, int K, int column0, weights &to) {
  const int lane = kr_thread() & 31, n = column0 + (kr_thread() >> 6 << 4) + (lane >> 3) * 4 + (lane >> 2 & 1),
            k = (lane & 3) * 8;
  const uint16_t *one = (const uint16_t *)w + (int64_t)(n < N ? n : 0) * ld,
                 *other = one + (n + 2 < N ? 2 * (int64_t)ld : 0);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int at = i * 32 + k < K ? i * 32 + k : 0;
    const kr_raw16 a = *(const kr_raw16 *)(one + at), b = *(const kr_raw16 *)(other + at);
    to.b[i * 2] = kr_raw16{{a.w[0], a.w[1], b.w[0], b.w[1]}};
    to.b[i * 2 + 1] = kr_raw16{{a.w[2], a.w[3], b.w[2], b.w[3]}};
  }
}

/* Adds rows times weights. */
KR_DEV void multiply(const tile &, const factors &f, const weights &w, sums &s) {
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int i = 0; i < 2; i++)
      kr_mma(s.v[i][0], f.a[i][k], w.b[k].w[0], w.b[k].w[1]), kr_mma(s.v[i][1], f.a[i][k], w.b[k].w[2], w.b[k].w[3]);
}

#else
KR_DEV void put2(tile &to, int row, int column, float a, float b) {
  *(kr_float2 *)(to.words + row * PITCH + column) = kr_float2{{a, b}};
}
KR_DEV void put4(tile &to, int row, int column, const kr_float4 &v) {
  *(kr_float4 *)(to.words + row * PITCH + column) = v;
}

/* A thread has 8 rows by 4 columns. */
typedef struct sums {
  float v[8][4];
} sums;

KR_DEV void clear(sums &s) {
#pragma unroll
  for (int i = 0; i < 32; i++) s.v[i / 4][i % 4] = 0.0f;
}

KR_DEV int result_row(int i) { return i * 8 + (kr_thread() >> 4); }
KR_DEV int result_column(void) { return (kr_thread() & 15) * 4; }
KR_DEV kr_float4 result(const sums &s, int i) { return kr_float4{{s.v[i][0], s.v[i][1], s.v[i][2], s.v[i][3]}}; }

KR_DEV float sum_rows(float v) { return v + kr_shuffle_xor(v, 16); }
KR_DEV int row_part(void) { return kr_thread() >> 5; }
KR_DEV int first_of_rows(void) { return (kr_thread() & 31) < 16; }

/* Rows are read in place. */
typedef struct factors {
} factors;

KR_DEV void take(const tile &, factors &) {}

/* Only their location: they are loaded as they are used. */
typedef struct weights {
  const float *at;
  int Np, K; /* Np: floats per row */
} weights;

/* Here with contiguous outputs per input, inputs `ld` apart. */
KR_DEV void fetch_rows(const void *w, int ld, int N, int K, int column0, weights &to) {
  const int column = column0 + result_column();
  to = weights{(const float *)w + (column < N ? column : 0), ld, K};
}

KR_DEV void multiply(const tile &from, const factors &, const weights &w, sums &s) {
  const float *rows = (const float *)from.words + (kr_thread() >> 4) * PITCH;
#pragma unroll 1
  for (int k = 0; k < w.K; k += 8) {
    kr_float4 b[8];
#pragma unroll
    for (int j = 0; j < 8; j++) b[j] = load4(w.at + (int64_t)(k + j) * w.Np);
#pragma unroll
    for (int i = 0; i < 16; i++) {
      const kr_float4 a = load4(rows + i % 8 * 8 * PITCH + k + i / 8 * 4);
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int c = 0; c < 4; c++) s.v[i % 8][c] = kr_fma(a.v[j], b[i / 8 * 4 + j].v[c], s.v[i % 8][c]);
    }
  }
}
#endif

/* ---- output positions -------------------------------------------------------------------------------------------- */

/* The map rows of this thread's results; bit i of exists: result i has one. The others repeat a valid row. */
typedef struct spots {
  uint32_t row[RESULTS], exists;
  int count; /* of the whole tile */
} spots;

/* SIDE frequencies of SIDE frames. */
KR_DEV spots square_spots(int item, int F, int T, int f0, int t0) {
  spots at;
  at.exists = 0;
  at.count = (F - f0 < SIDE ? F - f0 : SIDE) * (T - t0 < SIDE ? T - t0 : SIDE);
#pragma unroll
  for (int i = 0; i < RESULTS; i++) {
    const int f = f0 + result_row(i) / SIDE, t = t0 + result_row(i) % SIDE, inside = f < F && t < T;
    at.row[i] = ((uint32_t)item * F + (inside ? f : f0)) * T + (inside ? t : t0);
    at.exists |= (uint32_t)inside << i;
  }
  return at;
}

typedef struct ending {
  float *out;
  const float *E, *X, *beta; /* E + ... + beta X; any may be NULL */
  const float *bias;         /* from the panel's first column, or NULL */
  const float *zeros;
  int ldo;                   /* of out, E and X */
  int silu_from;             /* without addends: columns from here on go through silu */
} ending;

/* Four columns of a row plus their bias. */
KR_DEV kr_float4 with_bias(const sums &s, int i, const kr_float4 &bias) {
  kr_float4 v = result(s, i);
#pragma unroll
  for (int j = 0; j < 4; j++) v.v[j] += bias.v[j];
  return v;
}

KR_DEV kr_float4 addend(const ending &e, const spots &at, int i, int column) {
  return load4(e.E ? e.E + (int64_t)at.row[i] * e.ldo + column : e.zeros);
}

/* Addends of the results: E, for panels of one tile. Loaded early if there are registers for it. */
#ifdef KR_HALVES
typedef struct addends {
  kr_float4 v[RESULTS];
} addends;

KR_DEV void fetch(const ending &e, const spots &at, int Np, int column0, addends &to) {
  const int column = column0 + result_column();
#pragma unroll
  for (int i = 0; i < RESULTS; i++) to.v[i] = addend(e, at, i, column < Np ? column : 0);
}

KR_DEV kr_float4 fetched(const ending &, const spots &, int i, int, const addends &more) { return more.v[i]; }
#else
typedef struct addends {
} addends;

KR_DEV void fetch(const ending &, const spots &, int, int, addends &) {}
KR_DEV kr_float4 fetched(const ending &e, const spots &at, int i, int column, const addends &) {
  return addend(e, at, i, column);
}
#endif

/* Columns from column0 of the panel. ADD: there are addends, and beta X is possible; all loads precede the stores. */
template <int ADD>
KR_DEV void store(const ending &e, const spots &at, int Np, int column0, const sums &s, const addends &more) {
  const int column = column0 + result_column();
  if (column >= Np) return;
  const kr_float4 bias = load4(e.bias ? e.bias + column : nothing);
  kr_float4 v[RESULTS];
#pragma unroll
  for (int i = 0; i < RESULTS; i++) {
    v[i] = with_bias(s, i, bias);
    const kr_float4 own = ADD ? fetched(e, at, i, column, more) : zero4();
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (ADD) v[i].v[j] += own.v[j];
  }
  if (!ADD && column >= e.silu_from) {
#pragma unroll
    for (int i = 0; i < RESULTS; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) v[i].v[j] = kr_silu(v[i].v[j]);
  }
  if (ADD && e.X) {
    const kr_float4 beta = load4(e.beta + column);
#pragma unroll
    for (int i = 0; i < RESULTS; i++) {
      const kr_float4 x = load4(e.X + (int64_t)at.row[i] * e.ldo + column);
#pragma unroll
      for (int j = 0; j < 4; j++) v[i].v[j] = kr_fma(beta.v[j], x.v[j], v[i].v[j]);
    }
  }
#pragma unroll
  for (int i = 0; i < RESULTS; i++)
    if (at.exists >> i & 1) *(kr_float4 *)(e.out + (int64_t)at.row[i] * e.ldo + column) = v[i];
}

/* Products of adjacent columns. */
KR_DEV void store_gated(const ending &e, const spots &at, int Np, int column0, const sums &s) {
  const int column = column0 + result_column();
  if (column >= Np) return;
  const kr_float4 bias = load4(e.bias ? e.bias + column : nothing);
#pragma unroll
  for (int i = 0; i < RESULTS; i++) {
    const kr_float4 v = with_bias(s, i, bias);
    if (at.exists >> i & 1)
      *(kr_float2 *)(e.out + (int64_t)at.row[i] * e.ldo + column / 2) = kr_float2{{v.v[0] * v.v[1], v.v[2] * v.v[3]}};
  }
}

/* ---- a tile's moments -------------------------------------------------------------------------------------------- */

/* The sum over the tile's rows of four columns, through shared memory. */
KR_DEV kr_float4 column_sums(const kr_float4 &own, float *totals) {
  kr_float4 sum;
#pragma unroll
  for (int j = 0; j < 4; j++) sum.v[j] = sum_rows(own.v[j]);
  if (first_of_rows()) *(kr_float4 *)(totals + row_part() * COLUMNS + result_column()) = sum;
  kr_sync();
  sum = load4(totals + result_column());
#pragma unroll
  for (int part = 1; part < PARTS; part++)
#pragma unroll
    for (int j = 0; j < 4; j++) sum.v[j] += totals[part * COLUMNS + result_column() + j];
  return sum;
}

typedef struct __attribute__((aligned(16))) column_totals {
  float v[2][PARTS * COLUMNS];
} column_totals;

/* Count, mean and squared deviations of the tile's columns, for tile_norm.h; the bias adds to the mean alone. */
KR_DEV void measure(float *to, int Np, const float *bias, const spots &at, int column0, const sums &s,
                    column_totals &totals) {
  kr_float4 sum = zero4(), squares = zero4();
#pragma unroll
  for (int i = 0; i < RESULTS; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) sum.v[j] += at.exists >> i & 1 ? result(s, i).v[j] : 0.0f;
  kr_float4 mean = column_sums(sum, totals.v[0]);
  const float share = 1.0f / (float)at.count;
#pragma unroll
  for (int j = 0; j < 4; j++) mean.v[j] *= share;
#pragma unroll
  for (int i = 0; i < RESULTS; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float d = at.exists >> i & 1 ? result(s, i).v[j] - mean.v[j] : 0.0f;
      squares.v[j] = kr_fma(d, d, squares.v[j]);
    }
  squares = column_sums(squares, totals.v[1]);
  const int column = column0 + result_column();
  if (row_part() || !first_of_rows() || column >= Np) return;
#pragma unroll
  for (int j = 0; j < 4; j++)
    to[column + j] = (float)at.count, to[Np + column + j] = mean.v[j] + (bias ? bias[column + j] : 0.0f),
                to[2 * Np + column + j] = squares.v[j];
}

#endif

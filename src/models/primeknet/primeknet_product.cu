/* primeknet_product.cu: the product that PrimeKnet spends its time in: 64 rows times 64 columns per block, rows made on the way into
 * shared memory (normalised, scaled, filtered), results changed on the way out, column moments for the norms behind. In float32 by
 * FMA, or with KR_TF32, a module of its own, by tensor cores from Ampere on. */
#include "pack.cuh"
#include "primeknet_plan.h"

enum { LD = KR_PK_COLUMNS + 4, WIDTH = 64, HELD = 8 };

/* A thread makes four columns of eight rows: rows r, r + 8, ... with r = thread / 16. They stay in registers until the tile is free, so
 * that loads overlap each other and the product before. */
typedef struct held {
  kr_float4 v[HELD];
} held;

KR_DEV int own_row(int i) { return (kr_thread() >> 4) + i * 8; }
KR_DEV int own_column(void) { return (kr_thread() & 15) * 4; }

typedef struct place {
  uint32_t f, t;
} place;

KR_DEV place place_of(const pk_product &p, uint32_t row) {
  place at;
  at.f = kr_divide(row, p.T);
  at.t = row - at.f * p.T.by;
  return at;
}

KR_DEV kr_float4 zero4(void) {
  kr_float4 v = {{0.0f, 0.0f, 0.0f, 0.0f}};
  return v;
}

KR_DEV kr_float4 load4(const float *from) { return *(const kr_float4 *)from; }

/* Rows beyond the last are made like the last, and not stored: no load has to be branched around. */
KR_DEV int64_t clamped_row(const pk_product &p, int64_t first_row, int i) {
  const int64_t row = first_row + own_row(i);
  return row < p.rows_per_item ? row : p.rows_per_item - 1;
}

/* Channel c.. of source s at (f, t); outside, the zeros that the plan points at. */
KR_DEV kr_float4 source4(const pk_product &p, int s, int item, int f, int t, int c) {
  const float *from = p.A[s] + (((int64_t)item * p.F + f) * p.T.by + t) * p.K + c;
  return load4((uint32_t)f < (uint32_t)p.F && (uint32_t)t < p.T.by ? from : p.zeros);
}

KR_DEV void load_taps(const pk_product &p, int s, int item, int64_t first_row, int c, held &h) {
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const place at = place_of(p, (uint32_t)clamped_row(p, first_row, i));
    h.v[i] = source4(p, s, item, (int)at.f * p.f_step + p.f_offset[s], (int)at.t, c);
  }
}

KR_DEV void load_filtered(const pk_product &p, int s, int item, int64_t first_row, int c, held &h) {
  kr_float4 taps[9];
  const kr_float4 bias = load4(p.taps_bias[s] + c);
#pragma unroll
  for (int k = 0; k < 9; k++) taps[k] = load4(p.taps[s] + k * p.K + c);
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const place at = place_of(p, (uint32_t)clamped_row(p, first_row, i));
    const int first = (int)at.t - p.dilation * (p.causal ? 2 : 1);
    kr_float4 v[9], sum = bias;
#pragma unroll
    for (int k = 0; k < 9; k++) v[k] = source4(p, s, item, (int)at.f + k % 3 - 1, first + k / 3 * p.dilation, c);
#pragma unroll
    for (int k = 0; k < 9; k++)
#pragma unroll
      for (int j = 0; j < 4; j++) sum.v[j] = kr_fma(taps[k].v[j], v[k].v[j], sum.v[j]);
    h.v[i] = sum;
  }
}

KR_DEV const float *factors_of(const pk_product &p, int64_t row, int c) {
  const uint32_t f = kr_divide((uint32_t)row, p.T);
  int64_t sequence = f;
  if (p.frames_are_sequences) sequence = (int64_t)(f / (uint32_t)p.F) * p.T.by + ((uint32_t)row - f * p.T.by);
  return p.factors + sequence * p.K + c;
}

template <int KIND>
KR_DEV void load_rows(const pk_product &p, int s, int item, int64_t first_row, int c, held &h) {
  const int64_t whole = (int64_t)item * p.rows_per_item;
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const int64_t row = whole + clamped_row(p, first_row, i);
    if (KIND != KR_PK_A_PAIR) h.v[i] = load4(p.A[s] + row * p.lda + c);
    else h.v[i].v[0] = c ? 0.0f : p.A[0][row * 2], h.v[i].v[1] = c ? 0.0f : p.A[0][row * 2 + 1], h.v[i].v[2] = h.v[i].v[3] = 0.0f;
  }
  if (KIND != KR_PK_A_SCALED) return;
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const kr_float4 factor = load4(factors_of(p, whole + clamped_row(p, first_row, i), c));
#pragma unroll
    for (int j = 0; j < 4; j++) h.v[i].v[j] *= factor.v[j];
  }
}

/* Columns c0.. of source s; beyond the source's width zeros. */
template <int KIND>
KR_DEV void load(const pk_product &p, int s, int item, int64_t first_row, int c0, held &h) {
  const int c = c0 + own_column();
  if (c >= p.K) {
#pragma unroll
    for (int i = 0; i < HELD; i++) h.v[i] = zero4();
  } else if (KIND == KR_PK_A_DENSE) load_filtered(p, s, item, first_row, c, h);
  else if (KIND == KR_PK_A_TAPS) load_taps(p, s, item, first_row, c, h);
  else load_rows<KIND>(p, s, item, first_row, c, h);
}

#ifdef KR_TF32
KR_DEV float rounded(float v) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
  return kr_bits_to_float(bits);
}
#else
KR_DEV float rounded(float v) { return v; }
#endif

/* As the product wants them: rounded once, where the units do not read all digits. */
KR_DEV void put(const held &h, float *tile) {
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const kr_float4 v = {{rounded(h.v[i].v[0]), rounded(h.v[i].v[1]), rounded(h.v[i].v[2]), rounded(h.v[i].v[3])}};
    *(kr_float4 *)(tile + own_row(i) * LD + own_column()) = v;
  }
}

/* ---- norm over the channels: of one tile at most; sixteen threads share a row ----------------------------------------------------------- */

KR_DEV float row_sum(float v) {
#pragma unroll
  for (int d = 8; d; d >>= 1) v += kr_shuffle_xor(v, d);
  return v;
}

KR_DEV void normalise(const pk_product &p, held &h) {
  const int c = own_column();
  const float share = 1.0f / (float)p.n_channels;
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    kr_float4 &v = h.v[i];
    const float mean = row_sum((v.v[0] + v.v[1]) + (v.v[2] + v.v[3])) * share; /* padding is zero */
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      v.v[j] = c + j < p.n_channels ? v.v[j] - mean : 0.0f;
      squares = kr_fma(v.v[j], v.v[j], squares);
    }
    const float scale = kr_rsqrt(kr_fma(row_sum(squares), share, 1e-6f));
#pragma unroll
    for (int j = 0; j < 4; j++) v.v[j] *= scale;
  }
}

/* ---- the product of a tile ----------------------------------------------------------------------------------------- */

#ifndef KR_TF32
/* 8 rows by 4 columns per thread: rows i * 8 + thread / 16. */
typedef struct sums {
  float v[8][4];
} sums;

KR_DEV void clear(sums &s) {
#pragma unroll
  for (int i = 0; i < 32; i++) s.v[i / 4][i % 4] = 0.0f;
}

/* WHOLE: the width is known to be 64. */
template <int WHOLE>
KR_DEV void multiply_by(int Np, const float *tile, const float *w, int column0, int width, sums &s) {
  const int column = column0 + (kr_thread() & 15) * 4;
  const float *rows = tile + (kr_thread() >> 4) * LD;
  if (column >= Np) return;
#pragma unroll WHOLE ? 2 : 1
  for (int k = 0; k < (WHOLE ? WIDTH : width); k += 4) {
    kr_float4 b[4];
#pragma unroll
    for (int j = 0; j < 4; j++) b[j] = load4(w + (int64_t)(k + j) * Np + column);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const kr_float4 a = load4(rows + i * 8 * LD + k);
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int c = 0; c < 4; c++) s.v[i][c] = kr_fma(a.v[j], b[j].v[c], s.v[i][c]);
    }
  }
}

KR_DEV void spill(const sums &s, float *tile) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    kr_float4 v = {{s.v[i][0], s.v[i][1], s.v[i][2], s.v[i][3]}};
    *(kr_float4 *)(tile + (i * 8 + (kr_thread() >> 4)) * LD + (kr_thread() & 15) * 4) = v;
  }
}

KR_DEV const float *weights_at(const float *w, int64_t, int k, int Np) { return w + (int64_t)k * Np; }

#else
/* A warp has 32 rows by 32 columns: 2 by 4 tiles of m16n8k8. */
typedef struct sums {
  float v[2][4][4];
} sums;

KR_DEV void clear(sums &s) {
#pragma unroll
  for (int i = 0; i < 32; i++) s.v[i / 16][i / 4 % 4][i % 4] = 0.0f;
}

/* 16 rows by 8 columns as the product wants them: 8 by 4 values are what this instruction knows as 8 by 8 halves. */
KR_DEV void load_fragments(const float *from, uint32_t (&a)[4]) {
  asm volatile("{ .reg .u64 at; cvta.to.shared.u64 at, %4; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [at]; }"
      : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "l"(from) : "memory");
}

KR_DEV void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <int WHOLE>
KR_DEV void multiply_by(int Np, const float *tile, const float *w, int column0, int width, sums &s) {
  const int lane = kr_thread() & 31, warp = kr_thread() >> 5, n_blocks = Np / 8, first = column0 / 8 + (warp & 1) * 4;
  const float *rows = tile + ((warp >> 1) * 32 + (lane & 15)) * LD + (lane >> 4) * 4;
#pragma unroll WHOLE ? 2 : 1
  for (int k = 0; k < (WHOLE ? WIDTH : width); k += 16) {
    kr_float4 b[4];
#pragma unroll
    for (int j = 0; j < 4; j++) b[j] = first + j < n_blocks ? load4(w + (((int64_t)(k / 16) * n_blocks + first + j) * 32 + lane) * 4) : zero4();
#pragma unroll
    for (int half = 0; half < 2; half++) {
      uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++) load_fragments(rows + i * 16 * LD + k + half * 8, a[i]);
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) mma(s.v[i][j], a[i], kr_float_to_bits(b[j].v[half * 2]), kr_float_to_bits(b[j].v[half * 2 + 1]));
    }
  }
}

KR_DEV void spill(const sums &s, float *tile) {
  const int lane = kr_thread() & 31, warp = kr_thread() >> 5;
  float *to = tile + ((warp >> 1) * 32 + (lane >> 2)) * LD + (warp & 1) * 32 + (lane & 3) * 2;
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int c = 0; c < 4; c++) to[(i * 16 + c / 2 * 8) * LD + j * 8 + c % 2] = s.v[i][j][c];
}

KR_DEV const float *weights_at(const float *w, int64_t fragments, int k, int Np) { return w + fragments + (int64_t)k * Np; }
#endif

KR_DEV void multiply(int Np, const float *tile, const float *w, int column0, int width, sums &s) {
  if (width == WIDTH) multiply_by<1>(Np, tile, w, column0, width, s);
  else multiply_by<0>(Np, tile, w, column0, width, s);
}

/* ---- the way out --------------------------------------------------------------------------------------------------- */

KR_DEV int64_t out_row(const pk_product &p, int item, uint32_t row) {
  if (!p.out_step) return (int64_t)item * p.rows_per_item + row;
  const place at = place_of(p, row);
  return ((int64_t)item * p.out_F + at.f * p.out_step + p.out_offset) * p.T.by + at.t;
}

/* Four columns of eight rows, or of four when neighbouring columns are multiplied. All reads come before the writes. */
template <int GATE>
KR_DEV void store_tile(const pk_product &p, int item, int64_t first_row, int panel, int column0, const float *tile) {
  enum { PER_ROW = GATE ? KR_PK_COLUMNS / 8 : KR_PK_COLUMNS / 4, STEP = KR_PK_THREADS / PER_ROW, N = KR_PK_ROWS / STEP };
  const int c = kr_thread() % PER_ROW * 4, column = (GATE ? column0 / 2 : column0) + c, own = kr_thread() / PER_ROW;
  if (column >= p.n_store) return;
  const int left = p.rows_per_item - first_row < KR_PK_ROWS ? (int)(p.rows_per_item - first_row) : KR_PK_ROWS;
  int64_t to[N];
  kr_float4 v[N], e[N];
#pragma unroll
  for (int i = 0; i < N; i++) {
    to[i] = out_row(p, item, (uint32_t)(first_row + (own + i * STEP < left ? own + i * STEP : left - 1))) * p.ldo + panel * p.out_panel + column;
    if (!GATE && p.E) e[i] = load4(p.E + to[i]);
  }
  const float *bias = p.bias[panel] + column0 + (GATE ? 2 * c : c);
  const kr_float4 low = load4(bias), high = load4(GATE ? bias + 4 : bias);
#pragma unroll
  for (int i = 0; i < N; i++) {
    const float *from = tile + (own + i * STEP) * LD + (GATE ? 2 * c : c);
    const kr_float4 a = load4(from), b = load4(GATE ? from + 4 : from);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (!GATE) v[i].v[j] = a.v[j] + low.v[j];
      else v[i].v[j] = j < 2 ? (a.v[2 * j] + low.v[2 * j]) * (a.v[2 * j + 1] + low.v[2 * j + 1]) : (b.v[2 * j - 4] + high.v[2 * j - 4]) * (b.v[2 * j - 3] + high.v[2 * j - 3]);
    }
  }
  if (!GATE && p.E) {
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) v[i].v[j] += e[i].v[j];
  }
  if (!GATE && p.X) {
    const kr_float4 beta = load4(p.beta + column);
#pragma unroll
    for (int i = 0; i < N; i++) {
      const kr_float4 x = load4(p.X + to[i]);
#pragma unroll
      for (int j = 0; j < 4; j++) v[i].v[j] = kr_fma(beta.v[j], x.v[j], v[i].v[j]);
    }
  }
#pragma unroll
  for (int i = 0; i < N; i++)
    if (own + i * STEP < left) *(kr_float4 *)(p.out + to[i]) = v[i];
}

/* Mean and squared deviations of the tile's columns, without the bias, which adds to the mean alone. */
KR_DEV void measure_tile(const pk_product &p, int item, int64_t first_row, int column0, const float *tile, float *totals) {
  const int column = kr_thread() & 63, half = kr_thread() >> 6, n = p.rows_per_item - first_row < KR_PK_ROWS ? (int)(p.rows_per_item - first_row) : KR_PK_ROWS;
  const int end = half ? n : n < 32 ? n : 32;
  float mean = 0.0f, squares = 0.0f;
  for (int row = half * 32; row < end; row++) mean += tile[row * LD + column];
  totals[kr_thread()] = mean;
  kr_sync();
  mean = (totals[column] + totals[column + 64]) / (float)n;
  for (int row = half * 32; row < end; row++) {
    const float d = tile[row * LD + column] - mean;
    squares = kr_fma(d, d, squares);
  }
  kr_sync();
  totals[kr_thread()] = squares;
  kr_sync();
  if (half || column0 + column >= p.Np) return;
  float *to = p.partial + ((int64_t)item * p.partial_tiles + p.partial_first + kr_block_x()) * 2 * p.Np + column0 + column;
  to[0] = mean + p.bias[0][column0 + column];
  to[p.Np] = totals[column] + totals[column + 64];
}

template <int KIND>
KR_DEV void product(const pk_product &p) {
  KR_SHARED float tile[KR_PK_ROWS * LD];
  KR_SHARED float results[KR_PK_ROWS * LD];
  KR_SHARED float column_totals[KR_PK_THREADS];
  const int per_panel = (p.Np + KR_PK_COLUMNS - 1) / KR_PK_COLUMNS, first_tile = kr_block_y() * p.tiles_per_block, item = kr_block_z();
  const int n_chunks = (p.K + WIDTH - 1) / WIDTH * p.n_sources;
  const int64_t first_row = (int64_t)kr_block_x() * KR_PK_ROWS;
  held h;
  load<KIND>(p, 0, item, first_row, 0, h);
  if (KIND == KR_PK_A_NORM) normalise(p, h);
  for (int i = first_tile; i < first_tile + p.tiles_per_block; i++) {
    const int panel = i / per_panel, column0 = i % per_panel * KR_PK_COLUMNS;
    sums acc;
    clear(acc);
    for (int chunk = 0, s = 0, c0 = 0; chunk < n_chunks; chunk++) {
      if (i == first_tile || n_chunks > 1) { /* with one chunk, the tile serves every column */
        put(h, tile);
        kr_sync();
      }
      const int at = c0, source = s;
      c0 += WIDTH;
      if (c0 >= p.K) c0 = 0, s++;
      if (KIND != KR_PK_A_NORM && KIND != KR_PK_A_DENSE && chunk + 1 < n_chunks) load<KIND>(p, s, item, first_row, c0, h);
      multiply(p.Np, tile, weights_at(p.w[p.n_sources > 1 ? source : panel], p.fragments, at, p.Np), column0, p.K - at < WIDTH ? p.K - at : WIDTH, acc);
      if (KIND == KR_PK_A_DENSE && chunk + 1 < n_chunks) load<KIND>(p, s, item, first_row, c0, h); /* its filters need the registers */
      if (n_chunks > 1) kr_sync();
    }
    kr_sync();
    spill(acc, results);
    kr_sync();
    if (p.epilogue == KR_PK_GATE) store_tile<1>(p, item, first_row, panel, column0, results);
    else store_tile<0>(p, item, first_row, panel, column0, results);
    if (p.partial) measure_tile(p, item, first_row, column0, results, column_totals);
  }
}

KR_KERNEL void KR_BOUNDS(128, 3) kr_pk_product(const pk_product p) { product<KR_PK_A_ROWS>(p); }
KR_KERNEL void KR_BOUNDS(128, 3) kr_pk_product_pair(const pk_product p) { product<KR_PK_A_PAIR>(p); }
KR_KERNEL void KR_BOUNDS(128, 3) kr_pk_product_norm(const pk_product p) { product<KR_PK_A_NORM>(p); }
KR_KERNEL void KR_BOUNDS(128, 3) kr_pk_product_scaled(const pk_product p) { product<KR_PK_A_SCALED>(p); }
KR_KERNEL void KR_BOUNDS(128, 3) kr_pk_product_taps(const pk_product p) { product<KR_PK_A_TAPS>(p); }
KR_KERNEL void KR_BOUNDS(128, 3) kr_pk_product_dense(const pk_product p) { product<KR_PK_A_DENSE>(p); }

/* ---- the prime kernel net ------------------------------------------------------------------------------------------- */

enum { SIDE = 8 }; /* a tile's rows: frequency by frequency, SIDE frames each, which is how a thread's rows lie */

/* Both filters of a chunk at eight frequencies of one frame, the input moving through a ring of registers. */
KR_DEV void filter_both(const pk_feed_forward &p, int chunk, int item, int f0, int t, held &a, held &b) {
  const int c = own_column(), k = p.k[chunk], before = p.causal ? k - 1 : (k - 1) / 2, exists = c < p.Cp && t < (int)p.T.by;
  const int64_t width = (int64_t)p.n_chunks * p.Cp, step = p.T.by * width;
  const float *x = p.h + ((int64_t)item * p.F * p.T.by + t) * width + (int64_t)chunk * p.Cp + c, *taps_a = p.taps[chunk] + c, *taps_b = p.other_taps[chunk] + c;
  kr_float4 ring[SIDE];
#pragma unroll
  for (int i = 0; i < SIDE; i++) a.v[i] = load4(exists ? p.taps_bias[chunk] + c : p.zeros), b.v[i] = load4(exists ? p.other_bias[chunk] + c : p.zeros);
#pragma unroll
  for (int i = 0; i < SIDE - 1; i++) {
    const int f = f0 + i - before;
    ring[i] = load4(exists && (uint32_t)f < (uint32_t)p.F ? x + f * step : p.zeros);
  }
  for (int j0 = 0; j0 < k; j0 += SIDE)
#pragma unroll
    for (int j = 0; j < SIDE; j++) {
      const int f = f0 + SIDE - 1 + j0 + j - before, used = exists && j0 + j < k;
      const kr_float4 ta = load4(used ? taps_a + (j0 + j) * p.Cp : p.zeros), tb = load4(used ? taps_b + (j0 + j) * p.Cp : p.zeros);
      ring[(SIDE - 1 + j) % SIDE] = load4(used && (uint32_t)f < (uint32_t)p.F ? x + f * step : p.zeros);
#pragma unroll
      for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
          a.v[i].v[n] = kr_fma(ta.v[n], ring[(i + j) % SIDE].v[n], a.v[i].v[n]);
          b.v[i].v[n] = kr_fma(tb.v[n], ring[(i + j) % SIDE].v[n], b.v[i].v[n]);
        }
    }
}

/* tile = (tile + bias) times b, where this thread's rows are. */
KR_DEV void gate_tile(const float *bias, int Cp, const held &b, float *tile) {
  const int c = own_column();
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    kr_float4 *at = (kr_float4 *)(tile + own_row(i) * LD + c), v = *at;
#pragma unroll
    for (int j = 0; j < 4; j++) v.v[j] = c < Cp ? rounded((v.v[j] + bias[c + j]) * b.v[i].v[j]) : 0.0f;
    *at = v;
  }
}

KR_DEV void store_fed(const pk_feed_forward &p, int item, int f0, int t, const float *tile) {
  const int c = own_column();
  if (c >= p.Cp || t >= (int)p.T.by) return;
  kr_float4 e[HELD];
  const int64_t first = (((int64_t)item * p.F + f0) * p.T.by + t) * p.Cp + c, step = (int64_t)p.T.by * p.Cp;
#pragma unroll
  for (int i = 0; i < HELD; i++) e[i] = f0 + i < p.F ? load4(p.E + first + i * step) : zero4();
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    if (f0 + i >= p.F) continue;
    const kr_float4 v = load4(tile + own_row(i) * LD + c);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      e[i].v[j] += v.v[j] + p.bias[c + j];
      if (p.X) e[i].v[j] = kr_fma(p.beta[c + j], p.X[first + i * step + j], e[i].v[j]);
    }
    *(kr_float4 *)(p.out + first + i * step) = e[i];
  }
}

KR_KERNEL void KR_BOUNDS(128, 3) kr_pk_feed_forward(const pk_feed_forward p) {
  KR_SHARED float tile[KR_PK_ROWS * LD];
  const int item = kr_block_z(), f0 = kr_block_y() * SIDE, t = kr_block_x() * SIDE + own_row(0);
  sums total;
  clear(total);
  for (int chunk = 0; chunk < p.n_chunks; chunk++) {
    held a, b;
    sums acc;
    clear(acc);
    filter_both(p, chunk, item, f0, t, a, b);
    put(a, tile);
    kr_sync();
    multiply(p.Np, tile, weights_at(p.attn[chunk], p.fragments, 0, p.Np), 0, p.Cp, acc);
    kr_sync();
    spill(acc, tile);
    kr_sync();
    gate_tile(p.attn_bias[chunk], p.Cp, b, tile);
    kr_sync();
    multiply(p.Np, tile, weights_at(p.w[chunk], p.fragments, 0, p.Np), 0, p.Cp, total);
    kr_sync();
  }
  spill(total, tile);
  kr_sync();
  store_fed(p, item, f0, t, tile);
}

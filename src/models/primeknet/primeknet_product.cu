/* primeknet_product.cu: the product that PrimeKnet spends its time in: 64 rows times 64 columns per block, rows made on the way into
 * shared memory (normalised, scaled, filtered), results changed on the way out, column moments for the norms behind. In float32 by
 * FMA, or with KR_TF32, a module of its own, by tensor cores from Ampere on. */
#include "pack.cuh"
#include "primeknet_plan.h"

enum { LD = KR_PK_COLUMNS + 4, WIDTH = 64 };

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

KR_DEV kr_float4 affine4(kr_float4 v, const pk_affine &a, int64_t item_c, int c) {
  if (!a.scale) return v;
  const kr_float4 scale = load4(a.scale + item_c), shift = load4(a.shift + item_c), slope = load4(a.slope + c);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float x = kr_fma(v.v[i], scale.v[i], shift.v[i]);
    v.v[i] = x < 0.0f ? x * slope.v[i] : x;
  }
  return v;
}

/* Channel c.. of source s at (f, t), as its norm leaves it; zero outside. */
KR_DEV kr_float4 source4(const pk_product &p, int s, int item, int f, int t, int c) {
  if (f < 0 || f >= p.F || t < 0 || t >= (int)p.T.by) return zero4();
  return affine4(load4(p.A[s] + (((int64_t)item * p.F + f) * p.T.by + t) * p.K + c), p.affine[s], (int64_t)item * p.K + c, c);
}

KR_DEV kr_float4 filtered4(const pk_product &p, int s, int item, place at, int c) {
  kr_float4 sum = load4(p.taps_bias[s] + c);
  const int first = (int)at.t - p.dilation * (p.causal ? 2 : 1);
#pragma unroll
  for (int i = 0; i < 9; i++) {
    const kr_float4 tap = load4(p.taps[s] + i * p.K + c), v = source4(p, s, item, (int)at.f + i % 3 - 1, first + i / 3 * p.dilation, c);
#pragma unroll
    for (int j = 0; j < 4; j++) sum.v[j] = kr_fma(tap.v[j], v.v[j], sum.v[j]);
  }
  return sum;
}

KR_DEV kr_float4 scaled4(const pk_product &p, kr_float4 v, int64_t row, int c) {
  const uint32_t f = kr_divide((uint32_t)row, p.T);
  int64_t sequence = f;
  if (p.frames_are_sequences) sequence = (int64_t)(f / (uint32_t)p.F) * p.T.by + ((uint32_t)row - f * p.T.by);
  const kr_float4 factor = load4(p.factors + sequence * p.K + c);
#pragma unroll
  for (int i = 0; i < 4; i++) v.v[i] *= factor.v[i];
  return v;
}

/* Four columns of one row of A. KIND is the plan's, or KR_PK_A_ROWS for the three that only read. */
template <int KIND>
KR_DEV kr_float4 element4(const pk_product &p, int s, int item, uint32_t row, int panel, int c) {
  const int64_t whole = (int64_t)item * p.rows_per_item + row;
  if (KIND == KR_PK_A_DENSE) return filtered4(p, s, item, place_of(p, row), c);
  if (KIND == KR_PK_A_TAPS) {
    const place at = place_of(p, row);
    return source4(p, s, item, (int)at.f * p.f_step + p.f_offset[s], (int)at.t, c);
  }
  if (KIND == KR_PK_A_ROWS && p.kind == KR_PK_A_PAIR) {
    kr_float4 v = zero4();
    if (c == 0) v.v[0] = p.A[0][whole * 2], v.v[1] = p.A[0][whole * 2 + 1];
    return v;
  }
  const kr_float4 v = load4(p.A[s] + whole * p.lda + panel * p.a_panel + c);
  return KIND == KR_PK_A_ROWS && p.kind == KR_PK_A_SCALED ? scaled4(p, v, whole, c) : v;
}

/* Columns c0.. of one source, up to 64 of them; the next multiple of 16 is zeros. */
template <int KIND>
KR_DEV void load_tile(const pk_product &p, int s, int item, int64_t first_row, int panel, int c0, int width, float *tile) {
  for (int i = kr_thread(); i < KR_PK_ROWS * (WIDTH / 4); i += KR_PK_THREADS) {
    const int row = i / (WIDTH / 4), c = i % (WIDTH / 4) * 4;
    if (c >= width) continue;
    kr_float4 v = zero4();
    if (first_row + row < p.rows_per_item) v = element4<KIND>(p, s, item, (uint32_t)(first_row + row), panel, c0 + c);
    *(kr_float4 *)(tile + row * LD + c) = v;
  }
}

/* ---- norm over the channels: two threads share a row --------------------------------------------------------------- */

KR_DEV float pair_sum(float v) { return v + kr_shuffle_xor(v, 1); }

KR_DEV void normalise_tile(const pk_product &p, int c0, int width, float mean, float scale, float *tile) {
  float *row = tile + (kr_thread() >> 1) * LD + (kr_thread() & 1) * (WIDTH / 2);
  const int first = c0 + (kr_thread() & 1) * (WIDTH / 2);
  for (int c = 0; c < WIDTH / 2; c++)
    if (first + c - c0 < width) row[c] = first + c < p.n_channels ? (row[c] - mean) * scale : 0.0f;
}

KR_DEV float tile_sum(const pk_product &p, int c0, float mean, int squared, const float *tile) {
  const float *row = tile + (kr_thread() >> 1) * LD + (kr_thread() & 1) * (WIDTH / 2);
  const int first = c0 + (kr_thread() & 1) * (WIDTH / 2);
  float sum = 0.0f;
  for (int c = 0; c < WIDTH / 2 && first + c < p.n_channels; c++) {
    const float d = row[c] - mean;
    sum += squared ? d * d : d;
  }
  return pair_sum(sum);
}

/* The moments of this thread's row. Rows of more than one tile are read again for each of them. */
KR_DEV void row_moments(const pk_product &p, int item, int64_t first_row, float *tile, float *mean, float *scale) {
  float total = 0.0f, squares = 0.0f;
  for (int pass = 0; pass < 2; pass++) {
    for (int c0 = 0; c0 < p.K; c0 += WIDTH) {
      const int width = p.K - c0 < WIDTH ? p.K - c0 : WIDTH;
      if (pass == 0 || p.K > WIDTH) {
        kr_sync();
        load_tile<KR_PK_A_NORM>(p, 0, item, first_row, 0, c0, width, tile);
        kr_sync();
      }
      if (pass == 0) total += tile_sum(p, c0, 0.0f, 0, tile);
      else squares += tile_sum(p, c0, *mean, 1, tile);
    }
    if (pass == 0) *mean = total / (float)p.n_channels;
  }
  *scale = 1.0f / __builtin_sqrtf(squares / (float)p.n_channels + 1e-6f);
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

KR_DEV void multiply(const pk_product &p, const float *tile, const float *w, int column0, int width, sums &s) {
  const int column = column0 + (kr_thread() & 15) * 4;
  const float *rows = tile + (kr_thread() >> 4) * LD;
  if (column >= p.Np) return;
  for (int k = 0; k < width; k += 4) {
    kr_float4 b[4];
#pragma unroll
    for (int j = 0; j < 4; j++) b[j] = load4(w + (int64_t)(k + j) * p.Np + column);
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

KR_DEV const float *weights_at(const pk_product &p, const float *w, int k) { return w + (int64_t)k * p.Np; }

#else
/* A warp has 32 rows by 32 columns: 2 by 4 tiles of m16n8k8. */
typedef struct sums {
  float v[2][4][4];
} sums;

KR_DEV void clear(sums &s) {
#pragma unroll
  for (int i = 0; i < 32; i++) s.v[i / 16][i / 4 % 4][i % 4] = 0.0f;
}

KR_DEV uint32_t to_tf32(float v) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
  return bits;
}

KR_DEV void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

KR_DEV void multiply(const pk_product &p, const float *tile, const float *w, int column0, int width, sums &s) {
  const int lane = kr_thread() & 31, warp = kr_thread() >> 5, n_blocks = p.Np / 8, first = column0 / 8 + (warp & 1) * 4;
  const float *rows = tile + ((warp >> 1) * 32 + (lane >> 2)) * LD + (lane & 3);
  for (int k = 0; k < width; k += 16) {
    kr_float4 b[4];
#pragma unroll
    for (int j = 0; j < 4; j++) b[j] = first + j < n_blocks ? load4(w + (((int64_t)(k / 16) * n_blocks + first + j) * 32 + lane) * 4) : zero4();
#pragma unroll
    for (int half = 0; half < 2; half++) {
      uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 8; i++) a[i >> 2][i & 3] = to_tf32(rows[(i / 4 * 16 + i % 2 * 8) * LD + k + half * 8 + i / 2 % 2 * 4]);
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

KR_DEV const float *weights_at(const pk_product &p, const float *w, int k) { return w + p.fragments + (int64_t)k * p.Np; }
#endif

/* ---- the way out --------------------------------------------------------------------------------------------------- */

KR_DEV int64_t out_row(const pk_product &p, int item, uint32_t row) {
  if (!p.out_step) return (int64_t)item * p.rows_per_item + row;
  const place at = place_of(p, row);
  return ((int64_t)item * p.out_F + at.f * p.out_step + p.out_offset) * p.T.by + at.t;
}

KR_DEV void store4(const pk_product &p, int64_t row, int64_t column, int64_t at, kr_float4 v) {
  if (p.epilogue == KR_PK_ADD || p.epilogue == KR_PK_MUL) {
    const kr_float4 e = load4(p.E + at);
#pragma unroll
    for (int i = 0; i < 4; i++) v.v[i] = p.epilogue == KR_PK_ADD ? e.v[i] + v.v[i] : e.v[i] * v.v[i];
    if (p.X) {
      const kr_float4 x = load4(p.X + row * p.ldo + column), beta = load4(p.beta + column);
#pragma unroll
      for (int i = 0; i < 4; i++) v.v[i] = kr_fma(beta.v[i], x.v[i], v.v[i]);
    }
  }
  *(kr_float4 *)(p.out + at) = v;
}

KR_DEV void store_tile(const pk_product &p, int item, int64_t first_row, int panel, int column0, const float *tile) {
  const int gate = p.epilogue == KR_PK_GATE, columns = gate ? KR_PK_COLUMNS / 2 : KR_PK_COLUMNS, out0 = gate ? column0 / 2 : column0;
  for (int i = kr_thread(); i < KR_PK_ROWS * columns / 4; i += KR_PK_THREADS) {
    const int row = i / (columns / 4), c = i % (columns / 4) * 4;
    if (first_row + row >= p.rows_per_item || out0 + c >= p.n_store) continue;
    const float *from = tile + row * LD + (gate ? 2 * c : c), *bias = p.bias[panel] + column0 + (gate ? 2 * c : c);
    kr_float4 v;
#pragma unroll
    for (int j = 0; j < 4; j++) v.v[j] = gate ? (from[2 * j] + bias[2 * j]) * (from[2 * j + 1] + bias[2 * j + 1]) : from[j] + bias[j];
    const int64_t to = out_row(p, item, (uint32_t)(first_row + row));
    store4(p, to, out0 + c, to * p.ldo + panel * p.out_panel + out0 + c, v);
  }
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
  const int tiles = (p.Np + KR_PK_COLUMNS - 1) / KR_PK_COLUMNS, panel = kr_block_y() / tiles, column0 = kr_block_y() % tiles * KR_PK_COLUMNS;
  const int item = kr_block_z();
  const int64_t first_row = (int64_t)kr_block_x() * KR_PK_ROWS;
  float mean = 0.0f, scale = 0.0f;
  sums acc;
  clear(acc);
  if (KIND == KR_PK_A_NORM) row_moments(p, item, first_row, tile, &mean, &scale);
  for (int s = 0; s < p.n_sources; s++)
    for (int c0 = 0; c0 < p.K; c0 += WIDTH) {
      const int width = p.K - c0 < WIDTH ? p.K - c0 : WIDTH;
      if (KIND != KR_PK_A_NORM || p.K > WIDTH) {
        kr_sync();
        load_tile<KIND>(p, s, item, first_row, panel, c0, width, tile);
      }
      if (KIND == KR_PK_A_NORM) {
        kr_sync();
        normalise_tile(p, c0, width, mean, scale, tile);
      }
      kr_sync();
      multiply(p, tile, weights_at(p, p.w[p.n_sources > 1 ? s : panel], c0), column0, width, acc);
    }
  kr_sync();
  spill(acc, tile);
  kr_sync();
  store_tile(p, item, first_row, panel, column0, tile);
  if (!p.partial) return;
  KR_SHARED float column_totals[KR_PK_THREADS];
  measure_tile(p, item, first_row, column0, tile, column_totals);
}

KR_KERNEL void KR_BOUNDS(128, 4) kr_pk_product(const pk_product p) { product<KR_PK_A_ROWS>(p); }
KR_KERNEL void KR_BOUNDS(128, 4) kr_pk_product_norm(const pk_product p) { product<KR_PK_A_NORM>(p); }
KR_KERNEL void KR_BOUNDS(128, 4) kr_pk_product_taps(const pk_product p) { product<KR_PK_A_TAPS>(p); }
KR_KERNEL void KR_BOUNDS(128, 4) kr_pk_product_dense(const pk_product p) { product<KR_PK_A_DENSE>(p); }

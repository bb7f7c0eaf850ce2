/* map_product.cu: tiles of rows are transformed on the way into shared memory (normalised, scaled, convolved),
 * multiplied with the weights, one tile of columns at a time, and finished by an epilogue. */
#include "map_product_params.h"
#include "tile64.cuh"

/* How rows are transformed. */
enum {
  AS_THEY_ARE,
  HELD, /* one tile wide: loaded once for several tiles of columns; no transform */
  NORMED,
  SCALED,
  CONVOLVED
};
enum { OWN_ROWS = ROWS * 16 / THREADS, TAPS_HELD = 4 };

/* A thread loads four columns of some rows. They stay in registers until the tile is free, so that loads overlap. */
typedef struct held {
  kr_float4 v[OWN_ROWS];
} held;

template <int KIND>
KR_DEV int own_row(int i) {
  return KIND == CONVOLVED ? (kr_thread() >> 4) * OWN_ROWS + i : (kr_thread() >> 4) + i * (THREADS / 16);
}
KR_DEV int own_column(void) { return (kr_thread() & 15) * 4; }

/* Rows past the last repeat it and are not stored: loads need no branch. */
KR_DEV uint32_t clamped_row(const kr_map_product_params &p, int64_t first_row, int i) {
  const int64_t row = first_row + i;
  return (uint32_t)(row < p.n_rows ? row : p.n_rows - 1);
}

KR_DEV const float *factors_of(const kr_map_product_params &p, uint32_t row) {
  const uint32_t line = kr_divide(row, p.W), item = kr_divide(row, p.item), w = row - line * p.W.by,
                 h = kr_divide(row - item * p.item.by, p.W);
  return p.factors + (int64_t)item * p.factors_b + (int64_t)h * p.factors_h + (int64_t)w * p.factors_w;
}

template <int KIND>
KR_DEV void load_rows(const kr_map_product_params &p, int64_t first_row, int c, held &h) {
#pragma unroll
  for (int i = 0; i < OWN_ROWS; i++)
    h.v[i] = load4(p.x + (int64_t)clamped_row(p, first_row, own_row<KIND>(i)) * p.x_row + c);
  if (KIND != SCALED) return;
#pragma unroll
  for (int i = 0; i < OWN_ROWS; i++) {
    const kr_float4 factor = load4(factors_of(p, clamped_row(p, first_row, own_row<KIND>(i))) + c);
#pragma unroll
    for (int j = 0; j < 4; j++) h.v[i].v[j] *= factor.v[j];
  }
}

/* Adjacent rows share their loads. A tap before the line's start adds nothing. */
KR_DEV void load_convolved(const kr_map_product_params &p, int64_t first_row, int c, held &h) {
  const int first = (int)first_row + own_row<CONVOLVED>(0), rows = (int)p.n_rows;
  const kr_float4 bias = load4(p.conv_bias + c);
  int at[OWN_ROWS];
#pragma unroll
  for (int i = 0; i < OWN_ROWS; i++) {
    const uint32_t row = (uint32_t)(first + i);
    at[i] = (int)(row - kr_divide(row, p.W) * p.W.by);
    h.v[i] = bias;
  }
#pragma unroll 1
  for (int k0 = 0; k0 < p.K; k0 += TAPS_HELD) {
    float taps[4][TAPS_HELD];
    kr_float4 in[OWN_ROWS + TAPS_HELD - 1];
#pragma unroll
    for (int i = 0; i < OWN_ROWS + TAPS_HELD - 1; i++) {
      const int row = first + i + k0 - (p.K - 1);
      in[i] = load4((uint32_t)row < (uint32_t)rows ? p.x + (int64_t)row * p.x_row + c : nothing);
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int k = 0; k < TAPS_HELD; k++)
        taps[j][k] = *(k0 + k < p.K ? p.conv_weight + (c + j) * p.K + k0 + k : nothing);
#pragma unroll
    for (int i = 0; i < OWN_ROWS; i++)
#pragma unroll
      for (int k = 0; k < TAPS_HELD; k++)
        if (at[i] + k0 + k >= p.K - 1)
#pragma unroll
          for (int j = 0; j < 4; j++) h.v[i].v[j] = kr_fma(taps[j][k], in[i + k].v[j], h.v[i].v[j]);
  }
#pragma unroll
  for (int i = 0; i < OWN_ROWS; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) h.v[i].v[j] = kr_silu(h.v[i].v[j]);
    if (first + i < rows) *(kr_float4 *)(p.conv_out + (int64_t)(first + i) * p.conv_row + c) = h.v[i];
  }
}

/* Columns from c0; zeros past the last. */
template <int KIND>
KR_DEV void load(const kr_map_product_params &p, int64_t first_row, int c0, held &h) {
  const int c = c0 + own_column();
  if (c >= p.C) {
#pragma unroll
    for (int i = 0; i < OWN_ROWS; i++) h.v[i] = zero4();
  } else if (KIND == CONVOLVED) load_convolved(p, first_row, c, h);
  else load_rows<KIND>(p, first_row, c, h);
}

/* ---- norm over the channels: at most one tile; sixteen threads share a row --------------------------------------- */

KR_DEV float row_sum(float v) {
#pragma unroll
  for (int d = 8; d; d >>= 1) v += kr_shuffle_xor(v, d);
  return v;
}

KR_DEV void normalise(const kr_map_product_params &p, held &h) {
  const int exists = own_column() < p.C;
  const float share = 1.0f / (float)p.C;
#pragma unroll
  for (int i = 0; i < OWN_ROWS; i++) {
    kr_float4 &v = h.v[i];
    const float mean = row_sum((v.v[0] + v.v[1]) + (v.v[2] + v.v[3])) * share; /* columns past the last are zero */
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      v.v[j] = exists ? v.v[j] - mean : 0.0f;
      squares = kr_fma(v.v[j], v.v[j], squares);
    }
    const float scale = kr_rsqrt(kr_fma(row_sum(squares), share, p.eps));
#pragma unroll
    for (int j = 0; j < 4; j++) v.v[j] *= scale;
  }
}

/* ------------------------------------------------------------------------------------------------------------------ */

KR_DEV spots spots_of(const kr_map_product_params &p, int64_t first_row) {
  spots at;
  at.exists = 0;
  at.count = p.n_rows - first_row < ROWS ? (int)(p.n_rows - first_row) : ROWS;
#pragma unroll
  for (int i = 0; i < RESULTS; i++) {
    at.row[i] = clamped_row(p, first_row, result_row(i));
    at.exists |= (uint32_t)(result_row(i) < at.count) << i;
  }
  return at;
}

/* Weights of inputs from c0. */
KR_DEV void fetch_weights(const kr_map_product_params &p, int c0, int column0, weights &to) {
#ifdef KR_HALVES
  const void *from = (const uint16_t *)p.weight + c0;
#else
  const void *from = (const float *)p.weight + (int64_t)c0 * p.weight_row;
#endif
  fetch_rows(from, p.weight_row, p.N, p.C - c0 < WIDTH ? p.C - c0 : WIDTH, column0, to);
}

template <int KIND>
KR_DEV void product(const kr_map_product_params &p) {
  KR_SHARED tile tiles[2];
  enum { ONE_CHUNK = KIND == NORMED || KIND == HELD || KIND == SCALED, ADD = KIND == AS_THEY_ARE || KIND == SCALED };
  const int n_chunks = ONE_CHUNK ? 1 : (p.C + WIDTH - 1) / WIDTH,
            n_tiles = KIND == NORMED || KIND == HELD ? p.tiles_per_block : 1;
  const int64_t first_row = (int64_t)kr_block_x() * ROWS;
  const ending end = {p.out,           p.residual, p.skip,     p.skip_scale,
                      p.bias, nothing, p.out_row,  p.silu_from};
  held h;
  factors f;
  weights w;
  addends more;
  int side = 0, column0 = (int)kr_block_y() * n_tiles * COLUMNS;
  load<KIND>(p, first_row, 0, h);
  fetch_weights(p, 0, column0, w);
  const spots at = spots_of(p, first_row);
  if (KIND == NORMED) normalise(p, h);
  for (int i = 0; i < n_tiles && column0 < p.N; i++, column0 += COLUMNS) {
    sums acc;
    clear(acc);
    for (int chunk = 0; chunk < n_chunks; chunk++) {
      if (i == 0) { /* several column tiles imply a single chunk */
        side = chunk & 1;
#pragma unroll
        for (int r = 0; r < OWN_ROWS; r++) put4(tiles[side], own_row<KIND>(r), own_column(), h.v[r]);
        if (ADD && chunk + 1 == n_chunks) fetch(end, at, p.N, column0, more);
        kr_sync();
        take(tiles[side], f);
      }
      const int next = (chunk + 1) * WIDTH;
      if (!ONE_CHUNK && KIND != CONVOLVED && next < p.C) load<KIND>(p, first_row, next, h);
      multiply(tiles[side], f, w, acc);
      if (KIND == CONVOLVED && next < p.C) load<KIND>(p, first_row, next, h); /* its taps need the registers */
      if (!ONE_CHUNK && next < p.C) fetch_weights(p, next, column0, w);
    }
    if (i + 1 < n_tiles) fetch_weights(p, 0, column0 + COLUMNS, w);
    if (KIND == NORMED && p.gate) store_gated(end, at, p.N, column0, acc);
    else store<ADD>(end, at, p.N, column0, acc, more);
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS) kr_map_product(const kr_map_product_params p) { product<AS_THEY_ARE>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS) kr_map_product_held(const kr_map_product_params p) { product<HELD>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS) kr_map_product_norm(const kr_map_product_params p) { product<NORMED>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS) kr_map_product_scaled(const kr_map_product_params p) { product<SCALED>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS) kr_map_product_conv(const kr_map_product_params p) { product<CONVOLVED>(p); }

/* ---- few outputs: sixteen lanes share a position, four channels each --------------------------------------------- */

#ifndef KR_HALVES
enum { LANES = 16, GROUPS = KR_MAP_FEW_THREADS / LANES, AT_ONCE = 4 };

KR_KERNEL void KR_BOUNDS(KR_MAP_FEW_THREADS, 8) kr_map_product_few(const kr_map_product_params p) {
  const int lane = kr_thread() % LANES, c = lane * 4, exists = c < p.C;
  const float *weight = (const float *)p.weight;
  kr_float4 w[KR_MAP_FEW];
  float bias[KR_MAP_FEW];
#pragma unroll
  for (int n = 0; n < KR_MAP_FEW; n++) {
    bias[n] = p.bias && n < p.N ? p.bias[n] : 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++)
      w[n].v[j] = *(n < p.N && exists ? weight + n * p.weight_output + (c + j) * p.weight_row : nothing);
  }
  const int64_t first = (int64_t)kr_block_x() * KR_MAP_FEW_ROWS;
#pragma unroll 1
  for (int i0 = kr_thread() / LANES; i0 < KR_MAP_FEW_ROWS; i0 += GROUPS * AT_ONCE) {
    kr_float4 x[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
      x[i] = load4(exists ? p.x + (int64_t)clamped_row(p, first, i0 + i * GROUPS) * p.x_row + c : nothing);
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      const int64_t row = first + i0 + i * GROUPS;
      float own = 0.0f;
#pragma unroll
      for (int n = 0; n < KR_MAP_FEW; n++) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) sum = kr_fma(x[i].v[j], w[n].v[j], sum);
        sum = row_sum(sum) + bias[n];
        own = lane == n ? sum : own;
      }
      if (lane < p.N && row < p.n_rows) p.out[row * p.out_row + lane] = own;
    }
  }
}
#endif

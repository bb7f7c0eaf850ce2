/* primeknet_product.cu: tiles of rows made on the way into shared memory (normalised, scaled, filtered), multiplied
 * with one panel of weights or several, results changed on the way out; column moments for the norms behind. */
#include "primeknet_plan.h"
#include "tile64.cuh"

enum { HELD = ROWS * 16 / THREADS };

/* A thread makes four columns of some rows. They stay in registers until the tile is free, so that loads overlap each
 * other. */
typedef struct held {
  kr_float4 v[HELD];
} held;

template <int KIND>
KR_DEV int own_row(int i) {
  return KIND == KR_PK_A_CONV ? (kr_thread() >> 4) * HELD + i : (kr_thread() >> 4) + i * (THREADS / 16);
}
KR_DEV int own_column(void) { return (kr_thread() & 15) * 4; }

/* Rows beyond the last are made like the last, and not stored: no load has to be branched around. */
KR_DEV uint32_t clamped_row(const pk_product &p, int64_t first_row, int i) {
  const int64_t row = first_row + i;
  return (uint32_t)(row < p.rows_per_item ? row : p.rows_per_item - 1);
}

/* Channel c.. of source s at (f, t); outside, the zeros that the plan points at. */
KR_DEV const float *source_at(const pk_product &p, int s, int item, int f, int t, int c) {
  const float *from = p.A[s] + (((int64_t)item * p.F + f) * p.T.by + t) * p.K + c;
  return (uint32_t)f < (uint32_t)p.F && (uint32_t)t < p.T.by ? from : p.zeros;
}

KR_DEV void load_taps(const pk_product &p, int s, int item, int64_t first_row, int c, held &h) {
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const uint32_t row = clamped_row(p, first_row, own_row<KR_PK_A_TAPS>(i)), f = kr_divide(row, p.T);
    h.v[i] = load4(source_at(p, s, item, (int)f * p.f_step + p.f_offset[s], (int)(row - f * p.T.by), c));
  }
}

KR_DEV const float *factors_of(const pk_product &p, uint32_t row, int c) {
  const uint32_t f = kr_divide(row, p.T),
                 sequence = p.frames_are_sequences ? kr_divide(row, p.window) * p.T.by + (row - f * p.T.by) : f;
  return p.factors + (int64_t)sequence * p.K + c;
}

template <int KIND>
KR_DEV void load_rows(const pk_product &p, int item, int64_t first_row, int c, held &h) {
  const uint32_t whole = (uint32_t)(item * p.rows_per_item);
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const int64_t row = whole + clamped_row(p, first_row, own_row<KIND>(i));
    if (KIND != KR_PK_A_PAIR) h.v[i] = load4(p.A[0] + row * p.lda + c);
    else
      h.v[i].v[0] = c ? 0.0f : p.A[0][row * 2], h.v[i].v[1] = c ? 0.0f : p.A[0][row * 2 + 1],
      h.v[i].v[2] = h.v[i].v[3] = 0.0f;
  }
  if (KIND != KR_PK_A_SCALED) return;
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const kr_float4 factor = load4(factors_of(p, whole + clamped_row(p, first_row, own_row<KIND>(i)), c));
#pragma unroll
    for (int j = 0; j < 4; j++) h.v[i].v[j] *= factor.v[j];
  }
}

enum { TAPS_HELD = 4 };

/* Neighbouring rows share what they read. A tap that reaches before its sequence adds nothing. */
KR_DEV void load_convolved(const pk_product &p, int64_t first_row, int c, held &h) {
  const int first = (int)first_row + own_row<KR_PK_A_CONV>(0), rows = (int)p.rows_per_item, lda = (int)p.lda;
  const kr_float4 bias = load4(p.conv_b + c);
  int t[HELD];
#pragma unroll
  for (int i = 0; i < HELD; i++) {
    const uint32_t row = (uint32_t)(first + i);
    t[i] = (int)(row - kr_divide(row, p.T) * p.T.by);
    h.v[i] = bias;
  }
#pragma unroll 1
  for (int w0 = 0; w0 < p.n_taps; w0 += TAPS_HELD) {
    float taps[4][TAPS_HELD];
    kr_float4 in[HELD + TAPS_HELD - 1];
#pragma unroll
    for (int i = 0; i < HELD + TAPS_HELD - 1; i++) {
      const int row = first + i + w0 - (p.n_taps - 1);
      in[i] = load4((uint32_t)row < (uint32_t)rows ? p.A[0] + (int64_t)row * lda + c : p.zeros);
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int w = 0; w < TAPS_HELD; w++)
        taps[j][w] = *(c + j < p.n_convolved && w0 + w < p.n_taps ? p.conv_w + (c + j) * p.n_taps + w0 + w : p.zeros);
#pragma unroll
    for (int i = 0; i < HELD; i++)
#pragma unroll
      for (int w = 0; w < TAPS_HELD; w++)
        if (t[i] + w0 + w >= p.n_taps - 1)
#pragma unroll
          for (int j = 0; j < 4; j++) h.v[i].v[j] = kr_fma(taps[j][w], in[i + w].v[j], h.v[i].v[j]);
  }
#pragma unroll
  for (int i = 0; i < HELD; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) h.v[i].v[j] = kr_select(c + j < p.n_convolved, kr_silu(h.v[i].v[j]), 0.0f);
    if (first + i < rows) *(kr_float4 *)(p.made + (int64_t)(first + i) * p.K + c) = h.v[i];
  }
}

/* Columns c0.. of source s; beyond the source's width zeros. */
template <int KIND>
KR_DEV void load(const pk_product &p, int s, int item, int64_t first_row, int c0, held &h) {
  const int c = c0 + own_column();
  if (c >= p.K) {
#pragma unroll
    for (int i = 0; i < HELD; i++) h.v[i] = zero4();
  } else if (KIND == KR_PK_A_TAPS) load_taps(p, s, item, first_row, c, h);
  else if (KIND == KR_PK_A_CONV) load_convolved(p, first_row, c, h);
  else load_rows<KIND>(p, item, first_row, c, h);
}

/* ---- norm over the channels: of one tile at most; sixteen threads share a row ------------------------------------ */

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

/* ---- the way out ------------------------------------------------------------------------------------------------- */

template <int MOVED>
KR_DEV spots flat_spots(const pk_product &p, int item, int64_t first_row) {
  spots at;
  at.exists = 0;
  at.count = p.rows_per_item - first_row < ROWS ? (int)(p.rows_per_item - first_row) : ROWS;
#pragma unroll
  for (int i = 0; i < RESULTS; i++) {
    const uint32_t row = clamped_row(p, first_row, result_row(i)), f = kr_divide(row, p.T);
    at.row[i] = (uint32_t)((int64_t)item * p.rows_per_item) + row;
    if (MOVED && p.out_step)
      at.row[i] = ((uint32_t)item * p.out_F + f * p.out_step + p.out_offset) * p.T.by + (row - f * p.T.by);
    at.exists |= (uint32_t)(result_row(i) < at.count) << i;
  }
  return at;
}

KR_DEV ending ending_of(const pk_product &p, int panel) {
  return ending{p.out + panel * p.out_panel, p.E, p.X, p.beta, p.bias[panel], p.zeros, (int)p.ldo, p.silu_from};
}

template <int KIND>
KR_DEV void product(const pk_product &p) {
  KR_SHARED tile tiles[2];
  KR_SHARED column_totals totals;
  const int per_panel = (p.Np + COLUMNS - 1) / COLUMNS, item = kr_block_z();
  const int n_chunks = KIND == KR_PK_A_NORM || KIND == KR_PK_A_HELD || KIND == KR_PK_A_SCALED
                           ? 1
                           : (p.K + WIDTH - 1) / WIDTH * p.n_sources;
  const int n_tiles = KIND == KR_PK_A_NORM || KIND == KR_PK_A_HELD ? p.tiles_per_block : 1;
  const int64_t first_row = (int64_t)kr_block_x() * ROWS;
  enum { ADD = KIND == KR_PK_A_ROWS || KIND == KR_PK_A_SCALED };
  held h;
  factors f;
  weights w;
  addends more;
  int side = 0, panel = (int)(kr_block_y() * p.tiles_per_block) / per_panel,
      column0 = ((int)(kr_block_y() * p.tiles_per_block) - panel * per_panel) * COLUMNS;
  load<KIND>(p, 0, item, first_row, 0, h);
  fetch(panel_rows(p.w[panel], p.fragments, 0, p.Np), p.Np, p.K < WIDTH ? p.K : WIDTH, column0, w);
  const spots at = flat_spots<KIND == KR_PK_A_TAPS>(p, item, first_row);
  if (KIND == KR_PK_A_NORM) normalise(p, h);
  for (int i = 0; i < n_tiles; i++) {
    sums acc;
    clear(acc);
    for (int chunk = 0, s = 0, c0 = 0; chunk < n_chunks; chunk++) {
      if (i == 0) { /* with more column tiles than one there is one chunk */
        side = chunk & 1;
#pragma unroll
        for (int r = 0; r < HELD; r++) put4(tiles[side], own_row<KIND>(r), own_column(), h.v[r]);
        if (ADD && chunk + 1 == n_chunks) fetch(ending_of(p, panel), at, p.Np, 0, more);
        kr_sync();
        take(tiles[side], f);
      }
      c0 += WIDTH;
      if (c0 >= p.K) c0 = 0, s++;
      if (KIND != KR_PK_A_NORM && KIND != KR_PK_A_CONV && chunk + 1 < n_chunks)
        load<KIND>(p, s, item, first_row, c0, h);
      multiply(tiles[side], f, w, acc);
      if (KIND == KR_PK_A_CONV && chunk + 1 < n_chunks)
        load<KIND>(p, s, item, first_row, c0, h); /* its taps need the registers */
      if (chunk + 1 < n_chunks)
        fetch(panel_rows(p.w[panel], p.fragments, s * p.K + c0, p.Np), p.Np, p.K - c0 < WIDTH ? p.K - c0 : WIDTH,
              column0, w);
    }
    const int own_panel = panel, own_column0 = column0;
    column0 += COLUMNS;
    if (column0 >= p.Np) column0 = 0, panel++;
    if (i + 1 < n_tiles) fetch(panel_rows(p.w[panel], p.fragments, 0, p.Np), p.Np, p.K, column0, w);
    if (KIND == KR_PK_A_NORM && p.epilogue == KR_PK_GATE)
      store_gated(ending_of(p, own_panel), at, p.Np, own_column0, acc);
    else store<ADD>(ending_of(p, own_panel), at, p.Np, own_column0, acc, more);
    if (KIND == KR_PK_A_PAIR || KIND == KR_PK_A_TAPS)
      measure(p.partial + ((int64_t)item * p.partial_tiles + p.partial_first + kr_block_x()) * 3 * p.Np, p.Np,
              p.bias[0], at, own_column0, acc, totals);
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS) kr_pk_product(const pk_product p) { product<KR_PK_A_ROWS>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS) kr_pk_product_held(const pk_product p) { product<KR_PK_A_HELD>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS) kr_pk_product_norm(const pk_product p) { product<KR_PK_A_NORM>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS) kr_pk_product_conv(const pk_product p) { product<KR_PK_A_CONV>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS) kr_pk_product_scaled(const pk_product p) { product<KR_PK_A_SCALED>(p); }
#ifndef KR_HALVES
KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS) kr_pk_product_pair(const pk_product p) { product<KR_PK_A_PAIR>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS) kr_pk_product_taps(const pk_product p) { product<KR_PK_A_TAPS>(p); }
#endif

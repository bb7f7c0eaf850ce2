/* conv_norm.cu: a convolution along H as one product for every output: a tile of rows per tap, and the moments of the
 * result. */
#include "conv_norm_params.h"
#include "tile64.cuh"

enum { OWN_ROWS = ROWS * 16 / THREADS };

/* A thread loads four columns of some rows. */
typedef struct held {
  kr_float4 v[OWN_ROWS];
} held;

KR_DEV int own_row(int i) { return (kr_thread() >> 4) + i * (THREADS / 16); }
KR_DEV int own_column(void) { return (kr_thread() & 15) * 4; }

/* Rows past the last repeat it and are not stored: loads need no branch. */
KR_DEV uint32_t clamped_row(const kr_conv_norm_params &p, int64_t first_row, int i) {
  const int64_t row = first_row + i;
  return (uint32_t)(row < p.rows_per_item ? row : p.rows_per_item - 1);
}

/* Columns c0.. of tap k; FEW: positions with fewer than 16 channels, unaligned. */
template <int FEW>
KR_DEV void load(const kr_conv_norm_params &p, int k, int item, int64_t first_row, int c0, held &h) {
  const int c = c0 + own_column();
#pragma unroll
  for (int i = 0; i < OWN_ROWS; i++) {
    const uint32_t row = clamped_row(p, first_row, own_row(i)), line = kr_divide(row, p.W);
    const int from = (int)line * p.step + p.offset[k], exists = (uint32_t)from < (uint32_t)p.H;
    const float *x = p.x + item * p.x_b + from * p.x_h + (int64_t)(row - line * p.W.by) * p.x_w + c;
    if (!FEW) h.v[i] = load4(exists && c < p.C ? x : nothing);
    else
#pragma unroll
      for (int j = 0; j < 4; j++) h.v[i].v[j] = *(exists && c + j < p.C ? x + j : nothing);
  }
}

KR_DEV void fetch_weights(const kr_conv_norm_params &p, int k, int c0, int column0, weights &to) {
  fetch_rows(p.weight + p.tap_at[k] + (int64_t)c0 * p.weight_row, p.weight_row, p.N,
             p.C - c0 < WIDTH ? p.C - c0 : WIDTH, column0, to);
}

/* As multiply, for a number of inputs that is not a multiple of eight. */
KR_DEV void multiply_few(const tile &from, const weights &w, sums &s) {
  const float *rows = (const float *)from.words + (kr_thread() >> 4) * PITCH;
#pragma unroll 1
  for (int k = 0; k < w.K; k++) {
    const kr_float4 b = load4(w.at + (int64_t)k * w.Np);
#pragma unroll
    for (int i = 0; i < RESULTS; i++)
#pragma unroll
      for (int c = 0; c < 4; c++) s.v[i][c] = kr_fma(rows[i * 8 * PITCH + k], b.v[c], s.v[i][c]);
  }
}

KR_DEV spots spots_of(const kr_conv_norm_params &p, int item, int64_t first_row) {
  spots at;
  at.exists = 0;
  at.count = p.rows_per_item - first_row < ROWS ? (int)(p.rows_per_item - first_row) : ROWS;
#pragma unroll
  for (int i = 0; i < RESULTS; i++) {
    const uint32_t row = clamped_row(p, first_row, result_row(i)), h = kr_divide(row, p.W);
    at.row[i] = ((uint32_t)item * p.OH + h * p.out_step + p.out_offset) * p.W.by + (row - h * p.W.by);
    at.exists |= (uint32_t)(result_row(i) < at.count) << i;
  }
  return at;
}

template <int FEW>
KR_DEV void convolution(const kr_conv_norm_params &p) {
  KR_SHARED tile tiles[2];
  KR_SHARED column_totals totals;
  const int item = kr_block_z(), column0 = kr_block_y() * COLUMNS, per_tap = (p.C + WIDTH - 1) / WIDTH,
            n_chunks = per_tap * p.n_taps;
  const int64_t first_row = (int64_t)kr_block_x() * ROWS;
  held h;
  sums acc;
  clear(acc);
  load<FEW>(p, 0, item, first_row, 0, h);
  for (int chunk = 0, k = 0, c0 = 0; chunk < n_chunks; chunk++) {
    tile &own = tiles[chunk & 1];
    factors f;
    weights w;
#pragma unroll
    for (int r = 0; r < OWN_ROWS; r++) put4(own, own_row(r), own_column(), h.v[r]);
    fetch_weights(p, k, c0, column0, w);
    kr_sync();
    take(own, f);
    c0 += WIDTH;
    if (c0 >= p.C) c0 = 0, k++;
    if (chunk + 1 < n_chunks) load<FEW>(p, k, item, first_row, c0, h);
    if (FEW) multiply_few(own, w, acc);
    else multiply(own, f, w, acc);
  }
  const spots at = spots_of(p, item, first_row);
  store<0>(ending{p.out, NULL, NULL, NULL, NULL, nothing, p.N, p.N}, at, p.N, column0, acc, addends{});
  measure(p.partial + ((int64_t)item * p.n_tiles + p.first_tile + kr_block_x()) * 3 * p.N, p.N, NULL, at, column0, acc,
          totals);
}

KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS) kr_conv_norm(const kr_conv_norm_params p) { convolution<0>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS) kr_conv_norm_few(const kr_conv_norm_params p) { convolution<1>(p); }

/* dense_block.cu: a layer of a dense block: sources after their 3x3 filters times the layer's weights, and the moments
 * of the result. In the filter phase a warp has a position along W, a lane two channels. */
#include "dense_block_params.h"
#include "tile64.cuh"

/* Channels c and c + 1 of source s at SIDE positions along H from h0, w along W. Channels beyond C are zeros. */
KR_DEV void filter_nine(const kr_dense_block_params &p, int s, int item, int h0, int w, int c, tile &to, int row0) {
  const int exists = c < p.C, per_tap = exists ? p.tap : 0;
  const int64_t step = (int64_t)p.W * p.C;
  const float *taps_at = exists ? p.taps + s * p.C + c : nothing;
  const kr_float2 bias = load2(exists ? p.taps_bias + s * p.C + c : nothing);
  kr_float2 sums[SIDE];
#pragma unroll
  for (int i = 0; i < SIDE; i++) sums[i] = bias;
#pragma unroll 1
  for (int dw = 0; dw < 3; dw++) {
    const int from_w = w + (dw - (p.one_sided ? 2 : 1)) * p.dilation;
    /* No position along W, or no channel: an empty range along H. */
    const uint32_t limit = exists && (uint32_t)from_w < (uint32_t)p.W ? (uint32_t)p.H : 0;
    const float *x = p.sources[s] + (((int64_t)item * p.H + h0 - 1) * p.W + from_w) * p.C + c;
    kr_float2 in[SIDE + 2], taps[3];
#pragma unroll
    for (int i = 0; i < SIDE + 2; i++, x += step) in[i] = load2((uint32_t)(h0 + i - 1) < limit ? x : nothing);
#pragma unroll
    for (int k = 0; k < 3; k++, taps_at += per_tap) taps[k] = load2(taps_at);
#pragma unroll
    for (int i = 0; i < SIDE; i++)
#pragma unroll
      for (int k = 0; k < 3; k++)
#pragma unroll
        for (int j = 0; j < 2; j++) sums[i].v[j] = kr_fma(taps[k].v[j], in[i + k].v[j], sums[i].v[j]);
  }
#pragma unroll
  for (int i = 0; i < SIDE; i++) put2(to, row0 + i * SIDE, (kr_thread() & 31) * 2, sums[i].v[0], sums[i].v[1]);
}

/* The weights of source s. */
#ifdef KR_HALVES
KR_DEV const void *weight_of(const kr_dense_block_params &p, int s) { return (const uint16_t *)p.weight + s * p.C; }
#else
KR_DEV const void *weight_of(const kr_dense_block_params &p, int s) {
  return (const float *)p.weight + (int64_t)s * p.C * p.weight_row;
}
#endif

KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS + 1) kr_dense_block(const kr_dense_block_params p) {
  KR_SHARED tile tiles[2];
  KR_SHARED column_totals totals;
  const int item = kr_block_z(), h0 = kr_block_y() * SIDE, w0 = kr_block_x() * SIDE, warp = kr_thread() >> 5,
            c = (kr_thread() & 31) * 2,
            tile_index = (item * ((p.H + SIDE - 1) / SIDE) + kr_block_y()) * kr_grid_x() + kr_block_x();
  sums acc;
  clear(acc);
#pragma unroll 1
  for (int s = 0; s < p.n_sources; s++) {
    factors f;
#pragma unroll 1
    for (int i = 0; i < FRAMES; i++)
      filter_nine(p, s, item, h0, w0 + i * (SIDE / FRAMES) + warp, c, tiles[s & 1], i * (SIDE / FRAMES) + warp);
    weights w;
    fetch_rows(weight_of(p, s), p.weight_row, p.C, p.C, 0, w);
    kr_sync();
    take(tiles[s & 1], f);
    multiply(tiles[s & 1], f, w, acc);
  }
  const spots at = square_spots(item, p.H, p.W, h0, w0);
  store<0>(ending{p.out, NULL, NULL, NULL, NULL, NULL, p.C, p.C}, at, p.C, 0, acc, addends{});
  measure(p.partial + (int64_t)tile_index * 3 * p.C, p.C, NULL, at, 0, acc, totals);
}

/* filter_bank.cu: per chunk two filters along H, the product of one, times the other, and the product with the output
 * weights, summed over the chunks. In the filter phase a warp has a position along W, a lane two channels. */
#include "filter_bank_params.h"
#include "tile64.cuh"

enum { GATE_PITCH = 80, MOST_TAPS = 32, BATCH = 4 }; /* floats per row, 16 banks apart */

typedef struct filtered {
  kr_float2 a[SIDE], b[SIDE];
} filtered;

/* A chunk: its number, and its first tap. */
typedef struct chunk_of {
  int j, first, K;
} chunk_of;

/* Taps i of both filters at channels c and c + 1. */
KR_DEV kr_float4 taps_in_memory(const kr_filter_bank_params &p, const chunk_of &own, int i, int c) {
  const int used = i < own.K && c < p.C, at = own.first + i;
  const kr_float2 a = load2(used ? p.taps + (int64_t)at * p.tap + c : nothing),
                  b = load2(used ? p.gate_taps + (int64_t)at * p.gate_tap + c : nothing);
  return kr_float4{{a.v[0], a.v[1], b.v[0], b.v[1]}};
}

/* The tensor-core variant keeps MOST_TAPS of a chunk's taps in shared memory, zero-padded; the other has no room for
 * them. */
#ifdef KR_HALVES
typedef struct staged_taps {
  kr_float4 of[MOST_TAPS][32];
} staged_taps;

KR_DEV void stage_taps(const kr_filter_bank_params &p, const chunk_of &own, int first, staged_taps &to) {
  const int lane = kr_thread() & 31;
  for (int i = kr_thread() >> 5; i < MOST_TAPS && first + i < own.K + BATCH; i += THREADS / 32)
    to.of[i][lane] = taps_in_memory(p, own, first + i, lane * 2);
}

/* For chunks of more taps; called by all threads together. */
KR_DEV void stage_more(const kr_filter_bank_params &p, const chunk_of &own, int i0, staged_taps &to) {
  if (i0 == 0 || i0 % MOST_TAPS) return;
  kr_sync();
  stage_taps(p, own, i0, to);
  kr_sync();
}

KR_DEV kr_float4 taps_at(const kr_filter_bank_params &, const chunk_of &, int i, const staged_taps &staged) {
  return staged.of[i % MOST_TAPS][kr_thread() & 31];
}
#else
typedef struct staged_taps {
} staged_taps;

KR_DEV void stage_taps(const kr_filter_bank_params &, const chunk_of &, int, staged_taps &) {}
KR_DEV void stage_more(const kr_filter_bank_params &, const chunk_of &, int, staged_taps &) {}
KR_DEV kr_float4 taps_at(const kr_filter_bank_params &p, const chunk_of &own, int i, const staged_taps &) {
  return taps_in_memory(p, own, i, (kr_thread() & 31) * 2);
}
#endif

/* Both filters of a chunk at the block's positions along H, at one along W. The input moves through a register window,
 * with the next BATCH values in flight. */
KR_DEV void filter_both(const kr_filter_bank_params &p, const chunk_of &own, int h0, int w, staged_taps &staged,
                        filtered &to) {
  const int c = (kr_thread() & 31) * 2, K = own.K, before = p.one_sided ? K - 1 : (K - 1) / 2;
  const int exists = c < p.C, column = own.j * p.C + (exists ? c : 0);
  const uint32_t limit = exists && w < p.W ? (uint32_t)p.H : 0; /* no channel: an empty range */
  const kr_float2 bias_a = load2(exists ? p.taps_bias + column : nothing),
                  bias_b = load2(exists ? p.gate_bias + column : nothing);
  kr_float2 window[SIDE + BATCH];
  int h = h0 - before;
  const float *x = p.x + kr_block_z() * p.x_b + h * p.x_h + (int64_t)w * p.x_w + column;
#pragma unroll
  for (int i = 0; i < SIDE; i++) to.a[i] = bias_a, to.b[i] = bias_b;
#pragma unroll
  for (int i = 0; i < SIDE; i++, h++, x += p.x_h) window[i] = load2((uint32_t)h < limit ? x : nothing);
#pragma unroll 1
  for (int i0 = 0; i0 < K; i0 += BATCH) {
    stage_more(p, own, i0, staged);
#pragma unroll
    for (int i = 0; i < BATCH; i++, h++, x += p.x_h) window[SIDE + i] = load2((uint32_t)h < limit ? x : nothing);
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      const kr_float4 taps = taps_at(p, own, i0 + i, staged);
#pragma unroll
      for (int k = 0; k < SIDE; k++)
#pragma unroll
        for (int n = 0; n < 2; n++) {
          to.a[k].v[n] = kr_fma(taps.v[n], window[k + i].v[n], to.a[k].v[n]);
          to.b[k].v[n] = kr_fma(taps.v[2 + n], window[k + i].v[n], to.b[k].v[n]);
        }
    }
#pragma unroll
    for (int i = 0; i < SIDE; i++) window[i] = window[BATCH + i];
  }
}

/* The weights of chunk j: of its filtered inputs, and of its part of the outputs. */
#ifdef KR_HALVES
KR_DEV const void *weight_of(const kr_filter_bank_params &p, int j) {
  return (const uint16_t *)p.weight + (int64_t)j * p.C * p.weight_row;
}
KR_DEV const void *out_weight_of(const kr_filter_bank_params &p, int j) {
  return (const uint16_t *)p.out_weight + (int64_t)j * p.C;
}
#else
KR_DEV const void *weight_of(const kr_filter_bank_params &p, int j) {
  return (const float *)p.weight + (int64_t)j * p.C;
}
KR_DEV const void *out_weight_of(const kr_filter_bank_params &p, int j) {
  return (const float *)p.out_weight + (int64_t)j * p.C * p.out_weight_row;
}
#endif

KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS) kr_filter_bank(const kr_filter_bank_params p) {
  KR_SHARED tile rows;
  KR_SHARED float gates[ROWS * GATE_PITCH];
  KR_SHARED staged_taps staged;
  const int item = kr_block_z(), h0 = kr_block_y() * SIDE, w0 = kr_block_x() * SIDE, warp = kr_thread() >> 5,
            c = (kr_thread() & 31) * 2;
  sums total;
  chunk_of own = {0, 0, p.K[0]};
  clear(total);
  stage_taps(p, own, 0, staged);
  kr_sync();
#pragma unroll 1
  while (own.j < p.n_chunks) {
    factors f;
    weights w;
    sums acc;
#pragma unroll 1
    for (int step = warp; step < SIDE; step += SIDE / FRAMES) {
      filtered h;
      filter_both(p, own, h0, w0 + step, staged, h);
#pragma unroll
      for (int i = 0; i < SIDE; i++) {
        put2(rows, i * SIDE + step, c, h.a[i].v[0], h.a[i].v[1]);
        *(kr_float2 *)(gates + (i * SIDE + step) * GATE_PITCH + c) = h.b[i];
      }
    }
    fetch_rows(weight_of(p, own.j), p.weight_row, p.C, p.C, 0, w);
    kr_sync();
    const int j = own.j, column = result_column() < p.C ? result_column() : 0;
    own = chunk_of{j + 1, own.first + own.K, j + 1 < p.n_chunks ? p.K[j + 1] : 0};
    if (own.j < p.n_chunks) stage_taps(p, own, 0, staged);
    clear(acc);
    take(rows, f);
    multiply(rows, f, w, acc);
    fetch_rows(out_weight_of(p, j), p.out_weight_row, p.C, p.C, 0, w);
    kr_sync();
    const kr_float4 bias = load4(p.weight_bias + j * p.C + column);
#pragma unroll
    for (int i = 0; i < RESULTS; i++) {
      kr_float4 v = with_bias(acc, i, bias);
      const kr_float4 b = load4(gates + result_row(i) * GATE_PITCH + result_column());
#pragma unroll
      for (int k = 0; k < 4; k++) v.v[k] *= b.v[k];
      put4(rows, result_row(i), result_column(), v);
    }
    kr_sync();
    take(rows, f);
    multiply(rows, f, w, total);
    kr_sync();
  }
  const ending end = {p.out, p.residual, p.skip, p.skip_scale, p.out_bias, NULL, p.row, p.C};
  const spots at = square_spots(item, p.H, p.W, h0, w0);
  addends more;
  fetch(end, at, p.C, 0, more);
  store<1>(end, at, p.C, 0, total, more);
}

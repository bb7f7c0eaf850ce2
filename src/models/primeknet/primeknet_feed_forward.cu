/* primeknet_feed_forward.cu: the prime kernel net of the frequency stage but for its first product: per chunk two
 * filters along the frequencies, the product of one, times the other, and the product with the output's rows, summed
 * over the chunks. A block has SIDE frequencies of SIDE frames; while it filters, a warp has a frame, a lane two
 * channels. */
#include "primeknet_tile.cuh"

enum { GATE_PITCH = 80, MOST_TAPS = 32, BATCH = 4 }; /* floats from row to row, 16 banks apart */

typedef struct filtered {
  kr_float2 a[SIDE], b[SIDE];
} filtered;

/* Taps j of both filters at channels c and c + 1. */
KR_DEV kr_float4 taps_in_memory(const pk_feed_forward &p, int chunk, int j, int c) {
  const int used = j < p.k[chunk] && c < p.Cp;
  const kr_float2 a = load2(used ? p.taps[chunk] + j * p.Cp + c : p.zeros),
                  b = load2(used ? p.other_taps[chunk] + j * p.Cp + c : p.zeros);
  return kr_float4{{a.v[0], a.v[1], b.v[0], b.v[1]}};
}

/* The tensor cores' blocks keep MOST_TAPS of a chunk's taps in shared memory, beyond the last zeros; the others have no
 * room for them. */
#ifdef KR_HALVES
typedef struct staged_taps {
  kr_float4 of[MOST_TAPS][32];
} staged_taps;

KR_DEV void stage_taps(const pk_feed_forward &p, int chunk, int first, staged_taps &to) {
  const int lane = kr_thread() & 31;
  for (int j = kr_thread() >> 5; j < MOST_TAPS && first + j < p.k[chunk] + BATCH; j += THREADS / 32)
    to.of[j][lane] = taps_in_memory(p, chunk, first + j, lane * 2);
}

/* For chunks of more taps: all threads come here together. */
KR_DEV void stage_more(const pk_feed_forward &p, int chunk, int j0, staged_taps &to) {
  if (j0 == 0 || j0 % MOST_TAPS) return;
  kr_sync();
  stage_taps(p, chunk, j0, to);
  kr_sync();
}

KR_DEV kr_float4 taps_at(const pk_feed_forward &, int, int j, const staged_taps &staged) {
  return staged.of[j % MOST_TAPS][kr_thread() & 31];
}
#else
typedef struct staged_taps {
} staged_taps;

KR_DEV void stage_taps(const pk_feed_forward &, int, int, staged_taps &) {}
KR_DEV void stage_more(const pk_feed_forward &, int, int, staged_taps &) {}
KR_DEV kr_float4 taps_at(const pk_feed_forward &p, int chunk, int j, const staged_taps &) {
  return taps_in_memory(p, chunk, j, (kr_thread() & 31) * 2);
}
#endif

/* Both filters of a chunk at the block's frequencies of one frame. The input moves through a window of registers: the
 * BATCH values behind the others are on their way while those are used. */
KR_DEV void filter_both(const pk_feed_forward &p, int chunk, int item, int f0, int t, staged_taps &staged,
                        filtered &h) {
  const int c = (kr_thread() & 31) * 2, k = p.k[chunk], before = p.causal ? k - 1 : (k - 1) / 2;
  const uint32_t limit = c < p.Cp && t < (int)p.T.by ? (uint32_t)p.F : 0; /* no channel, no frequencies */
  const int64_t width = (int64_t)p.n_chunks * p.Cp, step = p.T.by * width;
  const float *x = p.h + (((int64_t)item * p.F + f0 - before) * p.T.by + t) * width + (int64_t)chunk * p.Cp + c;
  const kr_float2 bias_a = load2(c < p.Cp ? p.taps_bias[chunk] + c : p.zeros),
                  bias_b = load2(c < p.Cp ? p.other_bias[chunk] + c : p.zeros);
  kr_float2 window[SIDE + BATCH];
  int f = f0 - before;
#pragma unroll
  for (int i = 0; i < SIDE; i++) h.a[i] = bias_a, h.b[i] = bias_b;
#pragma unroll
  for (int i = 0; i < SIDE; i++, f++, x += step) window[i] = load2((uint32_t)f < limit ? x : p.zeros);
#pragma unroll 1
  for (int j0 = 0; j0 < k; j0 += BATCH) {
    stage_more(p, chunk, j0, staged);
#pragma unroll
    for (int i = 0; i < BATCH; i++, f++, x += step) window[SIDE + i] = load2((uint32_t)f < limit ? x : p.zeros);
#pragma unroll
    for (int j = 0; j < BATCH; j++) {
      const kr_float4 taps = taps_at(p, chunk, j0 + j, staged);
#pragma unroll
      for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int n = 0; n < 2; n++) {
          h.a[i].v[n] = kr_fma(taps.v[n], window[i + j].v[n], h.a[i].v[n]);
          h.b[i].v[n] = kr_fma(taps.v[2 + n], window[i + j].v[n], h.b[i].v[n]);
        }
    }
#pragma unroll
    for (int i = 0; i < SIDE; i++) window[i] = window[BATCH + i];
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS) kr_pk_feed_forward(const pk_feed_forward p) {
  KR_SHARED tile rows;
  KR_SHARED float gates[ROWS * GATE_PITCH];
  KR_SHARED staged_taps staged;
  const int item = kr_block_z(), f0 = kr_block_y() * SIDE, t0 = kr_block_x() * SIDE, warp = kr_thread() >> 5,
            c = (kr_thread() & 31) * 2;
  sums total;
  clear(total);
  stage_taps(p, 0, 0, staged);
  kr_sync();
#pragma unroll 1
  for (int chunk = 0; chunk < p.n_chunks; chunk++) {
    factors f;
    weights w;
    sums acc;
#pragma unroll 1
    for (int frame = warp; frame < SIDE; frame += SIDE / FRAMES) {
      filtered h;
      filter_both(p, chunk, item, f0, t0 + frame, staged, h);
#pragma unroll
      for (int i = 0; i < SIDE; i++) {
        put2(rows, i * SIDE + frame, c, h.a[i].v[0], h.a[i].v[1]);
        *(kr_float2 *)(gates + (i * SIDE + frame) * GATE_PITCH + c) = h.b[i];
      }
    }
    fetch(panel_rows(p.attn[chunk], p.fragments, 0, p.Np), p.Np, p.Cp, 0, w);
    kr_sync();
    if (chunk + 1 < p.n_chunks) stage_taps(p, chunk + 1, 0, staged);
    clear(acc);
    take(rows, f);
    multiply(rows, f, w, acc);
    fetch(panel_rows(p.w[chunk], p.fragments, 0, p.Np), p.Np, p.Cp, 0, w);
    kr_sync();
    const kr_float4 bias = load4(result_column() < p.Np ? p.attn_bias[chunk] + result_column() : p.zeros);
#pragma unroll
    for (int i = 0; i < RESULTS; i++) {
      kr_float4 v = with_bias(acc, i, bias);
      const kr_float4 b = load4(gates + result_row(i) * GATE_PITCH + result_column());
#pragma unroll
      for (int j = 0; j < 4; j++) v.v[j] *= b.v[j];
      put4(rows, result_row(i), result_column(), v);
    }
    kr_sync();
    take(rows, f);
    multiply(rows, f, w, total);
    kr_sync();
  }
  const ending end = {p.out, p.E, p.X, p.beta, p.bias, p.zeros, p.Cp, p.Np};
  const spots at = square_spots(item, p.F, (int)p.T.by, f0, t0);
  addends more;
  fetch(end, at, p.Np, more);
  store<1>(end, at, p.Np, 0, total, more);
}

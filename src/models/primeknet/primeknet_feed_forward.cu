/* primeknet_feed_forward.cu: the prime kernel net of the frequency stage but for its first product: per chunk two filters along the
 * frequencies, the product of one, times the other, and the product with the output's rows, summed over the chunks. A block has SIDE
 * frequencies of SIDE frames; while it filters, a warp has a frame, a lane two channels. */
#include "primeknet_tile.cuh"

enum { GATE_PITCH = 80 }; /* floats; rows 16 banks apart */

typedef struct filtered {
  kr_float2 a[SIDE], b[SIDE];
} filtered;

/* Both filters of a chunk at the block's frequencies of one frame, the input moving through a ring of registers. */
KR_DEV void filter_both(const pk_feed_forward &p, int chunk, int item, int f0, int t, filtered &h) {
  const int c = (kr_thread() & 31) * 2, k = p.k[chunk], before = p.causal ? k - 1 : (k - 1) / 2, exists = c < p.Cp && t < (int)p.T.by;
  const int64_t width = (int64_t)p.n_chunks * p.Cp, step = p.T.by * width;
  const float *x = p.h + ((int64_t)item * p.F * p.T.by + t) * width + (int64_t)chunk * p.Cp + c, *taps_a = p.taps[chunk] + c, *taps_b = p.other_taps[chunk] + c;
  kr_float2 ring[SIDE];
#pragma unroll
  for (int i = 0; i < SIDE; i++) h.a[i] = load2(exists ? p.taps_bias[chunk] + c : p.zeros), h.b[i] = load2(exists ? p.other_bias[chunk] + c : p.zeros);
#pragma unroll
  for (int i = 0; i < SIDE - 1; i++) {
    const int f = f0 + i - before;
    ring[i] = load2(exists && (uint32_t)f < (uint32_t)p.F ? x + f * step : p.zeros);
  }
#pragma unroll 1
  for (int j0 = 0; j0 < k; j0 += SIDE)
#pragma unroll
    for (int j = 0; j < SIDE; j++) {
      const int f = f0 + SIDE - 1 + j0 + j - before, used = exists && j0 + j < k;
      const kr_float2 ta = load2(used ? taps_a + (j0 + j) * p.Cp : p.zeros), tb = load2(used ? taps_b + (j0 + j) * p.Cp : p.zeros);
      ring[(SIDE - 1 + j) % SIDE] = load2(used && (uint32_t)f < (uint32_t)p.F ? x + f * step : p.zeros);
#pragma unroll
      for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int n = 0; n < 2; n++) {
          h.a[i].v[n] = kr_fma(ta.v[n], ring[(i + j) % SIDE].v[n], h.a[i].v[n]);
          h.b[i].v[n] = kr_fma(tb.v[n], ring[(i + j) % SIDE].v[n], h.b[i].v[n]);
        }
    }
}

KR_KERNEL void KR_BOUNDS(THREADS, BLOCKS) kr_pk_feed_forward(const pk_feed_forward p) {
  KR_SHARED tile rows;
  KR_SHARED float gates[ROWS * GATE_PITCH];
  const int item = kr_block_z(), f0 = kr_block_y() * SIDE, t0 = kr_block_x() * SIDE, warp = kr_thread() >> 5, c = (kr_thread() & 31) * 2;
  sums total;
  clear(total);
#pragma unroll 1
  for (int chunk = 0; chunk < p.n_chunks; chunk++) {
    factors f;
    sums acc;
#pragma unroll 1
    for (int frame = warp; frame < SIDE; frame += SIDE / FRAMES) {
      filtered h;
      filter_both(p, chunk, item, f0, t0 + frame, h);
#pragma unroll
      for (int i = 0; i < SIDE; i++) {
        put2(rows, i * SIDE + frame, c, h.a[i].v[0], h.a[i].v[1]);
        *(kr_float2 *)(gates + (i * SIDE + frame) * GATE_PITCH + c) = h.b[i];
      }
    }
    kr_sync();
    clear(acc);
    take(rows, f);
    multiply(rows, f, panel_rows(p.attn[chunk], p.fragments, 0, p.Np), p.Np, p.Cp, 0, acc);
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
    multiply(rows, f, panel_rows(p.w[chunk], p.fragments, 0, p.Np), p.Np, p.Cp, 0, total);
    kr_sync();
  }
  store<1>(ending{p.out, p.E, p.X, p.beta, p.bias, p.Cp}, square_spots(item, p.F, (int)p.T.by, f0, t0), p.Np, 0, total);
}

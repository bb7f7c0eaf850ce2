/* rnn.cu: layers of GRU and LSTM after their input product (rnn_ref.c has the equations). A block steps
 * KR_RNN_SEQUENCES sequences through time; h is in shared memory with the sequences innermost, the weight comes from
 * the cache.
 *   kr_rnn_turn      transposes the weight, units outermost, for coalesced reads
 *   kr_rnn           the layer
 *   kr_rnn_back      dx and dU, step by step from the end
 *   kr_rnn_products  dweight and dbias of a part of all steps: products of dU and h
 *   kr_rnn_sums      reduces the parts in a fixed order */
#include "pack.cuh"
#include "rnn_params.h"

enum { S = KR_RNN_SEQUENCES };

KR_DEV float tanh_of(float x) {
  const float e = kr_exp(-2.0f * __builtin_fabsf(x)),
              y = __builtin_fabsf(x) < 0.04f
                      ? __builtin_fabsf(x) * kr_fma(x * x, kr_fma(x * x, 0.13333333f, -0.33333333f), 1.0f)
                      : (1.0f - e) / (1.0f + e);
  return x < 0.0f ? -y : x > 0.0f ? y : x;
}
KR_DEV float value(const kr_view &v, int64_t b, int64_t t, int64_t k) {
  return ((const float *)v.data)[b * v.stride[0] + t * v.stride[1] + k * v.stride[2]];
}

KR_KERNEL void KR_BOUNDS(KR_RNN_THREADS, 4) kr_rnn_turn(const kr_rnn_params p) {
  const int64_t thread = (int64_t)kr_block_x() * KR_RNN_THREADS + kr_thread(), all = p.gates * p.H, k = thread / all,
                g = thread - k * all;
  if (k < p.H) p.turned[thread] = ((const float *)p.weight.data)[g * p.weight.stride[0] + k * p.weight.stride[1]];
}

/* U[g][s] = bias + sum over k of weight[g][k] h[k][s], by all threads. */
KR_DEV void hidden_part(const kr_rnn_params &p, const float *h, float *U) {
  const int all = p.gates * (int)p.H;
  for (int g = kr_thread(); g < all; g += KR_RNN_THREADS) {
    float sum[S];
    const float bias = p.bias.data ? ((const float *)p.bias.data)[g * p.bias.stride[0]] : 0.0f, *w = p.turned + g;
#pragma unroll
    for (int s = 0; s < S; s++) sum[s] = bias;
#pragma unroll 8
    for (int k = 0; k < (int)p.H; k++) {
      const float by = w[(int64_t)k * all];
      const kr_float4 low = *(const kr_float4 *)(h + k * S), high = *(const kr_float4 *)(h + k * S + 4);
#pragma unroll
      for (int s = 0; s < 4; s++) sum[s] = kr_fma(by, low.v[s], sum[s]), sum[s + 4] = kr_fma(by, high.v[s], sum[s + 4]);
    }
#pragma unroll
    for (int s = 0; s < S; s++) U[g * S + s] = sum[s];
  }
}

/* Shared memory: h[H][S], c[H][S], U[gates H][S]. A thread takes units of one sequence; adjacent threads take adjacent
 * units, coalesced. */
KR_KERNEL void KR_BOUNDS(KR_RNN_THREADS, 2) kr_rnn(const kr_rnn_params p) {
  KR_DYNAMIC_SHARED(bytes);
  const int H = (int)p.H;
  float *const h = (float *)bytes, *const c = h + H * S, *const U = c + H * S;
  const int64_t b0 = (int64_t)kr_block_x() * S;
  for (int i = kr_thread(); i < 2 * H * S; i += KR_RNN_THREADS) h[i] = 0.0f;
  kr_sync();
  for (int64_t t = 0; t < p.L; t++) {
    hidden_part(p, h, U);
    kr_sync();
    for (int i = kr_thread(); i < H * S; i += KR_RNN_THREADS) {
      const int s = i / H, k = i - s * H, at = k * S + s;
      const int64_t b = b0 + s;
      if (b >= p.B) continue;
      float next;
      if (p.is_lstm) {
        const float in = kr_sigmoid(value(p.x, b, t, k) + U[at]),
                    keep = kr_sigmoid(value(p.x, b, t, H + k) + U[H * S + at]);
        const float g = tanh_of(value(p.x, b, t, 2 * H + k) + U[2 * H * S + at]),
                    o = kr_sigmoid(value(p.x, b, t, 3 * H + k) + U[3 * H * S + at]);
        const float cell = kr_fma(keep, c[at], in * g);
        c[at] = cell;
        if (p.cells.data)
          ((float *)p.cells.data)[b * p.cells.stride[0] + t * p.cells.stride[1] + k * p.cells.stride[2]] = cell;
        next = o * tanh_of(cell);
      } else {
        const float r = kr_sigmoid(value(p.x, b, t, k) + U[at]),
                    z = kr_sigmoid(value(p.x, b, t, H + k) + U[H * S + at]),
                    n = tanh_of(kr_fma(r, U[2 * H * S + at], value(p.x, b, t, 2 * H + k)));
        next = kr_fma(z, h[at] - n, n);
      }
      h[at] = next;
      ((float *)p.out.data)[b * p.out.stride[0] + t * p.out.stride[1] + k * p.out.stride[2]] = next;
    }
    kr_sync();
  }
}

/* Shared memory: h (of the previous step), direct, dc, dh: [H][S] each, U and then dU: [gates H][S]; partial sums over
 * gates: [KR_RNN_THREADS][S]. */
KR_KERNEL void KR_BOUNDS(KR_RNN_THREADS, 2) kr_rnn_back(const kr_rnn_params p) {
  KR_DYNAMIC_SHARED(bytes);
  const int H = (int)p.H, all = p.gates * H;
  float *const h = (float *)bytes, *const direct = h + H * S, *const dc = direct + H * S, *const dh = dc + H * S,
               *const U = dh + H * S, *const sums = U + all * S;
  const int groups = KR_RNN_THREADS / H < all ? KR_RNN_THREADS / H : all, group = kr_thread() / H,
            unit = kr_thread() - group * H; /* threads per group, one per unit */
  const int64_t b0 = (int64_t)kr_block_x() * S;
  for (int i = kr_thread(); i < 4 * H * S; i += KR_RNN_THREADS) h[i] = 0.0f;
  for (int64_t t = p.L - 1; t >= 0; t--) {
    kr_sync();
    for (int i = kr_thread(); i < H * S; i += KR_RNN_THREADS) {
      const int s = i / H, k = i - s * H;
      h[k * S + s] = t > 0 && b0 + s < p.B ? value(p.out, b0 + s, t - 1, k) : 0.0f;
    }
    kr_sync();
    hidden_part(p, h, U);
    kr_sync();
    for (int i = kr_thread(); i < H * S; i += KR_RNN_THREADS) {
      const int s = i / H, k = i - s * H, at = k * S + s;
      const int64_t b = b0 + s;
      if (b >= p.B) {
        for (int g = 0; g < p.gates; g++) U[g * H * S + at] = 0.0f;
        direct[at] = 0.0f;
        continue;
      }
      float *const dx = (float *)p.dx.data + b * p.dx.stride[0] + t * p.dx.stride[1];
      const float d = dh[at] + value(p.dout, b, t, k);
      if (p.is_lstm) {
        const float in = kr_sigmoid(value(p.x, b, t, k) + U[at]),
                    keep = kr_sigmoid(value(p.x, b, t, H + k) + U[H * S + at]);
        const float g = tanh_of(value(p.x, b, t, 2 * H + k) + U[2 * H * S + at]),
                    o = kr_sigmoid(value(p.x, b, t, 3 * H + k) + U[3 * H * S + at]);
        const float before = t > 0 ? value(p.cells, b, t - 1, k) : 0.0f, squashed = tanh_of(value(p.cells, b, t, k)),
                    cell = kr_fma(d * o, 1.0f - squashed * squashed, dc[at]);
        const float slopes[4] = {cell * g * in * (1.0f - in), cell * before * keep * (1.0f - keep),
                                 cell * in * (1.0f - g * g), d * squashed * o * (1.0f - o)};
#pragma unroll
        for (int gate = 0; gate < 4; gate++) dx[(gate * H + k) * p.dx.stride[2]] = U[gate * H * S + at] = slopes[gate];
        dc[at] = cell * keep, direct[at] = 0.0f;
      } else {
        const float r = kr_sigmoid(value(p.x, b, t, k) + U[at]),
                    z = kr_sigmoid(value(p.x, b, t, H + k) + U[H * S + at]), u = U[2 * H * S + at],
                    n = tanh_of(kr_fma(r, u, value(p.x, b, t, 2 * H + k)));
        const float dn = d * (1.0f - z) * (1.0f - n * n), dr = dn * u * r * (1.0f - r),
                    dz = d * (h[at] - n) * z * (1.0f - z);
        dx[k * p.dx.stride[2]] = U[at] = dr, dx[(H + k) * p.dx.stride[2]] = U[H * S + at] = dz,
               dx[(2 * H + k) * p.dx.stride[2]] = dn;
        U[2 * H * S + at] = dn * r, p.scaled[(b * p.L + t) * H + k] = dn * r;
        direct[at] = d * z;
      }
    }
    kr_sync();
    if (group < groups) { /* dh = direct + weight^T dU: a group takes every groups-th gate, for all sequences */
      const float *const w = (const float *)p.weight.data + unit * p.weight.stride[1];
      float sum[S];
#pragma unroll
      for (int s = 0; s < S; s++) sum[s] = 0.0f;
#pragma unroll 8
      for (int g = group; g < all; g += groups) {
        const float by = w[g * p.weight.stride[0]];
        const kr_float4 low = *(const kr_float4 *)(U + g * S), high = *(const kr_float4 *)(U + g * S + 4);
#pragma unroll
        for (int s = 0; s < 4; s++)
          sum[s] = kr_fma(by, low.v[s], sum[s]), sum[s + 4] = kr_fma(by, high.v[s], sum[s + 4]);
      }
#pragma unroll
      for (int s = 0; s < S; s++) sums[kr_thread() * S + s] = sum[s];
    }
    kr_sync();
    for (int i = kr_thread(); i < H * S; i += KR_RNN_THREADS) {
      float sum = direct[i];
      for (int g = 0; g < groups; g++) sum += sums[g * H * S + i];
      dh[i] = sum;
    }
  }
}

/* ---- the parameters: dweight[g][k] = sum over (b, t) of dU[g] h(t - 1)[k]; a block takes a tile of 64 x 64 of one
 * part ---- */

KR_DEV float dU_at(const kr_rnn_params &p, uint32_t row, int64_t g) {
  if (!p.is_lstm && g >= 2 * p.H) return p.scaled[row * p.H + g - 2 * p.H];
  const uint32_t b = kr_divide(row, p.steps);
  return value(p.dx, b, row - b * p.steps.by, g);
}
KR_DEV float h_before(const kr_rnn_params &p, uint32_t row, int64_t k) {
  const uint32_t b = kr_divide(row, p.steps), t = row - b * p.steps.by;
  return t > 0 ? value(p.out, b, t - 1, k) : 0.0f;
}

KR_KERNEL void KR_BOUNDS(KR_RNN_THREADS, 2) kr_rnn_products(const kr_rnn_params p) {
  KR_SHARED float left[KR_RNN_SUM_DEPTH][KR_RNN_SUM_TILE], right[KR_RNN_SUM_DEPTH][KR_RNN_SUM_TILE];
  const int64_t g0 = (int64_t)kr_block_x() * KR_RNN_SUM_TILE, k0 = (int64_t)kr_block_y() * KR_RNN_SUM_TILE,
                all = p.gates * p.H, n = p.B * p.L;
  const int64_t first = kr_block_z() * p.rows, end = min64(n, first + p.rows);
  const int row = kr_thread() / 16, column = kr_thread() % 16;
  float sum[4][4] = {}, bias[4] = {};
  for (int64_t r0 = first; r0 < end; r0 += KR_RNN_SUM_DEPTH) {
    for (int i = kr_thread(); i < KR_RNN_SUM_DEPTH * KR_RNN_SUM_TILE; i += KR_RNN_THREADS) {
      const int64_t r = r0 + i / KR_RNN_SUM_TILE, g = g0 + i % KR_RNN_SUM_TILE, k = k0 + i % KR_RNN_SUM_TILE;
      left[i / KR_RNN_SUM_TILE][i % KR_RNN_SUM_TILE] = r < end && g < all ? dU_at(p, (uint32_t)r, g) : 0.0f;
      right[i / KR_RNN_SUM_TILE][i % KR_RNN_SUM_TILE] = r < end && k < p.H ? h_before(p, (uint32_t)r, k) : 0.0f;
    }
    kr_sync();
#pragma unroll
    for (int r = 0; r < KR_RNN_SUM_DEPTH; r++) {
      const kr_float4 a = *(const kr_float4 *)&left[r][row * 4], b = *(const kr_float4 *)&right[r][column * 4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        bias[i] += a.v[i];
#pragma unroll
        for (int j = 0; j < 4; j++) sum[i][j] = kr_fma(a.v[i], b.v[j], sum[i][j]);
      }
    }
    kr_sync();
  }
  float *const to = p.partial + kr_block_z() * all * (p.H + 1);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int64_t g = g0 + row * 4 + i;
    if (g >= all) continue;
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (k0 + column * 4 + j < p.H) to[g * (p.H + 1) + k0 + column * 4 + j] = sum[i][j];
    if (kr_block_y() == 0 && column == 0) to[g * (p.H + 1) + p.H] = bias[i];
  }
}

KR_KERNEL void KR_BOUNDS(KR_RNN_THREADS, 4) kr_rnn_sums(const kr_rnn_params p) {
  const int64_t thread = (int64_t)kr_block_x() * KR_RNN_THREADS + kr_thread(), all = p.gates * p.H * (p.H + 1),
                g = thread / (p.H + 1), k = thread - g * (p.H + 1);
  if (thread >= all) return;
  float sum = 0.0f;
#pragma unroll 8
  for (int part = 0; part < p.n_parts; part++) sum += p.partial[part * all + thread];
  if (k == p.H) {
    if (p.dbias.data) ((float *)p.dbias.data)[g * p.dbias.stride[0]] = sum;
  } else if (p.dweight.data) ((float *)p.dweight.data)[g * p.dweight.stride[0] + k * p.dweight.stride[1]] = sum;
}

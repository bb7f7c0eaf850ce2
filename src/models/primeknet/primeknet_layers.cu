/* primeknet_layers.cu: what lies between PrimeKnet's products: filters along frequency, pooled means, the moments of
 * instance norms. */
#include "pack.cuh"
#include "primeknet_plan.h"

KR_DEV kr_float4 load4(const float *from) { return *(const kr_float4 *)from; }
KR_DEV int64_t thread_index(void) { return (int64_t)kr_block_x() * kr_block_threads() + kr_thread(); }

/* ---- instance norm: all tiles of eight channels by one block ----------------------------------------------------- */

enum { MOMENT_CHANNELS = 8, MOMENT_THREADS = 512, MOMENT_PARTS = MOMENT_THREADS / MOMENT_CHANNELS };

KR_DEV double shuffle_xor(double v, int mask) {
  const uint64_t bits = __builtin_bit_cast(uint64_t, v);
  const uint32_t low = kr_float_to_bits(kr_shuffle_xor(kr_bits_to_float((uint32_t)bits), mask));
  const uint32_t high = kr_float_to_bits(kr_shuffle_xor(kr_bits_to_float((uint32_t)(bits >> 32)), mask));
  return __builtin_bit_cast(double, (uint64_t)high << 32 | low);
}

/* The sum over the threads of a channel, for all of them; first over the warp's. */
KR_DEV double sum_parts(double own, double *sums) {
#pragma unroll
  for (int d = MOMENT_CHANNELS; d < 32; d <<= 1) own += shuffle_xor(own, d);
  if ((kr_thread() & 31) < MOMENT_CHANNELS) sums[kr_thread() / 32 * MOMENT_CHANNELS + (kr_thread() & 31)] = own;
  kr_sync();
  double sum = 0;
#pragma unroll
  for (int i = 0; i < MOMENT_THREADS / 32; i++) sum += sums[i * MOMENT_CHANNELS + kr_thread() % MOMENT_CHANNELS];
  return sum;
}

/* Sums of squares around zero, of float32 means in double: what cancels has digits enough. */
KR_KERNEL void KR_BOUNDS(MOMENT_THREADS, 1) kr_pk_moments(const pk_moments p) {
  KR_SHARED double sums[3][MOMENT_THREADS / 32 * MOMENT_CHANNELS];
  const int own = kr_block_x() * MOMENT_CHANNELS + kr_thread() % MOMENT_CHANNELS, item = kr_block_y(),
            c = own < p.C ? own : 0;
  double n = 0, sum = 0, squares = 0;
#pragma unroll 4
  for (int i = kr_thread() / MOMENT_CHANNELS; i < p.n_tiles; i += MOMENT_PARTS) {
    const float *tile = p.partial + ((int64_t)item * p.n_tiles + i) * 3 * p.C + c;
    const double count = (double)tile[0], mean = (double)tile[p.C];
    n += count;
    sum += count * mean;
    squares += (double)tile[2 * p.C] + count * mean * mean;
  }
  n = sum_parts(n, sums[0]);
  const double mean = sum_parts(sum, sums[1]) / n, variance = sum_parts(squares, sums[2]) / n - mean * mean;
  if (kr_thread() >= MOMENT_CHANNELS || own >= p.C) return;
  const double scale = (p.weight ? p.weight[c] : p.weight_one) / __builtin_sqrt((variance > 0 ? variance : 0) + 1e-5);
  p.scale[(int64_t)item * p.C + c] = (float)scale;
  p.shift[(int64_t)item * p.C + c] = (float)((p.bias ? p.bias[c] : p.bias_one) - mean * scale);
}

/* ---- the gate of the frequency stage's attention
 * ------------------------------------------------------------------------ A thread has four channels of a row, a block
 * some frequencies next to each other of one frame: neighbours' rows come from L1. */

KR_DEV void add_tap(kr_float4 &sum, const kr_float4 &tap, const kr_float4 &x) {
#pragma unroll
  for (int j = 0; j < 4; j++) sum.v[j] = kr_fma(tap.v[j], x.v[j], sum.v[j]);
}

/* K: the taps if known, so that all loads precede the first sum; 0: any number. */
template <int K>
KR_DEV void gate(const pk_gate &p) {
  const int per_row = p.Cp / 4, taps = K ? K : p.k, before = p.causal ? taps - 1 : (taps - 1) / 2;
  const int f = kr_block_y() * (kr_block_threads() / per_row) + kr_thread() / per_row, c = kr_thread() % per_row * 4;
  if (f >= p.F) return;
  const int64_t row = ((int64_t)kr_block_z() * p.F + f) * p.T.by + kr_block_x();
  const float *x = p.x + row * 2 * p.Cp + c, *tap = p.taps + c;
  kr_float4 a = load4(p.bias + c), b = load4(p.bias + p.Cp + c), xa[K ? K : 1], xb[K ? K : 1];
  if (K) {
#pragma unroll
    for (int i = 0; i < K; i++) {
      const bool within = f + i >= before && f + i - before < p.F;
      const float *from = within ? x + (int64_t)(i - before) * p.T.by * 2 * p.Cp : p.zeros;
      xa[i] = load4(from), xb[i] = load4(within ? from + p.Cp : p.zeros);
    }
#pragma unroll
    for (int i = 0; i < K; i++)
      add_tap(a, load4(tap + i * 2 * p.Cp), xa[i]), add_tap(b, load4(tap + (i * 2 + 1) * p.Cp), xb[i]);
  } else {
    for (int i = 0; i < taps; i++) {
      if (f + i < before || f + i - before >= p.F) continue;
      const float *from = x + (int64_t)(i - before) * p.T.by * 2 * p.Cp;
      add_tap(a, load4(tap + (int64_t)i * 2 * p.Cp), load4(from)),
          add_tap(b, load4(tap + (int64_t)(i * 2 + 1) * p.Cp), load4(from + p.Cp));
    }
  }
#pragma unroll
  for (int j = 0; j < 4; j++) a.v[j] *= b.v[j];
  *(kr_float4 *)(p.out + row * p.Cp + c) = a;
}

KR_KERNEL void KR_BOUNDS(KR_PK_GATE_THREADS, 8) kr_pk_gate_3(const pk_gate p) { gate<3>(p); }
KR_KERNEL void KR_BOUNDS(KR_PK_GATE_THREADS, 6) kr_pk_gate(const pk_gate p) { gate<0>(p); }

/* ---- mean over a sequence, and the product behind it ------------------------------------------------------------- */

enum { POOL_THREADS = 256, POOL_HELD = 8, POOL_WEIGHTS = 16 };

/* The sum of every lanes-th row of a sequence; four channels. */
KR_DEV kr_float4 sum_sequence(const pk_pool &p, const float *x, int64_t step, int first, int lanes) {
  kr_float4 sum = {{0.0f, 0.0f, 0.0f, 0.0f}};
  for (int i = first; i < p.n; i += POOL_HELD * lanes) {
    kr_float4 v[POOL_HELD];
#pragma unroll
    for (int j = 0; j < POOL_HELD; j++) v[j] = load4(x + (i + j * lanes < p.n ? i + j * lanes : i) * step);
#pragma unroll
    for (int j = 0; j < POOL_HELD; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) sum.v[k] += kr_select(i + j * lanes < p.n, v[j].v[k], 0.0f);
  }
  return sum;
}

/* Threads beyond whole rows, and beyond whole parts of the product, have nothing to do. */
KR_KERNEL void KR_BOUNDS(POOL_THREADS, 4) kr_pk_pool(const pk_pool p) {
  KR_SHARED float sums[POOL_THREADS * 4];
  KR_SHARED float mean[128];
  const int sequence = kr_block_x(), per_row = p.Cp / 4, lanes = POOL_THREADS / per_row, lane = kr_thread() / per_row,
            c = kr_thread() % per_row * 4;
  const uint32_t high = kr_divide((uint32_t)sequence, p.T);
  const int64_t first =
      p.frames_are_sequences ? (int64_t)high * p.F * p.T.by + (sequence - high * p.T.by) : (int64_t)sequence * p.n;
  const int64_t step = (int64_t)p.Cp * (p.frames_are_sequences ? p.T.by : 1);
  const int parts = POOL_THREADS / p.Cp, part = kr_thread() / p.Cp, out = kr_thread() % p.Cp,
            share = (p.Cp + parts - 1) / parts, k0 = part * share;
  float w[POOL_WEIGHTS];
#pragma unroll
  for (int k = 0; k < POOL_WEIGHTS; k++) w[k] = k < share && k0 + k < p.Cp ? p.w[(int64_t)(k0 + k) * p.Np + out] : 0.0f;
  *(kr_float4 *)(sums + kr_thread() * 4) =
      sum_sequence(p, p.x + first * p.Cp + c, step, lane < lanes ? lane : p.n, lanes);
  kr_sync();
  if (kr_thread() < p.Cp) {
    float total = 0.0f;
#pragma unroll 8
    for (int i = 0; i < lanes; i++) total += sums[i * p.Cp + kr_thread()];
    mean[kr_thread()] = total / (float)p.n;
  }
  kr_sync();
  float y = 0.0f;
#pragma unroll
  for (int k = 0; k < POOL_WEIGHTS; k++)
    if (k < share && k0 + k < p.Cp) y = kr_fma(mean[k0 + k], w[k], y);
  sums[kr_thread()] = y;
  kr_sync();
  if (kr_thread() >= p.Cp) return;
  y = p.bias[kr_thread()];
  for (int i = 0; i < parts; i++) y += sums[i * p.Cp + kr_thread()];
  p.out[(int64_t)sequence * p.Cp + kr_thread()] = y;
}

/* ---- four values at a time --------------------------------------------------------------------------------------- */

KR_KERNEL void KR_BOUNDS(128, 8) kr_pk_pointwise(const pk_pointwise p) {
  const int64_t i = thread_index() * 4;
  const int c = (int)(i % p.Cp);
  if (i >= p.n) return;
  kr_float4 v = load4(p.x + i);
#pragma unroll
  for (int j = 0; j < 4; j++)
    if (p.beta) v.v[j] = kr_fma(p.beta[c + j], v.v[j], v.v[j]);
  if (p.affine.scale) {
    const int64_t at = i / p.per_item * p.Cp + c;
    const kr_float4 scale = load4(p.affine.scale + at), shift = load4(p.affine.shift + at),
                    slope = load4(p.affine.slope + c);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      v.v[j] = kr_fma(v.v[j], scale.v[j], shift.v[j]);
      v.v[j] = v.v[j] < 0.0f ? v.v[j] * slope.v[j] : v.v[j];
    }
  }
  *(kr_float4 *)(p.x + i) = v;
}

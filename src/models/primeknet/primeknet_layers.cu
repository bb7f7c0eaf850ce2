/* primeknet_layers.cu: what lies between PrimeKnet's products: filters along frequency, pooled means, the middle of Mamba, GRU and
 * LSTM steps, the moments of instance norms. */
#include "pack.cuh"
#include "primeknet_plan.h"

KR_DEV kr_float4 load4(const float *from) { return *(const kr_float4 *)from; }
KR_DEV int64_t thread_index(void) { return (int64_t)kr_block_x() * kr_block_threads() + kr_thread(); }

/* ---- instance norm: tiles merged in their order ---------------------------------------------------------------------- */

KR_DEV const float *tile_of(const pk_moments &p, int item, int i) { return p.partial + ((int64_t)item * (p.tiles[0] + p.tiles[1]) + i) * 2 * p.partial_width; }

KR_DEV double tile_count(const pk_moments &p, int i) {
  const int second = i >= p.tiles[0], at = second ? i - p.tiles[0] : i;
  const int64_t left = p.rows[second] - (int64_t)at * p.tile_rows;
  return (double)(left < p.tile_rows ? left : p.tile_rows);
}

/* A block takes 32 channels of an item, eight threads each; eight sums are then added in their order. */
KR_KERNEL void KR_BOUNDS(256, 4) kr_pk_moments(const pk_moments p) {
  KR_SHARED double sums[256];
  const int c = kr_block_x() * 32 + (kr_thread() & 31), part = kr_thread() >> 5, item = kr_block_y(), n_tiles = p.tiles[0] + p.tiles[1];
  const double n = (double)(p.rows[0] + p.rows[1]);
  double mean = 0, m2 = 0;
  if (c < p.C)
    for (int i = part; i < n_tiles; i += 8) mean += tile_count(p, i) * (double)tile_of(p, item, i)[c];
  sums[kr_thread()] = mean;
  kr_sync();
  mean = 0;
  for (int i = 0; i < 8; i++) mean += sums[i * 32 + (kr_thread() & 31)];
  mean /= n;
  kr_sync();
  if (c < p.C)
    for (int i = part; i < n_tiles; i += 8) {
      const double d = (double)tile_of(p, item, i)[c] - mean;
      m2 += (double)tile_of(p, item, i)[c + p.partial_width] + d * d * tile_count(p, i);
    }
  sums[kr_thread()] = m2;
  kr_sync();
  if (part || c >= p.C) return;
  m2 = 0;
  for (int i = 0; i < 8; i++) m2 += sums[i * 32 + kr_thread()];
  const double scale = (p.weight ? p.weight[c] : p.weight_one) / __builtin_sqrt(m2 / n + 1e-5);
  p.scale[(int64_t)item * p.C + c] = (float)scale;
  p.shift[(int64_t)item * p.C + c] = (float)((p.bias ? p.bias[c] : p.bias_one) - mean * scale);
}

/* ---- filters along the frequencies ------------------------------------------------------------------------------------ */

/* Gate of the channel attention: both halves of 2 Cp channels filtered, then multiplied. A thread has four channels of a row. */
KR_KERNEL void KR_BOUNDS(128, 8) kr_pk_filter_gate(const pk_filters p) {
  const int per_row = p.Cp / 4, k = p.k[0], before = p.causal ? k - 1 : (k - 1) / 2;
  const int64_t row = thread_index() / per_row;
  const int c = (int)(thread_index() % per_row) * 4;
  if (row >= p.n_rows) return;
  const int f = (int)(kr_divide((uint32_t)row, p.T) % (uint32_t)p.F);
  kr_float4 a = load4(p.bias[0] + c), b = load4(p.bias[0] + p.Cp + c);
  for (int i = 0; i < k; i++) {
    const int at = f + i - before;
    if (at < 0 || at >= p.F) continue;
    const float *x = p.x + (row + (int64_t)(i - before) * p.T.by) * p.width, *taps = p.taps[0] + (int64_t)i * 2 * p.Cp;
    const kr_float4 xa = load4(x + c), xb = load4(x + p.Cp + c), ta = load4(taps + c), tb = load4(taps + p.Cp + c);
#pragma unroll
    for (int j = 0; j < 4; j++) a.v[j] = kr_fma(ta.v[j], xa.v[j], a.v[j]), b.v[j] = kr_fma(tb.v[j], xb.v[j], b.v[j]);
  }
#pragma unroll
  for (int j = 0; j < 4; j++) a.v[j] *= b.v[j];
  *(kr_float4 *)(p.out + row * p.Cp + c) = a;
}

enum { RUN = 8 };

/* Two filters on one input. A thread has one channel of a chunk at one frame, RUN frequencies after each other, the input moving through
 * registers. Grid: x (frames, channels), y runs of all items, z chunks. */
KR_KERNEL void KR_BOUNDS(128, 6) kr_pk_filter_pair(const pk_filters p) {
  const int chunk = kr_block_z(), k = p.k[chunk], before = p.causal ? k - 1 : (k - 1) / 2, runs = (p.F + RUN - 1) / RUN;
  const int64_t index = thread_index();
  const int c = (int)(index % p.Cp), first = kr_block_y() % runs * RUN;
  const int64_t t = index / p.Cp, item_row = (int64_t)(kr_block_y() / runs) * p.F * p.T.by + t;
  if (t >= p.T.by) return;
  const float *x = p.x + chunk * p.Cp + c, *taps_a = p.taps[chunk] + c, *taps_b = p.second_taps[chunk] + c;
  const int64_t step = (int64_t)p.T.by * p.width;
  float window[RUN], a[RUN], b[RUN];
#pragma unroll
  for (int i = 0; i < RUN; i++) {
    const int f = first + i - before;
    window[i] = f >= 0 && f < p.F ? x[item_row * p.width + f * step] : 0.0f;
    a[i] = p.bias[chunk][c], b[i] = p.second_bias[chunk][c];
  }
  for (int j = 0; j < k; j++) {
    const float ta = taps_a[j * p.Cp], tb = taps_b[j * p.Cp];
    const int next = first + RUN + j - before;
    const float entering = next >= 0 && next < p.F ? x[item_row * p.width + next * step] : 0.0f;
#pragma unroll
    for (int i = 0; i < RUN; i++) a[i] = kr_fma(ta, window[i], a[i]), b[i] = kr_fma(tb, window[i], b[i]);
#pragma unroll
    for (int i = 0; i + 1 < RUN; i++) window[i] = window[i + 1];
    window[RUN - 1] = entering;
  }
  for (int i = 0; i < RUN && first + i < p.F; i++) {
    const int64_t to = item_row * p.width + (first + i) * step + chunk * p.Cp + c;
    p.out[to] = a[i];
    p.second[to] = b[i];
  }
}

/* ---- mean over a sequence, and the product behind it ------------------------------------------------------------------ */

KR_KERNEL void KR_BOUNDS(128, 8) kr_pk_pool(const pk_pool p) {
  KR_SHARED float sums[128 * 4];
  KR_SHARED float mean[128];
  const int sequence = kr_block_x(), per_row = p.Cp / 4, lanes = 128 / per_row, lane = kr_thread() / per_row, c = kr_thread() % per_row * 4;
  const uint32_t high = kr_divide((uint32_t)sequence, p.T);
  const int64_t first = p.frames_are_sequences ? (int64_t)high * p.F * p.T.by + (sequence - high * p.T.by) : (int64_t)sequence * p.n;
  const int64_t step = p.frames_are_sequences ? p.T.by : 1;
  kr_float4 sum = {{0.0f, 0.0f, 0.0f, 0.0f}};
  for (int i = lane; lane < lanes && i < p.n; i += lanes) {
    const kr_float4 v = load4(p.x + (first + i * step) * p.Cp + c);
#pragma unroll
    for (int j = 0; j < 4; j++) sum.v[j] += v.v[j];
  }
  *(kr_float4 *)(sums + kr_thread() * 4) = sum;
  kr_sync();
  if (kr_thread() < p.Cp) {
    float total = 0.0f;
    for (int i = 0; i < lanes; i++) total += sums[i * p.Cp + kr_thread()];
    mean[kr_thread()] = total / (float)p.n;
  }
  kr_sync();
  if (kr_thread() >= p.Cp) return;
  float y = p.bias[kr_thread()];
  for (int k = 0; k < p.Cp; k++) y = kr_fma(mean[k], p.w[(int64_t)k * p.Np + kr_thread()], y);
  p.out[(int64_t)sequence * p.Cp + kr_thread()] = y;
}

/* ---- Mamba: convolution, then the scan with its step and gate --------------------------------------------------------- */

KR_KERNEL void KR_BOUNDS(128, 8) kr_pk_conv(const pk_ssm p) {
  const int per_row = p.Ep / 4;
  const int64_t row = thread_index() / per_row;
  const int e = (int)(thread_index() % per_row) * 4, t = (int)(row % p.T);
  if (row >= p.n_sequences * p.T) return;
  kr_float4 sum = load4(p.conv_b + e);
  for (int w = 0; w < p.W; w++) {
    const int back = p.W - 1 - w;
    if (back > t) continue;
    const kr_float4 x = load4(p.xz + (row - back) * 2 * p.Ep + e);
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (e + j < p.E) sum.v[j] = kr_fma(p.conv_w[(int64_t)(e + j) * p.W + w], x.v[j], sum.v[j]);
  }
#pragma unroll
  for (int j = 0; j < 4; j++) sum.v[j] = e + j < p.E ? kr_silu(sum.v[j]) : 0.0f;
  *(kr_float4 *)(p.xc + row * p.Ep + e) = sum;
}

enum { STEPS = 8, MOST_RANK = 8 };

/* A thread has one channel and all its states; a block 128 channels of one sequence, eight steps at a time. */
template <int MOST_N>
KR_DEV void scan(const pk_ssm &p) {
  KR_DYNAMIC_SHARED(shared);
  float *const tile = (float *)shared; /* (STEPS, Xp) */
  const int e = kr_block_y() * 128 + kr_thread(), exists = e < p.E, at = exists ? e : 0;
  const int64_t first = (int64_t)kr_block_x() * p.T;
  float A[MOST_N], state[MOST_N], rank[MOST_RANK];
#pragma unroll
  for (int n = 0; n < MOST_N; n++) A[n] = n < p.N ? p.A[(int64_t)at * p.N + n] * KR_LOG2E : 0.0f, state[n] = 0.0f;
#pragma unroll
  for (int r = 0; r < MOST_RANK; r++) rank[r] = r < p.R ? p.dt_w[(int64_t)r * p.dt_ld + at] : 0.0f;
  const float bias = p.dt_b[at], skip = p.D[at];
  for (int t0 = 0; t0 < p.T; t0 += STEPS) {
    const int steps = p.T - t0 < STEPS ? p.T - t0 : STEPS;
    float u[STEPS], z[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      const int64_t row = first + t0 + (i < steps ? i : 0);
      u[i] = p.xc[row * p.Ep + at];
      z[i] = p.xz[row * 2 * p.Ep + p.Ep + at];
    }
    kr_sync();
    for (int i = kr_thread(); i < steps * p.Xp; i += 128) tile[i] = p.dbl[(first + t0) * p.Xp + i];
    kr_sync();
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      if (i >= steps) break;
      const float *dbl = tile + i * p.Xp, *B = dbl + p.R, *C = B + p.N;
      float delta = bias, y = skip * u[i];
#pragma unroll
      for (int r = 0; r < MOST_RANK; r++)
        if (r < p.R) delta = kr_fma(dbl[r], rank[r], delta);
      for (int r = MOST_RANK; r < p.R; r++) delta = kr_fma(dbl[r], p.dt_w[(int64_t)r * p.dt_ld + at], delta);
      delta = kr_softplus(delta);
      const float du = delta * u[i];
#pragma unroll
      for (int n = 0; n < MOST_N; n++)
        if (MOST_N == 16 || n < p.N) {
          const int m = n < p.N ? n : 0;
          state[n] = kr_fma(kr_exp2(delta * A[n]), state[n], n < p.N ? du * B[m] : 0.0f);
          y = kr_fma(state[n], C[m], y);
        }
      if (exists) p.xc[(first + t0 + i) * p.Ep + e] = y * kr_silu(z[i]);
    }
  }
}

KR_KERNEL void KR_BOUNDS(128, 4) kr_pk_scan_16(const pk_ssm p) { scan<16>(p); }
KR_KERNEL void KR_BOUNDS(128, 1) kr_pk_scan_64(const pk_ssm p) { scan<64>(p); }

/* ---- GRU and LSTM ------------------------------------------------------------------------------------------------------ */

KR_DEV float sigmoid(float x) { return 1.0f / (1.0f + kr_exp(-x)); }
KR_DEV float hyperbolic(float x) { return kr_select(x > 15.0f, 1.0f, kr_select(x < -15.0f, -1.0f, 1.0f - 2.0f / (1.0f + kr_exp(2.0f * x)))); }

/* The recurrent product of one step: gate j of every sequence. */
template <int HELD>
KR_DEV void recurrent_gate(const pk_recurrence &p, const float *h, int j, const float *held, float *gates) {
  for (int q = 0; q < p.group; q++) {
    float sum = p.bias[j];
    if (HELD) {
#pragma unroll
      for (int k = 0; k < HELD; k += 4) {
        const kr_float4 v = load4(h + q * HELD + k);
#pragma unroll
        for (int i = 0; i < 4; i++) sum = kr_fma(v.v[i], held[k + i], sum);
      }
    } else {
      for (int k = 0; k < p.Hp; k++) sum = kr_fma(h[q * p.Hp + k], p.w[(int64_t)k * p.Np + j], sum);
    }
    gates[q * p.G * p.Hp + j] = sum;
  }
}

/* Unit i of sequence q. */
KR_DEV void recurrent_unit(const pk_recurrence &p, const float *in, const float *own, int i, float *h, float *c) {
  const int H = p.Hp;
  if (p.G == 3) {
    const float r = sigmoid(in[i] + own[i]), z = sigmoid(in[H + i] + own[H + i]), n = hyperbolic(in[2 * H + i] + r * own[2 * H + i]);
    *h = n + z * (*h - n);
  } else {
    const float input = sigmoid(in[i] + own[i]), forget = sigmoid(in[H + i] + own[H + i]), cell = hyperbolic(in[2 * H + i] + own[2 * H + i]);
    *c = forget * *c + input * cell;
    *h = sigmoid(in[3 * H + i] + own[3 * H + i]) * hyperbolic(*c);
  }
}

/* A block has a group of sequences; its threads share the gates, with their weights in registers if a state is HELD wide. Shared:
 * states, cells (group, Hp) each, gates (group, G Hp). */
template <int HELD>
KR_DEV void recurrence(const pk_recurrence &p) {
  KR_DYNAMIC_SHARED(shared);
  float *const h = (float *)shared, *const c = h + p.group * p.Hp, *const gates = c + p.group * p.Hp;
  const int n_gates = p.G * p.Hp, n_units = p.group * p.Hp, threads = kr_block_threads();
  const int64_t first = (int64_t)kr_block_x() * p.group;
  float held[HELD ? HELD : 1];
  if (HELD)
    for (int k = 0; k < HELD; k++) held[k] = kr_thread() < n_gates ? p.w[(int64_t)k * p.Np + kr_thread()] : 0.0f;
  for (int i = kr_thread(); i < 2 * n_units; i += threads) h[i] = 0.0f;
  kr_sync();
  for (int t = 0; t < p.T; t++) {
    for (int j = kr_thread(); j < n_gates; j += threads) recurrent_gate<HELD>(p, h, j, held, gates);
    kr_sync();
    for (int i = kr_thread(); i < n_units; i += threads) {
      const int q = i / p.Hp, unit = i % p.Hp;
      if (first + q >= p.n_sequences) continue;
      const int64_t row = (first + q) * p.T + t;
      recurrent_unit(p, p.gates + row * n_gates, gates + q * n_gates, unit, &h[i], &c[i]);
      p.out[row * p.Hp + unit] = h[i];
    }
    kr_sync();
  }
}

KR_KERNEL void KR_BOUNDS(256, 2) kr_pk_recurrence_64(const pk_recurrence p) { recurrence<64>(p); }
KR_KERNEL void KR_BOUNDS(256, 2) kr_pk_recurrence(const pk_recurrence p) { recurrence<0>(p); }

/* ---- one value at a time ------------------------------------------------------------------------------------------------ */

KR_KERNEL void KR_BOUNDS(128, 8) kr_pk_pointwise(const pk_pointwise p) {
  const int64_t i = thread_index(), c = i % p.Cp;
  if (i >= p.n) return;
  float v = p.x[i];
  if (p.beta) v = kr_fma(p.beta[c], v, v);
  if (p.affine.scale) {
    const int64_t at = i / p.per_item * p.Cp + c;
    v = kr_fma(v, p.affine.scale[at], p.affine.shift[at]);
    v = v < 0.0f ? v * p.affine.slope[c] : v;
  }
  p.x[i] = v;
}

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
  return at + 1 < p.tiles[second] ? (double)p.tile_rows : (double)(p.rows[second] - (int64_t)at * p.tile_rows);
}

enum { MOMENT_CHANNELS = 8, MOMENT_PARTS = 32 };

/* The sum over i of term(i) of this thread's channel, in an order that depends on the number of tiles alone. */
template <class Term>
KR_DEV double sum_tiles(const pk_moments &p, double *sums, Term term) {
  const int part = kr_thread() / MOMENT_CHANNELS, c = kr_thread() % MOMENT_CHANNELS, n_tiles = p.tiles[0] + p.tiles[1];
  double sum = 0;
#pragma unroll 4
  for (int i = part; i < n_tiles; i += MOMENT_PARTS) sum += term(i);
  sums[kr_thread()] = sum;
  kr_sync();
  sum = 0;
  for (int i = 0; i < MOMENT_PARTS; i++) sum += sums[i * MOMENT_CHANNELS + c];
  kr_sync();
  return sum;
}

KR_KERNEL void KR_BOUNDS(256, 4) kr_pk_moments(const pk_moments p) {
  KR_SHARED double sums[MOMENT_CHANNELS * MOMENT_PARTS];
  const int own = kr_block_x() * MOMENT_CHANNELS + kr_thread() % MOMENT_CHANNELS, item = kr_block_y(), c = own < p.C ? own : 0;
  const double n = (double)(p.rows[0] + p.rows[1]);
  const double mean = sum_tiles(p, sums, [&](int i) { return tile_count(p, i) * (double)tile_of(p, item, i)[c]; }) / n;
  const double m2 = sum_tiles(p, sums, [&](int i) {
    const double d = (double)tile_of(p, item, i)[c] - mean;
    return (double)tile_of(p, item, i)[c + p.partial_width] + d * d * tile_count(p, i);
  });
  if (kr_thread() >= MOMENT_CHANNELS || own >= p.C) return;
  const double scale = (p.weight ? p.weight[c] : p.weight_one) / __builtin_sqrt(m2 / n + 1e-5);
  p.scale[(int64_t)item * p.C + c] = (float)scale;
  p.shift[(int64_t)item * p.C + c] = (float)((p.bias ? p.bias[c] : p.bias_one) - mean * scale);
}

/* ---- the gate of the frequency stage's attention: a thread has four channels of a row ------------------------------- */

KR_KERNEL void KR_BOUNDS(128, 8) kr_pk_gate(const pk_gate p) {
  const int per_row = p.Cp / 4, before = p.causal ? p.k - 1 : (p.k - 1) / 2;
  const int64_t row = thread_index() / per_row;
  const int c = (int)(thread_index() % per_row) * 4;
  if (row >= p.n_rows) return;
  const int f = (int)(kr_divide((uint32_t)row, p.T) % (uint32_t)p.F);
  kr_float4 a = load4(p.bias + c), b = load4(p.bias + p.Cp + c);
  for (int i = 0; i < p.k; i++) {
    const int at = f + i - before;
    if (at < 0 || at >= p.F) continue;
    const float *x = p.x + (row + (int64_t)(i - before) * p.T.by) * 2 * p.Cp, *taps = p.taps + (int64_t)i * 2 * p.Cp;
    const kr_float4 xa = load4(x + c), xb = load4(x + p.Cp + c), ta = load4(taps + c), tb = load4(taps + p.Cp + c);
#pragma unroll
    for (int j = 0; j < 4; j++) a.v[j] = kr_fma(ta.v[j], xa.v[j], a.v[j]), b.v[j] = kr_fma(tb.v[j], xb.v[j], b.v[j]);
  }
#pragma unroll
  for (int j = 0; j < 4; j++) a.v[j] *= b.v[j];
  *(kr_float4 *)(p.out + row * p.Cp + c) = a;
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
#pragma unroll 4
  for (int i = lane < lanes ? lane : p.n; i < p.n; i += lanes) {
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
#pragma unroll 16
  for (int k = 0; k < p.Cp; k++) y = kr_fma(mean[k], p.w[(int64_t)k * p.Np + kr_thread()], y);
  p.out[(int64_t)sequence * p.Cp + kr_thread()] = y;
}

/* ---- Mamba: convolution, then the scan with its step and gate --------------------------------------------------------- */

enum { CONV_RUN = 8, CONV_HELD = 4 };

/* A thread has four channels of eight frames, its taps in registers if they are few. */
KR_KERNEL void KR_BOUNDS(128, 4) kr_pk_conv(const pk_ssm p) {
  const int per_row = p.Ep / 4, runs = (p.T + CONV_RUN - 1) / CONV_RUN;
  const int64_t run = thread_index() / per_row, sequence = run / runs;
  const int e = (int)(thread_index() % per_row) * 4, first = (int)(run % runs) * CONV_RUN;
  if (sequence >= p.n_sequences) return;
  const float *x = p.xz + sequence * p.T * 2 * p.Ep + e;
  const kr_float4 bias = load4(p.conv_b + e);
  kr_float4 sums[CONV_RUN];
#pragma unroll
  for (int i = 0; i < CONV_RUN; i++) sums[i] = bias;
  for (int w0 = 0; w0 < p.W; w0 += CONV_HELD) {
    float taps[4][CONV_HELD];
    kr_float4 in[CONV_RUN + CONV_HELD - 1];
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int w = 0; w < CONV_HELD; w++) taps[j][w] = e + j < p.E && w0 + w < p.W ? p.conv_w[(int64_t)(e + j) * p.W + w0 + w] : 0.0f;
#pragma unroll
    for (int i = 0; i < CONV_RUN + CONV_HELD - 1; i++) {
      const int t = first + i + w0 - (p.W - 1);
      in[i] = load4(x + (int64_t)(t >= 0 && t < p.T ? t : 0) * 2 * p.Ep);
#pragma unroll
      for (int j = 0; j < 4; j++) in[i].v[j] = t >= 0 && t < p.T ? in[i].v[j] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < CONV_RUN; i++)
#pragma unroll
      for (int w = 0; w < CONV_HELD; w++)
#pragma unroll
        for (int j = 0; j < 4; j++) sums[i].v[j] = kr_fma(taps[j][w], in[i + w].v[j], sums[i].v[j]);
  }
  for (int i = 0; i < CONV_RUN && first + i < p.T; i++) {
    kr_float4 v;
#pragma unroll
    for (int j = 0; j < 4; j++) v.v[j] = e + j < p.E ? kr_silu(sums[i].v[j]) : 0.0f;
    *(kr_float4 *)(p.xc + (sequence * p.T + first + i) * p.Ep + e) = v;
  }
}

enum { STEPS = 8, MOST_RANK = 4 };

/* One step of all states; B and C lie behind each other. Even: exactly MOST_N of them, and aligned. */
template <int MOST_N>
KR_DEV float step_even(const float *BC, float delta, float du, const float (&A)[MOST_N], float (&state)[MOST_N]) {
  float y[2] = {0.0f, 0.0f};
#pragma unroll
  for (int n = 0; n < MOST_N; n += 4) {
    const kr_float4 B = load4(BC + n), C = load4(BC + MOST_N + n);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      state[n + j] = kr_fma(kr_exp2(delta * A[n + j]), state[n + j], du * B.v[j]);
      y[j & 1] = kr_fma(state[n + j], C.v[j], y[j & 1]);
    }
  }
  return y[0] + y[1];
}

template <int MOST_N>
KR_DEV float step_any(const float *BC, int N, float delta, float du, const float (&A)[MOST_N], float (&state)[MOST_N]) {
  float y = 0.0f;
#pragma unroll
  for (int n = 0; n < MOST_N; n++)
    if (n < N) {
      state[n] = kr_fma(kr_exp2(delta * A[n]), state[n], du * BC[n]);
      y = kr_fma(state[n], BC[N + n], y);
    }
  return y;
}

/* What a thread reads ahead of time: its channel's input and gate, and its share of the block's rank, B and C. */
template <int SHARE>
struct scan_ahead {
  float u[STEPS], z[STEPS], dbl[SHARE];
};

template <int SHARE>
KR_DEV void read_ahead(const pk_ssm &p, int64_t first, int t0, int e, scan_ahead<SHARE> &a) {
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    const int64_t row = first + (t0 + i < p.T ? t0 + i : p.T - 1);
    a.u[i] = p.xc[row * p.Ep + e];
    a.z[i] = p.xz[row * 2 * p.Ep + p.Ep + e];
  }
  const int n = (p.T - t0 < STEPS ? p.T - t0 : STEPS) * p.Xp;
#pragma unroll
  for (int i = 0; i < SHARE; i++) {
    const int at = kr_thread() + i * 128;
    a.dbl[i] = p.dbl[(first + (t0 < p.T ? t0 : 0)) * p.Xp + (at < n ? at : 0)];
  }
}

/* A thread has one channel and all its states; a block 128 channels of one sequence. While eight steps are computed, the next eight are
 * being read. Shared: two tiles of (STEPS, Xp), of which a thread moves SHARE values. */
template <int MOST_N, int SHARE, int EVEN>
KR_DEV void scan(const pk_ssm &p) {
  KR_SHARED float tiles[2][SHARE * 128];
  const int e = kr_block_y() * 128 + kr_thread(), exists = e < p.E, at = exists ? e : 0;
  const int64_t first = (int64_t)kr_block_x() * p.T;
  float A[MOST_N], state[MOST_N], rank[MOST_RANK];
  scan_ahead<SHARE> ahead;
#pragma unroll
  for (int n = 0; n < MOST_N; n++) A[n] = n < p.N ? p.A[(int64_t)at * p.N + n] * KR_LOG2E : 0.0f, state[n] = 0.0f;
#pragma unroll
  for (int r = 0; r < MOST_RANK; r++) rank[r] = r < p.R ? p.dt_w[(int64_t)r * p.dt_ld + at] : 0.0f;
  const float bias = p.dt_b[at], skip = p.D[at];
  read_ahead(p, first, 0, at, ahead);
  for (int t0 = 0, side = 0; t0 < p.T; t0 += STEPS, side ^= 1) {
    float u[STEPS], z[STEPS];
    float *const tile = tiles[side];
#pragma unroll
    for (int i = 0; i < STEPS; i++) u[i] = ahead.u[i], z[i] = ahead.z[i];
#pragma unroll
    for (int i = 0; i < SHARE; i++) tile[kr_thread() + i * 128] = ahead.dbl[i];
    kr_sync();
    if (t0 + STEPS < p.T) read_ahead(p, first, t0 + STEPS, at, ahead);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      const float *dbl = tile + i * p.Xp;
      float delta = bias;
      if (t0 + i >= p.T) break;
#pragma unroll
      for (int r = 0; r < MOST_RANK; r++)
        if (EVEN || r < p.R) delta = kr_fma(dbl[r], rank[r], delta);
      for (int r = MOST_RANK; !EVEN && r < p.R; r++) delta = kr_fma(dbl[r], p.dt_w[(int64_t)r * p.dt_ld + at], delta);
      delta = kr_softplus(delta);
      const float y = EVEN ? step_even<MOST_N>(dbl + MOST_RANK, delta, delta * u[i], A, state) : step_any<MOST_N>(dbl + p.R, p.N, delta, delta * u[i], A, state);
      if (exists) p.xc[(first + t0 + i) * p.Ep + e] = (y + skip * u[i]) * kr_silu(z[i]);
    }
  }
}

/* Even: 16 states and a rank of 4, so that a row of dbl has 48 values. */
KR_KERNEL void KR_BOUNDS(128, 4) kr_pk_scan_even(const pk_ssm p) { scan<16, 3, 1>(p); }
KR_KERNEL void KR_BOUNDS(128, 1) kr_pk_scan_any(const pk_ssm p) { scan<64, 9, 0>(p); }

/* ---- GRU and LSTM ------------------------------------------------------------------------------------------------------ */

KR_DEV float hyperbolic(float x) { return kr_select(x > 15.0f, 1.0f, kr_select(x < -15.0f, -1.0f, 1.0f - 2.0f * kr_rcp(1.0f + kr_exp(2.0f * x)))); }

/* The recurrent product of one step: gate j. */
KR_DEV void recurrent_gate(const pk_recurrence &p, const float *h, int j, float *gates) {
  float sum = p.bias[j];
#pragma unroll 4
  for (int k = 0; k < p.Hp; k++) sum = kr_fma(h[k], p.w[(int64_t)k * p.Np + j], sum);
  gates[j] = sum;
}

/* As above for GROUP sequences, with this thread's weights in registers; two sums per sequence. */
template <int GROUP, int HELD>
KR_DEV void held_gate(const float *h, float bias, const float (&held)[HELD], float *gates, int n_gates) {
  float sums[GROUP][2];
#pragma unroll
  for (int q = 0; q < GROUP; q++) sums[q][0] = bias, sums[q][1] = 0.0f;
#pragma unroll
  for (int k = 0; k < HELD; k += 4)
#pragma unroll
    for (int q = 0; q < GROUP; q++) {
      const kr_float4 v = load4(h + q * HELD + k);
#pragma unroll
      for (int i = 0; i < 4; i++) sums[q][i & 1] = kr_fma(v.v[i], held[k + i], sums[q][i & 1]);
    }
#pragma unroll
  for (int q = 0; q < GROUP; q++) gates[q * n_gates] = sums[q][0] + sums[q][1];
}

/* Unit i of a sequence: in is the input's part of its gates, own the recurrent one. */
KR_DEV void recurrent_unit(int G, const float (&in)[4], const float *own, int H, float *h, float *c) {
  if (G == 3) {
    const float r = kr_sigmoid(in[0] + own[0]), z = kr_sigmoid(in[1] + own[H]), n = hyperbolic(in[2] + r * own[2 * H]);
    *h = n + z * (*h - n);
  } else {
    const float input = kr_sigmoid(in[0] + own[0]), forget = kr_sigmoid(in[1] + own[H]), cell = hyperbolic(in[2] + own[2 * H]);
    *c = forget * *c + input * cell;
    *h = kr_sigmoid(in[3] + own[3 * H]) * hyperbolic(*c);
  }
}

KR_DEV void load_gates(const pk_recurrence &p, int64_t row, int unit, float (&in)[4]) {
#pragma unroll
  for (int g = 0; g < 4; g++) in[g] = g < p.G ? p.gates[row * p.G * p.Hp + g * p.Hp + unit] : 0.0f;
}

/* States 64 wide: a thread has one gate with its weights in registers, and one unit of one of GROUP sequences (256 threads); what the unit
 * reads of the next step is on its way during this one. Shared: states (GROUP, 64), gates (GROUP, G 64). */
template <int GROUP>
KR_DEV void recurrence_64(const pk_recurrence &p) {
  enum { H = 64 };
  KR_SHARED float h[GROUP * H];
  KR_SHARED float gates[GROUP * 4 * H];
  const int n_gates = p.G * H, gate = kr_thread() < n_gates, q = kr_thread() / H, unit = kr_thread() % H;
  const int64_t sequence = (int64_t)kr_block_x() * GROUP + q;
  const int exists = q < GROUP && sequence < p.n_sequences;
  float held[H], in[4] = {0.0f, 0.0f, 0.0f, 0.0f}, state = 0.0f, cell = 0.0f;
#pragma unroll
  for (int k = 0; k < H; k++) held[k] = gate ? p.w[(int64_t)k * p.Np + kr_thread()] : 0.0f;
  const float bias = gate ? p.bias[kr_thread()] : 0.0f;
  if (q < GROUP) h[kr_thread()] = 0.0f;
  if (exists) load_gates(p, sequence * p.T, unit, in);
  kr_sync();
  for (int t = 0; t < p.T; t++) {
    float next[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (exists && t + 1 < p.T) load_gates(p, sequence * p.T + t + 1, unit, next);
    if (gate) held_gate<GROUP>(h, bias, held, gates + kr_thread(), n_gates);
    kr_sync();
    if (exists) {
      recurrent_unit(p.G, in, gates + q * n_gates + unit, H, &state, &cell);
      h[kr_thread()] = state;
      p.out[(sequence * p.T + t) * H + unit] = state;
    }
#pragma unroll
    for (int g = 0; g < 4; g++) in[g] = next[g];
    kr_sync();
  }
}

KR_KERNEL void KR_BOUNDS(256, 2) kr_pk_recurrence_64_1(const pk_recurrence p) { recurrence_64<1>(p); }
KR_KERNEL void KR_BOUNDS(256, 2) kr_pk_recurrence_64_2(const pk_recurrence p) { recurrence_64<2>(p); }
KR_KERNEL void KR_BOUNDS(256, 2) kr_pk_recurrence_64_4(const pk_recurrence p) { recurrence_64<4>(p); }

/* Any width, one sequence per block. Shared: states and cells (Hp), gates (G Hp). */
KR_KERNEL void KR_BOUNDS(256, 2) kr_pk_recurrence(const pk_recurrence p) {
  KR_DYNAMIC_SHARED(shared);
  float *const h = (float *)shared, *const c = h + p.Hp, *const gates = c + p.Hp;
  const int64_t first = (int64_t)kr_block_x() * p.T;
  for (int i = kr_thread(); i < 2 * p.Hp; i += 256) h[i] = 0.0f;
  kr_sync();
  for (int t = 0; t < p.T; t++) {
    for (int j = kr_thread(); j < p.G * p.Hp; j += 256) recurrent_gate(p, h, j, gates);
    kr_sync();
    for (int i = kr_thread(); i < p.Hp; i += 256) {
      float in[4];
      load_gates(p, first + t, i, in);
      recurrent_unit(p.G, in, gates + i, p.Hp, &h[i], &c[i]);
      p.out[(first + t) * p.Hp + i] = h[i];
    }
    kr_sync();
  }
}

/* ---- four values at a time ------------------------------------------------------------------------------------------------ */

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
    const kr_float4 scale = load4(p.affine.scale + at), shift = load4(p.affine.shift + at), slope = load4(p.affine.slope + c);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      v.v[j] = kr_fma(v.v[j], scale.v[j], shift.v[j]);
      v.v[j] = v.v[j] < 0.0f ? v.v[j] * slope.v[j] : v.v[j];
    }
  }
  *(kr_float4 *)(p.x + i) = v;
}

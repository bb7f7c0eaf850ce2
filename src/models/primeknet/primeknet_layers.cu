/* primeknet_layers.cu: what lies between PrimeKnet's products: filters along frequency, pooled means, the middle of Mamba, GRU and
 * LSTM steps, the moments of instance norms. */
#include "pack.cuh"
#include "primeknet_plan.h"

KR_DEV kr_float4 load4(const float *from) { return *(const kr_float4 *)from; }
KR_DEV int64_t thread_index(void) { return (int64_t)kr_block_x() * kr_block_threads() + kr_thread(); }

/* ---- instance norm: all tiles of eight channels by one block ------------------------------------------------------------ */

enum { MOMENT_CHANNELS = 8, MOMENT_PARTS = 32 };

/* The sum of this thread's channel over the block, in an order of its own. */
KR_DEV double sum_parts(double own, double *sums) {
  sums[kr_thread()] = own;
  kr_sync();
  double sum = 0;
#pragma unroll
  for (int i = 0; i < MOMENT_PARTS; i++) sum += sums[i * MOMENT_CHANNELS + kr_thread() % MOMENT_CHANNELS];
  return sum;
}

/* Sums of squares around zero, of float32 means in double: what cancels has digits enough. */
KR_KERNEL void KR_BOUNDS(256, 2) kr_pk_moments(const pk_moments p) {
  KR_SHARED double sums[3][MOMENT_CHANNELS * MOMENT_PARTS];
  const int own = kr_block_x() * MOMENT_CHANNELS + kr_thread() % MOMENT_CHANNELS, item = kr_block_y(), c = own < p.C ? own : 0;
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
  const int sequence = kr_block_x(), per_row = p.Cp / 4, lanes = POOL_THREADS / per_row, lane = kr_thread() / per_row, c = kr_thread() % per_row * 4;
  const uint32_t high = kr_divide((uint32_t)sequence, p.T);
  const int64_t first = p.frames_are_sequences ? (int64_t)high * p.F * p.T.by + (sequence - high * p.T.by) : (int64_t)sequence * p.n;
  const int64_t step = (int64_t)p.Cp * (p.frames_are_sequences ? p.T.by : 1);
  const int parts = POOL_THREADS / p.Cp, part = kr_thread() / p.Cp, out = kr_thread() % p.Cp, share = (p.Cp + parts - 1) / parts, k0 = part * share;
  float w[POOL_WEIGHTS];
#pragma unroll
  for (int k = 0; k < POOL_WEIGHTS; k++) w[k] = k < share && k0 + k < p.Cp ? p.w[(int64_t)(k0 + k) * p.Np + out] : 0.0f;
  *(kr_float4 *)(sums + kr_thread() * 4) = sum_sequence(p, p.x + first * p.Cp + c, step, lane < lanes ? lane : p.n, lanes);
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

/* ---- Mamba: the scan with its step and gate; a row of dbl has the step's rank, then B, then C ------------------------------ */

enum { STEPS = 8, MOST_RANK = 4 };

/* One step of OWN states: all of them exist, and B and C are aligned. */
template <int OWN>
KR_DEV float step_even(const float *all_B, const float *all_C, float delta, float du, const float (&A)[OWN], float (&state)[OWN]) {
  float y[2] = {0.0f, 0.0f};
#pragma unroll
  for (int n = 0; n < OWN; n += 4) {
    const kr_float4 B = load4(all_B + n), C = load4(all_C + n);
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

/* LANES neighbouring threads share a channel's states; a block has 128 / LANES channels of one sequence. While eight steps are computed,
 * the next eight are being read. Shared: two tiles of (STEPS, Xp), of which a thread moves SHARE values. */
template <int MOST_N, int SHARE, int LANES, int EVEN>
KR_DEV void scan(const pk_ssm &p) {
  enum { OWN = MOST_N / LANES };
  KR_SHARED float tiles[2][SHARE * 128];
  const int e = kr_block_y() * (128 / LANES) + kr_thread() / LANES, part = kr_thread() % LANES * OWN, stores = e < p.E && part == 0, at = e < p.E ? e : 0;
  const int64_t first = (int64_t)kr_block_x() * p.T;
  float A[OWN], state[OWN], rank[MOST_RANK];
  scan_ahead<SHARE> ahead;
#pragma unroll
  for (int n = 0; n < OWN; n++) A[n] = part + n < p.N ? p.A[(int64_t)at * p.N + part + n] * KR_LOG2E : 0.0f, state[n] = 0.0f;
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
      float delta = bias, y;
      if (t0 + i >= p.T) break;
#pragma unroll
      for (int r = 0; r < MOST_RANK; r++)
        if (EVEN || r < p.R) delta = kr_fma(dbl[r], rank[r], delta);
      for (int r = MOST_RANK; !EVEN && r < p.R; r++) delta = kr_fma(dbl[r], p.dt_w[(int64_t)r * p.dt_ld + at], delta);
      delta = kr_softplus(delta);
      if (EVEN) y = step_even<OWN>(dbl + MOST_RANK + part, dbl + MOST_RANK + MOST_N + part, delta, delta * u[i], A, state);
      else y = step_any<OWN>(dbl + p.R, p.N, delta, delta * u[i], A, state);
#pragma unroll
      for (int d = 1; d < LANES; d <<= 1) y += kr_shuffle_xor(y, d);
      if (stores) p.xc[(first + t0 + i) * p.Ep + e] = (y + skip * u[i]) * kr_silu(z[i]);
    }
  }
}

/* Even: 16 states and a rank of 4, so that a row of dbl has 48 values. */
KR_KERNEL void KR_BOUNDS(128, 4) kr_pk_scan_even(const pk_ssm p) { scan<16, 3, 1, 1>(p); }
KR_KERNEL void KR_BOUNDS(128, 4) kr_pk_scan_even_2(const pk_ssm p) { scan<16, 3, 2, 1>(p); }
KR_KERNEL void KR_BOUNDS(128, 1) kr_pk_scan_any(const pk_ssm p) { scan<64, 9, 1, 0>(p); }

/* ---- GRU and LSTM ------------------------------------------------------------------------------------------------------ */

KR_DEV float hyperbolic(float x) { return kr_select(x > 15.0f, 1.0f, kr_select(x < -15.0f, -1.0f, 1.0f - 2.0f * kr_rcp(1.0f + kr_exp(2.0f * x)))); }

/* The recurrent product of one step: gate j. */
KR_DEV void recurrent_gate(const pk_recurrence &p, const float *h, int j, float *gates) {
  float sum = p.bias[j];
#pragma unroll 4
  for (int k = 0; k < p.Hp; k++) sum = kr_fma(h[k], p.w[(int64_t)k * p.Np + j], sum);
  gates[j] = sum;
}

/* As above for GROUP sequences, with this thread's weights in registers; four sums per sequence. */
template <int GROUP, int HELD>
KR_DEV void held_gate(const float *h, float bias, const float (&held)[HELD], float *gates, int n_gates) {
  float sums[GROUP][4];
#pragma unroll
  for (int q = 0; q < GROUP; q++) sums[q][0] = bias, sums[q][1] = sums[q][2] = sums[q][3] = 0.0f;
#pragma unroll
  for (int k = 0; k < HELD; k += 4)
#pragma unroll
    for (int q = 0; q < GROUP; q++) {
      const kr_float4 v = load4(h + q * HELD + k);
#pragma unroll
      for (int i = 0; i < 4; i++) sums[q][i] = kr_fma(v.v[i], held[k + i], sums[q][i]);
    }
#pragma unroll
  for (int q = 0; q < GROUP; q++) gates[q * n_gates] = (sums[q][0] + sums[q][1]) + (sums[q][2] + sums[q][3]);
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
 * reads of the next steps, AHEAD of them, is on its way during this one. Shared: states (GROUP, 64), gates (GROUP, G 64). */
template <int GROUP>
KR_DEV void recurrence_64(const pk_recurrence &p) {
  enum { H = 64, AHEAD = 3 };
  KR_SHARED float h[GROUP * H];
  KR_SHARED float gates[GROUP * 4 * H];
  const int n_gates = p.G * H, gate = kr_thread() < n_gates, q = kr_thread() / H, unit = kr_thread() % H;
  const int64_t sequence = (int64_t)kr_block_x() * GROUP + q;
  const int exists = q < GROUP && sequence < p.n_sequences;
  float held[H], in[AHEAD][4], state = 0.0f, cell = 0.0f;
#pragma unroll
  for (int k = 0; k < H; k++) held[k] = gate ? p.w[(int64_t)k * p.Np + kr_thread()] : 0.0f;
  const float bias = gate ? p.bias[kr_thread()] : 0.0f;
  if (q < GROUP) h[kr_thread()] = 0.0f;
#pragma unroll
  for (int i = 0; i < AHEAD; i++)
    if (exists) load_gates(p, sequence * p.T + (i < p.T ? i : 0), unit, in[i]);
  kr_sync();
  for (int t0 = 0; t0 < p.T; t0 += AHEAD)
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const int t = t0 + i;
      if (t >= p.T) break;
      if (gate) held_gate<GROUP>(h, bias, held, gates + kr_thread(), n_gates);
      kr_sync();
      if (exists) {
        recurrent_unit(p.G, in[i], gates + q * n_gates + unit, H, &state, &cell);
        h[kr_thread()] = state;
        p.out[(sequence * p.T + t) * H + unit] = state;
        if (t + AHEAD < p.T) load_gates(p, sequence * p.T + t + AHEAD, unit, in[i]);
      }
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

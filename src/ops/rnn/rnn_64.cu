/* rnn_64.cu: layers of GRU and LSTM with 64 units, and with more than KR_RNN_MOST_UNITS. With 64 units a persistent
 * block keeps the weight in registers and states in shared memory while it steps its sequences through time. */
#include "rnn_units.cuh"

KR_DEV kr_float4 load4(const float *from) { return *(const kr_float4 *)from; }

/* The recurrent product of one step for GROUP sequences: this thread's gate; four partial sums per sequence. */
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

/* 64 units: a thread has one gate with its weights in registers, and one unit of one of GROUP sequences (256 threads);
 * the unit's inputs of the next AHEAD steps are in flight. Shared: states (GROUP, 64), gates (GROUP, G 64). */
template <int GROUP>
KR_DEV void recurrence_64(const kr_rnn_64_params &p) {
  enum { H = 64, AHEAD = 3 };
  KR_SHARED float h[GROUP * H];
  KR_SHARED float gates[GROUP * 4 * H];
  const int n_gates = p.gates * H, gate = kr_thread() < n_gates, q = kr_thread() / H, unit = kr_thread() % H;
  const int64_t sequence = (int64_t)kr_block_x() * GROUP + q;
  const int exists = q < GROUP && sequence < p.B;
  const float *const x = p.x + sequence * p.x_b;
  float *const out = p.out + sequence * p.out_b + unit;
  float held[H], in[AHEAD][4], state = 0.0f, cell = 0.0f;
#pragma unroll
  for (int k = 0; k < H; k++) held[k] = gate ? p.weight[kr_thread() * p.weight_gate + k * p.weight_unit] : 0.0f;
  const float bias = gate && p.bias ? p.bias[kr_thread() * p.bias_gate] : 0.0f;
  if (q < GROUP) h[kr_thread()] = 0.0f;
#pragma unroll
  for (int i = 0; i < AHEAD; i++)
    if (exists) load_gates(x + (int64_t)(i < p.L ? i : 0) * p.x_t, p.gates, H, unit, in[i]);
  kr_sync();
  for (int t0 = 0; t0 < p.L; t0 += AHEAD)
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const int t = t0 + i;
      if (t >= p.L) break;
      if (gate) held_gate<GROUP>(h, bias, held, gates + kr_thread(), n_gates);
      kr_sync();
      if (exists) {
        recurrent_unit(p.gates, in[i], gates + q * n_gates + unit, H, &state, &cell);
        h[kr_thread()] = state;
        out[(int64_t)t * p.out_t] = state;
        if (t + AHEAD < p.L) load_gates(x + (int64_t)(t + AHEAD) * p.x_t, p.gates, H, unit, in[i]);
      }
      kr_sync();
    }
}

KR_KERNEL void KR_BOUNDS(256, 2) kr_rnn_64_1(const kr_rnn_64_params p) { recurrence_64<1>(p); }
KR_KERNEL void KR_BOUNDS(256, 2) kr_rnn_64_2(const kr_rnn_64_params p) { recurrence_64<2>(p); }
KR_KERNEL void KR_BOUNDS(256, 2) kr_rnn_64_4(const kr_rnn_64_params p) { recurrence_64<4>(p); }

/* Any number of units, one sequence per block. Shared: states and cells (H), gates (gates H). */
KR_KERNEL void KR_BOUNDS(256, 2) kr_rnn_wide(const kr_rnn_64_params p) {
  KR_DYNAMIC_SHARED(shared);
  const int H = p.H, all = p.gates * H;
  float *const h = (float *)shared, *const c = h + H, *const gates = c + H;
  const float *const x = p.x + kr_block_x() * p.x_b;
  float *const out = p.out + kr_block_x() * p.out_b;
  for (int i = kr_thread(); i < 2 * H; i += 256) h[i] = 0.0f;
  kr_sync();
  for (int t = 0; t < p.L; t++) {
    for (int j = kr_thread(); j < all; j += 256) {
      float sum = p.bias ? p.bias[j * p.bias_gate] : 0.0f;
#pragma unroll 4
      for (int k = 0; k < H; k++) sum = kr_fma(h[k], p.weight[j * p.weight_gate + k * p.weight_unit], sum);
      gates[j] = sum;
    }
    kr_sync();
    for (int i = kr_thread(); i < H; i += 256) {
      float in[4];
      load_gates(x + (int64_t)t * p.x_t, p.gates, H, i, in);
      recurrent_unit(p.gates, in, gates + i, H, &h[i], &c[i]);
      out[(int64_t)t * p.out_t + i] = h[i];
    }
    kr_sync();
  }
}

/* primeknet_recurrence.cu: the steps of GRU and LSTM. The input's part of the gates is there; a block keeps the
 * recurrent weights in its registers, states in shared memory, and goes through the frames of its sequences. */
#include "primeknet_recurrence.cuh"

KR_DEV kr_float4 load4(const float *from) { return *(const kr_float4 *)from; }

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

/* States 64 wide: a thread has one gate with its weights in registers, and one unit of one of GROUP sequences (256
 * threads); what the unit reads of the next steps, AHEAD of them, is on its way during this one. Shared: states (GROUP,
 * 64), gates (GROUP, G 64). */
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

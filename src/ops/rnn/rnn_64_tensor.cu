/* rnn_64_tensor.cu: layers of GRU and LSTM with 64 units, ampere tier and up: a tensor-core product with gates as rows
 * and sequences as columns. Float32 accuracy: operands are split into high and low float16 parts. */
#include "rnn_units.cuh"

/* Words of two states; columns are 4 banks apart. */
enum {
  H = 64,
  COLUMNS = 8,
  STATE_PITCH = 36,
  PLANE = COLUMNS * STATE_PITCH
};

/* A float32 as the sum of two float16: 22 significant bits. */
KR_DEV void split(float v, uint32_t *high, uint32_t *low) {
  const uint16_t h = kr_to_f16(v);
  *high = h;
  *low = kr_to_f16(v - kr_from_f16(h));
}

/* Rows g and g + 8 of product i are gates 2 i and 2 i + 1 of unit g of the warp's eight, so that a thread's results are
 * all gates of one unit. The order of k is free: a lane's 16 states are contiguous, 16 bytes twice. [4 states of each
 * lane][product][register] */
typedef struct fragments {
  uint32_t high[4][2][4], low[4][2][4];
} fragments;

KR_DEV void load_weights(const kr_rnn_64_params &p, int unit, fragments &w) {
  const int q = kr_thread() & 3;
#pragma unroll
  for (int n = 0; n < 32; n++) {
    const int k = q * 16 + n / 8 * 4 + n % 4 / 2 * 2, gate = n / 4 % 2 * 2 + n % 2;
    uint32_t high[2], low[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
      split(gate < p.gates ? p.weight[(gate * H + unit) * p.weight_gate + (k + i) * p.weight_unit] : 0.0f, &high[i],
            &low[i]);
    w.high[n / 8][n / 4 % 2][n % 4] = high[1] << 16 | high[0];
    w.low[n / 8][n / 4 % 2][n % 4] = low[1] << 16 | low[0];
  }
}

/* States of a block's 4 OWN sequences. Four: columns 0-3 are the high parts, 4-7 the low ones. Eight: a plane of high
 * parts, then one of low parts. */
template <int OWN>
struct __attribute__((aligned(16))) states {
  uint32_t words[OWN * PLANE];
};

/* Adds weights times eight columns, half of the states each to sums and more, for shorter dependency chains; column:
 * this lane's 16 states. */
KR_DEV void multiply(const uint32_t (&w)[4][2][4], const uint32_t *column, float (&sums)[2][4], float (&more)[2][4]) {
  const kr_raw16 b[2] = {((const kr_raw16 *)column)[0], ((const kr_raw16 *)column)[1]};
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int i = 0; i < 2; i++)
      kr_mma(k % 2 ? more[i] : sums[i], w[k][i], b[k / 2].w[k % 2 * 2], b[k / 2].w[k % 2 * 2 + 1]);
}

/* Adds scale times the recurrent product to this thread's unit's exponents, x[sequence][gate], without the product of
 * both low parts. column: this lane's in the states. */
template <int OWN, int G>
KR_DEV void unit_gates(const fragments &w, const uint32_t *column, float (&x)[OWN][4]) {
  float sums[2][4] = {}, more[2][4] = {}, low[2][4] = {}, rest[2][4] = {};
  multiply(w.high, column, sums, more);
  multiply(w.low, column, low, rest);
  if (OWN == 1) {
    const int second = kr_thread() & 2; /* has low parts: columns 2 q - 4 and 2 q - 3 */
#pragma unroll
    for (int g = 0; g < G; g++) {
      const int i = g / 2, n = g % 2 * 2;
      const float even = (sums[i][n] + more[i][n]) + (low[i][n] + rest[i][n]),
                  odd = (sums[i][n + 1] + more[i][n + 1]) + (low[i][n + 1] + rest[i][n + 1]);
      const float other = kr_shuffle_xor(kr_select(second, even, odd), 2);
      x[0][g] = kr_fma(gate_scale(g), other, kr_fma(gate_scale(g), kr_select(second, odd, even), x[0][g]));
    }
  } else {
    multiply(w.high, column + PLANE, low, rest);
#pragma unroll
    for (int n = 0; n < 2 * G; n++)
      x[n % 2][n / 2] =
          kr_fma(gate_scale(n / 2),
                 (sums[n / 4][n % 4] + more[n / 4][n % 4]) + (low[n / 4][n % 4] + rest[n / 4][n % 4]), x[n % 2][n / 2]);
  }
}

/* A thread's sequence j of its block's. */
template <int OWN>
KR_DEV int sequence_of(int j) {
  const int q = kr_thread() & 3;
  return OWN == 1 ? (q & 1) * 2 + (q >> 1) : q * 2 + j;
}

template <int OWN>
KR_DEV void store_state(uint32_t *h, int j, int unit, float state) {
  uint32_t high, low;
  split(state, &high, &low);
  uint16_t *at = (uint16_t *)h + sequence_of<OWN>(j) * 2 * STATE_PITCH + unit;
  at[0] = (uint16_t)high;
  at[OWN == 1 ? 4 * 2 * STATE_PITCH : 2 * PLANE] = (uint16_t)low;
}

/* ---- prefetched frames ------------------------------------------------------------------------------------------- */

/* A block's threads: 256 compute one unit each of its sequences, as many load frames. */
enum { THREADS = 256, GATE_PITCH = 4 * H + 4, AHEAD = 4 };

template <int OWN>
struct __attribute__((aligned(16))) frame {
  float gates[4 * OWN * GATE_PITCH];
};

template <int OWN>
struct room {
  frame<OWN> frames[AHEAD];
  states<OWN> h[2]; /* before frame t in t % 2 */
};

/* A sequence out of range is read as the first one. */
template <int OWN>
KR_DEV void fetch(const kr_rnn_64_params &p, int64_t first, int t, frame<OWN> &to) {
  enum { SEQUENCES = 4 * OWN, PER_SEQUENCE = THREADS / SEQUENCES };
  const int per_row = p.gates * (H / 4), thread = kr_thread() % THREADS, s = thread / PER_SEQUENCE;
  const float *from = p.x + (first + s < p.B ? first + s : 0) * p.x_b + (int64_t)t * p.x_t;
#pragma unroll
  for (int i = thread % PER_SEQUENCE; i < H; i += PER_SEQUENCE)
    if (i < per_row) kr_copy16(to.gates + s * GATE_PITCH + i * 4, from + i * 4);
}

KR_DEV void load_bias(const kr_rnn_64_params &p, int unit, float (&bias)[4]) {
#pragma unroll
  for (int g = 0; g < 4; g++) bias[g] = g < p.gates && p.bias ? p.bias[(g * H + unit) * p.bias_gate] : 0.0f;
}

/* ---- a layer: both halves of the block synchronise before every frame and after the last one --------------------- */

/* A frame's part of a unit's exponents, with the bias; a GRU's third gate is kept separate (advance_unit). */
template <int G>
KR_DEV void frame_gates(const float *gates, const float (&bias)[4], float (&x)[4], float *third) {
#pragma unroll
  for (int g = 0; g < G; g++)
    x[g] = G == 3 && g == 2 ? gate_scale(g) * bias[g] : gate_scale(g) * (gates[g * H] + bias[g]);
  *third = G == 3 ? gate_scale(2) * gates[2 * H] : 0.0f;
}

template <int OWN, int G>
KR_DEV void step_units(const kr_rnn_64_params &p, int64_t first, room<OWN> &shared) {
  const int unit = kr_thread() / 4, mine = (kr_thread() & 31) / 4 * STATE_PITCH + (kr_thread() & 3) * 8;
  const int64_t sequence = first + sequence_of<OWN>(0); /* contiguous if there are two */
  float state[OWN] = {}, cell[OWN] = {}, bias[4], *out = p.out + sequence * p.out_b + unit,
        *cells = p.cells + sequence * p.cells_b + unit;
  fragments w;
  load_weights(p, unit, w);
  load_bias(p, unit, bias);
  for (int i = kr_thread(); i < OWN * PLANE; i += THREADS) shared.h[0].words[i] = 0;
  int now = 0; /* word offset from the first states to those before frame t, computed ahead of the barrier to keep
                * address arithmetic out of the critical path */
#pragma unroll 1
  for (int t = 0; t < p.L; t++) {
    const int next = OWN * PLANE - now;
    float x[OWN][4], third[OWN];
    kr_sync();
#pragma unroll
    for (int j = 0; j < OWN; j++)
      frame_gates<G>(shared.frames[t % AHEAD].gates + sequence_of<OWN>(j) * GATE_PITCH + unit, bias, x[j], &third[j]);
    unit_gates<OWN, G>(w, shared.h[0].words + mine + now, x);
#pragma unroll
    for (int j = 0; j < OWN; j++) {
      const float own = x[j][2];
      if (G == 3) x[j][2] = third[j];
      advance_unit<G>(x[j], own, &state[j], &cell[j]);
      store_state<OWN>(shared.h[0].words + next, j, unit, state[j]);
      if (sequence + j < p.B) out[j * p.out_b] = state[j];
      if (G == 4 && p.cells && sequence + j < p.B) cells[j * p.cells_b] = cell[j];
    }
    now = next, out += p.out_t, cells += p.cells_t;
  }
  kr_sync();
}

template <int OWN>
KR_DEV void bring_frames(const kr_rnn_64_params &p, int64_t first, room<OWN> &shared) {
  for (int t = 0; t < AHEAD - 1; t++) {
    if (t < p.L) fetch(p, first, t, shared.frames[t]);
    kr_commit_copies();
  }
#pragma unroll 1
  for (int t = 0; t < p.L; t++) {
    kr_copied<AHEAD - 2>();
    kr_sync(); /* frame and states have arrived, and the previous frame's slot is free */
    if (t + AHEAD - 1 < p.L) fetch(p, first, t + AHEAD - 1, shared.frames[(t + AHEAD - 1) % AHEAD]);
    kr_commit_copies();
  }
  kr_sync();
}

template <int OWN>
KR_DEV void one_layer(const kr_rnn_64_params &p) {
  KR_SHARED room<OWN> shared;
  const int64_t first = (int64_t)kr_block_x() * 4 * OWN;
  if (kr_thread() < THREADS && p.gates == 3) step_units<OWN, 3>(p, first, shared);
  else if (kr_thread() < THREADS) step_units<OWN, 4>(p, first, shared);
  else bring_frames<OWN>(p, first, shared);
}

KR_KERNEL void KR_BOUNDS(2 * THREADS, 1) kr_rnn_64_tensor_4(const kr_rnn_64_params p) { one_layer<1>(p); }
KR_KERNEL void KR_BOUNDS(2 * THREADS, 1) kr_rnn_64_tensor_8(const kr_rnn_64_params p) { one_layer<2>(p); }

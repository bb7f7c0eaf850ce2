/* primeknet_recurrence_tensor.cu: the steps of GRU and LSTM with states 64 wide, from Ampere on: gates are the rows of a product by tensor
 * cores, sequences its columns. Float32 throughout: its factors are split into halves. */
#include "primeknet_recurrence.cuh"

enum { COLUMNS = 8, STATE_PITCH = 36 }; /* words of two states; columns 4 banks apart */

/* A float32 as the sum of two halves: 22 bits of it. */
KR_DEV void split(float v, uint32_t *high, uint32_t *low) {
  const uint16_t h = kr_to_f16(v);
  *high = h;
  *low = kr_to_f16(v - kr_from_f16(h));
}

/* Rows g and g + 8 of product i are gates 2 i and 2 i + 1 of unit g of the warp's eight, so that a thread's results are all gates of a unit
 * for two sequences. [16 states][product][register] */
typedef struct split_weights {
  uint32_t high[4][2][4], low[4][2][4];
} split_weights;

KR_DEV void load_weights(const pk_recurrence &p, int unit, split_weights &w) {
  const int q = kr_thread() & 3;
#pragma unroll
  for (int n = 0; n < 32; n++) {
    const int k = n / 8 * 16 + n % 4 / 2 * 8 + q * 2, gate = n / 4 % 2 * 2 + n % 2;
    uint32_t high[2], low[2];
#pragma unroll
    for (int i = 0; i < 2; i++) split(gate < p.G ? p.w[(int64_t)(k + i) * p.Np + gate * p.Hp + unit] : 0.0f, &high[i], &low[i]);
    w.high[n / 8][n / 4 % 2][n % 4] = high[1] << 16 | high[0];
    w.low[n / 8][n / 4 % 2][n % 4] = low[1] << 16 | low[0];
  }
}

KR_DEV void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

typedef struct states {
  uint32_t high[COLUMNS * STATE_PITCH], low[COLUMNS * STATE_PITCH];
} states;

/* The recurrent part of all gates: weights times states, but for the product of both low parts. sums: [product][register] */
KR_DEV void multiply(const split_weights &w, const states &h, float (&sums)[2][4]) {
  const int at = (kr_thread() & 31) / 4 * STATE_PITCH + (kr_thread() & 3);
  float more[2][2][4];
#pragma unroll
  for (int i = 0; i < 16; i++) more[i / 8][i / 4 % 2][i % 4] = 0.0f;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const uint32_t h0 = h.high[at + k * 8], h1 = h.high[at + k * 8 + 4], l0 = h.low[at + k * 8], l1 = h.low[at + k * 8 + 4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      mma(sums[i], w.high[k][i], h0, h1);
      mma(more[0][i], w.low[k][i], h0, h1);
      mma(more[1][i], w.high[k][i], l0, l1);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; i++) sums[i / 4][i % 4] += more[0][i / 4][i % 4] + more[1][i / 4][i % 4];
}

/* The gates of one frame of the block's sequences; some frames are on their way. */
enum { H = 64, GATE_PITCH = 4 * H + 4, AHEAD = 4 };
template <int SEQUENCES>
struct __attribute__((aligned(16))) frame {
  float gates[SEQUENCES * GATE_PITCH];
};

/* A sequence that does not exist is read as the first one. */
template <int SEQUENCES>
KR_DEV void fetch(const pk_recurrence &p, int t, frame<SEQUENCES> &to) {
  const int64_t first = (int64_t)kr_block_x() * SEQUENCES;
  const int per_row = p.G * (H / 4), s = kr_thread() / (256 / SEQUENCES);
  const float *from = p.gates + ((first + s < p.n_sequences ? first + s : 0) * p.T + t) * per_row * 4;
#pragma unroll
  for (int i = kr_thread() % (256 / SEQUENCES); i < H; i += 256 / SEQUENCES)
    if (i < per_row) kr_copy16(to.gates + s * GATE_PITCH + i * 4, from + i * 4);
}

/* A thread has one unit of OWN sequences: columns 2 q and 2 q + 1, or the first of them. Columns without a sequence stay zero. */
template <int OWN>
KR_DEV void recurrence(const pk_recurrence &p) {
  enum { SEQUENCES = 4 * OWN };
  KR_SHARED states h[2];
  KR_SHARED frame<SEQUENCES> frames[AHEAD];
  const int q = kr_thread() & 3, unit = kr_thread() / 4;
  const int64_t first = (int64_t)kr_block_x() * SEQUENCES + q * OWN;
  float state[OWN] = {}, cell[OWN] = {}, bias[4];
  split_weights w;
#pragma unroll
  for (int i = 0; i < AHEAD - 1; i++) {
    if (i < p.T) fetch(p, i, frames[i]);
    kr_commit_copies();
  }
  load_weights(p, unit, w);
#pragma unroll
  for (int g = 0; g < 4; g++) bias[g] = g < p.G ? p.bias[g * H + unit] : 0.0f;
  for (int i = kr_thread(); i < COLUMNS * STATE_PITCH; i += 256) h[0].high[i] = h[0].low[i] = h[1].high[i] = h[1].low[i] = 0;
#pragma unroll 1
  for (int t = 0; t < p.T; t++) {
    float sums[2][4] = {{bias[0], bias[0], bias[1], bias[1]}, {bias[2], bias[2], bias[3], bias[3]}};
    kr_copied<AHEAD - 2>();
    kr_sync(); /* the frame is there, the states are, and the place of the frame before is free */
    if (t + AHEAD - 1 < p.T) fetch(p, t + AHEAD - 1, frames[(t + AHEAD - 1) % AHEAD]);
    kr_commit_copies();
    multiply(w, h[t & 1], sums);
#pragma unroll
    for (int j = 0; j < OWN; j++) {
      const float *gates = frames[t % AHEAD].gates + (q * OWN + j) * GATE_PITCH + unit;
      const float in[4] = {gates[0], gates[H], gates[2 * H], p.G == 4 ? gates[3 * H] : 0.0f}, own[4] = {sums[0][j], sums[0][2 + j], sums[1][j], sums[1][2 + j]};
      uint32_t high, low;
      recurrent_unit(p.G, in, own, 1, &state[j], &cell[j]);
      split(state[j], &high, &low);
      ((uint16_t *)h[~t & 1].high)[(q * 2 + j) * 2 * STATE_PITCH + unit] = (uint16_t)high;
      ((uint16_t *)h[~t & 1].low)[(q * 2 + j) * 2 * STATE_PITCH + unit] = (uint16_t)low;
      if (first + j < p.n_sequences) p.out[((first + j) * p.T + t) * H + unit] = state[j];
    }
  }
}

KR_KERNEL void KR_BOUNDS(256, 1) kr_pk_recurrence_64_tensor_4(const pk_recurrence p) { recurrence<1>(p); }
KR_KERNEL void KR_BOUNDS(256, 1) kr_pk_recurrence_64_tensor_8(const pk_recurrence p) { recurrence<2>(p); }

/* primeknet_recurrence_tensor.cu: the steps of GRU and LSTM with states 64 wide, from Ampere on: gates are the rows of a product by tensor
 * cores, sequences its columns. Float32 throughout: its factors are split into halves. Two layers run in one launch, the second some frames
 * behind the first. */
#include "primeknet_recurrence.cuh"

enum { H = 64, COLUMNS = 8, STATE_PITCH = 36, PLANE = COLUMNS * STATE_PITCH }; /* words of two states; columns 4 banks apart */

/* A float32 as the sum of two halves: 22 bits of it. */
KR_DEV void split(float v, uint32_t *high, uint32_t *low) {
  const uint16_t h = kr_to_f16(v);
  *high = h;
  *low = kr_to_f16(v - kr_from_f16(h));
}

/* Rows g and g + 8 of product i are gates 2 i and 2 i + 1 of unit g of the warp's eight, so that a thread's results are all gates of a
 * unit. [16 states][product][register] */
typedef struct fragments {
  uint32_t high[4][2][4], low[4][2][4];
} fragments;

KR_DEV void load_weights(const pk_recurrence &p, const float *from, int unit, fragments &w) {
  const int q = kr_thread() & 3;
#pragma unroll
  for (int n = 0; n < 32; n++) {
    const int k = n / 8 * 16 + n % 4 / 2 * 8 + q * 2, gate = n / 4 % 2 * 2 + n % 2;
    uint32_t high[2], low[2];
#pragma unroll
    for (int i = 0; i < 2; i++) split(gate < p.G ? from[(int64_t)(k + i) * p.Np + gate * H + unit] : 0.0f, &high[i], &low[i]);
    w.high[n / 8][n / 4 % 2][n % 4] = high[1] << 16 | high[0];
    w.low[n / 8][n / 4 % 2][n % 4] = low[1] << 16 | low[0];
  }
}

KR_DEV void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* States of a block's 4 OWN sequences. One plane: columns 0-3 are the high parts, 4-7 the low ones. More: eight sequences' high
 * parts, then their low ones. */
template <int OWN>
struct states {
  uint32_t words[OWN * PLANE];
};

/* weights times a plane; both add to what is there. */
KR_DEV void multiply(const uint32_t (&w)[4][2][4], const uint32_t *plane, float (&sums)[2][4]) {
  const int at = (kr_thread() & 31) / 4 * STATE_PITCH + (kr_thread() & 3);
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int i = 0; i < 2; i++) mma(sums[i], w[k][i], plane[at + k * 8], plane[at + k * 8 + 4]);
}

/* The gates of a unit in this thread's sequences from its states: [sequence][gate]. The product of both low parts is left out where it
 * costs an instruction, and without LOW that of the weights' low parts. */
template <int OWN, int LOW>
KR_DEV void unit_gates(const fragments &w, const states<OWN> &h, const float (&bias)[4], float (&gates)[OWN][4]) {
  if (OWN == 1) {
    float sums[2][4] = {}, more[2][4] = {};
    multiply(w.high, h.words, sums);
    if (LOW) multiply(w.low, h.words, more);
    const int second = kr_thread() & 2; /* has low parts: columns 2 q - 4 and 2 q - 3 */
#pragma unroll
    for (int g = 0; g < 4; g++) {
      const float even = sums[g / 2][g % 2 * 2] + more[g / 2][g % 2 * 2], odd = sums[g / 2][g % 2 * 2 + 1] + more[g / 2][g % 2 * 2 + 1];
      gates[0][g] = kr_select(second, odd, even) + kr_shuffle_xor(kr_select(second, even, odd), 2) + bias[g];
    }
  } else {
#pragma unroll
    for (int j = 0; j < OWN; j += 2) {
      const uint32_t *high = h.words + j * PLANE;
      float sums[2][4] = {}, more[2][4] = {}, rest[2][4] = {};
      multiply(w.high, high, sums);
      if (LOW) multiply(w.low, high, more), multiply(w.high, high + PLANE, rest);
#pragma unroll
      for (int n = 0; n < 8; n++) gates[j + n % 2][n / 2] = sums[n / 4][n % 4] + (more[n / 4][n % 4] + rest[n / 4][n % 4]) + bias[n / 2];
    }
  }
}

/* A thread's sequence j of its block's. */
template <int OWN>
KR_DEV int sequence_of(int j) {
  const int q = kr_thread() & 3;
  return OWN == 1 ? (q & 1) * 2 + (q >> 1) : j / 2 * COLUMNS + q * 2 + j % 2;
}

template <int OWN>
KR_DEV void store_state(states<OWN> &h, int j, int unit, float state) {
  uint32_t high, low;
  split(state, &high, &low);
  uint16_t *at = (uint16_t *)(h.words + j / 2 * 2 * PLANE) + sequence_of<OWN>(j) % COLUMNS * 2 * STATE_PITCH + unit;
  at[0] = (uint16_t)high;
  at[OWN == 1 ? 4 * 2 * STATE_PITCH : 2 * PLANE] = (uint16_t)low;
}

/* ---- frames on their way ------------------------------------------------------------------------------------------------- */

enum { GATE_PITCH = 4 * H + 4, PUBLISHED = 16 }; /* frames between two messages to the second layer */
template <int OWN>
struct __attribute__((aligned(16))) frame {
  float gates[4 * OWN * GATE_PITCH];
};

/* A block's shared memory, at most 48 KiB. */
template <int OWN>
struct room {
  enum { AHEAD = OWN == 4 ? 2 : 4 };
  frame<OWN> frames[AHEAD];
  states<OWN> h[2];
};

/* A sequence that does not exist is read as the first one. */
template <int OWN>
KR_DEV void fetch(const pk_recurrence &p, int64_t first, int t, frame<OWN> &to) {
  enum { SEQUENCES = 4 * OWN };
  const int per_row = p.G * (H / 4), s = kr_thread() / (256 / SEQUENCES);
  const float *from = p.gates + ((first + s < p.n_sequences ? first + s : 0) * p.T + t) * per_row * 4;
#pragma unroll
  for (int i = kr_thread() % (256 / SEQUENCES); i < H; i += 256 / SEQUENCES)
    if (i < per_row) kr_copy16(to.gates + s * GATE_PITCH + i * 4, from + i * 4);
}

KR_DEV void publish(int32_t *progress, int frames) { asm volatile("st.release.gpu.s32 [%0], %1;" : : "l"(progress), "r"(frames) : "memory"); }

/* Waits until the first layer has made frames up to t; returns how many it has. */
KR_DEV int await(const int32_t *progress, int t) {
  int frames;
  do asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(frames) : "l"(progress) : "memory");
  while (frames <= t);
  return frames;
}

/* The second layer's gates of frame t take the place of the first one's, which have been read. */
template <int OWN>
KR_DEV void store_gates(const pk_recurrence &p, int64_t first, int t, int unit, const float (&gates)[OWN][4]) {
#pragma unroll
  for (int j = 0; j < OWN; j++) {
    const int64_t sequence = first + sequence_of<OWN>(j);
    float *to = p.gates + ((sequence * p.T + t) * p.G) * H + unit;
    if (sequence >= p.n_sequences) continue;
#pragma unroll
    for (int g = 0; g < 4; g++)
      if (g < p.G) to[g * H] = gates[j][g];
  }
}

KR_DEV void load_bias(const pk_recurrence &p, const float *from, int unit, float (&bias)[4]) {
#pragma unroll
  for (int g = 0; g < 4; g++) bias[g] = g < p.G ? from[g * H + unit] : 0.0f;
}

/* ---- a layer -------------------------------------------------------------------------------------------------------------- */

enum { ALONE, FIRST, SECOND };

/* A thread has one unit of OWN sequences. As FIRST the block also makes the second layer's gates, of the frame before; as SECOND it goes
 * on where those are there. Columns without a sequence repeat the first one. */
template <int OWN, int ROLE>
KR_DEV void recurrence(const pk_recurrence &p, int block, room<OWN> &shared) {
  enum { AHEAD = room<OWN>::AHEAD };
  states<OWN> *const h = shared.h;
  frame<OWN> *const frames = shared.frames;
  const int unit = kr_thread() / 4;
  const int64_t first = (int64_t)block * 4 * OWN;
  int32_t *const progress = p.progress + block;
  float state[OWN] = {}, cell[OWN] = {}, bias[4], next_bias[4];
  fragments w, next;
  load_weights(p, p.w[ROLE == SECOND], unit, w);
  load_bias(p, p.bias[ROLE == SECOND], unit, bias);
  if (ROLE == FIRST) load_weights(p, p.next_w, unit, next), load_bias(p, p.next_bias, unit, next_bias);
  for (int i = kr_thread(); i < OWN * PLANE; i += 256) h[0].words[i] = h[1].words[i] = 0;
  int ready = ROLE == SECOND ? await(progress, p.T < AHEAD - 1 ? p.T - 1 : AHEAD - 2) : p.T;
#pragma unroll
  for (int i = 0; i < AHEAD - 1; i++) {
    if (i < p.T) fetch(p, first, i, frames[i]);
    kr_commit_copies();
  }
#pragma unroll 1
  for (int t = 0; t < p.T; t++) {
    float own[OWN][4], after[OWN][4];
    if (ROLE == SECOND && t + AHEAD - 1 < p.T && ready <= t + AHEAD - 1) ready = await(progress, t + AHEAD - 1);
    kr_copied<AHEAD - 2>();
    kr_sync(); /* the frame is there, the states are, and the place of the frame before is free */
    if (ROLE == FIRST && t % PUBLISHED == 1 && kr_thread() == 0) publish(progress, t - 1);
    if (t + AHEAD - 1 < p.T) fetch(p, first, t + AHEAD - 1, frames[(t + AHEAD - 1) % AHEAD]);
    kr_commit_copies();
    unit_gates<OWN, 1>(w, h[t & 1], bias, own);
    if (ROLE == FIRST) unit_gates<OWN, 0>(next, h[t & 1], next_bias, after);
#pragma unroll
    for (int j = 0; j < OWN; j++) {
      const float *gates = frames[t % AHEAD].gates + sequence_of<OWN>(j) * GATE_PITCH + unit;
      const float in[4] = {gates[0], gates[H], gates[2 * H], p.G == 4 ? gates[3 * H] : 0.0f};
      recurrent_unit(p.G, in, own[j], 1, &state[j], &cell[j]);
      store_state(h[~t & 1], j, unit, state[j]);
      if (ROLE != FIRST && first + sequence_of<OWN>(j) < p.n_sequences) p.out[((first + sequence_of<OWN>(j)) * p.T + t) * H + unit] = state[j];
    }
    if (ROLE == FIRST && t) store_gates(p, first, t - 1, unit, after);
  }
  kr_sync();
  if (ROLE == FIRST) {
    float after[OWN][4];
    unit_gates<OWN, 0>(next, h[p.T & 1], next_bias, after);
    store_gates(p, first, p.T - 1, unit, after);
    kr_sync();
    if (kr_thread() == 0) publish(progress, p.T);
  } else if (ROLE == SECOND && kr_thread() == 0) {
    *progress = 0; /* as the next launch needs it */
  }
}

/* First layers come first, so that whoever waits waits for blocks that run. */
template <int OWN>
KR_DEV void two_layers(const pk_recurrence &p) {
  KR_SHARED room<OWN> shared;
  if (kr_block_x() < p.n_blocks) recurrence<OWN, FIRST>(p, kr_block_x(), shared);
  else recurrence<OWN, SECOND>(p, kr_block_x() - p.n_blocks, shared);
}

template <int OWN>
KR_DEV void one_layer(const pk_recurrence &p) {
  KR_SHARED room<OWN> shared;
  recurrence<OWN, ALONE>(p, kr_block_x(), shared);
}

KR_KERNEL void KR_BOUNDS(256, 1) kr_pk_recurrence_64_tensor_4(const pk_recurrence p) { one_layer<1>(p); }
KR_KERNEL void KR_BOUNDS(256, 1) kr_pk_recurrence_64_tensor_8(const pk_recurrence p) { one_layer<2>(p); }
KR_KERNEL void KR_BOUNDS(256, 1) kr_pk_recurrence_64_two_4(const pk_recurrence p) { two_layers<1>(p); }
KR_KERNEL void KR_BOUNDS(256, 1) kr_pk_recurrence_64_two_8(const pk_recurrence p) { two_layers<2>(p); }
KR_KERNEL void KR_BOUNDS(256, 1) kr_pk_recurrence_64_two_16(const pk_recurrence p) { two_layers<4>(p); }

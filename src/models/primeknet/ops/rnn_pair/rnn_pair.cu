/* rnn_pair.cu: two layers of GRU or LSTM with 64 units in one launch, ampere tier and up, float16 operands: the second
 * layer runs on other multiprocessors, some frames behind the first. The latency from one state to the next is
 * critical: four warps of a block do only that, with gates as the rows of their product and sequences as its columns;
 * four more compute the input's part of the gates a group of frames ahead. */
#include "rnn/rnn_units.cuh"
#include "rnn_pair_params.h"

/* FRAMES: per group. HALF: threads of four warps. PITCH: words per column of a product, 4 banks apart. */
enum { H = 64, FRAMES = 4, HALF = KR_RNN_PAIR_THREADS / 2, PITCH = 36 };

KR_DEV kr_float4 load4(const float *from) { return *(const kr_float4 *)from; }
KR_DEV int lane_row(void) { return (kr_thread() & 31) >> 2; }
KR_DEV int lane_quarter(void) { return kr_thread() & 3; }
KR_DEV int own_warp(void) { return kr_thread() % HALF / 32; }

/* SEQUENCES: per block. A column's 64 numbers are ordered so that a lane reads 16 contiguously and its two units form a
 * word: numbers k and k + 2, k % 4 < 2, are word k % 16 / 4 * 8 + k / 16 * 2 + k % 2. */
template <int SEQUENCES>
struct __attribute__((aligned(16))) room {
  enum { GATES = 4 * H + (SEQUENCES == 8 ? 4 : 8) }; /* padding: other banks for a warp's other sequences */
  float gates[2][FRAMES][SEQUENCES][GATES];          /* of this group and the next one: (unit, gate) */
  uint32_t rows[FRAMES * SEQUENCES][PITCH];          /* their inputs */
  uint32_t states[2][SEQUENCES][PITCH];              /* before frame t in t % 2 */
};

/* The weights of sixteen units as rows of products, one per gate: a lane's rows belong to units own_unit() and
 * own_unit() + 2. */
typedef struct fragments {
  uint32_t a[4][4][4]; /* [16 states][gate][register] */
} fragments;

KR_DEV int own_unit(void) { return own_warp() * 16 + lane_row() / 2 * 4 + lane_row() % 2; }

/* from: rows of n_inputs, gates `step` apart. A lane's numbers k...k + 3 of a block of sixteen are two words, k and k +
 * 2, k + 1 and k + 3, as in a column. */
template <int G>
KR_DEV void load_weights(const uint16_t *from, int64_t step, int n_inputs, fragments &w) {
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int gate = 0; gate < G; gate++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int first = k * 16 + lane_quarter() * 4;
        const uint64_t four =
            first < n_inputs ? *(const uint64_t *)(from + (gate * H + own_unit() + i * 2) * step + first) : 0;
        const uint32_t low = (uint32_t)four, high = (uint32_t)(four >> 32);
        w.a[k][gate][i] = high << 16 | (low & 0xffff);
        w.a[k][gate][2 + i] = (high & 0xffff0000u) | low >> 16;
      }
}

/* Adds weights times a column, sixteen numbers of which the lane has at `column`. */
template <int G>
KR_DEV void multiply(const fragments &w, const uint32_t *column, float (&sums)[G][4]) {
  const kr_raw16 b[2] = {((const kr_raw16 *)column)[0], ((const kr_raw16 *)column)[1]};
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int gate = 0; gate < G; gate++)
      kr_mma(sums[gate], w.a[k][gate], b[k / 2].w[k % 2 * 2], b[k / 2].w[k % 2 * 2 + 1]);
}

/* ---- the steps --------------------------------------------------------------------------------------------------- */

/* A lane's share of a step: with two sequences one unit of one, with four two units of one, with eight two units of
 * two. With two and four sequences columns are duplicated. */
template <int SEQUENCES>
struct own_share {
  enum { OWN = SEQUENCES == 8 ? 2 : 1, UNITS = SEQUENCES == 2 ? 1 : 2 };
  float *out[OWN];
  int exists[OWN];
  float state[OWN][UNITS], cell[OWN][UNITS], bias[UNITS]; /* bias of a GRU's third recurrent part */
};

template <int SEQUENCES>
KR_DEV int share_sequence(int j) {
  return SEQUENCES == 2 ? lane_quarter() & 1 : SEQUENCES == 4 ? lane_quarter() : lane_quarter() * 2 + j;
}
template <int SEQUENCES>
KR_DEV int share_unit(int i) { return own_unit() + (SEQUENCES == 2 ? lane_quarter() & 2 : i * 2); }
template <int SEQUENCES>
KR_DEV int column_sequence(void) { return SEQUENCES == 2 ? lane_row() / 2 % 2 : lane_row() * SEQUENCES / 8; }

/* One frame. */
template <int SEQUENCES, int G>
KR_DEV void step(const fragments &w, const float (&gates)[SEQUENCES][room<SEQUENCES>::GATES],
                 const uint32_t (&before)[SEQUENCES][PITCH], uint32_t (&after)[SEQUENCES][PITCH],
                 own_share<SEQUENCES> &own) {
  typedef own_share<SEQUENCES> share;
  float sums[G][4] = {};
  multiply<G>(w, before[column_sequence<SEQUENCES>()] + lane_quarter() * 8, sums);
#pragma unroll
  for (int j = 0; j < share::OWN; j++) {
#pragma unroll
    for (int i = 0; i < share::UNITS; i++) {
      const kr_float4 in = load4(&gates[share_sequence<SEQUENCES>(j)][share_unit<SEQUENCES>(i) * 4]);
      float x[4];
#pragma unroll
      for (int gate = 0; gate < G; gate++) {
        const float product =
            SEQUENCES == 2 ? kr_select(lane_quarter() & 2, sums[gate][2], sums[gate][0]) : sums[gate][i * 2 + j];
        x[gate] =
            kr_fma(gate_scale(gate), product, gate_scale(gate) * (G == 3 && gate == 2 ? own.bias[i] : in.v[gate]));
      }
      const float third = x[2];
      if (G == 3) x[2] = gate_scale(2) * in.v[2];
      advance_unit<G>(x, third, &own.state[j][i], &own.cell[j][i]);
      if (own.exists[j]) own.out[j][i * 2] = own.state[j][i];
    }
    uint32_t *to = &after[share_sequence<SEQUENCES>(j)][lane_row() / 2 * 8 + own_warp() * 2 + lane_row() % 2];
    if (share::UNITS == 2) *to = kr_pack_f16(own.state[j][0], own.state[j][share::UNITS - 1]);
    else ((uint16_t *)to)[lane_quarter() / 2] = kr_to_f16(own.state[j][0]);
  }
}

KR_DEV float own_bias(const kr_rnn_pair_layer &layer, int gate) {
  return layer.bias ? layer.bias[gate * layer.bias_gate] : 0.0f;
}
KR_DEV float in_bias(const kr_rnn_pair_layer &layer, int gate) {
  return layer.in_bias ? layer.in_bias[gate * layer.in_bias_gate] : 0.0f;
}

/* The whole block synchronises before every group and after the last one, these warps before every frame. */
template <int SEQUENCES, int G>
KR_DEV void step_units(const kr_rnn_pair_params &p, int second, int64_t first, room<SEQUENCES> &shared) {
  typedef own_share<SEQUENCES> share;
  const int out_t = second ? p.out_t : (int)H;
  share own = {};
  fragments w;
  load_weights<G>(p.layers[second].weight, p.layers[second].own_gate, H, w);
#pragma unroll
  for (int i = 0; i < share::UNITS; i++) own.bias[i] = own_bias(p.layers[second], 2 * H + share_unit<SEQUENCES>(i));
#pragma unroll
  for (int j = 0; j < share::OWN; j++) {
    const int64_t sequence = first + share_sequence<SEQUENCES>(j);
    own.exists[j] = sequence < p.B;
    own.out[j] = (second ? p.out + sequence * p.out_b : p.between + sequence * p.L * H) + share_unit<SEQUENCES>(0);
  }
  for (int i = kr_thread(); i < SEQUENCES * PITCH; i += HALF) shared.states[0][i / PITCH][i % PITCH] = 0;
#pragma unroll 1
  for (int t0 = 0; t0 < p.L; t0 += FRAMES) {
    kr_sync();
#pragma unroll
    for (int i = 0; i < FRAMES; i++) {
      if (t0 + i >= p.L) break;
      if (i) kr_sync_some<1, HALF>();
      step<SEQUENCES, G>(w, shared.gates[t0 / FRAMES % 2][i], shared.states[i % 2], shared.states[(i + 1) % 2], own);
#pragma unroll
      for (int j = 0; j < share::OWN; j++) own.out[j] += out_t;
    }
  }
  kr_sync();
}

/* ---- the input's part: rows of a group are columns of a product -------------------------------------------------- */

/* PER_ROW threads share a row, each with every PER_ROW-th four of its numbers. */
template <int SEQUENCES>
struct own_row {
  enum { PER_ROW = HALF / (FRAMES * SEQUENCES), QUADS = H / 4 / PER_ROW };
  kr_float4 v[QUADS];
};

KR_DEV int frame_of(int row, int sequences) { return row / 8 * (8 / sequences) + row % 8 % (8 / sequences); }
KR_DEV int sequence_of(int row, int sequences) { return row % 8 / (8 / sequences); }

/* The location of a thread's rows: one sequence's, or the block's first for one out of range. */
typedef struct rows_from {
  const float *at;
  int step, width;
} rows_from;

template <int SEQUENCES>
KR_DEV rows_from own_rows(const kr_rnn_pair_params &p, int second, int64_t first) {
  const int64_t own = first + sequence_of(kr_thread() % HALF / own_row<SEQUENCES>::PER_ROW, SEQUENCES),
                sequence = own < p.B ? own : first;
  if (second) return rows_from{p.between + sequence * p.L * H, (int)H, (int)H};
  return rows_from{p.x + sequence * p.x_b, p.x_t, p.C};
}

/* Frames past the last are read as the last. */
template <int SEQUENCES>
KR_DEV void load_row(const kr_rnn_pair_params &p, const rows_from &from, int t0, own_row<SEQUENCES> &row) {
  typedef own_row<SEQUENCES> own;
  const int thread = kr_thread() % HALF, t = t0 + frame_of(thread / own::PER_ROW, SEQUENCES);
  const float *const at = from.at + (int64_t)(t < p.L ? t : p.L - 1) * from.step;
#pragma unroll
  for (int k = 0; k < own::QUADS; k++) {
    const int c = (thread % own::PER_ROW + k * own::PER_ROW) * 4;
    row.v[k] = c < from.width ? load4(at + c) : kr_float4{{0.0f, 0.0f, 0.0f, 0.0f}};
  }
}

template <int SEQUENCES>
KR_DEV float row_sum(float v) {
#pragma unroll
  for (int d = own_row<SEQUENCES>::PER_ROW / 2; d; d >>= 1) v += kr_shuffle_xor(v, d);
  return v;
}

/* Over the channels, zero-padded. */
template <int SEQUENCES>
KR_DEV void normalise(int n_channels, float eps, own_row<SEQUENCES> &row) {
  typedef own_row<SEQUENCES> own;
  const int lane = kr_thread() % own::PER_ROW;
  const float share = 1.0f / (float)n_channels;
  float sum = 0.0f, squares = 0.0f;
#pragma unroll
  for (int k = 0; k < own::QUADS; k++) sum += (row.v[k].v[0] + row.v[k].v[1]) + (row.v[k].v[2] + row.v[k].v[3]);
  const float mean = row_sum<SEQUENCES>(sum) * share;
#pragma unroll
  for (int k = 0; k < own::QUADS; k++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      row.v[k].v[j] = (lane + k * own::PER_ROW) * 4 + j < n_channels ? row.v[k].v[j] - mean : 0.0f;
      squares = kr_fma(row.v[k].v[j], row.v[k].v[j], squares);
    }
  const float scale = kr_rsqrt(kr_fma(row_sum<SEQUENCES>(squares), share, eps));
#pragma unroll
  for (int k = 0; k < own::QUADS; k++)
#pragma unroll
    for (int j = 0; j < 4; j++) row.v[k].v[j] *= scale;
}

template <int SEQUENCES>
KR_DEV void store_row(const own_row<SEQUENCES> &row, uint32_t (&rows)[FRAMES * SEQUENCES][PITCH]) {
  typedef own_row<SEQUENCES> own;
  const int thread = kr_thread() % HALF;
#pragma unroll
  for (int k = 0; k < own::QUADS; k++) {
    const int quad = thread % own::PER_ROW + k * own::PER_ROW;
    uint32_t *to = rows[thread / own::PER_ROW] + quad % 4 * 8 + quad / 4 * 2;
    *(uint64_t *)to =
        (uint64_t)kr_pack_f16(row.v[k].v[1], row.v[k].v[3]) << 32 | kr_pack_f16(row.v[k].v[0], row.v[k].v[2]);
  }
}

/* All gates of a group. bias: for the lane's two units. */
template <int SEQUENCES, int G>
KR_DEV void make_gates(const fragments &w, const float (&bias)[2][4], const uint32_t (&rows)[FRAMES * SEQUENCES][PITCH],
                       float (&to)[FRAMES][SEQUENCES][room<SEQUENCES>::GATES]) {
#pragma unroll 1
  for (int set = 0; set < FRAMES * SEQUENCES; set += 8) {
    float sums[G][4];
#pragma unroll
    for (int n = 0; n < 4 * G; n++) sums[n / 4][n % 4] = bias[n % 4 / 2][n / 4];
    multiply<G>(w, rows[set + lane_row()] + lane_quarter() * 8, sums);
#pragma unroll
    for (int n = 0; n < 4; n++) {
      const int row = set + lane_quarter() * 2 + n % 2;
      const kr_float4 gates = {{sums[0][n], sums[1][n], sums[2][n], sums[G - 1][n]}};
      *(kr_float4 *)&to[frame_of(row, SEQUENCES)][sequence_of(row, SEQUENCES)][(own_unit() + n / 2 * 2) * 4] = gates;
    }
  }
}

/* The sum of both biases; a GRU's third recurrent one is separate. */
template <int G>
KR_DEV void load_bias(const kr_rnn_pair_layer &layer, float (&bias)[2][4]) {
#pragma unroll
  for (int n = 0; n < 2 * G; n++) {
    const int gate = n % G, at = gate * H + own_unit() + n / G * 2;
    bias[n / G][gate] = in_bias(layer, at) + (G == 3 && gate == 2 ? 0.0f : own_bias(layer, at));
  }
}

/* ---- both layers ------------------------------------------------------------------------------------------------- */

KR_DEV int first_of_both(int frames, int T) { return frames < T ? frames : T; }

/* While the group at t0 is in progress, one thread of the first layer publishes progress, and one of the second waits
 * for the rows that the group after the next one will read. */
KR_DEV void exchange(const kr_rnn_pair_params &p, int second, int32_t *progress, int t0) {
  if (second) kr_await(progress, first_of_both(t0 + 4 * FRAMES, p.L));
  else if (t0) kr_publish(progress, t0);
}

KR_DEV void end_exchange(const kr_rnn_pair_params &p, int second, int32_t *progress) {
  if (!second) kr_publish(progress, p.L);
}

/* Messages take as long as several frames: so do eight sequences' gates, and two such blocks leave no room for a warp
 * of their own. */
template <int SEQUENCES>
struct messages {
  enum { BY = SEQUENCES == 8 ? KR_RNN_PAIR_THREADS - 32 : KR_RNN_PAIR_THREADS }; /* the thread that exchanges them */
};

/* Rows are loaded a group ahead. */
template <int SEQUENCES, int G>
KR_DEV void bring_gates(const kr_rnn_pair_params &p, int second, int64_t first, int32_t *progress,
                        room<SEQUENCES> &shared) {
  const kr_rnn_pair_layer &layer = p.layers[second];
  const rows_from from = own_rows<SEQUENCES>(p, second, first);
  const int speaks = kr_thread() == messages<SEQUENCES>::BY;
  own_row<SEQUENCES> row;
  float bias[2][4];
  fragments w;
  load_weights<G>(layer.in_weight, layer.in_gate, from.width, w);
  load_bias<G>(layer, bias);
  if (second) kr_await(progress, first_of_both(3 * FRAMES, p.L));
  load_row(p, from, 0, row);
#pragma unroll 1
  for (int t0 = 0; t0 < p.L; t0 += FRAMES) {
    if (!second && p.eps >= 0.0f) normalise(p.C, p.eps, row);
    store_row(row, shared.rows);
    load_row(p, from, t0 + FRAMES, row);
    kr_sync_some<2, HALF>();
    make_gates<SEQUENCES, G>(w, bias, shared.rows, shared.gates[t0 / FRAMES % 2]);
    if (speaks && t0) exchange(p, second, progress, t0 - FRAMES);
    kr_sync();
  }
  kr_sync();
  if (speaks) end_exchange(p, second, progress);
}

KR_DEV void exchange_messages(const kr_rnn_pair_params &p, int second, int speaks, int32_t *progress) {
#pragma unroll 1
  for (int t0 = 0; t0 < p.L; t0 += FRAMES) {
    kr_sync();
    if (speaks) exchange(p, second, progress, t0);
  }
  kr_sync();
  if (speaks) end_exchange(p, second, progress);
}

template <int SEQUENCES, int G>
KR_DEV void run_layer(const kr_rnn_pair_params &p, room<SEQUENCES> &shared) {
  const int second = kr_block_x() >= p.n_blocks,
            block = kr_block_x() -
                    (second ? p.n_blocks : 0); /* first layers come first: waiters wait only for resident blocks */
  const int64_t first = (int64_t)block * SEQUENCES;
  if (kr_thread() < HALF) step_units<SEQUENCES, G>(p, second, first, shared);
  else if (kr_thread() < 2 * HALF) bring_gates<SEQUENCES, G>(p, second, first, p.progress + block, shared);
  else exchange_messages(p, second, kr_thread() == messages<SEQUENCES>::BY, p.progress + block);
}

template <int SEQUENCES>
KR_DEV void two_layers(const kr_rnn_pair_params &p) {
  KR_DYNAMIC_SHARED(memory);
  room<SEQUENCES> &shared = *(room<SEQUENCES> *)memory;
  static_assert(sizeof shared <= SEQUENCES * KR_RNN_SEQUENCE_BYTES, "plan's shared memory");
  if (p.gates == 3) run_layer<SEQUENCES, 3>(p, shared);
  else run_layer<SEQUENCES, 4>(p, shared);
}

KR_KERNEL void KR_BOUNDS(KR_RNN_PAIR_THREADS + 32, 1) kr_rnn_pair_2(const kr_rnn_pair_params p) { two_layers<2>(p); }
KR_KERNEL void KR_BOUNDS(KR_RNN_PAIR_THREADS + 32, 1) kr_rnn_pair_4(const kr_rnn_pair_params p) { two_layers<4>(p); }
KR_KERNEL void KR_BOUNDS(KR_RNN_PAIR_THREADS, 2) kr_rnn_pair_8(const kr_rnn_pair_params p) { two_layers<8>(p); }

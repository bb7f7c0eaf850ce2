/* rnn_64_back.cu: gradients of GRU and LSTM layers with 64 units, ampere tier and up. Float32 accuracy: operands are
 * split into high and low bfloat16 parts, whose range gradients need.
 *   kr_rnn_64_back     dx, and dU of a GRU's n. A block steps 16 sequences backward through time: the first half of its
 *                      threads holds W^T in registers and computes dh from step to step, the second holds W and
 *                      computes, one step ahead, the factors of dh from x and h
 *   kr_rnn_64_weights  dweight and dbias of one gate and a part of all steps; rnn.cu's kr_rnn_sums reduces the parts */
#include "mma.cuh"
#include "pack.cuh"
#include "rnn_units.cuh"

enum { H = 64, OWN = KR_RNN_BACK_SEQUENCES, HALF = 256, UNIT_PITCH = 68, AHEAD = 3 };

KR_DEV float value(const kr_view &v, int64_t b, int64_t t, int64_t k) {
  return ((const float *)v.data)[b * v.stride[0] + t * v.stride[1] + k];
}

/* Two float32 as the sum of two pairs of bfloat16: 16 significant bits of each. */
KR_DEV void split(float even, float odd, uint32_t *high, uint32_t *low) {
  *high = kr_pack_bf16(even, odd);
  *low = kr_pack_bf16(even - kr_from_bf16((uint16_t)*high), odd - kr_from_bf16((uint16_t)(*high >> 16)));
}

/* Word offset in an operand of OWN columns (sequences) and n rows, two rows a word: rows 2 w and 2 w + 1, 16 words a
 * chunk. Lane q of a product reads words 4 q to 4 q + 3 of a chunk, 16 bytes: two of its k-steps. Conflict-free: reads
 * of eight lanes of two columns, and stores of eight lanes, one word each, of four columns. */
KR_DEV int word_at(int column, int word) {
  const int pair = column >> 1, four = word >> 2 & 3;
  return ((word >> 4) * (OWN / 2) + pair) * 32 +
         ((four ^ (pair & 1) << 1) | ((column & 1) ^ (pair >> 1 & 1)) << 2) * 4 + (word & 3);
}

/* A step's x by gates, h and, for an LSTM, the previous step's cells; sequences UNIT_PITCH apart. */
template <int G>
struct __attribute__((aligned(16))) step_room {
  enum { ROWS = G == 3 ? 4 : 6 };
  float rows[ROWS][OWN * UNIT_PITCH];
};

template <int G>
struct __attribute__((aligned(16))) back_room {
  enum { COEFS = G == 3 ? 5 : 6 };
  uint32_t dU[2][G * OWN * H / 2]; /* high and low parts: of a gate, units u and u + 8 of 16 per word */
  uint32_t h[2][OWN * H / 2];
  float halves[HALF * 4];
  float coefs[2][COEFS][OWN * UNIT_PITCH]; /* step t in t % 2 */
  step_room<G> steps[AHEAD]; /* ring buffer */
};

/* sums += w columns, both of CHUNKS chunks; w: [chunk][step][register]. */
template <int CHUNKS>
struct factor {
  uint32_t high[CHUNKS][2][4], low[CHUNKS][2][4];
};
template <int CHUNKS>
KR_DEV void multiply(const factor<CHUNKS> &w, const uint32_t *high, const uint32_t *low, int column, int first,
                     float (&sums)[4], float (&rest)[4]) {
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    const int at = word_at(column, (first + c) * 16 + (kr_thread() & 3) * 4);
    const kr_raw16 b = *(const kr_raw16 *)(high + at), less = *(const kr_raw16 *)(low + at);
#pragma unroll
    for (int e = 0; e < 2; e++) {
      kr_mma_as(kr_bf16(), sums, w.high[c][e], b.w[2 * e], b.w[2 * e + 1]);
      kr_mma_as(kr_bf16(), rest, w.high[c][e], less.w[2 * e], less.w[2 * e + 1]);
      kr_mma_as(kr_bf16(), rest, w.low[c][e], b.w[2 * e], b.w[2 * e + 1]);
    }
  }
}

/* ---- the factors of dh ------------------------------------------------------------------------------------------- */

/* The weight's rows g and g + 8 of product i: gates 2 i and 2 i + 1 of one unit. */
KR_DEV void load_gates_of(const kr_rnn_params &p, int unit, int i, factor<2> &w) {
  const int q = kr_thread() & 3;
#pragma unroll
  for (int n = 0; n < 16; n++) {
    const int gate = 2 * i + n % 2, k = 2 * (n / 8 * 16 + 4 * q + n / 4 % 2 * 2 + n % 4 / 2);
    const float *from =
        (const float *)p.weight.data + (gate * H + unit) * p.weight.stride[0] + k * p.weight.stride[1];
    split(gate < p.gates ? from[0] : 0.0f, gate < p.gates ? from[p.weight.stride[1]] : 0.0f,
          &w.high[n / 8][n / 4 % 2][n % 4], &w.low[n / 8][n / 4 % 2][n % 4]);
  }
}

/* tanh(v), and 1 - tanh(v)^2. */
KR_DEV float tanh_and_slope(float v, float *slope) {
  const float e = bounded_exp2(gate_scale(2) * v), by = kr_rcp(1.0f + e);
  *slope = 4.0f * e * by * by;
  return (1.0f - e) * by;
}

/* GRU: dn = d c0, dr = dn c1, dz = d c2, dU of n = dn c3; d c4 is carried on. */
KR_DEV void coefs_of_gru(const float (&x)[4], const float (&U)[4], float h, float (&c)[6]) {
  float slope;
  const float r = kr_sigmoid(x[0] + U[0]), z = kr_sigmoid(x[1] + U[1]),
              n = tanh_and_slope(kr_fma(r, U[2], x[2]), &slope);
  c[0] = (1.0f - z) * slope, c[1] = U[2] * r * (1.0f - r), c[2] = (h - n) * z * (1.0f - z), c[3] = r, c[4] = z;
}
/* LSTM: dc += d c0, gates dc c1, dc c2, dc c3 and d c4; dc c5 is carried on. */
KR_DEV void coefs_of_lstm(const float (&x)[4], const float (&U)[4], float cell, float before, float (&c)[6]) {
  float slope, slope_of_cell;
  const float i = kr_sigmoid(x[0] + U[0]), f = kr_sigmoid(x[1] + U[1]), g = tanh_and_slope(x[2] + U[2], &slope),
              o = kr_sigmoid(x[3] + U[3]), squashed = tanh_and_slope(cell, &slope_of_cell);
  c[0] = o * slope_of_cell, c[1] = g * i * (1.0f - i), c[2] = before * f * (1.0f - f), c[3] = i * slope,
  c[4] = squashed * o * (1.0f - o), c[5] = f;
}

/* A sequence out of range is read as the last one. */
KR_DEV int64_t existing(const kr_rnn_params &p, int64_t sequence) { return min64(sequence, p.B - 1); }

/* Copies a step's inputs asynchronously to shared memory: for each sequence x (G, 64), h and, for an LSTM, the previous
 * step's cells. */
template <int G>
KR_DEV void bring_step(const kr_rnn_params &p, int64_t t, step_room<G> &to) {
  enum { ROWS = step_room<G>::ROWS, CHUNKS = H / 4 };
  if (t >= 0)
#pragma unroll
    for (int i = 0; i < OWN * ROWS * CHUNKS / HALF; i++) {
      const int at = kr_thread() - HALF + i * HALF, chunk = at % CHUNKS * 4, row = at / CHUNKS % ROWS,
                s = at / CHUNKS / ROWS;
      const int64_t b = existing(p, (int64_t)kr_block_x() * OWN + s);
      const kr_view &v = row < G ? p.x : row == G ? p.out : p.cells;
      const int64_t step = row < G ? t : t - 1;
      kr_copy_some(to.rows[row] + s * UNIT_PITCH + chunk,
                   (const float *)v.data + (step < 0 ? 0 : b * v.stride[0] + step * v.stride[1]) +
                       (row < G ? row * H : 0) + chunk,
                   step < 0 ? 0 : 16);
    }
  kr_commit_copies();
}

/* A thread has one unit of four sequences: 8 n + 2 q + j. */
template <int G>
KR_DEV void make_coefs(const kr_rnn_params &p, back_room<G> &shared) {
  const int lane = kr_thread() & 31, g = lane / 4, q = lane & 3, unit = (kr_thread() - HALF) / 32 * 8 + g;
  float bias[4], before[4] = {};
  factor<2> w[2];
#pragma unroll
  for (int k = 0; k < AHEAD - 1; k++) bring_step<G>(p, p.L - 1 - k, shared.steps[k]);
#pragma unroll
  for (int i = 0; i < 2; i++) load_gates_of(p, unit, i, w[i]);
#pragma unroll
  for (int gate = 0; gate < 4; gate++)
    bias[gate] = gate < G && p.bias.data ? ((const float *)p.bias.data)[(gate * H + unit) * p.bias.stride[0]] : 0.0f;
  if (G == 4)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int64_t b = existing(p, (int64_t)kr_block_x() * OWN + k / 2 * 8 + 2 * q + k % 2);
      before[k] = ((const float *)p.cells.data)[b * p.cells.stride[0] + (p.L - 1) * p.cells.stride[1] + unit];
    }
  int at = 0; /* t's slot in the ring */
#pragma unroll 1
  for (int t = (int)p.L - 1; t >= 0; t--) {
    const step_room<G> &step = shared.steps[at];
    const int free = at ? at - 1 : AHEAD - 1;
    float U[2][2][4] = {};
    kr_copied<AHEAD - 2>();
    kr_sync_some<2, HALF>(); /* this step has arrived, the previous one has been read */
    bring_step<G>(p, (int64_t)t - (AHEAD - 1), shared.steps[free]);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int column = k / 2 * 8 + 2 * q + k % 2;
      uint32_t high, low;
      split(step.rows[G][column * UNIT_PITCH + unit], 0.0f, &high, &low);
      ((uint16_t *)(shared.h[0] + word_at(column, unit / 2)))[unit % 2] = (uint16_t)high;
      ((uint16_t *)(shared.h[1] + word_at(column, unit / 2)))[unit % 2] = (uint16_t)low;
    }
    kr_sync_some<2, HALF>();
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) multiply<2>(w[i], shared.h[0], shared.h[1], n * 8 + g, 0, U[n][i], U[n][i]);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int n = k / 2, j = k % 2, place = (n * 8 + 2 * q + j) * UNIT_PITCH + unit;
      float x[4], own[4], c[6];
#pragma unroll
      for (int gate = 0; gate < 4; gate++) {
        x[gate] = gate < G ? step.rows[gate][place] : 0.0f;
        own[gate] = U[n][gate / 2][gate % 2 * 2 + j] + bias[gate];
      }
      if (G == 3) {
        coefs_of_gru(x, own, step.rows[G][place], c);
      } else {
        const float cell = before[k];
        before[k] = step.rows[step_room<G>::ROWS - 1][place];
        coefs_of_lstm(x, own, cell, before[k], c);
      }
#pragma unroll
      for (int i = 0; i < back_room<G>::COEFS; i++) shared.coefs[t & 1][i][place] = c[i];
    }
    at = at + 1 == AHEAD ? 0 : at + 1;
    kr_sync();
  }
  kr_copied<0>();
}

/* ---- dh, from step to step --------------------------------------------------------------------------------------- */

/* Rows of W^T: units 16 m + g and 16 m + g + 8; its columns in the word order of dU, from chunk `first`. */
template <int G>
KR_DEV void load_turned(const kr_rnn_params &p, int m, int first, factor<G> &w) {
  const int g = (kr_thread() & 31) / 4, q = kr_thread() & 3;
#pragma unroll
  for (int n = 0; n < G * 8; n++) {
    const int unit = 16 * m + g + n % 2 * 8, word = (first + n / 8) * 16 + 4 * q + n / 4 % 2 * 2 + n % 4 / 2,
              row = word / 32 * H + word % 32 / 8 * 16 + word % 8;
    const float *from = (const float *)p.weight.data + row * p.weight.stride[0] + unit * p.weight.stride[1];
    split(from[0], from[8 * p.weight.stride[0]], &w.high[n / 8][n / 4 % 2][n % 4], &w.low[n / 8][n / 4 % 2][n % 4]);
  }
}

/* A warp has units 16 m.. and half of the sum over gates; it sends the half of its results for the other sequences to
 * the warp with the other half. A thread has units 16 m + g + 8 i of sequences 8 side + 2 q + j. */
template <int G>
KR_DEV void walk_back(const kr_rnn_params &p, back_room<G> &shared) {
  const int lane = kr_thread() & 31, g = lane / 4, q = lane & 3, m = kr_thread() / 64, side = kr_thread() / 32 % 2;
  const int column = side * 8 + 2 * q, unit = 16 * m + g;
  float dh[2][2] = {}, dc[2][2] = {}, dout[2][2];
  factor<G> w;
  load_turned<G>(p, m, side * G, w);
  const int64_t first = (int64_t)kr_block_x() * OWN + column;
#pragma unroll
  for (int k = 0; k < 4; k++)
    dout[k / 2][k % 2] = value(p.dout, existing(p, first + k % 2), p.L - 1, unit + k / 2 * 8);
#pragma unroll 1
  for (int t = (int)p.L - 1; t >= 0; t--) {
    float stays[2][2];
    kr_sync();
#pragma unroll
    for (int j = 0; j < 2; j++) {
      float dx[2][4], dU[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float *c = shared.coefs[t & 1][0] + (column + j) * UNIT_PITCH + unit + 8 * i,
                    d = dh[i][j] + dout[i][j];
        enum { NEXT = OWN * UNIT_PITCH };
        if (t > 0) dout[i][j] = value(p.dout, existing(p, first + j), t - 1, unit + 8 * i);
        if (G == 3) {
          dx[i][2] = d * c[0], dx[i][0] = dx[i][2] * c[NEXT], dx[i][1] = d * c[2 * NEXT];
          dU[i][0] = dx[i][0], dU[i][1] = dx[i][1], dU[i][2] = dx[i][2] * c[3 * NEXT];
          stays[i][j] = d * c[4 * NEXT];
        } else {
          const float cell = kr_fma(d, c[0], dc[i][j]);
          dx[i][0] = cell * c[NEXT], dx[i][1] = cell * c[2 * NEXT], dx[i][2] = cell * c[3 * NEXT],
          dx[i][3] = d * c[4 * NEXT];
          dc[i][j] = cell * c[5 * NEXT], stays[i][j] = 0.0f;
#pragma unroll
          for (int gate = 0; gate < 4; gate++) dU[i][gate] = dx[i][gate];
        }
      }
#pragma unroll
      for (int gate = 0; gate < G; gate++) {
        const int at = word_at(column + j, gate * 32 + m * 8 + g);
        split(dU[0][gate], dU[1][gate], shared.dU[0] + at, shared.dU[1] + at);
      }
      if (first + j >= p.B) continue;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float *to = (float *)p.dx.data + (first + j) * p.dx.stride[0] + t * p.dx.stride[1] + unit + 8 * i;
#pragma unroll
        for (int gate = 0; gate < G; gate++) to[gate * H] = dx[i][gate];
        if (G == 3) p.scaled[((first + j) * p.L + t) * H + unit + 8 * i] = dU[i][2];
      }
    }
    kr_sync_some<1, HALF>();
    float sums[2][4] = {}, rest[2][4] = {};
#pragma unroll
    for (int n = 0; n < 2; n++)
      multiply<G>(w, shared.dU[0], shared.dU[1], n * 8 + g, side * G, sums[n], rest[n]);
    kr_raw16 given;
    float kept[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const float left = sums[0][k] + rest[0][k], right = sums[1][k] + rest[1][k];
      kept[k] = kr_select(side, right, left), given.w[k] = kr_float_to_bits(kr_select(side, left, right));
    }
    ((kr_raw16 *)shared.halves)[kr_thread()] = given;
    kr_sync_at<64>(3 + m);
    const kr_raw16 got = ((const kr_raw16 *)shared.halves)[kr_thread() ^ 32];
#pragma unroll
    for (int k = 0; k < 4; k++)
      dh[k / 2][k % 2] = stays[k / 2][k % 2] + (kept[k] + kr_bits_to_float(got.w[k]));
  }
}

template <int G>
KR_DEV void layer_back(const kr_rnn_params &p, unsigned char *bytes) {
  back_room<G> &shared = *(back_room<G> *)bytes;
  if (kr_thread() < HALF) walk_back<G>(p, shared);
  else make_coefs<G>(p, shared);
}
static_assert(sizeof(back_room<3>) == KR_RNN_BACK_BYTES_GRU && sizeof(back_room<4>) == KR_RNN_BACK_BYTES_LSTM,
              "the host asks for so much");

KR_KERNEL void KR_BOUNDS(2 * HALF, 1) kr_rnn_64_back_gru(const kr_rnn_params p) {
  KR_DYNAMIC_SHARED(bytes);
  layer_back<3>(p, bytes);
}
KR_KERNEL void KR_BOUNDS(2 * HALF, 1) kr_rnn_64_back_lstm(const kr_rnn_params p) {
  KR_DYNAMIC_SHARED(bytes);
  layer_back<4>(p, bytes);
}

/* ---- the parameters: dweight[g][k] = sum over (b, t) of dU[g] h(t - 1)[k] ---------------------------------------- */

enum { DEPTH = 32, ROW_BYTES = H * 2 + 16 };

struct __attribute__((aligned(16))) weights_room {
  char left[2][DEPTH * ROW_BYTES], right[2][DEPTH * ROW_BYTES]; /* high and low parts; one step per row */
  float bias[16][H];
};

KR_DEV void store_four(char *high, char *low, const kr_float4 &v) {
  uint32_t words[4];
  split(v.v[0], v.v[1], &words[0], &words[2]);
  split(v.v[2], v.v[3], &words[1], &words[3]);
  ((uint32_t *)high)[0] = words[0], ((uint32_t *)high)[1] = words[1];
  ((uint32_t *)low)[0] = words[2], ((uint32_t *)low)[1] = words[3];
}

/* A thread loads four columns of two rows; warps are 4 by 2 over 64 by 64 results. */
KR_KERNEL void KR_BOUNDS(256, 3) kr_rnn_64_weights(const kr_rnn_params p) {
  KR_SHARED weights_room shared;
  const int gate = kr_block_x(), row = kr_thread() / 16, four = kr_thread() % 16 * 4,
            is_scaled = !p.is_lstm && gate == 2;
  const int64_t first = (int64_t)kr_block_y() * p.rows, end = min64(p.B * p.L, first + p.rows);
  const int lane = kr_thread() & 31, g = lane / 4, q = lane & 3, m = kr_thread() / 32 / 2, n = kr_thread() / 32 % 2;
  const kr_float4 zero = {{0.0f, 0.0f, 0.0f, 0.0f}};
  kr_float4 dU[2], h[2];
  float bias[4] = {}, sums[4][4] = {};
  const auto load = [&](int64_t from) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int64_t r = from + row + 16 * i;
      const uint32_t b = kr_divide((uint32_t)r, p.steps), t = (uint32_t)r - b * p.steps.by;
      const float *dx = is_scaled ? p.scaled + r * H
                                  : (const float *)p.dx.data + b * p.dx.stride[0] + t * p.dx.stride[1] + gate * H,
                  *before = (const float *)p.out.data + b * p.out.stride[0] + ((int64_t)t - 1) * p.out.stride[1];
      dU[i] = r < end ? *(const kr_float4 *)(dx + four) : zero;
      h[i] = r < end && t > 0 ? *(const kr_float4 *)(before + four) : zero;
    }
  };
  load(first);
#pragma unroll 1
  for (int64_t from = first; from < end; from += DEPTH) {
    kr_sync(); /* the old contents have been read */
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int at = (row + 16 * i) * ROW_BYTES + four * 2;
      store_four(shared.left[0] + at, shared.left[1] + at, dU[i]);
      store_four(shared.right[0] + at, shared.right[1] + at, h[i]);
#pragma unroll
      for (int k = 0; k < 4; k++) bias[k] += dU[i].v[k];
    }
    load(from + DEPTH);
    kr_sync();
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
      const int a_at = (k + lane / 16 * 8 + lane % 8) * ROW_BYTES + (m * 16 + lane / 8 % 2 * 8) * 2,
                b_at = (k + lane % 16) * ROW_BYTES + (n * 32 + lane / 16 * 8) * 2;
      uint32_t a[2][4], b[2][2][4];
#pragma unroll
      for (int part = 0; part < 2; part++) {
        kr_load_matrices_turned(a[part], shared.left[part] + a_at);
        kr_load_matrices_turned(b[part][0], shared.right[part] + b_at);
        kr_load_matrices_turned(b[part][1], shared.right[part] + b_at + 32);
      }
#pragma unroll
      for (int tile = 0; tile < 4; tile++) {
        const uint32_t *high = b[0][tile / 2] + tile % 2 * 2, *low = b[1][tile / 2] + tile % 2 * 2;
        kr_mma_as(kr_bf16(), sums[tile], a[0], high[0], high[1]);
        kr_mma_as(kr_bf16(), sums[tile], a[0], low[0], low[1]);
        kr_mma_as(kr_bf16(), sums[tile], a[1], high[0], high[1]);
      }
    }
  }
  float *const to = p.partial + ((int64_t)kr_block_y() * p.gates + gate) * H * (H + 1);
#pragma unroll
  for (int tile = 0; tile < 4; tile++)
#pragma unroll
    for (int k = 0; k < 4; k++)
      to[(m * 16 + g + k / 2 * 8) * (H + 1) + n * 32 + tile * 8 + 2 * q + k % 2] = sums[tile][k];
#pragma unroll
  for (int k = 0; k < 4; k++) shared.bias[row][four + k] = bias[k];
  kr_sync();
  if (kr_thread() >= H) return;
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < 16; k++) sum += shared.bias[k][kr_thread()];
  to[kr_thread() * (H + 1) + H] = sum;
}

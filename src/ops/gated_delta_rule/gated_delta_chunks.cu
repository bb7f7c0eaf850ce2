/* gated_delta_chunks.cu: the recurrence for keys of 128 features of 16 bits, KR_DELTA_CHUNK tokens at a time, on tensor
 * cores. With S the state before a chunk, and u, d, g as in gated_delta_staged.cu, the sums of u are linear in S:
 *   u_t = y_t - w_t^T S, where y and w solve the chunk's triangle for beta_t v_t and beta_t d_t k_t
 * so that kr_gated_delta_prepare makes y, w and the weights of outputs for all chunks at once, and kr_gated_delta_walk,
 * a block for some columns of a head's state, goes through the chunks by three products each. Sums are of float32 in
 * tf32 parts; keys and queries need one. Heads in which something is not finite run token by token, since 0 times it
 * would reach tokens before. */
#include "pack.cuh"
#include "tf32_parts.cuh"

#include "gated_delta_gates.cuh"
#include "gated_delta_triangle.cuh"

enum {
  TOKENS = KR_DELTA_CHUNK,
  DK = KR_DELTA_CHUNK_DK,
  COLUMNS = KR_DELTA_WALK_COLUMNS,
  THREADS = KR_DELTA_CHUNK_THREADS,
  STEPS = DK / 8,
  PACKS = DK / 8, /* of a row of keys: 16 bytes */
  WORDS = DK / 2 + 4,
  LANES = THREADS / COLUMNS /* of a column, token by token */
};

/* A lane's place in a product's tiles: rows g and g + 8, columns or terms 2 q and 2 q + 1. */
typedef struct corner {
  int g, q;
} corner;
KR_DEV corner corner_of_lane(void) { return corner{(kr_thread() & 31) / 4, (kr_thread() & 3)}; }

/* Two neighbours of 16 bits as factors. */
KR_DEV void unpack_terms(uint32_t word, int32_t dtype, uint32_t &low, uint32_t &high) {
  low = kr_float_to_bits(kr_unpack(word, 0, dtype)), high = kr_float_to_bits(kr_unpack(word, 1, dtype));
}

/* Eight terms of rows g and g + 8 of 16 bits. */
KR_DEV void read_terms(const uint32_t (&row)[WORDS], const uint32_t (&below)[WORDS], int at, int32_t dtype,
                       uint32_t (&a)[4]) {
  unpack_terms(row[at], dtype, a[0], a[2]), unpack_terms(below[at], dtype, a[1], a[3]);
}

KR_DEV int is_finite(float v) { return v - v == 0.0f; }

KR_DEV float length_by(const kr_gated_delta_rule_args &a, float sum) {
  return a.call.flags & KRAIT_DELTA_KEYS_AS_GIVEN ? 1.0f : kr_rsqrt(sum + a.eps);
}

KR_DEV const char *row_of(const kr_view &v, int64_t b, int64_t t, int head) {
  return (const char *)v.data + (b * v.stride[0] + t * v.stride[1] + head * v.stride[2]) * 2;
}

/* ---- what does not depend on the state --------------------------------------------------------------------------- */

/* Lengths: of keys and queries, one over. between and solve as in gated_delta_staged.cu. */
typedef struct chunk {
  uint32_t __attribute__((aligned(16))) k[TOKENS][WORDS], q[TOKENS][WORDS];
  float between[TOKENS + 1][TOKENS], beta[TOKENS], of_k[TOKENS], of_q[TOKENS], of_u[TOKENS], solve[TOKENS][TOKENS + 4];
  int spoilt;
} chunk;

KR_DEV void read_rows(const kr_gated_delta_rule_args &a, int64_t b, int head, int64_t first, chunk &s) {
#pragma unroll
  for (int i = 0; i < 2 * TOKENS * PACKS / THREADS; i++) {
    const int index = kr_thread() + i * THREADS, line = index / PACKS, pack = index % PACKS, t = line % TOKENS;
    kr_raw16 raw = {{0, 0, 0, 0}};
    if (first + t < a.L) raw = *(const kr_raw16 *)(row_of(line < TOKENS ? a.k : a.q, b, first + t, head) + 16 * pack);
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const float x = kr_unpack(raw.w[k / 2], k % 2, a.q.dtype);
      sum = kr_fma(x, x, sum);
    }
#pragma unroll
    for (int d = 1; d < PACKS; d *= 2) sum += kr_shuffle_xor(sum, d);
    *(kr_raw16 *)&(line < TOKENS ? s.k : s.q)[t][4 * pack] = raw;
    if (!is_finite(sum)) s.spoilt = 1;
    if (pack == 0) {
      if (line < TOKENS)
        s.of_k[t] = length_by(a, sum);
      else
        s.of_q[t] = length_by(a, sum) * kr_rsqrt((float)DK);
    }
  }
}

/* By one warp, a token a lane. */
KR_DEV void read_gates(const kr_gated_delta_rule_args &a, int64_t b, int h, int64_t first, chunk &s) {
  const int lane = kr_thread() & 31, exists = first + lane < a.L;
  const float decay = exists ? decay_of(a, h, at_token(a.a, b, first + lane, h)) : 1.0f;
  float product = 1.0f;
#pragma unroll
  for (int t = 0; t < TOKENS; t++) {
    const float one = kr_shuffle_from(decay, t);
    if (t >= lane) product *= one;
    s.between[lane][t] = product, s.between[TOKENS][t] = 1.0f;
  }
  s.beta[lane] = exists ? beta_of(a, at_token(a.b, b, first + lane, h)) : 0.0f;
  if (!is_finite(decay + s.beta[lane])) s.spoilt = 1;
}

/* Keys, or queries, of 16 tokens by the keys of 16. */
KR_DEV void multiply_rows(const kr_gated_delta_rule_args &a, kr_delta_made &to, chunk &s) {
  const corner at = corner_of_lane();
  const int warp = kr_thread() / 32, is_q = warp / 4, m = warp / 2 % 2 * 16 + at.g, n = warp % 2 * 16;
  const uint32_t(&rows)[TOKENS][WORDS] = is_q ? s.q : s.k;
  float sum[2][4] = {};
#pragma unroll 1
  for (int step = 0; step < STEPS; step++) {
    uint32_t terms[4];
    read_terms(rows[m], rows[m + 8], 4 * step + at.q, a.q.dtype, terms);
#pragma unroll
    for (int j = 0; j < 2; j++) {
      uint32_t b0, b1;
      unpack_terms(s.k[n + 8 * j + at.g][4 * step + at.q], a.q.dtype, b0, b1);
      kr_mma_as(kr_tf32(), sum[j], terms, b0, b1);
    }
  }
#pragma unroll
  for (int j = 0; j < 2; j++)
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const int t = m + r / 2 * 8, i = n + 8 * j + 2 * at.q + r % 2;
      const float by = s.between[i + 1][t] * s.of_k[i] * sum[j][r];
      if (is_q)
        to.weigh[t][i] = i <= t ? s.of_q[t] * by : 0.0f;
      else
        s.solve[i][t] = i < t ? s.beta[t] * s.of_k[t] * by : 0.0f;
    }
}

/* A column of w or y by a thread. Returns whether all of it is finite. */
KR_DEV int solve_column(const kr_delta_chunk_params &p, const chunk &s, int64_t b, int h, int64_t first, int c,
                        kr_delta_made &to) {
  const kr_gated_delta_rule_args &a = p.of.a;
  const int j = c - DK, step = c < DK ? DK : p.n_columns;
  float *const at = c < DK ? &to.w[0][c] : (float *)(&to + 1) + j;
  const uint16_t *const v = (const uint16_t *)row_of(a.v, b, first, h) + (j < 0 ? 0 : j) * a.v.stride[3];
  const int64_t n = j < a.Dv ? a.L - first : 0;
  float u[TOKENS], any = 0.0f;
  if (c < DK) {
#pragma unroll
    for (int t = 0; t < TOKENS; t++) u[t] = s.of_u[t] * kr_unpack(s.k[t][c / 2], c % 2, a.q.dtype);
  } else {
#pragma unroll
    for (int t = 0; t < TOKENS; t++) u[t] = t < n ? kr_unpack(v[t * a.v.stride[1]], 0, a.q.dtype) : 0.0f;
#pragma unroll
    for (int t = 0; t < TOKENS; t++) u[t] *= s.beta[t];
  }
  solve_triangle(s.solve, u);
#pragma unroll
  for (int t = 0; t < TOKENS; t++) at[t * step] = u[t], any = kr_fma(u[t], 0.0f, any);
  return any == 0.0f;
}

KR_DEV kr_delta_made &made_at(const kr_delta_chunk_params &p, int64_t index) {
  return *(kr_delta_made *)(p.made + index * p.made_floats);
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_gated_delta_prepare(const kr_delta_chunk_params p) {
  KR_SHARED chunk s;
  const kr_gated_delta_rule_args &a = p.of.a;
  const int head = kr_block_x() / p.n_chunks, c = kr_block_x() - head * p.n_chunks, h = head % (int)a.H;
  const int64_t b = head / (int)a.H, first = (int64_t)c * TOKENS;
  kr_delta_made &to = made_at(p, kr_block_x());
  if (kr_thread() == 0) s.spoilt = 0;
  kr_sync();
  read_rows(a, b, h / (int)(a.H / a.Hk), first, s);
  if (kr_thread() < 32) read_gates(a, b, h, first, s);
  kr_sync();
  if (kr_thread() < TOKENS) s.of_u[kr_thread()] = s.beta[kr_thread()] * s.between[0][kr_thread()] * s.of_k[kr_thread()];
  multiply_rows(a, to, s);
  kr_sync();
  for (int column = kr_thread(); column < DK + p.n_columns; column += THREADS)
    if (!solve_column(p, s, b, h, first, column, to)) s.spoilt = 1;
  if (kr_thread() < TOKENS) {
    to.of_q[kr_thread()] = s.between[0][kr_thread()] * s.of_q[kr_thread()];
    to.of_k[kr_thread()] = s.between[kr_thread() + 1][TOKENS - 1] * s.of_k[kr_thread()];
  }
  kr_sync();
  if (kr_thread() == 0) to.decay = s.between[0][TOKENS - 1], to.spoilt = (float)s.spoilt;
}

/* ---- through the chunks ------------------------------------------------------------------------------------------ */

typedef struct brought {
  uint32_t k[TOKENS][WORDS], q[TOKENS][WORDS];
  float w[TOKENS][DK + 8], y[TOKENS][COLUMNS], weigh[TOKENS][TOKENS + 4];
  float of_q[TOKENS], of_k[TOKENS], decay, rest[3]; /* as in kr_delta_made */
} brought;

/* state: [column][row], in parts; change: u. */
typedef struct walk {
  brought stage[2];
  float high[COLUMNS][DK + 8], low[COLUMNS][DK + 8], change[TOKENS][COLUMNS + 4];
  int spoilt;
} walk;
static_assert(sizeof(walk) <= KR_DELTA_WALK_BYTES, "the host gives too little shared memory");

/* Where a block is: sequence, head of values and of keys, first column. */
typedef struct spot {
  int64_t b;
  int h, head, first;
} spot;

KR_DEV void bring(const kr_delta_chunk_params &p, const spot &o, int c, brought &to) {
  const kr_gated_delta_rule_args &a = p.of.a;
  const kr_delta_made &from = made_at(p, (o.b * a.H + o.h) * p.n_chunks + c);
  const float *const y = (const float *)(&from + 1) + o.first;
#pragma unroll
  for (int i = 0; i < 2 * TOKENS * PACKS / THREADS; i++) {
    const int index = kr_thread() + i * THREADS, line = index / PACKS, pack = index % PACKS, t = line % TOKENS;
    const int64_t token = (int64_t)c * TOKENS + t, exists = token < a.L;
    kr_copy_or_zero<16>(&(line < TOKENS ? to.k : to.q)[t][4 * pack],
                        row_of(line < TOKENS ? a.k : a.q, o.b, exists ? token : 0, o.head) + 16 * pack, exists);
  }
#pragma unroll
  for (int i = 0; i < TOKENS * DK / 4 / THREADS; i++) {
    const int index = kr_thread() + i * THREADS, t = index / (DK / 4), at = index % (DK / 4) * 4;
    kr_copy16(&to.w[t][at], &from.w[t][at]);
  }
  const int t = kr_thread() / (TOKENS / 4), at = kr_thread() % (TOKENS / 4) * 4;
  kr_copy16(&to.weigh[t][at], &from.weigh[t][at]);
  if (kr_thread() < TOKENS * COLUMNS / 4) {
    const int row = kr_thread() / (COLUMNS / 4), four = kr_thread() % (COLUMNS / 4) * 4;
    kr_copy16(&to.y[row][four], y + row * p.n_columns + four);
  } else if (kr_thread() - TOKENS * COLUMNS / 4 <= 2 * TOKENS / 4) {
    const int four = 4 * (kr_thread() - TOKENS * COLUMNS / 4);
    kr_copy16(to.of_q + four, from.of_q + four); /* with of_k and decay behind it */
  }
  kr_commit_copies();
}

/* A warp's 16 rows of the state: [tile of 8 columns][as an accumulator]. */
typedef float own_state[COLUMNS / 8][4];

KR_DEV void put_state(const own_state &state, walk &s) {
  const corner at = corner_of_lane();
#pragma unroll
  for (int n = 0; n < COLUMNS / 8; n++) {
    const kr_factor<1, 4> parts = kr_split<1>(state[n]);
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const int column = 8 * n + 2 * at.q + r % 2, row = 16 * (kr_thread() / 32) + at.g + r / 2 * 8;
      s.high[column][row] = kr_bits_to_float(parts.high[r]), s.low[column][row] = kr_bits_to_float(parts.low[r]);
    }
  }
}

/* Returns whether all that is read is finite. */
KR_DEV int move_state(const kr_view &v, const spot &o, int64_t Dv, own_state &state, int is_out) {
  const corner at = corner_of_lane();
  float any = 0.0f;
#pragma unroll
  for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const int column = o.first + 8 * n + 2 * at.q + r % 2, row = 16 * (kr_thread() / 32) + at.g + r / 2 * 8;
      float *const place =
          (float *)v.data + o.b * v.stride[0] + o.h * v.stride[1] + row * v.stride[2] + column * v.stride[3];
      if (!is_out)
        state[n][r] = v.data && column < Dv ? *place : 0.0f;
      else if (v.data && column < Dv)
        *place = state[n][r];
      any = kr_fma(state[n][r], 0.0f, any);
    }
  return any == 0.0f;
}

/* 16 rows of w (warps 0 to 3) or of queries by 8 columns of the state. */
KR_DEV void multiply_state(const brought &in, const walk &s, int32_t dtype, float (&sum)[4]) {
  const corner at = corner_of_lane();
  const int warp = kr_thread() / 32, row = warp / 2 % 2 * 16 + at.g, column = warp % 2 * 8 + at.g;
  float small[4] = {}, smaller[4] = {};
#pragma unroll 4
  for (int step = 0; step < STEPS; step++) {
    const kr_float2 high = *(const kr_float2 *)(s.high[column] + 8 * step + 2 * at.q),
                    low = *(const kr_float2 *)(s.low[column] + 8 * step + 2 * at.q);
    const uint32_t h0 = kr_float_to_bits(high.v[0]), h1 = kr_float_to_bits(high.v[1]), l0 = kr_float_to_bits(low.v[0]),
                   l1 = kr_float_to_bits(low.v[1]);
    if (warp < 4) {
      const kr_float2 above = *(const kr_float2 *)(in.w[row] + 8 * step + 2 * at.q),
                      below = *(const kr_float2 *)(in.w[row + 8] + 8 * step + 2 * at.q);
      const float terms[4] = {above.v[0], below.v[0], above.v[1], below.v[1]};
      const kr_factor<1, 4> w = kr_split<1>(terms);
      kr_mma_as(kr_tf32(), smaller, w.low, h0, h1), kr_mma_as(kr_tf32(), small, w.high, l0, l1);
      kr_mma_as(kr_tf32(), sum, w.high, h0, h1);
    } else {
      uint32_t terms[4];
      read_terms(in.q[row], in.q[row + 8], 4 * step + at.q, dtype, terms);
      kr_mma_as(kr_tf32(), small, terms, l0, l1), kr_mma_as(kr_tf32(), sum, terms, h0, h1);
    }
  }
#pragma unroll
  for (int r = 0; r < 4; r++) sum[r] += small[r] + smaller[r];
}

KR_DEV void keep_change(const brought &in, const float (&sum)[4], walk &s) {
  const corner at = corner_of_lane();
  const int warp = kr_thread() / 32;
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const int t = warp / 2 * 16 + at.g + r / 2 * 8, c = warp % 2 * 8 + 2 * at.q + r % 2;
    s.change[t][c] = in.y[t][c] - sum[r];
  }
}

/* Outputs of 16 tokens and 8 columns, of which sum is the part of the state before. */
KR_DEV void store_outputs(const kr_gated_delta_rule_args &a, const spot &o, const brought &in, const walk &s,
                          int64_t first, float (&sum)[4]) {
  const corner at = corner_of_lane();
  const int warp = kr_thread() / 32, row = warp / 2 % 2 * 16 + at.g, column = warp % 2 * 8;
#pragma unroll
  for (int r = 0; r < 4; r++) sum[r] *= in.of_q[row + r / 2 * 8];
#pragma unroll
  for (int step = 0; step < TOKENS / 8; step++) {
    const int i = 8 * step + 2 * at.q;
    const float terms[4] = {in.weigh[row][i], in.weigh[row + 8][i], in.weigh[row][i + 1], in.weigh[row + 8][i + 1]},
                b[2] = {s.change[i][column + at.g], s.change[i + 1][column + at.g]};
    kr_multiply<1>(sum, kr_split<1>(terms), b);
  }
#pragma unroll
  for (int r = 0; r < 4; r++) {
    const int64_t t = first + row + r / 2 * 8, j = o.first + column + 2 * at.q + r % 2;
    if (t < a.L && j < a.Dv)
      kr_store(a.out.data, o.b * a.out.stride[0] + t * a.out.stride[1] + o.h * a.out.stride[2] + j * a.out.stride[3],
               a.out.dtype, sum[r]);
  }
}

/* The state after the chunk: a warp's 16 rows. */
KR_DEV void move_on(const brought &in, const walk &s, int32_t dtype, own_state &state) {
  const corner at = corner_of_lane();
  const int row = 16 * (kr_thread() / 32) + at.g;
  float sum[COLUMNS / 8][4] = {};
#pragma unroll
  for (int step = 0; step < TOKENS / 8; step++) {
    const int i = 8 * step + 2 * at.q;
    uint32_t terms[4];
#pragma unroll
    for (int r = 0; r < 4; r++)
      terms[r] = kr_float_to_bits(kr_unpack(in.k[i + r / 2][(row + r % 2 * 8) / 2], row & 1, dtype));
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) {
      const float b[2] = {in.of_k[i] * s.change[i][8 * n + at.g], in.of_k[i + 1] * s.change[i + 1][8 * n + at.g]};
      const kr_factor<1, 2> parts = kr_split<1>(b);
      kr_mma_as(kr_tf32(), sum[n], terms, parts.low[0], parts.low[1]);
      kr_mma_as(kr_tf32(), sum[n], terms, parts.high[0], parts.high[1]);
    }
  }
#pragma unroll
  for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
    for (int r = 0; r < 4; r++) state[n][r] = kr_fma(in.decay, state[n][r], sum[n][r]);
}

KR_DEV float sum_of_column(float v) {
#pragma unroll
  for (int d = 1; d < LANES; d *= 2) v += kr_shuffle_xor(v, d);
  return v;
}

/* A column of the state by LANES lanes. */
KR_DEV void walk_tokens(const kr_delta_params &p, const spot &o) {
  enum { OWN = DK / LANES };
  const kr_gated_delta_rule_args &a = p.a;
  const int lane = kr_thread() % LANES, exists = o.first + kr_thread() / LANES < a.Dv;
  const int64_t j = exists ? o.first + kr_thread() / LANES : 0;
  float state[OWN], *const before = (float *)p.before.data, *const after = (float *)p.after.data;
#pragma unroll 1
  for (int i = 0; i < OWN; i++)
    state[i] = before ? before[o.b * p.before.stride[0] + o.h * p.before.stride[1] +
                               (lane + LANES * i) * p.before.stride[2] + j * p.before.stride[3]]
                      : 0.0f;
  for (int64_t t = 0; t < a.L; t++) {
    const uint16_t *const keys = (const uint16_t *)row_of(a.k, o.b, t, o.head), *const queries =
                                                                                    (const uint16_t *)row_of(a.q, o.b,
                                                                                                             t, o.head);
    float k[OWN], q[OWN], sums[3] = {}, out = 0.0f;
#pragma unroll 1
    for (int i = 0; i < OWN; i++) {
      k[i] = kr_unpack(keys[lane + LANES * i], 0, a.q.dtype), q[i] = kr_unpack(queries[lane + LANES * i], 0, a.q.dtype);
      sums[0] = kr_fma(k[i], k[i], sums[0]), sums[1] = kr_fma(q[i], q[i], sums[1]);
      sums[2] = kr_fma(k[i], state[i], sums[2]);
    }
    const float of_k = length_by(a, sum_of_column(sums[0])), of_q = length_by(a, sum_of_column(sums[1])),
                decay = decay_of(a, o.h, at_token(a.a, o.b, t, o.h)),
                v = kr_load(a.v.data, o.b * a.v.stride[0] + t * a.v.stride[1] + o.h * a.v.stride[2] + j * a.v.stride[3],
                            a.v.dtype),
                u = beta_of(a, at_token(a.b, o.b, t, o.h)) * (v - decay * of_k * sum_of_column(sums[2]));
#pragma unroll 1
    for (int i = 0; i < OWN; i++)
      state[i] = kr_fma(of_k * k[i], u, decay * state[i]), out = kr_fma(q[i], state[i], out);
    out = sum_of_column(out) * of_q * kr_rsqrt((float)DK);
    if (exists && lane == 0)
      kr_store(a.out.data, o.b * a.out.stride[0] + t * a.out.stride[1] + o.h * a.out.stride[2] + j * a.out.stride[3],
               a.out.dtype, out);
  }
#pragma unroll 1
  for (int i = 0; i < OWN && after && exists; i++)
    after[o.b * p.after.stride[0] + o.h * p.after.stride[1] + (lane + LANES * i) * p.after.stride[2] +
          j * p.after.stride[3]] = state[i];
}

KR_KERNEL void KR_BOUNDS(THREADS, 1) kr_gated_delta_walk(const kr_delta_chunk_params p) {
  KR_DYNAMIC_SHARED(shared);
  walk &s = *(walk *)shared;
  const kr_gated_delta_rule_args &a = p.of.a;
  const int head = kr_block_x() / p.of.parts, h = head % (int)a.H;
  const spot o = {head / (int)a.H, h, h / (int)(a.H / a.Hk), (kr_block_x() - head * p.of.parts) * COLUMNS};
  own_state state;
  if (kr_thread() == 0) s.spoilt = 0;
  bring(p, o, 0, s.stage[0]);
  const int whole = move_state(p.of.before, o, a.Dv, state, 0);
  kr_sync();
  if (!whole) s.spoilt = 1;
  for (int c = kr_thread(); c < p.n_chunks; c += THREADS)
    if (made_at(p, (int64_t)head * p.n_chunks + c).spoilt != 0.0f) s.spoilt = 1;
  put_state(state, s);
  kr_copied<0>();
  kr_sync();
  if (s.spoilt) return walk_tokens(p.of, o);
  for (int c = 0; c < p.n_chunks; c++) {
    const brought &in = s.stage[c & 1];
    float sum[4] = {};
    if (c + 1 < p.n_chunks) bring(p, o, c + 1, s.stage[~c & 1]);
    multiply_state(in, s, a.q.dtype, sum);
    if (kr_thread() < 128) keep_change(in, sum, s);
    kr_sync();
    if (kr_thread() >= 128) store_outputs(a, o, in, s, (int64_t)c * TOKENS, sum);
    move_on(in, s, a.q.dtype, state);
    put_state(state, s);
    kr_copied<0>();
    kr_sync();
  }
  move_state(p.of.after, o, a.Dv, state, 1);
}

/* ssd_mma.cuh: shared code of the SSD's tensor-core kernels, Ampere and later; compiled for float16 and bfloat16
 * storage (KR_DTYPE): a chunk's step sizes, copies of its rows, a chunk's update of a state in accumulators. */
#ifndef KR_SSD_MMA_CUH
#define KR_SSD_MMA_CUH

#include "mma.cuh"

#include "ssd_params.h"

#if KR_DTYPE == 1
typedef kr_f16 half_type;
#else
typedef kr_bf16 half_type;
#endif

enum { Q = KR_SSD_CHUNK, PB = KR_SSD_P, X_BYTES = Q * PB * 2 };

/* Decays of a chunk's tokens, computed by kr_ssd_steps for every head. a: cumulative log2-decay; from: a_j - log2 d_j,
 * so that 2^(total - from_j) weights token j's input at the chunk's end; segment: sequences begun since the chunk's
 * start, -1 at padding. */
typedef struct chunk_steps {
  float a[Q], from[Q], d[Q], segment[Q];
  float total, last, pad[2]; /* a at the end, sequences begun */
} chunk_steps;

KR_DEV const chunk_steps *steps_at(const kr_ssd_params &p, int b, int h, int64_t chunk) {
  return (const chunk_steps *)p.steps + ((int64_t)b * p.H + h) * ((p.L + Q - 1) / Q) + chunk;
}

/* By the block's first threads. */
KR_DEV void copy_steps(chunk_steps *to, const chunk_steps *from) {
  if (kr_thread() < (int)sizeof(chunk_steps) / 16)
    kr_copy_some((char *)to + 16 * kr_thread(), (const char *)from + 16 * kr_thread(), 16);
}

/* Decay to the chunk's end of the incoming state and of a token's input, and of the incoming state to a token. */
KR_DEV float state_left(const chunk_steps &s) { return s.last == 0 ? kr_exp2(s.total) : 0.0f; }
KR_DEV kr_float2 inputs_left(const chunk_steps &s, int has_sequences, int j) {
  const kr_float2 from = *(const kr_float2 *)&s.from[j];
  kr_float2 left = {{kr_exp2(s.total - from.v[0]), kr_exp2(s.total - from.v[1])}};
  if (has_sequences)
    left.v[0] = s.segment[j] == s.last ? left.v[0] : 0.0f, left.v[1] = s.segment[j + 1] == s.last ? left.v[1] : 0.0f;
  return left;
}
KR_DEV float state_reaches(const chunk_steps &s, int i) { return s.segment[i] == 0 ? kr_exp2(s.a[i]) : 0.0f; }

/* dt and sequence of the tokens of one lane of the preparing warp: lane and lane + 32 of a chunk. Kept in storage form:
 * a conversion or comparison would wait for the load. */
typedef struct raw_steps {
  uint32_t dt[2];
  float log_decay[2]; /* STEPS_ANY only */
  int32_t now[2], before[2];
} raw_steps;

/* Storage of step sizes. A run-time choice would make two loads to one register, the second waiting for the first: so
 * it is fixed at compile time, except for packed sequences and tokens with decays of their own. */
typedef enum steps_kind { STEPS_16_BITS, STEPS_32_BITS, STEPS_ANY } steps_kind;

KR_DEV steps_kind kind_of_steps(const kr_ssd_params &p) {
  return p.seq_idx || p.log_decay.data ? STEPS_ANY : p.dt.dtype == KRAIT_F32 ? STEPS_32_BITS : STEPS_16_BITS;
}

template <int KIND>
KR_DEV raw_steps load_steps(const kr_ssd_params &p, int b, int h, int64_t t0, int64_t end) {
  raw_steps r = {};
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int64_t t = t0 + (kr_thread() & 31) + 32 * k, at = b * p.dt.b + t * p.dt.t + h * p.dt.h;
    if (t >= end) continue;
    const int wide = KIND == STEPS_ANY ? p.dt.dtype == KRAIT_F32 : KIND == STEPS_32_BITS;
    r.dt[k] = wide ? ((const uint32_t *)p.dt.data)[at] : ((const uint16_t *)p.dt.data)[at];
    if (KIND == STEPS_ANY && p.log_decay.data)
      r.log_decay[k] = kr_load(p.log_decay.data, b * p.log_decay.b + t * p.log_decay.t + h * p.log_decay.h,
                               p.log_decay.dtype);
    if (KIND != STEPS_ANY || !p.seq_idx) continue;
    r.now[k] = p.seq_idx[b * p.seq_b + t * p.seq_t];
    r.before[k] = t ? p.seq_idx[b * p.seq_b + (t - 1) * p.seq_t] : 0;
  }
  return r;
}

template <int KIND>
KR_DEV float dt_of(const kr_ssd_params &p, const raw_steps &r, int k) {
  return KIND == STEPS_32_BITS || (KIND == STEPS_ANY && p.dt.dtype == KRAIT_F32) ? kr_bits_to_float(r.dt[k])
                                                                                 : kr_unpack(r.dt[k], 0, p.dt.dtype);
}

KR_DEV float sum_up(float v) {
#pragma unroll
  for (int by = 1; by < 32; by <<= 1) {
    const float other = kr_shuffle_up(v, by, 32);
    if ((kr_thread() & 31) >= by) v += other;
  }
  return v;
}

/* A lane's values for its tokens: lane and lane + 32. */
typedef struct lane_steps {
  float raw[2], d[2], a[2], segment[2], total,
      last; /* raw: dt + dt_bias; segment: -1 at padding; total: a at the end; last: sequences begun */
} lane_steps;

/* A of head h; 0 where tokens have decays of their own. */
KR_DEV float rate_of(const kr_ssd_params &p, int h) {
  return p.A.data ? kr_load(p.A.data, h * p.A.h, KRAIT_F32) : 0.0f;
}

/* log2 of a token's decay; d: its step size, A log2 e. */
template <int KIND>
KR_DEV float log2_decay(const kr_ssd_params &p, const raw_steps &r, int k, float d, float A) {
  return KIND == STEPS_ANY && p.log_decay.data ? r.log_decay[k] * KR_LOG2E : d * A;
}

/* By one warp. */
template <int KIND>
KR_DEV lane_steps sum_steps(const kr_ssd_params &p, const raw_steps &r, float A, float bias, int64_t t0, int64_t end) {
  const int lane = kr_thread() & 31;
  lane_steps v = {};
#pragma unroll
  for (int k = 0; k < 2; k++) {
    v.raw[k] = dt_of<KIND>(p, r, k) + bias;
    float d = p.softplus ? kr_softplus(v.raw[k]) : v.raw[k];
    d = d < p.dt_min ? p.dt_min : d > p.dt_max ? p.dt_max : d;
    if (t0 + lane + 32 * k >= end) d = 0;
    v.a[k] = log2_decay<KIND>(p, r, k, d, A);
    v.a[k] = v.a[k] < -160.0f ? -160.0f : v.a[k]; /* 2^-160 is 0, and sums keep their digits */
    v.d[k] = r.now[k] < 0 ? 0.0f : d;
  }
  v.a[0] = sum_up(v.a[0]);
  v.a[1] = sum_up(v.a[1]) + kr_shuffle_from(v.a[0], 31);
  if (KIND == STEPS_ANY && p.seq_idx) {
    v.segment[0] = sum_up(r.now[0] != r.before[0] ? 1.0f : 0.0f);
    v.segment[1] = sum_up(r.now[1] != r.before[1] ? 1.0f : 0.0f) + kr_shuffle_from(v.segment[0], 31);
  }
  v.total = kr_shuffle_from(v.a[1], 31), v.last = kr_shuffle_from(v.segment[1], 31);
#pragma unroll
  for (int k = 0; k < 2; k++) v.segment[k] = r.now[k] < 0 ? -1.0f : v.segment[k];
  return v;
}

/* Hides a number's or an address's origin from the compiler, which would otherwise keep every address in registers. */
#ifdef KR_EMULATE
KR_DEV int anew(int x) { return x; }
KR_DEV const uint16_t *anew(const uint16_t *x) { return x; }
#else
KR_DEV int anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
KR_DEV const uint16_t *anew(const uint16_t *x) {
  asm volatile("" : "+l"(x));
  return x;
}
#endif

#ifdef KR_EMULATE
KR_DEV kr_raw16 read_shared(const unsigned char *from) { return *(const kr_raw16 *)from; }
KR_DEV void write_global(void *to, const kr_raw16 &v) { *(kr_raw16 *)to = v; }
#else
/* 16 bytes in one access, which the compiler would otherwise split. */
KR_DEV kr_raw16 read_shared(const unsigned char *from) {
  kr_raw16 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
               : "r"(kr_shared_at(from))
               : "memory");
  return v;
}
KR_DEV void write_global(void *to, const kr_raw16 &v) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
               : "memory");
}
#endif

/* Copies rows of 16-byte pieces from global memory by the block's first THREADS, zeros beyond. A thread's rows are a
 * multiple of eight apart: they share one bank swizzle. */
template <int ROW_BYTES, int THREADS>
KR_DEV void copy_rows(unsigned char *to, const kr_ssd_tensor &v, int64_t from, int64_t t0, int64_t end, int n_columns) {
  const int per_row = ROW_BYTES / 16, rows = THREADS / per_row, row = kr_thread() / per_row,
            piece = kr_thread() % per_row;
  const int64_t step = rows * v.t;
  const int n = end - t0 < (int64_t)Q ? (int)(end - t0) : (int)Q;
  const uint16_t *at = anew((const uint16_t *)v.data + from + (t0 + row) * v.t + piece * 8);
  to += kr_swizzle<ROW_BYTES>(row, piece);
  if (n == Q && n_columns * 2 >= ROW_BYTES) {
#pragma unroll
    for (int k = 0; k < Q / rows; k++, at += step) kr_copy_some(to + k * rows * ROW_BYTES, at, 16);
    return;
  }
  const int left = (n_columns - piece * 8) * 2, bytes = left < 0 ? 0 : left < 16 ? left : 16;
#pragma unroll 1
  for (int k = 0; k < Q / rows; k++, at += step) {
    const int there = row + k * rows < n ? bytes : 0;
    kr_copy_some(to + k * rows * ROW_BYTES, there ? at : (const uint16_t *)v.data, there);
  }
}

KR_DEV uint32_t pack(float low, float high) { return kr_pack(low, high, KR_DTYPE); }

/* A warp's rows of a state in registers, WIDTH columns: rows c + g and + 8, columns n0 + 8 j + 2 q and + 1. */
template <int WIDTH>
KR_DEV void load_state(const kr_ssd_params &f, const kr_ssd_tensor &v, int64_t b, int64_t h, int c, int n0,
                       float (&s)[WIDTH / 8][4]) {
  const int lane = kr_thread() & 31;
#pragma unroll
  for (int j = 0; j < WIDTH / 8; j++)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int row = c + (lane >> 2) + (k >> 1) * 8, n = anew(n0 + 8 * j + 2 * (lane & 3) + (k & 1));
      s[j][k] =
          v.data && row < f.P && n < f.N ? kr_load(v.data, b * v.b + h * v.h + row * v.t + n * v.n, v.dtype) : 0.0f;
    }
}
template <int WIDTH>
KR_DEV void store_state(const kr_ssd_params &f, const kr_ssd_tensor &v, int64_t b, int64_t h, int c, int n0,
                        const float (&s)[WIDTH / 8][4]) {
  const int lane = kr_thread() & 31;
#pragma unroll
  for (int j = 0; j < WIDTH / 8; j++)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int row = c + (lane >> 2) + (k >> 1) * 8, n = anew(n0 + 8 * j + 2 * (lane & 3) + (k & 1));
      if (row < f.P && n < f.N) kr_store(v.data, b * v.b + h * v.h + row * v.t + n * v.n, v.dtype, s[j][k]);
    }
}

/* A warp's place: rows from 16 m on, column half n of the tile. */
typedef struct warp_place {
  int m, n, g, q, lane, row;
} warp_place;

KR_DEV warp_place place_of_thread(int thread) {
  const int w = thread >> 5, lane = thread & 31;
  return warp_place{w & 3, w >> 2, lane >> 2, lane & 3, lane, 16 * (w & 3) + (lane >> 2)};
}

/* 16 rows from 16 m on as an A operand, 16 k from 16 k on; rows of ROW_BYTES. */
template <int ROW_BYTES>
KR_DEV void load_a(uint32_t (&a)[4], const unsigned char *rows, const warp_place &me, int k) {
  kr_load_matrices(a, rows + kr_swizzle<ROW_BYTES>(16 * me.m + (me.lane & 15), 2 * k + (me.lane >> 4)));
}
/* The B operand for 16 columns, stored k-contiguous or (turned) column-contiguous; row0: first k, chunk: of 8
 * columns. */
template <int ROW_BYTES>
KR_DEV void load_b(uint32_t (&b)[4], const unsigned char *rows, const warp_place &me, int first, int k) {
  kr_load_matrices(
      b, rows + kr_swizzle<ROW_BYTES>(first + (me.lane & 7) + (me.lane >> 4) * 8, 2 * k + (me.lane >> 3 & 1)));
}
template <int ROW_BYTES>
KR_DEV void load_b_turned(uint32_t (&b)[4], const unsigned char *rows, const warp_place &me, int k, int chunk) {
  kr_load_matrices_turned(
      b, rows + kr_swizzle<ROW_BYTES>(16 * k + (me.lane & 7) + (me.lane >> 3 & 1) * 8, chunk + (me.lane >> 4)));
}

KR_DEV void clear(float (&d)[4]) { d[0] = d[1] = d[2] = d[3] = 0; }

/* Whether a state contains NaN or infinity. */
template <int n>
KR_DEV int is_spoilt(const float (&s)[n][4]) {
  float zero = 0;
#pragma unroll
  for (int j = 0; j < n; j++)
#pragma unroll
    for (int k = 0; k < 4; k++) zero = kr_fma(s[j][k], 0.0f, zero);
  return !(zero == 0);
}

/* Whether two values of an output that other states' kernels left are finite: their sum may have left float16's range
 * though the whole is in it, and then the head is recomputed. */
KR_DEV int are_finite(float low, float high) { return kr_fma(low, 0.0f, high * 0.0f) == 0; }

/* For a gradient, whose dB and dC are sums over a group's heads: these are recomputed together. */
KR_DEV void report_nonfinite_group(const kr_ssd_params &f, int b, int h) {
  for (int k = 0, first = h - h % f.heads; k < f.heads; k++) f.spoilt[(int64_t)b * f.H + first + k] = 1;
}

/* Decays a state; not even NaN crosses sequences, but it is flagged. */
template <int n>
KR_DEV int keep_of_state(float (&s)[n][4], float keeps) {
  if (keeps == 0) {
    const int spoilt = is_spoilt<n>(s);
#pragma unroll
    for (int j = 0; j < n; j++) clear(s[j]);
    return spoilt;
  }
#pragma unroll
  for (int j = 0; j < n; j++) s[j][0] *= keeps, s[j][1] *= keeps, s[j][2] *= keeps, s[j][3] *= keeps;
  return 0;
}

/* S = keeps S + (weights X)^T B for a warp's 16 channels from 16 m on and WIDTH / 8 blocks of 8 states from block n on.
 * OUT: the weights are decays of the incoming state to a token, else of its input to the chunk's end. Returns whether a
 * dropped state was not finite. */
template <int N, int WIDTH, int OUT>
KR_DEV int take_chunk(float (&s)[WIDTH / 8][4], int m, int n, const unsigned char *x, const unsigned char *B,
                      const chunk_steps &steps, int has_sequences) {
  const int lane = kr_thread() & 31, q = lane & 3;
  const int spoilt = keep_of_state<WIDTH / 8>(s, state_left(steps));
#pragma unroll
  for (int k = 0; k < Q / 16; k++) {
    uint32_t a[4], b[4];
    kr_load_matrices_turned(a, x + kr_swizzle<PB * 2>(16 * k + (lane & 7) + (lane >> 4) * 8, 2 * m + (lane >> 3 & 1)));
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const int j = 16 * k + (i >> 1) * 8 + 2 * q;
      const kr_float2 w = OUT ? kr_float2{{state_reaches(steps, j), state_reaches(steps, j + 1)}}
                              : inputs_left(steps, has_sequences, j);
#pragma unroll
      for (int h = 0; h < 2; h++)
        a[i + h] = pack(kr_unpack(a[i + h], 0, KR_DTYPE) * w.v[0], kr_unpack(a[i + h], 1, KR_DTYPE) * w.v[1]);
    }
#pragma unroll
    for (int j = 0; j < WIDTH / 16; j++) {
      kr_load_matrices_turned(
          b, B + kr_swizzle<N * 2>(16 * k + (lane & 7) + (lane >> 3 & 1) * 8, n + 2 * j + (lane >> 4)));
      kr_mma_as(half_type(), s[2 * j], a, b[0], b[1]);
      kr_mma_as(half_type(), s[2 * j + 1], a, b[2], b[3]);
    }
  }
  return spoilt;
}

#endif

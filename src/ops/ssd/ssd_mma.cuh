/* ssd_mma.cuh: what the SSD's kernels on tensor cores share, from Ampere on; compiled for float16 and bfloat16 storage (KR_DTYPE): the step
 * sizes of a chunk, copies of its rows, a state in accumulators that takes a chunk. */
#ifndef KR_SSD_MMA_CUH
#define KR_SSD_MMA_CUH

#include "mma.cuh"

#include "ssd_plan.h"

#if KR_DTYPE == 1
typedef kr_f16 half_type;
#else
typedef kr_bf16 half_type;
#endif

enum { Q = KR_SSD_CHUNK, PB = KR_SSD_P, X_BYTES = Q * PB * 2 };

/* What a chunk's tokens decay by; two of them, for this chunk and the next. */
typedef struct chunk_steps {
  float a[Q], from[Q], into[Q], segment[Q]; /* from: a_j - log2 |d_j|; into: 2^(a_end - a_j) d_j, 0 where a sequence begins after j; segment: sequences begun since */
  float keeps, total, last_segment, pad; /* keeps: what is left of the state before the chunk; total: a_end */
} chunk_steps;

/* dt and sequence of the tokens that a lane of the first warp prepares: lane and lane + 32 of a chunk. */
typedef struct raw_steps {
  float dt[2], begins[2], padding[2];
} raw_steps;

KR_DEV raw_steps load_steps(const kr_ssd_plan &p, int b, int h, int64_t t0, int64_t end) {
  raw_steps r = {};
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int64_t t = t0 + (kr_thread() & 31) + 32 * k;
    if (t >= end) continue;
    r.dt[k] = kr_load(p.dt.data, b * p.dt.b + t * p.dt.t + h * p.dt.h, p.dt.dtype);
    if (!p.seq_idx) continue;
    const int32_t now = p.seq_idx[b * p.seq_b + t * p.seq_t], before = t ? p.seq_idx[b * p.seq_b + (t - 1) * p.seq_t] : 0;
    r.begins[k] = now != before ? 1.0f : 0.0f;
    r.padding[k] = now < 0 ? 1.0f : 0.0f;
  }
  return r;
}

KR_DEV float sum_up(float v) {
#pragma unroll
  for (int by = 1; by < 32; by <<= 1) {
    const float other = kr_shuffle_up(v, by, 32);
    if ((kr_thread() & 31) >= by) v += other;
  }
  return v;
}

/* What a lane of a warp knows of its tokens: lane and lane + 32. */
typedef struct lane_steps {
  float raw[2], d[2], a[2], segment[2], total, last; /* raw: dt + dt_bias; segment: -1 at padding; total: a at the end; last: segments begun */
} lane_steps;

/* By one warp. */
KR_DEV lane_steps sum_steps(const kr_ssd_plan &p, const raw_steps &r, float A, float bias, int64_t t0, int64_t end) {
  const int lane = kr_thread() & 31;
  lane_steps v = {};
#pragma unroll
  for (int k = 0; k < 2; k++) {
    v.raw[k] = r.dt[k] + bias;
    float d = p.softplus ? kr_softplus(v.raw[k]) : v.raw[k];
    d = d < p.dt_min ? p.dt_min : d > p.dt_max ? p.dt_max : d;
    if (t0 + lane + 32 * k >= end) d = 0;
    v.a[k] = d * A;
    v.a[k] = v.a[k] < -160.0f ? -160.0f : v.a[k]; /* 2^-160 is 0, and sums keep their digits */
    v.d[k] = r.padding[k] != 0 ? 0.0f : d;
  }
  v.a[0] = sum_up(v.a[0]);
  v.a[1] = sum_up(v.a[1]) + kr_shuffle_from(v.a[0], 31);
  if (p.seq_idx) {
    v.segment[0] = sum_up(r.begins[0]);
    v.segment[1] = sum_up(r.begins[1]) + kr_shuffle_from(v.segment[0], 31);
  }
  v.total = kr_shuffle_from(v.a[1], 31), v.last = kr_shuffle_from(v.segment[1], 31);
#pragma unroll
  for (int k = 0; k < 2; k++) v.segment[k] = r.padding[k] != 0 ? -1.0f : v.segment[k];
  return v;
}

/* By the first warp. */
KR_DEV void prepare_steps(const kr_ssd_plan &p, chunk_steps &s, const raw_steps &r, float A, float bias, int64_t t0, int64_t end) {
  const int lane = kr_thread() & 31;
  const lane_steps v = sum_steps(p, r, A, bias, t0, end);
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int i = lane + 32 * k;
    s.a[i] = v.a[k], s.from[i] = v.a[k] - kr_log2(v.d[k]), s.segment[i] = v.segment[k]; /* d is 0 or more: the host sees to it */
    s.into[i] = v.segment[k] == v.last ? v.d[k] * kr_exp2(v.total - v.a[k]) : 0.0f;
  }
  if (lane == 0) s.total = v.total, s.last_segment = v.last, s.keeps = v.last == 0 ? kr_exp2(v.total) : 0.0f;
}

/* A number or an address that the compiler must take as new: it would rather keep every address of the walk than have registers. */
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

/* Rows of 16-byte pieces from global memory, zeros beyond. A thread's rows are a multiple of eight apart: all lie alike among the banks. */
template <int ROW_BYTES, int THREADS>
KR_DEV void copy_rows(unsigned char *to, const kr_ssd_tensor &v, int64_t from, int64_t t0, int64_t end, int n_columns) {
  const int per_row = ROW_BYTES / 16, rows = THREADS / per_row, row = kr_thread() / per_row, piece = kr_thread() % per_row;
  const int left = (n_columns - piece * 8) * 2, bytes = left < 0 ? 0 : left < 16 ? left : 16;
  const int64_t step = rows * v.t;
  const int n = end - t0 < (int64_t)Q ? (int)(end - t0) : (int)Q;
  const uint16_t *at = anew((const uint16_t *)v.data + from + (t0 + row) * v.t + piece * 8);
  to += kr_swizzle<ROW_BYTES>(row, piece);
#pragma unroll
  for (int k = 0; k < Q / rows; k++, at += step) {
    const int there = row + k * rows < n ? bytes : 0;
    kr_copy_some(to + k * rows * ROW_BYTES, there ? at : (const uint16_t *)v.data, there);
  }
}

KR_DEV uint32_t pack(float low, float high) { return kr_pack(low, high, KR_DTYPE); }

/* A warp's rows of a state in registers, WIDTH columns: rows c + g and 8 more, columns n0 + 8 j + 2 q and one more. */
template <int WIDTH>
KR_DEV void load_state(const kr_ssd_plan &f, const kr_ssd_tensor &v, int64_t b, int64_t h, int c, int n0, float (&s)[WIDTH / 8][4]) {
  const int lane = kr_thread() & 31;
#pragma unroll
  for (int j = 0; j < WIDTH / 8; j++)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int row = c + (lane >> 2) + (k >> 1) * 8, n = anew(n0 + 8 * j + 2 * (lane & 3) + (k & 1));
      s[j][k] = v.data && row < f.P && n < f.N ? kr_load(v.data, b * v.b + h * v.h + row * v.t + n * v.n, v.dtype) : 0.0f;
    }
}
template <int WIDTH>
KR_DEV void store_state(const kr_ssd_plan &f, const kr_ssd_tensor &v, int64_t b, int64_t h, int c, int n0, const float (&s)[WIDTH / 8][4]) {
  const int lane = kr_thread() & 31;
#pragma unroll
  for (int j = 0; j < WIDTH / 8; j++)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int row = c + (lane >> 2) + (k >> 1) * 8, n = anew(n0 + 8 * j + 2 * (lane & 3) + (k & 1));
      if (row < f.P && n < f.N) kr_store(v.data, b * v.b + h * v.h + row * v.t + n * v.n, v.dtype, s[j][k]);
    }
}

/* A warp: rows 16 m and on, columns half n of the tile. */
typedef struct warp_place {
  int m, n, g, q, lane, row;
} warp_place;

KR_DEV warp_place my_place(void) {
  const int w = kr_thread() >> 5, lane = kr_thread() & 31;
  return warp_place{w & 3, w >> 2, lane >> 2, lane & 3, lane, 16 * (w & 3) + (lane >> 2)};
}

/* 16 rows from 16 m on as a factor, 16 k from 16 k on; rows of ROW_BYTES. */
template <int ROW_BYTES>
KR_DEV void load_a(uint32_t (&a)[4], const unsigned char *rows, const warp_place &me, int k) {
  kr_load_matrices(a, rows + kr_swizzle<ROW_BYTES>(16 * me.m + (me.lane & 15), 2 * k + (me.lane >> 4)));
}
/* The other factor for 16 columns: whose k lie side by side; turned, whose columns do: row0: first k, chunk: of 8 columns. */
template <int ROW_BYTES>
KR_DEV void load_b(uint32_t (&b)[4], const unsigned char *rows, const warp_place &me, int first, int k) {
  kr_load_matrices(b, rows + kr_swizzle<ROW_BYTES>(first + (me.lane & 7) + (me.lane >> 4) * 8, 2 * k + (me.lane >> 3 & 1)));
}
template <int ROW_BYTES>
KR_DEV void load_b_turned(uint32_t (&b)[4], const unsigned char *rows, const warp_place &me, int k, int chunk) {
  kr_load_matrices_turned(b, rows + kr_swizzle<ROW_BYTES>(16 * k + (me.lane & 7) + (me.lane >> 3 & 1) * 8, chunk + (me.lane >> 4)));
}

KR_DEV void clear(float (&d)[4]) { d[0] = d[1] = d[2] = d[3] = 0; }

/* S = keeps S + (into X)^T B, a warp's 16 channels of it. */
template <int N>
KR_DEV void update_state(float (&s)[N / 8][4], const unsigned char *x, const unsigned char *B, const float *into, float keeps) {
  const int lane = kr_thread() & 31, q = lane & 3, w = kr_thread() >> 5;
#pragma unroll
  for (int j = 0; j < N / 8; j++)
#pragma unroll
    for (int k = 0; k < 4; k++) s[j][k] = keeps == 0 ? 0.0f : s[j][k] * keeps; /* not even NaN may pass to another sequence */
#pragma unroll
  for (int k = 0; k < Q / 16; k++) {
    uint32_t a[4], b[4];
    kr_load_matrices_turned(a, x + kr_swizzle<PB * 2>(16 * k + (lane & 7) + (lane >> 4) * 8, 2 * w + (lane >> 3 & 1)));
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int j = 16 * k + (i >> 1) * 8 + 2 * q;
      a[i] = pack(kr_unpack(a[i], 0, KR_DTYPE) * into[j], kr_unpack(a[i], 1, KR_DTYPE) * into[j + 1]);
    }
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
      kr_load_matrices_turned(b, B + kr_swizzle<N * 2>(16 * k + (lane & 7) + (lane >> 3 & 1) * 8, 2 * n + (lane >> 4)));
      kr_mma_as(half_type(), s[2 * n], a, b[0], b[1]);
      kr_mma_as(half_type(), s[2 * n + 1], a, b[2], b[3]);
    }
  }
}

#endif

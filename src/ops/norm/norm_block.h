/* norm_block.h: shared by the SIMD rows of the norms. Rows are read into float arrays of whole vectors, zero-padded. */
#ifndef KR_NORM_BLOCK_H
#define KR_NORM_BLOCK_H

#include <string.h>

#include "norm_impls.h"
#include "vec_math.h"
#include "vec_tile.h"
#include "view.h"

enum { MOST_CHUNKS = 64 };

static inline int64_t whole(int64_t n) { return (n + 15) / 16 * 16; } /* multiple of every vector and of a cache line */

static inline void read_row(float *to, const kr_view *v, int64_t at, int64_t stride, int64_t n) {
  kr_row_load(to, v->data, v->dtype, at, stride, n);
}
static inline void write_row(const float *from, const kr_view *v, int64_t at, int64_t stride, int64_t n) {
  if (kr_has(v)) kr_row_store(from, v->data, v->dtype, at, stride, n);
}

/* Reads a parameter's features; `other` everywhere if it is absent. */
static inline void read_features(float *to, const kr_view *v, int64_t n, float other) {
  if (kr_has(v)) read_row(to, v, 0, v->stride[0], n);
  else
    for (int64_t i = 0; i < whole(n); i++) to[i] = i < n ? other : 0;
}

typedef struct norm_stats {
  float mean, scale; /* 0 for RMS; 1 / sqrt(var + eps) */
} norm_stats;

/* Statistics of n values; padding lanes are set to the mean, so that they normalise to 0. */
static inline norm_stats measure_row(float *v, int64_t n, float eps, int is_rms) {
  norm_stats s = {0, 0};
  kr_v sum = kr_v_zero(), squares = kr_v_zero();
  for (int64_t i = 0; !is_rms && i < n; i += KR_VL) sum = kr_v_add(sum, kr_v_load(v + i));
  if (!is_rms) s.mean = kr_v_sum(sum) / (float)n;
  for (int64_t i = n; i < whole(n); i++) v[i] = s.mean;
  const kr_v mean = kr_v_set1(s.mean);
  for (int64_t i = 0; i < n; i += KR_VL) {
    kr_v away = kr_v_sub(kr_v_load(v + i), mean);
    squares = kr_v_fma(away, away, squares);
  }
  kr_v scale = kr_v_div(kr_v_set1(1.0f), kr_v_sqrt(kr_v_set1(kr_v_sum(squares) / (float)n + eps)));
  s.scale = kr_v_sum(scale) / KR_VL;
  return s;
}

/* values = (values - mean) scale. */
static inline void normalise_row(float *values, int64_t n, norm_stats s) {
  const kr_v mean = kr_v_set1(s.mean), scale = kr_v_set1(s.scale);
  for (int64_t i = 0; i < n; i += KR_VL) kr_v_store(values + i, kr_v_mul(kr_v_sub(kr_v_load(values + i), mean), scale));
}

/* dv = (w - xhat mean(w xhat) - mean(w)) scale from w = dy weight, in place; mean(w) only without RMS. */
static inline void gradient_row(float *w, const float *xhat, int64_t n, float scale, int is_rms) {
  kr_v along = kr_v_zero(), level = kr_v_zero();
  for (int64_t i = 0; i < n; i += KR_VL) {
    along = kr_v_fma(kr_v_load(w + i), kr_v_load(xhat + i), along);
    level = kr_v_add(level, kr_v_load(w + i));
  }
  const kr_v c1 = kr_v_set1(kr_v_sum(along) / (float)n), c2 = kr_v_set1(is_rms ? 0 : kr_v_sum(level) / (float)n),
             r = kr_v_set1(scale);
  for (int64_t i = 0; i < n; i += KR_VL)
    kr_v_store(w + i, kr_v_mul(kr_v_sub(kr_v_fnma(kr_v_load(xhat + i), c1, kr_v_load(w + i)), c2), r));
}

/* Rows per chunk; sums over rows are split into chunks. */
static inline int64_t rows_per_chunk(int64_t R) { return R > MOST_CHUNKS ? (R + MOST_CHUNKS - 1) / MOST_CHUNKS : 1; }
static inline int64_t n_chunks_of(int64_t R) { return (R + rows_per_chunk(R) - 1) / rows_per_chunk(R); }

/* Reduces the chunks of one sum in order and writes it. partial: [chunk][stride], this sum at offset. */
static inline void write_sums(const float *partial, int64_t n_chunks, int64_t stride, const kr_view *v,
                              int64_t begin, int64_t end) {
  for (int64_t m = begin; kr_has(v) && m < end; m++) {
    double sum = 0;
    for (int64_t chunk = 0; chunk < n_chunks; chunk++) sum += partial[chunk * stride + m];
    kr_put(v, kr_at1(v, m), sum);
  }
}

#endif

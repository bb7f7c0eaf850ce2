/* moments.h: means and variances over positions for a _simd.c, channels as lanes: of a chunk of positions in float32
 * around its own mean, of all chunks merged in order in double; and the normalisation with PReLU. */
#ifndef KR_MOMENTS_H
#define KR_MOMENTS_H

#include <math.h>

#include "vec.h"

KR_INLINE kr_v kr_load_lanes(const float *p, int64_t n) { return n >= KR_VL ? kr_v_load(p) : kr_v_loadn(p, (int)n); }
KR_INLINE void kr_store_lanes(float *p, kr_v v, int64_t n) {
  if (n >= KR_VL) kr_v_store(p, v);
  else kr_v_storen(p, v, (int)n);
}
KR_INLINE kr_v kr_prelu(kr_v v, kr_v slope) {
  return kr_v_select(kr_v_lt(v, kr_v_zero()), kr_v_mul(v, slope), v);
}

/* Four partial sums: shorter dependency chains, less rounding. For `lanes` channels. */
KR_INLINE void kr_moments_of(const float *x, int64_t step, int64_t n, int64_t lanes, float *mean, float *m2) {
  kr_v s[4] = {kr_v_zero(), kr_v_zero(), kr_v_zero(), kr_v_zero()};
  int64_t p = 0;
  for (; p + 4 <= n; p += 4)
    for (int i = 0; i < 4; i++) s[i] = kr_v_add(s[i], kr_load_lanes(x + (p + i) * step, lanes));
  for (; p < n; p++) s[0] = kr_v_add(s[0], kr_load_lanes(x + p * step, lanes));
  const kr_v m = kr_v_mul(kr_v_add(kr_v_add(s[0], s[1]), kr_v_add(s[2], s[3])), kr_v_set1(1.0f / (float)n));
  for (int i = 0; i < 4; i++) s[i] = kr_v_zero();
  for (p = 0; p + 4 <= n; p += 4)
    for (int i = 0; i < 4; i++) {
      const kr_v d = kr_v_sub(kr_load_lanes(x + (p + i) * step, lanes), m);
      s[i] = kr_v_fma(d, d, s[i]);
    }
  for (; p < n; p++) {
    const kr_v d = kr_v_sub(kr_load_lanes(x + p * step, lanes), m);
    s[0] = kr_v_fma(d, d, s[0]);
  }
  kr_store_lanes(mean, m, lanes);
  kr_store_lanes(m2, kr_v_add(kr_v_add(s[0], s[1]), kr_v_add(s[2], s[3])), lanes);
}

/* Over n positions: the mean of each channel, and the sum of squares around it. */
static inline void kr_moments(const float *x, int64_t step, int64_t n, int64_t C, float *mean, float *m2) {
  int64_t c = 0;
  for (; c + KR_VL <= C; c += KR_VL) kr_moments_of(x + c, step, n, KR_VL, mean + c, m2 + c);
  if (c < C) kr_moments_of(x + c, step, n, C - c, mean + c, m2 + c);
}

/* A norm as a scale and shift per channel, with the PReLU slope. */
typedef struct kr_affine {
  float *scale, *shift, *slope;
} kr_affine;

static inline void kr_affine_set(const kr_affine *to, int64_t c, double weight, double bias, double mean,
                                 double variance, float eps) {
  const double scale = weight / sqrt(variance + (double)eps);
  to->scale[c] = (float)scale;
  to->shift[c] = (float)(bias - mean * scale);
}

/* Channel c of chunks of `size` positions, the last one the remainder of n; mean and m2 (chunks, C). */
static inline void kr_moments_merge(const float *mean, const float *m2, int64_t size, int64_t n, int64_t C, int64_t c,
                                    double *level, double *variance) {
  double sum = 0, squares = 0;
  for (int64_t k = 0, at = 0; at < n; k++, at += size)
    sum += (double)mean[k * C + c] * (double)(n - at < size ? n - at : size);
  *level = sum / (double)n;
  for (int64_t k = 0, at = 0; at < n; k++, at += size) {
    const double d = (double)mean[k * C + c] - *level;
    squares += (double)m2[k * C + c] + d * d * (double)(n - at < size ? n - at : size);
  }
  *variance = squares / (double)n;
}

static inline void kr_affine_rows(const float *x, int64_t step, int64_t n, int64_t C, const kr_affine *by, float *out,
                                  int64_t out_step) {
  for (int64_t p = 0; p < n; p++, x += step, out += out_step) {
    int64_t c = 0;
    for (; c + KR_VL <= C; c += KR_VL)
      kr_v_store(out + c, kr_prelu(kr_v_fma(kr_v_load(x + c), kr_v_load(by->scale + c), kr_v_load(by->shift + c)),
                                   kr_v_load(by->slope + c)));
    for (; c < C; c += KR_VL) {
      const kr_v v = kr_v_fma(kr_load_lanes(x + c, C - c), kr_load_lanes(by->scale + c, C - c),
                              kr_load_lanes(by->shift + c, C - c));
      kr_store_lanes(out + c, kr_prelu(v, kr_load_lanes(by->slope + c, C - c)), C - c);
    }
  }
}

#endif

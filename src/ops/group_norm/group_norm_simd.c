/* group_norm_simd.c: the norm over groups with channels as lanes: mean and squares of each channel in chunks of
 * positions, in float32 around the chunk's own mean; merged in double, in order, over chunks and the group's channels;
 * then one scale and shift per channel. */
#include <math.h>

#include "group_norm/group_norm_impls.h"
#include "vec_math.h"
#include "vec_tile.h"
#include "view.h"

enum { CHUNK = KR_GROUP_NORM_CHUNK };

typedef struct norm {
  const kr_group_norm_args *a;
  int64_t n_chunks;
  float *mean, *squares; /* (B, n_chunks, C) */
  float *scale, *shift;  /* (B, C) */
} norm;

static int64_t length_of(const norm *r, int64_t chunk) {
  const int64_t left = r->a->S - chunk * CHUNK;
  return left < CHUNK ? left : CHUNK;
}

static inline __attribute__((always_inline)) void measure_lanes(const int32_t type, const kr_view *x, int64_t at,
                                                                int64_t n, int lanes, float *mean, float *squares) {
  kr_v sum[2] = {kr_v_zero(), kr_v_zero()}, square[2] = {kr_v_zero(), kr_v_zero()};
  const int64_t step = x->stride[1];
  for (int64_t s = 0; s < n; s++) sum[s & 1] = kr_v_add(sum[s & 1], kr_v_load_as(x->data, at + s * step, lanes, type));
  const kr_v level = kr_v_mul(kr_v_add(sum[0], sum[1]), kr_v_set1(1.0f / (float)n));
  for (int64_t s = 0; s < n; s++) {
    const kr_v d = kr_v_sub(kr_v_load_as(x->data, at + s * step, lanes, type), level);
    square[s & 1] = kr_v_fma(d, d, square[s & 1]);
  }
  kr_v_store_as(mean, 0, lanes, KRAIT_F32, level);
  kr_v_store_as(squares, 0, lanes, KRAIT_F32, kr_v_add(square[0], square[1]));
}

static void measure_group_chunks(void *user, int64_t begin, int64_t end, int worker) {
  const norm *r = user;
  const kr_view *x = &r->a->x;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const int64_t chunk = i % r->n_chunks, C = r->a->C, n = length_of(r, chunk);
    for (int64_t c = 0; c < C; c += KR_VL) {
      const int64_t at = kr_at3(x, i / r->n_chunks, chunk * CHUNK, c);
      const int lanes = C - c < KR_VL ? (int)(C - c) : KR_VL;
      float *mean = r->mean + i * C + c, *squares = r->squares + i * C + c;
      if (x->dtype == KRAIT_F32) measure_lanes(KRAIT_F32, x, at, n, lanes, mean, squares);
      else measure_lanes(x->dtype, x, at, n, lanes, mean, squares);
    }
  }
}

static void merge_group(const norm *r, int64_t b, int64_t g) {
  const kr_group_norm_args *a = r->a;
  const int64_t each = a->C / a->G;
  const float *mean = r->mean + b * r->n_chunks * a->C, *squares = r->squares + b * r->n_chunks * a->C;
  double sum = 0, square = 0;
  for (int64_t chunk = 0; chunk < r->n_chunks; chunk++)
    for (int64_t c = g * each; c < (g + 1) * each; c++)
      sum += (double)mean[chunk * a->C + c] * (double)length_of(r, chunk);
  const double n = (double)a->S * (double)each, level = sum / n;
  for (int64_t chunk = 0; chunk < r->n_chunks; chunk++)
    for (int64_t c = g * each; c < (g + 1) * each; c++) {
      const double d = (double)mean[chunk * a->C + c] - level;
      square += (double)squares[chunk * a->C + c] + d * d * (double)length_of(r, chunk);
    }
  const double by = 1 / sqrt(square / n + (double)a->eps);
  for (int64_t c = g * each; c < (g + 1) * each; c++) {
    const double w = kr_has(&a->weight) ? kr_get(&a->weight, kr_at1(&a->weight, c)) : 1,
                 bias = kr_has(&a->bias) ? kr_get(&a->bias, kr_at1(&a->bias, c)) : 0;
    r->scale[b * a->C + c] = (float)(by * w);
    r->shift[b * a->C + c] = (float)(bias - level * by * w);
  }
}

static inline __attribute__((always_inline)) void apply_row(const int32_t type, const norm *r, int64_t b, int64_t s) {
  const kr_group_norm_args *a = r->a;
  const int64_t from = kr_at3(&a->x, b, s, 0), to = kr_at3(&a->out, b, s, 0);
  for (int64_t c = 0; c < a->C; c += KR_VL) {
    const int lanes = a->C - c < KR_VL ? (int)(a->C - c) : KR_VL;
    const kr_v scale = kr_v_load_as(r->scale, b * a->C + c, lanes, KRAIT_F32),
               shift = kr_v_load_as(r->shift, b * a->C + c, lanes, KRAIT_F32);
    const kr_v v = kr_v_fma(kr_v_load_as(a->x.data, from + c, lanes, type), scale, shift);
    kr_v_store_as(a->out.data, to + c, lanes, type, a->activation == KRAIT_ACT_SILU ? kr_v_silu(v) : v);
  }
}

static void apply_chunks(void *user, int64_t begin, int64_t end, int worker) {
  const norm *r = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const int64_t b = i / r->n_chunks, chunk = i % r->n_chunks, n = length_of(r, chunk);
    for (int64_t s = chunk * CHUNK; s < chunk * CHUNK + n; s++) {
      if (r->a->x.dtype == KRAIT_F32) apply_row(KRAIT_F32, r, b, s);
      else apply_row(r->a->x.dtype, r, b, s);
    }
  }
}

int32_t KR_FN(kr_group_norm)(const krait_ctx *ctx, const void *args) {
  const kr_group_norm_args *a = args;
  norm r = {.a = a, .n_chunks = kr_group_norm_chunks(a->S), .mean = a->call.scratch};
  r.squares = r.mean + a->B * r.n_chunks * a->C, r.scale = r.squares + a->B * r.n_chunks * a->C;
  r.shift = r.scale + a->B * a->C;
  kr_parallel(ctx, a->B * r.n_chunks, 1, measure_group_chunks, &r);
  for (int64_t i = 0; i < a->B * a->G; i++) merge_group(&r, i / a->G, i % a->G);
  kr_parallel(ctx, a->B * r.n_chunks, 1, apply_chunks, &r);
  return KRAIT_OK;
}

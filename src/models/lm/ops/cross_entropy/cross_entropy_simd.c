/* cross_entropy_simd.c: the loss at labels and its gradient, rows over threads, a row by pieces that stay in the
 * cache. */
#include <math.h>

#include "contract.h"
#include "cross_entropy/cross_entropy.h"
#include "vec_math.h"
#include "vec_tile.h"
#include "view.h"

enum { PIECE = 1024 };

typedef struct row_sums {
  float top, log_sum, total; /* largest logit, log of the sum of exponentials below it, sum of logits */
} row_sums;

/* Elements v .. v + n - 1 of a row times the scale; whole vectors, `beyond` behind them. */
static void load_piece(float *to, const kr_view *logits, int64_t r, int64_t v, int64_t n, float scale, float beyond) {
  const kr_v by = kr_v_set1(scale);
  kr_row_load(to, logits->data, logits->dtype, kr_at2(logits, r, v), logits->stride[1], n);
  for (int64_t i = 0; i < n; i += KR_VL) kr_v_store(to + i, kr_v_mul(kr_v_load(to + i), by));
  for (int64_t i = n; i % KR_VL; i++) to[i] = beyond;
}

static row_sums sum_row(const kr_view *logits, int64_t r, int64_t V, float scale) {
  _Alignas(64) float x[PIECE];
  float top = -INFINITY;
  double sum = 0, total = 0;
  for (int64_t v = 0; v < V; v += PIECE) {
    const int64_t n = V - v < PIECE ? V - v : PIECE;
    load_piece(x, logits, r, v, n, scale, -INFINITY);
    kr_v most = kr_v_set1(-INFINITY), below = kr_v_zero(), all = kr_v_zero();
    for (int64_t i = 0; i < n; i += KR_VL) most = kr_v_max(kr_v_load(x + i), most);
    const float higher = fmaxf(top, kr_v_largest(most));
    const kr_v level = kr_v_set1(higher == -INFINITY ? 0 : higher);
    for (int64_t i = 0; i < n; i += KR_VL) below = kr_v_add(below, kr_v_exp(kr_v_sub(kr_v_load(x + i), level)));
    for (int64_t i = n; i % KR_VL; i++) x[i] = 0;
    for (int64_t i = 0; i < n; i += KR_VL) all = kr_v_add(all, kr_v_load(x + i));
    sum = (sum == 0 ? 0 : sum * exp((double)top - (double)higher)) + (double)kr_v_sum(below);
    total += (double)kr_v_sum(all), top = higher;
  }
  return (row_sums){top, (float)log(sum), (float)total};
}

static void lose_rows(void *user, int64_t begin, int64_t end, int worker) {
  const kr_cross_entropy_args *a = user;
  const float smoothing = a->label_smoothing;
  (void)worker;
  for (int64_t r = begin; r < end; r++) {
    const int32_t label = kr_get_i32(&a->labels, kr_at1(&a->labels, r));
    const row_sums s = sum_row(&a->logits, r, a->V, a->logit_scale);
    float loss = 0;
    if (label >= 0) {
      const float x = a->logit_scale * (float)kr_get(&a->logits, kr_at2(&a->logits, r, label));
      loss = s.log_sum + (1 - smoothing) * (s.top - x);
      if (smoothing > 0) loss += smoothing * (s.top - s.total / (float)a->V);
    }
    kr_put(&a->top, kr_at1(&a->top, r), (double)s.top);
    kr_put(&a->log_sum, kr_at1(&a->log_sum, r), (double)s.log_sum);
    if (kr_has(&a->lse)) kr_put(&a->lse, kr_at1(&a->lse, r), (double)(s.top + s.log_sum));
    if (kr_has(&a->losses)) kr_put(&a->losses, kr_at1(&a->losses, r), (double)loss);
  }
}

int32_t KR_FN(kr_cross_entropy)(const krait_ctx *ctx, const void *args) {
  const kr_cross_entropy_args *a = args;
  KR_TRY(kr_need_rows("cross_entropy", "labels", &a->labels, a->R, a->V));
  kr_parallel(ctx, a->R, 1 + 16384 / a->V, lose_rows, (void *)args);
  return KRAIT_OK;
}

static void slope_row(const kr_cross_entropy_bwd_args *a, int64_t r) {
  const int32_t label = kr_get_i32(&a->labels, kr_at1(&a->labels, r));
  const float top = (float)kr_get(&a->top, kr_at1(&a->top, r)),
              log_sum = (float)kr_get(&a->log_sum, kr_at1(&a->log_sum, r)),
              dloss = label >= 0 && kr_has(&a->dlosses) ? (float)kr_get(&a->dlosses, kr_at1(&a->dlosses, r)) : 0,
              dlse = kr_has(&a->dlse) ? (float)kr_get(&a->dlse, kr_at1(&a->dlse, r)) : 0,
              by_exp = a->logit_scale * (dloss + dlse), all = a->logit_scale * dloss * a->label_smoothing / (float)a->V;
  _Alignas(64) float x[PIECE];
  for (int64_t v = 0; v < a->V; v += PIECE) {
    const int64_t n = a->V - v < PIECE ? a->V - v : PIECE;
    load_piece(x, &a->logits, r, v, n, a->logit_scale, 0);
    for (int64_t i = 0; i < n; i += KR_VL) {
      const kr_v p = kr_v_exp(kr_v_sub(kr_v_sub(kr_v_load(x + i), kr_v_set1(top)), kr_v_set1(log_sum)));
      kr_v_store(x + i, by_exp == 0 ? kr_v_set1(-all) : kr_v_fma(p, kr_v_set1(by_exp), kr_v_set1(-all)));
    }
    if (label >= v && label < v + n) x[label - v] -= a->logit_scale * dloss * (1 - a->label_smoothing);
    kr_row_store(x, a->dlogits.data, a->dlogits.dtype, kr_at2(&a->dlogits, r, v), a->dlogits.stride[1], n);
  }
}

static void slope_rows(void *user, int64_t begin, int64_t end, int worker) {
  (void)worker;
  for (int64_t r = begin; r < end; r++) slope_row(user, r);
}

int32_t KR_FN(kr_cross_entropy_bwd)(const krait_ctx *ctx, const void *args) {
  const kr_cross_entropy_bwd_args *a = args;
  KR_TRY(kr_need_rows("cross_entropy_bwd", "labels", &a->labels, a->R, a->V));
  kr_parallel(ctx, a->R, 1 + 16384 / a->V, slope_rows, (void *)args);
  return KRAIT_OK;
}

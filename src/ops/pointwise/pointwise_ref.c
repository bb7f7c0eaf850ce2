/* pointwise_ref.c: out = f(x) x_scale + y y_scale, or f(x) y x_scale with KRAIT_POINTWISE_PRODUCT, where f is the
 * activation or, with KRAIT_POINTWISE_SLOPE, its derivative; f(x) is 1 if x is absent, an absent y is 0 (1 in a
 * product). With KRAIT_POINTWISE_GATE the gradients of f(x[0]) x[1] for y[0]. And out[m] = sum over r of x[r,m]. */
#include <math.h>

#include "op_list.h"
#include "view.h"

static double f(const kr_pointwise_args *a, double x) {
  const int slope = (a->call.flags & KRAIT_POINTWISE_SLOPE) != 0;
  if (a->activation == KRAIT_ACT_NONE) return slope ? 1 : x;
  if (a->activation == KRAIT_ACT_RELU) return slope ? x > 0 : x < 0 ? 0 : x; /* propagates NaN */
  if (a->activation == KRAIT_ACT_EXP) return exp(x);
  if (a->activation == KRAIT_ACT_GELU) {
    const double below = 0.5 * erfc(-x * 0.70710678118654752440); /* the normal distribution up to x */
    return slope ? below + x * 0.39894228040143267794 * exp(-0.5 * x * x) : x * below;
  }
  const double s = 1 / (1 + exp(-x));
  if (a->activation == KRAIT_ACT_SIGMOID) return slope ? s * (1 - s) : s;
  return slope ? s * (1 + x * (1 - s)) : x * s;
}

static double pointwise_element(const kr_pointwise_args *a, int64_t i, int64_t j, int64_t k, int64_t n) {
  const double x = kr_has(&a->x) ? f(a, kr_get(&a->x, kr_at4(&a->x, i, j, k, n))) : 1;
  const int product = (a->call.flags & KRAIT_POINTWISE_PRODUCT) != 0;
  if (!product && !kr_has(&a->y)) return x * a->x_scale; /* a copy preserves the sign of 0 */
  const double y = kr_has(&a->y) ? kr_get(&a->y, kr_at4(&a->y, i, j, k, n)) : product;
  return product ? x * y * a->x_scale : x * a->x_scale + y * a->y_scale;
}

/* The gradients of f(g) u. */
static void gate_element(const kr_pointwise_args *a, int64_t j, int64_t k, int64_t n) {
  kr_pointwise_args slope = *a;
  slope.call.flags = KRAIT_POINTWISE_SLOPE;
  const double g = kr_get(&a->x, kr_at4(&a->x, 0, j, k, n)), u = kr_get(&a->x, kr_at4(&a->x, 1, j, k, n)),
               y = kr_get(&a->y, kr_at4(&a->y, 0, j, k, n));
  kr_put(&a->out, kr_at4(&a->out, 0, j, k, n), f(&slope, g) * u * y);
  kr_put(&a->out, kr_at4(&a->out, 1, j, k, n), f(a, g) * y);
}

static void compute_gate(const kr_pointwise_args *a) {
  for (int64_t j = 0; j < a->J; j++)
    for (int64_t k = 0; k < a->K; k++)
      for (int64_t n = 0; n < a->N; n++) gate_element(a, j, k, n);
}

int32_t kr_pointwise_ref(const krait_ctx *ctx, const void *args) {
  const kr_pointwise_args *a = args;
  (void)ctx;
  if (a->call.flags & KRAIT_POINTWISE_GATE) return compute_gate(a), KRAIT_OK;
  for (int64_t i = 0; i < a->I; i++)
    for (int64_t j = 0; j < a->J; j++)
      for (int64_t k = 0; k < a->K; k++)
        for (int64_t n = 0; n < a->N; n++)
          kr_put(&a->out, kr_at4(&a->out, i, j, k, n), pointwise_element(a, i, j, k, n));
  return KRAIT_OK;
}

int32_t kr_sum_rows_ref(const krait_ctx *ctx, const void *args) {
  const kr_sum_rows_args *a = args;
  (void)ctx;
  for (int64_t m = 0; m < a->M; m++) {
    double sum = 0;
    for (int64_t r = 0; r < a->R; r++) sum += kr_get(&a->x, kr_at2(&a->x, r, m));
    kr_put(&a->out, kr_at1(&a->out, m), sum);
  }
  return KRAIT_OK;
}

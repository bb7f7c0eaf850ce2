/* instance_norm_ref.c: instance norm, pooling and their gradients, written to be read; double accumulation. For each
 * (b, c), with m and r = 1 / sqrt(var + eps) over S:  xhat = (x - m) r, v = xhat weight + bias, out = v > 0 ? v : slope
 * v
 *   dz = dout, or slope dout where v <= 0;  dslope = sum dout v there;  dbias = sum dz;  dweight = sum dz xhat
 *   dx = r weight (dz - mean dz - xhat mean (dz xhat)) */
#include <math.h>

#include "op_list.h"
#include "view.h"

static double inorm_ref_parameter(const kr_view *v, int64_t c, double other) {
  return kr_has(v) ? kr_get(v, kr_at1(v, c)) : other;
}

static void measure_inorm_ref(const kr_view *x, int64_t b, int64_t S, int64_t c, double eps, double *mean,
                              double *scale) {
  double square = 0;
  *mean = 0;
  for (int64_t s = 0; s < S; s++) *mean += kr_get(x, kr_at3(x, b, s, c)) / (double)S;
  for (int64_t s = 0; s < S; s++) {
    const double d = kr_get(x, kr_at3(x, b, s, c)) - *mean;
    square += d * d / (double)S;
  }
  *scale = 1 / sqrt(square + eps);
}

int32_t kr_instance_norm_ref(const krait_ctx *ctx, const void *args) {
  const kr_instance_norm_args *a = args;
  (void)ctx;
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t c = 0; c < a->C; c++) {
      double mean, scale;
      measure_inorm_ref(&a->x, b, a->S, c, (double)a->eps, &mean, &scale);
      for (int64_t s = 0; s < a->S; s++) {
        const double v =
            (kr_get(&a->x, kr_at3(&a->x, b, s, c)) - mean) * scale * inorm_ref_parameter(&a->weight, c, 1) +
            inorm_ref_parameter(&a->bias, c, 0);
        kr_put(&a->out, kr_at3(&a->out, b, s, c), v > 0 ? v : v * inorm_ref_parameter(&a->slope, c, 1));
      }
    }
  return KRAIT_OK;
}

typedef struct sums {
  double weight, bias, slope;
} sums;

/* One (b, c): adds to the sums of c and writes dx. */
static void channel_back(const kr_instance_norm_bwd_args *a, int64_t b, int64_t c, sums *all) {
  const double weight = inorm_ref_parameter(&a->weight, c, 1), bias = inorm_ref_parameter(&a->bias, c, 0),
               slope = inorm_ref_parameter(&a->slope, c, 1), S = (double)a->S;
  double mean, scale;
  sums own = {0, 0, 0};
  measure_inorm_ref(&a->x, b, a->S, c, (double)a->eps, &mean, &scale);
  for (int pass = 0; pass < 2; pass++)
    for (int64_t s = 0; s < a->S; s++) {
      const double xhat = (kr_get(&a->x, kr_at3(&a->x, b, s, c)) - mean) * scale, v = xhat * weight + bias,
                   d = kr_get(&a->dout, kr_at3(&a->dout, b, s, c));
      const double dz = v > 0 ? d : d * slope;
      if (pass == 0) own.weight += dz * xhat, own.bias += dz, own.slope += v > 0 ? 0 : d * v;
      else if (kr_has(&a->dx))
        kr_put(&a->dx, kr_at3(&a->dx, b, s, c), scale * weight * (dz - own.bias / S - xhat * own.weight / S));
    }
  all->weight += own.weight, all->bias += own.bias, all->slope += own.slope;
}

int32_t kr_instance_norm_bwd_ref(const krait_ctx *ctx, const void *args) {
  const kr_instance_norm_bwd_args *a = args;
  (void)ctx;
  for (int64_t c = 0; c < a->C; c++) {
    sums all = {0, 0, 0};
    for (int64_t b = 0; b < a->B; b++) channel_back(a, b, c, &all);
    if (kr_has(&a->dweight)) kr_put(&a->dweight, kr_at1(&a->dweight, c), all.weight);
    if (kr_has(&a->dbias)) kr_put(&a->dbias, kr_at1(&a->dbias, c), all.bias);
    if (kr_has(&a->dslope)) kr_put(&a->dslope, kr_at1(&a->dslope, c), all.slope);
  }
  return KRAIT_OK;
}

/* ---- pooling ---- */

static int64_t first_of_largest(const kr_view *x, int64_t b, int64_t S, int64_t c) {
  int64_t best = 0;
  for (int64_t s = 1; s < S; s++)
    if (kr_get(x, kr_at3(x, b, s, c)) > kr_get(x, kr_at3(x, b, best, c))) best = s;
  return best;
}

int32_t kr_pool_ref(const krait_ctx *ctx, const void *args) {
  const kr_pool_args *a = args;
  const int largest = (a->call.flags & KRAIT_POOL_MAX) != 0, is_sum = (a->call.flags & KRAIT_POOL_SUM) != 0;
  (void)ctx;
  for (int64_t b = 0; b < a->B; b++)
    for (int64_t c = 0; c < a->C; c++) {
      double sum = 0;
      for (int64_t s = 0; s < a->S && !largest; s++) sum += kr_get(&a->x, kr_at3(&a->x, b, s, c));
      if (largest) sum = kr_get(&a->x, kr_at3(&a->x, b, first_of_largest(&a->x, b, a->S, c), c));
      kr_put(&a->out, kr_at2(&a->out, b, c), largest || is_sum ? sum : sum / (double)a->S);
    }
  return KRAIT_OK;
}

int32_t kr_pool_bwd_ref(const krait_ctx *ctx, const void *args) {
  const kr_pool_bwd_args *a = args;
  const int largest = (a->call.flags & KRAIT_POOL_MAX) != 0, is_sum = (a->call.flags & KRAIT_POOL_SUM) != 0;
  (void)ctx;
  for (int64_t b = 0; b < a->B && kr_has(&a->dx); b++)
    for (int64_t c = 0; c < a->C; c++) {
      const double d = kr_get(&a->dout, kr_at2(&a->dout, b, c));
      const int64_t best = largest ? first_of_largest(&a->x, b, a->S, c) : 0;
      for (int64_t s = 0; s < a->S; s++)
        kr_put(&a->dx, kr_at3(&a->dx, b, s, c), largest ? (s == best ? d : 0) : is_sum ? d : d / (double)a->S);
    }
  return KRAIT_OK;
}

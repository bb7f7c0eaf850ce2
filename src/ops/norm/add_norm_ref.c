/* add_norm_ref.c: add + norm and its gradient, written to be read (specs: layer_norm_fn).
 *   v = x rowscale + x1 + residual;  xhat = (v - mean) / sqrt(var + eps), RMS: v / sqrt(mean v^2 + eps)
 *   out = xhat weight + bias, out1 = xhat weight1 + bias1, residual_out = v
 * Backward, with w = dout weight + dout1 weight1 and r = 1 / sqrt(var + eps):
 *   dv = (w - xhat mean(w xhat) - mean(w)) r + dresidual_out   (no mean(w) with RMS);  dx = rowscale dv
 *   dweight = sum dout xhat, dbias = sum dout. Double accumulation; a row is read entirely before it is overwritten. */
#include <math.h>
#include <string.h>

#include "norm_impls.h"
#include "op_list.h"
#include "view.h"

static double add_norm_element(const kr_view *v, int64_t r, int64_t m) {
  return kr_has(v) ? kr_get(v, kr_at2(v, r, m)) : 0;
}
static double add_norm_feature(const kr_view *v, int64_t m, double other) {
  return kr_has(v) ? kr_get(v, kr_at1(v, m)) : other;
}
static void put_add_norm(const kr_view *v, int64_t r, int64_t m, double value) {
  if (kr_has(v)) kr_put(v, kr_at2(v, r, m), value);
}

static double add_norm_summed(const kr_add_norm_args *a, int64_t r, int64_t m) {
  return add_norm_element(&a->x, r, m) * add_norm_feature(&a->rowscale, r, 1) + add_norm_element(&a->x1, r, m) +
         add_norm_element(&a->residual, r, m);
}

static void norm_row(const kr_add_norm_args *a, int64_t r) {
  double mean = 0, square = 0;
  for (int64_t m = 0; m < a->M && !(a->call.flags & KRAIT_NORM_RMS); m++)
    mean += add_norm_summed(a, r, m) / (double)a->M;
  for (int64_t m = 0; m < a->M; m++)
    square += (add_norm_summed(a, r, m) - mean) * (add_norm_summed(a, r, m) - mean) / (double)a->M;
  for (int64_t m = 0; m < a->M; m++) {
    double v = add_norm_summed(a, r, m), xhat = (v - mean) / sqrt(square + (double)a->eps);
    put_add_norm(&a->out, r, m, xhat * add_norm_feature(&a->weight, m, 1) + add_norm_feature(&a->bias, m, 0));
    put_add_norm(&a->out1, r, m, xhat * add_norm_feature(&a->weight1, m, 1) + add_norm_feature(&a->bias1, m, 0));
    put_add_norm(&a->residual_out, r, m, v);
  }
}

int32_t kr_add_norm_ref(const krait_ctx *ctx, const void *args) {
  const kr_add_norm_args *a = args;
  (void)ctx;
  for (int64_t r = 0; r < a->R; r++) norm_row(a, r);
  return KRAIT_OK;
}

/* sums: dweight, dbias, dweight1, dbias1, each [M]. */
static void add_norm_ref_norm_row_back(const kr_add_norm_bwd_args *a, int64_t r, double *sums) {
  const int is_rms = (a->call.flags & KRAIT_NORM_RMS) != 0;
  const double M = (double)a->M;
  double mean = 0, square = 0, along = 0, level = 0;
  for (int64_t m = 0; m < a->M && !is_rms; m++) mean += add_norm_element(&a->v, r, m) / M;
  for (int64_t m = 0; m < a->M; m++)
    square += (add_norm_element(&a->v, r, m) - mean) * (add_norm_element(&a->v, r, m) - mean) / M;
  const double scale = 1 / sqrt(square + (double)a->eps);
  for (int64_t m = 0; m < a->M; m++) {
    double xhat = (add_norm_element(&a->v, r, m) - mean) * scale, d0 = add_norm_element(&a->dout, r, m),
           d1 = add_norm_element(&a->dout1, r, m);
    double w = d0 * add_norm_feature(&a->weight, m, 1) + d1 * add_norm_feature(&a->weight1, m, 1);
    along += w * xhat / M;
    level += is_rms ? 0 : w / M;
    sums[m] += d0 * xhat;
    sums[a->M + m] += d0;
    sums[2 * a->M + m] += d1 * xhat;
    sums[3 * a->M + m] += d1;
  }
  for (int64_t m = 0; m < a->M; m++) {
    double xhat = (add_norm_element(&a->v, r, m) - mean) * scale;
    double w = add_norm_element(&a->dout, r, m) * add_norm_feature(&a->weight, m, 1) +
               add_norm_element(&a->dout1, r, m) * add_norm_feature(&a->weight1, m, 1);
    double dv = (w - xhat * along - level) * scale + add_norm_element(&a->dresidual_out, r, m);
    put_add_norm(&a->dx, r, m, dv * add_norm_feature(&a->rowscale, r, 1));
    put_add_norm(&a->dx1, r, m, dv);
    put_add_norm(&a->dresidual, r, m, dv);
  }
}

uint64_t kr_add_norm_bwd_ref_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  return 4 * (uint64_t)((const kr_add_norm_bwd_args *)args)->M * sizeof(double);
}

int32_t kr_add_norm_bwd_ref(const krait_ctx *ctx, const void *args) {
  const kr_add_norm_bwd_args *a = args;
  const kr_view *const outputs[] = {&a->dweight, &a->dbias, &a->dweight1, &a->dbias1};
  double *sums = a->call.scratch;
  (void)ctx;
  memset(sums, 0, 4 * (size_t)a->M * sizeof *sums);
  for (int64_t r = 0; r < a->R; r++) add_norm_ref_norm_row_back(a, r, sums);
  for (int k = 0; k < 4; k++)
    for (int64_t m = 0; kr_has(outputs[k]) && m < a->M; m++)
      kr_put(outputs[k], kr_at1(outputs[k], m), sums[k * a->M + m]);
  return KRAIT_OK;
}

/* norm_gemm_ref.c: v = x + residual, or x silu(z); y = v / sqrt(mean of v^2 + eps) weight; out = act(y Bmat + bias)
 * (y B2); residual_out = v. Written to be read; double accumulation, one rounding. */
#include <math.h>

#include "norm_gemm/norm_gemm_rows.h"
#include "op_list.h"
#include "view.h"

static double element(const krait_view *v, int64_t m, int64_t k) { return kr_has(v) ? kr_get(v, kr_at2(v, m, k)) : 0; }

static double summed(const krait_norm_gemm_args *a, int64_t m, int64_t k) {
  const double x = element(&a->x, m, k), z = element(&a->z, m, k);
  return kr_has(&a->z) ? x * z / (1 + exp(-z)) : x + element(&a->residual, m, k);
}

/* Row m, normed, times column n; scale is one over the row's root mean square. */
static double product(const krait_norm_gemm_args *a, const krait_view *B, double scale, int64_t m, int64_t n) {
  double sum = 0;
  for (int64_t k = 0; k < a->K; k++) {
    const double weight = kr_has(&a->weight) ? kr_get(&a->weight, kr_at1(&a->weight, k)) : 1;
    sum += summed(a, m, k) * weight * kr_get(B, kr_at2(B, k, n));
  }
  return sum * scale;
}

static void one_row(const krait_norm_gemm_args *a, int64_t m) {
  double square = 0;
  for (int64_t k = 0; k < a->K; k++) square += summed(a, m, k) * summed(a, m, k) / (double)a->K;
  const double scale = 1 / sqrt(square + (double)a->eps);
  for (int64_t n = 0; n < a->N; n++) {
    double v = product(a, &a->Bmat, scale, m, n) + (kr_has(&a->bias) ? kr_get(&a->bias, kr_at1(&a->bias, n)) : 0);
    if (a->activation == KRAIT_ACT_SILU) v /= 1 + exp(-v);
    if (kr_has(&a->B2)) v *= product(a, &a->B2, scale, m, n);
    kr_put(&a->out, kr_at2(&a->out, m, n), v);
  }
  for (int64_t k = 0; k < a->K && kr_has(&a->residual_out); k++)
    kr_put(&a->residual_out, kr_at2(&a->residual_out, m, k), summed(a, m, k));
}

int32_t kr_norm_gemm_ref(const krait_ctx *ctx, const void *args) {
  const krait_norm_gemm_args *a = args;
  (void)ctx;
  for (int64_t m = 0; m < a->M; m++) one_row(a, m);
  return KRAIT_OK;
}

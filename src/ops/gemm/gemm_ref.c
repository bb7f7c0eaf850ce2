/* gemm_ref.c: out = residual + factor act(S A B + bias) (S A B2 + bias2), S = scale row_scale[m]. Written for clarity;
 * double accumulation, one rounding. */
#include <math.h>

#include "gemm/gemm_impls.h"
#include "op_list.h"
#include "view.h"

static double activated(int32_t activation, double v) {
  switch (activation) {
    case KRAIT_ACT_SILU: return v / (1 + exp(-v));
    case KRAIT_ACT_GELU: return 0.5 * v * erfc(-v * 0.70710678118654752440);
    case KRAIT_ACT_GELU_TANH: return 0.5 * v * (1 + tanh(0.79788456080286535588 * (v + 0.044715 * v * v * v)));
    default: return v;
  }
}

enum { COLUMNS = 64 }; /* of a row at a time, since B's rows lie together */

static void linear(const kr_gemm_args *a, const kr_view *B, const kr_view *bias, int64_t m, int64_t from, int64_t n,
                   int64_t p, double *v) {
  double scale = a->scale != 0 ? (double)a->scale : 1;
  for (int64_t i = 0; i < n; i++) v[i] = 0;
  for (int64_t k = 0; k < a->K; k++) {
    const double factor = kr_get(&a->A, kr_at3(&a->A, m, k, p));
    for (int64_t i = 0; i < n; i++) v[i] += factor * kr_get(B, kr_at3(B, k, from + i, p));
  }
  if (kr_has(&a->row_scale)) scale *= kr_get(&a->row_scale, kr_at2(&a->row_scale, m, p));
  for (int64_t i = 0; i < n; i++) v[i] = scale * v[i] + (kr_has(bias) ? kr_get(bias, kr_at1(bias, from + i)) : 0);
}

static void columns_of_row(const kr_gemm_args *a, int64_t m, int64_t from, int64_t n_columns, int64_t p) {
  double values[COLUMNS], gates[COLUMNS];
  linear(a, &a->Bmat, &a->bias, m, from, n_columns, p, values);
  if (kr_has(&a->B2)) linear(a, &a->B2, &a->bias2, m, from, n_columns, p, gates);
  for (int64_t i = 0; i < n_columns; i++) {
    const int64_t n = from + i;
    double v = activated(a->activation, values[i]);
    if (kr_has(&a->B2)) v *= gates[i];
    if (kr_has(&a->factor)) v *= kr_get(&a->factor, kr_at3(&a->factor, m, n, p));
    if (kr_has(&a->residual)) v += kr_get(&a->residual, kr_at3(&a->residual, m, n, p));
    kr_put(&a->out, kr_at3(&a->out, m, n, p), v);
  }
}

static void one_product(const kr_gemm_args *a, int64_t p) {
  for (int64_t m = 0; m < a->M; m++)
    for (int64_t n = 0; n < a->N; n += COLUMNS)
      columns_of_row(a, m, n, a->N - n < COLUMNS ? a->N - n : COLUMNS, p);
}

/* A single product leaves the strides of its third dimension undefined: p is 0 there. */
int32_t kr_gemm_ref(const krait_ctx *ctx, const void *args) {
  const kr_gemm_args *a = args;
  (void)ctx;
  for (int64_t p = 0; p < kr_gemm_products(a); p++) one_product(a, p);
  return KRAIT_OK;
}

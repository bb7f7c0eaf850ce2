/* norm_gemm_ref.c: v = x + residual, or x silu(z); y = v / sqrt(mean of v^2 + eps) weight; out = act(y Bmat + bias),
 * with B2 times y B2; residual_out = v. With conv_weight, columns of out are passed unrounded as the newest inputs of a
 * convolution as in causal_conv1d_update_ref.c. With qweight, Bmat is dequantised as in gemm_q8_ref.c. Written to be
 * read; double accumulation, one rounding. */
#include <math.h>

#include "contract.h"
#include "gemm/norm_gemm_impls.h"
#include "op_list.h"
#include "view.h"

static double norm_gemm_element(const kr_view *v, int64_t m, int64_t k) {
  return kr_has(v) ? kr_get(v, kr_at2(v, m, k)) : 0;
}

static double norm_gemm_summed(const kr_norm_gemm_args *a, int64_t m, int64_t k) {
  const double x = norm_gemm_element(&a->x, m, k), z = norm_gemm_element(&a->z, m, k);
  return kr_has(&a->z) ? x * z / (1 + exp(-z)) : x + norm_gemm_element(&a->residual, m, k);
}

static double weight_of(const kr_norm_gemm_args *a, int64_t k, int64_t n) {
  if (!kr_has(&a->qweight)) return kr_get(&a->Bmat, kr_at2(&a->Bmat, k, n));
  const uint32_t word = (uint32_t)kr_get_i32(&a->qweight, kr_at2(&a->qweight, n, k / 4));
  return kr_get(&a->scales, kr_at2(&a->scales, n, k / 32)) * (double)(int8_t)(word >> (k % 4 * 8) & 255);
}

/* Normalised row m times column n of Bmat, or of B2; scale is 1 / RMS of the row. */
static double product(const kr_norm_gemm_args *a, double scale, int64_t m, int64_t n, int is_second) {
  double sum = 0;
  for (int64_t k = 0; k < a->K; k++) {
    const double weight = kr_has(&a->weight) ? kr_get(&a->weight, kr_at1(&a->weight, k)) : 1,
                 factor = is_second ? kr_get(&a->B2, kr_at2(&a->B2, k, n)) : weight_of(a, k, n);
    sum += norm_gemm_summed(a, m, k) * weight * factor;
  }
  return sum * scale;
}

static double norm_gemm_result(const kr_norm_gemm_args *a, double scale, int64_t m, int64_t n) {
  const double v = product(a, scale, m, n, 0) + (kr_has(&a->bias) ? kr_get(&a->bias, kr_at1(&a->bias, n)) : 0),
               active = a->activation == KRAIT_ACT_SILU ? v / (1 + exp(-v)) : v;
  return kr_has(&a->B2) ? active * product(a, scale, m, n, 1) : active;
}

/* Convolution with the newest input of channel c; shifts the state. */
static double convolve_norm_gemm(const kr_norm_gemm_args *a, int64_t row, int64_t c, double newest) {
  const int64_t S = a->W - 1;
  double sum = newest * kr_get(&a->conv_weight, kr_at2(&a->conv_weight, c, S));
  if (kr_has(&a->conv_bias)) sum += kr_get(&a->conv_bias, kr_at1(&a->conv_bias, c));
  for (int64_t s = 0; s < S; s++) {
    const int64_t at = kr_at3(&a->conv_state, row, c, s);
    sum += kr_get(&a->conv_state, at) * kr_get(&a->conv_weight, kr_at2(&a->conv_weight, c, s));
    kr_put(&a->conv_state, at, s + 1 < S ? kr_get(&a->conv_state, kr_at3(&a->conv_state, row, c, s + 1)) : newest);
  }
  return sum / (1 + exp(-sum));
}

static void one_row(const kr_norm_gemm_args *a, int64_t m) {
  const int64_t row =
      kr_has(&a->conv_state_indices) ? kr_get_i32(&a->conv_state_indices, kr_at1(&a->conv_state_indices, m)) : m;
  double square = 0;
  for (int64_t k = 0; k < a->K; k++) square += norm_gemm_summed(a, m, k) * norm_gemm_summed(a, m, k) / (double)a->K;
  const double scale = 1 / sqrt(square + (double)a->eps);
  for (int64_t n = 0; n < a->N; n++) {
    const double v = norm_gemm_result(a, scale, m, n);
    kr_put(&a->out, kr_at2(&a->out, m, n), v);
    const int64_t c = n - a->conv_from;
    if (kr_has(&a->conv_weight) && c >= 0 && c < a->C)
      kr_put(&a->conv_out, kr_at2(&a->conv_out, m, c), row < 0 ? 0 : convolve_norm_gemm(a, row, c, v));
  }
  for (int64_t k = 0; k < a->K && kr_has(&a->residual_out); k++)
    kr_put(&a->residual_out, kr_at2(&a->residual_out, m, k), norm_gemm_summed(a, m, k));
}

int32_t kr_norm_gemm_ref(const krait_ctx *ctx, const void *args) {
  const kr_norm_gemm_args *a = args;
  (void)ctx;
  KR_TRY(kr_need_rows("norm_gemm", "conv_state_indices", &a->conv_state_indices, a->M, a->n_states));
  for (int64_t m = 0; m < a->M; m++) one_row(a, m);
  return KRAIT_OK;
}

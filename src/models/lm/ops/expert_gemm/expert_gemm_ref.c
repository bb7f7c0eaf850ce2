/* expert_gemm_ref.c: products of rows with the matrices of their experts (op_args.h has the equation), in double. */
#include <math.h>

#include "expert_gemm/expert_gemm.h"
#include "half.h"
#include "lm_ops.h"
#include "status.h"
#include "view.h"

static uint32_t word_of(const kr_expert_gemm_args *a, int64_t e, int64_t n, int64_t i) {
  return (uint32_t)kr_get_i32(&a->qweight, kr_at3(&a->qweight, e, n, i));
}

static double q8_weight(const kr_expert_gemm_args *a, int64_t e, int64_t n, int64_t k) {
  return (double)(int8_t)(word_of(a, e, n, k / 4) >> (k % 4 * 8) & 255) *
         kr_get(&a->scales, kr_at3(&a->scales, e, n, k / 32));
}

/* A byte of the super-block that k is in; gemm_q4k_ref.c has the layout. */
static uint32_t q4k_byte(const kr_expert_gemm_args *a, int64_t e, int64_t n, int64_t k, int64_t at) {
  return word_of(a, e, n, k / 256 * 36 + at / 4) >> (at % 4 * 8) & 255;
}

static uint32_t q4k_six(const kr_expert_gemm_args *a, int64_t e, int64_t n, int64_t k, int64_t j, int64_t from) {
  if (j < 4) return q4k_byte(a, e, n, k, 4 + from + j) & 63;
  const uint32_t low = q4k_byte(a, e, n, k, 4 + 4 + j) >> from & 15;
  return low | q4k_byte(a, e, n, k, 4 + from + j - 4) >> 6 << 4;
}

static double q4k_factor(const kr_expert_gemm_args *a, int64_t e, int64_t n, int64_t k, int64_t at) {
  return (double)kr_f16_to_float((uint16_t)(q4k_byte(a, e, n, k, at) | q4k_byte(a, e, n, k, at + 1) << 8));
}

static double q4k_weight(const kr_expert_gemm_args *a, int64_t e, int64_t n, int64_t k) {
  const int64_t i = k % 256, j = i / 32;
  const uint32_t q = q4k_byte(a, e, n, k, 16 + i / 64 * 32 + i % 32) >> (j % 2 * 4) & 15;
  return q4k_factor(a, e, n, k, 0) * q4k_six(a, e, n, k, j, 0) * q -
         q4k_factor(a, e, n, k, 2) * q4k_six(a, e, n, k, j, 4);
}

static double expert_weight(const kr_expert_gemm_args *a, const kr_view *B, int64_t e, int64_t n, int64_t k) {
  if (kr_has(B)) return kr_get(B, kr_at3(B, e, n, k));
  return kr_has(&a->scales) ? q8_weight(a, e, n, k) : q4k_weight(a, e, n, k);
}

static double product_of(const kr_expert_gemm_args *a, const kr_view *B, int64_t t, int64_t j, int64_t e, int64_t n) {
  double sum = 0;
  for (int64_t k = 0; k < a->K; k++)
    sum += kr_get(&a->A, kr_at3(&a->A, t, a->S > 1 ? j : 0, k)) * expert_weight(a, B, e, n, k);
  return sum;
}

static double expert_output(const kr_expert_gemm_args *a, int64_t t, int64_t j, int64_t n) {
  const int64_t e = kr_get_i32(&a->index, kr_at2(&a->index, t, j));
  if (e < 0) return 0;
  const double x = product_of(a, &a->Bmat, t, j, e, n), y = a->activation == KRAIT_ACT_SILU ? x / (1 + exp(-x)) : x;
  return kr_has(&a->B2) ? y * product_of(a, &a->B2, t, j, e, n) : y;
}

int32_t kr_expert_gemm_ref(const krait_ctx *ctx, const void *args) {
  const kr_expert_gemm_args *a = args;
  (void)ctx;
  KR_TRY(kr_expert_gemm_check_index(a));
  for (int64_t t = 0; t < a->T; t++)
    for (int64_t n = 0; n < a->N; n++) {
      double sum = 0;
      for (int64_t j = 0; j < a->J; j++) {
        const double y = expert_output(a, t, j, n);
        const int is_chosen = kr_get_i32(&a->index, kr_at2(&a->index, t, j)) >= 0;
        if (kr_has(&a->weights))
          sum += is_chosen ? kr_get(&a->weights, kr_at2(&a->weights, t, j)) * y : 0;
        else
          kr_put(&a->out, kr_at3(&a->out, t, j, n), y);
      }
      if (kr_has(&a->weights)) kr_put(&a->out, kr_at2(&a->out, t, n), sum);
    }
  return KRAIT_OK;
}

/* gemm_few_simd.c: few rows of A against weights as layers store them, each output's K inputs side by side: dot products, so that the weights are read once,
 * where they lie and as they are. Bound by memory. */
#include "gemm/gemm_rows.h"
#include "op_list.h"
#include "vec_math.h"
#include "view.h"

enum { ROWS = 4, OUTPUTS = 4 }; /* of A, and outputs, whose sums are under way at once */

KR_INLINE kr_v load(const void *data, int64_t at, int32_t dtype) {
  if (dtype == KRAIT_F32) return kr_v_load((const float *)data + at);
  return dtype == KRAIT_F16 ? kr_v_load_h((const uint16_t *)data + at) : kr_v_load_b((const uint16_t *)data + at);
}

KR_INLINE kr_v load_rest(const void *data, int64_t at, int32_t dtype, int n) {
  if (dtype == KRAIT_F32) return kr_v_loadn((const float *)data + at, n);
  return dtype == KRAIT_F16 ? kr_v_loadn_h((const uint16_t *)data + at, n) : kr_v_loadn_b((const uint16_t *)data + at, n);
}

/* sums[m * outputs + n] = A[m] . B[n]; rows, outputs and dtype are constants after inlining. */
KR_INLINE void dots(const int rows, const int outputs, const int32_t dtype, const float *A, int64_t lda, const void *B, int64_t at, int64_t ldb, int64_t K, float *sums) {
  kr_v sum[ROWS * OUTPUTS];
#pragma GCC unroll 16
  for (int i = 0; i < rows * outputs; i++) sum[i] = kr_v_zero();
  int64_t k = 0;
  for (; k + KR_VL <= K; k += KR_VL) {
    kr_v a[ROWS];
#pragma GCC unroll 4
    for (int m = 0; m < rows; m++) a[m] = kr_v_load(A + m * lda + k);
#pragma GCC unroll 4
    for (int n = 0; n < outputs; n++) {
      const kr_v b = load(B, at + n * ldb + k, dtype);
#pragma GCC unroll 4
      for (int m = 0; m < rows; m++) sum[m * outputs + n] = kr_v_fma(a[m], b, sum[m * outputs + n]);
    }
  }
  if (k < K) {
    const int rest = (int)(K - k);
    for (int n = 0; n < outputs; n++) {
      const kr_v b = load_rest(B, at + n * ldb + k, dtype, rest);
      for (int m = 0; m < rows; m++) sum[m * outputs + n] = kr_v_fma(kr_v_loadn(A + m * lda + k, rest), b, sum[m * outputs + n]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows * outputs; i++) sums[i] = kr_v_sum(sum[i]);
}

static void finish(const krait_gemm_args *a, int64_t m, int64_t n, float sum) {
  const float scale = a->scale != 0 ? a->scale : 1;
  float v = sum * (kr_has(&a->row_scale) ? scale * (float)kr_get(&a->row_scale, kr_at1(&a->row_scale, m)) : scale);
  if (kr_has(&a->bias)) v += (float)kr_get(&a->bias, kr_at1(&a->bias, n));
  if (kr_has(&a->residual)) v += (float)kr_get(&a->residual, kr_at2(&a->residual, m, n));
  kr_put(&a->out, kr_at2(&a->out, m, n), (double)v);
}

#define SOME(rows, outputs, dtype)                                                                                                                        \
  for (; left >= rows; m += rows, left -= rows) {                                                                                                         \
    float sums[rows * outputs];                                                                                                                           \
    dots(rows, outputs, dtype, (const float *)a->A.data + m * a->A.stride[0], a->A.stride[0], a->Bmat.data, n * a->Bmat.stride[1], a->Bmat.stride[1], a->K, sums); \
    for (int i = 0; i < rows * outputs; i++) finish(a, m + i / outputs, n + i % outputs, sums[i]);                                                       \
  }

#define BY_TYPE(name, outputs, dtype)                               \
  static void name(const krait_gemm_args *a, int64_t n) {           \
    int64_t m = 0, left = a->M;                                     \
    SOME(4, outputs, dtype) SOME(2, outputs, dtype) SOME(1, outputs, dtype) \
  }
BY_TYPE(four_f32, OUTPUTS, KRAIT_F32)
BY_TYPE(four_f16, OUTPUTS, KRAIT_F16)
BY_TYPE(four_bf16, OUTPUTS, KRAIT_BF16)
BY_TYPE(one_f32, 1, KRAIT_F32)
BY_TYPE(one_f16, 1, KRAIT_F16)
BY_TYPE(one_bf16, 1, KRAIT_BF16)

typedef void outputs_fn(const krait_gemm_args *a, int64_t n);

static void multiply(void *user, int64_t begin, int64_t end, int worker) {
  static outputs_fn *const fours[] = {four_f32, four_f16, four_bf16}, *const ones[] = {one_f32, one_f16, one_bf16};
  const krait_gemm_args *a = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    int64_t n = i * OUTPUTS;
    if (n + OUTPUTS <= a->N) fours[a->Bmat.dtype](a, n);
    else
      for (; n < a->N; n++) ones[a->Bmat.dtype](a, n);
  }
}

int32_t KR_FN(kr_gemm_few)(const krait_ctx *ctx, const void *args) {
  const krait_gemm_args *a = args;
  kr_parallel(ctx, (a->N + OUTPUTS - 1) / OUTPUTS, 1 + 32768 / (OUTPUTS * (a->K + 1)), multiply, (void *)args);
  return KRAIT_OK;
}

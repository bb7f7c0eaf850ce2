/* gemm_q8_ref.c: out[m,n] = bias[n] + sum over s of scales[n,s] sum over i < 32 of A[m,32s+i] w[n,32s+i], where a word
 * holds four w as bytes -128 to 127, lowest first. */
#include "op_list.h"
#include "view.h"

static double gemm_q8_weight(const kr_gemm_q8_args *a, int64_t n, int64_t k) {
  const uint32_t word = (uint32_t)kr_get_i32(&a->qweight, kr_at2(&a->qweight, n, k / 4));
  return (double)(int8_t)(word >> (k % 4 * 8) & 255);
}

int32_t kr_gemm_q8_ref(const krait_ctx *ctx, const void *args) {
  const kr_gemm_q8_args *a = args;
  (void)ctx;
  for (int64_t m = 0; m < a->M; m++)
    for (int64_t n = 0; n < a->N; n++) {
      double sum = kr_has(&a->bias) ? kr_get(&a->bias, kr_at1(&a->bias, n)) : 0;
      for (int64_t k = 0; k < 32 * a->S; k++)
        sum += kr_get(&a->scales, kr_at2(&a->scales, n, k / 32)) * gemm_q8_weight(a, n, k) *
               kr_get(&a->A, kr_at2(&a->A, m, k));
      kr_put(&a->out, kr_at2(&a->out, m, n), sum);
    }
  return KRAIT_OK;
}

/* gemm_ref.c: out = residual + act(A B + bias), written to be read; double accumulation, one rounding. */
#include <math.h>

#include "op_list.h"
#include "view.h"

int32_t kr_gemm_ref(const krait_ctx *ctx, const void *args) {
  const krait_gemm_args *a = args;
  (void)ctx;
  for (int64_t m = 0; m < a->M; m++)
    for (int64_t n = 0; n < a->N; n++) {
      double v = kr_has(&a->bias) ? kr_get(&a->bias, kr_at1(&a->bias, n)) : 0;
      for (int64_t k = 0; k < a->K; k++) v += kr_get(&a->A, kr_at2(&a->A, m, k)) * kr_get(&a->Bmat, kr_at2(&a->Bmat, k, n));
      if (a->activation == KRAIT_ACT_SILU) v /= 1 + exp(-v);
      if (kr_has(&a->residual)) v += kr_get(&a->residual, kr_at2(&a->residual, m, n));
      kr_put(&a->out, kr_at2(&a->out, m, n), v);
    }
  return KRAIT_OK;
}

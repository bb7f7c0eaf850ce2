/* softmax_ref.c: the softmax of rows, written to be read; double accumulation:
 *   out[m,n] = exp(x[m,n] - max over i of x[m,i]) / sum over i of exp(x[m,i] - the same) */
#include <math.h>

#include "seedvr/ops/seedvr_ops.h"
#include "view.h"

int32_t kr_softmax_ref(const krait_ctx *ctx, const void *args) {
  const kr_softmax_args *a = args;
  (void)ctx;
  for (int64_t m = 0; m < a->M; m++) {
    double top = -INFINITY, sum = 0;
    for (int64_t n = 0; n < a->N; n++) {
      const double v = kr_get(&a->x, kr_at2(&a->x, m, n));
      top = v > top || isnan(v) ? v : top;
    }
    for (int64_t n = 0; n < a->N; n++) sum += exp(kr_get(&a->x, kr_at2(&a->x, m, n)) - top);
    for (int64_t n = 0; n < a->N; n++)
      kr_put(&a->out, kr_at2(&a->out, m, n), exp(kr_get(&a->x, kr_at2(&a->x, m, n)) - top) / sum);
  }
  return KRAIT_OK;
}

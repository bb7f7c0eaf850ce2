/* argmax_rows_ref.c: out[r] is the first m with the largest x[r,m]; NaN is less than everything, and a row of only NaNs
 * gives 0. */
#include "op_list.h"
#include "view.h"

int32_t kr_argmax_rows_ref(const krait_ctx *ctx, const void *args) {
  const kr_argmax_rows_args *a = args;
  (void)ctx;
  for (int64_t r = 0; r < a->R; r++) {
    int64_t best = -1;
    double most = 0;
    for (int64_t m = 0; m < a->M; m++) {
      const double v = kr_get(&a->x, kr_at2(&a->x, r, m));
      if (v == v && (best < 0 || v > most)) most = v, best = m;
    }
    ((int32_t *)a->out.data)[kr_at1(&a->out, r)] = best < 0 ? 0 : (int32_t)best;
  }
  return KRAIT_OK;
}

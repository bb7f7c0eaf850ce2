/* cross_entropy_ref.c: the loss at labels, written to be read; double accumulation. With x = logit_scale logits, e =
 * label_smoothing, and l = labels[r]:
 *   top[r] = max over v of x[r,v], log_sum[r] = log sum over v of exp(x[r,v] - top[r]), lse[r] = their sum
 *   losses[r] = lse[r] - (1 - e) x[r,l] - e / V sum over v of x[r,v]; 0 without a label (l < 0)
 *   dlogits[r,v] = logit_scale (dlosses[r] (exp(x[r,v] - lse[r]) - (1 - e) [v = l] - e / V) + dlse[r] exp(x[r,v] -
 *   lse[r])), where dlosses counts as 0 without a label. */
#include <math.h>

#include "contract.h"
#include "lm_ops.h"
#include "view.h"

int32_t kr_cross_entropy_ref(const krait_ctx *ctx, const void *args) {
  const kr_cross_entropy_args *a = args;
  const double scale = a->logit_scale, smoothing = a->label_smoothing;
  (void)ctx;
  KR_TRY(kr_need_rows("cross_entropy", "labels", &a->labels, a->R, a->V));
  for (int64_t r = 0; r < a->R; r++) {
    const int32_t label = kr_get_i32(&a->labels, kr_at1(&a->labels, r));
    double top = -INFINITY, sum = 0, below = 0;
    for (int64_t v = 0; v < a->V; v++) top = fmax(top, scale * kr_get(&a->logits, kr_at2(&a->logits, r, v)));
    for (int64_t v = 0; v < a->V; v++) {
      const double x = scale * kr_get(&a->logits, kr_at2(&a->logits, r, v));
      sum += exp(x - top), below += top - x;
    }
    kr_put(&a->top, kr_at1(&a->top, r), top), kr_put(&a->log_sum, kr_at1(&a->log_sum, r), log(sum));
    if (kr_has(&a->lse)) kr_put(&a->lse, kr_at1(&a->lse, r), top + log(sum));
    double loss = 0;
    if (label >= 0) {
      const double own = top - scale * kr_get(&a->logits, kr_at2(&a->logits, r, label));
      loss = log(sum) + (1 - smoothing) * own + (smoothing > 0 ? smoothing / (double)a->V * below : 0);
    }
    if (kr_has(&a->losses)) kr_put(&a->losses, kr_at1(&a->losses, r), loss);
  }
  return KRAIT_OK;
}

int32_t kr_cross_entropy_bwd_ref(const krait_ctx *ctx, const void *args) {
  const kr_cross_entropy_bwd_args *a = args;
  const double scale = a->logit_scale, smoothing = a->label_smoothing;
  (void)ctx;
  KR_TRY(kr_need_rows("cross_entropy_bwd", "labels", &a->labels, a->R, a->V));
  for (int64_t r = 0; r < a->R; r++) {
    const int32_t label = kr_get_i32(&a->labels, kr_at1(&a->labels, r));
    const double lse = kr_get(&a->top, kr_at1(&a->top, r)) + kr_get(&a->log_sum, kr_at1(&a->log_sum, r)),
                 dloss = label >= 0 && kr_has(&a->dlosses) ? kr_get(&a->dlosses, kr_at1(&a->dlosses, r)) : 0,
                 dlse = kr_has(&a->dlse) ? kr_get(&a->dlse, kr_at1(&a->dlse, r)) : 0;
    for (int64_t v = 0; v < a->V; v++) {
      const double p = exp(scale * kr_get(&a->logits, kr_at2(&a->logits, r, v)) - lse),
                   by_label = dloss * ((v == label ? 1 - smoothing : 0) + smoothing / (double)a->V);
      kr_put(&a->dlogits, kr_at2(&a->dlogits, r, v), scale * ((dloss + dlse) * p - by_label));
    }
  }
  return KRAIT_OK;
}

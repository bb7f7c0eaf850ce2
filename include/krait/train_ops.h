/* train_ops.h: operators that only training needs, called as those of ops.h (a krait_call first; sizes are those of the
 * tensors): the loss of a language model. */
#ifndef KRAIT_TRAIN_OPS_H
#define KRAIT_TRAIN_OPS_H

#include <krait/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Cross entropy. With x = logit_scale logits, e = label_smoothing, l = labels[r]:
 *   top[r] = max over v of x[r,v], log_sum[r] = log sum over v of exp(x[r,v] - top[r])
 *   lse[r] = top[r] + log_sum[r], the log of the sum of exp(x[r,v])
 *   losses[r] = lse[r] - (1 - e) x[r,l] - e / V sum over v of x[r,v]
 * A row with a negative label has a loss of 0. A label of V or more is refused on a CPU; on a GPU its loss is not a
 * number. Sums are float32. */
typedef struct krait_cross_entropy_args {
  krait_call call;
  float label_smoothing, logit_scale;
  krait_tensor logits; /* (R,V) any float type */
  krait_tensor labels; /* (R) int32 */
  krait_tensor losses, lse;  /* (R) float32, or absent */
  krait_tensor top, log_sum; /* (R) float32: read by the gradient, whose digits lse has not where logits are large */
} krait_cross_entropy_args;

KRAIT_API int32_t krait_cross_entropy(const krait_ctx *ctx, const krait_cross_entropy_args *args);

/* Its gradient: dlogits[r,v] = logit_scale (dlosses[r] (p - (1 - e) [v = l] - e / V) + dlse[r] p), p = exp(x[r,v] -
 * top[r] - log_sum[r]). */
typedef struct krait_cross_entropy_bwd_args {
  krait_call call;
  float label_smoothing, logit_scale;
  krait_tensor logits, labels, top, log_sum;
  krait_tensor dlosses, dlse; /* (R) float32; absent: 0 */
  krait_tensor dlogits;       /* (R,V); may be logits */
} krait_cross_entropy_bwd_args;

KRAIT_API int32_t krait_cross_entropy_bwd(const krait_ctx *ctx, const krait_cross_entropy_bwd_args *args);

#ifdef __cplusplus
}
#endif

#endif

/* optimiser.h: updates parameters between two steps, in place: on the host, or on the context's GPU. */
#ifndef KR_OPTIMISER_H
#define KR_OPTIMISER_H

#include "ctx.h"
#include "parameters.h"

typedef struct kr_adamw {
  double lr, beta1, beta2, eps, weight_decay;
  int64_t step; /* 1 for the first */
} kr_adamw;
/* One step; gradients are scaled by `scale` first. Then average = decay average + (1 - decay) value, if decay is not
 * 0. */
int32_t kr_optimiser_step(const krait_ctx *ctx, kr_parameters *p, const kr_adamw *options, double scale, double decay);
/* total (p->n floats, in p's memory) accumulates batch `at` of n; the last call leaves their mean as the gradient. */
int32_t kr_optimiser_accumulate(const krait_ctx *ctx, kr_parameters *p, float *total, int64_t at, int64_t n);
/* On a GPU: to = the sum of n_parts arrays of n floats, one after the other, added in their order. */
int32_t kr_optimiser_sum(const krait_ctx *ctx, float *parts, int64_t n_parts, int64_t n, float *to);
/* The gradient's norm; scratch on the device, unused on a CPU. Waits for it. */
int64_t kr_optimiser_scratch_bytes(void);
int32_t kr_optimiser_norm(const krait_ctx *ctx, const kr_parameters *p, void *scratch, double *norm);

#endif

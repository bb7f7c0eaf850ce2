/* expert_step.h: implementations of a mixture of experts in one call. */
#ifndef KR_EXPERT_STEP_H
#define KR_EXPERT_STEP_H

#include "cuda_impl.h"
#include "lm_op_args.h"

int32_t kr_expert_step_ampere(const krait_ctx *ctx, const void *args);
const char *kr_expert_step_refuse(const krait_ctx *ctx, const void *args);
uint64_t kr_expert_step_scratch(const krait_ctx *ctx, const void *args);
uint64_t kr_expert_step_ref_scratch(const krait_ctx *ctx, const void *args);

/* Hidden values of the MLP for all rows. */
static inline int64_t kr_expert_step_shared(const kr_expert_step_args *a) { return a->shared_gate.data ? a->S : 0; }

/* Whether the GPU's kernels have these sizes: of rows, experts, choices, columns. */
static inline int kr_expert_step_has(int64_t T, int64_t E, int64_t K, int64_t M, int64_t F, int64_t S) {
  return T <= 4 && E <= 128 && K <= 32 && M % 8 == 0 && F % 8 == 0 && S % 8 == 0;
}

#endif

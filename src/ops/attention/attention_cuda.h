/* attention_cuda.h: the rows of attention and of its gradient on a GPU, and the plan that both make of a call.
 * base: everything. ampere, hopper: tiles on tensor cores. */
#ifndef KR_ATTENTION_CUDA_H
#define KR_ATTENTION_CUDA_H

#include <krait/ops.h>

#include "attention_plan.h"
#include "op.h"

kr_attention_plan kr_attention_plan_of(const krait_attention_args *a);
kr_attention_plan kr_attention_bwd_plan_of(const krait_attention_bwd_args *a);
/* Why no kernel takes the sizes, or NULL. */
const char *kr_attention_refuse_sizes(const kr_attention_plan *p);

#define KR_ATTENTION_ROW(name)                                              \
  const char *kr_attention_##name##_refuse(const krait_ctx *ctx, const void *args); \
  int32_t kr_attention_##name(const krait_ctx *ctx, const void *args);      \
  uint64_t kr_attention_##name##_scratch(const krait_ctx *ctx, const void *args);
KR_ATTENTION_ROW(base)
KR_ATTENTION_ROW(ampere)
KR_ATTENTION_ROW(hopper)
KR_ATTENTION_ROW(bwd_base)

#endif

/* attention_step_impls.h: the implementations of attention_step that op_list.h does not declare; the GPU's is in
 * attention/attention_step_cuda.c. */
#ifndef KR_ATTENTION_STEP_IMPLS_H
#define KR_ATTENTION_STEP_IMPLS_H

#include "op_args.h"
#include "rewrite.h"

extern const kr_op_rewrite kr_attention_step_rewrites[]; /* attention_step_rewrite.c */

/* The attention that follows the appending; q and call are the caller's. */
static inline kr_attention_args kr_attention_of(const kr_attention_step_args *a) {
  return (kr_attention_args){.B = a->B,
                                .Lq = 1,
                                .Lk = a->Lk,
                                .H = a->H,
                                .Hk = a->Hk,
                                .D = a->D,
                                .Dv = a->D,
                                .Bk = a->Bk,
                                .scale = a->scale,
                                .k = a->k_cache,
                                .v = a->v_cache,
                                .cache_batch_idx = a->cache_batch_idx,
                                .out = a->out};
}

uint64_t kr_attention_step_ref_scratch(const krait_ctx *ctx, const void *args);
const char *kr_attention_step_hopper_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_attention_step_hopper(const krait_ctx *ctx, const void *args);

#endif

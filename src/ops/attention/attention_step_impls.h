/* attention_step_impls.h: the implementations of attention_step that op_list.h does not declare; the GPU's is in
 * attention/attention_step_cuda.c. */
#ifndef KR_ATTENTION_STEP_IMPLS_H
#define KR_ATTENTION_STEP_IMPLS_H

#include <krait/blocks.h>

uint64_t kr_attention_step_ref_scratch(const krait_ctx *ctx, const void *args);
const char *kr_attention_step_hopper_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_attention_step_hopper(const krait_ctx *ctx, const void *args);

#endif

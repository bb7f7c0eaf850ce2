/* attention_step_rows.h: the rows of attention_step that op_list.h does not declare; the GPU's is in
 * attention/attention_step_cuda.c. */
#ifndef KR_ATTENTION_STEP_ROWS_H
#define KR_ATTENTION_STEP_ROWS_H

#include <krait/blocks.h>

uint64_t kr_attention_step_ref_scratch(const krait_ctx *ctx, const void *args);
const char *kr_attention_step_hopper_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_attention_step_hopper(const krait_ctx *ctx, const void *args);

#endif

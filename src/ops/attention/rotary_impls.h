/* rotary_impls.h: the GPU implementations of the rotary embedding and the cache append (rotary_cuda.c). */
#ifndef KR_ROTARY_IMPLS_H
#define KR_ROTARY_IMPLS_H

#include <krait/krait.h>

const char *kr_rotary_cuda_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_rotary_cuda(const krait_ctx *ctx, const void *args);
const char *kr_rotary_packs_refuse(const krait_ctx *ctx, const void *args); /* 16 bits, 16-byte aligned */
int32_t kr_rotary_packs(const krait_ctx *ctx, const void *args);
const char *kr_attention_append_cuda_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_attention_append_cuda(const krait_ctx *ctx, const void *args);

#endif

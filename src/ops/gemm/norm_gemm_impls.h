/* norm_gemm_impls.h: GPU implementations of norm_gemm (norm_gemm_cuda.c). */
#ifndef KR_NORM_GEMM_IMPLS_H
#define KR_NORM_GEMM_IMPLS_H

#include "op_args.h"

#include "op.h"
#include "rewrite.h"

extern const kr_op_rewrite kr_norm_gemm_rewrites[]; /* norm_gemm_rewrite.c */

const char *kr_norm_gemm_few_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_norm_gemm_few(const krait_ctx *ctx, const void *args);
const char *kr_norm_gemm_q8_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_norm_gemm_q8(const krait_ctx *ctx, const void *args);
const char *kr_norm_gemm_few_turing_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_norm_gemm_few_turing(const krait_ctx *ctx, const void *args);
const char *kr_norm_gemm_q8_turing_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_norm_gemm_q8_turing(const krait_ctx *ctx, const void *args);

#endif

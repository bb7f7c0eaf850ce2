/* expert_gemm.h: what the implementations of expert_gemm share. */
#ifndef KR_EXPERT_GEMM_H
#define KR_EXPERT_GEMM_H

#include "cuda_impl.h"
#include "lm_op_args.h"
#include "op.h"

/* Reads host memory: every index below E; negative ones mean no expert. */
int32_t kr_expert_gemm_check_index(const kr_expert_gemm_args *a);
const char *kr_expert_gemm_by_expert_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_expert_gemm_by_expert(const krait_ctx *ctx, const void *args);
uint64_t kr_expert_gemm_by_expert_scratch(const krait_ctx *ctx, const void *args);

/* On a GPU: many rows as tiles on tensor cores, few one by one. */
KR_CUDA_FAMILY_DECLARE(expert_gemm, tiles)
KR_CUDA_FAMILY_DECLARE(expert_gemm, rows)

#endif

/* mamba3_raw_step.h: implementations of Mamba 3's step from in_proj's columns. */
#ifndef KR_MAMBA3_RAW_STEP_H
#define KR_MAMBA3_RAW_STEP_H

#include "cuda_impl.h"
#include "lm_op_args.h"

KR_CUDA_DECLARE(mamba3_raw_step);
int32_t kr_mamba3_raw_step_cuda_hopper(const krait_ctx *ctx, const void *args);
uint64_t kr_mamba3_raw_step_ref_scratch(const krait_ctx *ctx, const void *args);

/* Whether the GPU's kernels have these sizes. */
static inline int kr_mamba3_raw_step_has(int64_t P, int64_t N) {
  return P % 4 == 0 && (N == 16 || N == 32 || N == 64 || N == 128);
}

#endif

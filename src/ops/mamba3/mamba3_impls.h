/* mamba3_impls.h: scratch sizes of the implementations of Mamba 3's operators. */
#ifndef KR_MAMBA3_IMPLS_H
#define KR_MAMBA3_IMPLS_H

#include <krait/krait.h>

#include "cuda_impl.h"

/* By the implementations of the SSD that they run (mamba3_host.h). */
#define KR_MAMBA3_GPU(op, row)                                                   \
  const char *kr_##op##_##row##_refuse(const krait_ctx *ctx, const void *args); \
  int32_t kr_##op##_##row(const krait_ctx *ctx, const void *args);              \
  uint64_t kr_##op##_##row##_scratch(const krait_ctx *ctx, const void *args);
#define KR_MAMBA3_ROWS(X, op) X(op, hopper) X(op, chunks) X(op, tf32) X(op, parts) X(op, tiles) X(op, tokens)
KR_MAMBA3_ROWS(KR_MAMBA3_GPU, mamba3)
KR_MAMBA3_ROWS(KR_MAMBA3_GPU, mamba3_bwd)
KR_MAMBA3_GPU(mamba3, turing) /* whose SSD has no gradient */

#define KR_MAMBA3_STEP_FAMILIES(X, op) X(op, four_states) X(op, any_strides)
KR_MAMBA3_STEP_FAMILIES(KR_CUDA_FAMILY_DECLARE, mamba3_step)

#define KR_MAMBA3_SCRATCH(row)                                       \
  uint64_t kr_mamba3_##row(const krait_ctx *ctx, const void *args);     \
  uint64_t kr_mamba3_bwd_##row(const krait_ctx *ctx, const void *args); \
  uint64_t kr_mamba3_step_##row(const krait_ctx *ctx, const void *args);
KR_MAMBA3_SCRATCH(ref_scratch)
KR_MAMBA3_SCRATCH(scratch_avx512)
KR_MAMBA3_SCRATCH(scratch_avx2)
KR_MAMBA3_SCRATCH(scratch_neon)
KR_MAMBA3_SCRATCH(scratch_scalar)

#endif

/* mamba3_impls.h: scratch sizes of the implementations of Mamba 3's operators. */
#ifndef KR_MAMBA3_IMPLS_H
#define KR_MAMBA3_IMPLS_H

#include <krait/krait.h>

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

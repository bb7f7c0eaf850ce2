/* norm_impls.h: scratch sizes of the norms' implementations, and helpers of the SIMD implementations: float rows in
 * whole vectors, statistics, and sums over rows in chunks that depend on the shape alone. */
#ifndef KR_NORM_IMPLS_H
#define KR_NORM_IMPLS_H

#include "cuda_impl.h"
#include "op_args.h"

/* Kernels with the row in registers, in runs of eight features or feature by feature, and for rows of any length. */
#define KR_NORM_FAMILIES(X, op) X(op, aligned_rows) X(op, unaligned_rows) X(op, long_rows)
KR_NORM_FAMILIES(KR_CUDA_FAMILY_DECLARE, add_norm)
KR_NORM_FAMILIES(KR_CUDA_FAMILY_DECLARE, add_norm_bwd)
KR_NORM_FAMILIES(KR_CUDA_FAMILY_DECLARE, gated_norm)
KR_NORM_FAMILIES(KR_CUDA_FAMILY_DECLARE, gated_norm_bwd)

/* Kernels for short rows in float32: several rows per warp (norm_short_cuda.c). */
const char *kr_add_norm_short_refuse(const krait_ctx *ctx, const void *args),
    *kr_add_norm_bwd_short_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_add_norm_short(const krait_ctx *ctx, const void *args),
    kr_add_norm_bwd_short(const krait_ctx *ctx, const void *args);
uint64_t kr_add_norm_bwd_short_scratch(const krait_ctx *ctx, const void *args);

typedef uint64_t kr_norm_scratch_fn(const krait_ctx *ctx, const void *args);
#define KR_NORM_SCRATCH(op) \
  kr_norm_scratch_fn kr_##op##_scratch_avx512, kr_##op##_scratch_avx2, kr_##op##_scratch_neon, kr_##op##_scratch_scalar
KR_NORM_SCRATCH(add_norm);
KR_NORM_SCRATCH(add_norm_bwd);
KR_NORM_SCRATCH(gated_norm);
KR_NORM_SCRATCH(gated_norm_bwd);
kr_norm_scratch_fn kr_add_norm_bwd_ref_scratch, kr_gated_norm_bwd_ref_scratch;

#endif

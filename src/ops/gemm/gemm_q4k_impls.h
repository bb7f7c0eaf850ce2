/* gemm_q4k_impls.h: the implementations of gemm_q4k: on CPUs few rows of A directly from the bytes, many through
 * float32 panels; on GPUs the same two families. */
#ifndef KR_GEMM_Q4K_IMPLS_H
#define KR_GEMM_Q4K_IMPLS_H

#include "cuda_impl.h"
#include "op.h"

typedef uint64_t kr_q4k_scratch_fn(const krait_ctx *ctx, const void *args);
typedef int32_t kr_q4k_impl_fn(const krait_ctx *ctx, const void *args);
kr_q4k_impl_fn kr_gemm_q4k_few_avx512, kr_gemm_q4k_few_avx2, kr_gemm_q4k_few_neon, kr_gemm_q4k_few_scalar;
kr_q4k_scratch_fn kr_gemm_q4k_scratch_avx512, kr_gemm_q4k_scratch_avx2, kr_gemm_q4k_scratch_neon,
    kr_gemm_q4k_scratch_scalar;

/* The matrix-unit implementation with AVX-512 vectors around it; scalar: for tests, loops emulating the unit. */
kr_q4k_impl_fn kr_gemm_q4k_tiles_avx512, kr_gemm_q4k_tiles_scalar;
kr_q4k_scratch_fn kr_gemm_q4k_tiles_scratch_avx512, kr_gemm_q4k_tiles_scratch_scalar;

#define KR_Q4K_FAMILIES(X, op) X(op, few) X(op, tiles)
KR_Q4K_FAMILIES(KR_CUDA_FAMILY_DECLARE, gemm_q4k)

#endif

/* gemm_q8_impls.h: the implementations of gemm_q8. Vectors: few rows of A directly from the bytes, many through float32
 * panels. */
#ifndef KR_GEMM_Q8_IMPLS_H
#define KR_GEMM_Q8_IMPLS_H

#include "op.h"
#include "op_args.h"
#include "row_lanes.h"

enum { KR_GEMM_Q8_MOST_FEW = 16 };

typedef uint64_t kr_q8_scratch_fn(const krait_ctx *ctx, const void *args);
typedef int32_t kr_q8_impl_fn(const krait_ctx *ctx, const void *args);
kr_q8_impl_fn kr_gemm_q8_few_avx512, kr_gemm_q8_few_avx2, kr_gemm_q8_few_neon, kr_gemm_q8_few_scalar;
kr_q8_scratch_fn kr_gemm_q8_scratch_avx512, kr_gemm_q8_scratch_avx2, kr_gemm_q8_scratch_neon, kr_gemm_q8_scratch_scalar;

/* The matrix-unit implementation with AVX-512 vectors around it; scalar: for tests, loops emulating the unit. */
kr_q8_impl_fn kr_gemm_q8_tiles_avx512, kr_gemm_q8_tiles_scalar;
kr_q8_scratch_fn kr_gemm_q8_tiles_scratch_avx512, kr_gemm_q8_tiles_scratch_scalar;

/* Rows in 16-bit integers, with AVX-512 VNNI. */
kr_q8_impl_fn kr_gemm_q8_words_avx512;
kr_q8_scratch_fn kr_gemm_q8_words_scratch_avx512;

/* On a GPU (gemm_q8_cuda.c). */
const char *kr_gemm_q8_cuda_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_gemm_q8_cuda(const krait_ctx *ctx, const void *args);
const char *kr_gemm_q8_turing_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_gemm_q8_turing(const krait_ctx *ctx, const void *args);
/* One row with a fused RMS norm and a following convolution step (norm_gemm); where the norm reads A itself, A is
 * float32 whatever its view says. */
const char *kr_gemm_q8_normed_refuse(const krait_ctx *ctx, const kr_gemm_q8_args *a);
int32_t kr_gemm_q8_normed(const krait_ctx *ctx, const kr_gemm_q8_args *a, const kr_normed *norm,
                          const kr_conv_step *conv, uint64_t tier);

#endif

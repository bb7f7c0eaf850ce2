/* dense_block_impls.h: the implementations of dense_block: kernels (dense_block_cuda.c), vectorized
 * (dense_block_simd.c), graphs of other operators (dense_block_graph.c). */
#ifndef KR_DENSE_BLOCK_IMPLS_H
#define KR_DENSE_BLOCK_IMPLS_H

#include "op_args.h"

/* Limits of the vectorized rows: channels are a multiple of LANES, and at most LIFTED are lifted. */
enum { KR_DENSE_LAYERS = 16, KR_DENSE_LANES = 16, KR_DENSE_LIFTED = 8 };

const char *kr_dense_block_refuse(const krait_ctx *ctx, const void *args);
const char *kr_dense_block_halves_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_dense_block_ampere(const krait_ctx *ctx, const void *args),
    kr_dense_block_base(const krait_ctx *ctx, const void *args),
    kr_dense_block_halves(const krait_ctx *ctx, const void *args),
    kr_dense_block_composed(const krait_ctx *ctx, const void *args);
uint64_t kr_dense_block_scratch(const krait_ctx *ctx, const void *args),
    kr_dense_block_composed_scratch(const krait_ctx *ctx, const void *args),
    kr_dense_block_ref_scratch(const krait_ctx *ctx, const void *args),
    kr_dense_block_scratch_avx512(const krait_ctx *ctx, const void *args),
    kr_dense_block_scratch_avx2(const krait_ctx *ctx, const void *args),
    kr_dense_block_scratch_neon(const krait_ctx *ctx, const void *args),
    kr_dense_block_scratch_scalar(const krait_ctx *ctx, const void *args);

/* Scratch of the kernels: all maps but the last, moments of tiles, the norm. */
uint64_t kr_dense_block_bytes(int64_t B, int64_t H, int64_t W, int64_t C, int64_t L);

#endif

/* conv_norm_impls.h: the implementations of conv_norm: kernels (conv_norm_cuda.c), vectorized (conv_norm_simd.c),
 * graphs of other operators (conv_norm_graph.c). */
#ifndef KR_CONV_NORM_IMPLS_H
#define KR_CONV_NORM_IMPLS_H

#include "op_args.h"

const char *kr_conv_norm_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_conv_norm_ampere(const krait_ctx *ctx, const void *args),
    kr_conv_norm_base(const krait_ctx *ctx, const void *args),
    kr_conv_norm_composed(const krait_ctx *ctx, const void *args);
uint64_t kr_conv_norm_scratch(const krait_ctx *ctx, const void *args),
    kr_conv_norm_composed_scratch(const krait_ctx *ctx, const void *args),
    kr_conv_norm_ref_scratch(const krait_ctx *ctx, const void *args),
    kr_conv_norm_scratch_avx512(const krait_ctx *ctx, const void *args),
    kr_conv_norm_scratch_avx2(const krait_ctx *ctx, const void *args),
    kr_conv_norm_scratch_neon(const krait_ctx *ctx, const void *args),
    kr_conv_norm_scratch_scalar(const krait_ctx *ctx, const void *args);

#endif

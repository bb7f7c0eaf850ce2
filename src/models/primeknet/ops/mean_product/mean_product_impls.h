/* mean_product_impls.h: the implementations of mean_product: a kernel (mean_product_cuda.c), graphs of other operators
 * (mean_product_graph.c). */
#ifndef KR_MEAN_PRODUCT_IMPLS_H
#define KR_MEAN_PRODUCT_IMPLS_H

#include "op_args.h"

const char *kr_mean_product_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_mean_product_ampere(const krait_ctx *ctx, const void *args),
    kr_mean_product_base(const krait_ctx *ctx, const void *args),
    kr_mean_product_composed(const krait_ctx *ctx, const void *args);
uint64_t kr_mean_product_composed_scratch(const krait_ctx *ctx, const void *args),
    kr_mean_product_ref_scratch(const krait_ctx *ctx, const void *args);

#endif

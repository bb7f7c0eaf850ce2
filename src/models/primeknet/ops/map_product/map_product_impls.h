/* map_product_impls.h: the implementations of map_product: kernels (map_product_cuda.c), graphs of other operators
 * (map_product_graph.c). */
#ifndef KR_MAP_PRODUCT_IMPLS_H
#define KR_MAP_PRODUCT_IMPLS_H

#include "op_args.h"

const char *kr_map_product_refuse(const krait_ctx *ctx, const void *args);
const char *kr_map_product_halves_refuse(const krait_ctx *ctx, const void *args);
const char *kr_map_product_few_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_map_product_ampere(const krait_ctx *ctx, const void *args),
    kr_map_product_base(const krait_ctx *ctx, const void *args),
    kr_map_product_halves(const krait_ctx *ctx, const void *args),
    kr_map_product_few_ampere(const krait_ctx *ctx, const void *args),
    kr_map_product_few_base(const krait_ctx *ctx, const void *args),
    kr_map_product_composed(const krait_ctx *ctx, const void *args);
uint64_t kr_map_product_composed_scratch(const krait_ctx *ctx, const void *args),
    kr_map_product_ref_scratch(const krait_ctx *ctx, const void *args);

#endif

/* gated_filter_impls.h: the implementations of gated_filter: a kernel (gated_filter_cuda.c), graphs of other operators
 * (gated_filter_graph.c). */
#ifndef KR_GATED_FILTER_IMPLS_H
#define KR_GATED_FILTER_IMPLS_H

#include "op_args.h"

const char *kr_gated_filter_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_gated_filter_ampere(const krait_ctx *ctx, const void *args),
    kr_gated_filter_base(const krait_ctx *ctx, const void *args),
    kr_gated_filter_composed(const krait_ctx *ctx, const void *args);
uint64_t kr_gated_filter_composed_scratch(const krait_ctx *ctx, const void *args),
    kr_gated_filter_ref_scratch(const krait_ctx *ctx, const void *args);

#endif

/* filter_bank_impls.h: the implementations of filter_bank: a kernel (filter_bank_cuda.c), graphs of other operators
 * (filter_bank_graph.c). */
#ifndef KR_FILTER_BANK_IMPLS_H
#define KR_FILTER_BANK_IMPLS_H

#include "op_args.h"

/* Filter lengths of the J chunks. */
static inline const int64_t *kr_filter_bank_lengths(const kr_filter_bank_args *a) { return &a->K1; }

const char *kr_filter_bank_refuse(const krait_ctx *ctx, const void *args);
const char *kr_filter_bank_halves_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_filter_bank_ampere(const krait_ctx *ctx, const void *args),
    kr_filter_bank_base(const krait_ctx *ctx, const void *args),
    kr_filter_bank_halves(const krait_ctx *ctx, const void *args),
    kr_filter_bank_composed(const krait_ctx *ctx, const void *args);
uint64_t kr_filter_bank_composed_scratch(const krait_ctx *ctx, const void *args),
    kr_filter_bank_ref_scratch(const krait_ctx *ctx, const void *args);

#endif

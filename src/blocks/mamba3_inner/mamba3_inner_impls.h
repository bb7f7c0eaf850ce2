/* mamba3_inner_impls.h: the implementations of mamba3_inner: graphs of other operators (mamba3_inner_graph.c). */
#ifndef KR_MAMBA3_INNER_IMPLS_H
#define KR_MAMBA3_INNER_IMPLS_H

#include "op_args.h"

#include "op.h"

typedef int32_t kr_mamba3_impl_fn(const krait_ctx *ctx, const void *args);
typedef uint64_t kr_mamba3_scratch_fn(const krait_ctx *ctx, const void *args);
/* Using the implementations that the context prefers for each operator, in host or device memory; and using reference
 * implementations. */
kr_mamba3_impl_fn kr_mamba3_inner_composed, kr_mamba3_inner_bwd_composed, kr_mamba3_inner_on_host,
    kr_mamba3_inner_bwd_on_host;
kr_mamba3_scratch_fn kr_mamba3_inner_composed_scratch, kr_mamba3_inner_bwd_composed_scratch,
    kr_mamba3_inner_ref_scratch, kr_mamba3_inner_bwd_ref_scratch;

#endif

/* projected_scan_impls.h: the implementations of projected_scan: kernels (projected_scan_cuda.c), graphs of other
 * operators (projected_scan_graph.c). */
#ifndef KR_PROJECTED_SCAN_IMPLS_H
#define KR_PROJECTED_SCAN_IMPLS_H

#include "op_args.h"

typedef int32_t kr_projected_impl_fn(const krait_ctx *ctx, const void *args);
typedef uint64_t kr_projected_scratch_fn(const krait_ctx *ctx, const void *args);
const char *kr_projected_scan_16_refuse(const krait_ctx *ctx, const void *args),
    *kr_projected_scan_any_refuse(const krait_ctx *ctx, const void *args);
kr_projected_impl_fn kr_projected_scan_16_ampere, kr_projected_scan_16_base, kr_projected_scan_any_ampere,
    kr_projected_scan_any_base, kr_projected_scan_composed;
kr_projected_scratch_fn kr_projected_scan_composed_scratch, kr_projected_scan_ref_scratch;

#endif

/* mamba2_inner_rows.h: the rows of mamba2_inner: graphs of other operators (src/fuse/mamba2_inner_graph.c). */
#ifndef KR_MAMBA2_INNER_ROWS_H
#define KR_MAMBA2_INNER_ROWS_H

#include <krait/blocks.h>

#include "op.h"

typedef int32_t kr_mamba2_row_fn(const krait_ctx *ctx, const void *args);
typedef uint64_t kr_mamba2_scratch_fn(const krait_ctx *ctx, const void *args);
/* Using the rows that the context prefers for each operator, in host or device memory; and using reference rows. */
kr_mamba2_row_fn kr_mamba2_inner_composed, kr_mamba2_inner_bwd_composed;
kr_mamba2_scratch_fn kr_mamba2_inner_composed_scratch, kr_mamba2_inner_bwd_composed_scratch,
    kr_mamba2_inner_ref_scratch, kr_mamba2_inner_bwd_ref_scratch;

#endif

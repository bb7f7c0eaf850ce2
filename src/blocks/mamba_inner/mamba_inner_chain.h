/* mamba_inner_chain.h: shared by the files of mamba_inner: the composition of operators, in float32 on the context's
 * preferred implementations, or in float64 on their reference implementations. */
#ifndef KR_MAMBA_INNER_CHAIN_H
#define KR_MAMBA_INNER_CHAIN_H

#include "op_args.h"
#include <string.h>

/* The gradient's args start with the forward ones. */
_Static_assert(offsetof(kr_mamba_inner_args, out) == offsetof(kr_mamba_inner_bwd_args, dout), "one head");
static inline kr_mamba_inner_args kr_inner_forward_of(const kr_mamba_inner_bwd_args *g) {
  kr_mamba_inner_args a;
  memset(&a, 0, sizeof a);
  memcpy(&a, g, offsetof(kr_mamba_inner_args, out));
  a.call.size = sizeof a;
  return a;
}

/* Columns of B (or C) in the output of x_proj. */
static inline int64_t kr_inner_columns(const kr_mamba_inner_args *a, const kr_view *given) {
  return given->data ? 0 : a->A.dtype == KRAIT_C64 ? 2 * a->N : a->N;
}

/* Whether 16 bits suffice between two operators on a GPU: not for complex states, nor for norms, whose gradients are
 * differences of rounded values. */
static inline int kr_inner_is_short(const kr_mamba_inner_args *a) {
  const int is_half = a->xz.dtype == KRAIT_F16 || a->xz.dtype == KRAIT_BF16;
  return is_half && a->A.dtype != KRAIT_C64 && !a->dt_norm_weight.data && !a->B_norm_weight.data &&
         !a->C_norm_weight.data;
}

typedef uint64_t kr_inner_scratch_fn(const krait_ctx *ctx, const void *args);
kr_inner_scratch_fn kr_mamba_inner_composed_scratch, kr_mamba_inner_bwd_composed_scratch, kr_mamba_inner_cuda_scratch,
    kr_mamba_inner_bwd_cuda_scratch, kr_mamba_inner_ref_scratch, kr_mamba_inner_bwd_ref_scratch;
int32_t kr_mamba_inner_composed(const krait_ctx *ctx, const void *args);
int32_t kr_mamba_inner_bwd_composed(const krait_ctx *ctx, const void *args);
/* Intermediate rows have the type of xz if kr_inner_is_short. */
int32_t kr_mamba_inner_cuda(const krait_ctx *ctx, const void *args);
int32_t kr_mamba_inner_bwd_cuda(const krait_ctx *ctx, const void *args);

#endif

/* conv_impls.h: shared by the convolution's files: random cases, scratch sizes. */
#ifndef KR_CONV_IMPLS_H
#define KR_CONV_IMPLS_H

#include "cuda_impl.h"
#include "op_args.h"

/* Kernels for channels-last tensors; for aligned packed rows along time, long or short; any strides; any W, packed
 * sequences, in place. */
#define KR_CONV_FAMILIES(X, op) X(op, channels_last) X(op, packed_rows) X(op, any_rows) X(op, step_by_step)
#define KR_CONV_BWD_FAMILIES(X, op) \
  X(op, channels_last)              \
  X(op, long_packed_rows) X(op, packed_rows) X(op, rows_by_fours) X(op, any_rows) X(op, step_by_step)
#define KR_CONV_UPDATE_FAMILIES(X, op) X(op, step_of_fours) X(op, few_taps) X(op, any_taps)
KR_CONV_UPDATE_FAMILIES(KR_CUDA_FAMILY_DECLARE, causal_conv1d_update)
KR_CONV_FAMILIES(KR_CUDA_FAMILY_DECLARE, causal_conv1d)
KR_CONV_BWD_FAMILIES(KR_CUDA_FAMILY_DECLARE, causal_conv1d_bwd)

typedef uint64_t kr_conv_scratch_fn(const krait_ctx *ctx, const void *args);
kr_conv_scratch_fn kr_causal_conv1d_update_ref_scratch, kr_causal_conv1d_bwd_ref_scratch,
    kr_causal_conv1d_bwd_scratch_avx512, kr_causal_conv1d_bwd_scratch_avx2, kr_causal_conv1d_bwd_scratch_neon,
    kr_causal_conv1d_bwd_scratch_scalar;

struct kr_case;
int32_t kr_conv_case(struct kr_case *c, int64_t index), kr_conv_update_case(struct kr_case *c, int64_t index),
    kr_conv_varlen_case(struct kr_case *c, int64_t index);

#endif

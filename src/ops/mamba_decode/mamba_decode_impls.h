/* mamba_decode_impls.h: sizes derived from a mamba_decode call, and its GPU implementations. */
#ifndef KR_MAMBA_DECODE_IMPLS_H
#define KR_MAMBA_DECODE_IMPLS_H

#include "mamba_decode_params.h"
#include "op_args.h"

/* Channels that are convolved; rows of in_proj. */
static inline int64_t kr_decode_channels(const kr_mamba_decode_args *a) {
  return a->dt_proj.data ? a->E : a->E + 2 * a->G * a->N;
}
static inline int64_t kr_decode_rows(const kr_mamba_decode_args *a) {
  return a->dt_proj.data ? 2 * a->E : a->E + kr_decode_channels(a) + a->H;
}

uint64_t kr_mamba_decode_ref_scratch(const krait_ctx *ctx, const void *args);

/* For a GPU: a call's params without what lies in shared memory; why its types or places do not fit. */
kr_decode_params kr_mamba_decode_describe(const kr_mamba_decode_args *a);
const char *kr_mamba_decode_refuse_tensors(const kr_mamba_decode_args *a);

int32_t kr_mamba_decode_streamed(const krait_ctx *ctx, const void *args);
const char *kr_mamba_decode_streamed_refuse(const krait_ctx *ctx, const void *args);
uint64_t kr_mamba_decode_streamed_scratch(const krait_ctx *ctx, const void *args);

#endif

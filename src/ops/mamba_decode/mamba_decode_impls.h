/* mamba_decode_impls.h: sizes derived from a mamba_decode call, and its GPU implementations. */
#ifndef KR_MAMBA_DECODE_IMPLS_H
#define KR_MAMBA_DECODE_IMPLS_H

#include "mamba_decode_stream.h"
#include "op_args.h"

/* Channels that are convolved; rows of in_proj. */
static inline int64_t kr_decode_channels(const kr_mamba_decode_args *a) {
  return a->dt_proj.data ? a->E : a->E + 2 * a->G * a->N;
}
static inline int64_t kr_decode_rows(const kr_mamba_decode_args *a) {
  return a->dt_proj.data ? 2 * a->E : a->E + kr_decode_channels(a) + a->H;
}

/* Tensors as the kernels read them. */
static inline kr_decode_matrix kr_decode_matrix_of(const kr_view *v) { /* of 16 bits */
  return (kr_decode_matrix){.data = v->data, .layer = 2 * v->stride[0], .row = 2 * v->stride[1]};
}
static inline kr_decode_halves kr_decode_halves_of(const kr_view *v) {
  return (kr_decode_halves){v->data, v->stride[0], v->stride[1]};
}
static inline kr_decode_floats kr_decode_floats_of(const kr_view *v) {
  return (kr_decode_floats){v->data, v->stride[0], v->stride[1]};
}
static inline kr_decode_state kr_decode_state_of(const kr_view *v) {
  return (kr_decode_state){v->data, v->stride[0], v->stride[1], v->stride[2], v->stride[3], v->dtype == KRAIT_F32, 0};
}
/* Last dimension contiguous, other strides multiples of `elements`, data aligned to as many; or absent. */
int kr_decode_lies_in(const kr_view *v, int n_dims, int64_t elements);

uint64_t kr_mamba_decode_ref_scratch(const krait_ctx *ctx, const void *args);

/* For a GPU: a call's params without what lies in shared memory; why its types or places do not fit. */
kr_decode_params kr_mamba_decode_describe(const kr_mamba_decode_args *a);
const char *kr_mamba_decode_refuse_tensors(const kr_mamba_decode_args *a);

/* The params with as long a ring as fits; one without stages if none does. */
kr_stream_params kr_stream_params_of(const krait_ctx *ctx, const kr_decode_params *p);
/* The words' buffers; returns their size. */
uint64_t kr_stream_lay_out_words(kr_stream_params *s, int64_t blocks, char *scratch);

int32_t kr_mamba_decode_streamed(const krait_ctx *ctx, const void *args);
const char *kr_mamba_decode_streamed_refuse(const krait_ctx *ctx, const void *args);
uint64_t kr_mamba_decode_streamed_scratch(const krait_ctx *ctx, const void *args);

#endif

/* dt_state_update_impls.h: the call as a state_update, equivalent once dt is known; the GPU's implementation. */
#ifndef KR_DT_STATE_UPDATE_IMPLS_H
#define KR_DT_STATE_UPDATE_IMPLS_H

#include "op_args.h"

#include "cuda_impl.h"
#include "rewrite.h"

#define KR_DT_UPDATE_FAMILIES(X, op) X(op, four_states)
extern const kr_op_rewrite kr_dt_state_update_rewrites[]; /* dt_state_update_rewrite.c */

KR_DT_UPDATE_FAMILIES(KR_CUDA_FAMILY_DECLARE, dt_state_update)
const char *kr_dt_state_update_whole_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_dt_state_update_whole(const krait_ctx *ctx, const void *args);

/* Inserts a head dimension: one head with all channels. */
static inline kr_view kr_with_head(kr_view v, int at) {
  for (int i = 3; i > at; i--) v.stride[i] = v.stride[i - 1];
  v.stride[at] = 0;
  return v;
}
static inline kr_state_update_args kr_update_of(const kr_dt_state_update_args *a) {
  return (kr_state_update_args){
      .call = {.size = sizeof(kr_state_update_args), .flags = a->call.flags, .stream = a->call.stream},
      .B = a->B,
      .H = 1,
      .P = a->D,
      .N = a->N,
      .G = 1,
      .n_states = a->n_states,
      .state = kr_with_head(a->state, 1),
      .x = kr_with_head(a->x, 1),
      .A = kr_with_head(a->A, 0),
      .Bmat = kr_with_head(a->Bmat, 1),
      .Cmat = kr_with_head(a->Cmat, 1),
      .Dvec = kr_with_head(a->Dvec, 0),
      .dt_bias = kr_with_head(a->dt_bias, 0),
      .z = kr_with_head(a->z, 1),
      .state_batch_indices = a->state_batch_indices,
      .out = kr_with_head(a->out, 1)};
}

uint64_t kr_dt_state_update_ref_scratch(const krait_ctx *ctx, const void *args);

#endif

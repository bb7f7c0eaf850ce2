/* gated_delta_rule.h: one token's call as one of a sequence: the same code computes both. On a GPU many tokens are
 * brought into shared memory some at a time. */
#ifndef KR_GATED_DELTA_RULE_H
#define KR_GATED_DELTA_RULE_H

#include "cuda_impl.h"
#include "op_args.h"

#define KR_DELTA_FAMILIES(X, op) X(op, staged) X(op, columns)
KR_DELTA_FAMILIES(KR_CUDA_FAMILY_DECLARE, gated_delta_rule)

/* A view of (B,...) as (B,1,...). */
static inline kr_view kr_delta_with_time(kr_view v, int n_dims) {
  for (int i = n_dims; i > 1; i--) v.stride[i] = v.stride[i - 1];
  v.stride[1] = 0;
  return v;
}

/* Without its states. */
static inline kr_gated_delta_rule_args kr_delta_sequence_of(const kr_gated_delta_update_args *a) {
  return (kr_gated_delta_rule_args){.call = a->call,
                                    .B = a->B,
                                    .L = 1,
                                    .H = a->H,
                                    .Hk = a->Hk,
                                    .Dk = a->Dk,
                                    .Dv = a->Dv,
                                    .eps = a->eps,
                                    .beta_scale = a->beta_scale,
                                    .q = kr_delta_with_time(a->q, 3),
                                    .k = kr_delta_with_time(a->k, 3),
                                    .v = kr_delta_with_time(a->v, 3),
                                    .a = kr_delta_with_time(a->a, 2),
                                    .b = kr_delta_with_time(a->b, 2),
                                    .A = a->A,
                                    .dt_bias = a->dt_bias,
                                    .out = kr_delta_with_time(a->out, 3)};
}

#endif

/* gated_delta_rule.h: one token's call as one of a sequence: the same code computes both. On a GPU many tokens are
 * brought into shared memory some at a time. What decays and beta are made of. */
#ifndef KR_GATED_DELTA_RULE_H
#define KR_GATED_DELTA_RULE_H

#include <math.h>

#include "cuda_impl.h"
#include "op_args.h"
#include "view.h"

#define KR_DELTA_FAMILIES(X, op) X(op, staged) X(op, columns)
KR_DELTA_FAMILIES(KR_CUDA_FAMILY_DECLARE, gated_delta_rule)

/* Chunks on tensor cores. */
const char *kr_gated_delta_chunks_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_gated_delta_chunks(const krait_ctx *ctx, const void *args);
uint64_t kr_gated_delta_chunks_scratch(const krait_ctx *ctx, const void *args);

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

/* Of a head, without that of its keys. */
static inline double kr_delta_log_decay(const kr_gated_delta_rule_args *a, int64_t b, int64_t t, int64_t h) {
  const double given = kr_has(&a->a) ? kr_get(&a->a, kr_at3(&a->a, b, t, h)) : 0;
  if (!kr_has(&a->A)) return given;
  const double dt = given + (kr_has(&a->dt_bias) ? kr_get(&a->dt_bias, kr_at1(&a->dt_bias, h)) : 0);
  return kr_get(&a->A, kr_at1(&a->A, h)) * (dt > 20 ? dt : log1p(exp(dt)));
}

static inline double kr_delta_beta(const kr_gated_delta_rule_args *a, int64_t b, int64_t t, int64_t h) {
  const double given = kr_get(&a->b, kr_at3(&a->b, b, t, h));
  return (double)a->beta_scale * (a->call.flags & KRAIT_DELTA_BETA_AS_GIVEN ? given : 1 / (1 + exp(-given)));
}

#endif

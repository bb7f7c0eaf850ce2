/* gated_delta_gates.cuh: decay and beta of a token, out of what the call gives. */
#ifndef KR_GATED_DELTA_GATES_CUH
#define KR_GATED_DELTA_GATES_CUH

#include "kernel.cuh"

#include "gated_delta_rule_params.h"

/* 0 where there is none. */
KR_DEV float at_token(const kr_view &v, int64_t b, int64_t t, int h) {
  return v.data ? kr_load(v.data, b * v.stride[0] + t * v.stride[1] + h * v.stride[2], v.dtype) : 0.0f;
}

KR_DEV float decay_of(const kr_gated_delta_rule_args &a, int h, float given) {
  if (!a.A.data) return kr_exp(given);
  const float bias = a.dt_bias.data ? ((const float *)a.dt_bias.data)[h * a.dt_bias.stride[0]] : 0.0f;
  return kr_exp(((const float *)a.A.data)[h * a.A.stride[0]] * kr_softplus(given + bias));
}

KR_DEV float beta_of(const kr_gated_delta_rule_args &a, float given) {
  return a.beta_scale * (a.call.flags & KRAIT_DELTA_BETA_AS_GIVEN ? given : kr_sigmoid(given));
}

#endif

/* causal_conv1d_update.c: contract, cost and implementations of the convolution with a running state, and of the states
 * of packed sequences. Equations: causal_conv1d_update_ref.c, causal_conv1d_varlen_states_ref.c. States are exact
 * copies; output bounds as in causal_conv1d. */
#include "conv_impls.h"
#include "op_list.h"

static void count_update(const void *args, kr_cost *cost) {
  const kr_causal_conv1d_update_args *a = args;
  double channels = (double)a->B * (double)a->D, outputs = channels * (double)a->L;
  cost->exps = a->activation == KRAIT_ACT_SILU ? outputs : 0;
  cost->flops = outputs * (double)a->W * 2;
  cost->bytes = outputs * 2 * (double)krait_dtype_bytes(a->x.dtype) +
                channels * (double)a->S * 2 * (double)krait_dtype_bytes(a->conv_state.dtype);
}

static const char *refuse_conv1d_update_update(const krait_ctx *ctx, const void *args) {
  const kr_causal_conv1d_update_args *a = args;
  (void)ctx;
  if (a->W > 16) return "W is more than 16";
  if (a->S > 32) return "S is more than 32";
  return a->L > 32 ? "L is more than 32" : NULL;
}

static const kr_impl update_impls[] = {
    KR_CUDA_FAMILIES(KR_CONV_UPDATE_FAMILIES, causal_conv1d_update)
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_conv1d_update_update, kr_causal_conv1d_update_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_causal_conv1d_update_ref, kr_causal_conv1d_update_ref_scratch},
};

static void count_varlen(const void *args, kr_cost *cost) {
  const kr_causal_conv1d_varlen_states_args *a = args;
  *cost = (kr_cost){.bytes =
                        2 * (double)a->S * (double)a->D * (double)a->state_len * (double)krait_dtype_bytes(a->x.dtype)};
}

/* A plain copy gains nothing from SIMD: one CPU implementation. */
static const kr_impl varlen_impls[] = {
    KR_CUDA_IMPLS(causal_conv1d_varlen_states)
    {"ref", KRAIT_CAP_CPU, NULL, kr_causal_conv1d_varlen_states_ref, NULL},
};

KR_OP_DEFINE(causal_conv1d_update, update_impls, NULL, count_update, kr_conv_update_case, 300, .takes_pdl = 1)
KR_OP_DEFINE(causal_conv1d_varlen_states, varlen_impls, NULL, count_varlen, kr_conv_varlen_case, 60)

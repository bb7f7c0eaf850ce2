/* causal_conv1d.c: contract, cost and implementations of the short causal convolution; causal_conv1d_ref.c has the
 * equation. Error bound: float32 1e-6 of the sum of |weight x| plus 3 ulp of silu; 16-bit storage: one rounding; final
 * states are exact. */
#include "conv_impls.h"
#include "op_list.h"

static void count_conv1d_cost(const void *args, kr_cost *cost) {
  const kr_causal_conv1d_args *a = args;
  double outputs = (double)a->B * (double)a->D * (double)a->L;
  cost->exps = a->activation == KRAIT_ACT_SILU ? outputs : 0;
  cost->flops = outputs * (double)a->W * 2;
  cost->bytes = outputs * 2 * (double)krait_dtype_bytes(a->x.dtype);
}

static const char *refuse_conv1d_simd(const krait_ctx *ctx, const void *args) {
  const kr_causal_conv1d_args *a = args;
  (void)ctx;
  return a->W > 8 ? "W is more than 8" : NULL;
}

static const kr_impl impls[] = {
    KR_CUDA_FAMILIES(KR_CONV_FAMILIES, causal_conv1d)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_conv1d_simd, kr_causal_conv1d_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_causal_conv1d_ref, NULL},
};

KR_OP_DEFINE(causal_conv1d, impls, NULL, count_conv1d_cost, kr_conv_case, 400, .takes_pdl = 1)

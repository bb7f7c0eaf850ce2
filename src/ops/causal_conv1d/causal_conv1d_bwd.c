/* causal_conv1d_bwd.c: contract, cost and implementations of the convolution's gradient; causal_conv1d_bwd_ref.c has
 * the equations. Error bound: float32 1e-5 of each gradient's scale (1e-4 for sums over batch and time); 16-bit
 * storage: one rounding. */
#include "conv_impls.h"
#include "op_list.h"

static void count_conv1d_bwd_cost(const void *args, kr_cost *cost) {
  const kr_causal_conv1d_bwd_args *a = args;
  double outputs = (double)a->B * (double)a->D * (double)a->L;
  cost->exps = a->activation == KRAIT_ACT_SILU ? outputs : 0;
  cost->flops = outputs * (double)a->W * 6;
  cost->bytes = outputs * 3 * (double)krait_dtype_bytes(a->x.dtype);
}

static const char *refuse_conv1d_bwd_simd(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  return ((const kr_causal_conv1d_bwd_args *)args)->W > 8 ? "W is more than 8" : NULL;
}

static const kr_impl impls[] = {
    KR_CUDA_FAMILIES(KR_CONV_BWD_FAMILIES, causal_conv1d_bwd)
#define KR_ISA(isa, cap)                                                                  \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_conv1d_bwd_simd, kr_causal_conv1d_bwd_##isa, \
   kr_causal_conv1d_bwd_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_causal_conv1d_bwd_ref, kr_causal_conv1d_bwd_ref_scratch},
};

KR_OP_DEFINE(causal_conv1d_bwd, impls, NULL, count_conv1d_bwd_cost, kr_conv_case, 300)

/* causal_conv1d_bwd.c: contract, cost and rows of the convolution's gradient. The equations are in causal_conv1d_bwd_ref.c.
 * Bound: float32 1e-5 of each gradient's scale (1e-4 for sums over batch and time), 16-bit storage one rounding. */
#include "contract.h"
#include "conv_rows.h"
#include "op_list.h"

static int32_t check_args(const void *args) {
  static const char op[] = "causal_conv1d_bwd";
  const krait_causal_conv1d_bwd_args *a = args;
  const int activation = KR_TYPE_ACTIVATION | KR_OPTIONAL;
  const kr_conv_inputs in = KR_CONV_INPUTS(a);
  KR_TRY(kr_conv_check_inputs(op, &in));
  KR_TRY(kr_need(op, "dout", &a->dout, activation));
  KR_TRY(kr_need(op, "dfinal_states", &a->dfinal_states, activation));
  KR_TRY(kr_need(op, "dx", &a->dx, activation));
  KR_TRY(kr_need(op, "dweight", &a->dweight, activation));
  KR_TRY(kr_need(op, "dbias", &a->dbias, activation));
  KR_TRY(kr_need(op, "dinitial_states", &a->dinitial_states, activation));
  if (!kr_has(&a->seq_idx)) return KRAIT_OK;
  KR_TRY(kr_need_absent(op, "dfinal_states", &a->dfinal_states, "with seq_idx"));
  return kr_need_absent(op, "dinitial_states", &a->dinitial_states, "with seq_idx");
}

static void count_cost(const void *args, kr_cost *cost) {
  const krait_causal_conv1d_bwd_args *a = args;
  double outputs = (double)a->B * (double)a->D * (double)a->L;
  cost->exps = a->activation == KRAIT_ACT_SILU ? outputs : 0;
  cost->flops = outputs * (double)a->W * 6;
  cost->bytes = outputs * 3 * (double)krait_dtype_bytes(a->x.dtype);
}

static const char *refuse_simd(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  return ((const krait_causal_conv1d_bwd_args *)args)->W > 8 ? "W is more than 8" : NULL;
}

static const kr_row rows[] = {
    KR_CUDA_ROWS(causal_conv1d_bwd)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_simd, kr_causal_conv1d_bwd_##isa, kr_causal_conv1d_bwd_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_causal_conv1d_bwd_ref, kr_causal_conv1d_bwd_ref_scratch},
};

const kr_op kr_op_causal_conv1d_bwd = {"causal_conv1d_bwd", sizeof(krait_causal_conv1d_bwd_args), KR_ROWS(rows), check_args, count_cost, kr_causal_conv1d_bwd_case, 300, kr_causal_conv1d_bwd_views};

KR_OP_FUNCTIONS(causal_conv1d_bwd)

/* causal_conv1d.c: contract, cost and rows of the short causal convolution. The equation is in causal_conv1d_ref.c.
 * Bound: float32 1e-6 of the sum of |weight x| plus 3 ulp of silu, 16-bit storage one rounding; final states are exact. */
#include "contract.h"
#include "conv_rows.h"
#include "op_list.h"

int32_t kr_conv_check_inputs(const char *op, const kr_conv_inputs *in) {
  KR_TRY(kr_need_flags(op, in->call, KRAIT_CONV1D_REVERSE));
  KR_TRY(kr_need_size(op, "B", in->B, 0, INT64_MAX));
  KR_TRY(kr_need_size(op, "D", in->D, 0, INT64_MAX));
  KR_TRY(kr_need_size(op, "L", in->L, 0, INT64_MAX));
  KR_TRY(kr_need_size(op, "W", in->W, 1, INT32_MAX));
  KR_CHECK(in->activation == KRAIT_ACT_NONE || in->activation == KRAIT_ACT_SILU, KRAIT_ERR_ARGUMENT, "%s: activation is %d, not a KRAIT_ACT_*", op, in->activation);
  KR_TRY(kr_need(op, "x", in->x, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "weight", in->weight, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "bias", in->bias, KR_TYPE_ACTIVATION | KR_OPTIONAL));
  KR_TRY(kr_need(op, "seq_idx", in->seq_idx, KR_TYPE_I32 | KR_OPTIONAL));
  KR_TRY(kr_need(op, "initial_states", in->initial_states, KR_TYPE_ACTIVATION | KR_OPTIONAL));
  return kr_has(in->seq_idx) ? kr_need_absent(op, "initial_states", in->initial_states, "with seq_idx") : KRAIT_OK;
}

static int32_t check_args(const void *args) {
  static const char op[] = "causal_conv1d";
  const krait_causal_conv1d_args *a = args;
  const kr_conv_inputs in = KR_CONV_INPUTS(a);
  KR_TRY(kr_conv_check_inputs(op, &in));
  KR_TRY(kr_need(op, "final_states", &a->final_states, KR_TYPE_ACTIVATION | KR_OPTIONAL));
  KR_TRY(kr_need(op, "out", &a->out, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need_same_type(op, "out", &a->out, "x", &a->x));
  if (kr_has(&a->seq_idx)) KR_TRY(kr_need_absent(op, "final_states", &a->final_states, "with seq_idx"));
  return kr_need_same_place(op, "out", &a->out, "x", &a->x, 3);
}

static void count_cost(const void *args, kr_cost *cost) {
  const krait_causal_conv1d_args *a = args;
  double outputs = (double)a->B * (double)a->D * (double)a->L;
  cost->exps = a->activation == KRAIT_ACT_SILU ? outputs : 0;
  cost->flops = outputs * (double)a->W * 2;
  cost->bytes = outputs * 2 * (double)krait_dtype_bytes(a->x.dtype);
}

static const char *refuse_simd(const krait_ctx *ctx, const void *args) {
  const krait_causal_conv1d_args *a = args;
  (void)ctx;
  return a->W > 8 ? "W is more than 8" : NULL;
}

static const kr_row rows[] = {
    KR_CUDA_ROWS(causal_conv1d)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_simd, kr_causal_conv1d_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_causal_conv1d_ref, NULL},
};

const kr_op kr_op_causal_conv1d = {"causal_conv1d", sizeof(krait_causal_conv1d_args), KR_ROWS(rows), check_args, count_cost, kr_causal_conv1d_case, 400, kr_causal_conv1d_views};

KR_OP_FUNCTIONS(causal_conv1d)

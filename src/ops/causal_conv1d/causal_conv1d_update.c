/* causal_conv1d_update.c: contract, cost and rows of the convolution on a running state, and of the states of packed sequences.
 * Equations: causal_conv1d_update_ref.c, causal_conv1d_varlen_states_ref.c. States are exact copies; outputs as causal_conv1d. */
#include "contract.h"
#include "conv_rows.h"
#include "op_list.h"

static int32_t check_update(const void *args) {
  static const char op[] = "causal_conv1d_update";
  const krait_causal_conv1d_update_args *a = args;
  KR_TRY(kr_need_flags(op, &a->call, 0));
  KR_TRY(kr_need_size(op, "B", a->B, 0, INT64_MAX));
  KR_TRY(kr_need_size(op, "D", a->D, 0, INT64_MAX));
  KR_TRY(kr_need_size(op, "L", a->L, 0, INT64_MAX));
  KR_TRY(kr_need_size(op, "W", a->W, 1, INT32_MAX));
  KR_TRY(kr_need_size(op, "S", a->S, a->W > 1 ? a->W - 1 : 1, INT64_MAX));
  KR_CHECK(a->activation == KRAIT_ACT_NONE || a->activation == KRAIT_ACT_SILU, KRAIT_ERR_ARGUMENT, "%s: activation is %d, not a KRAIT_ACT_*", op, a->activation);
  KR_TRY(kr_need(op, "x", &a->x, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "conv_state", &a->conv_state, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "weight", &a->weight, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "bias", &a->bias, KR_TYPE_ACTIVATION | KR_OPTIONAL));
  KR_TRY(kr_need(op, "cache_seqlens", &a->cache_seqlens, KR_TYPE_I32 | KR_OPTIONAL));
  KR_TRY(kr_need(op, "conv_state_indices", &a->conv_state_indices, KR_TYPE_I32 | KR_OPTIONAL));
  KR_TRY(kr_need(op, "out", &a->out, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need_same_type(op, "out", &a->out, "x", &a->x));
  if (!kr_has(&a->conv_state_indices)) KR_TRY(kr_need_size(op, "n_states", a->n_states, a->B, INT64_MAX));
  return kr_need_same_place(op, "out", &a->out, "x", &a->x, 3);
}

static void count_update(const void *args, kr_cost *cost) {
  const krait_causal_conv1d_update_args *a = args;
  double channels = (double)a->B * (double)a->D, outputs = channels * (double)a->L;
  cost->exps = a->activation == KRAIT_ACT_SILU ? outputs : 0;
  cost->flops = outputs * (double)a->W * 2;
  cost->bytes = outputs * 2 * (double)krait_dtype_bytes(a->x.dtype) + channels * (double)a->S * 2 * (double)krait_dtype_bytes(a->conv_state.dtype);
}

static const char *refuse_update(const krait_ctx *ctx, const void *args) {
  const krait_causal_conv1d_update_args *a = args;
  (void)ctx;
  if (a->W > 8) return "W is more than 8";
  if (a->S > 32) return "S is more than 32";
  return a->L > 32 ? "L is more than 32" : NULL;
}

static const kr_row update_rows[] = {
    KR_CUDA_ROWS(causal_conv1d_update)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_update, kr_causal_conv1d_update_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_causal_conv1d_update_ref, kr_causal_conv1d_update_ref_scratch},
};

const kr_op kr_op_causal_conv1d_update = {"causal_conv1d_update", sizeof(krait_causal_conv1d_update_args), KR_ROWS(update_rows), check_update, count_update, kr_causal_conv1d_update_case, 300, kr_causal_conv1d_update_views};

static int32_t check_varlen(const void *args) {
  static const char op[] = "causal_conv1d_varlen_states";
  const krait_causal_conv1d_varlen_states_args *a = args;
  KR_TRY(kr_need_flags(op, &a->call, 0));
  KR_TRY(kr_need_size(op, "S", a->S, 0, INT32_MAX));
  KR_TRY(kr_need_size(op, "D", a->D, 0, INT64_MAX));
  KR_TRY(kr_need_size(op, "total", a->total, 0, INT32_MAX));
  KR_TRY(kr_need_size(op, "state_len", a->state_len, 0, INT64_MAX));
  KR_TRY(kr_need(op, "x", &a->x, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "cu_seqlens", &a->cu_seqlens, KR_TYPE_I32));
  KR_TRY(kr_need(op, "states", &a->states, KR_TYPE_ACTIVATION));
  return kr_need_same_type(op, "states", &a->states, "x", &a->x);
}

static void count_varlen(const void *args, kr_cost *cost) {
  const krait_causal_conv1d_varlen_states_args *a = args;
  *cost = (kr_cost){.bytes = 2 * (double)a->S * (double)a->D * (double)a->state_len * (double)krait_dtype_bytes(a->x.dtype)};
}

/* A copy has no arithmetic to make fast: one row on the CPU. */
static const kr_row varlen_rows[] = {
    KR_CUDA_ROWS(causal_conv1d_varlen_states)
    {"ref", KRAIT_CAP_CPU, NULL, kr_causal_conv1d_varlen_states_ref, NULL},
};

const kr_op kr_op_causal_conv1d_varlen_states = {"causal_conv1d_varlen_states", sizeof(krait_causal_conv1d_varlen_states_args), KR_ROWS(varlen_rows), check_varlen, count_varlen, kr_causal_conv1d_varlen_states_case, 60, kr_causal_conv1d_varlen_states_views};

KR_OP_FUNCTIONS(causal_conv1d_update)
KR_OP_FUNCTIONS(causal_conv1d_varlen_states)

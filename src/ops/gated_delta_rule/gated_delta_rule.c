/* gated_delta_rule.c: cost and implementations of the gated delta rule; gated_delta_rule_ref.c has the recurrence.
 * Bound: float32 5e-5 of the result's scale, since errors of the state last; 16-bit storage one rounding more. */
#include "gated_delta_rule.h"
#include "op_list.h"
#include "view.h"

static void count_delta(double tokens, double H, double Dk, double Dv, kr_cost *cost) {
  cost->flops = 8 * tokens * H * Dk * Dv;
  cost->exps = 3 * tokens * H;
}

static void count_gated_delta_rule_cost(const void *args, kr_cost *cost) {
  const kr_gated_delta_rule_args *a = args;
  const double tokens = (double)a->B * (double)a->L, element = (double)krait_dtype_bytes(a->q.dtype);
  count_delta(tokens, (double)a->H, (double)a->Dk, (double)a->Dv, cost);
  cost->bytes = tokens * element * 2 * (double)(a->Hk * a->Dk + a->H * a->Dv + a->H) +
                8 * (double)a->B * (double)(a->H * a->Dk * a->Dv);
}

static void count_gated_delta_update_cost(const void *args, kr_cost *cost) {
  const kr_gated_delta_update_args *a = args;
  count_delta((double)a->B, (double)a->H, (double)a->Dk, (double)a->Dv, cost);
  cost->bytes = 8 * (double)a->B * (double)(a->H * a->Dk * a->Dv);
}

static const kr_impl impls[] = {
    {"ampere_chunks", KRAIT_CAP_CUDA_AMPERE, kr_gated_delta_chunks_refuse, kr_gated_delta_chunks,
     kr_gated_delta_chunks_scratch},
    KR_CUDA_FAMILIES(KR_DELTA_FAMILIES, gated_delta_rule)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_gated_delta_rule_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_gated_delta_rule_ref, NULL},
};

static const kr_impl update_impls[] = {
    KR_CUDA_IMPLS(gated_delta_update)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_gated_delta_update_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_gated_delta_update_ref, NULL},
};

KR_OP_DEFINE(gated_delta_rule, impls, NULL, count_gated_delta_rule_cost, kr_gated_delta_rule_case, 200)
KR_OP_DEFINE(gated_delta_update, update_impls, NULL, count_gated_delta_update_cost, kr_gated_delta_update_case, 200,
             .takes_pdl = 1)

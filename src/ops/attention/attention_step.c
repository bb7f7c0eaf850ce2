/* attention_step.c: contract, cost and implementations of a decode step's attention with what precedes it; a rewrite
 * (attention_step_rewrite.c) fuses the two calls into it where a GPU supports it. */
#include "attention/attention_step_impls.h"
#include "contract.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

static int32_t check_attention_step_rules(const void *args) {
  const kr_attention_step_args *a = args;
  KR_CHECK(kr_has(&a->q_norm) == kr_has(&a->k_norm), KRAIT_ERR_ARGUMENT,
           "attention_step: q_norm and k_norm must be given together");
  KR_CHECK(a->eps >= 0 && a->eps - a->eps == 0, KRAIT_ERR_ARGUMENT, "attention_step: eps is not finite, or below 0");
  return kr_has(&a->cache_batch_idx)
             ? KRAIT_OK
             : kr_need_size("attention_step", "Bk without cache_batch_idx", a->Bk, a->B, a->B);
}

static void count_attention_step_cost(const void *args, kr_cost *cost) {
  const kr_attention_step_args *a = args;
  const double rows = (double)a->B * (double)a->H, keys = (double)a->Lk, D = (double)a->D;
  cost->flops = 4 * rows * keys * D;
  cost->bytes = 2 * (rows + (double)a->B * (double)a->Hk * keys) * D * (double)krait_dtype_bytes(a->q.dtype);
  cost->exps = rows * keys;
}

static const kr_impl impls[] = {
    {"cuda_hopper", KRAIT_CAP_CUDA_HOPPER, kr_attention_step_hopper_refuse, kr_attention_step_hopper, NULL},
    {"ref", KRAIT_CAP_CPU, NULL, kr_attention_step_ref, kr_attention_step_ref_scratch},
};

KR_OP_DEFINE(attention_step, impls, check_attention_step_rules, count_attention_step_cost,
             kr_attention_step_case, 200, .takes_pdl = 1, .rewrites = kr_attention_step_rewrites)

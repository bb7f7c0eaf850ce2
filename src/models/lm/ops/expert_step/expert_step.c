/* expert_step.c: contract, cost and implementations of a mixture of experts in one call; expert_step_ref.c has the
 * equations. A language model's step on a GPU takes it; elsewhere the calls that it is made of. */
#include "expert_step/expert_step.h"

#include "expert_gemm/expert_route.h"
#include "lm_ops.h"
#include "status.h"
#include "view.h"

static int32_t check_expert_step(const void *args) {
  const kr_expert_step_args *a = args;
  const int n_shared = kr_has(&a->shared_gate) + kr_has(&a->shared_up) + kr_has(&a->shared_down);
  KR_CHECK(a->E <= KR_ROUTE_MOST_EXPERTS && a->K <= a->E, KRAIT_ERR_SHAPE,
           "expert_step: K is %lld of %lld experts; at most all of %d are supported", (long long)a->K, (long long)a->E,
           KR_ROUTE_MOST_EXPERTS);
  KR_CHECK(n_shared == 0 || n_shared == 3, KRAIT_ERR_ARGUMENT,
           "expert_step: shared_gate, shared_up and shared_down must be given together, or none of them");
  return KRAIT_OK;
}

static void count_expert_step(const void *args, kr_cost *cost) {
  const kr_expert_step_args *a = args;
  const double T = (double)a->T, pairs = T * (double)a->K, used = pairs < (double)a->E ? pairs : (double)a->E,
               shared = (double)kr_expert_step_shared(a),
               rows = (double)a->E + 3 * used * (double)a->F + 3 * shared,
               products = T * ((double)a->E + 3 * (double)a->K * (double)a->F + 3 * shared);
  cost->flops = 2 * products * (double)a->M;
  cost->bytes = (rows + 2 * T) * (double)a->M * (double)krait_dtype_bytes(a->x.dtype);
  cost->exps = T * ((double)a->E + (double)a->K * (double)a->F + shared);
}

static const kr_impl impls[] = {
    {"cuda_ampere", KRAIT_CAP_CUDA_AMPERE, kr_expert_step_refuse, kr_expert_step_ampere, kr_expert_step_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_expert_step_ref, kr_expert_step_ref_scratch},
};
KR_OP_DEFINE(expert_step, impls, check_expert_step, count_expert_step, kr_expert_step_case, 200, .takes_pdl = 1)

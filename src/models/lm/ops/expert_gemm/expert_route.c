/* expert_route.c: contract, cost and implementations of the choice of experts; expert_route_ref.c has the equation. */
#include "expert_gemm/expert_route.h"
#include "lm_ops.h"
#include "status.h"
#include "view.h"

static int32_t check_route_rules(const void *args) {
  const kr_expert_route_args *a = args;
  KR_CHECK(a->E <= KR_ROUTE_MOST_EXPERTS, KRAIT_ERR_SHAPE, "expert_route: %lld experts, at most %d are supported",
           (long long)a->E, KR_ROUTE_MOST_EXPERTS);
  KR_CHECK(a->n_groups <= KR_ROUTE_MOST_GROUPS && a->E % a->n_groups == 0 && a->best_groups <= a->n_groups,
           KRAIT_ERR_SHAPE, "expert_route: %lld experts, n_groups %lld and best_groups %lld do not match",
           (long long)a->E, (long long)a->n_groups, (long long)a->best_groups);
  KR_CHECK(a->K <= a->E / a->n_groups * a->best_groups, KRAIT_ERR_SHAPE,
           "expert_route: K is %lld, more than the %lld experts to choose from", (long long)a->K,
           (long long)(a->E / a->n_groups * a->best_groups));
  KR_CHECK(a->scores == KR_ROUTE_SIGMOID || (!kr_has(&a->bias) && a->n_groups == 1), KRAIT_ERR_ARGUMENT,
           "expert_route: bias and groups are supported only with KR_ROUTE_SIGMOID");
  return KRAIT_OK;
}

static void count_route_cost(const void *args, kr_cost *cost) {
  const kr_expert_route_args *a = args;
  cost->exps = (double)a->T * (double)a->E;
  cost->bytes = (double)a->T * ((double)a->E * (double)krait_dtype_bytes(a->x.dtype) + (double)a->K * 8);
}

static const kr_impl impls[] = {
    KR_CUDA_IMPLS(expert_route)
    {"rows", KRAIT_CAP_CPU, kr_expert_route_rows_refuse, kr_expert_route_rows, NULL},
    {"ref", KRAIT_CAP_CPU, NULL, kr_expert_route_ref, NULL},
};

KR_OP_DEFINE(expert_route, impls, check_route_rules, count_route_cost, kr_expert_route_case, 300, .takes_pdl = 1)

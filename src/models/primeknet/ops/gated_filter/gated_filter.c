/* gated_filter.c: contract, cost, rows and random cases of the product of two filters: a graph of other operators
 * (gated_filter_graph.c) or, on a GPU, one launch. Error bound: 3e-5 of the result's scale. */
#include "check.h"
#include "gated_filter/gated_filter_impls.h"
#include "primeknet_ops.h"

static void count_gated_filter(const void *args, kr_cost *cost) {
  const kr_gated_filter_args *a = args;
  const double n = (double)a->B * (double)a->H * (double)a->W * (double)a->C, K = (double)a->K;
  *cost = (kr_cost){.flops = n * (4 * K + 1), .bytes = 12 * n + 8 * (double)a->C * (K + 1)};
}

static const kr_impl impls[] = {
    {"ampere_aligned_rows", KRAIT_CAP_CUDA_AMPERE, kr_gated_filter_refuse, kr_gated_filter_ampere, NULL},
    {"cuda_ampere_composed", KRAIT_CAP_CUDA_AMPERE, NULL, kr_gated_filter_composed, kr_gated_filter_composed_scratch},
    {"base_aligned_rows", KRAIT_CAP_CUDA_BASE, kr_gated_filter_refuse, kr_gated_filter_base, NULL},
    {"cuda_base_composed", KRAIT_CAP_CUDA_BASE, NULL, kr_gated_filter_composed, kr_gated_filter_composed_scratch},
    {"composed", KRAIT_CAP_CPU, NULL, kr_gated_filter_composed, kr_gated_filter_composed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_gated_filter_ref, kr_gated_filter_ref_scratch},
};

/* Two of every three cases suit the fused launch. */
int32_t kr_gated_filter_case(kr_case *c, int64_t index) {
  kr_gated_filter_args *a = (kr_gated_filter_args *)c->args;
  const int is_aligned = index % 3 && !c->is_exact;
  a->B = kr_case_int(c, 1, 3);
  a->H = kr_case_edge(c, 40), a->W = kr_case_edge(c, 9);
  a->C = is_aligned ? 4 * kr_case_int(c, 1, 20) : kr_case_edge(c, 20);
  a->K = kr_case_chance(c, 0.4) ? 3 : kr_case_int(c, 1, 7);
  a->P = kr_case_int(c, 0, a->K);
  c->contiguous = is_aligned;
  if (is_aligned) { /* contiguous channels per tap */
    kr_view *weight = kr_case_give(c, "weight");
    weight->stride[0] = 1, weight->stride[1] = 2 * a->C;
  }
  return c->status;
}

KR_OP_DEFINE(gated_filter, impls, NULL, count_gated_filter, kr_gated_filter_case, 150)

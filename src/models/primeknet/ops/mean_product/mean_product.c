/* mean_product.c: contract, cost, rows and random cases of a mean and its product: a graph of other operators
 * (mean_product_graph.c) or, on a GPU, one launch. Error bound: 3e-5 of the result's scale. */
#include "check.h"
#include "mean_product/mean_product_impls.h"
#include "primeknet_ops.h"

static void count_mean_product(const void *args, kr_cost *cost) {
  const kr_mean_product_args *a = args;
  const double n = (double)a->I * (double)a->J, S = (double)a->S, C = (double)a->C;
  *cost = (kr_cost){.flops = n * C * (S + 2 * C), .bytes = 4 * (n * C * (S + 1) + C * C)};
}

static const kr_impl impls[] = {
    {"ampere_aligned_rows", KRAIT_CAP_CUDA_AMPERE, kr_mean_product_refuse, kr_mean_product_ampere, NULL},
    {"cuda_ampere_composed", KRAIT_CAP_CUDA_AMPERE, NULL, kr_mean_product_composed, kr_mean_product_composed_scratch},
    {"base_aligned_rows", KRAIT_CAP_CUDA_BASE, kr_mean_product_refuse, kr_mean_product_base, NULL},
    {"cuda_base_composed", KRAIT_CAP_CUDA_BASE, NULL, kr_mean_product_composed, kr_mean_product_composed_scratch},
    {"composed", KRAIT_CAP_CPU, NULL, kr_mean_product_composed, kr_mean_product_composed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_mean_product_ref, kr_mean_product_ref_scratch},
};

/* Two of every three cases suit the fused launch, half of them with strided sequences. */
int32_t kr_mean_product_case(kr_case *c, int64_t index) {
  kr_mean_product_args *a = (kr_mean_product_args *)c->args;
  const int is_aligned = index % 3 && !c->is_exact;
  a->I = kr_case_int(c, 1, 3), a->J = kr_case_int(c, 1, 9);
  a->S = kr_case_edge(c, index % 6 == 1 ? 300 : 40);
  a->C = is_aligned ? 4 * kr_case_int(c, 1, 16) : kr_case_edge(c, 20);
  c->contiguous = is_aligned;
  if (is_aligned) { /* contiguous outputs; positions of all j before those of the next s */
    kr_view *weight = kr_case_give(c, "weight"), *x = kr_case_give(c, "x");
    weight->stride[0] = 1, weight->stride[1] = a->C;
    if (index % 2) x->stride[1] = a->C, x->stride[2] = a->J * a->C;
  }
  return c->status;
}

KR_OP_DEFINE(mean_product, impls, NULL, count_mean_product, kr_mean_product_case, 150)

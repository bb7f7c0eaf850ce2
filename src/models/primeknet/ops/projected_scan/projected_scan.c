/* projected_scan.c: contract, cost, rows and random cases of the scan of a Mamba block after its x_proj: a graph of
 * other operators (projected_scan_graph.c) or, on a GPU, one launch. Error bound: 1e-4 of the result's scale. */
#include "check.h"
#include "primeknet_ops.h"
#include "projected_scan/projected_scan_impls.h"

static void count_projected_scan(const void *args, kr_cost *cost) {
  const kr_projected_scan_args *a = args;
  const double steps = (double)a->B * (double)a->L, D = (double)a->D, N = (double)a->N, R = (double)a->R;
  *cost = (kr_cost){.flops = steps * D * (6 * N + 2 * R + 4),
                    .bytes = steps * (3 * D + (double)a->X) * 4 + D * (N + R + 2) * 4,
                    .exps = steps * D * (N + 1)};
}

#define ROWS(tier, cap)                                                                                   \
  {#tier "_16_states", cap, kr_projected_scan_16_refuse, kr_projected_scan_16_##tier, NULL},              \
      {#tier "_aligned_rows", cap, kr_projected_scan_any_refuse, kr_projected_scan_any_##tier, NULL},     \
      {"cuda_" #tier "_composed", cap, NULL, kr_projected_scan_composed, kr_projected_scan_composed_scratch},
static const kr_impl impls[] = {
    ROWS(ampere, KRAIT_CAP_CUDA_AMPERE)
    ROWS(base, KRAIT_CAP_CUDA_BASE)
    {"composed", KRAIT_CAP_CPU, NULL, kr_projected_scan_composed, kr_projected_scan_composed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_projected_scan_ref, kr_projected_scan_ref_scratch},
};

/* A third of the cases suits each family of rows. */
int32_t kr_projected_scan_case(kr_case *c, int64_t index) {
  kr_projected_scan_args *a = (kr_projected_scan_args *)c->args;
  const int is_16 = index % 3 == 1 && !c->is_exact, is_aligned = index % 3 && !c->is_exact;
  a->B = kr_case_int(c, 1, is_16 ? 40 : 4);
  a->L = kr_case_edge(c, 40);
  a->D = is_aligned ? 4 * kr_case_int(c, 1, 40) : kr_case_edge(c, 40);
  a->N = is_16 ? 16 : kr_case_edge(c, 64);
  a->R = is_16 ? 4 : kr_case_int(c, 1, is_aligned ? 16 : 20);
  a->X = is_16 ? 48 : is_aligned ? (a->R + 2 * a->N + 3) / 4 * 4 : a->R + 2 * a->N + kr_case_int(c, 0, 2);
  c->contiguous = is_aligned;
  if (is_aligned) { /* contiguous channels, as in a product's output */
    kr_view *weight = kr_case_give(c, "dt_weight");
    weight->stride[0] = 1, weight->stride[1] = a->D;
  }
  return c->status;
}

KR_OP_DEFINE(projected_scan, impls, NULL, count_projected_scan, kr_projected_scan_case, 150)

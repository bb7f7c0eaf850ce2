/* mamba3_inner.c: contracts, costs and implementations of a Mamba-3 block and its gradient: graphs of other operators
 * (mamba3_inner_graph.c). Error bound: those of its operators, with intermediate tensors rounded. */
#include "block_ops.h"
#include "contract.h"
#include "mamba3_inner_impls.h"

_Static_assert(offsetof(kr_mamba3_inner_args, out) == offsetof(kr_mamba3_inner_bwd_args, columns), "one head");

/* The gradient's args have the same prefix. */
static int32_t check_mamba3_inner(const char *op, const kr_mamba3_inner_args *a) {
  const kr_view *const states[] = {&a->initial_angles, &a->initial_states, &a->initial_B, &a->initial_x};
  for (int i = 1; i < 4; i++)
    KR_CHECK(kr_has(states[0]) == kr_has(states[i]), KRAIT_ERR_ARGUMENT,
             "%s: initial_angles, initial_states, initial_B and initial_x must be given together", op);
  KR_CHECK(a->R == 1 || kr_has(&a->mimo_o), KRAIT_ERR_ARGUMENT, "%s: R is %lld without mimo_o, must be 1", op,
           (long long)a->R);
  KR_CHECK(a->V == a->R * a->G, KRAIT_ERR_SHAPE, "%s: V is %lld, must be R G = %lld", op, (long long)a->V,
           (long long)(a->R * a->G));
  if (!kr_has(&a->cu_seqlens)) return kr_need_size(op, "S without cu_seqlens", a->S, 0, 0);
  KR_CHECK(a->B == 1, KRAIT_ERR_SHAPE, "%s: B is %lld, must be 1 with cu_seqlens", op, (long long)a->B);
  return kr_need_size(op, "S", a->S, 1, INT32_MAX);
}
static int32_t check_mamba3_inner_rules(const void *args) { return check_mamba3_inner("mamba3_inner", args); }
static int32_t check_mamba3_inner_bwd_rules(const void *args) { return check_mamba3_inner("mamba3_inner_bwd", args); }

/* passes: 1 forward, 3 with the gradient; the scan uses chunks of 64 rows. */
static kr_cost mamba3_inner_cost_of(const kr_mamba3_inner_args *a, double passes) {
  const double rows = (double)a->B * (double)a->L, D = (double)(a->H * a->P), V = (double)(a->V * a->N),
               width = 2 * D + 2 * V + 3 * (double)a->H + (double)a->M, P = (double)a->P, N = (double)a->N, Q = 64,
               R = (double)a->R, element = (double)krait_dtype_bytes(a->x.dtype);
  const double weights = (a->K ? width * (double)a->K : 0) + D * (double)a->D, wide = a->K ? (double)a->K : width;
  return (kr_cost){.flops = passes * rows * (2 * weights + (double)a->H * R * (4 * P * N + Q * (P + N))),
                   .bytes = passes * (rows * element * (wide + (a->D ? (double)a->D : D)) +
                                      weights * (double)krait_dtype_bytes(a->B_norm.dtype)),
                   .exps = passes * rows * ((double)a->H * (4 + 3 * (double)a->M) + D)};
}

static void count_mamba3_inner_cost(const void *args, kr_cost *cost) { *cost = mamba3_inner_cost_of(args, 1); }
static void count_mamba3_inner_bwd_cost(const void *args, kr_cost *cost) { *cost = mamba3_inner_cost_of(args, 2); }

static const kr_impl impls[] = {
    {"cuda_ampere_composed", KRAIT_CAP_CUDA_AMPERE, NULL, kr_mamba3_inner_composed, kr_mamba3_inner_composed_scratch},
    {"cuda_base_composed", KRAIT_CAP_CUDA_BASE, NULL, kr_mamba3_inner_composed, kr_mamba3_inner_composed_scratch},
    {"composed", KRAIT_CAP_CPU, NULL, kr_mamba3_inner_on_host, kr_mamba3_inner_composed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_mamba3_inner_ref, kr_mamba3_inner_ref_scratch},
};

static const kr_impl bwd_impls[] = {
    {"cuda_ampere_composed", KRAIT_CAP_CUDA_AMPERE, NULL, kr_mamba3_inner_bwd_composed,
     kr_mamba3_inner_bwd_composed_scratch},
    {"cuda_base_composed", KRAIT_CAP_CUDA_BASE, NULL, kr_mamba3_inner_bwd_composed,
     kr_mamba3_inner_bwd_composed_scratch},
    {"composed", KRAIT_CAP_CPU, NULL, kr_mamba3_inner_bwd_on_host, kr_mamba3_inner_bwd_composed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_mamba3_inner_bwd_ref, kr_mamba3_inner_bwd_ref_scratch},
};

KR_OP_DEFINE(mamba3_inner, impls, check_mamba3_inner_rules, count_mamba3_inner_cost, kr_mamba3_inner_case, 150)
KR_OP_DEFINE(mamba3_inner_bwd, bwd_impls, check_mamba3_inner_bwd_rules, count_mamba3_inner_bwd_cost,
             kr_mamba3_inner_bwd_case, 120)

/* mamba2_inner.c: contracts, costs and implementations of a Mamba-2 block and its gradient: graphs of other operators
 * (mamba2_inner_graph.c). Error bound: float32 1e-5 of the output's scale, gradients 1e-4; 16-bit storage: that of
 * its operators, with intermediate tensors rounded. */
#include "contract.h"
#include "mamba2_inner_impls.h"
#include "block_ops.h"
#include "ssd/ssd_impls.h"

_Static_assert(offsetof(kr_mamba2_inner_args, out) == offsetof(kr_mamba2_inner_bwd_args, zxbcdt), "one head");

static int32_t check_mamba2_inner_rules(const void *args) {
  const kr_mamba2_inner_args *a = args; /* the gradient's args have the same prefix */
  return kr_ssd_check_limits("mamba2_inner", a->dt_min, a->dt_max);
}

/* passes: 1 forward, 3 with the gradient; the scan uses chunks of 64 tokens. */
static kr_cost mamba2_inner_cost_of(const kr_mamba2_inner_args *a, double passes) {
  const double rows = (double)a->B * (double)a->L, D = (double)(a->H * a->P), S = (double)(a->G * a->N), Q = 64,
               inner = (double)a->F + D, columns = 2 * inner + 2 * S + (double)a->H;
  const double weights = columns * (double)a->K + inner * (double)a->M, element = (double)krait_dtype_bytes(a->x.dtype),
               wide = a->K ? (double)a->K : columns;
  return (kr_cost){
      .flops = passes * 2 * rows * (weights + (D + 2 * S) * (double)a->W + D * (2 * (double)a->N + Q / 2) + S * Q / 2),
      .bytes = passes * (rows * element * (wide + (a->M ? (double)a->M : inner)) +
                         weights * (double)krait_dtype_bytes(a->conv_weight.dtype)),
      .exps = passes * rows * ((double)a->H * Q / 2 + 2 * D + 2 * S)};
}

static void count_mamba2_inner_cost(const void *args, kr_cost *cost) { *cost = mamba2_inner_cost_of(args, 1); }
static void count_mamba2_inner_bwd_cost(const void *args, kr_cost *cost) { *cost = mamba2_inner_cost_of(args, 2); }

static const kr_impl impls[] = {
    {"cuda_ampere_composed", KRAIT_CAP_CUDA_AMPERE, NULL, kr_mamba2_inner_composed, kr_mamba2_inner_composed_scratch},
    {"cuda_base_composed", KRAIT_CAP_CUDA_BASE, NULL, kr_mamba2_inner_composed, kr_mamba2_inner_composed_scratch},
    {"composed", KRAIT_CAP_CPU, NULL, kr_mamba2_inner_composed, kr_mamba2_inner_composed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_mamba2_inner_ref, kr_mamba2_inner_ref_scratch},
};

static const kr_impl bwd_impls[] = {
    {"cuda_ampere_composed", KRAIT_CAP_CUDA_AMPERE, NULL, kr_mamba2_inner_bwd_composed,
     kr_mamba2_inner_bwd_composed_scratch},
    {"cuda_base_composed", KRAIT_CAP_CUDA_BASE, NULL, kr_mamba2_inner_bwd_composed,
     kr_mamba2_inner_bwd_composed_scratch},
    {"composed", KRAIT_CAP_CPU, NULL, kr_mamba2_inner_bwd_composed, kr_mamba2_inner_bwd_composed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_mamba2_inner_bwd_ref, kr_mamba2_inner_bwd_ref_scratch},
};

KR_OP_DEFINE(mamba2_inner, impls, check_mamba2_inner_rules, count_mamba2_inner_cost, kr_mamba2_inner_case, 150)
KR_OP_DEFINE(mamba2_inner_bwd, bwd_impls, check_mamba2_inner_rules, count_mamba2_inner_bwd_cost,
             kr_mamba2_inner_bwd_case, 120)

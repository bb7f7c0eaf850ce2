/* mamba_inner.c: contracts, costs and implementations of the inside of a Mamba-1 block and its gradient;
 * mamba_inner_ref.c has the equation. Error bound: float32 1e-5 of the output's scale; 16-bit storage: one rounding on
 * a CPU, on a GPU what its operators do to rows of that type (mamba_inner_check.c). */
#include "contract.h"
#include "mamba_inner_chain.h"
#include "block_ops.h"

static int32_t check_constants(const char *op, uint32_t flags, const kr_view *Bmat, const kr_view *Cmat) {
  KR_CHECK(kr_has(Bmat) || !(flags & KRAIT_SCAN_B_CONSTANT), KRAIT_ERR_ARGUMENT,
           "%s: Bmat must be given where it is constant", op);
  KR_CHECK(kr_has(Cmat) || !(flags & KRAIT_SCAN_C_CONSTANT), KRAIT_ERR_ARGUMENT,
           "%s: Cmat must be given where it is constant", op);
  return KRAIT_OK;
}

static int32_t check_mamba_inner_rules(const void *args) {
  const kr_mamba_inner_args *a = args;
  return check_constants("mamba_inner", a->call.flags, &a->Bmat, &a->Cmat);
}

static int32_t check_bwd_rules(const void *args) {
  const kr_mamba_inner_bwd_args *a = args;
  return check_constants("mamba_inner_bwd", a->call.flags, &a->Bmat, &a->Cmat);
}

/* Of one pass; the gradient computes the products three times in all. */
static kr_cost mamba_inner_cost_of(const kr_mamba_inner_args *a, double products, double scan_flops) {
  double rows = (double)a->B * (double)a->L, D = (double)a->D,
         columns = (double)(a->R + kr_inner_columns(a, &a->Bmat) + kr_inner_columns(a, &a->Cmat));
  double directions = a->call.flags & KRAIT_SCAN_BOTH ? 2 : 1, softplus = a->call.flags & KRAIT_SCAN_SOFTPLUS ? 1 : 0;
  double weights = 2 * D * (columns + (double)a->R + (double)a->M), element = (double)krait_dtype_bytes(a->xz.dtype);
  return (kr_cost){
      .exps = rows * D * ((double)a->N * directions + softplus + 2),
      .flops = rows * (products * weights + D * ((double)a->N * directions * scan_flops + 2 * (double)a->W)),
      .bytes = rows * element * (2 * D + (double)(a->M ? a->M : a->D)) +
               weights / 2 * (double)krait_dtype_bytes(a->x_proj_weight.dtype)};
}

static void count_mamba_inner_cost(const void *args, kr_cost *cost) { *cost = mamba_inner_cost_of(args, 1, 6); }

static void count_mamba_inner_bwd_cost(const void *args, kr_cost *cost) {
  const kr_mamba_inner_args a = kr_inner_forward_of(args);
  *cost = mamba_inner_cost_of(&a, 3, 20);
  cost->bytes *= 2;
}

static const kr_impl impls[] = {
    {"cuda_ampere_composed", KRAIT_CAP_CUDA_AMPERE, NULL, kr_mamba_inner_cuda, kr_mamba_inner_cuda_scratch},
    {"cuda_base_composed", KRAIT_CAP_CUDA_BASE, NULL, kr_mamba_inner_cuda, kr_mamba_inner_cuda_scratch},
    {"composed", KRAIT_CAP_CPU, NULL, kr_mamba_inner_composed, kr_mamba_inner_composed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_mamba_inner_ref, kr_mamba_inner_ref_scratch},
};

static const kr_impl bwd_impls[] = {
    {"cuda_ampere_composed", KRAIT_CAP_CUDA_AMPERE, NULL, kr_mamba_inner_bwd_cuda, kr_mamba_inner_bwd_cuda_scratch},
    {"cuda_base_composed", KRAIT_CAP_CUDA_BASE, NULL, kr_mamba_inner_bwd_cuda, kr_mamba_inner_bwd_cuda_scratch},
    {"composed", KRAIT_CAP_CPU, NULL, kr_mamba_inner_bwd_composed, kr_mamba_inner_bwd_composed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_mamba_inner_bwd_ref, kr_mamba_inner_bwd_ref_scratch},
};

KR_OP_DEFINE(mamba_inner, impls, check_mamba_inner_rules, count_mamba_inner_cost, kr_mamba_inner_case, 200)
KR_OP_DEFINE(mamba_inner_bwd, bwd_impls, check_bwd_rules, count_mamba_inner_bwd_cost, kr_mamba_inner_case, 150)

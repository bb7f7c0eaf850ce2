/* add_norm.c: contracts, costs and implementations of add + norm and its gradient. The equations are in add_norm_ref.c.
 * Bound: float32 1e-5 of the output's scale (1e-4 for sums over rows), 16-bit storage one rounding. */
#include "norm_impls.h"
#include "op_list.h"
#include "view.h"

static void count_add_norm_cost(const void *args, kr_cost *cost) {
  const kr_add_norm_args *a = args;
  double values = (double)a->R * (double)a->M;
  *cost = (kr_cost){.flops = values * 6, .bytes = values * 2 * (double)krait_dtype_bytes(a->x.dtype)};
  if (kr_has(&a->residual)) cost->bytes += values * (double)krait_dtype_bytes(a->residual.dtype);
  if (kr_has(&a->residual_out)) cost->bytes += values * (double)krait_dtype_bytes(a->residual_out.dtype);
}

static void count_add_norm_bwd_cost(const void *args, kr_cost *cost) {
  const kr_add_norm_bwd_args *a = args;
  double values = (double)a->R * (double)a->M;
  *cost = (kr_cost){.flops = values * 14, .bytes = values * 3 * (double)krait_dtype_bytes(a->v.dtype)};
}

static const kr_impl impls[] = {
    {"cuda_base_short_rows", KRAIT_CAP_CUDA_BASE, kr_add_norm_short_refuse, kr_add_norm_short, NULL},
    KR_CUDA_FAMILIES(KR_NORM_FAMILIES, add_norm)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_add_norm_##isa, kr_add_norm_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_add_norm_ref, NULL},
};

static const kr_impl bwd_impls[] = {
    {"cuda_base_short_rows", KRAIT_CAP_CUDA_BASE, kr_add_norm_bwd_short_refuse, kr_add_norm_bwd_short,
     kr_add_norm_bwd_short_scratch},
    KR_CUDA_FAMILIES(KR_NORM_FAMILIES, add_norm_bwd)
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_add_norm_bwd_##isa, kr_add_norm_bwd_scratch_##isa},
#include "isa.def"
#undef KR_ISA
        {"ref", KRAIT_CAP_CPU, NULL, kr_add_norm_bwd_ref, kr_add_norm_bwd_ref_scratch},
};

KR_OP_DEFINE(add_norm, impls, NULL, count_add_norm_cost, kr_add_norm_case, 200, .takes_pdl = 1)
KR_OP_DEFINE(add_norm_bwd, bwd_impls, NULL, count_add_norm_bwd_cost, kr_add_norm_case, 200)

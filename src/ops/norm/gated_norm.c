/* gated_norm.c: contracts, costs and implementations of the gated norm and its gradient. The equations are in
 * gated_norm_ref.c. Bound: float32 1e-5 of the output's scale (1e-4 for sums over rows), 16-bit storage one rounding.
 */
#include "norm_impls.h"
#include "op_list.h"
#include "view.h"

static void count_gated_norm_cost(const void *args, kr_cost *cost) {
  const kr_gated_norm_args *a = args;
  double values = (double)a->R * (double)a->M, gate = kr_has(&a->z) ? 1 : 0;
  *cost = (kr_cost){.flops = values * (6 + 2 * gate),
                    .exps = values * gate,
                    .bytes = values * (2 + gate) * (double)krait_dtype_bytes(a->x.dtype)};
}

static void count_gated_norm_bwd_cost(const void *args, kr_cost *cost) {
  const kr_gated_norm_bwd_args *a = args;
  double values = (double)a->R * (double)a->M, gate = kr_has(&a->z) ? 1 : 0;
  *cost = (kr_cost){.flops = values * (14 + 6 * gate),
                    .exps = values * gate,
                    .bytes = values * (3 + 2 * gate) * (double)krait_dtype_bytes(a->x.dtype)};
}

static const kr_impl impls[] = {
    KR_CUDA_FAMILIES(KR_NORM_FAMILIES, gated_norm)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_gated_norm_##isa, kr_gated_norm_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_gated_norm_ref, NULL},
};

static const kr_impl bwd_impls[] = {
    KR_CUDA_FAMILIES(KR_NORM_FAMILIES, gated_norm_bwd)
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_gated_norm_bwd_##isa, kr_gated_norm_bwd_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_gated_norm_bwd_ref, kr_gated_norm_bwd_ref_scratch},
};

KR_OP_DEFINE(gated_norm, impls, NULL, count_gated_norm_cost, kr_gated_norm_case, 200, .takes_pdl = 1)
KR_OP_DEFINE(gated_norm_bwd, bwd_impls, NULL, count_gated_norm_bwd_cost, kr_gated_norm_case, 200)

/* state_update.c: contract, cost and implementations of the single-token scan step (selective_state_update). The
 * equation is in state_update_ref.c. Bound: float32 1e-5 of the output's scale, 16-bit storage one rounding. */
#include "op_list.h"
#include "state_update_impls.h"
#include "view.h"

static void count_state_update_cost(const void *args, kr_cost *cost) {
  const kr_state_update_args *a = args;
  double rows = (double)a->B * (double)a->H * (double)a->P;
  double element = (double)krait_dtype_bytes(a->x.dtype);
  cost->exps = rows * (double)a->N;
  cost->flops = rows * (double)a->N * 6;
  cost->bytes = rows * (double)a->N * 2 * (double)krait_dtype_bytes(a->state.dtype) +
                rows * element * (kr_has(&a->z) ? 4 : 3) + (double)(a->H * a->P * a->N) * 4;
}

static const char *refuse_state_update_simd(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  return ((const kr_state_update_args *)args)->N > 512 ? "N is more than 512" : NULL;
}

static const kr_impl impls[] = {
    KR_CUDA_FAMILIES(KR_UPDATE_FAMILIES, state_update)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_state_update_simd, kr_state_update_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_state_update_ref, NULL},
};

KR_OP_DEFINE(state_update, impls, NULL, count_state_update_cost, kr_state_update_case, 300, .takes_pdl = 1)

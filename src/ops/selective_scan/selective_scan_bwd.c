/* selective_scan_bwd.c: contract, cost and implementations of the scan's gradient; selective_scan_bwd_ref.c has the
 * equations. Error bound: float32 2e-5 of each gradient's scale (1e-4 for sums over batch and time and with complex A);
 * 16-bit storage: one rounding. */
#include "contract.h"
#include "op_list.h"
#include "scan_families.h"
#include "scan_impls.h"
#include "view.h"

static int32_t check_scan_bwd_rules(const void *args) {
  const kr_selective_scan_bwd_args *a = args;
  KR_TRY(kr_scan_check_sequences("selective_scan_bwd", a->B, a->S, &a->cu_seqlens));
  return kr_scan_check_kept("selective_scan_bwd", a->L, a->n_kept, &a->states);
}

static void count_scan_bwd_cost(const void *args, kr_cost *cost) {
  const kr_selective_scan_bwd_args *a = args;
  double steps = (double)a->B * (double)a->D * (double)a->L, directions = a->call.flags & KRAIT_SCAN_BOTH ? 2 : 1;
  double element = (double)krait_dtype_bytes(a->u.dtype), gate = kr_has(&a->z) ? 1 : 0;
  cost->exps = steps * ((double)a->N * directions + (a->call.flags & KRAIT_SCAN_SOFTPLUS ? 1 : 0) + gate);
  cost->flops = steps * ((double)a->N * directions * 20 + 12);
  cost->bytes = steps * element * (5 + 2 * gate) + (double)a->B * (double)a->G * (double)a->N * (double)a->L * 4 *
                                                       (double)krait_dtype_bytes(a->Bmat.dtype);
}

static const kr_impl impls[] = {
    KR_SCAN_CHANNELS_LAST_FAMILY(KR_CUDA_FAMILY_AMPERE, selective_scan_bwd)
    KR_CUDA_FAMILIES(KR_SCAN_BWD_FAMILIES, selective_scan_bwd)
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_selective_scan_bwd_##isa, kr_selective_scan_bwd_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_selective_scan_bwd_ref, kr_selective_scan_bwd_ref_scratch},
};

KR_OP_DEFINE(selective_scan_bwd, impls, check_scan_bwd_rules, count_scan_bwd_cost, kr_scan_bwd_case, 300)

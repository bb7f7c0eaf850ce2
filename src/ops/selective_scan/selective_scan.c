/* selective_scan.c: contract, cost and implementations of the Mamba-1 scan; selective_scan_ref.c has the equation.
 * Error bound: float32 1e-5 of the output's scale, 2e-5 beyond 4000 steps (a decay is 2.2 ulp, a step one fused
 * rounding), 4e-5 beyond 128 states (cancellation in their sum), 1e-4 with complex A (rounding dt also rotates the
 * state); 16-bit storage: one rounding. */
#include "contract.h"
#include "op_list.h"
#include "scan_families.h"
#include "scan_impls.h"

int32_t kr_scan_check_sequences(const char *op, int64_t B, int64_t S, const kr_view *cu_seqlens) {
  if (!kr_has(cu_seqlens)) return kr_need_size(op, "S without cu_seqlens", S, 0, 0);
  KR_CHECK(B == 1, KRAIT_ERR_SHAPE, "%s: B is %lld, must be 1 with cu_seqlens", op, (long long)B);
  return kr_need_size(op, "S", S, 1, INT32_MAX);
}

int32_t kr_scan_check_kept(const char *op, int64_t L, int64_t n_kept, const kr_view *states) {
  const int64_t wanted = kr_has(states) ? (L + 7) / 8 : 0;
  KR_CHECK(n_kept == wanted, KRAIT_ERR_SHAPE, "%s: n_kept is %lld, must be %lld with%s", op, (long long)n_kept,
           (long long)wanted, kr_has(states) ? " states" : "out states");
  return KRAIT_OK;
}

static int32_t check_scan_rules(const void *args) {
  const kr_selective_scan_args *a = args;
  KR_TRY(kr_scan_check_sequences("selective_scan", a->B, a->S, &a->cu_seqlens));
  KR_TRY(kr_scan_check_kept("selective_scan", a->L, a->n_kept, &a->states));
  return kr_has(&a->z) && a->z.data == a->out.data ? kr_need_same_type("selective_scan", "out", &a->out, "z", &a->z)
                                                   : KRAIT_OK;
}

static void count_scan_cost(const void *args, kr_cost *cost) {
  const kr_selective_scan_args *a = args;
  double steps = (double)a->B * (double)a->D * (double)a->L, directions = a->call.flags & KRAIT_SCAN_BOTH ? 2 : 1;
  double element = (double)krait_dtype_bytes(a->u.dtype), softplus = a->call.flags & KRAIT_SCAN_SOFTPLUS ? 1 : 0,
         gate = kr_has(&a->z) ? 1 : 0;
  cost->exps = steps * ((double)a->N * directions + softplus + gate);
  cost->flops = steps * ((double)a->N * directions * 6 + 4);
  cost->bytes =
      steps * ((2 + gate) * element + (double)krait_dtype_bytes(a->delta.dtype)) +
      (double)a->B * (double)a->G * (double)a->N * (double)a->L * 2 * (double)krait_dtype_bytes(a->Bmat.dtype);
}

static const char *refuse_states(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  return kr_has(&((const kr_selective_scan_args *)args)->states) ? "states (one per 8 steps)" : NULL;
}

static const kr_impl impls[] = {
    KR_SCAN_CHANNELS_LAST_FAMILY(KR_CUDA_FAMILY_AMPERE, selective_scan)
    KR_CUDA_FAMILIES(KR_SCAN_FAMILIES, selective_scan)
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_states, kr_selective_scan_##isa, kr_selective_scan_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_selective_scan_ref, kr_selective_scan_ref_scratch},
};

KR_OP_DEFINE(selective_scan, impls, check_scan_rules, count_scan_cost, kr_scan_case, 500, .takes_pdl = 1)

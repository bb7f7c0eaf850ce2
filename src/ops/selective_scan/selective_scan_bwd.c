/* selective_scan_bwd.c: contract, cost and rows of the scan's gradient. The equations are in selective_scan_bwd_ref.c.
 * Bound: float32 2e-5 of each gradient's scale (1e-4 for sums over batch and time and with complex A), 16-bit storage one rounding. */
#include "contract.h"
#include "op_list.h"
#include "scan_rows.h"

static int32_t check_outputs(const char *op, const krait_selective_scan_bwd_args *a) {
  const int state_type = 1 << a->A.dtype | KR_OPTIONAL, activation = KR_TYPE_ACTIVATION | KR_OPTIONAL;
  const int complex_type = a->A.dtype == KRAIT_C64 ? KR_TYPE_C64 | KR_OPTIONAL : activation;
  KR_TRY(kr_need(op, "dout", &a->dout, activation));
  KR_TRY(kr_need(op, "dlast_state", &a->dlast_state, state_type));
  KR_TRY(kr_need(op, "du", &a->du, activation));
  KR_TRY(kr_need(op, "ddelta", &a->ddelta, activation));
  KR_TRY(kr_need(op, "dA", &a->dA, state_type));
  KR_TRY(kr_need(op, "dB", &a->dB, a->call.flags & KRAIT_SCAN_B_CONSTANT ? complex_type : activation));
  KR_TRY(kr_need(op, "dC", &a->dC, a->call.flags & KRAIT_SCAN_C_CONSTANT ? complex_type : activation));
  KR_TRY(kr_need(op, "dDvec", &a->dDvec, KR_TYPE_F32 | KR_OPTIONAL));
  KR_TRY(kr_need(op, "dz", &a->dz, activation));
  KR_TRY(kr_need(op, "ddelta_bias", &a->ddelta_bias, KR_TYPE_F32 | KR_OPTIONAL));
  KR_TRY(kr_need(op, "dinitial_state", &a->dinitial_state, state_type));
  return kr_need(op, "dA_reverse", &a->dA_reverse, state_type);
}

static int32_t check_args(const void *args) {
  static const char op[] = "selective_scan_bwd";
  const krait_selective_scan_bwd_args *a = args;
  KR_TRY(kr_need_flags(op, &a->call, KR_SCAN_FLAGS));
  const kr_scan_inputs in = KR_SCAN_INPUTS(a);
  KR_TRY(kr_scan_check_inputs(op, &in));
  KR_TRY(check_outputs(op, a));
  if (!kr_has(&a->z)) KR_TRY(kr_need_absent(op, "dz", &a->dz, "without z"));
  if (!(a->call.flags & KRAIT_SCAN_BOTH)) return kr_need_absent(op, "dA_reverse", &a->dA_reverse, "without KRAIT_SCAN_BOTH");
  KR_TRY(kr_need_absent(op, "dlast_state", &a->dlast_state, "with KRAIT_SCAN_BOTH"));
  return kr_need_absent(op, "dinitial_state", &a->dinitial_state, "with KRAIT_SCAN_BOTH");
}

static void count_cost(const void *args, kr_cost *cost) {
  const krait_selective_scan_bwd_args *a = args;
  double steps = (double)a->B * (double)a->D * (double)a->L, directions = a->call.flags & KRAIT_SCAN_BOTH ? 2 : 1;
  double element = (double)krait_dtype_bytes(a->u.dtype), gate = kr_has(&a->z) ? 1 : 0;
  cost->exps = steps * ((double)a->N * directions + (a->call.flags & KRAIT_SCAN_SOFTPLUS ? 1 : 0) + gate);
  cost->flops = steps * ((double)a->N * directions * 20 + 12);
  cost->bytes = steps * element * (5 + 2 * gate) + (double)a->B * (double)a->G * (double)a->N * (double)a->L * 4 * (double)krait_dtype_bytes(a->Bmat.dtype);
}

static const kr_row rows[] = {
    KR_CUDA_ROWS(selective_scan_bwd)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_selective_scan_bwd_##isa, kr_selective_scan_bwd_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_selective_scan_bwd_ref, kr_selective_scan_bwd_ref_scratch},
};

const kr_op kr_op_selective_scan_bwd = {"selective_scan_bwd", sizeof(krait_selective_scan_bwd_args), KR_ROWS(rows), check_args, count_cost, kr_selective_scan_bwd_case, 300, kr_selective_scan_bwd_views};

KR_OP_FUNCTIONS(selective_scan_bwd)

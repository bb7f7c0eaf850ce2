/* selective_scan.c: contract, cost and rows of the Mamba-1 scan. The equation is in selective_scan_ref.c.
 * Bound: float32 1e-5 of the output's scale, 2e-5 beyond 4000 steps (each decay is 2.2 ulp, each step one fused rounding), 4e-5 beyond 128 states
 * (their sum cancels), 1e-4 with complex A (the rounding of dt also turns the state); 16-bit storage one rounding. */
#include "contract.h"
#include "op_list.h"
#include "scan_rows.h"

static int32_t check_sizes(const char *op, const kr_scan_inputs *in) {
  KR_TRY(kr_need_size(op, "B", in->B, 0, INT64_MAX));
  KR_TRY(kr_need_size(op, "D", in->D, 1, INT64_MAX));
  KR_TRY(kr_need_size(op, "L", in->L, 0, INT64_MAX));
  KR_TRY(kr_need_size(op, "N", in->N, 1, 512));
  KR_TRY(kr_need_size(op, "G", in->G, 1, in->D));
  KR_CHECK(in->D % in->G == 0, KRAIT_ERR_SHAPE, "%s: D %lld is not a multiple of G %lld", op, (long long)in->D, (long long)in->G);
  if (!kr_has(in->cu_seqlens)) return kr_need_size(op, "S without cu_seqlens", in->S, 0, 0);
  KR_CHECK(in->B == 1, KRAIT_ERR_SHAPE, "%s: B is %lld, must be 1 with cu_seqlens", op, (long long)in->B);
  return kr_need_size(op, "S", in->S, 1, INT32_MAX);
}

static int32_t check_modes(const char *op, const kr_scan_inputs *in) {
  if (kr_has(in->cu_seqlens)) KR_TRY(kr_need_absent(op, "seq_idx", in->seq_idx, "with cu_seqlens"));
  if (!(in->flags & KRAIT_SCAN_BOTH)) return kr_need_absent(op, "A_reverse", in->A_reverse, "without KRAIT_SCAN_BOTH");
  KR_CHECK(!(in->flags & KRAIT_SCAN_REVERSE), KRAIT_ERR_ARGUMENT, "%s: KRAIT_SCAN_REVERSE cannot be set with KRAIT_SCAN_BOTH", op);
  KR_TRY(kr_need_absent(op, "initial_state", in->initial_state, "with KRAIT_SCAN_BOTH"));
  KR_TRY(kr_need_absent(op, "seq_idx", in->seq_idx, "with KRAIT_SCAN_BOTH"));
  KR_TRY(kr_need_absent(op, "cu_seqlens", in->cu_seqlens, "with KRAIT_SCAN_BOTH"));
  KR_TRY(kr_need(op, "A_reverse", in->A_reverse, KR_TYPE_F32 | KR_TYPE_C64));
  return kr_need_same_type(op, "A_reverse", in->A_reverse, "A", in->A);
}

int32_t kr_scan_check_inputs(const char *op, const kr_scan_inputs *in) {
  KR_TRY(check_sizes(op, in));
  KR_TRY(kr_need(op, "u", in->u, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "delta", in->delta, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "A", in->A, KR_TYPE_F32 | KR_TYPE_C64));
  int state_type = 1 << in->A->dtype, is_complex = in->A->dtype == KRAIT_C64;
  KR_TRY(kr_need(op, "Bmat", in->Bmat, is_complex && in->flags & KRAIT_SCAN_B_CONSTANT ? KR_TYPE_C64 : KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "Cmat", in->Cmat, is_complex && in->flags & KRAIT_SCAN_C_CONSTANT ? KR_TYPE_C64 : KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "Dvec", in->Dvec, KR_TYPE_F32 | KR_OPTIONAL));
  KR_TRY(kr_need(op, "z", in->z, KR_TYPE_ACTIVATION | KR_OPTIONAL));
  KR_TRY(kr_need(op, "delta_bias", in->delta_bias, KR_TYPE_F32 | KR_OPTIONAL));
  KR_TRY(kr_need(op, "initial_state", in->initial_state, state_type | KR_OPTIONAL));
  KR_TRY(kr_need(op, "seq_idx", in->seq_idx, KR_TYPE_I32 | KR_OPTIONAL));
  KR_TRY(kr_need(op, "cu_seqlens", in->cu_seqlens, KR_TYPE_I32 | KR_OPTIONAL));
  return check_modes(op, in);
}

static int32_t check_args(const void *args) {
  static const char op[] = "selective_scan";
  const krait_selective_scan_args *a = args;
  KR_TRY(kr_need_flags(op, &a->call, KR_SCAN_FLAGS));
  const kr_scan_inputs in = KR_SCAN_INPUTS(a);
  KR_TRY(kr_scan_check_inputs(op, &in));
  KR_TRY(kr_need(op, "out", &a->out, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need_same_type(op, "out", &a->out, "u", &a->u));
  KR_TRY(kr_need(op, "last_state", &a->last_state, 1 << a->A.dtype | KR_OPTIONAL));
  if (a->call.flags & KRAIT_SCAN_BOTH) KR_TRY(kr_need_absent(op, "last_state", &a->last_state, "with KRAIT_SCAN_BOTH"));
  KR_TRY(kr_need_same_place(op, "out", &a->out, "u", &a->u, 3));
  if (kr_has(&a->z) && a->z.data == a->out.data) KR_TRY(kr_need_same_type(op, "out", &a->out, "z", &a->z));
  return kr_need_same_place(op, "out", &a->out, "z", &a->z, 3);
}

static void count_cost(const void *args, kr_cost *cost) {
  const krait_selective_scan_args *a = args;
  double steps = (double)a->B * (double)a->D * (double)a->L, directions = a->call.flags & KRAIT_SCAN_BOTH ? 2 : 1;
  double element = (double)krait_dtype_bytes(a->u.dtype), softplus = a->call.flags & KRAIT_SCAN_SOFTPLUS ? 1 : 0, gate = kr_has(&a->z) ? 1 : 0;
  cost->exps = steps * ((double)a->N * directions + softplus + gate);
  cost->flops = steps * ((double)a->N * directions * 6 + 4);
  cost->bytes = steps * ((2 + gate) * element + (double)krait_dtype_bytes(a->delta.dtype)) + (double)a->B * (double)a->G * (double)a->N * (double)a->L * 2 * (double)krait_dtype_bytes(a->Bmat.dtype);
}

static const kr_row rows[] = {
    KR_CUDA_ROWS(selective_scan)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_selective_scan_##isa, kr_selective_scan_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_selective_scan_ref, kr_selective_scan_ref_scratch},
};

const kr_op kr_op_selective_scan = {"selective_scan", sizeof(krait_selective_scan_args), KR_ROWS(rows), check_args, count_cost, kr_selective_scan_case, 500, kr_selective_scan_views};

KR_OP_FUNCTIONS(selective_scan)

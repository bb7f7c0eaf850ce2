/* gated_norm.c: contracts, costs and rows of the gated norm and its gradient. The equations are in gated_norm_ref.c.
 * Bound: float32 1e-5 of the output's scale (1e-4 for sums over rows), 16-bit storage one rounding. */
#include "contract.h"
#include "norm_rows.h"
#include "op_list.h"

static int32_t check_inputs(const char *op, const krait_gated_norm_args *a) {
  KR_TRY(kr_need_flags(op, &a->call, KRAIT_GATED_NORM_RMS | KRAIT_GATED_NORM_GATE_FIRST));
  KR_TRY(kr_need_size(op, "R", a->R, 0, INT64_MAX));
  KR_TRY(kr_need_size(op, "M", a->M, 1, INT64_MAX));
  KR_TRY(kr_need_size(op, "group_size", a->group_size, 1, a->M));
  KR_CHECK(a->M % a->group_size == 0, KRAIT_ERR_SHAPE, "%s: M %lld is not a multiple of group_size %lld", op, (long long)a->M, (long long)a->group_size);
  KR_TRY(kr_need(op, "x", &a->x, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "z", &a->z, KR_TYPE_ACTIVATION | KR_OPTIONAL));
  KR_TRY(kr_need(op, "weight", &a->weight, KR_TYPE_ACTIVATION | KR_OPTIONAL));
  return kr_need(op, "bias", &a->bias, KR_TYPE_ACTIVATION | KR_OPTIONAL);
}

static int32_t check_args(const void *args) {
  static const char op[] = "gated_norm";
  const krait_gated_norm_args *a = args;
  KR_TRY(check_inputs(op, a));
  KR_TRY(kr_need(op, "out", &a->out, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need_same_place(op, "out", &a->out, "x", &a->x, 2));
  return kr_need_same_place(op, "out", &a->out, "z", &a->z, 2);
}

static int32_t check_bwd_args(const void *args) {
  static const char op[] = "gated_norm_bwd";
  const krait_gated_norm_bwd_args *a = args;
  const int optional = KR_TYPE_ACTIVATION | KR_OPTIONAL;
  const krait_gated_norm_args inputs = {.call = a->call, .R = a->R, .M = a->M, .group_size = a->group_size, .x = a->x, .z = a->z, .weight = a->weight, .bias = a->bias};
  KR_TRY(check_inputs(op, &inputs));
  KR_TRY(kr_need(op, "dout", &a->dout, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "dx", &a->dx, optional));
  KR_TRY(kr_need(op, "dz", &a->dz, optional));
  KR_TRY(kr_need(op, "dweight", &a->dweight, optional));
  KR_TRY(kr_need(op, "dbias", &a->dbias, optional));
  return kr_has(&a->z) ? KRAIT_OK : kr_need_absent(op, "dz", &a->dz, "without z");
}

static void count_cost(const void *args, kr_cost *cost) {
  const krait_gated_norm_args *a = args;
  double values = (double)a->R * (double)a->M, gate = kr_has(&a->z) ? 1 : 0;
  *cost = (kr_cost){.flops = values * (6 + 2 * gate), .exps = values * gate, .bytes = values * (2 + gate) * (double)krait_dtype_bytes(a->x.dtype)};
}

static void count_bwd_cost(const void *args, kr_cost *cost) {
  const krait_gated_norm_bwd_args *a = args;
  double values = (double)a->R * (double)a->M, gate = kr_has(&a->z) ? 1 : 0;
  *cost = (kr_cost){.flops = values * (14 + 6 * gate), .exps = values * gate, .bytes = values * (3 + 2 * gate) * (double)krait_dtype_bytes(a->x.dtype)};
}

static const kr_row rows[] = {
    KR_CUDA_ROWS(gated_norm)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_gated_norm_##isa, kr_gated_norm_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_gated_norm_ref, NULL},
};

static const kr_row bwd_rows[] = {
    KR_CUDA_ROWS(gated_norm_bwd)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_gated_norm_bwd_##isa, kr_gated_norm_bwd_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_gated_norm_bwd_ref, kr_gated_norm_bwd_ref_scratch},
};

const kr_op kr_op_gated_norm = {"gated_norm", sizeof(krait_gated_norm_args), KR_ROWS(rows), check_args, count_cost, kr_gated_norm_case, 200, kr_gated_norm_views};
const kr_op kr_op_gated_norm_bwd = {"gated_norm_bwd", sizeof(krait_gated_norm_bwd_args), KR_ROWS(bwd_rows), check_bwd_args, count_bwd_cost, kr_gated_norm_bwd_case, 200, kr_gated_norm_bwd_views};

KR_OP_FUNCTIONS(gated_norm)
KR_OP_FUNCTIONS(gated_norm_bwd)

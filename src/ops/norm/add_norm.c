/* add_norm.c: contracts, costs and rows of add + norm and its gradient. The equations are in add_norm_ref.c.
 * Bound: float32 1e-5 of the output's scale (1e-4 for sums over rows), 16-bit storage one rounding. */
#include "contract.h"
#include "norm_rows.h"
#include "op_list.h"

static int32_t check_sizes(const char *op, const krait_call *call, int64_t R, int64_t M) {
  KR_TRY(kr_need_flags(op, call, KRAIT_NORM_RMS));
  KR_TRY(kr_need_size(op, "R", R, 0, INT64_MAX));
  return kr_need_size(op, "M", M, 1, INT64_MAX);
}

static int32_t check_args(const void *args) {
  static const char op[] = "add_norm";
  const krait_add_norm_args *a = args;
  const int optional = KR_TYPE_ACTIVATION | KR_OPTIONAL;
  KR_TRY(check_sizes(op, &a->call, a->R, a->M));
  KR_TRY(kr_need(op, "x", &a->x, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "x1", &a->x1, optional));
  KR_TRY(kr_need(op, "residual", &a->residual, optional));
  KR_TRY(kr_need(op, "rowscale", &a->rowscale, optional));
  KR_TRY(kr_need(op, "weight", &a->weight, optional));
  KR_TRY(kr_need(op, "bias", &a->bias, optional));
  KR_TRY(kr_need(op, "weight1", &a->weight1, optional));
  KR_TRY(kr_need(op, "bias1", &a->bias1, optional));
  KR_TRY(kr_need(op, "out", &a->out, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "out1", &a->out1, optional));
  KR_TRY(kr_need(op, "residual_out", &a->residual_out, optional));
  if (!kr_has(&a->weight1)) {
    KR_TRY(kr_need_absent(op, "out1", &a->out1, "without weight1"));
    KR_TRY(kr_need_absent(op, "bias1", &a->bias1, "without weight1"));
  }
  KR_TRY(kr_need_same_place(op, "out", &a->out, "x", &a->x, 2));
  return kr_need_same_place(op, "residual_out", &a->residual_out, "residual", &a->residual, 2);
}

static int32_t check_bwd_args(const void *args) {
  static const char op[] = "add_norm_bwd";
  const krait_add_norm_bwd_args *a = args;
  const int optional = KR_TYPE_ACTIVATION | KR_OPTIONAL;
  KR_TRY(check_sizes(op, &a->call, a->R, a->M));
  KR_TRY(kr_need(op, "v", &a->v, KR_TYPE_ACTIVATION));
  const struct { const char *name; const krait_view *view; } views[] = {
      {"rowscale", &a->rowscale}, {"weight", &a->weight}, {"weight1", &a->weight1}, {"dout", &a->dout}, {"dout1", &a->dout1},
      {"dresidual_out", &a->dresidual_out}, {"dx", &a->dx}, {"dx1", &a->dx1}, {"dresidual", &a->dresidual},
      {"dweight", &a->dweight}, {"dbias", &a->dbias}, {"dweight1", &a->dweight1}, {"dbias1", &a->dbias1}};
  for (size_t i = 0; i < sizeof views / sizeof *views; i++) KR_TRY(kr_need(op, views[i].name, views[i].view, optional));
  if (kr_has(&a->weight1)) return KRAIT_OK;
  KR_TRY(kr_need_absent(op, "dout1", &a->dout1, "without weight1"));
  KR_TRY(kr_need_absent(op, "dweight1", &a->dweight1, "without weight1"));
  return kr_need_absent(op, "dbias1", &a->dbias1, "without weight1");
}

static void count_cost(const void *args, kr_cost *cost) {
  const krait_add_norm_args *a = args;
  double values = (double)a->R * (double)a->M;
  *cost = (kr_cost){.flops = values * 6, .bytes = values * 2 * (double)krait_dtype_bytes(a->x.dtype)};
  if (kr_has(&a->residual)) cost->bytes += values * (double)krait_dtype_bytes(a->residual.dtype);
  if (kr_has(&a->residual_out)) cost->bytes += values * (double)krait_dtype_bytes(a->residual_out.dtype);
}

static void count_bwd_cost(const void *args, kr_cost *cost) {
  const krait_add_norm_bwd_args *a = args;
  double values = (double)a->R * (double)a->M;
  *cost = (kr_cost){.flops = values * 14, .bytes = values * 3 * (double)krait_dtype_bytes(a->v.dtype)};
}

static const kr_row rows[] = {
    KR_CUDA_ROWS(add_norm)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_add_norm_##isa, kr_add_norm_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_add_norm_ref, NULL},
};

static const kr_row bwd_rows[] = {
    KR_CUDA_ROWS(add_norm_bwd)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, NULL, kr_add_norm_bwd_##isa, kr_add_norm_bwd_scratch_##isa},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_add_norm_bwd_ref, kr_add_norm_bwd_ref_scratch},
};

const kr_op kr_op_add_norm = {"add_norm", sizeof(krait_add_norm_args), KR_ROWS(rows), check_args, count_cost, kr_add_norm_case, 200, kr_add_norm_views};
const kr_op kr_op_add_norm_bwd = {"add_norm_bwd", sizeof(krait_add_norm_bwd_args), KR_ROWS(bwd_rows), check_bwd_args, count_bwd_cost, kr_add_norm_bwd_case, 200, kr_add_norm_bwd_views};

KR_OP_FUNCTIONS(add_norm)
KR_OP_FUNCTIONS(add_norm_bwd)

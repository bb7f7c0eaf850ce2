/* mamba_inner.c: contracts, costs and rows of the inside of a Mamba-1 block and of its gradient. The equation is in
 * mamba_inner_ref.c. Bound: float32 1e-5 of the output's scale, 16-bit storage one rounding. */
#include "contract.h"
#include "mamba_inner_chain.h"
#include "op_list.h"

enum { FLAGS = KRAIT_SCAN_SOFTPLUS | KRAIT_SCAN_B_CONSTANT | KRAIT_SCAN_C_CONSTANT | KRAIT_SCAN_REVERSE | KRAIT_SCAN_BOTH, OPTIONAL = KR_TYPE_ACTIVATION | KR_OPTIONAL };

static int32_t check_sizes(const char *op, const krait_mamba_inner_args *a) {
  KR_TRY(kr_need_flags(op, &a->call, FLAGS));
  KR_TRY(kr_need_size(op, "B", a->B, 0, INT64_MAX));
  KR_TRY(kr_need_size(op, "D", a->D, 1, INT64_MAX));
  KR_TRY(kr_need_size(op, "L", a->L, 0, INT64_MAX));
  KR_TRY(kr_need_size(op, "N", a->N, 1, 512));
  KR_TRY(kr_need_size(op, "W", a->W, 1, INT32_MAX));
  KR_TRY(kr_need_size(op, "R", a->R, 1, INT64_MAX));
  return kr_need_size(op, "M", a->M, 0, INT64_MAX);
}

/* B or C: given, constant or not; or projected, with bias and norm. */
static int32_t check_parameter(const char *op, const krait_mamba_inner_args *a, const char *const *names, const krait_view *given, uint32_t constant, const krait_view *bias, const krait_view *norm) {
  const int is_complex = a->A.dtype == KRAIT_C64, is_constant = (a->call.flags & constant) != 0;
  KR_CHECK(kr_has(given) || !is_constant, KRAIT_ERR_ARGUMENT, "%s: %s must be given where it is constant", op, names[0]);
  KR_TRY(kr_need(op, names[0], given, is_complex && is_constant ? KR_TYPE_C64 | KR_OPTIONAL : OPTIONAL));
  KR_TRY(kr_need(op, names[1], bias, OPTIONAL));
  KR_TRY(kr_need(op, names[2], norm, OPTIONAL));
  if (is_complex) KR_TRY(kr_need_absent(op, names[2], norm, "with complex A"));
  if (!kr_has(given)) return KRAIT_OK;
  KR_TRY(kr_need_absent(op, names[1], bias, "where that matrix is given"));
  return kr_need_absent(op, names[2], norm, "where that matrix is given");
}

static int32_t check_scan(const char *op, const krait_mamba_inner_args *a) {
  static const char *const B_names[] = {"Bmat", "B_proj_bias", "B_norm_weight"}, *const C_names[] = {"Cmat", "C_proj_bias", "C_norm_weight"};
  KR_TRY(kr_need(op, "A", &a->A, KR_TYPE_F32 | KR_TYPE_C64));
  if (a->call.flags & KRAIT_SCAN_BOTH) {
    KR_CHECK(!(a->call.flags & KRAIT_SCAN_REVERSE), KRAIT_ERR_ARGUMENT, "%s: KRAIT_SCAN_REVERSE cannot be set with KRAIT_SCAN_BOTH", op);
    KR_TRY(kr_need(op, "A_reverse", &a->A_reverse, KR_TYPE_F32 | KR_TYPE_C64));
    KR_TRY(kr_need_same_type(op, "A_reverse", &a->A_reverse, "A", &a->A));
  } else {
    KR_TRY(kr_need_absent(op, "A_reverse", &a->A_reverse, "without KRAIT_SCAN_BOTH"));
  }
  KR_TRY(check_parameter(op, a, B_names, &a->Bmat, KRAIT_SCAN_B_CONSTANT, &a->B_proj_bias, &a->B_norm_weight));
  KR_TRY(check_parameter(op, a, C_names, &a->Cmat, KRAIT_SCAN_C_CONSTANT, &a->C_proj_bias, &a->C_norm_weight));
  KR_TRY(kr_need(op, "Dvec", &a->Dvec, KR_TYPE_F32 | KR_OPTIONAL));
  return kr_need(op, "delta_bias", &a->delta_bias, KR_TYPE_F32 | KR_OPTIONAL);
}

static int32_t check_inputs(const char *op, const krait_mamba_inner_args *a) {
  KR_TRY(check_sizes(op, a));
  KR_TRY(kr_need(op, "xz", &a->xz, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "conv_weight", &a->conv_weight, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "conv_bias", &a->conv_bias, OPTIONAL));
  KR_TRY(kr_need(op, "x_proj_weight", &a->x_proj_weight, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "dt_proj_weight", &a->dt_proj_weight, KR_TYPE_ACTIVATION));
  KR_TRY(kr_need(op, "dt_norm_weight", &a->dt_norm_weight, OPTIONAL));
  KR_TRY(check_scan(op, a));
  if (a->M) {
    KR_TRY(kr_need(op, "out_proj_weight", &a->out_proj_weight, KR_TYPE_ACTIVATION));
    return kr_need(op, "out_proj_bias", &a->out_proj_bias, OPTIONAL);
  }
  KR_TRY(kr_need_absent(op, "out_proj_weight", &a->out_proj_weight, "with M == 0"));
  return kr_need_absent(op, "out_proj_bias", &a->out_proj_bias, "with M == 0");
}

static int32_t check_args(const void *args) {
  const krait_mamba_inner_args *a = args;
  KR_TRY(check_inputs("mamba_inner", a));
  return kr_need("mamba_inner", "out", &a->out, KR_TYPE_ACTIVATION);
}

static int32_t check_bwd_args(const void *args) {
  static const char op[] = "mamba_inner_bwd";
  const krait_mamba_inner_bwd_args *g = args;
  const krait_mamba_inner_args a = kr_inner_forward_of(g);
  KR_TRY(check_inputs(op, &a));
  KR_TRY(kr_need(op, "dout", &g->dout, KR_TYPE_ACTIVATION));
  const int is_complex = a.A.dtype == KRAIT_C64, state = 1 << a.A.dtype | KR_OPTIONAL, f32 = KR_TYPE_F32 | KR_OPTIONAL;
  const int for_B = is_complex && a.call.flags & KRAIT_SCAN_B_CONSTANT ? state : OPTIONAL, for_C = is_complex && a.call.flags & KRAIT_SCAN_C_CONSTANT ? state : OPTIONAL;
  /* a gradient may be asked for only where its input is given, if that is named */
  const struct { const char *name; const krait_view *view; int types; const krait_view *input; const char *unless; } outputs[] = {
      {"dxz", &g->dxz, OPTIONAL, NULL, NULL}, {"dconv_weight", &g->dconv_weight, OPTIONAL, NULL, NULL}, {"dconv_bias", &g->dconv_bias, OPTIONAL, NULL, NULL},
      {"dx_proj_weight", &g->dx_proj_weight, OPTIONAL, NULL, NULL}, {"ddt_proj_weight", &g->ddt_proj_weight, OPTIONAL, NULL, NULL},
      {"dout_proj_weight", &g->dout_proj_weight, OPTIONAL, &a.out_proj_weight, "with M == 0"}, {"dout_proj_bias", &g->dout_proj_bias, OPTIONAL, &a.out_proj_weight, "with M == 0"},
      {"dA", &g->dA, state, NULL, NULL}, {"dA_reverse", &g->dA_reverse, state, &a.A_reverse, "without KRAIT_SCAN_BOTH"},
      {"dB", &g->dB, for_B, &a.Bmat, "without Bmat"}, {"dC", &g->dC, for_C, &a.Cmat, "without Cmat"},
      {"dDvec", &g->dDvec, f32, NULL, NULL}, {"ddelta_bias", &g->ddelta_bias, f32, NULL, NULL},
      {"dB_proj_bias", &g->dB_proj_bias, OPTIONAL, NULL, NULL}, {"dC_proj_bias", &g->dC_proj_bias, OPTIONAL, NULL, NULL},
      {"ddt_norm_weight", &g->ddt_norm_weight, OPTIONAL, &a.dt_norm_weight, "without dt_norm_weight"},
      {"dB_norm_weight", &g->dB_norm_weight, OPTIONAL, &a.B_norm_weight, "without B_norm_weight"},
      {"dC_norm_weight", &g->dC_norm_weight, OPTIONAL, &a.C_norm_weight, "without C_norm_weight"}};
  for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
    KR_TRY(kr_need(op, outputs[i].name, outputs[i].view, outputs[i].types));
    if (outputs[i].input && !kr_has(outputs[i].input)) KR_TRY(kr_need_absent(op, outputs[i].name, outputs[i].view, outputs[i].unless));
  }
  if (kr_has(&a.Bmat)) KR_TRY(kr_need_absent(op, "dB_proj_bias", &g->dB_proj_bias, "with Bmat"));
  return kr_has(&a.Cmat) ? kr_need_absent(op, "dC_proj_bias", &g->dC_proj_bias, "with Cmat") : KRAIT_OK;
}

/* Of one direction of the network; the gradient does the products three times in all. */
static kr_cost cost_of(const krait_mamba_inner_args *a, double products, double scan_flops) {
  double rows = (double)a->B * (double)a->L, D = (double)a->D, columns = (double)(a->R + kr_inner_columns(a, &a->Bmat) + kr_inner_columns(a, &a->Cmat));
  double directions = a->call.flags & KRAIT_SCAN_BOTH ? 2 : 1, softplus = a->call.flags & KRAIT_SCAN_SOFTPLUS ? 1 : 0;
  double weights = 2 * D * (columns + (double)a->R + (double)a->M), element = (double)krait_dtype_bytes(a->xz.dtype);
  return (kr_cost){.exps = rows * D * ((double)a->N * directions + softplus + 2),
                   .flops = rows * (products * weights + D * ((double)a->N * directions * scan_flops + 2 * (double)a->W)),
                   .bytes = rows * element * (2 * D + (double)(a->M ? a->M : a->D)) + weights / 2 * (double)krait_dtype_bytes(a->x_proj_weight.dtype)};
}

static void count_cost(const void *args, kr_cost *cost) { *cost = cost_of(args, 1, 6); }

static void count_bwd_cost(const void *args, kr_cost *cost) {
  const krait_mamba_inner_args a = kr_inner_forward_of(args);
  *cost = cost_of(&a, 3, 20);
  cost->bytes *= 2;
}

static const kr_row rows[] = {
    {"composed", KRAIT_CAP_CPU, NULL, kr_mamba_inner_composed, kr_mamba_inner_composed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_mamba_inner_ref, kr_mamba_inner_ref_scratch},
};

static const kr_row bwd_rows[] = {
    {"composed", KRAIT_CAP_CPU, NULL, kr_mamba_inner_bwd_composed, kr_mamba_inner_bwd_composed_scratch},
    {"ref", KRAIT_CAP_CPU, NULL, kr_mamba_inner_bwd_ref, kr_mamba_inner_bwd_ref_scratch},
};

const kr_op kr_op_mamba_inner = {"mamba_inner", sizeof(krait_mamba_inner_args), KR_ROWS(rows), check_args, count_cost, kr_mamba_inner_case, 200, kr_mamba_inner_views};
const kr_op kr_op_mamba_inner_bwd = {"mamba_inner_bwd", sizeof(krait_mamba_inner_bwd_args), KR_ROWS(bwd_rows), check_bwd_args, count_bwd_cost, kr_mamba_inner_bwd_case, 150, kr_mamba_inner_bwd_views};

KR_OP_FUNCTIONS(mamba_inner)
KR_OP_FUNCTIONS(mamba_inner_bwd)

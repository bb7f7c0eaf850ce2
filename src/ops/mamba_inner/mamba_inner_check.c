/* mamba_inner_check.c: random calls of mamba_inner and of its gradient: every option, type and stride. */
#include "check.h"
#include "mamba_inner_chain.h"
#include "op_list.h"

static void give(kr_case *c, krait_view *v, const char *name, int32_t dtype, double mean, double deviation, size_t n_dims, const int64_t *shape) {
  kr_case_view(c, v, name, KR_IN, dtype, (int)n_dims, shape);
  kr_case_fill_normal(c, v, mean, deviation);
}

static int maybe(kr_case *c, krait_view *v, const char *name, int32_t dtype, double mean, double deviation, int64_t n) {
  int given = kr_case_chance(c, 0.4);
  if (given) give(c, v, name, dtype, mean, deviation, KR_SHAPE(n));
  return given;
}

static void give_parameter(kr_case *c, krait_mamba_inner_args *a, krait_view *v, const char *name, uint32_t constant, int32_t dtype) {
  int is_complex = a->A.dtype == KRAIT_C64;
  if (kr_case_chance(c, 0.5)) {
    a->call.flags |= constant;
    give(c, v, name, is_complex ? KRAIT_C64 : KRAIT_F32, 0, 1, KR_SHAPE(a->D, a->N));
  } else {
    give(c, v, name, dtype, 0, 1, KR_SHAPE(a->B, 1, a->N, a->L * (is_complex ? 2 : 1)));
  }
}

static void choose_sizes(kr_case *c, krait_mamba_inner_args *a, int64_t index) {
  a->call.flags = kr_case_chance(c, 0.7) ? KRAIT_SCAN_SOFTPLUS : 0;
  if (kr_case_chance(c, 0.15)) a->call.flags |= KRAIT_SCAN_BOTH;
  else if (kr_case_chance(c, 0.2)) a->call.flags |= KRAIT_SCAN_REVERSE;
  a->B = kr_case_int(c, 1, 2);
  a->D = kr_case_edge(c, 40);
  a->L = kr_case_edge(c, index % 20 == 0 ? 200 : 40);
  a->N = kr_case_edge(c, 17);
  a->W = kr_case_int(c, 1, 5);
  a->R = kr_case_edge(c, 9);
  a->M = kr_case_chance(c, 0.7) ? kr_case_edge(c, 33) : 0;
  a->eps = 1e-3f;
}

/* Weights small enough that no step makes the state grow: exp(delta A) stays below 1 by softplus, or by A near 0. */
static void give_inputs(kr_case *c, krait_mamba_inner_args *a, int64_t index) {
  const int32_t dtype = kr_case_activation_dtype(c), weight = kr_case_chance(c, 0.6) ? dtype : KRAIT_F32, state = index % 8 == 3 ? KRAIT_C64 : KRAIT_F32;
  const int softplus = (a->call.flags & KRAIT_SCAN_SOFTPLUS) != 0;
  const double D = (double)a->D, slow = softplus ? -0.5 : -0.05;
  give(c, &a->xz, "xz", dtype, 0, 1, KR_SHAPE(a->B, 2 * a->D, a->L));
  give(c, &a->conv_weight, "conv_weight", weight, 0, 0.5, KR_SHAPE(a->D, a->W));
  maybe(c, &a->conv_bias, "conv_bias", weight, 0, 0.5, a->D);
  kr_case_view(c, &a->A, "A", KR_IN, state, KR_SHAPE(a->D, a->N));
  kr_case_fill_uniform(c, &a->A, 2 * slow, slow * 0.1);
  if (a->call.flags & KRAIT_SCAN_BOTH) {
    kr_case_view(c, &a->A_reverse, "A_reverse", KR_IN, state, KR_SHAPE(a->D, a->N));
    kr_case_fill_uniform(c, &a->A_reverse, 2 * slow, slow * 0.1);
  }
  if (kr_case_chance(c, 0.2)) give_parameter(c, a, &a->Bmat, "Bmat", KRAIT_SCAN_B_CONSTANT, dtype);
  if (kr_case_chance(c, 0.2)) give_parameter(c, a, &a->Cmat, "Cmat", KRAIT_SCAN_C_CONSTANT, dtype);
  const int64_t B_columns = kr_inner_columns(a, &a->Bmat), C_columns = kr_inner_columns(a, &a->Cmat);
  give(c, &a->x_proj_weight, "x_proj_weight", weight, 0, 1 / (1 + D * 0.2), KR_SHAPE(a->R + B_columns + C_columns, a->D));
  give(c, &a->dt_proj_weight, "dt_proj_weight", weight, 0, softplus ? 0.5 : 0.1, KR_SHAPE(a->D, a->R));
  if (a->M) {
    give(c, &a->out_proj_weight, "out_proj_weight", weight, 0, 1 / (1 + D * 0.2), KR_SHAPE(a->M, a->D));
    maybe(c, &a->out_proj_bias, "out_proj_bias", weight, 0, 0.5, a->M);
  }
  maybe(c, &a->Dvec, "Dvec", KRAIT_F32, 1, 0.5, a->D);
  if (softplus) maybe(c, &a->delta_bias, "delta_bias", KRAIT_F32, -1, 0.5, a->D);
  if (B_columns) maybe(c, &a->B_proj_bias, "B_proj_bias", weight, 0, 1, B_columns);
  if (C_columns) maybe(c, &a->C_proj_bias, "C_proj_bias", weight, 0, 1, C_columns);
  /* A norm over one or two values has next to no gradient: what is left is rounding. */
  if (softplus && a->D > 2 && kr_case_chance(c, 0.3)) give(c, &a->dt_norm_weight, "dt_norm_weight", weight, 0.5, 0.2, KR_SHAPE(a->D));
  if (B_columns > 2 && state == KRAIT_F32) maybe(c, &a->B_norm_weight, "B_norm_weight", weight, 1, 0.3, B_columns);
  if (C_columns > 2 && state == KRAIT_F32) maybe(c, &a->C_norm_weight, "C_norm_weight", weight, 1, 0.3, C_columns);
}

int32_t kr_mamba_inner_case(kr_case *c, int64_t index) {
  krait_mamba_inner_args *a = (krait_mamba_inner_args *)c->args;
  choose_sizes(c, a, index);
  give_inputs(c, a, index);
  if (a->M) kr_case_view(c, &a->out, "out", KR_OUT, kr_case_chance(c, 0.8) ? a->xz.dtype : KRAIT_F32, KR_SHAPE(a->B, a->L, a->M));
  else kr_case_view(c, &a->out, "out", KR_OUT, a->xz.dtype, KR_SHAPE(a->B, a->D, a->L));
  return KRAIT_OK;
}

static void ask(kr_case *c, krait_view *v, const char *name, int32_t dtype, size_t n_dims, const int64_t *shape) {
  if (kr_case_chance(c, 0.1)) return;
  kr_case_view(c, v, name, KR_OUT, dtype, (int)n_dims, shape);
}

static void ask_parameter(kr_case *c, const krait_mamba_inner_args *a, krait_view *v, const char *name, const krait_view *given, uint32_t constant) {
  if (!given->data) return;
  if (a->call.flags & constant) ask(c, v, name, given->dtype, KR_SHAPE(a->D, a->N));
  else ask(c, v, name, given->dtype, KR_SHAPE(a->B, 1, a->N, a->L * (a->A.dtype == KRAIT_C64 ? 2 : 1)));
}

static void ask_vector(kr_case *c, krait_view *v, const char *name, const krait_view *input, int64_t n) {
  if (input->data) ask(c, v, name, input->dtype, KR_SHAPE(n));
}

int32_t kr_mamba_inner_bwd_case(kr_case *c, int64_t index) {
  krait_mamba_inner_bwd_args *g = (krait_mamba_inner_bwd_args *)c->args;
  krait_mamba_inner_args *a = (krait_mamba_inner_args *)c->args; /* the head is the same */
  choose_sizes(c, a, index);
  give_inputs(c, a, index);
  const int64_t B_columns = kr_inner_columns(a, &a->Bmat), C_columns = kr_inner_columns(a, &a->Cmat);
  if (a->M) give(c, &g->dout, "dout", a->xz.dtype, 0, 1, KR_SHAPE(a->B, a->L, a->M));
  else give(c, &g->dout, "dout", a->xz.dtype, 0, 1, KR_SHAPE(a->B, a->D, a->L));
  ask(c, &g->dxz, "dxz", a->xz.dtype, KR_SHAPE(a->B, 2 * a->D, a->L));
  ask(c, &g->dconv_weight, "dconv_weight", a->conv_weight.dtype, KR_SHAPE(a->D, a->W));
  ask_vector(c, &g->dconv_bias, "dconv_bias", &a->conv_bias, a->D);
  ask(c, &g->dx_proj_weight, "dx_proj_weight", a->x_proj_weight.dtype, KR_SHAPE(a->R + B_columns + C_columns, a->D));
  ask(c, &g->ddt_proj_weight, "ddt_proj_weight", a->dt_proj_weight.dtype, KR_SHAPE(a->D, a->R));
  if (a->M) ask(c, &g->dout_proj_weight, "dout_proj_weight", a->out_proj_weight.dtype, KR_SHAPE(a->M, a->D));
  ask_vector(c, &g->dout_proj_bias, "dout_proj_bias", &a->out_proj_bias, a->M);
  ask(c, &g->dA, "dA", a->A.dtype, KR_SHAPE(a->D, a->N));
  if (a->A_reverse.data) ask(c, &g->dA_reverse, "dA_reverse", a->A.dtype, KR_SHAPE(a->D, a->N));
  ask_parameter(c, a, &g->dB, "dB", &a->Bmat, KRAIT_SCAN_B_CONSTANT);
  ask_parameter(c, a, &g->dC, "dC", &a->Cmat, KRAIT_SCAN_C_CONSTANT);
  ask_vector(c, &g->dDvec, "dDvec", &a->Dvec, a->D);
  ask_vector(c, &g->ddelta_bias, "ddelta_bias", &a->delta_bias, a->D);
  ask_vector(c, &g->dB_proj_bias, "dB_proj_bias", &a->B_proj_bias, B_columns);
  ask_vector(c, &g->dC_proj_bias, "dC_proj_bias", &a->C_proj_bias, C_columns);
  ask_vector(c, &g->ddt_norm_weight, "ddt_norm_weight", &a->dt_norm_weight, a->D);
  ask_vector(c, &g->dB_norm_weight, "dB_norm_weight", &a->B_norm_weight, B_columns);
  ask_vector(c, &g->dC_norm_weight, "dC_norm_weight", &a->C_norm_weight, C_columns);
  return KRAIT_OK;
}

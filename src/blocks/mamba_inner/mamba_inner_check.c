/* mamba_inner_check.c: random calls of mamba_inner and its gradient: every option, type and stride. */
#include "check.h"
#include "mamba_inner_chain.h"
#include "block_ops.h"

static void choose_mamba_inner_sizes(kr_case *c, kr_mamba_inner_args *a, int64_t index) {
  if (kr_case_chance(c, 0.15)) a->call.flags |= KRAIT_SCAN_BOTH;
  else if (kr_case_chance(c, 0.2)) a->call.flags |= KRAIT_SCAN_REVERSE;
  a->B = kr_case_int(c, 1, 2);
  a->D = kr_case_edge(c, 40);
  a->L = kr_case_edge(c, index % 20 == 0 ? 200 : 40);
  a->N = kr_case_edge(c, 17);
  a->W = kr_case_int(c, 1, 5);
  a->R = kr_case_edge(c, 9);
  a->M = kr_case_chance(c, 0.7) ? kr_case_edge(c, 33) : 0;
}

/* Keeps the state from growing: exp(delta A) stays below 1 by softplus, or by A near 0 and small weights. */
static void give_decays(kr_case *c, const kr_mamba_inner_args *a) {
  const double slow = a->call.flags & KRAIT_SCAN_SOFTPLUS ? -0.5 : -0.05;
  kr_case_fill_uniform(c, kr_case_give(c, "A"), 2 * slow, slow * 0.1);
  if (a->call.flags & KRAIT_SCAN_BOTH) kr_case_fill_uniform(c, kr_case_give(c, "A_reverse"), 2 * slow, slow * 0.1);
}

static void give_mamba_inner_weights(kr_case *c, const kr_mamba_inner_args *a) {
  const int softplus = (a->call.flags & KRAIT_SCAN_SOFTPLUS) != 0;
  const double deviation = 1 / (1 + (double)a->D * 0.2);
  kr_case_fill_normal(c, kr_case_give(c, "x_proj_weight"), 0, deviation);
  kr_case_fill_normal(c, kr_case_give(c, "dt_proj_weight"), 0, softplus ? 0.5 : 0.1);
  if (a->M) kr_case_fill_normal(c, kr_case_give(c, "out_proj_weight"), 0, deviation);
}

/* B or C: projected, or given, constant or not. */
static void choose_parameter(kr_case *c, kr_mamba_inner_args *a, const char *name, uint32_t constant) {
  if (!kr_case_chance(c, 0.2)) return;
  if (kr_case_chance(c, 0.5)) a->call.flags |= constant;
  kr_case_give(c, name);
}

/* On a GPU intermediates are rounded to 16 bits; a parameter's gradient sums those errors over all tokens. */
static void set_mamba_inner_bounds(kr_case *c, const kr_mamba_inner_args *a) {
  if (!kr_inner_is_short(a)) return;
  const double rtol = c->dtype == KRAIT_F16 ? 1e-2 : 8e-2, atol = c->dtype == KRAIT_F16 ? 1e-4 : 1e-3;
  for (int i = 0; i < c->sig->n_tensors; i++) {
    const kr_view *view = kr_sig_view(c->sig, a, i);
    if (c->sig->tensors[i].role & KR_OUT && view->data) kr_case_bound(c, view, rtol, atol);
  }
}

int32_t kr_mamba_inner_case(kr_case *c, int64_t index) {
  kr_mamba_inner_args *a = (kr_mamba_inner_args *)c->args; /* the gradient's args start alike */
  choose_mamba_inner_sizes(c, a, index);
  c->is_complex = index % 8 == 3;
  give_decays(c, a); /* first: the other complex inputs follow A */
  choose_parameter(c, a, "Bmat", KRAIT_SCAN_B_CONSTANT);
  choose_parameter(c, a, "Cmat", KRAIT_SCAN_C_CONSTANT);
  give_mamba_inner_weights(c, a);
  if (!(a->call.flags & KRAIT_SCAN_SOFTPLUS)) kr_case_leave_out(c, "delta_bias");
  /* A norm over one or two values has almost no gradient: only rounding would remain. */
  if (!(a->call.flags & KRAIT_SCAN_SOFTPLUS) || a->D <= 2) kr_case_leave_out(c, "dt_norm_weight");
  if (a->N <= 2) kr_case_leave_out(c, "B_norm_weight"), kr_case_leave_out(c, "C_norm_weight");
  kr_case_give_rest(c);
  set_mamba_inner_bounds(c, a);
  return KRAIT_OK;
}

/* mamba3_inner_check.c: random calls of a Mamba-3 block and its gradient: one input and output or several ranks, packed
 * sequences, states, every type and stride. Saved forward values that the gradient may read come from the reference. */
#include <string.h>

#include "alloc.h"
#include "block_ops.h"
#include "check.h"
#include "mamba3_inner_impls.h"
#include "status.h"
#include "view.h"

static void choose_mamba3_inner_sizes(kr_case *c, kr_mamba3_inner_args *a, int64_t index) {
  const int usual = index % 4 == 1 && !c->is_exact; /* for the kernels specialised for common sizes: aligned rows */
  const int small = c->is_exact;
  c->contiguous = usual;
  a->G = kr_case_chance(c, 0.3) ? 2 : 1, a->H = a->G * kr_case_int(c, 1, 2);
  a->B = kr_case_int(c, 1, 2), a->L = kr_case_edge(c, small ? 4 : index % 10 == 1 ? 130 : 40);
  a->R = kr_case_chance(c, 0.6) ? 1 : kr_case_int(c, 1, small ? 2 : 4);
  a->V = a->R * a->G;
  a->P = usual ? 8 * kr_case_int(c, 1, 4) : kr_case_edge(c, small ? 3 : 17);
  a->N = usual ? 16 << kr_case_int(c, 0, 2) : 2 * kr_case_edge(c, small ? 2 : 9);
  a->M = usual ? a->N / (kr_case_chance(c, 0.5) ? 2 : 4) : kr_case_int(c, 1, a->N / 2);
  if (usual) a->H = 8;
  a->K = kr_case_chance(c, 0.7) ? usual ? 8 * kr_case_int(c, 1, 8) : kr_case_edge(c, small ? 5 : 33) : 0;
  a->D = kr_case_chance(c, 0.7) ? usual ? 8 * kr_case_int(c, 1, 8) : kr_case_edge(c, small ? 5 : 33) : 0;
}

/* Norms over few values near zero multiply their errors by 1 / sqrt(eps), and bend too much for differences. */
static void choose_mamba3_inner_fields(kr_case *c, kr_mamba3_inner_args *a) {
  a->A_floor = c->is_exact || kr_case_chance(c, 0.7) ? 1e-4f : 0.87f;
  a->BC_eps = a->eps = c->is_exact ? 0.5f : (float)kr_case_uniform(c, 0.05, 1);
}

static void choose_mamba3_inner_tensors(kr_case *c, kr_mamba3_inner_args *a) {
  static const char *const states[] = {"initial_angles", "initial_states", "initial_B", "initial_x"},
                           *const ends[2][4] = {{"final_angles", "final_states", "final_B", "final_x"},
                                                {"dfinal_angles", "dfinal_states", "dfinal_B", "dfinal_x"}};
  const int is_packed = kr_case_chance(c, 0.3), has_states = kr_case_chance(c, 0.3), has_ends = kr_case_chance(c, 0.4);
  if (is_packed) {
    a->B = 1, a->S = kr_case_int(c, 1, 4);
    kr_case_give(c, "cu_seqlens");
  }
  if (a->R > 1)
    kr_case_give(c, "mimo_o");
  else if (kr_case_chance(c, 0.7))
    kr_case_leave_out(c, "mimo_x"), kr_case_leave_out(c, "mimo_z"), kr_case_leave_out(c, "mimo_o");
  for (int i = 0; i < 4; i++) {
    if (has_states)
      kr_case_give(c, states[i]);
    else
      kr_case_leave_out(c, states[i]);
    if (!has_ends) kr_case_leave_out(c, ends[c->sig->forward != NULL][i]);
  }
}

/* Weights scaled so that long dot products keep their operands' magnitude; angles stay well below a turn where
 * differences are taken. */
static void give_mamba3_inner_weights(kr_case *c, const kr_mamba3_inner_args *a) {
  if (a->K) kr_case_fill_normal(c, kr_case_give(c, "in_proj_weight"), 0, 1 / (1 + (double)a->K * 0.2));
  if (a->D) kr_case_fill_normal(c, kr_case_give(c, "out_proj_weight"), 0, 1 / (1 + (double)(a->H * a->P) * 0.2));
}

/* Angles' gradients are sums over all later tokens: in 16 bits mamba3's bound of them is 16 / 3 of that of the rest,
 * and columns of dx, or rows of din_proj_weight, are these; in float32 it is that of all parameters. */
static int is_of_angles(const char *name, int is_float) {
  return strstr(name, "angles") || (!is_float && (!strcmp(name, "dx") || !strcmp(name, "din_proj_weight")));
}

/* Those of mamba3 (mamba3_check.c), through another product and norm: parameters' gradients sum rounding errors over
 * all tokens. */
static void set_mamba3_inner_bounds(kr_case *c) {
  const double half = c->dtype != KRAIT_BF16 ? 1e-2 : 8e-2, atol = c->dtype == KRAIT_F16 ? 1e-4 : 1e-3;
  for (int i = 0; i < c->sig->n_tensors; i++) {
    const kr_view *view = kr_sig_view(c->sig, c->args, i);
    if (!(c->sig->tensors[i].role & KR_OUT) || !view->data) continue;
    const char *const name = c->sig->tensors[i].name;
    const double share = is_of_angles(name, c->dtype == KRAIT_F32) ? 4 : 1;
    if (c->dtype == KRAIT_F32)
      kr_case_bound(c, view, view->dtype == KRAIT_F32 ? share * (c->sig->forward ? 1e-4 : 2e-5) : 1.6e-2, 1e-6);
    else
      kr_case_bound(c, view, share * (c->sig->forward ? 2 * half : half), atol);
  }
}

static void draw_mamba3_inner(kr_case *c, int64_t index) {
  kr_mamba3_inner_args *a = (kr_mamba3_inner_args *)c->args; /* the gradient's args have the same prefix */
  choose_mamba3_inner_sizes(c, a, index);
  choose_mamba3_inner_fields(c, a);
  choose_mamba3_inner_tensors(c, a);
  kr_case_give(c, "x");
  give_mamba3_inner_weights(c, a);
  kr_case_give_rest(c);
  set_mamba3_inner_bounds(c);
}

int32_t kr_mamba3_inner_case(kr_case *c, int64_t index) {
  draw_mamba3_inner(c, index);
  return KRAIT_OK;
}

static int32_t make_kept_of_mamba3(const kr_mamba3_inner_bwd_args *d) {
  kr_mamba3_inner_args a;
  memset(&a, 0, sizeof a);
  memcpy(&a, d, offsetof(kr_mamba3_inner_args, out));
  a.call = (kr_call){.size = sizeof a, .flags = d->call.flags};
  a.columns = d->columns, a.BC = d->BC, a.dt = d->dt, a.log_decay = d->log_decay, a.y = d->y;
  const int64_t columns = a.D ? a.D : a.H * a.P;
  a.out = (kr_view){.data = kr_alloc((size_t)(a.B * a.L * columns) * sizeof(double) + 1),
                    .stride = {a.L * columns, columns, 1},
                    .dtype = KRAIT_F32};
  a.call.scratch_bytes = kr_mamba3_inner_ref_scratch(NULL, &a);
  a.call.scratch = kr_alloc(a.call.scratch_bytes + 1);
  const int32_t status = a.out.data && a.call.scratch ? kr_mamba3_inner_ref(NULL, &a)
                                                      : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a case");
  kr_free(a.out.data);
  kr_free(a.call.scratch);
  return status;
}

int32_t kr_mamba3_inner_bwd_case(kr_case *c, int64_t index) {
  draw_mamba3_inner(c, index);
  KR_TRY(c->status);
  return make_kept_of_mamba3((const kr_mamba3_inner_bwd_args *)c->args);
}

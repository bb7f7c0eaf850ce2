/* mamba2_inner_check.c: random calls of a Mamba-2 block and its gradient: every option, type and stride. Saved forward
 * values that the gradient may read come from the reference. */
#include <string.h>

#include "alloc.h"
#include "check.h"
#include "mamba2_inner_impls.h"
#include "block_ops.h"
#include "status.h"
#include "view.h"

static void choose_mamba2_inner_sizes(kr_case *c, kr_mamba2_inner_args *a, int64_t index) {
  const int usual = index % 4 == 1 && !c->is_exact; /* for the kernels specialised for common sizes: aligned rows */
  c->contiguous = usual;
  a->G = kr_case_chance(c, 0.3) ? 2 : 1, a->H = a->G * kr_case_int(c, 1, 2);
  a->B = kr_case_int(c, 1, 2),
  a->L = kr_case_edge(c, c->is_exact       ? 6
                         : index % 10 == 1 ? 200
                                           : 40),
  a->W = kr_case_int(c, 1, 4);
  a->P = usual ? 8 * kr_case_int(c, 1, 4) : kr_case_edge(c, c->is_exact ? 3 : 17),
  a->N = usual ? 8 * kr_case_int(c, 1, 4) : kr_case_edge(c, c->is_exact ? 4 : 17);
  if (usual) a->H = 8;
  a->K = kr_case_chance(c, 0.7) ? usual ? 8 * kr_case_int(c, 1, 8) : kr_case_edge(c, c->is_exact ? 5 : 33) : 0;
  a->F = kr_case_chance(c, 0.3) ? usual ? 8 * kr_case_int(c, 1, 4) : kr_case_edge(c, c->is_exact ? 4 : 17) : 0;
  a->M = kr_case_chance(c, 0.7) ? usual ? 8 * kr_case_int(c, 1, 8) : kr_case_edge(c, c->is_exact ? 5 : 33) : 0;
}

static void choose_mamba2_inner_steps(kr_case *c, kr_mamba2_inner_args *a) {
  a->dt_min = a->dt_max = 0;
  if (!kr_case_chance(c, 0.2) || c->is_exact) return;
  a->dt_min = (float)kr_case_uniform(c, 0, 0.3);
  if (kr_case_chance(c, 0.7)) a->dt_max = a->dt_min + (float)kr_case_uniform(c, 0.1, 0.5);
}

/* Weights scaled so that long dot products keep their operands' magnitude. */
static void give_mamba2_inner_weights(kr_case *c, const kr_mamba2_inner_args *a) {
  const double inner = (double)(a->F + a->H * a->P);
  if (a->K) kr_case_fill_normal(c, kr_case_give(c, "in_proj_weight"), 0, 1 / (1 + (double)a->K * 0.2));
  if (a->M) kr_case_fill_normal(c, kr_case_give(c, "out_proj_weight"), 0, 1 / (1 + inner * 0.2));
}

/* A norm over one or two values has a gradient near zero: only rounding error would remain. */
static void choose_norm(kr_case *c, kr_mamba2_inner_args *a) {
  if (a->H / a->G * a->P <= 2) kr_case_leave_out(c, "norm_weight");
  else if (kr_case_chance(c, 0.75)) kr_case_give(c, "norm_weight");
}

/* As for the SSD, whose tensor-core operands are 16-bit, or tf32, which has float16's digits; parameter gradients sum
 * rounding errors over all tokens. */
static void set_mamba2_inner_bounds(kr_case *c) {
  const int is_wide = c->dtype == KRAIT_F32 && !(((kr_call *)c->args)->flags & KRAIT_MAMBA2_TF32);
  const double half = c->dtype != KRAIT_BF16 ? 1e-2 : 8e-2, atol = c->dtype == KRAIT_F16 ? 1e-4 : 1e-3;
  for (int i = 0; i < c->sig->n_tensors; i++) {
    const kr_view *view = kr_sig_view(c->sig, c->args, i);
    if (!(c->sig->tensors[i].role & KR_OUT) || !view->data) continue;
    if (is_wide)
      kr_case_bound(c, view, view->dtype == KRAIT_F32 ? c->sig->forward ? 1e-4 : 2e-5 : 1.6e-2, 1e-6);
    else kr_case_bound(c, view, c->sig->forward ? 2 * half : half, atol);
  }
}

static void draw_mamba2_inner(kr_case *c, int64_t index) {
  kr_mamba2_inner_args *a = (kr_mamba2_inner_args *)c->args; /* the gradient's args have the same prefix */
  choose_mamba2_inner_sizes(c, a, index);
  choose_mamba2_inner_steps(c, a);
  kr_case_give(c, "x");
  give_mamba2_inner_weights(c, a);
  choose_norm(c, a);
  kr_case_give_rest(c);
  set_mamba2_inner_bounds(c);
}

int32_t kr_mamba2_inner_case(kr_case *c, int64_t index) {
  draw_mamba2_inner(c, index);
  return KRAIT_OK;
}

static int32_t make_kept(const kr_mamba2_inner_bwd_args *d) {
  kr_mamba2_inner_args a;
  memset(&a, 0, sizeof a);
  memcpy(&a, d, offsetof(kr_mamba2_inner_args, out));
  a.call = (kr_call){.size = sizeof a, .flags = d->call.flags};
  a.zxbcdt = d->zxbcdt, a.xBC = d->xBC, a.y = d->y, a.gated = d->gated;
  const int64_t columns = a.M ? a.M : a.F + a.H * a.P;
  a.out = (kr_view){.data = kr_alloc((size_t)(a.B * a.L * columns) * sizeof(double) + 1),
                       .stride = {a.L * columns, columns, 1},
                       .dtype = KRAIT_F32};
  a.call.scratch_bytes = kr_mamba2_inner_ref_scratch(NULL, &a);
  a.call.scratch = kr_alloc(a.call.scratch_bytes + 1);
  const int32_t status = a.out.data && a.call.scratch ? kr_mamba2_inner_ref(NULL, &a)
                                                      : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a case");
  kr_free(a.out.data);
  kr_free(a.call.scratch);
  return status;
}

int32_t kr_mamba2_inner_bwd_case(kr_case *c, int64_t index) {
  draw_mamba2_inner(c, index);
  KR_TRY(c->status);
  return make_kept((const kr_mamba2_inner_bwd_args *)c->args);
}

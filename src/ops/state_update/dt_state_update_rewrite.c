/* dt_state_update_rewrite.c: a product that computes time steps is merged into the scan's step that uses them. */
#include "gemm/gemm_plain.h"
#include "op_list.h"
#include "rewrite.h"
#include "state_update/dt_state_update_impls.h"

/* Without the dimension of the one head. */
static kr_view without_head(const kr_rewriter *w, kr_tensor t, int at) {
  kr_dims dims = w->can->dims(w, t);
  if (!t) return (kr_view){0};
  for (int i = at; i + 1 < dims.n; i++) dims.size[i] = dims.size[i + 1];
  dims.n--;
  return w->can->view(w, w->can->reshape(w, t, dims));
}

static int dt_in_update(const kr_rewriter *w) {
  if (w->op[0] != &kr_op_gemm || w->op[1] != &kr_op_state_update || !kr_gemm_is_plain(w->args[0])) return 0;
#define PRODUCT(field) KR_CALL_TENSOR(w, 0, gemm, field)
#define UPDATE(field) KR_CALL_TENSOR(w, 1, state_update, field)
  const kr_state_update_args *u = w->args[1];
  const kr_tensor dt = PRODUCT(out), A = PRODUCT(A), B = PRODUCT(Bmat);
  if (u->H != 1 || PRODUCT(bias) || PRODUCT(residual) ||
      ((const kr_gemm_args *)w->args[0])->activation != KRAIT_ACT_NONE || kr_rewrite_is_empty(w, dt) ||
      kr_rewrite_is_empty(w, A) || !w->can->passes(w, dt) || !w->can->share(w, UPDATE(dt), dt))
    return 0;
#define WITHOUT_HEAD(field, at) without_head(w, UPDATE(field), at)
  const kr_dt_state_update_args a = {
      .call.flags = u->call.flags,
      .B = u->B,
      .D = u->P,
      .N = u->N,
      .R = w->can->dims(w, A).size[1],
      .n_states = u->n_states,
      .state = WITHOUT_HEAD(state, 1),
      .x = WITHOUT_HEAD(x, 1),
      .r = w->can->view(w, A),
      .dt_weight = w->can->view(w, w->can->permute(w, B, (int[]){1, 0})),
      .A = WITHOUT_HEAD(A, 0),
      .Bmat = WITHOUT_HEAD(Bmat, 1),
      .Cmat = WITHOUT_HEAD(Cmat, 1),
      .Dvec = WITHOUT_HEAD(Dvec, 0),
      .dt_bias = WITHOUT_HEAD(dt_bias, 0),
      .z = WITHOUT_HEAD(z, 1),
      .state_batch_indices = w->can->view(w, UPDATE(state_batch_indices)),
      .out = WITHOUT_HEAD(out, 1)};
#undef WITHOUT_HEAD
#undef UPDATE
#undef PRODUCT
  return w->can->accepts(w, &kr_op_dt_state_update, &a) && w->can->replace(w, 1, &kr_op_dt_state_update, &a);
}

const kr_op_rewrite kr_dt_state_update_rewrites[] = {{"dt_in_update", dt_in_update}, {0}};

/* expert_route_check.c: random calls. Values are few, so that experts are often equal, and never nearly equal: a choice
 * must not depend on rounding. */
#include "check.h"
#include "lm_ops.h"
#include "view.h"

/* Multiples of a quarter; of an irrational step for a bias, whose sums with sigmoids then differ. */
static void fill_steps(kr_case *c, const kr_view *v, int64_t n, int64_t stride, int64_t least, int64_t most,
                       double step) {
  for (int64_t i = 0; v && v->data && i < n; i++) kr_put(v, i * stride, (double)kr_case_int(c, least, most) * step);
}

int32_t kr_expert_route_case(kr_case *c, int64_t index) {
  kr_expert_route_args *a = (kr_expert_route_args *)c->args;
  const int is_sigmoid = a->scores == KR_ROUTE_SIGMOID;
  a->T = kr_case_edge(c, 20);
  a->n_groups = is_sigmoid && index % 3 == 0 ? kr_case_int(c, 1, 4) : 1;
  a->best_groups = kr_case_int(c, 1, a->n_groups);
  a->E = a->n_groups * kr_case_edge(c, index % 8 == 0 ? 130 : 20);
  if (a->E > 512) a->E = 512 / a->n_groups * a->n_groups;
  a->K = kr_case_int(c, 1, a->E / a->n_groups * a->best_groups);
  if (a->K > 12) a->K = 12;
  const kr_view *x = kr_case_give(c, "x");
  /* sigmoid(x) + sigmoid(-x) is 1 for every x: sums of groups would be equal but for rounding */
  const int64_t least = a->n_groups > 1 ? 0 : -12;
  for (int64_t t = 0; t < a->T && x; t++)
    fill_steps(c, &(kr_view){.data = (char *)x->data + t * x->stride[0] * (int64_t)krait_dtype_bytes(x->dtype),
                             .dtype = x->dtype},
               a->E, x->stride[1], least, 12, 0.25);
  if (is_sigmoid && a->n_groups == 1 && index % 2) {
    const kr_view *bias = kr_case_give(c, "bias");
    if (bias) fill_steps(c, bias, a->E, bias->stride[0], -3, 3, 0.0371);
  }
  return KRAIT_OK;
}

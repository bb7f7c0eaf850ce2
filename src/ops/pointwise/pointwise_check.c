/* pointwise_check.c: sizes of random pointwise calls and sums over rows; some inputs are broadcast. */
#include "check.h"
#include "op_list.h"

/* Sometimes broadcast: stride 0 along a dimension. Each tensor has its own type. */
static void give(kr_case *c, const char *name, double chance) {
  if (!kr_case_chance(c, chance)) {
    kr_case_leave_out(c, name);
    return;
  }
  c->dtype = kr_case_activation_dtype(c);
  kr_view *v = kr_case_give(c, name);
  for (int d = 0; d < 4; d++)
    if (kr_case_chance(c, 0.1)) v->stride[d] = 0;
}

int32_t kr_pointwise_case(kr_case *c, int64_t index) {
  kr_pointwise_args *a = (kr_pointwise_args *)c->args;
  a->I = kr_case_int(c, 1, 3), a->J = kr_case_int(c, 1, 3);
  a->K = kr_case_edge(c, index % 8 == 0 ? 129 : 33), a->N = kr_case_edge(c, index % 8 == 1 ? 1025 : 130);
  a->x_scale = kr_case_chance(c, 0.5) ? 1 : 0.75f, a->y_scale = kr_case_chance(c, 0.5) ? 1 : -1.5f;
  c->contiguous = index % 3 == 0;
  const int gate = kr_case_chance(c, 0.15);
  if (gate) a->I = 2, a->call.flags = KRAIT_POINTWISE_GATE;
  give(c, "x", gate ? 1 : 0.9);
  give(c, "y", !gate && a->x.data ? 0.7 : 1);
  c->dtype = kr_case_activation_dtype(c);
  return KRAIT_OK;
}

int32_t kr_sum_rows_case(kr_case *c, int64_t index) {
  kr_sum_rows_args *a = (kr_sum_rows_args *)c->args;
  a->R = kr_case_edge(c, index % 8 == 0 ? 2049 : 130), a->M = kr_case_edge(c, 257);
  c->dtype = kr_case_activation_dtype(c), c->other = kr_case_activation_dtype(c);
  return KRAIT_OK;
}

/* expert_step_check.c: random calls. Scores are few multiples of an eighth, exact in float32: experts are often equal,
 * and never nearly equal, as a choice must not depend on rounding. */
#include "check.h"
#include "lm_ops.h"
#include "view.h"

static void fill_eighths(kr_case *c, const kr_view *v, int64_t rows, int64_t columns, double by) {
  for (int64_t i = 0; v && v->data && i < rows; i++)
    for (int64_t k = 0; k < columns; k++) kr_put(v, kr_at2(v, i, k), (double)kr_case_int(c, -4, 4) * by);
}

/* A row of the router has up to four entries that are not zero. */
static void fill_router(kr_case *c, const kr_view *v, int64_t rows, int64_t columns) {
  for (int64_t i = 0; v && v->data && i < rows; i++) {
    for (int64_t k = 0; k < columns; k++) kr_put(v, kr_at2(v, i, k), 0);
    for (int k = 0; k < 4; k++)
      kr_put(v, kr_at2(v, i, kr_case_int(c, 0, columns - 1)), (double)kr_case_int(c, -2, 2) * 0.5);
  }
}

int32_t kr_expert_step_case(kr_case *c, int64_t index) {
  kr_expert_step_args *a = (kr_expert_step_args *)c->args;
  a->T = kr_case_edge(c, 4);
  a->E = index % 5 ? kr_case_edge(c, 12) : kr_case_int(c, 60, 128);
  a->K = kr_case_int(c, 1, a->E < 6 ? a->E : 6);
  a->M = kr_case_edge(c, 40), a->F = kr_case_edge(c, 40), a->S = kr_case_edge(c, 40);
  if (index % 3) { /* for the kernels of 16 bits */
    c->contiguous = 1;
    c->dtype = c->other = kr_case_chance(c, 0.5) ? KRAIT_F16 : KRAIT_BF16;
    a->M = 8 * kr_case_int(c, 1, index % 7 ? 12 : 230);
    a->F = 8 * kr_case_int(c, 1, 9), a->S = 8 * kr_case_int(c, 1, 9);
    if (index % 9 == 4) a->E = 3, a->K = 2, a->M = 16, a->F = 600, a->S = 1100; /* several parts */
  }
  if (kr_case_chance(c, 0.3)) {
    a->S = 0;
    kr_case_leave_out(c, "shared_gate"), kr_case_leave_out(c, "shared_up"), kr_case_leave_out(c, "shared_down");
  } else {
    kr_case_give(c, "shared_gate"), kr_case_give(c, "shared_up"), kr_case_give(c, "shared_down");
  }
  a->shared_scale = (float)kr_case_uniform(c, 0.2, 1.5);
  fill_eighths(c, kr_case_give(c, "x"), a->T, a->M, 0.25);
  fill_router(c, kr_case_give(c, "router"), a->E, a->M);
  return KRAIT_OK;
}

/* mamba3_decode_check.c: random calls: few sequences from many state rows; the last three as the streaming row takes
 * them. Values that pass through several 16-bit products and norms are less exact than one rounding. */
#include "check.h"
#include "lm_ops.h"

/* The last calls only: the reference takes seconds. */
enum { FIRST_WIDE_3 = 60 };

static void widen_mamba3_decode(kr_case *c, kr_mamba3_decode_args *a) {
  a->B = 1, a->Y = 2, a->D = 2560, a->P = kr_case_pick(c, 3, (int64_t[]){64, 80, 64}), a->H = 5120 / a->P;
  a->N = kr_case_pick(c, 3, (int64_t[]){128, 64, 128});
  a->M = kr_case_chance(c, 0.5) ? a->N / 4 : kr_case_int(c, 0, a->N / 2), a->n_states = kr_case_int(c, 1, 3);
}

/* A layer adds little, as in models, since y is rounded to 16 bits; and few angles pass a whole turn, which a rounding
 * may decide. */
static void calm_mamba3_decode(kr_case *c, const kr_mamba3_decode_args *a) {
  kr_case_fill_uniform(c, &a->in_proj, -0.035, 0.035), kr_case_fill_uniform(c, &a->out_proj, -0.001, 0.001);
  kr_case_fill_uniform(c, &a->angle_state, 2, 4), kr_case_fill_uniform(c, &a->dt_bias, -2.5, -1.5);
}

int32_t kr_mamba3_decode_case(kr_case *c, int64_t index) {
  kr_mamba3_decode_args *a = (kr_mamba3_decode_args *)c->args;
  const int is_wide = index >= FIRST_WIDE_3;
  a->B = kr_case_int(c, 1, 4), a->Y = kr_case_int(c, 1, 3), a->D = kr_case_edge(c, 40);
  a->H = kr_case_int(c, 1, 4), a->P = kr_case_int(c, 1, 20), a->N = kr_case_int(c, 1, 20);
  a->M = kr_case_int(c, 0, a->N / 2), a->n_states = a->B + kr_case_int(c, 0, 3);
  a->A_floor = kr_case_chance(c, 0.7) ? 1e-4f : 0.87f;
  if (is_wide) {
    widen_mamba3_decode(c, a);
    c->dtype = index == FIRST_WIDE_3 + 1 ? KRAIT_BF16 : KRAIT_F16;
    c->contiguous = 1, c->other = c->dtype;
  }
  kr_case_give_rest(c);
  if (is_wide) calm_mamba3_decode(c, a);
  const kr_view *const typed[] = {&a->x, &a->norm_weight, &a->in_proj, &a->out_proj}, *const written[] = {
                                                                                          &a->angle_state,
                                                                                          &a->ssm_state, &a->B_state,
                                                                                          &a->x_state, &a->out};
  double bound = 2e-5;
  for (int i = 0; i < 4; i++) {
    const double of_type = typed[i]->dtype == KRAIT_BF16 ? 6e-2 : typed[i]->dtype == KRAIT_F16 ? 8e-3 : 2e-5;
    bound = of_type > bound ? of_type : bound;
  }
  for (int i = 0; i < 5; i++) kr_case_bound(c, written[i], bound, bound / 100);
  return KRAIT_OK;
}

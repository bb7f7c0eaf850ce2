/* gated_delta_rule_check.c: random calls: heads that share keys or do not, sizes around the vector widths. */
#include <math.h>

#include "check.h"
#include "op_list.h"

static void choose_heads(kr_case *c, int64_t *H, int64_t *Hk, int64_t *Dk, int64_t *Dv) {
  *Hk = kr_case_int(c, 1, 2), *H = *Hk * kr_case_int(c, 1, 3);
  *Dk = kr_case_edge(c, kr_case_chance(c, 0.1) ? 250 : 40), *Dv = kr_case_edge(c, kr_case_chance(c, 0.1) ? 250 : 70);
}

int32_t kr_gated_delta_rule_case(kr_case *c, int64_t index) {
  kr_gated_delta_rule_args *a = (kr_gated_delta_rule_args *)c->args;
  a->B = kr_case_int(c, 1, 2), a->L = index % 4 ? kr_case_edge(c, 9) : kr_case_edge(c, 70);
  choose_heads(c, &a->H, &a->Hk, &a->Dk, &a->Dv);
  if (index % 5 == 1) a->Dk = 64 << kr_case_int(c, 0, 1), a->L = kr_case_int(c, 8, 50); /* what GPUs stage */
  if (index % 10 == 1) a->Dk = 128, a->L = kr_case_int(c, 64, 110); /* or take in chunks */
  if (index % 3 == 0) a->beta_scale = 2;
  c->contiguous = index % 2;
  kr_case_give(c, "q");
  kr_view *k = kr_case_give(c, "k");
  if (a->call.flags & KRAIT_DELTA_KEYS_AS_GIVEN) /* about as long as they must be for a state that does not grow */
    kr_case_fill_normal(c, k, 0, 1 / sqrt((double)a->Dk));
  return KRAIT_OK;
}

int32_t kr_gated_delta_update_case(kr_case *c, int64_t index) {
  kr_gated_delta_update_args *a = (kr_gated_delta_update_args *)c->args;
  a->B = kr_case_int(c, 1, 5), a->n_states = a->B + kr_case_int(c, 0, 3);
  choose_heads(c, &a->H, &a->Hk, &a->Dk, &a->Dv);
  if (index % 3 == 0) a->beta_scale = 2;
  if (index % 6 == 1) a->Dk = 64 << kr_case_int(c, 0, 1), a->Dv = 4 * kr_case_int(c, 1, 24); /* GPUs' fours */
  c->contiguous = index % 2;
  return KRAIT_OK;
}

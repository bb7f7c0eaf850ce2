/* dt_state_update_check.c: random calls, two thirds of them in forms that the GPU implementation accepts. */
#include "check.h"
#include "state_update/dt_state_update_impls.h"
#include "op_list.h"

enum { MANY_BLOCKS = 299 };

int32_t kr_dt_state_update_case(kr_case *c, int64_t index) {
  kr_dt_state_update_args *a = (kr_dt_state_update_args *)c->args;
  a->B = kr_case_int(c, 1, 4), a->D = kr_case_edge(c, 50), a->N = kr_case_edge(c, 40), a->R = kr_case_edge(c, 60);
  if (index % 3) {
    c->contiguous = 1;
    c->dtype = c->other = (int32_t[]){KRAIT_F32, KRAIT_F16, KRAIT_BF16}[kr_case_int(c, 0, 2)];
    a->B = kr_case_chance(c, 0.1) ? kr_case_int(c, 15, 17) : kr_case_int(c, 1, 4);
    a->D = kr_case_edge(c, 90), a->N = 4 * kr_case_int(c, 1, kr_case_chance(c, 0.3) ? 32 : 6);
    a->R = 8 * kr_case_int(c, 1, 22);
    if (kr_case_chance(c, 0.2)) a->B = kr_case_int(c, 32, 70), a->N = 16; /* all states of a channel in two threads */
    if (index == MANY_BLOCKS) a->B = 64, a->D = 2176, a->N = 16, a->R = 8; /* more than two for each of 132 */
  }
  a->n_states = a->B + kr_case_int(c, 0, 3);
  const int32_t weights = c->other;
  if (kr_case_chance(c, 0.6) && index != MANY_BLOCKS) c->other = KRAIT_F32; /* float32 states, as models keep them */
  kr_case_give(c, "state");
  c->other = weights;
  return KRAIT_OK;
}

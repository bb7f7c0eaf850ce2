/* state_update_check.c: random calls of state_update: with and without heads, expanded inputs. */
#include "check.h"
#include "op_list.h"

static void expand(kr_case *c, kr_view *view) {
  if (kr_case_chance(c, 0.2)) view->stride[0] = 0;
  if (kr_case_chance(c, 0.15)) view->stride[1] = view->stride[2] = 0; /* as Mamba 2 passes A and dt */
}

int32_t kr_state_update_case(kr_case *c, int64_t index) {
  kr_state_update_args *a = (kr_state_update_args *)c->args;
  kr_case_hard(c, KR_NAMES("state", "x", "dt", "Bmat", "Cmat", "z"), KR_MOST_CUBED);
  a->B = kr_case_int(c, 1, 3);
  a->H = kr_case_chance(c, 0.5) ? 1 : kr_case_pick(c, 3, (int64_t[]){2, 4, 6});
  a->G = a->H % 2 == 0 && kr_case_chance(c, 0.5) ? 2 : 1;
  a->P = kr_case_edge(c, 40);
  a->N = index % 16 == 0 ? kr_case_int(c, 257, 520) : kr_case_edge(c, 130);
  if (index % 3 == 1) c->contiguous = 1, a->N = kr_case_int(c, 1, 32) * 4; /* for the GPU's four states per lane */
  const int by_heads = index % 6 == 4; /* as in Mamba-2 */
  if (by_heads) a->P = 8 * kr_case_int(c, 1, 4), a->N = kr_case_pick(c, 4, (int64_t[]){32, 64, 128, 256});
  const int by_rows = index % 6 == 1 && kr_case_chance(c, 0.6); /* as in Mamba with many sequences */
  if (by_rows) {
    a->B = kr_case_int(c, 31, 39), a->H = a->G = 1, a->P = kr_case_edge(c, 140), a->N = 16;
    c->dtype = c->other = kr_case_chance(c, 0.5) ? KRAIT_F16 : KRAIT_BF16;
  }
  a->n_states = a->B + kr_case_int(c, 0, 3);
  kr_case_give_rest(c);
  if (by_heads) {
    a->A.stride[1] = a->A.stride[2] = a->dt.stride[2] = 0;
    if (a->dt_bias.data) a->dt_bias.stride[1] = 0;
    return KRAIT_OK;
  }
  if (by_rows) return KRAIT_OK;
  expand(c, &a->A);
  if (kr_case_chance(c, 0.2)) a->A.stride[2] = 0;
  expand(c, &a->dt);
  return KRAIT_OK;
}

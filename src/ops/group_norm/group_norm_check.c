/* group_norm_check.c: sizes of random norms over groups: few and many positions, groups of one and of all channels. */
#include "check.h"
#include "op_list.h"

int32_t kr_group_norm_case(kr_case *c, int64_t index) {
  kr_group_norm_args *a = (kr_group_norm_args *)c->args;
  const int64_t each = kr_case_int(c, 1, index % 8 == 2 ? 40 : 8);
  c->contiguous = index % 2;
  if (!c->is_exact && kr_case_chance(c, 0.7)) c->anywhere = !c->contiguous;
  a->B = kr_case_int(c, 1, 3), a->S = kr_case_edge(c, index % 8 == 0 ? 1030 : 70) + 1;
  a->G = kr_case_chance(c, 0.2) ? 1 : kr_case_int(c, 1, 12), a->C = a->G * each;
  return KRAIT_OK;
}

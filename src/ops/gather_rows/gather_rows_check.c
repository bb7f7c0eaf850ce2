/* gather_rows_check.c: random calls: few and many rows, the table often of another type. */
#include "check.h"
#include "op_list.h"

int32_t kr_gather_rows_case(kr_case *c, int64_t index) {
  kr_gather_rows_args *a = (kr_gather_rows_args *)c->args;
  a->R = kr_case_edge(c, 40), a->M = kr_case_edge(c, index % 8 == 0 ? 1030 : 130), a->V = kr_case_int(c, 1, 50);
  c->dtype = kr_case_activation_dtype(c), c->other = kr_case_activation_dtype(c);
  return KRAIT_OK;
}

/* softmax_check.c: sizes of random softmaxes: rows shorter and longer than a block of threads takes at once. */
#include "check.h"
#include "seedvr/ops/seedvr_ops.h"

int32_t kr_softmax_case(kr_case *c, int64_t index) {
  kr_softmax_args *a = (kr_softmax_args *)c->args;
  c->contiguous = index % 2;
  a->M = kr_case_int(c, 1, 9), a->N = kr_case_edge(c, index % 4 == 0 ? 2060 : 260) + 1;
  return KRAIT_OK;
}

/* argmax_rows_check.c: random calls: row lengths around a block's thread count; in float16 the maximum is often tied.
 * */
#include "check.h"
#include "op_list.h"

int32_t kr_argmax_rows_case(kr_case *c, int64_t index) {
  kr_argmax_rows_args *a = (kr_argmax_rows_args *)c->args;
  a->R = kr_case_edge(c, 20), a->M = kr_case_edge(c, index % 4 == 0 ? 2100 : 130);
  c->dtype = kr_case_activation_dtype(c);
  return KRAIT_OK;
}

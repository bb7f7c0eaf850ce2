/* case.h: the interface to a case for the checker, beyond that for case makers. */
#ifndef KR_CASE_H
#define KR_CASE_H
#include "check.h"
int32_t kr_case_open(kr_case *c, const kr_op *op, uint64_t seed, int64_t index, int is_exact);
void kr_case_reset(kr_case *c); /* storage back to inputs and poison */
void kr_case_close(kr_case *c);
int64_t kr_tensor_elements(const kr_case_tensor *t);
double kr_tensor_part(const krait_view *view, int64_t offset, int part); /* part 1: the imaginary one */
int64_t kr_tensor_offset(const kr_case_tensor *t, const krait_view *view,
                         int64_t flat); /* row-major flat index to element offset */
#endif

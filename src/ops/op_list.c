/* op_list.c: ops.def as an array. */
#include "op_list.h"

const kr_op *const kr_op_list[] = {
#define KR_OP(name) &kr_op_##name,
#include "ops.def"
#undef KR_OP
};
const int32_t kr_n_op_list = sizeof kr_op_list / sizeof *kr_op_list;

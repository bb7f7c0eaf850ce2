/* op_list.c: ops.def as an array. */
#include "op_list.h"

#include <string.h>

const kr_op *const kr_ops[] = {
#define KR_OP(name) &kr_op_##name,
#include "ops.def"
#undef KR_OP
};
const int32_t kr_n_ops = sizeof kr_ops / sizeof *kr_ops;

const kr_op *kr_op_find(const char *name) {
  for (int32_t i = 0; i < kr_n_ops; i++)
    if (strcmp(kr_ops[i]->name, name) == 0) return kr_ops[i];
  return NULL;
}

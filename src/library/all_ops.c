/* all_ops.c: the rooms' lists of operators as one array, and the public functions that take an operator by its name or
 * number. */
#include "public_names.h"

#include "all_ops.h"

#include <string.h>

#include "plan.h"
#include "status.h"

const kr_op *const kr_ops[] = {
#define KR_OP(name) &kr_op_##name,
#include "ops.def"
#include "block_ops.def"
#include "primeknet_ops.def"
#undef KR_OP
};
const int32_t kr_n_ops = sizeof kr_ops / sizeof *kr_ops;

const kr_op *kr_op_find(const char *name) {
  for (int32_t i = 0; i < kr_n_ops; i++)
    if (strcmp(kr_ops[i]->name, name) == 0) return kr_ops[i];
  return NULL;
}

int32_t krait_n_ops(void) { return kr_n_ops; }

static const kr_op *op_at(int32_t op) { return op >= 0 && op < kr_n_ops ? kr_ops[op] : NULL; }

static const kr_impl *impl_at(int32_t op, int32_t impl) {
  const kr_op *found = op_at(op);
  return found && impl >= 0 && impl < found->n_impls ? &found->impls[impl] : NULL;
}

const char *krait_op_name(int32_t op) { return op_at(op) ? op_at(op)->name : NULL; }
int32_t krait_op_n_impls(int32_t op) { return op_at(op) ? op_at(op)->n_impls : 0; }
const char *krait_op_impl_name(int32_t op, int32_t impl) { return impl_at(op, impl) ? impl_at(op, impl)->name : NULL; }
uint64_t krait_op_impl_needs(int32_t op, int32_t impl) { return impl_at(op, impl) ? impl_at(op, impl)->needs : 0; }

int32_t krait_args_sizes(const char *op, void *args, const krait_shape *shapes, int32_t n_shapes) {
  KR_CHECK(op && args && (shapes || !n_shapes), KRAIT_ERR_ARGUMENT, "op, args and shapes must not be NULL");
  const kr_op *found = kr_op_find(op);
  KR_CHECK(found, KRAIT_ERR_ARGUMENT, "there is no operator '%s'", op);
  return kr_args_sizes(found, args, shapes, n_shapes);
}

int32_t krait_plan_open(const krait_ctx *ctx, const char *op, const void *args, const char *impl, krait_plan **plan) {
  KR_CHECK(op && plan, KRAIT_ERR_ARGUMENT, "op and plan must not be NULL");
  const kr_op *found = kr_op_find(op);
  *plan = NULL;
  KR_CHECK(found, KRAIT_ERR_ARGUMENT, "there is no operator '%s'", op);
  return kr_plan_open(found, ctx, args, impl, plan);
}

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
#include "lm_ops.def"
#include "seedvr/ops/seedvr_ops.def"
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

static int32_t find_public(const char *op, const kr_public_op **found) {
  KR_CHECK(op, KRAIT_ERR_ARGUMENT, "op must not be NULL");
  *found = kr_public_find(op);
  KR_CHECK(*found, KRAIT_ERR_ARGUMENT, "there is no operator '%s'", op);
  return KRAIT_OK;
}

const kr_public_op *kr_public_find(const char *name) {
  for (int32_t i = 0; i < kr_n_public_ops; i++)
    if (strcmp(kr_public_ops[i]->op->name, name) == 0) return kr_public_ops[i];
  return NULL;
}

int32_t krait_plan_open(const krait_ctx *ctx, const char *op, const void *args, const char *impl, krait_plan **plan) {
  _Alignas(16) unsigned char taken[KR_MOST_ARGS_BYTES];
  const kr_public_op *p;
  KR_CHECK(plan, KRAIT_ERR_ARGUMENT, "plan must not be NULL");
  *plan = NULL;
  KR_TRY(find_public(op, &p));
  KR_TRY(kr_public_take(p, args, taken));
  return kr_plan_open(p->op, ctx, taken, impl, plan);
}

int32_t krait_scratch_bytes(const krait_ctx *ctx, const char *op, const void *args, uint64_t *bytes) {
  _Alignas(16) unsigned char taken[KR_MOST_ARGS_BYTES];
  const kr_public_op *p;
  KR_TRY(find_public(op, &p));
  KR_TRY(kr_public_take(p, args, taken));
  return kr_op_scratch_bytes(p->op, ctx, taken, bytes);
}

int32_t krait_shapes_check(const char *op, const void *args) {
  const kr_public_op *p;
  KR_TRY(find_public(op, &p));
  return kr_public_check_shapes(p, args);
}

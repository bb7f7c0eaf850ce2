/* plan.h: a prepared call: checked, with its implementation chosen and its scratch size known. Running it takes only
 * addresses. A plan is immutable; any thread may run it. It must not outlive its context. */
#ifndef KR_PLAN_H
#define KR_PLAN_H

#include <krait/plan.h>

#include "op.h"

typedef struct krait_plan kr_plan;

/* Addresses in args define which tensors are given, how they are aligned, and which of them are the same.
 * implementation: its name, or NULL for the best that accepts the call; if it refuses, the error is its reason. */
int32_t kr_plan_open(const kr_op *op, const krait_ctx *ctx, const void *args, const char *impl, kr_plan **plan);
void kr_plan_close(kr_plan **plan);
/* addresses: of the tensors of op->sig, in that order; those of absent tensors are ignored. scratch: of
 * krait_plan_scratch_bytes. Addresses with another alignment, or with other equalities, go through kr_op_run: correct,
 * but slower. */
int32_t kr_plan_run(const kr_plan *plan, void *const *addresses, void *stream, void *scratch, uint64_t scratch_bytes);
const kr_impl *kr_plan_impl(const kr_plan *plan); /* NULL: runs on the host, or kr_plan_bind comes first */

/* ---- in memory of its owner, with its addresses: a graph's runner, which binds them once for many runs ---- */
typedef struct kr_bound {
  size_t offset; /* of a view in args */
  void *data;
} kr_bound;
/* args have been checked; their addresses count for nothing. implementation: the only one; or NULL: the best that
 * accepts the bound addresses. memory: kr_plan_bytes, aligned to 16, all zero; it needs no close. */
uint64_t kr_plan_bytes(const kr_op *op);
kr_plan *kr_plan_place(void *memory, const kr_op *op, const krait_ctx *ctx, const void *args, const kr_impl *impl);
/* The addresses of all given tensors. The implementation is chosen again if another could accept them. */
int32_t kr_plan_bind(kr_plan *plan, const kr_bound *list, int32_t n);
kr_call *kr_plan_call(kr_plan *plan); /* whose stream, flags and scratch the owner sets */
/* With the bound addresses; it is neither counted nor checked for a fallback. */
int32_t kr_plan_run_bound(const kr_plan *plan);

#endif

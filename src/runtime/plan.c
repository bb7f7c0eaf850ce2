/* plan.c: stores what kr_op_run determines about a call; and the public functions of plans. */
#include "public_names.h"

#include "plan.h"

#include <string.h>

#include "alloc.h"
#include "lent_scratch.h"
#include "rehearsal.h"
#include "status.h"

enum { ALIGNMENT = 16, MOST_TENSORS = 64 };

struct krait_plan {
  const kr_op *op;
  const krait_ctx *ctx;
  const kr_impl *impl, *only; /* only: the owner's choice, or NULL */
  uint64_t scratch_bytes;
  _Alignas(16) unsigned char args[]; /* with the addresses for which impl was chosen */
};

static kr_view *view_at(const kr_plan *p, size_t offset) { return (kr_view *)(uintptr_t)(p->args + offset); }

static uint64_t scratch_of_plan(const kr_plan *p) {
  return p->impl && p->impl->scratch_bytes ? p->impl->scratch_bytes(p->ctx, p->args) : 0;
}

int32_t kr_plan_open(const kr_op *op, const krait_ctx *ctx, const void *args, const char *impl, kr_plan **plan) {
  KR_CHECK(plan, KRAIT_ERR_ARGUMENT, "%s: plan must not be NULL", op->name);
  *plan = NULL;
  KR_CHECK(op->sig->n_tensors <= MOST_TENSORS, KRAIT_ERR_UNSUPPORTED, "%s has too many tensors for a plan", op->name);
  kr_plan *p = kr_zalloc(sizeof *p + op->args_bytes);
  KR_CHECK(p, KRAIT_ERR_NO_MEMORY, "no memory for a plan");
  p->op = op, p->ctx = ctx;
  int32_t status = kr_op_prepare(op, ctx, args, impl, &p->impl);
  if (status < 0) {
    kr_free(p);
    return status;
  }
  p->only = impl ? p->impl : NULL;
  memcpy(p->args, args, op->args_bytes);
  p->scratch_bytes = scratch_of_plan(p);
  *plan = p;
  return KRAIT_OK;
}

void kr_plan_close(kr_plan **plan) {
  if (!plan) return;
  kr_free(*plan);
  *plan = NULL;
}

/* Whether the implementation would be chosen again. It depends on the addresses' alignment, and on which are equal. */
static int is_alike(const kr_plan *p, const kr_bound *list, int32_t n) {
  for (int32_t i = 0; i < n; i++) {
    const void *then = view_at(p, list[i].offset)->data;
    if (((uintptr_t)then ^ (uintptr_t)list[i].data) % ALIGNMENT) return 0;
    for (int32_t k = 0; k < i; k++)
      if ((view_at(p, list[k].offset)->data == then) != (list[k].data == list[i].data)) return 0;
  }
  return 1;
}

/* Other implementations may be chosen for these addresses, which may need more scratch than was planned. */
static int32_t run_replanned(const kr_plan *p, void *args) {
  const kr_impl *impl = NULL;
  KR_TRY(kr_op_prepare(p->op, p->ctx, args, p->only ? p->only->name : NULL, &impl));
  const uint64_t bytes = impl && impl->scratch_bytes ? impl->scratch_bytes(p->ctx, args) : 0;
  const uint64_t given = ((kr_call *)args)->scratch_bytes;
  if (bytes > given && given >= p->scratch_bytes) return kr_lent_run(p->op, impl, p->ctx, args, bytes);
  return kr_op_run_impl(p->op, impl, p->ctx, args, bytes);
}

int32_t kr_plan_run(const kr_plan *p, void *const *addresses, void *stream, void *scratch, uint64_t scratch_bytes) {
  _Alignas(16) unsigned char args[KR_MOST_ARGS_BYTES];
  kr_bound list[MOST_TENSORS];
  int32_t n = 0;
  memcpy(args, p->args, p->op->args_bytes);
  kr_call *call = (kr_call *)args;
  call->stream = stream, call->scratch = scratch, call->scratch_bytes = scratch_bytes;
  for (int i = 0; i < p->op->sig->n_tensors; i++) {
    kr_view *view = kr_sig_view(p->op->sig, args, i);
    if (!view->data) continue;
    KR_CHECK(view->data = addresses[i], KRAIT_ERR_ARGUMENT, "%s: %s was planned, so it must be given", p->op->name,
             p->op->sig->tensors[i].name);
    list[n++] = (kr_bound){p->op->sig->tensors[i].offset, addresses[i]};
  }
  if (!is_alike(p, list, n)) return run_replanned(p, args);
  return kr_op_run_impl(p->op, p->impl, p->ctx, args, p->scratch_bytes);
}

/* ---- in memory of its owner ---- */

uint64_t kr_plan_bytes(const kr_op *op) { return (sizeof(kr_plan) + op->args_bytes + 15) & ~(uint64_t)15; }

kr_plan *kr_plan_place(void *memory, const kr_op *op, const krait_ctx *ctx, const void *args, const kr_impl *impl) {
  kr_plan *p = memory;
  p->op = op, p->ctx = ctx, p->only = impl;
  memcpy(p->args, args, op->args_bytes);
  return p;
}

static int32_t choose_impl(kr_plan *p) {
  int32_t status = KRAIT_OK;
  p->impl = p->only ? p->only : kr_op_resolve(p->op, p->ctx, p->args, &status);
  p->scratch_bytes = scratch_of_plan(p);
  kr_plan_call(p)->scratch_bytes = p->scratch_bytes;
  return status;
}

int32_t kr_plan_bind(kr_plan *p, const kr_bound *list, int32_t n) {
  const int alike = p->impl && is_alike(p, list, n);
  for (int32_t i = 0; i < n; i++) view_at(p, list[i].offset)->data = list[i].data;
  return alike ? KRAIT_OK : choose_impl(p);
}

kr_call *kr_plan_call(kr_plan *p) { return (kr_call *)p->args; }
int32_t kr_plan_run_bound(const kr_plan *p) { return kr_op_run_logged(p->op, p->impl, p->ctx, p->args); }
const kr_impl *kr_plan_impl(const kr_plan *p) { return p->impl; }

/* ---- krait/plan.h ---- */

void krait_plan_close(krait_plan **plan) { kr_plan_close(plan); }

int32_t krait_plan_run(const krait_plan *plan, void *const *addresses, void *stream, void *scratch,
                       uint64_t scratch_bytes) {
  KR_CHECK(plan && addresses, KRAIT_ERR_ARGUMENT, "plan and addresses must not be NULL");
  return kr_plan_run(plan, addresses, stream, scratch, scratch_bytes);
}

uint64_t krait_plan_scratch_bytes(const krait_plan *plan) { return plan ? plan->scratch_bytes : 0; }
const char *krait_plan_impl_name(const krait_plan *plan) {
  return !plan ? NULL : plan->impl ? plan->impl->name : "running on the host";
}

/* ---- loading ahead ---- */

typedef struct plan_list {
  const krait_plan *const *plans;
  int32_t n;
  void *scratch;
  uint64_t scratch_bytes;
} plan_list;

/* While launches are noted. */
static int32_t run_listed(void *user) {
  const plan_list *l = user;
  _Alignas(16) unsigned char args[KR_MOST_ARGS_BYTES];
  for (int32_t i = 0; i < l->n; i++) {
    const kr_plan *p = l->plans[i];
    if (!p->impl) continue;
    memcpy(args, p->args, p->op->args_bytes);
    kr_call *call = (kr_call *)args;
    call->stream = NULL, call->scratch = l->scratch, call->scratch_bytes = l->scratch_bytes;
    (void)kr_op_run_logged(p->op, p->impl, p->ctx, args);
  }
  return KRAIT_OK;
}

int32_t krait_plans_load(const krait_plan *const *plans, int32_t n, void *scratch, uint64_t scratch_bytes) {
  KR_CHECK(plans || n == 0, KRAIT_ERR_ARGUMENT, "plans must not be NULL");
  for (int32_t i = 0; i < n; i++) {
    KR_CHECK(plans[i], KRAIT_ERR_ARGUMENT, "plan %d must not be NULL", (int)i);
    KR_CHECK(plans[i]->ctx == plans[0]->ctx, KRAIT_ERR_ARGUMENT, "plan %d is of another context than the first",
             (int)i);
    KR_CHECK(plans[i]->scratch_bytes <= scratch_bytes, KRAIT_ERR_SCRATCH,
             "%llu bytes of scratch given, plan %d needs %llu", (unsigned long long)scratch_bytes, (int)i,
             (unsigned long long)plans[i]->scratch_bytes);
  }
  if (n > 0) kr_rehearse(plans[0]->ctx, run_listed, &(plan_list){plans, n, scratch, scratch_bytes});
  return KRAIT_OK;
}

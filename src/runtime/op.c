/* op.c: from a call to an implementation: contract, first implementation that accepts it, scratch; and the
 * verbose line. */
#include "op.h"

#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "log.h"
#include "rehearsal.h"
#include "round_trip.h"
#include "answer.h"
#include "status.h"

int32_t kr_op_check(const kr_op *op, const void *args) {
  KR_TRY(kr_sig_check(op->sig, args));
  return op->rules ? op->rules(args) : KRAIT_OK;
}

void kr_op_views(const kr_op *op, kr_view_uses *uses) {
  const uint32_t facts = kr_sig_facts(op->sig, uses->args);
  uses->n = 0;
  for (int i = 0; i < op->sig->n_tensors; i++) {
    if (!kr_sig_view(op->sig, uses->args, i)->data) continue;
    const kr_shape shape = kr_sig_shape(op->sig, uses->args, facts, i);
    kr_view_use *to = &uses->list[uses->n++];
    *to = (kr_view_use){.offset = op->sig->tensors[i].offset, .role = op->sig->tensors[i].role, .n_dims = shape.n_dims};
    memcpy(to->shape, shape.size, sizeof shape.size);
  }
}

static const char *refusal_of(const kr_impl *impl, const krait_ctx *ctx, const void *args) {
  if ((impl->needs & ctx->caps) != impl->needs) return "needs a capability that this context lacks";
  return impl->refuse ? impl->refuse(ctx, args) : NULL;
}

/* The refusals of the implementations that the context could run; if there are none, of all implementations. */
static int32_t quote_refusals(const kr_op *op, const krait_ctx *ctx, const void *args) {
  char text[768] = "";
  size_t used = 0;
  for (int able = 1; able >= 0 && !used; able--)
    for (int32_t i = 0; i < op->n_impls && used < sizeof text; i++) {
      if (able && (op->impls[i].needs & ctx->caps) != op->impls[i].needs) continue;
      const char *why = refusal_of(&op->impls[i], ctx, args);
      used += (size_t)snprintf(text + used, sizeof text - used, "%s%s: %s", used ? "; " : "", op->impls[i].name,
                               why ? why : "willing");
    }
  const char *cure = ctx->cuda && ctx->fallback == KRAIT_FALLBACK_WARN
                         ? "; KRAIT_FALLBACK=cpu copies its tensors to the host, computes there and copies back"
                         : "";
  return kr_fail(KRAIT_ERR_UNSUPPORTED, "%s: no implementation accepts this call (%s)%s", op->name, text, cure);
}

const kr_impl *kr_op_resolve(const kr_op *op, const krait_ctx *ctx, const void *args, int32_t *status) {
  for (int32_t i = 0; i < op->n_impls; i++) {
    const char *why = refusal_of(&op->impls[i], ctx, args);
    if (!why) return &op->impls[i];
    if (ctx->verbose >= 2) kr_log("%s: not %s: %s", op->name, op->impls[i].name, why);
  }
  int32_t failed = quote_refusals(op, ctx, args);
  if (status) *status = failed;
  return NULL;
}

/* Whether a call that no implementation accepts runs on the host. */
static int takes_round_trip(const krait_ctx *ctx, const kr_impl *impl) { return !impl && ctx->cpu; }

/* The implementation with that name, if it accepts the call. */
static int32_t find_impl(const kr_op *op, const krait_ctx *ctx, const void *args, const char *name,
                         const kr_impl **impl) {
  for (int32_t i = 0; i < op->n_impls; i++) {
    if (strcmp(op->impls[i].name, name) != 0) continue;
    const char *why = refusal_of(&op->impls[i], ctx, args);
    *impl = &op->impls[i];
    KR_CHECK(!why, KRAIT_ERR_UNSUPPORTED, "%s: implementation %s refuses: %s", op->name, name, why);
    return KRAIT_OK;
  }
  return kr_fail(KRAIT_ERR_ARGUMENT, "%s has no implementation '%s'", op->name, name);
}

int32_t kr_op_prepare(const kr_op *op, const krait_ctx *ctx, const void *args, const char *name, const kr_impl **impl) {
  KR_CHECK(ctx, KRAIT_ERR_ARGUMENT, "%s: ctx must not be NULL", op->name);
  KR_TRY(kr_op_check(op, args));
  if (name) return find_impl(op, ctx, args, name, impl);
  int32_t status = KRAIT_OK;
  *impl = kr_op_resolve(op, ctx, args, &status);
  return takes_round_trip(ctx, *impl) ? KRAIT_OK : status;
}

static int32_t find_scratch(const kr_op *op, const krait_ctx *ctx, const void *args, uint64_t *bytes) {
  const kr_impl *impl = NULL;
  KR_CHECK(bytes, KRAIT_ERR_ARGUMENT, "%s: bytes must not be NULL", op->name);
  KR_TRY(kr_op_prepare(op, ctx, args, NULL, &impl));
  *bytes = impl && impl->scratch_bytes ? impl->scratch_bytes(ctx, args) : 0;
  return KRAIT_OK;
}

int32_t kr_op_scratch_bytes(const kr_op *op, const krait_ctx *ctx, const void *args, uint64_t *bytes) {
  return kr_answer(find_scratch(op, ctx, args, bytes));
}

/* If all implementations of a better tier of device code refuse this call, the first of them and its reason; NULL if it
 * runs on the best tier, or on an implementation requested by name. */
static const kr_impl *better_impl(const kr_op *op, const kr_impl *impl, const krait_ctx *ctx, const void *args,
                                const char **why) {
  const kr_impl *first = NULL;
  for (const kr_impl *r = op->impls; r < impl; r++) {
    if (strncmp(r->name, "cuda_", 5) != 0 || (r->needs & ctx->caps) != r->needs ||
        (r->needs & kr_device_tiers) <= (impl->needs & kr_device_tiers))
      continue;
    const char *refusal = refusal_of(r, ctx, args);
    if (!refusal) return NULL;
    if (!first) first = r, *why = refusal;
  }
  return first;
}

/* A fallback is counted and reported once per context, or is an error. */
static int32_t note_fallback(const kr_op *op, const kr_impl *impl, const krait_ctx *ctx, const void *args) {
  const char *why = NULL;
  const kr_impl *better = ctx->cuda ? better_impl(op, impl, ctx, args, &why) : NULL;
  krait_ctx *counters = (krait_ctx *)ctx;
  if (!better && !ctx->fell_back) return KRAIT_OK;
  atomic_fetch_add_explicit(&counters->n_fallbacks, 1, memory_order_relaxed);
  if (!better) return KRAIT_OK; /* reported when the context was opened */
  KR_CHECK(ctx->fallback != KRAIT_FALLBACK_NEVER, KRAIT_ERR_FALLBACK,
           "%s: implementation %s refuses (%s) and fallback to %s is disabled", op->name, better->name, why,
           impl->name);
  if (!atomic_flag_test_and_set(&counters->warned))
    kr_log("%s: implementation %s instead of %s: %s (further fallbacks of this context are only counted)", op->name,
           impl->name, better->name, why);
  return KRAIT_OK;
}

/* Reported once per context and counted, like every fallback; krait_error_detail() has the implementations' refusals.
 */
static int32_t round_trip(const kr_op *op, const krait_ctx *ctx, const void *args) {
  krait_ctx *counters = (krait_ctx *)ctx;
  if (!atomic_flag_test_and_set(&counters->warned))
    kr_log(
        "running on the host, because of KRAIT_FALLBACK=cpu: %s (further fallbacks of this context are only "
        "counted)",
        krait_error_detail());
  atomic_fetch_add_explicit(&counters->n_calls, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&counters->n_fallbacks, 1, memory_order_relaxed);
  return kr_round_trip(op, ctx, args);
}

typedef struct first_run {
  const kr_impl *impl;
  const krait_ctx *ctx;
  const void *args;
} first_run;

static int32_t run_noted(void *user) {
  const first_run *r = user;
  return r->impl->run(r->ctx, r->args);
}

int32_t kr_op_run_logged(const kr_op *op, const kr_impl *impl, const krait_ctx *ctx, const void *args) {
  if (ctx && ctx->cuda && kr_cuda_meets(ctx->cuda, impl)) kr_rehearse(ctx, run_noted, &(first_run){impl, ctx, args});
  if (!ctx || !ctx->verbose || kr_cuda_is_noting()) return impl->run(ctx, args);
  const int64_t start = kr_clock_ns();
  const int32_t status = impl->run(ctx, args);
  kr_log("%s: implementation %s, %.1f us%s", op->name, impl->name, (double)(kr_clock_ns() - start) * 1e-3,
         status < 0 ? ", failed" : "");
  return status;
}

int32_t kr_op_run_impl(const kr_op *op, const kr_impl *impl, const krait_ctx *ctx, const void *args, uint64_t needed) {
  const kr_call *call = args;
  if (!impl) return round_trip(op, ctx, args);
  KR_CHECK(call->scratch_bytes >= needed && (call->scratch || !needed), KRAIT_ERR_SCRATCH,
           "%s: %llu bytes of scratch given, implementation %s needs %llu", op->name,
           (unsigned long long)call->scratch_bytes, impl->name, (unsigned long long)needed);
  KR_TRY(note_fallback(op, impl, ctx, args));
  atomic_fetch_add_explicit(&((krait_ctx *)ctx)->n_calls, 1, memory_order_relaxed);
  return kr_op_run_logged(op, impl, ctx, args);
}

static int32_t run_op(const kr_op *op, const krait_ctx *ctx, const void *args) {
  const kr_impl *impl = NULL;
  KR_TRY(kr_op_prepare(op, ctx, args, NULL, &impl));
  return kr_op_run_impl(op, impl, ctx, args, impl && impl->scratch_bytes ? impl->scratch_bytes(ctx, args) : 0);
}

int32_t kr_op_run(const kr_op *op, const krait_ctx *ctx, const void *args) {
  return kr_answer(run_op(op, ctx, args));
}

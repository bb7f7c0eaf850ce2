/* plan.h: a prepared call of an operator: checked, with its implementation chosen and its scratch size known. Running
 * it takes the addresses of its tensors, a stream and scratch. A plan is immutable: any thread may run it while its
 * context is open. */
#ifndef KRAIT_PLAN_H
#define KRAIT_PLAN_H

#include <krait/krait.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct krait_plan krait_plan;
/* args: the op's args struct (ops.h), whose shapes are the plan's; its addresses define which tensors are given, how
 * they are aligned and which are the same. impl: the name of the implementation to use, NULL for the best one.
 * If it refuses the call, krait_error_detail() says why. */
KRAIT_API int32_t krait_plan_open(const krait_ctx *ctx, const char *op, const void *args, const char *impl,
                                  krait_plan **plan);
KRAIT_API void krait_plan_close(krait_plan **plan);
/* addresses: in the order of the tensors in the args struct; those of absent tensors are ignored. Addresses that differ
 * from the planned ones in 16-byte alignment, or in which of them are equal, also work, but more slowly. */
KRAIT_API int32_t krait_plan_run(const krait_plan *plan, void *const *addresses, void *stream, void *scratch,
                                 uint64_t scratch_bytes);
KRAIT_API uint64_t krait_plan_scratch_bytes(const krait_plan *plan);
KRAIT_API const char *krait_plan_impl_name(const krait_plan *plan);
/* Loads the device code of plans of one context by all its threads, before it is launched: a driver that has not cached
 * it translates each kernel for up to a second. Nothing runs. scratch: of the largest krait_plan_scratch_bytes. What
 * cannot be loaded fails when it runs; on a CPU there is nothing to load. */
KRAIT_API int32_t krait_plans_load(const krait_plan *const *plans, int32_t n, void *scratch, uint64_t scratch_bytes);

/* The scratch that a call needs with this context (0 is common), for callers that give their own: args->call.scratch.
 */
KRAIT_API int32_t krait_scratch_bytes(const krait_ctx *ctx, const char *op, const void *args, uint64_t *bytes);
/* Whether the shapes of the tensors that are given agree, whatever their types and addresses; absent tensors, outputs
 * for example, may still be missing. On a mismatch the error lists the shapes that all inputs must have. */
KRAIT_API int32_t krait_shapes_check(const char *op, const void *args);

#ifdef __cplusplus
}
#endif
#endif

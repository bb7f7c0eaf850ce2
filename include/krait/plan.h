/* plan.h: a call of an operator made ready: checked, its row chosen, its scratch known. Running it takes the addresses of its tensors,
 * stream and scratch. A plan does not change: it may run from any thread while its context lives. */
#ifndef KRAIT_PLAN_H
#define KRAIT_PLAN_H

#include <krait/krait.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct krait_plan krait_plan;
/* args: the op's args struct (krait/ops.h); its addresses say which tensors are given, how they are aligned and which are the same.
 * row: the name of the row to be taken, NULL for the best one. Where it refuses the call, krait_error_detail() says why. */
KRAIT_API int32_t krait_plan_open(const krait_ctx *ctx, const char *op, const void *args, const char *row, krait_plan **plan);
KRAIT_API void krait_plan_close(krait_plan **plan);
/* addresses: in the order of the views in the args struct; those of absent tensors are not looked at. Others than those planned, by their
 * alignment to 16 bytes or by which are the same, are taken too, more slowly. */
KRAIT_API int32_t krait_plan_run(const krait_plan *plan, void *const *addresses, void *stream, void *scratch, uint64_t scratch_bytes);
KRAIT_API uint64_t krait_plan_scratch_bytes(const krait_plan *plan);
KRAIT_API const char *krait_plan_row_name(const krait_plan *plan);

#ifdef __cplusplus
}
#endif
#endif

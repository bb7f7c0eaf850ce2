/* plan.h: a call made ready once: checked, its row chosen, its scratch known. Running it takes addresses alone. A plan
 * does not change; any thread may run it. It lives no longer than its context. */
#ifndef KR_PLAN_H
#define KR_PLAN_H

#include <krait/plan.h>

#include "op.h"

typedef struct krait_plan kr_plan;

/* Addresses in args count for what is given, how they are aligned, and which of them are the same. row: its name, or
 * NULL for the best that is willing; where that one refuses, its sentence. */
int32_t kr_plan_open(const kr_op *op, const krait_ctx *ctx, const void *args, const char *row, kr_plan **plan);
void kr_plan_close(kr_plan **plan);
/* addresses: of the tensors of op->sig, in that order; those that are absent are not looked at. scratch:
 * krait_plan_scratch_bytes of it. Addresses that are aligned otherwise, or the same otherwise, take kr_op_run's way: as
 * right, and slower. */
int32_t kr_plan_run(const kr_plan *plan, void *const *addresses, void *stream, void *scratch, uint64_t scratch_bytes);
const kr_row *kr_plan_row(const kr_plan *plan); /* NULL: through the host */

/* kr_sig_infer for shapes of a caller who may be wrong in any of them (sig.c), and the sizes' limits; a size of -1 is
 * any. The sentence has the shapes of all inputs that are given. */
int32_t kr_sig_take_shapes(const kr_sig *sig, void *args, kr_shape *shapes);
/* krait_args_sizes of an op. */
int32_t kr_args_sizes(const kr_op *op, void *args, const krait_shape *shapes, int32_t n_shapes);

#endif

/* plan.h: a call of an operator made ready: checked, its row chosen, its scratch known. Running it takes the addresses
 * of its tensors, stream and scratch. A plan does not change: it may run from any thread while its context lives. */
#ifndef KRAIT_PLAN_H
#define KRAIT_PLAN_H

#include <krait/krait.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct krait_plan krait_plan;
/* args: the op's args struct (krait/ops.h); its addresses say which tensors are given, how they are aligned and which
 * are the same. row: the name of the row to be taken, NULL for the best one. Where it refuses the call,
 * krait_error_detail() says why. */
KRAIT_API int32_t krait_plan_open(const krait_ctx *ctx, const char *op, const void *args, const char *row,
                                  krait_plan **plan);
KRAIT_API void krait_plan_close(krait_plan **plan);
/* addresses: in the order of the views in the args struct; those of absent tensors are not looked at. Others than those
 * planned, by their alignment to 16 bytes or by which are the same, are taken too, more slowly. */
KRAIT_API int32_t krait_plan_run(const krait_plan *plan, void *const *addresses, void *stream, void *scratch,
                                 uint64_t scratch_bytes);
KRAIT_API uint64_t krait_plan_scratch_bytes(const krait_plan *plan);
KRAIT_API const char *krait_plan_row_name(const krait_plan *plan);

/* The shape of a tensor that an args struct has a view of. A size of -1: any, for instance of an axis whose stride is
 * 0. */
typedef struct krait_shape {
  uint32_t view;  /* where that krait_view lies in the struct, in bytes */
  int32_t n_dims;
  int64_t size[4];
} krait_shape;
/* Writes what the shapes of a call's tensors say about its sizes into args, whose flags, fields and types of views are
 * set; a size that no shape says stays as it was given. Addresses are not looked at: a tensor with a shape counts as
 * given. Where shapes do not fit: a sentence with those that all tensors must have. */
KRAIT_API int32_t krait_args_sizes(const char *op, void *args, const krait_shape *shapes, int32_t n_shapes);

#ifdef __cplusplus
}
#endif
#endif

/* conv3d_impls.h: shared by the implementations of the causal convolution: which frame a tap reads, scratch, and those
 * on a GPU (conv3d_cuda.c). */
#ifndef KR_CONV3D_IMPLS_H
#define KR_CONV3D_IMPLS_H

#include "op_list.h"
#include "view.h"

/* Frames in front of x: the state's, or copies of the first frame. */
static inline int64_t kr_conv3d_front(const kr_conv3d_args *a) {
  return kr_has(&a->initial_states) ? a->past : a->KT - 1;
}

/* Frame e of the extended sequence: its view and its index there. */
static inline const kr_view *kr_conv3d_frame(const kr_conv3d_args *a, int64_t e, int64_t *frame) {
  const int64_t front = kr_conv3d_front(a);
  *frame = e >= front ? e - front : kr_has(&a->initial_states) ? e : 0;
  return e < front && kr_has(&a->initial_states) ? &a->initial_states : &a->x;
}

typedef uint64_t kr_scratch_fn(const krait_ctx *ctx, const void *args);
kr_scratch_fn kr_conv3d_scratch_avx512, kr_conv3d_scratch_avx2, kr_conv3d_scratch_neon, kr_conv3d_scratch_scalar;

/* hopper, ampere: tensor cores, 16-bit maps; ampere also float32 in parts. base: everything. */
const char *kr_conv3d_hopper_refuse(const krait_ctx *ctx, const void *args),
    *kr_conv3d_ampere_refuse(const krait_ctx *ctx, const void *args),
    *kr_conv3d_base_refuse(const krait_ctx *ctx, const void *args);
int32_t kr_conv3d_hopper(const krait_ctx *ctx, const void *args),
    kr_conv3d_ampere(const krait_ctx *ctx, const void *args), kr_conv3d_base(const krait_ctx *ctx, const void *args);

#endif

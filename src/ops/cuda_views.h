/* cuda_views.h: for the host code of kernels: sizes of grids, and what refusals ask of views. */
#ifndef KR_CUDA_VIEWS_H
#define KR_CUDA_VIEWS_H

#include "op_args.h"

static inline uint32_t kr_blocks_of(int64_t n, int64_t each) { return (uint32_t)((n + each - 1) / each); }
/* Whether a kernel's 32-bit offsets could overflow. */
static inline int kr_is_far(int64_t stride) { return stride >= (int64_t)1 << 20 || stride <= -((int64_t)1 << 20); }
static inline int kr_is_aligned(const kr_view *v) { return (uintptr_t)v->data % 16 == 0; }

#endif

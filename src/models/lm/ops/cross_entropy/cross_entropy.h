/* cross_entropy.h: the implementations of the loss at labels. */
#ifndef KR_CROSS_ENTROPY_H
#define KR_CROSS_ENTROPY_H

#include "cuda_impl.h"
#include "lm_ops.h"

KR_CUDA_DECLARE(cross_entropy);
KR_CUDA_DECLARE(cross_entropy_bwd);
#define KR_ISA(isa, cap)                                                  \
  int32_t kr_cross_entropy_##isa(const krait_ctx *ctx, const void *args); \
  int32_t kr_cross_entropy_bwd_##isa(const krait_ctx *ctx, const void *args);
#include "isa.def"
#undef KR_ISA

#endif

/* cuda_row.h: the GPU rows of an op. <op>_cuda.c ends with KR_CUDA_TIERS(op, run), where run takes the tier as its last
 * argument and one kr_<op>_cuda_refuse and kr_<op>_cuda_scratch serve all tiers; <op>.c puts KR_CUDA_ROWS(op) on top. */
#ifndef KR_CUDA_ROW_H
#define KR_CUDA_ROW_H

#include "op.h"

#define KR_CUDA_DECLARE(op)                                                                                      \
  int32_t kr_##op##_cuda_base(const krait_ctx *ctx, const void *args);                                           \
  int32_t kr_##op##_cuda_ampere(const krait_ctx *ctx, const void *args);                                         \
  const char *kr_##op##_cuda_refuse(const krait_ctx *ctx, const void *args);                                     \
  uint64_t kr_##op##_cuda_scratch(const krait_ctx *ctx, const void *args)

#define KR_CUDA_TIERS(op, run)                                                                                   \
  int32_t kr_##op##_cuda_base(const krait_ctx *ctx, const void *args) { return run(ctx, args, KRAIT_CAP_CUDA_BASE); } \
  int32_t kr_##op##_cuda_ampere(const krait_ctx *ctx, const void *args) { return run(ctx, args, KRAIT_CAP_CUDA_AMPERE); }

#define KR_CUDA_ROWS(op)                                                                                         \
  {"cuda_ampere", KRAIT_CAP_CUDA_AMPERE, kr_##op##_cuda_refuse, kr_##op##_cuda_ampere, kr_##op##_cuda_scratch},  \
  {"cuda_base", KRAIT_CAP_CUDA_BASE, kr_##op##_cuda_refuse, kr_##op##_cuda_base, kr_##op##_cuda_scratch},

#endif

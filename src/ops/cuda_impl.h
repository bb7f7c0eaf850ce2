/* cuda_impl.h: the GPU implementations of an op. <op>_cuda.c ends with KR_CUDA_TIERS(op, run), where run takes the tier
 * as its last argument and kr_<op>_cuda_refuse and kr_<op>_cuda_scratch serve all tiers; <op>.c starts its table with
 * KR_CUDA_IMPLS(op). */
#ifndef KR_CUDA_IMPL_H
#define KR_CUDA_IMPL_H

#include "op.h"
#include "rows.h"

#define KR_CUDA_DECLARE(op)                                                                                      \
  int32_t kr_##op##_cuda_base(const krait_ctx *ctx, const void *args);                                           \
  int32_t kr_##op##_cuda_ampere(const krait_ctx *ctx, const void *args);                                         \
  const char *kr_##op##_cuda_refuse(const krait_ctx *ctx, const void *args);                                     \
  uint64_t kr_##op##_cuda_scratch(const krait_ctx *ctx, const void *args)

#define KR_CUDA_TIERS(op, run)                                                                                        \
  int32_t kr_##op##_cuda_base(const krait_ctx *ctx, const void *args) { return run(ctx, args, KRAIT_CAP_CUDA_BASE); } \
  int32_t kr_##op##_cuda_ampere(const krait_ctx *ctx, const void *args) {                                             \
    return run(ctx, args, KRAIT_CAP_CUDA_AMPERE);                                                                     \
  }

#define KR_CUDA_IMPLS(op)                                                                                         \
  {"cuda_ampere", KRAIT_CAP_CUDA_AMPERE, kr_##op##_cuda_refuse, kr_##op##_cuda_ampere, kr_##op##_cuda_scratch},  \
  {"cuda_base", KRAIT_CAP_CUDA_BASE, kr_##op##_cuda_refuse, kr_##op##_cuda_base, kr_##op##_cuda_scratch},

/* If an op has several kernel families, each is an implementation, "cuda_ampere_long_rows", whose refusal defines the
 * calls it takes. List them, best first, in the op's header: #define KR_NORM_FAMILIES(X, op) X(op, aligned_rows) X(op,
 * long_rows); <op>.c adds the list to its table once per tier, better tiers first; <op>_cuda.c defines each with
 * KR_CUDA_FAMILY. */
#define KR_CUDA_FAMILY_DECLARE(op, family)                                                                       \
  int32_t kr_##op##_##family##_base(const krait_ctx *ctx, const void *args);                                     \
  int32_t kr_##op##_##family##_ampere(const krait_ctx *ctx, const void *args);                                   \
  const char *kr_##op##_##family##_refuse(const krait_ctx *ctx, const void *args);                               \
  uint64_t kr_##op##_##family##_scratch(const krait_ctx *ctx, const void *args);
#define KR_CUDA_FAMILY_IMPL(op, family, tier, cap)                                            \
  {"cuda_" #tier "_" #family, cap, kr_##op##_##family##_refuse, kr_##op##_##family##_##tier, \
   kr_##op##_##family##_scratch},
#define KR_CUDA_FAMILY_AMPERE(op, family) KR_CUDA_FAMILY_IMPL(op, family, ampere, KRAIT_CAP_CUDA_AMPERE)
#define KR_CUDA_FAMILY_BASE(op, family) KR_CUDA_FAMILY_IMPL(op, family, base, KRAIT_CAP_CUDA_BASE)
#define KR_CUDA_FAMILIES(list, op) list(KR_CUDA_FAMILY_AMPERE, op) list(KR_CUDA_FAMILY_BASE, op)

/* run(ctx, args, tier, which), refuse and scratch (ctx, args, which): `which` is the op's constant for the family. */
#define KR_CUDA_FAMILY(op, family, which, run, refuse, scratch)                                                        \
  int32_t kr_##op##_##family##_base(const krait_ctx *ctx, const void *args) {                                          \
    return run(ctx, args, KRAIT_CAP_CUDA_BASE, which);                                                                 \
  }                                                                                                                    \
  int32_t kr_##op##_##family##_ampere(const krait_ctx *ctx, const void *args) {                                        \
    return run(ctx, args, KRAIT_CAP_CUDA_AMPERE, which);                                                               \
  }                                                                                                                    \
  const char *kr_##op##_##family##_refuse(const krait_ctx *ctx, const void *args) { return refuse(ctx, args, which); } \
  uint64_t kr_##op##_##family##_scratch(const krait_ctx *ctx, const void *args) { return scratch(ctx, args, which); }

/* A kernel of a source that is compiled once per storage type, indexed by KRAIT_F32, _F16, _BF16. */
#define KR_BY_TYPE(module, name) {{module "_f32", name}, {module "_f16", name}, {module "_bf16", name}}

static inline uint64_t kr_scratch_round(uint64_t bytes) { return (bytes + 255) & ~(uint64_t)255; }

static inline kr_divisor kr_divisor_of(int64_t by) {
  kr_divisor d = {(uint32_t)by, 0, 0};
  while (d.shift < 31 && (1u << d.shift) < d.by) d.shift++;
  d.multiplier = (uint32_t)(((1ull << 32) * ((1ull << d.shift) - d.by)) / (d.by ? d.by : 1) + 1);
  return d;
}

/* A view (batch, row, time) of n steps for a kernel, reversed in time on request. */
static inline kr_rows kr_rows_of(const kr_view *v, int reverse, int64_t n) {
  kr_rows r = {v->data, v->stride[0], v->stride[1], v->stride[2], v->dtype, 0};
  const int64_t per_pack = v->dtype == KRAIT_F32 ? 4 : 8;
  if (!v->data) return r;
  r.packs = !reverse && r.t == 1 && r.b % per_pack == 0 && r.row % per_pack == 0 && (uintptr_t)v->data % 16 == 0;
  if (!reverse) return r;
  r.data = (char *)v->data + (n - 1) * r.t * (int64_t)krait_dtype_bytes(v->dtype);
  r.t = -r.t;
  return r;
}

#endif

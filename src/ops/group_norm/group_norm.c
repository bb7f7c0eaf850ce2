/* group_norm.c: cost and implementations of the norm over groups of channels; group_norm_ref.c has the equation. Bound:
 * float32 3e-5, 16-bit storage one rounding. */
#include "cuda_impl.h"
#include "group_norm/group_norm_impls.h"
#include "view.h"

static void count_group_norm_cost(const void *args, kr_cost *cost) {
  const kr_group_norm_args *a = args;
  const double n = (double)a->B * (double)a->S * (double)a->C;
  *cost = (kr_cost){.flops = 6 * n,
                    .bytes = 2 * n * (double)krait_dtype_bytes(a->x.dtype),
                    .exps = a->activation == KRAIT_ACT_SILU ? n : 0};
}

static const char *refuse_group_norm_simd(const krait_ctx *ctx, const void *args) {
  const kr_group_norm_args *a = args;
  (void)ctx;
  if (a->x.dtype == KRAIT_F64 || a->weight.dtype == KRAIT_F64 || a->bias.dtype == KRAIT_F64) return "no float64";
  return a->x.stride[2] != 1 || a->out.stride[2] != 1 ? "channels are not contiguous" : NULL;
}

/* Means and sums of squares of each chunk's channels; scale and shift of each b's channels. */
static uint64_t group_norm_scratch(const krait_ctx *ctx, const void *args) {
  const kr_group_norm_args *a = args;
  (void)ctx;
  return (uint64_t)(a->B * (2 * kr_group_norm_chunks(a->S) + 2) * a->C) * sizeof(float);
}

KR_CUDA_DECLARE(group_norm);

static const kr_impl impls[] = {
    KR_CUDA_IMPLS(group_norm)
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_group_norm_simd, kr_group_norm_##isa, group_norm_scratch},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_group_norm_ref, NULL},
};

KR_OP_DEFINE(group_norm, impls, NULL, count_group_norm_cost, kr_group_norm_case, 200)

/* cross_entropy.c: costs and implementations of the loss at labels and its gradient; cross_entropy_ref.c has the
 * equations. Bounds: 1e-5 of a loss, 2e-5 of a gradient, and one rounding in 16 bits. */
#include "cross_entropy/cross_entropy.h"
#include "view.h"

static void count_cross_entropy(const void *args, kr_cost *cost) {
  const kr_cross_entropy_args *a = args;
  const double n = (double)a->R * (double)a->V;
  *cost = (kr_cost){.flops = 3 * n, .bytes = n * (double)krait_dtype_bytes(a->logits.dtype), .exps = n};
}
static void count_cross_entropy_bwd(const void *args, kr_cost *cost) {
  const kr_cross_entropy_bwd_args *a = args;
  const double n = (double)a->R * (double)a->V;
  *cost = (kr_cost){.flops = 3 * n, .bytes = 2 * n * (double)krait_dtype_bytes(a->logits.dtype), .exps = n};
}

static const char *refuse_cross_entropy_simd(const krait_ctx *ctx, const void *args) {
  const kr_cross_entropy_args *a = args;
  (void)ctx;
  return a->logits.dtype == KRAIT_F64 ? "float64 tensors" : NULL;
}
static const char *refuse_cross_entropy_bwd_simd(const krait_ctx *ctx, const void *args) {
  const kr_cross_entropy_bwd_args *a = args;
  (void)ctx;
  return a->logits.dtype == KRAIT_F64 ? "float64 tensors" : NULL;
}

static const kr_impl forward_impls[] = {
    KR_CUDA_IMPLS(cross_entropy)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_cross_entropy_simd, kr_cross_entropy_##isa, NULL},
#include "isa.def"
#undef KR_ISA
        {"ref", KRAIT_CAP_CPU, NULL, kr_cross_entropy_ref, NULL},
};
static const kr_impl gradient_impls[] = {
    KR_CUDA_IMPLS(cross_entropy_bwd)
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_cross_entropy_bwd_simd, kr_cross_entropy_bwd_##isa, NULL},
#include "isa.def"
#undef KR_ISA
        {"ref", KRAIT_CAP_CPU, NULL, kr_cross_entropy_bwd_ref, NULL},
};

KR_OP_DEFINE(cross_entropy, forward_impls, NULL, count_cross_entropy, kr_cross_entropy_case, 300)
KR_OP_DEFINE(cross_entropy_bwd, gradient_impls, NULL, count_cross_entropy_bwd, kr_cross_entropy_bwd_case, 300)

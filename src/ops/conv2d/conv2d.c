/* conv2d.c: contracts, costs and implementations of channels-last convolutions, (B,H,W,C): depthwise with its gradient,
 * unfold (im2col) and fold. The equations are in conv2d_ref.c. */
#include "conv2d/conv2d_impls.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

static double positions(const kr_depthwise_conv_args *a) {
  return (double)a->B * (double)a->H * (double)a->W * (double)a->C;
}

static void count_conv(const void *args, kr_cost *cost) {
  const kr_depthwise_conv_args *a = args;
  *cost = (kr_cost){.flops = positions(a) * 2 * (double)a->KH * (double)a->KW,
                    .bytes = positions(a) * 2 * (double)krait_dtype_bytes(a->x.dtype)};
}
static void count_conv_bwd(const void *args, kr_cost *cost) {
  const kr_depthwise_conv_bwd_args *a = args;
  const double n = (double)a->B * (double)a->H * (double)a->W * (double)a->C;
  *cost =
      (kr_cost){.flops = n * 4 * (double)a->KH * (double)a->KW, .bytes = n * 3 * (double)krait_dtype_bytes(a->x.dtype)};
}
static void count_unfold(const void *args, kr_cost *cost) {
  const kr_unfold_args *a = args;
  *cost = (kr_cost){.bytes = (double)krait_dtype_bytes(a->x.dtype) *
                             ((double)a->B * (double)a->H * (double)a->W * (double)a->C +
                              (double)a->B * (double)a->OH * (double)a->OW * (double)a->K)};
}
static void count_fold(const void *args, kr_cost *cost) {
  const kr_fold_args *a = args;
  *cost = (kr_cost){.bytes = (double)krait_dtype_bytes(a->x.dtype) *
                             ((double)a->B * (double)a->H * (double)a->W * (double)a->C +
                              (double)a->B * (double)a->OH * (double)a->OW * (double)a->K)};
  cost->flops = (double)a->B * (double)a->OH * (double)a->OW * (double)a->K;
}

static const char *const gaps = "channels are not contiguous", *const halves = "16-bit tensors";

static const char *refuse_conv2d_conv(const krait_ctx *ctx, const void *args) {
  const kr_depthwise_conv_args *a = args;
  (void)ctx;
  if (a->x.dtype != KRAIT_F32) return halves;
  return a->x.stride[3] != 1 || a->out.stride[3] != 1 ? gaps : NULL;
}
static const char *refuse_conv_bwd(const krait_ctx *ctx, const void *args) {
  const kr_depthwise_conv_bwd_args *a = args;
  (void)ctx;
  if (a->x.dtype != KRAIT_F32) return halves;
  return a->x.stride[3] != 1 || a->dout.stride[3] != 1 || (kr_has(&a->dx) && a->dx.stride[3] != 1) ? gaps : NULL;
}
static const char *refuse_unfold(const krait_ctx *ctx, const void *args) {
  const kr_unfold_args *a = args;
  (void)ctx;
  if (a->x.dtype != KRAIT_F32) return halves;
  return a->x.stride[3] != 1 || a->out.stride[3] != 1 ? gaps : NULL;
}
static const char *refuse_fold(const krait_ctx *ctx, const void *args) {
  const kr_fold_args *a = args;
  (void)ctx;
  if (a->x.dtype != KRAIT_F32) return halves;
  return a->x.stride[3] != 1 || a->out.stride[3] != 1 ? gaps : NULL;
}

static int32_t check_unfold(const void *args) {
  const kr_unfold_args *a = args;
  KR_CHECK(a->K == a->KH * a->KW * a->C, KRAIT_ERR_SHAPE, "unfold: K is %lld, must be KH KW C = %lld", (long long)a->K,
           (long long)(a->KH * a->KW * a->C));
  return KRAIT_OK;
}
static int32_t check_fold(const void *args) {
  const kr_fold_args *a = args;
  KR_CHECK(a->K == a->KH * a->KW * a->C, KRAIT_ERR_SHAPE, "fold: K is %lld, must be KH KW C = %lld", (long long)a->K,
           (long long)(a->KH * a->KW * a->C));
  return KRAIT_OK;
}

static const kr_impl conv_impls[] = {
    KR_CUDA_IMPLS(depthwise_conv)
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_conv2d_conv, kr_depthwise_conv_##isa, kr_depthwise_conv_scratch},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_depthwise_conv_ref, NULL},
};
static const kr_impl conv_bwd_impls[] = {
    KR_CUDA_IMPLS(depthwise_conv_bwd)
#define KR_ISA(isa, cap) \
  {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_conv_bwd, kr_depthwise_conv_bwd_##isa, kr_depthwise_conv_bwd_scratch},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_depthwise_conv_bwd_ref, NULL},
};
static const kr_impl unfold_impls[] = {
    KR_CUDA_IMPLS(unfold)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_unfold, kr_unfold_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_unfold_ref, NULL},
};
static const kr_impl fold_impls[] = {
    KR_CUDA_IMPLS(fold)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_fold, kr_fold_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_fold_ref, NULL},
};

KR_OP_DEFINE(depthwise_conv, conv_impls, NULL, count_conv, kr_depthwise_conv_case, 200)
KR_OP_DEFINE(depthwise_conv_bwd, conv_bwd_impls, NULL, count_conv_bwd, kr_depthwise_conv_bwd_case, 200)
KR_OP_DEFINE(unfold, unfold_impls, check_unfold, count_unfold, kr_unfold_case, 200)
KR_OP_DEFINE(fold, fold_impls, check_fold, count_fold, kr_fold_case, 200)

uint64_t kr_depthwise_conv_scratch(const krait_ctx *ctx, const void *args) {
  const kr_depthwise_conv_args *a = args;
  (void)ctx;
  return (uint64_t)((a->KH * a->KW + 1) * kr_whole_lanes(a->C)) * sizeof(float);
}
uint64_t kr_depthwise_conv_bwd_scratch(const krait_ctx *ctx, const void *args) {
  const kr_depthwise_conv_bwd_args *a = args;
  (void)ctx;
  return (uint64_t)((a->KH * a->KW + 1) * kr_whole_lanes(a->C) * (1 + kr_conv_chunks(a->B * a->H))) * sizeof(float);
}

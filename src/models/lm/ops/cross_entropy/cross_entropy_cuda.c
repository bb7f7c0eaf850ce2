/* cross_entropy_cuda.c: launches of the loss at labels and its gradient on a GPU. */
#include "cross_entropy/cross_entropy.h"
#include "cross_entropy/cross_entropy_params.h"
#include "view.h"

#define BY_DTYPE(name) {{"cross_entropy", name "_f32"}, {"cross_entropy", name "_f16"}, {"cross_entropy", name "_bf16"}}

static const char *refuse_cross_entropy(int64_t R, int32_t dtype) {
  if (dtype == KRAIT_F64) return "float64 tensors";
  return R >= (int64_t)1 << 31 ? "2^31 rows or more" : NULL;
}
const char *kr_cross_entropy_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_cross_entropy_args *a = args;
  return (void)ctx, refuse_cross_entropy(a->R, a->logits.dtype);
}
const char *kr_cross_entropy_bwd_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_cross_entropy_bwd_args *a = args;
  return (void)ctx, refuse_cross_entropy(a->R, a->logits.dtype);
}
uint64_t kr_cross_entropy_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }
uint64_t kr_cross_entropy_bwd_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

static int32_t launch_rows(const krait_ctx *ctx, uint64_t tier, const kr_kernel *kernel, int64_t R, void *stream,
                           const kr_cross_entropy_params *p) {
  const kr_grid grid = {.x = (uint32_t)R, .block = KR_LOSS_ROW_THREADS, .stream = stream};
  return R ? kr_cuda_launch(ctx->cuda, tier, kernel, &grid, p, sizeof *p) : KRAIT_OK;
}

static int32_t run_cross_entropy(const krait_ctx *ctx, const void *args, uint64_t tier) {
  static const kr_kernel kernels[] = BY_DTYPE("kr_cross_entropy");
  const kr_cross_entropy_args *a = args;
  const kr_cross_entropy_params p = {.logits = a->logits,
                                     .labels = a->labels,
                                     .losses = a->losses,
                                     .lse = a->lse,
                                     .top = a->top,
                                     .log_sum = a->log_sum,
                                     .V = a->V,
                                     .smoothing = a->label_smoothing,
                                     .scale = a->logit_scale,
                                     .packs = a->logits.stride[1] == 1};
  return launch_rows(ctx, tier, &kernels[a->logits.dtype], a->R, a->call.stream, &p);
}

/* Rows begin as far from a multiple of 16 bytes in both. */
static int are_aligned_alike(const kr_view *v, const kr_view *w) {
  const int64_t bytes = (int64_t)krait_dtype_bytes(v->dtype);
  return v->stride[1] == 1 && w->stride[1] == 1 && ((uintptr_t)v->data - (uintptr_t)w->data) % 16 == 0 &&
         (v->stride[0] - w->stride[0]) * bytes % 16 == 0;
}

static int32_t run_cross_entropy_bwd(const krait_ctx *ctx, const void *args, uint64_t tier) {
  static const kr_kernel kernels[] = BY_DTYPE("kr_cross_entropy_bwd");
  const kr_cross_entropy_bwd_args *a = args;
  const kr_cross_entropy_params p = {.logits = a->logits,
                                     .labels = a->labels,
                                     .losses = a->dlosses,
                                     .top = a->top,
                                     .log_sum = a->log_sum,
                                     .dlse = a->dlse,
                                     .dlogits = a->dlogits,
                                     .V = a->V,
                                     .smoothing = a->label_smoothing,
                                     .scale = a->logit_scale,
                                     .packs = are_aligned_alike(&a->logits, &a->dlogits)};
  return launch_rows(ctx, tier, &kernels[a->logits.dtype], a->R, a->call.stream, &p);
}

KR_CUDA_TIERS(cross_entropy, run_cross_entropy)
KR_CUDA_TIERS(cross_entropy_bwd, run_cross_entropy_bwd)

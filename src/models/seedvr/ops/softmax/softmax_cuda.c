/* softmax_cuda.c: launches of the softmax of rows on a GPU. */
#include "cuda_impl.h"
#include "seedvr/ops/seedvr_ops.h"
#include "seedvr/ops/softmax/softmax_params.h"

const char *kr_softmax_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_softmax_args *a = args;
  (void)ctx;
  return a->M >= (int64_t)1 << 31 ? "2^31 rows or more" : NULL;
}
uint64_t kr_softmax_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

static int32_t run_softmax(const krait_ctx *ctx, const void *args, uint64_t tier) {
  static const kr_kernel kernel = {"softmax", "kr_softmax"};
  const kr_softmax_args *a = args;
  const kr_softmax_params p = {.x = a->x, .out = a->out, .N = a->N};
  const kr_grid grid = {.x = (uint32_t)a->M, .block = KR_SOFTMAX_THREADS, .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, tier, &kernel, &grid, &p, sizeof p);
}

KR_CUDA_TIERS(softmax, run_softmax)

/* mean_product_cuda.c: params and launch of a mean and its product. */
#include "cuda_impl.h"
#include "mean_product/mean_product_params.h"
#include "mean_product/mean_product_impls.h"
#include "primeknet_ops.h"

static const kr_kernel kernel = {"mean_product", "kr_mean_product"};

enum { THREADS = 256, MOST_CHANNELS = 64 }; /* must match mean_product.cu */

const char *kr_mean_product_refuse(const krait_ctx *ctx, const void *args) {
  const kr_mean_product_args *a = args;
  const kr_view *x = &a->x, *out = &a->out;
  (void)ctx;
  if (a->C % 4 || a->C > MOST_CHANNELS) return "channels are not a multiple of four up to 64";
  if ((double)a->I * (double)a->J >= 2147483648.0 || a->S >= (int64_t)1 << 30) return "2^31 sequences, or longer ones";
  if (x->stride[3] != 1 || x->stride[0] % 4 || x->stride[1] % 4 || x->stride[2] % 4 || (uintptr_t)x->data % 16)
    return "unaligned positions";
  if (out->stride[2] != 1 || (a->J > 1 && out->stride[1] != a->C) || (a->I > 1 && out->stride[0] != a->J * a->C))
    return "out is not contiguous";
  if (a->weight.stride[0] != 1 || a->weight.stride[1] >= (int64_t)1 << 31 || a->weight.stride[1] < 0 ||
      (a->bias.data && a->bias.stride[0] != 1))
    return "the weight's outputs are not contiguous";
  return NULL;
}

static int32_t run_mean_product(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_mean_product_args *a = args;
  const kr_mean_product_params p = {.x = a->x.data,
                                  .weight = a->weight.data,
                                  .bias = a->bias.data,
                                  .out = a->out.data,
                                  .x_i = a->x.stride[0],
                                  .x_j = a->x.stride[1],
                                  .x_s = a->x.stride[2],
                                  .S = (int32_t)a->S,
                                  .C = (int32_t)a->C,
                                  .weight_in = (int32_t)a->weight.stride[1],
                                  .J = kr_divisor_of(a->J)};
  const kr_grid grid = {.x = (uint32_t)(a->I * a->J), .block = THREADS, .stream = a->call.stream};
  return a->I && a->J ? kr_cuda_launch(ctx->cuda, tier, &kernel, &grid, &p, sizeof p) : KRAIT_OK;
}

int32_t kr_mean_product_ampere(const krait_ctx *ctx, const void *args) {
  return run_mean_product(ctx, args, KRAIT_CAP_CUDA_AMPERE);
}
int32_t kr_mean_product_base(const krait_ctx *ctx, const void *args) {
  return run_mean_product(ctx, args, KRAIT_CAP_CUDA_BASE);
}

/* gated_filter_cuda.c: params and launch of the product of two filters. */
#include "cuda_impl.h"
#include "cuda_views.h"
#include "gated_filter/gated_filter_params.h"
#include "gated_filter/gated_filter_impls.h"
#include "primeknet_ops.h"

static const kr_kernel three = {"gated_filter", "kr_gated_filter_3"}, any = {"gated_filter", "kr_gated_filter"};

static int is_in_fours_for_gated_filter(const kr_view *v) {
  return v->stride[3] == 1 && v->stride[0] % 4 == 0 && v->stride[1] % 4 == 0 && v->stride[2] % 4 == 0 &&
         (uintptr_t)v->data % 16 == 0;
}

const char *kr_gated_filter_refuse(const krait_ctx *ctx, const void *args) {
  const kr_gated_filter_args *a = args;
  (void)ctx;
  if (a->C % 4 || a->C > 4 * KR_GATED_FILTER_THREADS || a->H >= (int64_t)1 << 20 || a->W >= (int64_t)1 << 31 ||
      a->B > 65535 || a->K >= 1 << 10 || a->P >= 1 << 10)
    return "channels not a multiple of four up to 640, or another size too large";
  if (a->H > 65535 * (KR_GATED_FILTER_THREADS / (a->C / 4))) return "too many positions along H";
  if (!is_in_fours_for_gated_filter(&a->x) || !is_in_fours_for_gated_filter(&a->out) ||
      kr_is_far(a->x.stride[2]) || kr_is_far(a->out.stride[2]))
    return "unaligned positions";
  if (a->weight.stride[0] != 1 || (a->K > 1 && a->weight.stride[1] % 4) ||
      kr_is_far(a->weight.stride[1]) || (uintptr_t)a->weight.data % 16 ||
      (a->bias.data && (a->bias.stride[0] != 1 || (uintptr_t)a->bias.data % 16)))
    return "a tap's channels are not contiguous and aligned";
  return NULL;
}

static int32_t run_gated_filter(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_gated_filter_args *a = args;
  const kr_gated_filter_params p = {.x = a->x.data,
                                  .weight = a->weight.data,
                                  .bias = a->bias.data,
                                  .out = a->out.data,
                                  .x_b = a->x.stride[0],
                                  .x_h = a->x.stride[1],
                                  .out_b = a->out.stride[0],
                                  .out_h = a->out.stride[1],
                                  .H = (int32_t)a->H,
                                  .C = (int32_t)a->C,
                                  .K = (int32_t)a->K,
                                  .P = (int32_t)a->P,
                                  .x_w = (int32_t)a->x.stride[2],
                                  .out_w = (int32_t)a->out.stride[2],
                                  .tap = (int32_t)a->weight.stride[1]};
  const uint32_t per_row = (uint32_t)a->C / 4, side = KR_GATED_FILTER_THREADS / per_row;
  const kr_grid grid = {.x = (uint32_t)a->W,
                        .y = ((uint32_t)a->H + side - 1) / side,
                        .z = (uint32_t)a->B,
                        .block = side * per_row,
                        .stream = a->call.stream};
  if (!a->B || !a->H || !a->W) return KRAIT_OK;
  return kr_cuda_launch(ctx->cuda, tier, a->K == 3 ? &three : &any, &grid, &p, sizeof p);
}

int32_t kr_gated_filter_ampere(const krait_ctx *ctx, const void *args) {
  return run_gated_filter(ctx, args, KRAIT_CAP_CUDA_AMPERE);
}
int32_t kr_gated_filter_base(const krait_ctx *ctx, const void *args) {
  return run_gated_filter(ctx, args, KRAIT_CAP_CUDA_BASE);
}

/* filter_bank_cuda.c: params and launch of a gated bank of filters. */
#include "cuda_impl.h"
#include "cuda_views.h"
#include "filter_bank/filter_bank_params.h"
#include "filter_bank/filter_bank_impls.h"
#include "primeknet_ops.h"

static const kr_kernel in_floats = {"filter_bank", "kr_filter_bank"},
                       in_halves = {"filter_bank_halves", "kr_filter_bank"};

/* Contiguous channels, evenly spaced rows; residual and skip as out. */
static int is_like_out_for_filter_bank(const kr_view *v, const kr_filter_bank_args *a) {
  const int64_t row = a->out.stride[2];
  return v->stride[3] == 1 && v->stride[2] == row && v->stride[1] == a->W * row && v->stride[0] == a->H * a->W * row &&
         kr_is_aligned(v);
}
static int are_taps(const kr_view *v) {
  return v->stride[0] == 1 && v->stride[1] % 2 == 0 && !kr_is_far(v->stride[1]) &&
         kr_is_aligned(v);
}
static int is_vector_for_filter_bank(const kr_view *v) { return v->stride[0] == 1 && kr_is_aligned(v); }

static const char *refuse_filter_bank_rest(const kr_filter_bank_args *a) {
  if (a->C > KR_TILE_COLUMNS || a->C % 16) return "not 16, 32, 48 or 64 channels";
  if (a->B > 65535 || a->H > 65535 * KR_TILE_SIDE || a->B * a->H * a->W >= (int64_t)1 << 31 || a->K >= 1 << 20)
    return "too many positions or taps";
  if (a->x.stride[3] != 1 || (a->x.stride[0] | a->x.stride[1] | a->x.stride[2]) % 2 ||
      !kr_is_aligned(&a->x) || kr_is_far(a->x.stride[2]))
    return "unaligned positions of x";
  if (kr_is_far(a->out.stride[2]) || a->out.stride[2] % 4 || !is_like_out_for_filter_bank(&a->out, a) ||
      !is_like_out_for_filter_bank(&a->residual, a) || (a->skip.data && !is_like_out_for_filter_bank(&a->skip, a)))
    return "rows of out, residual and skip are not evenly spaced alike";
  if (!are_taps(&a->taps) || !are_taps(&a->gate_taps)) return "a tap's channels are not contiguous and aligned";
  if (!is_vector_for_filter_bank(&a->taps_bias) || !is_vector_for_filter_bank(&a->gate_bias) ||
      !is_vector_for_filter_bank(&a->weight_bias) || !is_vector_for_filter_bank(&a->out_bias) ||
      (a->skip_scale.data && !is_vector_for_filter_bank(&a->skip_scale)))
    return "a bias is not contiguous and aligned";
  return NULL;
}

const char *kr_filter_bank_refuse(const krait_ctx *ctx, const void *args) {
  const kr_filter_bank_args *a = args;
  (void)ctx;
  for (int i = 0; i < 2; i++) {
    const kr_view *w = i ? &a->out_weight : &a->weight;
    if (w->dtype != KRAIT_F32 || w->stride[0] != 1 || w->stride[1] % 4 || kr_is_far(w->stride[1]) ||
        !kr_is_aligned(w))
      return "weights are not float32 with contiguous outputs";
  }
  return refuse_filter_bank_rest(a);
}

const char *kr_filter_bank_halves_refuse(const krait_ctx *ctx, const void *args) {
  const kr_filter_bank_args *a = args;
  (void)ctx;
  if (!(a->call.flags & KR_FILTER_BANK_TF32)) return "KR_FILTER_BANK_TF32 is not given";
  for (int i = 0; i < 2; i++) {
    const kr_view *w = i ? &a->out_weight : &a->weight;
    if (w->dtype != KRAIT_F16 || w->stride[1] != 1 || w->stride[0] % 8 || kr_is_far(w->stride[0]) ||
        !kr_is_aligned(w))
      return "weights are not aligned float16 rows";
  }
  return refuse_filter_bank_rest(a);
}

static int32_t run_filter_bank(const krait_ctx *ctx, const void *args, uint64_t tier, int halves) {
  const kr_filter_bank_args *a = args;
  kr_filter_bank_params p = {.x = a->x.data,
                           .taps = a->taps.data,
                           .taps_bias = a->taps_bias.data,
                           .gate_taps = a->gate_taps.data,
                           .gate_bias = a->gate_bias.data,
                           .weight_bias = a->weight_bias.data,
                           .out_bias = a->out_bias.data,
                           .residual = a->residual.data,
                           .skip = a->skip.data,
                           .skip_scale = a->skip_scale.data,
                           .weight = a->weight.data,
                           .out_weight = a->out_weight.data,
                           .out = a->out.data,
                           .x_b = a->x.stride[0],
                           .x_h = a->x.stride[1],
                           .H = (int32_t)a->H,
                           .W = (int32_t)a->W,
                           .C = (int32_t)a->C,
                           .n_chunks = (int32_t)a->J,
                           .one_sided = (a->call.flags & KR_FILTER_BANK_ONE_SIDED) != 0,
                           .x_w = (int32_t)a->x.stride[2],
                           .tap = (int32_t)a->taps.stride[1],
                           .gate_tap = (int32_t)a->gate_taps.stride[1],
                           .weight_row = (int32_t)a->weight.stride[!halves],
                           .out_weight_row = (int32_t)a->out_weight.stride[!halves],
                           .row = (int32_t)a->out.stride[2]};
  for (int64_t j = 0; j < a->J; j++) p.K[j] = (int32_t)kr_filter_bank_lengths(a)[j];
  const kr_grid grid = {.x = (uint32_t)((a->W + KR_TILE_SIDE - 1) / KR_TILE_SIDE),
                        .y = (uint32_t)((a->H + KR_TILE_SIDE - 1) / KR_TILE_SIDE),
                        .z = (uint32_t)a->B,
                        .block = halves ? KR_TILE_THREADS_HALVES : KR_TILE_THREADS,
                        .stream = a->call.stream};
  if (!a->B || !a->H || !a->W) return KRAIT_OK;
  return kr_cuda_launch(ctx->cuda, tier, halves ? &in_halves : &in_floats, &grid, &p, sizeof p);
}

int32_t kr_filter_bank_halves(const krait_ctx *ctx, const void *args) {
  return run_filter_bank(ctx, args, KRAIT_CAP_CUDA_AMPERE, 1);
}
int32_t kr_filter_bank_ampere(const krait_ctx *ctx, const void *args) {
  return run_filter_bank(ctx, args, KRAIT_CAP_CUDA_AMPERE, 0);
}
int32_t kr_filter_bank_base(const krait_ctx *ctx, const void *args) {
  return run_filter_bank(ctx, args, KRAIT_CAP_CUDA_BASE, 0);
}

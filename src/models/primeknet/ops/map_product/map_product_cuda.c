/* map_product_cuda.c: params and launch of a product at every position of a map. */
#include "cuda_impl.h"
#include "cuda_views.h"
#include "map_product/map_product_params.h"
#include "map_product/map_product_impls.h"
#include "primeknet_ops.h"
#include "view.h"

enum { AS_THEY_ARE, HELD, NORMED, SCALED, CONVOLVED };
#define KERNELS(module)                                                                                      \
  {{module, "kr_map_product"}, {module, "kr_map_product_held"}, {module, "kr_map_product_norm"},             \
   {module, "kr_map_product_scaled"}, {module, "kr_map_product_conv"}}
static const kr_kernel kernels[2][5] = {KERNELS("map_product"), KERNELS("map_product_halves")},
                       few = {"map_product", "kr_map_product_few"};

static int map_product_kind_of(const kr_map_product_args *a) {
  if (kr_has(&a->conv_weight)) return CONVOLVED;
  if (a->call.flags & KR_MAP_NORM) return NORMED;
  if (kr_has(&a->factors)) return SCALED;
  return a->C <= KR_TILE_COLUMNS && !kr_has(&a->residual) && !kr_has(&a->skip) ? HELD : AS_THEY_ARE;
}

static int is_vector_for_map_product(const kr_view *v) {
  return !kr_has(v) || (v->stride[0] == 1 && kr_is_aligned(v));
}

/* Contiguous channels, evenly spaced rows. */
static int are_rows_for_map_product(const kr_view *v, const kr_map_product_args *a) {
  const int64_t row = v->stride[2];
  return v->stride[3] == 1 && row % 4 == 0 && row > 0 && !kr_is_far(row) &&
         (a->H < 2 || v->stride[1] == a->W * row) && (a->B < 2 || v->stride[0] == a->H * a->W * row) &&
         kr_is_aligned(v);
}
static int is_like_out_for_map_product(const kr_view *v, const kr_map_product_args *a) {
  return !kr_has(v) || (are_rows_for_map_product(v, a) && v->stride[2] == a->out.stride[2]);
}
static int are_factors(const kr_view *v) {
  return v->stride[3] == 1 && (v->stride[0] | v->stride[1] | v->stride[2]) % 4 == 0 && kr_is_aligned(v);
}

static const char *refuse_map_product_rest(const kr_map_product_args *a) {
  const int kind = map_product_kind_of(a), has_addends = kr_has(&a->residual) || kr_has(&a->skip);
  if (a->C % 16 || a->N % 4 || a->M % 4 || a->silu_from % 4)
    return "channels not a multiple of 16, or outputs not a multiple of four";
  if ((kind == NORMED || kind == SCALED) && a->C > KR_TILE_COLUMNS) return "norm or factors with more than 64 channels";
  if (a->call.flags & KR_MAP_GATE && (kind != NORMED || a->call.flags & KR_MAP_SILU))
    return "KR_MAP_GATE without the norm, or with KR_MAP_SILU";
  if (has_addends && (kind == NORMED || kind == CONVOLVED || a->call.flags & KR_MAP_SILU))
    return "residual or skip with a norm, a convolution or KR_MAP_SILU";
  if (a->call.flags & KR_MAP_SILU && (kind == AS_THEY_ARE || kind == SCALED)) return "KR_MAP_SILU with wide rows";
  if ((double)a->B * (double)a->H * (double)a->W >= 2147483648.0 || a->C >= 1 << 20 || a->N >= 1 << 20 ||
      a->K >= 1 << 10)
    return "2^31 positions, 2^20 channels or 2^10 taps, or more";
  if (!are_rows_for_map_product(&a->x, a) || !are_rows_for_map_product(&a->out, a) ||
      (kind == CONVOLVED && !are_rows_for_map_product(&a->conv_out, a)) ||
      !is_like_out_for_map_product(&a->residual, a) || !is_like_out_for_map_product(&a->skip, a))
    return "rows are not evenly spaced and aligned, or residual or skip unlike out";
  if (kind == SCALED && !are_factors(&a->factors)) return "unaligned factors";
  if (kind == CONVOLVED && (a->conv_weight.stride[1] != 1 || a->conv_weight.stride[0] != a->K))
    return "a channel's taps are not contiguous";
  return is_vector_for_map_product(&a->conv_bias) && is_vector_for_map_product(&a->bias) &&
                 is_vector_for_map_product(&a->skip_scale)
             ? NULL
             : "a bias is not contiguous and aligned";
}

const char *kr_map_product_refuse(const krait_ctx *ctx, const void *args) {
  const kr_map_product_args *a = args;
  const kr_view *w = &a->weight;
  (void)ctx;
  if (w->dtype != KRAIT_F32 || w->stride[0] != 1 || w->stride[1] % 4 || kr_is_far(w->stride[1]) ||
      !kr_is_aligned(w))
    return "weights are not float32 with contiguous outputs";
  return refuse_map_product_rest(a);
}

const char *kr_map_product_halves_refuse(const krait_ctx *ctx, const void *args) {
  const kr_map_product_args *a = args;
  const kr_view *w = &a->weight;
  (void)ctx;
  if (!(a->call.flags & KR_MAP_TF32)) return "KR_MAP_TF32 is not given";
  if (w->dtype != KRAIT_F16 || w->stride[1] != 1 || w->stride[0] % 8 || kr_is_far(w->stride[0]) ||
      !kr_is_aligned(w))
    return "weights are not aligned float16 rows";
  return refuse_map_product_rest(a);
}

/* Rows once computed serve all columns, unless that leaves multiprocessors idle. */
static int32_t tiles_per_block(const krait_ctx *ctx, int kind, int64_t row_blocks, int32_t tiles) {
  if (kind != NORMED && kind != HELD) return 1;
  int32_t per_block = tiles;
  while (per_block % 2 == 0 &&
         row_blocks * (tiles / per_block) < 4 * (int64_t)kr_cuda_info(ctx->cuda)->n_multiprocessors)
    per_block /= 2;
  return per_block;
}

/* weight_row: input stride; with float16, output stride. */
static kr_map_product_params map_product_plan_of(const kr_map_product_args *a, int input_dim) {
  const int64_t n = a->B * a->H * a->W;
  return (kr_map_product_params){.x = a->x.data,
                                 .factors = a->factors.data,
                                 .conv_weight = a->conv_weight.data,
                                 .conv_bias = a->conv_bias.data,
                                 .bias = a->bias.data,
                                 .residual = a->residual.data,
                                 .skip = a->skip.data,
                                 .skip_scale = a->skip_scale.data,
                                 .weight = a->weight.data,
                                 .out = a->out.data,
                                 .conv_out = a->conv_out.data,
                                 .n_rows = n,
                                 .factors_b = a->factors.stride[0],
                                 .factors_h = a->factors.stride[1],
                                 .factors_w = a->factors.stride[2],
                                 .W = kr_divisor_of(a->W ? a->W : 1),
                                 .item = kr_divisor_of(n ? a->H * a->W : 1),
                                 .C = (int32_t)a->C,
                                 .N = (int32_t)a->N,
                                 .K = (int32_t)a->K,
                                 .gate = (a->call.flags & KR_MAP_GATE) != 0,
                                 .silu_from = (int32_t)(a->call.flags & KR_MAP_SILU ? a->silu_from : a->N),
                                 .x_row = (int32_t)a->x.stride[2],
                                 .conv_row = (int32_t)a->conv_out.stride[2],
                                 .out_row = (int32_t)a->out.stride[2],
                                 .weight_row = (int32_t)a->weight.stride[input_dim],
                                 .weight_output = (int32_t)a->weight.stride[0],
                                 .eps = a->eps};
}

static int32_t run_map_product(const krait_ctx *ctx, const void *args, uint64_t tier, int halves) {
  const kr_map_product_args *a = args;
  const int64_t n = a->B * a->H * a->W, row_blocks = (n + KR_TILE_ROWS - 1) / KR_TILE_ROWS;
  const int32_t tiles = (int32_t)((a->N + KR_TILE_COLUMNS - 1) / KR_TILE_COLUMNS), kind = map_product_kind_of(a);
  kr_map_product_params p = map_product_plan_of(a, !halves);
  p.tiles_per_block = tiles_per_block(ctx, kind, row_blocks, tiles);
  const kr_grid grid = {.x = (uint32_t)row_blocks,
                        .y = (uint32_t)((tiles + p.tiles_per_block - 1) / p.tiles_per_block),
                        .block = halves ? KR_TILE_THREADS_HALVES : KR_TILE_THREADS,
                        .stream = a->call.stream};
  return n ? kr_cuda_launch(ctx->cuda, tier, &kernels[halves][kind], &grid, &p, sizeof p) : KRAIT_OK;
}

int32_t kr_map_product_halves(const krait_ctx *ctx, const void *args) {
  return run_map_product(ctx, args, KRAIT_CAP_CUDA_AMPERE, 1);
}
int32_t kr_map_product_ampere(const krait_ctx *ctx, const void *args) {
  return run_map_product(ctx, args, KRAIT_CAP_CUDA_AMPERE, 0);
}
int32_t kr_map_product_base(const krait_ctx *ctx, const void *args) {
  return run_map_product(ctx, args, KRAIT_CAP_CUDA_BASE, 0);
}

const char *kr_map_product_few_refuse(const krait_ctx *ctx, const void *args) {
  const kr_map_product_args *a = args;
  (void)ctx;
  if (a->N > KR_MAP_FEW || a->C > KR_TILE_COLUMNS || a->C % 4)
    return "more than four outputs, or channels not a multiple of four up to 64";
  if (map_product_kind_of(a) != HELD || a->call.flags & (KR_MAP_GATE | KR_MAP_SILU)) return "more than a product";
  if ((double)a->B * (double)a->H * (double)a->W >= 2147483648.0) return "2^31 positions or more";
  if (a->weight.dtype != KRAIT_F32 || kr_is_far(a->weight.stride[0]) ||
      kr_is_far(a->weight.stride[1]))
    return "weights are not float32, or far apart";
  const int64_t row = a->out.stride[2];
  if (!are_rows_for_map_product(&a->x, a) || kr_is_far(row) || a->out.stride[3] != 1 ||
      (a->H > 1 && a->out.stride[1] != a->W * row) || (a->B > 1 && a->out.stride[0] != a->H * a->W * row))
    return "rows are not evenly spaced, or x is unaligned";
  return kr_has(&a->bias) && a->bias.stride[0] != 1 ? "the bias is not contiguous" : NULL;
}

static int32_t launch_few_rows(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_map_product_params p = map_product_plan_of(args, 1);
  const kr_grid grid = {.x = (uint32_t)((p.n_rows + KR_MAP_FEW_ROWS - 1) / KR_MAP_FEW_ROWS),
                        .block = KR_MAP_FEW_THREADS,
                        .stream = ((const kr_map_product_args *)args)->call.stream};
  return p.n_rows ? kr_cuda_launch(ctx->cuda, tier, &few, &grid, &p, sizeof p) : KRAIT_OK;
}
int32_t kr_map_product_few_ampere(const krait_ctx *ctx, const void *args) {
  return launch_few_rows(ctx, args, KRAIT_CAP_CUDA_AMPERE);
}
int32_t kr_map_product_few_base(const krait_ctx *ctx, const void *args) {
  return launch_few_rows(ctx, args, KRAIT_CAP_CUDA_BASE);
}

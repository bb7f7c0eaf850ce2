/* dense_block_cuda.c: plans and launches of a dense block: per layer the filters fused with their product, the merge of
 * the tiles' moments, and norm and PReLU in a separate pass, because the following filters read every value nine times.
 * */
#include "cuda_impl.h"
#include "cuda_views.h"
#include "dense_block/dense_block_params.h"
#include "dense_block/dense_block_impls.h"
#include "primeknet_ops.h"
#include "status.h"
#include "tile_norm.h"

static const kr_kernel in_floats = {"dense_block", "kr_dense_block"},
                       in_halves = {"dense_block_halves", "kr_dense_block"},
                       moments = {"tile_norm", "kr_tile_moments"}, norm = {"tile_norm", "kr_tile_norm"};

static int is_map(const kr_view *v, const kr_dense_block_args *a) {
  return v->stride[3] == 1 && v->stride[2] == a->C && v->stride[1] == a->W * a->C &&
         v->stride[0] == a->H * a->W * a->C && kr_is_aligned(v);
}
static int are_rows_for_dense_block(const kr_view *v, int64_t C) {
  return v->stride[1] == 1 && v->stride[0] == C && kr_is_aligned(v);
}

static int64_t tiles_along(int64_t n) { return (n + KR_TILE_SIDE - 1) / KR_TILE_SIDE; }

static const char *refuse_dense_block_rest(const kr_dense_block_args *a) {
  if (a->lift.data) return "a lift";
  if (a->C > KR_TILE_COLUMNS || a->C % 16) return "not 16, 32, 48 or 64 channels";
  if (a->B > 65535 || a->H > 65535 * KR_TILE_SIDE || a->B * a->H * a->W >= (int64_t)1 << 31)
    return "too many positions";
  if (!is_map(&a->x, a) || !is_map(&a->out, a)) return "x or out is not contiguous";
  if (a->taps.stride[0] != 1 || a->taps.stride[1] != 3 * a->taps.stride[2] || a->taps.stride[2] % 2 ||
      kr_is_far(a->taps.stride[2]) || !kr_is_aligned(&a->taps) ||
      a->taps_bias.stride[0] != 1 || !kr_is_aligned(&a->taps_bias))
    return "a tap's channels are not contiguous and aligned";
  if (!are_rows_for_dense_block(&a->norm_weight, a->C) || !are_rows_for_dense_block(&a->norm_bias, a->C) ||
      !are_rows_for_dense_block(&a->slope, a->C))
    return "the norms' layers are not contiguous and aligned";
  return NULL;
}

const char *kr_dense_block_refuse(const krait_ctx *ctx, const void *args) {
  const kr_dense_block_args *a = args;
  const kr_view *w = &a->weight;
  (void)ctx;
  if (w->dtype != KRAIT_F32 || w->stride[0] != 1 || w->stride[1] % 4 || kr_is_far(w->stride[1]) ||
      !kr_is_aligned(w))
    return "weights are not float32 with contiguous outputs";
  return refuse_dense_block_rest(a);
}

const char *kr_dense_block_halves_refuse(const krait_ctx *ctx, const void *args) {
  const kr_dense_block_args *a = args;
  const kr_view *w = &a->weight;
  (void)ctx;
  if (!(a->call.flags & KR_DENSE_TF32)) return "KR_DENSE_TF32 is not given";
  if (w->dtype != KRAIT_F16 || w->stride[1] != 1 || w->stride[0] % 8 || kr_is_far(w->stride[0]) ||
      !kr_is_aligned(w))
    return "weights are not aligned float16 rows";
  return refuse_dense_block_rest(a);
}

static uint64_t map_bytes(int64_t B, int64_t H, int64_t W, int64_t C) {
  return kr_scratch_round((uint64_t)(B * H * W * C) * sizeof(float));
}
static uint64_t dense_block_partial_bytes(int64_t B, int64_t H, int64_t W, int64_t C) {
  return kr_scratch_round((uint64_t)(B * tiles_along(H) * tiles_along(W) * 3 * C) * sizeof(float));
}
static uint64_t norm_bytes(int64_t B, int64_t C) { return kr_scratch_round((uint64_t)(B * C) * sizeof(float)); }

uint64_t kr_dense_block_bytes(int64_t B, int64_t H, int64_t W, int64_t C, int64_t L) {
  return (uint64_t)(L - 1) * map_bytes(B, H, W, C) + dense_block_partial_bytes(B, H, W, C) + 2 * norm_bytes(B, C);
}
uint64_t kr_dense_block_scratch(const krait_ctx *ctx, const void *args) {
  const kr_dense_block_args *a = args;
  return (void)ctx, kr_dense_block_bytes(a->B, a->H, a->W, a->C, a->L);
}

static int32_t run_dense_block_layer(const krait_ctx *ctx, const kr_dense_block_args *a, uint64_t tier, int halves,
                                     int64_t i, const kr_dense_block_params *p, float *scale, float *shift) {
  const int64_t per_item = a->H * a->W * a->C, n = a->B * per_item, threads = KR_TILE_NORM_THREADS;
  const kr_grid grid = {.x = (uint32_t)tiles_along(a->W),
                        .y = (uint32_t)tiles_along(a->H),
                        .z = (uint32_t)a->B,
                        .block = halves ? KR_TILE_THREADS_HALVES : KR_TILE_THREADS,
                        .stream = a->call.stream},
                merge = {.x = (uint32_t)(a->C / KR_TILE_MOMENTS_CHANNELS),
                         .y = (uint32_t)a->B,
                         .block = KR_TILE_MOMENTS_THREADS,
                         .stream = a->call.stream},
                back = {.x = (uint32_t)((n / 4 + threads - 1) / threads),
                        .block = KR_TILE_NORM_THREADS,
                        .stream = a->call.stream};
  const kr_tile_moments_params merged = {.partial = p->partial,
                                       .weight = (const float *)a->norm_weight.data + i * a->C,
                                       .bias = (const float *)a->norm_bias.data + i * a->C,
                                       .scale = scale,
                                       .shift = shift,
                                       .n_tiles = (int32_t)(grid.x * grid.y),
                                       .C = (int32_t)a->C,
                                       .eps = a->eps};
  const kr_tile_norm_params normed = {.x = p->out,
                                    .affine = {scale, shift, (const float *)a->slope.data + i * a->C},
                                    .n = n,
                                    .per_item = per_item,
                                    .C = (int32_t)a->C};
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, halves ? &in_halves : &in_floats, &grid, p, sizeof *p));
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, &moments, &merge, &merged, sizeof merged));
  return kr_cuda_launch(ctx->cuda, tier, &norm, &back, &normed, sizeof normed);
}

static int32_t run_dense_block(const krait_ctx *ctx, const void *args, uint64_t tier, int halves) {
  const kr_dense_block_args *a = args;
  const uint64_t map = map_bytes(a->B, a->H, a->W, a->C);
  char *const scratch = a->call.scratch, *const behind = scratch + (uint64_t)(a->L - 1) * map;
  float *scale = (float *)(behind + dense_block_partial_bytes(a->B, a->H, a->W, a->C)),
        *shift = (float *)((char *)scale + norm_bytes(a->B, a->C));
  kr_dense_block_params p = {.sources = {a->x.data},
                           .partial = (float *)behind,
                           .H = (int32_t)a->H,
                           .W = (int32_t)a->W,
                           .C = (int32_t)a->C,
                           .one_sided = (a->call.flags & KR_DENSE_ONE_SIDED) != 0,
                           .tap = (int32_t)a->taps.stride[2],
                           .weight_row = (int32_t)a->weight.stride[!halves]};
  for (int64_t i = 0; i < a->L && a->B > 0; i++) {
    const int64_t first = a->C * i * (i + 1) / 2;
    p.n_sources = (int32_t)i + 1;
    p.dilation = 1 << i;
    p.taps = (const float *)a->taps.data + first;
    p.taps_bias = (const float *)a->taps_bias.data + first;
    p.weight = halves ? (const void *)((const uint16_t *)a->weight.data + first)
                      : (const void *)((const float *)a->weight.data + first * p.weight_row);
    p.out = i + 1 < a->L ? (float *)(scratch + (uint64_t)i * map) : a->out.data;
    KR_TRY(run_dense_block_layer(ctx, a, tier, halves, i, &p, scale, shift));
    for (int64_t k = i + 1; k > 0 && i + 1 < a->L; k--) p.sources[k] = p.sources[k - 1];
    p.sources[0] = p.out;
  }
  return KRAIT_OK;
}

int32_t kr_dense_block_halves(const krait_ctx *ctx, const void *args) {
  return run_dense_block(ctx, args, KRAIT_CAP_CUDA_AMPERE, 1);
}
int32_t kr_dense_block_ampere(const krait_ctx *ctx, const void *args) {
  return run_dense_block(ctx, args, KRAIT_CAP_CUDA_AMPERE, 0);
}
int32_t kr_dense_block_base(const krait_ctx *ctx, const void *args) {
  return run_dense_block(ctx, args, KRAIT_CAP_CUDA_BASE, 0);
}

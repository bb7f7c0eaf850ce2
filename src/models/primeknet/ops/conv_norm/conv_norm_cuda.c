/* conv_norm_cuda.c: plans and launches of a convolution along H: the products with the moments of their tiles, the
 * merge of the moments, and the norm with its PReLU. */
#include "conv_norm/conv_norm_params.h"
#include "conv_norm/conv_norm_impls.h"
#include "cuda_impl.h"
#include "cuda_views.h"
#include "primeknet_ops.h"
#include "status.h"
#include "tile_norm.h"

static const kr_kernel many = {"conv_norm", "kr_conv_norm"}, few = {"conv_norm", "kr_conv_norm_few"},
                       moments = {"tile_norm", "kr_tile_moments"}, norm = {"tile_norm", "kr_tile_norm"};

static int is_few_for_conv_norm(const kr_conv_norm_args *a) { return a->C < 16; }

const char *kr_conv_norm_refuse(const krait_ctx *ctx, const void *args) {
  const kr_conv_norm_args *a = args;
  const kr_view *x = &a->x, *w = &a->weight, *out = &a->out;
  (void)ctx;
  if ((a->C % 16 && !is_few_for_conv_norm(a)) || a->N % 16 || a->C >= 1 << 20 || a->N >= 1 << 20)
    return "channels neither fewer than 16 nor a multiple of 16, or outputs not a multiple of 16";
  if (a->B > 65535 || (double)a->B * (double)(a->OH + a->H) * (double)a->W >= 2147483648.0 || a->H >= 1 << 20)
    return "too many positions";
  if (x->stride[3] != 1 || kr_is_far(x->stride[2]) ||
      (!is_few_for_conv_norm(a) && ((x->stride[0] | x->stride[1] | x->stride[2]) % 4 || !kr_is_aligned(x))))
    return "unaligned positions of x";
  if (out->stride[3] != 1 || out->stride[2] != a->N || out->stride[1] != a->W * a->N ||
      out->stride[0] != a->OH * a->W * a->N || !kr_is_aligned(out))
    return "out is not contiguous";
  if (w->stride[0] != 1 || w->stride[2] % 4 || w->stride[1] % 4 || kr_is_far(w->stride[2]) ||
      !kr_is_aligned(w))
    return "the weight's outputs are not contiguous and aligned";
  if (a->norm_weight.stride[0] != 1 || a->norm_bias.stride[0] != 1 || a->slope.stride[0] != 1 ||
      !kr_is_aligned(&a->slope))
    return "the norm's parameters are not contiguous and aligned";
  return NULL;
}

/* Transposed: one part per output residue r, r + S, ...; otherwise one for all outputs. */
static int64_t conv_norm_n_parts(const kr_conv_norm_args *a) {
  return a->call.flags & KR_CONV_NORM_TRANSPOSED ? a->S < a->OH ? a->S : a->OH : 1;
}
static int64_t part_rows(const kr_conv_norm_args *a, int64_t r) {
  return (a->OH - r + conv_norm_n_parts(a) - 1) / conv_norm_n_parts(a) * a->W;
}
static int64_t tiles_of(int64_t rows) { return (rows + KR_TILE_ROWS - 1) / KR_TILE_ROWS; }
static int64_t n_tiles(const kr_conv_norm_args *a) {
  int64_t n = 0;
  for (int64_t r = 0; r < conv_norm_n_parts(a); r++) n += tiles_of(part_rows(a, r));
  return n;
}

static uint64_t conv_norm_partial_bytes(const kr_conv_norm_args *a) {
  return kr_scratch_round((uint64_t)(a->B * n_tiles(a) * 3 * a->N) * sizeof(float));
}
static uint64_t scale_bytes(const kr_conv_norm_args *a) {
  return kr_scratch_round((uint64_t)(a->B * a->N) * sizeof(float));
}
uint64_t kr_conv_norm_scratch(const krait_ctx *ctx, const void *args) {
  return (void)ctx, conv_norm_partial_bytes(args) + 2 * scale_bytes(args);
}

static kr_conv_norm_params conv_norm_plan_of(const kr_conv_norm_args *a, int64_t r) {
  const int is_transposed = (a->call.flags & KR_CONV_NORM_TRANSPOSED) != 0;
  kr_conv_norm_params p = {.x = a->x.data,
                         .weight = a->weight.data,
                         .out = a->out.data,
                         .partial = a->call.scratch,
                         .rows_per_item = part_rows(a, r),
                         .x_b = a->x.stride[0],
                         .x_h = a->x.stride[1],
                         .W = kr_divisor_of(a->W),
                         .H = (int32_t)a->H,
                         .OH = (int32_t)a->OH,
                         .C = (int32_t)a->C,
                         .N = (int32_t)a->N,
                         .step = is_transposed ? 1 : (int32_t)a->S,
                         .out_step = (int32_t)conv_norm_n_parts(a),
                         .out_offset = (int32_t)r,
                         .x_w = (int32_t)a->x.stride[2],
                         .weight_row = (int32_t)a->weight.stride[2],
                         .n_tiles = (int32_t)n_tiles(a)};
  for (int64_t k = r; k < a->K; k += is_transposed ? a->S : 1) {
    p.offset[p.n_taps] = (int32_t)(is_transposed ? -p.n_taps : k);
    p.tap_at[p.n_taps++] = k * a->weight.stride[1];
  }
  for (int64_t before = 0; before < r; before++) p.first_tile += (int32_t)tiles_of(part_rows(a, before));
  return p;
}

static int32_t run_conv_norm(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_conv_norm_args *a = args;
  float *const scale = (float *)((char *)a->call.scratch + conv_norm_partial_bytes(a)),
               *const shift = (float *)((char *)scale + scale_bytes(a));
  const int64_t per_item = a->OH * a->W * a->N, n = a->B * per_item, threads = KR_TILE_NORM_THREADS;
  if (!a->B) return KRAIT_OK;
  for (int64_t r = 0; r < conv_norm_n_parts(a); r++) {
    const kr_conv_norm_params p = conv_norm_plan_of(a, r);
    const kr_grid grid = {.x = (uint32_t)tiles_of(p.rows_per_item),
                          .y = (uint32_t)((a->N + KR_TILE_COLUMNS - 1) / KR_TILE_COLUMNS),
                          .z = (uint32_t)a->B,
                          .block = KR_TILE_THREADS,
                          .stream = a->call.stream};
    KR_TRY(kr_cuda_launch(ctx->cuda, tier, is_few_for_conv_norm(a) ? &few : &many, &grid, &p, sizeof p));
  }
  const kr_tile_moments_params merged = {.partial = a->call.scratch,
                                       .weight = a->norm_weight.data,
                                       .bias = a->norm_bias.data,
                                       .scale = scale,
                                       .shift = shift,
                                       .n_tiles = (int32_t)n_tiles(a),
                                       .C = (int32_t)a->N,
                                       .eps = a->eps};
  const kr_tile_norm_params normed = {
      .x = a->out.data, .affine = {scale, shift, a->slope.data}, .n = n, .per_item = per_item, .C = (int32_t)a->N};
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, &moments,
                        &(kr_grid){.x = (uint32_t)(a->N / KR_TILE_MOMENTS_CHANNELS),
                                   .y = (uint32_t)a->B,
                                   .block = KR_TILE_MOMENTS_THREADS,
                                   .stream = a->call.stream},
                        &merged, sizeof merged));
  return kr_cuda_launch(ctx->cuda, tier, &norm,
                        &(kr_grid){.x = (uint32_t)((n / 4 + threads - 1) / threads),
                                   .block = KR_TILE_NORM_THREADS,
                                   .stream = a->call.stream},
                        &normed, sizeof normed);
}

int32_t kr_conv_norm_ampere(const krait_ctx *ctx, const void *args) {
  return run_conv_norm(ctx, args, KRAIT_CAP_CUDA_AMPERE);
}
int32_t kr_conv_norm_base(const krait_ctx *ctx, const void *args) {
  return run_conv_norm(ctx, args, KRAIT_CAP_CUDA_BASE);
}

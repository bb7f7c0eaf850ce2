/* conv2d_cuda.c: plans and launches of channels-last convolutions on a GPU. */
#include "conv2d/conv2d_params.h"
#include "cuda_impl.h"
#include "cuda_views.h"
#include "op_list.h"
#include "view.h"

/* By type of the activations: float32, float16, bfloat16. */
#define TYPES(name) {{"conv2d_f32", name}, {"conv2d_f16", name}, {"conv2d_bf16", name}}
static const kr_kernel filter_strip[] = TYPES("kr_filter_strip"), filter_one[] = TYPES("kr_filter_one"),
                       taps_many[] = TYPES("kr_taps_many"), taps_few[] = TYPES("kr_taps_few"),
                       taps_one[] = TYPES("kr_taps_one"), taps_sum[] = TYPES("kr_taps_sum"),
                       unfold[] = TYPES("kr_unfold"), fold[] = TYPES("kr_fold");

/* Kernels for the tap sizes used by models. */
static const struct {
  int64_t KH, KW;
  kr_kernel filter[3], taps[3];
} known[] = {{3, 3, TYPES("kr_filter_3x3"), TYPES("kr_taps_3x3")},
             {3, 1, TYPES("kr_filter_3x1"), TYPES("kr_taps_3x1")},
             {11, 1, TYPES("kr_filter_11x1"), TYPES("kr_taps_11x1")},
             {23, 1, TYPES("kr_filter_23x1"), TYPES("kr_taps_23x1")},
             {31, 1, TYPES("kr_filter_31x1"), TYPES("kr_taps_31x1")}};

/* For 16-bit types they take pairs of channels. */
static int is_in_pairs_for_conv2d(const kr_view *v) {
  int64_t all = v->stride[0] | v->stride[1] | v->stride[2];
  return v->stride[3] == 1 && all % 2 == 0 && (uintptr_t)v->data % 16 == 0;
}
static int which_known(int64_t KH, int64_t KW, int64_t DH, int64_t C, const kr_view *x, const kr_view *y) {
  if (x->dtype != KRAIT_F32 && (C % 2 || !is_in_pairs_for_conv2d(x) || !is_in_pairs_for_conv2d(y))) return -1;
  for (int i = 0; i < (int)(sizeof known / sizeof *known); i++)
    if (known[i].KH == KH && known[i].KW == KW && DH == 1) return i;
  return -1;
}
/* Channels per block. */
static int64_t conv2d_channels_of(int which, int32_t dtype) { return which >= 0 && dtype != KRAIT_F32 ? 64 : 32; }

/* ---- depthwise convolution ---- */

static const char *refuse_conv2d_sizes(int64_t B, int64_t H, int64_t W, int64_t C, int64_t KH, int64_t KW, int64_t DH,
                                int64_t DW, int64_t PH, int64_t PW) {
  if (KH > KR_CONV_MOST_TAPS || KW > KR_CONV_MOST_TAPS || KH * KW > KR_CONV_MOST_TAPS) return "more than 384 taps";
  if (H >= 1 << 24 || W >= 1 << 24 || DH >= 1 << 20 || DW >= 1 << 20 || PH >= 1 << 24 || PW >= 1 << 24)
    return "more than 2^24 positions along H or W, or a dilation of more than 2^20";
  return (double)B * (double)H * (double)(W + KR_CONV_COLUMNS) * (double)(C + 31) * (double)KH * (double)KW /
                     (double)(H < 64 ? 1 : 64) >=
                 2147483648.0 * 32
             ? "more than 2^31 blocks"
             : NULL;
}

const char *kr_depthwise_conv_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_depthwise_conv_args *a = args;
  (void)ctx;
  return refuse_conv2d_sizes(a->B, a->H, a->W, a->C, a->KH, a->KW, a->DH, a->DW, a->PH, a->PW);
}
const char *kr_depthwise_conv_bwd_cuda_refuse(const krait_ctx *ctx, const void *args) {
  const kr_depthwise_conv_bwd_args *a = args;
  (void)ctx;
  return refuse_conv2d_sizes(a->B, a->H, a->W, a->C, a->KH, a->KW, a->DH, a->DW, a->PH, a->PW);
}
uint64_t kr_depthwise_conv_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }
uint64_t kr_depthwise_conv_bwd_cuda_scratch(const krait_ctx *ctx, const void *args) {
  const kr_depthwise_conv_bwd_args *a = args;
  (void)ctx;
  return kr_scratch_round((uint64_t)(a->B * kr_blocks_of(a->W, KR_CONV_COLUMNS) * (a->KH * a->KW + 1) * a->C) *
                          sizeof(float));
}

#define CONV_SIZES(a)                                                                                            \
  .B = (a)->B, .H = (a)->H, .W = (a)->W, .C = (a)->C, .KH = (int32_t)(a)->KH, .KW = (int32_t)(a)->KW,             \
  .DH = (int32_t)(a)->DH, .DW = (int32_t)(a)->DW

static void add_filter(kr_chain *chain, kr_filter_params *p, void *stream) {
  const int strip = p->DH == 1 ? KR_CONV_STRIP : 1, type = p->in.dtype,
            which = which_known(p->KH, p->KW, p->DH, p->C, &p->in, &p->out);
  p->n_columns = kr_blocks_of(p->W, KR_CONV_THREADS / 32),
  p->n_channels = kr_blocks_of(p->C, conv2d_channels_of(which, type));
  const int64_t strips = kr_blocks_of(p->H, strip), blocks = p->B * p->n_columns * p->n_channels,
                runs = blocks ? (KR_CONV_BLOCKS + blocks - 1) / blocks : 1;
  p->n_strips = (int32_t)(runs < strips ? (strips + runs - 1) / runs : 1),
  p->n_runs = p->n_strips ? kr_blocks_of(strips, p->n_strips) : 0;
  const kr_grid grid = {.x = (uint32_t)p->B * p->n_columns * p->n_runs * p->n_channels,
                        .block = KR_CONV_THREADS,
                        .shared_bytes = (uint32_t)(p->KH * p->KW * conv2d_channels_of(which, type)) * sizeof(float),
                        .stream = stream};
  kr_chain_add(chain,
               which >= 0   ? &known[which].filter[type]
               : strip == 1 ? &filter_one[type]
                            : &filter_strip[type],
               &grid, p);
}

static int32_t run_conv2d_cuda_conv(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_depthwise_conv_args *a = args;
  kr_filter_params p = {.in = a->x,
                      .weight = a->weight,
                      .bias = a->bias,
                      .out = a->out,
                      CONV_SIZES(a),
                      .PH = (int32_t)a->PH,
                      .PW = (int32_t)a->PW};
  kr_chain chain = {.n = 0};
  add_filter(&chain, &p, a->call.stream);
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}

static int32_t run_conv_bwd(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_depthwise_conv_bwd_args *a = args;
  kr_filter_params back = {.in = a->dout,
                         .weight = a->weight,
                         .out = a->dx,
                         CONV_SIZES(a),
                         .PH = (int32_t)((a->KH - 1) * a->DH - a->PH),
                         .PW = (int32_t)((a->KW - 1) * a->DW - a->PW),
                         .flip = 1};
  kr_taps_params taps = {.x = a->x,
                       .dout = a->dout,
                       .dweight = a->dweight,
                       .dbias = a->dbias,
                       .partial = a->call.scratch,
                       CONV_SIZES(a),
                       .PH = (int32_t)a->PH,
                       .PW = (int32_t)a->PW};
  const int together = a->DH != 1 || a->KH == 1 ? 1 : a->KH <= 3 ? 3 : KR_CONV_TAPS;
  const int type = a->x.dtype, which = which_known(a->KH, a->KW, a->DH, a->C, &a->x, &a->dout);
  taps.n_columns = kr_blocks_of(a->W, KR_CONV_COLUMNS),
  taps.n_groups = kr_blocks_of(a->KH, together) * (uint32_t)a->KW,
  taps.n_channels = kr_blocks_of(a->C, conv2d_channels_of(which, type));
  const uint32_t n_groups = kr_has(&a->dweight) && which < 0 ? taps.n_groups : 1;
  const kr_grid grid = {.x = (uint32_t)a->B * taps.n_columns * n_groups * taps.n_channels,
                        .block = KR_CONV_THREADS,
                        .stream = a->call.stream};
  const kr_grid sum = {.x = kr_blocks_of(a->C, 32),
                       .y = (uint32_t)(a->KH * a->KW + 1),
                       .block = KR_CONV_THREADS,
                       .stream = a->call.stream};
  kr_chain chain = {.n = 0};
  if (kr_has(&a->dx)) add_filter(&chain, &back, a->call.stream);
  if (kr_has(&a->dweight) || kr_has(&a->dbias)) {
    taps.n_groups = n_groups;
    kr_chain_add(&chain,
                 which >= 0      ? &known[which].taps[type]
                 : together == 1 ? &taps_one[type]
                 : together == 3 ? &taps_few[type]
                                 : &taps_many[type],
                 &grid, &taps);
    kr_chain_add(&chain, &taps_sum[type], &sum, &taps);
  }
  return kr_cuda_launch_chain(ctx->cuda, tier, &chain);
}

KR_CUDA_TIERS(depthwise_conv, run_conv2d_cuda_conv)
KR_CUDA_TIERS(depthwise_conv_bwd, run_conv_bwd)

/* ---- windows ---- */

/* Both structs have the same layout. */
static const char *refuse_windows(const kr_unfold_args *a) {
  const double in = (double)a->B * (double)a->H * (double)a->W * (double)a->C,
               rows = (double)a->B * (double)a->OH * (double)a->OW * (double)a->K;
  if (in >= 2147483648.0 - KR_WINDOW_THREADS || rows >= 2147483648.0 - KR_WINDOW_THREADS)
    return "2^31 elements or more";
  return a->SH >= 1 << 20 || a->SW >= 1 << 20 || a->PH >= 1 << 20 || a->PW >= 1 << 20 ||
                 a->OH * a->SH + a->KH >= 1 << 30 || a->OW * a->SW + a->KW >= 1 << 30
             ? "strides or edges of 2^20 or more"
             : NULL;
}
const char *kr_unfold_cuda_refuse(const krait_ctx *ctx, const void *args) { return (void)ctx, refuse_windows(args); }
const char *kr_fold_cuda_refuse(const krait_ctx *ctx, const void *args) { return (void)ctx, refuse_windows(args); }
uint64_t kr_unfold_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }
uint64_t kr_fold_cuda_scratch(const krait_ctx *ctx, const void *args) { return (void)ctx, (void)args, 0; }

static kr_windows_plan plan_windows(const kr_unfold_args *a) {
  return (kr_windows_plan){.x = a->x,
                           .out = a->out,
                           .H = (int32_t)a->H,
                           .W = (int32_t)a->W,
                           .OH = (int32_t)a->OH,
                           .OW = (int32_t)a->OW,
                           .KH = (int32_t)a->KH,
                           .KW = (int32_t)a->KW,
                           .SH = (int32_t)a->SH,
                           .SW = (int32_t)a->SW,
                           .PH = (int32_t)a->PH,
                           .PW = (int32_t)a->PW,
                           .C = kr_divisor_of(a->C),
                           .taps = kr_divisor_of(a->KW)};
}

static int32_t run_unfold(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_unfold_args *a = args;
  kr_windows_plan p = plan_windows(a);
  p.n = a->B * a->OH * a->OW * a->K, p.inner = kr_divisor_of(a->K), p.columns = kr_divisor_of(a->OW),
  p.rows = kr_divisor_of(a->OH);
  return kr_cuda_launch(
      ctx->cuda, tier, &unfold[a->x.dtype],
      &(kr_grid){.x = kr_blocks_of(p.n, KR_WINDOW_THREADS), .block = KR_WINDOW_THREADS, .stream = a->call.stream},
      &p, sizeof p);
}

static int32_t run_fold(const krait_ctx *ctx, const void *args, uint64_t tier) {
  const kr_fold_args *a = args;
  kr_windows_plan p = plan_windows(args);
  p.n = a->B * a->H * a->W * a->C, p.columns = kr_divisor_of(a->W), p.rows = kr_divisor_of(a->H);
  return kr_cuda_launch(
      ctx->cuda, tier, &fold[a->x.dtype],
      &(kr_grid){.x = kr_blocks_of(p.n, KR_WINDOW_THREADS), .block = KR_WINDOW_THREADS, .stream = a->call.stream},
      &p, sizeof p);
}

KR_CUDA_TIERS(unfold, run_unfold)
KR_CUDA_TIERS(fold, run_fold)

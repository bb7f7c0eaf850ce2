/* conv3d_cuda.c: the causal convolution on a GPU: tiles, tensor maps, launches. */
#include "conv3d/conv3d_impls.h"
#include "conv3d/conv3d_params.h"
#include "cuda_impl.h"
#include "cuda_views.h"
#include "status.h"

/* ---- describing a call ---- */

/* sizes: of time, height, width and channels; a dimension of one has no stride: it gets one of a whole pack. */
static kr_conv3d_map map_of(const kr_view *v, const int64_t sizes[4]) {
  kr_conv3d_map m = {v->data, v->stride[0], v->stride[1], v->stride[2], v->stride[3], v->dtype, 0};
  int64_t *const steps[] = {&m.t, &m.h, &m.w, &m.c}, per_pack = v->dtype == KRAIT_F32 ? 4 : 8;
  if (!v->data) return (kr_conv3d_map){0};
  for (int i = 0; i < 4; i++)
    if (sizes[i] == 1) *steps[i] = i == 3 ? 1 : (sizes[3] + 7) / 8 * 8;
  m.packs = m.c == 1 && m.t % per_pack == 0 && m.h % per_pack == 0 && m.w % per_pack == 0 &&
            (uintptr_t)v->data % 16 == 0;
  return m;
}

static kr_conv3d_params describe_conv3d(const kr_conv3d_args *a) {
  const int64_t in[] = {a->T, a->H, a->W, a->C}, kept[] = {a->past, a->H, a->W, a->C},
                out[] = {a->OT, a->OH, a->OW, a->K}, terms = a->TAPS * a->C;
  const int64_t per_pack = a->x.dtype == KRAIT_F32 ? 4 : 8;
  kr_conv3d_params p = {.x = map_of(&a->x, in), .states = map_of(&a->initial_states, kept),
                        .residual = map_of(&a->residual, out), .out = map_of(&a->out, out),
                        .final_states = map_of(&a->final_states, kept),
                        .T = (int32_t)a->T, .H = (int32_t)a->H, .W = (int32_t)a->W, .OT = (int32_t)a->OT,
                        .OH = (int32_t)a->OH, .OW = (int32_t)a->OW, .C = (int32_t)a->C, .K = (int32_t)a->K,
                        .TAPS = (int32_t)a->TAPS, .KH = (int32_t)a->KH, .KW = (int32_t)a->KW, .ST = (int32_t)a->ST,
                        .SH = (int32_t)a->SH, .SW = (int32_t)a->SW, .PH = (int32_t)a->PH, .PW = (int32_t)a->PW,
                        .front = (int32_t)kr_conv3d_front(a), .past = (int32_t)a->past,
                        .M = (int32_t)(a->OT * a->OH * a->OW), .n_terms = (int32_t)terms};
  p.x.packs = p.x.packs && (!p.states.data || p.states.packs) && a->C % per_pack == 0;
  p.weight.data = a->weight.data, p.weight.dtype = a->weight.dtype;
  p.weight.k = a->K > 1 ? a->weight.stride[0] : terms, p.weight.tap = a->TAPS > 1 ? a->weight.stride[1] : a->C,
  p.weight.c = a->C > 1 ? a->weight.stride[2] : 1;
  p.weight.packs = p.weight.c == 1 && p.weight.tap == a->C && (uintptr_t)a->weight.data % 16 == 0 &&
                   p.weight.k % (a->weight.dtype == KRAIT_F32 ? 4 : 8) == 0;
  p.bias.data = a->bias.data, p.bias.k = a->bias.stride[0], p.bias.dtype = a->bias.dtype;
  p.by_area = kr_divisor_of(a->OH * a->OW), p.by_OW = kr_divisor_of(a->OW), p.by_C = kr_divisor_of(a->C);
  p.by_KW = kr_divisor_of(a->KW), p.by_window = kr_divisor_of(a->KH * a->KW), p.by_W = kr_divisor_of(a->W);
  p.by_packs = kr_divisor_of((a->C + per_pack - 1) / per_pack);
  return p;
}

static int32_t launch_conv3d(const krait_ctx *ctx, const kr_conv3d_args *a, uint64_t tier, const kr_kernel *kernel,
                             const kr_grid *grid, const void *params, size_t bytes, const kr_conv3d_params *p) {
  static const kr_kernel keep = {"conv3d_base", "kr_conv3d_keep"};
  KR_TRY(kr_cuda_launch(ctx->cuda, tier, kernel, grid, params, bytes));
  if (!kr_has(&a->final_states)) return KRAIT_OK;
  const kr_grid packs = {.x = kr_blocks_of(a->H * a->W * p->by_packs.by, KR_CONV3D_KEEP_THREADS),
                         .block = KR_CONV3D_KEEP_THREADS, .stream = a->call.stream};
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &keep, &packs, p, sizeof *p);
}

/* ---- base ---- */

static int32_t tiles_of(int64_t n, int64_t each) { return (int32_t)((n + each - 1) / each); }

const char *kr_conv3d_base_refuse(const krait_ctx *ctx, const void *args) {
  const kr_conv3d_args *a = args;
  const double most = 2147483648.0, out = (double)a->OT * (double)a->OH * (double)a->OW;
  (void)ctx;
  if (a->weight.dtype == KRAIT_F64 || a->bias.dtype == KRAIT_F64) return "no float64 on a GPU";
  if ((double)a->H * (double)a->W * (double)(a->C + 8) >= most || (double)a->TAPS * (double)a->C >= most ||
      (out / 64 + 1) * (double)(a->K / 64 + 1) >= most || out >= most - 256 || a->T >= 1 << 24)
    return "2^31 positions, elements of a frame, or terms, or more";
  return NULL;
}

static kr_conv3d_params tiled(const kr_conv3d_args *a, int bm, int bn) {
  kr_conv3d_params p = describe_conv3d(a);
  p.n_m = tiles_of(p.M, bm), p.n_n = tiles_of(a->K, bn), p.by_n = kr_divisor_of(p.n_n);
  return p;
}

int32_t kr_conv3d_base(const krait_ctx *ctx, const void *args) {
  static const kr_kernel kernels[] = {{"conv3d_base", "kr_conv3d_base"}, {"conv3d_base", "kr_conv3d_base_packs"}};
  const kr_conv3d_args *a = args;
  const kr_conv3d_params p = tiled(a, 128, 128);
  const kr_kernel *kernel = &kernels[p.x.packs && p.weight.packs && a->C % 8 == 0];
  const kr_grid grid = {
      .x = (uint32_t)(p.n_m * p.n_n), .block = KR_CONV3D_BASE_THREADS, .stream = a->call.stream};
  return launch_conv3d(ctx, a, KRAIT_CAP_CUDA_BASE, kernel, &grid, &p, sizeof p, &p);
}

/* ---- ampere ---- */

/* Float32 in parts takes three products of tf32 for one: as gemm, on the GPUs where tf32 is several times as fast as
 * multiply-adds. */
const char *kr_conv3d_ampere_refuse(const krait_ctx *ctx, const void *args) {
  const kr_conv3d_args *a = args;
  const kr_device_info *info = kr_cuda_info(ctx->cuda);
  const char *why = kr_conv3d_base_refuse(ctx, args);
  if (why) return why;
  if (a->weight.dtype != a->x.dtype) return "weight of another type than x";
  if (a->x.dtype == KRAIT_F32 && info->major * 10 + info->minor != 80 && info->major != 9 && info->major != 10)
    return "tf32 is not several times as fast as multiply-adds on this GPU";
  const kr_conv3d_params p = describe_conv3d(a);
  return p.weight.c != 1 || p.weight.tap != a->C ? "the terms of a channel do not lie side by side in weight" : NULL;
}

int32_t kr_conv3d_ampere(const krait_ctx *ctx, const void *args) {
  static const kr_kernel narrow[] = KR_BY_TYPE("conv3d_ampere", "kr_conv3d_ampere_64"),
                         middle[] = KR_BY_TYPE("conv3d_ampere", "kr_conv3d_ampere_128"),
                         wide[] = KR_BY_TYPE("conv3d_ampere", "kr_conv3d_ampere_256");
  const kr_conv3d_args *a = args;
  const int bn = a->K <= 64 ? 64 : a->K <= 128 || a->x.dtype == KRAIT_F32 ? 128 : 256;
  const kr_conv3d_params p = tiled(a, KR_CONV3D_AMPERE_BM, bn);
  const kr_grid grid = {.x = (uint32_t)(p.n_m * p.n_n),
                        .block = (uint32_t)bn,
                        .shared_bytes = KR_CONV3D_AMPERE_SHARED(bn),
                        .stream = a->call.stream};
  return launch_conv3d(ctx, a, KRAIT_CAP_CUDA_AMPERE, &(bn == 64 ? narrow : bn == 128 ? middle : wide)[a->x.dtype],
                       &grid, &p, sizeof p, &p);
}

/* ---- hopper ---- */

/* A tensor map takes lines of whole packs that do not repeat. */
static int tensor_takes(const kr_conv3d_map *m) {
  const int64_t most = (int64_t)1 << 38;
  return m->packs && m->w > 0 && m->h > 0 && m->t > 0 && m->w < most && m->h < most && m->t < most;
}

const char *kr_conv3d_hopper_refuse(const krait_ctx *ctx, const void *args) {
  const kr_conv3d_args *a = args;
  const char *why = kr_conv3d_base_refuse(ctx, args);
  if (why) return why;
  if (a->x.dtype == KRAIT_F32 || a->weight.dtype != a->x.dtype) return "x and weight must both be float16 or bfloat16";
  if (!kr_cuda_driver(ctx->cuda)->TensorMapEncodeTiled) return "this driver has no tensor maps";
  if (kr_cuda_info(ctx->cuda)->shared_bytes < KR_CONV3D_HOPPER_SHARED(1, 256)) return "too little shared memory";
  const kr_conv3d_params p = describe_conv3d(a);
  const kr_conv3d_map *r = &p.residual;
  if (a->C % 8 != 0 || a->K % 8 != 0 || !tensor_takes(&p.x) || (p.states.data && !tensor_takes(&p.states)) ||
      !tensor_takes(&p.out) || !p.weight.packs || p.weight.k <= 0)
    return "C and K must be multiples of eight, and positions aligned to 16 bytes";
  if (r->data && (r->c != 1 || (r->t | r->h | r->w) % 2 != 0 || (uintptr_t)r->data % 4 != 0))
    return "residual's channels must be aligned to pairs";
  return a->SH > 2 || a->SW > 2 ? "steps of more than two" : NULL;
}

/* Boxes of 64 channels by `box` of width, height and time, every `steps`-th; 128-byte swizzle. */
static int32_t describe_map(const krait_ctx *ctx, kr_conv3d_tensor *tensor, const kr_conv3d_map *m,
                            const int64_t sizes[4], const uint32_t box[3], const int64_t steps[2]) {
  const kr_driver *driver = kr_cuda_driver(ctx->cuda);
  const uint64_t size[4] = {(uint64_t)sizes[3], (uint64_t)sizes[2], (uint64_t)sizes[1], (uint64_t)sizes[0]},
                 stride[3] = {(uint64_t)m->w * 2, (uint64_t)m->h * 2, (uint64_t)m->t * 2};
  const uint32_t boxes[4] = {64, box[0] * (uint32_t)steps[1], box[1] * (uint32_t)steps[0], box[2]},
                 step[4] = {1, (uint32_t)steps[1], (uint32_t)steps[0], 1};
  const int type = m->dtype == KRAIT_BF16 ? KR_CU_MAP_BF16 : KR_CU_MAP_F16;
  KR_CU_TRY(driver,
            TensorMapEncodeTiled(tensor, type, 4, m->data, size, stride, boxes, step, 0, KR_CU_MAP_SWIZZLE_128,
                                 KR_CU_MAP_PROMOTE_256, 0),
            "describing a map");
  return KRAIT_OK;
}

static int32_t describe_weights(const krait_ctx *ctx, kr_conv3d_tensor *tensor, const kr_conv3d_args *a,
                                const kr_conv3d_params *p, int bn) {
  const kr_driver *driver = kr_cuda_driver(ctx->cuda);
  const uint64_t size[3] = {(uint64_t)a->C, (uint64_t)a->TAPS, (uint64_t)a->K},
                 stride[2] = {(uint64_t)p->weight.tap * 2, (uint64_t)p->weight.k * 2};
  const uint32_t box[3] = {64, 1, (uint32_t)bn}, step[3] = {1, 1, 1};
  const int type = p->weight.dtype == KRAIT_BF16 ? KR_CU_MAP_BF16 : KR_CU_MAP_F16;
  KR_CU_TRY(driver,
            TensorMapEncodeTiled(tensor, type, 3, p->weight.data, size, stride, box, step, 0, KR_CU_MAP_SWIZZLE_128,
                                 KR_CU_MAP_PROMOTE_256, 0),
            "describing weights");
  return KRAIT_OK;
}

static int32_t describe_tensors(const krait_ctx *ctx, kr_conv3d_hopper_params *h, const kr_conv3d_args *a, int bn) {
  const kr_conv3d_params *p = &h->params;
  const int64_t in[] = {a->T, a->H, a->W, a->C}, kept[] = {a->past, a->H, a->W, a->C},
                out[] = {a->OT, a->OH, a->OW, a->K}, steps[] = {a->SH, a->SW}, single[] = {1, 1};
  const uint32_t box[] = {(uint32_t)p->columns, (uint32_t)p->lines, 1},
                 part[] = {(uint32_t)p->columns, 64 / (uint32_t)p->columns, 1};
  KR_TRY(describe_map(ctx, &h->x, &p->x, in, box, steps));
  if (p->states.data) KR_TRY(describe_map(ctx, &h->states, &p->states, kept, box, steps));
  else h->states = h->x;
  KR_TRY(describe_weights(ctx, &h->weight, a, p, bn));
  return describe_map(ctx, &h->out, &p->out, out, part, single);
}

/* The rectangle of bm positions that covers a frame with the fewest tiles. */
static void plan_rectangles(kr_conv3d_params *p, int bm) {
  static const int widths[] = {16, 32, 8, 64};
  int64_t fewest = INT64_MAX;
  for (int i = 0; i < 4; i++) {
    const int columns = widths[i], lines = bm / columns;
    const int64_t n = (int64_t)tiles_of(p->OH, lines) * tiles_of(p->OW, columns);
    if (n < fewest) fewest = n, p->columns = columns, p->lines = lines;
  }
  p->n_h = tiles_of(p->OH, p->lines), p->n_w = tiles_of(p->OW, p->columns), p->n_m = p->OT * p->n_h * p->n_w;
  p->by_across = kr_divisor_of(p->n_w), p->by_frame = kr_divisor_of(p->n_h), p->by_columns = kr_divisor_of(p->columns);
}

int32_t kr_conv3d_hopper(const krait_ctx *ctx, const void *args) {
  static const kr_kernel kernels[3][2] = {
#define WIDTH(bn) {{"conv3d_hopper_f16_" bn, "kr_conv3d_hopper"}, {"conv3d_hopper_bf16_" bn, "kr_conv3d_hopper"}}
      WIDTH("64"), WIDTH("128"), WIDTH("256")};
#undef WIDTH
  const kr_conv3d_args *a = args;
  const int64_t rest = a->K % 256;
  const int bn = a->K <= 64 ? 64 : rest == 0 || rest > 128 ? 256 : 128, blocks = bn == 256 ? 1 : 2;
  kr_conv3d_hopper_params h = {.params = tiled(a, 128 * blocks, bn)};
  plan_rectangles(&h.params, 128 * blocks);
  const int n_multiprocessors = kr_cuda_info(ctx->cuda)->n_multiprocessors;
  const int64_t units = (int64_t)h.params.n_m * h.params.n_n;
  KR_TRY(kr_cuda_begin(ctx->cuda)); /* the driver encodes tensor maps only for the current context */
  const int32_t status = describe_tensors(ctx, &h, a, bn);
  kr_cuda_end(ctx->cuda);
  KR_TRY(status);
  const kr_grid grid = {.x = (uint32_t)(units < n_multiprocessors ? units : n_multiprocessors),
                        .block = KR_CONV3D_HOPPER_THREADS,
                        .shared_bytes = (uint32_t)KR_CONV3D_HOPPER_SHARED(blocks, bn),
                        .stream = a->call.stream};
  return launch_conv3d(ctx, a, KRAIT_CAP_CUDA_HOPPER, &kernels[bn == 64 ? 0 : bn / 128][a->x.dtype == KRAIT_BF16],
                       &grid, &h, sizeof h, &h.params);
}

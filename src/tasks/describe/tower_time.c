/* tower_time.c: the time of VideoMamba and CLIP's vision tower with random weights of the published sizes, starting
 * from pixels in host memory, alternating with a large product. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc.h"
#include "clip/clip_tower.h"
#include "clock.h"
#include "ctx.h"
#include "model_time.h"
#include "op_list.h"
#include "patches.h"
#include "sized.h"
#include "status.h"
#include "videomamba/videomamba.h"

enum { MOST_PICTURES = 1024, MOST_RUNS = 1000, KINETICS = 400, PRODUCT = 1024, PRODUCT_ON_GPU = 8192 };

static const struct tower {
  const char *name;
  int is_video;
  int64_t width, n_layers, patch, edge; /* edge: patches per side */
} towers[] = {{"videomamba-t16", 1, 192, 24, 16, 14},
              {"videomamba-s16", 1, 384, 24, 16, 14},
              {"videomamba-m16", 1, 576, 32, 16, 14},
              {"clip-vit-base-patch32", 0, 768, 12, 32, 7},
              {"clip-vit-base-patch16", 0, 768, 12, 16, 14},
              {"clip-vit-large-patch14", 0, 1024, 24, 14, 16},
              {"clip-vit-large-patch14-336", 0, 1024, 24, 14, 24}};
enum { N_TOWERS = sizeof towers / sizeof *towers };

/* One product of square matrices, of the model's activation type. */
typedef struct product {
  int64_t n;
  kr_graph *g;
  kr_runner *runner;
  void *blocks[3];
} product;

typedef struct work {
  const krait_ctx *ctx;
  const struct tower *is;
  int64_t n;            /* images, or frames of a clip */
  kr_videomamba *video; /* or */
  kr_clip_tower clip;
  kr_runner *runner;
  float *pictures, *patches, *patches_at, *features; /* patches: in host memory; the last two in the context's memory */
  float logits[KINETICS];
  product product;
  double times[MOST_RUNS];
} work;

static int64_t side_of(const work *w) { return w->is->patch * w->is->edge; }
static uint64_t tower_time_patches_bytes(const work *w) {
  return (uint64_t)(w->n * 3 * side_of(w) * side_of(w)) * sizeof(float);
}
static const kr_graph *graph_of(const work *w) { return w->video ? kr_videomamba_graph(w->video) : w->clip.g; }

static int32_t open_tower_time_video(work *w, int32_t dtype) {
  const int64_t D = w->is->width;
  return kr_videomamba_open_random(w->ctx,
                                   &(kr_videomamba_config){.grid = {side_of(w), w->is->patch, w->is->patch},
                                                           .T = w->n,
                                                           .D = D,
                                                           .n_layers = w->is->n_layers,
                                                           .Di = 2 * D,
                                                           .N = 16,
                                                           .R = (D + 15) / 16,
                                                           .W = 4,
                                                           .n_classes = KINETICS},
                                   dtype, &w->video);
}

static int32_t open_tower_time_clip(work *w, int32_t dtype) {
  const int64_t C = w->is->width;
  const kr_clip_config c = {.C = C,
                            .n_layers = w->is->n_layers,
                            .F = 4 * C,
                            .H = C / 64,
                            .patch = w->is->patch,
                            .edge = w->is->edge,
                            .activation = KRAIT_ACT_SILU,
                            .eps = 1e-5f};
  KR_TRY(kr_clip_tower_open(&(kr_loader){.ctx = w->ctx, .random_type = dtype, .prefix = ""}, &c, w->n, &w->clip));
  KR_TRY(kr_runner_open(w->clip.g, &w->runner));
  const uint64_t features_bytes = (uint64_t)(w->n * c.edge * c.edge * C) * sizeof(float);
  w->patches = w->patches_at = kr_alloc((size_t)tower_time_patches_bytes(w));
  KR_CHECK(w->patches, KRAIT_ERR_NO_MEMORY, "no memory for %lld pictures", (long long)w->n);
  if (w->ctx->cuda) KR_TRY(kr_mem_get(w->ctx, "patches", tower_time_patches_bytes(w), &w->patches_at));
  KR_TRY(kr_mem_get(w->ctx, "features", features_bytes, &w->features));
  KR_TRY(kr_runner_bind(w->runner, w->clip.patches, w->patches_at));
  return kr_runner_bind(w->runner, w->clip.features, w->features);
}

static int32_t open_tower(work *w, int32_t dtype, kr_tower_timing *t) {
  const int64_t start = kr_clock_ns(), n_values = (int64_t)(tower_time_patches_bytes(w) / sizeof(float));
  KR_TRY(w->is->is_video ? open_tower_time_video(w, dtype) : open_tower_time_clip(w, dtype));
  t->open_s = (double)(kr_clock_ns() - start) * 1e-9;
  w->pictures = kr_alloc_array((size_t)n_values, sizeof *w->pictures);
  KR_CHECK(w->pictures, KRAIT_ERR_NO_MEMORY, "no memory for %lld pictures", (long long)w->n);
  for (int64_t i = 0; i < n_values; i++) w->pictures[i] = (float)(i * 7919 % 1009) / 500 - 1;
  return KRAIT_OK;
}

static int32_t run_clip(work *w) {
  const int64_t side = side_of(w);
  kr_patches_cut(w->pictures, w->n, 3 * side * side, side * side, &(kr_patch_grid){side, w->is->patch, w->is->patch},
                 w->patches);
  if (w->ctx->cuda) KR_TRY(kr_mem_put(w->ctx, w->patches_at, w->patches, tower_time_patches_bytes(w)));
  KR_TRY(kr_runner_run(w->runner, NULL));
  return kr_mem_wait(w->ctx);
}

/* ---- the product ---- */

static int32_t open_product(const krait_ctx *ctx, int32_t dtype, product *p) {
  kr_tensor all[3];
  kr_gemm_args args = {.call.size = 0};
  kr_view *const views[] = {&args.A, &args.Bmat, &args.out};
  p->n = ctx->cuda ? PRODUCT_ON_GPU : PRODUCT;
  KR_TRY(kr_graph_open(&p->g));
  all[0] = kr_graph_input(p->g, "A", dtype, KR_DIMS(p->n, p->n));
  all[1] = kr_graph_input(p->g, "B", dtype, KR_DIMS(p->n, p->n));
  all[2] = kr_graph_output(p->g, "C", dtype, KR_DIMS(p->n, p->n));
  for (int i = 0; i < 3; i++)
    *views[i] = kr_graph_view(p->g, i == 1 ? kr_graph_permute(p->g, all[i], (int[]){1, 0}) : all[i]);
  kr_graph_call(p->g, "product", &kr_op_gemm, &args);
  KR_TRY(kr_graph_plan(p->g, ctx, 0));
  KR_TRY(kr_runner_open(p->g, &p->runner));
  const uint64_t bytes = (uint64_t)(p->n * p->n) * krait_dtype_bytes(dtype);
  for (int i = 0; i < 3; i++) {
    KR_TRY(kr_mem_get(ctx, "a product", bytes, &p->blocks[i]));
    /* Not zeros, with which a GPU is faster. */
    if (ctx->cuda) KR_TRY(kr_cuda_fill(ctx->cuda, p->blocks[i], 0x3c, (size_t)bytes, NULL));
    KR_TRY(kr_runner_bind(p->runner, all[i], p->blocks[i]));
  }
  return KRAIT_OK;
}

static void close_product(const krait_ctx *ctx, product *p) {
  kr_runner_close(&p->runner);
  if (p->g) kr_graph_close(&p->g);
  for (int i = 0; i < 3; i++) kr_mem_free(ctx, p->blocks[i]);
}

/* ---- runs ---- */

static int compare_tower_time(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

typedef struct moment {
  int64_t ns;
  clock_t cpu;
} moment;
static moment now(void) { return (moment){kr_clock_ns(), clock()}; }
static double tower_time_seconds_since(moment m) { return (double)(kr_clock_ns() - m.ns) * 1e-9; }
static double cpu_since(moment m) { return (double)(clock() - m.cpu) / CLOCKS_PER_SEC; }
static void keep_most(double *most, double value) {
  if (value > *most) *most = value;
}

/* Long enough for the processor's clock to measure. */
static int32_t time_product(work *w, int is_counted, kr_tower_timing *t) {
  const int n_rounds = w->ctx->cuda ? 1 : 3;
  const double flops = n_rounds * 2.0 * (double)w->product.n * (double)w->product.n * (double)w->product.n;
  const moment start = now();
  for (int i = 0; i < n_rounds; i++) KR_TRY(kr_runner_run(w->product.runner, NULL));
  KR_TRY(kr_mem_wait(w->ctx));
  if (!is_counted) return KRAIT_OK;
  keep_most(&t->product_flops_per_s, flops / (tower_time_seconds_since(start) + 1e-9));
  if (!w->ctx->cuda) keep_most(&t->product_flops_per_cpu_s, flops / (cpu_since(start) + 1e-6));
  return KRAIT_OK;
}

/* A GPU's first runs load kernels and record the graph, a CPU's first touches memory. */
static int32_t time_tower_runs(work *w, int32_t n_runs, kr_tower_timing *t) {
  for (int i = w->ctx->cuda ? -3 : -1; i < n_runs; i++) {
    const moment start = now();
    KR_TRY(w->video ? kr_videomamba_run(w->video, w->pictures, w->logits, NULL) : run_clip(w));
    const double cpu_s = cpu_since(start);
    if (i >= 0) w->times[i] = tower_time_seconds_since(start);
    if (i == 0 || (i > 0 && cpu_s < t->cpu_s)) t->cpu_s = cpu_s;
    KR_TRY(time_product(w, i >= 0, t));
  }
  qsort(w->times, (size_t)n_runs, sizeof *w->times, compare_tower_time);
  t->run_s = w->times[n_runs / 2], t->best_s = w->times[0], t->n_runs = n_runs;
  return KRAIT_OK;
}

static int32_t measure_tower_time(work *w, int32_t dtype, int32_t n_runs, kr_tower_report_fn report, void *user,
                       kr_tower_timing *t) {
  KR_TRY(open_tower(w, dtype, t));
  KR_TRY(open_product(w->ctx, w->ctx->cuda ? dtype : KRAIT_F32, &w->product));
  const kr_cost cost = kr_graph_cost(graph_of(w));
  const int64_t n_patches = w->n * w->is->edge * w->is->edge;
  t->flops = cost.flops, t->bytes = cost.bytes;
  t->n_tokens = n_patches + (w->video ? 1 : w->n);
  t->weight_bytes = w->video ? kr_videomamba_bytes(w->video) : w->clip.loader.bytes;
  t->work_bytes = kr_graph_bytes(graph_of(w));
  KR_TRY(time_tower_runs(w, n_runs, t));
  return report ? kr_graph_show(graph_of(w), 1, report, user) : KRAIT_OK;
}

static int32_t find_tower(const char *name, const struct tower **found) {
  for (int i = 0; i < N_TOWERS; i++)
    if (strcmp(name, towers[i].name) == 0) return *found = &towers[i], KRAIT_OK;
  return kr_fail(KRAIT_ERR_ARGUMENT,
                 "there is no tower '%.60s'; use videomamba-t16, -s16, -m16, clip-vit-base-patch32, -base-patch16, "
                 "-large-patch14 or -large-patch14-336",
                 name);
}

int32_t kr_tower_measure(const krait_ctx *ctx, const char *name, int32_t dtype, int64_t n, int32_t n_runs,
                            kr_tower_report_fn report, void *user, kr_tower_timing *timing) {
  kr_tower_timing t = {.size = sizeof t};
  const struct tower *is;
  KR_CHECK(ctx && name && timing, KRAIT_ERR_ARGUMENT, "kr_tower_measure: ctx, name and timing must not be NULL");
  KR_CHECK(dtype == KRAIT_F32 || dtype == KRAIT_F16 || dtype == KRAIT_BF16, KRAIT_ERR_DTYPE,
           "kr_tower_measure: dtype is %d, must be float32, float16 or bfloat16", dtype);
  KR_CHECK(n >= 1 && n <= MOST_PICTURES && n_runs >= 1 && n_runs <= MOST_RUNS, KRAIT_ERR_ARGUMENT,
           "kr_tower_measure: %lld images and %d runs, must be 1 to %d and 1 to %d", (long long)n, n_runs,
           MOST_PICTURES, MOST_RUNS);
  KR_TRY(find_tower(name, &is));
  work *w = kr_zalloc(sizeof *w);
  KR_CHECK(w, KRAIT_ERR_NO_MEMORY, "no memory for a measurement");
  w->ctx = ctx, w->is = is, w->n = n;
  const int32_t status = measure_tower_time(w, dtype, n_runs, report, user, &t);
  close_product(ctx, &w->product);
  kr_runner_close(&w->runner);
  kr_clip_tower_close(&w->clip);
  kr_videomamba_close(&w->video);
  if (w->patches_at != w->patches) kr_mem_free(ctx, w->patches_at);
  kr_mem_free(ctx, w->features);
  kr_free(w->patches), kr_free(w->pictures), kr_free(w);
  return status < 0 ? status : kr_struct_give("kr_tower_timing", timing, sizeof t, &t, sizeof t);
}

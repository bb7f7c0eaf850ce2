/* seedvr_time.c: times two blocks, with plain and shifted windows, on a clip, with the published sizes and random
 * weights. */
#include <stdlib.h>

#include "alloc.h"
#include "clock.h"
#include "ctx.h"
#include "model_time.h"
#include "seedvr.h"
#include "sized.h"
#include "status.h"

enum { N_BLOCKS = 2, MOST_RUNS = 8, TEXT_TOKENS = 58 };

/* Latents: the first frame, then one for every four; one eighth of the pixels along each edge; patches of two by
 * two. */
static int32_t token_grid(const kr_seedvr_shape *shape, int64_t grid[3]) {
  KR_CHECK(shape->n_frames >= 1 && shape->n_frames <= 1 << 16 && shape->width >= 16 && shape->height >= 16 &&
               shape->width <= 1 << 15 && shape->height <= 1 << 15,
           KRAIT_ERR_ARGUMENT, "kr_seedvr_measure: %lld frames of %lld x %lld, must be 1 to 65536 of 16 to 32768",
           (long long)shape->n_frames, (long long)shape->width, (long long)shape->height);
  grid[0] = (shape->n_frames - 1) / 4 + 1, grid[1] = shape->height / 16, grid[2] = shape->width / 16;
  return KRAIT_OK;
}

typedef struct work {
  const krait_ctx *ctx;
  kr_seedvr_config c;
  kr_seedvr_weights w;
  kr_seedvr_graph g;
  void *blocks[3];
} work;

/* Zeros, which a norm does not change, would not be typical values: a 1 in every second byte is a small number in any
 * type. */
static int32_t bind_seedvr_time(work *m, int i, kr_tensor t, uint64_t bytes) {
  KR_TRY(kr_mem_get(m->ctx, "a clip", bytes, &m->blocks[i]));
  KR_TRY(kr_mem_fill(m->ctx, m->blocks[i], 0x3c, bytes));
  return kr_runner_bind(m->g.runner, t, m->blocks[i]);
}

static int compare_seedvr_time(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The first runs on a GPU load kernels and capture the graph; on a CPU the first run already counts. */
static int32_t time_seedvr_runs(const work *m, double budget_s, kr_seedvr_timing *t) {
  double times[MOST_RUNS], total = 0;
  int n = 0;
  for (int i = m->ctx->cuda ? -3 : 0; n < MOST_RUNS && (n == 0 || total < budget_s); i++) {
    KR_TRY(kr_mem_wait(m->ctx));
    const int64_t start = kr_clock_ns();
    KR_TRY(kr_runner_run(m->g.runner, NULL));
    KR_TRY(kr_mem_wait(m->ctx));
    const double seconds = (double)(kr_clock_ns() - start) * 1e-9;
    if (i < 0) continue;
    times[n++] = seconds / N_BLOCKS;
    total += seconds;
  }
  qsort(times, (size_t)n, sizeof *times, compare_seedvr_time);
  t->block_s = times[n / 2], t->best_s = times[0], t->n_runs = n;
  return KRAIT_OK;
}

static int32_t report_nodes(const work *m, kr_seedvr_report_fn report, void *user) {
  KR_TRY(kr_runner_profile(m->g.runner, NULL));
  return kr_graph_print(m->g.g, m->g.runner, report, user);
}

static int32_t measure_seedvr_time(work *m, int32_t dtype, double budget_s, kr_seedvr_timing *t) {
  KR_TRY(kr_seedvr_weights_open(m->ctx, &m->c, NULL, dtype, &m->w));
  KR_TRY(kr_seedvr_weights_hold(&m->w));
  for (int i = 0; i < N_BLOCKS; i++) m->w.layers[i].text_ends = 0; /* two from the middle of the model */
  KR_TRY(kr_seedvr_graph_open(m->ctx, &m->c, &m->w, &m->g));
  const uint64_t rows_bytes = (uint64_t)((m->g.T + m->g.n_text) * m->c.C) * krait_dtype_bytes(dtype);
  KR_TRY(bind_seedvr_time(m, 0, m->g.rows, rows_bytes));
  KR_TRY(bind_seedvr_time(m, 1, m->g.emb, (uint64_t)(6 * m->c.C) * sizeof(float)));
  KR_TRY(bind_seedvr_time(m, 2, m->g.out, rows_bytes));
  t->n_tokens = m->g.T;
  for (int i = 0; i < N_BLOCKS; i++) t->n_windows[i] = m->g.layout[i].n_windows, t->longest[i] = m->g.layout[i].longest;
  t->flops = m->g.flops / N_BLOCKS;
  t->weight_bytes = m->w.loader.bytes / N_BLOCKS, t->work_bytes = kr_graph_bytes(m->g.g) + 2 * rows_bytes;
  return time_seedvr_runs(m, budget_s, t);
}

int32_t kr_seedvr_measure(const krait_ctx *ctx, const kr_seedvr_shape *shape, int32_t dtype, double budget_s,
                             kr_seedvr_report_fn report, void *user, kr_seedvr_timing *timing) {
  kr_seedvr_timing t = {.size = sizeof t};
  kr_seedvr_shape s;
  KR_CHECK(ctx && shape && timing, KRAIT_ERR_ARGUMENT, "kr_seedvr_measure: ctx, shape and timing must not be NULL");
  KR_TRY(kr_struct_take("kr_seedvr_shape", shape, sizeof s, &s, sizeof s));
  KR_CHECK(s.variant == 3 || s.variant == 7, KRAIT_ERR_ARGUMENT, "kr_seedvr_measure: variant is %d, must be 3 or 7",
           s.variant);
  KR_CHECK(dtype == KRAIT_F32 || (ctx->cuda && (dtype == KRAIT_F16 || dtype == KRAIT_BF16)), KRAIT_ERR_DTYPE,
           "kr_seedvr_measure: dtype must be float32, or on a GPU float16 or bfloat16");
  work m = {.ctx = ctx};
  kr_config *config;
  KR_TRY(token_grid(&s, m.g.size));
  KR_TRY(kr_config_open(NULL, NULL, "num_layers=2,mm_layers=0", &config));
  int32_t status = kr_seedvr_config_read(s.variant == 3 ? "seedvr_dit3b" : "seedvr_dit7b", config, &m.c);
  kr_config_close(&config);
  m.g.n_text = TEXT_TOKENS, m.g.part = KR_SEEDVR_BLOCKS;
  if (status >= 0) status = measure_seedvr_time(&m, dtype, budget_s, &t);
  if (status >= 0 && report) status = report_nodes(&m, report, user);
  for (int i = 0; i < 3; i++) kr_mem_free(ctx, m.blocks[i]);
  kr_seedvr_graph_close(&m.g);
  kr_seedvr_weights_close(&m.w);
  return status < 0 ? status : kr_struct_give("kr_seedvr_timing", timing, sizeof t, &t, sizeof t);
}

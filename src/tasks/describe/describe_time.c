/* describe_time.c: times Mobile-VideoGPT's parts with random weights of the published sizes, starting from decoded
 * frames. */
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "clock.h"
#include "ctx.h"
#include "lm/lm.h"
#include "model_time.h"
#include "sized.h"
#include "status.h"
#include "videogpt/videogpt.h"
#include "videomamba/videomamba.h"

enum { BEFORE = 14, BEHIND = 24, PROMPT = BEFORE + KR_VIDEOGPT_ROWS + BEHIND, MOST_TOKENS = 4096, SIDE = 224 };

typedef struct work {
  const krait_ctx *ctx;
  kr_videogpt *model;
  kr_videomamba *video;
  kr_lm *lm;
  float *images, *frames, *logits;
  char *rows;
  int32_t ids[PROMPT];
  double times[MOST_TOKENS];
} work;

static double describe_time_seconds_since(int64_t start_ns) { return (double)(kr_clock_ns() - start_ns) * 1e-9; }

static int32_t open_describe_time_parts(work *w, int32_t dtype) {
  kr_lm_config *config;
  static const kr_videomamba_config video = {
      .grid = {SIDE, 16, 16}, .T = KR_VIDEOGPT_T, .D = 576, .n_layers = 32, .Di = 1152, .N = 16, .R = 36, .W = 4};
  KR_TRY(kr_videogpt_open(
      w->ctx,
      &(kr_videogpt_source){.rows_dtype = w->ctx->cuda ? dtype : KRAIT_F32, .random_type = dtype, .clip_prefix = ""},
      &w->model));
  KR_TRY(kr_videomamba_open_random(w->ctx, &video, dtype, &w->video));
  KR_TRY(kr_lm_find_published("qwen2-0.5b", &config));
  KR_TRY(kr_lm_open_random(w->ctx, config, dtype, 1, &w->lm));
  KR_TRY(kr_lm_narrow_keys(w->lm));
  const kr_lm_config *lm = kr_lm_config_of(w->lm);
  KR_TRY(kr_mem_get(w->ctx, "the prompt's rows", (uint64_t)(PROMPT * lm->d) * krait_dtype_bytes(kr_lm_dtype(w->lm)),
                    &w->rows));
  w->images = kr_alloc_array((size_t)KR_VIDEOGPT_IMAGES * 3 * SIDE * SIDE, sizeof *w->images);
  w->frames = kr_alloc_array((size_t)KR_VIDEOGPT_T * 3 * SIDE * SIDE, sizeof *w->frames);
  w->logits = kr_alloc_array((size_t)lm->V, sizeof *w->logits);
  KR_CHECK(w->images && w->frames && w->logits, KRAIT_ERR_NO_MEMORY, "no memory for a measurement");
  for (int64_t i = 0; i < (int64_t)KR_VIDEOGPT_IMAGES * 3 * SIDE * SIDE; i++)
    w->images[i] = (float)(i * 7919 % 1009) / 500 - 1;
  memcpy(w->frames, w->images, (size_t)KR_VIDEOGPT_T * 3 * SIDE * SIDE * sizeof *w->frames);
  for (int i = 0; i < PROMPT; i++) w->ids[i] = i < BEFORE || i >= BEFORE + KR_VIDEOGPT_ROWS ? 1 + i : -1;
  return kr_lm_wait(w->lm);
}

static int32_t look_describe_time(work *w) {
  char *const rows = w->rows + (uint64_t)(BEFORE * kr_videogpt_d(w->model)) * krait_dtype_bytes(kr_lm_dtype(w->lm));
  int32_t chosen[KR_VIDEOGPT_T];
  KR_TRY(kr_videogpt_look(w->model, w->images, rows, NULL, chosen));
  KR_TRY(kr_videomamba_run(w->video, w->frames, NULL, NULL));
  KR_TRY(kr_videogpt_watch(w->model, kr_videomamba_tokens_at(w->video), rows));
  return kr_lm_wait(w->lm);
}

/* A video and its prompt; the first run is a warm-up. */
static int32_t time_film(work *w, kr_describer_timing *t) {
  for (int k = 0; k < 4; k++) {
    const int64_t start = kr_clock_ns();
    KR_TRY(look_describe_time(w));
    const double seen = describe_time_seconds_since(start);
    KR_TRY(kr_lm_reset(w->lm, 0));
    KR_TRY(kr_lm_prefill(w->lm, 0, w->ids, w->rows, PROMPT, 0, w->logits));
    const double read = describe_time_seconds_since(start) - seen;
    if (k == 1 || (k > 1 && seen < t->encode_s)) t->encode_s = seen;
    if (k == 1 || (k > 1 && read < t->prefill_s)) t->prefill_s = read;
  }
  return KRAIT_OK;
}

static int compare_describe_time(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static int32_t time_described_tokens(work *w, int64_t n, kr_describer_timing *t) {
  int32_t id = 1;
  for (int64_t k = -3; k < n; k++) {
    const int64_t start = kr_clock_ns();
    KR_TRY(kr_lm_step(w->lm, 1, &(int32_t){0}, &id, NULL, &id));
    if (k >= 0) w->times[k] = describe_time_seconds_since(start);
  }
  qsort(w->times, (size_t)n, sizeof *w->times, compare_describe_time);
  t->token_s = w->times[n / 2];
  return KRAIT_OK;
}

static int32_t measure_describe_time(work *w, int32_t dtype, int64_t n_tokens, kr_describer_timing *t) {
  const int64_t start = kr_clock_ns();
  KR_TRY(open_describe_time_parts(w, dtype));
  t->open_s = describe_time_seconds_since(start);
  t->n_prompt = PROMPT;
  t->bytes = kr_videogpt_bytes(w->model) + kr_videomamba_bytes(w->video) + kr_lm_bytes(w->lm);
  KR_TRY(time_film(w, t));
  return time_described_tokens(w, n_tokens, t);
}

int32_t kr_describer_measure(const krait_ctx *ctx, int32_t dtype, int64_t n_tokens, kr_describer_timing *timing) {
  kr_describer_timing t = {.size = sizeof t};
  KR_CHECK(ctx && timing, KRAIT_ERR_ARGUMENT, "ctx and timing must not be NULL");
  KR_CHECK(dtype == KRAIT_F32 || dtype == KRAIT_F16 || dtype == KRAIT_BF16, KRAIT_ERR_DTYPE,
           "dtype is %d, must be float32, float16 or bfloat16", dtype);
  KR_CHECK(n_tokens >= 1 && n_tokens <= MOST_TOKENS, KRAIT_ERR_ARGUMENT, "n_tokens must be 1 to %d", MOST_TOKENS);
  work *w = kr_zalloc(sizeof *w);
  KR_CHECK(w, KRAIT_ERR_NO_MEMORY, "no memory for a measurement");
  w->ctx = ctx;
  const int32_t status = measure_describe_time(w, dtype, n_tokens, &t);
  kr_lm_close(&w->lm);
  kr_videogpt_close(&w->model);
  kr_videomamba_close(&w->video);
  kr_mem_free(ctx, w->rows);
  kr_free(w->images), kr_free(w->frames), kr_free(w->logits), kr_free(w);
  return status < 0 ? status : kr_struct_give("kr_describer_timing", timing, sizeof t, &t, sizeof t);
}

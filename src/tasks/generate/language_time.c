/* language_time.c: how long a prompt and a token take with the sizes of published models, or of a folder's; their
 * weights are random, which changes no time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc.h"
#include "clock.h"
#include "lm/lm.h"
#include "lm/lm_blocks.h"
#include "model_time.h"
#include "sized.h"
#include "status.h"

enum { MOST_TOKENS = 4096 };

static int32_t check_dtype(int32_t dtype) {
  KR_CHECK(
      dtype == KRAIT_F32 || dtype == KRAIT_F16 || dtype == KRAIT_BF16 || dtype == KRAIT_Q8_0 || dtype == KRAIT_Q4_K,
      KRAIT_ERR_DTYPE, "dtype is %d, must be float32, float16, bfloat16 or, for q8_0 and q4_k, int32 and uint8", dtype);
  return KRAIT_OK;
}

static int has_config(const char *folder) {
  char path[1200];
  snprintf(path, sizeof path, "%.1100s/config.json", folder);
  return access(path, R_OK) == 0;
}

/* Nothing is loaded: a part of the model that goes by other names would be missing without a word. */
static int32_t check_names(const kr_lm_family *family, const kr_model_folder *folder) {
  const char *field;
  for (int64_t i = 0; i < kr_model_folder_count(folder); i++) {
    const char *name = kr_model_folder_at(folder, i)->name;
    kr_lm_key_flags(family, name, &field);
    KR_CHECK(field || kr_name_is_listed(family->unused, name), KRAIT_ERR_WEIGHTS,
             "%s: tensor '%s' is of no part that family %s has: its time would be missing",
             kr_model_folder_label(folder), name, family->name);
  }
  return KRAIT_OK;
}

/* Of a folder, whose weights need only have shapes. */
static int32_t read_config(const char *path, kr_lm_config **config) {
  const kr_lm_family *family = NULL;
  kr_model_folder *folder = NULL;
  KR_TRY(kr_model_folder_open(path, &folder));
  int32_t status = kr_lm_family_of(folder, &family);
  if (status >= 0) status = check_names(family, folder);
  if (status >= 0) status = family->read(folder, config);
  kr_model_folder_close(&folder);
  return status;
}

/* Of what a step reads: of mixtures only the chosen experts. */
static uint64_t count_step_bytes(const kr_lm *m, int32_t dtype, int64_t batch) {
  const kr_lm_config *c = kr_lm_config_of(m);
  const double each = dtype == KRAIT_Q8_0 ? 1.0625 : dtype == KRAIT_Q4_K ? 0.5625 : (double)krait_dtype_bytes(dtype);
  double bytes = (double)kr_lm_bytes(m);
  for (int64_t i = 0; i < c->n_blocks; i++) {
    const kr_lm_moe_sizes *s = c->blocks[i].sizes;
    if (c->blocks[i].kind != &kr_lm_moe || batch * s->k >= s->E) continue;
    const double matrices = s->activation == KR_LM_RELU2 ? 2 : 3, inner = (double)(s->latent ? s->latent : s->d);
    bytes -= (double)(s->E - batch * s->k) * matrices * (double)s->F * inner * each;
  }
  return (uint64_t)bytes;
}

static int32_t open_random(const krait_ctx *ctx, const char *model, int32_t dtype, int64_t n_slots, int narrow,
                           kr_lm **m) {
  kr_lm_config *config;
  KR_TRY(has_config(model) ? read_config(model, &config) : kr_lm_find_published(model, &config));
  KR_TRY(kr_lm_open_random(ctx, config, dtype, n_slots, m));
  if (narrow) KR_TRY(kr_lm_narrow_states(*m));
  return kr_lm_narrow_keys(*m);
}

static double lm_time_seconds_since(int64_t start_ns) { return (double)(kr_clock_ns() - start_ns) * 1e-9; }

static int compare_lm_time(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

typedef struct work {
  kr_lm *model;
  int64_t B, n_prompt, n_tokens;
  float *logits;
  int32_t *ids, *slots; /* of the prompt, or of a step */
  double *times;
} work;

static void choose_tokens(work *w) {
  const int64_t V = kr_lm_config_of(w->model)->V, n = V > 1000 ? 999 : V - 1;
  for (int64_t i = 0; i < w->n_prompt; i++) w->ids[i] = (int32_t)(n ? 1 + i * 7919 % n : 0);
}

static int32_t time_prompt(work *w, kr_lm_timing *t) {
  choose_tokens(w);
  for (int k = 0; k < 4; k++) { /* the first warms up */
    KR_TRY(kr_lm_reset(w->model, 0));
    KR_TRY(kr_lm_wait(w->model));
    const int64_t start = kr_clock_ns();
    KR_TRY(kr_lm_prefill(w->model, 0, w->ids, NULL, w->n_prompt, 0, w->logits));
    const double seconds = lm_time_seconds_since(start);
    if (k == 1 || (k > 1 && seconds < t->prompt_s)) t->prompt_s = seconds;
  }
  return KRAIT_OK;
}

static int32_t time_lm_tokens(work *w, kr_lm_timing *t) {
  for (int64_t b = 0; b < w->B; b++) w->slots[b] = (int32_t)b, w->ids[b] = (int32_t)(1 + b);
  for (int64_t k = -3; k < w->n_tokens; k++) {
    const int64_t start = kr_clock_ns();
    KR_TRY(kr_lm_step(w->model, w->B, w->slots, w->ids, NULL, w->ids));
    if (k >= 0) w->times[k] = lm_time_seconds_since(start);
  }
  qsort(w->times, (size_t)w->n_tokens, sizeof *w->times, compare_lm_time);
  t->token_s = w->times[w->n_tokens / 2];
  const int64_t start = kr_clock_ns();
  for (int64_t k = 0; k < w->n_tokens; k++) KR_TRY(kr_lm_step_again(w->model));
  KR_TRY(kr_lm_wait(w->model));
  t->step_s = lm_time_seconds_since(start) / (double)w->n_tokens;
  return KRAIT_OK;
}

static int32_t measure_lm_time(const krait_ctx *ctx, const char *model, int32_t dtype, work *w, kr_lm_timing *t) {
  const int64_t n_ids = w->n_prompt > w->B ? w->n_prompt : w->B, start = kr_clock_ns();
  KR_TRY(open_random(ctx, model, dtype, w->B, t->narrow_states, &w->model));
  KR_TRY(kr_lm_wait(w->model));
  t->open_s = lm_time_seconds_since(start);
  t->token_bytes = count_step_bytes(w->model, dtype, w->B);
  w->logits = kr_alloc_array((size_t)(w->B * kr_lm_config_of(w->model)->V), sizeof *w->logits);
  w->ids = kr_alloc_array((size_t)n_ids, sizeof *w->ids);
  w->slots = kr_alloc_array((size_t)w->B, sizeof *w->slots);
  w->times = kr_alloc_array((size_t)w->n_tokens, sizeof *w->times);
  KR_CHECK(w->logits && w->ids && w->slots && w->times, KRAIT_ERR_NO_MEMORY, "no memory for a measurement");
  KR_TRY(time_prompt(w, t));
  return time_lm_tokens(w, t);
}

int32_t kr_lm_measure(const krait_ctx *ctx, const char *model, int32_t dtype, int64_t batch, int64_t n_prompt,
                         int64_t n_tokens, kr_lm_timing *timing) {
  kr_lm_timing t;
  KR_CHECK(ctx && model && timing, KRAIT_ERR_ARGUMENT, "ctx, model and timing must not be NULL");
  KR_TRY(kr_struct_take("kr_lm_timing", timing, sizeof t, &t, sizeof t));
  KR_TRY(check_dtype(dtype));
  KR_CHECK(
      batch >= 1 && batch <= 1024 && n_prompt >= 1 && n_prompt <= 1 << 24 && n_tokens >= 1 && n_tokens <= MOST_TOKENS,
      KRAIT_ERR_ARGUMENT, "batch must be 1 to 1024, n_prompt 1 to 2^24, n_tokens 1 to %d", MOST_TOKENS);
  work w = {.B = batch, .n_prompt = n_prompt, .n_tokens = n_tokens};
  int32_t status = measure_lm_time(ctx, model, dtype, &w, &t);
  kr_lm_close(&w.model);
  kr_free(w.logits), kr_free(w.ids), kr_free(w.slots), kr_free(w.times);
  return status < 0 ? status : kr_struct_give("kr_lm_timing", timing, sizeof t, &t, sizeof t);
}

/* ---- what runs are made of ---- */

typedef struct kinds {
  const char *run;
  kr_lm_profile_fn kind;
  void *user;
} kinds;

static void tell_kind(void *user, const char *name, const char *op, const char *row, int64_t n_calls, double seconds) {
  const kinds *k = user;
  k->kind(k->user, k->run, name, op, row, n_calls, seconds);
}

static int32_t time_kinds(const krait_ctx *ctx, const char *model, int32_t dtype, work *w, int32_t narrow,
                          kr_lm_profile_fn kind, void *user) {
  KR_TRY(open_random(ctx, model, dtype, w->B, narrow, &w->model));
  choose_tokens(w);
  KR_TRY(kr_lm_prefill(w->model, 0, w->ids, NULL, w->n_prompt, 0, NULL));
  KR_TRY(kr_lm_profile_by_kernel(w->model, tell_kind, &(kinds){"prompt", kind, user}));
  for (int64_t b = 0; b < w->B; b++) w->slots[b] = (int32_t)b;
  KR_TRY(kr_lm_step(w->model, w->B, w->slots, w->ids, NULL, NULL));
  return kr_lm_profile_by_kernel(w->model, tell_kind, &(kinds){"step", kind, user});
}

int32_t kr_lm_measure_kernels(const krait_ctx *ctx, const char *model, int32_t dtype, int64_t batch,
                                   int64_t n_prompt, int32_t narrow_states, kr_lm_profile_fn kind, void *user) {
  KR_CHECK(ctx && model && kind, KRAIT_ERR_ARGUMENT, "ctx, model and kind must not be NULL");
  KR_TRY(check_dtype(dtype));
  KR_CHECK(batch >= 1 && batch <= 1024 && n_prompt >= 1 && n_prompt <= 1 << 24, KRAIT_ERR_ARGUMENT,
           "batch must be 1 to 1024, n_prompt 1 to 2^24");
  const int64_t n_ids = n_prompt > batch ? n_prompt : batch;
  work w = {.B = batch,
            .n_prompt = n_prompt,
            .ids = kr_alloc_array((size_t)n_ids, sizeof *w.ids),
            .slots = kr_alloc_array((size_t)batch, sizeof *w.slots)};
  const int32_t status = w.ids && w.slots ? time_kinds(ctx, model, dtype, &w, narrow_states, kind, user)
                                          : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a measurement");
  kr_lm_close(&w.model);
  kr_free(w.ids), kr_free(w.slots);
  return status;
}

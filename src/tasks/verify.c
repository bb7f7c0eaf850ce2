/* verify.c: a language model by prompts in one pass, in steps, and continued greedily, several at once, too; VideoMamba
 * by clips; Mobile-VideoGPT by images and its video tower's tokens. The golden file says which of them it is. */
#include "verify.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc.h"
#include "ctx_memory.h"
#include "lm/lm.h"
#include "model_kind.h"
#include "status.h"
#include "videogpt/videogpt_parts.h"
#include "videomamba/videomamba.h"
#include "view.h"

enum {
  MOST_TOGETHER = 64,
  FIRST = 4,   /* tokens read at once before steps */
  IMAGE = -200 /* stands for an image in Mobile-VideoGPT's prompts */
};

typedef struct verifying {
  const kr_weights *golden;
  krait_verify_result *rows;
  int32_t n_rows, *n_filled;
  kr_lm *lm;
  int64_t V;
} verifying;

/* A golden tensor of this type; NULL: missing, or of another type. */
static const kr_weight *recorded(const verifying *v, const char *prefix, const char *name, int is_ids) {
  char key[96];
  snprintf(key, sizeof key, "golden.%s%s", prefix, name);
  const kr_weight *item = kr_weights_find(v->golden, key);
  const int is_whole = item && (item->dtype == KRAIT_I32 || item->dtype == KRAIT_I64);
  return item && item->n_dims >= 1 && (is_ids ? is_whole : item->dtype == KRAIT_F32) ? item : NULL;
}

static int64_t n_of(const kr_weight *item) {
  int64_t n = 1;
  for (int i = 0; i < item->n_dims; i++) n *= item->shape[i];
  return n;
}

static int32_t id_of(const kr_weight *item, int64_t i) {
  return item->dtype == KRAIT_I64 ? (int32_t)((const int64_t *)item->data)[i] : ((const int32_t *)item->data)[i];
}

static void add_row(const verifying *v, const char *prefix, const char *name, const float *got, const float *want,
                    int64_t n) {
  char label[32];
  snprintf(label, sizeof label, "%s%s", prefix, name);
  kr_verify_add(label, got, want, n, v->rows, v->n_rows, v->n_filled);
}

/* ---- one prompt ---- */

static int32_t check_logits(const verifying *v, const kr_weight *item, int64_t n) {
  KR_CHECK(!item || n_of(item) == n * v->V, KRAIT_ERR_WEIGHTS,
           "the golden file has logits of another size than %lld tokens of a vocabulary of %lld", (long long)n,
           (long long)v->V);
  return KRAIT_OK;
}

/* One pass, then, in another slot, a few tokens and the rest in steps. */
static int32_t verify_prompt(const verifying *v, const char *prefix, const int32_t *ids, int64_t n, float *logits) {
  const kr_weight *want = recorded(v, prefix, "logits", 0), *steps = recorded(v, prefix, "step_logits", 0);
  const int64_t first = n < FIRST ? n : FIRST;
  KR_TRY(check_logits(v, want, n));
  KR_TRY(check_logits(v, steps, n));
  KR_TRY(kr_lm_reset(v->lm, 0));
  KR_TRY(kr_lm_prefill(v->lm, 0, ids, NULL, n, 1, logits));
  if (want) add_row(v, prefix, "logits", logits, want->data, n * v->V);
  const kr_weight *other = steps ? steps : want;
  if (!other) return KRAIT_OK;
  KR_TRY(kr_lm_reset(v->lm, 1));
  KR_TRY(kr_lm_prefill(v->lm, 1, ids, NULL, first, 1, logits));
  for (int64_t t = first; t < n; t++)
    KR_TRY(kr_lm_step(v->lm, 1, &(int32_t){1}, ids + t, logits + t * v->V, NULL));
  add_row(v, prefix, "steps", logits, other->data, n * v->V);
  return KRAIT_OK;
}

static int32_t take_likeliest(const float *logits, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; i++)
    if (logits[i] > logits[best]) best = i;
  return (int32_t)best;
}

/* Slots 0 to B - 1 have read their prompts, and logits (B,V) follow them: the greedy continuations, as numbers. */
static int32_t continue_greedily(const verifying *v, const char *prefix, const kr_weight *greedy, int64_t B,
                                 float *logits) {
  const int64_t n = n_of(greedy) / B;
  int32_t slots[MOST_TOGETHER], next[MOST_TOGETHER];
  float *both = kr_alloc_array((size_t)(2 * n_of(greedy)), sizeof *both), *got = both, *want = both + n_of(greedy);
  int32_t status = both ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a continuation");
  for (int64_t t = 0; t < n && status >= 0; t++) {
    for (int64_t b = 0; b < B; b++) {
      slots[b] = (int32_t)b;
      next[b] = take_likeliest(logits + b * v->V, v->V);
      got[b * n + t] = (float)next[b], want[b * n + t] = (float)id_of(greedy, b * n + t);
    }
    if (t + 1 < n) status = kr_lm_step(v->lm, B, slots, next, logits, NULL);
  }
  if (status >= 0) add_row(v, prefix, "greedy", got, want, n_of(greedy));
  kr_free(both);
  return status;
}

static int32_t verify_one(const verifying *v, const char *prefix) {
  const kr_weight *input = recorded(v, prefix, "input_ids", 1), *greedy = recorded(v, prefix, "greedy", 1);
  if (!input) return KRAIT_OK;
  const int64_t n = n_of(input);
  KR_CHECK(n >= 1 && n < 1 << 20, KRAIT_ERR_WEIGHTS, "the golden file has a prompt of %lld tokens", (long long)n);
  float *logits = kr_alloc_array((size_t)(n * v->V), sizeof *logits);
  int32_t *ids = kr_alloc_array((size_t)n, sizeof *ids);
  int32_t status = logits && ids ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for the logits of a prompt");
  for (int64_t i = 0; status >= 0 && i < n; i++) {
    ids[i] = id_of(input, i);
    if (ids[i] < 0 || ids[i] >= v->V)
      status = kr_fail(KRAIT_ERR_WEIGHTS, "the golden file has token %d, the model only 0 to %lld", ids[i],
                       (long long)v->V - 1);
  }
  if (status >= 0) status = verify_prompt(v, prefix, ids, n, logits);
  if (status >= 0 && greedy) { /* slot 0 has read all of it, but its last logits have been overwritten */
    status = kr_lm_reset(v->lm, 0);
    if (status >= 0) status = kr_lm_prefill(v->lm, 0, ids, NULL, n, 0, logits);
    if (status >= 0) status = continue_greedily(v, prefix, greedy, 1, logits);
  }
  kr_free(logits), kr_free(ids);
  return status;
}

/* ---- several prompts ---- */

/* Padded at the left; each is what it is alone. */
static int32_t verify_batch(const verifying *v) {
  const kr_weight *input = recorded(v, "batch.", "input_ids", 1), *mask = recorded(v, "batch.", "attention_mask", 1),
                  *greedy = recorded(v, "batch.", "greedy", 1);
  if (!input || !mask || !greedy || input->n_dims != 2 || n_of(mask) != n_of(input)) return KRAIT_OK;
  const int64_t B = input->shape[0], n = input->shape[1];
  KR_CHECK(B >= 1 && B <= MOST_TOGETHER && n >= 1 && n < 1 << 16 && n_of(greedy) % B == 0, KRAIT_ERR_WEIGHTS,
           "the golden file has %lld prompts together, at most %d are supported", (long long)B, MOST_TOGETHER);
  float *logits = kr_alloc_array((size_t)(B * v->V), sizeof *logits);
  int32_t *ids = kr_alloc_array((size_t)n, sizeof *ids);
  int32_t status = logits && ids ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for prompts");
  for (int64_t b = 0; b < B && status >= 0; b++) {
    int64_t used = 0;
    for (int64_t t = 0; t < n; t++)
      if (id_of(mask, b * n + t)) ids[used++] = id_of(input, b * n + t);
    if ((status = kr_lm_reset(v->lm, b)) >= 0)
      status = kr_lm_prefill(v->lm, b, ids, NULL, used, 0, logits + b * v->V);
  }
  if (status >= 0) status = continue_greedily(v, "batch.", greedy, B, logits);
  kr_free(logits), kr_free(ids);
  return status;
}

static int32_t verify_language(const krait_ctx *ctx, const char *path, verifying *v) {
  const kr_weight *batch = recorded(v, "batch.", "input_ids", 1);
  kr_model_folder *folder = NULL;
  int64_t n_slots = batch && batch->n_dims == 2 ? batch->shape[0] : 1;
  KR_TRY(kr_model_folder_open(path, &folder));
  n_slots = n_slots < 2 ? 2 : n_slots > MOST_TOGETHER ? MOST_TOGETHER : n_slots;
  int32_t status = kr_lm_open(ctx, folder, n_slots, 0, &v->lm);
  if (status >= 0) v->V = kr_lm_config_of(v->lm)->V;
  if (status >= 0) status = verify_one(v, "");
  if (status >= 0) status = verify_one(v, "short.");
  if (status >= 0) status = verify_batch(v);
  kr_lm_close(&v->lm);
  kr_model_folder_close(&folder);
  return status;
}

/* ---- VideoMamba ---- */

static int32_t verify_clips(const kr_videomamba_config *c, kr_videomamba *m, const verifying *v) {
  const char *name = c->n_classes ? "logits" : "x_vis";
  const kr_weight *input = recorded(v, "", "input", 0), *want = recorded(v, "", name, 0);
  const int64_t n_clip = 3 * c->T * c->grid.side * c->grid.side, B = input->shape[0],
                n = c->n_classes ? c->n_classes : kr_videomamba_tokens(c) * c->D;
  KR_CHECK(want && B >= 1 && n_of(input) == B * n_clip && n_of(want) == B * n, KRAIT_ERR_WEIGHTS,
           "the golden file's input or %s does not have the model's sizes", name);
  float *got = kr_alloc_array((size_t)(B * n), sizeof *got);
  int32_t status = got ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for %lld clips", (long long)B);
  for (int64_t b = 0; b < B && status >= 0; b++) {
    const float *clip = (const float *)input->data + b * n_clip;
    status = kr_videomamba_run(m, clip, c->n_classes ? got + b * n : NULL, c->n_classes ? NULL : got + b * n);
  }
  if (status >= 0) add_row(v, "", name, got, want->data, B * n);
  kr_free(got);
  return status;
}

static int32_t verify_video(const krait_ctx *ctx, const char *path, const verifying *v) {
  kr_weights *weights = NULL;
  kr_videomamba *m = NULL;
  KR_TRY(kr_weights_open(path, &weights));
  int32_t status = kr_weights_widen(weights);
  if (status >= 0) status = kr_videomamba_open(ctx, weights, NULL, &m);
  if (status >= 0) status = verify_clips(kr_videomamba_config_of(m), m, v);
  kr_videomamba_close(&m);
  kr_weights_close(&weights);
  return status;
}

/* ---- Mobile-VideoGPT ---- */

typedef struct verifying_film {
  const krait_ctx *ctx;
  kr_videogpt_parts parts;
  char *rows;   /* in the context's memory, (n,d): zero but for the video's, which begin at row n_before */
  int32_t *ids; /* (n), the video's -1 */
  int64_t n, n_before, d;
} verifying_film;

/* n values, recorded, or as two rows of integers: value (i,j) is ((rows[i] columns[j]) mod 251 - 125) / 64. */
static int32_t take_values(const verifying *v, const char *name, const char *rows, const char *columns, int64_t n,
                           float **values) {
  const kr_weight *whole = recorded(v, "", name, 0), *u = recorded(v, "", rows, 1), *w = recorded(v, "", columns, 1);
  const int64_t n_rows = u ? n_of(u) : 0;
  const int is_formula = n_rows && w && n % n_rows == 0 && n / n_rows == n_of(w);
  KR_CHECK(whole ? n_of(whole) == n : is_formula, KRAIT_ERR_WEIGHTS,
           "the golden file needs %lld values of golden.%s, or golden.%s and golden.%s of a table of so many",
           (long long)n, name, rows, columns);
  *values = kr_alloc_array((size_t)n, sizeof **values);
  KR_CHECK(*values, KRAIT_ERR_NO_MEMORY, "no memory for golden.%s", name);
  if (whole) return memcpy(*values, whole->data, (size_t)n * sizeof **values), KRAIT_OK;
  for (int64_t i = 0; i < n; i++)
    (*values)[i] = (float)((int64_t)id_of(u, i / n_of(w)) * id_of(w, i % n_of(w)) % 251 - 125) / 64;
  return KRAIT_OK;
}

/* The recorded prompt, with the video's rows in place of its images. */
static int32_t take_film_prompt(const verifying *v, verifying_film *f) {
  const kr_weight *input = recorded(v, "", "input_ids", 1);
  const int64_t n_input = n_of(input), n_images = KR_VIDEOGPT_IMAGES;
  int64_t n_found = 0;
  for (int64_t i = 0; i < n_input; i++)
    if (id_of(input, i) == IMAGE && n_found++ == 0) f->n_before = i;
  int is_right = n_found == n_images && n_input < 1 << 20 && id_of(input, f->n_before + n_images - 1) == IMAGE;
  f->n = n_input - n_images + KR_VIDEOGPT_ROWS;
  f->ids = is_right ? kr_alloc_array((size_t)f->n, sizeof *f->ids) : NULL;
  KR_CHECK(!is_right || f->ids, KRAIT_ERR_NO_MEMORY, "no memory for a prompt");
  for (int64_t i = 0; is_right && i < f->n; i++) {
    const int64_t after = i - f->n_before - KR_VIDEOGPT_ROWS;
    const int is_text = i < f->n_before || after >= 0;
    f->ids[i] = is_text ? id_of(input, i < f->n_before ? i : f->n_before + n_images + after) : -1;
    is_right = !is_text || (f->ids[i] >= 0 && f->ids[i] < v->V);
  }
  KR_CHECK(is_right, KRAIT_ERR_WEIGHTS,
           "golden.input_ids must be tokens from 0 to %lld around %d times %d, together, for the video",
           (long long)v->V - 1, KR_VIDEOGPT_IMAGES, IMAGE);
  return KRAIT_OK;
}

static int32_t add_film_rows(const verifying *v, const verifying_film *f, const char *name, int64_t from, int64_t n) {
  const kr_weight *embeds = recorded(v, "", "inputs_embeds", 0);
  const int32_t dtype = kr_lm_dtype(v->lm);
  const uint64_t bytes = (uint64_t)(n * f->d) * krait_dtype_bytes(dtype);
  const kr_view stored = {.data = kr_alloc_array((size_t)bytes, 1), .dtype = dtype};
  float *got = kr_alloc_array((size_t)(n * f->d), sizeof *got);
  int32_t status = stored.data && got ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a video's rows");
  const int64_t start = (f->n_before + from) * f->d;
  if (status >= 0)
    status = kr_mem_read(f->ctx, stored.data, f->rows + (size_t)start * krait_dtype_bytes(dtype), bytes);
  if (status >= 0) {
    for (int64_t i = 0; i < n * f->d; i++) got[i] = (float)kr_get(&stored, i);
    add_row(v, "", name, got, (const float *)embeds->data + start, n * f->d);
  }
  kr_free(stored.data), kr_free(got);
  return status;
}

static int32_t add_choice(const verifying *v, const double *scores, const int32_t *chosen) {
  const kr_weight *want_scores = recorded(v, "", "scores", 0), *want = recorded(v, "", "selected", 1);
  float scores32[KR_VIDEOGPT_IMAGES], got[KR_VIDEOGPT_T], places[KR_VIDEOGPT_T];
  KR_CHECK(!want_scores || n_of(want_scores) == KR_VIDEOGPT_IMAGES, KRAIT_ERR_WEIGHTS,
           "golden.scores must be of %d frames", KR_VIDEOGPT_IMAGES);
  KR_CHECK(!want || n_of(want) == KR_VIDEOGPT_T, KRAIT_ERR_WEIGHTS, "golden.selected must be of %d frames",
           KR_VIDEOGPT_T);
  for (int i = 0; i < KR_VIDEOGPT_IMAGES; i++) scores32[i] = (float)scores[i];
  if (want_scores) add_row(v, "", "scores", scores32, want_scores->data, KR_VIDEOGPT_IMAGES);
  if (!want) return KRAIT_OK;
  for (int i = 0; i < KR_VIDEOGPT_T; i++)
    got[i] = (float)(chosen[i] % KR_VIDEOGPT_CHUNK), places[i] = (float)id_of(want, i);
  add_row(v, "", "selected", got, places, KR_VIDEOGPT_T);
  return KRAIT_OK;
}

/* The video's rows of the prompt. */
static int32_t verify_look(const verifying *v, const verifying_film *f, const float *images, const float *tokens) {
  kr_videogpt *m = f->parts.model;
  const uint64_t bytes = (1 + KR_VIDEOGPT_T * KR_VIDEOGPT_PATCHES) * (uint64_t)kr_videogpt_width(m) * sizeof *tokens;
  char *const film = f->rows + (size_t)(f->n_before * f->d) * krait_dtype_bytes(kr_lm_dtype(v->lm));
  double scores[KR_VIDEOGPT_IMAGES];
  int32_t chosen[KR_VIDEOGPT_T];
  float *tokens_at = NULL;
  KR_TRY(kr_videogpt_look(m, images, film, scores, chosen));
  KR_TRY(kr_mem_get(f->ctx, "the video tower's tokens", bytes, &tokens_at));
  int32_t status = kr_mem_put(f->ctx, tokens_at, tokens, bytes);
  if (status >= 0) status = kr_videogpt_watch(m, tokens_at, film);
  if (status >= 0) status = add_choice(v, scores, chosen);
  if (status >= 0) status = add_film_rows(v, f, "context", 0, KR_VIDEOGPT_CONTEXT_ROWS);
  if (status >= 0) status = add_film_rows(v, f, "video", KR_VIDEOGPT_CONTEXT_ROWS, KR_VIDEOGPT_VIDEO_ROWS);
  kr_mem_free(f->ctx, tokens_at);
  return status;
}

/* The recorded answer is read token by token; each of its tokens must be the likeliest one. logits: (n of answer,V). */
static int32_t verify_answer(const verifying *v, const verifying_film *f, const kr_weight *answer, float *logits) {
  const kr_weight *first = recorded(v, "", "prefill_logits_last", 0), *steps = recorded(v, "", "step_logits", 0);
  const int64_t n = n_of(answer);
  float *both = kr_alloc_array((size_t)(2 * n), sizeof *both), *got = both, *want = both + n;
  int32_t status = both ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for an answer");
  if (status >= 0) status = check_logits(v, first, 1);
  if (status >= 0) status = check_logits(v, steps, n);
  if (status >= 0) status = kr_lm_prefill(v->lm, 0, f->ids, f->rows, f->n, 0, logits);
  for (int64_t t = 0; t < n && status >= 0; t++) {
    const int32_t id = id_of(answer, t);
    got[t] = (float)take_likeliest(logits + t * v->V, v->V), want[t] = (float)id;
    if (t + 1 < n) status = kr_lm_step(v->lm, 1, &(int32_t){0}, &id, logits + (t + 1) * v->V, NULL);
  }
  if (status >= 0 && first) add_row(v, "", "logits", logits, first->data, v->V);
  if (status >= 0 && steps) add_row(v, "", "steps", logits, steps->data, n * v->V);
  if (status >= 0) add_row(v, "", "greedy", got, want, n);
  kr_free(both);
  return status;
}

static int32_t verify_film(const verifying *v, verifying_film *f) {
  const kr_weight *answer = recorded(v, "", "generated", 1), *embeds = recorded(v, "", "inputs_embeds", 0);
  const int64_t side = kr_videogpt_side(f->parts.model), width = kr_videogpt_width(f->parts.model);
  float *images = NULL, *tokens = NULL, *logits = NULL;
  f->d = kr_videogpt_d(f->parts.model);
  KR_TRY(take_film_prompt(v, f));
  KR_CHECK(n_of(embeds) == f->n * f->d, KRAIT_ERR_WEIGHTS, "golden.inputs_embeds must be of %lld rows of %lld",
           (long long)f->n, (long long)f->d);
  KR_CHECK(!answer || (n_of(answer) >= 1 && n_of(answer) < 1 << 16), KRAIT_ERR_WEIGHTS,
           "golden.generated must be of 1 to 65535 tokens");
  KR_TRY(kr_mem_get(f->ctx, "the prompt's rows", (uint64_t)(f->n * f->d) * krait_dtype_bytes(kr_lm_dtype(v->lm)),
                    &f->rows));
  int32_t status =
      take_values(v, "context_images", "image_u", "image_w", KR_VIDEOGPT_IMAGES * 3 * side * side, &images);
  if (status >= 0)
    status = take_values(v, "video_tokens", "video_u", "video_w", (1 + KR_VIDEOGPT_T * KR_VIDEOGPT_PATCHES) * width,
                         &tokens);
  if (status >= 0) status = verify_look(v, f, images, tokens);
  kr_free(images), kr_free(tokens);
  if (status < 0 || !answer) return status;
  logits = kr_alloc_array((size_t)(n_of(answer) * v->V), sizeof *logits);
  KR_CHECK(logits, KRAIT_ERR_NO_MEMORY, "no memory for the logits of an answer");
  status = verify_answer(v, f, answer, logits);
  kr_free(logits);
  return status;
}

/* A file of weights may have the configurations of the language model and of CLIP in its metadata (docs/GOLDEN.md), and
 * the recording the one key that is in neither. NULL: it has not. */
static json_t *recorded_config(const verifying *v, const kr_weights *weights) {
  const char *text = kr_weights_metadata(weights, "config"), *best = kr_weights_metadata(v->golden, "topK");
  json_t *parts = text ? json_loads(text, 0, NULL) : NULL, *of_text = json_object_get(parts, "qwen"),
         *config = json_is_object(of_text) ? json_deep_copy(of_text) : NULL;
  const int failed = config && (json_object_set_new(config, "model_type", json_string("MobileVideoGPT_qwen")) |
                                json_object_set_new(config, "topK", json_boolean(!best || strcmp(best, "True") == 0)) |
                                json_object_set(config, "vision_config", json_object_get(parts, "clip")));
  json_decref(parts);
  if (!failed) return config;
  json_decref(config);
  return NULL;
}

static int is_file(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

static int32_t open_videogpt_folder(const verifying *v, const char *path, kr_model_folder **folder) {
  kr_weights *weights = NULL;
  json_t *config = NULL;
  if (is_file(path)) {
    KR_TRY(kr_weights_open(path, &weights));
    config = recorded_config(v, weights);
    kr_weights_close(&weights);
  }
  return kr_model_folder_open_configured(path, config, folder);
}

static int32_t verify_videogpt(const krait_ctx *ctx, const char *path, verifying *v) {
  verifying_film f = {.ctx = ctx};
  kr_model_folder *folder = NULL;
  KR_TRY(open_videogpt_folder(v, path, &folder));
  int32_t status = kr_lm_open(ctx, folder, 1, 0, &v->lm);
  if (status >= 0) v->V = kr_lm_config_of(v->lm)->V;
  if (status >= 0) status = kr_videogpt_parts_open_towerless(ctx, folder, path, v->lm, &f.parts);
  if (status >= 0) status = verify_film(v, &f);
  kr_videogpt_parts_close(&f.parts);
  kr_mem_free(ctx, f.rows);
  kr_free(f.ids);
  kr_lm_close(&v->lm);
  kr_model_folder_close(&folder);
  return status;
}

int32_t kr_verify_model(const krait_ctx *ctx, const char *model, const char *golden_path, krait_verify_result *rows,
                        int32_t n_rows, int32_t *n_filled, int *is_known) {
  kr_weights *golden = NULL;
  struct stat info;
  *is_known = 0, *n_filled = 0;
  const int32_t opened = kr_weights_open(golden_path, &golden);
  /* what is no folder is of another kind, which reads the file itself */
  if (opened < 0) return stat(model, &info) == 0 && S_ISDIR(info.st_mode) ? opened : KRAIT_OK;
  verifying v = {.golden = golden, .rows = rows, .n_rows = n_rows, .n_filled = n_filled};
  const int is_language = recorded(&v, "", "input_ids", 1) && recorded(&v, "", "logits", 0);
  const int is_film = recorded(&v, "", "input_ids", 1) && recorded(&v, "", "inputs_embeds", 0);
  const int is_video = recorded(&v, "", "input", 0) != NULL;
  *is_known = is_language || is_film || is_video;
  const int32_t status = is_language ? verify_language(ctx, model, &v)
                         : is_film   ? verify_videogpt(ctx, model, &v)
                         : is_video  ? verify_video(ctx, model, &v)
                                     : KRAIT_OK;
  kr_weights_close(&golden);
  return status;
}

/* verify.c: a language model by prompts in one pass, in steps, and continued greedily, several at once, too; VideoMamba
 * by clips. Which of them it is follows from the golden file. */
#include "verify.h"

#include <stdio.h>
#include <sys/stat.h>

#include "alloc.h"
#include "lm/lm.h"
#include "model_kind.h"
#include "status.h"
#include "videomamba/videomamba.h"

enum { MOST_TOGETHER = 64, FIRST = 4 }; /* FIRST: tokens read at once before steps */

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
  const int is_video = recorded(&v, "", "input", 0) != NULL;
  *is_known = is_language || is_video;
  const int32_t status = is_language ? verify_language(ctx, model, &v)
                         : is_video  ? verify_video(ctx, model, &v)
                                     : KRAIT_OK;
  kr_weights_close(&golden);
  return status;
}

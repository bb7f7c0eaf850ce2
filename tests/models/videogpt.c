/* videogpt.c: Mobile-VideoGPT against the shared golden files: scores and choice of frames, both projectors' rows in the prompt, logits and the greedy answer, with the video tower's tokens as
 * recorded. Skipped where the golden files are not beside this tree; tests/cli/describe.py has a model of its own. */
#define _GNU_SOURCE
#include "../test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "qwen2/qwen2.h"
#include "videogpt/videogpt.h"

#define WORKS(call) do { if ((call) < 0) fail_msg("%s", krait_error_detail()); } while (0)
enum { N = KR_VIDEOGPT_PATCHES, DV = 576, MOST = 4096 };

static krait_ctx *ctx;
static kr_weights *golden;
static kr_model_folder *folder;

static const kr_weight *item(const char *name) {
  const kr_weight *found = kr_weights_find(golden, name);
  if (!found) fail_msg("no %s", name);
  return found;
}
#define FLOATS(name) ((const float *)item(name)->data)
#define INTS(name) ((const int32_t *)item(name)->data)

static void assert_close(const char *what, const float *got, const float *want, int64_t n) {
  double error = 0, scale = 0;
  for (int64_t i = 0; i < n; i++) {
    const double d = fabs((double)got[i] - want[i]);
    if (!(d <= error)) error = d;
    if (fabs(want[i]) > scale) scale = fabs(want[i]);
  }
  if (!(error <= 1e-5 * scale)) fail_msg("%s: %.3g of %.3g", what, error, scale);
}

/* The recorded tokens of the video tower, by their formula. */
static float *video_tokens(void) {
  const int64_t L = item("golden.video_u")->shape[0];
  float *tokens = malloc((size_t)(L * DV) * sizeof *tokens);
  for (int64_t n = 0; n < L; n++)
    for (int64_t d = 0; d < DV; d++) tokens[n * DV + d] = (float)((INTS("golden.video_u")[n] * INTS("golden.video_w")[d]) % 251 - 125) / 64;
  assert_int_equal(L, 1 + KR_VIDEOGPT_T * N);
  return tokens;
}

/* Rows of the prompt: zeros for its text. Returns how many tokens the prompt has; the film's are -1. */
static int64_t read_film(float **rows_out, int32_t *ids) {
  const kr_videogpt_source source = {folder, folder, "model.image_vision_tower.vision_tower.vision_model.", KRAIT_F32};
  kr_videogpt *m;
  double scores[KR_VIDEOGPT_IMAGES];
  float scores32[KR_VIDEOGPT_IMAGES], *tokens = video_tokens();
  int32_t chosen[KR_VIDEOGPT_T];
  int64_t n_before = 0, n = 0;
  WORKS(kr_videogpt_open(ctx, &source, &m));
  const int64_t d = kr_videogpt_d(m), n_ids = item("golden.input_ids")->shape[0];
  assert_int_equal(kr_videogpt_width(m), DV);
  while (INTS("golden.input_ids")[n_before] != -200) n_before++;
  for (int64_t i = 0; i < n_before; i++) ids[n++] = INTS("golden.input_ids")[i];
  for (int64_t i = 0; i < KR_VIDEOGPT_ROWS; i++) ids[n++] = -1;
  for (int64_t i = n_before + KR_VIDEOGPT_IMAGES; i < n_ids; i++) ids[n++] = INTS("golden.input_ids")[i];
  float *rows = *rows_out = calloc((size_t)(n * d), sizeof *rows);
  WORKS(kr_videogpt_look(m, FLOATS("golden.context_images"), rows + n_before * d, scores, chosen));
  WORKS(kr_videogpt_watch(m, tokens, rows + n_before * d));
  for (int i = 0; i < KR_VIDEOGPT_IMAGES; i++) scores32[i] = (float)scores[i];
  assert_close("scores", scores32, FLOATS("golden.scores"), KR_VIDEOGPT_IMAGES);
  for (int i = 0; i < KR_VIDEOGPT_T; i++) assert_int_equal(chosen[i] % KR_VIDEOGPT_CHUNK, INTS("golden.selected")[i]);
  assert_int_equal(item("golden.inputs_embeds")->shape[0], n);
  assert_close("context", rows + n_before * d, FLOATS("golden.inputs_embeds") + n_before * d, KR_VIDEOGPT_CONTEXT_ROWS * d);
  assert_close("video", rows + (n_before + KR_VIDEOGPT_CONTEXT_ROWS) * d, FLOATS("golden.video_projected"), KR_VIDEOGPT_VIDEO_ROWS * d);
  assert_close("video in its place", rows + (n_before + KR_VIDEOGPT_CONTEXT_ROWS) * d, FLOATS("golden.inputs_embeds") + (n_before + KR_VIDEOGPT_CONTEXT_ROWS) * d, KR_VIDEOGPT_VIDEO_ROWS * d);
  kr_videogpt_close(&m);
  free(tokens);
  return n;
}

static void a_film(void **state) {
  float *rows, *logits;
  int32_t ids[MOST];
  kr_qwen2 *m;
  (void)state;
  const int64_t n = read_film(&rows, ids), n_drawn = item("golden.generated")->shape[0];
  WORKS(kr_qwen2_open(ctx, folder, 1, 0, &m));
  const int64_t V = kr_qwen2_config_of(m)->V;
  logits = malloc((size_t)V * sizeof *logits);
  WORKS(kr_qwen2_read(m, 0, ids, rows, n, 0, logits));
  assert_close("prefill", logits, FLOATS("golden.prefill_logits_last"), V);
  for (int64_t k = 0; k < n_drawn; k++) {
    int32_t best = 0;
    assert_close("a step", logits, FLOATS("golden.step_logits") + k * V, V);
    for (int64_t i = 1; i < V; i++)
      if (logits[i] > logits[best]) best = (int32_t)i;
    assert_int_equal(best, INTS("golden.generated")[k]);
    WORKS(kr_qwen2_step(m, 1, &(int32_t){0}, &best, logits, NULL));
  }
  kr_qwen2_close(&m);
  free(rows), free(logits);
}

/* The golden weights as a model's folder: their configuration is in the metadata. */
static void make_folder(char *path) {
  char file[300];
  kr_weights *weights = NULL;
  if (kr_weights_open(SHARED_GOLDEN "/videogpt/tiny.weights.safetensors", &weights) < 0) return;
  json_t *parts = json_loads(kr_weights_metadata(weights, "config"), 0, NULL), *config = json_deep_copy(json_object_get(parts, "qwen"));
  json_object_set_new(config, "model_type", json_string("MobileVideoGPT_qwen"));
  json_object_set(config, "vision_config", json_object_get(parts, "clip"));
  snprintf(file, sizeof file, "%s/config.json", path);
  assert_int_equal(json_dump_file(config, file, 0), 0);
  snprintf(file, sizeof file, "%s/model.safetensors", path);
  assert_int_equal(symlink(SHARED_GOLDEN "/videogpt/tiny.weights.safetensors", file), 0);
  json_decref(config), json_decref(parts);
  kr_weights_close(&weights);
}

static char path[] = "/tmp/krait-videogpt-XXXXXX";

static int begin(void **state) {
  (void)state;
  if (kr_weights_open(SHARED_GOLDEN "/videogpt/tiny.golden.safetensors", &golden) < 0) return 0;
  if (!mkdtemp(path)) return -1;
  make_folder(path);
  if (kr_model_folder_open(path, &folder) < 0) return -1;
  return krait_ctx_open(&(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = KRAIT_DEVICE_CPU}, &ctx);
}

static int end(void **state) {
  char file[300];
  (void)state;
  krait_ctx_close(&ctx);
  kr_model_folder_close(&folder);
  if (golden) kr_weights_close(&golden);
  snprintf(file, sizeof file, "%s/config.json", path), unlink(file);
  snprintf(file, sizeof file, "%s/model.safetensors", path), unlink(file);
  rmdir(path);
  return 0;
}

static void film_or_skip(void **state) {
  if (!golden) skip();
  a_film(state);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(film_or_skip)};
  return cmocka_run_group_tests(tests, begin, end);
}

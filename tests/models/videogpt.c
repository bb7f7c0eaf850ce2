/* videogpt.c: Mobile-VideoGPT against the shared golden files: scores and choice of frames, both projectors' rows in
 * the prompt, logits and the greedy answer, with the video tower's tokens as recorded. Skipped where the golden files
 * are not beside this tree; tests/cli/describe.py has a model of its own. */
#define _GNU_SOURCE
#include "../test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "qwen2/qwen2.h"
#include "videogpt/pixels.h"
#include "videogpt/videogpt.h"

#define WORKS(call)                                       \
  do {                                                    \
    if ((call) < 0) fail_msg("%s", krait_error_detail()); \
  } while (0)
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
    for (int64_t d = 0; d < DV; d++)
      tokens[n * DV + d] = (float)((INTS("golden.video_u")[n] * INTS("golden.video_w")[d]) % 251 - 125) / 64;
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
  assert_close("context", rows + n_before * d, FLOATS("golden.inputs_embeds") + n_before * d,
               KR_VIDEOGPT_CONTEXT_ROWS * d);
  assert_close("video", rows + (n_before + KR_VIDEOGPT_CONTEXT_ROWS) * d, FLOATS("golden.video_projected"),
               KR_VIDEOGPT_VIDEO_ROWS * d);
  assert_close("video in its place", rows + (n_before + KR_VIDEOGPT_CONTEXT_ROWS) * d,
               FLOATS("golden.inputs_embeds") + (n_before + KR_VIDEOGPT_CONTEXT_ROWS) * d, KR_VIDEOGPT_VIDEO_ROWS * d);
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

/* ---- frames ---- */

static void which_frames(void **state) {
  json_t *cases = json_load_file(SHARED_GOLDEN "/videogpt/sampling.json", 0, NULL), *one, *position;
  size_t i, k;
  int64_t at[16];
  (void)state;
  json_array_foreach(cases, i, one) {
    const json_t *want = json_object_get(one, "positions");
    const int n = kr_film_positions(json_integer_value(json_object_get(one, "frames")),
                                    json_number_value(json_object_get(one, "fps")), at);
    if (!want) continue; /* where the published code stops with an error */
    assert_int_equal(n, json_array_size(want));
    json_array_foreach(want, k, position) assert_int_equal(at[k], json_integer_value(position));
  }
  json_decref(cases);
  assert_int_equal(kr_film_positions(1, 30, at), 1);
  assert_int_equal(kr_film_positions(7, 30, at), 7);
  assert_int_equal(kr_film_positions(300, 0.4, at), 16);
  assert_int_equal(at[15], 299);
  assert_int_equal(kr_film_positions(30, 0, at), 16);
}

/* Sums of the whole, parts of it, and rows of bytes. */
static void pixels(void **state) {
  enum { SIDE = 224, AREA = SIDE * SIDE };
  kr_weights *frames;
  uint8_t *bytes = malloc(3 * AREA);
  float *out = malloc(3 * AREA * sizeof *out), part[3 * 23 * 25];
  char name[40];
  (void)state;
  WORKS(kr_weights_open(SHARED_GOLDEN "/videogpt/frames.golden.safetensors", &frames));
  for (int i = 0; i < 4; i++) {
    const int is_context = i & 1;
#define OF(text) (snprintf(name, sizeof name, text, i / 2), kr_weights_find(frames, name))
    const kr_weight *image = OF("golden.image%d"), *rows = OF("golden.video%d_uint8_row");
    const float *sums = (const float *)OF("golden.sums%d")->data + 2 * is_context,
                *want = is_context ? OF("golden.context%d")->data : OF("golden.video%d")->data;
    double sum = 0, squares = 0;
    WORKS((is_context ? kr_resize_bicubic : kr_resize_linear)(image->data, image->shape[1], image->shape[0], SIDE,
                                                              bytes));
    if (!is_context) assert_memory_equal(bytes + 100 * SIDE * 3, rows->data, 2 * SIDE * 3);
    (is_context ? kr_pixels_of_clip : kr_pixels_of_video)(bytes, AREA, AREA, out);
    for (int k = 0; k < 3 * AREA; k++) sum += out[k], squares += (double)out[k] * out[k];
    for (int c = 0, n = 0; c < 3; c++)
      for (int y = 3; y < SIDE; y += 10)
        for (int x = 1; x < SIDE; x += 9) part[n++] = out[c * AREA + y * SIDE + x];
    assert_close("pixels", part, want, 3 * 23 * 25);
    assert_close("sums", (const float[]){(float)sum, (float)squares}, sums, 2);
  }
  kr_weights_close(&frames);
  free(bytes), free(out);
}

/* The golden weights as a model's folder: their configuration is in the metadata. */
static void make_folder(char *path) {
  char file[300];
  kr_weights *weights = NULL;
  if (kr_weights_open(SHARED_GOLDEN "/videogpt/tiny.weights.safetensors", &weights) < 0) return;
  json_t *parts = json_loads(kr_weights_metadata(weights, "config"), 0, NULL),
         *config = json_deep_copy(json_object_get(parts, "qwen"));
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

#define OR_SKIP(name) \
  static void name##_or_skip(void **state) { golden ? name(state) : skip(); }
OR_SKIP(a_film)
OR_SKIP(which_frames)
OR_SKIP(pixels)

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_film_or_skip), cmocka_unit_test(which_frames_or_skip),
                                     cmocka_unit_test(pixels_or_skip)};
  return cmocka_run_group_tests(tests, begin, end);
}

/* videogpt.c: Mobile-VideoGPT against golden files (tests/golden/videogpt, and upstream's beside this tree if there):
 * frame scores and choice, both projectors' prompt rows, logits and the greedy answer, with given video tokens. */
#define _GNU_SOURCE
#include "../test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lm/lm.h"
#include "videogpt/pixels.h"
#include "videogpt/videogpt.h"
#include "view.h"

#define WORKS(call)                                       \
  do {                                                    \
    if ((call) < 0) fail_msg("%s", krait_error_detail()); \
  } while (0)
enum { N = KR_VIDEOGPT_PATCHES, DV = 576, MOST = 4096 };

static krait_ctx *ctx;
static int32_t device = KRAIT_DEVICE_CPU;
static const char *home;         /* of the golden files */
static const char *weights_path; /* tiny.weights there, or the 16-bit ones */
static double bound = 1e-5;
static kr_weights *golden;
static kr_model_folder *folder;

static const kr_weight *videogpt_item(const char *name) {
  const kr_weight *found = kr_weights_find(golden, name);
  if (!found) fail_msg("no %s", name);
  return found;
}
#define FLOATS(name) ((const float *)videogpt_item(name)->data)
#define INTS(name) ((const int32_t *)videogpt_item(name)->data)

static void videogpt_assert_close(const char *what, const float *got, const float *want, int64_t n) {
  double error = 0, scale = 0;
  for (int64_t i = 0; i < n; i++) {
    const double d = fabs((double)got[i] - want[i]);
    if (!(d <= error)) error = d;
    if (fabs(want[i]) > scale) scale = fabs(want[i]);
  }
  if (!(error <= bound * scale)) fail_msg("%s: %.3g of %.3g", what, error, scale);
}

/* (n, m) values that the golden file states as two rows of integers. */
static float *values_by_formula(const char *u, const char *w) {
  const int64_t n = videogpt_item(u)->shape[0], m = videogpt_item(w)->shape[0];
  float *values = malloc((size_t)(n * m) * sizeof *values);
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < m; j++) values[i * m + j] = (float)((INTS(u)[i] * INTS(w)[j]) % 251 - 125) / 64;
  return values;
}

static float *video_tokens(void) {
  assert_int_equal(videogpt_item("golden.video_u")->shape[0], 1 + KR_VIDEOGPT_T * N);
  assert_int_equal(videogpt_item("golden.video_w")->shape[0], DV);
  return values_by_formula("golden.video_u", "golden.video_w");
}

static float *context_images(void) {
  const kr_weight *stored = kr_weights_find(golden, "golden.context_images");
  if (!stored) return values_by_formula("golden.image_u", "golden.image_w");
  return memcpy(malloc(stored->bytes), stored->data, stored->bytes);
}

static void assert_rows(const char *what, const char *block, int64_t from, int64_t n, int32_t dtype,
                        const float *want) {
  const size_t bytes = krait_dtype_bytes(dtype);
  const kr_view stored = {.data = malloc((size_t)n * bytes), .dtype = dtype};
  float *got = malloc((size_t)n * sizeof *got);
  WORKS(kr_mem_read(ctx, stored.data, block + (size_t)from * bytes, (uint64_t)n * bytes));
  for (int64_t i = 0; i < n; i++) got[i] = (float)kr_get(&stored, i);
  videogpt_assert_close(what, got, want, n);
  free(stored.data), free(got);
}

/* The prompt's tokens, the video's are -1; returns how many. */
static int64_t prompt(int32_t *ids, int64_t *n_before) {
  int64_t n = 0;
  for (*n_before = 0; INTS("golden.input_ids")[*n_before] != -200; ++*n_before)
    ids[n++] = INTS("golden.input_ids")[*n_before];
  for (int64_t i = 0; i < KR_VIDEOGPT_ROWS; i++) ids[n++] = -1;
  for (int64_t i = *n_before + KR_VIDEOGPT_IMAGES; i < videogpt_item("golden.input_ids")->shape[0]; i++)
    ids[n++] = INTS("golden.input_ids")[i];
  assert_int_equal(videogpt_item("golden.inputs_embeds")->shape[0], n);
  return n;
}

/* Copies the video's rows into the prompt's. */
static void look_videogpt(int32_t dtype, int64_t n_before, char *rows) {
  const kr_videogpt_source source = {folder, folder, "model.image_vision_tower.vision_tower.vision_model.", dtype, 0};
  const uint64_t tokens_bytes = (1 + KR_VIDEOGPT_T * N) * DV * sizeof(float);
  kr_videogpt *m;
  double scores[KR_VIDEOGPT_IMAGES];
  float scores32[KR_VIDEOGPT_IMAGES], *tokens = video_tokens(), *images = context_images(), *tokens_at;
  int32_t chosen[KR_VIDEOGPT_T];
  WORKS(kr_videogpt_open(ctx, &source, &m));
  const int64_t d = kr_videogpt_d(m), video = n_before + KR_VIDEOGPT_CONTEXT_ROWS;
  char *const film = rows + (size_t)(n_before * d) * krait_dtype_bytes(dtype);
  assert_int_equal(kr_videogpt_width(m), DV);
  WORKS(kr_mem_get(ctx, "tokens", tokens_bytes, &tokens_at));
  WORKS(kr_mem_put(ctx, tokens_at, tokens, tokens_bytes));
  WORKS(kr_videogpt_look(m, images, film, scores, chosen));
  WORKS(kr_videogpt_watch(m, tokens_at, film));
  for (int i = 0; i < KR_VIDEOGPT_IMAGES; i++) scores32[i] = (float)scores[i];
  videogpt_assert_close("scores", scores32, FLOATS("golden.scores"), KR_VIDEOGPT_IMAGES);
  for (int i = 0; i < KR_VIDEOGPT_T; i++) assert_int_equal(chosen[i] % KR_VIDEOGPT_CHUNK, INTS("golden.selected")[i]);
  assert_rows("context", rows, n_before * d, KR_VIDEOGPT_CONTEXT_ROWS * d, dtype,
              FLOATS("golden.inputs_embeds") + n_before * d);
  assert_rows("video", rows, video * d, KR_VIDEOGPT_VIDEO_ROWS * d, dtype, FLOATS("golden.video_projected"));
  assert_rows("video in its place", rows, video * d, KR_VIDEOGPT_VIDEO_ROWS * d, dtype,
              FLOATS("golden.inputs_embeds") + video * d);
  kr_videogpt_close(&m);
  kr_mem_free(ctx, tokens_at);
  free(tokens), free(images);
}

static void a_film(void **state) {
  float *logits;
  char *rows;
  int32_t ids[MOST];
  int64_t n_before;
  kr_lm *m;
  (void)state;
  WORKS(kr_lm_open(ctx, folder, 1, 0, &m));
  const int64_t V = kr_lm_config_of(m)->V, d = kr_lm_config_of(m)->d, n = prompt(ids, &n_before),
                n_drawn = videogpt_item("golden.generated")->shape[0];
  WORKS(kr_mem_get(ctx, "rows", (uint64_t)(n * d) * krait_dtype_bytes(kr_lm_dtype(m)), &rows));
  look_videogpt(kr_lm_dtype(m), n_before, rows);
  logits = malloc((size_t)V * sizeof *logits);
  WORKS(kr_lm_prefill(m, 0, ids, rows, n, 0, logits));
  videogpt_assert_close("prefill", logits, FLOATS("golden.prefill_logits_last"), V);
  for (int64_t k = 0; k < n_drawn; k++) {
    int32_t best = 0;
    videogpt_assert_close("a step", logits, FLOATS("golden.step_logits") + k * V, V);
    for (int64_t i = 1; i < V; i++)
      if (logits[i] > logits[best]) best = (int32_t)i;
    if (bound < 1e-4) assert_int_equal(best, INTS("golden.generated")[k]);
    best = INTS("golden.generated")[k];
    WORKS(kr_lm_step(m, 1, &(int32_t){0}, &best, logits, NULL));
  }
  kr_lm_close(&m);
  kr_mem_free(ctx, rows);
  free(logits);
}

/* ---- frames ---- */

static void which_frames(void **state) {
  json_t *cases = json_load_file("tests/golden/videogpt/sampling.json", 0, NULL), *one, *position;
  size_t i, k;
  int64_t at[16];
  (void)state;
  assert_true(json_array_size(cases) > 5);
  json_array_foreach(cases, i, one) {
    const json_t *want = json_object_get(one, "positions");
    const int n = kr_film_positions(json_integer_value(json_object_get(one, "frames")),
                                    json_number_value(json_object_get(one, "fps")), at);
    if (!want) continue; /* where the published code fails */
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

/* Sums of the whole, of parts, and of byte rows. */
static void pixels(void **state) {
  enum { SIDE = 224, AREA = SIDE * SIDE };
  kr_weights *frames;
  uint8_t *bytes = malloc(3 * AREA);
  float *out = malloc(3 * AREA * sizeof *out), part[3 * 23 * 25];
  char name[40];
  (void)state;
  WORKS(kr_weights_open("tests/golden/videogpt/frames.golden.safetensors", &frames));
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
    videogpt_assert_close("pixels", part, want, 3 * 23 * 25);
    videogpt_assert_close("sums", (const float[]){(float)sum, (float)squares}, sums, 2);
  }
  kr_weights_close(&frames);
  free(bytes), free(out);
}

/* The golden weights as a model folder: the configuration is in the metadata. */
static void make_videogpt_folder(char *path) {
  char file[300], *target = realpath(weights_path, NULL);
  kr_weights *weights = NULL;
  if (kr_weights_open(weights_path, &weights) < 0) fail_msg("%s", krait_error_detail());
  json_t *parts = json_loads(kr_weights_metadata(weights, "config"), 0, NULL),
         *config = json_deep_copy(json_object_get(parts, "qwen"));
  json_object_set_new(config, "model_type", json_string("MobileVideoGPT_qwen"));
  json_object_set(config, "vision_config", json_object_get(parts, "clip"));
  json_object_set_new(config, "topK", json_boolean(strcmp(kr_weights_metadata(golden, "topK"), "True") == 0));
  snprintf(file, sizeof file, "%s/config.json", path);
  assert_int_equal(json_dump_file(config, file, 0), 0);
  snprintf(file, sizeof file, "%s/model.safetensors", path);
  assert_int_equal(symlink(target, file), 0);
  json_decref(config), json_decref(parts), free(target);
  kr_weights_close(&weights);
}

static char path[40];

static int begin_videogpt(void **state) {
  char file[1000];
  (void)state;
  snprintf(file, sizeof file, "%s/tiny.golden.safetensors", home);
  if (kr_weights_open(file, &golden) < 0) return -1;
  strcpy(path, "/tmp/krait-videogpt-XXXXXX");
  if (!mkdtemp(path)) return -1;
  make_videogpt_folder(path);
  if (kr_model_folder_open(path, &folder) < 0) return -1;
  return krait_ctx_open(&(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = device}, &ctx);
}

static int end_videogpt(void **state) {
  char file[300];
  (void)state;
  krait_ctx_close(&ctx);
  kr_model_folder_close(&folder);
  kr_weights_close(&golden);
  snprintf(file, sizeof file, "%s/config.json", path), unlink(file);
  snprintf(file, sizeof file, "%s/model.safetensors", path), unlink(file);
  rmdir(path);
  return 0;
}

/* The golden files of a folder, with the weights there unless others are given. */
static int run_videogpt(const char *folder_of_files, const char *weights) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_film), cmocka_unit_test(which_frames),
                                     cmocka_unit_test(pixels)};
  char own[1000];
  home = folder_of_files;
  snprintf(own, sizeof own, "%s/tiny.weights.safetensors", home);
  weights_path = weights ? weights : own;
  return cmocka_run_group_tests(tests, begin_videogpt, end_videogpt);
}

/* On a GPU: test_models_videogpt cuda [WEIGHTS BOUND]; the weights are those of the files beside this tree. */
int main(int argc, char **argv) {
  if (argc > 1) device = strcmp(argv[1], "cuda") == 0 ? KRAIT_DEVICE_CUDA(0) : KRAIT_DEVICE_CPU, bound = 1e-4;
  if (argc > 3) bound = atof(argv[3]);
  int failed = argc > 3 ? 0 : run_videogpt("tests/golden/videogpt", NULL);
  if (access(SHARED_GOLDEN "/videogpt", R_OK) == 0)
    failed += run_videogpt(SHARED_GOLDEN "/videogpt", argc > 3 ? argv[2] : NULL);
  return failed;
}

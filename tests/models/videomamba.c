/* videomamba.c: VideoMamba and Vim against golden files (tests/golden/videomamba, and upstream's beside this tree if
 * there), which of the two a file's are, and errors. */
#define _POSIX_C_SOURCE 200809L
#include "../test.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "safetensors.h"
#include "videomamba/videomamba.h"

static krait_ctx *ctx;
static const char *home;                        /* of the golden files */
static const char *kind_of_weights = "weights"; /* or the 16-bit ones */
static double bound = 1e-5;

static kr_weights *open_file(const char *name, const char *kind) {
  char path[1000];
  kr_weights *file = NULL;
  snprintf(path, sizeof path, "%s/%s.%s.safetensors", home, name, kind);
  if (access(path, R_OK) != 0) snprintf(path, sizeof path, "%s/%s.pth", home, name);
  if (kr_weights_open(path, &file) < 0) fail_msg("%s", krait_error_detail());
  return file;
}

static double videomamba_relative(const float *got, const float *want, int64_t n) {
  double error = 0, scale = 0;
  for (int64_t i = 0; i < n; i++) {
    error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
    scale += (double)want[i] * want[i];
  }
  return error / scale;
}

static void check(const char *name, const char *output) {
  kr_weights *weights = open_file(name, kind_of_weights), *golden = open_file(name, "golden");
  const kr_weight *input = kr_weights_find(golden, "golden.input"), *want = kr_weights_find(golden, output);
  kr_videomamba *m = NULL;
  if (kr_videomamba_open(ctx, weights, NULL, &m) < 0) fail_msg("%s", krait_error_detail());
  const int64_t B = input->shape[0], n = (int64_t)(want->bytes / sizeof(float)) / B;
  float *got = malloc((size_t)n * sizeof *got);
  for (int64_t b = 0; b < B; b++) {
    const float *clip = (const float *)input->data + b * (int64_t)(input->bytes / sizeof(float)) / B;
    const int is_class = kr_videomamba_config_of(m)->n_classes > 0;
    if (kr_videomamba_run(m, clip, is_class ? got : NULL, is_class ? NULL : got) < 0)
      fail_msg("%s", krait_error_detail());
    const double error = videomamba_relative(got, (const float *)want->data + b * n, n);
    if (!(error < bound * bound)) fail_msg("%s, clip %d: relative error %.2g squared", output, (int)b, error);
  }
  free(got);
  kr_videomamba_close(&m);
  kr_weights_close(&weights), kr_weights_close(&golden);
}

static void classes(void **state) { (void)state, check("video_sm", "golden.logits"); }
static void all_tokens(void **state) { (void)state, check("video_mm", "golden.x_vis"); }
static void vim_by_metadata(void **state) { (void)state, check("vim", "golden.logits"); }
static void vim_of_a_training_checkpoint(void **state) { (void)state, check("vim_stride", "golden.logits"); }

static void videomamba_refusals(void **state) {
  (void)state;
  kr_weights *golden = open_file("video_sm", "golden"), *weights = open_file("video_mm", "weights");
  kr_videomamba *m = NULL;
  float logits[10], frames[3 * 2 * 32 * 32] = {0};
  assert_int_equal(kr_videomamba_open(ctx, golden, NULL, &m), KRAIT_ERR_WEIGHTS);
  assert_non_null(strstr(krait_error_detail(), "patch_embed.proj.weight"));
  assert_null(m);
  if (kr_videomamba_open(ctx, weights, NULL, &m) < 0) fail_msg("%s", krait_error_detail());
  assert_int_equal(kr_videomamba_run(m, frames, logits, NULL), KRAIT_ERR_ARGUMENT);
  kr_videomamba_close(&m);
  kr_weights_close(&golden), kr_weights_close(&weights);
}

/* Biases that other models of this kind have, and this one would leave out. */
static void biases_that_nothing_reads(void **state) {
  static const char *const names[] = {"layers.0.mixer.in_proj.bias", "layers.1.norm.bias", "norm_f.bias"};
  static float zeros[64];
  char path[] = "/tmp/krait-videomamba-XXXXXX";
  kr_weights *weights = open_file("video_sm", "weights"), *with = NULL;
  const int64_t n = kr_weights_count(weights);
  kr_weight *all = malloc((size_t)(n + 1) * sizeof *all);
  kr_videomamba *m = NULL;
  (void)state;
  assert_true(close(mkstemp(path)) == 0);
  for (int64_t i = 0; i < n; i++) all[i] = *kr_weights_at(weights, i);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    all[n] = (kr_weight){names[i], KRAIT_F32, 1, {64}, zeros, sizeof zeros};
    assert_int_equal(kr_safetensors_write(path, all, n + 1, NULL, 0), KRAIT_OK);
    assert_int_equal(kr_weights_open(path, &with), KRAIT_OK);
    assert_int_equal(kr_videomamba_open(ctx, with, NULL, &m), KRAIT_ERR_WEIGHTS);
    assert_non_null(strstr(krait_error_detail(), names[i]));
    kr_weights_close(&with);
  }
  unlink(path);
  free(all);
  kr_weights_close(&weights);
}

/* The class of an image's golden input by these weights under this name, or the status. */
static int32_t first_logit(const kr_weights *weights, const char *name, float *logit) {
  kr_weights *golden = open_file("vim", "golden");
  kr_videomamba *m = NULL;
  float logits[10];
  int32_t status = kr_videomamba_open(ctx, weights, name, &m);
  if (status >= 0) status = kr_videomamba_run(m, kr_weights_find(golden, "golden.input")->data, logits, NULL);
  if (status >= 0) *logit = logits[0];
  kr_videomamba_close(&m);
  kr_weights_close(&golden);
  return status;
}

/* Tensors of an image's model without a name are neither model's until somebody says which. */
static void a_name_decides(void **state) {
  static const struct {
    const char *name, *words;
    int32_t status;
  } refused[] = {{NULL, "--model vim or --model videomamba", KRAIT_ERR_WEIGHTS},
                 {"resnet", "there is no image model 'resnet'", KRAIT_ERR_UNSUPPORTED},
                 {"vim_tiny_patch16_224_bimambav2_rope", "another kind of Vim", KRAIT_ERR_UNSUPPORTED}};
  char path[] = "/tmp/krait-vim-XXXXXX";
  kr_weights *named = open_file("vim", "weights"), *video = open_file("video_sm", "weights"), *nameless = NULL;
  float by_metadata, by_name, other;
  (void)state;
  assert_true(close(mkstemp(path)) == 0);
  assert_int_equal(kr_safetensors_write(path, kr_weights_at(named, 0), kr_weights_count(named), NULL, 0), KRAIT_OK);
  assert_int_equal(kr_weights_open(path, &nameless), KRAIT_OK);
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    assert_int_equal(first_logit(nameless, refused[i].name, &other), refused[i].status);
    if (!strstr(krait_error_detail(), refused[i].words)) fail_msg("%s", krait_error_detail());
  }
  assert_int_equal(first_logit(video, "vim", &other), KRAIT_ERR_WEIGHTS);
  assert_non_null(strstr(krait_error_detail(), "these weights are for videos, 'vim' is for images"));
  assert_int_equal(first_logit(named, NULL, &by_metadata), KRAIT_OK);
  assert_int_equal(first_logit(nameless, "vim", &by_name), KRAIT_OK);
  assert_int_equal(first_logit(nameless, "videomamba", &other), KRAIT_OK);
  assert_true(by_metadata == by_name && other != by_name);
  unlink(path);
  kr_weights_close(&named), kr_weights_close(&video), kr_weights_close(&nameless);
}

/* Vim's weights for 224 pixels in finer steps have more positions than whole patches fit. */
static void vim_overlaps_patches_for_224_pixels(void **state) {
  enum { D = 24, N_PLACES = 1 + 111 * 111 };
  char path[] = "/tmp/krait-vim-XXXXXX";
  kr_weights *weights = open_file("vim", "weights"), *finer = NULL;
  const int64_t n = kr_weights_count(weights);
  kr_weight *all = malloc((size_t)n * sizeof *all);
  float *places = calloc((size_t)N_PLACES * D, sizeof *places);
  kr_videomamba *m = NULL;
  (void)state;
  for (int64_t i = 0; i < n; i++) {
    all[i] = *kr_weights_at(weights, i);
    if (strcmp(all[i].name, "pos_embed") == 0)
      all[i] = (kr_weight){"pos_embed", KRAIT_F32, 3, {1, N_PLACES, D}, places, sizeof *places * N_PLACES * D};
  }
  assert_true(close(mkstemp(path)) == 0);
  assert_int_equal(kr_safetensors_write(path, all, n, NULL, 0), KRAIT_OK);
  assert_int_equal(kr_weights_open(path, &finer), KRAIT_OK);
  if (kr_videomamba_open(ctx, finer, "vim", &m) < 0) fail_msg("%s", krait_error_detail());
  assert_int_equal(kr_videomamba_config_of(m)->grid.stride, 2);
  assert_int_equal(kr_videomamba_config_of(m)->grid.side, 224);
  kr_videomamba_close(&m);
  unlink(path);
  free(all), free(places);
  kr_weights_close(&weights), kr_weights_close(&finer);
}

/* On a GPU: test_models_videomamba cuda [KIND BOUND]; KIND is of the files beside this tree. */
int main(int argc, char **argv) {
  const int32_t device = argc > 1 && strcmp(argv[1], "cuda") == 0 ? KRAIT_DEVICE_CUDA(0) : KRAIT_DEVICE_CPU;
  if (argc > 1) bound = 1e-4;
  if (argc > 3) kind_of_weights = argv[2], bound = atof(argv[3]);
  if (krait_ctx_open(&(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = device}, &ctx) < 0) return 1;
  const struct CMUnitTest tests[] = {cmocka_unit_test(classes),
                                     cmocka_unit_test(all_tokens),
                                     cmocka_unit_test(videomamba_refusals),
                                     cmocka_unit_test(biases_that_nothing_reads),
                                     cmocka_unit_test(vim_by_metadata),
                                     cmocka_unit_test(vim_of_a_training_checkpoint),
                                     cmocka_unit_test(a_name_decides),
                                     cmocka_unit_test(vim_overlaps_patches_for_224_pixels)};
  enum { OF_UPSTREAM = 4 }; /* the first tests, for which there may be files beside this tree */
  int failed = 0;
  home = "tests/golden/videomamba";
  if (argc <= 3) failed += cmocka_run_group_tests(tests, NULL, NULL);
  home = SHARED_GOLDEN "/videomamba";
  if (access(home, R_OK) == 0) failed += _cmocka_run_group_tests("upstream's", tests, OF_UPSTREAM, NULL, NULL);
  krait_ctx_close(&ctx);
  return failed;
}

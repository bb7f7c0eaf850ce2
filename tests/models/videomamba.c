/* videomamba.c: VideoMamba against golden files (tests/golden/videomamba, and upstream's beside this tree if there),
 * and errors. */
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
  if (kr_videomamba_open(ctx, weights, &m) < 0) fail_msg("%s", krait_error_detail());
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

static void videomamba_refusals(void **state) {
  (void)state;
  kr_weights *golden = open_file("video_sm", "golden"), *weights = open_file("video_mm", "weights");
  kr_videomamba *m = NULL;
  float logits[10], frames[3 * 2 * 32 * 32] = {0};
  assert_int_equal(kr_videomamba_open(ctx, golden, &m), KRAIT_ERR_WEIGHTS);
  assert_non_null(strstr(krait_error_detail(), "patch_embed.proj.weight"));
  assert_null(m);
  if (kr_videomamba_open(ctx, weights, &m) < 0) fail_msg("%s", krait_error_detail());
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
    assert_int_equal(kr_videomamba_open(ctx, with, &m), KRAIT_ERR_WEIGHTS);
    assert_non_null(strstr(krait_error_detail(), names[i]));
    kr_weights_close(&with);
  }
  unlink(path);
  free(all);
  kr_weights_close(&weights);
}

/* On a GPU: test_models_videomamba cuda [KIND BOUND]; KIND is of the files beside this tree. */
int main(int argc, char **argv) {
  const int32_t device = argc > 1 && strcmp(argv[1], "cuda") == 0 ? KRAIT_DEVICE_CUDA(0) : KRAIT_DEVICE_CPU;
  if (argc > 1) bound = 1e-4;
  if (argc > 3) kind_of_weights = argv[2], bound = atof(argv[3]);
  if (krait_ctx_open(&(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = device}, &ctx) < 0) return 1;
  const struct CMUnitTest tests[] = {cmocka_unit_test(classes), cmocka_unit_test(all_tokens),
                                     cmocka_unit_test(videomamba_refusals),
                                     cmocka_unit_test(biases_that_nothing_reads)};
  int failed = 0;
  home = "tests/golden/videomamba";
  if (argc <= 3) failed += cmocka_run_group_tests(tests, NULL, NULL);
  home = SHARED_GOLDEN "/videomamba";
  if (access(home, R_OK) == 0) failed += cmocka_run_group_tests(tests, NULL, NULL);
  krait_ctx_close(&ctx);
  return failed;
}

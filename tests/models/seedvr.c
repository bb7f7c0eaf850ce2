/* seedvr.c: SeedVR against golden files (tests/golden/seedvr, and upstream's beside this tree if there), its windows,
 * and errors. */
#include "../test.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "model_kind.h"
#include "seedvr/seedvr.h"

static krait_ctx *ctx;

static void verify(const char *folder, const char *name, int n_least) {
  char weights[1000], golden[1000];
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = NULL;
  krait_verify_result rows[32];
  int32_t n = 0;
  snprintf(weights, sizeof weights, "%s/%s.weights.safetensors", folder, name);
  snprintf(golden, sizeof golden, "%s/%s.golden.safetensors", folder, name);
  if (krait_denoiser_open(
          ctx, &(krait_denoiser_options){.size = sizeof(krait_denoiser_options), .weights_path = weights}, &model) < 0)
    fail_msg("%s", krait_error_detail());
  if (krait_denoiser_session_open(model, &session) < 0) fail_msg("%s", krait_error_detail());
  if (krait_verify(session, golden, rows, 32, &n) < 0) fail_msg("%s", krait_error_detail());
  assert_in_range(n, n_least, 32);
  for (int i = 0; i < n; i++)
    if (!(rows[i].rel_l2 < 1e-6)) fail_msg("%s, %s: relative error %.2g", name, rows[i].name, rows[i].rel_l2);
  krait_denoiser_session_close(&session);
  krait_denoiser_close(&model);
}

static void seedvr_3b(void **state) {
  (void)state;
  verify("tests/golden/seedvr", "dit3b", 9);
  if (access(SHARED_GOLDEN, R_OK) == 0) verify(SHARED_GOLDEN "/seedvr", "dit3b", 13);
}

static void seedvr_7b(void **state) {
  (void)state;
  verify("tests/golden/seedvr", "dit7b", 9);
  if (access(SHARED_GOLDEN, R_OK) == 0) verify(SHARED_GOLDEN "/seedvr", "dit7b", 11);
}

/* ---- windows ---- */

/* Every token is in exactly one window. */
static void check_partition(const int64_t size[3], const int64_t count[3], int is_shifted) {
  const int64_t n = kr_seedvr_windows(size, count, is_shifted, NULL, 0), T = size[0] * size[1] * size[2];
  kr_seedvr_window *windows = calloc((size_t)n, sizeof *windows);
  unsigned char *seen = calloc((size_t)T, 1);
  assert_int_equal(kr_seedvr_windows(size, count, is_shifted, windows, n), n);
  for (int64_t i = 0; i < n; i++) {
    const int64_t *e = windows[i].edge;
    for (int64_t t = e[0]; t < e[1]; t++)
      for (int64_t h = e[2]; h < e[3]; h++)
        for (int64_t w = e[4]; w < e[5]; w++) assert_int_equal(seen[(t * size[1] + h) * size[2] + w]++, 0);
  }
  for (int64_t i = 0; i < T; i++) assert_int_equal(seen[i], 1);
  free(windows), free(seen);
}

static void windows_of_720p(void **state) {
  const int64_t count[3] = {4, 3, 3}, frames[] = {1, 6, 31}, plain[] = {9, 27, 36}, shifted[] = {16, 64, 80};
  (void)state;
  for (int i = 0; i < 3; i++) {
    const int64_t size[3] = {frames[i], 45, 80};
    assert_int_equal(kr_seedvr_windows(size, count, 0, NULL, 0), plain[i]);
    assert_int_equal(kr_seedvr_windows(size, count, 1, NULL, 0), shifted[i]);
  }
}

static void windows_cover_any_grid(void **state) {
  (void)state;
  for (int64_t i = 0; i < 300; i++) {
    const int64_t size[3] = {1 + i % 37, 1 + i * 7 % 53, 1 + i * 11 % 91}, count[3] = {1 + i % 5, 1 + i % 4, 1 + i % 3};
    check_partition(size, count, 0), check_partition(size, count, 1);
  }
}

static void upstreams_windows(void **state) {
  kr_weights *golden = NULL;
  (void)state;
  if (kr_weights_open("tests/golden/seedvr/windows.golden.safetensors", &golden) < 0)
    fail_msg("%s", krait_error_detail());
  for (int64_t i = 0; i < kr_weights_count(golden); i++) {
    const kr_weight *item = kr_weights_at(golden, i);
    const int is_shifted = strncmp(item->name, "golden.shifted.", 15) == 0;
    long long s[3], c[3];
    assert_int_equal(sscanf(strchr(item->name + 7, '.') + 1, "%lldx%lldx%lld.w%lld-%lld-%lld", &s[0], &s[1], &s[2],
                            &c[0], &c[1], &c[2]),
                     6);
    const int64_t size[3] = {s[0], s[1], s[2]}, count[3] = {c[0], c[1], c[2]},
                  n = kr_seedvr_windows(size, count, is_shifted, NULL, 0);
    assert_int_equal(n, item->shape[0]);
    kr_seedvr_window *windows = calloc((size_t)n, sizeof *windows);
    kr_seedvr_windows(size, count, is_shifted, windows, n);
    for (int64_t k = 0; k < 6 * n; k++) assert_int_equal(windows[k / 6].edge[k % 6], ((const int32_t *)item->data)[k]);
    free(windows);
  }
  kr_weights_close(&golden);
}

/* ---- errors ---- */

static void refuse(const char *overrides, int32_t status, const char *word) {
  krait_denoiser *model = NULL;
  krait_denoiser_options options = {
      .size = sizeof options, .weights_path = "tests/golden/seedvr/dit3b.weights.safetensors", .overrides = overrides};
  assert_int_equal(krait_denoiser_open(ctx, &options, &model), status);
  if (!strstr(krait_error_detail(), word)) fail_msg("'%s' is not in: %s", word, krait_error_detail());
  assert_null(model);
}

static void seedvr_refusals(void **state) {
  (void)state;
  refuse("model=seedvr_dit3c", KRAIT_ERR_WEIGHTS, "seedvr_dit3c");
  refuse("qk_norm=none", KRAIT_ERR_UNSUPPORTED, "qk_norm");
  refuse("block_type=[mmdit_sr,mmdit]", KRAIT_ERR_UNSUPPORTED, "block_type[1]");
  refuse("window=[[2,12,14],[2,12]]", KRAIT_ERR_WEIGHTS, "window[1]");
  refuse("window=[[2,12,14],[2,12,13]]", KRAIT_ERR_UNSUPPORTED, "window[1]");
  refuse("window_method=[720pwin_by_size_bysize]", KRAIT_ERR_WEIGHTS, "window_method");
  refuse("emb_dim=25", KRAIT_ERR_WEIGHTS, "emb_dim");
  refuse("num_layers=1,window_method=[720pwin_by_size_bysize]", KRAIT_ERR_WEIGHTS, "tensors");
  refuse("heads=4", KRAIT_ERR_WEIGHTS, "proj_qkv");
  refuse("colour=red", KRAIT_ERR_WEIGHTS, "colour");
  refuse("rope_dim=8,head_dim=4", KRAIT_ERR_WEIGHTS, "rope_dim");
}

static void golden_of_other_shapes(void **state) {
  krait_denoiser *model = NULL;
  krait_denoiser_session *session = NULL;
  krait_verify_result row;
  int32_t n;
  (void)state;
  krait_denoiser_options options = {.size = sizeof options,
                                 .weights_path = "tests/golden/seedvr/dit3b.weights.safetensors"};
  if (krait_denoiser_open(ctx, &options, &model) < 0 || krait_denoiser_session_open(model, &session) < 0)
    fail_msg("%s", krait_error_detail());
  assert_int_equal(krait_verify(session, options.weights_path, &row, 1, &n), KRAIT_ERR_WEIGHTS);
  assert_non_null(strstr(krait_error_detail(), "golden.vid_shape"));
  krait_denoiser_session_close(&session);
  krait_denoiser_close(&model);
}

int main(void) {
  if (krait_ctx_open(&(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = KRAIT_DEVICE_CPU}, &ctx) < 0)
    return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(seedvr_3b),
      cmocka_unit_test(seedvr_7b),
      cmocka_unit_test(windows_of_720p),
      cmocka_unit_test(windows_cover_any_grid),
      cmocka_unit_test(upstreams_windows),
      cmocka_unit_test(seedvr_refusals),
      cmocka_unit_test(golden_of_other_shapes),
  };
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  krait_ctx_close(&ctx);
  return failed;
}

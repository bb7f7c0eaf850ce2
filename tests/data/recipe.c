/* recipe.c: defaults, a file and settings merge into one configuration; misspelt names and wrong values are named. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../test.h"
#include "alloc.h"
#include "recipe.h"
#include "status.h"

static kr_recipe *open_with(const char *path, int n, const char *const *settings) {
  kr_recipe *r = NULL;
  const int32_t status = kr_recipe_open(path, settings, n, &r);
  if (status < 0) print_message("%s\n", krait_error_detail());
  assert_int_equal(status, KRAIT_OK);
  return r;
}

/* Section 8 and 9 of the specification. */
static void upstreams_constants(void **state) {
  (void)state;
  const char *const settings[] = {"+model=primeknet_mamba_masking", "+dset=taps"};
  kr_recipe *r = open_with(NULL, 2, settings);
  kr_data_config c;
  double lr, betas[2];
  int64_t depth, epochs;
  int32_t n = 2;
  const char *lib;
  assert_int_equal(kr_recipe_data(r, KR_RECIPE_TRAIN, &c), KRAIT_OK);
  assert_true(c.segment == 64000 && c.stride == 32000 && c.shift == 32000 && c.batch == 4 && c.seed == 2039 &&
              !c.deterministic && c.shuffle);
  assert_true(c.snr_low_db == -15 && c.snr_high_db == 20 && c.level_db == -25 && c.level_float_db == 10 &&
              c.part_level_db == -25 && c.silence_s == 0.2 && c.reverb_proportion == 0);
  assert_string_equal(c.noise, "dataset/taps/noise_train.txt");
  assert_string_equal(c.noise_dir, "dataset/noise_16k");
  assert_null(c.noisy);
  assert_int_equal(kr_recipe_data(r, KR_RECIPE_VALID, &c), KRAIT_OK);
  assert_true(c.segment == 0 && c.deterministic && c.snr_low_db == -15 && c.snr_high_db == 10 &&
              c.level_float_db == 0 && c.batch == 1 && c.repeats == 1);
  assert_int_equal(kr_recipe_data(r, KR_RECIPE_TEST, &c), KRAIT_OK);
  assert_true(c.snr_low_db == 0 && c.snr_high_db == 0 && c.repeats == 2 && c.deterministic);
  assert_string_equal(c.rir, "dataset/taps/rir_test.txt");
  assert_int_equal(kr_recipe_float(r, "lr", 0, 0, 1, &lr), KRAIT_OK);
  assert_int_equal(kr_recipe_floats(r, "betas", betas, &n), KRAIT_OK);
  assert_int_equal(kr_recipe_int(r, "model.param.dense_depth", 0, 1, 9, &depth), KRAIT_OK);
  assert_int_equal(kr_recipe_int(r, "epochs", 0, 1, 999, &epochs), KRAIT_OK);
  assert_int_equal(kr_recipe_text(r, "model.model_lib", NULL, &lib), KRAIT_OK);
  assert_true(lr == 5e-4 && n == 2 && betas[0] == 0.8 && betas[1] == 0.99 && depth == 3 && epochs == 200);
  assert_string_equal(lib, "primeknet_mamba");
  kr_recipe_close(&r);
}

static void model_for_live_use(void **state) {
  (void)state;
  const char *const settings[] = {"+model=primeknet_streaming"};
  kr_recipe *r = open_with(NULL, 1, settings);
  const char *lib, *norm, *attention;
  assert_int_equal(kr_recipe_text(r, "model.model_lib", NULL, &lib), KRAIT_OK);
  assert_int_equal(kr_recipe_text(r, "model.param.norm", NULL, &norm), KRAIT_OK);
  assert_int_equal(kr_recipe_text(r, "model.param.channel_attention", NULL, &attention), KRAIT_OK);
  assert_string_equal(lib, "primeknet_mamba");
  assert_string_equal(norm, "batch");
  assert_string_equal(attention, "moving");
  kr_recipe_close(&r);
}

static void throat_microphones(void **state) {
  (void)state;
  const char *const settings[] = {"+model=primeknet_gru_masking", "+dset=vibravox", "model.input_type=bcs"};
  kr_recipe *r = open_with(NULL, 3, settings);
  kr_data_config c;
  assert_int_equal(kr_recipe_data(r, KR_RECIPE_TRAIN, &c), KRAIT_OK);
  assert_int_equal(c.own_levels, 1);
  assert_string_equal(c.noisy, "dataset/vibravox/train.safetensors:throat/");
  kr_recipe_close(&r);
}

static void later_ones_win(void **state) {
  (void)state;
  char path[] = "/tmp/krait-recipe-XXXXXX.yaml";
  const int fd = mkstemps(path, 5);
  static const char text[] =
      "batch_size: 16\ntrain_noise: {snr_range: [-5, 5]}\ndset:\n  speech_dir: my/speech\n  noise_dir: "
      "my/noise\nmodel: {param: {anything: 1}}\ndevice: cuda\n";
  assert_int_equal(write(fd, text, sizeof text - 1), (int)sizeof text - 1);
  close(fd);
  const char *const settings[] = {"batch_size=8", "augment.codecs=0.25", "+extra=[1, 2]", "model.param.anything=2",
                                  "dset.noise_train="};
  kr_recipe *r = open_with(path, 5, settings);
  kr_data_config c;
  int64_t anything;
  assert_int_equal(kr_recipe_data(r, KR_RECIPE_TRAIN, &c), KRAIT_OK);
  assert_true(c.batch == 8 && c.snr_low_db == -5 && c.snr_high_db == 5 && c.codec_proportion == 0.25 &&
              c.level_float_db == 10);
  assert_string_equal(c.speech, "my/speech"); /* only the folder: all of it */
  assert_string_equal(c.noise, "my/noise");
  assert_int_equal(kr_recipe_int(r, "model.param.anything", 0, 0, 9, &anything), KRAIT_OK);
  assert_int_equal(anything, 2);
  char *json = kr_recipe_json(r, "extra"), *all = kr_recipe_json(r, "");
  assert_non_null(strstr(json, "2"));
  assert_non_null(strstr(all, "\"snr_range\""));
  kr_free(json);
  kr_free(all);
  assert_null(kr_recipe_json(r, "nothing.here"));
  kr_recipe_close(&r);
  unlink(path);
}

static void refuse(const char *setting, const char *text) {
  kr_recipe *r = NULL;
  kr_data_config c;
  const char *const settings[] = {"+dset=taps", setting};
  int32_t status = kr_recipe_open(NULL, settings, 2, &r);
  if (status == KRAIT_OK) status = kr_recipe_data(r, KR_RECIPE_TRAIN, &c);
  if (status >= 0 || !strstr(krait_error_detail(), text))
    print_message("%s: %d %s\n", setting, status, krait_error_detail());
  assert_true(status < 0 && strstr(krait_error_detail(), text));
  kr_recipe_close(&r);
}

static void recipe_refusals(void **state) {
  (void)state;
  refuse("batchsize=8", "there is no 'batchsize'");
  refuse("train_noise.snr=3", "train_noise.snr");
  refuse("nonsense", "'nonsense' is not name=value");
  refuse("=3", "is not name=value");
  refuse("+model=primeknet_mmaba", "primeknet_mamba_masking, primeknet_gru_masking");
  refuse("+dset=nothing", "taps, vibravox");
  refuse("batch_size=many", "batch_size must be a whole number");
  refuse("sampling_rate=8000", "sampling_rate");
  refuse("train_noise.snr_range=[3]", "[low, high]");
  refuse("train_noise.snr_range=[-3.5,4]", "-3.5");
  refuse("train_noise.reverb_proportion=2", "train_noise.reverb_proportion must be a number from 0 to 1");
  refuse("dset.speech_train=[a]", "dset.speech_train must be a string");
  refuse("model={input_type: acs+bcs}", "there is no model");
  refuse("+model=/nonexistent/model.yaml", "/nonexistent/model.yaml");
  char path[] = "/tmp/krait-recipe-XXXXXX.yaml";
  const int fd = mkstemps(path, 5);
  assert_int_equal(write(fd, "trian_noise: 3\n", 15), 15);
  close(fd);
  kr_recipe *r = NULL;
  assert_true(kr_recipe_open(path, NULL, 0, &r) < 0 &&
              strstr(krait_error_detail(), "'trian_noise' is unknown there; known are sampling_rate, segment"));
  assert_null(r);
  unlink(path);
  char list[] = "/tmp/krait-recipe-XXXXXX.yaml";
  const int other = mkstemps(list, 5);
  assert_int_equal(write(other, "- a\n- b\n", 8), 8);
  close(other);
  assert_true(kr_recipe_open(list, NULL, 0, &r) < 0 && strstr(krait_error_detail(), "is not a configuration"));
  assert_null(r);
  unlink(list);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(upstreams_constants), cmocka_unit_test(model_for_live_use),
                                     cmocka_unit_test(throat_microphones), cmocka_unit_test(later_ones_win),
                                     cmocka_unit_test(recipe_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

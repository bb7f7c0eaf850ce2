/* config.c: configuration layouts, precedence, and typed getters. */
#define _GNU_SOURCE
#include "../test.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "alloc.h"
#include "config.h"

static char path[] = "/tmp/krait-test-XXXXXX";

static int32_t open_text(const char *text, const char *overrides, kr_config **config) {
  strcpy(path + sizeof path - 7, "XXXXXX");
  int fd = mkstemp(path);
  assert_int_equal(write(fd, text, strlen(text)), strlen(text));
  close(fd);
  int32_t status = kr_config_open(NULL, path, overrides, config);
  unlink(path);
  return status;
}

static int64_t int_of(const kr_config *config, const char *key) {
  int64_t value;
  assert_int_equal(kr_config_int(config, key, -1, -100, 100000, &value), KRAIT_OK);
  return value;
}

static int bool_of(const kr_config *config, const char *key) {
  int value;
  assert_int_equal(kr_config_bool(config, key, -1, &value), KRAIT_OK);
  return value;
}

#define PARAM(indent)                                                                                         \
  indent "param:\n" indent "  fft_len: 400\n" indent "  sigmoid_beta: 2.0\n" indent "  causal: True\n" indent \
         "  freq_block_kernel:\n" indent "  - 3\n" indent "  - 11\n"

static void layouts_are_understood(void **state) {
  (void)state;
  const char *const texts[] = {
      "n_fft: 512\nbatch_size: 4\nmodel:\n  model_lib: primeknet_mamba\n  model_class: PrimeKnet\n  input_type: "
      "acs\n" PARAM("  ") "dset: {root: ./x}\n",
      "model_lib: primeknet_mamba\nmodel_class: PrimeKnet\n" PARAM(""),
      "# plain\nmodel: primeknet_mamba\nfft_len: 400\nsigmoid_beta: 2\ncausal: true\nfreq_block_kernel: [3, 11]\n",
      "{\n\t\"model\": \"primeknet\\u005fmamba\",\n\t\"note\": \"\\ud83d\\ude00\",\n\t\"config\": {\"fft_len\": 400, "
      "\"sigmoid_beta\": 2e0, \"causal\": true, \"freq_block_kernel\": [3, 11]}}",
  };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    kr_config *config = NULL;
    int64_t kernels[4] = {0};
    int32_t n = 0;
    double beta;
    assert_int_equal(open_text(texts[i], NULL, &config), KRAIT_OK);
    assert_string_equal(kr_config_model(config), "primeknet_mamba");
    assert_int_equal(int_of(config, "fft_len"), 400);
    assert_int_equal(kr_config_float(config, "sigmoid_beta", 0, 0, 10, &beta), KRAIT_OK);
    assert_true(beta == 2);
    assert_int_equal(bool_of(config, "causal"), 1);
    assert_int_equal(kr_config_ints(config, "freq_block_kernel", 1, 99, 4, kernels, &n), KRAIT_OK);
    assert_true(n == 2 && kernels[0] == 3 && kernels[1] == 11);
    assert_int_equal(kr_config_check_keys(
                         config, (const char *const[]){"fft_len", "sigmoid_beta", "causal", "freq_block_kernel"}, 4),
                     KRAIT_OK);
    kr_config_close(&config);
  }
}

static void flags_win_over_file_over_metadata(void **state) {
  (void)state;
  const char header[] =
      "{\"__metadata__\":{\"model\":\"primeknet_mamba\",\"config\":\"{\\\"a\\\":1,\\\"b\\\":1,\\\"c\\\":1}\"}}";
  unsigned char bytes[256] = {sizeof header - 1};
  memcpy(bytes + 8, header, sizeof header - 1);
  kr_weights *weights = NULL;
  kr_config *config = NULL;
  assert_int_equal(kr_weights_open_memory(bytes, 8 + sizeof header - 1, "made", &weights), KRAIT_OK);
  char file[] = "/tmp/krait-test-XXXXXX";
  int fd = mkstemp(file);
  assert_int_equal(write(fd, "b: 2\nc: 2\n", 10), 10);
  close(fd);
  assert_int_equal(kr_config_open(weights, file, "c=3,d=[3, 11,23],e=\"x,y\",model=primeknet_gru", &config), KRAIT_OK);
  unlink(file);
  assert_string_equal(kr_config_model(config), "primeknet_gru");
  assert_int_equal(int_of(config, "a"), 1);
  assert_int_equal(int_of(config, "b"), 2);
  assert_int_equal(int_of(config, "c"), 3);
  char *json = kr_config_json(config);
  assert_string_equal(json, "{\"a\":1,\"b\":2,\"c\":3,\"d\":[3,11,23],\"e\":\"x,y\"}");
  kr_free(json);
  assert_int_equal(kr_config_check_keys(config, (const char *const[]){"a", "b", "c", "d"}, 4), KRAIT_ERR_WEIGHTS);
  assert_string_equal(krait_error_detail(), "configuration: unknown key 'e'");
  kr_config_close(&config);
  kr_weights_close(&weights);
}

static void getters_name_the_key(void **state) {
  (void)state;
  kr_config *config = NULL;
  int64_t whole, list[2];
  int32_t n = 0;
  double real;
  int truth;
  const char *text;
  assert_int_equal(kr_config_open(NULL, NULL, "i=7,f=1.5,s=abc,y=yes,l=[1,2,3],nil=null", &config), KRAIT_OK);
  assert_int_equal(kr_config_int(config, "i", 0, 0, 6, &whole), KRAIT_ERR_WEIGHTS);
  assert_string_equal(krait_error_detail(), "configuration: i is 7, not within 0..6");
  assert_int_equal(kr_config_int(config, "f", 0, 0, 6, &whole), KRAIT_ERR_WEIGHTS);
  assert_int_equal(kr_config_float(config, "s", 0, 0, 6, &real), KRAIT_ERR_WEIGHTS);
  assert_int_equal(kr_config_bool(config, "i", 0, &truth), KRAIT_ERR_WEIGHTS);
  assert_int_equal(kr_config_bool(config, "y", 0, &truth), KRAIT_OK);
  assert_int_equal(truth, 1);
  assert_int_equal(kr_config_text(config, "i", NULL, &text), KRAIT_ERR_WEIGHTS);
  assert_int_equal(kr_config_text(config, "s", NULL, &text), KRAIT_OK);
  assert_string_equal(text, "abc");
  assert_int_equal(kr_config_ints(config, "l", 0, 9, 2, list, &n), KRAIT_ERR_WEIGHTS);
  assert_int_equal(kr_config_ints(config, "i", 0, 9, 2, list, &n), KRAIT_ERR_WEIGHTS);
  assert_int_equal(kr_config_int(config, "nil", 42, 0, 100, &whole), KRAIT_OK);
  assert_int_equal(whole, 42);
  assert_false(kr_config_has(config, "nil"));
  kr_config_close(&config);
}

static void bad_texts_are_refused(void **state) {
  (void)state;
  char deep[400], wide[64];
  memset(deep, '[', 200);
  memset(deep + 200, ']', 200);
  deep[399] = 0;
  snprintf(wide, sizeof wide, "a: &x [1]\nb: [*x, *x]\n");
  const struct {
    const char *text, *words;
  } bad[] = {
      {"a: b: c\n", "not YAML"},
      {"- 1\n- 2\n", "not a configuration"},
      {"a: 1\na: 2\n", "twice"},
      {wide, "aliases"},
      {deep, "nested too deeply"},
      {"? [1, 2]\n: 3\n", "key that is not a plain"},
      {"--- 1\n--- 2\n", "more than one document"},
      {"a: \xff\n", "not YAML"},
      {"model:\n  param: 7\n", "'param' is not a section"},
      {"model: [1]\n", "name is not a string"},
      {"just words", "not a configuration"},
      {"a: !!python/object/apply:os.system [ls]\n", "tags"},
      {"a: !!str 3\n", "tags"},
      {"a: !x {}\n", "tags"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    kr_config *config = NULL;
    assert_true(open_text(bad[i].text, NULL, &config) < 0);
    assert_null(config);
    if (!strstr(krait_error_detail(), bad[i].words)) fail_msg("'%s' lacks '%s'", krait_error_detail(), bad[i].words);
  }
  const char *const overrides[] = {"a", "=1", "a=", "a=[1,2", "a=1,,b=2", "a=*x", "a\xff=1", "a b=1", "a=\"x\\0y\""};
  for (size_t i = 0; i < sizeof overrides / sizeof *overrides; i++) {
    kr_config *config = NULL;
    assert_true(kr_config_open(NULL, NULL, overrides[i], &config) < 0);
    assert_null(config);
  }
  kr_config *config = NULL;
  assert_int_equal(kr_config_open(NULL, "/nonexistent.yaml", NULL, &config), KRAIT_ERR_FILE_OPEN);
}

/* German, where 1.5 is 1,5: the system's, or made here. 0 if neither works. */
static int set_comma_locale(const char *folder) {
  char command[200];
  if (setlocale(LC_ALL, "de_DE.UTF-8")) return 1;
  snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1", folder);
  setenv("LOCPATH", folder, 1);
  return system(command) == 0 && setlocale(LC_ALL, "de_DE.UTF-8");
}

static void a_locale_with_a_comma_changes_nothing(void **state) {
  (void)state;
  char folder[] = "/tmp/krait-locale-XXXXXX", command[64], text[16];
  kr_config *config = NULL;
  double value = 0;
  assert_non_null(mkdtemp(folder));
  const int is_set = set_comma_locale(folder);
  snprintf(command, sizeof command, "rm -rf %s", folder);
  if (system(command) != 0) fail();
  if (!is_set) skip();
  snprintf(text, sizeof text, "%.1f", 1.5);
  assert_string_equal(text, "1,5"); /* the host's locale is unchanged */
  assert_int_equal(open_text("sigmoid_beta: 2.5\n", "other=1e-3", &config), KRAIT_OK);
  assert_int_equal(kr_config_float(config, "sigmoid_beta", 0, 0, 9, &value), KRAIT_OK);
  assert_true(value == 2.5);
  assert_int_equal(kr_config_float(config, "other", 0, 0, 9, &value), KRAIT_OK);
  assert_true(value == 1e-3);
  assert_true(kr_config_float(config, "sigmoid_beta", 0, 0.5, 1.5, &value) < 0);
  assert_non_null(strstr(krait_error_detail(), "sigmoid_beta is 2.5, not within 0.5..1.5"));
  kr_config_close(&config);
  snprintf(text, sizeof text, "%.1f", 1.5);
  assert_string_equal(text, "1,5");
  setlocale(LC_ALL, "C");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(layouts_are_understood),
                                     cmocka_unit_test(flags_win_over_file_over_metadata),
                                     cmocka_unit_test(getters_name_the_key), cmocka_unit_test(bad_texts_are_refused),
                                     cmocka_unit_test(a_locale_with_a_comma_changes_nothing)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

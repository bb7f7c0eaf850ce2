/* weights_io.c: describe and convert through the public header; also with every allocation failing in turn. Runs in
 * the project's root. */
#define _GNU_SOURCE
#include "../folder.h"
#include "../test.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <krait/enhance.h>

#include "alloc.h"
#include "weights.h"

#define GOLDEN "tests/golden/torch/"

static char folder[] = "/tmp/krait-test-XXXXXX";
static char out_path[64], config_path[64];

static int enter_folder(void **state) {
  (void)state;
  if (!mkdtemp(folder)) return -1;
  snprintf(out_path, sizeof out_path, "%s/out.safetensors", folder);
  snprintf(config_path, sizeof config_path, "%s/config.yaml", folder);
  FILE *file = fopen(config_path, "w");
  fputs(
      "lr: 5e-4\nmodel:\n  model_lib: primeknet_gru\n  input_type: acs\n  param:\n    fft_len: 400\n    causal: True\n",
      file);
  return fclose(file);
}

static void a_conversion_keeps_tensors_and_adds_the_configuration(void **state) {
  (void)state;
  kr_weights *weights = NULL;
  char *json = NULL;
  assert_int_equal(krait_weights_convert(GOLDEN "best.th", out_path, config_path, "causal=false,gru_layers=1"),
                   KRAIT_OK);
  assert_int_equal(kr_weights_open(out_path, &weights), KRAIT_OK);
  assert_int_equal(kr_weights_count(weights), 12);
  assert_string_equal(kr_weights_metadata(weights, "model"), "primeknet_gru");
  assert_string_equal(kr_weights_metadata(weights, "config"), "{\"fft_len\":400,\"causal\":false,\"gru_layers\":1}");
  kr_weights_close(&weights);
  assert_int_equal(krait_weights_describe(out_path, &json), KRAIT_OK);
  assert_non_null(strstr(json,
                         "\"model\":\"primeknet_gru\",\"config\":{\"fft_len\":400,\"causal\":false,\"gru_layers\":1},"
                         "\"n_params\":225,\"n_tensors\":12"));
  krait_text_free(&json);
  assert_null(json);
  /* In place, and again: nothing changes. */
  assert_int_equal(krait_weights_convert(out_path, out_path, NULL, NULL), KRAIT_OK);
  assert_int_equal(kr_weights_open(out_path, &weights), KRAIT_OK);
  assert_string_equal(kr_weights_metadata(weights, "config"), "{\"fft_len\":400,\"causal\":false,\"gru_layers\":1}");
  kr_weights_close(&weights);
  unlink(out_path);
}

static void failures_leave_nothing(void **state) {
  (void)state;
  char *json = (char *)1;
  assert_int_equal(krait_weights_describe(NULL, &json), KRAIT_ERR_ARGUMENT);
  assert_int_equal(krait_weights_describe(GOLDEN "module.pt", &json), KRAIT_ERR_UNSAFE);
  assert_null(json);
  krait_text_free(NULL);
  assert_int_equal(krait_weights_convert(GOLDEN "best.th", NULL, NULL, NULL), KRAIT_ERR_ARGUMENT);
  assert_int_equal(krait_weights_convert(GOLDEN "module.pt", out_path, NULL, NULL), KRAIT_ERR_UNSAFE);
  assert_int_equal(krait_weights_convert(GOLDEN "best.th", out_path, NULL, "a=[1"), KRAIT_ERR_FILE_FORMAT);
  assert_int_equal(krait_weights_convert(GOLDEN "best.th", folder, NULL, NULL), KRAIT_ERR_FILE_WRITE);
  assert_int_equal(kr_count_files(folder), 1);
}

static void failing_allocations_leave_nothing(void **state) {
  (void)state;
  int32_t status;
  long n = 0;
  do {
    kr_alloc_fail_after(++n);
    status = krait_weights_convert(GOLDEN "odd.pt", out_path, config_path, "k=[3, 11]");
    kr_alloc_fail_after(0);
    if (status != KRAIT_OK && status != KRAIT_ERR_NO_MEMORY) fail_msg("allocation %ld: %s", n, krait_error_detail());
    assert_int_equal(kr_count_files(folder), status == KRAIT_OK ? 2 : 1);
  } while (status != KRAIT_OK);
  assert_true(n > 15);
  unlink(out_path);
}

static int leave_folder(void **state) {
  (void)state;
  unlink(config_path);
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_conversion_keeps_tensors_and_adds_the_configuration),
                                     cmocka_unit_test(failures_leave_nothing),
                                     cmocka_unit_test(failing_allocations_leave_nothing)};
  return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}

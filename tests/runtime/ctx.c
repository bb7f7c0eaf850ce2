/* ctx.c: capability lists, options of any size, and a context's properties. */
#include "../test.h"
#include <krait/krait.h>

static void caps_are_parsed_or_refused(void **state) {
  (void)state;
  uint64_t caps;
  assert_int_equal(krait_caps_parse("avx2", &caps), KRAIT_OK);
  assert_int_equal(caps, KRAIT_CAP_CPU | KRAIT_CAP_AVX2);
  assert_int_equal(krait_caps_parse("-avx512,-cuda_base", &caps), KRAIT_OK);
  assert_int_equal(caps, KRAIT_CAPS_ALL & ~(KRAIT_CAP_AVX512 | KRAIT_CAP_CUDA_BASE));
  assert_int_equal(krait_caps_parse("cpu,avx2,avx512", &caps), KRAIT_OK);
  assert_false(caps & KRAIT_CAP_AMX);
  assert_int_equal(krait_caps_parse("-amx", &caps), KRAIT_OK);
  assert_int_equal(caps, KRAIT_CAPS_ALL & ~KRAIT_CAP_AMX);
  assert_int_equal(krait_caps_parse("avx2,axv512", &caps), KRAIT_ERR_ARGUMENT);
  assert_non_null(strstr(krait_error_detail(), "axv512"));
}

static void caps_are_written(void **state) {
  (void)state;
  char text[64];
  assert_int_equal(krait_caps_format(KRAIT_CAP_CPU | KRAIT_CAP_AVX2, text, sizeof text), 8);
  assert_string_equal(text, "cpu,avx2");
}

static void masks_and_threads_are_kept(void **state) {
  (void)state;
  krait_ctx *ctx;
  krait_ctx_options options = {
      .size = sizeof options, .device = KRAIT_DEVICE_CPU, .caps_mask = KRAIT_CAP_CPU, .n_threads = 3};
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_OK);
  assert_int_equal(krait_ctx_caps(ctx), KRAIT_CAP_CPU);
  assert_int_equal(krait_ctx_n_threads(ctx), 3);
  krait_ctx_close(&ctx);
  krait_ctx_close(&ctx);
  options.size = 123456; /* never set */
  assert_int_equal(krait_ctx_open(&options, &ctx), KRAIT_ERR_STRUCT_SIZE);
  assert_null(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(caps_are_parsed_or_refused), cmocka_unit_test(caps_are_written),
                                     cmocka_unit_test(masks_and_threads_are_kept)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* status.c: every status has a name and a text, and the last failure is per thread. */
#include "../test.h"

#include <krait/ops.h>

#include "status.h"

static void every_status_has_a_text(void **state) {
  (void)state;
#define KR_STATUS(name, text, cure)                          \
  assert_string_equal(krait_status_name(name), #name);       \
  assert_true(strlen(krait_status_text(name)) > 3);
#include "status.def"
#undef KR_STATUS
  assert_string_equal(krait_status_name(-9999), "KRAIT_ERR_UNKNOWN");
}

static void detail_may_quote_the_old_detail(void **state) {
  (void)state;
  assert_int_equal(kr_fail(KRAIT_ERR_SHAPE, "B is %d", 3), KRAIT_ERR_SHAPE);
  kr_fail(KRAIT_ERR_SHAPE, "conv: %s", krait_error_detail());
  assert_string_equal(krait_error_detail(), "conv: B is 3");
  kr_fail_os(KRAIT_ERR_FILE_OPEN, 2, "cannot open x");
  assert_string_equal(krait_error_detail(), "cannot open x: No such file or directory");
  assert_string_equal(krait_error_origin(), "os");
  assert_int_equal(krait_error_native(), 2);
}

static void control_characters_do_not_pass(void **state) {
  (void)state;
  kr_fail(KRAIT_ERR_FILE_FORMAT, "tensor '%s'", "a\x1b[2J\nb\x7f\xc3\xa9");
  assert_string_equal(krait_error_detail(), "tensor 'a?[2J?b?\xc3\xa9'");
}

/* A failure inside a call that succeeds (here of the driver, on a machine without one) is not its caller's. */
static void success_clears_the_detail(void **state) {
  (void)state;
  uint64_t caps;
  krait_ctx *ctx = NULL;
  assert_int_equal(krait_caps_parse("nonsense", &caps), KRAIT_ERR_ARGUMENT);
  assert_non_null(strstr(krait_error_detail(), "nonsense"));
  assert_int_equal(krait_ctx_open(NULL, &ctx), KRAIT_OK);
  assert_string_equal(krait_error_detail(), "");
  assert_int_equal(krait_caps_parse("nonsense", &caps), KRAIT_ERR_ARGUMENT);
  assert_true(krait_ctx_device(ctx) >= 0);
  krait_ctx_close(&ctx);
  assert_non_null(strstr(krait_error_detail(), "nonsense"));
  krait_gather_rows(ctx, &(krait_gather_rows_args){.call.size = sizeof(krait_gather_rows_args)});
  assert_null(strstr(krait_error_detail(), "nonsense"));
  kr_fail_os(KRAIT_ERR_FILE_OPEN, 2, "cannot open x");
  assert_int_equal(krait_caps_parse("cpu", &caps), KRAIT_OK);
  assert_string_equal(krait_error_detail(), "");
  assert_string_equal(krait_error_origin(), "krait");
  assert_int_equal(krait_error_native(), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_status_has_a_text),
                                     cmocka_unit_test(detail_may_quote_the_old_detail),
                                     cmocka_unit_test(control_characters_do_not_pass),
                                     cmocka_unit_test(success_clears_the_detail)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

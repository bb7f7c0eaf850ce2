/* library.c: krait/doctor.h from C: the rule on single images, wheel names, tables, and every allocation failing
 * once. */
#include "../test.h"

#include <krait/doctor.h>

#include "alloc.h"

static krait_tables *tables;

static int32_t rule(int kind, int sm, int suffix, int ptx, int cc, int driver) {
  const krait_image image = {.size = sizeof image, .kind = kind, .sm = sm, .suffix = suffix, .ptx = ptx};
  const krait_target target = {.size = sizeof target, .cc = cc, .driver = driver};
  return krait_rule(tables, &image, &target);
}

static void one_rule_for_every_image(void **state) {
  (void)state;
  enum { C = KRAIT_IMAGE_CUBIN, P = KRAIT_IMAGE_PTX, R580 = 580082000, R570 = 570086000 };
  assert_int_equal(rule(C, 80, 0, 0, 80, 0), KRAIT_VERDICT_NATIVE);
  assert_int_equal(rule(C, 80, 0, 0, 89, 0), KRAIT_VERDICT_NATIVE_MINOR);
  assert_int_equal(rule(C, 89, 0, 0, 86, 0), KRAIT_VERDICT_NONE);
  assert_int_equal(rule(C, 86, 0, 0, 90, 0), KRAIT_VERDICT_NONE);
  assert_int_equal(rule(C, 120, 0, 0, 121, 0), KRAIT_VERDICT_NATIVE_MINOR);
  assert_int_equal(rule(C, 90, 'a', 0, 90, 0), KRAIT_VERDICT_NATIVE);
  assert_int_equal(rule(C, 120, 'a', 0, 121, 0), KRAIT_VERDICT_NONE);
  assert_int_equal(rule(C, 100, 'f', 0, 103, 0), KRAIT_VERDICT_NATIVE_MINOR);
  assert_int_equal(rule(C, 103, 'f', 0, 100, 0), KRAIT_VERDICT_NONE);
  assert_int_equal(rule(C, 100, 'f', 0, 120, 0), KRAIT_VERDICT_NONE);
  assert_int_equal(rule(P, 75, 0, 90, 90, R580), KRAIT_VERDICT_JIT);
  assert_int_equal(rule(P, 75, 0, 90, 90, R570), KRAIT_VERDICT_JIT_BLOCKED);
  assert_int_equal(rule(P, 100, 0, 90, 90, R580), KRAIT_VERDICT_NONE);
  assert_int_equal(rule(P, 90, 'a', 80, 100, R580), KRAIT_VERDICT_NONE);
  assert_int_equal(rule(P, 120, 'f', 90, 121, R580), KRAIT_VERDICT_JIT);
  assert_int_equal(rule(KRAIT_IMAGE_LTO, 80, 0, 0, 80, R580), KRAIT_VERDICT_NONE);
}

static void wheel_names_are_read(void **state) {
  (void)state;
  static const struct { const char *file; int cuda, torch, abi; } names[] = {
      {"flash_attn-2.7.4+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl", 120, 206, 0},
      {"https://x/y/mamba_ssm-2.2.2%2Bcu122torch2.2cxx11abiTRUE-cp310-cp310-linux_x86_64.whl", 122, 202, 1},
      {"torch-2.10.0+cu128-cp313-cp313t-manylinux_2_28_x86_64.whl", 128, 0, -1},
      {"torch_scatter-2.1.2+pt28cu128-cp311-cp311-linux_x86_64.whl", 128, 208, -1},
      {"torch_scatter-2.1.2+pt210cu126-1build-cp311-cp311-linux_x86_64.whl", 126, 210, -1},
      {"x-1.0+cu12.8torch2.7-py3-none-any.whl", 128, 207, -1}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    krait_wheel_name name = {.size = sizeof name};
    assert_int_equal(krait_wheel_name_parse(names[i].file, &name), KRAIT_OK);
    assert_int_equal(name.cuda, names[i].cuda);
    assert_int_equal(name.torch, names[i].torch);
    assert_int_equal(name.cxx11abi, names[i].abi);
  }
  krait_wheel_name name = {.size = sizeof name};
  assert_int_equal(krait_wheel_name_parse("a-1.whl", &name), KRAIT_ERR_ARGUMENT);
  assert_int_equal(krait_wheel_name_parse("a-1-x-cp311-cp311-any.whl", &name), KRAIT_ERR_ARGUMENT);
  assert_int_equal(krait_wheel_name_parse("torch-2.9.0-cp313-cp313-manylinux_2_28_x86_64-cu128.whl", &name), KRAIT_OK);
  assert_string_equal(name.variant, "cu128");
  assert_string_equal(name.platform, "manylinux_2_28_x86_64");
  assert_int_equal(name.cuda, 128);
  assert_int_equal(krait_wheel_name_parse("a-1-2b-cp313-cp313-linux_x86_64-00a1b2c3.whl", &name), KRAIT_OK);
  assert_string_equal(name.build, "2b");
  assert_int_equal(name.cuda, 0);
}

/* The rule of krait.h for structs: an unknown tail must be zero, a size must have been set. */
static void struct_sizes(void **state) {
  (void)state;
  struct {
    krait_doctor_options known;
    char tail[64];
  } newer = {.known = {.size = sizeof newer, .gpu = "9.0", .root = FIXTURES, .driver = "570.86", .torch = "2.8.0"}};
  krait_report *report = NULL;
  assert_int_equal(krait_doctor_run(&newer.known, &report), KRAIT_OK);
  krait_report_close(&report);
  newer.tail[8] = 1;
  assert_int_equal(krait_doctor_run(&newer.known, &report), KRAIT_ERR_STRUCT_SIZE);
  assert_null(report);
  memset(&newer, 0xff, sizeof newer);
  assert_int_equal(krait_doctor_run(&newer.known, &report), KRAIT_ERR_STRUCT_SIZE);
  newer.known.size = 0;
  assert_int_equal(krait_doctor_run(&newer.known, &report), KRAIT_ERR_STRUCT_SIZE);
  newer.known.size = offsetof(krait_doctor_options, machine) - 1;
  assert_int_equal(krait_doctor_run(&newer.known, &report), KRAIT_ERR_STRUCT_SIZE);
  assert_null(report);
  assert_int_equal(krait_doctor_run(NULL, &report), KRAIT_ERR_ARGUMENT);
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  const char *const paths[] = {FIXTURES "/zstd.fatbin", FIXTURES};
  const char log[] = "ImportError: /x/selective_scan_cuda.so: undefined symbol: _ZN3c104cuda14ExchangeDeviceEa\n";
  const krait_doctor_options options = {.size = sizeof options,
                                        .n_paths = 2,
                                        .paths = paths,
                                        .gpu = "12.0",
                                        .root = FIXTURES,
                                        .log = log,
                                        .log_bytes = sizeof log - 1};
  int failures = 0, successes = 0;
  for (long n = 1; n < 400 && successes < 2; n++) {
    krait_report *report = NULL;
    kr_alloc_fail_after(n);
    int32_t status = krait_doctor_run(&options, &report);
    if (status == KRAIT_OK) krait_report_text(report, 0, 0), krait_report_json(report, 0), krait_report_plan(report);
    int left = status == KRAIT_OK;
    kr_alloc_fail_after(0);
    krait_report_close(&report);
    assert_true(status == KRAIT_OK || status == KRAIT_ERR_NO_MEMORY);
    failures += !left;
    successes += left && n > 200;
  }
  assert_true(failures > 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(one_rule_for_every_image), cmocka_unit_test(wheel_names_are_read),
                                     cmocka_unit_test(struct_sizes), cmocka_unit_test(every_allocation_may_fail)};
  if (krait_tables_load(NULL, &tables) != KRAIT_OK) return 1;
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  krait_tables_close(&tables);
  return failed;
}

/* sized.c: structs of older and newer callers, as options and results. */
#include "../test.h"
#include "sized.h"

typedef struct options { uint32_t size, a; const char *b; } options;
typedef struct newer { options old; uint64_t later; } newer;

static void an_older_caller_leaves_the_rest_zero(void **state) {
  (void)state;
  struct { uint32_t size, a; } old = {8, 7};
  options known = {.b = "left over"};
  assert_int_equal(kr_struct_take("options", &old, 8, &known, sizeof known), KRAIT_OK);
  assert_int_equal(known.size, sizeof known);
  assert_int_equal(known.a, 7);
  assert_null(known.b);
  assert_int_equal(kr_struct_take("options", &old, 12, &known, sizeof known), KRAIT_ERR_STRUCT_SIZE);
}

static void a_newer_caller_may_not_use_what_is_unknown(void **state) {
  (void)state;
  newer given = {{sizeof given, 7, "b"}, 0};
  options known;
  assert_int_equal(kr_struct_take("options", &given, 8, &known, sizeof known), KRAIT_OK);
  assert_string_equal(known.b, "b");
  given.later = 1;
  assert_int_equal(kr_struct_take("options", &given, 8, &known, sizeof known), KRAIT_ERR_STRUCT_SIZE);
  assert_non_null(strstr(krait_error_detail(), "byte 16"));
  given.old.size = 123456789; /* never set */
  assert_int_equal(kr_struct_take("options", &given, 8, &known, sizeof known), KRAIT_ERR_STRUCT_SIZE);
}

static void results_fill_what_the_caller_has(void **state) {
  (void)state;
  const options known = {sizeof known, 7, "b"};
  struct { uint32_t size, a; uint64_t behind; } old = {8, 0, 5};
  assert_int_equal(kr_struct_give("result", &old, 8, &known, sizeof known), KRAIT_OK);
  assert_true(old.size == 8 && old.a == 7 && old.behind == 5);
  newer recent = {{sizeof recent, 0, NULL}, 9};
  assert_int_equal(kr_struct_give("result", &recent, 8, &known, sizeof known), KRAIT_OK);
  assert_true(recent.old.size == sizeof recent && recent.old.a == 7 && recent.later == 0);
  recent.old.size = 4;
  assert_int_equal(kr_struct_give("result", &recent, 8, &known, sizeof known), KRAIT_ERR_STRUCT_SIZE);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(an_older_caller_leaves_the_rest_zero),
                                     cmocka_unit_test(a_newer_caller_may_not_use_what_is_unknown),
                                     cmocka_unit_test(results_fill_what_the_caller_has)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

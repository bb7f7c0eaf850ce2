/* half.c: every float16 and bfloat16 round-trips through float, and rounding is to nearest even. */
#include <math.h>

#include "../test.h"
#include "half.h"

static void every_half_round_trips(void **state) {
  (void)state;
  for (uint32_t h = 0; h < 0x10000; h++) {
    float f = kr_f16_to_float((uint16_t)h), b = kr_bf16_to_float((uint16_t)h);
    if (isnan(f)) assert_true(isnan(kr_f16_to_float(kr_float_to_f16(f))));
    else assert_int_equal(kr_float_to_f16(f), h);
    if (isnan(b)) assert_true(isnan(kr_bf16_to_float(kr_float_to_bf16(b))));
    else assert_int_equal(kr_float_to_bf16(b), h);
  }
}

static void halfway_goes_to_even(void **state) {
  (void)state;
  for (uint16_t h = 0; h < 0x7bff; h++) {
    float low = kr_f16_to_float(h), high = kr_f16_to_float((uint16_t)(h + 1)), middle = (low + high) / 2;
    assert_int_equal(kr_float_to_f16(middle), h & 1 ? h + 1 : h);
    assert_int_equal(kr_float_to_f16(nextafterf(middle, 1e9f)), h + 1);
    assert_int_equal(kr_float_to_f16(nextafterf(middle, -1e9f)), h);
  }
  assert_int_equal(kr_float_to_f16(65519.996f), 0x7bff);
  assert_int_equal(kr_float_to_f16(65520.0f), 0x7c00);
  assert_int_equal(kr_float_to_bf16(3.4e38f), 0x7f80);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_half_round_trips), cmocka_unit_test(halfway_goes_to_even)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

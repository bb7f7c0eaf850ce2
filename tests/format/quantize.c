/* quantize.c: q8_0 as float16: every byte times scales of every kind is one rounding of the product, rows apart or
 * not. */
#include "../test.h"

#include <string.h>

#include "half.h"
#include "quantize.h"

enum { ROWS = 12, BLOCKS = 8, K = 32 * BLOCKS }; /* a row has every byte once */

static int32_t words[ROWS * K / 4];
static uint16_t scales[ROWS * BLOCKS], at_once[ROWS * K], by_rows[ROWS * K];

static void widens_as_one_rounding(void **state) {
  /* 0, subnormal, normal, largest, infinite, NaN, negative */
  static const uint16_t kinds[ROWS] = {0,      1,      0x3ff,  0x400,  0x1234, 0x2e66,
                                       0x3c00, 0x5801, 0x7bff, 0x7c00, 0x7e01, 0xbc01};
  (void)state;
  for (int i = 0; i < ROWS * K; i++)
    words[i / 4] = (int32_t)((uint32_t)words[i / 4] | (uint32_t)(i * 5 & 255) << i % 4 * 8);
  for (int i = 0; i < ROWS * BLOCKS; i++) /* a block has each kind in one row */
    scales[i] = kinds[(i % BLOCKS + i / BLOCKS) % ROWS];
  kr_q8_widen(words, scales, BLOCKS, 0, ROWS, at_once);
  for (int row = ROWS - 1; row >= 0; row--) kr_q8_widen(words, scales, BLOCKS, row, row + 1, by_rows);
  assert_memory_equal(at_once, by_rows, sizeof at_once);
  for (int i = 0; i < ROWS * K; i++) {
    const float exact = kr_f16_to_float(scales[i / 32]) * (float)(int8_t)(i * 5 & 255);
    assert_int_equal(at_once[i], kr_float_to_f16(exact));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(widens_as_one_rounding)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

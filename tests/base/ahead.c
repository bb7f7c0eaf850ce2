/* ahead.c: one thread's output reaches the other in order, for all sizes; a failure arrives after earlier output;
 * closing early does not wait. */
#include "../test.h"

#include "ahead.h"
#include "status.h"

enum { PIECE = 1 << 18 };

typedef struct maker {
  uint64_t at, fails_at; /* fails_at: in bytes; 0 never */
} maker;

static uint8_t byte_at(uint64_t i) { return (uint8_t)(i * 2654435761u >> 13); }

static int32_t make(void *user, void *out, size_t bytes) {
  maker *m = user;
  for (size_t i = 0; i < bytes; i++) ((uint8_t *)out)[i] = byte_at(m->at + i);
  m->at += bytes;
  if (m->fails_at && m->at >= m->fails_at)
    return kr_fail(KRAIT_ERR_FILE_FORMAT, "damaged before %llu", (unsigned long long)m->at);
  return KRAIT_OK;
}

static void check_all(uint64_t bytes, size_t step) {
  maker m = {0};
  static uint8_t got[3 * PIECE];
  kr_ahead *ahead = kr_ahead_open(make, &m, bytes);
  assert_non_null(ahead);
  for (uint64_t at = 0; at < bytes;) {
    const size_t n = bytes - at < step ? (size_t)(bytes - at) : step;
    assert_int_equal(kr_ahead_take(ahead, got, n), KRAIT_OK);
    for (size_t i = 0; i < n; i++)
      if (got[i] != byte_at(at + i)) assert_int_equal(got[i], byte_at(at + i));
    at += n;
  }
  assert_true(kr_ahead_take(ahead, got, 1) < 0); /* past the end */
  kr_ahead_close(&ahead);
  assert_null(ahead);
}

static void every_byte_in_order(void **state) {
  (void)state;
  check_all(1, 1);
  check_all(PIECE, PIECE);
  check_all(40 * PIECE + 17, 1000);
  check_all(40 * PIECE + 17, PIECE);
  check_all(21 * PIECE - 1, 2 * PIECE + 5);
}

static void a_failure_arrives_after_earlier_output(void **state) {
  (void)state;
  static uint8_t got[PIECE];
  maker m = {.fails_at = 12 * PIECE};
  kr_ahead *ahead = kr_ahead_open(make, &m, 100 * PIECE);
  for (int i = 0; i < 11; i++) assert_int_equal(kr_ahead_take(ahead, got, PIECE), KRAIT_OK);
  for (int i = 0; i < 2; i++) { /* and again */
    assert_int_equal(kr_ahead_take(ahead, got, PIECE), KRAIT_ERR_FILE_FORMAT);
    assert_non_null(strstr(krait_error_detail(), "damaged before 3145728"));
  }
  kr_ahead_close(&ahead);
}

static void closing_early(void **state) {
  (void)state;
  uint8_t got[100];
  for (int round = 0; round < 50; round++) {
    maker m = {0};
    kr_ahead *ahead = kr_ahead_open(make, &m, 1ull << 40);
    if (round % 2) assert_int_equal(kr_ahead_take(ahead, got, sizeof got), KRAIT_OK);
    kr_ahead_close(&ahead);
    assert_true(m.at <= 10 * PIECE); /* at most one ring length ahead */
  }
  kr_ahead *none = NULL;
  kr_ahead_close(&none);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_byte_in_order),
                                     cmocka_unit_test(a_failure_arrives_after_earlier_output),
                                     cmocka_unit_test(closing_early)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* relay.c: items arrive in order both ways, few wait at a time; either side's end reaches the other one. */
#include "../test.h"

#include "alloc.h"
#include "relay.h"
#include "status.h"

enum { N = 500 };

typedef struct work {
  int n, fails; /* items; whether it fails after them */
  int64_t sum;
} work;

static int32_t put_all(void *user, kr_relay *relay) {
  work *w = user;
  for (int i = 0; i < w->n; i++) KR_TRY(kr_relay_put(relay, i, 2 * i, &i, sizeof i));
  return w->fails ? kr_fail(KRAIT_ERR_FILE_FORMAT, "damaged after %d", w->n) : KRAIT_OK;
}

static int32_t take_all(void *user, kr_relay *relay) {
  work *w = user;
  kr_relay_item *item;
  int32_t status;
  while ((status = kr_relay_take(relay, &item)) > 0) {
    w->sum += item->width;
    kr_free(item);
    if (w->fails && --w->n == 0) return kr_fail(KRAIT_ERR_FILE_WRITE, "no room");
  }
  return status;
}

static void from_the_thread(void **state) {
  (void)state;
  for (int fails = 0; fails < 2; fails++) {
    work w = {N, fails, 0};
    kr_relay_item *item;
    kr_relay *relay = kr_relay_open(16, put_all, &w);
    for (int i = 0; i < N; i++) {
      assert_int_equal(kr_relay_take(relay, &item), 1);
      assert_true(item->width == i && item->height == 2 * i && memcmp(item->data, &i, sizeof i) == 0);
      kr_free(item);
    }
    for (int i = 0; i < 2; i++) assert_int_equal(kr_relay_take(relay, &item), fails ? KRAIT_ERR_FILE_FORMAT : 0);
    if (fails) assert_non_null(strstr(krait_error_detail(), "damaged after 500"));
    kr_relay_close(&relay);
    assert_null(relay);
  }
}

static void to_the_thread(void **state) {
  work w = {N, 0, 0};
  kr_relay *relay = kr_relay_open(16, take_all, &w);
  (void)state;
  for (int i = 0; i < N; i++) assert_int_equal(kr_relay_put(relay, i, 0, &i, sizeof i), KRAIT_OK);
  assert_int_equal(kr_relay_finish(relay), KRAIT_OK);
  assert_int_equal(w.sum, N * (N - 1) / 2);
  kr_relay_close(&relay);
}

static void a_failed_taker_ends_the_giver(void **state) {
  work w = {10, 1, 0};
  kr_relay *relay = kr_relay_open(16, take_all, &w);
  int i = 0;
  (void)state;
  while (i < N && kr_relay_put(relay, i, 0, &i, sizeof i) >= 0) i++;
  assert_true(i >= 10 && i < 20); /* two items of 8 bytes wait, or four in 16 */
  assert_int_equal(kr_relay_finish(relay), KRAIT_ERR_FILE_WRITE);
  assert_non_null(strstr(krait_error_detail(), "no room"));
  kr_relay_close(&relay);
}

/* Without taking anything, or all. */
static void closing_does_not_wait_for_items(void **state) {
  (void)state;
  for (int n = 0; n < 3; n++) {
    work w = {1000000, 0, 0};
    kr_relay_item *item;
    kr_relay *relay = kr_relay_open(16, put_all, &w);
    for (int i = 0; i < n; i++) {
      assert_int_equal(kr_relay_take(relay, &item), 1);
      kr_free(item);
    }
    kr_relay_close(&relay);
    assert_null(relay);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(from_the_thread), cmocka_unit_test(to_the_thread),
                                     cmocka_unit_test(a_failed_taker_ends_the_giver),
                                     cmocka_unit_test(closing_does_not_wait_for_items)};
  return cmocka_run_group_tests_name("relay", tests, NULL, NULL);
}

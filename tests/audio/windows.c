/* windows.c: identity, gain and position functions through overlapping windows: every length, cut in every way, comes
 * out sample-exact; the windows are where windows.h says. */
#include <math.h>
#include <stdlib.h>

#include "../test.h"
#include "status.h"
#include "stream.h"
#include "windows.h"

enum { MAX_CALLS = 64 };
typedef struct calls {
  int64_t n[MAX_CALLS], first[MAX_CALLS];
  int n_calls, fail_at;
} calls;

/* Samples carry their own position, so the window can tell where it is. */
static int32_t identity(void *user, const float *in, float *out, int64_t n) {
  calls *c = user;
  if (c->n_calls == c->fail_at) return kr_fail(KRAIT_ERR_CANCELLED, "asked to fail");
  c->first[c->n_calls] = (int64_t)in[0];
  c->n[c->n_calls++] = n;
  memcpy(out, in, (size_t)n * sizeof(float));
  return KRAIT_OK;
}

static int32_t run(const kr_windows_shape *shape, kr_window_fn fn, void *user, int64_t n, int64_t piece,
                   kr_queue *queue) {
  kr_windows *windows = NULL;
  assert_int_equal(kr_windows_open(shape, fn, user, (kr_sink){kr_queue_push, queue}, &windows), KRAIT_OK);
  int32_t status = KRAIT_OK;
  float block[97];
  for (int64_t i = 0; i < n && status == KRAIT_OK; i += piece) {
    const int64_t step = n - i < piece ? n - i : piece;
    for (int64_t k = 0; k < step; k++) block[k] = (float)(i + k);
    status = kr_windows_push(windows, block, step);
  }
  if (status == KRAIT_OK) status = kr_windows_finish(windows);
  kr_windows_close(&windows);
  assert_null(windows);
  return status;
}

static void identity_at_every_length(void **state) {
  (void)state;
  static const kr_windows_shape shapes[] = {{40, 10, 4}, {40, 20, 20}, {41, 13, 6}, {40, 1, 1}, {2, 1, 1}};
  static const int64_t pieces[] = {1, 7, 40, 97};
  for (size_t s = 0; s < 5; s++)
    for (int64_t n = 0; n < 200 && n < MAX_CALLS * (shapes[s].window - shapes[s].overlap); n++)
      for (size_t p = 0; p < 4; p++) {
        calls c = {.fail_at = -1};
        kr_queue queue = {0};
        assert_int_equal(run(&shapes[s], identity, &c, n, pieces[p], &queue), KRAIT_OK);
        assert_int_equal(kr_queue_count(&queue), n);
        for (int64_t i = 0; i < n; i++) assert_true(kr_queue_front(&queue)[i] == (float)i);
        assert_int_equal(c.n_calls, kr_windows_count(&shapes[s], n));
        kr_queue_free(&queue);
      }
}

static void windows_lie_where_they_should(void **state) {
  (void)state;
  const kr_windows_shape shape = {40, 10, 4};
  calls c = {.fail_at = -1};
  kr_queue queue = {0};
  assert_int_equal(run(&shape, identity, &c, 120, 97, &queue), KRAIT_OK);
  assert_int_equal(c.n_calls, 4);
  const int64_t first[] = {0, 30, 60, 80};
  for (int i = 0; i < 4; i++) {
    assert_int_equal(c.first[i], first[i]);
    assert_int_equal(c.n[i], 40);
  }
  kr_queue_free(&queue);
}

/* Each call returns its own number: the output shows which window each sample comes from, and the shape of the fade. */
static int32_t number(void *user, const float *in, float *out, int64_t n) {
  calls *c = user;
  (void)in;
  for (int64_t i = 0; i < n; i++) out[i] = (float)c->n_calls;
  c->n_calls++;
  return KRAIT_OK;
}

static void fade_is_a_raised_cosine_in_the_middle(void **state) {
  (void)state;
  const kr_windows_shape shape = {40, 10, 4};
  calls c = {0};
  kr_queue queue = {0};
  assert_int_equal(run(&shape, number, &c, 70, 7, &queue), KRAIT_OK);
  const float *y = kr_queue_front(&queue);
  for (int i = 0; i < 33; i++) assert_true(y[i] == 0);
  for (int i = 0; i < 4; i++) assert_float_equal(y[33 + i], 0.5 - 0.5 * cos(3.14159265358979 * (i + 0.5) / 4), 1e-6);
  for (int i = 37; i < 70; i++) assert_true(y[i] == 1);
  kr_queue_free(&queue);
}

static void failure_of_a_window_is_passed_on(void **state) {
  (void)state;
  const kr_windows_shape shape = {40, 10, 4}, wrong = {40, 21, 4};
  kr_windows *windows = NULL;
  for (int fail_at = 0; fail_at < 4; fail_at++) {
    calls c = {.fail_at = fail_at};
    kr_queue queue = {0};
    assert_int_equal(run(&shape, identity, &c, 120, 13, &queue), KRAIT_ERR_CANCELLED);
    kr_queue_free(&queue);
  }
  assert_int_equal(kr_windows_open(&wrong, identity, NULL, (kr_sink){0}, &windows), KRAIT_ERR_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(identity_at_every_length),
      cmocka_unit_test(windows_lie_where_they_should),
      cmocka_unit_test(fade_is_a_raised_cosine_in_the_middle),
      cmocka_unit_test(failure_of_a_window_is_passed_on),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

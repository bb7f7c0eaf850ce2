/* windows.c: identity, gain and position functions through overlapping windows: every length, split in every way, is
 * sample-exact, one window at a time, several at once, and several finished later; the windows are where windows.h
 * says. */
#include <math.h>
#include <stdlib.h>

#include "../test.h"
#include "status.h"
#include "stream.h"
#include "windows.h"

enum { MAX_CALLS = 256, MOST = 8, LONGEST = 64 };
typedef struct calls {
  int64_t n[MAX_CALLS], first[MAX_CALLS];
  int n_calls, n_runs, n_done, fail_at;
  void (*each)(struct calls *c, const float *in, float *out, int64_t n);
  int64_t due, due_size; /* late runner: windows whose results are not yet written */
  float *due_out[MOST], results[MOST][LONGEST];
} calls;

/* Samples encode their position, so a window knows its own. */
static void identity(calls *c, const float *in, float *out, int64_t n) {
  (void)c;
  memcpy(out, in, (size_t)n * sizeof(float));
}

static void note(calls *c, const float *in, int64_t n) {
  c->first[c->n_calls] = (int64_t)in[0];
  c->n[c->n_calls++] = n;
}

static int32_t run_now(void *user, int64_t n, const float *const *in, float *const *out, int64_t size) {
  calls *c = user;
  c->n_runs++;
  for (int64_t i = 0; i < n; i++) {
    if (c->n_calls == c->fail_at) return kr_fail(KRAIT_ERR_CANCELLED, "failure requested");
    c->each(c, in[i], out[i], size);
    note(c, in[i], size);
  }
  return KRAIT_OK;
}

static int32_t finish(void *user) {
  calls *c = user;
  for (int64_t i = 0; i < c->due; i++) memcpy(c->due_out[i], c->results[i], (size_t)c->due_size * sizeof(float));
  c->due = 0;
  return KRAIT_OK;
}

static int32_t run_late(void *user, int64_t n, const float *const *in, float *const *out, int64_t size) {
  calls *c = user;
  assert_true(n <= MOST && size <= LONGEST);
  assert_int_equal(finish(c), KRAIT_OK);
  float *results[MOST];
  for (int64_t i = 0; i < n; i++) c->due_out[i] = out[i], results[i] = c->results[i];
  c->due_size = size;
  KR_TRY(run_now(user, n, in, results, size));
  c->due = n;
  return KRAIT_OK;
}

static void note_done(calls *c, int64_t size) { assert_int_equal(size, c->n[c->n_done++]); }

/* What computes windows, at most so many at once. */
typedef struct runner {
  calls *user;
  int64_t most;
  int is_late;
} runner;

static int32_t compute(const runner *r, const kr_window_batch *b) {
  return (r->is_late ? run_late : run_now)(r->user, b->n, b->in, b->out, b->n_samples);
}

/* Computes what is due and pulls what is complete; at the end all of it. */
static int32_t pull_all(kr_windows *windows, const runner *r, int is_end, kr_queue *queue) {
  for (;;) {
    kr_window_part part;
    while (kr_windows_pull(windows, &part)) {
      note_done(r->user, part.n_result);
      assert_true(part.samples >= part.result && part.samples + part.n <= part.result + part.n_result);
      KR_TRY(kr_queue_push(queue, part.samples, part.n));
    }
    const kr_window_batch *batch = kr_windows_due(windows);
    if (batch) {
      KR_TRY(compute(r, batch));
      kr_windows_computed(windows);
    } else if (is_end && kr_windows_is_ahead(windows)) {
      KR_TRY(finish(r->user));
      kr_windows_settle(windows);
    } else return KRAIT_OK;
  }
}

static int32_t run_windows(const kr_windows_shape *shape, const runner *r, int64_t n, int64_t piece, kr_queue *queue) {
  kr_windows *windows = NULL;
  assert_int_equal(kr_windows_open(shape, r->most, r->is_late, &windows), KRAIT_OK);
  int32_t status = KRAIT_OK;
  float block[97];
  for (int64_t i = 0, taken; i < n && status == KRAIT_OK; i += taken) {
    const int64_t step = n - i < piece ? n - i : piece;
    for (int64_t k = 0; k < step; k++) block[k] = (float)(i + k);
    taken = kr_windows_push(windows, block, step);
    assert_true(taken == step || (taken > 0 && kr_windows_due(windows)));
    status = pull_all(windows, r, 0, queue);
  }
  if (status == KRAIT_OK) kr_windows_end(windows), status = pull_all(windows, r, 1, queue);
  kr_windows_close(&windows);
  assert_null(windows);
  return status;
}

static void identity_at_every_length(void **state) {
  (void)state;
  static const kr_windows_shape shapes[] = {{40, 10, 4}, {40, 20, 20}, {41, 13, 6}, {40, 1, 1}, {2, 1, 1}};
  static const int64_t pieces[] = {1, 7, 40, 97}, most[] = {0, 1, 2, 3, 8};
  for (size_t s = 0; s < 5; s++)
    for (int64_t n = 0; n < 200; n++)
      for (int way = 0; way < 4 * 5 * 2; way++) {
        calls c = {.fail_at = -1, .each = identity};
        kr_queue queue = {0};
        const int64_t at_once = most[way / 4 % 5];
        const runner r = {&c, at_once, way / 20};
        assert_int_equal(run_windows(&shapes[s], &r, n, pieces[way % 4], &queue), KRAIT_OK);
        assert_int_equal(kr_queue_count(&queue), n);
        for (int64_t i = 0; i < n; i++) assert_true(kr_queue_front(&queue)[i] == (float)i);
        const int64_t n_windows = kr_windows_count(&shapes[s], n), each = at_once ? at_once : 1;
        assert_int_equal(c.n_calls, n_windows);
        assert_int_equal(c.n_done, n_windows);
        assert_int_equal(c.n_runs, (n_windows + each - 1) / each);
        kr_queue_free(&queue);
      }
}

static void windows_lie_where_they_should(void **state) {
  (void)state;
  const kr_windows_shape shape = {40, 10, 4};
  for (int64_t most = 1; most < 6; most++) {
    calls c = {.fail_at = -1, .each = identity};
    const runner r = {&c, most, most % 2};
    kr_queue queue = {0};
    assert_int_equal(run_windows(&shape, &r, 120, 97, &queue), KRAIT_OK);
    assert_int_equal(c.n_calls, 4);
    const int64_t first[] = {0, 30, 60, 80};
    for (int i = 0; i < 4; i++) {
      assert_int_equal(c.first[i], first[i]);
      assert_int_equal(c.n[i], 40);
    }
    kr_queue_free(&queue);
  }
}

/* Each window returns its own number: the output shows which window each sample comes from, and the shape of the
 * fade. */
static void number(calls *c, const float *in, float *out, int64_t n) {
  (void)in;
  for (int64_t i = 0; i < n; i++) out[i] = (float)c->n_calls;
}

static void fade_is_a_raised_cosine_in_the_middle(void **state) {
  (void)state;
  const kr_windows_shape shape = {40, 10, 4};
  for (int way = 0; way < 3; way++) {
    calls c = {.fail_at = -1, .each = number};
    const runner r = {&c, 1 + way, way == 2};
    kr_queue queue = {0};
    assert_int_equal(run_windows(&shape, &r, 70, 7, &queue), KRAIT_OK);
    const float *y = kr_queue_front(&queue);
    for (int i = 0; i < 33; i++) assert_true(y[i] == 0);
    for (int i = 0; i < 4; i++) assert_float_equal(y[33 + i], 0.5 - 0.5 * cos(3.14159265358979 * (i + 0.5) / 4), 1e-6);
    for (int i = 37; i < 70; i++) assert_true(y[i] == 1);
    kr_queue_free(&queue);
  }
}

static void failure_of_a_window_is_passed_on(void **state) {
  (void)state;
  const kr_windows_shape shape = {40, 10, 4}, wrong = {40, 21, 4};
  kr_windows *windows = NULL;
  for (int fail_at = 0; fail_at < 4; fail_at++)
    for (int way = 0; way < 6; way++) {
      calls c = {.fail_at = fail_at, .each = identity};
      const runner r = {&c, 1 + way % 3, way / 3};
      kr_queue queue = {0};
      assert_int_equal(run_windows(&shape, &r, 120, 13, &queue), KRAIT_ERR_CANCELLED);
      kr_queue_free(&queue);
    }
  assert_int_equal(kr_windows_open(&wrong, 1, 0, &windows), KRAIT_ERR_ARGUMENT);
}

/* A late runner has its windows until the caller knows that they are complete. */
static void windows_stay_ahead_until_settled(void **state) {
  (void)state;
  const kr_windows_shape shape = {40, 10, 4};
  calls c = {.fail_at = -1, .each = identity};
  const runner r = {&c, 2, 1};
  const float x[71] = {0};
  kr_window_part part;
  kr_windows *windows = NULL;
  assert_int_equal(kr_windows_open(&shape, 2, 1, &windows), KRAIT_OK);
  assert_int_equal(kr_windows_push(windows, x, 71), 71);
  assert_false(kr_windows_is_ahead(windows));
  assert_int_equal(compute(&r, kr_windows_due(windows)), KRAIT_OK);
  kr_windows_computed(windows);
  assert_true(kr_windows_is_ahead(windows) && !kr_windows_due(windows) && !kr_windows_pull(windows, &part));
  assert_int_equal(finish(&c), KRAIT_OK);
  kr_windows_settle(windows);
  assert_true(!kr_windows_is_ahead(windows) && kr_windows_pull(windows, &part) && part.n == 33);
  assert_true(kr_windows_pull(windows, &part) && part.n == 30 && !kr_windows_pull(windows, &part));
  kr_windows_close(&windows);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(identity_at_every_length),
      cmocka_unit_test(windows_lie_where_they_should),
      cmocka_unit_test(fade_is_a_raised_cosine_in_the_middle),
      cmocka_unit_test(failure_of_a_window_is_passed_on),
      cmocka_unit_test(windows_stay_ahead_until_settled),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* pool.c: every index is visited once: called alone, nested, or from many threads at once. */
#define _DEFAULT_SOURCE /* usleep */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "../test.h"
#include "pool.h"

enum { N = 10000 };

typedef struct visits {
  kr_pool *pool;
  atomic_int count[N];
  atomic_llong longest; /* piece */
} visits;

static void visit(void *user, int64_t begin, int64_t end, int worker) {
  visits *v = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++) atomic_fetch_add(&v->count[i], 1);
  for (long long was = atomic_load(&v->longest); was < end - begin;)
    if (atomic_compare_exchange_weak(&v->longest, &was, end - begin)) break;
}

static void visit_nested(void *user, int64_t begin, int64_t end, int worker) {
  visits *v = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++) kr_pool_run(v->pool, N, 7, visit, v);
}

static void assert_all(visits *v, int times) {
  for (int i = 0; i < N; i++) assert_int_equal(atomic_load(&v->count[i]), times);
}

static void every_index_once(void **state) {
  (void)state;
  for (int n_threads = 1; n_threads <= 8; n_threads *= 2) {
    static visits v;
    memset(&v, 0, sizeof v);
    v.pool = kr_pool_open(n_threads);
    for (int round = 1; round <= 50; round++) {
      (round % 2 ? kr_pool_run : kr_pool_run_long)(v.pool, N, round, visit, &v);
      assert_all(&v, round);
    }
    kr_pool_run(v.pool, 3, 1, visit_nested, &v);
    assert_all(&v, 53);
    kr_pool_run(v.pool, 0, 1, visit, &v);
    kr_pool_close(&v.pool);
    assert_null(v.pool);
  }
}

static void long_pieces(void **state) {
  (void)state;
  for (int n_threads = 2; n_threads <= 8; n_threads *= 2) {
    static visits v;
    memset(&v, 0, sizeof v);
    v.pool = kr_pool_open(n_threads);
    kr_pool_run(v.pool, N, 10, visit, &v);
    assert_int_equal(atomic_load(&v.longest), 10);
    kr_pool_run_long(v.pool, N, 10, visit, &v);
    assert_int_equal(atomic_load(&v.longest), N / (2 * n_threads));
    assert_all(&v, 2);
    kr_pool_close(&v.pool);
  }
}

static void *call_pool(void *user) {
  visits *v = user;
  for (int round = 0; round < 20; round++) kr_pool_run(v->pool, N, 100, visit, v);
  return NULL;
}

static void busy_pool_serves_second_callers(void **state) {
  (void)state;
  static visits v;
  memset(&v, 0, sizeof v);
  v.pool = kr_pool_open(4);
  pthread_t threads[8];
  for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, call_pool, &v);
  for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
  assert_all(&v, 160);
  kr_pool_close(&v.pool);
}

/* Short consecutive loops, each with its own data: a late worker must not take a piece of another loop. */
static void short_loops_in_turn(void **state) {
  (void)state;
  kr_pool *pool = kr_pool_open(4);
  for (int round = 0; round < 5000; round++) {
    static visits two[2];
    visits *v = &two[round % 2];
    const int n = 1 + round % 9;
    for (int i = 0; i < n; i++) atomic_store(&v->count[i], 0);
    kr_pool_run(pool, n, 1 + round % 2, visit, v);
    for (int i = 0; i < n; i++) assert_int_equal(atomic_load(&v->count[i]), 1);
  }
  kr_pool_close(&pool);
}

/* Loops so far apart that workers sleep, whose pieces wait until every thread has one, and whose last piece takes so
 * long that the caller sleeps. */
enum { MEETING = 3 };
static void meet(void *user, int64_t begin, int64_t end, int worker) {
  visits *v = user;
  assert_int_equal(end - begin, 1);
  atomic_fetch_add(&v->count[0], 1);
  while (atomic_load(&v->count[0]) < MEETING) usleep(20);
  if (worker) usleep(300);
  atomic_fetch_add(&v->count[1], 1);
}

static void sleepers_are_woken(void **state) {
  (void)state;
  static visits v;
  v.pool = kr_pool_open(MEETING);
  for (int round = 0; round < 60; round++) {
    usleep(round % 3 * 100);
    atomic_store(&v.count[0], 0), atomic_store(&v.count[1], 0);
    kr_pool_run(v.pool, MEETING, 1, meet, &v);
    assert_int_equal(atomic_load(&v.count[1]), MEETING);
  }
  kr_pool_close(&v.pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_index_once), cmocka_unit_test(long_pieces),
                                     cmocka_unit_test(busy_pool_serves_second_callers),
                                     cmocka_unit_test(short_loops_in_turn), cmocka_unit_test(sleepers_are_woken)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

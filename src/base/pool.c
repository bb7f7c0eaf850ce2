/* pool.c: workers wait for the loop number to change; pieces are distributed by one atomic counter, or by one for each
 * thread. A worker joins a loop or finds it closed: the caller closes it when no piece is left and waits only for
 * workers that joined, not for one that the system has yet to wake. While all threads are awake a loop needs no lock
 * and no system call: a thread that goes to sleep announces it before its last check. */
#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "alloc.h"
#include "clock.h"

enum { SPIN_NS = 50000, SPIN_ROUNDS = 32, MAX_THREADS = 256, APART = 64 };

/* The state of the current loop: its number in the upper half, then whether it is closed, then the number of workers in
 * it. */
#define ONE_LOOP (1ull << 32)
#define CLOSED (1ull << 31)
#define WORKERS (CLOSED - 1)

typedef struct share { /* of a thread in a long loop: begin and, in the lower half, end of its remaining range */
  _Alignas(APART) atomic_ullong left;
} share;

struct kr_pool {
  int n_threads;
  pid_t owner;
  pthread_mutex_t caller; /* held by the one caller whose loop the workers run */
  pthread_mutex_t mutex;
  pthread_cond_t wake, idle;
  atomic_int n_asleep, caller_sleeps, stopping;
  pthread_t threads[MAX_THREADS];
  _Alignas(APART) atomic_ullong loop;
  _Alignas(APART) kr_range_fn fn;
  void *user;
  int64_t n, grain;
  int is_long;
  _Alignas(APART) atomic_llong next;
  share shares[];
};

typedef struct worker_start {
  kr_pool *pool;
  int index;
} worker_start;

static _Thread_local int inside_loop;

int kr_usable_cores(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (int)n : 1;
}

static void claim_slices(kr_pool *pool, int worker) {
  long long begin = atomic_load(&pool->next);
  while (begin < pool->n) {
    const int64_t end = pool->n - begin < pool->grain ? pool->n : begin + pool->grain;
    if (!atomic_compare_exchange_weak(&pool->next, &begin, end)) continue;
    pool->fn(pool->user, begin, end, worker);
    begin = atomic_load(&pool->next);
  }
}

#define ONE_SHARE (1ull << 32)
static unsigned long long share_of(int64_t begin, int64_t end) {
  return (unsigned long long)begin * ONE_SHARE + (unsigned long long)end;
}

/* Half of the rest of the owner's share, from its front or, for other threads, from its end. */
static int take_half(kr_pool *pool, int owner, int worker) {
  unsigned long long left = atomic_load(&pool->shares[owner].left);
  for (;;) {
    const int64_t begin = (int64_t)(left / ONE_SHARE), end = (int64_t)(left % ONE_SHARE), half = (end - begin) / 2,
                  least = end - begin < pool->grain ? end - begin : pool->grain, n = half > least ? half : least;
    if (n == 0) return 0;
    const int is_own = owner == worker;
    const unsigned long long rest = is_own ? share_of(begin + n, end) : share_of(begin, end - n);
    if (!atomic_compare_exchange_weak(&pool->shares[owner].left, &left, rest)) continue;
    pool->fn(pool->user, is_own ? begin : end - n, is_own ? begin + n : end, worker);
    return 1;
  }
}

static void take_shares(kr_pool *pool, int worker) {
  for (int i = 0; i < pool->n_threads; i++)
    while (take_half(pool, (worker + i) % pool->n_threads, worker)) continue;
}

static void work(kr_pool *pool, int worker) {
  if (pool->is_long) take_shares(pool, worker);
  else claim_slices(pool, worker);
}

/* Loops follow each other closely inside a model, faster than a sleeping thread wakes up: a thread first spins for some
 * microseconds, and yields the core, so that with more threads than cores those with work can run. */
static int keeps_waiting(int round, int64_t *end_ns) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
  if (round % SPIN_ROUNDS) return 1;
  sched_yield();
  const int64_t now = kr_clock_ns();
  if (!*end_ns) *end_ns = now + SPIN_NS;
  return now < *end_ns;
}

static unsigned pool_number_of(const kr_pool *pool) { return (unsigned)(atomic_load(&pool->loop) / ONE_LOOP); }

static int wait_for_work(kr_pool *pool, unsigned seen) {
  int64_t end_ns = 0;
  for (int i = 1; pool_number_of(pool) == seen && keeps_waiting(i, &end_ns); i++) continue;
  if (pool_number_of(pool) != seen) return 1;
  pthread_mutex_lock(&pool->mutex);
  atomic_fetch_add(&pool->n_asleep, 1);
  while (pool_number_of(pool) == seen && !pool->stopping) pthread_cond_wait(&pool->wake, &pool->mutex);
  atomic_fetch_sub(&pool->n_asleep, 1);
  pthread_mutex_unlock(&pool->mutex);
  return pool_number_of(pool) != seen;
}

/* Whether the current loop was still open; its number in either case. */
static int join_loop(kr_pool *pool, unsigned *seen) {
  unsigned long long loop = atomic_load(&pool->loop);
  do {
    *seen = (unsigned)(loop / ONE_LOOP);
    if (loop & CLOSED) return 0;
  } while (!atomic_compare_exchange_weak(&pool->loop, &loop, loop + 1));
  return 1;
}

static void *worker_main(void *start) {
  kr_pool *pool = ((worker_start *)start)->pool;
  int index = ((worker_start *)start)->index;
  kr_free(start);
  inside_loop = 1;
  for (unsigned seen = 0; wait_for_work(pool, seen);) {
    if (!join_loop(pool, &seen)) continue;
    work(pool, index);
    if ((atomic_fetch_sub(&pool->loop, 1) & (CLOSED | WORKERS)) != (CLOSED | 1) || !atomic_load(&pool->caller_sleeps))
      continue;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_signal(&pool->idle);
    pthread_mutex_unlock(&pool->mutex);
  }
  return NULL;
}

static int start_worker(kr_pool *pool, int index) {
  worker_start *start = kr_alloc(sizeof *start);
  if (!start) return 0;
  *start = (worker_start){pool, index};
  if (pthread_create(&pool->threads[index], NULL, worker_main, start) == 0) return 1;
  kr_free(start);
  return 0;
}

kr_pool *kr_pool_open(int n_threads) {
  if (n_threads < 1) n_threads = 1;
  if (n_threads > MAX_THREADS) n_threads = MAX_THREADS;
  kr_pool *pool = kr_zalloc(sizeof *pool + (size_t)n_threads * sizeof *pool->shares);
  if (!pool) return NULL;
  pool->owner = getpid();
  atomic_store(&pool->loop, CLOSED);
  pthread_mutex_init(&pool->caller, NULL);
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->wake, NULL);
  pthread_cond_init(&pool->idle, NULL);
  /* Fewer threads than requested are slower, not wrong. */
  for (pool->n_threads = 1; pool->n_threads < n_threads; pool->n_threads++)
    if (!start_worker(pool, pool->n_threads)) break;
  return pool;
}

void kr_pool_close(kr_pool **handle) {
  kr_pool *pool = *handle;
  *handle = NULL;
  if (!pool) return;
  if (pool->owner == getpid()) {
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->stopping, 1);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 1; i < pool->n_threads; i++) pthread_join(pool->threads[i], NULL);
  }
  kr_free(pool);
}

int kr_pool_size(const kr_pool *pool) { return pool->n_threads; }

static int is_in_use(const kr_pool *pool) { return (atomic_load(&pool->loop) & WORKERS) != 0; }

static void wake_workers(kr_pool *pool) {
  if (!atomic_load(&pool->n_asleep)) return;
  pthread_mutex_lock(&pool->mutex);
  pthread_cond_broadcast(&pool->wake);
  pthread_mutex_unlock(&pool->mutex);
}

static void share_loop(kr_pool *pool, int64_t n, int64_t grain, int is_long, kr_range_fn fn, void *user) {
  pool->fn = fn;
  pool->user = user;
  pool->n = n;
  pool->grain = grain;
  pool->is_long = is_long && n < (int64_t)ONE_SHARE;
  for (int i = 0; pool->is_long && i < pool->n_threads; i++)
    atomic_store(&pool->shares[i].left, share_of(n * i / pool->n_threads, n * (i + 1) / pool->n_threads));
  atomic_store(&pool->next, 0);
  atomic_store(&pool->loop, (unsigned long long)(pool_number_of(pool) + 1) * ONE_LOOP);
  wake_workers(pool);
  inside_loop = 1;
  work(pool, 0);
  inside_loop = 0;
  atomic_fetch_or(&pool->loop, CLOSED);
  int64_t end_ns = 0;
  for (int i = 1; is_in_use(pool) && keeps_waiting(i, &end_ns); i++) continue;
  if (!is_in_use(pool)) return;
  pthread_mutex_lock(&pool->mutex);
  atomic_store(&pool->caller_sleeps, 1);
  while (is_in_use(pool)) pthread_cond_wait(&pool->idle, &pool->mutex);
  atomic_store(&pool->caller_sleeps, 0);
  pthread_mutex_unlock(&pool->mutex);
}

static void run_items(kr_pool *pool, int64_t n, int64_t grain, int is_long, kr_range_fn fn, void *user) {
  if (n <= 0) return;
  if (grain < 1) grain = 1;
  int alone = !pool || pool->n_threads == 1 || n <= grain || inside_loop || pool->owner != getpid();
  if (alone || pthread_mutex_trylock(&pool->caller) != 0) {
    fn(user, 0, n, 0);
    return;
  }
  share_loop(pool, n, grain, is_long, fn, user);
  pthread_mutex_unlock(&pool->caller);
}

void kr_pool_run(kr_pool *pool, int64_t n, int64_t grain, kr_range_fn fn, void *user) {
  run_items(pool, n, grain, 0, fn, user);
}
void kr_pool_run_long(kr_pool *pool, int64_t n, int64_t grain, kr_range_fn fn, void *user) {
  run_items(pool, n, grain, 1, fn, user);
}

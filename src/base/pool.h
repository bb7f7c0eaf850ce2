/* pool.h: a fixed set of threads that share loops. Our own threads rather than OpenMP's: no runtime library to ship in
 * a wheel, no oversubscription when several callers or frameworks have pools, and ThreadSanitizer sees all
 * synchronisation. */
#ifndef KR_POOL_H
#define KR_POOL_H

#include <stdint.h>

typedef struct kr_pool kr_pool;

/* Called with disjoint [begin, end) that cover [0, n); worker is in 0..kr_pool_size-1 and unique among concurrent calls
 * of one run. */
typedef void (*kr_range_fn)(void *user, int64_t begin, int64_t end, int worker);

int kr_usable_cores(void);            /* cores that this process may run on */
kr_pool *kr_pool_open(int n_threads); /* the caller counts as one of them; NULL when out of memory */
void kr_pool_close(kr_pool **pool);
int kr_pool_size(const kr_pool *pool);
/* Splits [0, n) into pieces of grain and returns when all are done. A nested call, a second caller of a busy pool and a
 * forked child run everything on their own thread, as worker 0. */
void kr_pool_run(kr_pool *pool, int64_t n, int64_t grain, kr_range_fn fn, void *user);
/* The same for loops whose neighbouring pieces should run on one thread, for example because they read memory in order:
 * each thread has its own share of [0, n), takes half of the rest at a time, but at least grain, and when its share is
 * used up, half of another's, from its end. */
void kr_pool_run_long(kr_pool *pool, int64_t n, int64_t grain, kr_range_fn fn, void *user);

#endif

/* scorer.c: a few threads, one batch (scorer.h). A pair's score does not depend on the others, and so not on the
 * threads. Each pair keeps its memory from batch to batch: with memory from the system, threads would wait for each
 * other in the kernel. */
#include "scorer.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "alloc.h"
#include "pesq.h"
#include "pool.h"
#include "status.h"

enum { MOST_THREADS = 256 };

typedef struct scored_pair {
  kr_pesq_listener *listener; /* NULL: not opened yet */
  int32_t status;             /* of the clean signal, then of both */
  int is_clean_heard;
  double mos;
} scored_pair;

struct kr_scorer {
  pthread_mutex_t lock;
  pthread_cond_t work, done;
  pthread_t threads[MOST_THREADS];
  int n_threads, is_closing;
  float *clean, *other;
  scored_pair *pairs;
  int64_t n_samples, capacity, pair_capacity; /* capacity: floats in clean and in other */
  int64_t expected, n_claimed, n_heard;       /* clean signals */
  int64_t batch, n_other_claimed, n_scored;   /* pairs */
};

static void hear_clean(kr_scorer *s, int64_t i) {
  scored_pair *p = &s->pairs[i];
  p->mos = NAN, p->status = p->listener ? KRAIT_OK : kr_pesq_open(s->n_samples, KR_PESQ_WIDE, &p->listener);
  if (p->status >= 0) p->status = kr_pesq_hear_clean(p->listener, s->clean + i * s->n_samples);
}

static void hear_other(kr_scorer *s, int64_t i) {
  scored_pair *p = &s->pairs[i];
  if (p->status >= 0) p->status = kr_pesq_hear_other(p->listener, s->other + i * s->n_samples, &p->mos);
}

/* Clean signals come first, in order, so a pair whose clean signal has not been heard is in another thread's hands. */
static void *scorer_worker(void *user) {
  kr_scorer *s = user;
  pthread_mutex_lock(&s->lock);
  while (!s->is_closing) {
    const int is_clean = s->n_claimed < s->expected;
    if (!is_clean && !(s->n_other_claimed < s->batch && s->pairs[s->n_other_claimed].is_clean_heard)) {
      pthread_cond_wait(&s->work, &s->lock);
      continue;
    }
    const int64_t i = is_clean ? s->n_claimed++ : s->n_other_claimed++;
    pthread_mutex_unlock(&s->lock);
    if (is_clean) hear_clean(s, i);
    else hear_other(s, i);
    pthread_mutex_lock(&s->lock);
    if (is_clean) s->pairs[i].is_clean_heard = 1, s->n_heard++, pthread_cond_broadcast(&s->work);
    else s->n_scored++;
    if (s->n_heard == s->expected || s->n_scored == s->batch) pthread_cond_broadcast(&s->done);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

int32_t kr_scorer_open(int32_t n_threads, kr_scorer **scorer) {
  kr_scorer *s = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory for scores");
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->work, NULL);
  pthread_cond_init(&s->done, NULL);
  const int cores = kr_usable_cores(), wanted = n_threads > 0 ? n_threads : cores > 1 ? cores - 1 : 1;
  while (s->n_threads < wanted && s->n_threads < MOST_THREADS &&
         pthread_create(&s->threads[s->n_threads], NULL, scorer_worker, s) == 0)
    s->n_threads++;
  if (s->n_threads > 0) return *scorer = s, KRAIT_OK;
  kr_scorer_close(&s);
  return kr_fail(KRAIT_ERR_NO_MEMORY, "no thread can be started for scores");
}

static void close_listeners(kr_scorer *s) {
  for (int64_t i = 0; i < s->pair_capacity; i++) kr_pesq_close(&s->pairs[i].listener);
}

void kr_scorer_close(kr_scorer **scorer) {
  kr_scorer *s = *scorer;
  if (!s) return;
  pthread_mutex_lock(&s->lock);
  s->is_closing = 1;
  pthread_cond_broadcast(&s->work);
  pthread_mutex_unlock(&s->lock);
  for (int i = 0; i < s->n_threads; i++) pthread_join(s->threads[i], NULL);
  close_listeners(s);
  kr_free(s->clean);
  kr_free(s->other);
  kr_free(s->pairs);
  pthread_cond_destroy(&s->work);
  pthread_cond_destroy(&s->done);
  pthread_mutex_destroy(&s->lock);
  kr_free(s);
  *scorer = NULL;
}

/* All workers wait: nothing reads the arrays. */
static int32_t make_room(kr_scorer *s, int64_t batch, int64_t n) {
  if (batch * n > s->capacity) {
    kr_free(s->clean);
    kr_free(s->other);
    s->clean = kr_alloc_array((size_t)(batch * n), sizeof *s->clean);
    s->other = kr_alloc_array((size_t)(batch * n), sizeof *s->other);
    s->capacity = s->clean && s->other ? batch * n : 0;
  }
  if (n != s->n_samples) close_listeners(s);
  s->n_samples = n;
  if (batch > s->pair_capacity) {
    close_listeners(s);
    kr_free(s->pairs);
    s->pairs = kr_alloc_array((size_t)batch, sizeof *s->pairs);
    s->pair_capacity = s->pairs ? batch : 0;
  }
  KR_CHECK(s->capacity >= batch * n && s->pair_capacity >= batch, KRAIT_ERR_NO_MEMORY,
           "no memory for the scores of %lld signals", (long long)batch);
  return KRAIT_OK;
}

/* With the lock, while no batch is in work. */
static int32_t expect(kr_scorer *s, const float *clean, int64_t batch, int64_t n_samples) {
  while (s->n_heard < s->expected) pthread_cond_wait(&s->done, &s->lock);
  s->expected = s->n_claimed = s->n_heard = 0;
  KR_TRY(make_room(s, batch, n_samples));
  memcpy(s->clean, clean, (size_t)(batch * n_samples) * sizeof *clean);
  for (int64_t i = 0; i < batch; i++) s->pairs[i].is_clean_heard = 0;
  s->expected = batch;
  pthread_cond_broadcast(&s->work);
  return KRAIT_OK;
}

int32_t kr_scorer_expect(kr_scorer *s, const float *clean, int64_t batch, int64_t n_samples) {
  pthread_mutex_lock(&s->lock);
  const int32_t status =
      s->batch == 0 ? expect(s, clean, batch, n_samples)
                    : kr_fail(KRAIT_ERR_ARGUMENT, "kr_scorer_end comes before the next kr_scorer_expect");
  pthread_mutex_unlock(&s->lock);
  return status;
}

static int32_t begin(kr_scorer *s, const float *other, int64_t batch, int64_t n_samples) {
  KR_CHECK(s->batch == 0, KRAIT_ERR_ARGUMENT, "kr_scorer_end comes before the next kr_scorer_begin");
  KR_CHECK(s->expected == batch && s->n_samples == n_samples, KRAIT_ERR_ARGUMENT,
           "%lld signals of %lld samples are scored, %lld of %lld were expected", (long long)batch,
           (long long)n_samples, (long long)s->expected, (long long)s->n_samples);
  memcpy(s->other, other, (size_t)(batch * n_samples) * sizeof *other);
  s->n_other_claimed = s->n_scored = 0;
  s->batch = batch;
  pthread_cond_broadcast(&s->work);
  return KRAIT_OK;
}

int32_t kr_scorer_begin(kr_scorer *s, const float *other, int64_t batch, int64_t n_samples) {
  pthread_mutex_lock(&s->lock);
  const int32_t status = begin(s, other, batch, n_samples);
  pthread_mutex_unlock(&s->lock);
  return status;
}

int32_t kr_scorer_end(kr_scorer *s, double *mos, int64_t *n_failed) {
  int64_t failed = 0;
  int32_t status = KRAIT_OK;
  pthread_mutex_lock(&s->lock);
  while (s->n_scored < s->batch) pthread_cond_wait(&s->done, &s->lock);
  for (int64_t i = 0; i < s->batch; i++) {
    const scored_pair *p = &s->pairs[i];
    mos[i] = p->mos;
    failed += isnan(mos[i]) != 0;
    if (p->status < 0 && p->status != KRAIT_ERR_UNSUPPORTED) status = p->status; /* memory ran out */
  }
  s->expected = s->n_claimed = s->n_heard = 0;
  s->batch = s->n_other_claimed = s->n_scored = 0;
  pthread_mutex_unlock(&s->lock);
  if (n_failed) *n_failed = failed;
  return status < 0 ? kr_fail(status, "no memory for PESQ") : KRAIT_OK;
}

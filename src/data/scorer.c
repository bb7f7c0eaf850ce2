/* scorer.c: a few threads, one batch (scorer.h). A pair's score does not depend on the others, and so not on the
 * threads. */
#include "scorer.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "alloc.h"
#include "pesq.h"
#include "pool.h"
#include "status.h"

enum { MOST_THREADS = 256 };

struct kr_scorer {
  pthread_mutex_t lock;
  pthread_cond_t work, done;
  pthread_t threads[MOST_THREADS];
  int n_threads, is_closing;
  float *clean, *other;
  double *mos;
  int64_t batch, n_samples, capacity, batch_capacity; /* capacity: floats in clean and in other */
  int64_t n_claimed, n_scored;
  int32_t status; /* of a pair that failed because memory ran out */
};

static void *scorer_worker(void *user) {
  kr_scorer *s = user;
  pthread_mutex_lock(&s->lock);
  while (!s->is_closing) {
    if (s->n_claimed == s->batch) {
      pthread_cond_wait(&s->work, &s->lock);
      continue;
    }
    const int64_t i = s->n_claimed++, n = s->n_samples;
    pthread_mutex_unlock(&s->lock);
    double mos;
    const int32_t status = kr_pesq(s->clean + i * n, s->other + i * n, n, KR_PESQ_WIDE, &mos);
    pthread_mutex_lock(&s->lock);
    s->mos[i] = mos;
    if (status < 0 && status != KRAIT_ERR_UNSUPPORTED) s->status = status;
    if (++s->n_scored == s->batch) pthread_cond_broadcast(&s->done);
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

void kr_scorer_close(kr_scorer **scorer) {
  kr_scorer *s = *scorer;
  if (!s) return;
  pthread_mutex_lock(&s->lock);
  s->is_closing = 1;
  pthread_cond_broadcast(&s->work);
  pthread_mutex_unlock(&s->lock);
  for (int i = 0; i < s->n_threads; i++) pthread_join(s->threads[i], NULL);
  kr_free(s->clean);
  kr_free(s->other);
  kr_free(s->mos);
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
  if (batch > s->batch_capacity) {
    kr_free(s->mos);
    s->mos = kr_alloc_array((size_t)batch, sizeof *s->mos);
    s->batch_capacity = s->mos ? batch : 0;
  }
  KR_CHECK(s->capacity >= batch * n && s->batch_capacity >= batch, KRAIT_ERR_NO_MEMORY,
           "no memory for the scores of %lld signals", (long long)batch);
  return KRAIT_OK;
}

int32_t kr_scorer_begin(kr_scorer *s, const float *clean, const float *other, int64_t batch, int64_t n_samples) {
  pthread_mutex_lock(&s->lock);
  int32_t status =
      s->batch == 0 ? KRAIT_OK : kr_fail(KRAIT_ERR_ARGUMENT, "kr_scorer_end comes before the next kr_scorer_begin");
  if (status == KRAIT_OK) status = make_room(s, batch, n_samples);
  if (status == KRAIT_OK) {
    memcpy(s->clean, clean, (size_t)(batch * n_samples) * sizeof *clean);
    memcpy(s->other, other, (size_t)(batch * n_samples) * sizeof *other);
    s->n_claimed = s->n_scored = 0;
    s->status = KRAIT_OK;
    s->batch = batch;
    s->n_samples = n_samples;
    pthread_cond_broadcast(&s->work);
  }
  pthread_mutex_unlock(&s->lock);
  return status;
}

int32_t kr_scorer_end(kr_scorer *s, double *mos, int64_t *n_failed) {
  int64_t failed = 0;
  pthread_mutex_lock(&s->lock);
  while (s->n_scored < s->batch) pthread_cond_wait(&s->done, &s->lock);
  for (int64_t i = 0; i < s->batch; i++) {
    mos[i] = s->mos[i];
    failed += isnan(mos[i]) != 0;
  }
  s->batch = s->n_claimed = s->n_scored = 0;
  const int32_t status = s->status;
  pthread_mutex_unlock(&s->lock);
  if (n_failed) *n_failed = failed;
  return status < 0 ? kr_fail(status, "no memory for PESQ") : KRAIT_OK;
}

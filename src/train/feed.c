/* feed.c: see feed.h. Double buffering: the step uses one buffer while the other is filled. The contents depend only on
 * the step's number, not on timing. */
#include "feed.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>

#include "alloc.h"
#include "status.h"

enum { N_ROOMS = 2 };

struct kr_feed {
  kr_data *data;
  kr_pool *pool;
  kr_batch_buffers rooms[N_ROOMS];
  kr_batch batches[N_ROOMS];
  pthread_mutex_t lock;
  pthread_cond_t changed;
  pthread_t thread;
  int has_thread, is_closing;
  int64_t n_made, n_taken; /* the last one taken is in use */
  int32_t status;          /* of the batch that could not be made, and its sentence */
  char why[512];
};

/* ---- one batch ---- */

int32_t kr_batch_open(const kr_cuda *cuda, int64_t B, int64_t F, int64_t N, kr_pool *pool,
                      kr_batch_buffers *buffers) {
  const int64_t T = 1 + N / ((F - 1) / 2), plane = B * F * T;
  const size_t n = (size_t)(6 * plane + 2 * B * N);
  *buffers = (kr_batch_buffers){.B = B, .F = F, .T = T, .N = N, .pool = pool};
  if (cuda && (buffers->noisy = kr_cuda_alloc_host(cuda, n * sizeof(float)))) buffers->cuda = cuda;
  else buffers->noisy = kr_alloc_array(n, sizeof(float));
  KR_CHECK(buffers->noisy, KRAIT_ERR_NO_MEMORY, "no memory for a batch");
  buffers->clean = buffers->noisy + B * N, buffers->com_in = buffers->clean + B * N,
  buffers->com = buffers->com_in + 2 * plane, buffers->mag = buffers->com + 2 * plane,
  buffers->pha = buffers->mag + plane;
  return kr_stft_open(2 * (F - 1), (F - 1) / 2, pool, &buffers->stft);
}

void kr_batch_close(kr_batch_buffers *buffers) {
  kr_stft_close(&buffers->stft);
  if (buffers->cuda) kr_cuda_free_host(buffers->cuda, buffers->noisy);
  else kr_free(buffers->noisy);
  *buffers = (kr_batch_buffers){0};
}

static void take_apart(void *user, int64_t begin, int64_t end, int worker) {
  const kr_batch_buffers *r = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const float re = r->com[2 * i], im = r->com[2 * i + 1];
    r->mag[i] = sqrtf(re * re + im * im), r->pha[i] = atan2f(im, re);
  }
}

int32_t kr_batch_make(kr_batch_buffers *r, kr_batch *batch) {
  const int64_t plane = r->F * r->T;
  for (int64_t b = 0; b < r->B; b++) {
    KR_TRY(kr_stft_forward(r->stft, r->noisy + b * r->N, r->N, 0.3, r->com_in + 2 * b * plane));
    KR_TRY(kr_stft_forward(r->stft, r->clean + b * r->N, r->N, 0.3, r->com + 2 * b * plane));
  }
  kr_pool_run(r->pool, r->B * plane, 8192, take_apart, r);
  *batch = (kr_batch){.com_in = r->com_in, .mag = r->mag, .pha = r->pha, .com = r->com, .wav = r->clean};
  return KRAIT_OK;
}

/* ---- ahead of the steps ---- */

static int has_room(const kr_feed *f) {
  const int64_t n_in_use = f->n_taken > 0;
  return f->n_made - f->n_taken < N_ROOMS - n_in_use;
}

static void *make_batches(void *user) {
  kr_feed *f = user;
  pthread_mutex_lock(&f->lock);
  while (!f->is_closing && f->status >= 0) {
    if (!has_room(f)) {
      pthread_cond_wait(&f->changed, &f->lock);
      continue;
    }
    const int64_t k = f->n_made % N_ROOMS;
    pthread_mutex_unlock(&f->lock);
    int32_t status = kr_data_next(f->data, f->rooms[k].noisy, f->rooms[k].clean);
    if (status >= 0) status = kr_batch_make(&f->rooms[k], &f->batches[k]);
    pthread_mutex_lock(&f->lock);
    if (status < 0) f->status = status, snprintf(f->why, sizeof f->why, "%s", krait_error_detail());
    else f->n_made++;
    pthread_cond_broadcast(&f->changed);
  }
  pthread_mutex_unlock(&f->lock);
  return NULL;
}

/* With a GPU, the feed can use all cores; while training on the CPU, it uses one. */
int32_t kr_feed_open(const krait_ctx *ctx, kr_data *data, int64_t B, int64_t F, kr_feed **feed) {
  kr_feed *f = *feed = kr_zalloc(sizeof *f);
  KR_CHECK(f, KRAIT_ERR_NO_MEMORY, "no memory for batches");
  f->data = data, f->pool = kr_pool_open(ctx->cuda ? kr_pool_size(ctx->pool) : 1);
  pthread_mutex_init(&f->lock, NULL);
  pthread_cond_init(&f->changed, NULL);
  int32_t status = f->pool ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for batches");
  for (int k = 0; k < N_ROOMS && status >= 0; k++)
    status = kr_batch_open(ctx->cuda, B, F, kr_data_samples(data), f->pool, &f->rooms[k]);
  if (status >= 0) f->has_thread = pthread_create(&f->thread, NULL, make_batches, f) == 0;
  if (status >= 0 && !f->has_thread) status = kr_fail(KRAIT_ERR_NO_MEMORY, "no thread can be started for batches");
  if (status < 0) kr_feed_close(feed);
  return status;
}

void kr_feed_close(kr_feed **feed) {
  kr_feed *f = *feed;
  if (!f) return;
  pthread_mutex_lock(&f->lock);
  f->is_closing = 1;
  pthread_cond_broadcast(&f->changed);
  pthread_mutex_unlock(&f->lock);
  if (f->has_thread) pthread_join(f->thread, NULL);
  for (int k = 0; k < N_ROOMS; k++) kr_batch_close(&f->rooms[k]);
  kr_pool_close(&f->pool);
  pthread_cond_destroy(&f->changed);
  pthread_mutex_destroy(&f->lock);
  kr_free(f);
  *feed = NULL;
}

int32_t kr_feed_next(kr_feed *f, kr_batch *batch) {
  int32_t status = KRAIT_OK;
  pthread_mutex_lock(&f->lock);
  while (f->n_made == f->n_taken && f->status >= 0) pthread_cond_wait(&f->changed, &f->lock);
  if (f->n_made > f->n_taken) *batch = f->batches[f->n_taken++ % N_ROOMS];
  else status = kr_fail(f->status, "%s", f->why);
  pthread_cond_broadcast(&f->changed);
  pthread_mutex_unlock(&f->lock);
  return status;
}

/* ahead.c: a ring buffer of pieces between a producer thread and a consumer. */
#include "ahead.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "status.h"

enum { PIECE_BYTES = 1 << 18, N_PIECES = 4, MAX_SAID = 512 };

struct kr_ahead {
  kr_make_fn make;
  void *user;
  uint64_t bytes;           /* in all */
  uint64_t n_made, n_taken; /* pieces; under the mutex */
  int stopping;
  int32_t status;
  char said[MAX_SAID]; /* why it ended */
  pthread_mutex_t mutex;
  pthread_cond_t made, taken;
  pthread_t thread;
  uint64_t at; /* of the consumer */
  uint8_t *pieces;
};

static size_t piece_bytes(const kr_ahead *a, uint64_t piece) {
  const uint64_t left = a->bytes - piece * PIECE_BYTES;
  return left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
}

static uint8_t *piece_at(const kr_ahead *a, uint64_t piece) {
  return a->pieces + (size_t)(piece % N_PIECES) * PIECE_BYTES;
}

/* There is a free place for the next piece, and it is still wanted. */
static int wait_for_room(kr_ahead *a) {
  pthread_mutex_lock(&a->mutex);
  while (a->n_made - a->n_taken == N_PIECES && !a->stopping) pthread_cond_wait(&a->taken, &a->mutex);
  const int stopping = a->stopping;
  pthread_mutex_unlock(&a->mutex);
  return !stopping;
}

static void *make_pieces(void *user) {
  kr_ahead *a = user;
  int32_t status = KRAIT_OK;
  for (uint64_t piece = 0; status >= 0 && piece * PIECE_BYTES < a->bytes && wait_for_room(a); piece++) {
    status = a->make(a->user, piece_at(a, piece), piece_bytes(a, piece));
    pthread_mutex_lock(&a->mutex);
    if (status < 0) {
      a->status = status;
      snprintf(a->said, sizeof a->said, "%s", krait_error_detail());
    } else {
      a->n_made++;
    }
    pthread_cond_signal(&a->made);
    pthread_mutex_unlock(&a->mutex);
  }
  return NULL;
}

kr_ahead *kr_ahead_open(kr_make_fn make, void *user, uint64_t bytes) {
  kr_ahead *a = kr_zalloc(sizeof *a);
  uint8_t *pieces = a ? kr_alloc((size_t)N_PIECES * PIECE_BYTES) : NULL;
  if (pieces) {
    a->make = make, a->user = user, a->bytes = bytes, a->pieces = pieces;
    pthread_mutex_init(&a->mutex, NULL);
    pthread_cond_init(&a->made, NULL);
    pthread_cond_init(&a->taken, NULL);
    if (pthread_create(&a->thread, NULL, make_pieces, a) == 0) return a;
  }
  kr_free(pieces);
  kr_free(a);
  return NULL;
}

/* The piece with the next byte has been produced; what was produced before a failure can still be consumed. */
static int32_t wait_for_piece(kr_ahead *a, uint64_t piece) {
  pthread_mutex_lock(&a->mutex);
  while (a->n_made <= piece && a->status >= 0) pthread_cond_wait(&a->made, &a->mutex);
  const int is_made = a->n_made > piece;
  pthread_mutex_unlock(&a->mutex);
  return is_made ? KRAIT_OK : kr_fail(a->status, "%s", a->said);
}

static void give_back(kr_ahead *a) {
  pthread_mutex_lock(&a->mutex);
  a->n_taken++;
  pthread_cond_signal(&a->taken);
  pthread_mutex_unlock(&a->mutex);
}

int32_t kr_ahead_take(kr_ahead *a, void *out, size_t bytes) {
  KR_CHECK(bytes <= a->bytes - a->at, KRAIT_ERR_ARGUMENT, "%zu bytes requested, which is more than is left", bytes);
  for (uint8_t *to = out; bytes;) {
    const uint64_t piece = a->at / PIECE_BYTES;
    const size_t within = (size_t)(a->at % PIECE_BYTES), whole = piece_bytes(a, piece),
                 n = whole - within < bytes ? whole - within : bytes;
    KR_TRY(wait_for_piece(a, piece));
    memcpy(to, piece_at(a, piece) + within, n);
    to += n, bytes -= n, a->at += n;
    if (within + n == whole) give_back(a);
  }
  return KRAIT_OK;
}

void kr_ahead_close(kr_ahead **ahead) {
  kr_ahead *a = *ahead;
  *ahead = NULL;
  if (!a) return;
  pthread_mutex_lock(&a->mutex);
  a->stopping = 1;
  pthread_cond_signal(&a->taken);
  pthread_mutex_unlock(&a->mutex);
  pthread_join(a->thread, NULL);
  pthread_cond_destroy(&a->made);
  pthread_cond_destroy(&a->taken);
  pthread_mutex_destroy(&a->mutex);
  kr_free(a->pieces);
  kr_free(a);
}

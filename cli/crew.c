/* crew.c: workers take the next piece under a lock and tell what has become ready under the same. */
#include "crew.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct kr_crew {
  const kr_crew_work *work;
  pthread_mutex_t lock;
  int next;        /* piece to begin */
  atomic_int told; /* pieces */
  char *is_done;
};

typedef struct member {
  kr_crew *crew;
  int worker;
} member;

int kr_crew_is_next(const kr_crew *crew, int piece) { return atomic_load(&((kr_crew *)crew)->told) == piece; }

static void *run_member(void *user) {
  const member *m = user;
  kr_crew *crew = m->crew;
  const kr_crew_work *w = crew->work;
  pthread_mutex_lock(&crew->lock);
  while (crew->next < w->n_pieces) {
    const int piece = crew->next++;
    pthread_mutex_unlock(&crew->lock);
    w->work(w->user, crew, m->worker, piece);
    pthread_mutex_lock(&crew->lock);
    crew->is_done[piece] = 1;
    for (int i = atomic_load(&crew->told); i < w->n_pieces && crew->is_done[i]; i++) {
      w->tell(w->user, i);
      atomic_store(&crew->told, i + 1);
    }
  }
  pthread_mutex_unlock(&crew->lock);
  return NULL;
}

static void run_alone(kr_crew *crew) {
  for (int i = 0; i < crew->work->n_pieces; i++) {
    crew->work->work(crew->work->user, crew, 0, i);
    crew->work->tell(crew->work->user, i);
    atomic_store(&crew->told, i + 1);
  }
}

void kr_crew_run(const kr_crew_work *work) {
  const int n = work->n_workers < work->n_pieces ? work->n_workers : work->n_pieces;
  kr_crew crew = {.work = work, .is_done = calloc((size_t)work->n_pieces + 1, 1)};
  member *members = calloc((size_t)n + 1, sizeof *members);
  pthread_t *threads = calloc((size_t)n + 1, sizeof *threads);
  if (!crew.is_done || !members || !threads || pthread_mutex_init(&crew.lock, NULL) != 0) {
    run_alone(&crew);
  } else {
    int n_threads = 1;
    members[0] = (member){&crew, 0};
    for (; n_threads < n; n_threads++) {
      members[n_threads] = (member){&crew, n_threads};
      if (pthread_create(&threads[n_threads], NULL, run_member, &members[n_threads]) != 0) break;
    }
    run_member(&members[0]);
    for (int i = 1; i < n_threads; i++) pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&crew.lock);
  }
  free(threads);
  free(members);
  free(crew.is_done);
}

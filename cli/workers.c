/* workers.c: workers take the next piece under a lock, and report finished pieces under the same lock. */
#include "workers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { STACK_BYTES = 2 << 20 };

struct cli_workers {
  const cli_workers_work *work;
  pthread_mutex_t lock;
  int next;        /* next piece to start */
  atomic_int told; /* pieces */
  char *is_done;
};

typedef struct member {
  cli_workers *crew;
  int worker;
  pthread_t thread;
} member;

int cli_workers_is_next(cli_workers *crew, int piece) { return atomic_load(&crew->told) == piece; }

static void *run_member(void *user) {
  const member *m = user;
  cli_workers *crew = m->crew;
  const cli_workers_work *w = crew->work;
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

int cli_workers_run(const cli_workers_work *work) {
  const int wanted = work->n_workers < work->n_pieces ? work->n_workers : work->n_pieces;
  cli_workers crew = {.work = work, .lock = PTHREAD_MUTEX_INITIALIZER, .is_done = calloc((size_t)work->n_pieces, 1)};
  member members[CLI_WORKERS_MOST] = {{&crew, 0, 0}};
  if (!crew.is_done) return -1;
  int n = 1;
  pthread_attr_t attributes;
  const int has_attributes = pthread_attr_init(&attributes) == 0 &&
                             pthread_attr_setstacksize(&attributes, STACK_BYTES) == 0; /* regardless of ulimit -s */
  for (; n < wanted; n++) {
    members[n] = (member){&crew, n, 0};
    if (pthread_create(&members[n].thread, has_attributes ? &attributes : NULL, run_member, &members[n]) != 0)
      break; /* fewer threads work too */
  }
  if (has_attributes) pthread_attr_destroy(&attributes);
  run_member(&members[0]);
  for (int i = 1; i < n; i++) pthread_join(members[i].thread, NULL);
  free(crew.is_done);
  return 0;
}

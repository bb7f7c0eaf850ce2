/* relay.c: a list of items under a mutex; either side may end at any time. */
#include "relay.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "status.h"

enum { MAX_SAID = 512, LEAST_ITEMS = 2, MOST_ITEMS = 64 };

struct kr_relay {
  kr_relay_fn fn;
  void *user;
  uint64_t bytes, most_bytes; /* of the items that wait */
  int64_t n_items;
  kr_relay_item *first, *last;
  int is_complete; /* no more is put */
  int has_ended;    /* the thread */
  int is_dropped;   /* nobody wants the items */
  int is_joined;
  int32_t status;
  char said[MAX_SAID]; /* why the thread ended */
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  pthread_t thread;
};

static void *run_thread(void *user) {
  kr_relay *r = user;
  const int32_t status = r->fn(r->user, r);
  pthread_mutex_lock(&r->mutex);
  r->status = status, r->has_ended = 1;
  if (status < 0) snprintf(r->said, sizeof r->said, "%s", krait_error_detail());
  pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->mutex);
  return NULL;
}

kr_relay *kr_relay_open(uint64_t most_bytes, kr_relay_fn fn, void *user) {
  kr_relay *r = kr_zalloc(sizeof *r);
  if (!r) return NULL;
  r->fn = fn, r->user = user, r->most_bytes = most_bytes;
  pthread_mutex_init(&r->mutex, NULL);
  pthread_cond_init(&r->changed, NULL);
  if (pthread_create(&r->thread, NULL, run_thread, r) == 0) return r;
  kr_free(r);
  return NULL;
}

/* Of the thread, to the other side; under the mutex. */
static int32_t pass_on(const kr_relay *r) {
  return r->status < 0 ? kr_fail(r->status, "%s", r->said) : KRAIT_OK;
}

static int has_room(const kr_relay *r, size_t bytes) {
  return r->n_items < LEAST_ITEMS || (r->n_items < MOST_ITEMS && r->bytes + bytes <= r->most_bytes);
}

static void append(kr_relay *r, kr_relay_item *item) {
  if (r->last) r->last->next = item;
  else r->first = item;
  r->last = item, r->bytes += item->bytes, r->n_items++;
}

int32_t kr_relay_put(kr_relay *r, int64_t width, int64_t height, const void *data, size_t bytes) {
  kr_relay_item *item = kr_alloc(sizeof *item + bytes);
  KR_CHECK(item, KRAIT_ERR_NO_MEMORY, "no memory for %zu bytes between two threads", bytes);
  *item = (kr_relay_item){.bytes = bytes, .width = width, .height = height};
  memcpy(item->data, data, bytes);
  pthread_mutex_lock(&r->mutex);
  while (!has_room(r, bytes) && !r->has_ended && !r->is_dropped) pthread_cond_wait(&r->changed, &r->mutex);
  const int is_wanted = !r->has_ended && !r->is_dropped;
  if (is_wanted) append(r, item);
  const int32_t status = is_wanted ? KRAIT_OK : pass_on(r);
  pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->mutex);
  if (!is_wanted) kr_free(item);
  return is_wanted || status < 0 ? status : kr_fail(KRAIT_ERR_CANCELLED, "no more is wanted");
}

int32_t kr_relay_take(kr_relay *r, kr_relay_item **item) {
  pthread_mutex_lock(&r->mutex);
  while (!r->first && !r->has_ended && !r->is_complete && !r->is_dropped) pthread_cond_wait(&r->changed, &r->mutex);
  *item = r->is_dropped ? NULL : r->first;
  if (*item) {
    r->first = (*item)->next, r->bytes -= (*item)->bytes, r->n_items--;
    if (!r->first) r->last = NULL;
  }
  const int32_t status = *item ? 1 : pass_on(r);
  pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->mutex);
  return status;
}

static void join(kr_relay *r, int *mark) {
  pthread_mutex_lock(&r->mutex);
  *mark = 1;
  pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->mutex);
  if (!r->is_joined) pthread_join(r->thread, NULL);
  r->is_joined = 1;
}

int32_t kr_relay_finish(kr_relay *r) {
  join(r, &r->is_complete);
  return pass_on(r);
}

void kr_relay_close(kr_relay **relay) {
  kr_relay *r = *relay;
  *relay = NULL;
  if (!r) return;
  join(r, &r->is_dropped);
  while (r->first) {
    kr_relay_item *item = r->first;
    r->first = item->next;
    kr_free(item);
  }
  pthread_cond_destroy(&r->changed);
  pthread_mutex_destroy(&r->mutex);
  kr_free(r);
}

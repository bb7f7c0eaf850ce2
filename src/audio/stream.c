/* stream.c: the queue at the end of a chain of stages. */
#include "stream.h"

#include <string.h>

#include "alloc.h"
#include "status.h"

static int32_t grow(kr_queue *q, int64_t capacity) {
  float *grown = kr_realloc(q->samples, (size_t)q->capacity * sizeof(float), (size_t)capacity * sizeof(float));
  KR_CHECK(grown, KRAIT_ERR_NO_MEMORY, "no memory for %lld samples", (long long)capacity);
  q->samples = grown;
  q->capacity = capacity;
  return KRAIT_OK;
}

static int32_t make_room(kr_queue *q, int64_t n) {
  if (q->begin > 0) {
    memmove(q->samples, q->samples + q->begin, (size_t)(q->end - q->begin) * sizeof(float));
    q->end -= q->begin;
    q->begin = 0;
  }
  return q->end + n <= q->capacity ? KRAIT_OK : grow(q, (q->end + n) * 5 / 4 + 1024);
}

int32_t kr_queue_reserve(kr_queue *q, int64_t n) { return n <= q->capacity ? KRAIT_OK : grow(q, n); }

int32_t kr_queue_push(void *user, const float *samples, int64_t n) {
  kr_queue *q = user;
  if (n <= 0) return KRAIT_OK;
  if (q->end + n > q->capacity) KR_TRY(make_room(q, n));
  memcpy(q->samples + q->end, samples, (size_t)n * sizeof(float));
  q->end += n;
  return KRAIT_OK;
}

void kr_queue_pop(kr_queue *q, int64_t n) {
  q->begin += n;
  if (q->begin == q->end) q->begin = q->end = 0;
}

void kr_queue_free(kr_queue *q) {
  kr_free(q->samples);
  *q = (kr_queue){0};
}

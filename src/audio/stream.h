/* stream.h: how blocks of samples pass from one stage to the next: each stage pushes its output into a sink. */
#ifndef KR_STREAM_H
#define KR_STREAM_H

#include <stdint.h>

typedef struct kr_sink {
  int32_t (*push)(void *user, const float *samples,
                  int64_t n); /* a status; the samples are the callee's until it returns */
  void *user;
} kr_sink;

static inline int32_t kr_sink_push(const kr_sink *sink, const float *samples, int64_t n) {
  return n > 0 ? sink->push(sink->user, samples, n) : 0;
}

/* A queue of samples; zero-initialised it is empty. kr_queue_push fits kr_sink. */
typedef struct kr_queue {
  float *samples; /* waiting: [begin, end) */
  int64_t begin, end, capacity;
} kr_queue;

int32_t kr_queue_reserve(kr_queue *queue, int64_t n); /* pushes allocate nothing while at most n wait */
int32_t kr_queue_push(void *queue, const float *samples, int64_t n);
static inline int64_t kr_queue_count(const kr_queue *queue) { return queue->end - queue->begin; }
static inline const float *kr_queue_front(const kr_queue *queue) { return queue->samples + queue->begin; }
void kr_queue_pop(kr_queue *queue, int64_t n); /* n <= count */
void kr_queue_free(kr_queue *queue);

#endif

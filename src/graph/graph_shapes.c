/* graph_shapes.c: see graph_shapes.h. */
#include "graph_shapes.h"

#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "graph_parts.h"
#include "status.h"

void kr_shapes_drop(kr_shape_graph *shape) {
  kr_runner_close(&shape->runner);
  kr_graph_close(&shape->graph);
  *shape = (kr_shape_graph){0};
}

static void free_memory(kr_shapes *s) {
  if (s->ctx && s->ctx->cuda) kr_cuda_free(s->ctx->cuda, s->memory);
  else kr_free(s->memory);
  s->memory = NULL, s->memory_bytes = 0;
}

int32_t kr_shapes_open(kr_shapes *s) {
  if (!s->ctx->cuda) return KRAIT_OK;
  KR_TRY(kr_cuda_stream_open(s->ctx->cuda, &s->stream));
  return kr_cuda_timer_open(s->ctx->cuda, &s->timer);
}

void kr_shapes_close(kr_shapes *s) {
  const kr_cuda *cuda = s->ctx ? s->ctx->cuda : NULL;
  for (int i = 0; i < s->most; i++) kr_shapes_drop(&s->items[i]);
  free_memory(s);
  if (cuda) kr_cuda_timer_close(cuda, &s->timer), kr_cuda_stream_close(cuda, &s->stream);
}

static int32_t plan_graph_shapes(const kr_shapes *s, const int64_t *key, kr_shape_graph *shape) {
  memcpy(shape->key, key, sizeof shape->key);
  KR_TRY(kr_graph_open(&shape->graph));
  KR_TRY(s->record(s->user, key, shape->graph, shape->tensors));
  return kr_graph_plan(shape->graph, s->ctx, s->flags);
}

int32_t kr_shapes_find(kr_shapes *s, const int64_t *key, kr_shape_graph **found) {
  kr_shape_graph *oldest = s->items;
  for (int i = 0; i < s->most; i++) {
    kr_shape_graph *own = *found = &s->items[i];
    if (own->graph && memcmp(own->key, key, sizeof own->key) == 0) return KRAIT_OK;
    if (own->last_use < oldest->last_use) oldest = own;
  }
  KR_TRY(kr_shapes_finish(s));
  kr_shapes_drop(oldest);
  *found = oldest;
  const int32_t status = plan_graph_shapes(s, key, oldest);
  if (status < 0) kr_shapes_drop(oldest);
  return status;
}

static int32_t get_memory(kr_shapes *s, uint64_t bytes) {
  if (bytes <= s->memory_bytes) return KRAIT_OK;
  for (int i = 0; i < s->most; i++) kr_runner_close(&s->items[i].runner);
  free_memory(s);
  if (s->ctx->cuda) KR_TRY(kr_cuda_alloc(s->ctx->cuda, bytes, (void **)&s->memory));
  else s->memory = kr_alloc(bytes);
  KR_CHECK(s->memory, KRAIT_ERR_NO_MEMORY, "no memory for a graph: %llu bytes", (unsigned long long)bytes);
  s->memory_bytes = bytes;
  return KRAIT_OK;
}

/* ---- runs ---- */

static const kr_storage *graph_shapes_storage_of(const kr_shape_graph *shape, int i) {
  return shape->tensors[i] ? KR_STORAGE(shape->graph, KR_PART(shape->graph, shape->tensors[i])->storage) : NULL;
}

/* On a GPU: the end of the first n tensors in the block. */
static uint64_t graph_shapes_end_of(const kr_shapes *s, const kr_shape_graph *shape, int n) {
  uint64_t end = 0;
  for (int i = 0; i < n && s->ctx->cuda; i++)
    if (shape->tensors[i])
      end += (graph_shapes_storage_of(shape, i)->bytes + KR_GRAPH_LINE - 1) / KR_GRAPH_LINE * KR_GRAPH_LINE;
  return end;
}

uint64_t kr_shapes_bytes(const kr_shapes *s, const kr_shape_graph *shape) {
  return graph_shapes_end_of(s, shape, KR_SHAPE_TENSORS) + kr_graph_bytes(shape->graph);
}

int32_t kr_shapes_ready(kr_shapes *s, kr_shape_graph *shape, float *const *here) {
  const uint64_t own = graph_shapes_end_of(s, shape, KR_SHAPE_TENSORS);
  const int has_states = shape->graph->state_bytes != 0; /* which are in memory that it does not share */
  KR_TRY(kr_shapes_finish(s));
  KR_TRY(get_memory(s, own + (has_states ? 0 : kr_graph_bytes(shape->graph))));
  shape->last_use = ++s->n_uses;
  const int is_new = !shape->runner;
  if (is_new && has_states) KR_TRY(kr_runner_open(shape->graph, &shape->runner));
  if (is_new && !has_states)
    KR_TRY(kr_runner_open_in(shape->graph, s->memory + own, s->memory_bytes - own, &shape->runner));
  for (int i = 0; i < KR_SHAPE_TENSORS && (is_new || !s->ctx->cuda); i++)
    if (shape->tensors[i])
      KR_TRY(kr_runner_bind(shape->runner, shape->tensors[i],
                            s->ctx->cuda ? s->memory + graph_shapes_end_of(s, shape, i) : (char *)here[i]));
  return KRAIT_OK;
}

/* Copies inputs to the device, or outputs back. */
static int32_t move(kr_shapes *s, const kr_shape_graph *shape, int32_t home) {
  for (int i = 0; i < KR_SHAPE_TENSORS; i++) {
    const kr_storage *of = graph_shapes_storage_of(shape, i);
    if (!of || of->home != home || !s->here[i]) continue;
    char *there = s->memory + graph_shapes_end_of(s, shape, i);
    KR_TRY(home == KR_HOME_INPUT ? kr_cuda_copy_in(s->ctx->cuda, there, s->here[i], of->bytes, s->stream)
                                 : kr_cuda_copy_out(s->ctx->cuda, s->here[i], there, of->bytes, s->stream));
  }
  return KRAIT_OK;
}

int32_t kr_shapes_run(kr_shapes *s, kr_shape_graph *shape, float *const *here) {
  const kr_cuda *cuda = s->ctx->cuda;
  KR_TRY(kr_shapes_ready(s, shape, here));
  if (!cuda) return kr_runner_run(shape->runner, NULL);
  memcpy(s->here, here, sizeof s->here);
  KR_TRY(move(s, shape, KR_HOME_INPUT));
  KR_TRY(kr_cuda_timer_mark(cuda, s->timer.from, s->stream));
  KR_TRY(kr_runner_run(shape->runner, s->stream));
  KR_TRY(kr_cuda_timer_mark(cuda, s->timer.to, s->stream));
  s->begun = shape;
  return KRAIT_OK;
}

int32_t kr_shapes_finish(kr_shapes *s) {
  const kr_shape_graph *shape = s->begun;
  double seconds = 0;
  if (!shape) return KRAIT_OK;
  s->begun = NULL;
  KR_TRY(kr_cuda_timer_read(s->ctx->cuda, &s->timer, &seconds));
  s->device_s += seconds;
  KR_TRY(move(s, shape, KR_HOME_OUTPUT));
  return kr_cuda_wait(s->ctx->cuda, s->stream);
}

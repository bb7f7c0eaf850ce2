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

void kr_shapes_close(kr_shapes *s) {
  for (int i = 0; i < s->most; i++) kr_shapes_drop(&s->items[i]);
  free_memory(s);
}

static int32_t plan(const kr_shapes *s, const int64_t *key, kr_shape_graph *shape) {
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
  kr_shapes_drop(oldest);
  *found = oldest;
  const int32_t status = plan(s, key, oldest);
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

int32_t kr_shapes_ready(kr_shapes *s, kr_shape_graph *shape, uint64_t own_bytes, char **memory, int *is_new) {
  const uint64_t own = (own_bytes + KR_GRAPH_LINE - 1) / KR_GRAPH_LINE * KR_GRAPH_LINE;
  const int has_states = shape->graph->state_bytes != 0; /* which live in memory that it does not share */
  KR_TRY(get_memory(s, own + (has_states ? 0 : kr_graph_bytes(shape->graph))));
  shape->last_use = ++s->n_uses;
  *memory = s->memory, *is_new = !shape->runner;
  if (shape->runner) return KRAIT_OK;
  if (has_states) return kr_runner_open(shape->graph, &shape->runner);
  return kr_runner_open_in(shape->graph, s->memory + own, s->memory_bytes - own, &shape->runner);
}

/* graph_shapes.h: graphs of one builder by shape, for runs whose sizes change: planned when a shape first comes, kept
 * while others come, and in turns in one block of memory, of which the caller may have the beginning. */
#ifndef KR_GRAPH_SHAPES_H
#define KR_GRAPH_SHAPES_H

#include "graph.h"

enum { KR_SHAPE_KEYS = 3, KR_SHAPE_TENSORS = 4, KR_MOST_SHAPES = 8 };

typedef struct kr_shape_graph {
  int64_t key[KR_SHAPE_KEYS], last_use;
  kr_graph *graph;
  kr_runner *runner;                 /* once it is ready; NULL again when the memory moves */
  kr_tensor tensors[KR_SHAPE_TENSORS]; /* the builder's, to be bound */
} kr_shape_graph;

/* Records the graph of a shape and names its tensors. States are lost when the memory grows. */
typedef int32_t kr_shape_record_fn(const void *user, const int64_t *key, kr_graph *g, kr_tensor *tensors);

typedef struct kr_shapes { /* the first four are given */
  const krait_ctx *ctx;
  kr_shape_record_fn *record;
  const void *user;
  int most; /* graphs at a time, up to KR_MOST_SHAPES */
  uint32_t flags; /* KR_PLAN_* */
  kr_shape_graph items[KR_MOST_SHAPES];
  char *memory;
  uint64_t memory_bytes;
  int64_t n_uses;
} kr_shapes;

void kr_shapes_close(kr_shapes *s);
/* Planned; the one that was not used for longest makes room. */
int32_t kr_shapes_find(kr_shapes *s, const int64_t *key, kr_shape_graph **found);
void kr_shapes_drop(kr_shape_graph *shape);
/* Ready to run; memory: so many bytes of the caller's own, before the graph's. is_new: its tensors are to be bound. */
int32_t kr_shapes_ready(kr_shapes *s, kr_shape_graph *shape, uint64_t own_bytes, char **memory, int *is_new);

#endif

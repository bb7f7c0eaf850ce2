/* graph_shapes.h: graphs of one builder for several shapes, for runs whose sizes change: planned when a shape first
 * occurs, cached, and sharing one block of memory in turns; their inputs and outputs are in the caller's memory, from
 * which they are copied to a GPU's block and back. */
#ifndef KR_GRAPH_SHAPES_H
#define KR_GRAPH_SHAPES_H

#include "cuda.h"
#include "graph.h"

enum { KR_SHAPE_KEYS = 3, KR_SHAPE_TENSORS = 4, KR_MOST_SHAPES = 8 };

typedef struct kr_shape_graph {
  int64_t key[KR_SHAPE_KEYS], last_use;
  kr_graph *graph;
  kr_runner *runner;                 /* when it is ready; NULL again when the memory moves */
  kr_tensor tensors[KR_SHAPE_TENSORS]; /* the builder's, each an input, an output, or 0 */
} kr_shape_graph;

/* Records the graph of a shape and sets its tensors. States are lost when the memory grows. */
typedef int32_t kr_shape_record_fn(const void *user, const int64_t *key, kr_graph *g, kr_tensor *tensors);

typedef struct kr_shapes { /* the first five are given */
  const krait_ctx *ctx;
  kr_shape_record_fn *record;
  const void *user;
  int most; /* number of cached graphs, up to KR_MOST_SHAPES */
  uint32_t flags; /* KR_PLAN_* */
  kr_shape_graph items[KR_MOST_SHAPES];
  char *memory;
  uint64_t memory_bytes;
  int64_t n_uses;
  void *stream; /* of a GPU */
  kr_cuda_timer timer;
  double device_s;       /* kernel time only: of all finished runs */
  kr_shape_graph *begun; /* not finished: its outputs go to `here` */
  float *here[KR_SHAPE_TENSORS];
} kr_shapes;

int32_t kr_shapes_open(kr_shapes *s);
void kr_shapes_close(kr_shapes *s);
/* Plans a shape; the least recently used one is evicted. */
int32_t kr_shapes_find(kr_shapes *s, const int64_t *key, kr_shape_graph **found);
void kr_shapes_drop(kr_shape_graph *shape);
uint64_t kr_shapes_bytes(const kr_shapes *s, const kr_shape_graph *shape); /* of the block, with states */
/* Makes its runner ready: on a CPU with these tensors, on a GPU with those in the block. */
int32_t kr_shapes_ready(kr_shapes *s, kr_shape_graph *shape, float *const *here);
/* here: the caller's tensors; NULL for an output that is not needed. On a CPU the run is complete on return; on a GPU
 * it has started, and outputs are available after kr_shapes_finish, which the next run, and anything else that needs
 * the block, calls first. */
int32_t kr_shapes_run(kr_shapes *s, kr_shape_graph *shape, float *const *here);
int32_t kr_shapes_finish(kr_shapes *s);

#endif

/* graph_parts.h: the parts of a graph, for the files of this folder and its tests. */
#ifndef KR_GRAPH_PARTS_H
#define KR_GRAPH_PARTS_H

#include "arena.h"
#include "graph.h"

enum { KR_HOME_TEMP, KR_HOME_INPUT, KR_HOME_OUTPUT, KR_HOME_WEIGHT, KR_HOME_STATE };
enum { KR_READ = KR_IN, KR_WRITE = KR_OUT };
enum { KR_GRAPH_LINE = 256 }; /* alignment of everything in an arena */

/* Memory: one for each tensor that is not a view of another. */
typedef struct kr_storage {
  const char *name;
  int32_t home, dtype;
  kr_dims dims;
  int64_t stride[4];
  uint64_t bytes;      /* from the first to the last element */
  void *data;          /* an address given while recording */
  int64_t source;      /* of a kept graph: the view's offset in the args of the call, or -1 */
  int32_t again;       /* gradients recompute it instead of storing it */
  int32_t is_wide;     /* its gradient is float32 */
  int32_t first, last; /* the plan: nodes that touch it; first > last: none */
  uint64_t at;         /* the plan: in the arena, or after it (states) */
} kr_storage;

typedef struct kr_part { /* a tensor: part of a storage */
  int32_t storage, dtype;
  kr_dims dims;
  int64_t stride[4], at_bytes;
} kr_part;

typedef struct kr_use {
  size_t offset; /* of the view in args */
  int32_t role;
  kr_tensor tensor;
} kr_use;

typedef struct kr_node {
  const char *name;
  const kr_op *op;
  unsigned char *args; /* views contain storage numbers, see kr_graph_view */
  kr_use *uses;
  int32_t n_uses;
  int32_t lane;         /* kr_graph_lane */
  int32_t dead;         /* the plan: nothing reads what it writes */
  uint32_t ahead;       /* the plan: KR_CALL_* (overlap.h) of this call in a recording */
  const kr_impl *impl;    /* the plan */
  uint64_t scratch_bytes;
  uint64_t scratch_at;
} kr_node;

struct kr_graph {
  kr_arena *arena;
  kr_list storages, parts, nodes; /* kr_storage, kr_part, kr_node; part 0 is not used */
  kr_list rewrites_off;           /* const char *: names, or "all" */
  kr_list slices;                 /* kr_graph *: of nodes of kr_graph_map_slices */
  krait_ctx *alone;               /* the context that these are planned for: one thread */
  int32_t lane;                   /* of the calls recorded now */
  int32_t status;
  const char *failure;
  int32_t planned;
  size_t lanes_from, lanes_to;    /* the plan: nodes of lanes 1 and 2, which run in parallel; none: both 0 */
  const krait_ctx *ctx; /* the plan's context; not needed by reference implementations */
  uint32_t flags;
  uint64_t arena_bytes, state_bytes;
  void *moved; /* the weights of KR_PLAN_CONSTANT on a GPU */
  const kr_cuda *moved_on;
};

#define KR_STORAGE(g, i) KR_AT((g)->storages, kr_storage, i)
#define KR_PART(g, i) KR_AT((g)->parts, kr_part, i)
#define KR_NODE(g, i) KR_AT((g)->nodes, kr_node, i)

/* Stores the first failure; the sentence names the part of the graph. */
#define kr_graph_fail(g, status, ...) (kr_graph_keep_error(__VA_ARGS__), kr_graph_set_error((g), (status)))

static inline const kr_cuda *kr_graph_cuda(const kr_graph *g) { return g->ctx ? g->ctx->cuda : NULL; }
static inline kr_view *kr_view_in(void *args, size_t offset) { return (kr_view *)((char *)args + offset); }
int64_t kr_dims_elements(kr_dims d);
kr_dims kr_dims_of(int n, const int64_t *size);
int kr_dims_same(kr_dims a, kr_dims b);
kr_tensor kr_graph_part(kr_graph *g, const kr_part *part); /* a new view */
/* A temp of its shape and type, with its memory order of dimensions, without gaps. */
kr_tensor kr_graph_temp_like(kr_graph *g, int32_t storage);
kr_tensor kr_graph_temp_as(kr_graph *g, int32_t dtype, int32_t storage); /* of another type */
kr_tensor kr_graph_whole(kr_graph *g, int32_t storage);
/* "(2,64,100)"; text holds at least 96 characters. */
const char *kr_dims_text(kr_dims d, char *text);
const char *kr_graph_name(const kr_graph *g, kr_tensor t); /* of its storage; "?" for a temp */

/* ---- boxes (graph_region.c): the elements of its storage that a tensor covers ---- */
typedef struct kr_box {
  int64_t from[4], to[4]; /* in the storage's dimensions; to is the last index. A superset if a view is not a box */
  int32_t exact;
} kr_box;
kr_box kr_box_of(const kr_graph *g, kr_tensor t);
int kr_boxes_meet(const kr_box *a, const kr_box *b);
int kr_boxes_equal(const kr_box *a, const kr_box *b);
/* The same elements as t's, in another storage with the same dimensions; 0 if the strides do not allow it. */
kr_tensor kr_graph_moved(kr_graph *g, kr_tensor t, int32_t storage);

/* Graphs of slices (graph_map_slices.c): planned as g is, and closed with it; that of a node, or NULL. */
int32_t kr_graph_plan_slices(kr_graph *g);
void kr_graph_close_slices(kr_graph *g);
const kr_graph *kr_graph_of_slices(const kr_node *node);

/* KR_PLAN_CONSTANT (graph_constants.c). */
int32_t kr_graph_compute_constants(kr_graph *g, const krait_ctx *ctx);

/* Checks the plan by brute force: the error names two tensors that are live at the same time in the same memory. */
int32_t kr_graph_check_plan(const kr_graph *g);

#endif

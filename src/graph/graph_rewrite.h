/* graph_rewrite.h: changes to a recorded graph before it is planned: several calls become one fused call, or a call
 * becomes one that a fast implementation accepts. The calls that a rewrite replaces are its reference: with the rewrite
 * disabled the graph computes the same. */
#ifndef KR_GRAPH_REWRITE_H
#define KR_GRAPH_REWRITE_H

#include "graph_parts.h"

typedef struct kr_rewrite {
  const char *name; /* as in kr_graph_rewrite_off */
  /* Examines the calls from node n on; 1: it changed some. ctx may be NULL: reference implementations. */
  int (*apply)(kr_graph *g, const krait_ctx *ctx, size_t n);
} kr_rewrite;

/* Applies the whole list at every node, each rewrite until nothing changes. */
int32_t kr_graph_rewrite(kr_graph *g, const krait_ctx *ctx, const kr_rewrite *list, size_t n_list);
/* For kr_graph_plan: those of graph_rewrite.c, and between them the ops' (kr_op.rewrites), in the order of ops.def. */
int32_t kr_graph_rewrite_all(kr_graph *g, const krait_ctx *ctx);
/* An op's rewrite on the calls n and n + 1 (graph_rewrite_ops.c). */
int kr_rewrite_apply(const kr_op_rewrite *rewrite, kr_graph *g, const krait_ctx *ctx, size_t n);

/* ---- for rewrites ---- */
kr_tensor kr_node_tensor(const kr_node *node, size_t offset); /* 0: absent */
/* Replaces a tensor in a call, or removes it. */
void kr_node_set(kr_graph *g, kr_node *node, size_t offset, int32_t role, kr_tensor t);
/* The only node that reads the storage of t, if it reads nothing but t from it, nothing else writes it, and it is a
 * temp; -1: there is no such node. */
int32_t kr_graph_only_reader(const kr_graph *g, size_t writer, kr_tensor t);
/* The same elements in the same order: a square matrix is not its transpose. */
int kr_graph_same_part(const kr_graph *g, kr_tensor a, kr_tensor b);
/* Moves the last recorded call before node n. */
void kr_graph_move_last(kr_graph *g, size_t n);
void kr_graph_drop(kr_graph *g, size_t n);
/* Calls that read t, or part of it, now read `other`, which has the same dimensions and values, if its strides allow
 * that. */
void kr_graph_read_instead(kr_graph *g, kr_tensor t, kr_tensor other);

#endif

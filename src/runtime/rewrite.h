/* rewrite.h: rules by which two calls of a graph that follow each other become others with the same result. A rule
 * stands in the folder of the op that it makes (kr_op.rewrites) and knows its own args and those of the calls that it
 * replaces; of the graph it knows what is here, which src/graph implements. */
#ifndef KR_REWRITE_H
#define KR_REWRITE_H

#include <stddef.h>

#include "op.h"

typedef int32_t kr_tensor; /* of a graph; 0: none; as a view it is absent */

typedef struct kr_dims {
  int32_t n;
  int64_t size[4];
} kr_dims;
#define KR_DIMS(...) ((kr_dims){sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), {__VA_ARGS__}})

/* Two calls, 0 and 1. Their args have sizes and fields; their tensors have names: kr_tensor. */
typedef struct kr_rewriter {
  struct kr_graph *graph;
  size_t node;            /* of call 0 in the graph */
  const krait_ctx *ctx;
  const kr_op *op[2];
  const void *args[2];
  const struct kr_rewriter_fns *can;
} kr_rewriter;

typedef struct kr_rewriter_fns {
  /* At this offset of a call's args; 0: it is absent. */
  kr_tensor (*tensor)(const kr_rewriter *w, int call, size_t offset);
  /* For the args of a call to be made. */
  kr_view (*view)(const kr_rewriter *w, kr_tensor t);
  kr_dims (*dims)(const kr_rewriter *w, kr_tensor t);
  int32_t (*dtype)(const kr_rewriter *w, kr_tensor t);
  int (*share)(const kr_rewriter *w, kr_tensor a, kr_tensor b); /* whether they are parts of the same memory */
  /* Whether t, which call 0 writes, is an intermediate that call 1 reads, whole, and nothing else does. */
  int (*passes)(const kr_rewriter *w, kr_tensor t);
  /* Whether t, which call 0 writes, is an intermediate whose memory nothing else uses but call 1, which may read parts
   * of it. */
  int (*stays)(const kr_rewriter *w, kr_tensor t);
  int (*same)(const kr_rewriter *w, kr_tensor a, kr_tensor b); /* the same elements in the same order */
  kr_tensor (*slice)(const kr_rewriter *w, kr_tensor t, int dim, int64_t from, int64_t n);
  int (*can_reshape)(const kr_rewriter *w, kr_tensor t, kr_dims dims);
  kr_tensor (*reshape)(const kr_rewriter *w, kr_tensor t, kr_dims dims);
  kr_tensor (*permute)(const kr_rewriter *w, kr_tensor t, const int *order);
  /* The column of the matrix at which x (rows, columns, 1) starts, if it is some of its columns; else -1. */
  int64_t (*columns_from)(const kr_rewriter *w, kr_tensor x, kr_tensor matrix);
  /* Whether a GPU implementation accepts a call; its args have views of tensors. */
  int (*accepts)(const kr_rewriter *w, const kr_op *op, const void *args);
  /* What a rule may do, once it is certain: change a tensor of a call (0: remove it), or put one call in the place of
   * both, under the name of one of them. Both return 1 if that succeeded. */
  int (*set)(const kr_rewriter *w, int call, size_t offset, int32_t role, kr_tensor t);
  int (*replace)(const kr_rewriter *w, int name_of, const kr_op *op, const void *args);
} kr_rewriter_fns;

#define KR_CALL_TENSOR(w, call, op, field) ((w)->can->tensor((w), (call), offsetof(kr_##op##_args, field)))
#define KR_CALL_VIEW(w, call, op, field) ((w)->can->view((w), KR_CALL_TENSOR(w, call, op, field)))
static inline int kr_rewrite_is_empty(const kr_rewriter *w, kr_tensor t) {
  const kr_dims d = w->can->dims(w, t);
  for (int i = 0; i < d.n; i++)
    if (!d.size[i]) return 1;
  return 0;
}

typedef struct kr_op_rewrite {
  const char *name;                    /* as in kr_graph_rewrite_off; NULL ends a list */
  int (*apply)(const kr_rewriter *w);  /* 1: it changed the calls */
} kr_op_rewrite;

#endif

/* graph_kernel_cache.h: ops whose implementation is a graph: planned once for all args that differ only in addresses,
 * and cached in the context. */
#ifndef KR_GRAPH_KERNEL_CACHE_H
#define KR_GRAPH_KERNEL_CACHE_H

#include "graph.h"

/* Records the graph of a call: its tensors by kr_graph_argument. */
typedef void kr_graph_record(kr_graph *g, const void *args, int32_t dtype);
typedef struct kr_graph_impl {
  const kr_op *op;
  kr_graph_record *record;
  int32_t dtype;  /* passed to record */
  uint32_t flags; /* KR_PLAN_* */
} kr_graph_impl;

/* A view of the args as input or output of the graph; 0: it is absent. */
kr_tensor kr_graph_argument(kr_graph *g, const void *args, const kr_view *view, int32_t role, const char *name,
                            kr_dims dims);
/* In a kr_graph_record with its g and args a: kr_tensor FIELD, an input of these sizes. */
#define KR_GRAPH_INPUT(field, ...) \
  const kr_tensor field = kr_graph_argument(g, a, &a->field, KR_IN, #field, KR_DIMS(__VA_ARGS__))
/* An input of a gradient: if its elements share memory through a stride of 0, it is a copy, so that each gets its own
 * gradient (not for complex ones). */
kr_tensor kr_graph_own_argument(kr_graph *g, const void *args, const kr_view *view, const char *name, kr_dims dims);
/* In the graph of a gradient, after kr_graph_backward: where `view` is given, a tensor (B,L,columns) that the forward
 * call stored, it is read instead of t being recomputed. */
void kr_graph_use_kept(kr_graph *g, const void *args, const kr_view *view, const char *name, kr_tensor t);
/* The implementation's run and scratch_bytes. */
int32_t kr_graph_impl_run(const kr_graph_impl *impl, const krait_ctx *ctx, const void *args);
uint64_t kr_graph_impl_scratch(const kr_graph_impl *impl, const krait_ctx *ctx, const void *args);

/* kr_NAME and kr_NAME_scratch, an implementation of kr_op_OP_OF (op_list.h). */
#define KR_GRAPH_IMPL(name, op_of, record, type, flags_of)                                                        \
  static const kr_graph_impl name##_made = {&kr_op_##op_of, record, type, flags_of};                               \
  int32_t kr_##name(const krait_ctx *ctx, const void *args) { return kr_graph_impl_run(&name##_made, ctx, args); } \
  uint64_t kr_##name##_scratch(const krait_ctx *ctx, const void *args) {                                         \
    return kr_graph_impl_scratch(&name##_made, ctx, args);                                                         \
  }

#endif

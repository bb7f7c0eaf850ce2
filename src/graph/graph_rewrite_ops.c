/* graph_rewrite_ops.c: what the rewrites of ops (rewrite.h) may see and do of a graph. They are for a decode step on a
 * GPU, and apply if a GPU implementation of the op accepts the call: few rows. */
#include <string.h>

#include "graph_rewrite.h"
#include "op_list.h"

/* ---- what they see ---- */

static kr_node *node_of_call(const kr_rewriter *w, int call) { return KR_NODE(w->graph, w->node + (size_t)call); }

static kr_tensor tensor_of_call(const kr_rewriter *w, int call, size_t offset) {
  return kr_node_tensor(node_of_call(w, call), offset);
}

static kr_view view_for_rule(const kr_rewriter *w, kr_tensor t) { return kr_graph_view(w->graph, t); }
static kr_dims dims_for_rule(const kr_rewriter *w, kr_tensor t) { return kr_graph_dims(w->graph, t); }
static int32_t dtype_for_rule(const kr_rewriter *w, kr_tensor t) { return kr_graph_dtype(w->graph, t); }

static int share_storage(const kr_rewriter *w, kr_tensor a, kr_tensor b) {
  return KR_PART(w->graph, a)->storage == KR_PART(w->graph, b)->storage;
}

static int passes_between(const kr_rewriter *w, kr_tensor t) {
  return kr_graph_only_reader(w->graph, w->node, t) == (int32_t)w->node + 1;
}

static int stays_between(const kr_rewriter *w, kr_tensor t) {
  const int32_t storage = KR_PART(w->graph, t)->storage;
  if (KR_STORAGE(w->graph, storage)->home != KR_HOME_TEMP) return 0;
  for (size_t n = 0; n < w->graph->nodes.n; n++)
    for (int32_t i = 0; i < KR_NODE(w->graph, n)->n_uses; i++) {
      const kr_use *u = &KR_NODE(w->graph, n)->uses[i];
      if (KR_PART(w->graph, u->tensor)->storage != storage) continue;
      if (n == w->node ? u->role != KR_OUT : n != w->node + 1 || u->role != KR_IN) return 0;
    }
  return 1;
}
static int same_for_rule(const kr_rewriter *w, kr_tensor a, kr_tensor b) { return kr_graph_same_part(w->graph, a, b); }
static kr_tensor slice_for_rule(const kr_rewriter *w, kr_tensor t, int dim, int64_t from, int64_t n) {
  return kr_graph_slice(w->graph, t, dim, from, n);
}

static int can_reshape_for_rule(const kr_rewriter *w, kr_tensor t, kr_dims dims) {
  return kr_graph_can_reshape(w->graph, t, dims);
}
static kr_tensor reshape_for_rule(const kr_rewriter *w, kr_tensor t, kr_dims dims) {
  return kr_graph_reshape(w->graph, t, dims);
}
static kr_tensor permute_for_rule(const kr_rewriter *w, kr_tensor t, const int *order) {
  return kr_graph_permute(w->graph, t, order);
}

static int64_t columns_from(const kr_rewriter *w, kr_tensor x, kr_tensor matrix) {
  const kr_part *part = KR_PART(w->graph, x), *of = KR_PART(w->graph, matrix);
  const int64_t bytes = (int64_t)krait_dtype_bytes(of->dtype), at = part->at_bytes - of->at_bytes, from = at / bytes;
  if (part->storage != of->storage || part->dims.size[0] != of->dims.size[0] || part->dims.size[2] != 1 || at < 0 ||
      at % bytes || of->stride[1] != 1 || (part->dims.size[1] > 1 && part->stride[1] != 1) ||
      (part->dims.size[0] > 1 && part->stride[0] != of->stride[0]))
    return -1;
  return from + part->dims.size[1] <= of->dims.size[1] ? from : -1;
}

/* The call with its sizes, as an implementation's refuse function needs it; recording uses tensor names instead. */
static int accepts_on_gpu(const kr_rewriter *w, const kr_op *op, const void *call) {
  _Alignas(16) unsigned char args[1024];
  if (op->args_bytes > sizeof args) return 0;
  memcpy(args, call, op->args_bytes);
  ((kr_call *)args)->size = op->args_bytes;
  for (int i = 0; i < op->sig->n_tensors; i++) kr_sig_view(op->sig, args, i)->reserved = 0;
  const kr_impl *impl = kr_op_resolve(op, w->ctx, args, NULL);
  return impl && !(impl->needs & KRAIT_CAP_CPU);
}

/* ---- what they do ---- */

static int set_in_call(const kr_rewriter *w, int call, size_t offset, int32_t role, kr_tensor t) {
  kr_node_set(w->graph, node_of_call(w, call), offset, role, t);
  return 1;
}

static int replace_both(const kr_rewriter *w, int name_of, const kr_op *op, const void *call) {
  kr_graph *g = w->graph;
  kr_graph_call(g, node_of_call(w, name_of)->name, op, call);
  if (kr_graph_status(g) < 0) return 0;
  kr_graph_move_last(g, w->node);
  kr_graph_drop(g, w->node + 2);
  kr_graph_drop(g, w->node + 1);
  return 1;
}

static const kr_rewriter_fns fns = {.tensor = tensor_of_call,
                                    .view = view_for_rule,
                                    .dims = dims_for_rule,
                                    .dtype = dtype_for_rule,
                                    .share = share_storage,
                                    .passes = passes_between,
                                    .stays = stays_between,
                                    .same = same_for_rule,
                                    .slice = slice_for_rule,
                                    .can_reshape = can_reshape_for_rule,
                                    .reshape = reshape_for_rule,
                                    .permute = permute_for_rule,
                                    .columns_from = columns_from,
                                    .accepts = accepts_on_gpu,
                                    .set = set_in_call,
                                    .replace = replace_both};

int kr_rewrite_apply(const kr_op_rewrite *rewrite, kr_graph *g, const krait_ctx *ctx, size_t n) {
  if (!ctx || !ctx->cuda || n + 1 >= g->nodes.n) return 0;
  const kr_node *first = KR_NODE(g, n), *second = KR_NODE(g, n + 1);
  const kr_rewriter w = {.graph = g,
                         .node = n,
                         .ctx = ctx,
                         .op = {first->op, second->op},
                         .args = {first->args, second->args},
                         .can = &fns};
  return rewrite->apply(&w);
}

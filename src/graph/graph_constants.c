/* graph_constants.c: constant folding: calls that depend only on given weights run on the host while the graph is
 * planned, and their outputs become weights. On a GPU those that are still read are copied there, in one block. */
#include <string.h>

#include "alloc.h"
#include "graph_parts.h"
#include "graph_rewrite.h"
#include "op_list.h"
#include "status.h"

static kr_storage *graph_constants_storage_of(const kr_graph *g, const kr_use *u) {
  return KR_STORAGE(g, KR_PART(g, u->tensor)->storage);
}

/* Whether all writers of a storage are constant calls. */
static int made_by_constants(const kr_graph *g, const char *constant, const kr_storage *s) {
  for (size_t n = 0; n < g->nodes.n; n++)
    for (int32_t i = 0; i < KR_NODE(g, n)->n_uses; i++) {
      const kr_use *u = &KR_NODE(g, n)->uses[i];
      if (u->role & KR_WRITE && graph_constants_storage_of(g, u) == s && !constant[n]) return 0;
    }
  return 1;
}

static int stays_constant(const kr_graph *g, const char *constant, size_t n) {
  const kr_node *node = KR_NODE(g, n);
  for (int32_t i = 0; i < node->n_uses; i++) {
    const kr_storage *s = graph_constants_storage_of(g, &node->uses[i]);
    const int is_given = s->home == KR_HOME_WEIGHT && s->data && node->uses[i].role == KR_READ;
    if (!is_given && (s->home != KR_HOME_TEMP || !made_by_constants(g, constant, s))) return 0;
  }
  return 1;
}

/* A temp becomes a weight with its own memory. */
static int32_t give_memory(kr_graph *g, kr_storage *s) {
  if (s->home == KR_HOME_WEIGHT) return KRAIT_OK;
  char *block = kr_arena_try(g->arena, s->bytes + KR_GRAPH_LINE);
  KR_CHECK(block, KRAIT_ERR_NO_MEMORY, "no memory for a graph");
  s->data = block + (KR_GRAPH_LINE - (uintptr_t)block % KR_GRAPH_LINE) % KR_GRAPH_LINE;
  s->home = KR_HOME_WEIGHT;
  return KRAIT_OK;
}

static int32_t run_constant_node(kr_graph *g, const krait_ctx *ctx, const kr_node *node) {
  kr_call *call = (kr_call *)node->args;
  int32_t status = KRAIT_OK;
  for (int32_t i = 0; i < node->n_uses; i++) {
    kr_storage *s = graph_constants_storage_of(g, &node->uses[i]);
    KR_TRY(give_memory(g, s));
    kr_view_in(node->args, node->uses[i].offset)->data = (char *)s->data + KR_PART(g, node->uses[i].tensor)->at_bytes;
  }
  const kr_impl *impl = kr_op_resolve(node->op, ctx, node->args, &status);
  KR_TRY(status);
  call->scratch_bytes = impl->scratch_bytes ? impl->scratch_bytes(ctx, node->args) : 0;
  call->scratch = call->scratch_bytes ? kr_alloc(call->scratch_bytes) : NULL;
  KR_CHECK(call->scratch || !call->scratch_bytes, KRAIT_ERR_NO_MEMORY, "no memory for a graph");
  status = impl->run(ctx, node->args);
  kr_free(call->scratch);
  return status;
}

/* A copy of a constant (float32) with its dimensions in this memory order; `row` is the stride of the second to last
 * one. */
static kr_tensor laid_out(kr_graph *g, kr_tensor t, const int *order, int64_t row) {
  const kr_part p = *KR_PART(g, t);
  kr_dims turned = {.n = p.dims.n};
  int back[4] = {0};
  for (int i = 0; i < turned.n; i++) turned.size[i] = p.dims.size[order[i]], back[order[i]] = i;
  const int last = turned.n - 1;
  const int64_t used = turned.size[last];
  turned.size[last] = row;
  float *to = kr_arena_try(g->arena, (size_t)kr_dims_elements(turned) * sizeof *to + KR_GRAPH_LINE);
  if (!to) return kr_graph_fail(g, KRAIT_ERR_NO_MEMORY, "no memory for a graph"), 0;
  to = (float *)((char *)to + (KR_GRAPH_LINE - (uintptr_t)to % KR_GRAPH_LINE) % KR_GRAPH_LINE);
  const kr_storage *s = KR_STORAGE(g, p.storage);
  const kr_tensor all = kr_graph_weight(g, s->name, KRAIT_F32, turned, to),
                  made = kr_graph_permute(g, kr_graph_slice(g, all, last, 0, used), back);
  const kr_part out = *KR_PART(g, made);
  const float *from = (const float *)((const char *)KR_STORAGE(g, p.storage)->data + p.at_bytes);
  for (int64_t k = 0; k < kr_dims_elements(p.dims); k++) {
    int64_t rest = k, read = 0, write = 0;
    for (int i = p.dims.n - 1; i >= 0; rest /= p.dims.size[i--])
      read += rest % p.dims.size[i] * p.stride[i], write += rest % p.dims.size[i] * out.stride[i];
    to[write] = from[read];
  }
  return made;
}

static int is_constant(const kr_graph *g, kr_tensor t, int n_dims) {
  const kr_part *p = t ? KR_PART(g, t) : NULL;
  return p && KR_STORAGE(g, p->storage)->home == KR_HOME_WEIGHT && KR_STORAGE(g, p->storage)->data &&
         p->dtype == KRAIT_F32 && p->dims.n == n_dims;
}

/* Factors of products with many rows: outputs contiguous, rows an odd number of cache lines apart; and filter taps:
 * channels contiguous. This is the layout of the CPU's implementations, so that a run need not transpose or pack them.
 */
static int32_t lay_out_factors(kr_graph *g) {
  enum { LINE = 16 };
  for (size_t n = 0; n < g->nodes.n && kr_graph_status(g) >= 0; n++) {
    const kr_node *node = KR_NODE(g, n);
    const int is_product = node->op == &kr_op_gemm, is_filter = node->op == &kr_op_depthwise_conv;
    const size_t at = is_product ? offsetof(kr_gemm_args, Bmat) : offsetof(kr_depthwise_conv_args, weight);
    if (!is_product && !is_filter) continue;
    const kr_tensor t = kr_node_tensor(node, at);
    if (!is_constant(g, t, is_product ? 2 : 3)) continue;
    const int64_t last = KR_PART(g, t)->dims.size[is_product ? 1 : 0], lines = (last + LINE - 1) / LINE;
    if (is_product && ((const kr_gemm_args *)node->args)->M <= LINE) continue;
    const kr_tensor made = is_product ? laid_out(g, t, (const int[]){0, 1}, (lines | 1) * LINE)
                                      : laid_out(g, t, (const int[]){1, 2, 0}, last);
    kr_node_set(g, KR_NODE(g, n), at, KR_IN, made);
  }
  return kr_graph_status(g);
}

static int32_t run_constants(kr_graph *g, const krait_ctx *ctx) {
  char *constant = kr_arena_try(g->arena, g->nodes.n + 1);
  if (!constant) return kr_graph_fail(g, KRAIT_ERR_NO_MEMORY, "no memory for a graph");
  memset(constant, 1, g->nodes.n);
  for (int changed = 1; changed;) {
    changed = 0;
    for (size_t n = 0; n < g->nodes.n; n++)
      if (constant[n] && !stays_constant(g, constant, n)) constant[n] = 0, changed = 1;
  }
  for (size_t n = 0, at = 0; at < g->nodes.n; n++) {
    if (!constant[n]) {
      at++;
      continue;
    }
    const int32_t status = run_constant_node(g, ctx, KR_NODE(g, at));
    if (status < 0) return kr_graph_set_error(g, status);
    kr_graph_drop(g, at);
  }
  return KRAIT_OK;
}

/* ---- on a GPU ---- */

static uint64_t lines_of(uint64_t bytes) { return (bytes + KR_GRAPH_LINE - 1) / KR_GRAPH_LINE * KR_GRAPH_LINE; }

/* Marks the weights that a call reads, and returns their bytes. */
static uint64_t find_read(const kr_graph *g, char *read) {
  uint64_t bytes = 0;
  for (size_t n = 0; n < g->nodes.n; n++)
    for (int32_t i = 0; i < KR_NODE(g, n)->n_uses; i++) {
      const int32_t own = KR_PART(g, KR_NODE(g, n)->uses[i].tensor)->storage;
      const kr_storage *s = KR_STORAGE(g, own);
      if (s->home != KR_HOME_WEIGHT || !s->data || read[own]) continue;
      read[own] = 1, bytes += lines_of(s->bytes);
    }
  return bytes;
}

static int32_t move_weights(kr_graph *g, const kr_cuda *cuda) {
  char *read = kr_arena_alloc(g->arena, g->storages.n + 1);
  KR_TRY(kr_graph_status(g));
  const uint64_t bytes = find_read(g, read);
  char *at = NULL;
  if (!bytes) return KRAIT_OK;
  KR_TRY(kr_cuda_alloc(cuda, bytes, &g->moved));
  g->moved_on = cuda, at = g->moved;
  for (size_t i = 0; i < g->storages.n; i++) {
    kr_storage *s = KR_STORAGE(g, i);
    if (!read[i]) continue;
    KR_TRY(kr_cuda_copy_in(cuda, at, s->data, s->bytes, NULL));
    s->data = at, at += lines_of(s->bytes);
  }
  return kr_cuda_wait(cuda, NULL);
}

/* The same thread pool; data that calls attach to their context are freed with this one. */
static int32_t compute_for_device(kr_graph *g, const krait_ctx *ctx) {
  krait_ctx host = {
      .caps = krait_cpu_caps(), .device = KRAIT_DEVICE_CPU, .fallback = ctx->fallback, .pool = ctx->pool};
  int32_t status = run_constants(g, &host);
  kr_kept *kept = atomic_load(&host.graphs);
  if (kept) kept->close(kept);
  if (status >= 0) status = move_weights(g, ctx->cuda);
  return status < 0 ? kr_graph_set_error(g, status) : status;
}

int32_t kr_graph_compute_constants(kr_graph *g, const krait_ctx *ctx) {
  if (ctx->cuda) return compute_for_device(g, ctx);
  KR_TRY(run_constants(g, ctx));
  return lay_out_factors(g);
}

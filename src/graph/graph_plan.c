/* graph_plan.c: from a recorded graph to one that can run: nodes that nothing needs are dropped, every op's row is
 * chosen, and each tensor between two nodes gets its offset in one arena, as low as the tensors that are live at the
 * same time allow: the largest first, or those that live beyond adjacent calls before the others, whichever takes less
 * memory. */
#include <stdlib.h>
#include <string.h>

#include "overlap.h"
#include "graph_rewrite.h"
#include "op_list.h"
#include "status.h"

static uint64_t graph_plan_round_up(uint64_t bytes) {
  return (bytes + KR_GRAPH_LINE - 1) / KR_GRAPH_LINE * KR_GRAPH_LINE;
}

/* ---- liveness ---- */

/* Backwards: a node is needed if it writes an output of the graph or something that a needed node reads later. */
static int32_t drop_dead_nodes(kr_graph *g) {
  char *read = kr_arena_alloc(g->arena, g->storages.n + 1);
  if (kr_arena_failed(g->arena)) return kr_graph_status(g);
  for (size_t n = g->nodes.n; n-- > 0;) {
    kr_node *node = KR_NODE(g, n);
    node->dead = 1;
    for (int32_t i = 0; i < node->n_uses; i++) {
      const int32_t storage = KR_PART(g, node->uses[i].tensor)->storage, home = KR_STORAGE(g, storage)->home;
      if (node->uses[i].role & KR_WRITE && (home != KR_HOME_TEMP || read[storage])) node->dead = 0;
    }
    for (int32_t i = 0; i < node->n_uses && !node->dead; i++)
      if (node->uses[i].role & KR_READ) read[KR_PART(g, node->uses[i].tensor)->storage] = 1;
  }
  return KRAIT_OK;
}

/* First and last node of every storage; reading a temp before it is written is an error of the builder. */
static int32_t find_lives(kr_graph *g) {
  for (size_t i = 0; i < g->storages.n; i++) KR_STORAGE(g, i)->first = INT32_MAX, KR_STORAGE(g, i)->last = -1;
  for (size_t n = 0; n < g->nodes.n; n++) {
    const kr_node *node = KR_NODE(g, n);
    for (int32_t i = 0; i < node->n_uses && !node->dead; i++) {
      kr_storage *s = KR_STORAGE(g, KR_PART(g, node->uses[i].tensor)->storage);
      if (s->home == KR_HOME_TEMP && s->last < 0 && node->uses[i].role & KR_READ)
        return kr_graph_fail(g, KRAIT_ERR_ARGUMENT, "graph: node %s (%s) reads tensor %s, which no earlier node writes",
                             node->name, node->op->name, kr_graph_name(g, node->uses[i].tensor));
      if (s->first > (int32_t)n) s->first = (int32_t)n;
      s->last = (int32_t)n;
    }
  }
  return KRAIT_OK;
}

/* ---- rows ---- */

static int32_t choose_impl(kr_graph *g, kr_node *node) {
  int32_t status = KRAIT_OK;
  if (g->flags & KR_PLAN_TF32 && node->op == &kr_op_gemm) ((kr_call *)node->args)->flags |= KRAIT_GEMM_TF32;
  node->impl = g->flags & KR_PLAN_REFERENCE ? &node->op->impls[node->op->n_impls - 1]
                                           : kr_op_resolve(node->op, g->ctx, node->args, &status);
  if (!node->impl) {
    const char *why = kr_arena_print(g->arena, "%s", krait_error_detail());
    return kr_graph_fail(g, status, "graph: node %s: %s", node->name, why);
  }
  node->scratch_bytes = node->impl->scratch_bytes ? node->impl->scratch_bytes(g->ctx, node->args) : 0;
  return KRAIT_OK;
}

/* ---- kernels that start while the previous one still runs ---- */

static int class_at(const kr_sig *sig, size_t view) {
  for (int32_t i = 0; i < sig->n_tensors; i++)
    if (sig->tensors[i].offset == view) return sig->tensors[i].tensor_class;
  return KR_CLASS_ACTIVATION;
}

/* Indices are small and keep their memory to the end: calls timed by themselves (kr_runner_profile_by_kernel) read
 * those of the run before, not what another tensor has left in their place. */
static void keep_indices(kr_graph *g) {
  for (size_t n = 0; n < g->nodes.n; n++) {
    const kr_node *node = KR_NODE(g, n);
    for (int32_t i = 0; i < node->n_uses && !node->dead; i++) {
      kr_storage *s = KR_STORAGE(g, KR_PART(g, node->uses[i].tensor)->storage);
      if (s->home == KR_HOME_TEMP && class_at(node->op->sig, node->uses[i].offset) == KR_CLASS_INDEX)
        s->first = 0, s->last = (int32_t)g->nodes.n - 1;
    }
  }
}

/* Per storage: whether any node writes it, and whether an earlier node does. */
static uint32_t ahead_of(const kr_graph *g, const kr_node *node, const char *written, const char *now) {
  uint32_t ahead = KR_CALL_PDL | KR_CALL_STATE_PDL;
  if (node->dead || !node->op->takes_pdl || node->lane) return 0;
  for (int32_t i = 0; i < node->n_uses; i++) {
    const int32_t storage = KR_PART(g, node->uses[i].tensor)->storage,
                  kind = class_at(node->op->sig, node->uses[i].offset);
    if (kind == KR_CLASS_PARAMETER && written[storage]) return 0;
    if ((kind == KR_CLASS_STATE || kind == KR_CLASS_INDEX) && now[storage]) ahead &= ~KR_CALL_STATE_PDL;
  }
  return ahead;
}

static void note_written(const kr_graph *g, const kr_node *node, char *written) {
  for (int32_t i = 0; i < node->n_uses && !node->dead; i++)
    if (node->uses[i].role & KR_WRITE) written[KR_PART(g, node->uses[i].tensor)->storage] = 1;
}

static int32_t find_ahead(kr_graph *g) {
  char *written = kr_arena_alloc(g->arena, g->storages.n + 1), *now = kr_arena_alloc(g->arena, g->storages.n + 1);
  if (kr_arena_failed(g->arena)) return kr_graph_status(g);
  for (size_t n = 0; n < g->nodes.n; n++) note_written(g, KR_NODE(g, n), written);
  for (size_t n = 0; n < g->nodes.n; n++) {
    KR_NODE(g, n)->ahead = n && n == g->lanes_to ? 0 : ahead_of(g, KR_NODE(g, n), written, now);
    note_written(g, KR_NODE(g, n), now);
  }
  return KRAIT_OK;
}

/* ---- lanes ---- */

/* Whether a storage is written in one lane and used in the other. */
static int lanes_meet(const kr_graph *g, size_t from, size_t to, char *touched) {
  enum { WRITES = 4 };
  for (size_t n = from; n < to; n++) {
    const kr_node *node = KR_NODE(g, n);
    for (int32_t i = 0; i < node->n_uses && !node->dead; i++) {
      char *of = &touched[KR_PART(g, node->uses[i].tensor)->storage];
      *of |= (char)(node->lane | (node->uses[i].role & KR_WRITE ? WRITES : 0));
      if (*of == (1 | 2 | WRITES)) return 1;
    }
  }
  return 0;
}

/* The nodes of both lanes, if there is nothing else between them; what one of them uses is live during all of them. */
static int32_t find_lanes(kr_graph *g) {
  size_t from = g->nodes.n, to = 0;
  char *touched = kr_arena_alloc(g->arena, g->storages.n + 1);
  if (kr_arena_failed(g->arena)) return kr_graph_status(g);
  for (size_t n = 0; n < g->nodes.n; n++)
    if (KR_NODE(g, n)->lane && !KR_NODE(g, n)->dead) from = n < from ? n : from, to = n + 1;
  for (size_t n = from; n < to; n++)
    if (!KR_NODE(g, n)->lane && !KR_NODE(g, n)->dead) return KRAIT_OK;
  if (from >= to || !kr_graph_cuda(g) || lanes_meet(g, from, to, touched)) return KRAIT_OK;
  g->lanes_from = from, g->lanes_to = to;
  for (size_t i = 0; i < g->storages.n; i++) {
    kr_storage *s = KR_STORAGE(g, i);
    if (s->first >= (int32_t)to || s->last < (int32_t)from) continue;
    if (s->first > (int32_t)from) s->first = (int32_t)from;
    if (s->last < (int32_t)to - 1) s->last = (int32_t)to - 1;
  }
  return KRAIT_OK;
}
static int in_lanes(const kr_graph *g, size_t n) { return n >= g->lanes_from && n < g->lanes_to; }
/* The live range of a node's scratch. */
static int32_t scratch_first(const kr_graph *g, size_t n) { return (int32_t)(in_lanes(g, n) ? g->lanes_from : n); }
static int32_t scratch_last(const kr_graph *g, size_t n) { return (int32_t)(in_lanes(g, n) ? g->lanes_to - 1 : n); }

/* ---- the arena ---- */

typedef struct block {
  uint64_t bytes, *at;
  int32_t first, last;
} block;

static int larger_first(const void *a, const void *b) {
  const block *x = a, *y = b;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
  if (x->first != y->first) return x->first < y->first ? -1 : 1;
  return x->at < y->at ? -1 : x->at > y->at;
}

/* Tensors that live across other calls, by lifetime, then those between adjacent calls. */
static int32_t life_past(const block *b) { return b->last - b->first > 1 ? b->last - b->first : 0; }
static int longer_first(const void *a, const void *b) {
  const int32_t x = life_past(a), y = life_past(b);
  return x != y ? (x < y ? 1 : -1) : larger_first(a, b);
}

/* The lowest gap between the placed blocks that are live at the same time; placed blocks are sorted by address. */
static void place_graph_plan(block *blocks, int32_t *order, int32_t n_loaded, int apart) {
  block *b = &blocks[n_loaded];
  uint64_t at = 0;
  int32_t where = 0;
  for (int32_t i = 0; i < n_loaded; i++) {
    const block *other = &blocks[order[i]];
    if (!apart && (other->first > b->last || other->last < b->first)) continue;
    if (*other->at >= at + b->bytes) break;
    if (*other->at + other->bytes > at) at = *other->at + other->bytes;
  }
  *b->at = at;
  while (where < n_loaded && *blocks[order[where]].at <= at) where++;
  memmove(order + where + 1, order + where, (size_t)(n_loaded - where) * sizeof *order);
  order[where] = n_loaded;
}

static uint64_t place_all(block *blocks, int32_t *order, int32_t n, int apart,
                          int (*before)(const void *, const void *)) {
  uint64_t end = 0;
  qsort(blocks, (size_t)n, sizeof *blocks, before);
  for (int32_t i = 0; i < n; i++) {
    place_graph_plan(blocks, order, i, apart);
    if (*blocks[i].at + blocks[i].bytes > end) end = *blocks[i].at + blocks[i].bytes;
  }
  return end;
}

static int32_t lay_out_graph_plan(kr_graph *g) {
  block *blocks = kr_arena_try(g->arena, (g->storages.n + g->nodes.n) * sizeof *blocks + 1);
  int32_t *order = kr_arena_try(g->arena, (g->storages.n + g->nodes.n) * sizeof *order + 1);
  int32_t n = 0;
  if (!blocks || !order) return kr_graph_status(g);
  for (size_t i = 0; i < g->storages.n; i++) {
    kr_storage *s = KR_STORAGE(g, i);
    if (s->home == KR_HOME_TEMP && s->last >= 0 && s->bytes)
      blocks[n++] = (block){graph_plan_round_up(s->bytes), &s->at, s->first, s->last};
  }
  for (size_t i = 0; i < g->nodes.n; i++) {
    kr_node *node = KR_NODE(g, i);
    if (!node->dead && node->scratch_bytes)
      blocks[n++] = (block){graph_plan_round_up(node->scratch_bytes), &node->scratch_at, scratch_first(g, i),
                            scratch_last(g, i)};
  }
  const int apart = (g->flags & KR_PLAN_NO_REUSE) != 0;
  const uint64_t by_life = place_all(blocks, order, n, apart, longer_first);
  g->arena_bytes = place_all(blocks, order, n, apart, larger_first);
  if (by_life < g->arena_bytes) g->arena_bytes = place_all(blocks, order, n, apart, longer_first);
  for (size_t i = 0; i < g->storages.n; i++) {
    kr_storage *s = KR_STORAGE(g, i);
    if (s->home != KR_HOME_STATE) continue;
    s->at = g->state_bytes;
    g->state_bytes += graph_plan_round_up(s->bytes);
  }
  return KRAIT_OK;
}

int32_t kr_graph_plan(kr_graph *g, const krait_ctx *ctx, uint32_t flags) {
  KR_TRY(kr_graph_status(g));
  if (g->planned) return kr_graph_fail(g, KRAIT_ERR_ARGUMENT, "graph: it is already planned");
  if (!ctx && !(flags & KR_PLAN_REFERENCE)) return kr_graph_fail(g, KRAIT_ERR_ARGUMENT, "graph: ctx must not be NULL");
  if (!(flags & KR_PLAN_REFERENCE)) {
    KR_TRY(kr_graph_rewrite_all(g, ctx));
    if (flags & KR_PLAN_CONSTANT) KR_TRY(kr_graph_compute_constants(g, ctx));
  }
  g->planned = 1, g->ctx = flags & KR_PLAN_REFERENCE ? NULL : ctx,
  g->flags = flags; /* reference implementations run on the host, and use no context */
  KR_TRY(kr_graph_plan_slices(g));
  KR_TRY(drop_dead_nodes(g));
  KR_TRY(find_lives(g));
  KR_TRY(find_lanes(g));
  keep_indices(g);
  for (size_t n = 0; n < g->nodes.n; n++)
    if (!KR_NODE(g, n)->dead) KR_TRY(choose_impl(g, KR_NODE(g, n)));
  KR_TRY(find_ahead(g));
  return lay_out_graph_plan(g);
}

uint64_t kr_graph_bytes(const kr_graph *g) { return g->arena_bytes + g->state_bytes; }

/* ---- checking the plan ---- */

typedef struct span {
  const char *name;
  uint64_t at, bytes;
  int32_t first, last;
} span;

static int32_t check_pair(const kr_graph *g, const span *a, const span *b) {
  const int share = a->at < b->at + b->bytes && b->at < a->at + a->bytes,
            together = a->first <= b->last && b->first <= a->last;
  KR_CHECK(!share || !together, KRAIT_ERR_ARGUMENT,
           "graph: tensors %s and %s are live at the same time (nodes %s and %s) in the same memory", a->name, b->name,
           KR_NODE(g, a->first)->name, KR_NODE(g, b->first)->name);
  return KRAIT_OK;
}

static span span_of(const kr_graph *g, size_t i) {
  if (i < g->storages.n) {
    const kr_storage *s = KR_STORAGE(g, i);
    const int lives = s->home == KR_HOME_TEMP && s->last >= 0;
    return (span){*s->name ? s->name
                  : lives  ? KR_NODE(g, s->first)->name
                           : "",
                  s->at, lives ? s->bytes : 0, s->first, s->last};
  }
  const int32_t n = (int32_t)(i - g->storages.n);
  const kr_node *node = KR_NODE(g, n);
  return (span){node->name, node->scratch_at, node->dead ? 0 : node->scratch_bytes,
                scratch_first(g, (size_t)n), scratch_last(g, (size_t)n)};
}

int32_t kr_graph_check_plan(const kr_graph *g) {
  const size_t n = g->storages.n + g->nodes.n;
  for (size_t i = 0; i < n; i++)
    for (size_t k = i + 1; k < n; k++) {
      const span a = span_of(g, i), b = span_of(g, k);
      if (a.bytes && b.bytes) KR_TRY(check_pair(g, &a, &b));
    }
  return KRAIT_OK;
}

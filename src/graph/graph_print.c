/* graph_print.c: prints a planned graph, with the cost of its calls. */
#include <stdio.h>
#include <string.h>

#include "graph_parts.h"
#include "graph_runner.h"
#include "status.h"

/* Widths of the longest name, operator and row. */
typedef struct widths {
  int name, op, row;
} widths;

static const char *row_name(const kr_graph *g, const kr_runner *r, size_t n) {
  return (r && r->settled ? kr_runner_impl(r, n) : KR_NODE(g, n)->impl)->name;
}

static void widen(int *width, const char *text) {
  const int n = (int)strlen(text);
  if (n > *width) *width = n;
}

static widths find_widths(const kr_graph *g, const kr_runner *r) {
  widths w = {16, 12, 8};
  for (size_t n = 0; n < g->nodes.n; n++) {
    if (KR_NODE(g, n)->dead) continue;
    widen(&w.name, KR_NODE(g, n)->name), widen(&w.op, KR_NODE(g, n)->op->name), widen(&w.row, row_name(g, r, n));
  }
  return w;
}

static kr_cost cost_of(const kr_node *node) {
  kr_cost cost = {0};
  if (!node->dead && node->op->cost) node->op->cost(node->args, &cost);
  return cost;
}

kr_cost kr_graph_cost(const kr_graph *g) {
  kr_cost sum = {0};
  for (size_t n = 0; n < g->nodes.n; n++) {
    const kr_cost cost = cost_of(KR_NODE(g, n));
    sum.flops += cost.flops, sum.bytes += cost.bytes, sum.exps += cost.exps;
  }
  return sum;
}

static void print_node(kr_text *text, const kr_graph *g, const kr_runner *r, widths w, size_t n) {
  const kr_node *node = KR_NODE(g, n);
  char dims[96];
  kr_text_print(text, "%4zu %-*s %-*s %-*s", n, w.name, node->name, w.op, node->op->name, w.row, row_name(g, r, n));
  if (r) kr_text_print(text, " %9.1f us", r->seconds[n] * 1e6);
  kr_text_print(text, " %9.3f MB", cost_of(node).bytes * 1e-6);
  for (int32_t i = 0; i < node->n_uses; i++) {
    const kr_part *p = KR_PART(g, node->uses[i].tensor);
    const kr_storage *s = KR_STORAGE(g, p->storage);
    if (!(node->uses[i].role & KR_WRITE)) continue;
    if (*s->name) kr_text_print(text, "  %s %s", s->name, kr_dims_text(p->dims, dims));
    else kr_text_print(text, "  t%d %s", p->storage, kr_dims_text(p->dims, dims));
    if (s->home == KR_HOME_TEMP) kr_text_print(text, " at %llu", (unsigned long long)(s->at + (uint64_t)p->at_bytes));
  }
}

int32_t kr_graph_print(const kr_graph *g, const kr_runner *runner, void (*line)(void *user, const char *text),
                       void *user) {
  KR_TRY(kr_graph_status(g));
  KR_CHECK(g->planned, KRAIT_ERR_ARGUMENT, "graph: it must be planned before it is printed");
  kr_arena *arena = kr_arena_open();
  KR_CHECK(arena, KRAIT_ERR_NO_MEMORY, "no memory for a line");
  uint64_t apart = 0, weights = 0;
  double seconds = 0;
  size_t n_live = 0;
  const widths w = find_widths(g, runner);
  for (size_t n = 0; n < g->nodes.n; n++) {
    if (KR_NODE(g, n)->dead) continue;
    kr_text text = kr_text_begin(arena);
    print_node(&text, g, runner, w, n);
    line(user, text.at);
    if (runner) seconds += runner->seconds[n];
    n_live++;
  }
  for (size_t i = 0; i < g->storages.n; i++) {
    const kr_storage *s = KR_STORAGE(g, i);
    if (s->home == KR_HOME_TEMP && s->last >= 0) apart += s->bytes;
    if (s->home == KR_HOME_WEIGHT) weights += s->bytes;
  }
  kr_text text = kr_text_begin(arena);
  kr_text_print(&text, "%zu nodes; arena %.3f MB for %.3f MB of tensors, states %.3f MB, weights %.3f MB", n_live,
                (double)g->arena_bytes * 1e-6, (double)apart * 1e-6, (double)g->state_bytes * 1e-6,
                (double)weights * 1e-6);
  if (runner) kr_text_print(&text, "; %.1f us in nodes", seconds * 1e6);
  line(user, text.at);
  int32_t status = KRAIT_OK;
  for (size_t n = 0; n < g->nodes.n && status >= 0; n++) {
    const kr_graph *slice = KR_NODE(g, n)->dead ? NULL : kr_graph_of_slices(KR_NODE(g, n));
    if (!slice) continue;
    kr_text title = kr_text_begin(arena);
    kr_text_print(&title, "each slice of %s:", KR_NODE(g, n)->name);
    line(user, title.at);
    status = kr_graph_show(slice, runner != NULL, line, user);
  }
  kr_arena_close(&arena);
  return status;
}

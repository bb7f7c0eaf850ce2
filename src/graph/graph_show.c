/* graph_show.c: shows a planned graph without a caller: unbound tensors get their own memory, so that the nodes can be
 * timed. */
#include "alloc.h"
#include "graph_parts.h"
#include "graph_runner.h"
#include "status.h"

static uint64_t graph_show_round_up(uint64_t bytes) {
  return (bytes + KR_GRAPH_LINE - 1) / KR_GRAPH_LINE * KR_GRAPH_LINE;
}

static int is_unbound(const kr_runner *r, size_t i) {
  const int32_t home = KR_STORAGE(r->graph, i)->home;
  return home != KR_HOME_TEMP && home != KR_HOME_STATE && !r->bound[i];
}

static int32_t get_zeros(const kr_graph *g, uint64_t bytes, char **zeros) {
  const kr_cuda *cuda = kr_graph_cuda(g);
  if (cuda) {
    KR_TRY(kr_cuda_alloc(cuda, (size_t)bytes, (void **)zeros));
    return kr_cuda_fill(cuda, *zeros, 0, (size_t)bytes, NULL);
  }
  *zeros = kr_zalloc((size_t)bytes);
  KR_CHECK(*zeros, KRAIT_ERR_NO_MEMORY, "no memory for a graph's inputs: %llu bytes", (unsigned long long)bytes);
  return KRAIT_OK;
}

static int32_t bind_zeros(kr_runner *r, char **zeros) {
  uint64_t bytes = KR_GRAPH_LINE, at = 0;
  for (size_t i = 0; i < r->graph->storages.n; i++)
    if (is_unbound(r, i)) bytes += graph_show_round_up(KR_STORAGE(r->graph, i)->bytes);
  KR_TRY(get_zeros(r->graph, bytes, zeros));
  for (size_t i = 0; i < r->graph->storages.n; i++) {
    if (!is_unbound(r, i)) continue;
    r->bound[i] = *zeros + at;
    at += graph_show_round_up(KR_STORAGE(r->graph, i)->bytes);
  }
  return KRAIT_OK;
}

/* The first run touches memory, and on a GPU loads kernels. */
static int32_t profile(kr_runner *r) {
  KR_TRY(kr_runner_profile(r, NULL));
  KR_TRY(kr_runner_reset(r, NULL));
  return kr_runner_profile(r, NULL);
}

int32_t kr_graph_show(const kr_graph *g, int is_timed, void (*line)(void *user, const char *text), void *user) {
  kr_runner *r = NULL;
  char *zeros = NULL;
  if (!is_timed) return kr_graph_print(g, NULL, line, user);
  KR_TRY(kr_runner_open(g, &r));
  int32_t status = bind_zeros(r, &zeros);
  if (status >= 0) status = profile(r);
  if (status >= 0) status = kr_graph_print(g, r, line, user);
  kr_runner_close(&r);
  if (kr_graph_cuda(g)) kr_cuda_free(kr_graph_cuda(g), zeros);
  else kr_free(zeros);
  return status;
}

/* graph_run.c: one runner of a planned graph: its memory, the bound addresses, and runs: node by node, or on a GPU as a
 * CUDA graph when the same addresses are used again. */
#include <string.h>

#include "overlap.h"
#include "alloc.h"
#include "clock.h"
#include "graph_parts.h"
#include "graph_runner.h"
#include "rehearsal.h"
#include "status.h"

/* ---- addresses ---- */

static void *address_of(const kr_runner *r, int32_t storage) {
  const kr_storage *s = KR_STORAGE(r->graph, storage);
  if (s->home == KR_HOME_TEMP) return r->memory + s->at;
  if (s->home == KR_HOME_STATE) return r->memory + r->graph->arena_bytes + s->at;
  return r->bound[storage];
}

void *kr_runner_at(const kr_runner *r, kr_tensor t) {
  const kr_part *p = KR_PART(r->graph, t);
  char *at = address_of(r, p->storage);
  return at ? at + p->at_bytes : NULL;
}

/* Binds the node's addresses. One may be less aligned than the plan assumed: then another implementation may be chosen,
 * and need more scratch, which the runner allocates itself. */
static int32_t bind_node(kr_runner *r, size_t n) {
  const kr_node *node = KR_NODE(r->graph, n);
  kr_bound list[KR_MOST_VIEWS];
  for (int32_t i = 0; i < node->n_uses; i++)
    list[i] = (kr_bound){node->uses[i].offset, kr_runner_at(r, node->uses[i].tensor)};
  KR_TRY(kr_plan_bind(r->calls[n], list, node->n_uses));
  kr_call *call = kr_plan_call(r->calls[n]);
  call->scratch = r->memory + node->scratch_at;
  if (call->scratch_bytes > node->scratch_bytes && call->scratch_bytes > r->extra_needed)
    r->extra_needed = call->scratch_bytes;
  return KRAIT_OK;
}

static int32_t get_block(const kr_runner *r, uint64_t bytes, char **block) {
  const kr_cuda *cuda = kr_graph_cuda(r->graph);
  if (cuda) return kr_cuda_alloc(cuda, bytes, (void **)block);
  *block = kr_alloc(bytes);
  KR_CHECK(*block, KRAIT_ERR_NO_MEMORY, "no memory for a graph: %llu bytes", (unsigned long long)bytes);
  return KRAIT_OK;
}

static void free_block(const kr_runner *r, char **block) {
  if (kr_graph_cuda(r->graph)) kr_cuda_free(kr_graph_cuda(r->graph), *block);
  else kr_free(*block);
  *block = NULL;
}

static int32_t get_extra(kr_runner *r) {
  if (r->extra_needed > r->extra_bytes) {
    if (kr_graph_cuda(r->graph) && r->extra)
      KR_TRY(kr_cuda_wait(kr_graph_cuda(r->graph), r->stream)); /* the previous run may still use it */
    free_block(r, &r->extra);
    KR_TRY(get_block(r, r->extra_needed, &r->extra));
    r->extra_bytes = r->extra_needed;
  }
  for (size_t n = 0; n < r->graph->nodes.n; n++) {
    kr_call *call = r->calls[n] ? kr_plan_call(r->calls[n]) : NULL;
    if (call && call->scratch_bytes > KR_NODE(r->graph, n)->scratch_bytes) call->scratch = r->extra;
  }
  return KRAIT_OK;
}

static void forget_recordings(kr_runner *r) {
  for (int32_t i = 0; i < r->n_recordings; i++)
    kr_cuda_graph_close(kr_graph_cuda(r->graph), &r->recordings[i].recorded);
  r->n_recordings = 0;
}

/* Writes all addresses into every node whose addresses changed. */
static int32_t settle(kr_runner *r) {
  const kr_graph *g = r->graph;
  if (r->settled) return KRAIT_OK;
  for (size_t n = 0; n < g->nodes.n; n++) {
    const kr_node *node = KR_NODE(g, n);
    if (node->dead) continue;
    for (int32_t i = 0; i < node->n_uses; i++)
      KR_CHECK(
          kr_runner_at(r, node->uses[i].tensor) || !KR_STORAGE(g, KR_PART(g, node->uses[i].tensor)->storage)->bytes,
          KRAIT_ERR_ARGUMENT, "graph: node %s: %s is not bound", node->name, kr_graph_name(g, node->uses[i].tensor));
    KR_TRY(bind_node(r, n));
  }
  KR_TRY(get_extra(r));
  r->settled = 1;
  forget_recordings(r);
  return KRAIT_OK;
}

int32_t kr_runner_bind(kr_runner *r, kr_tensor t, void *data) {
  const kr_graph *g = r->graph;
  KR_CHECK(t > 0 && (size_t)t < g->parts.n, KRAIT_ERR_ARGUMENT, "graph: %d is not a tensor of this graph", t);
  const kr_part *p = KR_PART(g, t);
  const kr_storage *s = KR_STORAGE(g, p->storage);
  KR_CHECK(s->home != KR_HOME_TEMP && s->home != KR_HOME_STATE, KRAIT_ERR_ARGUMENT,
           "graph: %s is allocated by the graph, it cannot be bound", kr_graph_name(g, t));
  KR_CHECK(p->at_bytes == 0, KRAIT_ERR_ARGUMENT, "graph: bind %s itself, not a part of it", s->name);
  if (r->bound[p->storage] != data) r->settled = 0;
  r->bound[p->storage] = data;
  return KRAIT_OK;
}

/* ---- open and close ---- */

static size_t aligned(size_t bytes) { return (bytes + 15) & ~(size_t)15; }

/* The runner, its arrays and its nodes' prepared calls are one block. */
static kr_runner *new_runner(const kr_graph *g) {
  const size_t n = g->nodes.n;
  size_t plans_bytes = 0, head = aligned(sizeof(kr_runner)), bound = aligned(g->storages.n * sizeof(void *)),
         pointers = aligned(n * sizeof(void *)), seconds = aligned(n * sizeof(double));
  for (size_t i = 0; i < n; i++) plans_bytes += KR_NODE(g, i)->dead ? 0 : kr_plan_bytes(KR_NODE(g, i)->op);
  char *block = kr_zalloc(head + bound + pointers + 2 * seconds + plans_bytes);
  if (!block) return NULL;
  kr_runner *r = (kr_runner *)block;
  r->graph = g;
  r->bound = (void **)(block += head);
  r->calls = (kr_plan **)(block += bound);
  r->seconds = (double *)(block += pointers);
  r->shares = (double *)(block += seconds);
  block += seconds;
  for (size_t i = 0; i < g->storages.n; i++) r->bound[i] = KR_STORAGE(g, i)->data;
  for (size_t i = 0; i < n; i++) {
    const kr_node *node = KR_NODE(g, i);
    if (node->dead) continue;
    r->calls[i] = kr_plan_place(block, node->op, g->ctx, node->args, g->flags & KR_PLAN_REFERENCE ? node->impl : NULL);
    block += kr_plan_bytes(node->op);
  }
  return r;
}

static int32_t open_runner(const kr_graph *g, void *memory, kr_runner **runner) {
  *runner = NULL;
  KR_TRY(kr_graph_status(g));
  KR_CHECK(g->planned, KRAIT_ERR_ARGUMENT, "graph: it must be planned before it runs");
  kr_runner *r = new_runner(g);
  KR_CHECK(r, KRAIT_ERR_NO_MEMORY, "no memory for a graph");
  r->memory = memory, r->borrowed = memory != NULL;
  int32_t status = memory ? KRAIT_OK : get_block(r, kr_graph_bytes(g), &r->memory);
  if (status >= 0 && !memory) status = kr_runner_reset(r, NULL);
  if (status >= 0 && kr_graph_cuda(g) && g->state_bytes) status = kr_cuda_wait(kr_graph_cuda(g), NULL);
  *runner = r;
  if (status < 0) kr_runner_close(runner);
  return status;
}

int32_t kr_runner_open(const kr_graph *g, kr_runner **runner) { return open_runner(g, NULL, runner); }
void *kr_runner_memory(const kr_runner *r) { return r->memory; }

void kr_runner_move(kr_runner *r, void *memory) {
  if (r->memory != memory && kr_graph_bytes(r->graph)) r->memory = memory, r->settled = 0;
}

void kr_runner_rebind(kr_runner *r, size_t storage, void *data) {
  if (r->bound[storage] != data) r->bound[storage] = data, r->settled = 0;
}

int32_t kr_runner_open_in(const kr_graph *g, void *memory, uint64_t bytes, kr_runner **runner) {
  static char nothing[KR_GRAPH_LINE]; /* the address of an empty arena */
  *runner = NULL;
  KR_TRY(kr_graph_status(g));
  KR_CHECK(bytes >= kr_graph_bytes(g) && (memory || !kr_graph_bytes(g)), KRAIT_ERR_SCRATCH,
           "graph: %llu bytes given, it needs %llu", (unsigned long long)bytes, (unsigned long long)kr_graph_bytes(g));
  KR_CHECK(!g->state_bytes, KRAIT_ERR_ARGUMENT, "graph: it has states, which cannot be kept in borrowed memory");
  return open_runner(g, memory ? memory : nothing, runner);
}

void kr_runner_close(kr_runner **runner) {
  if (!runner || !*runner) return;
  kr_runner *r = *runner;
  const kr_cuda *cuda = kr_graph_cuda(r->graph);
  if (cuda) {
    forget_recordings(r);
    kr_cuda_stream_close(cuda, &r->recorder);
    kr_cuda_stream_close(cuda, &r->beside);
    kr_cuda_timer_close(cuda, &r->meeting);
  }
  if (!r->borrowed) free_block(r, &r->memory);
  free_block(r, &r->extra);
  kr_free(r);
  *runner = NULL;
}

int32_t kr_runner_reset(kr_runner *r, void *stream) {
  const kr_graph *g = r->graph;
  r->next = 0;
  if (!g->state_bytes) return KRAIT_OK;
  if (kr_graph_cuda(g)) return kr_cuda_fill(kr_graph_cuda(g), r->memory + g->arena_bytes, 0, g->state_bytes, stream);
  memset(r->memory + g->arena_bytes, 0, g->state_bytes);
  return KRAIT_OK;
}

/* ---- runs ---- */

static int32_t run_node(kr_runner *r, size_t n, void *stream) {
  kr_call *call = kr_plan_call(r->calls[n]);
  call->stream = stream;
  call->flags &= ~(KR_CALL_PDL | KR_CALL_STATE_PDL);
  const kr_node *node = KR_NODE(r->graph, n);
  call->flags |= node->ahead; /* also where none starts ahead: recorded or not, a node's kernels are the same */
  const int has_gpu = kr_graph_cuda(r->graph) != NULL, in_order = has_gpu && kr_cuda_in_order(!r->records);
  int32_t status = kr_plan_run_bound(r->calls[n]);
  if (has_gpu) kr_cuda_in_order(in_order);
  if (status >= 0) return status;
  char why[512];
  strncpy(why, krait_error_detail(), sizeof why - 1);
  why[sizeof why - 1] = 0;
  return kr_fail(status, "graph: node %s (%s, implementation %s): %s", node->name, node->op->name,
                 kr_runner_impl(r, n)->name, why);
}

/* Later launches on `later` wait for the work on `stream`. */
static int32_t follow(const kr_cuda *cuda, void *point, void *stream, void *later) {
  KR_TRY(kr_cuda_timer_mark(cuda, point, stream));
  return kr_cuda_wait_for(cuda, point, later);
}

/* Captured graphs run both lanes in parallel. */
static int32_t run_lanes(kr_runner *r, void *stream) {
  const kr_graph *g = r->graph;
  const kr_cuda *cuda = kr_graph_cuda(g);
  KR_TRY(follow(cuda, r->meeting.from, stream, r->beside));
  for (size_t n = g->lanes_from; n < g->lanes_to; n++)
    if (r->calls[n]) KR_TRY(run_node(r, n, KR_NODE(g, n)->lane == 2 ? r->beside : stream));
  return follow(cuda, r->meeting.to, r->beside, stream);
}

static int32_t run_range(kr_runner *r, size_t from, size_t to, void *stream) {
  const kr_graph *g = r->graph;
  const int has_lanes = r->records && r->beside && from <= g->lanes_from && g->lanes_to <= to;
  int64_t n_run = 0;
  for (size_t n = from; n < to; n++) {
    if (!r->calls[n]) continue;
    n_run++;
    if (!has_lanes || n < g->lanes_from || n >= g->lanes_to) KR_TRY(run_node(r, n, stream));
    else if (n == g->lanes_from) KR_TRY(run_lanes(r, stream));
  }
  if (r->graph->ctx)
    atomic_fetch_add_explicit(&((krait_ctx *)r->graph->ctx)->n_calls, (unsigned long long)n_run, memory_order_relaxed);
  return KRAIT_OK;
}

/* After the last call that writes t before one reads it. */
static size_t graph_run_end_of(const kr_graph *g, kr_tensor t) {
  const int32_t storage = KR_PART(g, t)->storage;
  size_t end = 0;
  for (size_t n = 0; n < g->nodes.n; n++)
    for (int32_t i = 0; i < KR_NODE(g, n)->n_uses; i++) {
      const kr_use *u = &KR_NODE(g, n)->uses[i];
      if (KR_NODE(g, n)->dead || KR_PART(g, u->tensor)->storage != storage) continue;
      if (u->role & KR_WRITE) end = n + 1;
      else if (end) return end;
    }
  return end;
}

/* Whether the caller is capturing this stream: then every launch goes into its graph. */
static int is_recorded(const kr_cuda *cuda, void *stream) {
  const kr_driver *d = kr_cuda_driver(cuda);
  int recording = 0;
  if (!d->StreamIsCapturing || kr_cuda_begin(cuda) < 0) return 0;
  if (d->StreamIsCapturing(stream, &recording)) recording = 1;
  kr_cuda_end(cuda);
  return recording;
}

/* The captured graph of a range; NULL: there are too many already. */
static kr_recording *recording_of(kr_runner *r, size_t from, size_t to) {
  for (int32_t i = 0; i < r->n_recordings; i++)
    if (r->recordings[i].from == from && r->recordings[i].to == to) return &r->recordings[i];
  if (r->n_recordings == KR_RECORDINGS) return NULL;
  r->recordings[r->n_recordings] = (kr_recording){.from = from, .to = to};
  return &r->recordings[r->n_recordings++];
}

/* If the driver has no graphs, or no memory for one, every run is like the first. */
static int32_t record_graph_run(kr_runner *r, const kr_cuda *cuda, kr_recording *k) {
  if (!r->recorder) KR_TRY(kr_cuda_stream_open(cuda, &r->recorder));
  if (r->graph->lanes_to && !r->beside) {
    KR_TRY(kr_cuda_timer_open(cuda, &r->meeting));
    KR_TRY(kr_cuda_stream_open(cuda, &r->beside));
  }
  if (kr_cuda_graph_begin(cuda, r->recorder) < 0) return KRAIT_OK;
  r->records = 1;
  const int32_t status = run_range(r, k->from, k->to, r->recorder);
  r->records = 0;
  const int32_t ended = kr_cuda_graph_end(cuda, r->recorder, &k->recorded);
  if (status < 0) kr_cuda_graph_close(cuda, &k->recorded); /* a part of the launches */
  return status < 0 ? status : ended == KRAIT_ERR_DEVICE_MEMORY ? KRAIT_OK : ended;
}

typedef struct part {
  kr_runner *r;
  size_t from, to;
} part;

static int32_t rehearse_nodes(void *user) {
  const part *p = user;
  for (size_t n = p->from; n < p->to; n++)
    if (p->r->calls[n]) KR_TRY(run_node(p->r, n, p->r->stream));
  return KRAIT_OK;
}

static int32_t run_part(kr_runner *r, size_t from, size_t to, void *stream) {
  const kr_cuda *cuda = kr_graph_cuda(r->graph);
  KR_TRY(settle(r));
  r->stream = stream;
  if (cuda && kr_cuda_is_noting()) return rehearse_nodes(&(part){r, from, to});
  kr_recording *k = !cuda || is_recorded(cuda, stream) ? NULL : recording_of(r, from, to);
  if (cuda && (k ? !k->n_runs && !r->is_rehearsed : kr_cuda_meets(cuda, r)))
    kr_rehearse(r->graph->ctx, rehearse_nodes, &(part){r, from, to});
  r->is_rehearsed |= !from && to == r->graph->nodes.n; /* with other addresses nearly all kernels are the same */
  if (!k) return run_range(r, from, to, stream);
  if (k->n_runs++ == 1) KR_TRY(record_graph_run(r, cuda, k));
  return k->recorded ? kr_cuda_graph_launch(cuda, k->recorded, stream) : run_range(r, from, to, stream);
}

int32_t kr_runner_prepare(kr_runner *r) { return settle(r); }
int32_t kr_runner_run(kr_runner *r, void *stream) { return run_part(r, 0, r->graph->nodes.n, stream); }
int32_t kr_runner_run_to(kr_runner *r, kr_tensor t, void *stream) {
  return run_part(r, 0, graph_run_end_of(r->graph, t), stream);
}
int32_t kr_runner_run_after(kr_runner *r, kr_tensor t, void *stream) {
  return run_part(r, graph_run_end_of(r->graph, t), r->graph->nodes.n, stream);
}

static int32_t time_node(kr_runner *r, const kr_cuda *cuda, const kr_cuda_timer *timer, size_t n, void *stream) {
  const int64_t start = kr_clock_ns();
  if (cuda) KR_TRY(kr_cuda_timer_mark(cuda, timer->from, stream));
  KR_TRY(run_node(r, n, stream));
  if (!cuda) {
    r->seconds[n] = (double)(kr_clock_ns() - start) * 1e-9;
    return KRAIT_OK;
  }
  KR_TRY(kr_cuda_timer_mark(cuda, timer->to, stream));
  return kr_cuda_timer_read(cuda, timer, &r->seconds[n]);
}

int32_t kr_runner_profile(kr_runner *r, void *stream) {
  const kr_cuda *cuda = kr_graph_cuda(r->graph);
  kr_cuda_timer timer = {0};
  KR_TRY(settle(r));
  if (cuda) KR_TRY(kr_cuda_timer_open(cuda, &timer));
  int32_t status = KRAIT_OK;
  for (size_t n = 0; n < r->graph->nodes.n && status >= 0; n++)
    if (r->calls[n]) status = time_node(r, cuda, &timer, n, stream);
  if (cuda) kr_cuda_timer_close(cuda, &timer);
  return status;
}

void kr_runner_each_time(const kr_runner *r,
                         void (*each)(void *user, const char *node, const char *op, const char *impl, double seconds),
                         void *user) {
  for (size_t n = 0; n < r->graph->nodes.n; n++)
    if (r->calls[n])
      each(user, KR_NODE(r->graph, n)->name, KR_NODE(r->graph, n)->op->name, kr_runner_impl(r, n)->name, r->seconds[n]);
}

/* ---- runs in many parts ---- */

enum { N_WEIGHINGS = 5 };

/* The shortest of some times: what else runs on the machine does not count. */
int32_t kr_runner_weigh(kr_runner *r) {
  double all = 0, until = 0;
  for (int k = 0; k < N_WEIGHINGS; k++) {
    KR_TRY(kr_runner_profile(r, NULL));
    for (size_t n = 0; n < r->graph->nodes.n; n++)
      if (!k || r->seconds[n] < r->shares[n]) r->shares[n] = r->seconds[n];
  }
  for (size_t n = 0; n < r->graph->nodes.n; n++) all += r->shares[n];
  for (size_t n = 0; n < r->graph->nodes.n; n++) until += r->shares[n], r->shares[n] = all > 0 ? until / all : 0;
  r->next = 0;
  return kr_runner_reset(r, NULL);
}

/* A node belongs to the share in which its middle lies. */
static size_t node_after(const kr_runner *r, double share) {
  const size_t n_nodes = r->graph->nodes.n;
  size_t n = r->next;
  if (share >= 1) return n_nodes;
  if (n_nodes && !r->shares[n_nodes - 1]) return (size_t)(share * (double)n_nodes);
  while (n < n_nodes && (r->shares[n] + (n ? r->shares[n - 1] : 0)) / 2 <= share) n++;
  return n;
}

int32_t kr_runner_run_share(kr_runner *r, double share, void *stream) {
  const size_t from = r->next, to = node_after(r, share);
  if (to > from) r->next = to;
  if (share >= 1) r->next = 0;
  return to > from ? run_part(r, from, to, stream) : KRAIT_OK;
}

/* ---- kinds of calls ---- */

static int same_kind(const kr_runner *r, size_t a, size_t b) {
  return r->calls[a] && r->calls[b] && kr_runner_impl(r, a) == kr_runner_impl(r, b) &&
         strcmp(KR_NODE(r->graph, a)->name, KR_NODE(r->graph, b)->name) == 0;
}

static int32_t run_calls_of_kind(kr_runner *r, size_t first, void *stream) {
  for (size_t n = first; n < r->graph->nodes.n; n++)
    if (same_kind(r, first, n)) KR_TRY(run_node(r, n, stream));
  return KRAIT_OK;
}

enum { N_ROUNDS = 10 };

static int32_t time_kind_here(kr_runner *r, size_t first, double *seconds) {
  KR_TRY(run_calls_of_kind(r, first, NULL));
  const int64_t start = kr_clock_ns();
  for (int k = 0; k < N_ROUNDS; k++) KR_TRY(run_calls_of_kind(r, first, NULL));
  *seconds = (double)(kr_clock_ns() - start) * 1e-9 / N_ROUNDS;
  return KRAIT_OK;
}

static int32_t time_kind_there(kr_runner *r, const kr_cuda *cuda, const kr_cuda_timer *timer, size_t first,
                               void *stream, double *seconds) {
  void *graph = NULL;
  KR_TRY(run_calls_of_kind(r, first, stream)); /* loads kernels */
  KR_TRY(kr_cuda_graph_begin(cuda, stream));
  r->records = 1;
  int32_t status = run_calls_of_kind(r, first, stream);
  r->records = 0;
  const int32_t ended = kr_cuda_graph_end(cuda, stream, &graph);
  if (status >= 0) status = ended;
  if (status >= 0) status = kr_cuda_graph_launch(cuda, graph, stream);
  if (status >= 0) status = kr_cuda_timer_mark(cuda, timer->from, stream);
  for (int k = 0; k < N_ROUNDS && status >= 0; k++) status = kr_cuda_graph_launch(cuda, graph, stream);
  if (status >= 0) status = kr_cuda_timer_mark(cuda, timer->to, stream);
  if (status >= 0) status = kr_cuda_timer_read(cuda, timer, seconds);
  if (graph) kr_cuda_graph_close(cuda, &graph);
  *seconds /= N_ROUNDS;
  return status;
}

int32_t kr_runner_profile_by_kernel(kr_runner *r, kr_runner_profile_fn fn, void *user) {
  const kr_cuda *cuda = kr_graph_cuda(r->graph);
  kr_cuda_timer timer = {0};
  KR_TRY(settle(r));
  if (cuda) KR_TRY(kr_cuda_wait(cuda, NULL)); /* the last run is on another stream, and uses the same memory */
  if (cuda && !r->recorder) KR_TRY(kr_cuda_stream_open(cuda, &r->recorder));
  if (cuda) KR_TRY(kr_cuda_timer_open(cuda, &timer));
  int32_t status = KRAIT_OK;
  for (size_t n = 0; n < r->graph->nodes.n && status >= 0; n++) {
    int64_t n_calls = 0;
    double seconds = 0;
    size_t first = 0;
    while (first < n && !same_kind(r, first, n)) first++;
    if (!r->calls[n] || first < n) continue;
    for (size_t i = n; i < r->graph->nodes.n; i++) n_calls += same_kind(r, n, i);
    status = cuda ? time_kind_there(r, cuda, &timer, n, r->recorder, &seconds) : time_kind_here(r, n, &seconds);
    if (status >= 0)
      fn(user, KR_NODE(r->graph, n)->name, KR_NODE(r->graph, n)->op->name, kr_runner_impl(r, n)->name, n_calls,
         seconds);
  }
  if (cuda) kr_cuda_timer_close(cuda, &timer);
  return status;
}

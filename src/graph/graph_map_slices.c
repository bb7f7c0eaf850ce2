/* graph_map_slices.c: a call that processes a map slice by slice, each through its own graph: the tensors between its
 * nodes stay in the cache, and each thread runs whole slices. It is an ordinary node, whose op is defined in this file.
 */
#include <stdio.h>
#include <string.h>

#include "graph_parts.h"
#include "graph_runner.h"
#include "status.h"

enum { WHOLE, REST, N_KINDS };
enum { X = 1, OUT }; /* the first tensors of a slice's graph */

typedef struct each_args {
  kr_call call;
  int64_t sizes[8];          /* of x, of out */
  int64_t dim, n;            /* slices of n along this dimension, and one with the remainder */
  kr_graph *graphs[N_KINDS]; /* NULL: there is no such slice */
  kr_view x, out;
} each_args;

static int64_t n_along(const each_args *a) { return a->sizes[a->dim]; }
static int64_t n_slices(const each_args *a) { return (n_along(a) + a->n - 1) / a->n; }

/* ---- a run ---- */

typedef struct worker { /* a thread with its runners */
  kr_runner *runners[N_KINDS];
  int32_t status;
  char why[256];
} worker;

typedef struct job {
  const each_args *a;
  worker *workers;
  char *memory;
  uint64_t bytes; /* of each worker */
} job;

static uint64_t worker_bytes(const each_args *a) {
  uint64_t most = 0;
  for (int k = 0; k < N_KINDS; k++)
    if (a->graphs[k] && kr_graph_bytes(a->graphs[k]) > most) most = kr_graph_bytes(a->graphs[k]);
  return (most + KR_GRAPH_LINE - 1) / KR_GRAPH_LINE * KR_GRAPH_LINE;
}
static uint64_t head_bytes(int n_workers) {
  return ((uint64_t)n_workers * sizeof(worker) + KR_GRAPH_LINE - 1) / KR_GRAPH_LINE * KR_GRAPH_LINE;
}
static int n_workers(const krait_ctx *ctx) { return ctx ? krait_ctx_n_threads(ctx) : 1; }

static uint64_t scratch_of(const krait_ctx *ctx, const void *args) {
  return head_bytes(n_workers(ctx)) + (uint64_t)n_workers(ctx) * worker_bytes(args);
}

static void *slice_of(const each_args *a, const kr_view *v, int64_t i) {
  return (char *)v->data + i * a->n * v->stride[a->dim] * (int64_t)krait_dtype_bytes(v->dtype);
}

static int32_t run_slice(const job *j, int64_t i, int which) {
  const each_args *a = j->a;
  const int kind = n_along(a) - i * a->n < a->n ? REST : WHOLE;
  kr_runner **r = &j->workers[which].runners[kind];
  if (!*r) KR_TRY(kr_runner_open_in(a->graphs[kind], j->memory + (uint64_t)which * j->bytes, j->bytes, r));
  KR_TRY(kr_runner_bind(*r, X, slice_of(a, &a->x, i)));
  KR_TRY(kr_runner_bind(*r, OUT, slice_of(a, &a->out, i)));
  return kr_runner_run(*r, NULL);
}

static void run_slices(void *user, int64_t begin, int64_t end, int which) {
  const job *j = user;
  worker *own = &j->workers[which];
  for (int64_t i = begin; i < end && own->status >= 0; i++) {
    own->status = run_slice(j, i, which);
    if (own->status < 0) snprintf(own->why, sizeof own->why, "%s", krait_error_detail());
  }
}

static int32_t run_slices_of_call(const krait_ctx *ctx, const void *args) {
  const each_args *a = args;
  job j = {.a = a, .workers = a->call.scratch, .bytes = worker_bytes(a)};
  int32_t status = KRAIT_OK;
  j.memory = (char *)a->call.scratch + head_bytes(n_workers(ctx));
  memset(j.workers, 0, head_bytes(n_workers(ctx)));
  if (ctx) kr_parallel(ctx, n_slices(a), 1, run_slices, &j);
  else run_slices(&j, 0, n_slices(a), 0);
  for (int i = 0; i < n_workers(ctx); i++) {
    if (status >= 0 && j.workers[i].status < 0) status = kr_fail(j.workers[i].status, "%s", j.workers[i].why);
    for (int k = 0; k < N_KINDS; k++) kr_runner_close(&j.workers[i].runners[k]);
  }
  return status;
}

/* ---- the op ---- */

static void count_graph_map_slices(const void *args, kr_cost *cost) {
  const each_args *a = args;
  *cost = (kr_cost){0};
  for (int k = 0; k < N_KINDS; k++) {
    if (!a->graphs[k]) continue;
    const kr_cost own = kr_graph_cost(a->graphs[k]);
    const double n = k == WHOLE ? (double)(n_along(a) / a->n) : 1;
    cost->flops += n * own.flops, cost->bytes += n * own.bytes, cost->exps += n * own.exps;
  }
}

#define TENSOR(field, its_role, at, place)                                                                  \
  {.name = #field,                                                                                          \
   .offset = offsetof(each_args, field),                                                                    \
   .role = its_role,                                                                                        \
   .tensor_class = KR_CLASS_ACTIVATION,                                                                     \
   .same = -1,                                                                                              \
   .in_place = {place, -1},                                                                                 \
   .gradient = -1,                                                                                          \
   .reread = -1,                                                                                            \
   .gradient_of = -1,                                                                                       \
   .rereads = {-1, -1},                                                                                     \
   .types = {{.types = 1u << KRAIT_F32 | 1u << KRAIT_F16 | 1u << KRAIT_BF16, .like = -1}},                  \
   .dims = {{.text = "its shape",                                                                           \
             .n_dims = 4,                                                                                   \
             .only = {at, at + 1, at + 2, at + 3},                                                          \
             .sizes = 15u << (at),                                                                          \
             .dims = {{at, 1}, {at + 1, 1}, {at + 2, 1}, {at + 3, 1}}}}}
#define SIZE(i, name) {name, offsetof(each_args, sizes) + (i) * sizeof(int64_t)}
#define TERM(i) {.times = 1, .size = {i, -1}}
static const kr_sig_size sizes[] = {SIZE(0, "x0"), SIZE(1, "x1"), SIZE(2, "x2"), SIZE(3, "x3"),
                                    SIZE(4, "y0"), SIZE(5, "y1"), SIZE(6, "y2"), SIZE(7, "y3")};
static const kr_sig_term terms[] = {TERM(0), TERM(1), TERM(2), TERM(3), TERM(4), TERM(5), TERM(6), TERM(7)};
static const kr_sig_tensor tensors[] = {TENSOR(x, KR_IN, 0, -1), TENSOR(out, KR_OUT, 4, 0)};
static const kr_sig signature = {.name = "each", .args_bytes = sizeof(each_args), .n_sizes = 8, .n_tensors = 2,
                                 .sizes = sizes, .tensors = tensors, .terms = terms};
static const kr_impl impls[] = {{"slices", KRAIT_CAP_CPU, NULL, run_slices_of_call, scratch_of}};
static const kr_op each = {.name = "each", .args_bytes = sizeof(each_args), .sig = &signature, .n_impls = 1,
                           .impls = impls, .cost = count_graph_map_slices};

/* ---- recording and plan ---- */

/* The graph for a slice of this size; it is closed with the whole graph. */
static kr_graph *record_slice(kr_graph *g, const char *name, int dim, int64_t n, kr_slice_fn *fn, void *user,
                              kr_tensor x, kr_tensor out) {
  const kr_tensor given[] = {x, out};
  kr_graph *slice = NULL, **kept = kr_list_push(g->arena, &g->slices);
  if (kr_arena_failed(g->arena)) return NULL;
  const int32_t status = kr_graph_open(&slice);
  *kept = slice;
  if (status < 0) return kr_graph_set_error(g, status), NULL;
  for (int i = 0; i < 2; i++) {
    const kr_view layout = {.dtype = kr_graph_dtype(g, given[i]),
                               .stride = {KR_PART(g, given[i])->stride[0], KR_PART(g, given[i])->stride[1],
                                          KR_PART(g, given[i])->stride[2], KR_PART(g, given[i])->stride[3]}};
    kr_dims dims = kr_graph_dims(g, given[i]);
    dims.size[dim] = n;
    if (i) kr_graph_output_like(slice, "out", &layout, dims);
    else kr_graph_input_like(slice, "x", &layout, dims);
  }
  if (kr_graph_status(slice) >= 0) fn(user, slice, X, OUT);
  if (kr_graph_status(slice) < 0) {
    const char *why = kr_arena_print(g->arena, "%s", krait_error_detail());
    kr_graph_fail(g, slice->status, "graph: node %s: %s", name, why);
  }
  return slice;
}

void kr_graph_map_slices(kr_graph *g, const char *name, int dim, int64_t n, kr_slice_fn *fn, void *user, kr_tensor x,
                   kr_tensor out) {
  char of_x[96], of_out[96];
  if (kr_graph_status(g) < 0) return;
  const kr_dims from = kr_graph_dims(g, x), to = kr_graph_dims(g, out);
  if (from.n != to.n || dim < 0 || dim >= from.n || n < 1 || from.size[dim] != to.size[dim]) {
    kr_graph_fail(g, KRAIT_ERR_SHAPE, "graph: node %s: slices of %lld along dimension %d of %s and %s", name,
                  (long long)n, dim, kr_dims_text(from, of_x), kr_dims_text(to, of_out));
    return;
  }
  each_args args = {.dim = 4 - from.n + dim, .n = n};
  const int64_t all = from.size[dim];
  if (all >= n) args.graphs[WHOLE] = record_slice(g, name, dim, n, fn, user, x, out);
  if (all % n) args.graphs[REST] = record_slice(g, name, dim, all % n, fn, user, x, out);
  kr_dims wide[2] = {{.n = 4, .size = {1, 1, 1, 1}}, {.n = 4, .size = {1, 1, 1, 1}}};
  for (int i = 0; i < from.n; i++) {
    wide[0].size[4 - from.n + i] = from.size[i];
    wide[1].size[4 - from.n + i] = to.size[i];
  }
  args.x = kr_graph_view(g, kr_graph_reshape(g, x, wide[0]));
  args.out = kr_graph_view(g, kr_graph_reshape(g, out, wide[1]));
  kr_graph_call(g, name, &each, &args);
}

/* Slices run on one thread each: their graphs are planned for that. */
int32_t kr_graph_plan_slices(kr_graph *g) {
  const krait_ctx_options one = {.size = sizeof one,
                                 .device = KRAIT_DEVICE_CPU,
                                 .caps_mask = g->ctx ? g->ctx->caps : 0,
                                 .n_threads = 1};
  if (!g->slices.n) return KRAIT_OK;
  if (g->ctx && g->ctx->cuda)
    return kr_graph_fail(g, KRAIT_ERR_UNSUPPORTED, "graph: maps are processed slice by slice only on a CPU");
  if (g->ctx) KR_TRY(krait_ctx_open(&one, &g->alone));
  for (size_t i = 0; i < g->slices.n; i++) {
    const int32_t status = kr_graph_plan(*KR_AT(g->slices, kr_graph *, i), g->alone, g->flags);
    if (status < 0) return kr_graph_set_error(g, status);
  }
  return KRAIT_OK;
}

void kr_graph_close_slices(kr_graph *g) {
  for (size_t i = 0; i < g->slices.n; i++) kr_graph_close(KR_AT(g->slices, kr_graph *, i));
  krait_ctx_close(&g->alone);
}

const kr_graph *kr_graph_of_slices(const kr_node *node) {
  return node->op != &each                                ? NULL
         : ((const each_args *)node->args)->graphs[WHOLE] ? ((const each_args *)node->args)->graphs[WHOLE]
                                                          : ((const each_args *)node->args)->graphs[REST];
}

/* measure_cuda.c: times an operator on a GPU with events around a captured graph of calls, so that host time does not
 * count. The calls cycle through copies of the tensors, together three times the L2 cache, so that none finds its
 * inputs there. Host time is measured separately: calls into an empty stream until they return. Then the device's
 * limits: a large copy, and limits.cu. */
#include "measure_cuda.h"

#include <string.h>

#include "alloc.h"
#include "clock.h"
#include "limits_params.h"
#include "status.h"

enum {
  MOST_COPIES = 256,
  MOST_CALLS = 2048,
  FEWEST_RUNS = 3,
  HOST_ROUNDS = 50,
  TRIES = 5,
  ARGS_BYTES = sizeof((kr_measured_call *)0)->args
};
static const double GRAPH_S = 2e-3;

typedef struct device_calls {
  const krait_ctx *ctx;
  const kr_op *op;
  const kr_impl *impl;
  unsigned char *tensors, *args; /* n_copies of each; the tensors on the device */
  void *scratch, *stream, *graph;
  kr_cuda_timer timer;
  size_t copy_bytes;
  uint64_t scratch_bytes;
  int n_copies, n_calls; /* n_calls: of a graph, a multiple of n_copies */
} device_calls;

static kr_call *call_of(device_calls *d, int copy) { return (kr_call *)(d->args + (size_t)copy * ARGS_BYTES); }

/* The device's copy number `copy` of the data at host; NULL stays NULL. */
static void *moved(const device_calls *d, const kr_measured_call *c, int copy, const void *host) {
  unsigned char *at = d->tensors + (size_t)copy * d->copy_bytes;
  for (int i = 0; i < c->n_blocks; i++) {
    const size_t offset = (size_t)((const unsigned char *)host - (const unsigned char *)c->blocks[i]);
    if ((uintptr_t)host >= (uintptr_t)c->blocks[i] && offset < c->block_bytes[i]) return at + offset;
    at += (c->block_bytes[i] + 255) & ~(size_t)255;
  }
  return NULL;
}

static void choose_copies(device_calls *d, const kr_measured_call *c) {
  const kr_device_info *info = kr_cuda_info(d->ctx->cuda);
  for (int i = 0; i < c->n_blocks; i++) d->copy_bytes += (c->block_bytes[i] + 255) & ~(size_t)255;
  if (!d->copy_bytes) d->copy_bytes = 256;
  const int64_t wanted = 3 * info->l2_bytes / (int64_t)d->copy_bytes + 1,
                capacity = info->memory_bytes / 4 / (int64_t)d->copy_bytes;
  d->n_copies = (int)(wanted > MOST_COPIES ? MOST_COPIES : wanted);
  if (d->n_copies > capacity) d->n_copies = capacity > 1 ? (int)capacity : 1;
}

static int32_t copy_tensors(device_calls *d, const kr_measured_call *c) {
  const kr_cuda *cuda = d->ctx->cuda;
  KR_TRY(kr_cuda_alloc(cuda, d->copy_bytes * (size_t)d->n_copies, (void **)&d->tensors));
  for (int i = 0; i < c->n_blocks; i++)
    KR_TRY(kr_cuda_copy_in(cuda, moved(d, c, 0, c->blocks[i]), c->blocks[i], c->block_bytes[i], d->stream));
  for (int k = 1; k < d->n_copies; k++)
    KR_TRY(kr_cuda_copy(cuda, d->tensors + (size_t)k * d->copy_bytes, d->tensors, d->copy_bytes, d->stream));
  return kr_cuda_wait(cuda, d->stream);
}

static void make_args(device_calls *d, const kr_measured_call *c) {
  for (int k = 0; k < d->n_copies; k++) {
    unsigned char *args = (unsigned char *)call_of(d, k);
    memcpy(args, c->args, sizeof c->args);
    kr_view_uses uses = {.args = args};
    kr_op_views(d->op, &uses);
    for (int i = 0; i < uses.n; i++) {
      kr_view *view = (kr_view *)(args + uses.list[i].offset);
      view->data = moved(d, c, k, view->data);
    }
    call_of(d, k)->stream = d->stream;
  }
}

static int32_t give_scratch(device_calls *d) {
  const uint64_t bytes = d->scratch_bytes = d->impl->scratch_bytes ? d->impl->scratch_bytes(d->ctx, call_of(d, 0)) : 0;
  if (bytes) KR_TRY(kr_cuda_alloc(d->ctx->cuda, bytes, &d->scratch));
  for (int k = 0; k < d->n_copies; k++) call_of(d, k)->scratch = d->scratch, call_of(d, k)->scratch_bytes = bytes;
  return KRAIT_OK;
}

static int32_t open_calls(device_calls *d, const kr_measured_call *c) {
  choose_copies(d, c);
  d->args = kr_alloc((size_t)d->n_copies * sizeof c->args);
  KR_CHECK(d->args, KRAIT_ERR_NO_MEMORY, "no memory for %d calls", d->n_copies);
  KR_TRY(kr_cuda_stream_open(d->ctx->cuda, &d->stream));
  KR_TRY(kr_cuda_timer_open(d->ctx->cuda, &d->timer));
  KR_TRY(copy_tensors(d, c));
  make_args(d, c);
  return give_scratch(d);
}

static void close_calls(device_calls *d) {
  const kr_cuda *cuda = d->ctx->cuda;
  if (d->stream) kr_cuda_wait(cuda, d->stream);
  kr_cuda_graph_close(cuda, &d->graph);
  kr_cuda_timer_close(cuda, &d->timer);
  kr_cuda_stream_close(cuda, &d->stream);
  kr_cuda_free(cuda, d->scratch);
  kr_cuda_free(cuda, d->tensors);
  kr_free(d->args);
}

static int32_t enqueue(device_calls *d, int n) {
  for (int i = 0; i < n; i++)
    KR_TRY(kr_op_run_impl(d->op, d->impl, d->ctx, call_of(d, i % d->n_copies), d->scratch_bytes));
  return KRAIT_OK;
}

static int32_t submit(device_calls *d) {
  return d->graph ? kr_cuda_graph_launch(d->ctx->cuda, d->graph, d->stream) : enqueue(d, d->n_calls);
}

/* Seconds of a call. */
static int32_t time_calls(device_calls *d, double *seconds) {
  const kr_cuda *cuda = d->ctx->cuda;
  KR_TRY(kr_cuda_timer_mark(cuda, d->timer.from, d->stream));
  KR_TRY(submit(d));
  KR_TRY(kr_cuda_timer_mark(cuda, d->timer.to, d->stream));
  KR_TRY(kr_cuda_timer_read(cuda, &d->timer, seconds));
  *seconds /= d->n_calls;
  return KRAIT_OK;
}

/* If the driver has no graphs, the calls are launched one by one. */
static int32_t record_measure(device_calls *d) {
  const int32_t status = kr_cuda_graph_begin(d->ctx->cuda, d->stream);
  if (status == KRAIT_ERR_UNSUPPORTED) return KRAIT_OK;
  KR_TRY(status);
  const int32_t recorded = enqueue(d, d->n_calls), ended = kr_cuda_graph_end(d->ctx->cuda, d->stream, &d->graph);
  return recorded < 0 ? recorded : ended;
}

/* Runs all copies once to load the kernels, and once more to choose the number of calls in a graph. */
static int32_t prepare(device_calls *d) {
  double guess_s = 0;
  d->n_calls = d->n_copies;
  KR_TRY(time_calls(d, &guess_s));
  KR_TRY(time_calls(d, &guess_s));
  const double rounds = GRAPH_S / (guess_s * d->n_copies + 1e-7);
  if (rounds > 1)
    d->n_calls = rounds * d->n_copies < MOST_CALLS ? (int)rounds * d->n_copies : MOST_CALLS / d->n_copies * d->n_copies;
  return record_measure(d);
}

static int32_t time_host(device_calls *d, double device_s, double budget_s, double *median_s) {
  double times[HOST_ROUNDS];
  int n = 0, n_calls = (int)(budget_s / FEWEST_RUNS / (device_s + 1e-6));
  n_calls = n_calls > 32 ? 32 : n_calls < 4 ? 4 : n_calls;
  const int64_t begin = kr_clock_ns();
  while (n < HOST_ROUNDS && (n < FEWEST_RUNS || (double)(kr_clock_ns() - begin) * 1e-9 < budget_s)) {
    const int64_t start = kr_clock_ns();
    KR_TRY(enqueue(d, n_calls));
    times[n++] = (double)(kr_clock_ns() - start) * 1e-9 / n_calls;
    KR_TRY(kr_cuda_wait(d->ctx->cuda, d->stream));
  }
  kr_sort_times(times, n);
  *median_s = times[n / 2];
  return KRAIT_OK;
}

static int32_t measure_measure(device_calls *d, double budget_s, krait_op_timing *out) {
  double times[KR_MEASURE_RUNS];
  int n = 0;
  KR_TRY(prepare(d));
  const int64_t begin = kr_clock_ns();
  for (double warm_s; n < 2; n++) KR_TRY(time_calls(d, &warm_s));
  for (n = 0; n < KR_MEASURE_RUNS && (n < FEWEST_RUNS || (double)(kr_clock_ns() - begin) * 1e-9 < 0.6 * budget_s); n++)
    KR_TRY(time_calls(d, &times[n]));
  kr_sort_times(times, n);
  out->n_runs = n * d->n_calls, out->n_copies = d->n_copies, out->from_graph = d->graph != NULL;
  out->best_s = times[0], out->median_s = times[n / 2];
  return time_host(d, out->median_s, 0.3 * budget_s, &out->host_s);
}

int32_t kr_measure_on_device(const krait_ctx *ctx, const kr_op *op, const kr_impl *impl, kr_measured_call *c,
                             double budget_s, krait_op_timing *out) {
  device_calls d = {.ctx = ctx, .op = op, .impl = impl};
  int32_t status = open_calls(&d, c);
  if (status >= 0) status = measure_measure(&d, budget_s, out);
  close_calls(&d);
  return status;
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

typedef struct device_limit {
  const kr_kernel *kernel; /* NULL: copy */
  kr_limit_params plan;
  size_t bytes;            /* of the copy */
  void *to, *from;
  void *stream;
} device_limit;

static int32_t run_measure_cuda_limit(const kr_cuda *cuda, const device_limit *l) {
  if (!l->kernel) return kr_cuda_copy(cuda, l->to, l->from, l->bytes, l->stream);
  const kr_grid grid = {
      .x = 8 * (uint32_t)kr_cuda_info(cuda)->n_multiprocessors, .block = KR_LIMIT_THREADS, .stream = l->stream};
  return kr_cuda_launch(cuda, KRAIT_CAP_CUDA_BASE, l->kernel, &grid, &l->plan, sizeof l->plan);
}

static int32_t measure_cuda_best_rate(const kr_cuda *cuda, const kr_cuda_timer *timer, const device_limit *l,
                                      double work, double *rate) {
  *rate = 0;
  for (int i = -1; i < TRIES; i++) { /* one to warm up */
    double seconds;
    KR_TRY(kr_cuda_timer_mark(cuda, timer->from, l->stream));
    KR_TRY(run_measure_cuda_limit(cuda, l));
    KR_TRY(kr_cuda_timer_mark(cuda, timer->to, l->stream));
    KR_TRY(kr_cuda_timer_read(cuda, timer, &seconds));
    if (i >= 0 && work / (seconds + 1e-9) > *rate) *rate = work / (seconds + 1e-9);
  }
  return KRAIT_OK;
}

static int32_t best_rates(const kr_cuda *cuda, device_limit *l, const kr_cuda_timer *timer, krait_limits *limits) {
  static const kr_kernel fmas = {"limits", "kr_limit_fmas"}, exps = {"limits", "kr_limit_exps"};
  const double per_round =
      8.0 * kr_cuda_info(cuda)->n_multiprocessors * KR_LIMIT_THREADS * KR_LIMIT_CHAINS * KR_LIMIT_STEPS;
  KR_TRY(kr_cuda_fill(cuda, l->from, 0, l->bytes, l->stream));
  KR_TRY(measure_cuda_best_rate(cuda, timer, l, 2.0 * (double)l->bytes, &limits->copy_bytes_per_s));
  l->kernel = &fmas, l->plan.rounds = 2048; /* about a millisecond each */
  KR_TRY(measure_cuda_best_rate(cuda, timer, l, 2.0 * per_round * l->plan.rounds, &limits->flops_per_s));
  l->kernel = &exps, l->plan.rounds = 256;
  return measure_cuda_best_rate(cuda, timer, l, per_round * l->plan.rounds, &limits->exps_per_s);
}

/* Copies up to 1 GiB, so that caches and launch overhead do not matter. */
int32_t kr_measure_device_limits(const krait_ctx *ctx, krait_limits *limits) {
  const kr_cuda *cuda = ctx->cuda;
  kr_cuda_timer timer = {0};
  device_limit l = {.bytes = (size_t)1 << 30, .plan = {.factor = 0.999f, .summand = 0.001f}};
  while (l.bytes > (size_t)kr_cuda_info(cuda)->memory_bytes / 16) l.bytes /= 2;
  const size_t out_bytes = (size_t)kr_cuda_info(cuda)->n_multiprocessors * 8 * KR_LIMIT_THREADS * 4;
  if (l.bytes < out_bytes) l.bytes = out_bytes;
  int32_t status = kr_cuda_stream_open(cuda, &l.stream);
  if (status >= 0) status = kr_cuda_timer_open(cuda, &timer);
  if (status >= 0) status = kr_cuda_alloc(cuda, l.bytes, &l.from);
  if (status >= 0) status = kr_cuda_alloc(cuda, l.bytes, &l.to);
  l.plan.out = l.to;
  if (status >= 0) status = best_rates(cuda, &l, &timer, limits);
  kr_cuda_free(cuda, l.to);
  kr_cuda_free(cuda, l.from);
  kr_cuda_timer_close(cuda, &timer);
  kr_cuda_stream_close(cuda, &l.stream);
  return status;
}

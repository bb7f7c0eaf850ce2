/* primeknet_device.c: windows on a GPU: as many of a batch at once as fit the memory that it allows itself; a graph for
 * each shape, which take turns in one block of memory. */
#include "primeknet_device.h"

#include <stdio.h>

#include "alloc.h"
#include "primeknet_model.h"
#include "status.h"

static const uint64_t most_bytes = (uint64_t)900 << 20; /* unless a single window needs more */

enum { N_SHAPES = 8, LINE = 256 };

typedef struct shape {
  int64_t n_items, T, last_run;
  kr_graph *graph;
  kr_runner *runner; /* NULL: since the memory moved it has not run */
  kr_pk_graph io;
} shape;

struct pk_device {
  const kr_primeknet *model;
  const kr_cuda *cuda;
  void *stream;
  kr_cuda_timer timer;
  char *memory; /* spectra, then the graph's */
  uint64_t memory_bytes;
  int64_t n_runs;
  shape shapes[N_SHAPES];
};

/* Where the spectra of n windows lie. */
typedef struct spectra {
  uint64_t com_in, mag, pha, com, bytes;
} spectra;

static spectra spectra_of(const pk_device *d, int64_t n_items, int64_t T) {
  const uint64_t plane = (uint64_t)(n_items * kr_primeknet_config(d->model)->F * T) * sizeof(float),
                 own = (plane + LINE - 1) / LINE * LINE;
  return (spectra){.com_in = 0, .mag = 2 * own, .pha = 3 * own, .com = 4 * own, .bytes = 6 * own};
}

/* ---- shapes ---- */

static void close_shape(shape *s) {
  kr_runner_close(&s->runner);
  kr_graph_close(&s->graph);
  *s = (shape){0};
}

static int32_t plan_shape(const pk_device *d, int64_t n_items, int64_t T, shape *s) {
  *s = (shape){.n_items = n_items, .T = T};
  int32_t status = pk_model_record(d->model, pk_parameter_of, n_items, T, KR_PK_MAG | KR_PK_PHA | KR_PK_COM, &s->graph,
                                   &s->io);
  if (status >= 0) status = kr_graph_plan(s->graph, d->model->ctx, KR_PLAN_CONSTANT);
  if (status < 0) close_shape(s);
  return status;
}

/* The one that there is, or a new one in place of that which has not run for longest. */
static int32_t find_shape(pk_device *d, int64_t n_items, int64_t T, shape **found) {
  shape *oldest = d->shapes;
  for (int i = 0; i < N_SHAPES; i++) {
    shape *s = *found = &d->shapes[i];
    if (s->graph && s->n_items == n_items && s->T == T) return KRAIT_OK;
    if (s->last_run < oldest->last_run) oldest = s;
  }
  close_shape(oldest);
  *found = oldest;
  return plan_shape(d, n_items, T, oldest);
}

static int32_t get_memory(pk_device *d, uint64_t bytes) {
  if (bytes <= d->memory_bytes) return KRAIT_OK;
  for (int i = 0; i < N_SHAPES; i++) kr_runner_close(&d->shapes[i].runner);
  kr_cuda_free(d->cuda, d->memory);
  d->memory = NULL, d->memory_bytes = 0;
  KR_TRY(kr_cuda_alloc(d->cuda, bytes, (void **)&d->memory));
  d->memory_bytes = bytes;
  return KRAIT_OK;
}

static int32_t make_ready(pk_device *d, shape *s) {
  const spectra at = spectra_of(d, s->n_items, s->T);
  KR_TRY(get_memory(d, at.bytes + kr_graph_bytes(s->graph)));
  s->last_run = ++d->n_runs;
  if (s->runner) return KRAIT_OK;
  KR_TRY(kr_runner_open_in(s->graph, d->memory + at.bytes, d->memory_bytes - at.bytes, &s->runner));
  KR_TRY(kr_runner_bind(s->runner, s->io.com_in, d->memory + at.com_in));
  KR_TRY(kr_runner_bind(s->runner, s->io.mag, d->memory + at.mag));
  KR_TRY(kr_runner_bind(s->runner, s->io.pha, d->memory + at.pha));
  return kr_runner_bind(s->runner, s->io.com, d->memory + at.com);
}

/* Windows of the batch at once, in groups of equal size. */
static int32_t group_of(pk_device *d, int64_t B, int64_t T, int64_t *n) {
  shape *s;
  *n = B;
  for (int round = 0; round < 2 && *n > 1; round++) {
    KR_TRY(find_shape(d, *n, T, &s));
    const uint64_t bytes = spectra_of(d, *n, T).bytes + kr_graph_bytes(s->graph);
    if (bytes <= most_bytes) return KRAIT_OK;
    close_shape(s);
    int64_t most = (int64_t)((double)*n * (double)most_bytes / (double)bytes);
    if (most < 1) most = 1;
    const int64_t n_groups = (B + most - 1) / most;
    *n = (B + n_groups - 1) / n_groups;
  }
  return KRAIT_OK;
}

/* ---- a pass ---- */

static int32_t copy_results(const pk_device *d, const shape *s, int64_t first, float *mag, float *pha, float *com) {
  const int64_t plane = kr_primeknet_config(d->model)->F * s->T;
  const size_t bytes = (size_t)(s->n_items * plane) * sizeof(float);
  const spectra at = spectra_of(d, s->n_items, s->T);
  if (mag) KR_TRY(kr_cuda_copy_out(d->cuda, mag + first * plane, d->memory + at.mag, bytes, d->stream));
  if (pha) KR_TRY(kr_cuda_copy_out(d->cuda, pha + first * plane, d->memory + at.pha, bytes, d->stream));
  if (com) KR_TRY(kr_cuda_copy_out(d->cuda, com + first * plane * 2, d->memory + at.com, 2 * bytes, d->stream));
  return kr_cuda_wait(d->cuda, d->stream);
}

static int32_t run_group(pk_device *d, const shape *s, const float *com_in, double *seconds) {
  const size_t bytes = (size_t)(s->n_items * kr_primeknet_config(d->model)->F * s->T) * 2 * sizeof(float);
  double one = 0;
  KR_TRY(kr_cuda_copy_in(d->cuda, d->memory + spectra_of(d, s->n_items, s->T).com_in, com_in, bytes, d->stream));
  KR_TRY(kr_cuda_timer_mark(d->cuda, d->timer.from, d->stream));
  KR_TRY(kr_runner_run(s->runner, d->stream));
  KR_TRY(kr_cuda_timer_mark(d->cuda, d->timer.to, d->stream));
  KR_TRY(kr_cuda_timer_read(d->cuda, &d->timer, &one));
  *seconds += one;
  return KRAIT_OK;
}

int32_t pk_device_forward(pk_device *d, int64_t B, int64_t T, const float *com_in, float *mag, float *pha, float *com,
                          double *seconds) {
  const int64_t plane = kr_primeknet_config(d->model)->F * T;
  int64_t group;
  *seconds = 0;
  KR_TRY(group_of(d, B, T, &group));
  for (int64_t b = 0; b < B; b += group) {
    shape *s;
    KR_TRY(find_shape(d, B - b < group ? B - b : group, T, &s));
    KR_TRY(make_ready(d, s));
    KR_TRY(run_group(d, s, com_in + b * plane * 2, seconds));
    KR_TRY(copy_results(d, s, b, mag, pha, com));
  }
  return KRAIT_OK;
}

typedef struct listener {
  krait_kernel_fn report;
  void *user;
} listener;

static void tell(void *user, const char *name, const char *op, const char *row, int64_t n_calls, double seconds) {
  const listener *l = user;
  char text[96];
  snprintf(text, sizeof text, "%s (%s)", name, op);
  (void)row;
  l->report(l->user, text, n_calls, seconds, 0, 0);
}

/* Of the batch's first group. */
int32_t pk_device_kernels(pk_device *d, int64_t B, int64_t T, const float *com_in, krait_kernel_fn report, void *user) {
  listener l = {report, user};
  int64_t group;
  shape *s;
  double seconds = 0;
  if (B < 1) return KRAIT_OK;
  KR_TRY(group_of(d, B, T, &group));
  KR_TRY(find_shape(d, group, T, &s));
  KR_TRY(make_ready(d, s));
  KR_TRY(run_group(d, s, com_in, &seconds));
  return kr_runner_kinds(s->runner, tell, &l);
}

int32_t pk_device_open(const kr_primeknet *model, pk_device **device) {
  pk_device *d = *device = kr_zalloc(sizeof *d);
  KR_CHECK(d, KRAIT_ERR_NO_MEMORY, "no memory for a session");
  d->model = model;
  d->cuda = model->ctx->cuda;
  int32_t status = kr_cuda_stream_open(d->cuda, &d->stream);
  if (status >= 0) status = kr_cuda_timer_open(d->cuda, &d->timer);
  if (status < 0) pk_device_close(device);
  return status;
}

void pk_device_close(pk_device **device) {
  pk_device *d = *device;
  *device = NULL;
  if (!d) return;
  for (int i = 0; i < N_SHAPES; i++) close_shape(&d->shapes[i]);
  kr_cuda_timer_close(d->cuda, &d->timer);
  kr_cuda_stream_close(d->cuda, &d->stream);
  kr_cuda_free(d->cuda, d->memory);
  kr_free(d);
}

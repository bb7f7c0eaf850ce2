/* primeknet_session.c: models, and windows through them (MODEL.md): on a CPU one after the other, in the caller's
 * memory; on a GPU as many of a batch at once as fit the memory that it allows itself. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "graph_shapes.h"
#include "primeknet_model.h"
#include "primeknet_stream.h"
#include "status.h"

/* ---- models ---- */

/* How a GPU runs it: with all that the fused operators take. */
static int fused_for(const kr_primeknet *m) {
  if (m->config.n_kernels > 8) return KR_PK_APART;
  return m->ctx->caps & KRAIT_CAP_CUDA_AMPERE && !m->is_exact ? KR_PK_HALF_FACTORS : KR_PK_FUSED;
}

int32_t pk_model_record(const kr_primeknet *m, kr_pk_parameter_fn *parameter, int64_t B, int64_t T, uint32_t outputs,
                        kr_graph *g, kr_tensor *tensors) {
  const int64_t F = m->config.F;
  const int streams = m->config.streams, is_window = !streams && parameter == pk_parameter_of;
  const kr_tensor com_in = kr_graph_input(g, "com_in", KRAIT_F32, KR_DIMS(B, F, T, 2));
  kr_pk_graph io = {.com_in = com_in,
                    .fixed = streams ? parameter : NULL,
                    .has_past = streams,
                    .in_slices = is_window && !m->ctx->cuda,
                    .fused = is_window && m->ctx->cuda ? fused_for(m) : KR_PK_APART};
  if (outputs & KR_PK_MAG) io.mag = kr_graph_output(g, "mag", KRAIT_F32, KR_DIMS(B, F, T));
  if (outputs & KR_PK_PHA) io.pha = kr_graph_output(g, "pha", KRAIT_F32, KR_DIMS(B, F, T));
  if (outputs & KR_PK_COM) io.com = kr_graph_output(g, "com", KRAIT_F32, KR_DIMS(B, F, T, 2));
  const kr_tensor all[] = {com_in, io.mag, io.pha, io.com};
  memcpy(tensors, all, sizeof all);
  kr_pk_graph_record(g, &m->config, parameter, (void *)&m->parameters, &io);
  return kr_graph_status(g);
}

/* Every parameter is there, and nothing else. */
static int32_t check(const kr_primeknet *m) {
  kr_graph *g = NULL;
  kr_tensor tensors[KR_PK_TENSORS];
  KR_TRY(kr_graph_open(&g));
  const int32_t status = pk_model_record(m, pk_parameter_taken, 1, 1, KR_PK_MAG | KR_PK_PHA, g, tensors);
  kr_graph_close(&g);
  if (m->parameters.status >= 0) KR_TRY(status);
  return pk_parameters_check(&m->parameters);
}

static int32_t open_parts(const kr_weights *weights, kr_primeknet *m) {
  KR_TRY(pk_parameters_open(weights, m->config.streams, &m->parameters));
  return check(m);
}

int32_t kr_primeknet_open(const krait_ctx *ctx, const kr_pk_config *config, const kr_weights *weights,
                          int32_t precision, kr_primeknet **model) {
  *model = NULL;
  kr_primeknet *m = *model = kr_zalloc(sizeof *m);
  KR_CHECK(m, KRAIT_ERR_NO_MEMORY, "no memory for the model");
  m->ctx = ctx, m->config = *config, m->is_exact = precision == KRAIT_PRECISION_FP32;
  const int32_t status = open_parts(weights, m);
  if (status < 0) kr_primeknet_close(model);
  return status;
}

void kr_primeknet_close(kr_primeknet **model) {
  if (!*model) return;
  pk_parameters_close(&(*model)->parameters);
  kr_free(*model);
  *model = NULL;
}

const kr_pk_config *kr_primeknet_config(const kr_primeknet *model) { return &model->config; }

/* ---- windows ---- */

static const uint64_t most_bytes = (uint64_t)900 << 20; /* of a GPU, unless a single window needs more */

struct kr_pk_session {
  const kr_primeknet *model;
  struct pk_chunks *chunks; /* of a model that streams; then nothing below is used */
  kr_shapes shapes;         /* by windows, frames, outputs */
  void *stream;             /* of a GPU, and its time */
  kr_cuda_timer timer;
  int64_t batch[2], group;  /* windows and frames of the last batch that was cut, and how many go at once */
  double device_s;
};

static int32_t record(const void *user, const int64_t *key, kr_graph *g, kr_tensor *tensors) {
  return pk_model_record(user, pk_parameter_of, key[0], key[1], (uint32_t)key[2], g, tensors);
}

static int32_t open_parts_of(kr_pk_session *s) {
  const kr_cuda *cuda = s->model->ctx->cuda;
  s->shapes = (kr_shapes){.ctx = s->model->ctx,
                          .record = record,
                          .user = s->model,
                          .most = cuda ? KR_MOST_SHAPES : 1,
                          .flags = KR_PLAN_CONSTANT};
  if (s->model->config.streams)
    return pk_chunks_open(s->model, cuda ? KR_PK_WINDOW_CHUNK_GPU : KR_PK_WINDOW_CHUNK, &s->chunks);
  if (cuda) KR_TRY(kr_cuda_stream_open(cuda, &s->stream));
  return cuda ? kr_cuda_timer_open(cuda, &s->timer) : KRAIT_OK;
}

int32_t kr_pk_session_open(const kr_primeknet *model, kr_pk_session **session) {
  kr_pk_session *s = *session = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory for a session");
  s->model = model;
  const int32_t status = open_parts_of(s);
  if (status < 0) kr_pk_session_close(session);
  return status;
}

void kr_pk_session_close(kr_pk_session **session) {
  kr_pk_session *s = *session;
  if (!s) return;
  const kr_cuda *cuda = s->model->ctx->cuda;
  pk_chunks_close(&s->chunks);
  kr_shapes_close(&s->shapes);
  if (cuda) kr_cuda_timer_close(cuda, &s->timer), kr_cuda_stream_close(cuda, &s->stream);
  kr_free(s);
  *session = NULL;
}

/* Spectra of a group of windows: com_in, mag, pha, com. */
enum { FLOATS_OF_A_BIN = 6 };
static uint64_t plane_floats(const kr_pk_session *s, int64_t n, int64_t T) {
  return ((uint64_t)(n * s->model->config.F * T) + 63) / 64 * 64;
}
static uint64_t spectra_bytes(const kr_pk_session *s, int64_t n, int64_t T) {
  return s->model->ctx->cuda ? FLOATS_OF_A_BIN * plane_floats(s, n, T) * sizeof(float) : 0;
}

static int32_t find(kr_pk_session *s, int64_t n, int64_t T, uint32_t outputs, kr_shape_graph **shape) {
  return kr_shapes_find(&s->shapes, (const int64_t[]){n, T, outputs}, shape);
}

/* Windows of the batch at once, in groups of equal size. */
static int32_t group_of(kr_pk_session *s, int64_t B, int64_t T, uint32_t outputs, int64_t *n) {
  kr_shape_graph *shape;
  *n = !s->model->ctx->cuda ? 1 : s->batch[0] == B && s->batch[1] == T ? s->group : B;
  for (int round = 0; round < 2 && *n > 1; round++) {
    KR_TRY(find(s, *n, T, outputs, &shape));
    const uint64_t bytes = spectra_bytes(s, *n, T) + kr_graph_bytes(shape->graph);
    if (bytes <= most_bytes) return KRAIT_OK;
    kr_shapes_drop(shape);
    const int64_t fit = (int64_t)((double)*n * (double)most_bytes / (double)bytes), most = fit < 1 ? 1 : fit,
                  n_groups = (B + most - 1) / most;
    *n = (B + n_groups - 1) / n_groups;
  }
  s->batch[0] = B, s->batch[1] = T, s->group = *n;
  return KRAIT_OK;
}

/* Ready to run; at: its four tensors, on a GPU in memory of its own. */
static int32_t make_ready(kr_pk_session *s, kr_shape_graph *shape, float **at) {
  const uint64_t plane = plane_floats(s, shape->key[0], shape->key[1]);
  char *memory;
  int is_new;
  KR_TRY(kr_shapes_ready(&s->shapes, shape, spectra_bytes(s, shape->key[0], shape->key[1]), &memory, &is_new));
  for (int i = 0; i < KR_PK_TENSORS && s->model->ctx->cuda; i++)
    at[i] = (float *)memory + (uint64_t)(i ? i + 1 : 0) * plane;
  for (int i = 0; i < KR_PK_TENSORS; i++)
    if (shape->tensors[i] && (is_new || !s->model->ctx->cuda))
      KR_TRY(kr_runner_bind(shape->runner, shape->tensors[i], at[i]));
  return KRAIT_OK;
}

static int32_t run_there(kr_pk_session *s, const kr_shape_graph *shape, float *const *there, float *const *here) {
  const kr_cuda *cuda = s->model->ctx->cuda;
  const size_t bytes = (size_t)(shape->key[0] * s->model->config.F * shape->key[1]) * sizeof(float);
  double seconds = 0;
  KR_TRY(kr_cuda_copy_in(cuda, there[0], here[0], 2 * bytes, s->stream));
  KR_TRY(kr_cuda_timer_mark(cuda, s->timer.from, s->stream));
  KR_TRY(kr_runner_run(shape->runner, s->stream));
  KR_TRY(kr_cuda_timer_mark(cuda, s->timer.to, s->stream));
  KR_TRY(kr_cuda_timer_read(cuda, &s->timer, &seconds));
  s->device_s += seconds;
  for (int i = 1; i < KR_PK_TENSORS; i++)
    if (here[i]) KR_TRY(kr_cuda_copy_out(cuda, here[i], there[i], i == 3 ? 2 * bytes : bytes, s->stream));
  return kr_cuda_wait(cuda, s->stream);
}

static int32_t forward(kr_pk_session *s, int64_t B, int64_t T, float *const *spectra) {
  const kr_pk_config *c = &s->model->config;
  const int64_t plane = c->F * T;
  int64_t group;
  uint32_t outputs = KR_PK_MAG | KR_PK_PHA | KR_PK_COM;
  /* Far above what memory holds, far below where sizes overflow. */
  KR_CHECK(T <= (int64_t)1 << 40 && T * c->fft_len <= ((int64_t)1 << 46) / (c->C * (c->depth + 2)), KRAIT_ERR_SHAPE,
           "T is %lld, too many frames for one window", (long long)T);
  for (int i = 1; i < KR_PK_TENSORS && !s->model->ctx->cuda; i++)
    if (!spectra[i]) outputs &= ~(1u << (i - 1));
  KR_TRY(group_of(s, B, T, outputs, &group));
  s->device_s = 0;
  for (int64_t b = 0; b < B; b += group) {
    float *here[KR_PK_TENSORS], *at[KR_PK_TENSORS];
    kr_shape_graph *shape;
    for (int i = 0; i < KR_PK_TENSORS; i++)
      here[i] = at[i] = spectra[i] ? spectra[i] + b * plane * (i == 0 || i == 3 ? 2 : 1) : NULL;
    KR_TRY(find(s, B - b < group ? B - b : group, T, outputs, &shape));
    KR_TRY(make_ready(s, shape, at));
    KR_TRY(s->model->ctx->cuda ? run_there(s, shape, at, here) : kr_runner_run(shape->runner, NULL));
  }
  return KRAIT_OK;
}

/* Windows through a model that streams, a chunk after the other. */
static int32_t forward_chunks(kr_pk_session *s, int64_t B, int64_t T, const float *com_in, float *mag, float *pha,
                              float *com) {
  const int64_t plane = s->model->config.F * T, chunk = pk_chunks_size(s->chunks);
  float *own = com ? kr_alloc_array((size_t)plane, 2 * sizeof *own) : NULL;
  KR_CHECK(own || !com, KRAIT_ERR_NO_MEMORY, "no memory for a window of %lld frames", (long long)T);
  int32_t status = KRAIT_OK;
  for (int64_t b = 0; b < B && status >= 0; b++) {
    float *const to_mag = com   ? own
                          : mag ? mag + b * plane
                                : NULL,
                 *const to_pha = com   ? own + plane
                                 : pha ? pha + b * plane
                                       : NULL;
    status = pk_chunks_reset(s->chunks);
    for (int64_t t = 0; t < T && status >= 0; t += chunk) {
      const int64_t n = T - t < chunk ? T - t : chunk;
      status = pk_chunks_run(s->chunks, com_in + 2 * b * plane, T, t, n, to_mag, to_pha);
    }
    for (int64_t i = 0; i < plane && com && status >= 0; i++) {
      if (mag) mag[b * plane + i] = to_mag[i];
      if (pha) pha[b * plane + i] = to_pha[i];
      com[2 * (b * plane + i)] = to_mag[i] * cosf(to_pha[i]),
                           com[2 * (b * plane + i) + 1] = to_mag[i] * sinf(to_pha[i]);
    }
  }
  kr_free(own);
  return status;
}

static int32_t check_sizes(int64_t B, int64_t T) {
  KR_CHECK(B >= 0 && T >= 1, KRAIT_ERR_SHAPE,
           "primeknet: B is %lld and T is %lld; B must not be negative and T at least 1", (long long)B, (long long)T);
  return KRAIT_OK;
}

int32_t kr_pk_forward(kr_pk_session *s, int64_t B, int64_t T, const float *com_in, float *mag, float *pha, float *com) {
  KR_TRY(check_sizes(B, T));
  KR_CHECK(com_in, KRAIT_ERR_ARGUMENT, "primeknet: com_in must be given");
  if (s->chunks) return forward_chunks(s, B, T, com_in, mag, pha, com);
  return forward(s, B, T, (float *const[]){(float *)com_in, mag, pha, com});
}

double kr_pk_device_seconds(const kr_pk_session *session) { return session->device_s; }

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
int32_t kr_pk_kernels(kr_pk_session *s, int64_t B, int64_t T, const float *com_in, krait_kernel_fn report, void *user) {
  const uint32_t all = KR_PK_MAG | KR_PK_PHA | KR_PK_COM;
  listener l = {report, user};
  kr_shape_graph *shape;
  int64_t group;
  KR_TRY(check_sizes(B, T));
  KR_CHECK(s->model->ctx->cuda && !s->chunks, KRAIT_ERR_UNSUPPORTED, "kernels are timed on a GPU only");
  if (B < 1) return KRAIT_OK;
  KR_TRY(forward(s, B, T, (float *const[]){(float *)com_in, NULL, NULL, NULL}));
  KR_TRY(group_of(s, B, T, all, &group));
  KR_TRY(find(s, group, T, all, &shape));
  float *at[KR_PK_TENSORS];
  KR_TRY(make_ready(s, shape, at));
  return kr_runner_kinds(shape->runner, tell, &l);
}

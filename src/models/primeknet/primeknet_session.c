/* primeknet_session.c: models, and windows through them (MODEL.md): on a CPU a graph for windows of a length, which is
 * kept until another length comes. */
#include <math.h>

#include "alloc.h"
#include "primeknet_device.h"
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
                        kr_graph **g, kr_pk_graph *io) {
  const int64_t F = m->config.F;
  const int streams = m->config.streams, is_window = !streams && parameter == pk_parameter_of;
  KR_TRY(kr_graph_open(g));
  const kr_tensor com_in = kr_graph_input(*g, "com_in", KRAIT_F32, KR_DIMS(B, F, T, 2));
  *io = (kr_pk_graph){.com_in = com_in,
                      .fixed = streams ? parameter : NULL,
                      .has_past = streams,
                      .in_slices = is_window && !m->ctx->cuda,
                      .fused = is_window && m->ctx->cuda ? fused_for(m) : KR_PK_APART};
  if (outputs & KR_PK_MAG) io->mag = kr_graph_output(*g, "mag", KRAIT_F32, KR_DIMS(B, F, T));
  if (outputs & KR_PK_PHA) io->pha = kr_graph_output(*g, "pha", KRAIT_F32, KR_DIMS(B, F, T));
  if (outputs & KR_PK_COM) io->com = kr_graph_output(*g, "com", KRAIT_F32, KR_DIMS(B, F, T, 2));
  kr_pk_graph_record(*g, &m->config, parameter, (void *)&m->parameters, io);
  return kr_graph_status(*g);
}

/* Every parameter is there, and nothing else. */
static int32_t check(const kr_primeknet *m) {
  kr_graph *g = NULL;
  kr_pk_graph io;
  const int32_t status = pk_model_record(m, pk_parameter_taken, 1, 1, KR_PK_MAG | KR_PK_PHA, &g, &io);
  kr_graph_close(&g);
  if (m->parameters.status >= 0) KR_TRY(status);
  return pk_parameters_check(&m->parameters);
}

static int32_t open_parts(const kr_weights *weights, kr_primeknet *m) {
  KR_TRY(pk_parameters_open(weights, m->config.streams, &m->parameters));
  KR_TRY(check(m));
  return m->config.streams ? pk_parameters_move(&m->parameters, m->ctx) : KRAIT_OK;
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

struct kr_pk_session {
  const kr_primeknet *model;
  pk_device *device;                /* on a GPU; then nothing below is used but device_s */
  struct pk_chunks *chunks;         /* of a model that streams: likewise */
  double device_s;
  int64_t T; /* what the graph is for; 0: there is none */
  uint32_t outputs;
  kr_graph *graph;
  kr_runner *runner;
  kr_pk_graph io;
};

int32_t kr_pk_session_open(const kr_primeknet *model, kr_pk_session **session) {
  kr_pk_session *s = *session = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory for a session");
  s->model = model;
  int32_t status = KRAIT_OK;
  if (model->config.streams)
    status = pk_chunks_open(model, model->ctx->cuda ? KR_PK_WINDOW_CHUNK_GPU : KR_PK_WINDOW_CHUNK, &s->chunks);
  else if (model->ctx->cuda) status = pk_device_open(model, &s->device);
  if (status < 0) kr_pk_session_close(session);
  return status;
}

static void close_graph(kr_pk_session *s) {
  kr_runner_close(&s->runner);
  kr_graph_close(&s->graph);
  s->T = 0;
}

void kr_pk_session_close(kr_pk_session **session) {
  if (!*session) return;
  pk_device_close(&(*session)->device);
  pk_chunks_close(&(*session)->chunks);
  close_graph(*session);
  kr_free(*session);
  *session = NULL;
}

static int32_t open_graph(kr_pk_session *s, int64_t T, uint32_t outputs) {
  KR_TRY(pk_model_record(s->model, pk_parameter_of, 1, T, outputs, &s->graph, &s->io));
  KR_TRY(kr_graph_plan(s->graph, s->model->ctx, KR_PLAN_CONSTANT));
  return kr_runner_open(s->graph, &s->runner);
}

static int32_t prepare(kr_pk_session *s, int64_t T, uint32_t outputs) {
  if (s->T == T && s->outputs == outputs) return KRAIT_OK;
  close_graph(s);
  const int32_t status = open_graph(s, T, outputs);
  if (status < 0) return close_graph(s), status;
  s->T = T, s->outputs = outputs;
  return KRAIT_OK;
}

static int32_t forward(kr_pk_session *s, int64_t B, int64_t T, const float *com_in, float *mag, float *pha,
                       float *com) {
  const int64_t plane = s->model->config.F * T;
  KR_TRY(prepare(s, T, (mag ? KR_PK_MAG : 0) | (pha ? KR_PK_PHA : 0) | (com ? KR_PK_COM : 0)));
  for (int64_t b = 0; b < B; b++) {
    KR_TRY(kr_runner_bind(s->runner, s->io.com_in, (void *)(com_in + 2 * b * plane)));
    if (mag) KR_TRY(kr_runner_bind(s->runner, s->io.mag, mag + b * plane));
    if (pha) KR_TRY(kr_runner_bind(s->runner, s->io.pha, pha + b * plane));
    if (com) KR_TRY(kr_runner_bind(s->runner, s->io.com, com + 2 * b * plane));
    KR_TRY(kr_runner_run(s->runner, NULL));
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

static int32_t check_sizes(const kr_pk_config *c, int64_t B, int64_t T) {
  KR_CHECK(B >= 0 && T >= 1, KRAIT_ERR_SHAPE,
           "primeknet: B is %lld and T is %lld; B must not be negative and T at least 1", (long long)B, (long long)T);
  /* Far above what memory holds, far below where sizes overflow. */
  KR_CHECK(T <= (int64_t)1 << 40 && T * c->fft_len <= ((int64_t)1 << 46) / (c->C * (c->depth + 2)), KRAIT_ERR_SHAPE,
           "T is %lld, too many frames for one window", (long long)T);
  return KRAIT_OK;
}

int32_t kr_pk_forward(kr_pk_session *s, int64_t B, int64_t T, const float *com_in, float *mag, float *pha, float *com) {
  KR_TRY(check_sizes(&s->model->config, B, T));
  KR_CHECK(com_in, KRAIT_ERR_ARGUMENT, "primeknet: com_in must be given");
  if (s->chunks) return forward_chunks(s, B, T, com_in, mag, pha, com);
  if (s->device) return pk_device_forward(s->device, B, T, com_in, mag, pha, com, &s->device_s);
  return forward(s, B, T, com_in, mag, pha, com);
}

double kr_pk_device_seconds(const kr_pk_session *session) { return session->device_s; }

int32_t kr_pk_kernels(kr_pk_session *s, int64_t B, int64_t T, const float *com_in, krait_kernel_fn report, void *user) {
  KR_TRY(check_sizes(&s->model->config, B, T));
  KR_CHECK(s->device, KRAIT_ERR_UNSUPPORTED, "kernels are timed on a GPU only");
  return pk_device_kernels(s->device, B, T, com_in, report, user);
}

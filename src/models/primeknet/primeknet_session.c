/* primeknet_session.c: runs windows through a model (MODEL.md): on a CPU one after another, in the caller's memory; on
 * a GPU, as spectra or samples, as many of a batch at once as fit its memory limit; for a streaming model some frames
 * at a time. */
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "graph_shapes.h"
#include "primeknet.h"
#include "status.h"

static const uint64_t most_bytes = (uint64_t)900 << 20; /* on a GPU, unless a single window needs more */

/* com_in, mag, pha and com: floats per bin, and the offset of each. */
static const int64_t width[KR_PK_TENSORS] = {2, 1, 1, 2}, begin[KR_PK_TENSORS] = {0, 2, 3, 4};
enum { FLOATS_OF_A_BIN = 6, ALL_OUTPUTS = KR_PK_MAG | KR_PK_PHA | KR_PK_COM };

struct kr_pk_session {
  const kr_primeknet *model;
  const kr_cuda *cuda; /* NULL: a CPU */
  int64_t F;
  kr_shapes shapes;        /* by windows, frames, outputs */
  int64_t batch[3], group; /* key of the last batch that was split, and its windows per run */
  int64_t chunk;           /* frames per run; 0: whole windows */
  float *frames;           /* their spectra */
};

/* Frames per run for whole windows, so that they fit a CPU's caches. */
enum { CHUNK = 8, CHUNK_GPU = 64 };

static int32_t open_pk_session_parts(kr_pk_session *s, int64_t chunk) {
  const krait_ctx *ctx = s->model->ctx;
  s->cuda = ctx->cuda, s->F = s->model->config.F;
  s->shapes = (kr_shapes){.ctx = ctx,
                          .record = kr_primeknet_record,
                          .user = s->model,
                          .most = ctx->cuda ? KR_MOST_SHAPES : 1,
                          .flags = kr_primeknet_plan_flags(s->model)};
  KR_TRY(kr_shapes_open(&s->shapes));
  if (!s->model->config.streams) return KRAIT_OK;
  s->chunk = chunk ? chunk : s->cuda ? CHUNK_GPU : CHUNK;
  s->frames = kr_alloc_array((size_t)(s->F * s->chunk), FLOATS_OF_A_BIN * sizeof *s->frames);
  KR_CHECK(s->frames, KRAIT_ERR_NO_MEMORY, "no memory for chunks of %lld frames", (long long)s->chunk);
  return KRAIT_OK;
}

int32_t kr_pk_session_open(const kr_primeknet *model, int64_t chunk, kr_pk_session **session) {
  kr_pk_session *s = *session = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory for a session");
  s->model = model;
  const int32_t status = open_pk_session_parts(s, chunk);
  if (status < 0) kr_pk_session_close(session);
  return status;
}

void kr_pk_session_close(kr_pk_session **session) {
  kr_pk_session *s = *session;
  if (!s) return;
  kr_shapes_close(&s->shapes);
  kr_free(s->frames);
  kr_free(s);
  *session = NULL;
}

/* ---- one graph ---- */

/* A window's floats of tensor i. */
static int64_t floats_of(const kr_pk_session *s, int64_t T, uint32_t outputs, int i) {
  const int64_t samples = (T - 1) * (s->model->config.fft_len / 4);
  if (outputs == KR_PK_WAV) return i == 1 ? 2 * s->F : samples;
  return width[i] * s->F * T;
}

static int32_t find_pk_session(kr_pk_session *s, int64_t n, int64_t T, uint32_t outputs, kr_shape_graph **shape) {
  return kr_shapes_find(&s->shapes, (const int64_t[]){n, T, outputs}, shape);
}

/* Runs n windows of T frames; on a GPU it only starts them. */
static int32_t run_pk_session(kr_pk_session *s, int64_t n, int64_t T, uint32_t outputs, float *const *here) {
  kr_shape_graph *shape;
  KR_TRY(find_pk_session(s, n, T, outputs, &shape));
  return kr_shapes_run(&s->shapes, shape, here);
}

int32_t kr_pk_finish(kr_pk_session *s) { return kr_shapes_finish(&s->shapes); }

/* ---- streaming ---- */

static float *own_frames(const kr_pk_session *s, int i) { return s->frames + begin[i] * s->F * s->chunk; }

/* Copies n frames of tensor i to or from those that the graph has. */
static void copy_frames(const kr_pk_session *s, int i, float *there, int64_t T, int64_t first, int64_t n) {
  const int64_t w = width[i];
  for (int64_t f = 0; f < s->F && there; f++) {
    float *at = there + w * (f * T + first), *here = own_frames(s, i) + w * f * s->chunk;
    memcpy(i ? at : here, i ? here : at, (size_t)(w * n) * sizeof *at);
  }
}

static void take_frames(const kr_pk_session *s, const float *com_in, int64_t T, int64_t first, int64_t n) {
  if (n < s->chunk) memset(s->frames, 0, (size_t)(2 * s->F * s->chunk) * sizeof *s->frames);
  copy_frames(s, 0, (float *)com_in, T, first, n);
}

static int32_t run_frames(kr_pk_session *s, uint32_t outputs, float *const *spectra, int64_t T, int64_t first,
                          int64_t n) {
  float *own[KR_PK_TENSORS];
  for (int i = 0; i < KR_PK_TENSORS; i++) own[i] = spectra[i] ? own_frames(s, i) : NULL;
  take_frames(s, spectra[0], T, first, n);
  KR_TRY(run_pk_session(s, 1, s->chunk, outputs, own));
  KR_TRY(kr_pk_finish(s));
  for (int i = 1; i < KR_PK_TENSORS; i++) copy_frames(s, i, spectra[i], T, first, n);
  return KRAIT_OK;
}

static uint32_t outputs_of(float *const *spectra) {
  uint32_t outputs = 0;
  for (int i = 1; i < KR_PK_TENSORS; i++) outputs |= spectra[i] ? 1u << (i - 1) : 0;
  return outputs;
}

/* The graph with these outputs, between the session's own frames. */
static int32_t ready_frames(kr_pk_session *s, uint32_t outputs, kr_shape_graph **shape) {
  float *at[KR_PK_TENSORS];
  for (int i = 0; i < KR_PK_TENSORS; i++) at[i] = own_frames(s, i);
  KR_TRY(find_pk_session(s, 1, s->chunk, outputs, shape));
  return kr_shapes_ready(&s->shapes, *shape, at);
}

/* Resets its states. */
static int32_t begin_anew(kr_pk_session *s, uint32_t outputs) {
  kr_shape_graph *shape;
  KR_TRY(ready_frames(s, outputs, &shape));
  return kr_runner_reset(shape->runner, s->shapes.stream);
}

enum { LIVE_OUTPUTS = KR_PK_MAG | KR_PK_PHA };

int32_t kr_pk_prepare(kr_pk_session *s) {
  kr_shape_graph *shape;
  KR_TRY(ready_frames(s, LIVE_OUTPUTS, &shape));
  return s->cuda ? KRAIT_OK : kr_runner_weigh(shape->runner);
}

int32_t kr_pk_begin(void *session) { return begin_anew(session, LIVE_OUTPUTS); }

int32_t kr_pk_take(void *session, const float *com_in, int64_t T, int64_t first, int64_t n) {
  take_frames(session, com_in, T, first, n);
  return KRAIT_OK;
}

/* On a GPU a run is only started at its end. */
int32_t kr_pk_work(void *session, double share) {
  kr_pk_session *s = session;
  kr_shape_graph *shape;
  if (s->cuda) return KRAIT_OK;
  KR_TRY(ready_frames(s, LIVE_OUTPUTS, &shape));
  return kr_runner_run_share(shape->runner, share, NULL);
}

int32_t kr_pk_give(void *session, int64_t T, int64_t first, int64_t n, float *mag, float *pha) {
  kr_pk_session *s = session;
  float *own[KR_PK_TENSORS] = {own_frames(s, 0), own_frames(s, 1), own_frames(s, 2), NULL};
  KR_TRY(s->cuda ? run_pk_session(s, 1, s->chunk, LIVE_OUTPUTS, own) : kr_pk_work(s, 1));
  KR_TRY(kr_pk_finish(s));
  copy_frames(s, 1, mag, T, first, n);
  copy_frames(s, 2, pha, T, first, n);
  return KRAIT_OK;
}

static int32_t forward_frames(kr_pk_session *s, int64_t T, float *const *spectra) {
  const uint32_t outputs = outputs_of(spectra);
  KR_TRY(begin_anew(s, outputs));
  for (int64_t t = 0; t < T; t += s->chunk)
    KR_TRY(run_frames(s, outputs, spectra, T, t, T - t < s->chunk ? T - t : s->chunk));
  return KRAIT_OK;
}

/* ---- windows ---- */

/* Groups of equal size, none of more than `most`. */
static int64_t share_of(int64_t B, int64_t most) {
  const int64_t n_groups = most < 1 ? B : (B + most - 1) / most;
  return n_groups ? (B + n_groups - 1) / n_groups : 1;
}

/* Windows of the batch per run. The first guess is twelve maps of a window; the plan then gives the exact size. */
static int32_t group_of(kr_pk_session *s, int64_t B, int64_t T, uint32_t outputs, int64_t *n) {
  const int64_t batch[] = {B, T, outputs}, map = s->model->config.C * s->model->config.F2 * T,
                guess = (int64_t)(most_bytes / (12 * sizeof(float))) / map;
  kr_shape_graph *shape;
  *n = 1;
  if (!s->cuda || s->chunk) return KRAIT_OK;
  *n = memcmp(batch, s->batch, sizeof batch) == 0 ? s->group : share_of(B, guess);
  for (int round = 0; round < 2 && *n > 1; round++) {
    KR_TRY(find_pk_session(s, *n, T, outputs, &shape));
    const uint64_t bytes = kr_shapes_bytes(&s->shapes, shape);
    if (bytes <= most_bytes) break;
    kr_shapes_drop(shape);
    *n = share_of(B, (int64_t)((double)*n * (double)most_bytes / (double)bytes));
  }
  memcpy(s->batch, batch, sizeof batch), s->group = *n;
  return KRAIT_OK;
}

/* Groups by their first window; if memory is short, groups become smaller. */
static int32_t run_groups(kr_pk_session *s, int64_t B, int64_t T, uint32_t outputs, float *const *all) {
  const kr_pk_config *c = &s->model->config;
  int64_t n;
  KR_CHECK(B >= 0 && T >= 1, KRAIT_ERR_SHAPE,
           "primeknet: B is %lld and T is %lld; B must not be negative and T at least 1", (long long)B, (long long)T);
  /* Far above what fits into memory, far below overflow. */
  KR_CHECK(T <= (int64_t)1 << 40 && T * c->fft_len <= ((int64_t)1 << 46) / (c->C * (c->depth + 2)), KRAIT_ERR_SHAPE,
           "T is %lld, too many frames for one window", (long long)T);
  KR_TRY(kr_pk_finish(s));
  KR_TRY(group_of(s, B, T, outputs, &n));
  s->shapes.device_s = 0;
  for (int64_t b = 0; b < B;) {
    float *here[KR_PK_TENSORS];
    const int64_t some = B - b < n ? B - b : n;
    for (int i = 0; i < KR_PK_TENSORS; i++) here[i] = all[i] ? all[i] + b * floats_of(s, T, outputs, i) : NULL;
    const int32_t status = s->chunk ? forward_frames(s, T, here) : run_pk_session(s, some, T, outputs, here);
    if (status == KRAIT_ERR_DEVICE_MEMORY && some > 1) {
      n = s->group = (some + 1) / 2;
      continue;
    }
    KR_TRY(status);
    b += some;
  }
  return KRAIT_OK;
}

int32_t kr_pk_forward(kr_pk_session *s, int64_t B, int64_t T, const float *com_in, float *mag, float *pha, float *com) {
  float *const spectra[] = {(float *)com_in, mag, pha, com};
  KR_CHECK(com_in, KRAIT_ERR_ARGUMENT, "primeknet: com_in must be given");
  KR_TRY(run_groups(s, B, T, s->cuda ? ALL_OUTPUTS : outputs_of(spectra), spectra));
  return kr_pk_finish(s);
}

int32_t kr_pk_samples(kr_pk_session *s, int64_t B, int64_t T, const float *wav, const float *first, float *out) {
  return run_groups(s, B, T, KR_PK_WAV, (float *const[]){(float *)wav, (float *)first, out, NULL});
}

int32_t kr_pk_at_once(kr_pk_session *s, int64_t B, int64_t T, int64_t *n) {
  return group_of(s, B, T, KR_PK_WAV, n);
}

double kr_pk_device_seconds(const kr_pk_session *session) { return session->shapes.device_s; }

/* ---- its kernels ---- */

typedef struct listener {
  kr_kernel_fn report;
  void *user;
} listener;

static void tell_pk_session(void *user, const char *name, const char *op, const char *row, int64_t n_calls,
                            double seconds) {
  const listener *l = user;
  char text[96];
  snprintf(text, sizeof text, "%s (%s)", name, op);
  (void)row;
  l->report(l->user, text, n_calls, seconds, 0, 0);
}

/* Of the batch's first group. */
int32_t kr_pk_kernels(kr_pk_session *s, int64_t B, int64_t T, const float *com_in, kr_kernel_fn report, void *user) {
  listener l = {report, user};
  kr_shape_graph *shape;
  int64_t group;
  KR_CHECK(s->cuda && !s->chunk, KRAIT_ERR_UNSUPPORTED, "kernels are timed on a GPU only");
  KR_TRY(kr_pk_forward(s, B, T, com_in, NULL, NULL, NULL));
  if (B < 1) return KRAIT_OK;
  KR_TRY(group_of(s, B, T, ALL_OUTPUTS, &group));
  KR_TRY(find_pk_session(s, group, T, ALL_OUTPUTS, &shape));
  KR_TRY(kr_shapes_ready(&s->shapes, shape, NULL));
  return kr_runner_profile_by_kernel(shape->runner, tell_pk_session, &l);
}

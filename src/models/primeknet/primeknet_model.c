/* primeknet_model.c: models: copies a file's weights by name; a plan folds constants on the host and copies the rest to
 * a GPU. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "primeknet_graph.h"
#include "status.h"
#include "weights.h"

/* ---- a copy ---- */

static int ends(const char *name, const char *with) {
  const size_t n = strlen(name), m = strlen(with);
  return n >= m && strcmp(name + n - m, with) == 0;
}

/* The norm with this running_mean, as a summand and a factor, which replace running_mean and running_var. */
static int32_t fold_norm(const kr_weights *own, const kr_weight *mean) {
  static const char *const parts[] = {"running_mean", "running_var", "weight", "bias"};
  const int64_t C = mean->n_dims == 1 ? mean->shape[0] : 0;
  const int before = (int)(strlen(mean->name) - strlen(parts[0]));
  float *of[4];
  for (int k = 0; k < 4; k++) {
    const float *data;
    char name[KR_PK_MAX_NAME];
    snprintf(name, sizeof name, "%.*s%s", before, mean->name, parts[k]);
    KR_TRY(kr_weights_take_f32(own, name, 1, &C, &data));
    of[k] = (float *)data; /* kr_primeknet.values */
  }
  for (int64_t i = 0; i < C; i++) {
    KR_CHECK(of[1][i] >= 0, KRAIT_ERR_WEIGHTS, "tensor '%.*s%s' is negative at element %lld", before, mean->name,
             parts[1], (long long)i);
    const double scale = of[2][i] / sqrt((double)of[1][i] + KR_PK_NORM_EPS);
    of[0][i] = (float)(of[3][i] - of[0][i] * scale), of[1][i] = (float)scale;
  }
  return KRAIT_OK;
}

static size_t padded(uint64_t bytes) { return (size_t)(bytes / sizeof(float) + 15) / 16 * 16; }

/* PyTorch's unused counters are skipped. */
static int32_t copy_weights(kr_primeknet *m, const kr_weights *weights) {
  const int64_t n_all = kr_weights_count(weights);
  int64_t n = 0;
  size_t n_floats = 1;
  for (int64_t i = 0; i < n_all; i++) n_floats += padded(kr_weights_at(weights, i)->bytes);
  kr_weight *items = kr_alloc_array((size_t)n_all + 1, sizeof *items);
  float *at = m->values = kr_alloc_array(n_floats, sizeof *at);
  int32_t status = items && at ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for the model's weights");
  for (int64_t i = 0; i < n_all && status >= 0; i++) {
    const kr_weight *w = kr_weights_at(weights, i);
    if (ends(w->name, ".num_batches_tracked")) continue;
    items[n] = *w, items[n++].data = memcpy(at, w->data, w->bytes);
    at += padded(w->bytes);
  }
  if (status >= 0) status = kr_weights_open_items(items, n, &m->weights);
  kr_free(items);
  for (int64_t i = 0; i < n && status >= 0 && m->config.streams; i++)
    if (ends(kr_weights_at(m->weights, i)->name, ".running_mean"))
      status = fold_norm(m->weights, kr_weights_at(m->weights, i));
  return status;
}

/* ---- its graph ---- */

static kr_tensor parameter(void *model, kr_graph *g, const char *name, kr_dims dims) {
  const kr_primeknet *m = model;
  const float *data = NULL;
  const int32_t status = kr_weights_take_f32(m->weights, name, dims.n, dims.size, &data);
  if (status < 0) return kr_graph_set_error(g, status), 0;
  if (m->taken) m->taken[kr_weights_find(m->weights, name) - kr_weights_at(m->weights, 0)] = 1;
  return kr_graph_weight(g, name, KRAIT_F32, dims, data);
}

/* The number of lengths of a fused filter bank. */
static int how_to_run(const kr_primeknet *m) {
  if (m->config.streams || (m->ctx->cuda && m->config.n_kernels > 8)) return KR_BUILD_OPS;
  if (!m->ctx->cuda) return KR_BUILD_PER_FRAME;
  return m->ctx->caps & KRAIT_CAP_CUDA_AMPERE && !m->is_exact ? KR_BUILD_FUSED_F16 : KR_BUILD_FUSED_F32;
}

/* From samples to samples. The model uses the phase through its two parts, which are computed as on the host. */
static void record_samples(const kr_primeknet *m, int64_t B, int64_t T, kr_graph *g, kr_tensor *tensors) {
  const int64_t F = m->config.F, N = (T - 1) * (m->config.fft_len / 4);
  const kr_dims plane = KR_DIMS(B, F, T);
  const kr_tensor wav = kr_graph_input(g, "wav", KRAIT_F32, KR_DIMS(B, N)),
                  first = kr_graph_input(g, "first", KRAIT_F32, KR_DIMS(B, 2 * F)),
                  out = kr_graph_output(g, "out", KRAIT_F32, KR_DIMS(B, N)),
                  mag = kr_graph_temp(g, KRAIT_F32, plane), pha = kr_graph_temp(g, KRAIT_F32, plane);
  kr_pk_graph io = {.com_in = kr_graph_temp(g, KRAIT_F32, KR_DIMS(B, F, T, 2)), .mode = how_to_run(m)};
  kr_spectral_forward(g, &m->spectral, KR_PK_POWER, wav, first, mag, pha);
  kr_spectral_parts(g, "com_in", mag, pha, io.com_in);
  kr_pk_graph_record(g, &m->config, parameter, (void *)m, &io);
  kr_spectral_inverse(g, &m->spectral, KR_PK_POWER, io.mag, io.pha, out);
  tensors[0] = wav, tensors[1] = first, tensors[2] = out, tensors[3] = 0;
}

int32_t kr_primeknet_record(const void *model, const int64_t *key, kr_graph *g, kr_tensor *tensors) {
  const kr_primeknet *m = model;
  const int64_t B = key[0], T = key[1], outputs = key[2], F = m->config.F;
  if (outputs == KR_PK_WAV) return record_samples(m, B, T, g, tensors), kr_graph_status(g);
  kr_pk_graph io = {.com_in = kr_graph_input(g, "com_in", KRAIT_F32, KR_DIMS(B, F, T, 2)), .mode = how_to_run(m)};
  if (outputs & KR_PK_MAG) io.mag = kr_graph_output(g, "mag", KRAIT_F32, KR_DIMS(B, F, T));
  if (outputs & KR_PK_PHA) io.pha = kr_graph_output(g, "pha", KRAIT_F32, KR_DIMS(B, F, T));
  if (outputs & KR_PK_COM) io.com = kr_graph_output(g, "com", KRAIT_F32, KR_DIMS(B, F, T, 2));
  const kr_tensor all[] = {io.com_in, io.mag, io.pha, io.com};
  memcpy(tensors, all, sizeof all);
  kr_pk_graph_record(g, &m->config, parameter, (void *)m, &io);
  return kr_graph_status(g);
}

/* Windows on a GPU have their own factors (KR_BUILD_FUSED_F16). */
uint32_t kr_primeknet_plan_flags(const kr_primeknet *m) {
  return KR_PLAN_CONSTANT | (m->config.streams && !m->is_exact ? KR_PLAN_TF32 : 0);
}

/* ---- models ---- */

/* Every parameter is present, and nothing else. */
static int32_t check(kr_primeknet *m) {
  char shape[96];
  kr_graph *g = NULL;
  kr_tensor tensors[KR_PK_TENSORS];
  KR_TRY(kr_graph_open(&g));
  const int32_t status = kr_primeknet_record(m, (int64_t[]){1, 1, KR_PK_MAG | KR_PK_PHA}, g, tensors);
  kr_graph_close(&g);
  KR_TRY(status);
  for (int64_t i = 0; i < kr_weights_count(m->weights); i++) {
    const kr_weight *w = kr_weights_at(m->weights, i);
    KR_CHECK(m->taken[i], KRAIT_ERR_WEIGHTS,
             "the weights have a tensor that this configuration does not have: %s, shape %s", w->name,
             kr_shape_format(w->n_dims, w->shape, shape, sizeof shape));
  }
  return KRAIT_OK;
}

/* A matrix grows with the square of its frames. */
enum { LONGEST_FRAME = 1024 };

static int32_t open_pk_parts(kr_primeknet *m, const kr_weights *weights) {
  KR_TRY(copy_weights(m, weights));
  m->takes_samples = m->ctx->cuda && !m->config.streams && m->config.fft_len <= LONGEST_FRAME;
  if (m->takes_samples) KR_TRY(kr_spectral_open(NULL, m->config.fft_len, &m->spectral));
  m->taken = kr_zalloc((size_t)kr_weights_count(m->weights) + 1);
  KR_CHECK(m->taken, KRAIT_ERR_NO_MEMORY, "no memory for the model");
  const int32_t status = check(m);
  kr_free(m->taken), m->taken = NULL;
  return status;
}

int32_t kr_primeknet_open(const krait_ctx *ctx, const kr_pk_config *config, const kr_weights *weights,
                          int32_t precision, kr_primeknet **model) {
  kr_primeknet *m = *model = kr_zalloc(sizeof *m);
  KR_CHECK(m, KRAIT_ERR_NO_MEMORY, "no memory for the model");
  const char *level = kr_weights_metadata(weights, "normalize");
  m->ctx = ctx, m->config = *config, m->is_exact = precision == KRAIT_PRECISION_FP32;
  m->unit_rms = level && strcmp(level, "rms") == 0;
  const int32_t status = open_pk_parts(m, weights);
  if (status < 0) kr_primeknet_close(model);
  return status;
}

void kr_primeknet_close(kr_primeknet **model) {
  kr_primeknet *m = *model;
  if (!m) return;
  kr_weights_close(&m->weights);
  kr_spectral_close(&m->spectral);
  kr_free(m->values);
  kr_free(m);
  *model = NULL;
}

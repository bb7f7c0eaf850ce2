/* model.c: handles of models and sessions: finds the family by the configuration's model name and calls it. */
#include "public_names.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <krait/enhance.h>

#include "alloc.h"
#include "ctx.h"
#include "log.h"
#include "model_kind.h"
#include "sized.h"
#include "status.h"
#include "weights_io.h"

struct krait_denoiser {
  krait_ctx *cpu; /* where the model runs if the device of the caller's context does not support it */
  const kr_model_kind *kind;
  void *impl;
  char *json;
};

struct krait_denoiser_session {
  const krait_denoiser *model;
  void *timeline;
  krait_denoiser_session **holder; /* of the stream that has taken the session; NULL: none has */
};

static const kr_model_kind *find_kind(const char *model) {
  for (size_t i = 0; i < kr_n_model_kinds; i++)
    if (kr_model_kinds[i]->open && kr_model_kinds[i]->detect(&(kr_model_source){.model = model}))
      return kr_model_kinds[i];
  return NULL;
}

int kr_weights_is_built_in(const char *name) {
  return !name || strcmp(name, "builtin") == 0 || strcmp(name, "streaming") == 0;
}

int32_t kr_weights_open_named(const char *name, kr_weights **weights) {
  size_t n_bytes;
  const int is_denoiser = !name || strcmp(name, "builtin") == 0;
  if (!kr_weights_is_built_in(name)) return kr_weights_open(name, weights);
  const unsigned char *bytes = kr_embedded_weights(is_denoiser ? NULL : name, &n_bytes);
  if (n_bytes) return kr_weights_open_memory(bytes, n_bytes, "embedded weights", weights);
  KR_CHECK(!is_denoiser, KRAIT_ERR_WEIGHTS, "this build of krait has no built-in weights; give a weights file");
  return kr_fail(KRAIT_ERR_WEIGHTS,
                 "this build of krait has only the default model built in, not '%s'; give a weights file: the program "
                 "writes one with krait convert %s %s.safetensors",
                 name, name, name);
}

/* A model that the device does not support runs on an additional CPU context, unless fallback is forbidden. */
static int32_t open_cpu(const krait_ctx *ctx, krait_ctx **cpu) {
  krait_ctx_options options = {.size = sizeof options,
                               .device = KRAIT_DEVICE_CPU,
                               .n_threads = krait_ctx_n_threads(ctx),
                               .fallback = ctx->fallback};
  char why[256];
  snprintf(why, sizeof why, "%s", krait_error_detail());
  KR_CHECK(ctx->fallback != KRAIT_FALLBACK_NEVER, KRAIT_ERR_FALLBACK, "%s, and fallback to the CPU is disabled", why);
  kr_log("running on the CPU: %s", why);
  atomic_fetch_add_explicit(&((krait_ctx *)ctx)->n_fallbacks, 1, memory_order_relaxed);
  return krait_ctx_open(&options, cpu);
}

static int32_t open_model_parts(const krait_ctx *ctx, const krait_denoiser_options *options, kr_weights *weights,
                          kr_config **config, krait_denoiser *model) {
  KR_TRY(kr_weights_refuse_checkpoint(weights));
  KR_TRY(kr_config_open(weights, options ? options->config_path : NULL, options ? options->overrides : NULL, config));
  const char *name = kr_config_model(*config);
  KR_CHECK(name, KRAIT_ERR_WEIGHTS,
           "it is unknown which model the weights belong to; give a configuration (a run's .hydra/config.yaml) or "
           "model=primeknet_mamba");
  model->kind = find_kind(name);
  KR_CHECK(model->kind, KRAIT_ERR_WEIGHTS, "unknown model '%s'", name);
  KR_TRY(kr_weights_json(weights, *config, &model->json));
  KR_TRY(kr_weights_widen(weights));
  KR_TRY(kr_weights_check_finite(weights));
  const int32_t precision = options ? options->precision : KRAIT_PRECISION_DEFAULT;
  int32_t status = model->kind->open(ctx, name, *config, weights, precision, &model->impl);
  if (status != KRAIT_ERR_UNSUPPORTED || ctx->device == KRAIT_DEVICE_CPU) return status;
  KR_TRY(open_cpu(ctx, &model->cpu));
  return model->kind->open(model->cpu, name, *config, weights, precision, &model->impl);
}

static int32_t take_model_options(const krait_denoiser_options *given, krait_denoiser_options *known) {
  KR_TRY(kr_struct_take("krait_denoiser_options", given, sizeof *known, known, sizeof *known));
  KR_CHECK(known->precision <= KRAIT_PRECISION_TF32, KRAIT_ERR_ARGUMENT,
           "options.precision is %u, not a KRAIT_PRECISION_*", known->precision);
  return KRAIT_OK;
}

/* From weights, which are closed; from names their source in messages. */
static int32_t open_from(const krait_ctx *ctx, const krait_denoiser_options *options, kr_weights *weights,
                         const char *from, krait_denoiser **out) {
  kr_config *config = NULL;
  krait_denoiser *model = kr_zalloc(sizeof *model);
  int32_t status = model ? open_model_parts(ctx, options, weights, &config, model)
                         : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a model");
  const int is_theirs = status == KRAIT_ERR_WEIGHTS || status == KRAIT_ERR_FILE_FORMAT;
  if (is_theirs && !strstr(krait_error_detail(), from)) /* tensors and values do not contain their file's name */
    status = kr_fail(status, "%s: %s", from, krait_error_detail());
  kr_config_close(&config);
  kr_weights_close(&weights);
  if (status < 0) krait_denoiser_close(&model);
  *out = model;
  return status;
}

int32_t krait_denoiser_open(const krait_ctx *ctx, const krait_denoiser_options *given, krait_denoiser **out) {
  KR_CHECK(ctx && out, KRAIT_ERR_ARGUMENT, "ctx and model must not be NULL");
  *out = NULL;
  krait_denoiser_options known, *options = given ? &known : NULL;
  if (given) KR_TRY(take_model_options(given, &known));
  const char *from = options && options->weights_path ? options->weights_path : "embedded weights";
  kr_weights *weights = NULL;
  const int32_t status = kr_weights_open_named(options ? options->weights_path : NULL, &weights);
  if (status == KRAIT_ERR_WEIGHTS) return kr_fail(status, "%s: %s", from, krait_error_detail());
  return status < 0 ? status : open_from(ctx, options, weights, from, out);
}

static int32_t take_tensor(const krait_denoiser_tensor *t, int64_t i, kr_weight *item) {
  uint64_t n = 1;
  KR_CHECK(t->name && t->n_dims >= 0 && t->n_dims <= KR_WEIGHT_MAX_DIMS && (t->shape || !t->n_dims) && t->data,
           KRAIT_ERR_ARGUMENT, "tensors[%lld] has no name, no data, or not 0 to %d dimensions", (long long)i,
           KR_WEIGHT_MAX_DIMS);
  *item = (kr_weight){.name = t->name, .dtype = KRAIT_F32, .n_dims = t->n_dims, .data = t->data};
  for (int32_t k = 0; k < t->n_dims; k++) {
    KR_CHECK(t->shape[k] >= 0 && t->shape[k] < (int64_t)1 << 40 && n * (uint64_t)t->shape[k] < (uint64_t)1 << 40,
             KRAIT_ERR_ARGUMENT, "tensor '%s' has a size of %lld", t->name, (long long)t->shape[k]);
    item->shape[k] = t->shape[k], n *= (uint64_t)t->shape[k];
  }
  item->bytes = n * sizeof *t->data;
  return KRAIT_OK;
}

int32_t krait_denoiser_open_tensors(const krait_ctx *ctx, const krait_denoiser_options *given,
                                 const krait_denoiser_tensor *tensors, int64_t n_tensors, krait_denoiser **out) {
  krait_denoiser_options options;
  kr_weights *weights = NULL;
  KR_CHECK(ctx && given && tensors && out && n_tensors >= 0 && n_tensors < (int64_t)1 << 24, KRAIT_ERR_ARGUMENT,
           "ctx, options, tensors and model must not be NULL, n_tensors not negative");
  *out = NULL;
  KR_TRY(take_model_options(given, &options));
  KR_CHECK(!options.weights_path && options.overrides, KRAIT_ERR_ARGUMENT,
           "options.weights_path must be NULL; options.overrides specifies the model");
  kr_weight *items = kr_alloc_array((size_t)n_tensors + 1, sizeof *items);
  int32_t status = items ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a list of tensors");
  for (int64_t i = 0; i < n_tensors && status >= 0; i++) status = take_tensor(&tensors[i], i, &items[i]);
  if (status >= 0) status = kr_weights_open_items(items, n_tensors, &weights);
  if (status >= 0) status = open_from(ctx, &options, weights, "the tensors", out);
  kr_free(items);
  return status;
}

void krait_denoiser_close(krait_denoiser **handle) {
  krait_denoiser *model = handle ? *handle : NULL;
  if (!model) return;
  *handle = NULL;
  if (model->impl) model->kind->close(&model->impl);
  krait_ctx_close(&model->cpu);
  kr_free(model->json);
  kr_free(model);
}

const char *krait_denoiser_json(const krait_denoiser *model) { return model ? model->json : ""; }

int32_t krait_denoiser_session_open(const krait_denoiser *model, krait_denoiser_session **out) {
  KR_CHECK(model && out, KRAIT_ERR_ARGUMENT, "model and session must not be NULL");
  krait_denoiser_session *session = *out = kr_zalloc(sizeof *session);
  KR_CHECK(session, KRAIT_ERR_NO_MEMORY, "no memory for a session");
  session->model = model;
  int32_t status = model->kind->session_open(model->impl, &session->timeline);
  if (status < 0) krait_denoiser_session_close(out);
  return status;
}

void krait_denoiser_session_close(krait_denoiser_session **handle) {
  krait_denoiser_session *session = handle ? *handle : NULL;
  if (!session) return;
  *handle = NULL;
  if (session->holder) kr_session_give_back(session->holder);
  if (session->timeline) session->model->kind->session_close(&session->timeline);
  kr_free(session);
}

void *kr_session_timeline(const krait_denoiser_session *session, const kr_model_kind *kind) {
  return session && session->model->kind == kind ? session->timeline : NULL;
}

int32_t kr_session_check_free(const krait_denoiser_session *session) {
  KR_CHECK(!session || !session->holder, KRAIT_ERR_ARGUMENT,
           "the session has an open stream, which uses it alone: close the stream, or open another session");
  return KRAIT_OK;
}

int32_t kr_session_take(krait_denoiser_session *session, krait_denoiser_session **holder) {
  KR_TRY(kr_session_check_free(session));
  session->holder = holder;
  *holder = session;
  return KRAIT_OK;
}

void kr_session_give_back(krait_denoiser_session **holder) {
  if (*holder) (*holder)->holder = NULL;
  *holder = NULL;
}

int32_t kr_session_denoiser(krait_denoiser_session *session, kr_denoiser *denoiser) {
  KR_CHECK(session, KRAIT_ERR_ARGUMENT, "session must not be NULL");
  KR_TRY(kr_session_check_free(session));
  const kr_model_kind *kind = session->model->kind;
  KR_CHECK(kind->denoiser, KRAIT_ERR_UNSUPPORTED, "%s is not a speech denoiser", kind->name);
  return kind->denoiser(session->timeline, denoiser);
}

void kr_verify_add(const char *name, const float *got, const float *want, int64_t n, krait_verify_result *rows,
                   int32_t n_rows, int32_t *n_filled) {
  double error = 0, norm = 0, worst = 0;
  if (n <= 0) return; /* no values do not count as agreement */
  for (int64_t i = 0; i < n; i++) {
    double d = fabs((double)got[i] - want[i]);
    error += d * d;
    norm += (double)want[i] * want[i];
    if (!(d <= worst)) worst = d; /* NaN counts as the worst */
  }
  if (*n_filled < n_rows) {
    krait_verify_result *row = &rows[*n_filled];
    snprintf(row->name, sizeof row->name, "%s", name);
    row->rel_l2 = sqrt(error / (norm > 0 ? norm : 1));
    row->max_abs = worst;
  }
  ++*n_filled;
}

int32_t krait_verify(krait_denoiser_session *session, const char *golden_path, krait_verify_result *rows,
                     int32_t n_rows, int32_t *n_filled) {
  KR_CHECK(session && golden_path && n_filled && (rows || n_rows == 0), KRAIT_ERR_ARGUMENT,
           "session, golden_path, rows and n_filled must not be NULL");
  const kr_model_kind *kind = session->model->kind;
  KR_TRY(kr_session_check_free(session));
  KR_CHECK(kind->verify, KRAIT_ERR_UNSUPPORTED, "%s has no recorded outputs to verify", kind->name);
  kr_weights *golden = NULL;
  *n_filled = 0;
  KR_TRY(kr_weights_open(golden_path, &golden));
  int32_t status = kind->verify(session->timeline, golden, rows, n_rows, n_filled);
  if (status >= 0 && *n_filled == 0)
    status = kr_fail(KRAIT_ERR_FILE_FORMAT, "%s has no recorded output of %s; nothing was compared (docs/GOLDEN.md)",
                     golden_path, kind->name);
  kr_weights_close(&golden);
  return status;
}

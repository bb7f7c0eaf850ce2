/* model_kind.h: what a model family provides to model.c: one line in models.def, one kr_model_kind. */
#ifndef KR_MODEL_KIND_H
#define KR_MODEL_KIND_H

#include "config.h"
#include "denoiser.h"
#include "graph.h"
#include "model_folder.h"

/* What a family is detected by, and opened from: a weights file, or a folder with a config.json. */
typedef struct kr_model_source {
  const char *path;
  const kr_weights *weights; /* of a file, */
  const kr_config *config;   /* whose configuration */
  const char *model;         /* may name its model; else NULL */
  const kr_model_folder *folder;
} kr_model_source;

typedef int32_t kr_model_graph_fn(void *user, const char *title, const kr_graph *g);

typedef struct kr_model_kind {
  const char *name;
  int (*detect)(const kr_model_source *source);
  /* Passes the model's graphs, with typical sizes, in the order in which they run, to fn, until it refuses one. Weights
   * are float32. */
  int32_t (*graphs)(const krait_ctx *ctx, const kr_model_source *source, kr_model_graph_fn *fn, void *user);
  const struct kr_lm_family *lm; /* of a language model (lm_config.h); else NULL */
  /* ---- of weights files: sessions; or NULL ---- */
  /* weights and config belong to the caller and are invalid after the call. With a device's context: on the device, or
   * KRAIT_ERR_UNSUPPORTED. */
  int32_t (*open)(const krait_ctx *ctx, const char *model, const kr_config *config, const kr_weights *weights,
                  int32_t precision, void **impl);
  void (*close)(void **impl);
  int32_t (*session_open)(const void *impl, void **timeline);
  void (*session_close)(void **timeline);
  int32_t (*denoiser)(void *timeline, kr_denoiser *denoiser); /* NULL: not a denoiser */
  int32_t (*verify)(void *timeline, const kr_weights *golden, krait_verify_result *rows, int32_t n_rows,
                    int32_t *n_filled);
} kr_model_kind;

#define KR_MODEL(name) extern const kr_model_kind kr_model_##name;
#include "models.def"
#undef KR_MODEL
/* The families in this library: all (model_kinds.c), or the wheel's only one (bundled.c). */
extern const kr_model_kind *const kr_model_kinds[];
extern const size_t kr_n_model_kinds;

/* The timeline of a session of this kind; NULL for NULL and for other kinds. */
void *kr_session_timeline(const krait_denoiser_session *session, const kr_model_kind *kind);

/* Adds a row: relative L2 error and largest absolute error of n values against the golden file. */
void kr_verify_add(const char *name, const float *got, const float *want, int64_t n, krait_verify_result *rows,
                   int32_t n_rows, int32_t *n_filled);

/* The weights embedded by the build: the denoiser's (name is NULL), or "streaming"; n_bytes is 0 if there are none. */
const unsigned char *kr_embedded_weights(const char *name, size_t *n_bytes);
/* A weights file, or what the build embedded: "builtin" (or NULL) is the denoiser, "streaming" the streaming model. A
 * file that has such a name is ./builtin. */
int kr_weights_is_built_in(const char *name);
int32_t kr_weights_open_named(const char *name, kr_weights **weights);

#endif

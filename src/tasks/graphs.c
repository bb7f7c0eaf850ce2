/* graphs.c: the graphs of a model in a file or folder, line by line, for krait info --graph. */
#include <stddef.h>
#include <sys/stat.h>

#include "lm/lm.h"
#include "model_time.h"
#include "model_kind.h"
#include "sized.h"
#include "status.h"

typedef struct shower {
  const krait_ctx *ctx;
  const krait_denoiser_options *options;
  uint32_t flags;
  kr_graph_line_fn line;
  void *user;
} shower;

static int32_t show_graphs(void *user, const char *title, const kr_graph *g) {
  const shower *s = user;
  s->line(s->user, title);
  return kr_graph_show(g, (s->flags & KR_GRAPHS_PROFILE) != 0, s->line, s->user);
}

static const kr_model_kind *find_kind_of(const kr_model_source *source) {
  for (size_t i = 0; i < kr_n_model_kinds; i++)
    if (kr_model_kinds[i]->detect(source)) return kr_model_kinds[i];
  return NULL;
}

/* *found: the file names its model, or a family knows its tensors; others may be a part of a folder. */
static int32_t show_weights(const shower *s, kr_weights *weights, const kr_config *config, int *found) {
  const kr_model_source source = {
      .path = s->options->weights_path, .weights = weights, .config = config, .model = kr_config_model(config)};
  const kr_model_kind *kind = find_kind_of(&source);
  *found = kind || source.model;
  if (!*found) return KRAIT_OK;
  KR_CHECK(kind, KRAIT_ERR_WEIGHTS, "%s: unknown model '%s'", source.path, source.model);
  KR_TRY(kr_weights_widen(weights));
  return kind->graphs(s->ctx, &source, show_graphs, (void *)s);
}

static int32_t show_file(const shower *s, int *found) {
  kr_weights *weights = NULL;
  kr_config *config = NULL;
  KR_TRY(kr_weights_open_named(s->options->weights_path, &weights));
  int32_t status = kr_config_open(weights, s->options->config_path, s->options->overrides, &config);
  if (status >= 0) status = show_weights(s, weights, config, found);
  kr_config_close(&config);
  kr_weights_close(&weights);
  return status;
}

static int32_t show_folder(const shower *s) {
  kr_model_source source = {.path = s->options->weights_path};
  kr_model_folder *folder = NULL;
  const kr_lm_family *none;
  KR_TRY(kr_model_folder_open(source.path, &folder));
  source.folder = folder;
  const kr_model_kind *kind = find_kind_of(&source);
  const int32_t status =
      kind ? kind->graphs(s->ctx, &source, show_graphs, (void *)s) : kr_lm_family_of(folder, &none); /* which fails */
  kr_model_folder_close(&folder);
  return status;
}

int32_t kr_model_graphs(const krait_ctx *ctx, const krait_denoiser_options *given, uint32_t flags,
                           kr_graph_line_fn line, void *user) {
  krait_denoiser_options o;
  struct stat file;
  int found = 0;
  KR_CHECK(ctx && given && line, KRAIT_ERR_ARGUMENT, "ctx, options and line must not be NULL");
  KR_TRY(kr_struct_take("krait_denoiser_options", given, sizeof o, &o, sizeof o));
  KR_CHECK(o.weights_path, KRAIT_ERR_ARGUMENT, "options.weights_path must not be NULL");
  KR_CHECK(!(flags & ~KR_GRAPHS_PROFILE), KRAIT_ERR_ARGUMENT, "kr_model_graphs: unknown flags %#x", flags);
  const shower s = {ctx, &o, flags, line, user};
  const int is_folder = stat(o.weights_path, &file) == 0 && S_ISDIR(file.st_mode);
  if (!is_folder && !kr_model_folder_is_part(o.weights_path)) KR_TRY(show_file(&s, &found));
  return found ? KRAIT_OK : show_folder(&s);
}

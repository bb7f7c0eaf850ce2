/* graphs.c: which model family a file or folder holds, and its graphs line by line, for krait info --graph. */
#include <stdio.h>
#include <sys/stat.h>

#include "clip/clip_tower.h"
#include "describe/describer.h"
#include "lm/lm.h"
#include "model_time.h"
#include "model_kind.h"
#include "primeknet/primeknet.h"
#include "seedvr/seedvr.h"
#include "sized.h"
#include "status.h"
#include "videomamba/videomamba.h"

/* Sizes of the graphs shown: one second of audio; a prompt; one 720p frame and a sentence. */
enum { FRAMES = 100, PROMPT = 256, GRID_H = 45, GRID_W = 80, SENTENCE = 58 };

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

/* ---- files that name their model ---- */

/* As its weights run: a window, or streaming frames. */
static int32_t show_primeknet(const shower *s, const char *model, const kr_config *config, const kr_weights *weights) {
  char title[96];
  kr_pk_config c;
  kr_primeknet *net = NULL;
  kr_graph *g = NULL;
  kr_tensor tensors[KR_PK_TENSORS];
  KR_TRY(kr_pk_config_read(model, config, &c));
  const int64_t T = c.streams ? KR_PK_LIVE_CHUNK : FRAMES;
  snprintf(title, sizeof title, "PrimeKnet, %d frames%s", (int)T, c.streams ? ", streaming" : " at once");
  int32_t status = kr_primeknet_open(s->ctx, &c, weights, KRAIT_PRECISION_FP32, &net);
  if (status >= 0) status = kr_graph_open(&g);
  if (status >= 0) status = kr_primeknet_record(net, (int64_t[]){1, T, KR_PK_MAG | KR_PK_PHA}, g, tensors);
  if (status >= 0) status = kr_graph_plan(g, s->ctx, kr_primeknet_plan_flags(net));
  if (status >= 0) status = show_graphs((void *)s, title, g);
  kr_graph_close(&g);
  kr_primeknet_close(&net);
  return status == KRAIT_ERR_WEIGHTS ? kr_fail(status, "%s: %s", s->options->weights_path, krait_error_detail())
                                     : status;
}

static int32_t show_seedvr(const shower *s, const char *model, const kr_config *config, const kr_weights *weights) {
  kr_seedvr_config c;
  kr_seedvr_weights w = {0};
  kr_seedvr_graph g = {.size = {1, GRID_H, GRID_W}, .n_text = SENTENCE};
  KR_TRY(kr_seedvr_config_read(model, config, &c));
  int32_t status = kr_seedvr_weights_open(s->ctx, &c, weights, KRAIT_F32, &w);
  if (status >= 0) status = kr_seedvr_graph_open(s->ctx, &c, &w, &g);
  if (status >= 0) status = show_graphs((void *)s, "SeedVR, one frame of 1280 x 720 and 58 tokens of text", g.g);
  if (status >= 0) kr_seedvr_graph_close(&g);
  kr_seedvr_weights_close(&w);
  return status;
}

static int32_t show_videomamba(const shower *s, const kr_weights *weights) {
  kr_videomamba *m = NULL;
  const int32_t status = kr_videomamba_open(s->ctx, weights, &m);
  KR_TRY(status);
  const int32_t shown = show_graphs((void *)s, "VideoMamba, one clip", kr_videomamba_graph(m));
  kr_videomamba_close(&m);
  return shown;
}

static int is_videomamba(const kr_weights *w) {
  return kr_weights_find(w, "layers.0.mixer.A_b_log") || kr_weights_find(w, "vision_encoder.layers.0.mixer.A_b_log");
}

/* *found: the file names its model, or holds VideoMamba. */
static int32_t show_weights(const shower *s, kr_weights *weights, const kr_config *config, int *found) {
  const char *model = kr_config_model(config);
  const int is_film = is_videomamba(weights);
  *found = model || is_film;
  if (!*found) return KRAIT_OK;
  KR_TRY(kr_weights_widen(weights));
  if (is_film) return show_videomamba(s, weights);
  if (kr_model_primeknet.detect(&(kr_model_source){.model = model})) return show_primeknet(s, model, config, weights);
  if (kr_model_seedvr.detect(&(kr_model_source){.model = model})) return show_seedvr(s, model, config, weights);
  return kr_fail(KRAIT_ERR_WEIGHTS, "%s: unknown model '%s'", s->options->weights_path, model);
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

/* ---- folders with a config.json ---- */

static int32_t show_clip(const shower *s, const kr_model_folder *folder, const char *prefix) {
  const json_t *root = kr_model_folder_config(folder), *vision = json_object_get(root, "vision_config");
  const kr_loader p = {.ctx = s->ctx, .folder = folder, .prefix = prefix};
  kr_clip_config c;
  kr_clip_tower tower;
  KR_TRY(kr_clip_config_read(&p, vision ? vision : root, &c));
  int32_t status = kr_clip_tower_open(&p, &c, 1, &tower);
  if (status >= 0) status = show_graphs((void *)s, "CLIP's vision tower, one image", tower.g);
  kr_clip_tower_close(&tower);
  return status;
}

static int32_t show_describer(const shower *s) {
  krait_describer *d = NULL;
  KR_TRY(krait_describer_open(
      s->ctx, &(krait_describer_options){.size = sizeof(krait_describer_options), .path = s->options->weights_path},
      &d));
  const int32_t status = kr_describer_graphs(d, show_graphs, (void *)s);
  krait_describer_close(&d);
  return status;
}

static int32_t show_runs(const shower *s, kr_lm *m) {
  const kr_graph *g;
  KR_TRY(kr_lm_graph_of(m, PROMPT, 0, &g));
  KR_TRY(show_graphs((void *)s, "a prompt of 256 tokens", g));
  KR_TRY(kr_lm_graph_of(m, 0, 0, &g));
  return show_graphs((void *)s, "a step of one sequence", g);
}

static int32_t show_language_model(const shower *s, const kr_model_folder *folder) {
  kr_lm *m = NULL;
  int32_t status = kr_lm_open(s->ctx, folder, 1, 0, &m);
  if (status >= 0) status = show_runs(s, m);
  kr_lm_close(&m);
  return status;
}

static int32_t show_kind(const shower *s, const kr_model_folder *folder) {
  if (kr_model_folder_find(folder, "model.mm_projector.mlp.mlp.0.weight")) return show_describer(s);
  if (kr_model_folder_find(folder, "vision_model.embeddings.class_embedding"))
    return show_clip(s, folder, "vision_model.");
  if (kr_model_folder_find(folder, "embeddings.class_embedding")) return show_clip(s, folder, "");
  return show_language_model(s, folder);
}

static int32_t show_folder(const shower *s) {
  kr_model_folder *folder = NULL;
  KR_TRY(kr_model_folder_open(s->options->weights_path, &folder));
  const int32_t status = show_kind(s, folder);
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

/* videogpt_parts.c: finds the files of the model's parts; and the family. */
#include "videogpt_parts.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "model_kind.h"
#include "status.h"

static const char clip_prefix[] = "model.image_vision_tower.vision_tower.vision_model.",
                  video_prefix[] = "model.vision_tower.vision_encoder.",
                  own_tensor[] = "model.mm_projector.mlp.mlp.0.weight";

/* ---- parts ---- */

static int32_t open_clip_source(kr_videogpt_parts *p, const char *path, kr_videogpt_source *source) {
  char key[128];
  snprintf(key, sizeof key, "%sembeddings.class_embedding", clip_prefix);
  char *beside = kr_model_folder_find(source->folder, key)
                     ? NULL
                     : kr_model_folder_file(path, "clip-vit-base-patch16/config.json");
  source->clip_folder = source->folder, source->clip_prefix = clip_prefix;
  if (!beside) return KRAIT_OK;
  beside[strlen(beside) - strlen("/config.json")] = 0;
  const int32_t status = kr_model_folder_open(beside, &p->clip_folder);
  kr_free(beside);
  source->clip_folder = p->clip_folder, source->clip_prefix = "vision_model.";
  return status;
}

static int32_t open_video_tower(kr_videogpt_parts *p, const krait_ctx *ctx, const kr_model_folder *folder,
                                const char *path) {
  char key[128];
  snprintf(key, sizeof key, "%scls_token", video_prefix);
  char *beside =
      kr_model_folder_find(folder, key) ? NULL : kr_model_folder_file(path, "videomamba_m16_25M_f8_res224.pth");
  if (!beside) return kr_videomamba_open_part(ctx, folder, video_prefix, &p->video);
  int32_t status = kr_weights_open(beside, &p->video_weights);
  if (status >= 0) status = kr_videomamba_open(ctx, p->video_weights, NULL, &p->video);
  kr_free(beside);
  return status;
}

static int32_t check_video_tower(const kr_videogpt_parts *p, const char *path) {
  const kr_videomamba_config *c = kr_videomamba_config_of(p->video);
  const int64_t edge = kr_patch_grid_edge(&c->grid);
  KR_CHECK(c->T == KR_VIDEOGPT_T && edge == KR_VIDEOGPT_EDGE && c->D == kr_videogpt_width(p->model), KRAIT_ERR_WEIGHTS,
           "%s: its video tower has %lld frames of %lld x %lld patches and width %lld; Mobile-VideoGPT requires %d of "
           "%d x %d, and width %lld",
           path, (long long)c->T, (long long)edge, (long long)edge, (long long)c->D, KR_VIDEOGPT_T, KR_VIDEOGPT_EDGE,
           KR_VIDEOGPT_EDGE, (long long)kr_videogpt_width(p->model));
  return KRAIT_OK;
}

int32_t kr_videogpt_parts_open_towerless(const krait_ctx *ctx, const kr_model_folder *folder, const char *path,
                                         const kr_lm *lm, kr_videogpt_parts *p) {
  const int64_t d = kr_lm_config_of(lm)->d;
  kr_videogpt_source source = {.folder = folder, .rows_dtype = kr_lm_dtype(lm)};
  *p = (kr_videogpt_parts){0};
  KR_CHECK(kr_model_folder_find(folder, own_tensor), KRAIT_ERR_WEIGHTS,
           "%s has no tensor '%s': it is a language model, not Mobile-VideoGPT", path, own_tensor);
  KR_TRY(open_clip_source(p, path, &source));
  KR_TRY(kr_videogpt_open(ctx, &source, &p->model));
  KR_CHECK(kr_videogpt_d(p->model) == d, KRAIT_ERR_WEIGHTS,
           "%s: its projectors have rows of %lld, its language model requires %lld", path,
           (long long)kr_videogpt_d(p->model), (long long)d);
  return KRAIT_OK;
}

int32_t kr_videogpt_parts_open(const krait_ctx *ctx, const kr_model_folder *folder, const char *path, const kr_lm *lm,
                               kr_videogpt_parts *p) {
  KR_TRY(kr_videogpt_parts_open_towerless(ctx, folder, path, lm, p));
  KR_TRY(open_video_tower(p, ctx, folder, path));
  return check_video_tower(p, path);
}

void kr_videogpt_parts_close(kr_videogpt_parts *p) {
  kr_videogpt_close(&p->model);
  kr_videomamba_close(&p->video);
  if (p->clip_folder) kr_model_folder_close(&p->clip_folder);
  if (p->video_weights) kr_weights_close(&p->video_weights);
}

/* ---- the family ---- */

static int is_videogpt(const kr_model_source *s) { return s->folder && kr_model_folder_find(s->folder, own_tensor); }

static int32_t pass_videogpt_graphs(const kr_videogpt_parts *p, kr_lm *lm, kr_model_graph_fn *fn, void *user) {
  enum { WORDS = 64 }; /* about the number of tokens around the video */
  const kr_graph *g;
  KR_TRY(fn(user, "16 frames: CLIP, their weights, rows for the language model", kr_videogpt_graph_of(p->model, 0)));
  KR_TRY(fn(user, "8 frames: VideoMamba", kr_videomamba_graph(p->video)));
  KR_TRY(fn(user, "8 frames: rows for the language model", kr_videogpt_graph_of(p->model, 1)));
  KR_TRY(kr_lm_graph_of(lm, KR_VIDEOGPT_ROWS + WORDS, 1, &g));
  KR_TRY(fn(user, "language model, a video's rows and 64 tokens", g));
  KR_TRY(kr_lm_graph_of(lm, 0, 0, &g));
  return fn(user, "language model, a step of one sequence", g);
}

static int32_t graphs_of_videogpt(const krait_ctx *ctx, const kr_model_source *s, kr_model_graph_fn *fn, void *user) {
  kr_videogpt_parts parts = {0};
  kr_lm *lm = NULL;
  int32_t status = kr_lm_open(ctx, s->folder, 1, 0, &lm);
  if (status >= 0) status = kr_videogpt_parts_open(ctx, s->folder, s->path, lm, &parts);
  if (status >= 0) status = pass_videogpt_graphs(&parts, lm, fn, user);
  kr_videogpt_parts_close(&parts);
  kr_lm_close(&lm);
  return status;
}

const kr_model_kind kr_model_videogpt = {.name = "videogpt", .detect = is_videogpt, .graphs = graphs_of_videogpt};

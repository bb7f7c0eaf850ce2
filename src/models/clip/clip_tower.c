/* clip_tower.c: the tower's weights and its graph, from image patches to features. */
#include "clip_tower.h"

#include "alloc.h"
#include "model_kind.h"
#include "status.h"

static int32_t take_clip_tower(kr_loader *p, void *user) {
  kr_clip_tower *t = user;
  return kr_clip_take(p, &t->c, t->c.n_layers, &t->w);
}

int32_t kr_clip_tower_open(const kr_loader *from, const kr_clip_config *c, int64_t n, kr_clip_tower *t) {
  const int64_t n_patches = c->edge * c->edge;
  *t = (kr_clip_tower){
      .loader = *from, .c = *c, .w.layers = kr_alloc_array((size_t)c->n_layers + 1, sizeof *t->w.layers)};
  KR_CHECK(t->w.layers, KRAIT_ERR_NO_MEMORY, "no memory for %lld layers", (long long)c->n_layers);
  KR_TRY(kr_loader_run(&t->loader, take_clip_tower, t));
  KR_TRY(kr_graph_open(&t->g));
  t->patches = kr_graph_input(t->g, "patches", KRAIT_F32, KR_DIMS(n * n_patches, 3 * c->patch * c->patch));
  t->features = kr_graph_output(t->g, "features", KRAIT_F32, KR_DIMS(n, n_patches, c->C));
  const kr_tensor hidden = kr_clip_record(t->g, c, &t->w, c->n_layers, n, t->patches);
  kr_graph_pointwise(t->g, "features", (kr_pointwise_args){.x_scale = 1}, hidden, 0, t->features);
  return kr_graph_plan(t->g, from->ctx, 0);
}

void kr_clip_tower_close(kr_clip_tower *t) {
  if (t->g) kr_graph_close(&t->g);
  kr_loader_close(&t->loader);
  kr_free(t->w.layers);
  t->w.layers = NULL;
}

/* ---- the family: a tower alone ---- */

static const char *prefix_of_clip(const kr_model_folder *folder) {
  return kr_model_folder_find(folder, "vision_model.embeddings.class_embedding") ? "vision_model." : "";
}

static int is_clip(const kr_model_source *s) {
  return s->folder && (*prefix_of_clip(s->folder) || kr_model_folder_find(s->folder, "embeddings.class_embedding"));
}

static int32_t graphs_of_clip(const krait_ctx *ctx, const kr_model_source *s, kr_model_graph_fn *fn, void *user) {
  const json_t *root = kr_model_folder_config(s->folder), *vision = json_object_get(root, "vision_config");
  const kr_loader p = {.ctx = ctx, .folder = s->folder, .prefix = prefix_of_clip(s->folder)};
  kr_clip_config c;
  kr_clip_tower tower;
  KR_TRY(kr_clip_config_read(&p, vision ? vision : root, &c));
  int32_t status = kr_clip_tower_open(&p, &c, 1, &tower);
  if (status >= 0) status = fn(user, "CLIP's vision tower, one image", tower.g);
  kr_clip_tower_close(&tower);
  return status;
}

const kr_model_kind kr_model_clip = {.name = "clip", .detect = is_clip, .graphs = graphs_of_clip};

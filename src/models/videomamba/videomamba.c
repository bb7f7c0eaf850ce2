/* videomamba.c: the configuration from tensors' shapes and the model's name, parameters in the context's memory, and
 * runs. */
#include "videomamba.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "model_kind.h"
#include "patches.h"
#include "status.h"
#include "videomamba_parts.h"
#include "view.h"

struct kr_videomamba {
  const krait_ctx *ctx;
  kr_loader loader;
  const char *name; /* given; or NULL */
  kr_videomamba_config c;
  kr_vm_parameters p;
  int is_image; /* weights for single images: no temporal embedding */
  kr_vm_graph graph;
  kr_runner *runner;
  float *patches;                            /* in host memory */
  float *patches_at, *tokens_at, *logits_at; /* in the context's memory; on a CPU patches_at is patches */
};

const kr_videomamba_config *kr_videomamba_config_of(const kr_videomamba *m) { return &m->c; }

/* ---- configuration ---- */

static const kr_weight *find_videomamba(const kr_videomamba *m, const char *name) {
  return kr_loader_peek(&m->loader, name);
}

static int32_t dims_of(const kr_videomamba *m, const char *name, int32_t n_dims, int64_t *dims) {
  const kr_weight *w = find_videomamba(m, name);
  KR_CHECK(w, KRAIT_ERR_WEIGHTS, "tensor '%s' is missing: these are not weights of VideoMamba", name);
  KR_CHECK(w->n_dims == n_dims, KRAIT_ERR_WEIGHTS, "tensor '%s' has %d dimensions, VideoMamba requires %d", name,
           w->n_dims, n_dims);
  for (int32_t i = 0; i < n_dims; i++) {
    dims[i] = w->shape[i];
    KR_CHECK(dims[i] >= 1 && dims[i] <= 1 << 20, KRAIT_ERR_WEIGHTS, "tensor '%s': dimension %d is %lld", name, i,
             (long long)dims[i]);
  }
  return KRAIT_OK;
}

static int64_t count_layers(const kr_videomamba *m) {
  char name[64];
  for (int64_t n = 0;; n++) {
    snprintf(name, sizeof name, "layers.%lld.norm.weight", (long long)n);
    if (n == 4096 || !find_videomamba(m, name)) return n;
  }
}

/* Whether the name is of a Vim of the one form that is computed here: "vim" itself, or upstream's name of a size, which
 * says all that is special about it. */
static int32_t read_vim_name(const char *name, int32_t *is_vim) {
  *is_vim = strncmp(name, "vim", 3) == 0;
  KR_CHECK(*is_vim || strncmp(name, "videomamba", 10) == 0, KRAIT_ERR_UNSUPPORTED,
           "there is no image model '%.100s'; vim and videomamba are known", name);
  const int is_in_middle = strstr(name, "midclstok") || strstr(name, "middle_cls_token");
  KR_CHECK(!*is_vim || !name[3] || (strstr(name, "bimambav2") && is_in_middle && strstr(name, "div2")),
           KRAIT_ERR_UNSUPPORTED,
           "model '%.100s' is another kind of Vim; only bimambav2 with midclstok and div2, as published, is supported",
           name);
  return KRAIT_OK;
}

/* Vim and VideoMamba's image models have tensors of the same names and shapes: only a name tells them apart. */
static int32_t find_image_kind(kr_videomamba *m, const char **name) {
  const char *told = m->loader.weights ? kr_weights_metadata(m->loader.weights, "model") : NULL;
  *name = m->name ? m->name : told ? told : "";
  if (!m->name && !m->is_image) return KRAIT_OK;
  KR_CHECK(**name, KRAIT_ERR_WEIGHTS,
           "these tensors may be Vim's or those of VideoMamba for images, and no metadata says whose: give the model's "
           "name (--model vim or --model videomamba)");
  KR_TRY(read_vim_name(*name, &m->c.is_vim));
  KR_CHECK(!m->c.is_vim || m->is_image, KRAIT_ERR_WEIGHTS, "these weights are for videos, '%.100s' is for images",
           *name);
  return KRAIT_OK;
}

/* Pixels from a patch to the next one. Vim's may overlap: so the name says, or else 224 pixels, for which all its
 * published weights are, need it for that many patches. */
static int64_t find_stride(const char *name, int is_vim, int64_t patch, int64_t edge) {
  enum { PUBLISHED_SIDE = 224 };
  const char *said = is_vim ? strstr(name, "_stride") : NULL;
  const int64_t told = said ? strtol(said + strlen("_stride"), NULL, 10) : 0,
                rest = PUBLISHED_SIDE > patch ? PUBLISHED_SIDE - patch : 0;
  if (told >= 1 && told <= patch) return told;
  return is_vim && edge > 1 && rest % (edge - 1) == 0 && rest / (edge - 1) >= 1 && rest / (edge - 1) < patch
             ? rest / (edge - 1)
             : patch;
}

static int32_t read_config(kr_videomamba *m) {
  kr_videomamba_config *c = &m->c;
  int64_t embed[5] = {0}, pos_embed[3], times[3] = {1, 1, 1}, A[2], dt[2], conv[3], head[2];
  if (find_videomamba(m, "vision_encoder.cls_token")) m->loader.prefix = "vision_encoder.";
  m->is_image =
      find_videomamba(m, "patch_embed.proj.weight") && find_videomamba(m, "patch_embed.proj.weight")->n_dims == 4;
  KR_TRY(dims_of(m, "patch_embed.proj.weight", 5 - m->is_image, embed));
  if (m->is_image) embed[4] = embed[3], embed[3] = embed[2], embed[2] = 1;
  KR_TRY(dims_of(m, "pos_embed", 3, pos_embed));
  if (!m->is_image) KR_TRY(dims_of(m, "temporal_pos_embedding", 3, times));
  KR_TRY(dims_of(m, "layers.0.mixer.A_log", 2, A));
  KR_TRY(dims_of(m, "layers.0.mixer.dt_proj.weight", 2, dt));
  KR_TRY(dims_of(m, "layers.0.mixer.conv1d.weight", 3, conv));
  if (find_videomamba(m, "head.weight")) {
    KR_TRY(dims_of(m, "head.weight", 2, head));
    c->n_classes = head[0];
  }
  const int64_t edge = (int64_t)llround(sqrt((double)(pos_embed[1] - 1)));
  KR_CHECK(embed[2] == 1, KRAIT_ERR_UNSUPPORTED, "patches of %lld frames (tubelets) are not supported, only of one",
           (long long)embed[2]);
  KR_CHECK(embed[1] == 3 && embed[3] == embed[4] && edge >= 1 && edge * edge == pos_embed[1] - 1, KRAIT_ERR_WEIGHTS,
           "%lld position embeddings do not match square RGB frames of square patches", (long long)pos_embed[1] - 1);
  const char *name;
  KR_TRY(find_image_kind(m, &name));
  const int64_t stride = find_stride(name, c->is_vim, embed[3], edge);
  c->grid = (kr_patch_grid){(edge - 1) * stride + embed[3], embed[3], stride};
  c->T = times[1], c->D = embed[0], c->n_layers = count_layers(m);
  c->Di = A[0], c->N = A[1], c->R = dt[1], c->W = conv[2];
  return KRAIT_OK;
}

/* ---- parameters ---- */

static double decay(double x) { return -exp(x); }

/* pos_embed + cls_token for the class token; pos_embed of its patch + temporal_pos_embedding of its frame for the
 * others. An image's are in the order of the tokens. */
static int32_t load_videomamba_pos_embed(kr_videomamba *m, kr_loader *p) {
  const kr_videomamba_config *c = &m->c;
  const int64_t L = kr_videomamba_tokens(c), n = (L - 1) / c->T;
  kr_weight cls, of_patch, of_frame = {0};
  KR_TRY(kr_loader_find(p, "cls_token", 1, KR_SIZES(1, 1, c->D), &cls));
  KR_TRY(kr_loader_find(p, "pos_embed", 1, KR_SIZES(1, 1 + n, c->D), &of_patch));
  if (!m->is_image) KR_TRY(kr_loader_find(p, "temporal_pos_embedding", 1, KR_SIZES(1, c->T, c->D), &of_frame));
#define VIEW(w) {.data = (void *)(w).data, .dtype = (w).dtype}
  const kr_view cls_at = VIEW(cls), patch_at = VIEW(of_patch), frame_at = VIEW(of_frame);
#undef VIEW
  float *sum = kr_alloc_array((size_t)(L * c->D), sizeof *sum);
  KR_CHECK(sum, KRAIT_ERR_NO_MEMORY, "no memory for the position embeddings of %lld tokens", (long long)L);
  for (int64_t i = 0; i < L; i++)
    for (int64_t d = 0; d < c->D; d++) {
      const float other = i == kr_videomamba_class(c) ? (float)kr_get(&cls_at, d)
                          : of_frame.data             ? (float)kr_get(&frame_at, (i - 1) / n * c->D + d)
                                                      : 0;
      const int64_t place = i ? 1 + (i - 1) % n : 0;
      sum[i * c->D + d] = (float)kr_get(&patch_at, place * c->D + d) + other;
    }
  const int32_t status = kr_load_buffer(p, sum, (uint64_t)(L * c->D) * sizeof *sum, KRAIT_F32, &m->p.pos_embed);
  kr_free(sum);
  return status;
}

static int32_t take_scan(kr_videomamba *m, kr_loader *p, int64_t layer, const char *end, kr_vm_scan *s) {
  const kr_videomamba_config *c = &m->c;
  char name[96];
#define NAME(...) (snprintf(name, sizeof name, __VA_ARGS__), name)
#define OF(key) NAME("layers.%lld.mixer." key, (long long)layer, end)
  KR_TRY(kr_load_f32(p, NAME(*end ? "layers.%lld.mixer.A_b_log" : "layers.%lld.mixer.A_log", (long long)layer),
                      KR_SIZES(c->Di, c->N), decay, &s->A));
  KR_TRY(kr_load_f32(p, OF("D%s"), KR_SIZES(c->Di), NULL, &s->Dvec));
  KR_TRY(kr_load(p, OF("conv1d%s.weight"), 1, KR_SIZES(c->Di, 1, c->W), &s->conv));
  KR_TRY(kr_load(p, OF("conv1d%s.bias"), 1, KR_SIZES(c->Di), &s->conv_bias));
  KR_TRY(kr_load(p, OF("x_proj%s.weight"), 1, KR_SIZES(c->R + 2 * c->N, c->Di), &s->x_proj));
  KR_TRY(kr_load(p, OF("dt_proj%s.weight"), 1, KR_SIZES(c->Di, c->R), &s->dt_proj));
  return kr_load_f32(p, OF("dt_proj%s.bias"), KR_SIZES(c->Di), NULL, &s->dt_bias);
}

static int32_t take_videomamba_layer(kr_videomamba *m, kr_loader *p, int64_t layer, kr_vm_layer *l) {
  const kr_videomamba_config *c = &m->c;
  char name[96];
  KR_TRY(kr_load(p, NAME("layers.%lld.norm.weight", (long long)layer), 1, KR_SIZES(c->D), &l->norm));
  KR_TRY(kr_load(p, NAME("layers.%lld.mixer.in_proj.weight", (long long)layer), 1, KR_SIZES(2 * c->Di, c->D),
                  &l->in_proj));
  KR_TRY(take_scan(m, p, layer, "", &l->scan[0]));
  KR_TRY(take_scan(m, p, layer, "_b", &l->scan[1]));
  return kr_load(p, NAME("layers.%lld.mixer.out_proj.weight", (long long)layer), 1, KR_SIZES(c->D, c->Di),
                  &l->out_proj);
}

static int32_t take_videomamba_all(kr_loader *p, void *user) {
  kr_videomamba *m = user;
  const kr_videomamba_config *c = &m->c;
  KR_TRY(kr_load(p, "patch_embed.proj.weight", 1,
                 m->is_image ? KR_SIZES(c->D, 3, c->grid.patch, c->grid.patch)
                             : KR_SIZES(c->D, 3, 1, c->grid.patch, c->grid.patch),
                 &m->p.embed));
  KR_TRY(kr_load(p, "patch_embed.proj.bias", 1, KR_SIZES(c->D), &m->p.embed_bias));
  KR_TRY(load_videomamba_pos_embed(m, p));
  for (int64_t i = 0; i < c->n_layers; i++) KR_TRY(take_videomamba_layer(m, p, i, &m->p.layers[i]));
  KR_TRY(
      kr_load(p, find_videomamba(m, "norm_f.weight") ? "norm_f.weight" : "norm.weight", 1, KR_SIZES(c->D), &m->p.norm));
  m->p.dtype = m->ctx->cuda ? m->p.layers[0].in_proj.dtype : KRAIT_F32;
  if (!c->n_classes) return KRAIT_OK;
  KR_TRY(kr_load(p, "head.weight", 1, KR_SIZES(c->n_classes, c->D), &m->p.head));
  return kr_load(p, "head.bias", 1, KR_SIZES(c->n_classes), &m->p.head_bias);
}

static uint64_t videomamba_patches_bytes(const kr_videomamba_config *c) {
  return (uint64_t)((kr_videomamba_tokens(c) - 1) * 3 * c->grid.patch * c->grid.patch) * sizeof(float);
}
static uint64_t tokens_bytes(const kr_videomamba_config *c) {
  return (uint64_t)(kr_videomamba_tokens(c) * c->D) * sizeof(float);
}

static int32_t get_videomamba_buffers(kr_videomamba *m) {
  m->patches = kr_alloc((size_t)videomamba_patches_bytes(&m->c));
  KR_CHECK(m->patches, KRAIT_ERR_NO_MEMORY, "no memory for a clip of %lld tokens",
           (long long)kr_videomamba_tokens(&m->c));
  m->patches_at = m->patches;
  if (m->ctx->cuda) KR_TRY(kr_mem_get(m->ctx, "patches", videomamba_patches_bytes(&m->c), &m->patches_at));
  KR_TRY(kr_mem_get(m->ctx, "tokens", tokens_bytes(&m->c), &m->tokens_at));
  return kr_mem_get(m->ctx, "classes", (uint64_t)(m->c.n_classes + 1) * sizeof(float), &m->logits_at);
}

/* ---- open, run, close ---- */

static int32_t prepare_videomamba(kr_videomamba *m, const kr_videomamba_config *given) {
  if (given)
    m->c = *given;
  else
    KR_TRY(read_config(m));
  m->p.layers = kr_alloc_array((size_t)m->c.n_layers, sizeof *m->p.layers);
  KR_CHECK(m->p.layers, KRAIT_ERR_NO_MEMORY, "no memory for %lld layers", (long long)m->c.n_layers);
  KR_TRY(kr_loader_run(&m->loader, take_videomamba_all, m));
  static const char *const unused[] = {"clip_decoder.", NULL}; /* of its masked training */
  KR_TRY(kr_loader_check_read(&m->loader, unused));
  KR_TRY(get_videomamba_buffers(m));
  KR_TRY(kr_vm_graph_record(m->ctx, &m->c, &m->p, &m->graph));
  KR_TRY(kr_runner_open(m->graph.g, &m->runner));
  KR_TRY(kr_runner_bind(m->runner, m->graph.patches, m->patches_at));
  KR_TRY(kr_runner_bind(m->runner, m->graph.tokens, m->tokens_at));
  return m->c.n_classes ? kr_runner_bind(m->runner, m->graph.logits, m->logits_at) : KRAIT_OK;
}

static int32_t open_videomamba_model(const kr_loader *from, const char *name, const kr_videomamba_config *given,
                                     kr_videomamba **model) {
  kr_videomamba *m = *model = kr_zalloc(sizeof *m);
  KR_CHECK(m, KRAIT_ERR_NO_MEMORY, "no memory for a model");
  m->ctx = from->ctx, m->loader = *from, m->name = name;
  const int32_t status = prepare_videomamba(m, given);
  if (status < 0) kr_videomamba_close(model);
  return status;
}

int32_t kr_videomamba_open(const krait_ctx *ctx, const kr_weights *weights, const char *name, kr_videomamba **model) {
  return open_videomamba_model(&(kr_loader){.ctx = ctx, .weights = weights}, name, NULL, model);
}

int32_t kr_videomamba_open_part(const krait_ctx *ctx, const kr_model_folder *folder, const char *prefix,
                                kr_videomamba **model) {
  return open_videomamba_model(&(kr_loader){.ctx = ctx, .folder = folder, .prefix = prefix}, NULL, NULL, model);
}

int32_t kr_videomamba_open_random(const krait_ctx *ctx, const kr_videomamba_config *config, int32_t dtype,
                                  kr_videomamba **model) {
  return open_videomamba_model(&(kr_loader){.ctx = ctx, .random_type = dtype}, NULL, config, model);
}

void kr_videomamba_close(kr_videomamba **model) {
  kr_videomamba *m = *model;
  if (!m) return;
  kr_runner_close(&m->runner);
  if (m->graph.g) kr_graph_close(&m->graph.g);
  if (m->patches_at != m->patches) kr_mem_free(m->ctx, m->patches_at);
  kr_mem_free(m->ctx, m->tokens_at);
  kr_mem_free(m->ctx, m->logits_at);
  kr_loader_close(&m->loader);
  kr_free(m->patches);
  kr_free(m->p.layers);
  kr_free(m);
  *model = NULL;
}

const kr_graph *kr_videomamba_graph(const kr_videomamba *m) { return m->graph.g; }
uint64_t kr_videomamba_bytes(const kr_videomamba *m) { return m->loader.bytes; }
const float *kr_videomamba_tokens_at(const kr_videomamba *m) { return m->tokens_at; }

int32_t kr_videomamba_run(kr_videomamba *m, const float *frames, float *logits, float *tokens) {
  const kr_videomamba_config *c = &m->c;
  const int64_t area = c->grid.side * c->grid.side;
  KR_CHECK(frames && (!logits || c->n_classes), KRAIT_ERR_ARGUMENT,
           frames ? "videomamba: these weights have no classes" : "videomamba: frames is NULL");
  kr_patches_cut(frames, c->T, area, c->T * area, &c->grid, m->patches);
  if (m->ctx->cuda) KR_TRY(kr_mem_put(m->ctx, m->patches_at, m->patches, videomamba_patches_bytes(c)));
  KR_TRY(kr_runner_run(m->runner, NULL));
  if (logits) KR_TRY(kr_mem_read(m->ctx, logits, m->logits_at, (uint64_t)c->n_classes * sizeof *logits));
  return tokens ? kr_mem_read(m->ctx, tokens, m->tokens_at, tokens_bytes(c)) : KRAIT_OK;
}

/* ---- the family ---- */

static int is_videomamba(const kr_model_source *s) {
  return s->weights && (kr_weights_find(s->weights, "layers.0.mixer.A_b_log") ||
                        kr_weights_find(s->weights, "vision_encoder.layers.0.mixer.A_b_log"));
}

static int32_t graphs_of_videomamba(const krait_ctx *ctx, const kr_model_source *s, kr_model_graph_fn *fn, void *user) {
  kr_videomamba *m = NULL;
  KR_TRY(kr_videomamba_open(ctx, s->weights, NULL, &m));
  const int32_t status = fn(user, m->c.is_vim ? "Vim, one image" : "VideoMamba, one clip", kr_videomamba_graph(m));
  kr_videomamba_close(&m);
  return status;
}

const kr_model_kind kr_model_videomamba = {
    .name = "videomamba", .detect = is_videomamba, .graphs = graphs_of_videomamba};

/* videomamba.c: what the tensors' shapes say, the parameters where the context computes, and runs. */
#include "videomamba.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "arena.h"
#include "ctx.h"
#include "status.h"
#include "videomamba_parts.h"

struct kr_videomamba {
  const krait_ctx *ctx;
  const kr_weights *weights;
  const char *prefix;
  kr_videomamba_config c;
  kr_vm_parameters p;
  kr_arena *arena; /* of what is computed, and of a CPU's buffers */
  char *device;    /* a GPU's parameters, then its buffers */
  uint64_t used;
  int is_image;    /* weights of one picture: no times */
  int counting;    /* on a GPU the first time over the parameters */
  kr_vm_graph graph;
  kr_runner *runner;
  float *patches, *tokens, *logits; /* host memory */
  char *on_device[3];               /* the same on a GPU */
};

const kr_videomamba_config *kr_videomamba_config_of(const kr_videomamba *m) { return &m->c; }

/* ---- configuration ---- */

static const kr_weight *find(const kr_videomamba *m, const char *name) {
  char key[128];
  snprintf(key, sizeof key, "%s%s", m->prefix, name);
  return kr_weights_find(m->weights, key);
}

static int32_t dims_of(const kr_videomamba *m, const char *name, int32_t n_dims, int64_t *dims) {
  const kr_weight *w = find(m, name);
  KR_CHECK(w, KRAIT_ERR_WEIGHTS, "tensor '%s' is missing: these are not weights of VideoMamba", name);
  KR_CHECK(w->n_dims == n_dims, KRAIT_ERR_WEIGHTS, "tensor '%s' has %d dimensions, VideoMamba wants %d", name, w->n_dims, n_dims);
  for (int32_t i = 0; i < n_dims; i++) {
    dims[i] = w->shape[i];
    KR_CHECK(dims[i] >= 1 && dims[i] <= 1 << 20, KRAIT_ERR_WEIGHTS, "tensor '%s': dimension %d is %lld", name, i, (long long)dims[i]);
  }
  return KRAIT_OK;
}

static int64_t count_layers(const kr_videomamba *m) {
  char name[64];
  for (int64_t n = 0;; n++) {
    snprintf(name, sizeof name, "layers.%lld.norm.weight", (long long)n);
    if (n == 4096 || !find(m, name)) return n;
  }
}

static int32_t read_config(kr_videomamba *m) {
  kr_videomamba_config *c = &m->c;
  int64_t embed[5] = {0}, places[3], times[3] = {1, 1, 1}, A[2], dt[2], conv[3], head[2];
  m->prefix = kr_weights_find(m->weights, "vision_encoder.cls_token") ? "vision_encoder." : "";
  m->is_image = find(m, "patch_embed.proj.weight") && find(m, "patch_embed.proj.weight")->n_dims == 4;
  KR_TRY(dims_of(m, "patch_embed.proj.weight", 5 - m->is_image, embed));
  if (m->is_image) embed[4] = embed[3], embed[3] = embed[2], embed[2] = 1;
  KR_TRY(dims_of(m, "pos_embed", 3, places));
  if (!m->is_image) KR_TRY(dims_of(m, "temporal_pos_embedding", 3, times));
  KR_TRY(dims_of(m, "layers.0.mixer.A_log", 2, A));
  KR_TRY(dims_of(m, "layers.0.mixer.dt_proj.weight", 2, dt));
  KR_TRY(dims_of(m, "layers.0.mixer.conv1d.weight", 3, conv));
  if (find(m, "head.weight")) {
    KR_TRY(dims_of(m, "head.weight", 2, head));
    c->n_classes = head[0];
  }
  const int64_t edge = (int64_t)llround(sqrt((double)(places[1] - 1)));
  KR_CHECK(embed[2] == 1, KRAIT_ERR_UNSUPPORTED, "patches of %lld frames each (tubelets) are not supported, only of one", (long long)embed[2]);
  KR_CHECK(embed[1] == 3 && embed[3] == embed[4] && edge >= 1 && edge * edge == places[1] - 1, KRAIT_ERR_WEIGHTS, "%lld places for square frames of square patches in three colours are none",
           (long long)places[1] - 1);
  c->patch = embed[3], c->side = edge * c->patch, c->T = times[1], c->D = embed[0], c->n_layers = count_layers(m);
  c->Di = A[0], c->N = A[1], c->R = dt[1], c->W = conv[2];
  return KRAIT_OK;
}

/* ---- parameters ---- */

/* Where a GPU has them, or as they are. */
static int32_t place(kr_videomamba *m, const float *data, uint64_t bytes, const float **at) {
  const uint64_t from = m->used;
  *at = data;
  if (!m->ctx->cuda) return KRAIT_OK;
  m->used = (from + bytes + 255) & ~(uint64_t)255;
  if (m->counting) return KRAIT_OK;
  *at = (const float *)(void *)(m->device + from);
  return kr_cuda_copy_in(m->ctx->cuda, m->device + from, data, bytes, NULL);
}

static int32_t take(kr_videomamba *m, const char *name, int32_t n_dims, const int64_t *shape, const float **at) {
  char key[128];
  const float *data;
  uint64_t n = 1;
  snprintf(key, sizeof key, "%s%s", m->prefix, name);
  KR_TRY(kr_weights_take_f32(m->weights, key, n_dims, shape, &data));
  for (int32_t i = 0; i < n_dims; i++) n *= (uint64_t)shape[i];
  return place(m, data, n * sizeof *data, at);
}
#define SHAPE(...) sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__}

/* A = -exp(A_log). */
static int32_t take_decays(kr_videomamba *m, const char *name, const float **at) {
  char key[128];
  const float *log_A;
  const int64_t n = m->c.Di * m->c.N;
  snprintf(key, sizeof key, "%s%s", m->prefix, name);
  KR_TRY(kr_weights_take_f32(m->weights, key, SHAPE(m->c.Di, m->c.N), &log_A));
  float *A = kr_arena_try(m->arena, (size_t)n * sizeof *A);
  KR_CHECK(A, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", name);
  for (int64_t i = 0; i < n; i++) A[i] = -expf(log_A[i]);
  return place(m, A, (uint64_t)n * sizeof *A, at);
}

/* pos_embed + cls_token for the first token; pos_embed of its patch + temporal_pos_embedding of its frame for the others. */
static int32_t take_places(kr_videomamba *m) {
  const kr_videomamba_config *c = &m->c;
  const int64_t L = kr_videomamba_tokens(c), n = (L - 1) / c->T;
  const float *cls, *of_patch, *of_frame = NULL;
  KR_CHECK(find(m, "cls_token"), KRAIT_ERR_WEIGHTS, "tensor 'cls_token' is missing");
  KR_TRY(kr_weights_take_f32(m->weights, find(m, "cls_token")->name, SHAPE(1, 1, c->D), &cls));
  KR_TRY(kr_weights_take_f32(m->weights, find(m, "pos_embed")->name, SHAPE(1, 1 + n, c->D), &of_patch));
  if (!m->is_image) KR_TRY(kr_weights_take_f32(m->weights, find(m, "temporal_pos_embedding")->name, SHAPE(1, c->T, c->D), &of_frame));
  float *sum = kr_arena_try(m->arena, (size_t)(L * c->D) * sizeof *sum);
  KR_CHECK(sum, KRAIT_ERR_NO_MEMORY, "no memory for the places of %lld tokens", (long long)L);
  for (int64_t d = 0; d < c->D; d++) sum[d] = cls[d] + of_patch[d];
  for (int64_t i = 1; i < L; i++)
    for (int64_t d = 0; d < c->D; d++) sum[i * c->D + d] = of_patch[(1 + (i - 1) % n) * c->D + d] + (of_frame ? of_frame[(i - 1) / n * c->D + d] : 0);
  return place(m, sum, (uint64_t)(L * c->D) * sizeof *sum, &m->p.places);
}

static int32_t take_scan(kr_videomamba *m, int64_t layer, const char *end, kr_vm_scan *s) {
  const kr_videomamba_config *c = &m->c;
  char name[96];
#define NAME(...) (snprintf(name, sizeof name, __VA_ARGS__), name)
#define OF(key) NAME("layers.%lld.mixer." key, (long long)layer, end)
  KR_TRY(take_decays(m, *end ? NAME("layers.%lld.mixer.A_b_log", (long long)layer) : NAME("layers.%lld.mixer.A_log", (long long)layer), &s->A));
  KR_TRY(take(m, OF("D%s"), SHAPE(c->Di), &s->Dvec));
  KR_TRY(take(m, OF("conv1d%s.weight"), SHAPE(c->Di, 1, c->W), &s->conv));
  KR_TRY(take(m, OF("conv1d%s.bias"), SHAPE(c->Di), &s->conv_bias));
  KR_TRY(take(m, OF("x_proj%s.weight"), SHAPE(c->R + 2 * c->N, c->Di), &s->x_proj));
  KR_TRY(take(m, OF("dt_proj%s.weight"), SHAPE(c->Di, c->R), &s->dt_proj));
  return take(m, OF("dt_proj%s.bias"), SHAPE(c->Di), &s->dt_bias);
}

static int32_t take_layer(kr_videomamba *m, int64_t layer, kr_vm_layer *l) {
  const kr_videomamba_config *c = &m->c;
  char name[96];
  KR_TRY(take(m, NAME("layers.%lld.norm.weight", (long long)layer), SHAPE(c->D), &l->norm));
  KR_TRY(take(m, NAME("layers.%lld.mixer.in_proj.weight", (long long)layer), SHAPE(2 * c->Di, c->D), &l->in_proj));
  KR_TRY(take_scan(m, layer, "", &l->scan[0]));
  KR_TRY(take_scan(m, layer, "_b", &l->scan[1]));
  return take(m, NAME("layers.%lld.mixer.out_proj.weight", (long long)layer), SHAPE(c->D, c->Di), &l->out_proj);
}

static int32_t take_all(kr_videomamba *m) {
  const kr_videomamba_config *c = &m->c;
  m->used = 0;
  const int64_t of_clips[] = {c->D, 3, 1, c->patch, c->patch}, of_images[] = {c->D, 3, c->patch, c->patch};
  KR_TRY(take(m, "patch_embed.proj.weight", 5 - m->is_image, m->is_image ? of_images : of_clips, &m->p.embed));
  KR_TRY(take(m, "patch_embed.proj.bias", SHAPE(c->D), &m->p.embed_bias));
  KR_TRY(take_places(m));
  for (int64_t i = 0; i < c->n_layers; i++) KR_TRY(take_layer(m, i, &m->p.layers[i]));
  KR_TRY(take(m, find(m, "norm_f.weight") ? "norm_f.weight" : "norm.weight", SHAPE(c->D), &m->p.norm));
  if (!c->n_classes) return KRAIT_OK;
  KR_TRY(take(m, "head.weight", SHAPE(c->n_classes, c->D), &m->p.head));
  return take(m, "head.bias", SHAPE(c->n_classes), &m->p.head_bias);
}

static int32_t get_buffers(kr_videomamba *m) {
  const kr_videomamba_config *c = &m->c;
  const int64_t L = kr_videomamba_tokens(c), sizes[] = {(L - 1) * 3 * c->patch * c->patch, L * c->D, c->n_classes};
  float **const hosts[] = {&m->patches, &m->tokens, &m->logits};
  for (int i = 0; i < 3; i++) {
    *hosts[i] = kr_arena_try(m->arena, (size_t)sizes[i] * sizeof(float) + 1);
    KR_CHECK(*hosts[i], KRAIT_ERR_NO_MEMORY, "no memory for a clip of %lld tokens", (long long)L);
    const float *at;
    KR_TRY(place(m, *hosts[i], (uint64_t)sizes[i] * sizeof(float), &at));
    m->on_device[i] = (char *)(uintptr_t)at;
  }
  return KRAIT_OK;
}

static int32_t load(kr_videomamba *m) {
  m->counting = m->ctx->cuda != NULL;
  KR_TRY(take_all(m));
  KR_TRY(get_buffers(m));
  if (!m->counting) return KRAIT_OK;
  m->counting = 0;
  KR_TRY(kr_cuda_alloc(m->ctx->cuda, m->used, (void **)&m->device));
  KR_TRY(take_all(m));
  KR_TRY(get_buffers(m));
  return kr_cuda_wait(m->ctx->cuda, NULL);
}

/* ---- open, run, close ---- */

static int32_t prepare(kr_videomamba *m) {
  KR_TRY(read_config(m));
  m->p.layers = kr_arena_try(m->arena, (size_t)m->c.n_layers * sizeof *m->p.layers);
  KR_CHECK(m->p.layers, KRAIT_ERR_NO_MEMORY, "no memory for %lld layers", (long long)m->c.n_layers);
  KR_TRY(load(m));
  KR_TRY(kr_vm_graph_record(m->ctx, &m->c, &m->p, &m->graph));
  KR_TRY(kr_runner_open(m->graph.g, &m->runner));
  KR_TRY(kr_runner_bind(m->runner, m->graph.patches, m->on_device[0]));
  KR_TRY(kr_runner_bind(m->runner, m->graph.tokens, m->on_device[1]));
  return m->c.n_classes ? kr_runner_bind(m->runner, m->graph.logits, m->on_device[2]) : KRAIT_OK;
}

int32_t kr_videomamba_open(const krait_ctx *ctx, const kr_weights *weights, kr_videomamba **model) {
  kr_videomamba *m = *model = kr_zalloc(sizeof *m);
  KR_CHECK(m, KRAIT_ERR_NO_MEMORY, "no memory for a model");
  m->ctx = ctx, m->weights = weights, m->arena = kr_arena_open();
  const int32_t status = m->arena ? prepare(m) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a model");
  if (status < 0) kr_videomamba_close(model);
  return status;
}

void kr_videomamba_close(kr_videomamba **model) {
  kr_videomamba *m = *model;
  if (!m) return;
  kr_runner_close(&m->runner);
  if (m->graph.g) kr_graph_close(&m->graph.g);
  if (m->device) kr_cuda_free(m->ctx->cuda, m->device);
  if (m->arena) kr_arena_close(&m->arena);
  kr_free(m);
  *model = NULL;
}

/* Each patch's pixels side by side, colour by colour, as the convolution's weight has them. */
static void cut(const kr_videomamba_config *c, const float *frames, float *patches) {
  const int64_t edge = c->side / c->patch, area = c->patch * c->patch;
  for (int64_t i = 0; i < c->T * edge * edge; i++) {
    const int64_t t = i / (edge * edge), top = i / edge % edge * c->patch, left = i % edge * c->patch;
    for (int64_t k = 0; k < 3 * c->patch; k++)
      memcpy(patches + i * 3 * area + k * c->patch, frames + ((k / c->patch * c->T + t) * c->side + top + k % c->patch) * c->side + left, (size_t)c->patch * sizeof *patches);
  }
}

int32_t kr_videomamba_run(kr_videomamba *m, const float *frames, float *logits, float *tokens) {
  const kr_videomamba_config *c = &m->c;
  kr_cuda *cuda = m->ctx->cuda;
  const int64_t L = kr_videomamba_tokens(c);
  KR_CHECK(frames && (!logits || c->n_classes), KRAIT_ERR_ARGUMENT, frames ? "videomamba: these weights have no classes" : "videomamba: frames is NULL");
  cut(c, frames, m->patches);
  if (cuda) KR_TRY(kr_cuda_copy_in(cuda, m->on_device[0], m->patches, (uint64_t)((L - 1) * 3 * c->patch * c->patch) * sizeof *frames, NULL));
  KR_TRY(kr_runner_run(m->runner, NULL));
  if (cuda && logits) KR_TRY(kr_cuda_copy_out(cuda, m->logits, m->on_device[2], (uint64_t)c->n_classes * sizeof *logits, NULL));
  if (cuda && tokens) KR_TRY(kr_cuda_copy_out(cuda, m->tokens, m->on_device[1], (uint64_t)(L * c->D) * sizeof *tokens, NULL));
  if (cuda) KR_TRY(kr_cuda_wait(cuda, NULL));
  if (logits) memcpy(logits, m->logits, (size_t)c->n_classes * sizeof *logits);
  if (tokens) memcpy(tokens, m->tokens, (size_t)(L * c->D) * sizeof *tokens);
  return KRAIT_OK;
}

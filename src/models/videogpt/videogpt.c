/* videogpt.c: Mobile-VideoGPT's projectors and frame selection: tensors, graphs, runs. */
#include "videogpt.h"

#include <math.h>
#include <stdio.h>

#include "alloc.h"
#include "ctx.h"
#include "patches.h"
#include "status.h"
#include "view.h"

struct kr_videogpt {
  const krait_ctx *ctx;
  kr_videogpt_source source;
  kr_loader loader, clip_loader;
  kr_videogpt_weights w;
  int takes_best; /* the frames with the highest scores; otherwise the lowest */
  kr_videogpt_graph context, video;
  float *patches, *patches_at; /* in host memory; in the context's memory, on a CPU the same */
  float *sums, *sums_at;
};

/* ---- tensors ---- */

/* Cell means of an adaptive pooling from EDGE x EDGE to edge x edge. */
static int32_t make_pool(kr_loader *p, int64_t edge, int32_t dtype, kr_weight_ref *to) {
  enum { E = KR_VIDEOGPT_EDGE };
  const int64_t n = edge * edge * KR_VIDEOGPT_PATCHES;
  const uint64_t bytes = (uint64_t)n * krait_dtype_bytes(dtype);
  const kr_view matrix = {.data = kr_zalloc((size_t)bytes), .dtype = dtype};
  KR_CHECK(matrix.data, KRAIT_ERR_NO_MEMORY, "no memory for a pooling");
  for (int64_t i = 0; i < edge * edge; i++) {
    const int64_t y = i / edge, x = i % edge, top = y * E / edge, bottom = ((y + 1) * E + edge - 1) / edge,
                  left = x * E / edge, right = ((x + 1) * E + edge - 1) / edge;
    for (int64_t k = top; k < bottom; k++)
      for (int64_t l = left; l < right; l++)
        kr_put(&matrix, i * KR_VIDEOGPT_PATCHES + k * E + l, 1.0 / (double)((bottom - top) * (right - left)));
  }
  const int32_t status = kr_load_buffer(p, matrix.data, bytes, dtype, to);
  kr_free(matrix.data);
  return status;
}

/* (d,1,3,3) as (9,d) float32, with 1 added to the center tap. */
static int32_t take_taps(kr_loader *p, const char *name, int64_t d, kr_weight_ref *to) {
  kr_weight item;
  KR_TRY(kr_loader_find(p, name, 1, KR_SIZES(d, 1, 3, 3), &item));
  const kr_view taps = {.data = (void *)item.data, .dtype = item.dtype};
  float *turned = kr_alloc_array((size_t)(9 * d), sizeof *turned);
  KR_CHECK(turned, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", name);
  for (int64_t i = 0; i < 9 * d; i++) turned[i % 9 * d + i / 9] = (float)kr_get(&taps, i) + (float)(i % 9 == 4);
  const int32_t status = kr_load_buffer(p, turned, (uint64_t)(9 * d) * sizeof *turned, KRAIT_F32, to);
  kr_free(turned);
  return status;
}

static int32_t take_projector(kr_loader *p, const char *name, int64_t d, kr_projector *to) {
  char key[64];
#define KEY(end) (snprintf(key, sizeof key, "model.%s." end, name), key)
  KR_TRY(kr_load(p, KEY("mlp.mlp.0.weight"), 1, KR_SIZES(d, to->K), &to->first));
  KR_TRY(kr_load(p, KEY("mlp.mlp.0.bias"), 1, KR_SIZES(d), &to->first_bias));
  KR_TRY(kr_load(p, KEY("mlp.mlp.2.weight"), 1, KR_SIZES(d, d), &to->second));
  KR_TRY(kr_load(p, KEY("mlp.mlp.2.bias"), 1, KR_SIZES(d), &to->second_bias));
  KR_TRY(take_taps(p, KEY("peg.peg.0.weight"), d, &to->taps));
  KR_TRY(kr_load_f32(p, KEY("peg.peg.0.bias"), KR_SIZES(d), NULL, &to->taps_bias));
  return make_pool(p, to->edge, p->ctx->cuda ? to->second.dtype : KRAIT_F32, &to->pool);
}

static int32_t take_sums(kr_loader *p, kr_videogpt_weights *w) {
  const int64_t C = w->clip_config.C, R = KR_VIDEOGPT_CHUNK * KR_VIDEOGPT_PATCHES, n = R * KR_VIDEOGPT_SUMS;
  float *values = kr_alloc_array((size_t)(n > C ? n : C), sizeof *values);
  KR_CHECK(values, KRAIT_ERR_NO_MEMORY, "no memory for frame selection");
  for (int64_t i = 0; i < R; i++)
    values[i * KR_VIDEOGPT_SUMS + i / KR_VIDEOGPT_PATCHES] = values[i * KR_VIDEOGPT_SUMS + KR_VIDEOGPT_CHUNK] = 1;
  int32_t status = kr_load_buffer(p, values, (uint64_t)n * sizeof *values, KRAIT_F32, &w->of_frames);
  for (int64_t i = 0; i < C; i++) values[i] = 1;
  if (status >= 0) status = kr_load_buffer(p, values, (uint64_t)C * sizeof *values, KRAIT_F32, &w->ones);
  kr_free(values);
  return status;
}

static int32_t take_videogpt_all(kr_loader *p, void *user) {
  kr_videogpt_weights *w = user;
  KR_TRY(take_projector(p, "image_mm_projector", w->d, &w->context));
  KR_TRY(take_projector(p, "mm_projector", w->d, &w->video));
  KR_TRY(make_pool(p, KR_VIDEOGPT_VIDEO_EDGE, w->video.pool.dtype, &w->frame_pool));
  return take_sums(p, w);
}

static int32_t take_clip(kr_loader *p, void *user) {
  kr_videogpt_weights *w = user;
  return kr_clip_take(p, &w->clip_config, w->n_layers, &w->clip);
}

/* ---- sizes ---- */

static int32_t projector_sizes(const kr_loader *p, const char *key, int64_t *d, int64_t *K) {
  const kr_weight *w = kr_loader_peek(p, key);
  KR_CHECK(w && w->n_dims == 2, KRAIT_ERR_WEIGHTS, "%s: tensor '%s' is %s: these are not weights of Mobile-VideoGPT",
           kr_loader_label(p), key, w ? "no matrix" : "missing");
  *d = w->shape[0], *K = w->shape[1];
  return KRAIT_OK;
}

/* Those of Mobile-VideoGPT-0.5B. */
static int32_t published_sizes(kr_videogpt *m) {
  m->w.clip_config = (kr_clip_config){.C = 768,
                                      .n_layers = 12,
                                      .F = 3072,
                                      .H = 12,
                                      .patch = 16,
                                      .edge = KR_VIDEOGPT_EDGE,
                                      .activation = KRAIT_ACT_SILU,
                                      .eps = 1e-5f};
  m->w.d = 896, m->w.context.K = 768, m->w.video.K = 576, m->w.n_layers = 11, m->takes_best = 1;
  m->w.context.edge = KR_VIDEOGPT_CONTEXT_EDGE, m->w.video.edge = KR_VIDEOGPT_VIDEO_EDGE;
  return KRAIT_OK;
}

static int32_t read_videogpt_sizes(kr_videogpt *m) {
  const json_t *root = kr_model_folder_config(m->source.folder),
               *chosen = json_object_get(root, "num_select_k_frames_in_chunk");
  kr_videogpt_weights *w = &m->w;
  int64_t d;
  KR_CHECK(!chosen || json_integer_value(chosen) == KR_VIDEOGPT_CHOSEN, KRAIT_ERR_WEIGHTS,
           "%s: config.json: num_select_k_frames_in_chunk is %lld; the model's shapes allow only %d",
           kr_loader_label(&m->loader), (long long)json_integer_value(chosen), KR_VIDEOGPT_CHOSEN);
  m->takes_best = !json_is_false(json_object_get(root, "topK"));
  KR_TRY(projector_sizes(&m->loader, "model.image_mm_projector.mlp.mlp.0.weight", &w->d, &w->context.K));
  KR_TRY(projector_sizes(&m->loader, "model.mm_projector.mlp.mlp.0.weight", &d, &w->video.K));
  w->context.edge = KR_VIDEOGPT_CONTEXT_EDGE, w->video.edge = KR_VIDEOGPT_VIDEO_EDGE;
  KR_TRY(kr_clip_config_read(&m->clip_loader,
                             json_object_get(kr_model_folder_config(m->source.clip_folder), "vision_config"),
                             &w->clip_config));
  KR_CHECK(d == w->d && w->context.K == w->clip_config.C, KRAIT_ERR_WEIGHTS,
           "%s: the projectors' widths (%lld, %lld, CLIP %lld) do not match", kr_loader_label(&m->loader),
           (long long)w->d, (long long)d, (long long)w->clip_config.C);
  KR_CHECK(w->clip_config.edge == KR_VIDEOGPT_EDGE && w->clip_config.n_layers >= 1, KRAIT_ERR_WEIGHTS,
           "%s: CLIP has %lld x %lld patches and %lld layers; Mobile-VideoGPT requires %d x %d",
           kr_loader_label(&m->loader), (long long)w->clip_config.edge, (long long)w->clip_config.edge,
           (long long)w->clip_config.n_layers, KR_VIDEOGPT_EDGE, KR_VIDEOGPT_EDGE);
  w->n_layers = w->clip_config.n_layers - 1; /* the second to last hidden state */
  return KRAIT_OK;
}

/* ---- open and close ---- */

static uint64_t videogpt_patches_bytes(const kr_videogpt *m) {
  const int64_t patch = m->w.clip_config.patch;
  return (uint64_t)(KR_VIDEOGPT_IMAGES * KR_VIDEOGPT_PATCHES * 3 * patch * patch) * sizeof(float);
}
enum { SUMS_FLOATS = KR_VIDEOGPT_IMAGES * KR_VIDEOGPT_PATCHES * KR_VIDEOGPT_SUMS };

static int32_t get_videogpt_buffers(kr_videogpt *m) {
  m->patches = kr_alloc((size_t)videogpt_patches_bytes(m));
  m->sums = kr_alloc_array(SUMS_FLOATS, sizeof *m->sums);
  KR_CHECK(m->patches && m->sums, KRAIT_ERR_NO_MEMORY, "no memory for a video's frames");
  m->patches_at = m->patches, m->sums_at = m->sums;
  if (!m->ctx->cuda) return KRAIT_OK;
  m->patches_at = m->sums_at = NULL;
  KR_TRY(kr_mem_get(m->ctx, "a video's frames", videogpt_patches_bytes(m), &m->patches_at));
  return kr_mem_get(m->ctx, "sums", SUMS_FLOATS * sizeof(float), &m->sums_at);
}

static int32_t prepare_videogpt(kr_videogpt *m) {
  KR_TRY(m->source.folder ? read_videogpt_sizes(m) : published_sizes(m));
  m->w.clip.layers = kr_alloc_array((size_t)m->w.n_layers + 1, sizeof *m->w.clip.layers);
  KR_CHECK(m->w.clip.layers, KRAIT_ERR_NO_MEMORY, "no memory for %lld layers", (long long)m->w.n_layers);
  KR_TRY(kr_loader_run(&m->clip_loader, take_clip, &m->w));
  KR_TRY(kr_loader_run(&m->loader, take_videogpt_all, &m->w));
  KR_CHECK(!m->ctx->cuda || m->w.clip.dtype == m->w.context.first.dtype, KRAIT_ERR_WEIGHTS,
           "%s: CLIP's weights are %s, its projector's %s; a GPU needs one type", kr_loader_label(&m->loader),
           krait_dtype_name(m->w.clip.dtype), krait_dtype_name(m->w.context.first.dtype));
  KR_TRY(get_videogpt_buffers(m));
  KR_TRY(kr_videogpt_record_context(m->ctx, &m->w, m->source.rows_dtype, &m->context));
  return kr_videogpt_record_video(m->ctx, &m->w, m->source.rows_dtype, &m->video);
}

int32_t kr_videogpt_open(const krait_ctx *ctx, const kr_videogpt_source *source, kr_videogpt **model) {
  kr_videogpt *m = *model = kr_zalloc(sizeof *m);
  KR_CHECK(m, KRAIT_ERR_NO_MEMORY, "no memory for a model");
  m->ctx = ctx, m->source = *source;
  m->loader = (kr_loader){.ctx = ctx, .folder = source->folder, .prefix = "", .random_type = source->random_type};
  m->clip_loader = (kr_loader){
      .ctx = ctx, .folder = source->clip_folder, .prefix = source->clip_prefix, .random_type = source->random_type};
  const int32_t status = prepare_videogpt(m);
  if (status < 0) kr_videogpt_close(model);
  return status;
}

void kr_videogpt_close(kr_videogpt **model) {
  kr_videogpt *m = *model;
  if (!m) return;
  kr_videogpt_graph *const graphs[] = {&m->context, &m->video};
  for (int i = 0; i < 2; i++) {
    kr_runner_close(&graphs[i]->runner);
    kr_graph_close(&graphs[i]->g);
  }
  if (m->patches_at != m->patches) kr_mem_free(m->ctx, m->patches_at);
  if (m->sums_at != m->sums) kr_mem_free(m->ctx, m->sums_at);
  kr_loader_close(&m->loader);
  kr_loader_close(&m->clip_loader);
  kr_free(m->w.clip.layers);
  kr_free(m->patches);
  kr_free(m->sums);
  kr_free(m);
  *model = NULL;
}

const kr_graph *kr_videogpt_graph_of(const kr_videogpt *m, int is_video) {
  return (is_video ? m->video : m->context).g;
}
uint64_t kr_videogpt_bytes(const kr_videogpt *m) { return m->loader.bytes + m->clip_loader.bytes; }
int64_t kr_videogpt_side(const kr_videogpt *m) { return m->w.clip_config.edge * m->w.clip_config.patch; }
int64_t kr_videogpt_width(const kr_videogpt *m) { return m->w.video.K; }
int64_t kr_videogpt_d(const kr_videogpt *m) { return m->w.d; }

/* ---- runs ---- */

static void videogpt_score(const kr_videogpt *m, double *scores) {
  for (int64_t f = 0; f < KR_VIDEOGPT_IMAGES; f++) {
    const float *rows = m->sums + f / KR_VIDEOGPT_CHUNK * KR_VIDEOGPT_CHUNK * KR_VIDEOGPT_PATCHES * KR_VIDEOGPT_SUMS;
    scores[f] = 0;
    for (int64_t r = 0; r < KR_VIDEOGPT_CHUNK * KR_VIDEOGPT_PATCHES; r++)
      scores[f] += (double)rows[r * KR_VIDEOGPT_SUMS + f % KR_VIDEOGPT_CHUNK] /
                   (double)rows[r * KR_VIDEOGPT_SUMS + KR_VIDEOGPT_CHUNK];
  }
}

/* In each chunk, those with the highest (or lowest) scores, in the video's order; among equal ones the first. */
static void choose(const kr_videogpt *m, const double *scores, int32_t *chosen) {
  for (int c = 0; c < KR_VIDEOGPT_CHUNKS; c++) {
    const double *of = scores + c * KR_VIDEOGPT_CHUNK;
    for (int i = 0, n = 0; i < KR_VIDEOGPT_CHUNK; i++) {
      int before = 0;
      for (int k = 0; k < KR_VIDEOGPT_CHUNK; k++)
        before += (m->takes_best ? of[k] > of[i] : of[k] < of[i]) || (of[k] == of[i] && k < i);
      if (before < KR_VIDEOGPT_CHOSEN) chosen[c * KR_VIDEOGPT_CHOSEN + n++] = c * KR_VIDEOGPT_CHUNK + i;
    }
  }
}

int32_t kr_videogpt_look(kr_videogpt *m, const float *images, void *rows, double *scores, int32_t *chosen) {
  const int64_t side = kr_videogpt_side(m), part = SUMS_FLOATS / KR_VIDEOGPT_CHUNKS;
  double own[KR_VIDEOGPT_IMAGES];
  const int64_t patch = m->w.clip_config.patch;
  kr_patches_cut(images, KR_VIDEOGPT_IMAGES, 3 * side * side, side * side, &(kr_patch_grid){side, patch, patch},
                 m->patches);
  if (m->ctx->cuda) KR_TRY(kr_mem_put(m->ctx, m->patches_at, m->patches, videogpt_patches_bytes(m)));
  KR_TRY(kr_runner_bind(m->context.runner, m->context.in, m->patches_at));
  KR_TRY(kr_runner_bind(m->context.runner, m->context.rows, rows));
  for (int i = 0; i < KR_VIDEOGPT_CHUNKS; i++)
    KR_TRY(kr_runner_bind(m->context.runner, m->context.sums[i], m->sums_at + i * part));
  KR_TRY(kr_runner_run(m->context.runner, NULL));
  if (m->ctx->cuda) KR_TRY(kr_mem_read(m->ctx, m->sums, m->sums_at, SUMS_FLOATS * sizeof(float)));
  videogpt_score(m, own);
  for (int i = 0; i < KR_VIDEOGPT_IMAGES; i++) {
    KR_CHECK(isfinite(own[i]), KRAIT_ERR_WEIGHTS,
             "%s: the score of frame %d is not finite: the weights are damaged, or their training diverged",
             kr_loader_label(&m->loader), i);
    if (scores) scores[i] = own[i];
  }
  choose(m, own, chosen);
  return KRAIT_OK;
}

int32_t kr_videogpt_watch(kr_videogpt *m, const float *tokens, void *rows) {
  const uint64_t context = (uint64_t)(KR_VIDEOGPT_CONTEXT_ROWS * m->w.d) * krait_dtype_bytes(m->source.rows_dtype);
  KR_TRY(kr_runner_bind(m->video.runner, m->video.in, (void *)(uintptr_t)tokens));
  KR_TRY(kr_runner_bind(m->video.runner, m->video.rows, (char *)rows + context));
  return kr_runner_run(m->video.runner, NULL);
}

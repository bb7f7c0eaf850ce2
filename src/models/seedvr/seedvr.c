/* seedvr.c: SeedVR's interface: its kr_model_kind, and verification of every sample of a golden file. */
#include "seedvr.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "model_kind.h"
#include "seedvr_latents.h"
#include "status.h"

typedef struct seedvr {
  const krait_ctx *ctx;
  kr_seedvr_config c;
  kr_seedvr_weights w;
} seedvr;

static int is_seedvr(const kr_model_source *s) { return s->model && strncmp(s->model, "seedvr_dit", 10) == 0; }

static void close_seedvr_model(void **handle) {
  seedvr *m = *handle;
  *handle = NULL;
  kr_seedvr_weights_close(&m->w);
  kr_free(m);
}

static int32_t open_seedvr_model(const krait_ctx *ctx, const char *model, const kr_config *config,
                                 const kr_weights *weights, int32_t precision, void **handle) {
  kr_seedvr_config c;
  (void)precision; /* float32 */
  KR_TRY(kr_seedvr_config_read(model, config, &c));
  seedvr *m = *handle = kr_zalloc(sizeof *m);
  KR_CHECK(m, KRAIT_ERR_NO_MEMORY, "no memory for the model");
  m->ctx = ctx, m->c = c;
  int32_t status = kr_seedvr_weights_open(ctx, &m->c, weights, KRAIT_F32, &m->w);
  if (status >= 0) status = kr_seedvr_weights_hold(&m->w);
  if (status < 0) close_seedvr_model(handle);
  return status;
}

/* A session has no data: graphs are created for each sample. */
static int32_t open_session(const void *impl, void **timeline) {
  *timeline = (void *)impl;
  return KRAIT_OK;
}
static void close_session(void **timeline) { *timeline = NULL; }

/* ---- a sample: host memory in, host memory out ---- */

typedef struct sample {
  const float *vid, *txt; /* (t h w, vid_in), (n, txt_in) */
  int64_t size[3], n;     /* latents; text */
  float timestep;
} sample;

/* Copies n floats from host memory to the context's memory, bound to t. */
static int32_t bind_seedvr(const seedvr *m, kr_seedvr_graph *g, kr_tensor t, const float *from, int64_t n, void **at) {
  const uint64_t bytes = (uint64_t)n * sizeof *from;
  KR_TRY(kr_mem_get(m->ctx, "a sample", bytes, at));
  if (from) KR_TRY(kr_mem_put(m->ctx, *at, from, bytes));
  return kr_runner_bind(g->runner, t, *at);
}

/* All outputs of one sample, compared with their rows of the recorded tensors. */
typedef struct check {
  const seedvr *m;
  const kr_weights *golden;
  kr_seedvr_graph g;
  int64_t i;         /* sample */
  float *got[KR_SEEDVR_MOST_TAPS + 1]; /* of all samples, concatenated; the last: vid_out */
  int64_t used[KR_SEEDVR_MOST_TAPS + 1], capacity[KR_SEEDVR_MOST_TAPS + 1];
  char name[KR_SEEDVR_MOST_TAPS + 1][32];
} check;

static int32_t room_for(check *c, int which, const char *name, int64_t n, float **to) {
  if (!c->got[which]) {
    char key[64];
    snprintf(c->name[which], sizeof c->name[which], "%s", name);
    snprintf(key, sizeof key, "golden.%s", name);
    const kr_weight *item = kr_weights_find(c->golden, key);
    c->capacity[which] = item && item->dtype == KRAIT_F32 ? (int64_t)(item->bytes / sizeof(float)) : 0;
    c->got[which] = kr_alloc_array((size_t)c->capacity[which] + 1, sizeof(float));
    KR_CHECK(c->got[which], KRAIT_ERR_NO_MEMORY, "no memory for outputs");
  }
  *to = c->capacity[which] ? c->got[which] + c->used[which] : NULL; /* not recorded: not compared */
  KR_CHECK(!c->capacity[which] || c->used[which] + n <= c->capacity[which], KRAIT_ERR_WEIGHTS,
           "golden.%s has fewer rows than the samples", name);
  c->used[which] += n;
  return KRAIT_OK;
}

static int32_t take_outputs(check *c, const sample *s, float *patches) {
  const kr_seedvr_config *config = &c->m->c;
  const int64_t n = s->size[0] * s->size[1] * s->size[2] * config->vid_out;
  float *to;
  for (int i = 0; i < c->g.n_taps; i++) {
    KR_TRY(room_for(c, i, c->g.taps[i].name, c->g.taps[i].n, &to));
    if (to) KR_TRY(kr_mem_read(c->m->ctx, to, c->g.taps[i].at, (uint64_t)c->g.taps[i].n * sizeof *to));
  }
  KR_TRY(room_for(c, KR_SEEDVR_MOST_TAPS, "vid_out", n, &to));
  if (!to) return KRAIT_OK;
  KR_TRY(kr_mem_read(c->m->ctx, patches, kr_runner_at(c->g.runner, c->g.out), (uint64_t)n * sizeof *patches));
  kr_seedvr_cut(config, s->size, config->vid_out, patches, to, 1);
  return KRAIT_OK;
}

static int32_t run_with_patches(check *c, const sample *s, float *patches, void *blocks[]) {
  const kr_seedvr_config *config = &c->m->c;
  const int64_t T = c->g.T, area = config->patch[1] * config->patch[2];
  float sinusoids[KR_SEEDVR_SINUSOIDS];
  kr_seedvr_sinusoids(s->timestep, sinusoids);
  kr_seedvr_cut(config, s->size, config->vid_in, patches, (float *)s->vid, 0);
  KR_TRY(bind_seedvr(c->m, &c->g, c->g.patches, patches, T * area * config->vid_in, &blocks[0]));
  KR_TRY(bind_seedvr(c->m, &c->g, c->g.text, s->txt, s->n * config->txt_in, &blocks[1]));
  KR_TRY(bind_seedvr(c->m, &c->g, c->g.sinusoids, sinusoids, KR_SEEDVR_SINUSOIDS, &blocks[2]));
  KR_TRY(bind_seedvr(c->m, &c->g, c->g.out, NULL, T * area * config->vid_out, &blocks[3]));
  for (int i = 0; i < c->g.n_taps; i++) {
    KR_TRY(bind_seedvr(c->m, &c->g, c->g.taps[i].tensor, NULL, c->g.taps[i].n, &blocks[4 + i]));
    c->g.taps[i].at = blocks[4 + i];
  }
  KR_TRY(kr_runner_run(c->g.runner, NULL));
  return take_outputs(c, s, patches);
}

static int32_t run_sample(check *c, const sample *s) {
  const kr_seedvr_config *config = &c->m->c;
  void *blocks[4 + KR_SEEDVR_MOST_TAPS] = {NULL};
  KR_CHECK(s->size[1] % config->patch[1] == 0 && s->size[2] % config->patch[2] == 0, KRAIT_ERR_WEIGHTS,
           "golden.vid_shape: sample %lld is not a whole number of patches", (long long)c->i);
  c->g = (kr_seedvr_graph){.size = {s->size[0], s->size[1] / config->patch[1], s->size[2] / config->patch[2]},
                           .n_text = s->n,
                           .with_taps = 1};
  KR_TRY(kr_seedvr_graph_open(c->m->ctx, config, &c->m->w, &c->g));
  const int64_t widest = config->vid_in > config->vid_out ? config->vid_in : config->vid_out;
  float *patches = kr_alloc_array((size_t)(s->size[0] * s->size[1] * s->size[2] * widest), sizeof *patches);
  int32_t status =
      patches ? run_with_patches(c, s, patches, blocks) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a sample");
  for (int i = 0; i < 4 + c->g.n_taps; i++) kr_mem_free(c->m->ctx, blocks[i]);
  kr_seedvr_graph_close(&c->g);
  kr_free(patches);
  return status;
}

/* Shapes of the samples: (B, n) int32, each 1 to 65536. */
static int32_t take_shapes(const kr_weights *golden, const char *key, int64_t n, int64_t *B, const int32_t **shapes) {
  const kr_weight *item = kr_weights_find(golden, key);
  KR_CHECK(item && item->dtype == KRAIT_I32 && item->n_dims == 2 && item->shape[1] == n && item->shape[0] >= 1 &&
               (*B == 0 || *B == item->shape[0]),
           KRAIT_ERR_WEIGHTS, "the golden file has no %s of shape (samples, %lld), int32", key, (long long)n);
  *B = item->shape[0], *shapes = item->data;
  for (int64_t i = 0; i < *B * n; i++)
    KR_CHECK((*shapes)[i] >= 1 && (*shapes)[i] <= 1 << 16, KRAIT_ERR_WEIGHTS, "%s: %d is not within 1 to 65536", key,
             (*shapes)[i]);
  return KRAIT_OK;
}

static int64_t total_of(const int32_t *shapes, int64_t B, int64_t n) {
  int64_t total = 0;
  for (int64_t i = 0; i < B; i++) {
    int64_t product = 1;
    for (int64_t k = 0; k < n; k++) product *= shapes[i * n + k];
    total += product;
  }
  return total;
}

static int32_t run_samples(check *c) {
  const kr_seedvr_config *config = &c->m->c;
  const float *vid, *txt, *timestep;
  const int32_t *vid_shape, *txt_shape;
  int64_t B = 0;
  KR_TRY(take_shapes(c->golden, "golden.vid_shape", 3, &B, &vid_shape));
  KR_TRY(take_shapes(c->golden, "golden.txt_shape", 1, &B, &txt_shape));
  KR_TRY(kr_weights_take_f32(c->golden, "golden.vid", 2, (int64_t[]){total_of(vid_shape, B, 3), config->vid_in}, &vid));
  KR_TRY(kr_weights_take_f32(c->golden, "golden.txt", 2, (int64_t[]){total_of(txt_shape, B, 1), config->txt_in}, &txt));
  KR_TRY(kr_weights_take_f32(c->golden, "golden.timestep", 1, &B, &timestep));
  for (c->i = 0; c->i < B; c->i++) {
    const int32_t *size = vid_shape + 3 * c->i;
    const sample s = {vid, txt, {size[0], size[1], size[2]}, txt_shape[c->i], timestep[c->i]};
    KR_TRY(run_sample(c, &s));
    vid += s.size[0] * s.size[1] * s.size[2] * config->vid_in, txt += s.n * config->txt_in;
  }
  return KRAIT_OK;
}

static int32_t verify_seedvr(void *timeline, const kr_weights *golden, krait_verify_result *rows, int32_t n_rows,
                      int32_t *n_filled) {
  check *c = kr_zalloc(sizeof *c);
  KR_CHECK(c, KRAIT_ERR_NO_MEMORY, "no memory for outputs");
  c->m = timeline, c->golden = golden;
  int32_t status = run_samples(c);
  for (int i = 0; i <= KR_SEEDVR_MOST_TAPS; i++) {
    char key[64];
    snprintf(key, sizeof key, "golden.%s", c->name[i]);
    const kr_weight *item = c->capacity[i] ? kr_weights_find(golden, key) : NULL;
    if (status >= 0 && item && c->used[i] != c->capacity[i])
      status = kr_fail(KRAIT_ERR_WEIGHTS, "%s has %lld values, the samples require %lld", key,
                       (long long)c->capacity[i], (long long)c->used[i]);
    if (status >= 0 && item) kr_verify_add(c->name[i], c->got[i], item->data, c->used[i], rows, n_rows, n_filled);
    kr_free(c->got[i]);
  }
  kr_free(c);
  return status;
}

static int32_t graphs_of_seedvr(const krait_ctx *ctx, const kr_model_source *s, kr_model_graph_fn *fn, void *user) {
  enum { GRID_H = 45, GRID_W = 80, SENTENCE = 58 };
  kr_seedvr_config c;
  kr_seedvr_weights w = {0};
  kr_seedvr_graph g = {.size = {1, GRID_H, GRID_W}, .n_text = SENTENCE};
  KR_TRY(kr_seedvr_config_read(s->model, s->config, &c));
  int32_t status = kr_seedvr_weights_open(ctx, &c, s->weights, KRAIT_F32, &w);
  if (status >= 0) status = kr_seedvr_weights_hold(&w);
  if (status >= 0) status = kr_seedvr_graph_open(ctx, &c, &w, &g);
  if (status >= 0) status = fn(user, "SeedVR, one frame of 1280 x 720 and 58 tokens of text", g.g);
  if (status >= 0) kr_seedvr_graph_close(&g);
  kr_seedvr_weights_close(&w);
  return status;
}

const kr_model_kind kr_model_seedvr = {.name = "seedvr",
                                       .detect = is_seedvr,
                                       .graphs = graphs_of_seedvr,
                                       .open = open_seedvr_model,
                                       .close = close_seedvr_model,
                                       .session_open = open_session,
                                       .session_close = close_session,
                                       .verify = verify_seedvr};

/* seedvr_latents.c: latents as patches and back, bound to graphs of one shape. */
#include "seedvr_latents.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "status.h"

void kr_seedvr_cut(const kr_seedvr_config *c, const int64_t size[3], int64_t channels, float *patches, float *latents,
                   int is_back) {
  const int64_t ph = c->patch[1], pw = c->patch[2], H = size[1] / ph, W = size[2] / pw;
  for (int64_t i = 0; i < size[0] * H * W; i++)
    for (int64_t k = 0; k < ph; k++) {
      float *row = patches + (i * ph + k) * pw * channels,
            *at = latents + ((i / (H * W) * size[1] + i / W % H * ph + k) * size[2] + i % W * pw) * channels;
      memcpy(is_back ? at : row, is_back ? row : at, (size_t)(pw * channels) * sizeof *row);
    }
}

void kr_seedvr_sinusoids(float timestep, float *values) {
  const int half = KR_SEEDVR_SINUSOIDS / 2;
  for (int j = 0; j < half; j++) {
    const double angle = (double)timestep * exp(-log(10000) * j / half);
    values[j] = (float)sin(angle), values[half + j] = (float)cos(angle);
  }
}

enum { PATCHES, TEXT, SINUSOIDS, OUT, N_BLOCKS };

struct kr_seedvr_latents {
  const krait_ctx *ctx;
  const kr_seedvr_config *c;
  kr_seedvr_weights *w;
  int64_t size[3], n_text[2];
  int is_streamed;
  kr_seedvr_graph graphs[2]; /* or */
  kr_seedvr_stream *streams[2];
  void *blocks[2][N_BLOCKS]; /* in the context's memory */
  float *patches;
};

int32_t kr_seedvr_latents_open(const krait_ctx *ctx, const kr_seedvr_config *c, kr_seedvr_weights *w,
                               const int64_t size[3], int is_streamed, kr_seedvr_latents **out) {
  *out = NULL;
  KR_CHECK(size[1] % c->patch[1] == 0 && size[2] % c->patch[2] == 0, KRAIT_ERR_SHAPE,
           "latents of %lld x %lld are not a whole number of patches", (long long)size[2], (long long)size[1]);
  kr_seedvr_latents *l = *out = kr_zalloc(sizeof *l);
  KR_CHECK(l, KRAIT_ERR_NO_MEMORY, "no memory for latents");
  l->ctx = ctx, l->c = c, l->w = w, l->is_streamed = is_streamed;
  memcpy(l->size, size, sizeof l->size);
  const int64_t widest = c->vid_in > c->vid_out ? c->vid_in : c->vid_out;
  l->patches = kr_alloc_array((size_t)(size[0] * size[1] * size[2] * widest), sizeof *l->patches);
  if (l->patches) return KRAIT_OK;
  kr_seedvr_latents_close(out);
  return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for latents");
}

void kr_seedvr_latents_close(kr_seedvr_latents **handle) {
  kr_seedvr_latents *l = handle ? *handle : NULL;
  if (!l) return;
  *handle = NULL;
  for (int i = 0; i < 2; i++) {
    kr_seedvr_graph_close(&l->graphs[i]);
    kr_seedvr_stream_close(&l->streams[i]);
    for (int k = 0; k < N_BLOCKS; k++) kr_mem_free(l->ctx, l->blocks[i][k]);
  }
  kr_free(l->patches);
  kr_free(l);
}

static int32_t open_graph_of(kr_seedvr_latents *l, int which, const int64_t grid[3]) {
  kr_seedvr_graph *g = &l->graphs[which];
  *g = (kr_seedvr_graph){.size = {grid[0], grid[1], grid[2]}, .n_text = l->n_text[which]};
  KR_TRY(kr_seedvr_graph_open(l->ctx, l->c, l->w, g));
  const kr_tensor tensors[N_BLOCKS] = {g->patches, g->text, g->sinusoids, g->out};
  for (int k = 0; k < N_BLOCKS; k++) KR_TRY(kr_runner_bind(g->runner, tensors[k], l->blocks[which][k]));
  return KRAIT_OK;
}

static int32_t open_which(kr_seedvr_latents *l, int which, int64_t n_text) {
  const kr_seedvr_config *c = l->c;
  const int64_t n = l->size[0] * l->size[1] * l->size[2], grid[3] = {l->size[0], l->size[1] / c->patch[1],
                                                                     l->size[2] / c->patch[2]},
                counts[N_BLOCKS] = {n * c->vid_in, n_text * c->txt_in, KR_SEEDVR_SINUSOIDS, n * c->vid_out};
  l->n_text[which] = n_text;
  for (int k = 0; k < N_BLOCKS; k++)
    KR_TRY(kr_mem_get(l->ctx, "latents", (uint64_t)counts[k] * sizeof(float), &l->blocks[which][k]));
  return l->is_streamed ? kr_seedvr_stream_open(l->ctx, c, l->w, grid, n_text, &l->streams[which])
                        : open_graph_of(l, which, grid);
}

int32_t kr_seedvr_latents_run(kr_seedvr_latents *l, int which, const float *x, const float *text, int64_t n_text,
                              double timestep, float *v) {
  const kr_seedvr_config *c = l->c;
  const int64_t n = l->size[0] * l->size[1] * l->size[2];
  float sinusoids[KR_SEEDVR_SINUSOIDS];
  if (!l->n_text[which]) KR_TRY(open_which(l, which, n_text));
  void *const *blocks = l->blocks[which];
  KR_CHECK(l->n_text[which] == n_text, KRAIT_ERR_ARGUMENT, "another text of %lld tokens", (long long)n_text);
  kr_seedvr_sinusoids((float)timestep, sinusoids);
  kr_seedvr_cut(c, l->size, c->vid_in, l->patches, (float *)x, 0);
  KR_TRY(kr_mem_put(l->ctx, blocks[PATCHES], l->patches, (uint64_t)(n * c->vid_in) * sizeof *x));
  KR_TRY(kr_mem_put(l->ctx, blocks[TEXT], text, (uint64_t)(n_text * c->txt_in) * sizeof *text));
  KR_TRY(kr_mem_put(l->ctx, blocks[SINUSOIDS], sinusoids, sizeof sinusoids));
  KR_TRY(l->is_streamed ? kr_seedvr_stream_run(l->streams[which], blocks[PATCHES], blocks[TEXT], blocks[SINUSOIDS],
                                               blocks[OUT])
                        : kr_runner_run(l->graphs[which].runner, NULL));
  KR_TRY(kr_mem_read(l->ctx, l->patches, blocks[OUT], (uint64_t)(n * c->vid_out) * sizeof *v));
  kr_seedvr_cut(c, l->size, c->vid_out, l->patches, v, 1);
  return KRAIT_OK;
}

int32_t kr_seedvr_latents_bytes(const krait_ctx *ctx, const kr_seedvr_config *c, kr_seedvr_weights *w,
                                const int64_t size[3], int64_t n_text, uint64_t *bytes, uint64_t *streamed) {
  const int64_t n = size[0] * size[1] * size[2], grid[3] = {size[0], size[1] / c->patch[1], size[2] / c->patch[2]};
  const uint64_t around = (uint64_t)(n * (c->vid_in + c->vid_out) + n_text * c->txt_in + KR_SEEDVR_SINUSOIDS) *
                          sizeof(float);
  kr_seedvr_graph g = {.size = {grid[0], grid[1], grid[2]}, .n_text = n_text, .only_planned = 1};
  KR_TRY(kr_seedvr_graph_open(ctx, c, w, &g));
  *bytes = kr_seedvr_graph_bytes(&g) + around, *streamed = 0;
  kr_seedvr_graph_close(&g);
  if (!ctx->cuda) return KRAIT_OK;
  KR_TRY(kr_seedvr_stream_bytes(ctx, c, w, grid, n_text, streamed));
  *streamed += around;
  return KRAIT_OK;
}

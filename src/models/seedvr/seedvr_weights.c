/* seedvr_weights.c: reads every tensor by its key and shape into the context's memory; a layer's six modulation vectors
 * are adjacent. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "arena.h"
#include "ctx.h"
#include "seedvr.h"
#include "status.h"
#include "view.h"

typedef struct loader {
  const krait_ctx *ctx;
  const kr_seedvr_config *c;
  const kr_weights *weights; /* NULL: random ones */
  kr_seedvr_weights *w;
  char *device;   /* a GPU's block; NULL: only count */
  uint64_t used;
  uint64_t seed;
} loader;

#define SHAPE(...) sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__}

static int64_t seedvr_elements_of(int32_t n_dims, const int64_t *shape) {
  int64_t n = 1;
  for (int32_t i = 0; i < n_dims; i++) n *= shape[i];
  return n;
}

/* Uniform, with a standard deviation of about 0.02: nothing saturates, and times do not depend on the values. */
static void fill_seedvr_random(loader *l, const krait_view *to, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    l->seed = l->seed * 6364136223846793005u + 1442695040888963407u;
    kr_put(to, i, ((double)(l->seed >> 40) / (1 << 24) - 0.5) * 0.07);
  }
}

/* n values of the type, copied from `from` or random, in the weights' memory. */
static int32_t place_seedvr(loader *l, const char *key, const float *from, int64_t n, int32_t dtype, const void **at) {
  const uint64_t bytes = (uint64_t)n * krait_dtype_bytes(dtype), begin = l->used;
  l->used = (begin + bytes + 255) & ~(uint64_t)255;
  l->w->bytes += bytes;
  *at = l->w; /* there is one: when only counting */
  if (l->ctx->cuda && !l->device) return KRAIT_OK;
  void *host = l->ctx->cuda ? kr_alloc((size_t)bytes) : kr_arena_try(l->w->arena, (size_t)bytes);
  KR_CHECK(host, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", key);
  const krait_view view = {.data = host, .dtype = dtype};
  if (!from) fill_seedvr_random(l, &view, n);
  else if (dtype == KRAIT_F32) memcpy(host, from, (size_t)bytes);
  else
    for (int64_t i = 0; i < n; i++) kr_put(&view, i, from[i]);
  *at = host;
  if (!l->ctx->cuda) return KRAIT_OK;
  *at = l->device + begin;
  int32_t status = kr_cuda_copy_in(l->ctx->cuda, l->device + begin, host, (size_t)bytes, NULL);
  if (status >= 0) status = kr_cuda_wait(l->ctx->cuda, NULL);
  kr_free(host);
  return status;
}

static int32_t find_seedvr(const loader *l, const char *key, int32_t n_dims, const int64_t *shape, const float **from) {
  *from = NULL;
  return l->weights ? kr_weights_take_f32(l->weights, key, n_dims, shape, from) : KRAIT_OK;
}

static int32_t take_seedvr(loader *l, const char *key, int32_t n_dims, const int64_t *shape, const void **at) {
  const float *from;
  KR_TRY(find_seedvr(l, key, n_dims, shape, &from));
  return place_seedvr(l, key, from, seedvr_elements_of(n_dims, shape), l->w->dtype, at);
}

/* Vectors of width C, concatenated, in float32. */
static int32_t take_rows(loader *l, const char *keys[], int n, const void **at) {
  const int64_t C = l->c->C;
  float *rows = kr_alloc_array((size_t)(n * C), sizeof *rows);
  int32_t status = rows ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", keys[0]);
  for (int i = 0; status >= 0 && i < n; i++) {
    const float *from;
    status = find_seedvr(l, keys[i], SHAPE(C), &from);
    if (status >= 0 && from) memcpy(rows + i * C, from, (size_t)C * sizeof *rows);
  }
  if (status >= 0) status = place_seedvr(l, keys[0], l->weights ? rows : NULL, n * C, KRAIT_F32, at);
  kr_free(rows);
  return status;
}

/* ---- a block ---- */

typedef char key_text[96];
static const char *key_of(key_text key, int64_t layer, const char *before, const char *part, const char *after) {
  snprintf(key, sizeof(key_text), "blocks.%lld.%s.%s.%s", (long long)layer, before, part, after);
  return key;
}

static int32_t take_ada(loader *l, int64_t i, const char *part, kr_seedvr_part *to) {
  static const char *const names[] = {"attn_shift", "attn_scale", "attn_gate", "mlp_shift", "mlp_scale", "mlp_gate"};
  key_text text[6];
  const char *keys[6];
  for (int k = 0; k < 6; k++) keys[k] = key_of(text[k], i, "ada", part, names[k]);
  return take_rows(l, keys, 6, &to->ada);
}

static int32_t take_seedvr_attention(loader *l, int64_t i, const char *part, kr_seedvr_part *to) {
  const kr_seedvr_config *c = l->c;
  const int64_t inner = c->H * c->D;
  key_text key;
#define KEY(before, after) key_of(key, i, before, part, after)
  KR_TRY(take_seedvr(l, KEY("attn.proj_qkv", "weight"), SHAPE(3 * inner, c->C), &to->qkv));
  KR_TRY(take_seedvr(l, KEY("attn.norm_q", "weight"), SHAPE(c->D), &to->norm_q));
  KR_TRY(take_seedvr(l, KEY("attn.norm_k", "weight"), SHAPE(c->D), &to->norm_k));
  KR_TRY(take_seedvr(l, KEY("attn.proj_out", "weight"), SHAPE(c->C, inner), &to->out));
  return take_seedvr(l, KEY("attn.proj_out", "bias"), SHAPE(c->C), &to->out_bias);
}

static int32_t take_mlp(loader *l, int64_t i, const char *part, kr_seedvr_part *to) {
  const kr_seedvr_config *c = l->c;
  key_text key;
  KR_TRY(take_seedvr(l, KEY("mlp", "proj_in.weight"), SHAPE(c->F, c->C), &to->mlp_in));
  KR_TRY(take_seedvr(l, KEY("mlp", "proj_out.weight"), SHAPE(c->C, c->F), &to->mlp_out));
  if (c->is_3b) return take_seedvr(l, KEY("mlp", "proj_in_gate.weight"), SHAPE(c->F, c->C), &to->mlp_gate);
  KR_TRY(take_seedvr(l, KEY("mlp", "proj_in.bias"), SHAPE(c->F), &to->mlp_in_bias));
  return take_seedvr(l, KEY("mlp", "proj_out.bias"), SHAPE(c->C), &to->mlp_out_bias);
#undef KEY
}

static int32_t take_seedvr_layer(loader *l, int64_t i, kr_seedvr_layer *to) {
  static const char *const names[] = {"vid", "txt"};
  to->n_parts = i < l->c->n_apart ? 2 : 1;
  to->text_ends = l->c->is_3b && i == l->c->n_layers - 1;
  for (int p = 0; p < to->n_parts; p++) {
    const char *part = to->n_parts == 1 ? "all" : names[p];
    KR_TRY(take_seedvr_attention(l, i, part, &to->part[p]));
    if (p == 1 && to->text_ends) continue;
    KR_TRY(take_ada(l, i, part, &to->part[p]));
    KR_TRY(take_mlp(l, i, part, &to->part[p]));
  }
  return KRAIT_OK;
}

/* ---- the rest ---- */

static int32_t take_linear(loader *l, const char *name, int64_t N, int64_t K, const void **weight, const void **bias) {
  key_text key;
  snprintf(key, sizeof key, "%s.weight", name);
  KR_TRY(take_seedvr(l, key, SHAPE(N, K), weight));
  snprintf(key, sizeof key, "%s.bias", name);
  return take_seedvr(l, key, SHAPE(N), bias);
}

static int32_t take_ends(loader *l) {
  const kr_seedvr_config *c = l->c;
  kr_seedvr_weights *w = l->w;
  const int64_t area = c->patch[1] * c->patch[2];
  KR_TRY(take_linear(l, "vid_in.proj", c->C, area * c->vid_in, &w->vid_in, &w->vid_in_bias));
  if (c->txt_in != c->C) KR_TRY(take_linear(l, "txt_in", c->C, c->txt_in, &w->txt_in, &w->txt_in_bias));
  KR_TRY(take_linear(l, "emb_in.proj_in", c->C, KR_SEEDVR_SINUSOIDS, &w->emb_in, &w->emb_in_bias));
  KR_TRY(take_linear(l, "emb_in.proj_hid", c->C, c->C, &w->emb_hid, &w->emb_hid_bias));
  KR_TRY(take_linear(l, "emb_in.proj_out", 6 * c->C, c->C, &w->emb_out, &w->emb_out_bias));
  KR_TRY(take_linear(l, "vid_out.proj", area * c->vid_out, c->C, &w->vid_out, &w->vid_out_bias));
  if (!c->is_3b) return KRAIT_OK;
  KR_TRY(take_rows(l, (const char *[]){"vid_out_norm.weight"}, 1, &w->out_norm));
  return take_rows(l, (const char *[]){"vid_out_ada.out_shift", "vid_out_ada.out_scale"}, 2, &w->out_ada);
}

/* The rotary frequencies are the same in every block, or follow from the sizes. */
static int32_t take_freqs(loader *l) {
  const kr_seedvr_config *c = l->c;
  const int64_t per_axis = c->rope_dim / 3, n = per_axis / 2;
  key_text key;
  float *freqs = kr_arena_try(l->w->arena, (size_t)n * sizeof *freqs + 1);
  KR_CHECK(freqs, KRAIT_ERR_NO_MEMORY, "no memory for %lld frequencies", (long long)n);
  KR_CHECK(n >= 1 && 6 * n <= c->D, KRAIT_ERR_WEIGHTS, "configuration: rope_dim %lld does not match heads of %lld",
           (long long)c->rope_dim, (long long)c->D);
  for (int64_t j = 0; j < n; j++)
    freqs[j] = (float)(c->is_3b ? pow(10000, -2 * (double)j / (double)per_axis)
                                : 3.14159265358979323846 * (n > 1 ? 1 + 127 * (double)j / (double)(n - 1) : 1));
  for (int64_t i = 0; l->weights && i < c->n_layers; i++) {
    snprintf(key, sizeof key, "blocks.%lld.attn.rope.rope.freqs", (long long)i);
    const float *own;
    if (!kr_weights_find(l->weights, key)) continue;
    KR_TRY(kr_weights_take_f32(l->weights, key, SHAPE(n), &own));
    if (i == 0) memcpy(freqs, own, (size_t)n * sizeof *freqs);
    KR_CHECK(memcmp(freqs, own, (size_t)n * sizeof *freqs) == 0, KRAIT_ERR_UNSUPPORTED,
             "tensor '%s' differs from that of block 0, which is not supported", key);
  }
  l->w->freqs = freqs, l->w->n_freqs = n;
  return KRAIT_OK;
}

static int32_t take_seedvr_all(loader *l) {
  l->used = l->w->bytes = 0;
  l->seed = 1;
  KR_TRY(take_ends(l));
  for (int64_t i = 0; i < l->c->n_layers; i++) KR_TRY(take_seedvr_layer(l, i, &l->w->layers[i]));
  return KRAIT_OK;
}

/* A tensor in the file that is not listed above does not belong to this model. */
static int32_t check_count(const loader *l) {
  int64_t n = 10 + (l->c->txt_in != l->c->C ? 2 : 0) + (l->c->is_3b ? 3 : 0);
  key_text key;
  for (int64_t i = 0; i < l->c->n_layers; i++) {
    const kr_seedvr_layer *layer = &l->w->layers[i];
    const int64_t of_mlp = l->c->is_3b ? 3 : 4;
    snprintf(key, sizeof key, "blocks.%lld.attn.rope.rope.freqs", (long long)i);
    n += layer->n_parts * (5 + 6 + of_mlp) - (layer->n_parts == 2 && layer->text_ends ? 6 + of_mlp : 0) +
         (kr_weights_find(l->weights, key) != NULL);
  }
  KR_CHECK(kr_weights_count(l->weights) == n, KRAIT_ERR_WEIGHTS,
           "the file has %lld tensors, but %s with %lld layers has %lld: the configuration belongs to another model",
           (long long)kr_weights_count(l->weights), l->c->is_3b ? "seedvr_dit3b" : "seedvr_dit7b",
           (long long)l->c->n_layers, (long long)n);
  return KRAIT_OK;
}

static int32_t load_seedvr(loader *l) {
  kr_seedvr_weights *w = l->w;
  w->arena = kr_arena_open();
  w->layers = w->arena ? kr_arena_try(w->arena, (size_t)l->c->n_layers * sizeof *w->layers) : NULL;
  KR_CHECK(w->layers, KRAIT_ERR_NO_MEMORY, "no memory for %lld layers", (long long)l->c->n_layers);
  KR_TRY(take_freqs(l));
  KR_TRY(take_seedvr_all(l));
  if (l->weights) KR_TRY(check_count(l));
  if (!l->ctx->cuda) return KRAIT_OK;
  KR_TRY(kr_cuda_alloc(l->ctx->cuda, l->used, &w->device));
  l->device = w->device;
  return take_seedvr_all(l);
}

int32_t kr_seedvr_weights_open(const krait_ctx *ctx, const kr_seedvr_config *c, const kr_weights *weights,
                               int32_t dtype, kr_seedvr_weights *w) {
  *w = (kr_seedvr_weights){.dtype = dtype};
  const int32_t status = load_seedvr(&(loader){.ctx = ctx, .c = c, .weights = weights, .w = w});
  if (status < 0) kr_seedvr_weights_close(ctx, w);
  return status;
}

void kr_seedvr_weights_close(const krait_ctx *ctx, kr_seedvr_weights *w) {
  if (w->device) kr_cuda_free(ctx->cuda, w->device);
  if (w->arena) kr_arena_close((kr_arena **)&w->arena);
  *w = (kr_seedvr_weights){0};
}

/* seedvr_weights.c: every tensor by its key and shape; a layer's six modulation vectors are adjacent. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "seedvr.h"
#include "staging.h"
#include "status.h"

typedef struct taking {
  const kr_seedvr_config *c;
  kr_seedvr_weights *w;
  int64_t layer;
} taking;

/* Vectors of width C, concatenated, in float32. */
static int32_t take_rows(kr_loader *p, const kr_seedvr_config *c, const char *const keys[], int n, kr_weight_ref *to) {
  return kr_load_f32_rows(p, n, keys, KR_SIZES(c->C), to);
}

/* ---- a block ---- */

typedef char key_text[96];
static const char *key_of(key_text key, int64_t layer, const char *before, const char *part, const char *after) {
  snprintf(key, sizeof(key_text), "blocks.%lld.%s.%s.%s", (long long)layer, before, part, after);
  return key;
}

static int32_t take_ada(kr_loader *p, const kr_seedvr_config *c, int64_t i, const char *part, kr_seedvr_part *to) {
  static const char *const names[] = {"attn_shift", "attn_scale", "attn_gate", "mlp_shift", "mlp_scale", "mlp_gate"};
  key_text text[6];
  const char *keys[6];
  for (int k = 0; k < 6; k++) keys[k] = key_of(text[k], i, "ada", part, names[k]);
  return take_rows(p, c, keys, 6, &to->ada);
}

static int32_t take_seedvr_attention(kr_loader *p, const kr_seedvr_config *c, int64_t i, const char *part,
                                     kr_seedvr_part *to) {
  const int64_t inner = c->H * c->D;
  key_text key;
#define KEY(before, after) key_of(key, i, before, part, after)
  KR_TRY(kr_load(p, KEY("attn.proj_qkv", "weight"), 1, KR_SIZES(3 * inner, c->C), &to->qkv));
  KR_TRY(kr_load(p, KEY("attn.norm_q", "weight"), 1, KR_SIZES(c->D), &to->norm_q));
  KR_TRY(kr_load(p, KEY("attn.norm_k", "weight"), 1, KR_SIZES(c->D), &to->norm_k));
  KR_TRY(kr_load(p, KEY("attn.proj_out", "weight"), 1, KR_SIZES(c->C, inner), &to->out));
  return kr_load(p, KEY("attn.proj_out", "bias"), 1, KR_SIZES(c->C), &to->out_bias);
}

static int32_t take_mlp(kr_loader *p, const kr_seedvr_config *c, int64_t i, const char *part, kr_seedvr_part *to) {
  key_text key;
  KR_TRY(kr_load(p, KEY("mlp", "proj_in.weight"), 1, KR_SIZES(c->F, c->C), &to->mlp_in));
  KR_TRY(kr_load(p, KEY("mlp", "proj_out.weight"), 1, KR_SIZES(c->C, c->F), &to->mlp_out));
  if (c->is_3b) return kr_load(p, KEY("mlp", "proj_in_gate.weight"), 1, KR_SIZES(c->F, c->C), &to->mlp_gate);
  KR_TRY(kr_load(p, KEY("mlp", "proj_in.bias"), 1, KR_SIZES(c->F), &to->mlp_in_bias));
  return kr_load(p, KEY("mlp", "proj_out.bias"), 1, KR_SIZES(c->C), &to->mlp_out_bias);
#undef KEY
}

static int32_t take_seedvr_layer(kr_loader *p, const kr_seedvr_config *c, int64_t i, kr_seedvr_layer *to) {
  static const char *const names[] = {"vid", "txt"};
  to->n_parts = i < c->n_apart ? 2 : 1;
  to->text_ends = c->is_3b && i == c->n_layers - 1;
  for (int k = 0; k < to->n_parts; k++) {
    const char *part = to->n_parts == 1 ? "all" : names[k];
    KR_TRY(take_seedvr_attention(p, c, i, part, &to->part[k]));
    if (k == 1 && to->text_ends) continue;
    KR_TRY(take_ada(p, c, i, part, &to->part[k]));
    KR_TRY(take_mlp(p, c, i, part, &to->part[k]));
  }
  return KRAIT_OK;
}

/* ---- the rest ---- */

static int32_t take_linear(kr_loader *p, const char *name, int64_t N, int64_t K, kr_weight_ref *weight,
                           kr_weight_ref *bias) {
  key_text key;
  snprintf(key, sizeof key, "%s.weight", name);
  KR_TRY(kr_load(p, key, 1, KR_SIZES(N, K), weight));
  snprintf(key, sizeof key, "%s.bias", name);
  return kr_load(p, key, 1, KR_SIZES(N), bias);
}

static int32_t take_ends(kr_loader *p, const kr_seedvr_config *c, kr_seedvr_weights *w) {
  const int64_t area = c->patch[1] * c->patch[2];
  KR_TRY(take_linear(p, "vid_in.proj", c->C, area * c->vid_in, &w->vid_in, &w->vid_in_bias));
  if (c->txt_in != c->C) KR_TRY(take_linear(p, "txt_in", c->C, c->txt_in, &w->txt_in, &w->txt_in_bias));
  KR_TRY(take_linear(p, "emb_in.proj_in", c->C, KR_SEEDVR_SINUSOIDS, &w->emb_in, &w->emb_in_bias));
  KR_TRY(take_linear(p, "emb_in.proj_hid", c->C, c->C, &w->emb_hid, &w->emb_hid_bias));
  KR_TRY(take_linear(p, "emb_in.proj_out", 6 * c->C, c->C, &w->emb_out, &w->emb_out_bias));
  KR_TRY(take_linear(p, "vid_out.proj", area * c->vid_out, c->C, &w->vid_out, &w->vid_out_bias));
  if (!c->is_3b) return KRAIT_OK;
  KR_TRY(take_rows(p, c, (const char *[]){"vid_out_norm.weight"}, 1, &w->out_norm));
  return take_rows(p, c, (const char *[]){"vid_out_ada.out_shift", "vid_out_ada.out_scale"}, 2, &w->out_ada);
}

static int32_t take_seedvr_all(kr_loader *p, void *user) {
  const taking *t = user;
  KR_TRY(take_ends(p, t->c, t->w));
  for (int64_t i = 0; i < t->c->n_layers; i++) KR_TRY(take_seedvr_layer(p, t->c, i, &t->w->layers[i]));
  return KRAIT_OK;
}

static int32_t take_only_ends(kr_loader *p, void *user) {
  const taking *t = user;
  return take_ends(p, t->c, t->w);
}
static int32_t take_only_layer(kr_loader *p, void *user) {
  const taking *t = user;
  return take_seedvr_layer(p, t->c, t->layer, &t->w->layers[t->layer]);
}

enum { MOST_FREQS = 256 };

/* The rotary frequencies are the same in every block, or follow from the sizes. */
static int32_t take_freqs(kr_seedvr_weights *w, const kr_seedvr_config *c, const kr_weights *weights) {
  const int64_t per_axis = c->rope_dim / 3, n = per_axis / 2;
  key_text key;
  float own[MOST_FREQS];
  KR_CHECK(n >= 1 && n <= MOST_FREQS && 6 * n <= c->D, KRAIT_ERR_WEIGHTS,
           "configuration: rope_dim %lld does not match heads of %lld", (long long)c->rope_dim, (long long)c->D);
  float *freqs = w->freqs = kr_alloc_array((size_t)n, sizeof *freqs);
  KR_CHECK(freqs, KRAIT_ERR_NO_MEMORY, "no memory for %lld frequencies", (long long)n);
  for (int64_t j = 0; j < n; j++)
    freqs[j] = (float)(c->is_3b ? pow(10000, -2 * (double)j / (double)per_axis)
                                : 3.14159265358979323846 * (n > 1 ? 1 + 127 * (double)j / (double)(n - 1) : 1));
  for (int64_t i = 0; weights && i < c->n_layers; i++) {
    snprintf(key, sizeof key, "blocks.%lld.attn.rope.rope.freqs", (long long)i);
    if (!kr_weights_find(weights, key)) continue;
    KR_TRY(kr_load_values(&w->loader, key, KR_SIZES(n), NULL, own));
    if (i == 0) memcpy(freqs, own, (size_t)n * sizeof *freqs);
    KR_CHECK(memcmp(freqs, own, (size_t)n * sizeof *freqs) == 0, KRAIT_ERR_UNSUPPORTED,
             "tensor '%s' differs from that of block 0, which is not supported", key);
  }
  w->n_freqs = n;
  return KRAIT_OK;
}

static int32_t load_seedvr(kr_seedvr_weights *w, const kr_seedvr_config *c, const kr_weights *weights) {
  static const char *const unused[] = {"blocks.#.attn.rope.rope.freqs", NULL}; /* take_freqs */
  w->layers = kr_alloc_array((size_t)c->n_layers, sizeof *w->layers);
  KR_CHECK(w->layers, KRAIT_ERR_NO_MEMORY, "no memory for %lld layers", (long long)c->n_layers);
  KR_TRY(take_freqs(w, c, weights));
  KR_TRY(kr_loader_count(&w->loader, take_seedvr_all, &(taking){c, w, 0}));
  return kr_loader_check_read(&w->loader, unused);
}

int32_t kr_seedvr_weights_open(const krait_ctx *ctx, const kr_seedvr_config *c, const kr_weights *weights,
                               int32_t dtype, kr_seedvr_weights *w) {
  const int32_t as = weights && dtype != KRAIT_F32 ? dtype : 0;
  *w = (kr_seedvr_weights){.dtype = dtype,
                           .c = c,
                           .loader = {.ctx = ctx, .weights = weights, .random_type = dtype, .as = as}};
  const int32_t status = load_seedvr(w, c, weights);
  if (status < 0) kr_seedvr_weights_close(w);
  return status;
}

int32_t kr_seedvr_weights_hold(kr_seedvr_weights *w) {
  if (w->loader.device) return KRAIT_OK;
  const int32_t status = kr_loader_copy(&w->loader, take_seedvr_all, &(taking){w->c, w, 0});
  if (status < 0) kr_loader_drop(&w->loader);
  return status;
}

/* A loader of the same file for a part. */
static kr_loader part_loader(const kr_seedvr_weights *w) {
  const kr_loader *all = &w->loader;
  return (kr_loader){.ctx = all->ctx, .weights = all->weights, .random_type = all->random_type, .as = all->as};
}

int32_t kr_seedvr_weights_count_parts(kr_seedvr_weights *w) {
  taking t = {w->c, w, 0};
  kr_loader ends = part_loader(w);
  w->layer_bytes = 0;
  int32_t status = kr_loader_count(&ends, take_only_ends, &t);
  w->ends = part_loader(w), w->ends.used = ends.used;
  kr_loader_close(&ends);
  for (; status >= 0 && t.layer < w->c->n_layers; t.layer++) {
    kr_loader layer = part_loader(w);
    status = kr_loader_count(&layer, take_only_layer, &t);
    if (layer.used > w->layer_bytes) w->layer_bytes = layer.used;
    kr_loader_close(&layer);
  }
  return status;
}

int32_t kr_seedvr_weights_hold_ends(kr_seedvr_weights *w) {
  const uint64_t bytes = w->ends.used;
  if (w->ends.device) return KRAIT_OK;
  KR_TRY(kr_staging_open(w->loader.ctx, &w->staging));
  for (int i = 0; i < 2; i++) {
    w->slots[i] = part_loader(w);
    w->slots[i].staging = w->staging;
    KR_TRY(kr_mem_get(w->loader.ctx, "a layer's weights", w->layer_bytes, &w->slots[i].device));
  }
  w->ends.staging = w->staging, w->ends.used = bytes;
  KR_TRY(kr_mem_wait(w->loader.ctx));
  return kr_loader_copy(&w->ends, take_only_ends, &(taking){w->c, w, 0});
}

int32_t kr_seedvr_weights_hold_layer(kr_seedvr_weights *w, int64_t i) {
  return kr_loader_copy(&w->slots[i % 2], take_only_layer, &(taking){w->c, w, i});
}

void kr_seedvr_weights_release(kr_seedvr_weights *w) {
  kr_loader_drop(&w->loader);
  if (!w->staging) return;
  kr_loader_drop(&w->ends);
  for (int i = 0; i < 2; i++) kr_loader_drop(&w->slots[i]);
  kr_staging_close(&w->staging);
}

void kr_seedvr_weights_close(kr_seedvr_weights *w) {
  if (w->loader.ctx) {
    kr_seedvr_weights_release(w);
    kr_loader_close(&w->loader);
  }
  kr_free(w->layers);
  kr_free(w->freqs);
  *w = (kr_seedvr_weights){0};
}

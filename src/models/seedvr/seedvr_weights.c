/* seedvr_weights.c: every tensor by its key and shape; a layer's six modulation vectors are adjacent. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "seedvr.h"
#include "status.h"

typedef struct taking {
  const kr_seedvr_config *c;
  kr_seedvr_weights *w;
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

/* The rotary frequencies are the same in every block, or follow from the sizes. */
static int32_t take_freqs(kr_seedvr_weights *w, const kr_seedvr_config *c, const kr_weights *weights) {
  const int64_t per_axis = c->rope_dim / 3, n = per_axis / 2;
  key_text key;
  KR_CHECK(n >= 1 && 6 * n <= c->D, KRAIT_ERR_WEIGHTS, "configuration: rope_dim %lld does not match heads of %lld",
           (long long)c->rope_dim, (long long)c->D);
  float *freqs = w->freqs = kr_alloc_array((size_t)n, sizeof *freqs);
  KR_CHECK(freqs, KRAIT_ERR_NO_MEMORY, "no memory for %lld frequencies", (long long)n);
  for (int64_t j = 0; j < n; j++)
    freqs[j] = (float)(c->is_3b ? pow(10000, -2 * (double)j / (double)per_axis)
                                : 3.14159265358979323846 * (n > 1 ? 1 + 127 * (double)j / (double)(n - 1) : 1));
  for (int64_t i = 0; weights && i < c->n_layers; i++) {
    snprintf(key, sizeof key, "blocks.%lld.attn.rope.rope.freqs", (long long)i);
    const float *own;
    if (!kr_weights_find(weights, key)) continue;
    KR_TRY(kr_weights_take_f32(weights, key, 1, &n, &own));
    if (i == 0) memcpy(freqs, own, (size_t)n * sizeof *freqs);
    KR_CHECK(memcmp(freqs, own, (size_t)n * sizeof *freqs) == 0, KRAIT_ERR_UNSUPPORTED,
             "tensor '%s' differs from that of block 0, which is not supported", key);
  }
  w->n_freqs = n;
  return KRAIT_OK;
}

/* A tensor in the file that is not listed above does not belong to this model. */
static int32_t check_count(const kr_seedvr_weights *w, const kr_seedvr_config *c, const kr_weights *weights) {
  int64_t n = 10 + (c->txt_in != c->C ? 2 : 0) + (c->is_3b ? 3 : 0);
  key_text key;
  for (int64_t i = 0; i < c->n_layers; i++) {
    const kr_seedvr_layer *layer = &w->layers[i];
    const int64_t of_mlp = c->is_3b ? 3 : 4;
    snprintf(key, sizeof key, "blocks.%lld.attn.rope.rope.freqs", (long long)i);
    n += layer->n_parts * (5 + 6 + of_mlp) - (layer->n_parts == 2 && layer->text_ends ? 6 + of_mlp : 0) +
         (kr_weights_find(weights, key) != NULL);
  }
  KR_CHECK(kr_weights_count(weights) == n, KRAIT_ERR_WEIGHTS,
           "the file has %lld tensors, but %s with %lld layers has %lld: the configuration belongs to another model",
           (long long)kr_weights_count(weights), c->is_3b ? "seedvr_dit3b" : "seedvr_dit7b", (long long)c->n_layers,
           (long long)n);
  return KRAIT_OK;
}

static int32_t load_seedvr(kr_seedvr_weights *w, const kr_seedvr_config *c, const kr_weights *weights) {
  w->layers = kr_alloc_array((size_t)c->n_layers, sizeof *w->layers);
  KR_CHECK(w->layers, KRAIT_ERR_NO_MEMORY, "no memory for %lld layers", (long long)c->n_layers);
  KR_TRY(take_freqs(w, c, weights));
  KR_TRY(kr_loader_run(&w->loader, take_seedvr_all, &(taking){c, w}));
  return weights ? check_count(w, c, weights) : KRAIT_OK;
}

int32_t kr_seedvr_weights_open(const krait_ctx *ctx, const kr_seedvr_config *c, const kr_weights *weights,
                               int32_t dtype, kr_seedvr_weights *w) {
  const int32_t as = weights && dtype != KRAIT_F32 ? dtype : 0;
  *w = (kr_seedvr_weights){.dtype = dtype,
                           .loader = {.ctx = ctx, .weights = weights, .random_type = dtype, .as = as}};
  const int32_t status = load_seedvr(w, c, weights);
  if (status < 0) kr_seedvr_weights_close(w);
  return status;
}

void kr_seedvr_weights_close(kr_seedvr_weights *w) {
  if (w->loader.ctx) kr_loader_close(&w->loader);
  kr_free(w->layers);
  kr_free(w->freqs);
  *w = (kr_seedvr_weights){0};
}

/* clip_graph.c: CLIP's vision tower as calls of a graph. Rows are tokens, images concatenated; quick GELU is SiLU of
 * 1.702 x, whose factor is merged into the product before and divided out in the one after. */
#include <stdio.h>

#include "clip.h"
#include "op_list.h"

#define QUICK 1.702

typedef struct builder {
  kr_graph *g;
  const kr_clip_config *c;
  const kr_clip_weights *w;
  int64_t B, n, i; /* images, tokens per image, layer */
} builder;

static krait_view clip_view(const builder *b, kr_tensor t) { return kr_graph_view(b->g, t); }
static kr_tensor clip_new_rows(const builder *b, int64_t columns) {
  return kr_graph_temp(b->g, b->w->dtype, KR_DIMS(b->B * b->n, columns));
}

static kr_tensor clip_weight(const builder *b, const char *name, const kr_weight_ref *t, kr_dims dims) {
  char full[64];
  snprintf(full, sizeof full, "clip.%lld.%s", (long long)b->i, name);
  return t->data ? kr_graph_weight(b->g, full, t->dtype, dims, t->data) : 0;
}

/* act(scale x w + bias), w stored (N outputs, K inputs). */
typedef struct product {
  const char *name, *bias_name;
  const kr_weight_ref *w, *bias;
  int64_t N, K;
  int32_t activation;
  float scale;
} product;

static void multiply(const builder *b, const product *p, kr_tensor x, kr_tensor out) {
  const kr_tensor w = clip_weight(b, p->name, p->w, KR_DIMS(p->N, p->K)),
                  bias = p->bias ? clip_weight(b, p->bias_name, p->bias, KR_DIMS(p->N)) : 0;
  kr_graph_call(b->g, p->name, &kr_op_gemm,
                &(krait_gemm_args){.activation = p->activation,
                                   .scale = p->scale,
                                   .A = clip_view(b, x),
                                   .Bmat = clip_view(b, kr_graph_permute(b->g, w, (int[]){1, 0})),
                                   .bias = clip_view(b, bias),
                                   .out = clip_view(b, out)});
}

/* The residual stream is float32; adds h, and returns its norm. */
static kr_tensor add_clip_norm(const builder *b, const char *name, kr_tensor h, kr_tensor *stream,
                               const kr_weight_ref *w, const kr_weight_ref *bias) {
  const kr_tensor sum = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(b->B * b->n, b->c->C)), out = clip_new_rows(b, b->c->C);
  char bias_name[32];
  snprintf(bias_name, sizeof bias_name, "%s_bias", name);
  kr_graph_call(b->g, name, &kr_op_add_norm,
                &(krait_add_norm_args){.eps = b->c->eps,
                                       .x = clip_view(b, h),
                                       .residual = clip_view(b, *stream),
                                       .weight = clip_view(b, clip_weight(b, name, w, KR_DIMS(b->c->C))),
                                       .bias = clip_view(b, clip_weight(b, bias_name, bias, KR_DIMS(b->c->C))),
                                       .out = clip_view(b, out),
                                       .residual_out = clip_view(b, sum)});
  *stream = sum;
  return out;
}

/* Tokens: the class token's position, then each patch's product and position; then their norm. */
static kr_tensor embed_clip(const builder *b, kr_tensor patches) {
  const kr_clip_config *c = b->c;
  const int64_t K = 3 * c->patch * c->patch, n = b->n - 1;
  const kr_tensor tokens = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(b->B, b->n, c->C)),
                  rows = kr_graph_temp(b->g, b->w->dtype, KR_DIMS(b->B * n, c->C)), out = clip_new_rows(b, c->C);
  const kr_tensor pos_embed = kr_graph_expand(
      b->g,
      kr_graph_reshape(b->g, clip_weight(b, "places", &b->w->pos_embed, KR_DIMS(b->n, c->C)), KR_DIMS(1, b->n, c->C)),
      KR_DIMS(b->B, b->n, c->C));
  if (b->w->dtype != KRAIT_F32) {
    const kr_tensor cast = kr_graph_temp(b->g, b->w->dtype, KR_DIMS(b->B * n, K));
    kr_graph_pointwise(b->g, "patches", (krait_pointwise_args){.x_scale = 1}, patches, 0, cast);
    patches = cast;
  }
  multiply(b, &(product){.name = "embed", .w = &b->w->embed, .N = c->C, .K = K}, patches, rows);
  kr_graph_pointwise(b->g, "class", (krait_pointwise_args){.x_scale = 1}, kr_graph_slice(b->g, pos_embed, 1, 0, 1), 0,
                     kr_graph_slice(b->g, tokens, 1, 0, 1));
  kr_graph_pointwise(b->g, "places", (krait_pointwise_args){.x_scale = 1, .y_scale = 1},
                     kr_graph_reshape(b->g, rows, KR_DIMS(b->B, n, c->C)), kr_graph_slice(b->g, pos_embed, 1, 1, n),
                     kr_graph_slice(b->g, tokens, 1, 1, n));
  kr_graph_call(
      b->g, "norm", &kr_op_add_norm,
      &(krait_add_norm_args){.eps = c->eps,
                             .x = clip_view(b, kr_graph_reshape(b->g, tokens, KR_DIMS(b->B * b->n, c->C))),
                             .weight = clip_view(b, clip_weight(b, "norm", &b->w->norm, KR_DIMS(c->C))),
                             .bias = clip_view(b, clip_weight(b, "norm_bias", &b->w->norm_bias, KR_DIMS(c->C))),
                             .out = clip_view(b, out)});
  return out;
}

static kr_tensor clip_as_heads(const builder *b, kr_tensor rows, int64_t from) {
  const kr_clip_config *c = b->c;
  return kr_graph_reshape(b->g, kr_graph_slice(b->g, rows, 1, from * c->C, c->C),
                          KR_DIMS(b->B, b->n, c->H, c->C / c->H));
}

static kr_tensor clip_attend(const builder *b, const kr_clip_layer *l, kr_tensor x) {
  static const char *const names[] = {"q", "k", "v"}, *const biases[] = {"q_bias", "k_bias", "v_bias"};
  const int64_t C = b->c->C;
  const kr_tensor qkv = clip_new_rows(b, 3 * C), y = clip_new_rows(b, C), h = clip_new_rows(b, C);
  if (b->w->is_joined)
    multiply(b,
             &(product){.name = "qkv", .bias_name = "qkv_bias", .w = l->qkv, .bias = l->qkv_bias, .N = 3 * C, .K = C},
             x, qkv);
  for (int j = 0; j < 3 && !b->w->is_joined; j++)
    multiply(
        b,
        &(product){.name = names[j], .bias_name = biases[j], .w = &l->qkv[j], .bias = &l->qkv_bias[j], .N = C, .K = C},
        x, kr_graph_slice(b->g, qkv, 1, j * C, C));
  kr_graph_call(b->g, "attention", &kr_op_attention,
                &(krait_attention_args){
                    .q = clip_view(b, clip_as_heads(b, qkv, 0)),
                    .k = clip_view(b, clip_as_heads(b, qkv, 1)),
                    .v = clip_view(b, clip_as_heads(b, qkv, 2)),
                    .out = clip_view(b, kr_graph_reshape(b->g, y, KR_DIMS(b->B, b->n, b->c->H, C / b->c->H)))});
  multiply(b, &(product){.name = "o", .bias_name = "o_bias", .w = &l->o, .bias = &l->o_bias, .N = C, .K = C}, y, h);
  return h;
}

static kr_tensor feed_forward_clip(const builder *b, const kr_clip_layer *l, kr_tensor x) {
  const kr_clip_config *c = b->c;
  const int is_quick = c->activation == KRAIT_ACT_SILU;
  const kr_tensor hidden = clip_new_rows(b, c->F), h = clip_new_rows(b, c->C);
  multiply(b,
           &(product){.name = "fc1",
                      .bias_name = "fc1_bias",
                      .w = &l->fc1,
                      .bias = &l->fc1_bias,
                      .N = c->F,
                      .K = c->C,
                      .activation = c->activation,
                      .scale = is_quick ? (float)QUICK : 1},
           x, hidden);
  multiply(b,
           &(product){.name = "fc2",
                      .bias_name = "fc2_bias",
                      .w = &l->fc2,
                      .bias = &l->fc2_bias,
                      .N = c->C,
                      .K = c->F,
                      .scale = is_quick ? (float)(1 / QUICK) : 1},
           hidden, h);
  return h;
}

kr_tensor kr_clip_record(kr_graph *g, const kr_clip_config *c, const kr_clip_weights *w, int64_t n_layers, int64_t B,
                         kr_tensor patches) {
  builder b = {.g = g, .c = c, .w = w, .B = B, .n = 1 + c->edge * c->edge, .i = -1};
  const kr_tensor features = kr_graph_temp(g, w->dtype, KR_DIMS(B, b.n - 1, c->C));
  const kr_dims all = KR_DIMS(B, b.n, c->C);
  kr_tensor h = embed_clip(&b, patches), stream = 0;
  for (b.i = 0; b.i < n_layers; b.i++) {
    const kr_clip_layer *l = &w->layers[b.i];
    h = clip_attend(&b, l, add_clip_norm(&b, "norm1", h, &stream, &l->norm1, &l->norm1_bias));
    h = feed_forward_clip(&b, l, add_clip_norm(&b, "norm2", h, &stream, &l->norm2, &l->norm2_bias));
  }
  kr_graph_pointwise(g, "features", (krait_pointwise_args){.x_scale = 1, .y_scale = 1},
                     kr_graph_slice(g, kr_graph_reshape(g, h, all), 1, 1, b.n - 1),
                     stream ? kr_graph_slice(g, kr_graph_reshape(g, stream, all), 1, 1, b.n - 1) : 0, features);
  return features;
}

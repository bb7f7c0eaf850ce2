/* clip_graph.c: CLIP's vision tower as calls of a graph. Rows are tokens, images concatenated; quick GELU is SiLU of
 * 1.702 x, whose factor is merged into the product before and divided out in the one after. */
#include "clip.h"
#include "token_builder.h"

#define QUICK 1.702

typedef struct tower {
  kr_token_builder b;
  const kr_clip_config *c;
  const kr_clip_weights *w;
  int64_t B, n; /* images, tokens per image */
} tower;

/* Adds h to the residual stream, and returns its norm. */
static kr_tensor norm_clip(const tower *t, const char *name, kr_tensor h, kr_tensor *stream, const kr_weight_ref *w,
                           const kr_weight_ref *bias) {
  const kr_token_builder *b = &t->b;
  const int64_t C = t->c->C;
  return norm_of(b, name, h, stream, .weight = weight(b, "norm", w, C), .bias = weight(b, "norm_bias", bias, C),
                 .eps = t->c->eps);
}

/* Tokens: the class token's position, then each patch's product and position; then their norm. */
static kr_tensor embed_clip(const tower *t, kr_tensor patches) {
  const kr_clip_config *c = t->c;
  const kr_token_builder *b = &t->b;
  const int64_t K = 3 * c->patch * c->patch, n = t->n - 1, B = t->B;
  const kr_tensor tokens = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(B, t->n, c->C));
  const kr_tensor pos_embed = kr_graph_expand(
      b->g, kr_graph_reshape(b->g, weight(b, "places", &t->w->pos_embed, t->n, c->C), KR_DIMS(1, t->n, c->C)),
      KR_DIMS(B, t->n, c->C));
  const kr_tensor rows =
      linear(b, "embed", kr_record_cast(b, "patches", patches), .w = &t->w->embed, .N = c->C, .K = K);
  copy(b, "class", kr_graph_slice(b->g, pos_embed, 1, 0, 1), kr_graph_slice(b->g, tokens, 1, 0, 1));
  add_into(b, "places", kr_graph_reshape(b->g, rows, KR_DIMS(B, n, c->C)), kr_graph_slice(b->g, pos_embed, 1, 1, n),
           kr_graph_slice(b->g, tokens, 1, 1, n));
  return norm_clip(t, "norm", kr_graph_reshape(b->g, tokens, KR_DIMS(B * t->n, c->C)), NULL, &t->w->norm,
                   &t->w->norm_bias);
}

static kr_tensor attend_clip(const tower *t, const kr_clip_layer *l, kr_tensor x) {
  static const char *const names[] = {"q", "k", "v"};
  const kr_token_builder *b = &t->b;
  const int64_t C = t->c->C, H = t->c->H;
  const kr_dims heads = KR_DIMS(t->B, t->n, H, C / H);
  const kr_tensor qkv = new_rows(b, 3 * C), y = new_rows(b, C);
  if (t->w->is_joined) linear(b, "qkv", x, .w = l->qkv, .bias = l->qkv_bias, .N = 3 * C, .K = C, .out = qkv);
  for (int j = 0; j < 3 && !t->w->is_joined; j++)
    linear(b, names[j], x, .w = &l->qkv[j], .bias = &l->qkv_bias[j], .N = C, .K = C, .out = columns(b, qkv, j * C, C));
  kr_graph_call(b->g, "attention", &kr_op_attention,
                &(kr_attention_args){.q = view(b, as_heads(b, qkv, 0, heads)),
                                        .k = view(b, as_heads(b, qkv, H, heads)),
                                        .v = view(b, as_heads(b, qkv, 2 * H, heads)),
                                        .out = view_as(b, y, heads)});
  return linear(b, "o", y, .w = &l->o, .bias = &l->o_bias, .N = C, .K = C);
}

static kr_tensor feed_forward_clip(const tower *t, const kr_clip_layer *l, kr_tensor x) {
  const kr_clip_config *c = t->c;
  const kr_token_builder *b = &t->b;
  const int is_quick = c->activation == KRAIT_ACT_SILU;
  const kr_tensor hidden = linear(b, "fc1", x, .w = &l->fc1, .bias = &l->fc1_bias, .N = c->F, .K = c->C,
                                  .activation = c->activation, .scale = is_quick ? (float)QUICK : 1);
  return linear(b, "fc2", hidden, .w = &l->fc2, .bias = &l->fc2_bias, .N = c->C, .K = c->F,
                .scale = is_quick ? (float)(1 / QUICK) : 1);
}

kr_tensor kr_clip_record(kr_graph *g, const kr_clip_config *c, const kr_clip_weights *w, int64_t n_layers, int64_t B,
                         kr_tensor patches) {
  const int64_t n = 1 + c->edge * c->edge;
  tower t = {
      .b = {.g = g, .dtype = w->dtype, .rows = B * n, .part = "clip", .layer = -1}, .c = c, .w = w, .B = B, .n = n};
  const kr_tensor features = kr_graph_temp(g, w->dtype, KR_DIMS(B, n - 1, c->C));
  const kr_dims all = KR_DIMS(B, n, c->C);
  kr_tensor h = embed_clip(&t, patches), stream = 0;
  for (int64_t i = 0; i < n_layers; i++) {
    const kr_clip_layer *l = &w->layers[i];
    t.b.layer = i;
    h = attend_clip(&t, l, norm_clip(&t, "norm1", h, &stream, &l->norm1, &l->norm1_bias));
    h = feed_forward_clip(&t, l, norm_clip(&t, "norm2", h, &stream, &l->norm2, &l->norm2_bias));
  }
  add_into(&t.b, "features", kr_graph_slice(g, kr_graph_reshape(g, h, all), 1, 1, n - 1),
           stream ? kr_graph_slice(g, kr_graph_reshape(g, stream, all), 1, 1, n - 1) : 0, features);
  return features;
}

/* clip_weights.c: reads CLIP's vision tower by Hugging Face's keys. */
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "clip.h"
#include "ctx.h"
#include "status.h"
#include "view.h"

#define QUICK 1.702

static int32_t look_clip(const kr_loader *p, const char *name, int32_t n_dims, const kr_weight **w) {
  *w = kr_loader_peek(p, name);
  KR_CHECK(*w, KRAIT_ERR_WEIGHTS, "%s: tensor '%s%s' is missing", kr_loader_label(p), p->prefix, name);
  KR_CHECK((*w)->n_dims == n_dims, KRAIT_ERR_WEIGHTS, "%s: tensor '%s%s' has %d dimensions, CLIP requires %d",
           kr_loader_label(p), p->prefix, name, (*w)->n_dims, n_dims);
  for (int i = 0; i < n_dims; i++)
    KR_CHECK((*w)->shape[i] >= 1 && (*w)->shape[i] <= 1 << 20, KRAIT_ERR_WEIGHTS,
             "%s: tensor '%s%s' has a size of %lld", kr_loader_label(p), p->prefix, name, (long long)(*w)->shape[i]);
  return KRAIT_OK;
}

static int32_t read_activation(const kr_loader *p, const json_t *object, kr_clip_config *c) {
  static const struct {
    const char *name;
    int32_t act;
  } known[] = {{"quick_gelu", KRAIT_ACT_SILU},
               {"gelu", KRAIT_ACT_GELU},
               {"gelu_new", KRAIT_ACT_GELU_TANH},
               {"gelu_pytorch_tanh", KRAIT_ACT_GELU_TANH}};
  const char *name = json_string_value(json_object_get(object, "hidden_act"));
  c->activation = -1;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(name ? name : "quick_gelu", known[i].name) == 0) c->activation = known[i].act;
  KR_CHECK(c->activation >= 0, KRAIT_ERR_WEIGHTS,
           "%s: CLIP's hidden_act '%.40s' is not supported; quick_gelu and gelu are", kr_loader_label(p), name);
  return KRAIT_OK;
}

int32_t kr_clip_config_read(const kr_loader *p, const json_t *object, kr_clip_config *c) {
  const json_t *heads = json_object_get(object, "num_attention_heads"),
               *eps = json_object_get(object, "layer_norm_eps");
  const kr_weight *embed, *pos_embed, *fc1;
  char name[64];
  *c = (kr_clip_config){.eps = json_is_number(eps) ? (float)json_number_value(eps) : 1e-5f};
  KR_TRY(look_clip(p, "embeddings.patch_embedding.weight", 4, &embed));
  KR_TRY(look_clip(p, "embeddings.position_embedding.weight", 2, &pos_embed));
  KR_TRY(look_clip(p, "encoder.layers.0.mlp.fc1.weight", 2, &fc1));
  c->C = embed->shape[0], c->patch = embed->shape[3], c->F = fc1->shape[0];
  while ((c->edge + 1) * (c->edge + 1) < pos_embed->shape[0]) c->edge++;
  KR_CHECK(embed->shape[1] == 3 && embed->shape[2] == c->patch && c->edge * c->edge == pos_embed->shape[0] - 1,
           KRAIT_ERR_WEIGHTS, "%s: CLIP's %lld position embeddings do not match square RGB images", kr_loader_label(p),
           (long long)pos_embed->shape[0]);
  c->H = json_is_integer(heads) ? json_integer_value(heads) : c->C / 64;
  KR_CHECK(c->H >= 1 && c->C % c->H == 0 && c->C / c->H <= 256, KRAIT_ERR_WEIGHTS,
           "%s: CLIP's width %lld is not a multiple of %lld heads", kr_loader_label(p), (long long)c->C,
           (long long)c->H);
  for (; c->n_layers < 1024; c->n_layers++) {
    snprintf(name, sizeof name, "encoder.layers.%lld.layer_norm1.weight", (long long)c->n_layers);
    if (!kr_loader_peek(p, name)) break;
  }
  return read_activation(p, object, c);
}

/* ---- tensors ---- */

/* (1 + patches, C) as float32; the class token's row includes its embedding. */
static int32_t load_clip_pos_embed(kr_loader *p, const kr_clip_config *c, kr_weight_ref *to) {
  const int64_t n = (1 + c->edge * c->edge) * c->C;
  kr_weight cls, pos_embed;
  KR_TRY(kr_loader_find(p, "embeddings.class_embedding", 1, KR_SIZES(c->C), &cls));
  KR_TRY(
      kr_loader_find(p, "embeddings.position_embedding.weight", 1, KR_SIZES(1 + c->edge * c->edge, c->C), &pos_embed));
  const kr_view of_cls = {.data = (void *)cls.data, .dtype = cls.dtype},
                   of_places = {.data = (void *)pos_embed.data, .dtype = pos_embed.dtype};
  float *sum = kr_alloc_array((size_t)n, sizeof *sum);
  KR_CHECK(sum, KRAIT_ERR_NO_MEMORY, "no memory for CLIP's position embeddings");
  for (int64_t i = 0; i < n; i++) sum[i] = (float)(kr_get(&of_places, i) + (i < c->C ? kr_get(&of_cls, i) : 0));
  const int32_t status = kr_load_buffer(p, sum, (uint64_t)n * sizeof *sum, KRAIT_F32, to);
  kr_free(sum);
  return status;
}

static double times_quick(double x) { return x * QUICK; }

static int32_t take_clip_layer(kr_loader *p, const kr_clip_config *c, int64_t i, kr_clip_layer *to) {
  static const char *const kinds[] = {"q", "k", "v"};
  char keys[3][80], biases[3][80], name[80];
  const kr_sizes square = KR_SIZES(c->C, c->C), row = KR_SIZES(c->C);
#define NAME(end) (snprintf(name, sizeof name, "encoder.layers.%lld." end, (long long)i), name)
  for (int j = 0; j < 3; j++)
    snprintf(keys[j], sizeof keys[j], "encoder.layers.%lld.self_attn.%s_proj.weight", (long long)i, kinds[j]);
  for (int j = 0; j < 3; j++)
    snprintf(biases[j], sizeof biases[j], "encoder.layers.%lld.self_attn.%s_proj.bias", (long long)i, kinds[j]);
  KR_TRY(kr_load(p, NAME("layer_norm1.weight"), 1, row, &to->norm1));
  KR_TRY(kr_load(p, NAME("layer_norm1.bias"), 1, row, &to->norm1_bias));
  KR_TRY(kr_load_rows(p, 3, (const char *const[]){keys[0], keys[1], keys[2]}, 1, (kr_sizes[]){square, square, square},
                       to->qkv));
  KR_TRY(kr_load_rows(p, 3, (const char *const[]){biases[0], biases[1], biases[2]}, 1, (kr_sizes[]){row, row, row},
                       to->qkv_bias));
  KR_TRY(kr_load(p, NAME("self_attn.out_proj.weight"), 1, square, &to->o));
  KR_TRY(kr_load(p, NAME("self_attn.out_proj.bias"), 1, row, &to->o_bias));
  KR_TRY(kr_load(p, NAME("layer_norm2.weight"), 1, row, &to->norm2));
  KR_TRY(kr_load(p, NAME("layer_norm2.bias"), 1, row, &to->norm2_bias));
  KR_TRY(kr_load(p, NAME("mlp.fc1.weight"), 1, KR_SIZES(c->F, c->C), &to->fc1));
  if (c->activation == KRAIT_ACT_SILU)
    KR_TRY(kr_load_f32(p, NAME("mlp.fc1.bias"), KR_SIZES(c->F), times_quick, &to->fc1_bias));
  else
    KR_TRY(kr_load(p, NAME("mlp.fc1.bias"), 1, KR_SIZES(c->F), &to->fc1_bias));
  KR_TRY(kr_load(p, NAME("mlp.fc2.weight"), 1, KR_SIZES(c->C, c->F), &to->fc2));
  return kr_load(p, NAME("mlp.fc2.bias"), 1, row, &to->fc2_bias);
}

int32_t kr_clip_take(kr_loader *p, const kr_clip_config *c, int64_t n_layers, kr_clip_weights *w) {
  w->is_joined = p->ctx->cuda != NULL;
  KR_TRY(kr_load(p, "embeddings.patch_embedding.weight", 1, KR_SIZES(c->C, 3, c->patch, c->patch), &w->embed));
  w->dtype = p->ctx->cuda ? w->embed.dtype : KRAIT_F32;
  KR_TRY(load_clip_pos_embed(p, c, &w->pos_embed));
  KR_TRY(kr_load(p, "pre_layrnorm.weight", 1, KR_SIZES(c->C), &w->norm));
  KR_TRY(kr_load(p, "pre_layrnorm.bias", 1, KR_SIZES(c->C), &w->norm_bias));
  for (int64_t i = 0; i < n_layers; i++) KR_TRY(take_clip_layer(p, c, i, &w->layers[i]));
  return KRAIT_OK;
}

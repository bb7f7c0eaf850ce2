/* qwen2_weights.c: config.json as written by transformers, and the tensors by their keys. */
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "qwen2.h"
#include "status.h"

#define CONFIG_CHECK(condition, ...) KR_CHECK(condition, KRAIT_ERR_WEIGHTS, __VA_ARGS__)

/* ---- config.json ---- */

/* Mobile-VideoGPT is Qwen2 with additional tensors. */
int kr_qwen2_is(const kr_model_folder *folder) {
  const char *kind = json_string_value(json_object_get(kr_model_folder_config(folder), "model_type"));
  return kind && (strcmp(kind, "qwen2") == 0 || strcmp(kind, "MobileVideoGPT_qwen") == 0);
}

static int32_t read_size(const char *label, const json_t *root, const char *key, int64_t fallback, int64_t *value) {
  const json_t *item = json_object_get(root, key);
  const json_int_t found = json_is_integer(item)         ? json_integer_value(item)
                           : item && !json_is_null(item) ? -1
                                                         : fallback;
  CONFIG_CHECK(item || fallback, "%s: config.json has no %s", label, key);
  CONFIG_CHECK(found >= 1 && found <= 1 << 24, "%s: config.json: %s is not a whole number from 1 to %d", label, key,
               1 << 24);
  *value = found;
  return KRAIT_OK;
}

static double qwen2_real_of(const json_t *root, const char *key, double fallback) {
  const json_t *item = json_object_get(root, key);
  return json_is_number(item) ? json_number_value(item) : fallback;
}

static int32_t read_qwen2_eos(const char *label, const json_t *root, kr_qwen2_config *c) {
  const json_t *eos = json_object_get(root, "eos_token_id");
  const size_t n = json_is_array(eos) ? json_array_size(eos) : eos && !json_is_null(eos);
  CONFIG_CHECK(n <= 8, "%s: config.json: more than 8 eos_token_id", label);
  for (size_t i = 0; i < n; i++) {
    const json_t *item = json_is_array(eos) ? json_array_get(eos, i) : eos;
    CONFIG_CHECK(json_is_integer(item), "%s: config.json: eos_token_id is not a whole number", label);
    c->eos[c->n_eos++] = json_integer_value(item);
  }
  return KRAIT_OK;
}

/* Older files have rope_theta and rope_scaling, newer ones rope_parameters. */
static int32_t read_angles(const char *label, const json_t *root, kr_qwen2_config *c) {
  const json_t *rope = json_object_get(root, "rope_parameters"), *scaling = json_object_get(root, "rope_scaling");
  if (!rope && scaling && !json_is_null(scaling)) rope = scaling;
  const char *kind = json_string_value(json_object_get(rope, "rope_type"));
  if (!kind) kind = json_string_value(json_object_get(rope, "type"));
  CONFIG_CHECK(!kind || strcmp(kind, "default") == 0,
               "%s: config.json: rotary embedding of type '%.40s' is not supported", label, kind);
  c->base = qwen2_real_of(rope, "rope_theta", qwen2_real_of(root, "rope_theta", 10000));
  CONFIG_CHECK(c->base > 1, "%s: config.json: rope_theta is %g", label, c->base);
  return KRAIT_OK;
}

static int32_t read_qwen2_attention(const char *label, const json_t *root, kr_qwen2_config *c) {
  const json_t *kinds = json_object_get(root, "layer_types"), *kind;
  size_t i;
  KR_TRY(read_size(label, root, "num_attention_heads", 0, &c->H));
  KR_TRY(read_size(label, root, "num_key_value_heads", c->H, &c->Hk));
  KR_TRY(read_size(label, root, "head_dim", c->d / c->H, &c->D));
  CONFIG_CHECK(c->H % c->Hk == 0 && c->D % 2 == 0 && c->D <= 256,
               "%s: config.json: %lld heads, %lld key heads and %lld features per head do not match", label,
               (long long)c->H, (long long)c->Hk, (long long)c->D);
  json_array_foreach(kinds, i, kind)
      CONFIG_CHECK(json_is_string(kind) && strcmp(json_string_value(kind), "full_attention") == 0,
                   "%s: config.json: layer %zu is not full attention, which is not supported", label, i);
  CONFIG_CHECK(kinds || !json_is_true(json_object_get(root, "use_sliding_window")),
               "%s: config.json: use_sliding_window is not supported", label);
  return KRAIT_OK;
}

/* Without its last layers a model would speak, but not as it was trained to. */
static int32_t check_qwen2_last(const kr_model_folder *folder, const char *label, int64_t n_layers) {
  char key[64];
  snprintf(key, sizeof key, "model.layers.%lld.input_layernorm.weight", (long long)n_layers);
  CONFIG_CHECK(!kr_model_folder_find(folder, key), "%s: config.json says %lld layers, but there is a tensor '%s'",
               label, (long long)n_layers, key);
  return KRAIT_OK;
}

int32_t kr_qwen2_config_read(const kr_model_folder *folder, kr_qwen2_config *c) {
  const json_t *root = kr_model_folder_config(folder);
  const char *label = kr_model_folder_label(folder), *act = json_string_value(json_object_get(root, "hidden_act"));
  const kr_weight *embedding = kr_model_folder_find(folder, "model.embed_tokens.weight");
  *c = (kr_qwen2_config){.eps = (float)qwen2_real_of(root, "rms_norm_eps", 1e-6),
                         .is_tied = json_is_true(json_object_get(root, "tie_word_embeddings"))};
  CONFIG_CHECK(!act || strcmp(act, "silu") == 0, "%s: config.json: hidden_act is not silu", label);
  CONFIG_CHECK(embedding && embedding->n_dims == 2 && embedding->shape[0] >= 1 && embedding->shape[0] <= 1 << 24,
               "%s: tensor 'model.embed_tokens.weight' is missing or not a matrix", label);
  c->V = c->n_used = embedding->shape[0];
  KR_TRY(read_size(label, root, "hidden_size", 0, &c->d));
  KR_TRY(read_size(label, root, "num_hidden_layers", 0, &c->n_layers));
  KR_TRY(read_size(label, root, "intermediate_size", 0, &c->F));
  CONFIG_CHECK(c->n_layers <= KR_QWEN2_MOST_LAYERS, "%s: config.json: %lld layers", label, (long long)c->n_layers);
  KR_TRY(check_qwen2_last(folder, label, c->n_layers));
  KR_TRY(read_qwen2_attention(label, root, c));
  KR_TRY(read_angles(label, root, c));
  return read_qwen2_eos(label, root, c);
}

/* ---- tensors ---- */

typedef struct taking {
  const kr_qwen2_config *c;
  kr_qwen2_weights *w;
} taking;

static int32_t take_qwen2_layer(kr_loader *p, const kr_qwen2_config *c, int64_t i, kr_qwen2_layer *to) {
  static const char *const kinds[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj",
                                      "mlp.up_proj"};
  char keys[5][80], biases[3][80], name[80];
  const int64_t q = c->H * c->D, k = c->Hk * c->D;
  for (int j = 0; j < 5; j++) snprintf(keys[j], sizeof keys[j], "model.layers.%lld.%s.weight", (long long)i, kinds[j]);
  for (int j = 0; j < 3; j++)
    snprintf(biases[j], sizeof biases[j], "model.layers.%lld.%s.bias", (long long)i, kinds[j]);
#define NAME(end) (snprintf(name, sizeof name, "model.layers.%lld." end, (long long)i), name)
  KR_TRY(kr_load(p, NAME("input_layernorm.weight"), 1, KR_SIZES(c->d), &to->norm));
  KR_TRY(kr_load_rows(p, 3, (const char *const[]){keys[0], keys[1], keys[2]}, 1,
                       (kr_sizes[]){KR_SIZES(q, c->d), KR_SIZES(k, c->d), KR_SIZES(k, c->d)}, to->qkv));
  KR_TRY(kr_load_rows(p, 3, (const char *const[]){biases[0], biases[1], biases[2]}, 0,
                       (kr_sizes[]){KR_SIZES(q), KR_SIZES(k), KR_SIZES(k)}, to->qkv_bias));
  KR_TRY(kr_load(p, NAME("self_attn.o_proj.weight"), 1, KR_SIZES(c->d, q), &to->o));
  KR_TRY(kr_load(p, NAME("post_attention_layernorm.weight"), 1, KR_SIZES(c->d), &to->norm2));
  KR_TRY(kr_load_rows(p, 2, (const char *const[]){keys[3], keys[4]}, 1,
                       (kr_sizes[]){KR_SIZES(c->F, c->d), KR_SIZES(c->F, c->d)}, to->gate_up));
  return kr_load(p, NAME("mlp.down_proj.weight"), 1, KR_SIZES(c->d, c->F), &to->down);
}

static int32_t take_qwen2_all(kr_loader *p, void *user) {
  const taking *t = user;
  const kr_qwen2_config *c = t->c;
  kr_qwen2_weights *w = t->w;
  KR_TRY(kr_load(p, "model.embed_tokens.weight", 1, KR_SIZES(c->V, c->d), &w->embedding));
  w->head = w->embedding;
  if (!c->is_tied || kr_loader_peek(p, "lm_head.weight.q8_0") ||
      kr_loader_peek(p, "lm_head.weight.q4_k")) { /* a quantized model keeps its embedding for looking up tokens */
    const uint64_t looked_up = p->bytes;
    KR_TRY(kr_load(p, "lm_head.weight", 1, KR_SIZES(c->V, c->d), &w->head));
    p->bytes -= looked_up;
  }
  KR_TRY(kr_load(p, "model.norm.weight", 1, KR_SIZES(c->d), &w->norm));
  for (int64_t i = 0; i < c->n_layers; i++) KR_TRY(take_qwen2_layer(p, c, i, &w->layers[i]));
  return KRAIT_OK;
}

int32_t kr_qwen2_weights_open(const krait_ctx *ctx, const kr_model_folder *folder, const kr_qwen2_config *c,
                              int32_t random_type, kr_qwen2_weights *w) {
  *w = (kr_qwen2_weights){.layers = kr_alloc_array((size_t)c->n_layers, sizeof *w->layers),
                          .is_joined = ctx->cuda != NULL,
                          .loader = {.ctx = ctx, .folder = folder, .random_type = random_type}};
  KR_CHECK(w->layers, KRAIT_ERR_NO_MEMORY, "no memory for %lld layers", (long long)c->n_layers);
  KR_TRY(kr_loader_run(&w->loader, take_qwen2_all, &(taking){c, w}));
  w->dtype = !ctx->cuda ? KRAIT_F32 : w->layers[0].qkv[0].dtype == KRAIT_I32 ? KRAIT_F16 : w->layers[0].qkv[0].dtype;
  w->bytes = w->loader.bytes;
  return KRAIT_OK;
}

void kr_qwen2_weights_close(kr_qwen2_weights *w) {
  if (w->loader.ctx) kr_loader_close(&w->loader);
  kr_free(w->layers);
  *w = (kr_qwen2_weights){0};
}

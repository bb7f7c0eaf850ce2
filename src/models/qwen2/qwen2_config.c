/* qwen2_config.c: config.json as written by transformers. */
#include <string.h>

#include "qwen2.h"
#include "status.h"

#define CONFIG_CHECK(condition, ...) KR_CHECK(condition, KRAIT_ERR_WEIGHTS, __VA_ARGS__)

/* A size, which must be there if there is no fallback. */
static int32_t read_size(const char *label, const json_t *root, const char *key, int64_t fallback, int64_t *value) {
  const json_t *item = json_object_get(root, key);
  CONFIG_CHECK(item || fallback, "%s: config.json has no %s", label, key);
  return kr_lm_json_whole(label, root, key, fallback, 1, 1 << 24, value);
}

/* Older files have rope_theta and rope_scaling, newer ones rope_parameters. */
static int32_t read_angles(const char *label, const json_t *root, kr_qwen2_config *c) {
  const json_t *rope = json_object_get(root, "rope_parameters"), *scaling = json_object_get(root, "rope_scaling");
  if (!rope && scaling && !json_is_null(scaling)) rope = scaling;
  const char *kind = json_string_value(json_object_get(rope, "rope_type"));
  if (!kind) kind = json_string_value(json_object_get(rope, "type"));
  CONFIG_CHECK(!kind || strcmp(kind, "default") == 0,
               "%s: config.json: rotary embedding of type '%.40s' is not supported", label, kind);
  c->base = kr_lm_json_real(rope, "rope_theta", kr_lm_json_real(root, "rope_theta", 10000));
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

int32_t kr_qwen2_config_read(const kr_model_folder *folder, kr_qwen2_config *c) {
  const json_t *root = kr_model_folder_config(folder);
  const char *label = kr_model_folder_label(folder), *act = json_string_value(json_object_get(root, "hidden_act"));
  const kr_weight *embedding = kr_model_folder_find(folder, "model.embed_tokens.weight");
  *c = (kr_qwen2_config){.eps = (float)kr_lm_json_real(root, "rms_norm_eps", 1e-6),
                         .is_tied = json_is_true(json_object_get(root, "tie_word_embeddings"))};
  CONFIG_CHECK(!act || strcmp(act, "silu") == 0, "%s: config.json: hidden_act is not silu", label);
  CONFIG_CHECK(embedding && embedding->n_dims == 2 && embedding->shape[0] >= 1 && embedding->shape[0] <= 1 << 24,
               "%s: tensor 'model.embed_tokens.weight' is missing or not a matrix", label);
  c->V = c->n_used = embedding->shape[0];
  KR_TRY(read_size(label, root, "hidden_size", 0, &c->d));
  KR_TRY(read_size(label, root, "num_hidden_layers", 0, &c->n_layers));
  KR_TRY(read_size(label, root, "intermediate_size", 0, &c->F));
  CONFIG_CHECK(c->n_layers <= KR_LM_MOST_LAYERS, "%s: config.json: %lld layers", label, (long long)c->n_layers);
  KR_TRY(kr_lm_check_last(folder, "model.layers.*.input_layernorm.weight", c->n_layers));
  KR_TRY(read_qwen2_attention(label, root, c));
  KR_TRY(read_angles(label, root, c));
  return kr_lm_json_eos(label, root, c->eos, &c->n_eos);
}

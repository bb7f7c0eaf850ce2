/* gguf_config.c: the equivalent of config.json. What a file says only by its tensors (which layers have attention) is
 * written as the model's own configuration says it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gguf_names.h"
#include "status.h"

#define FORMAT_CHECK(condition, ...) KR_CHECK(condition, KRAIT_ERR_FILE_FORMAT, __VA_ARGS__)

/* ---- values ---- */

/* ARCHITECTURE.key */
static const kr_gguf_value *find_own(const kr_gguf *g, const kr_gguf_arch *arch, const char *key) {
  char name[96];
  snprintf(name, sizeof name, "%s.%s", arch->name, key);
  return kr_gguf_find(g, name);
}

static int is_text(const kr_gguf_value *v, const char *text) {
  uint64_t at = 0;
  size_t n;
  const char *found = kr_gguf_text(v, &at, &n);
  return found && n == strlen(text) && memcmp(found, text, n) == 0;
}

static int set_whole(json_t *to, const char *name, const kr_gguf_value *v) {
  int64_t number;
  return kr_gguf_most(v, &number) ? json_object_set_new(to, name, json_integer(number)) : 0;
}

static int set_real(json_t *to, const char *name, const kr_gguf_value *v) {
  double number;
  return kr_gguf_real(v, &number) && isfinite(number) ? json_object_set_new(to, name, json_real(number)) : 0;
}

static int set_flag(json_t *to, const char *name, int flag) {
  return flag ? json_object_set_new(to, name, json_true()) : 0;
}

typedef struct entry {
  const char *name, *key;
  int with_attention; /* of models that have attention, or an MLP */
} entry;
/* Spellings differ by model_type; no reader minds the others. */
static const entry wholes[] = {{"hidden_size", "embedding_length", 0},
                               {"num_hidden_layers", "block_count", 0},
                               {"intermediate_size", "feed_forward_length", 1},
                               {"num_attention_heads", "attention.head_count", 1},
                               {"num_key_value_heads", "attention.head_count_kv", 1},
                               {"head_dim", "attention.key_length", 1},
                               {"num_experts_per_tok", "expert_used_count", 1},
                               {"n_group", "expert_group_count", 1},
                               {"topk_group", "expert_group_used_count", 1},
                               {"state_size", "ssm.state_size", 0},
                               {"mamba_d_state", "ssm.state_size", 1},
                               {"ssm_state_size", "ssm.state_size", 1},
                               {"conv_kernel", "ssm.conv_kernel", 0},
                               {"time_step_rank", "ssm.time_step_rank", 0},
                               {"n_groups", "ssm.group_count", 0},
                               {"mamba_n_groups", "ssm.group_count", 1},
                               {"linear_num_key_heads", "ssm.group_count", 1},
                               {"linear_key_head_dim", "ssm.state_size", 1}};
/* The last of two that are there counts: Nemotron-H's files have one or the other. */
static const entry reals[] = {{"layer_norm_epsilon", "attention.layer_norm_epsilon", 1},
                              {"layer_norm_epsilon", "attention.layer_norm_rms_epsilon", 0},
                              {"rms_norm_eps", "attention.layer_norm_rms_epsilon", 1},
                              {"norm_eps", "attention.layer_norm_rms_epsilon", 1},
                              {"rope_theta", "rope.freq_base", 0},
                              {"embedding_multiplier", "embedding_scale", 1},
                              {"residual_multiplier", "residual_scale", 1},
                              {"attention_multiplier", "attention.scale", 1},
                              {"logits_scaling", "logit_scale", 1},
                              {"routed_scaling_factor", "expert_weights_scale", 1}};

/* ---- rotary embeddings ---- */

/* LLaMA 3's scaling is a tensor of what frequencies are divided by. */
static int set_factors(json_t *rope, const kr_gguf_tensor *t) {
  json_t *factors = json_array();
  int failed = json_object_set_new(rope, "factors", factors) |
               json_object_set_new(rope, "rope_type", json_string("factors"));
  for (int64_t i = 0; !failed && i < t->shape[0]; i++) {
    float value;
    memcpy(&value, t->data + 4 * i, sizeof value);
    failed |= json_array_append_new(factors, json_real(isfinite(value) ? (double)value : 0));
  }
  return failed;
}

static int set_rope(json_t *c, const kr_gguf *g, const kr_gguf_arch *arch) {
  const kr_gguf_value *scaling = find_own(g, arch, "rope.scaling.type");
  const kr_gguf_tensor *factors = kr_gguf_find_tensor(g, "rope_freqs.weight");
  json_t *rope = json_object();
  int64_t n_rotated = 0, head = 0;
  int failed = json_object_set_new(c, "rope_parameters", rope);
  failed |= set_real(rope, "rope_theta", find_own(g, arch, "rope.freq_base"));
  if (factors) failed |= set_factors(rope, factors);
  for (int i = 0; !factors && i < 2; i++) {
    static const char *const types[] = {"linear", "yarn"};
    if (!is_text(scaling, types[i])) continue;
    failed |= json_object_set_new(rope, "rope_type", json_string(types[i]));
    failed |= set_real(rope, "factor", find_own(g, arch, "rope.scaling.factor"));
    failed |= set_whole(rope, "original_max_position_embeddings",
                        find_own(g, arch, "rope.scaling.original_context_length"));
  }
  if (kr_gguf_whole(find_own(g, arch, "rope.dimension_count"), &n_rotated) &&
      kr_gguf_whole(find_own(g, arch, "attention.key_length"), &head) && n_rotated > 0 && n_rotated < head)
    failed |= json_object_set_new(rope, "partial_rotary_factor", json_real((double)n_rotated / (double)head));
  return failed | set_flag(c, "krait_rope_interleaved", (arch->flags & KR_GGUF_INTERLEAVES) != 0);
}

/* What a file may say of its positions that this does not read. */
static int32_t check_rope(const kr_gguf *g, const kr_gguf_arch *arch) {
  const kr_gguf_value *scaling = find_own(g, arch, "rope.scaling.type"),
                      *rotates = find_own(g, arch, "rope.scaling.finetuned");
  const kr_gguf_tensor *factors = kr_gguf_find_tensor(g, "rope_freqs.weight");
  int64_t yes = 0;
  FORMAT_CHECK(!factors || (factors->type == KR_GGUF_F32 && factors->n_dims == 1 && factors->shape[0] <= 4096),
               "%s: tensor 'rope_freqs.weight' is not a list of float32", g->label);
  if (strcmp(arch->name, "granitehybrid") == 0 && kr_gguf_whole(rotates, &yes))
    KR_CHECK(!yes, KRAIT_ERR_UNSUPPORTED,
             "%s: a hybrid with rotary positions (Bamba), which is not read from GGUF files", g->label);
  KR_CHECK(!scaling || is_text(scaling, "none") || is_text(scaling, "linear") || is_text(scaling, "yarn"),
           KRAIT_ERR_UNSUPPORTED, "%s: %s.rope.scaling.type is not none, linear or yarn", g->label, arch->name);
  return KRAIT_OK;
}

/* ---- layers ---- */

static int layer_has(const kr_gguf *g, int64_t layer, const char *tensor) {
  char name[64];
  snprintf(name, sizeof name, "blk.%lld.%s", (long long)layer, tensor);
  return kr_gguf_has_tensor(g, name);
}

/* A letter for each layer, as Nemotron-H's configuration has it. */
static int set_pattern(json_t *c, const kr_gguf *g, int64_t n_layers) {
  enum { MOST = 4096 };
  char pattern[MOST + 1];
  int64_t i = 0;
  for (; i < n_layers && i < MOST; i++)
    pattern[i] = layer_has(g, i, "ssm_in.weight")         ? 'M'
                 : layer_has(g, i, "attn_q.weight")       ? '*'
                 : layer_has(g, i, "ffn_gate_inp.weight") ? 'E'
                                                          : '-';
  pattern[i] = 0;
  return json_object_set_new(c, "hybrid_override_pattern", json_string(pattern));
}

static int set_attention_layers(json_t *c, const kr_gguf *g, int64_t n_layers) {
  json_t *list = json_array();
  int failed = json_object_set_new(c, "full_attn_idxs", list);
  for (int64_t i = 0; i < n_layers && i < 4096; i++)
    if (layer_has(g, i, "attn_q.weight")) failed |= json_array_append_new(list, json_integer(i));
  return failed;
}

/* ---- the whole ---- */

static json_t *make_config(const kr_gguf *g, const kr_gguf_arch *arch) {
  const int has_attention = !(arch->flags & KR_GGUF_RECURRENT);
  const char *type = arch->model_type;
  int64_t is_falcon = 0, n_layers = 0;
  kr_gguf_whole(find_own(g, arch, "ssm.dt_b_c_rms"), &is_falcon);
  kr_gguf_whole(find_own(g, arch, "block_count"), &n_layers);
  if (is_falcon && strcmp(type, "mamba") == 0) type = "falcon_mamba";
  json_t *c = json_pack("{s:s}", "model_type", type);
  int failed = !c;
  for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++)
    if (has_attention || !wholes[i].with_attention)
      failed |= set_whole(c, wholes[i].name, find_own(g, arch, wholes[i].key));
  for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
    if (has_attention || !reals[i].with_attention)
      failed |= set_real(c, reals[i].name, find_own(g, arch, reals[i].key));
  if (arch->flags & KR_GGUF_ROTATES) failed |= set_rope(c, g, arch);
  if (strcmp(type, "nemotron_h") == 0) failed |= set_pattern(c, g, n_layers);
  if (strncmp(type, "lfm2", 4) == 0) failed |= set_attention_layers(c, g, n_layers);
  failed |= set_flag(c, "norm_topk_prob", (arch->flags & KR_GGUF_NORMS_CHOICE) != 0);
  failed |= set_flag(c, "krait_whole_norms", (arch->flags & KR_GGUF_WHOLE_NORMS) != 0);
  failed |= set_flag(c, "mamba_rms_norm", layer_has(g, 0, "ssm_norm.weight"));
  failed |= set_whole(c, "eos_token_id", kr_gguf_find(g, "tokenizer.ggml.eos_token_id"));
  failed |= json_object_set_new(c, "tie_word_embeddings", json_boolean(!kr_gguf_has_tensor(g, "output.weight")));
  if (!failed) return c;
  json_decref(c);
  return NULL;
}

int32_t kr_gguf_config(const unsigned char *bytes, size_t n_bytes, const char *label, json_t **config) {
  kr_gguf g;
  const kr_gguf_arch *arch;
  *config = NULL;
  KR_TRY(kr_gguf_open(bytes, n_bytes, label, &g));
  int32_t status = kr_gguf_find_arch(&g, &arch);
  if (status >= 0) status = check_rope(&g, arch);
  if (status >= 0 && !(*config = make_config(&g, arch)))
    status = kr_fail(KRAIT_ERR_NO_MEMORY, "%s: no memory for its configuration", label);
  kr_gguf_close(&g);
  return status;
}

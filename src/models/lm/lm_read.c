/* lm_read.c: config.json as transformers 4 and 5 write it. Sizes come from the tensors where a tensor has them. */
#include "lm_read.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lm.h"
#include "status.h"

#define READ_CHECK(condition, ...) KR_CHECK(condition, KRAIT_ERR_WEIGHTS, __VA_ARGS__)

/* ---- keys ---- */

int32_t kr_lm_read_whole(const kr_lm_reader *r, const char *key, int64_t fallback, int64_t low, int64_t *value) {
  const json_t *item = json_object_get(r->root, key);
  READ_CHECK((item && !json_is_null(item)) || fallback >= 0, "%s: config.json has no %s", r->label, key);
  return kr_lm_json_whole(r->label, r->root, key, fallback, low, 1 << 24, value);
}

double kr_lm_read_scale(const kr_lm_reader *r, const char *key) {
  const double scale = kr_lm_json_real(r->root, key, 1);
  return scale == 1 ? 0 : scale;
}

int kr_lm_read_flag(const kr_lm_reader *r, const char *key, int fallback) {
  const json_t *item = json_object_get(r->root, key);
  return json_is_boolean(item) ? json_is_true(item) : fallback;
}

int32_t kr_lm_read_only_text(const kr_lm_reader *r, const char *key, const char *only) {
  const char *text = kr_lm_json_text(r->root, key, only);
  READ_CHECK(strcmp(text, only) == 0, "%s: config.json: %s is '%.40s'; only '%s' is supported", r->label, key, text,
             only);
  return KRAIT_OK;
}

int32_t kr_lm_read_only_flag(const kr_lm_reader *r, const char *key, int only) {
  READ_CHECK(kr_lm_read_flag(r, key, only) == only, "%s: config.json: %s is %s, which is not supported", r->label, key,
             only ? "false" : "true");
  return KRAIT_OK;
}

const json_t *kr_lm_text_config(const kr_model_folder *folder) {
  const json_t *root = kr_model_folder_config(folder), *text = json_object_get(root, "text_config");
  return json_is_object(text) ? text : root;
}

/* ---- types ---- */

/* A key of another type than these would otherwise count as absent: the model would speak, but not as it was trained
 * to. */
typedef enum { POSITIVE, FLAG, TEXT, TABLE, TEXTS, NUMBERS } key_type;
typedef struct key_of_type {
  const char *key;
  key_type type;
  size_t n; /* at least, of a list */
} key_of_type;

static const char *why_not(const json_t *item, const key_of_type *k) {
  const json_t *one;
  size_t i;
  const double number = json_number_value(item);
  switch (k->type) {
    case POSITIVE: return number > 1e-30 && number < 1e30 ? NULL : "a positive number";
    case FLAG: return json_is_boolean(item) ? NULL : "true or false";
    case TEXT: return json_is_string(item) ? NULL : "a text";
    case TABLE: return json_is_object(item) ? NULL : "an object";
    case TEXTS:
      json_array_foreach(item, i, one) if (!json_is_string(one)) return "a list of texts";
      return json_is_array(item) ? NULL : "a list of texts";
    default:
      json_array_foreach(item, i, one) if (!(fabs(json_number_value(one)) < 1e30) || !json_is_number(one)) break;
      return json_is_array(item) && i == json_array_size(item) && i >= k->n ? NULL : "a list of numbers";
  }
}

static int32_t check_types(const char *label, const json_t *from, const key_of_type *keys, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const json_t *item = json_object_get(from, keys[i].key);
    const char *why = item && !json_is_null(item) ? why_not(item, &keys[i]) : NULL;
    READ_CHECK(!why, "%s: config.json: %s is not %s", label, keys[i].key, why);
  }
  return KRAIT_OK;
}

static int32_t check_model_types(const kr_lm_reader *r) {
  static const key_of_type keys[] = {{"rms_norm_eps", POSITIVE, 0},
                                     {"layer_norm_epsilon", POSITIVE, 0},
                                     {"norm_eps", POSITIVE, 0},
                                     {"rope_theta", POSITIVE, 0},
                                     {"partial_rotary_factor", POSITIVE, 0},
                                     {"max_position_embeddings", POSITIVE, 0},
                                     {"attention_multiplier", POSITIVE, 0},
                                     {"embedding_multiplier", POSITIVE, 0},
                                     {"residual_multiplier", POSITIVE, 0},
                                     {"logits_scaling", POSITIVE, 0},
                                     {"lm_head_multiplier", POSITIVE, 0},
                                     {"key_multiplier", POSITIVE, 0},
                                     {"attention_in_multiplier", POSITIVE, 0},
                                     {"attention_out_multiplier", POSITIVE, 0},
                                     {"ssm_in_multiplier", POSITIVE, 0},
                                     {"ssm_out_multiplier", POSITIVE, 0},
                                     {"routed_scaling_factor", POSITIVE, 0},
                                     {"tie_word_embeddings", FLAG, 0},
                                     {"tie_embedding", FLAG, 0},
                                     {"norm_topk_prob", FLAG, 0},
                                     {"use_expert_bias", FLAG, 0},
                                     {"use_sliding_window", FLAG, 0},
                                     {"use_attention_gate", FLAG, 0},
                                     {"use_sandwich_norm", FLAG, 0},
                                     {"attn_output_gate", FLAG, 0},
                                     {"linear_allow_neg_eigval", FLAG, 0},
                                     {"attention_bias", FLAG, 0},
                                     {"mlp_bias", FLAG, 0},
                                     {"mamba_proj_bias", FLAG, 0},
                                     {"mamba_rms_norm", FLAG, 0},
                                     {"mamba_norm_before_gate", FLAG, 0},
                                     {"hidden_act", TEXT, 0},
                                     {"mlp_hidden_act", TEXT, 0},
                                     {"mamba_hidden_act", TEXT, 0},
                                     {"position_embedding_type", TEXT, 0},
                                     {"normalization_function", TEXT, 0},
                                     {"hybrid_override_pattern", TEXT, 0},
                                     {"rope_parameters", TABLE, 0},
                                     {"rope_scaling", TABLE, 0},
                                     {"layer_types", TEXTS, 0},
                                     {"layers_block_type", TEXTS, 0},
                                     {"full_attn_idxs", NUMBERS, 0},
                                     {"mlp_multipliers", NUMBERS, 2},
                                     {"ssm_multipliers", NUMBERS, 5}};
  return check_types(r->label, r->root, keys, sizeof keys / sizeof *keys);
}

static int32_t check_rope_types(const kr_lm_reader *r, const json_t *rope) {
  static const key_of_type keys[] = {{"rope_theta", POSITIVE, 0}, {"partial_rotary_factor", POSITIVE, 0},
                                     {"beta_fast", POSITIVE, 0},  {"beta_slow", POSITIVE, 0},
                                     {"rope_type", TEXT, 0},      {"type", TEXT, 0}};
  return check_types(r->label, rope, keys, sizeof keys / sizeof *keys);
}

/* ---- sizes ---- */

static int32_t count_lm_layers(const kr_lm_reader *r, int64_t n_layers, int64_t *n) {
  if (n_layers < 0) KR_TRY(kr_lm_read_whole(r, "num_hidden_layers", KR_LM_NEEDED, 1, n));
  if (n_layers >= 0) *n = n_layers;
  READ_CHECK(*n >= 1 && *n <= KR_LM_MOST_LAYERS, "%s: config.json: %lld layers", r->label, (long long)*n);
  return KRAIT_OK;
}

static int32_t read_ends(kr_lm_reader *r, const kr_weight *embedding, const char *eps) {
  kr_lm_config *c = r->c;
  int64_t said;
  c->d = embedding->shape[1], c->V = c->n_used = embedding->shape[0];
  c->is_rms = 1, c->eps = (float)kr_lm_json_real(r->root, eps, 0);
  c->tied = kr_lm_read_flag(r, "tie_word_embeddings", kr_lm_read_flag(r, "tie_embedding", 0)) ? KR_LM_TIED
                                                                                            : KR_LM_TIED_IF_ABSENT;
  KR_TRY(kr_lm_read_whole(r, "hidden_size", c->d, 1, &said));
  READ_CHECK(json_is_number(json_object_get(r->root, eps)), "%s: config.json has no %s", r->label, eps);
  READ_CHECK(said == c->d, "%s: config.json says a width of %lld, the embedding has %lld", r->label, (long long)said,
             (long long)c->d);
  return kr_lm_json_eos(r->label, r->root, c->eos, &c->n_eos);
}

int32_t kr_lm_read_begin(const kr_model_folder *folder, const kr_lm_family *family, const char *eps, int64_t n_layers,
                         kr_lm_reader *r) {
  enum { MOST_BLOCKS = 4 }; /* of a layer */
  const char *key;
  int64_t n;
  *r = (kr_lm_reader){.folder = folder, .root = kr_lm_text_config(folder), .label = kr_model_folder_label(folder)};
  r->type = kr_lm_json_text(r->root, "model_type", "");
  const kr_weight *embedding = kr_lm_find_weight(family, folder, "embedding", &key);
  KR_TRY(check_model_types(r));
  READ_CHECK(embedding && embedding->n_dims == 2 && embedding->shape[0] >= 1 && embedding->shape[0] <= 1 << 24 &&
                 embedding->shape[1] >= 1 && embedding->shape[1] <= 1 << 24,
             "%s: tensor '%s' is missing or not a matrix", r->label, key);
  KR_TRY(count_lm_layers(r, n_layers, &n));
  KR_TRY(kr_lm_config_open(family, MOST_BLOCKS * n, &r->c));
  r->c->n_layers = n;
  const int32_t status = read_ends(r, embedding, eps);
  if (status < 0) kr_lm_config_close(&r->c);
  return status;
}

/* A field's tensor of a layer in some form; *factor: values for each element of its last dimension, as a fraction. */
static const kr_weight *find_of_layer(const kr_lm_reader *r, const char *field, int64_t layer, int64_t *times,
                                      int64_t *over) {
  static const struct {
    const char *form;
    int64_t times, over;
  } forms[] = {{"", 1, 1}, {".q8_0", 4, 1}, {".q4_k", 256, 36}};
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    const kr_weight *found = kr_lm_find_in_layer(r->c->family, r->folder, field, layer, forms[i].form);
    if (!found) continue;
    *times = forms[i].times, *over = forms[i].over;
    return found;
  }
  return NULL;
}

int kr_lm_read_has(const kr_lm_reader *r, const char *field, int64_t layer) {
  int64_t times, over;
  return find_of_layer(r, field, layer, &times, &over) != NULL;
}

int32_t kr_lm_read_size(const kr_lm_reader *r, const char *field, int64_t layer, int dim, int64_t *size) {
  int64_t times, over;
  const kr_weight *item = find_of_layer(r, field, layer, &times, &over);
  READ_CHECK(item, "%s: layer %lld has no tensor for '%s'", r->label, (long long)layer, field);
  if (dim < 0) dim = item->n_dims - 1;
  READ_CHECK(dim < item->n_dims, "%s: tensor '%s' has %d dimensions", r->label, item->name, item->n_dims);
  *size = item->shape[dim];
  if (dim == item->n_dims - 1) *size = *size * times / over;
  READ_CHECK(*size >= 1 && *size <= 1 << 24, "%s: tensor '%s' has a size of %lld", r->label, item->name,
             (long long)*size);
  return KRAIT_OK;
}

int32_t kr_lm_read_moe(const kr_lm_reader *r, int64_t layer, kr_lm_moe_sizes *s) {
  enum { MOST_EXPERTS = 1024 };
  s->d = r->c->d;
  KR_TRY(kr_lm_read_size(r, "router", layer, 0, &s->E));
  KR_TRY(kr_lm_read_size(r, "expert_down", layer, -1, &s->F));
  KR_TRY(kr_lm_read_whole(r, "num_experts_per_tok", KR_LM_NEEDED, 1, &s->k));
  READ_CHECK(s->E <= MOST_EXPERTS, "%s: layer %lld has %lld experts; at most %d are supported", r->label,
             (long long)layer, (long long)s->E, MOST_EXPERTS);
  READ_CHECK(s->k <= s->E, "%s: config.json: num_experts_per_tok is %lld, but layer %lld has %lld experts", r->label,
             (long long)s->k, (long long)layer, (long long)s->E);
  return KRAIT_OK;
}

int32_t kr_lm_read_mamba2(const kr_lm_reader *r, int64_t layer, const char *states, const char *groups,
                          int64_t n_groups, kr_lm_mamba_sizes *s) {
  s->d = r->c->d;
  KR_TRY(kr_lm_read_size(r, "A", layer, 0, &s->H));
  KR_TRY(kr_lm_read_size(r, "out_proj", layer, 1, &s->Di));
  KR_TRY(kr_lm_read_size(r, "conv", layer, 2, &s->W));
  KR_TRY(kr_lm_read_whole(r, states, KR_LM_NEEDED, 1, &s->N));
  KR_TRY(kr_lm_read_whole(r, groups, n_groups, 1, &s->G));
  READ_CHECK(s->Di % s->H == 0 && s->H % s->G == 0,
             "%s: %lld inner channels, %lld heads and %lld groups do not match", r->label, (long long)s->Di,
             (long long)s->H, (long long)s->G);
  s->P = s->Di / s->H;
  return KRAIT_OK;
}

/* ---- attention ---- */

int32_t kr_lm_read_attention(const kr_lm_reader *r, kr_lm_attention_sizes *s) {
  const int64_t d = r->c->d;
  s->d = d;
  KR_TRY(kr_lm_read_whole(r, "num_attention_heads", KR_LM_NEEDED, 1, &s->H));
  KR_TRY(kr_lm_read_whole(r, "num_key_value_heads", s->H, 1, &s->Hk));
  KR_TRY(kr_lm_read_whole(r, "head_dim", d / s->H, 1, &s->D));
  READ_CHECK(s->H % s->Hk == 0 && s->D >= 2 && s->D % 2 == 0 && s->D <= 256,
             "%s: config.json: %lld heads, %lld key heads and %lld features per head do not match", r->label,
             (long long)s->H, (long long)s->Hk, (long long)s->D);
  return KRAIT_OK;
}

const char *kr_lm_read_layer_kind(const kr_lm_reader *r, const char *key, int64_t layer) {
  return json_string_value(json_array_get(json_object_get(r->root, key), (size_t)layer));
}

int kr_lm_is_attention(const char *kind) {
  return kind && (strcmp(kind, "full_attention") == 0 || strcmp(kind, "attention") == 0);
}

int32_t kr_lm_read_check_kind(const kr_lm_reader *r, int64_t layer, int is_attention) {
  const char *kind = kr_lm_read_layer_kind(r, "layer_types", layer);
  const int is_recurrent = kind && (strcmp(kind, "linear_attention") == 0 || strcmp(kind, "mamba") == 0);
  READ_CHECK(!kind || (is_attention ? kr_lm_is_attention(kind) : is_recurrent),
             "%s: config.json: layer %lld is '%.40s', which its tensors are not, or which is not supported", r->label,
             (long long)layer, kind);
  return KRAIT_OK;
}

/* ---- rope tables ---- */

typedef struct rope_reader {
  const kr_lm_reader *r;
  const json_t *rope; /* or NULL */
  const char *type;
  double base;
  int64_t n; /* pairs */
  double frequencies[KR_LM_MOST_PAIRS], factor;
} rope_reader;

/* A number of the table, which must be there if there is no fallback (0). */
static int32_t rope_number(const rope_reader *o, const char *key, double fallback, double *value) {
  *value = kr_lm_json_real(o->rope, key, fallback);
  READ_CHECK(*value > 0 && *value < 1e12, "%s: config.json: a rotary embedding of type '%s' has no valid %s",
             o->r->label, o->type, key);
  return KRAIT_OK;
}

static int32_t scale_linear(rope_reader *o) {
  double factor;
  KR_TRY(rope_number(o, "factor", 0, &factor));
  for (int64_t i = 0; i < o->n; i++) o->frequencies[i] /= factor;
  return KRAIT_OK;
}

/* Long waves are stretched, short ones stay, those between are mixed. */
static int32_t scale_llama3(rope_reader *o) {
  const double pi = 3.14159265358979323846;
  double factor, low, high, old;
  KR_TRY(rope_number(o, "factor", 0, &factor));
  KR_TRY(rope_number(o, "low_freq_factor", 0, &low));
  KR_TRY(rope_number(o, "high_freq_factor", 0, &high));
  KR_TRY(rope_number(o, "original_max_position_embeddings", 0, &old));
  READ_CHECK(high > low, "%s: config.json: high_freq_factor is not above low_freq_factor", o->r->label);
  for (int64_t i = 0; i < o->n; i++) {
    const double f = o->frequencies[i], waves = old * f / (2 * pi), mix = (waves - low) / (high - low);
    o->frequencies[i] = waves > high ? f : waves < low ? f / factor : (1 - mix) * f / factor + mix * f;
  }
  return KRAIT_OK;
}

static double yarn_scale(double factor, double by) { return factor <= 1 ? 1 : 0.1 * by * log(factor) + 1; }

/* The pair that turns this often within the old length. */
static double yarn_pair(const rope_reader *o, double turns, double old) {
  const double pi = 3.14159265358979323846;
  return 2 * (double)o->n * log(old / (turns * 2 * pi)) / (2 * log(o->base));
}

static int32_t scale_yarn(rope_reader *o) {
  double factor, old, fast, slow;
  const double by = kr_lm_json_real(o->rope, "mscale", 0), all = kr_lm_json_real(o->rope, "mscale_all_dim", 0),
               given = kr_lm_json_real(o->rope, "attention_factor", 0);
  KR_TRY(rope_number(o, "factor", 0, &factor));
  KR_TRY(rope_number(o, "original_max_position_embeddings",
                     kr_lm_json_real(o->r->root, "max_position_embeddings", 0), &old));
  KR_TRY(rope_number(o, "beta_fast", 32, &fast));
  KR_TRY(rope_number(o, "beta_slow", 1, &slow));
  double first = yarn_pair(o, fast, old), last = yarn_pair(o, slow, old);
  if (!json_is_false(json_object_get(o->rope, "truncate"))) first = floor(first), last = ceil(last);
  first = fmax(first, 0), last = fmin(last, 2 * (double)o->n - 1);
  if (first == last) last += 0.001;
  for (int64_t i = 0; i < o->n; i++) {
    const double mix = fmin(fmax(((double)i - first) / (last - first), 0), 1);
    o->frequencies[i] = o->frequencies[i] * (1 - mix) + o->frequencies[i] / factor * mix;
  }
  o->factor = given > 0 ? given : by > 0 && all > 0 ? yarn_scale(factor, by) / yarn_scale(factor, all)
                                                    : yarn_scale(factor, 1);
  return KRAIT_OK;
}

/* A part of the pairs of all features; the others do not turn. */
static int32_t scale_proportional(rope_reader *o, double partial) {
  for (int64_t i = 0; i < o->n; i++)
    if ((double)i >= partial * (double)o->n) o->frequencies[i] = 0;
  return KRAIT_OK;
}

/* A divisor of each frequency, as GGUF files have LLaMA 3's. */
static int32_t scale_by_factors(rope_reader *o) {
  const json_t *factors = json_object_get(o->rope, "factors");
  for (int64_t i = 0; i < o->n; i++) {
    const double by = json_number_value(json_array_get(factors, (size_t)i));
    READ_CHECK(by > 0, "%s: a rotary embedding of %lld pairs has %zu factors, or one that is not positive", o->r->label,
               (long long)o->n, json_array_size(factors));
    o->frequencies[i] /= by;
  }
  return KRAIT_OK;
}

static int32_t scale_rope(rope_reader *o, double partial) {
  if (strcmp(o->type, "default") == 0) return KRAIT_OK;
  if (strcmp(o->type, "linear") == 0) return scale_linear(o);
  if (strcmp(o->type, "llama3") == 0) return scale_llama3(o);
  if (strcmp(o->type, "yarn") == 0) return scale_yarn(o);
  if (strcmp(o->type, "proportional") == 0) return scale_proportional(o, partial);
  if (strcmp(o->type, "factors") == 0) return scale_by_factors(o);
  return kr_fail(KRAIT_ERR_WEIGHTS,
                 "%s: config.json: rotary embedding of type '%.40s' is not supported, only default, linear, llama3, "
                 "yarn and proportional",
                 o->r->label, o->type);
}

/* transformers 5 has rope_parameters, by kind of layer where kinds differ; 4 rope_theta and rope_scaling. */
static const json_t *find_rope(const kr_lm_reader *r, const char *layers) {
  const json_t *rope = json_object_get(r->root, "rope_parameters"), *scaling = json_object_get(r->root, "rope_scaling"),
               *own = layers ? json_object_get(rope, layers) : NULL;
  if (own) return own;
  return json_is_object(rope) ? rope : json_is_object(scaling) ? scaling : NULL;
}

int32_t kr_lm_read_rope(const kr_lm_reader *r, const char *layers, double partial, kr_lm_attention_sizes *s) {
  rope_reader o = {.r = r, .rope = find_rope(r, layers), .factor = 1};
  READ_CHECK(!o.rope || json_is_object(o.rope), "%s: config.json: rope_parameters: %s is not an object", r->label,
             layers ? layers : "it");
  KR_TRY(check_rope_types(r, o.rope));
  o.type = kr_lm_json_text(o.rope, "rope_type", kr_lm_json_text(o.rope, "type", "default"));
  o.base = kr_lm_json_real(o.rope, "rope_theta", kr_lm_json_real(r->root, "rope_theta", 10000));
  const double part = kr_lm_json_real(o.rope, "partial_rotary_factor",
                                      kr_lm_json_real(r->root, "partial_rotary_factor", partial));
  const int is_whole = strcmp(o.type, "proportional") == 0;
  READ_CHECK(o.base > 1 && part > 0 && part <= 1, "%s: config.json: rope_theta is %g, partial_rotary_factor %g",
             r->label, o.base, part);
  o.n = (is_whole ? s->D : (int64_t)((double)s->D * part)) / 2;
  READ_CHECK(o.n >= 1 && o.n <= KR_LM_MOST_PAIRS, "%s: config.json: %lld rotated pairs of features", r->label,
             (long long)o.n);
  for (int64_t i = 0; i < o.n; i++) o.frequencies[i] = pow(o.base, -(double)i / (double)o.n);
  KR_TRY(scale_rope(&o, part));
  s->R = o.n, s->is_interleaved = kr_lm_read_flag(r, "krait_rope_interleaved", 0); /* of GGUF files */
  return kr_lm_config_add_rope(r->c, o.n, o.frequencies, o.factor, &s->rope);
}

/* ---- time steps ---- */

/* [0, infinity]: infinity is not a JSON number, and is written in several ways. */
int32_t kr_lm_read_time_step(const kr_lm_reader *r, const char *key) {
  const json_t *limit = json_object_get(r->root, key);
  const int is_unlimited = !limit || json_is_null(limit) ||
                           (json_array_size(limit) == 2 && json_number_value(json_array_get(limit, 0)) == 0 &&
                            !json_is_number(json_array_get(limit, 1)));
  READ_CHECK(is_unlimited, "%s: config.json: %s limits the time step, which is not supported", r->label, key);
  return KRAIT_OK;
}

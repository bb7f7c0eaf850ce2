/* mamba_lm_config.c: config.json in both layouts, upstream's and Hugging Face's. Sizes come from the tensors; the file
 * identifies the model, and must not contradict them. */
#include <stdio.h>
#include <string.h>

#include "env.h"
#include "log.h"
#include "mamba_lm.h"
#include "status.h"

#define CONFIG_CHECK(condition, ...) KR_CHECK(condition, KRAIT_ERR_WEIGHTS, __VA_ARGS__)

typedef struct reader {
  const kr_model_folder *folder;
  const json_t *root, *ssm; /* ssm: upstream's ssm_cfg, or the root */
  const char *label;
} reader;

static int is_false(const json_t *from, const char *key) { return json_is_false(json_object_get(from, key)); }
static int is_true(const json_t *from, const char *key) { return json_is_true(json_object_get(from, key)); }

/* The first Mamba layer's tensor; only its shape is used here. */
static int32_t need_tensor(const reader *r, const kr_mamba_lm_config *c, const char *name, int32_t n_dims,
                           const kr_weight **item) {
  char key[128];
  int64_t layer = 0;
  while (c->attention.layers[layer]) layer++;
  snprintf(key, sizeof key, "backbone.layers.%lld.%s", (long long)layer, name);
  *item = kr_model_folder_find(r->folder, key);
  CONFIG_CHECK(*item, "%s: tensor '%s' is missing; this is not a Mamba language model", r->label, key);
  CONFIG_CHECK((*item)->n_dims == n_dims, "%s: tensor '%s' has %d dimensions, not %d", r->label, key, (*item)->n_dims,
               n_dims);
  for (int i = 0; i < n_dims; i++)
    CONFIG_CHECK((*item)->shape[i] >= 1 && (*item)->shape[i] <= 1 << 24, "%s: tensor '%s' has a size of %lld", r->label,
                 key, (long long)(*item)->shape[i]);
  return KRAIT_OK;
}

static int32_t read_mamba1(const reader *r, kr_mamba_lm_config *c) {
  const kr_weight *A, *dt;
  KR_TRY(need_tensor(r, c, "mixer.A_log", 2, &A));
  KR_TRY(need_tensor(r, c, "mixer.dt_proj.weight", 2, &dt));
  c->Di = A->shape[0], c->N = A->shape[1], c->R = dt->shape[1];
  c->H = 1, c->P = c->Di, c->G = 1;
  if (strcmp(kr_lm_json_text(r->root, "model_type", ""), "falcon_mamba") == 0)
    c->dt_eps = (float)kr_lm_json_real(r->root, "mixer_rms_eps", 1e-6);
  return KRAIT_OK;
}

/* [0, infinity]: infinity is not a JSON number, and is written in several ways. */
static int is_unlimited(const json_t *limit) {
  return !limit || json_is_null(limit) ||
         (json_array_size(limit) == 2 && json_number_value(json_array_get(limit, 0)) == 0 &&
          !json_is_number(json_array_get(limit, 1)));
}

static int32_t read_mamba2(const reader *r, int is_upstream, kr_mamba_lm_config *c) {
  const kr_weight *dt, *norm;
  KR_TRY(need_tensor(r, c, "mixer.dt_bias", 1, &dt));
  KR_TRY(need_tensor(r, c, "mixer.norm.weight", 1, &norm));
  c->H = dt->shape[0], c->Di = norm->shape[0];
  CONFIG_CHECK(c->Di % c->H == 0, "%s: %lld inner channels are not a multiple of %lld heads", r->label,
               (long long)c->Di, (long long)c->H);
  c->P = c->Di / c->H;
  KR_TRY(kr_lm_json_whole(r->label, r->ssm, is_upstream ? "d_state" : "state_size", 128, 1, 512, &c->N));
  KR_TRY(
      kr_lm_json_whole(r->label, r->ssm, is_upstream ? "ngroups" : "n_groups", is_upstream ? 1 : 8, 1, 1 << 16, &c->G));
  CONFIG_CHECK(c->H % c->G == 0, "%s: %lld heads are not a multiple of %lld groups", r->label, (long long)c->H,
               (long long)c->G);
  CONFIG_CHECK(is_unlimited(json_object_get(r->ssm, is_upstream ? "dt_limit" : "time_step_limit")),
               "%s: config.json limits the time step, which is not supported", r->label);
  CONFIG_CHECK(!is_true(r->ssm, "norm_before_gate"), "%s: config.json: norm_before_gate is not supported", r->label);
  CONFIG_CHECK(!is_false(r->ssm, "rmsnorm"), "%s: config.json: a mixer without norm is not supported", r->label);
  return KRAIT_OK;
}

/* ---- Mamba-3 ---- */

/* Which form of A: upstream changed it in June 2026, and neither its configuration nor its weights tell. The file's key
 * A_activation does, and for files without it the environment; else it is the newer one, with a line about it. */
static int32_t read_A_activation(const reader *r, int64_t *is_softplus) {
  const char *said = kr_lm_json_text(r->ssm, "A_activation", NULL), *chosen = kr_env_mamba3_A(),
             *form = said ? said : chosen ? chosen : "heavy_tail";
  *is_softplus = strcmp(form, "softplus") == 0;
  CONFIG_CHECK(*is_softplus || strcmp(form, "heavy_tail") == 0, "%s: %s is '%.40s', must be heavy_tail or softplus",
               r->label, said ? "config.json: A_activation" : "KRAIT_MAMBA3_A", form);
  if (!said && !chosen)
    kr_log("%s: config.json does not say which form of A the model was trained with: taken as the heavy tail of "
           "mamba-ssm since June 2026; for 2.3.2.post1 and before set KRAIT_MAMBA3_A=softplus, or A_activation in "
           "ssm_cfg",
           r->label);
  return KRAIT_OK;
}

/* Pairs that rotate: all N / 2, or half of them, of an even number of columns. */
static int32_t read_pairs(const reader *r, kr_lm_mamba3_sizes *s) {
  const double fraction = kr_lm_json_real(r->ssm, "rope_fraction", 0.5);
  CONFIG_CHECK(fraction == 0.5 || fraction == 1, "%s: config.json: rope_fraction is %g, must be 0.5 or 1", r->label,
               fraction);
  s->M = (int64_t)((double)s->N * fraction) / 2;
  CONFIG_CHECK(s->M > 0, "%s: %lld states leave no pair to rotate", r->label, (long long)s->N);
  return KRAIT_OK;
}

static int32_t read_mamba3(const reader *r, kr_mamba_lm_config *c) {
  const kr_weight *bias;
  kr_lm_mamba3_sizes *s = &c->mamba3;
  KR_TRY(need_tensor(r, c, "mixer.B_bias", 3, &bias));
  *s = (kr_lm_mamba3_sizes){.d = c->d, .H = bias->shape[0], .R = bias->shape[1], .N = bias->shape[2]};
  s->is_mimo = is_true(r->ssm, "is_mimo"), s->is_normed = is_true(r->ssm, "is_outproj_norm");
  s->A_floor = kr_lm_json_real(r->ssm, "A_floor", 1e-4);
  CONFIG_CHECK(s->is_mimo || s->R == 1, "%s: %lld ranks, but config.json does not say is_mimo", r->label,
               (long long)s->R);
  CONFIG_CHECK(s->N % 2 == 0 && s->N <= 512 && s->R <= 64, "%s: %lld states of %lld ranks are not supported", r->label,
               (long long)s->N, (long long)s->R);
  CONFIG_CHECK(s->A_floor >= 0, "%s: config.json: A_floor is %g", r->label, s->A_floor);
  KR_TRY(kr_lm_json_whole(r->label, r->ssm, "headdim", 64, 1, 256, &s->P));
  KR_TRY(kr_lm_json_whole(r->label, r->ssm, "ngroups", 1, 1, 1 << 16, &s->G));
  CONFIG_CHECK(s->H % s->G == 0, "%s: %lld heads are not a multiple of %lld groups", r->label, (long long)s->H,
               (long long)s->G);
  KR_TRY(read_pairs(r, s));
  return read_A_activation(r, &s->is_A_softplus);
}

/* ---- the whole ---- */

static int32_t read_kind(const reader *r, int is_upstream, kr_mamba_lm_config *c) {
  const char *kind =
      is_upstream ? kr_lm_json_text(r->ssm, "layer", "Mamba1") : kr_lm_json_text(r->root, "model_type", "");
  const int is_second = strcmp(kind, "Mamba2") == 0 || strcmp(kind, "mamba2") == 0;
  const int is_first = strcmp(kind, "Mamba1") == 0 || strcmp(kind, "mamba") == 0 || strcmp(kind, "falcon_mamba") == 0;
  const int is_third = strcmp(kind, "Mamba3") == 0;
  CONFIG_CHECK(is_first || is_second || is_third, "%s: config.json: layers of '%.40s' are not supported", r->label,
               kind);
  c->mixer = is_third ? KR_MIXER_MAMBA3 : is_second ? KR_MIXER_MAMBA2 : KR_MIXER_MAMBA1;
  return KRAIT_OK;
}

/* attn_cfg, the arguments of upstream's attention module. */
static int32_t read_attention_sizes(const reader *r, const json_t *cfg, kr_mamba_lm_attention *a) {
  int64_t pairs;
  KR_TRY(kr_lm_json_whole(r->label, cfg, "num_heads", 0, 1, 1 << 16, &a->H));
  KR_TRY(kr_lm_json_whole(r->label, cfg, "num_heads_kv", a->H, 1, 1 << 16, &a->Hk));
  KR_TRY(kr_lm_json_whole(r->label, cfg, "head_dim", 0, 1, 256, &a->D));
  KR_TRY(kr_lm_json_whole(r->label, cfg, "d_conv", 0, 0, 64, &a->W));
  KR_TRY(kr_lm_json_whole(r->label, cfg, "rotary_emb_dim", 0, 0, 256, &pairs));
  a->R = pairs / 2;
  CONFIG_CHECK(a->H > 0 && a->D > 0 && a->H % a->Hk == 0 && pairs % 2 == 0 && pairs <= a->D && a->W != 1,
               "%s: config.json: attn_cfg has sizes that do not match", r->label);
  a->is_interleaved = is_true(cfg, "rotary_emb_interleaved");
  a->scale = (float)kr_lm_json_real(cfg, "softmax_scale", 0);
  a->base = (float)kr_lm_json_real(cfg, "rotary_emb_base", 10000);
  CONFIG_CHECK(is_true(cfg, "causal") && !json_integer_value(json_object_get(cfg, "mlp_dim")),
               "%s: config.json: attention that is not causal, or has an MLP, is not supported", r->label);
  return KRAIT_OK;
}

static int32_t read_mamba_lm_attention(const reader *r, kr_mamba_lm_config *c) {
  const json_t *list = json_object_get(r->root, "attn_layer_idx"), *item;
  size_t i;
  if (json_array_size(list) == 0) return KRAIT_OK;
  json_array_foreach(list, i, item) {
    const json_int_t layer = json_integer_value(item);
    CONFIG_CHECK(json_is_integer(item) && layer >= 0 && layer < c->n_layers,
                 "%s: config.json: attn_layer_idx names a layer that does not exist", r->label);
    c->attention.n += !c->attention.layers[layer];
    c->attention.layers[layer] = 1;
  }
  CONFIG_CHECK(c->attention.n < c->n_layers,
               "%s: config.json: every layer is attention; this is not a Mamba language model", r->label);
  return read_attention_sizes(r, json_object_get(r->root, "attn_cfg"), &c->attention);
}

static int32_t read_mamba_lm_sizes(const reader *r, kr_mamba_lm_config *c) {
  const kr_weight *conv, *embedding = kr_model_folder_find(r->folder, "backbone.embeddings.weight");
  int64_t said;
  if (!embedding) embedding = kr_model_folder_find(r->folder, "backbone.embedding.weight");
  CONFIG_CHECK(embedding && embedding->n_dims == 2 && embedding->shape[0] >= 1 && embedding->shape[0] <= 1 << 24 &&
                   embedding->shape[1] >= 1,
               "%s: tensor 'backbone.embedding.weight' is missing or not a matrix; this is not a Mamba language model",
               r->label);
  c->V = embedding->shape[0], c->d = embedding->shape[1];
  if (c->mixer != KR_MIXER_MAMBA3) {
    KR_TRY(need_tensor(r, c, "mixer.conv1d.weight", 3, &conv));
    c->W = conv->shape[2];
  }
  KR_TRY(kr_lm_json_whole(r->label, r->root, "d_intermediate", 0, 0, 1 << 24, &c->F));
  if (c->F > 0) {
    const kr_weight *fc1;
    KR_TRY(need_tensor(r, c, "mlp.fc1.weight", 2, &fc1));
    c->F = fc1->shape[0] / 2;
  }
  KR_TRY(kr_lm_json_whole(r->label, r->root, "d_model", c->d, 1, 1 << 24, &said));
  KR_TRY(kr_lm_json_whole(r->label, r->root, "hidden_size", said, 1, 1 << 24, &said));
  CONFIG_CHECK(said == c->d, "%s: config.json says a width of %lld, the embedding has %lld", r->label, (long long)said,
               (long long)c->d);
  KR_TRY(kr_lm_json_whole(r->label, r->root, "vocab_size", c->V, 1, 1 << 24, &c->n_used));
  CONFIG_CHECK(c->n_used <= c->V, "%s: config.json says %lld tokens, the embedding has %lld", r->label,
               (long long)c->n_used, (long long)c->V);
  return KRAIT_OK;
}

int32_t kr_mamba_lm_config_read(const kr_model_folder *folder, kr_mamba_lm_config *c) {
  const json_t *root = kr_model_folder_config(folder), *ssm = json_object_get(root, "ssm_cfg");
  const int is_upstream = !json_object_get(root, "model_type");
  const reader r = {folder, root, is_upstream ? ssm : root, kr_model_folder_label(folder)};
  *c = (kr_mamba_lm_config){.is_rms = !is_upstream || !is_false(root, "rms_norm")}; /* transformers does not read it */
  KR_TRY(read_kind(&r, is_upstream, c));
  CONFIG_CHECK(json_object_get(root, is_upstream ? "n_layer" : "num_hidden_layers"),
               "%s: config.json has no %s; this is not a Mamba language model", r.label,
               is_upstream ? "n_layer" : "num_hidden_layers");
  KR_TRY(kr_lm_json_whole(r.label, root, is_upstream ? "n_layer" : "num_hidden_layers", 0, 1, KR_LM_MOST_LAYERS - 1,
                          &c->n_layers));
  CONFIG_CHECK(strcmp(kr_lm_json_text(root, "hidden_act", "silu"), "silu") == 0,
               "%s: config.json: hidden_act is not silu", r.label);
  c->eps = (float)kr_lm_json_real(root, "layer_norm_epsilon", 1e-5);
  KR_TRY(read_mamba_lm_attention(&r, c));
  KR_TRY(read_mamba_lm_sizes(&r, c));
  KR_TRY(kr_lm_check_last(folder, "backbone.layers.*.norm.weight", c->n_layers));
  KR_TRY(kr_lm_json_eos(r.label, root, c->eos, &c->n_eos));
  if (c->mixer == KR_MIXER_MAMBA3) return read_mamba3(&r, c);
  return c->mixer == KR_MIXER_MAMBA2 ? read_mamba2(&r, is_upstream, c) : read_mamba1(&r, c);
}

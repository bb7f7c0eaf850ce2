/* gated_delta.c: the family of models whose layers are the gated delta rule or attention, and then an MLP or a mixture:
 * Qwen3-Next, Qwen3.5, OLMo hybrid. */
#include <string.h>

#include "lm/lm.h"
#include "lm/lm_read.h"
#include "lm_op_args.h"
#include "model_kind.h"
#include "status.h"

/* ---- weights ---- */

#define LAYER(key) "model.layers.*." key
static const kr_lm_key keys[] = {{"embedding", "model.embed_tokens.weight", 0},
                                 {"head", "lm_head.weight", KR_LM_PRODUCT | KR_LM_DELICATE},
                                 {"norm_f", "model.norm.weight", 0},
                                 {"norm", LAYER("input_layernorm.weight"), 0},
                                 {"norm", LAYER("attention_layer_norm.weight"), 0},
                                 {"norm2", LAYER("post_attention_layernorm.weight"), 0},
                                 {"delta_norm2", LAYER("feedforward_layer_norm.weight"), 0},
                                 {"post", LAYER("post_attention_layernorm.weight"), 0},
                                 {"post", LAYER("feedforward_layer_norm.weight"), 0}, /* so transformers saves it */
                                 {"post2", LAYER("post_feedforward_layernorm.weight"), 0},
                                 {"delta_qkvz", LAYER("linear_attn.in_proj_qkvz.weight"), KR_LM_PRODUCT},
                                 {"delta_ba", LAYER("linear_attn.in_proj_ba.weight"), 0},
                                 {"delta_qkv", LAYER("linear_attn.in_proj_qkv.weight"), KR_LM_PRODUCT},
                                 {"delta_q", LAYER("linear_attn.q_proj.weight"), KR_LM_PRODUCT},
                                 {"delta_k", LAYER("linear_attn.k_proj.weight"), KR_LM_PRODUCT},
                                 {"delta_v", LAYER("linear_attn.v_proj.weight"), KR_LM_PRODUCT},
                                 {"delta_z", LAYER("linear_attn.in_proj_z.weight"), KR_LM_PRODUCT},
                                 {"delta_z", LAYER("linear_attn.g_proj.weight"), KR_LM_PRODUCT},
                                 {"delta_b", LAYER("linear_attn.in_proj_b.weight"), 0},
                                 {"delta_b", LAYER("linear_attn.b_proj.weight"), 0},
                                 {"delta_a", LAYER("linear_attn.in_proj_a.weight"), 0},
                                 {"delta_a", LAYER("linear_attn.a_proj.weight"), 0},
                                 {"conv", LAYER("linear_attn.conv1d.weight"), 0},
                                 {"conv_q", LAYER("linear_attn.q_conv1d.weight"), 0},
                                 {"conv_k", LAYER("linear_attn.k_conv1d.weight"), 0},
                                 {"conv_v", LAYER("linear_attn.v_conv1d.weight"), 0},
                                 {"dt_bias", LAYER("linear_attn.dt_bias"), KR_LM_FLOAT},
                                 {"A", LAYER("linear_attn.A_log"), KR_LM_FLOAT},
                                 {"delta_norm", LAYER("linear_attn.norm.weight"), 0},
                                 {"delta_norm", LAYER("linear_attn.o_norm.weight"), 0},
                                 {"out_proj", LAYER("linear_attn.out_proj.weight"), KR_LM_PRODUCT},
                                 {"out_proj", LAYER("linear_attn.o_proj.weight"), KR_LM_PRODUCT},
                                 {"q", LAYER("self_attn.q_proj.weight"), KR_LM_PRODUCT},
                                 {"k", LAYER("self_attn.k_proj.weight"), KR_LM_PRODUCT},
                                 {"v", LAYER("self_attn.v_proj.weight"), KR_LM_PRODUCT},
                                 {"q_norm", LAYER("self_attn.q_norm.weight"), 0},
                                 {"k_norm", LAYER("self_attn.k_norm.weight"), 0},
                                 {"o", LAYER("self_attn.o_proj.weight"), KR_LM_PRODUCT},
                                 {"gate", LAYER("mlp.gate_proj.weight"), KR_LM_PRODUCT},
                                 {"up", LAYER("mlp.up_proj.weight"), KR_LM_PRODUCT},
                                 {"down", LAYER("mlp.down_proj.weight"), KR_LM_PRODUCT},
                                 {"router", LAYER("mlp.gate.weight"), 0},
                                 {"expert_gate_up", LAYER("mlp.experts.gate_up_proj"), 0},
                                 {"expert_down", LAYER("mlp.experts.down_proj"), 0},
                                 {"expert_gate", LAYER("mlp.experts.#.gate_proj.weight"), KR_LM_PRODUCT},
                                 {"expert_up", LAYER("mlp.experts.#.up_proj.weight"), KR_LM_PRODUCT},
                                 {"expert_down", LAYER("mlp.experts.#.down_proj.weight"), KR_LM_PRODUCT},
                                 {"shared_gate", LAYER("mlp.shared_expert.gate_proj.weight"), KR_LM_PRODUCT},
                                 {"shared_up", LAYER("mlp.shared_expert.up_proj.weight"), KR_LM_PRODUCT},
                                 {"shared_down", LAYER("mlp.shared_expert.down_proj.weight"), KR_LM_PRODUCT},
                                 {"shared_scale", LAYER("mlp.shared_expert_gate.weight"), 0},
                                 {0}};
/* Qwen3.5's text part stands in a model that also sees. */
static const char *const prefixes[] = {"model.", "model.language_model.", NULL};
/* What sees, and what predicts several tokens. */
static const char *const unused[] = {"model.visual.", "mtp.", NULL};

static const kr_lm_family kr_gated_delta;

/* ---- config.json ---- */

typedef struct delta_reader {
  kr_lm_reader r;
  int is_olmo; /* norms of results around attention, of all features of queries and keys; no gate */
  kr_lm_attention_sizes attention;
  kr_lm_delta_sizes delta;
} delta_reader;

static int has_delta(const delta_reader *m, int64_t layer) { return kr_lm_read_has(&m->r, "A", layer); }

static int32_t read_delta_sizes(delta_reader *m) {
  kr_lm_delta_sizes *s = &m->delta;
  int64_t layer = 0;
  while (layer < m->r.c->n_layers && !has_delta(m, layer)) layer++;
  if (layer == m->r.c->n_layers) return KRAIT_OK;
  s->d = m->r.c->d;
  s->eps = m->is_olmo ? 1e-5 : (double)m->r.c->eps;
  s->beta_scale = m->is_olmo && kr_lm_read_flag(&m->r, "linear_allow_neg_eigval", 1) ? 2 : 1;
  KR_TRY(kr_lm_read_size(&m->r, "A", layer, 0, &s->H));
  KR_TRY(kr_lm_read_size(&m->r, "delta_norm", layer, 0, &s->Dv));
  KR_TRY(kr_lm_read_size(&m->r, m->is_olmo ? "conv_q" : "conv", layer, 2, &s->W));
  KR_TRY(kr_lm_read_whole(&m->r, "linear_num_key_heads", KR_LM_NEEDED, 1, &s->Hk));
  KR_TRY(kr_lm_read_whole(&m->r, "linear_key_head_dim", KR_LM_NEEDED, 1, &s->Dk));
  KR_CHECK(s->H % s->Hk == 0 && s->Dk <= 256 && s->Dv <= 256, KRAIT_ERR_WEIGHTS,
           "%s: config.json: %lld heads of %lld values and %lld heads of %lld keys do not match", m->r.label,
           (long long)s->H, (long long)s->Dv, (long long)s->Hk, (long long)s->Dk);
  return KRAIT_OK;
}

/* OLMo has positions only if the file has a table for them. */
static int32_t read_delta_attention(delta_reader *m) {
  const json_t *rope = json_object_get(m->r.root, "rope_parameters");
  m->attention.qk_norm = m->is_olmo ? KR_LM_NORM_OF_ALL : KR_LM_NORM_OF_HEADS;
  if (!m->is_olmo && kr_lm_read_flag(&m->r, "attn_output_gate", 1)) m->attention.gate = KR_LM_GATE_IN_Q;
  KR_TRY(kr_lm_read_attention(&m->r, &m->attention));
  if (m->is_olmo && !json_is_object(rope)) return KRAIT_OK;
  return kr_lm_read_rope(&m->r, NULL, m->is_olmo ? 1 : 0.25, &m->attention);
}

/* ---- layers ---- */

static int32_t add_delta_experts(const kr_lm_reader *r, int64_t i) {
  kr_lm_mlp_sizes shared = {.d = r->c->d, .is_shared = 1};
  kr_lm_moe_sizes moe = {.scores = KR_ROUTE_ALL, .is_normed = kr_lm_read_flag(r, "norm_topk_prob", 1)};
  KR_TRY(kr_lm_read_moe(r, i, &moe));
  KR_TRY(kr_lm_config_add(r->c, &kr_lm_moe, i, "norm2", &moe));
  if (!kr_lm_read_has(r, "shared_down", i)) return KRAIT_OK;
  KR_TRY(kr_lm_read_size(r, "shared_down", i, 1, &shared.F));
  KR_TRY(kr_lm_config_add(r->c, &kr_lm_mlp, i, "norm2", &shared));
  kr_lm_config_last(r->c)->reads = KR_LM_READS_SAME;
  return KRAIT_OK;
}

/* OLMo's attention layers read the stream itself, and have norms of their results. */
static int32_t add_delta_layer(const delta_reader *m, int64_t i) {
  kr_lm_config *c = m->r.c;
  kr_lm_mlp_sizes mlp = {.d = c->d};
  const int is_delta = has_delta(m, i), is_post = m->is_olmo && !is_delta;
  KR_TRY(kr_lm_read_check_kind(&m->r, i, !is_delta));
  KR_TRY(kr_lm_config_add(c, is_delta ? &kr_lm_delta : &kr_lm_attention, i, is_post ? NULL : "norm",
                          is_delta ? (const void *)&m->delta : (const void *)&m->attention));
  if (is_post) kr_lm_config_last(c)->post = "post";
  if (kr_lm_read_has(&m->r, "router", i)) return add_delta_experts(&m->r, i);
  KR_TRY(kr_lm_read_size(&m->r, "down", i, 1, &mlp.F));
  KR_TRY(kr_lm_config_add(c, &kr_lm_mlp, i, is_post ? NULL : m->is_olmo ? "delta_norm2" : "norm2", &mlp));
  if (is_post) kr_lm_config_last(c)->post = "post2";
  return KRAIT_OK;
}

static int32_t read_delta_layers(delta_reader *m) {
  m->is_olmo = strcmp(m->r.type, "olmo_hybrid") == 0;
  m->r.c->norm_offset = m->is_olmo || kr_lm_read_flag(&m->r, "krait_whole_norms", 0) ? 0 : 1; /* of GGUF files */
  KR_TRY(kr_lm_read_only_text(&m->r, "hidden_act", "silu"));
  KR_TRY(kr_lm_read_only_flag(&m->r, "attention_bias", 0));
  KR_TRY(kr_lm_check_last(m->r.folder, LAYER("mlp.down_proj.weight"), m->r.c->n_layers));
  KR_TRY(read_delta_attention(m));
  KR_TRY(read_delta_sizes(m));
  for (int64_t i = 0; i < m->r.c->n_layers; i++) KR_TRY(add_delta_layer(m, i));
  return KRAIT_OK;
}

static int32_t read_gated_delta(const kr_model_folder *folder, kr_lm_config **config) {
  delta_reader m = {.is_olmo = 0};
  *config = NULL;
  KR_TRY(kr_lm_read_begin(folder, &kr_gated_delta, "rms_norm_eps", -1, &m.r));
  const int32_t status = read_delta_layers(&m);
  if (status < 0) kr_lm_config_close(&m.r.c);
  *config = m.r.c;
  return status;
}

static int is_gated_delta(const kr_model_source *s) {
  static const char *const types[] = {"qwen3_next",       "qwen3_5_text", "qwen3_5",
                                      "qwen3_5_moe_text", "qwen3_5_moe",  "olmo_hybrid"};
  if (!s->folder) return 0;
  const char *type = kr_lm_json_text(kr_model_folder_config(s->folder), "model_type", "");
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (strcmp(types[i], type) == 0) return 1;
  return 0;
}

static const kr_lm_family kr_gated_delta = {.name = "gated_delta",
                                            .models = "Qwen3-Next, Qwen3.5, OLMo hybrid",
                                            .keys = keys,
                                            .prefixes = prefixes,
                                            .unused = unused,
                                            .read = read_gated_delta};
const kr_model_kind kr_model_gated_delta = {
    .name = "gated_delta", .detect = is_gated_delta, .graphs = kr_lm_graphs, .lm = &kr_gated_delta};

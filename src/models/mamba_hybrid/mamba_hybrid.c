/* mamba_hybrid.c: the family of models whose layers are a Mamba mixer or attention, or both beside each other, and then
 * an MLP or a mixture of them: Granite 4, Bamba, Falcon-H1, Jamba. */
#include <math.h>
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
                                 {"norm_f", "model.final_layernorm.weight", 0},
                                 {"norm", LAYER("input_layernorm.weight"), 0},
                                 {"norm2", LAYER("post_attention_layernorm.weight"), 0},
                                 {"norm2", LAYER("pre_ff_layernorm.weight"), 0},
                                 {"in_proj", LAYER("mamba.in_proj.weight"), KR_LM_PRODUCT},
                                 {"in_proj_bias", LAYER("mamba.in_proj.bias"), 0},
                                 {"conv", LAYER("mamba.conv1d.weight"), 0},
                                 {"conv_bias", LAYER("mamba.conv1d.bias"), 0},
                                 {"dt_bias", LAYER("mamba.dt_bias"), KR_LM_FLOAT},
                                 {"A", LAYER("mamba.A_log"), KR_LM_FLOAT},
                                 {"D", LAYER("mamba.D"), KR_LM_FLOAT},
                                 {"gate_norm", LAYER("mamba.norm.weight"), 0},
                                 {"out_proj", LAYER("mamba.out_proj.weight"), KR_LM_PRODUCT},
                                 {"out_proj_bias", LAYER("mamba.out_proj.bias"), 0},
                                 /* of Jamba, whose mixer is Mamba's */
                                 {"x_proj", LAYER("mamba.x_proj.weight"), KR_LM_PRODUCT | KR_LM_DELICATE},
                                 {"dt_proj", LAYER("mamba.dt_proj.weight"), 0},
                                 {"dt_proj_bias", LAYER("mamba.dt_proj.bias"), KR_LM_FLOAT},
                                 {"dt_norm", LAYER("mamba.dt_layernorm.weight"), 0},
                                 {"B_norm", LAYER("mamba.b_layernorm.weight"), 0},
                                 {"C_norm", LAYER("mamba.c_layernorm.weight"), 0},
                                 {"q", LAYER("self_attn.q_proj.weight"), KR_LM_PRODUCT},
                                 {"k", LAYER("self_attn.k_proj.weight"), KR_LM_PRODUCT},
                                 {"v", LAYER("self_attn.v_proj.weight"), KR_LM_PRODUCT},
                                 {"o", LAYER("self_attn.o_proj.weight"), KR_LM_PRODUCT},
                                 {"q_bias", LAYER("self_attn.q_proj.bias"), 0},
                                 {"k_bias", LAYER("self_attn.k_proj.bias"), 0},
                                 {"v_bias", LAYER("self_attn.v_proj.bias"), 0},
                                 {"o_bias", LAYER("self_attn.o_proj.bias"), 0},
                                 {"gate_up", LAYER("shared_mlp.input_linear.weight"), KR_LM_PRODUCT},
                                 {"down", LAYER("shared_mlp.output_linear.weight"), KR_LM_PRODUCT},
                                 {"gate", LAYER("feed_forward.gate_proj.weight"), KR_LM_PRODUCT},
                                 {"up", LAYER("feed_forward.up_proj.weight"), KR_LM_PRODUCT},
                                 {"down", LAYER("feed_forward.down_proj.weight"), KR_LM_PRODUCT},
                                 {"gate_bias", LAYER("feed_forward.gate_proj.bias"), 0},
                                 {"up_bias", LAYER("feed_forward.up_proj.bias"), 0},
                                 {"down_bias", LAYER("feed_forward.down_proj.bias"), 0},
                                 {"router", LAYER("block_sparse_moe.router.layer.weight"), 0},
                                 {"expert_gate_up", LAYER("block_sparse_moe.input_linear.weight"), 0},
                                 {"expert_down", LAYER("block_sparse_moe.output_linear.weight"), 0},
                                 {"router", LAYER("feed_forward.router.weight"), 0},
                                 {"expert_gate", LAYER("feed_forward.experts.#.gate_proj.weight"), KR_LM_PRODUCT},
                                 {"expert_up", LAYER("feed_forward.experts.#.up_proj.weight"), KR_LM_PRODUCT},
                                 {"expert_down", LAYER("feed_forward.experts.#.down_proj.weight"), KR_LM_PRODUCT},
                                 {0}};

/* ---- config.json ---- */

/* What differs by model_type. */
typedef struct hybrid_kind {
  const char *type;
  int has_multipliers;   /* Granite's: of the embedding, of what blocks add, of scores, of logits */
  int is_parallel;       /* every layer has both mixers, with Falcon-H1's multipliers */
  int is_first;          /* the mixer is Mamba's, with norms of dt, B and C */
  double partial_rotary; /* unless the file says; 0: no positions */
} hybrid_kind;
static const hybrid_kind kinds[] = {
    {"granitemoehybrid", 1, 0, 0, 1}, {"bamba", 0, 0, 0, 0.5}, {"falcon_h1", 0, 1, 0, 1}, {"jamba", 0, 0, 1, 0}};

/* The sizes of a model's blocks, of every layer that has them. */
typedef struct hybrid {
  kr_lm_reader r;
  const hybrid_kind *kind;
  kr_lm_attention_sizes attention;
  kr_lm_mamba_sizes mamba;
  kr_lm_mlp_sizes mlp;
  double ssm_out, attention_in, attention_out, mlp_out; /* 0: 1 */
} hybrid;

static const kr_lm_family kr_mamba_hybrid;

static const hybrid_kind *find_hybrid_kind(const char *type) {
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (strcmp(kinds[i].type, type) == 0) return &kinds[i];
  return NULL;
}

/* The tensors say it; layer_types, if the file has it, must say the same. */
static int has_attention(const hybrid *h, int64_t layer) { return kr_lm_read_has(&h->r, "q", layer); }

static int64_t first_with(const hybrid *h, int attention) {
  for (int64_t i = 0; i < h->r.c->n_layers; i++)
    if (h->kind->is_parallel || has_attention(h, i) == attention) return i;
  return -1;
}

static int32_t read_jamba_mamba(hybrid *h, int64_t layer) {
  kr_lm_mamba_sizes *m = &h->mamba;
  KR_TRY(kr_lm_read_size(&h->r, "A", layer, 0, &m->Di));
  KR_TRY(kr_lm_read_size(&h->r, "A", layer, 1, &m->N));
  KR_TRY(kr_lm_read_size(&h->r, "dt_proj", layer, 1, &m->R));
  KR_TRY(kr_lm_read_size(&h->r, "conv", layer, 2, &m->W));
  m->H = 1, m->P = m->Di, m->G = 1;
  m->dt_eps = (double)h->r.c->eps;
  return KRAIT_OK;
}

static int32_t read_hybrid_mamba(hybrid *h) {
  kr_lm_mamba_sizes *m = &h->mamba;
  const int64_t layer = first_with(h, 0);
  if (layer < 0) return KRAIT_OK;
  m->d = h->r.c->d;
  if (h->kind->is_first) return read_jamba_mamba(h, layer);
  KR_TRY(kr_lm_read_mamba2(&h->r, layer, "mamba_d_state", "mamba_n_groups", 1, m));
  m->gate_eps = (double)h->r.c->eps;
  if (h->kind->is_parallel && !kr_lm_read_flag(&h->r, "mamba_rms_norm", 0)) m->gate = KR_LM_GATE_ALONE;
  if (m->gate == KR_LM_GATE_FIRST && kr_lm_read_flag(&h->r, "mamba_norm_before_gate", 0)) m->gate = KR_LM_GATE_LAST;
  return kr_lm_read_time_step(&h->r, "time_step_limit");
}

static int32_t read_hybrid_attention(hybrid *h) {
  const char *positions = kr_lm_json_text(h->r.root, "position_embedding_type", "nope");
  if (first_with(h, 1) < 0) return KRAIT_OK;
  KR_TRY(kr_lm_read_attention(&h->r, &h->attention));
  if (h->kind->partial_rotary == 0) return KRAIT_OK;
  if (h->kind->has_multipliers && strcmp(positions, "nope") == 0) return KRAIT_OK;
  if (h->kind->has_multipliers) KR_TRY(kr_lm_read_only_text(&h->r, "position_embedding_type", "rope"));
  return kr_lm_read_rope(&h->r, NULL, h->kind->partial_rotary, &h->attention);
}

static int32_t read_granite(hybrid *h) {
  kr_lm_config *c = h->r.c;
  h->attention.scale = kr_lm_json_real(h->r.root, "attention_multiplier", 1);
  c->embedding_scale = kr_lm_read_scale(&h->r, "embedding_multiplier");
  kr_lm_config_divide_stream(c, kr_lm_read_scale(&h->r, "residual_multiplier"));
  c->logits_scale = 1 / kr_lm_json_real(h->r.root, "logits_scaling", 1);
  return kr_lm_read_only_text(&h->r, "normalization_function", "rmsnorm");
}

/* Numbers of a list; 1 where there is none. */
static void read_list(const hybrid *h, const char *key, int n, double *values) {
  const json_t *list = json_object_get(h->r.root, key);
  for (int i = 0; i < n; i++) {
    const json_t *item = json_array_get(list, (size_t)i);
    values[i] = json_is_number(item) ? json_number_value(item) : 1;
  }
}

/* The keys' multiplier goes into the scale of scores, the mixer's two into one for each column of in_proj, and the
 * gate's scales both products of the MLP, which its result's undoes. */
static int32_t read_falcon(hybrid *h) {
  kr_lm_config *c = h->r.c;
  double mlp[2];
  KR_TRY(kr_lm_read_only_flag(&h->r, "mamba_proj_bias", 0));
  KR_TRY(kr_lm_read_only_flag(&h->r, "mlp_bias", 0));
  c->embedding_scale = kr_lm_read_scale(&h->r, "embedding_multiplier");
  c->logits_scale = kr_lm_json_real(h->r.root, "lm_head_multiplier", 1);
  h->attention.scale = kr_lm_json_real(h->r.root, "key_multiplier", 1) / sqrt((double)h->attention.D);
  h->attention_in = kr_lm_read_scale(&h->r, "attention_in_multiplier");
  h->attention_out = kr_lm_read_scale(&h->r, "attention_out_multiplier");
  h->ssm_out = kr_lm_read_scale(&h->r, "ssm_out_multiplier");
  read_list(h, "ssm_multipliers", 5, h->mamba.scales);
  for (int i = 0; i < 5; i++) h->mamba.scales[i] *= kr_lm_json_real(h->r.root, "ssm_in_multiplier", 1);
  read_list(h, "mlp_multipliers", 2, mlp);
  KR_CHECK(mlp[0] > 0 && h->mamba.scales[0] != 0, KRAIT_ERR_WEIGHTS, "%s: config.json: a multiplier is not positive",
           h->r.label);
  h->mlp.gate_scale = mlp[0], h->mlp_out = mlp[1] / mlp[0];
  return KRAIT_OK;
}

/* ---- layers ---- */

static int32_t add_scaled(kr_lm_config *c, const kr_lm_block_kind *kind, int64_t layer, const char *norm,
                          const void *sizes, double out_scale) {
  KR_TRY(kr_lm_config_add(c, kind, layer, norm, sizes));
  kr_lm_config_last(c)->out_scale = out_scale;
  return KRAIT_OK;
}

static int32_t add_mixers(hybrid *h, int64_t i) {
  kr_lm_config *c = h->r.c;
  if (!h->kind->is_parallel) KR_TRY(kr_lm_read_check_kind(&h->r, i, has_attention(h, i)));
  if (!h->kind->is_parallel)
    return has_attention(h, i)
               ? kr_lm_config_add(c, &kr_lm_attention, i, "norm", &h->attention)
               : kr_lm_config_add(c, h->kind->is_first ? &kr_lm_mamba1 : &kr_lm_mamba2, i, "norm", &h->mamba);
  KR_TRY(add_scaled(c, &kr_lm_mamba2, i, "norm", &h->mamba, h->ssm_out));
  KR_TRY(add_scaled(c, &kr_lm_attention, i, "norm", &h->attention, h->attention_out));
  kr_lm_config_last(c)->reads = KR_LM_READS_SAME;
  kr_lm_config_last(c)->in_scale = h->attention_in;
  return KRAIT_OK;
}

/* Granite's mixtures have an MLP for all tokens beside them, Jamba's have none. */
static int32_t add_hybrid_experts(hybrid *h, int64_t i) {
  kr_lm_moe_sizes moe = {.scores = h->kind->is_first ? KR_ROUTE_ALL : KR_ROUTE_CHOSEN};
  KR_TRY(kr_lm_read_moe(&h->r, i, &moe));
  return kr_lm_config_add(h->r.c, &kr_lm_moe, i, "norm2", &moe);
}

static int32_t add_hybrid_layer(hybrid *h, int64_t i) {
  kr_lm_mlp_sizes mlp = h->mlp;
  const int has_experts = kr_lm_read_has(&h->r, "router", i);
  KR_TRY(add_mixers(h, i));
  if (has_experts) KR_TRY(add_hybrid_experts(h, i));
  if (has_experts && !kr_lm_read_has(&h->r, "down", i)) return KRAIT_OK;
  mlp.d = h->r.c->d;
  KR_TRY(kr_lm_read_size(&h->r, "down", i, 1, &mlp.F));
  KR_TRY(add_scaled(h->r.c, &kr_lm_mlp, i, "norm2", &mlp, h->mlp_out));
  if (has_experts) kr_lm_config_last(h->r.c)->reads = KR_LM_READS_SAME;
  return KRAIT_OK;
}

static int32_t read_hybrid_layers(hybrid *h) {
  KR_CHECK(h->kind, KRAIT_ERR_WEIGHTS, "%s: config.json: the model_type '%.40s' of its text_config is not supported",
           h->r.label, h->r.type);
  KR_TRY(kr_lm_read_only_text(&h->r, "hidden_act", "silu"));
  KR_TRY(kr_lm_check_last(h->r.folder, LAYER("input_layernorm.weight"), h->r.c->n_layers));
  KR_TRY(read_hybrid_attention(h));
  KR_TRY(read_hybrid_mamba(h));
  if (h->kind->has_multipliers) KR_TRY(read_granite(h));
  if (h->kind->is_parallel) KR_TRY(read_falcon(h));
  for (int64_t i = 0; i < h->r.c->n_layers; i++) KR_TRY(add_hybrid_layer(h, i));
  return KRAIT_OK;
}

static int32_t read_hybrid(const kr_model_folder *folder, kr_lm_config **config) {
  hybrid h = {.kind = NULL};
  *config = NULL;
  KR_TRY(kr_lm_read_begin(folder, &kr_mamba_hybrid, "rms_norm_eps", -1, &h.r));
  h.kind = find_hybrid_kind(h.r.type);
  const int32_t status = read_hybrid_layers(&h);
  if (status < 0) kr_lm_config_close(&h.r.c);
  *config = h.r.c;
  return status;
}

static int is_hybrid(const kr_model_source *s) {
  return s->folder && find_hybrid_kind(kr_lm_json_text(kr_model_folder_config(s->folder), "model_type", ""));
}

static const kr_lm_family kr_mamba_hybrid = {
    .name = "mamba_hybrid", .models = "Granite 4, Bamba, Falcon-H1, Jamba", .keys = keys, .read = read_hybrid};
const kr_model_kind kr_model_mamba_hybrid = {
    .name = "mamba_hybrid", .detect = is_hybrid, .graphs = kr_lm_graphs, .lm = &kr_mamba_hybrid};

/* nemotron_h.c: the family of Nemotron-H: every layer is one of a Mamba-2 mixer, attention, or an MLP of relu squared.
 */
#include <string.h>

#include "lm/lm.h"
#include "lm/lm_read.h"
#include "lm_op_args.h"
#include "model_kind.h"
#include "status.h"

/* ---- weights ---- */

#define LAYER(key) "backbone.layers.*." key
static const kr_lm_key keys[] = {{"embedding", "backbone.embeddings.weight", 0},
                                 {"head", "lm_head.weight", KR_LM_PRODUCT | KR_LM_DELICATE},
                                 {"norm_f", "backbone.norm_f.weight", 0},
                                 {"norm", LAYER("norm.weight"), 0},
                                 {"in_proj", LAYER("mixer.in_proj.weight"), KR_LM_PRODUCT},
                                 {"in_proj_bias", LAYER("mixer.in_proj.bias"), 0},
                                 {"conv", LAYER("mixer.conv1d.weight"), 0},
                                 {"conv_bias", LAYER("mixer.conv1d.bias"), 0},
                                 {"dt_bias", LAYER("mixer.dt_bias"), KR_LM_FLOAT},
                                 {"A", LAYER("mixer.A_log"), KR_LM_FLOAT},
                                 {"D", LAYER("mixer.D"), KR_LM_FLOAT},
                                 {"gate_norm", LAYER("mixer.norm.weight"), 0},
                                 {"out_proj", LAYER("mixer.out_proj.weight"), KR_LM_PRODUCT},
                                 {"out_proj_bias", LAYER("mixer.out_proj.bias"), 0},
                                 {"q", LAYER("mixer.q_proj.weight"), KR_LM_PRODUCT},
                                 {"k", LAYER("mixer.k_proj.weight"), KR_LM_PRODUCT},
                                 {"v", LAYER("mixer.v_proj.weight"), KR_LM_PRODUCT},
                                 {"o", LAYER("mixer.o_proj.weight"), KR_LM_PRODUCT},
                                 {"up", LAYER("mixer.up_proj.weight"), KR_LM_PRODUCT},
                                 {"down", LAYER("mixer.down_proj.weight"), KR_LM_PRODUCT},
                                 {"router", LAYER("mixer.gate.weight"), 0},
                                 {"router_bias", LAYER("mixer.gate.e_score_correction_bias"), KR_LM_FLOAT},
                                 {"expert_up", LAYER("mixer.experts.#.up_proj.weight"), KR_LM_PRODUCT},
                                 {"expert_down", LAYER("mixer.experts.#.down_proj.weight"), KR_LM_PRODUCT},
                                 {"latent_in", LAYER("mixer.fc1_latent_proj.weight"), KR_LM_PRODUCT},
                                 {"latent_out", LAYER("mixer.fc2_latent_proj.weight"), KR_LM_PRODUCT},
                                 {"shared_up", LAYER("mixer.shared_experts.up_proj.weight"), KR_LM_PRODUCT},
                                 {"shared_down", LAYER("mixer.shared_experts.down_proj.weight"), KR_LM_PRODUCT},
                                 {"up_bias", LAYER("mixer.up_proj.bias"), 0},
                                 {"down_bias", LAYER("mixer.down_proj.bias"), 0},
                                 {0}};
static const char *const prefixes[] = {"backbone.", "model.", NULL};
/* Of predicting several tokens, which generation does not need. */
static const char *const unused[] = {"mtp.", NULL};

static const kr_lm_family kr_nemotron_h;

/* ---- config.json ---- */

typedef struct nemotron {
  kr_lm_reader r;
  kr_lm_attention_sizes attention;
} nemotron;

enum { MAMBA = 'M', ATTENTION = '*', MLP = '-', EXPERTS = 'E' };

/* transformers 5 has a list of words, published files a text of letters. */
static int kind_of_layer(const kr_lm_reader *r, int64_t layer) {
  static const struct {
    const char *word;
    int kind;
  } words[] = {{"linear_attention", MAMBA}, {"mamba", MAMBA}, {"full_attention", ATTENTION},
               {"attention", ATTENTION},    {"mlp", MLP},     {"moe", EXPERTS}};
  const char *pattern = json_string_value(json_object_get(r->root, "hybrid_override_pattern")),
             *word = kr_lm_read_layer_kind(r, "layers_block_type", layer);
  if (pattern) return pattern[layer];
  for (size_t i = 0; word && i < sizeof words / sizeof *words; i++)
    if (strcmp(word, words[i].word) == 0) return words[i].kind;
  return 0;
}

static int64_t count_nemotron_layers(const json_t *root) {
  const char *pattern = json_string_value(json_object_get(root, "hybrid_override_pattern"));
  return pattern ? (int64_t)strlen(pattern) : (int64_t)json_array_size(json_object_get(root, "layers_block_type"));
}

static int32_t add_mamba_layer(const kr_lm_reader *r, int64_t i) {
  kr_lm_mamba_sizes m = {.gate_eps = (double)r->c->eps};
  KR_TRY(kr_lm_read_mamba2(r, i, "ssm_state_size", "n_groups", 8, &m));
  return kr_lm_config_add(r->c, &kr_lm_mamba2, i, "norm", &m);
}

static int32_t add_mlp_layer(const kr_lm_reader *r, int64_t i) {
  kr_lm_mlp_sizes mlp = {.d = r->c->d, .activation = KR_LM_RELU2};
  KR_TRY(kr_lm_read_size(r, "down", i, 1, &mlp.F));
  return kr_lm_config_add(r->c, &kr_lm_mlp, i, "norm", &mlp);
}

/* The experts, some of them of a narrower width than the stream's, and beside them one for all tokens. */
static int32_t add_expert_layer(const kr_lm_reader *r, int64_t i) {
  kr_lm_mlp_sizes shared = {.d = r->c->d, .activation = KR_LM_RELU2, .is_shared = 1};
  kr_lm_moe_sizes moe = {.activation = KR_LM_RELU2,
                         .scores = KR_ROUTE_SIGMOID,
                         .is_normed = kr_lm_read_flag(r, "norm_topk_prob", 1),
                         .norm_eps = 1e-20,
                         .scale = kr_lm_read_scale(r, "routed_scaling_factor")};
  KR_TRY(kr_lm_read_moe(r, i, &moe));
  KR_TRY(kr_lm_read_whole(r, "n_group", 1, 1, &moe.n_groups));
  KR_TRY(kr_lm_read_whole(r, "topk_group", 1, 1, &moe.best_groups));
  if (kr_lm_read_has(r, "latent_in", i)) KR_TRY(kr_lm_read_size(r, "latent_in", i, 0, &moe.latent));
  KR_TRY(kr_lm_config_add(r->c, &kr_lm_moe, i, "norm", &moe));
  if (!kr_lm_read_has(r, "shared_down", i)) return KRAIT_OK;
  KR_TRY(kr_lm_read_size(r, "shared_down", i, 1, &shared.F));
  KR_TRY(kr_lm_config_add(r->c, &kr_lm_mlp, i, "norm", &shared));
  kr_lm_config_last(r->c)->reads = KR_LM_READS_SAME;
  return KRAIT_OK;
}

static int32_t add_nemotron_layer(const nemotron *n, int64_t i) {
  switch (kind_of_layer(&n->r, i)) {
    case MAMBA: return add_mamba_layer(&n->r, i);
    case ATTENTION: return kr_lm_config_add(n->r.c, &kr_lm_attention, i, "norm", &n->attention);
    case MLP: return add_mlp_layer(&n->r, i);
    case EXPERTS: return add_expert_layer(&n->r, i);
    default:
      return kr_fail(KRAIT_ERR_WEIGHTS, "%s: config.json: the kind of layer %lld is not supported", n->r.label,
                     (long long)i);
  }
}

static int32_t read_nemotron_layers(nemotron *n) {
  KR_TRY(kr_lm_read_only_text(&n->r, "mlp_hidden_act", "relu2"));
  KR_TRY(kr_lm_read_only_text(&n->r, "mamba_hidden_act", "silu"));
  KR_TRY(kr_lm_read_time_step(&n->r, "time_step_limit"));
  KR_TRY(kr_lm_check_last(n->r.folder, LAYER("norm.weight"), n->r.c->n_layers));
  KR_TRY(kr_lm_read_attention(&n->r, &n->attention)); /* without positions, whatever the file says of rope */
  for (int64_t i = 0; i < n->r.c->n_layers; i++) KR_TRY(add_nemotron_layer(n, i));
  return KRAIT_OK;
}

static int32_t read_nemotron_h(const kr_model_folder *folder, kr_lm_config **config) {
  nemotron n = {.attention = {0}};
  const char *label = kr_model_folder_label(folder);
  const int64_t n_layers = count_nemotron_layers(kr_model_folder_config(folder));
  *config = NULL;
  KR_CHECK(n_layers, KRAIT_ERR_WEIGHTS, "%s: config.json has no hybrid_override_pattern or layers_block_type", label);
  KR_TRY(kr_lm_read_begin(folder, &kr_nemotron_h, "layer_norm_epsilon", n_layers, &n.r));
  const int32_t status = read_nemotron_layers(&n);
  if (status < 0) kr_lm_config_close(&n.r.c);
  *config = n.r.c;
  return status;
}

static int is_nemotron_h(const kr_model_source *s) {
  return s->folder && strcmp(kr_lm_json_text(kr_model_folder_config(s->folder), "model_type", ""), "nemotron_h") == 0;
}

static const kr_lm_family kr_nemotron_h = {.name = "nemotron_h",
                                           .models = "Nemotron-H",
                                           .keys = keys,
                                           .prefixes = prefixes,
                                           .unused = unused,
                                           .read = read_nemotron_h};
const kr_model_kind kr_model_nemotron_h = {
    .name = "nemotron_h", .detect = is_nemotron_h, .graphs = kr_lm_graphs, .lm = &kr_nemotron_h};

/* llama.c: the family of models that are attention and a gated MLP, or a mixture of them, in every layer: Llama,
 * Mistral, Qwen3, Granite. */
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
                                 {"q", LAYER("self_attn.q_proj.weight"), KR_LM_PRODUCT},
                                 {"k", LAYER("self_attn.k_proj.weight"), KR_LM_PRODUCT},
                                 {"v", LAYER("self_attn.v_proj.weight"), KR_LM_PRODUCT},
                                 {"q_bias", LAYER("self_attn.q_proj.bias"), 0},
                                 {"k_bias", LAYER("self_attn.k_proj.bias"), 0},
                                 {"v_bias", LAYER("self_attn.v_proj.bias"), 0},
                                 {"q_norm", LAYER("self_attn.q_norm.weight"), 0},
                                 {"k_norm", LAYER("self_attn.k_norm.weight"), 0},
                                 {"o", LAYER("self_attn.o_proj.weight"), KR_LM_PRODUCT},
                                 {"o_bias", LAYER("self_attn.o_proj.bias"), 0},
                                 {"norm2", LAYER("post_attention_layernorm.weight"), 0},
                                 {"gate", LAYER("mlp.gate_proj.weight"), KR_LM_PRODUCT},
                                 {"up", LAYER("mlp.up_proj.weight"), KR_LM_PRODUCT},
                                 {"down", LAYER("mlp.down_proj.weight"), KR_LM_PRODUCT},
                                 {"router", LAYER("mlp.gate.weight"), 0},
                                 {"expert_gate", LAYER("mlp.experts.#.gate_proj.weight"), KR_LM_PRODUCT},
                                 {"expert_up", LAYER("mlp.experts.#.up_proj.weight"), KR_LM_PRODUCT},
                                 {"expert_down", LAYER("mlp.experts.#.down_proj.weight"), KR_LM_PRODUCT},
                                 {"gate_bias", LAYER("mlp.gate_proj.bias"), 0},
                                 {"up_bias", LAYER("mlp.up_proj.bias"), 0},
                                 {"down_bias", LAYER("mlp.down_proj.bias"), 0},
                                 {0}};
static const char *const unused[] = {LAYER("self_attn.rotary_emb.inv_freq"), NULL};

static const kr_lm_family kr_llama;

/* ---- config.json ---- */

/* What differs by model_type. */
typedef struct llama_kind {
  const char *type;
  int64_t qk_norm;
  int has_multipliers; /* Granite's */
  int slides;          /* sliding_window applies to all layers, unless layer_types says more */
} llama_kind;
static const llama_kind kinds[] = {{"llama", 0, 0, 0},
                                   {"mistral", 0, 0, 1},
                                   {"qwen3", KR_LM_NORM_OF_HEADS, 0, 0},
                                   {"qwen3_moe", KR_LM_NORM_OF_HEADS, 0, 0},
                                   {"granite", 0, 1, 0}};

static const llama_kind *find_llama_kind(const char *type) {
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (strcmp(kinds[i].type, type) == 0) return &kinds[i];
  return NULL;
}

/* Whose keys a query of this layer sees. */
static int32_t read_llama_window(const kr_lm_reader *r, const llama_kind *kind, int64_t layer, int64_t *window) {
  const char *of_layer = kr_lm_read_layer_kind(r, "layer_types", layer);
  const int slides = of_layer ? strcmp(of_layer, "sliding_attention") == 0 : kind->slides;
  *window = 0;
  if (!of_layer) KR_TRY(kr_lm_read_only_flag(r, "use_sliding_window", 0));
  KR_CHECK(!of_layer || slides || kr_lm_is_attention(of_layer), KRAIT_ERR_WEIGHTS,
           "%s: config.json: layer %lld is '%.40s', which is not supported", r->label, (long long)layer, of_layer);
  return slides ? kr_lm_read_whole(r, "sliding_window", 0, 1, window) : KRAIT_OK;
}

/* Of Qwen3's mixtures, in layers that have a router. */
static int32_t add_llama_experts(const kr_lm_reader *r, int64_t i) {
  kr_lm_moe_sizes moe = {.scores = KR_ROUTE_ALL, .is_normed = kr_lm_read_flag(r, "norm_topk_prob", 0)};
  KR_TRY(kr_lm_read_moe(r, i, &moe));
  return kr_lm_config_add(r->c, &kr_lm_moe, i, "norm2", &moe);
}

static int32_t add_llama_layer(const kr_lm_reader *r, const llama_kind *kind, const kr_lm_attention_sizes *attention,
                               int64_t i) {
  kr_lm_attention_sizes own = *attention;
  kr_lm_mlp_sizes mlp = {.d = r->c->d};
  KR_TRY(read_llama_window(r, kind, i, &own.window));
  KR_TRY(kr_lm_config_add(r->c, &kr_lm_attention, i, "norm", &own));
  if (kr_lm_read_has(r, "router", i)) return add_llama_experts(r, i);
  KR_TRY(kr_lm_read_size(r, "down", i, 1, &mlp.F));
  KR_TRY(kr_lm_config_add(r->c, &kr_lm_mlp, i, "norm2", &mlp));
  return KRAIT_OK;
}

static int32_t read_llama_layers(const kr_lm_reader *r, const llama_kind *kind) {
  kr_lm_attention_sizes attention = {.qk_norm = kind->qk_norm};
  kr_lm_config *c = r->c;
  KR_TRY(kr_lm_read_only_text(r, "hidden_act", "silu"));
  KR_TRY(kr_lm_check_last(r->folder, LAYER("input_layernorm.weight"), c->n_layers));
  KR_TRY(kr_lm_read_attention(r, &attention));
  KR_TRY(kr_lm_read_rope(r, NULL, 1, &attention));
  if (kind->has_multipliers) {
    attention.scale = kr_lm_json_real(r->root, "attention_multiplier", 1);
    c->embedding_scale = kr_lm_read_scale(r, "embedding_multiplier");
    kr_lm_config_divide_stream(c, kr_lm_read_scale(r, "residual_multiplier"));
    c->logits_scale = 1 / kr_lm_json_real(r->root, "logits_scaling", 1);
  }
  for (int64_t i = 0; i < c->n_layers; i++) KR_TRY(add_llama_layer(r, kind, &attention, i));
  return KRAIT_OK;
}

static int32_t read_llama(const kr_model_folder *folder, kr_lm_config **config) {
  kr_lm_reader r;
  *config = NULL;
  KR_TRY(kr_lm_read_begin(folder, &kr_llama, "rms_norm_eps", -1, &r));
  const llama_kind *kind = find_llama_kind(r.type);
  const int32_t status = kind ? read_llama_layers(&r, kind)
                              : kr_fail(KRAIT_ERR_WEIGHTS,
                                        "%s: config.json: the model_type '%.40s' of its text_config "
                                        "is not supported",
                                        r.label, r.type);
  if (status < 0) kr_lm_config_close(&r.c);
  *config = r.c;
  return status;
}

static int is_llama(const kr_model_source *s) {
  return s->folder && find_llama_kind(kr_lm_json_text(kr_model_folder_config(s->folder), "model_type", ""));
}

static const kr_lm_family kr_llama = {
    .name = "llama", .models = "Llama, Mistral, Qwen3, Granite", .keys = keys, .unused = unused, .read = read_llama};
const kr_model_kind kr_model_llama = {.name = "llama", .detect = is_llama, .graphs = kr_lm_graphs, .lm = &kr_llama};

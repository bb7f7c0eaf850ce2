/* lfm2.c: the family of LFM2 and LFM3: layers are a gated short convolution or attention, and a gated MLP or a mixture
 * of them. */
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
                                 {"norm_f", "model.embedding_norm.weight", 0},
                                 {"norm", LAYER("operator_norm.weight"), 0},
                                 {"post", LAYER("post_operator_norm.weight"), 0},
                                 {"norm2", LAYER("ffn_norm.weight"), 0},
                                 {"post2", LAYER("post_ffn_norm.weight"), 0},
                                 {"in_proj", LAYER("conv.in_proj.weight"), KR_LM_PRODUCT},
                                 {"in_proj_bias", LAYER("conv.in_proj.bias"), 0},
                                 {"conv", LAYER("conv.conv.weight"), 0},
                                 {"conv_bias", LAYER("conv.conv.bias"), 0},
                                 {"out_proj", LAYER("conv.out_proj.weight"), KR_LM_PRODUCT},
                                 {"out_proj_bias", LAYER("conv.out_proj.bias"), 0},
                                 {"q", LAYER("self_attn.q_proj.weight"), KR_LM_PRODUCT},
                                 {"k", LAYER("self_attn.k_proj.weight"), KR_LM_PRODUCT},
                                 {"v", LAYER("self_attn.v_proj.weight"), KR_LM_PRODUCT},
                                 {"q_norm", LAYER("self_attn.q_layernorm.weight"), 0},
                                 {"q_norm", LAYER("self_attn.q_norm.weight"), 0},
                                 {"k_norm", LAYER("self_attn.k_layernorm.weight"), 0},
                                 {"k_norm", LAYER("self_attn.k_norm.weight"), 0},
                                 {"head_gate", LAYER("self_attn.gate_proj.weight"), 0},
                                 {"o", LAYER("self_attn.out_proj.weight"), KR_LM_PRODUCT},
                                 {"o", LAYER("self_attn.o_proj.weight"), KR_LM_PRODUCT},
                                 {"gate", LAYER("feed_forward.w1.weight"), KR_LM_PRODUCT},
                                 {"up", LAYER("feed_forward.w3.weight"), KR_LM_PRODUCT},
                                 {"down", LAYER("feed_forward.w2.weight"), KR_LM_PRODUCT},
                                 {"router", LAYER("feed_forward.gate.weight"), 0},
                                 {"router_bias", LAYER("feed_forward.expert_bias"), KR_LM_FLOAT},
                                 {"expert_gate", LAYER("feed_forward.experts.#.w1.weight"), KR_LM_PRODUCT},
                                 {"expert_up", LAYER("feed_forward.experts.#.w3.weight"), KR_LM_PRODUCT},
                                 {"expert_down", LAYER("feed_forward.experts.#.w2.weight"), KR_LM_PRODUCT},
                                 {0}};

static const kr_lm_family kr_lfm2;

/* ---- config.json ---- */

typedef struct lfm {
  kr_lm_reader r;
  int is_third; /* LFM3: norms of results, gates of heads, windows */
  kr_lm_attention_sizes attention, sliding; /* sliding: of LFM3's layers with a window */
} lfm;

enum { CONV, FULL, SLIDING, UNKNOWN };

static int kind_of_lfm_layer(const lfm *m, int64_t layer) {
  const char *kind = kr_lm_read_layer_kind(&m->r, "layer_types", layer);
  const json_t *list = json_object_get(m->r.root, "full_attn_idxs"), *item;
  size_t i;
  if (kind)
    return strcmp(kind, "conv") == 0                               ? CONV
           : kr_lm_is_attention(kind)                              ? FULL
           : m->is_third && strcmp(kind, "sliding_attention") == 0 ? SLIDING
                                                                   : UNKNOWN;
  json_array_foreach(list, i, item)
      if (json_integer_value(item) == layer) return FULL;
  return list ? CONV : UNKNOWN;
}

/* Of LFM3, whose files may leave its rope tables out. */
static int32_t read_lfm3_ropes(lfm *m) {
  kr_lm_reader r = m->r;
  json_t *usual = json_pack("{s:{s:{s:f}, s:{s:s, s:f, s:f}}}", "rope_parameters", "sliding_attention", "rope_theta",
                            1e4, "full_attention", "rope_type", "proportional", "rope_theta", 1e6,
                            "partial_rotary_factor", 0.5);
  KR_CHECK(usual, KRAIT_ERR_NO_MEMORY, "%s: no memory for its rope tables", r.label);
  if (!json_is_object(json_object_get(r.root, "rope_parameters"))) r.root = usual;
  int32_t status = kr_lm_read_rope(&r, "full_attention", 1, &m->attention);
  if (status >= 0) status = kr_lm_read_rope(&r, "sliding_attention", 1, &m->sliding);
  json_decref(usual);
  return status;
}

static int32_t read_lfm_attention(lfm *m) {
  kr_lm_attention_sizes *a = &m->attention;
  a->qk_norm = KR_LM_NORM_OF_HEADS;
  KR_TRY(kr_lm_read_attention(&m->r, a));
  if (m->is_third && kr_lm_read_flag(&m->r, "use_attention_gate", 1)) a->gate = KR_LM_GATE_OF_HEADS;
  m->sliding = *a;
  if (!m->is_third) return kr_lm_read_rope(&m->r, NULL, 1, a);
  KR_TRY(read_lfm3_ropes(m));
  return kr_lm_read_whole(&m->r, "sliding_window", KR_LM_NEEDED, 1, &m->sliding.window);
}

/* An MLP, or in layers that have a router a mixture. */
static int32_t add_lfm_mlp(const lfm *m, int64_t i) {
  kr_lm_mlp_sizes mlp = {.d = m->r.c->d};
  kr_lm_moe_sizes moe = {.scores = KR_ROUTE_SIGMOID,
                         .is_normed = kr_lm_read_flag(&m->r, "norm_topk_prob", 1),
                         .norm_eps = 1e-6,
                         .scale = kr_lm_read_scale(&m->r, "routed_scaling_factor")};
  if (kr_lm_read_has(&m->r, "router", i)) {
    KR_TRY(kr_lm_read_moe(&m->r, i, &moe));
    KR_TRY(kr_lm_read_only_flag(&m->r, "use_expert_bias", kr_lm_read_has(&m->r, "router_bias", i)));
    return kr_lm_config_add(m->r.c, &kr_lm_moe, i, "norm2", &moe);
  }
  KR_TRY(kr_lm_read_size(&m->r, "down", i, 1, &mlp.F));
  return kr_lm_config_add(m->r.c, &kr_lm_mlp, i, "norm2", &mlp);
}

static int32_t add_lfm_layer(const lfm *m, int64_t i) {
  kr_lm_config *c = m->r.c;
  kr_lm_short_conv_sizes conv = {.d = c->d};
  const int kind = kind_of_lfm_layer(m, i), has_post = m->is_third && kr_lm_read_flag(&m->r, "use_sandwich_norm", 1);
  KR_CHECK(kind != UNKNOWN, KRAIT_ERR_WEIGHTS, "%s: config.json: the kind of layer %lld is not supported", m->r.label,
           (long long)i);
  if (kind == CONV) KR_TRY(kr_lm_read_size(&m->r, "conv", i, 2, &conv.W));
  KR_TRY(kind == CONV ? kr_lm_config_add(c, &kr_lm_short_conv, i, "norm", &conv)
                      : kr_lm_config_add(c, &kr_lm_attention, i, "norm", kind == FULL ? &m->attention : &m->sliding));
  if (has_post) kr_lm_config_last(c)->post = "post";
  KR_TRY(add_lfm_mlp(m, i));
  if (has_post) kr_lm_config_last(c)->post = "post2";
  return KRAIT_OK;
}

static int32_t read_lfm_layers(lfm *m) {
  m->is_third = strcmp(m->r.type, "lfm3") == 0;
  KR_TRY(kr_lm_check_last(m->r.folder, LAYER("operator_norm.weight"), m->r.c->n_layers));
  KR_TRY(read_lfm_attention(m));
  for (int64_t i = 0; i < m->r.c->n_layers; i++) KR_TRY(add_lfm_layer(m, i));
  return KRAIT_OK;
}

static int32_t read_lfm2(const kr_model_folder *folder, kr_lm_config **config) {
  lfm m = {.is_third = 0};
  *config = NULL;
  KR_TRY(kr_lm_read_begin(folder, &kr_lfm2, "norm_eps", -1, &m.r));
  const int32_t status = read_lfm_layers(&m);
  if (status < 0) kr_lm_config_close(&m.r.c);
  *config = m.r.c;
  return status;
}

static int is_lfm2(const kr_model_source *s) {
  if (!s->folder) return 0;
  const char *type = kr_lm_json_text(kr_model_folder_config(s->folder), "model_type", "");
  return strcmp(type, "lfm2") == 0 || strcmp(type, "lfm2_moe") == 0 || strcmp(type, "lfm3") == 0;
}

static const kr_lm_family kr_lfm2 = {.name = "lfm2", .models = "LFM2, LFM3", .keys = keys, .read = read_lfm2};
const kr_model_kind kr_model_lfm2 = {.name = "lfm2", .detect = is_lfm2, .graphs = kr_lm_graphs, .lm = &kr_lfm2};

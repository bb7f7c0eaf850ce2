/* qwen2.c: the family of Qwen2 language models. */
#include "qwen2.h"

#include <string.h>

#include "lm/lm.h"
#include "lm/lm_blocks.h"
#include "status.h"

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
                                 {"o", LAYER("self_attn.o_proj.weight"), KR_LM_PRODUCT},
                                 {"norm2", LAYER("post_attention_layernorm.weight"), 0},
                                 {"gate", LAYER("mlp.gate_proj.weight"), KR_LM_PRODUCT},
                                 {"up", LAYER("mlp.up_proj.weight"), KR_LM_PRODUCT},
                                 {"down", LAYER("mlp.down_proj.weight"), KR_LM_PRODUCT},
                                 {0}};

/* Of Mobile-VideoGPT, whose other parts videogpt reads; and of old files. */
static const char *const unused[] = {"model.image_vision_tower.", "model.vision_tower.", "model.mm_projector.",
                                     "model.image_mm_projector.", LAYER("self_attn.rotary_emb.inv_freq"), NULL};

static int32_t add_qwen2_layer(kr_lm_config *to, const kr_qwen2_config *c, int64_t i) {
  KR_TRY(kr_lm_config_add(to, &kr_lm_attention, i, "norm",
                          &(kr_lm_attention_sizes){.d = c->d, .H = c->H, .Hk = c->Hk, .D = c->D, .R = c->D / 2}));
  return kr_lm_config_add(to, &kr_lm_mlp, i, "norm2", &(kr_lm_mlp_sizes){.d = c->d, .F = c->F});
}

int32_t kr_qwen2_describe(const kr_qwen2_config *c, kr_lm_config **config) {
  KR_TRY(kr_lm_config_open(&kr_qwen2, 2 * c->n_layers, config));
  kr_lm_config *to = *config;
  int32_t status;
  int64_t rope;
  to->d = c->d, to->V = c->V, to->n_used = c->n_used, to->n_layers = c->n_layers;
  memcpy(to->eos, c->eos, sizeof to->eos);
  to->n_eos = c->n_eos;
  to->tied = c->is_tied ? KR_LM_TIED : KR_LM_NOT_TIED;
  to->is_rms = 1, to->eps = c->eps;
  status = kr_lm_config_add_plain_rope(to, c->D / 2, c->base, &rope);
  for (int64_t i = 0; i < c->n_layers && status >= 0; i++) status = add_qwen2_layer(to, c, i);
  if (status < 0) kr_lm_config_close(config);
  return status;
}

static int32_t read_qwen2(const kr_model_folder *folder, kr_lm_config **config) {
  kr_qwen2_config c;
  *config = NULL;
  KR_TRY(kr_qwen2_config_read(folder, &c));
  return kr_qwen2_describe(&c, config);
}

/* Those of Qwen2.5. */
static int32_t find_published_qwen2(const char *name, kr_lm_config **config) {
  kr_qwen2_config c = {.d = 896,
                       .n_layers = 24,
                       .V = 151936,
                       .F = 4864,
                       .H = 14,
                       .Hk = 2,
                       .D = 64,
                       .eps = 1e-6f,
                       .base = 1e6,
                       .n_used = 151665,
                       .is_tied = 1};
  if (strcmp(name, "qwen2-1.5b") == 0)
    c.d = 1536, c.n_layers = 28, c.F = 8960, c.H = 12, c.D = 128;
  else if (strcmp(name, "qwen2-0.5b") != 0)
    return KRAIT_OK;
  return kr_qwen2_describe(&c, config);
}

/* Mobile-VideoGPT is Qwen2 with additional tensors. */
static int is_qwen2(const kr_model_source *s) {
  if (!s->folder) return 0;
  const char *type = kr_lm_json_text(kr_model_folder_config(s->folder), "model_type", "");
  return strcmp(type, "qwen2") == 0 || strcmp(type, "MobileVideoGPT_qwen") == 0;
}

const kr_lm_family kr_qwen2 = {.name = "qwen2",
                               .models = "Qwen2",
                               .keys = keys,
                               .unused = unused,
                               .read = read_qwen2,
                               .find_published = find_published_qwen2,
                               .published = "qwen2-0.5b or -1.5b"};
const kr_model_kind kr_model_qwen2 = {.name = "qwen2", .detect = is_qwen2, .graphs = kr_lm_graphs, .lm = &kr_qwen2};

/* zamba2.c: the family of Zamba2: layers are a Mamba-2 mixer, some of which read also the result of a transformer
 * layer. There are one or two of those, which all such layers share in turn, each with adapters of its own. */
#include <math.h>
#include <string.h>

#include "lm/lm.h"
#include "lm/lm_builder.h"
#include "lm/lm_read.h"
#include "model_kind.h"
#include "status.h"

/* ---- weights ---- */

#define LAYER(key) "model.layers.*." key
#define MAMBA(field, key, flags) {field, LAYER("mamba." key), flags}, {field, LAYER("mamba_decoder.mamba." key), flags}
#define SHARED(key) LAYER("shared_transformer." key)
#define OF_QKV(x, end) SHARED("self_attn.linear_" x "_adapter_list.#." end ".weight")
#define OF_MLP(end) SHARED("feed_forward.gate_up_proj_adapter_list.#." end ".weight")
static const kr_lm_key keys[] = {{"embedding", "model.embed_tokens.weight", 0},
                                 {"head", "lm_head.weight", KR_LM_PRODUCT | KR_LM_DELICATE},
                                 {"norm_f", "model.final_layernorm.weight", 0},
                                 {"norm", LAYER("input_layernorm.weight"), 0},
                                 {"norm", LAYER("mamba_decoder.input_layernorm.weight"), 0},
                                 MAMBA("in_proj", "in_proj.weight", KR_LM_PRODUCT),
                                 MAMBA("in_proj_bias", "in_proj.bias", 0),
                                 MAMBA("conv", "conv1d.weight", 0),
                                 MAMBA("conv_bias", "conv1d.bias", 0),
                                 MAMBA("dt_bias", "dt_bias", KR_LM_FLOAT),
                                 MAMBA("A", "A_log", KR_LM_FLOAT),
                                 MAMBA("D", "D", KR_LM_FLOAT),
                                 MAMBA("gate_norm", "norm.weight", 0),
                                 MAMBA("out_proj", "out_proj.weight", KR_LM_PRODUCT),
                                 MAMBA("out_proj_bias", "out_proj.bias", 0),
                                 {"mix", LAYER("linear.weight"), KR_LM_PRODUCT},
                                 {"shared_norm", SHARED("input_layernorm.weight"), 0},
                                 {"norm2", SHARED("pre_ff_layernorm.weight"), 0},
                                 {"q", SHARED("self_attn.q_proj.weight"), KR_LM_PRODUCT},
                                 {"k", SHARED("self_attn.k_proj.weight"), KR_LM_PRODUCT},
                                 {"v", SHARED("self_attn.v_proj.weight"), KR_LM_PRODUCT},
                                 {"o", SHARED("self_attn.o_proj.weight"), KR_LM_PRODUCT},
                                 {"q_in", OF_QKV("q", "0"), 0},
                                 {"q_out", OF_QKV("q", "1"), 0},
                                 {"k_in", OF_QKV("k", "0"), 0},
                                 {"k_out", OF_QKV("k", "1"), 0},
                                 {"v_in", OF_QKV("v", "0"), 0},
                                 {"v_out", OF_QKV("v", "1"), 0},
                                 {"gate_up", SHARED("feed_forward.gate_up_proj.weight"), KR_LM_PRODUCT},
                                 {"down", SHARED("feed_forward.down_proj.weight"), KR_LM_PRODUCT},
                                 {"gate_up_in", OF_MLP("0"), 0},
                                 {"gate_up_out", OF_MLP("1"), 0},
                                 {0}};
/* Files that repeat a shared layer under each that uses it repeat all adapters, of which each reads its own. */
static const char *const unused[] = {OF_QKV("q", "0"), OF_QKV("q", "1"), OF_QKV("k", "0"), OF_QKV("k", "1"),
                                     OF_QKV("v", "0"), OF_QKV("v", "1"), OF_MLP("0"),      OF_MLP("1"),
                                     NULL};

static const kr_lm_family kr_zamba2;

/* ---- the product of a shared layer's result ---- */

typedef struct mix_sizes {
  int64_t d;
} mix_sizes;

static int32_t load_mix(kr_lm_loader *l, const kr_lm_block *block) {
  const mix_sizes *s = block->sizes;
  return kr_lm_load(l, "mix", 1, KR_SIZES(s->d, s->d), block->weights);
}

static kr_tensor record_mix(kr_lm_builder *b, const kr_lm_block *block, kr_tensor x) {
  const mix_sizes *s = block->sizes;
  return result_of(b, block, "mix", x, .w = block->weights, .N = s->d, .K = s->d);
}

static const kr_lm_block_kind mix = {.name = "mix",
                                     .sizes_bytes = sizeof(mix_sizes),
                                     .weights_bytes = sizeof(kr_weight_ref),
                                     .load = load_mix,
                                     .record = record_mix};

/* ---- config.json ---- */

enum { MOST_SHARED = 16 };

typedef struct zamba {
  kr_lm_reader r;
  kr_lm_attention_sizes attention;
  kr_lm_mlp_sizes mlp;
  int64_t n_shared, n_hybrid;                   /* shared layers; layers with one, so far */
  const kr_lm_block *shared[MOST_SHARED][2];    /* the blocks that have the weights: attention, MLP */
} zamba;

static int is_hybrid_layer(const zamba *z, int64_t layer) { return kr_lm_read_has(&z->r, "mix", layer); }

static int32_t read_zamba_attention(zamba *z) {
  kr_lm_attention_sizes *a = &z->attention;
  const int64_t d = z->r.c->d;
  KR_TRY(kr_lm_read_whole(&z->r, "num_attention_heads", KR_LM_NEEDED, 1, &a->H));
  KR_TRY(kr_lm_read_whole(&z->r, "num_key_value_heads", a->H, 1, &a->Hk));
  KR_TRY(kr_lm_read_whole(&z->r, "attention_head_dim", 2 * d / a->H, 1, &a->D));
  KR_CHECK(a->H % a->Hk == 0 && a->D >= 2 && a->D % 2 == 0 && a->D <= 256, KRAIT_ERR_WEIGHTS,
           "%s: config.json: %lld heads, %lld key heads and %lld features per head do not match", z->r.label,
           (long long)a->H, (long long)a->Hk, (long long)a->D);
  a->d = d, a->in = 2 * d, a->scale = sqrt(2 / (double)a->D);
  if (!kr_lm_read_flag(&z->r, "use_mem_rope", 0)) return KRAIT_OK;
  KR_TRY(kr_lm_read_only_flag(&z->r, "use_long_context", 0));
  return kr_lm_read_rope(&z->r, NULL, 1, a);
}

/* Sizes of the shared layers, from the first that uses one. */
static int32_t read_shared(zamba *z, int64_t layer) {
  KR_TRY(kr_lm_read_whole(&z->r, "num_mem_blocks", 1, 1, &z->n_shared));
  KR_CHECK(z->n_shared <= MOST_SHARED, KRAIT_ERR_WEIGHTS, "%s: config.json: num_mem_blocks is %lld; at most %d",
           z->r.label, (long long)z->n_shared, MOST_SHARED);
  KR_TRY(read_zamba_attention(z));
  z->mlp = (kr_lm_mlp_sizes){.d = z->r.c->d, .activation = KR_LM_GELU};
  KR_TRY(kr_lm_read_size(&z->r, "down", layer, 1, &z->mlp.F));
  if (kr_lm_read_has(&z->r, "gate_up_in", layer))
    KR_TRY(kr_lm_read_size(&z->r, "gate_up_in", layer, 0, &z->mlp.rank));
  return kr_lm_read_has(&z->r, "q_in", layer) ? kr_lm_read_size(&z->r, "q_in", layer, 0, &z->attention.rank) : KRAIT_OK;
}

/* ---- layers ---- */

/* A block of a shared layer: with weights of its own, if the file has them under this layer, else with those of the
 * first that uses it. */
static int32_t add_shared(zamba *z, int64_t layer, const kr_lm_block_kind *kind, const char *norm, const void *sizes,
                          int32_t reads, const kr_lm_block **shared) {
  KR_TRY(kr_lm_config_add(z->r.c, kind, layer, norm, sizes));
  kr_lm_block *b = kr_lm_config_last(z->r.c);
  b->reads = reads, b->adapter = z->n_hybrid;
  if (!*shared) *shared = b;
  if (*shared == b || kr_lm_read_has(&z->r, "q", layer)) return KRAIT_OK;
  b->shared = *shared, b->stored = (*shared)->layer;
  return KRAIT_OK;
}

static int32_t add_hybrid(zamba *z, int64_t i) {
  kr_lm_config *c = z->r.c;
  if (z->n_hybrid == 0) KR_TRY(read_shared(z, i));
  const kr_lm_block **shared = z->shared[z->n_hybrid % z->n_shared];
  KR_TRY(add_shared(z, i, &kr_lm_attention, "shared_norm", &z->attention, KR_LM_READS_EMBEDDED, &shared[0]));
  KR_TRY(add_shared(z, i, &kr_lm_mlp, "norm2", &z->mlp, KR_LM_READS_RESULT, &shared[1]));
  KR_TRY(kr_lm_config_add(c, &mix, i, NULL, &(mix_sizes){c->d}));
  kr_lm_config_last(c)->reads = KR_LM_READS_RESULT;
  z->n_hybrid++;
  return KRAIT_OK;
}

static int32_t add_zamba_mixer(const zamba *z, int64_t i) {
  kr_lm_mamba_sizes m = {.d = 0}; /* the gate's norm has an eps of 1e-5, whatever the file says */
  KR_TRY(kr_lm_read_mamba2(&z->r, i, "mamba_d_state", "mamba_ngroups", 1, &m));
  return kr_lm_config_add(z->r.c, &kr_lm_mamba2, i, "norm", &m);
}

static int32_t read_zamba_layers(zamba *z) {
  const kr_lm_config *c = z->r.c;
  KR_TRY(kr_lm_read_only_text(&z->r, "hidden_act", "gelu"));
  KR_TRY(kr_lm_read_only_flag(&z->r, "add_bias_linear", 0));
  KR_TRY(kr_lm_check_last(z->r.folder, LAYER("input_layernorm.weight"), c->n_layers));
  KR_TRY(kr_lm_check_last(z->r.folder, LAYER("mamba_decoder.input_layernorm.weight"), c->n_layers));
  for (int64_t i = 0; i < c->n_layers; i++) {
    const int is_hybrid = is_hybrid_layer(z, i);
    if (is_hybrid) KR_TRY(add_hybrid(z, i));
    KR_TRY(add_zamba_mixer(z, i));
    if (is_hybrid) kr_lm_config_last(c)->reads = KR_LM_READS_SUM;
  }
  return KRAIT_OK;
}

static int32_t read_zamba2(const kr_model_folder *folder, kr_lm_config **config) {
  zamba z = {.n_hybrid = 0};
  *config = NULL;
  KR_TRY(kr_lm_read_begin(folder, &kr_zamba2, "rms_norm_eps", -1, &z.r));
  const int32_t status = read_zamba_layers(&z);
  if (status < 0) kr_lm_config_close(&z.r.c);
  *config = z.r.c;
  return status;
}

static int is_zamba2(const kr_model_source *s) {
  return s->folder && strcmp(kr_lm_json_text(kr_model_folder_config(s->folder), "model_type", ""), "zamba2") == 0;
}

static const kr_lm_family kr_zamba2 = {
    .name = "zamba2", .models = "Zamba2", .keys = keys, .unused = unused, .read = read_zamba2};
const kr_model_kind kr_model_zamba2 = {
    .name = "zamba2", .detect = is_zamba2, .graphs = kr_lm_graphs, .lm = &kr_zamba2};

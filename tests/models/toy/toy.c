/* toy.c: a family of language models by the recipe of docs/ADD_MODEL.md: its configuration, its keys, its blocks, one
 * of them of its own kind. MODEL.md has the equations. */
#include "lm/lm.h"
#include "lm/lm_blocks.h"
#include "lm/lm_builder.h"
#include "model_kind.h"
#include "status.h"

#include <string.h>

/* ---- a kind of block of its own ---- */

typedef struct echo_sizes {
  int64_t d, W;
} echo_sizes;

typedef struct echo_weights {
  kr_weight_ref taps, out;
} echo_weights;

static int32_t load_echo(kr_lm_loader *l, const kr_lm_block *block) {
  const echo_sizes *s = block->sizes;
  echo_weights *w = block->weights;
  KR_TRY(kr_lm_load(l, "taps", 1, KR_SIZES(s->d, 1, s->W), &w->taps));
  return kr_lm_load(l, "echo_out", 1, KR_SIZES(s->d, s->d), &w->out);
}

static int32_t list_echo_states(const kr_lm_block *block, kr_lm_state *states) {
  const echo_sizes *s = block->sizes;
  states[0] = (kr_lm_state){.name = "echo", .n_dims = 2, .size = {s->d, s->W - 1}};
  return 1;
}

static kr_tensor record_echo(kr_lm_builder *b, const kr_lm_block *block, kr_tensor x) {
  const echo_sizes *s = block->sizes;
  const echo_weights *w = block->weights;
  const kr_tensor c = kr_lm_convolve(b, block, 0, x, &w->taps, NULL, s->W, KRAIT_ACT_NONE);
  return linear(&b->rows, "echo_out", c, .w = &w->out, .N = s->d, .K = s->d);
}

static const kr_lm_block_kind echo = {.name = "echo",
                                      .sizes_bytes = sizeof(echo_sizes),
                                      .weights_bytes = sizeof(echo_weights),
                                      .load = load_echo,
                                      .list_states = list_echo_states,
                                      .record = record_echo};

/* ---- the family ---- */

#define LAYER(key) "toy.layers.*." key
static const kr_lm_key keys[] = {{"embedding", "toy.embed.weight", 0},
                                 {"head", "toy.head.weight", KR_LM_PRODUCT | KR_LM_DELICATE},
                                 {"norm_f", "toy.norm.weight", 0},
                                 {"norm", LAYER("norm.weight"), 0},
                                 {"taps", LAYER("echo.taps"), 0},
                                 {"echo_out", LAYER("echo.out.weight"), KR_LM_PRODUCT},
                                 {"q", LAYER("q"), KR_LM_PRODUCT},
                                 {"k", LAYER("k"), KR_LM_PRODUCT},
                                 {"v", LAYER("v"), KR_LM_PRODUCT},
                                 {"o", LAYER("o"), KR_LM_PRODUCT},
                                 {"norm2", LAYER("norm2.weight"), 0},
                                 {"gate", LAYER("gate"), KR_LM_PRODUCT},
                                 {"up", LAYER("up"), KR_LM_PRODUCT},
                                 {"down", LAYER("down"), KR_LM_PRODUCT},
                                 {0}};
static int32_t read_toy(const kr_model_folder *folder, kr_lm_config **config);
static const kr_lm_family toy = {.name = "toy", .models = "Toy", .keys = keys, .read = read_toy};

static int32_t add_toy_layer(kr_lm_config *c, int64_t i) {
  const int64_t d = c->d;
  KR_TRY(i % 2 ? kr_lm_config_add(c, &kr_lm_attention, i, "norm",
                                  &(kr_lm_attention_sizes){.d = d, .H = 2, .Hk = 1, .D = d / 2})
               : kr_lm_config_add(c, &echo, i, "norm", &(echo_sizes){.d = d, .W = 3}));
  return kr_lm_config_add(c, &kr_lm_mlp, i, "norm2", &(kr_lm_mlp_sizes){.d = d, .F = 2 * d});
}

static int32_t read_toy(const kr_model_folder *folder, kr_lm_config **config) {
  const json_t *root = kr_model_folder_config(folder);
  const char *label = kr_model_folder_label(folder), *key;
  const kr_weight *embedding = kr_lm_find_weight(&toy, folder, "embedding", &key);
  int64_t d, n;
  *config = NULL;
  KR_CHECK(embedding && embedding->n_dims == 2, KRAIT_ERR_WEIGHTS, "%s: tensor '%s' is missing", label, key);
  KR_TRY(kr_lm_json_whole(label, root, "hidden_size", embedding->shape[1], 2, 1 << 16, &d));
  KR_TRY(kr_lm_json_whole(label, root, "num_hidden_layers", 1, 1, KR_LM_MOST_LAYERS, &n));
  KR_TRY(kr_lm_check_last(folder, LAYER("norm.weight"), n));
  KR_TRY(kr_lm_config_open(&toy, 2 * n, config));
  kr_lm_config *c = *config;
  c->d = d, c->V = c->n_used = embedding->shape[0], c->n_layers = n;
  c->is_rms = 1, c->eps = 1e-5f;
  int32_t status = kr_lm_json_eos(label, root, c->eos, &c->n_eos);
  for (int64_t i = 0; i < n && status >= 0; i++) status = add_toy_layer(c, i);
  if (status < 0) kr_lm_config_close(config);
  return status;
}

static int is_toy(const kr_model_source *s) {
  return s->folder && strcmp(kr_lm_json_text(kr_model_folder_config(s->folder), "model_type", ""), "toy") == 0;
}

const kr_model_kind kr_model_toy = {.name = "toy", .detect = is_toy, .graphs = kr_lm_graphs, .lm = &toy};

/* mamba_lm.c: the family of Mamba language models: Mamba, Mamba-2, Mamba-3, FalconMamba, and their hybrids with
 * attention. */
#include "mamba_lm.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "lm/lm.h"
#include "lm/lm_blocks.h"
#include "status.h"

/* ---- weights ---- */

#define LAYER(key) "backbone.layers.*." key
enum { OF_STEPS = KR_LM_PRODUCT, DELICATE = KR_LM_PRODUCT | KR_LM_DELICATE };
static const kr_lm_key keys[] = {{"embedding", "backbone.embeddings.weight", 0},
                                 {"embedding", "backbone.embedding.weight", 0},
                                 {"head", "lm_head.weight", DELICATE},
                                 {"norm_f", "backbone.norm_f.weight", 0},
                                 {"norm_f_bias", "backbone.norm_f.bias", 0},
                                 {"norm", LAYER("norm.weight"), 0},
                                 {"norm_bias", LAYER("norm.bias"), 0},
                                 {"in_proj", LAYER("mixer.in_proj.weight"), OF_STEPS},
                                 {"in_proj_bias", LAYER("mixer.in_proj.bias"), 0},
                                 {"conv", LAYER("mixer.conv1d.weight"), 0},
                                 {"conv_bias", LAYER("mixer.conv1d.bias"), 0},
                                 {"x_proj", LAYER("mixer.x_proj.weight"), DELICATE},
                                 {"dt_proj", LAYER("mixer.dt_proj.weight"), 0},
                                 {"dt_proj_bias", LAYER("mixer.dt_proj.bias"), KR_LM_FLOAT},
                                 {"dt_bias", LAYER("mixer.dt_bias"), KR_LM_FLOAT},
                                 {"A", LAYER("mixer.A_log"), KR_LM_FLOAT},
                                 {"D", LAYER("mixer.D"), KR_LM_FLOAT},
                                 {"gate_norm", LAYER("mixer.norm.weight"), 0},
                                 {"out_proj", LAYER("mixer.out_proj.weight"), OF_STEPS},
                                 {"out_proj_bias", LAYER("mixer.out_proj.bias"), 0},
                                 /* of Mamba-3 */
                                 {"B_bias", LAYER("mixer.B_bias"), KR_LM_FLOAT},
                                 {"C_bias", LAYER("mixer.C_bias"), KR_LM_FLOAT},
                                 {"B_norm", LAYER("mixer.B_norm.weight"), 0},
                                 {"C_norm", LAYER("mixer.C_norm.weight"), 0},
                                 {"mimo_x", LAYER("mixer.mimo_x"), KR_LM_FLOAT},
                                 {"mimo_z", LAYER("mixer.mimo_z"), KR_LM_FLOAT},
                                 {"mimo_o", LAYER("mixer.mimo_o"), KR_LM_FLOAT},
                                 /* of attention */
                                 {"qkv", LAYER("mixer.in_proj.weight"), OF_STEPS},
                                 {"qkv_bias", LAYER("mixer.in_proj.bias"), 0},
                                 {"o", LAYER("mixer.out_proj.weight"), OF_STEPS},
                                 {"o_bias", LAYER("mixer.out_proj.bias"), 0},
                                 /* of the gated MLP */
                                 {"norm2", LAYER("norm2.weight"), 0},
                                 {"norm2_bias", LAYER("norm2.bias"), 0},
                                 {"gate_up", LAYER("mlp.fc1.weight"), 0},
                                 {"gate_up_bias", LAYER("mlp.fc1.bias"), 0},
                                 {"down", LAYER("mlp.fc2.weight"), OF_STEPS},
                                 {"down_bias", LAYER("mlp.fc2.bias"), 0},
                                 {0}};

/* ---- blocks ---- */

static int32_t add_mamba_lm_layer(kr_lm_config *to, const kr_mamba_lm_config *c, int64_t i) {
  const kr_mamba_lm_attention *a = &c->attention;
  if (a->layers[i])
    KR_TRY(kr_lm_config_add(to, &kr_lm_attention, i, "norm",
                            &(kr_lm_attention_sizes){.d = c->d,
                                                     .H = a->H,
                                                     .Hk = a->Hk,
                                                     .D = a->D,
                                                     .W = a->W,
                                                     .R = a->R,
                                                     .is_interleaved = a->is_interleaved,
                                                     .scale = (double)a->scale}));
  else if (c->mixer == KR_MIXER_MAMBA3)
    KR_TRY(kr_lm_config_add(to, &kr_lm_mamba3, i, "norm", &c->mamba3));
  else
    KR_TRY(kr_lm_config_add(to, c->mixer == KR_MIXER_MAMBA2 ? &kr_lm_mamba2 : &kr_lm_mamba1, i, "norm",
                            &(kr_lm_mamba_sizes){.d = c->d,
                                                 .Di = c->Di,
                                                 .N = c->N,
                                                 .W = c->W,
                                                 .R = c->R,
                                                 .H = c->H,
                                                 .P = c->P,
                                                 .G = c->G,
                                                 .dt_eps = (double)c->dt_eps}));
  return c->F ? kr_lm_config_add(to, &kr_lm_mlp, i, "norm2", &(kr_lm_mlp_sizes){.d = c->d, .F = c->F, .is_up_first = 1})
              : KRAIT_OK;
}

int32_t kr_mamba_lm_describe(const kr_mamba_lm_config *c, kr_lm_config **config) {
  KR_TRY(kr_lm_config_open(&kr_mamba_lm, 2 * c->n_layers, config));
  kr_lm_config *to = *config;
  int32_t status = KRAIT_OK;
  int64_t rope;
  to->d = c->d, to->V = c->V, to->n_used = c->n_used, to->n_layers = c->n_layers;
  memcpy(to->eos, c->eos, sizeof to->eos);
  to->n_eos = c->n_eos;
  to->is_rms = c->is_rms, to->eps = c->eps;
  if (c->attention.R) status = kr_lm_config_add_plain_rope(to, c->attention.R, (double)c->attention.base, &rope);
  for (int64_t i = 0; i < c->n_layers && status >= 0; i++) status = add_mamba_lm_layer(to, c, i);
  if (status < 0) kr_lm_config_close(config);
  return status;
}

static int32_t read_mamba_lm(const kr_model_folder *folder, kr_lm_config **config) {
  kr_mamba_lm_config *c = kr_alloc(sizeof *c);
  *config = NULL;
  KR_CHECK(c, KRAIT_ERR_NO_MEMORY, "no memory for a model");
  int32_t status = kr_mamba_lm_config_read(folder, c);
  if (status >= 0) status = kr_mamba_lm_describe(c, config);
  kr_free(c);
  return status;
}

/* ---- published sizes ---- */

/* Of Mamba-3 also the sizes of Mamba-2's models, for comparisons. */
static const struct {
  const char *name;
  int32_t mixer;
  int64_t d, n_layers, V, n_used, F, ranks;
} sizes[] = {
    {"mamba-130m", KR_MIXER_MAMBA1, 768, 24, 50280, 50277, 0, 0},
    {"mamba-370m", KR_MIXER_MAMBA1, 1024, 48, 50280, 50277, 0, 0},
    {"mamba-790m", KR_MIXER_MAMBA1, 1536, 48, 50280, 50277, 0, 0},
    {"mamba-1.4b", KR_MIXER_MAMBA1, 2048, 48, 50280, 50277, 0, 0},
    {"mamba-2.8b", KR_MIXER_MAMBA1, 2560, 64, 50280, 50277, 0, 0},
    {"mamba2-130m", KR_MIXER_MAMBA2, 768, 24, 50288, 50277, 0, 0},
    {"mamba2-370m", KR_MIXER_MAMBA2, 1024, 48, 50288, 50277, 0, 0},
    {"mamba2-780m", KR_MIXER_MAMBA2, 1536, 48, 50288, 50277, 0, 0},
    {"mamba2-1.3b", KR_MIXER_MAMBA2, 2048, 48, 50288, 50277, 0, 0},
    {"mamba2-2.7b", KR_MIXER_MAMBA2, 2560, 64, 50288, 50277, 0, 0},
    {"mamba3-130m", KR_MIXER_MAMBA3, 768, 24, 50288, 50277, 0, 1},
    {"mamba3-2.7b", KR_MIXER_MAMBA3, 2560, 64, 50288, 50277, 0, 1},
    {"mamba3-siso-187m", KR_MIXER_MAMBA3, 768, 12, 128256, 128256, 1536, 1},
    {"mamba3-siso-1.5b", KR_MIXER_MAMBA3, 2048, 24, 128256, 128256, 4096, 1},
    {"mamba3-mimo-1.5b", KR_MIXER_MAMBA3, 2048, 24, 128256, 128256, 3840, 4},
};

static int32_t find_published_mamba_lm(const char *name, kr_lm_config **config) {
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    if (strcmp(sizes[i].name, name) != 0) continue;
    const int is_first = sizes[i].mixer == KR_MIXER_MAMBA1, is_mimo = sizes[i].ranks > 1;
    const int64_t Di = 2 * sizes[i].d, H = is_first ? 1 : Di / 64;
    const kr_mamba_lm_config c = {.mixer = sizes[i].mixer,
                                  .d = sizes[i].d,
                                  .n_layers = sizes[i].n_layers,
                                  .V = sizes[i].V,
                                  .n_used = sizes[i].n_used,
                                  .F = sizes[i].F,
                                  .Di = Di,
                                  .N = is_first ? 16 : 128,
                                  .W = 4,
                                  .eps = 1e-5f,
                                  .is_rms = 1,
                                  .G = 1,
                                  .R = (sizes[i].d + 15) / 16,
                                  .H = H,
                                  .P = Di / H,
                                  .mamba3 = {.d = sizes[i].d,
                                             .H = H,
                                             .P = Di / H,
                                             .N = 128,
                                             .G = 1,
                                             .R = sizes[i].ranks,
                                             .M = 32,
                                             .is_mimo = is_mimo,
                                             .A_floor = 1e-4}};
    return kr_mamba_lm_describe(&c, config);
  }
  return KRAIT_OK;
}

/* ---- the family ---- */

/* Upstream's files have no model_type. */
static int is_mamba_lm(const kr_model_source *s) {
  static const char *const types[] = {"mamba", "mamba2", "Mamba2", "Mamba1", "falcon_mamba"};
  if (!s->folder) return 0;
  const json_t *type = json_object_get(kr_model_folder_config(s->folder), "model_type");
  for (size_t i = 0; type && i < sizeof types / sizeof *types; i++)
    if (json_is_string(type) && strcmp(json_string_value(type), types[i]) == 0) return 1;
  return !type;
}

const kr_lm_family kr_mamba_lm = {
    .name = "mamba_lm",
    .models = "Mamba, Mamba-2, Mamba-3, FalconMamba",
    .keys = keys,
    .keeps_q8 = 1,
    .read = read_mamba_lm,
    .find_published = find_published_mamba_lm,
    .published = "mamba-130m, -370m, -790m, -1.4b, -2.8b, mamba2-130m, -370m, -780m, -1.3b, -2.7b, mamba3-130m, "
                 "-2.7b, mamba3-siso-187m, -1.5b, mamba3-mimo-1.5b"};
const kr_model_kind kr_model_mamba_lm = {
    .name = "mamba_lm", .detect = is_mamba_lm, .graphs = kr_lm_graphs, .lm = &kr_mamba_lm};

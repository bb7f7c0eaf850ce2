/* seedvr_config.c: the constructor's arguments of both variants, with the published models' values as defaults,
 * checked. */
#include <string.h>

#include "seedvr.h"
#include "status.h"

static const char *const known_keys[] = {
    "ada",           "block_type",  "emb_dim",  "expand_ratio",    "head_dim",         "heads",        "mlp_type",
    "mm_layers",     "msa_type",    "norm",     "norm_eps",        "num_layers",       "patch_size",   "qk_bias",
    "qk_norm",       "qk_rope",     "rope_dim", "rope_type",       "shared_mlp",       "shared_qkv",   "txt_dim",
    "txt_in_dim",    "txt_in_norm", "vid_dim",  "vid_in_channels", "vid_out_channels", "vid_out_norm", "window",
    "window_method",
};

/* Settings for which only one value is supported. */
static int32_t need_text(const kr_config *config, const char *key, const char *only) {
  const char *text;
  KR_TRY(kr_config_text(config, key, only, &text));
  KR_CHECK(strcmp(text, only) == 0, KRAIT_ERR_UNSUPPORTED, "configuration: %s is '%.40s'; only '%s' is supported", key,
           text, only);
  return KRAIT_OK;
}

static int32_t need_bool(const kr_config *config, const char *key, int only) {
  int value;
  KR_TRY(kr_config_bool(config, key, only, &value));
  KR_CHECK(value == only, KRAIT_ERR_UNSUPPORTED, "configuration: %s is not supported with this value", key);
  return KRAIT_OK;
}

static int32_t need_int(const kr_config *config, const char *key, int64_t only) {
  int64_t value;
  KR_TRY(kr_config_int(config, key, only, INT64_MIN, INT64_MAX, &value));
  KR_CHECK(value == only, KRAIT_ERR_WEIGHTS, "configuration: %s is %lld, must be %lld", key, (long long)value,
           (long long)only);
  return KRAIT_OK;
}

static int32_t check_fixed(const kr_config *config, const kr_seedvr_config *c) {
  KR_TRY(need_text(config, "ada", "single"));
  KR_TRY(need_text(config, "norm", "fusedrms"));
  KR_TRY(need_text(config, "qk_norm", "fusedrms"));
  KR_TRY(need_bool(config, "qk_bias", 0));
  KR_TRY(need_int(config, "txt_dim", c->C));
  KR_TRY(need_int(config, "emb_dim", 6 * c->C));
  KR_TRY(need_text(config, "mlp_type", c->is_3b ? "swiglu" : "normal"));
  int64_t n;
  KR_TRY(kr_config_count(config, "block_type", &n));
  for (int64_t i = 0; i < n; i++) {
    const char *type;
    KR_TRY(kr_config_text_at(config, "block_type", i, &type));
    KR_CHECK(strcmp(type, "mmdit_sr") == 0, KRAIT_ERR_UNSUPPORTED,
             "configuration: block_type[%lld] is '%.40s'; only 'mmdit_sr' is supported", (long long)i, type);
  }
  if (!c->is_3b) {
    KR_TRY(need_bool(config, "qk_rope", 1));
    KR_TRY(need_bool(config, "shared_mlp", 0));
    return need_bool(config, "shared_qkv", 0);
  }
  KR_TRY(need_text(config, "rope_type", "mmrope3d"));
  KR_TRY(need_text(config, "txt_in_norm", "fusedln"));
  return need_text(config, "vid_out_norm", "fusedrms");
}

/* One triple for all layers. */
static int32_t read_window(const kr_config *config, kr_seedvr_config *c) {
  c->window[0] = 4, c->window[1] = c->window[2] = 3;
  int64_t n;
  KR_TRY(kr_config_count(config, "window", &n));
  for (int64_t i = 0; i < n; i++) {
    int64_t window[3];
    KR_TRY(kr_config_ints_at(config, "window", i, 1, 1 << 16, 3, window));
    if (i == 0) memcpy(c->window, window, sizeof window);
    KR_CHECK(memcmp(c->window, window, sizeof window) == 0, KRAIT_ERR_UNSUPPORTED,
             "configuration: window[%lld] differs from window[0]", (long long)i);
  }
  return KRAIT_OK;
}

static int32_t read_methods(const kr_config *config, kr_seedvr_config *c) {
  int64_t n;
  KR_TRY(kr_config_count(config, "window_method", &n));
  KR_CHECK(n == 0 || n == c->n_layers, KRAIT_ERR_WEIGHTS,
           "configuration: window_method has %lld values for %lld layers", (long long)n, (long long)c->n_layers);
  for (int64_t i = 0; i < c->n_layers; i++) {
    const char *method = i % 2 ? "720pswin_by_size_bysize" : "720pwin_by_size_bysize";
    if (n) KR_TRY(kr_config_text_at(config, "window_method", i, &method));
    c->is_shifted[i] = strcmp(method, "720pswin_by_size_bysize") == 0;
    KR_CHECK(c->is_shifted[i] || strcmp(method, "720pwin_by_size_bysize") == 0, KRAIT_ERR_UNSUPPORTED,
             "configuration: unknown window_method '%.40s'", method);
  }
  return KRAIT_OK;
}

static int32_t read_seedvr_sizes(const kr_config *config, kr_seedvr_config *c) {
  int64_t expand;
  double eps;
  int32_t n_patch = 3;
  KR_TRY(kr_config_int(config, "vid_in_channels", 33, 1, 4096, &c->vid_in));
  KR_TRY(kr_config_int(config, "vid_out_channels", 16, 1, 4096, &c->vid_out));
  KR_TRY(kr_config_int(config, "vid_dim", c->is_3b ? 2560 : 3072, 1, 1 << 16, &c->C));
  KR_TRY(kr_config_int(config, "txt_in_dim", 5120, 1, 1 << 16, &c->txt_in));
  KR_TRY(kr_config_int(config, "heads", c->is_3b ? 20 : 24, 1, 1 << 10, &c->H));
  KR_TRY(kr_config_int(config, "head_dim", 128, 1, 256, &c->D));
  KR_TRY(kr_config_int(config, "num_layers", c->is_3b ? 32 : 36, 1, KR_SEEDVR_MOST_LAYERS, &c->n_layers));
  KR_TRY(kr_config_int(config, "expand_ratio", 4, 1, 64, &expand));
  KR_TRY(kr_config_float(config, "norm_eps", 1e-5, 0, 1, &eps));
  KR_TRY(kr_config_int(config, "mm_layers", 10, 0, KR_SEEDVR_MOST_LAYERS, &c->n_apart));
  KR_TRY(kr_config_int(config, "rope_dim", c->is_3b ? 128 : c->D / 2, 1, c->D, &c->rope_dim));
  c->patch[0] = 1, c->patch[1] = c->patch[2] = 2;
  KR_TRY(kr_config_ints(config, "patch_size", 1, 64, 3, c->patch, &n_patch));
  KR_CHECK(n_patch == 3 && c->patch[0] == 1, KRAIT_ERR_UNSUPPORTED, "configuration: patch_size must be [1, h, w]");
  if (!c->is_3b || c->n_apart > c->n_layers) c->n_apart = c->n_layers;
  c->F = c->is_3b ? (2 * c->C * expand / 3 + 255) / 256 * 256 : c->C * expand;
  c->eps = (float)eps;
  return KRAIT_OK;
}

int32_t kr_seedvr_config_read(const char *model, const kr_config *config, kr_seedvr_config *c) {
  *c = (kr_seedvr_config){.is_3b = strcmp(model, "seedvr_dit3b") == 0};
  KR_CHECK(c->is_3b || strcmp(model, "seedvr_dit7b") == 0, KRAIT_ERR_WEIGHTS, "unknown model '%s'", model);
  KR_TRY(kr_config_check_keys(config, known_keys, sizeof known_keys / sizeof *known_keys));
  KR_TRY(read_seedvr_sizes(config, c));
  KR_TRY(check_fixed(config, c));
  KR_TRY(read_window(config, c));
  return read_methods(config, c);
}

/* lm_describe.c: sizes follow from the blocks that the family makes of config.json, and from the tensors' headers. */
#include "lm_describe.h"

#include <string.h>

#include <krait/language.h>

#include "alloc.h"
#include "lm/lm.h"
#include "lm_files.h"
#include "status.h"

typedef struct sizes {
  int64_t n_params, n_bytes, state_bytes, token_bytes;
} sizes;

static int64_t n_of_tensor(const kr_weight *t) {
  int64_t n = 1;
  for (int i = 0; i < t->n_dims; i++) n *= t->shape[i];
  return n;
}

static int has_extension(const char *name, const char *end) {
  const size_t n = strlen(name), n_end = strlen(end);
  return n >= n_end && strcmp(name + n - n_end, end) == 0;
}

/* Blocks of quantized weights are stored as words (src/format/quantize.h). */
static int64_t n_params_of(const kr_weight *t) {
  if (has_extension(t->name, ".scales")) return 0;
  if (has_extension(t->name, ".q8_0")) return 4 * n_of_tensor(t);
  return has_extension(t->name, ".q4_k") ? n_of_tensor(t) / 36 * 256 : n_of_tensor(t);
}

/* Keys and values have 16 bits where the weights have not 32, which their mean tells. */
static void measure_folder(const kr_model_folder *folder, const kr_lm_config *config, sizes *s) {
  *s = (sizes){0};
  const kr_weight *t;
  for (int64_t i = 0; (t = kr_model_folder_at(folder, i)) != NULL; i++) {
    s->n_params += n_params_of(t);
    s->n_bytes += (int64_t)t->bytes;
  }
  const int64_t token_bytes = s->n_bytes < 3 * s->n_params ? sizeof(uint16_t) : sizeof(float);
  for (int64_t i = 0; i < config->n_blocks; i++)
    for (int k = 0; k < config->blocks[i].n_states; k++) {
      const kr_lm_state *state = &config->blocks[i].states[k];
      int64_t n = state->is_per_token ? token_bytes : (int64_t)sizeof(float);
      for (int d = 0; d < state->n_dims; d++) n *= state->size[d];
      *(state->is_per_token ? &s->token_bytes : &s->state_bytes) += n;
    }
}

static int32_t open_config(const char *path, kr_model_folder **folder, kr_lm_config **config) {
  const kr_lm_family *family;
  *config = NULL;
  KR_TRY(kr_model_folder_open(path, folder));
  int32_t status = kr_lm_family_of(*folder, &family);
  if (status >= 0) status = family->read(*folder, config);
  if (status < 0) kr_model_folder_close(folder);
  return status;
}

/* A folder without a tokenizer, or with one that is not supported, is described all the same. */
static json_t *text_json(const char *path, const kr_model_folder *folder) {
  kr_lm_files f;
  const krait_lm_options options = {.size = sizeof options, .path = path};
  if (kr_lm_files_open(&options, folder, &f) < 0)
    return json_pack("{s:n, s:s}", "tokenizer", "why_none", krait_error_detail());
  json_t *json = json_pack("{s:I, s:s, s:I}", "tokenizer", (json_int_t)kr_tokenizer_size(f.tokenizer), "chat_format",
                           kr_chat_name(&f.chat), "bos", (json_int_t)f.bos);
  kr_lm_files_close(&f);
  return json;
}

int32_t kr_lm_describe(const char *path, json_t **json) {
  kr_model_folder *folder = NULL;
  kr_lm_config *config;
  sizes s;
  *json = NULL;
  KR_TRY(open_config(path, &folder, &config));
  measure_folder(folder, config, &s);
  const char *type = json_string_value(json_object_get(kr_model_folder_config(folder), "model_type"));
  *json = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "family", config->family->name, "model_type",
                    type ? type : config->family->name, "layers", (json_int_t)config->n_layers, "width",
                    (json_int_t)config->d, "vocabulary", (json_int_t)config->V, "parameters", (json_int_t)s.n_params,
                    "weights_bytes", (json_int_t)s.n_bytes, "session_bytes", (json_int_t)s.state_bytes, "token_bytes",
                    (json_int_t)s.token_bytes);
  json_t *text = text_json(path, folder);
  const int failed = !*json || json_object_update(*json, text) != 0;
  json_decref(text);
  kr_lm_config_close(&config);
  kr_model_folder_close(&folder);
  if (!failed) return KRAIT_OK;
  json_decref(*json), *json = NULL;
  return kr_fail(KRAIT_ERR_NO_MEMORY, "%s: no memory for its description", path);
}

/* ---- memory ---- */

int32_t kr_lm_count_places(const krait_ctx *ctx, const char *path, int64_t n_tokens, int64_t most, int64_t *n) {
  const int32_t device = krait_ctx_device(ctx);
  krait_device_info info = {.size = sizeof info};
  kr_model_folder *folder = NULL;
  kr_lm_config *config;
  sizes s;
  KR_TRY(open_config(path, &folder, &config));
  measure_folder(folder, config, &s);
  kr_lm_config_close(&config);
  kr_model_folder_close(&folder);
  const int is_gpu = device != KRAIT_DEVICE_CPU && krait_device_read(device - KRAIT_DEVICE_CUDA(0), &info) >= 0;
  const int64_t memory = is_gpu ? (int64_t)info.memory_bytes : (int64_t)kr_memory_available();
  const double each = (double)s.state_bytes + (double)s.token_bytes * (double)n_tokens + 16.0 * (double)n_tokens;
  const double fits = ((double)memory - (double)s.n_bytes) / 2 / (each + 1);
  *n = fits < 1 ? 1 : fits > (double)most ? most : (int64_t)fits;
  return KRAIT_OK;
}

/* lm_files.c: a tokenizer given with --tokenizer has its own tokenizer_config.json beside it. A GGUF file has all of
 * this inside, except generation_config.json. */
#include "lm_files.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "alloc.h"
#include "gguf.h"
#include "gguf_tokenizer.h"
#include "mapfile.h"
#include "status.h"

#define FORMAT_CHECK(condition, ...) KR_CHECK(condition, KRAIT_ERR_FILE_FORMAT, __VA_ARGS__)

/* ---- files ---- */

/* *tree: NULL if there is no such file beside path. */
static int32_t read_beside(const char *path, const char *name, json_t **tree) {
  kr_mapfile bytes;
  json_error_t error;
  char *file = kr_model_folder_file(path, name);
  *tree = NULL;
  if (!file) return KRAIT_OK;
  int32_t status = kr_mapfile_open(file, &bytes);
  if (status >= 0) {
    *tree = json_loadb((const char *)bytes.bytes, bytes.n_bytes, 0, &error);
    kr_mapfile_close(&bytes);
    if (!json_is_object(*tree)) {
      status = *tree ? kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: not a JSON object", file)
                     : kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: line %d: %s", file, error.line, error.text);
      json_decref(*tree), *tree = NULL;
    }
  }
  kr_free(file);
  return status;
}

/* ---- tokenizers ---- */

/* A tokenizer.json, or the folder that it is in. */
static int32_t open_given(const char *path, kr_tokenizer **tokenizer) {
  struct stat info;
  const int is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
  char *inside = is_folder ? kr_model_folder_file(path, "tokenizer.json") : NULL;
  const int32_t status = kr_tokenizer_open(inside ? inside : path, tokenizer);
  kr_free(inside);
  return status;
}

static int32_t open_tokenizer(const krait_lm_options *o, const kr_model_folder *folder, kr_tokenizer **tokenizer) {
  json_t *tree;
  size_t n_bytes;
  if (o->tokenizer_path) return open_given(o->tokenizer_path, tokenizer);
  const unsigned char *gguf = kr_model_folder_gguf(folder, &n_bytes);
  if (gguf) {
    KR_TRY(kr_gguf_tokenizer(gguf, n_bytes, o->path, &tree));
    const int32_t status = kr_tokenizer_open_tree(tree, o->path, tokenizer);
    json_decref(tree);
    return status;
  }
  char *path = kr_model_folder_file(o->path, "tokenizer.json");
  KR_CHECK(path, KRAIT_ERR_FILE_OPEN,
           "%s has no tokenizer.json; give one with --tokenizer (the original Mamba models use that of "
           "EleutherAI/gpt-neox-20b), or tokens with --ids",
           o->path);
  const int32_t status = kr_tokenizer_open(path, tokenizer);
  kr_free(path);
  return status;
}

/* A token's text, which is written as such or as an added token. */
static const char *token_text(const json_t *config, const char *key) {
  const json_t *value = json_object_get(config, key);
  return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

static int32_t token_id(const kr_tokenizer *t, const json_t *config, const char *key) {
  const char *text = token_text(config, key);
  return text ? kr_tokenizer_find_added(t, text) : -1;
}

/* If it says whether a text gets a token before or behind it, the template of tokenizer.json does not count: so in the
 * original library. */
static void apply_config(const json_t *config, kr_lm_files *f) {
  const json_t *adds_bos = json_object_get(config, "add_bos_token"),
               *adds_eos = json_object_get(config, "add_eos_token");
  const int32_t bos = token_id(f->tokenizer, config, "bos_token"), eos = token_id(f->tokenizer, config, "eos_token");
  if (adds_bos || adds_eos)
    kr_tokenizer_set_template(f->tokenizer, json_is_true(adds_bos) ? bos : -1, json_is_true(adds_eos) ? eos : -1);
  f->bos = bos;
}

/* ---- chat templates ---- */

/* One of several has the name "default". */
static const char *default_template(const json_t *value) {
  const json_t *one;
  size_t i;
  json_array_foreach(value, i, one) {
    const char *name = json_string_value(json_object_get(one, "name"));
    if (name && strcmp(name, "default") == 0) return json_string_value(json_object_get(one, "template"));
  }
  return json_string_value(value);
}

static void find_in_gguf(const unsigned char *bytes, size_t n_bytes, kr_lm_files *f) {
  kr_gguf g;
  uint64_t at = 0;
  size_t n;
  if (kr_gguf_open(bytes, n_bytes, "", &g) < 0) return; /* it has been read before */
  const char *text = kr_gguf_text(kr_gguf_find(&g, "tokenizer.chat_template"), &at, &n);
  char *copy = text ? kr_alloc(n + 1) : NULL;
  if (copy) memcpy(copy, text, n), copy[n] = 0;
  int64_t bos = -1;
  kr_gguf_whole(kr_gguf_find(&g, "tokenizer.ggml.bos_token_id"), &bos);
  size_t n_bos;
  const char *begin = kr_tokenizer_bytes(f->tokenizer, (int32_t)bos, &n_bos);
  kr_chat_find(f->tokenizer, copy, n_bos ? begin : NULL, &f->chat);
  f->bos = bos;
  kr_free(copy);
  kr_gguf_close(&g);
}

/* chat_template.jinja, which is the template itself, counts more than what tokenizer_config.json says. */
static int32_t find_chat(const char *path, const json_t *config, kr_lm_files *f) {
  const char *text = default_template(json_object_get(config, "chat_template")), *bos = token_text(config, "bos_token");
  char *file = kr_model_folder_file(path, "chat_template.jinja"), *copy = NULL;
  kr_mapfile bytes;
  int32_t status = file ? kr_mapfile_open(file, &bytes) : KRAIT_OK;
  if (file && status >= 0) {
    copy = kr_alloc(bytes.n_bytes + 1);
    if (copy && bytes.n_bytes) memcpy(copy, bytes.bytes, bytes.n_bytes);
    if (copy) copy[bytes.n_bytes] = 0;
    else status = kr_fail(KRAIT_ERR_NO_MEMORY, "%s: no memory for it", file);
    kr_mapfile_close(&bytes);
  }
  if (status >= 0) kr_chat_find(f->tokenizer, copy ? copy : text, bos, &f->chat);
  kr_free(file), kr_free(copy);
  return status;
}

static int32_t read_tokenizer_files(const krait_lm_options *o, const kr_model_folder *folder, kr_lm_files *f) {
  const char *path = o->tokenizer_path ? o->tokenizer_path : o->path;
  json_t *config;
  size_t n_bytes;
  const unsigned char *gguf = o->tokenizer_path ? NULL : kr_model_folder_gguf(folder, &n_bytes);
  KR_TRY(open_tokenizer(o, folder, &f->tokenizer));
  if (gguf) {
    find_in_gguf(gguf, n_bytes, f);
  } else {
    KR_TRY(read_beside(path, "tokenizer_config.json", &config));
    apply_config(config, f);
    const int32_t status = find_chat(path, config, f);
    json_decref(config);
    KR_TRY(status);
  }
  return o->chat_format ? kr_chat_named(o->chat_format, &f->chat) : KRAIT_OK;
}

/* ---- generation_config.json ---- */

static int32_t read_ends(const char *path, const json_t *config, kr_lm_files *f) {
  const json_t *all = json_object_get(config, "eos_token_id");
  const size_t n = json_is_array(all) ? json_array_size(all) : all && !json_is_null(all);
  FORMAT_CHECK(n <= KR_MOST_ENDS, "%s: generation_config.json: more than %d eos_token_id", path, KR_MOST_ENDS);
  for (size_t i = 0; i < n; i++) {
    const json_t *item = json_is_array(all) ? json_array_get(all, i) : all;
    FORMAT_CHECK(json_is_integer(item), "%s: generation_config.json: eos_token_id is not a whole number", path);
    f->ends[f->n_ends++] = json_integer_value(item);
  }
  f->has_ends = n > 0;
  return KRAIT_OK;
}

/* 0 if it says nothing. */
static int32_t read_number(const char *path, const json_t *config, const char *key, double high, double *value) {
  const json_t *item = json_object_get(config, key);
  *value = 0;
  if (!item || json_is_null(item)) return KRAIT_OK;
  *value = json_number_value(item);
  FORMAT_CHECK(json_is_number(item) && *value >= 0 && *value <= high,
               "%s: generation_config.json: %s is not a number from 0 to %g; --no-config ignores the file", path, key,
               high);
  return KRAIT_OK;
}

static int32_t take_defaults(const char *path, const json_t *config, kr_lm_files *f) {
  const int samples = json_is_true(json_object_get(config, "do_sample"));
  double temperature, top_k, top_p, min_p, penalty, n_tokens;
  KR_TRY(read_ends(path, config, f));
  KR_TRY(read_number(path, config, "temperature", 1000, &temperature));
  KR_TRY(read_number(path, config, "top_k", 1 << 30, &top_k));
  KR_TRY(read_number(path, config, "top_p", 1, &top_p));
  KR_TRY(read_number(path, config, "min_p", 1, &min_p));
  KR_TRY(read_number(path, config, "repetition_penalty", 1000, &penalty));
  KR_TRY(read_number(path, config, "max_new_tokens", 1 << 30, &n_tokens));
  const json_t *bos = json_object_get(config, "bos_token_id");
  if (json_is_integer(bos)) f->bos = json_integer_value(bos);
  f->sampling.repetition_penalty = penalty == 1 ? 0 : (float)penalty;
  f->n_tokens = (int64_t)n_tokens;
  if (!samples) return KRAIT_OK;
  f->sampling.temperature = json_is_number(json_object_get(config, "temperature")) ? (float)temperature : 1;
  f->sampling.top_k = (int32_t)top_k, f->sampling.top_p = (float)top_p, f->sampling.min_p = (float)min_p;
  return KRAIT_OK;
}

int32_t kr_lm_files_open(const krait_lm_options *o, const kr_model_folder *folder, kr_lm_files *f) {
  json_t *config = NULL;
  *f = (kr_lm_files){.bos = -1, .sampling.size = sizeof f->sampling};
  int32_t status = o->no_tokenizer ? KRAIT_OK : read_tokenizer_files(o, folder, f);
  const json_t *bos = json_object_get(kr_model_folder_config(folder), "bos_token_id");
  if (status >= 0 && json_is_integer(bos)) f->bos = json_integer_value(bos);
  if (status >= 0 && !o->no_generation_config) status = read_beside(o->path, "generation_config.json", &config);
  if (status >= 0 && config) status = take_defaults(o->path, config, f);
  json_decref(config);
  if (status < 0) kr_lm_files_close(f);
  return status;
}

void kr_lm_files_close(kr_lm_files *f) { kr_tokenizer_close(&f->tokenizer); }

/* config.c: merges the three sources of a configuration, and reads typed values from the result. */
#include "config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "json_text.h"
#include "mapfile.h"
#include "status.h"
#include "yaml_tree.h"

struct kr_config {
  json_t *values; /* object */
  char *model;
};

/* ---- sources ---------------------------------------------------------------------------------------------------- */

static int32_t set_model(kr_config *config, const json_t *name, const char *label) {
  if (!name || json_is_null(name)) return KRAIT_OK;
  KR_CHECK(json_is_string(name), KRAIT_ERR_WEIGHTS, "%s: the model's name is not a string", label);
  char *copy = kr_strdup(json_string_value(name));
  KR_CHECK(copy, KRAIT_ERR_NO_MEMORY, "no memory for a configuration");
  kr_free(config->model);
  config->model = copy;
  return KRAIT_OK;
}

/* Keys of a section that name the model or its training data, rather than describing its structure. */
static int is_about_model(const char *key) {
  return strcmp(key, "model") == 0 || strcmp(key, "model_lib") == 0 || strcmp(key, "model_class") == 0 ||
         strcmp(key, "input_type") == 0;
}

static int32_t merge_values(kr_config *config, json_t *values) {
  const char *key;
  json_t *value;
  json_object_foreach(values, key, value) {
    if (is_about_model(key)) continue;
    KR_CHECK(json_object_set(config->values, key, value) == 0, KRAIT_ERR_NO_MEMORY, "no memory for a configuration");
  }
  return KRAIT_OK;
}

/* Finds the model's section in any of the layouts that config.h lists. */
static int32_t merge_tree(kr_config *config, json_t *root, const char *label) {
  json_t *model = json_object_get(root, "model");
  json_t *section = json_is_object(model) ? model : root;
  KR_CHECK(json_is_object(section), KRAIT_ERR_FILE_FORMAT, "%s: not a configuration (expected lines of key: value)",
           label);
  json_t *inner = json_object_get(section, "param");
  if (!inner) inner = json_object_get(section, "config");
  KR_CHECK(!inner || json_is_object(inner), KRAIT_ERR_FILE_FORMAT, "%s: 'param' is not a section", label);
  KR_TRY(set_model(config, json_object_get(section, "model_lib"), label));
  if (!json_is_object(json_object_get(section, "model")))
    KR_TRY(set_model(config, json_object_get(section, "model"), label));
  return merge_values(config, inner ? inner : section);
}

static int32_t merge_text(kr_config *config, const char *text, size_t length, const char *label) {
  json_t *tree;
  KR_TRY(kr_yaml_read(text, length, label, &tree));
  int32_t status = merge_tree(config, tree, label);
  json_decref(tree);
  return status;
}

static int32_t merge_metadata(kr_config *config, const kr_weights *weights) {
  const char *text = kr_weights_metadata(weights, "config"), *model = kr_weights_metadata(weights, "model");
  if (text) KR_TRY(merge_text(config, text, strlen(text), "the weights' metadata 'config'"));
  if (!model) return KRAIT_OK;
  json_t *name = json_string(model);
  int32_t status = set_model(config, name, "the weights' metadata");
  json_decref(name);
  return status;
}

static int32_t merge_file(kr_config *config, const char *path) {
  kr_mapfile file;
  KR_TRY(kr_mapfile_open(path, &file));
  int32_t status = merge_text(config, (const char *)file.bytes, file.n_bytes, path);
  kr_mapfile_close(&file);
  return status;
}

/* Length of one "key=value", up to a comma outside brackets and quotes. */
static size_t override_length(const char *text) {
  int depth = 0;
  char quote = 0;
  size_t i = 0;
  for (; text[i] && (depth > 0 || quote || text[i] != ','); i++) {
    if (quote) quote = text[i] == quote ? 0 : quote;
    else if (text[i] == '"' || text[i] == '\'') quote = text[i];
    else depth += (text[i] == '[' || text[i] == '{') - (text[i] == ']' || text[i] == '}');
  }
  return i;
}

static int is_key_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
}

static int32_t merge_override(kr_config *config, const char *text, size_t length) {
  const char *equals = memchr(text, '=', length);
  size_t key_length = equals ? (size_t)(equals - text) : 0;
  KR_CHECK(key_length > 0 && key_length < 64 && key_length + 1 < length, KRAIT_ERR_ARGUMENT, "'%.*s' is not key=value",
           (int)length, text);
  for (size_t i = 0; i < key_length; i++)
    KR_CHECK(is_key_letter(text[i]), KRAIT_ERR_ARGUMENT, "'%.*s' is not a valid key", (int)key_length, text);
  char label[96], key[64];
  snprintf(label, sizeof label, "the value of '%.*s'", (int)key_length, text);
  snprintf(key, sizeof key, "%.*s", (int)key_length, text);
  json_t *value;
  KR_TRY(kr_yaml_read(equals + 1, length - key_length - 1, label, &value));
  int32_t status;
  if (strcmp(key, "model") == 0) status = set_model(config, value, "the flags");
  else
    status = json_object_set(config->values, key, value) == 0
                 ? KRAIT_OK
                 : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a configuration");
  json_decref(value);
  return status;
}

static int32_t merge_overrides(kr_config *config, const char *text) {
  while (*text) {
    size_t length = override_length(text);
    KR_TRY(merge_override(config, text, length));
    text += length + (text[length] == ',');
  }
  return KRAIT_OK;
}

static int32_t merge_sources(kr_config *config, const kr_weights *weights, const char *config_path,
                             const char *overrides) {
  config->values = json_object();
  KR_CHECK(config->values, KRAIT_ERR_NO_MEMORY, "no memory for a configuration");
  if (weights) KR_TRY(merge_metadata(config, weights));
  if (config_path) KR_TRY(merge_file(config, config_path));
  return overrides ? merge_overrides(config, overrides) : KRAIT_OK;
}

int32_t kr_config_open(const kr_weights *weights, const char *config_path, const char *overrides, kr_config **handle) {
  *handle = NULL;
  kr_config *config = kr_zalloc(sizeof *config);
  KR_CHECK(config, KRAIT_ERR_NO_MEMORY, "no memory for a configuration");
  int32_t status = merge_sources(config, weights, config_path, overrides);
  if (status < 0) kr_config_close(&config);
  *handle = config;
  return status;
}

void kr_config_close(kr_config **handle) {
  if (!*handle) return;
  json_decref((*handle)->values);
  kr_free((*handle)->model);
  kr_free(*handle);
  *handle = NULL;
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

const char *kr_config_model(const kr_config *config) { return config->model; }

static const json_t *value_of(const kr_config *config, const char *key) {
  const json_t *value = json_object_get(config->values, key);
  return value && !json_is_null(value) ? value : NULL;
}

int kr_config_has(const kr_config *config, const char *key) { return value_of(config, key) != NULL; }

static int whole_number(const json_t *value, int64_t *number) {
  double real = json_number_value(value);
  if (json_is_real(value) && fabs(real) < 0x1p53 && real == floor(real)) *number = (int64_t)real;
  else if (json_is_integer(value)) *number = json_integer_value(value);
  else return 0;
  return 1;
}

int32_t kr_config_int(const kr_config *config, const char *key, int64_t fallback, int64_t low, int64_t high,
                      int64_t *value) {
  const json_t *found = value_of(config, key);
  *value = fallback;
  if (!found) return KRAIT_OK;
  KR_CHECK(whole_number(found, value), KRAIT_ERR_WEIGHTS, "configuration: %s is not a whole number", key);
  KR_CHECK(*value >= low && *value <= high, KRAIT_ERR_WEIGHTS,
           "configuration: %s is %" PRId64 ", not within %" PRId64 "..%" PRId64, key, *value, low, high);
  return KRAIT_OK;
}

int32_t kr_config_float(const kr_config *config, const char *key, double fallback, double low, double high,
                        double *value) {
  const json_t *found = value_of(config, key);
  *value = fallback;
  if (!found) return KRAIT_OK;
  KR_CHECK(json_is_number(found), KRAIT_ERR_WEIGHTS, "configuration: %s is not a number", key);
  *value = json_number_value(found);
  KR_CHECK(*value >= low && *value <= high, KRAIT_ERR_WEIGHTS, "configuration: %s is %g, not within %g..%g", key,
           *value, low, high);
  return KRAIT_OK;
}

int32_t kr_config_bool(const kr_config *config, const char *key, int fallback, int *value) {
  static const char *const words[] = {"no", "yes", "off", "on"};
  const json_t *found = value_of(config, key);
  const char *text = json_string_value(found);
  int64_t number = -1;
  *value = fallback;
  if (!found) return KRAIT_OK;
  if (json_is_boolean(found)) number = json_is_true(found);
  else whole_number(found, &number);
  for (int i = 0; text && i < 4; i++)
    if (strcmp(text, words[i]) == 0) number = i % 2;
  KR_CHECK(number == 0 || number == 1, KRAIT_ERR_WEIGHTS, "configuration: %s is neither true nor false", key);
  *value = (int)number;
  return KRAIT_OK;
}

int32_t kr_config_text(const kr_config *config, const char *key, const char *fallback, const char **value) {
  const json_t *found = value_of(config, key);
  *value = found ? json_string_value(found) : fallback;
  KR_CHECK(!found || *value, KRAIT_ERR_WEIGHTS, "configuration: %s is not a string", key);
  return KRAIT_OK;
}

static int32_t read_ints(const json_t *list, const char *key, int64_t low, int64_t high, int64_t *values) {
  for (size_t i = 0; i < json_array_size(list); i++) {
    KR_CHECK(whole_number(json_array_get(list, i), &values[i]), KRAIT_ERR_WEIGHTS,
             "configuration: %s[%zu] is not a whole number", key, i);
    KR_CHECK(values[i] >= low && values[i] <= high, KRAIT_ERR_WEIGHTS,
             "configuration: %s[%zu] is %" PRId64 ", not within %" PRId64 "..%" PRId64, key, i, values[i], low, high);
  }
  return KRAIT_OK;
}

int32_t kr_config_ints(const kr_config *config, const char *key, int64_t low, int64_t high, int32_t max_n,
                       int64_t *values, int32_t *n) {
  const json_t *found = value_of(config, key);
  if (!found) return KRAIT_OK;
  size_t count = json_array_size(found);
  KR_CHECK(json_is_array(found), KRAIT_ERR_WEIGHTS, "configuration: %s is not a list", key);
  KR_CHECK(count <= (size_t)max_n, KRAIT_ERR_WEIGHTS, "configuration: %s has %zu values, more than %d", key, count,
           max_n);
  KR_TRY(read_ints(found, key, low, high, values));
  *n = (int32_t)count;
  return KRAIT_OK;
}

int32_t kr_config_count(const kr_config *config, const char *key, int64_t *n) {
  const json_t *found = value_of(config, key);
  *n = (int64_t)json_array_size(found);
  KR_CHECK(!found || json_is_array(found), KRAIT_ERR_WEIGHTS, "configuration: %s is not a list", key);
  return KRAIT_OK;
}

int32_t kr_config_text_at(const kr_config *config, const char *key, int64_t i, const char **value) {
  *value = json_string_value(json_array_get(value_of(config, key), (size_t)i));
  KR_CHECK(*value, KRAIT_ERR_WEIGHTS, "configuration: %s[%" PRId64 "] is not a string", key, i);
  return KRAIT_OK;
}

int32_t kr_config_ints_at(const kr_config *config, const char *key, int64_t i, int64_t low, int64_t high, int32_t n,
                          int64_t *values) {
  const json_t *list = json_array_get(value_of(config, key), (size_t)i);
  KR_CHECK(json_array_size(list) == (size_t)n, KRAIT_ERR_WEIGHTS,
           "configuration: %s[%" PRId64 "] is not a list of %d values", key, i, n);
  return read_ints(list, key, low, high, values);
}

int32_t kr_config_check_keys(const kr_config *config, const char *const *known, int32_t n_known) {
  const char *key;
  json_t *value;
  json_object_foreach(config->values, key, value) {
    int is_known = 0;
    for (int32_t i = 0; i < n_known && !is_known; i++) is_known = strcmp(known[i], key) == 0;
    KR_CHECK(is_known, KRAIT_ERR_WEIGHTS, "configuration: unknown key '%.64s'", key);
  }
  return KRAIT_OK;
}

char *kr_config_json(const kr_config *config) {
  return kr_json_dump(config->values, JSON_COMPACT);
}

#ifdef KR_FUZZ
/* The input as overrides, and as the "config" of a weights file. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kr_config *config = NULL;
  char text[4096];
  int64_t values[4], whole;
  int32_t n = 0;
  snprintf(text, sizeof text, "%.*s", (int)(size < sizeof text ? size : sizeof text - 1), (const char *)data);
  if (kr_config_open(NULL, NULL, text, &config) == KRAIT_OK) {
    kr_config_int(config, "a", 0, -9, 9, &whole);
    kr_config_ints(config, "l", -9, 9, 4, values, &n);
  }
  if (config) merge_text(config, (const char *)data, size, "fuzz");
  kr_config_close(&config);
  return 0;
}
#endif

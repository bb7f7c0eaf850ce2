/* bundled.c: weights.h and config.h for the wheel's libkrait, which contains one model, accepts others as tensors in
 * memory, and reads no files, so that it needs no other libraries. Not part of the program. */
#define _GNU_SOURCE
#include "bundled.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "any_fft.h"
#include "clocale.h"
#include "config.h"
#include "model_kind.h"
#include "status.h"
#include "weights_io.h"

struct kr_weights {
  const kr_weight *items;
  int64_t n_items;
}; /* NULL: the built-in ones */
struct kr_config {
  char model[64];
  char text[4096];  /* "key=value,key=[1,2]"; for the built-in weights: "" */
  char words[4096]; /* the same, each pair ended by a zero */
  int is_bundled;
};
static kr_weights the_weights;
static kr_config the_config = {.is_bundled = 1};

const kr_model_kind *const kr_model_kinds[] = {&kr_model_primeknet};
const size_t kr_n_model_kinds = 1;

static int32_t no_files(const char *what) {
  return kr_fail(KRAIT_ERR_UNSUPPORTED,
                 "this libkrait only has its built-in weights and cannot read %s; use the program krait, or the "
                 "libkrait installed with it",
                 what);
}

const unsigned char *kr_embedded_weights(const char *name, size_t *n_bytes) {
  *n_bytes = name == NULL; /* whether there are any; they are not read here */
  return (const unsigned char *)"";
}

int32_t kr_weights_open(const char *path, kr_weights **weights) {
  *weights = NULL;
  return no_files(path);
}

int32_t kr_weights_open_memory(const void *bytes, size_t n_bytes, const char *label, kr_weights **weights) {
  (void)bytes, (void)n_bytes, (void)label;
  *weights = &the_weights;
  return KRAIT_OK;
}

static void copy_items(const kr_weight *items, int64_t n_items, kr_weight *own, char *names) {
  for (int64_t i = 0; i < n_items; i++) {
    own[i] = items[i], own[i].name = names;
    names = stpcpy(names, items[i].name) + 1;
  }
}

/* Items and names are copied, as in weights.c; the data remain the caller's. */
int32_t kr_weights_open_items(const kr_weight *items, int64_t n_items, kr_weights **weights) {
  size_t n_chars = 0;
  *weights = NULL;
  for (int64_t i = 0; i < n_items; i++) {
    n_chars += strlen(items[i].name) + 1;
    for (int64_t k = 0; k < i; k++)
      KR_CHECK(strcmp(items[i].name, items[k].name) != 0, KRAIT_ERR_FILE_FORMAT,
               "the tensors: tensor '%s' appears twice", items[i].name);
  }
  kr_weights *made = kr_alloc(sizeof *made + (size_t)n_items * sizeof *items + n_chars);
  KR_CHECK(made, KRAIT_ERR_NO_MEMORY, "no memory for weights");
  kr_weight *own = (kr_weight *)(made + 1);
  copy_items(items, n_items, own, (char *)(own + n_items));
  *made = (kr_weights){own, n_items};
  *weights = made;
  return KRAIT_OK;
}

void kr_weights_close(kr_weights **weights) {
  if (*weights != &the_weights) kr_free(*weights);
  *weights = NULL;
}
int64_t kr_weights_count(const kr_weights *weights) { return weights->items ? weights->n_items : kr_bundled_n_items; }
const kr_weight *kr_weights_at(const kr_weights *weights, int64_t i) {
  return weights->items ? &weights->items[i] : &kr_bundled_items[i];
}
int32_t kr_weights_widen(kr_weights *weights) { return (void)weights, KRAIT_OK; }
int32_t kr_weights_refuse_checkpoint(const kr_weights *weights) { return (void)weights, KRAIT_OK; }

int32_t kr_weights_check_finite(const kr_weights *weights) {
  for (int64_t i = 0; i < weights->n_items; i++) {
    const float *values = weights->items[i].data;
    for (uint64_t k = 0; k < weights->items[i].bytes / sizeof *values; k++)
      KR_CHECK(isfinite(values[k]), KRAIT_ERR_WEIGHTS, "tensor '%s' has a value that is not finite",
               weights->items[i].name);
  }
  return KRAIT_OK;
}

const kr_weight *kr_weights_find(const kr_weights *weights, const char *name) {
  for (int64_t i = 0; i < kr_weights_count(weights); i++)
    if (strcmp(kr_weights_at(weights, i)->name, name) == 0) return kr_weights_at(weights, i);
  return NULL;
}

int32_t kr_weights_take_f32(const kr_weights *weights, const char *name, int32_t n_dims, const int64_t *shape,
                            const float **data) {
  const kr_weight *item = kr_weights_find(weights, name);
  int is_same = item && item->n_dims == n_dims;
  for (int32_t i = 0; is_same && i < n_dims; i++) is_same = item->shape[i] == shape[i];
  KR_CHECK(is_same, KRAIT_ERR_WEIGHTS, "tensor '%s' is missing or has another shape", name);
  *data = item->data;
  return KRAIT_OK;
}

const char *kr_weights_metadata(const kr_weights *weights, const char *key) {
  for (int64_t i = 0; i < kr_bundled_n_metadata && weights == &the_weights; i++)
    if (strcmp(kr_bundled_metadata[i].key, key) == 0) return kr_bundled_metadata[i].value;
  return NULL;
}

int32_t kr_weights_json(const kr_weights *weights, const kr_config *config, char **json) {
  char text[160];
  snprintf(text, sizeof text, "{\"format\":\"tensors\",\"model\":\"%s\",\"n_tensors\":%lld}", config->model,
           (long long)weights->n_items);
  *json = kr_strdup(config->is_bundled ? kr_bundled_about : text);
  return *json ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for the description of the weights");
}

/* ---- the model's configuration ---- */

/* The next "key=value" of the text, which may contain commas within brackets; NULL at the end. */
static const char *next_pair(const char **text, size_t *key_length, size_t *length) {
  const char *begin = *text;
  int depth = 0;
  if (!*begin) return NULL;
  for (*length = 0; begin[*length] && (depth > 0 || begin[*length] != ','); ++*length)
    depth += (begin[*length] == '[') - (begin[*length] == ']');
  *key_length = strcspn(begin, "=");
  *text = begin + *length + (begin[*length] == ',');
  return begin;
}

static int is_word(const char *text, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-", text[i])) return 0;
  return n > 0 && n < 64;
}

int32_t kr_config_open(const kr_weights *weights, const char *config_path, const char *overrides, kr_config **config) {
  const char *text = overrides, *pair;
  size_t key, n;
  *config = NULL;
  if (config_path) return no_files(config_path);
  if (weights == &the_weights && overrides) return no_files(overrides);
  if (weights == &the_weights) return *config = &the_config, KRAIT_OK;
  kr_config *c = kr_zalloc(sizeof *c);
  KR_CHECK(c, KRAIT_ERR_NO_MEMORY, "no memory for a configuration");
  int32_t status = strlen(overrides) < sizeof c->text
                       ? KRAIT_OK
                       : kr_fail(KRAIT_ERR_ARGUMENT, "a configuration of %zu characters", strlen(overrides));
  while (status >= 0 && (pair = next_pair(&text, &key, &n)) != NULL) {
    if (key + 1 >= n || !is_word(pair, key))
      status = kr_fail(KRAIT_ERR_ARGUMENT, "'%.*s' is not key=value", (int)n, pair);
    else if (key == 5 && strncmp(pair, "model", 5) == 0 && n - 6 < sizeof c->model && is_word(pair + 6, n - 6))
      snprintf(c->model, sizeof c->model, "%.*s", (int)(n - 6), pair + 6);
  }
  if (status < 0) return kr_free(c), status;
  memcpy(c->text, overrides, strlen(overrides) + 1);
  memcpy(c->words, c->text, sizeof c->text);
  for (text = c->text; (pair = next_pair(&text, &key, &n)) != NULL;) c->words[(size_t)(pair - c->text) + n] = 0;
  *config = c;
  return KRAIT_OK;
}

void kr_config_close(kr_config **config) {
  if (*config != &the_config) kr_free(*config);
  *config = NULL;
}
const char *kr_config_model(const kr_config *config) {
  return config->is_bundled ? kr_bundled_model : config->model[0] ? config->model : NULL;
}

/* The start of the key's value, the last one if it occurs twice; null counts as missing. */
static const char *find_text(const kr_config *config, const char *key, size_t *length) {
  const char *text = config->text, *pair, *found = NULL;
  size_t key_length, n;
  while ((pair = next_pair(&text, &key_length, &n)) != NULL)
    if (key_length == strlen(key) && strncmp(pair, key, key_length) == 0)
      found = pair + key_length + 1, *length = n - key_length - 1;
  return found && !(*length == 4 && strncmp(found, "null", 4) == 0) ? found : NULL;
}

static int32_t read_number(const char *key, const char *text, size_t length, double *value) {
  static const char *const words[] = {"false", "true"};
  char *end = NULL;
  for (int i = 0; i < 2; i++)
    if (length == strlen(words[i]) && strncmp(text, words[i], length) == 0) return *value = i, KRAIT_OK;
  const locale_t before = kr_c_locale_begin();
  *value = strtod(text, &end);
  kr_c_locale_end(before);
  KR_CHECK(end == text + length && length > 0 && isfinite(*value), KRAIT_ERR_WEIGHTS, "%s is '%.*s', not a number", key,
           (int)length, text);
  return KRAIT_OK;
}

int32_t kr_config_float(const kr_config *config, const char *key, double fallback, double low, double high,
                        double *value) {
  size_t length = 0;
  const char *text = find_text(config, key, &length);
  *value = fallback;
  for (int64_t i = 0; i < kr_bundled_n_values && config->is_bundled; i++)
    if (strcmp(kr_bundled_values[i].key, key) == 0) *value = kr_bundled_values[i].value;
  if (text) KR_TRY(read_number(key, text, length, value));
  KR_CHECK(*value >= low && *value <= high, KRAIT_ERR_WEIGHTS, "%s is %g, not %g to %g", key, *value, low, high);
  return KRAIT_OK;
}

int32_t kr_config_int(const kr_config *config, const char *key, int64_t fallback, int64_t low, int64_t high,
                      int64_t *value) {
  double number = 0;
  KR_TRY(kr_config_float(config, key, (double)fallback, (double)low, (double)high, &number));
  KR_CHECK(number == floor(number), KRAIT_ERR_WEIGHTS, "%s is not a whole number", key);
  *value = (int64_t)number;
  return KRAIT_OK;
}

int32_t kr_config_bool(const kr_config *config, const char *key, int fallback, int *value) {
  double number = 0;
  KR_TRY(kr_config_float(config, key, fallback, 0, 1, &number));
  *value = number != 0;
  return KRAIT_OK;
}

int32_t kr_config_text(const kr_config *config, const char *key, const char *fallback, const char **value) {
  size_t length = 0;
  const char *text = find_text(config, key, &length);
  *value = text ? config->words + (text - config->text) : fallback;
  return KRAIT_OK;
}

int32_t kr_config_ints(const kr_config *config, const char *key, int64_t low, int64_t high, int32_t max_n,
                       int64_t *values, int32_t *n) {
  size_t length = 0;
  const char *text = find_text(config, key, &length);
  if (!text) return KRAIT_OK;
  KR_CHECK(length >= 2 && text[0] == '[' && text[length - 1] == ']', KRAIT_ERR_WEIGHTS, "%s is not a list", key);
  *n = 0;
  for (const char *at = text + 1, *end = text + length - 1; at < end;) {
    double number = 0;
    const size_t part = strcspn(at, ",]");
    KR_CHECK(*n < max_n, KRAIT_ERR_WEIGHTS, "%s has more than %d items", key, max_n);
    KR_TRY(read_number(key, at, part, &number));
    KR_CHECK(number >= (double)low && number <= (double)high && number == floor(number), KRAIT_ERR_WEIGHTS,
             "%s has %g, not a whole number from %lld to %lld", key, number, (long long)low, (long long)high);
    values[(*n)++] = (int64_t)number;
    at += part + 1;
  }
  return KRAIT_OK;
}

int32_t kr_config_check_keys(const kr_config *config, const char *const *known, int32_t n_known) {
  const char *text = config->text, *pair;
  size_t key, n;
  while ((pair = next_pair(&text, &key, &n)) != NULL) {
    int32_t k = 0;
    while (k < n_known && (strlen(known[k]) != key || strncmp(known[k], pair, key) != 0)) k++;
    KR_CHECK(k < n_known || (key == 5 && strncmp(pair, "model", 5) == 0), KRAIT_ERR_WEIGHTS, "unknown key '%.*s'",
             (int)key, pair);
  }
  return KRAIT_OK;
}

/* The model's transform has a length that real_fft.h supports. */
int32_t kr_any_fft_open(int64_t n, kr_any_fft **fft) {
  *fft = NULL;
  return kr_fail(KRAIT_ERR_UNSUPPORTED, "this libkrait has no transform of %lld samples", (long long)n);
}
void kr_any_fft_close(kr_any_fft **fft) { *fft = NULL; }
void kr_any_fft_forward(kr_any_fft *fft, const float *x, float *re, float *im) {
  (void)fft, (void)x, (void)re, (void)im;
}
void kr_any_fft_inverse(kr_any_fft *fft, const float *re, const float *im, float *x) {
  (void)fft, (void)re, (void)im, (void)x;
}

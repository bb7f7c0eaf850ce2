/* bundled.c: weights.h and config.h for the wheel's libkrait, which holds one model and reads no files, so that it
 * needs no other libraries; and what else of them a model asks for. Not part of the program. */
#include "bundled.h"

#include <string.h>

#include "alloc.h"
#include "any_fft.h"
#include "config.h"
#include "model_kind.h"
#include "status.h"
#include "weights_io.h"

struct kr_weights { int unused; };
struct kr_config { int unused; };
static kr_weights the_weights;
static kr_config the_config;

const kr_model_kind *const kr_model_kinds[] = {&kr_model_primeknet};
const size_t kr_n_model_kinds = 1;

static int32_t no_files(const char *what) {
  return kr_fail(KRAIT_ERR_UNSUPPORTED,
                 "this libkrait knows the weights inside it alone, not %s; the program krait, or the libkrait that is "
                 "installed with it, reads files",
                 what);
}

const unsigned char *kr_embedded_weights(size_t *n_bytes) {
  *n_bytes = 1; /* there are some; nobody reads them here */
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

void kr_weights_close(kr_weights **weights) { *weights = NULL; }
int64_t kr_weights_count(const kr_weights *weights) { return (void)weights, kr_bundled_n_items; }
const kr_weight *kr_weights_at(const kr_weights *weights, int64_t i) { return (void)weights, &kr_bundled_items[i]; }
int32_t kr_weights_widen(kr_weights *weights) { return (void)weights, KRAIT_OK; }
int32_t kr_weights_check_finite(const kr_weights *weights) { return (void)weights, KRAIT_OK; }

const kr_weight *kr_weights_find(const kr_weights *weights, const char *name) {
  (void)weights;
  for (int64_t i = 0; i < kr_bundled_n_items; i++)
    if (strcmp(kr_bundled_items[i].name, name) == 0) return &kr_bundled_items[i];
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
  (void)weights;
  for (int64_t i = 0; i < kr_bundled_n_metadata; i++)
    if (strcmp(kr_bundled_metadata[i].key, key) == 0) return kr_bundled_metadata[i].value;
  return NULL;
}

int32_t kr_weights_json(const kr_weights *weights, const kr_config *config, char **json) {
  (void)weights, (void)config;
  *json = kr_strdup(kr_bundled_about);
  return *json ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for the description of the weights");
}

int32_t kr_config_open(const kr_weights *weights, const char *config_path, const char *overrides, kr_config **config) {
  (void)weights;
  *config = NULL;
  if (config_path || overrides) return no_files(config_path ? config_path : overrides);
  *config = &the_config;
  return KRAIT_OK;
}

void kr_config_close(kr_config **config) { *config = NULL; }
const char *kr_config_model(const kr_config *config) { return (void)config, kr_bundled_model; }

static const kr_bundled_value *find_value(const char *key) {
  for (int64_t i = 0; i < kr_bundled_n_values; i++)
    if (strcmp(kr_bundled_values[i].key, key) == 0) return &kr_bundled_values[i];
  return NULL;
}

int32_t kr_config_float(const kr_config *config, const char *key, double fallback, double low, double high,
                        double *value) {
  const kr_bundled_value *found = find_value(key);
  (void)config;
  *value = found ? found->value : fallback;
  KR_CHECK(*value >= low && *value <= high, KRAIT_ERR_WEIGHTS, "%s is %g, not %g to %g", key, *value, low, high);
  return KRAIT_OK;
}

int32_t kr_config_int(const kr_config *config, const char *key, int64_t fallback, int64_t low, int64_t high,
                      int64_t *value) {
  double number = 0;
  KR_TRY(kr_config_float(config, key, (double)fallback, (double)low, (double)high, &number));
  *value = (int64_t)number;
  return KRAIT_OK;
}

int32_t kr_config_bool(const kr_config *config, const char *key, int fallback, int *value) {
  double number = 0;
  KR_TRY(kr_config_float(config, key, fallback, 0, 1, &number));
  *value = number != 0;
  return KRAIT_OK;
}

int32_t kr_config_ints(const kr_config *config, const char *key, int64_t low, int64_t high, int32_t max_n,
                       int64_t *values, int32_t *n) {
  (void)config, (void)low, (void)high, (void)max_n, (void)values, (void)n;
  return find_value(key) ? kr_fail(KRAIT_ERR_WEIGHTS, "%s is not a list", key) : KRAIT_OK;
}

int32_t kr_config_check_keys(const kr_config *config, const char *const *known, int32_t n_known) {
  (void)config;
  for (int64_t i = 0; i < kr_bundled_n_values; i++) {
    int32_t k = 0;
    while (k < n_known && strcmp(known[k], kr_bundled_values[i].key) != 0) k++;
    KR_CHECK(k < n_known, KRAIT_ERR_WEIGHTS, "unknown key '%s'", kr_bundled_values[i].key);
  }
  return KRAIT_OK;
}

/* The model's own transform is of a length that real_fft.h takes. */
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

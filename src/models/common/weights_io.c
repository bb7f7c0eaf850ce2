/* weights_io.c: describes and converts weights files. */
#include "public_names.h"

#include "weights_io.h"

#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

#include <krait/enhance.h>

#include "alloc.h"
#include "json_text.h"
#include "model_kind.h"
#include "safetensors.h"
#include "status.h"
#include "torch_file.h"

/* "model" and "config" are shown and written from the merged configuration, not twice. */
static int is_configuration(const char *key) { return strcmp(key, "model") == 0 || strcmp(key, "config") == 0; }

static json_t *metadata_json(const kr_weights *weights, int *failed) {
  json_t *pairs = json_object();
  for (int64_t i = 0; i < kr_weights_n_metadata(weights); i++) {
    const kr_metadata *pair = kr_weights_metadata_at(weights, i);
    if (!is_configuration(pair->key)) *failed |= json_object_set_new(pairs, pair->key, json_string(pair->value));
  }
  return pairs;
}

static int64_t count_params(const kr_weight *item) {
  int is_float = item->dtype == KRAIT_F32 || item->dtype == KRAIT_F16 || item->dtype == KRAIT_BF16 ||
                 item->dtype == KRAIT_F64 || item->dtype == KRAIT_C64;
  return is_float ? (int64_t)(item->bytes / krait_dtype_bytes(item->dtype)) : 0;
}

void kr_description_add(kr_description *d, const kr_weight *item) {
  if (!d->tensors) d->tensors = json_array();
  json_t *shape = json_array();
  for (int32_t k = 0; k < item->n_dims; k++) d->failed |= json_array_append_new(shape, json_integer(item->shape[k]));
  d->failed |= json_array_append_new(d->tensors, json_pack("{s:s, s:s, s:o}", "name", item->name, "dtype",
                                                           krait_dtype_name(item->dtype), "shape", shape));
  d->n_params += count_params(item);
}

int32_t kr_description_dump(const kr_description *d, char **json) {
  json_t *tensors = d->tensors ? d->tensors : json_array(), *metadata = d->metadata ? d->metadata : json_object();
  const json_int_t n_tensors = (json_int_t)json_array_size(tensors);
  json_t *root = json_pack("{s:s, s:s?, s:o, s:I, s:I, s:o, s:o}", "format", d->format, "model", d->model, "config",
                           d->config, "n_params", (json_int_t)d->n_params, "n_tensors", n_tensors, "tensors", tensors,
                           "metadata", metadata);
  *json = root && !d->failed ? kr_json_dump(root, JSON_COMPACT) : NULL;
  json_decref(root);
  return *json ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for the description of the weights");
}

int32_t kr_weights_json(const kr_weights *weights, const kr_config *config, char **json) {
  char *values = kr_config_json(config);
  kr_description d = {.format = kr_weights_format(weights), .model = kr_config_model(config)};
  if (!d.model) d.model = kr_weights_metadata(weights, "general.architecture"); /* of a GGUF file */
  d.config = values ? json_loads(values, 0, NULL) : NULL;
  d.metadata = metadata_json(weights, &d.failed);
  for (int64_t i = 0; i < kr_weights_count(weights); i++) kr_description_add(&d, kr_weights_at(weights, i));
  const int32_t status = kr_description_dump(&d, json);
  kr_free(values);
  return status;
}

int32_t kr_weights_refuse_checkpoint(const kr_weights *weights) {
  const char *format = kr_weights_metadata(weights, "format");
  KR_CHECK(!format || strncmp(format, "krait training", strlen("krait training")) != 0, KRAIT_ERR_WEIGHTS,
           "a training run's checkpoint; the run's weights are in best.safetensors beside it");
  return KRAIT_OK;
}

/* Of a file only the header is read. */
static int32_t open_header(const char *path, kr_weights **weights) {
  return kr_weights_is_built_in(path) ? kr_weights_open_named(path, weights) : kr_weights_open_header(path, weights);
}

int32_t krait_weights_describe(const char *weights_path, char **json) {
  kr_weights *weights;
  kr_config *config = NULL;
  KR_CHECK(weights_path && json, KRAIT_ERR_ARGUMENT, "weights_path and json must not be NULL");
  *json = NULL;
  struct stat info;
  if (stat(weights_path, &info) == 0 && S_ISDIR(info.st_mode)) return kr_folder_json(weights_path, json);
  KR_TRY(open_header(weights_path, &weights));
  int32_t status = kr_config_open(weights, NULL, NULL, &config);
  if (status == KRAIT_OK) status = kr_weights_json(weights, config, json);
  kr_config_close(&config);
  kr_weights_close(&weights);
  return status;
}

void krait_text_free(char **text) {
  if (!text) return;
  kr_free(*text);
  *text = NULL;
}

static int is_torch_name(const char *path) {
  static const char *const endings[] = {".th", ".pt", ".pth"};
  const char *dot = strrchr(path, '.');
  for (size_t i = 0; dot && i < sizeof endings / sizeof *endings; i++)
    if (strcmp(dot, endings[i]) == 0) return 1;
  return 0;
}

/* The input's metadata, with the merged model and config; a best.th has none. */
static int32_t write_converted(const kr_weights *weights, const kr_config *config, const char *values,
                               const char *out_path) {
  const int64_t n_items = kr_weights_count(weights);
  int64_t n = 0;
  if (is_torch_name(out_path))
    return kr_torch_file_write(out_path, n_items ? kr_weights_at(weights, 0) : NULL, n_items);
  kr_metadata *metadata = kr_alloc_array((size_t)kr_weights_n_metadata(weights) + 2, sizeof *metadata);
  KR_CHECK(metadata, KRAIT_ERR_NO_MEMORY, "no memory for metadata");
  if (kr_config_model(config)) metadata[n++] = (kr_metadata){"model", kr_config_model(config)};
  if (strcmp(values, "{}") != 0) metadata[n++] = (kr_metadata){"config", values};
  for (int64_t i = 0; i < kr_weights_n_metadata(weights); i++)
    if (!is_configuration(kr_weights_metadata_at(weights, i)->key)) metadata[n++] = *kr_weights_metadata_at(weights, i);
  int32_t status =
      kr_safetensors_write(out_path, n_items ? kr_weights_at(weights, 0) : NULL, n_items, metadata, n);
  kr_free(metadata);
  return status;
}

int32_t krait_weights_convert(const char *in_path, const char *out_path, const char *config_path,
                              const char *overrides) {
  kr_weights *weights;
  kr_config *config = NULL;
  KR_CHECK(in_path && out_path, KRAIT_ERR_ARGUMENT, "in_path and out_path must not be NULL");
  KR_TRY(kr_weights_open_named(in_path, &weights));
  int32_t status = kr_config_open(weights, config_path, overrides, &config);
  char *values = status == KRAIT_OK ? kr_config_json(config) : NULL;
  if (status == KRAIT_OK)
    status = values ? write_converted(weights, config, values, out_path)
                    : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for the configuration");
  kr_free(values);
  kr_config_close(&config);
  kr_weights_close(&weights);
  return status;
}

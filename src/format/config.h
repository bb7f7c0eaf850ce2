/* config.h: a model's configuration: its name and a flat set of named values, read-only.
 *
 * Three sources, later ones override earlier ones key by key: the weights' metadata ("model", and "config" as JSON), a
 * YAML or JSON file (a plain list of arguments; upstream's conf/model/NAME.yaml with model_lib and param; or a run's
 * .hydra/config.yaml with that under `model:`), and overrides "causal=true,freq_block_kernel=[3,11]".
 * "model=primeknet_gru" sets the model. Typed getters: a missing or null key gives the default; a wrong type or a value
 * out of range is KRAIT_ERR_WEIGHTS and a sentence that names the key. */
#ifndef KR_CONFIG_H
#define KR_CONFIG_H

#include "weights.h"

typedef struct kr_config kr_config;

/* Any source may be NULL. */
int32_t kr_config_open(const kr_weights *weights, const char *config_path, const char *overrides, kr_config **config);
void kr_config_close(kr_config **config);

const char *kr_config_model(const kr_config *config); /* "primeknet_mamba"; NULL if no source has it */
int kr_config_has(const kr_config *config, const char *key); /* present and not null */
int32_t kr_config_int(const kr_config *config, const char *key, int64_t fallback, int64_t low, int64_t high,
                      int64_t *value);
int32_t kr_config_float(const kr_config *config, const char *key, double fallback, double low, double high,
                        double *value);
int32_t kr_config_bool(const kr_config *config, const char *key, int fallback,
                       int *value); /* true/false; 0/1, yes/no, on/off pass too */
int32_t kr_config_text(const kr_config *config, const char *key, const char *fallback,
                       const char **value); /* lives with config */
/* A list of whole numbers. When the key is missing, values and *n stay as they are (put the default there). */
int32_t kr_config_ints(const kr_config *config, const char *key, int64_t low, int64_t high, int32_t max_n,
                       int64_t *values, int32_t *n);
/* Lists of strings, and of lists of exactly n whole numbers: the number of items (0: missing), and the i-th. */
int32_t kr_config_count(const kr_config *config, const char *key, int64_t *n);
int32_t kr_config_text_at(const kr_config *config, const char *key, int64_t i,
                          const char **value); /* lives with config */
int32_t kr_config_ints_at(const kr_config *config, const char *key, int64_t i, int64_t low, int64_t high, int32_t n,
                          int64_t *values);
/* KRAIT_ERR_WEIGHTS naming the first key that is not in known[] (a misspelt flag must not be ignored). */
int32_t kr_config_check_keys(const kr_config *config, const char *const *known, int32_t n_known);

/* All keys except the model's name as compact JSON, as stored in the metadata; free with kr_free. NULL when out of
 * memory. */
char *kr_config_json(const kr_config *config);

#endif

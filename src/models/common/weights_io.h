/* weights_io.h: describes weights as JSON, for krait info. */
#ifndef KR_WEIGHTS_IO_H
#define KR_WEIGHTS_IO_H

#include <jansson.h>

#include "config.h"
#include "weights.h"

/* {"format", "model", "config", "n_params", "n_tensors", "tensors": [{"name","dtype","shape"}], "metadata"}; free with
 * kr_free. */
int32_t kr_weights_json(const kr_weights *weights, const kr_config *config, char **json);

/* The same for a model as published: its config.json, and the tensors of all its files. */
int32_t kr_folder_json(const char *path, char **json);

/* What both are made of; zeroed at first. dump takes the references of config, metadata and tensors. */
typedef struct kr_description {
  const char *format, *model; /* model: NULL if not stated */
  json_t *config, *metadata;  /* metadata may be NULL */
  json_t *tensors;
  int64_t n_params;
  int failed;
} kr_description;
void kr_description_add(kr_description *d, const kr_weight *item);
int32_t kr_description_dump(const kr_description *d, char **json);

/* In a training run's checkpoint, the model's tensors have other names, among many others. */
int32_t kr_weights_refuse_checkpoint(const kr_weights *weights);

#endif

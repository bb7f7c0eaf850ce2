/* model_folder.h: a language model as published: a folder with config.json and weights in one file or several shards,
 * one weights file with a config.json beside it, or a GGUF file, which contains everything. Immutable after open. */
#ifndef KR_MODEL_FOLDER_H
#define KR_MODEL_FOLDER_H

#include <jansson.h>

#include "weights.h"

typedef struct kr_model_folder kr_model_folder;

/* Takes, in this order: model.safetensors.index.json, model.safetensors, pytorch_model.bin.index.json,
 * pytorch_model.bin; or the file at path, or if it is one part of a model, all of the folder that it is in. Tensors
 * keep their stored type; an index must agree with its files. */
int32_t kr_model_folder_open(const char *path, kr_model_folder **folder);
/* The same without config.json, which need not be there; config, an object, is taken over, whether it opens or not. */
int32_t kr_model_folder_open_configured(const char *path, json_t *config, kr_model_folder **folder);
void kr_model_folder_close(kr_model_folder **folder);

const json_t *kr_model_folder_config(const kr_model_folder *folder); /* an object */
const char *kr_model_folder_label(const kr_model_folder *folder);    /* path, for messages */
const char *kr_model_folder_format(const kr_model_folder *folder);   /* kr_weights_format of its files */
/* Of any of the files; NULL if there is none. */
const kr_weight *kr_model_folder_find(const kr_model_folder *folder, const char *name);
/* All of them, file after file; NULL past the last. */
const kr_weight *kr_model_folder_at(const kr_model_folder *folder, int64_t i);
int64_t kr_model_folder_number(const kr_model_folder *folder, const kr_weight *item); /* i of a tensor of its */
int64_t kr_model_folder_count(const kr_model_folder *folder);
/* The bytes of a model that is a GGUF file; else NULL. */
const unsigned char *kr_model_folder_gguf(const kr_model_folder *folder, size_t *n_bytes);
/* Whether path is a shard whose index is beside it, or named as one of a model's JSON files. */
int kr_model_folder_is_part(const char *path);
/* The file's path if it exists, to be freed with kr_free; else NULL. */
char *kr_model_folder_file(const char *path, const char *name);
/* JSON of a file in the folder (also Python's variant with bare Infinity). */
int32_t kr_json_file_read(const char *path, json_t **tree);

#endif

/* lm_read.h: what the families of transformers' language models share in reading config.json: both spellings of its
 * keys, sizes from the tensors' shapes, rope tables with their scalings. */
#ifndef KR_LM_READ_H
#define KR_LM_READ_H

#include "lm_blocks.h"

typedef struct kr_lm_reader {
  const kr_model_folder *folder;
  const json_t *root; /* of the language model: config.json, or its text_config */
  const char *label, *type;
  kr_lm_config *c;
} kr_lm_reader;

/* What has no fallback is an error that names the key. */
enum { KR_LM_NEEDED = -1 };
int32_t kr_lm_read_whole(const kr_lm_reader *r, const char *key, int64_t fallback, int64_t low, int64_t *value);
/* A number, or 0 if there is none or it is 1: a multiplier that is not needed. */
double kr_lm_read_scale(const kr_lm_reader *r, const char *key);
int kr_lm_read_flag(const kr_lm_reader *r, const char *key, int fallback);
/* The text model's part of config.json, and its model_type. */
const json_t *kr_lm_text_config(const kr_model_folder *folder);

/* A configuration with what all have: width, vocabulary, eps (under that key), tokens that end a text, whether the
 * output matrix is the embedding. n_layers < 0: num_hidden_layers. */
int32_t kr_lm_read_begin(const kr_model_folder *folder, const kr_lm_family *family, const char *eps, int64_t n_layers,
                         kr_lm_reader *r);
/* A field's rows, or columns (dim 1), in a layer, in whatever form it is stored; -1: its last dimension. */
int32_t kr_lm_read_size(const kr_lm_reader *r, const char *field, int64_t layer, int dim, int64_t *size);
int kr_lm_read_has(const kr_lm_reader *r, const char *field, int64_t layer);

/* A mixture's sizes: d, E and F from the tensors, k from num_experts_per_tok. */
int32_t kr_lm_read_moe(const kr_lm_reader *r, int64_t layer, kr_lm_moe_sizes *s);
/* The sizes of a layer's Mamba-2 mixer: N and G under these keys, the others from the tensors. */
int32_t kr_lm_read_mamba2(const kr_lm_reader *r, int64_t layer, const char *states, const char *groups,
                          int64_t n_groups, kr_lm_mamba_sizes *s);
/* H, Hk, D. */
int32_t kr_lm_read_attention(const kr_lm_reader *r, kr_lm_attention_sizes *s);
/* The rope table of heads of D features: rope_parameters (of that kind of layer, or NULL), or rope_theta and
 * rope_scaling; partial: of the features, if the file does not say. Sets R, rope, is_interleaved. */
int32_t kr_lm_read_rope(const kr_lm_reader *r, const char *layers, double partial, kr_lm_attention_sizes *s);
/* The kind of a layer under `key`, of both spellings, or NULL. */
const char *kr_lm_read_layer_kind(const kr_lm_reader *r, const char *key, int64_t layer);
int kr_lm_is_attention(const char *kind);
/* Refuses a layer that layer_types calls neither attention nor a recurrence, or not what its tensors are. */
int32_t kr_lm_read_check_kind(const kr_lm_reader *r, int64_t layer, int is_attention);
/* The time step must not be limited. */
int32_t kr_lm_read_time_step(const kr_lm_reader *r, const char *key);
/* A key that must have this value, or be absent. */
int32_t kr_lm_read_only_text(const kr_lm_reader *r, const char *key, const char *only);
int32_t kr_lm_read_only_flag(const kr_lm_reader *r, const char *key, int only);

#endif

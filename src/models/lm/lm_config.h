/* lm_config.h: what a language model is to the engine: a list of blocks, each of which reads the norm of the residual
 * stream and adds its result to it. A family (a folder beside this one) reads a model's config.json into such a list,
 * and has a table of its weights' keys; a kind of block knows its weights, its states, and its calls of a graph. */
#ifndef KR_LM_CONFIG_H
#define KR_LM_CONFIG_H

#include "arena.h"
#include "graph.h"
#include "model_folder.h"
#include "token_cache.h"
#include "weight_loader.h"

enum {
  KR_LM_MOST_STATES = 4,
  KR_LM_MOST_EOS = 8,
  KR_LM_MOST_ROPES = KR_TOKEN_CACHE_ROPES,
  KR_LM_MOST_PAIRS = 128,
  KR_LM_MOST_LAYERS = 4096
};

typedef struct kr_lm_config kr_lm_config;
typedef struct kr_lm_block kr_lm_block;
typedef struct kr_lm_loader kr_lm_loader;
typedef struct kr_lm_builder kr_lm_builder;

/* ---- blocks ---- */

/* A state of a block, for each slot; in float32, or per token (keys, values) in the activations' type. */
typedef struct kr_lm_state {
  const char *name; /* in state files, before the layer's number */
  int32_t is_per_token;
  int32_t is_narrowable; /* may be kept in the activations' type (kr_lm_narrow_states) */
  int32_t n_dims;
  int64_t size[3]; /* of a slot; per token: of a token, 2 dimensions */
  int64_t nth;     /* per token: among all such states of the model */
} kr_lm_state;

typedef struct kr_lm_block_kind {
  const char *name;
  size_t sizes_bytes, weights_bytes; /* of its struct of sizes (8 bytes each), and of its weights */
  int32_t (*load)(kr_lm_loader *l, const kr_lm_block *block);
  int32_t (*list_states)(const kr_lm_block *block, kr_lm_state *states); /* how many; NULL: it has none */
  kr_tensor (*record)(kr_lm_builder *b, const kr_lm_block *block, kr_tensor x);
  /* All layers of a step as one call, from the embedding to the stream, where that is possible, and faster; NULL: it
   * never is. */
  int (*can_fuse)(const kr_lm_builder *b);
  kr_tensor (*record_fused)(kr_lm_builder *b, kr_tensor x);
} kr_lm_block_kind;

/* What a block reads. The result of the block before it becomes part of the stream, unless this says otherwise. */
enum {
  KR_LM_READS_STREAM,
  KR_LM_READS_SAME,     /* what the block before it read; their results are added */
  KR_LM_READS_EMBEDDED, /* the stream, and behind it the embedding: twice the width */
  KR_LM_READS_RESULT,   /* the result of the block before it, which is added to nothing */
  KR_LM_READS_SUM       /* that result and the stream, which stays as it was */
};

struct kr_lm_block {
  const kr_lm_block_kind *kind;
  int64_t layer;     /* in the names of its states */
  int64_t stored;    /* in the keys of its weights: its layer, unless it shares them */
  int64_t adapter;   /* '#' in the keys of its adapters */
  const kr_lm_block *shared; /* an earlier block, whose weights it has, but for adapters; NULL: it has its own */
  const char *norm;  /* field of its norm; its bias is norm_bias. NULL: it reads without one */
  const char *post;  /* field of a norm of its result; NULL: none */
  int32_t reads;     /* KR_LM_READS_STREAM, ... */
  double in_scale, out_scale; /* of what it reads, of its result; 0: 1 */
  const void *sizes;          /* of its kind */
  void *weights;
  kr_weight_ref norm_weight, norm_bias, post_weight;
  kr_lm_state states[KR_LM_MOST_STATES];
  int32_t n_states;
  int64_t nth; /* among the blocks with states */
};

/* ---- weights ---- */

enum {
  KR_LM_PRODUCT = 1,  /* krait_lm_quantize quantizes it: a large matrix, with nothing fused into its product */
  KR_LM_DELICATE = 2, /* to 8 bits at least: it is small, or errors in it affect every token */
  KR_LM_FLOAT = 4     /* kept in float32: a parameter of a recurrence */
};
/* A weight's key; '*' is the layer's number, '#' an expert's. A field may have several keys: the first that the file
 * has is used. */
typedef struct kr_lm_key {
  const char *field, *key;
  int32_t flags;
} kr_lm_key;

/* A field's tensor into the context's memory, in the form of the file. One that is not needed may be missing, in the
 * file or in the family's table. */
int32_t kr_lm_load(kr_lm_loader *l, const char *field, int is_needed, kr_sizes want, kr_weight_ref *to);
/* kr_load_rows, kr_load_f32 */
int32_t kr_lm_load_rows(kr_lm_loader *l, int n, const char *const *fields, int is_needed, const kr_sizes *want,
                        kr_weight_ref *to);
int32_t kr_lm_load_f32(kr_lm_loader *l, const char *field, kr_sizes want, double (*f)(double), kr_weight_ref *to);
/* A norm's weight in float32, n times over; with the model's norm_offset added. */
int32_t kr_lm_load_norm(kr_lm_loader *l, const char *field, int64_t size, int64_t n, kr_weight_ref *to);
/* The same of several, one behind the other. */
typedef struct kr_lm_norm_part {
  const char *field;
  int64_t size, n;
} kr_lm_norm_part;
int32_t kr_lm_load_norms(kr_lm_loader *l, int n, const kr_lm_norm_part *parts, kr_weight_ref *to);
/* A tensor's values as float32, through f if that is not NULL; values that the block has made. */
int32_t kr_lm_load_values(kr_lm_loader *l, const char *field, kr_sizes want, double (*f)(double), float *values);
int32_t kr_lm_load_made(kr_lm_loader *l, const float *values, int64_t n, kr_weight_ref *to);
/* kr_load_reordered */
int32_t kr_lm_load_reordered(kr_lm_loader *l, const char *field, kr_sizes want,
                             int64_t (*row_of)(const void *user, int64_t i), const void *user, kr_weight_ref *to);
/* A field's tensors of n experts as one (n, size[0], size[1]): one tensor of that shape, or one for each expert. */
int32_t kr_lm_load_experts(kr_lm_loader *l, const char *field, int64_t n, kr_sizes want, kr_weight_ref *to);
int kr_lm_has_key(const kr_lm_loader *l, const char *field); /* whether the family's table has it */
int kr_lm_has(const kr_lm_loader *l, const char *field);     /* the weights have it in some form, or are random */
/* As stored; NULL: missing, or weights are random. */
const kr_weight *kr_lm_peek(const kr_lm_loader *l, const char *field);
int kr_lm_is_on_gpu(const kr_lm_loader *l);

/* ---- families and models ---- */

typedef struct kr_lm_family {
  const char *name;      /* in state files */
  const char *models;    /* for messages: "Mamba, Mamba-2" */
  const kr_lm_key *keys; /* up to one without a field */
  /* What the beginning of all keys may also be: the first is the table's; NULL ends the list, or: none. */
  const char *const *prefixes;
  /* Tensors that published files have and the model does not need: names as in keys, or beginnings of names that end
   * with '.'; NULL ends the list, or: none. Any other tensor that no block read is an error. */
  const char *const *unused;
  int32_t keeps_q8;      /* kr_loader.keeps_q8 */
  /* From config.json and the tensors' shapes. */
  int32_t (*read)(const kr_model_folder *folder, kr_lm_config **config);
  /* The sizes of a published model, for timing; *config stays NULL if the name is unknown. */
  int32_t (*find_published)(const char *name, kr_lm_config **config);
  const char *published; /* the names that it knows, for messages */
} kr_lm_family;

enum { KR_LM_TIED_IF_ABSENT, KR_LM_TIED, KR_LM_NOT_TIED }; /* the output matrix is the embedding */

struct kr_lm_config {
  const kr_lm_family *family;
  int64_t d, V, n_used; /* width; rows of the embedding; tokens that may be sampled: the tokenizer's */
  int64_t n_layers;
  int64_t eos[KR_LM_MOST_EOS];
  int32_t n_eos, tied;
  int32_t is_rms;
  float eps;          /* of the blocks' norms, and the last one */
  double norm_offset; /* added to every norm's weight, which then is in float32 */
  double embedding_scale, logits_scale; /* 0: 1 */
  kr_rope ropes[KR_LM_MOST_ROPES];
  int32_t n_ropes;
  kr_lm_block *blocks;
  int64_t n_blocks;
  int64_t n_stateful, n_per_token; /* blocks with states; states per token */
  kr_arena *arena;
};

/* An empty list for most_blocks; on failure *config is NULL. Fields are the family's to fill in. */
int32_t kr_lm_config_open(const kr_lm_family *family, int64_t most_blocks, kr_lm_config **config);
void kr_lm_config_close(kr_lm_config **config);
/* sizes: of the kind; copied. */
int32_t kr_lm_config_add(kr_lm_config *config, const kr_lm_block_kind *kind, int64_t layer, const char *norm,
                         const void *sizes);

/* Columns of what a block reads. */
static inline int64_t kr_lm_read_width(const kr_lm_config *c, const kr_lm_block *b) {
  return b->reads == KR_LM_READS_EMBEDDED ? 2 * c->d : c->d;
}
/* The block that was added last, for what few have: post, reads, scales, what it shares. */
kr_lm_block *kr_lm_config_last(const kr_lm_config *config);
/* Where the results of all blocks are multiplied by `by` (0: 1) before they are added to the stream: the stream is kept
 * divided by it instead, which the blocks' norms, of RMS, do not see, and products remain plain. After embedding_scale
 * and all uses of eps for other norms. */
void kr_lm_config_divide_stream(kr_lm_config *config, double by);
/* A rope table of n pairs with these frequencies (copied), whose angles' cosines and sines are multiplied by factor;
 * *at: its number. */
int32_t kr_lm_config_add_rope(kr_lm_config *config, int64_t n, const double *frequencies, double factor, int64_t *at);
/* The usual one: frequencies base^(-r/n). */
int32_t kr_lm_config_add_plain_rope(kr_lm_config *config, int64_t n, double base, int64_t *at);

/* ---- config.json ---- */

/* A whole number from low to high, or fallback if it is absent. label: of the model, for messages. */
int32_t kr_lm_json_whole(const char *label, const json_t *from, const char *key, int64_t fallback, int64_t low,
                         int64_t high, int64_t *value);
double kr_lm_json_real(const json_t *from, const char *key, double fallback);
const char *kr_lm_json_text(const json_t *from, const char *key, const char *fallback);
int32_t kr_lm_json_eos(const char *label, const json_t *root, int64_t *eos, int32_t *n_eos); /* eos_token_id */
/* Refuses a folder that has a tensor with this key ('*': the number of layers): without its last layers a model would
 * speak, but not as it was trained to. */
int32_t kr_lm_check_last(const kr_model_folder *folder, const char *key, int64_t n_layers);

#endif

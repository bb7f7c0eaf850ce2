/* gguf.h: the GGUF container: typed values by name, then tensors in the types of ggml. And language models in it: their
 * tensors and configuration under the names of Hugging Face's folders. docs/FORMATS.md has the limits. */
#ifndef KR_GGUF_H
#define KR_GGUF_H

#include <jansson.h>

#include "arena.h"
#include "gguf_blocks.h"
#include "weights.h"

typedef struct kr_gguf_value {
  const char *key; /* of n_key bytes */
  size_t n_key;
  uint32_t type, item_type; /* item_type, count: of an array; else type, 1 */
  uint64_t count;
  const unsigned char *at;
} kr_gguf_value;

typedef struct kr_gguf_tensor {
  const char *name;
  uint32_t type;      /* KR_GGUF_* */
  int32_t n_dims;
  int64_t shape[4];   /* outermost first */
  const unsigned char *data;
} kr_gguf_tensor;

typedef struct kr_gguf {
  const char *label;
  kr_arena *arena;
  kr_list values, tensors;
  size_t data; /* where tensors begin */
} kr_gguf;

int kr_gguf_is(const unsigned char *bytes, size_t n_bytes);
/* bytes and label must outlive it. Every range is checked; on failure nothing is left open. */
int32_t kr_gguf_open(const unsigned char *bytes, size_t n_bytes, const char *label, kr_gguf *g);
void kr_gguf_close(kr_gguf *g);

const kr_gguf_value *kr_gguf_find(const kr_gguf *g, const char *key); /* NULL: there is none */
/* An integer or a real number; 0: it is neither. */
int kr_gguf_whole(const kr_gguf_value *value, int64_t *number);
/* Number i of an array of integers. */
int kr_gguf_whole_at(const kr_gguf_value *value, uint64_t i, int64_t *number);
/* The same, or the largest of an array of integers: what layers have that do not differ otherwise. */
int kr_gguf_most(const kr_gguf_value *value, int64_t *number);
int kr_gguf_real(const kr_gguf_value *value, double *number);
/* The text, or element i of an array of texts, walked through in order: *at begins as 0 and moves on. NULL: it is
 * none. */
const char *kr_gguf_text(const kr_gguf_value *value, uint64_t *at, size_t *n);

/* ---- language models (gguf_model.c, gguf_config.c) ---- */
/* Adds the tensors to weights, with the names and shapes of Hugging Face's files; blocks as in gguf_blocks.h and
 * quantize.h. A file without llama.cpp's names is no language model: its tensors keep their own, without ComfyUI's
 * "model.diffusion_model.", and the shapes noted beside them; blocks become float16. Of language models the metadata
 * record the original types and what they were converted to. */
int32_t kr_gguf_read(const unsigned char *bytes, size_t n_bytes, const char *label, kr_weights *weights);
/* The equivalent of config.json; that of tokenizer.json is in src/text/gguf_tokenizer.h. */
int32_t kr_gguf_config(const unsigned char *bytes, size_t n_bytes, const char *label, json_t **config);

#endif

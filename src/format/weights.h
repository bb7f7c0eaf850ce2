/* weights.h: named tensors and metadata of a weights file, whatever its format: safetensors, what torch.save wrote, or
 * GGUF.
 *
 * Immutable after open; any number of threads may read. Names are unique. Tensors are contiguous, row-major and aligned
 * to their element size; they live as long as the kr_weights (for kr_weights_open_memory also as long as the given
 * bytes). Names and shapes come from a hostile file: they are bounded and consistent with `bytes`, but not validated
 * further. */
#ifndef KR_WEIGHTS_H
#define KR_WEIGHTS_H

#include <krait/krait.h>

#include "pool.h"

enum { KR_WEIGHT_MAX_DIMS = 8 };

typedef struct kr_weight {
  const char *name; /* UTF-8 */
  int32_t dtype;    /* KRAIT_F32 ... */
  int32_t n_dims;   /* 0 for a scalar */
  int64_t shape[KR_WEIGHT_MAX_DIMS];
  const void *data;
  uint64_t bytes;   /* product of shape * krait_dtype_bytes(dtype) */
} kr_weight;

typedef struct kr_metadata {
  const char *key, *value; /* UTF-8 */
} kr_metadata;

typedef struct kr_weights kr_weights;

int32_t kr_weights_open(const char *path, kr_weights **weights);
/* Only names, shapes and metadata; the data of a safetensors file are not read, and must not be used. */
int32_t kr_weights_open_header(const char *path, kr_weights **weights);
/* The data of a safetensors file stay there, and those of a GGUF file that is no language model, until kr_weights_read;
 * of any other file they are read now. The file must not be written meanwhile; if another takes its name, this one is
 * read on. */
int32_t kr_weights_open_in_parts(const char *path, kr_weights **weights);
int kr_weights_are_in_parts(const kr_weights *weights);
int32_t kr_weights_read(const kr_weights *weights, const kr_weight *item, kr_pool *pool, void *to); /* item->bytes */
/* label stands for the path in messages; bytes must outlive the handle. */
int32_t kr_weights_open_memory(const void *bytes, size_t n_bytes, const char *label, kr_weights **weights);
/* From float32 tensors in memory, which must outlive the handle; names are copied. */
int32_t kr_weights_open_items(const kr_weight *items, int64_t n_items, kr_weights **weights);
void kr_weights_close(kr_weights **weights);

const char *kr_weights_format(const kr_weights *weights); /* "safetensors", "pytorch" or "gguf" */
/* The file itself, for its other contents. */
const unsigned char *kr_weights_file(const kr_weights *weights, size_t *n_bytes);
int64_t kr_weights_count(const kr_weights *weights);
const kr_weight *kr_weights_at(const kr_weights *weights, int64_t i); /* in the file's order */
const kr_weight *kr_weights_find(const kr_weights *weights, const char *name); /* NULL if there is none */
/* Converts every float16, bfloat16 and float64 tensor to float32, for models that compute in it; call it before the
 * handle is shared. */
int32_t kr_weights_widen(kr_weights *weights);
/* Every float32 element, after widening; KRAIT_ERR_WEIGHTS names the first that is not finite. */
int32_t kr_weights_check_finite(const kr_weights *weights);
/* The tensor, float32 and with exactly this shape, or KRAIT_ERR_WEIGHTS and a sentence with what was found instead. */
int32_t kr_weights_take_f32(const kr_weights *weights, const char *name, int32_t n_dims, const int64_t *shape,
                            const float **data);

int64_t kr_weights_n_metadata(const kr_weights *weights);
const kr_metadata *kr_weights_metadata_at(const kr_weights *weights, int64_t i);
const char *kr_weights_metadata(const kr_weights *weights, const char *key); /* NULL if there is none */

/* "(64, 1, 3)" into text, always NUL terminated; returns text. */
const char *kr_shape_format(int32_t n_dims, const int64_t *shape, char *text, size_t text_bytes);

#endif

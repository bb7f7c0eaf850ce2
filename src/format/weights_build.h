/* weights_build.h: what the readers of weights files share: filling a kr_weights, with every bound checked in one place. */
#ifndef KR_WEIGHTS_BUILD_H
#define KR_WEIGHTS_BUILD_H

#include "mapfile.h"
#include "weights.h"

typedef struct kr_owned { /* blocks that are freed with the weights */
  struct kr_owned *next;
} kr_owned;

struct kr_weights {
  const char *format;
  kr_weight *items;
  int64_t n_items, capacity;
  const kr_weight **by_name; /* sorted */
  kr_metadata *metadata;
  int64_t n_metadata, metadata_capacity;
  kr_owned *owned;
  kr_mapfile file;
};

/* Multiplies out; KRAIT_ERR_FILE_FORMAT when the product does not fit 63 bits or a size is negative. */
int32_t kr_shape_bytes(int32_t n_dims, const int64_t *shape, int32_t dtype, uint64_t *bytes);

void *kr_weights_own(kr_weights *weights, size_t bytes); /* aligned memory that lives with the weights; NULL when out of memory */
const char *kr_weights_own_text(kr_weights *weights, const char *text, size_t length);
int32_t kr_weights_add(kr_weights *weights, const kr_weight *item); /* copies the name, refers to the data */
int32_t kr_weights_add_metadata(kr_weights *weights, const char *key, const char *value); /* copies both */
/* Copies tensors that are not aligned to their element size, sorts names and refuses duplicates. */
int32_t kr_weights_finish(kr_weights *weights, const char *label);

#endif

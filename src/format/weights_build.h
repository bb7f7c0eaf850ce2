/* weights_build.h: shared by the readers of weights files: filling a kr_weights, with all bounds checked in one
 * place. */
#ifndef KR_WEIGHTS_BUILD_H
#define KR_WEIGHTS_BUILD_H

#include "arena.h"
#include "mapfile.h"
#include "weights.h"

/* A float16 tensor that the file has in blocks of another type, and how n of them are widened. */
typedef struct kr_weight_blocks {
  int64_t item;
  uint32_t type, weights, bytes; /* of a block */
  void (*widen)(uint32_t type, const unsigned char *blocks, int64_t n, uint16_t *to);
} kr_weight_blocks;

struct kr_weights {
  const char *format;
  kr_weight *items;
  int64_t n_items, capacity;
  const kr_weight **by_name; /* sorted */
  kr_metadata *metadata;
  int64_t n_metadata, metadata_capacity;
  kr_arena *owned; /* names, metadata, and tensors that are not in the required form in the file */
  kr_mapfile file;
  int is_header_only;
  int is_in_parts, fd; /* in parts: data are read when they are asked for, */
  kr_list blocks;      /* kr_weight_blocks: and these become float16 then */
};

/* The product of the sizes; KRAIT_ERR_FILE_FORMAT if it does not fit 63 bits or a size is negative. */
int32_t kr_shape_bytes(int32_t n_dims, const int64_t *shape, int32_t dtype, uint64_t *bytes);

int32_t kr_weights_add(kr_weights *weights,
                       const kr_weight *item); /* copies the name, which must be UTF-8; refers to the data */
int32_t kr_weights_add_metadata(kr_weights *weights, const char *key, const char *value); /* copies both */
int32_t kr_weights_add_blocks(kr_weights *weights, const kr_weight_blocks *blocks);
/* Copies tensors that are not aligned to their element size, sorts names and refuses duplicates. */
int32_t kr_weights_finish(kr_weights *weights, const char *label);

#endif

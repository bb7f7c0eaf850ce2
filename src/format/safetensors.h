/* safetensors.h: the safetensors format: 8 bytes of header length, a JSON header, raw tensors. docs/FORMATS.md has the
 * limits. */
#ifndef KR_SAFETENSORS_H
#define KR_SAFETENSORS_H
#include "weights.h"

/* Adds every tensor and metadata entry to weights; tensor data refer to bytes. Callers want kr_weights_open. */
int32_t kr_safetensors_read(const unsigned char *bytes, size_t n_bytes, const char *label, kr_weights *weights);
/* The file appears under its name only when complete. Tensors are laid out so that each is aligned to its element
 * size. */
int32_t kr_safetensors_write(const char *path, const kr_weight *items, int64_t n_items, const kr_metadata *metadata,
                             int64_t n_metadata);
#endif

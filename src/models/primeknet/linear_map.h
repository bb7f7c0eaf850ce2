/* linear_map.h: y = W x + b in double, while weights are loaded: read, multiply maps together, fold norms and scales
 * in, pack. Errors stick: after one, every function is harmless and pk_pack gives empty panels. */
#ifndef KR_LINEAR_MAP_H
#define KR_LINEAR_MAP_H

#include "primeknet_packed.h"

typedef struct pk_builder {
  const kr_layers *layers;
  struct pk_chunk *storage; /* what packed weights live in; owned by the model at the end */
  int32_t status;
} pk_builder;

typedef struct pk_linear {
  int64_t N, K;
  double *w, *b; /* (N, K), (N) */
} pk_linear;

void *pk_storage_take(pk_builder *builder, size_t bytes); /* zeroed, aligned to 64 bytes; NULL after an error */
void pk_storage_free(struct pk_chunk **storage);
/* The blocks that storage consists of: what one holds, and the next one. */
const struct pk_chunk *pk_storage_block(const struct pk_chunk *storage, const void **data, size_t *bytes);
float *pk_padded_copy(pk_builder *builder, const float *from, int64_t n); /* n values and zeros up to whole vectors */

/* w[n][k] at w + n * stride_n + k * stride_k; b may be NULL */
pk_linear pk_linear_read(pk_builder *builder, int64_t N, int64_t K, const float *w, int64_t stride_n, int64_t stride_k,
                         const float *b);
/* outer after inner; both are consumed */
pk_linear pk_linear_chain(pk_builder *builder, pk_linear outer, pk_linear inner);
/* x is scale * (what comes in) + shift */
void pk_linear_fold_input(pk_linear *map, const float *scale, const float *shift);
/* y is scale * y + shift; shift may be NULL */
void pk_linear_fold_output(pk_linear *map, const float *scale, const float *shift);
/* Packs and consumes. Inputs come in groups of group_K (outputs of group_N), each padded to whole vectors; group_K 0:
 * inputs are not padded; gate: see gemm_kernel.h. */
kr_panels pk_pack(pk_builder *builder, pk_linear map, int64_t group_K, int64_t group_N, int gate);

#endif

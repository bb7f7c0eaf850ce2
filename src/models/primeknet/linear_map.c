/* linear_map.c: small dense algebra in double; sizes are at most some thousands, speed hardly matters. */
#include "linear_map.h"

#include <string.h>

#include "alloc.h"
#include "status.h"

typedef struct pk_chunk {
  struct pk_chunk *next;
  size_t used, bytes;
  _Alignas(64) unsigned char data[];
} pk_chunk;

enum { CHUNK_BYTES = 1 << 20 };

static void out_of_memory(pk_builder *builder) {
  if (builder->status == KRAIT_OK) builder->status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for the model's weights");
}

static pk_chunk *add_chunk(pk_builder *builder, size_t bytes) {
  size_t room = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
  pk_chunk *chunk = kr_zalloc(sizeof *chunk + room);
  if (!chunk) return NULL;
  chunk->bytes = room;
  chunk->next = builder->storage;
  builder->storage = chunk;
  return chunk;
}

void *pk_storage_take(pk_builder *builder, size_t bytes) {
  if (builder->status < 0) return NULL;
  bytes = (bytes + 63) / 64 * 64;
  pk_chunk *chunk = builder->storage;
  if (!chunk || chunk->bytes - chunk->used < bytes) chunk = add_chunk(builder, bytes);
  if (!chunk) {
    out_of_memory(builder);
    return NULL;
  }
  chunk->used += bytes;
  return chunk->data + chunk->used - bytes;
}

void pk_storage_free(pk_chunk **storage) {
  while (*storage) {
    pk_chunk *next = (*storage)->next;
    kr_free(*storage);
    *storage = next;
  }
}

const pk_chunk *pk_storage_block(const pk_chunk *storage, const void **data, size_t *bytes) {
  *data = storage->data;
  *bytes = storage->used;
  return storage->next;
}

float *pk_padded_copy(pk_builder *builder, const float *from, int64_t n) {
  float *copy = pk_storage_take(builder, (size_t)kr_padded(builder->layers, n) * sizeof *copy);
  if (copy) memcpy(copy, from, (size_t)n * sizeof *copy);
  return copy;
}

static pk_linear linear_alloc(pk_builder *builder, int64_t N, int64_t K) {
  pk_linear map = {N, K, NULL, NULL};
  if (builder->status < 0) return (pk_linear){0};
  map.w = kr_alloc_array((size_t)N * (size_t)(K + 1), sizeof *map.w);
  if (!map.w) {
    out_of_memory(builder);
    return (pk_linear){0};
  }
  map.b = map.w + N * K;
  return map;
}

pk_linear pk_linear_read(pk_builder *builder, int64_t N, int64_t K, const float *w, int64_t stride_n, int64_t stride_k,
                         const float *b) {
  pk_linear map = linear_alloc(builder, N, K);
  for (int64_t n = 0; n < map.N; n++) {
    for (int64_t k = 0; k < K; k++) map.w[n * K + k] = w[n * stride_n + k * stride_k];
    map.b[n] = b ? b[n] : 0;
  }
  return map;
}

pk_linear pk_linear_chain(pk_builder *builder, pk_linear outer, pk_linear inner) {
  pk_linear map = linear_alloc(builder, outer.N, inner.K);
  for (int64_t n = 0; n < map.N; n++) {
    double *row = map.w + n * map.K;
    map.b[n] = outer.b[n];
    for (int64_t j = 0; j < outer.K; j++) {
      double factor = outer.w[n * outer.K + j];
      map.b[n] += factor * inner.b[j];
      for (int64_t k = 0; k < map.K; k++) row[k] += factor * inner.w[j * map.K + k];
    }
  }
  kr_free(outer.w);
  kr_free(inner.w);
  return map;
}

void pk_linear_fold_input(pk_linear *map, const float *scale, const float *shift) {
  for (int64_t n = 0; n < map->N; n++)
    for (int64_t k = 0; k < map->K; k++) {
      map->b[n] += map->w[n * map->K + k] * shift[k];
      map->w[n * map->K + k] *= scale[k];
    }
}

void pk_linear_fold_output(pk_linear *map, const float *scale, const float *shift) {
  for (int64_t n = 0; n < map->N; n++) {
    for (int64_t k = 0; k < map->K; k++) map->w[n * map->K + k] *= scale[n];
    map->b[n] = map->b[n] * scale[n] + (shift ? shift[n] : 0);
  }
}

static int64_t spread(int64_t i, int64_t group, int64_t padded_group) { return i / group * padded_group + i % group; }

kr_panels pk_pack(pk_builder *builder, pk_linear map, int64_t group_K, int64_t group_N, int gate) {
  const kr_layers *layers = builder->layers;
  if (builder->status < 0) {
    kr_free(map.w);
    return (kr_panels){0};
  }
  if (!group_K) group_K = map.K;
  int64_t padded_K = map.K == group_K ? map.K : map.K / group_K * kr_padded(layers, group_K),
          unit_K = padded_K / (map.K / group_K);
  int64_t unit_N = gate ? group_N : kr_padded(layers, group_N), padded_N = map.N / group_N * unit_N;
  kr_panels panels = {0};
  float *B = kr_alloc_array((size_t)padded_N * (size_t)(padded_K + 1), sizeof *B);
  float *storage = pk_storage_take(builder, (size_t)layers->panels_floats(padded_K, padded_N, gate) * sizeof *storage);
  if (!B) out_of_memory(builder);
  if (B && storage) {
    float *bias = B + padded_N * padded_K;
    for (int64_t n = 0; n < map.N; n++) {
      int64_t to = spread(n, group_N, unit_N);
      for (int64_t k = 0; k < map.K; k++) B[spread(k, group_K, unit_K) * padded_N + to] = (float)map.w[n * map.K + k];
      bias[to] = (float)map.b[n];
    }
    layers->panels_pack(&panels, storage, padded_K, padded_N, gate, B, padded_N, 1, bias);
  }
  kr_free(B);
  kr_free(map.w);
  return panels;
}

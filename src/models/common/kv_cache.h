/* kv_cache.h: keys and values of attention layers for the texts of a model's slots, and the angles of their rotary
 * embedding, in the context's memory. */
#ifndef KR_KV_CACHE_H
#define KR_KV_CACHE_H

#include <krait/krait.h>

typedef struct kr_kv_cache {
  const krait_ctx *ctx;
  int64_t n_layers, n_slots;
  uint64_t token_bytes;      /* of one token's keys in one layer */
  const uint8_t *attention;  /* by layer: 1: has keys and values; NULL: all have */
  int64_t n_pairs;           /* rotated pairs of features; 0: none */
  double base;               /* of the angles */
  /* its own; the owner sets the fields above */
  int64_t capacity;          /* tokens of a slot */
  char **keys, **values;     /* by layer: (n_slots, capacity, token_bytes) */
  float *cos, *sin;          /* (capacity, n_pairs) */
} kr_kv_cache;

int32_t kr_kv_cache_open(kr_kv_cache *cache); /* without any capacity */
void kr_kv_cache_close(kr_kv_cache *cache);
/* Capacity for n tokens at least. If memory runs out, everything stays as it was. */
int32_t kr_kv_cache_grow(kr_kv_cache *cache, int64_t n);
static inline uint64_t kr_kv_cache_at(const kr_kv_cache *cache, int64_t slot) { /* a slot's place in keys and values */
  return (uint64_t)(slot * cache->capacity) * cache->token_bytes;
}

#endif

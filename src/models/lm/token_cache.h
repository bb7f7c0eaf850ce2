/* token_cache.h: states that grow with a text, such as keys and values, for the texts of a model's slots, and the
 * angles of their rotary embedding, in the context's memory. */
#ifndef KR_TOKEN_CACHE_H
#define KR_TOKEN_CACHE_H

#include <krait/krait.h>

/* A table of angles: of token t and pair r, t frequencies[r]. */
typedef struct kr_rope {
  int64_t n; /* pairs of features */
  const double *frequencies;
  double factor; /* of cosines and sines */
} kr_rope;

enum { KR_TOKEN_CACHE_ROPES = 2 };

typedef struct kr_token_cache {
  const krait_ctx *ctx;
  int64_t n, n_slots; /* states, slots */
  const kr_rope *ropes;
  int32_t n_ropes; /* at most KR_TOKEN_CACHE_ROPES */
  /* its own; the owner sets the fields above, and after opening token_bytes */
  uint64_t *token_bytes; /* by state: of one token */
  int64_t capacity;      /* tokens of a slot */
  char **at;             /* by state: (n_slots, capacity, token_bytes) */
  float *angles;         /* by rope: cos, then sin (capacity, n) */
  int32_t borrows;       /* kr_token_cache_lend */
} kr_token_cache;

int32_t kr_token_cache_open(kr_token_cache *cache); /* without any capacity */
void kr_token_cache_close(kr_token_cache *cache);
/* Capacity for n tokens at least. If memory runs out, everything stays as it was. */
int32_t kr_token_cache_grow(kr_token_cache *cache, int64_t n);
/* Instead: memory for n tokens of each slot, by state, which is not the cache's. */
int32_t kr_token_cache_lend(kr_token_cache *cache, int64_t n, char *memory);
const float *kr_token_cache_cos(const kr_token_cache *cache, int32_t rope);
static inline const float *kr_token_cache_sin(const kr_token_cache *cache, int32_t rope) {
  return kr_token_cache_cos(cache, rope) + cache->capacity * cache->ropes[rope].n;
}
static inline char *kr_token_cache_at(const kr_token_cache *cache, int64_t i, int64_t slot) {
  return cache->at[i] + (uint64_t)(slot * cache->capacity) * cache->token_bytes[i];
}

#endif

/* kv_cache.c: the capacity doubles. All or nothing: a caller whose call failed may repeat it. */
#include "kv_cache.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "weight_loader.h"
#include "status.h"

enum { FIRST_CAPACITY = 256 };

int32_t kr_kv_cache_open(kr_kv_cache *c) {
  c->keys = kr_alloc_array((size_t)c->n_layers, 2 * sizeof *c->keys);
  KR_CHECK(c->keys, KRAIT_ERR_NO_MEMORY, "no memory for keys and values");
  c->values = c->keys + c->n_layers;
  return KRAIT_OK;
}

void kr_kv_cache_close(kr_kv_cache *c) {
  for (int64_t i = 0; c->keys && i < 2 * c->n_layers; i++) kr_mem_free(c->ctx, c->keys[i]); /* followed by values */
  kr_mem_free(c->ctx, c->cos);
  kr_free(c->keys);
  c->keys = c->values = NULL;
  c->cos = c->sin = NULL;
}

static int32_t wait(const kr_kv_cache *c) { return c->ctx->cuda ? kr_cuda_wait(c->ctx->cuda, NULL) : KRAIT_OK; }

/* cos, then sin, in a new block. */
static int32_t make_angles(const kr_kv_cache *c, int64_t capacity, float **angles) {
  const int64_t R = c->n_pairs, n = capacity * R;
  if (!R) return KRAIT_OK;
  float *host = kr_alloc_array((size_t)n, 2 * sizeof *host);
  KR_CHECK(host, KRAIT_ERR_NO_MEMORY, "no memory for the angles of %lld tokens", (long long)capacity);
  for (int64_t r = 0; r < R; r++) {
    const double frequency = pow(c->base, -(double)r / (double)R);
    for (int64_t t = 0; t < capacity; t++) {
      host[t * R + r] = (float)cos((double)t * frequency);
      host[n + t * R + r] = (float)sin((double)t * frequency);
    }
  }
  const uint64_t bytes = 2 * (uint64_t)n * sizeof *host;
  int32_t status = kr_mem_get(c->ctx, "the angles", bytes, angles);
  if (status >= 0) status = kr_mem_put(c->ctx, *angles, host, bytes);
  if (status >= 0) status = wait(c);
  kr_free(host);
  return status;
}

/* The texts of all slots, from one stride to another; within one block only to a smaller one. */
static int32_t move_texts(const kr_kv_cache *c, char *to, int64_t to_capacity, const char *from,
                          int64_t from_capacity) {
  const uint64_t there = (uint64_t)to_capacity * c->token_bytes, here = (uint64_t)from_capacity * c->token_bytes,
                 bytes = there < here ? there : here;
  for (int64_t slot = to == from; slot < c->n_slots; slot++) {
    char *const into = to + (uint64_t)slot * there;
    const char *const out_of = from + (uint64_t)slot * here;
    if (c->ctx->cuda) KR_TRY(kr_cuda_copy(c->ctx->cuda, into, out_of, (size_t)bytes, NULL));
    else memcpy(into, out_of, (size_t)bytes);
  }
  return wait(c);
}

/* In a new block with a larger capacity. */
static int32_t grow_block(const kr_kv_cache *c, int64_t capacity, char **block) {
  char *larger = NULL;
  int32_t status = kr_mem_get(c->ctx, "keys and values; the text is too long",
                              (uint64_t)(c->n_slots * capacity) * c->token_bytes, &larger);
  if (status >= 0 && *block) status = move_texts(c, larger, capacity, *block, c->capacity);
  kr_mem_free(c->ctx, status < 0 ? larger : *block);
  if (status >= 0) *block = larger;
  return status;
}

static int has_block(const kr_kv_cache *c, int64_t i) { return !c->attention || c->attention[i % c->n_layers]; }

/* One block after another, so that memory is needed for one block more; those that have grown before one that cannot
 * return to the old stride in place (the capacity doubles: no text overlaps its old place). */
static int32_t grow_blocks(kr_kv_cache *c, int64_t capacity) {
  for (int64_t i = 0; i < 2 * c->n_layers; i++) {
    if (!has_block(c, i)) continue;
    const int32_t status = grow_block(c, capacity, &c->keys[i]);
    if (status >= 0) continue;
    for (int64_t k = 0; k < i; k++)
      if (c->keys[k] && c->capacity) KR_TRY(move_texts(c, c->keys[k], c->capacity, c->keys[k], capacity));
    return status;
  }
  return KRAIT_OK;
}

int32_t kr_kv_cache_grow(kr_kv_cache *c, int64_t n) {
  int64_t capacity = c->capacity ? c->capacity : FIRST_CAPACITY;
  float *angles = NULL;
  KR_CHECK(n <= INT32_MAX / 2, KRAIT_ERR_NO_MEMORY, "a text of %lld tokens is too long for attention", (long long)n);
  while (capacity < n) capacity *= 2;
  int32_t status = make_angles(c, capacity, &angles);
  if (status >= 0) status = grow_blocks(c, capacity);
  kr_mem_free(c->ctx, status < 0 ? angles : c->cos);
  if (status < 0) return status;
  c->cos = angles, c->sin = angles ? angles + capacity * c->n_pairs : NULL;
  c->capacity = capacity;
  return KRAIT_OK;
}

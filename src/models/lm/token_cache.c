/* token_cache.c: the capacity doubles. All or nothing: a caller whose call failed may repeat it. */
#include "token_cache.h"

#include <math.h>

#include "alloc.h"
#include "ctx_memory.h"
#include "status.h"

enum { FIRST_CAPACITY = 256 };

int32_t kr_token_cache_open(kr_token_cache *c) {
  c->at = kr_alloc_array((size_t)c->n + 1, sizeof *c->at);
  c->token_bytes = kr_alloc_array((size_t)c->n + 1, sizeof *c->token_bytes);
  KR_CHECK(c->at && c->token_bytes, KRAIT_ERR_NO_MEMORY, "no memory for keys and values");
  return KRAIT_OK;
}

void kr_token_cache_close(kr_token_cache *c) {
  for (int64_t i = 0; c->at && !c->borrows && i < c->n; i++) kr_mem_free(c->ctx, c->at[i]);
  kr_mem_free(c->ctx, c->angles);
  kr_free(c->at);
  kr_free(c->token_bytes);
  *c = (kr_token_cache){0};
}

static int64_t count_angles(const kr_token_cache *c, int32_t n_ropes, int64_t capacity) {
  int64_t n = 0;
  for (int32_t i = 0; i < n_ropes; i++) n += 2 * capacity * c->ropes[i].n;
  return n;
}

const float *kr_token_cache_cos(const kr_token_cache *c, int32_t rope) {
  return c->angles + count_angles(c, rope, c->capacity);
}

static void fill_angles(const kr_rope *rope, int64_t capacity, float *cosines) {
  const int64_t R = rope->n;
  float *sines = cosines + capacity * R;
  for (int64_t r = 0; r < R; r++)
    for (int64_t t = 0; t < capacity; t++) {
      cosines[t * R + r] = (float)(rope->factor * cos((double)t * rope->frequencies[r]));
      sines[t * R + r] = (float)(rope->factor * sin((double)t * rope->frequencies[r]));
    }
}

/* Of all ropes, in a new block. */
static int32_t make_angles(const kr_token_cache *c, int64_t capacity, float **angles) {
  const int64_t n = count_angles(c, c->n_ropes, capacity);
  if (!n) return KRAIT_OK;
  float *host = kr_alloc_array((size_t)n, sizeof *host);
  KR_CHECK(host, KRAIT_ERR_NO_MEMORY, "no memory for the angles of %lld tokens", (long long)capacity);
  for (int32_t i = 0; i < c->n_ropes; i++) fill_angles(&c->ropes[i], capacity, host + count_angles(c, i, capacity));
  const uint64_t bytes = (uint64_t)n * sizeof *host;
  int32_t status = kr_mem_get(c->ctx, "the angles", bytes, angles);
  if (status >= 0) status = kr_mem_put(c->ctx, *angles, host, bytes);
  if (status >= 0) status = kr_mem_wait(c->ctx);
  kr_free(host);
  return status;
}

/* State i of all slots' texts, from one stride to another; within one block only to a smaller one. */
static int32_t move_texts(const kr_token_cache *c, int64_t i, char *to, int64_t to_capacity, const char *from,
                          int64_t from_capacity) {
  const uint64_t there = (uint64_t)to_capacity * c->token_bytes[i], here = (uint64_t)from_capacity * c->token_bytes[i],
                 bytes = there < here ? there : here;
  for (int64_t slot = to == from; slot < c->n_slots; slot++)
    KR_TRY(kr_mem_copy(c->ctx, to + (uint64_t)slot * there, from + (uint64_t)slot * here, bytes));
  return kr_mem_wait(c->ctx);
}

/* In new memory with a larger capacity. */
static int32_t grow_state(kr_token_cache *c, int64_t i, int64_t capacity) {
  char *larger = NULL;
  int32_t status = kr_mem_get(c->ctx, "keys and values; the text is too long",
                              (uint64_t)(c->n_slots * capacity) * c->token_bytes[i], &larger);
  if (status >= 0 && c->at[i]) status = move_texts(c, i, larger, capacity, c->at[i], c->capacity);
  kr_mem_free(c->ctx, status < 0 ? larger : c->at[i]);
  if (status >= 0) c->at[i] = larger;
  return status;
}

/* One state after another, so that memory is needed for one more; those that have grown before one that cannot return
 * to the old stride in place (the capacity doubles: no text overlaps its old place). */
static int32_t grow_states(kr_token_cache *c, int64_t capacity) {
  for (int64_t i = 0; i < c->n; i++) {
    const int32_t status = grow_state(c, i, capacity);
    if (status >= 0) continue;
    for (int64_t k = 0; k < i && c->capacity; k++) KR_TRY(move_texts(c, k, c->at[k], c->capacity, c->at[k], capacity));
    return status;
  }
  return KRAIT_OK;
}

int32_t kr_token_cache_grow(kr_token_cache *c, int64_t n) {
  int64_t capacity = c->capacity ? c->capacity : FIRST_CAPACITY;
  float *angles = NULL;
  KR_CHECK(n <= INT32_MAX / 2, KRAIT_ERR_NO_MEMORY, "a text of %lld tokens is too long for attention", (long long)n);
  while (capacity < n) capacity *= 2;
  int32_t status = make_angles(c, capacity, &angles);
  if (status >= 0) status = grow_states(c, capacity);
  kr_mem_free(c->ctx, status < 0 ? angles : c->angles);
  if (status < 0) return status;
  c->angles = angles;
  c->capacity = capacity;
  return KRAIT_OK;
}

int32_t kr_token_cache_lend(kr_token_cache *c, int64_t n, char *memory) {
  KR_TRY(make_angles(c, n, &c->angles));
  c->capacity = n;
  c->borrows = 1;
  for (int64_t i = 0; i < c->n; i++) {
    c->at[i] = memory;
    memory += (uint64_t)(c->n_slots * n) * c->token_bytes[i];
  }
  return KRAIT_OK;
}

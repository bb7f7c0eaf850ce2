/* buffer.c: see buffer.h. */
#include "buffer.h"

#include <string.h>

#include "alloc.h"
#include "status.h"

int32_t kr_buffer_reserve(kr_buffer *b, size_t n) {
  if (n <= b->capacity - b->n) return KRAIT_OK;
  const size_t wanted = 2 * b->capacity > b->n + n ? 2 * b->capacity : b->n + n + 64;
  char *grown = kr_realloc(b->at, b->capacity, wanted);
  KR_CHECK(grown, KRAIT_ERR_NO_MEMORY, "no memory for %zu bytes of text", wanted);
  b->at = grown;
  b->capacity = wanted;
  return KRAIT_OK;
}

int32_t kr_buffer_add(kr_buffer *b, const char *bytes, size_t n) {
  KR_TRY(kr_buffer_reserve(b, n));
  if (n) memcpy(b->at + b->n, bytes, n);
  b->n += n;
  return KRAIT_OK;
}

void kr_buffer_free(kr_buffer *b) {
  kr_free(b->at);
  *b = (kr_buffer){0};
}

/* json_text.c: a growing buffer that remembers allocation failures. */
#include "json_text.h"

#include <string.h>

#include "alloc.h"

typedef struct text_buffer {
  char *bytes;
  size_t n, capacity;
  int failed;
} text_buffer;

static int append_json_text(const char *bytes, size_t n, void *user) {
  text_buffer *b = user;
  if (b->n + n + 1 > b->capacity && !b->failed) {
    const size_t capacity = 2 * (b->capacity + n + 1);
    char *grown = kr_realloc(b->bytes, b->n, capacity);
    if (grown) b->bytes = grown, b->capacity = capacity;
    else b->failed = 1;
  }
  if (b->failed) return -1;
  memcpy(b->bytes + b->n, bytes, n);
  b->n += n;
  b->bytes[b->n] = 0;
  return 0;
}

char *kr_json_dump(const json_t *json, size_t flags) {
  text_buffer b = {0};
  if (json && json_dump_callback(json, append_json_text, &b, flags) == 0 && !b.failed && b.bytes) return b.bytes;
  kr_free(b.bytes);
  return NULL;
}

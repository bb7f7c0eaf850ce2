/* buffer.h: bytes that grow by appending. */
#ifndef KR_BUFFER_H
#define KR_BUFFER_H

#include <stddef.h>
#include <stdint.h>

typedef struct kr_buffer {
  char *at; /* no NUL behind them */
  size_t n, capacity;
} kr_buffer;

int32_t kr_buffer_reserve(kr_buffer *buffer, size_t n); /* for n more; at is then not NULL if n > 0 */
int32_t kr_buffer_add(kr_buffer *buffer, const char *bytes, size_t n);
void kr_buffer_free(kr_buffer *buffer);

#endif

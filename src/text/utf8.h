/* utf8.h: untrusted UTF-8: validation, and text that arrives in pieces. */
#ifndef KR_UTF8_H
#define KR_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Length of the well-formed character at s, where n >= 1 bytes are available (no surrogates, no overlong forms); 0 if
 * there is none. code may be NULL. */
int kr_utf8_read(const char *s, size_t n, uint32_t *code);
/* Writes up to 4 bytes; returns how many. */
int kr_utf8_write(uint32_t code, char *to);
/* The offset of the first byte that is not UTF-8; n if there is none. */
size_t kr_utf8_check(const char *text, size_t n);

/* Converts bytes that arrive in pieces to whole characters: the start of a character waits for its rest, and invalid
 * bytes become U+FFFD, one for each maximal invalid subsequence. */
typedef struct kr_utf8_stream {
  char pending[4];
  int n;
} kr_utf8_stream;
/* out has room for 3 (n + 4) bytes; returns how many were written. */
size_t kr_utf8_push(kr_utf8_stream *stream, const char *bytes, size_t n, char *out);
size_t kr_utf8_end(kr_utf8_stream *stream, char *out); /* at most 3 bytes: an incomplete character */

#endif

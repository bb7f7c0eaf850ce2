/* utf8.c: the table of well-formed sequences is Unicode's (3.9, table 3-7): only the second byte has special ranges. */
#include "utf8.h"

#include <string.h>

/* Length of a character with this first byte; 0: invalid. */
static int length_of(unsigned char first) {
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

static int is_second(unsigned char first, unsigned char second) {
  const unsigned char low = first == 0xe0   ? 0xa0
                            : first == 0xf0 ? 0x90
                                            : 0x80,
                      high = first == 0xed   ? 0x9f
                             : first == 0xf4 ? 0x8f
                                             : 0xbf;
  return second >= low && second <= high;
}

/* How many of the first n bytes can be the beginning of one character. */
static int start_length(const unsigned char *s, size_t n) {
  const int length = length_of(*s);
  int i = 1;
  if (!length) return 0;
  while (i < length && (size_t)i < n && (i == 1 ? is_second(s[0], s[1]) : s[i] >> 6 == 2)) i++;
  return i;
}

int kr_utf8_read(const char *s, size_t n, uint32_t *code) {
  const unsigned char *u = (const unsigned char *)s;
  const int length = length_of(*u);
  if (!length || start_length(u, n) != length) return 0;
  uint32_t value = length == 1 ? *u : *u & (0x7fu >> length);
  for (int i = 1; i < length; i++) value = value << 6 | (u[i] & 63u);
  if (code) *code = value;
  return length;
}

int kr_utf8_write(uint32_t code, char *to) {
  if (code < 0x80) {
    *to = (char)code;
    return 1;
  }
  const int n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  for (int i = n - 1; i > 0; i--, code >>= 6) to[i] = (char)(0x80 | (code & 63));
  to[0] = (char)(0xf00u >> n | code);
  return n;
}

size_t kr_utf8_check(const char *text, size_t n) {
  size_t at = 0;
  for (int length; at < n && (length = kr_utf8_read(text + at, n - at, NULL)) != 0; at += (size_t)length) {}
  return at;
}

static size_t put_replacement(char *out) {
  memcpy(out, "\xef\xbf\xbd", 3);
  return 3;
}

size_t kr_utf8_push(kr_utf8_stream *stream, const char *bytes, size_t n, char *out) {
  size_t written = 0;
  for (size_t i = 0; i < n;) {
    stream->pending[stream->n++] = bytes[i++];
    const unsigned char *u = (const unsigned char *)stream->pending;
    const int start = start_length(u, (size_t)stream->n);
    if (start && start == length_of(*u)) {
      memcpy(out + written, stream->pending, (size_t)start);
      written += (size_t)start;
      stream->n = 0;
    } else if (start < stream->n) { /* the last byte is not a continuation: it starts again, unless it is alone */
      written += put_replacement(out + written);
      i -= stream->n > 1;
      stream->n = 0;
    }
  }
  return written;
}

size_t kr_utf8_end(kr_utf8_stream *stream, char *out) {
  const int is_open = stream->n > 0;
  stream->n = 0;
  return is_open ? put_replacement(out) : 0;
}

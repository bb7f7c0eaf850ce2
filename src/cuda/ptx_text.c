/* ptx_text.c: device code as tools/embed.c packs it. Registers are named nearly in order, so that after % and one or two letters a
 * byte from 128 on stands for a number: 192 plus how far it is from the last one with these letters. A byte of 1 stands for bytes
 * that were kept elsewhere: two numbers follow, where they begin and how many they are. */
#include "cuda.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "alloc.h"

static int letter(int c) { return c >= 'a' && c <= 'z' ? c - 'a' + 1 : 0; }
static int is_digit(int c) { return c >= '0' && c <= '9'; }

static size_t put_number(int32_t number, char *out) {
  char digits[12];
  size_t n = 0;
  do digits[n++] = (char)('0' + number % 10);
  while ((number /= 10) > 0);
  for (size_t i = 0; out && i < n; i++) out[i] = digits[n - 1 - i];
  return n;
}

enum { REFERENCE = 1 };

/* after: where reading goes on behind a reference, NULL outside of one; copied: the end of what the last one stood for. */
typedef struct { const unsigned char *p, *end, *after, *after_end, *copied; } reader;

static uint64_t read_number(reader *r) {
  uint64_t number = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    number |= (uint64_t)(*r->p & 127) << shift;
    if (*r->p++ < 128) break;
  }
  return number;
}

static void begin_reference(reader *r) {
  r->p++;
  const uint64_t distance = read_number(r), n_bytes = read_number(r);
  const unsigned char *begin = r->copied + (distance & 1 ? -(int64_t)(distance / 2) - 1 : (int64_t)(distance / 2));
  r->after = r->p, r->after_end = r->end;
  r->p = begin, r->end = r->copied = begin + n_bytes;
}

/* The next byte, 0 at the end. */
static int peek(reader *r) {
  for (;;) {
    if (r->p < r->end && *r->p != REFERENCE) return *r->p;
    if (r->p < r->end) begin_reference(r);
    else if (!r->after) return 0;
    else r->p = r->after, r->end = r->after_end, r->after = NULL;
  }
}

static void put(char *out, size_t *n, int c) {
  if (out) out[*n] = (char)c;
  ++*n;
}

/* The register's number: a distance or digits. */
static void unpack_number(reader *r, int32_t *last, char *out, size_t *n) {
  if (peek(r) >= 128) {
    *last += *r->p++ - 192;
    *n += put_number(*last, out ? out + *n : NULL);
  } else if (is_digit(peek(r))) {
    for (*last = 0; is_digit(peek(r)); r->p++) {
      *last = *last * 10 + (*r->p - '0');
      put(out, n, *r->p);
    }
  }
}

/* Returns how long the text is; out may be NULL. */
static size_t unpack(const char *packed, const char *end, char *out) {
  const unsigned char *begin = (const unsigned char *)packed;
  reader r = {.p = begin, .end = (const unsigned char *)end, .copied = begin};
  int32_t last[27 * 27 + 27] = {0};
  size_t n = 0;
  for (int c; (c = peek(&r)) != 0;) {
    int kind = 0;
    put(out, &n, c);
    r.p++;
    for (int i = 0; c == '%' && i < 2 && letter(peek(&r)); i++) {
      kind = kind * 27 + letter(*r.p);
      put(out, &n, *r.p++);
    }
    if (kind) unpack_number(&r, &last[kind], out, &n);
  }
  return n;
}

const char *kr_ptx_unpack(const char *packed, const char *end, char **kept) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  if (!*kept) {
    const size_t bytes = unpack(packed, end, NULL);
    char *text = kr_alloc(bytes + 1);
    if (text) unpack(packed, end, text), text[bytes] = 0, *kept = text;
  }
  pthread_mutex_unlock(&lock);
  return *kept;
}

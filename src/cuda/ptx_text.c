/* ptx_text.c: device code as tools/embed.py packs it. Registers are named nearly in order, so that after % and one or two letters a
 * byte from 128 on stands for a number: 192 plus how far it is from the last one with these letters. */
#include "cuda.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "alloc.h"

static int letter(unsigned char c) { return c >= 'a' && c <= 'z' ? c - 'a' + 1 : 0; }
static int is_digit(unsigned char c) { return c >= '0' && c <= '9'; }

static size_t put_number(int32_t number, char *out) {
  char digits[12];
  size_t n = 0;
  do digits[n++] = (char)('0' + number % 10);
  while ((number /= 10) > 0);
  for (size_t i = 0; out && i < n; i++) out[i] = digits[n - 1 - i];
  return n;
}

/* Returns how long the text is; out may be NULL. */
static size_t unpack(const unsigned char *p, char *out) {
  int32_t last[27 * 27 + 27] = {0};
  size_t n = 0;
  while (*p) {
    int kind = 0;
    const int is_name = *p == '%';
    if (out) out[n] = (char)*p;
    n++, p++;
    for (int i = 0; is_name && i < 2 && letter(*p); i++, n++, p++) {
      kind = kind * 27 + letter(*p);
      if (out) out[n] = (char)*p;
    }
    if (kind && *p >= 128) {
      last[kind] += *p++ - 192;
      n += put_number(last[kind], out ? out + n : NULL);
    } else if (kind && is_digit(*p)) {
      for (last[kind] = 0; is_digit(*p); n++, p++) {
        last[kind] = last[kind] * 10 + (*p - '0');
        if (out) out[n] = (char)*p;
      }
    }
  }
  return n;
}

const char *kr_ptx_unpack(const char *packed, char **kept) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  if (!*kept) {
    const size_t bytes = unpack((const unsigned char *)packed, NULL);
    char *text = kr_alloc(bytes + 1);
    if (text) unpack((const unsigned char *)packed, text), text[bytes] = 0, *kept = text;
  }
  pthread_mutex_unlock(&lock);
  return *kept;
}

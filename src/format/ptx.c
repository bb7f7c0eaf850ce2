/* ptx.c: version, target and entry points of PTX text. The entry header's version is only a claim; the driver uses the
 * text. */
#include <string.h>

#include "fatbin.h"
#include "status.h"

static int is_digit(char c) { return c >= '0' && c <= '9'; }
static int is_blank(char c) { return c == ' ' || c == '\t'; }

/* Past a directive at a line's start, or n. Comments hold no directives that matter: `//` lines never start with a
 * dot. */
static size_t find_directive(const char *text, size_t n, const char *word) {
  size_t length = strlen(word);
  int line_start = 1;
  for (size_t i = 0; i < n && text[i]; i++) {
    if (line_start && n - i > length && memcmp(text + i, word, length) == 0 && is_blank(text[i + length]))
      return i + length;
    if (text[i] == '\n') line_start = 1;
    else if (!is_blank(text[i]) && text[i] != '\r') line_start = 0;
  }
  return n;
}

static size_t read_ptx_number(const char *text, size_t n, size_t i, int32_t *value) {
  int32_t v = 0;
  for (; i < n && is_digit(text[i]) && v < 100000; i++) v = v * 10 + (text[i] - '0');
  *value = v;
  return i;
}

int32_t kr_ptx_read(const char *text, size_t n, kr_ptx *ptx) {
  int32_t major = 0, minor = 0;
  *ptx = (kr_ptx){0};
  size_t i = find_directive(text, n, ".version");
  while (i < n && is_blank(text[i])) i++;
  i = read_ptx_number(text, n, i, &major);
  if (i < n && text[i] == '.') read_ptx_number(text, n, i + 1, &minor);
  ptx->version = major * 10 + (minor < 10 ? minor : 9);
  i = find_directive(text, n, ".target");
  while (i < n && is_blank(text[i])) i++;
  if (n - i > 3 && memcmp(text + i, "sm_", 3) == 0) {
    i = read_ptx_number(text, n, i + 3, &ptx->sm);
    if (i < n && (text[i] == 'a' || text[i] == 'f')) ptx->suffix = text[i];
  }
  KR_CHECK(ptx->version && ptx->sm, KRAIT_ERR_FILE_FORMAT, "PTX text without .version and .target");
  return KRAIT_OK;
}

int kr_ptx_kernel(const char *text, size_t n, size_t *at, char *name, size_t cap) {
  for (; *at + 7 < n; ++*at) {
    if (text[*at] != '.' || memcmp(text + *at, ".entry", 6) != 0 || !is_blank(text[*at + 6])) continue;
    size_t i = *at + 7, k = 0;
    while (i < n && is_blank(text[i])) i++;
    for (; i < n && k + 1 < cap && text[i] != '(' && text[i] != ' ' && text[i] != '\n' && text[i] != '\r' && text[i];
         i++)
      name[k++] = text[i];
    if (cap) name[k] = '\0';
    *at = i;
    return 1;
  }
  return 0;
}

#ifdef KR_FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kr_ptx ptx;
  char name[64];
  size_t at = 0;
  kr_ptx_read((const char *)data, size, &ptx);
  while (kr_ptx_kernel((const char *)data, size, &at, name, sizeof name) == 1) continue;
  return 0;
}
#endif

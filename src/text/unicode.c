/* unicode.c: utf8proc has the tables and composes; marks are sorted here, because utf8proc needs quadratic time for a
 * run of them, and because memory comes from src/base. */
#include "unicode.h"

#include <utf8proc.h>

#include "alloc.h"
#include "status.h"
#include "utf8.h"

int kr_is_letter(uint32_t code) {
  const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
  return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

int kr_is_number(uint32_t code) {
  const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
  return c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
}

int kr_is_space(uint32_t code) {
  if (code < 0x80) return (code >= 9 && code <= 13) || code == ' ';
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

void kr_split_mark(uint32_t code, uint32_t *letter, uint32_t *mark) {
  utf8proc_int32_t parts[4];
  int boundary = 0;
  const utf8proc_ssize_t n =
      utf8proc_decompose_char((utf8proc_int32_t)code, parts, 4, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundary);
  const int is_split = n == 2;
  *letter = is_split ? (uint32_t)parts[0] : code;
  *mark = is_split ? (uint32_t)parts[1] : 0;
}

int kr_is_punctuation(uint32_t code) {
  if (code < 0x80) return (code > 32 && code < '0') || (code > '9' && code < 'A') || (code > 'Z' && code < 'a') ||
                          (code > 'z' && code < 127);
  const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
  return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

int kr_is_mark(uint32_t code) {
  const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
  return c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME;
}

int kr_letter_case(uint32_t code) {
  const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
  return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LT ? 1 : c == UTF8PROC_CATEGORY_LL ? -1 : 0;
}

int kr_is_word(uint32_t code) {
  const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
  return kr_is_letter(code) || kr_is_mark(code) || c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL ||
         c == UTF8PROC_CATEGORY_PC || code == 0x200c || code == 0x200d;
}

/* ---- normalization ---- */

/* Nothing below U+0300 combines; in form C nothing below it decomposes to anything but itself and back. */
static int is_plain(const char *text, size_t n, int32_t form) {
  for (size_t i = 0; i < n; i++)
    if ((unsigned char)text[i] >= (form == KR_FORM_C ? 0xcc : 0x80)) return 0;
  return 1;
}

static int class_of(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

/* Sorts the marks of a run by class, stably; other has the same length. */
static void sort_marks(utf8proc_int32_t *marks, utf8proc_int32_t *other, size_t n) {
  size_t at[257] = {0};
  for (size_t i = 0; i < n; i++) at[class_of(marks[i]) + 1]++;
  for (int c = 1; c < 257; c++) at[c] += at[c - 1];
  for (size_t i = 0; i < n; i++) other[at[class_of(marks[i])]++] = marks[i];
  for (size_t i = 0; i < n; i++) marks[i] = other[i];
}

static void order_marks(utf8proc_int32_t *codes, utf8proc_int32_t *other, size_t n) {
  for (size_t i = 0, end; i < n; i = end + 1) {
    for (end = i; end < n && class_of(codes[end]); end++) {}
    if (end > i + 1) sort_marks(codes + i, other, end - i);
  }
}

/* The longest decompositions: 4 characters of one of at least 2 bytes; with compatibility 18 of one of at least 3. */
enum { LONGEST_CANONICAL = 4, LONGEST = 18 };

static size_t decompose(const char *text, size_t n, int32_t form, utf8proc_int32_t *codes) {
  const int is_compatible = form == KR_FORM_KC || form == KR_FORM_KD;
  const utf8proc_option_t options =
      UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (is_compatible ? UTF8PROC_COMPAT : (utf8proc_option_t)0);
  size_t n_codes = 0;
  uint32_t code = 0;
  for (size_t i = 0; i < n; n_codes++) {
    int boundary = 0;
    i += (size_t)kr_utf8_read(text + i, n - i, &code);
    const utf8proc_ssize_t more =
        utf8proc_decompose_char((utf8proc_int32_t)code, codes + n_codes, is_compatible ? LONGEST : LONGEST_CANONICAL,
                                options, &boundary);
    n_codes += more > 1 ? (size_t)more - 1 : 0;
  }
  return n_codes;
}

/* Composes in place. U+11A7 begins a part of its own: utf8proc 2.8 takes it for the final consonant number 0 and drops
 * it behind a Hangul syllable, but it is a vowel, which composes with nothing. */
static size_t compose(utf8proc_int32_t *codes, size_t n) {
  size_t used = 0;
  for (size_t from = 0, to; from < n; from = to) {
    for (to = from + 1; to < n && codes[to] != 0x11a7; to++) {}
    const utf8proc_ssize_t composed = utf8proc_normalize_utf32(codes + from, (utf8proc_ssize_t)(to - from),
                                                               UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    const size_t kept = composed >= 0 ? (size_t)composed : to - from;
    for (size_t i = 0; i < kept; i++) codes[used++] = codes[from + i];
  }
  return used;
}

int32_t kr_normalize(int32_t form, const char *text, size_t n, char **normal, size_t *n_normal) {
  *normal = NULL;
  if (is_plain(text, n, form)) return KRAIT_OK;
  const size_t most = (form == KR_FORM_KC || form == KR_FORM_KD ? 6 : 2) * n + LONGEST;
  utf8proc_int32_t *codes = kr_alloc_array(2 * most, sizeof *codes);
  KR_CHECK(codes, KRAIT_ERR_NO_MEMORY, "no memory to normalise %zu bytes of text", n);
  size_t n_codes = decompose(text, n, form, codes), used = 0;
  order_marks(codes, codes + most, n_codes);
  if (form == KR_FORM_C || form == KR_FORM_KC) n_codes = compose(codes, n_codes);
  *normal = kr_alloc(4 * n_codes + 1);
  for (size_t i = 0; *normal && i < n_codes; i++) used += (size_t)kr_utf8_write((uint32_t)codes[i], *normal + used);
  *n_normal = used;
  kr_free(codes);
  return *normal ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to normalise %zu bytes of text", n);
}

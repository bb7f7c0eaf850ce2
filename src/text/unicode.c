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

/* Punctuation of Unicode 8, which the original library's pre-tokenizer of that name knows, whatever utf8proc's release;
 * made by asking it for each character. */
static const uint32_t punctuation[][2] =
    {/* first, last */
     {0xa1, 0xa1},       {0xa7, 0xa7},       {0xab, 0xab},       {0xb6, 0xb7},       {0xbb, 0xbb},
     {0xbf, 0xbf},       {0x37e, 0x37e},     {0x387, 0x387},     {0x55a, 0x55f},     {0x589, 0x58a},
     {0x5be, 0x5be},     {0x5c0, 0x5c0},     {0x5c3, 0x5c3},     {0x5c6, 0x5c6},     {0x5f3, 0x5f4},
     {0x609, 0x60a},     {0x60c, 0x60d},     {0x61b, 0x61b},     {0x61e, 0x61f},     {0x66a, 0x66d},
     {0x6d4, 0x6d4},     {0x700, 0x70d},     {0x7f7, 0x7f9},     {0x830, 0x83e},     {0x85e, 0x85e},
     {0x964, 0x965},     {0x970, 0x970},     {0xaf0, 0xaf0},     {0xdf4, 0xdf4},     {0xe4f, 0xe4f},
     {0xe5a, 0xe5b},     {0xf04, 0xf12},     {0xf14, 0xf14},     {0xf3a, 0xf3d},     {0xf85, 0xf85},
     {0xfd0, 0xfd4},     {0xfd9, 0xfda},     {0x104a, 0x104f},   {0x10fb, 0x10fb},   {0x1360, 0x1368},
     {0x1400, 0x1400},   {0x166d, 0x166e},   {0x169b, 0x169c},   {0x16eb, 0x16ed},   {0x1735, 0x1736},
     {0x17d4, 0x17d6},   {0x17d8, 0x17da},   {0x1800, 0x180a},   {0x1944, 0x1945},   {0x1a1e, 0x1a1f},
     {0x1aa0, 0x1aa6},   {0x1aa8, 0x1aad},   {0x1b5a, 0x1b60},   {0x1bfc, 0x1bff},   {0x1c3b, 0x1c3f},
     {0x1c7e, 0x1c7f},   {0x1cc0, 0x1cc7},   {0x1cd3, 0x1cd3},   {0x2010, 0x2027},   {0x2030, 0x2043},
     {0x2045, 0x2051},   {0x2053, 0x205e},   {0x207d, 0x207e},   {0x208d, 0x208e},   {0x2308, 0x230b},
     {0x2329, 0x232a},   {0x2768, 0x2775},   {0x27c5, 0x27c6},   {0x27e6, 0x27ef},   {0x2983, 0x2998},
     {0x29d8, 0x29db},   {0x29fc, 0x29fd},   {0x2cf9, 0x2cfc},   {0x2cfe, 0x2cff},   {0x2d70, 0x2d70},
     {0x2e00, 0x2e2e},   {0x2e30, 0x2e42},   {0x3001, 0x3003},   {0x3008, 0x3011},   {0x3014, 0x301f},
     {0x3030, 0x3030},   {0x303d, 0x303d},   {0x30a0, 0x30a0},   {0x30fb, 0x30fb},   {0xa4fe, 0xa4ff},
     {0xa60d, 0xa60f},   {0xa673, 0xa673},   {0xa67e, 0xa67e},   {0xa6f2, 0xa6f7},   {0xa874, 0xa877},
     {0xa8ce, 0xa8cf},   {0xa8f8, 0xa8fa},   {0xa8fc, 0xa8fc},   {0xa92e, 0xa92f},   {0xa95f, 0xa95f},
     {0xa9c1, 0xa9cd},   {0xa9de, 0xa9df},   {0xaa5c, 0xaa5f},   {0xaade, 0xaadf},   {0xaaf0, 0xaaf1},
     {0xabeb, 0xabeb},   {0xfd3e, 0xfd3f},   {0xfe10, 0xfe19},   {0xfe30, 0xfe52},   {0xfe54, 0xfe61},
     {0xfe63, 0xfe63},   {0xfe68, 0xfe68},   {0xfe6a, 0xfe6b},   {0xff01, 0xff03},   {0xff05, 0xff0a},
     {0xff0c, 0xff0f},   {0xff1a, 0xff1b},   {0xff1f, 0xff20},   {0xff3b, 0xff3d},   {0xff3f, 0xff3f},
     {0xff5b, 0xff5b},   {0xff5d, 0xff5d},   {0xff5f, 0xff65},   {0x10100, 0x10102}, {0x1039f, 0x1039f},
     {0x103d0, 0x103d0}, {0x1056f, 0x1056f}, {0x10857, 0x10857}, {0x1091f, 0x1091f}, {0x1093f, 0x1093f},
     {0x10a50, 0x10a58}, {0x10a7f, 0x10a7f}, {0x10af0, 0x10af6}, {0x10b39, 0x10b3f}, {0x10b99, 0x10b9c},
     {0x11047, 0x1104d}, {0x110bb, 0x110bc}, {0x110be, 0x110c1}, {0x11140, 0x11143}, {0x11174, 0x11175},
     {0x111c5, 0x111c9}, {0x111cd, 0x111cd}, {0x111db, 0x111db}, {0x111dd, 0x111df}, {0x11238, 0x1123d},
     {0x112a9, 0x112a9}, {0x114c6, 0x114c6}, {0x115c1, 0x115d7}, {0x11641, 0x11643}, {0x1173c, 0x1173e},
     {0x12470, 0x12474}, {0x16a6e, 0x16a6f}, {0x16af5, 0x16af5}, {0x16b37, 0x16b3b}, {0x16b44, 0x16b44},
     {0x1bc9f, 0x1bc9f}, {0x1da87, 0x1da8b}};

int kr_is_punctuation(uint32_t code) {
  if (code < 0x80) return (code > 32 && code < '0') || (code > '9' && code < 'A') || (code > 'Z' && code < 'a') ||
                          (code > 'z' && code < 127);
  size_t first = 0, end = sizeof punctuation / sizeof *punctuation;
  while (first < end) {
    const size_t middle = (first + end) / 2;
    if (code > punctuation[middle][1]) first = middle + 1;
    else if (code < punctuation[middle][0]) end = middle;
    else return 1;
  }
  return 0;
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

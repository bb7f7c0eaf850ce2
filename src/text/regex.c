/* regex.c: PCRE2's functions and constants as documented in pcre2api(3); its interface is stable since 2015. */
#include "regex.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "dlib.h"
#include "status.h"

enum {
  PCRE2_NOTEMPTY = 0x4,
  PCRE2_MULTILINE = 0x400,
  PCRE2_UCP = 0x20000,
  PCRE2_UTF = 0x80000,
  PCRE2_NEVER_BACKSLASH_C = 0x100000,
  PCRE2_NO_UTF_CHECK = 0x40000000,
  PCRE2_NEWLINE_LF = 2,
  PCRE2_ERROR_NOMATCH = -1,
  PCRE2_ERROR_NOMEMORY = -48
};
enum { LONGEST_PATTERN = 4096, MOST_STEPS = 1000000 }; /* steps: of one match, before it counts as endless */

/* ---- the library ---- */

/* name, result, parameters */
#define PCRE2_FUNCTIONS(F)                                                                                      \
  F(general_context_create, void *, (void *(*)(size_t, void *), void (*)(void *, void *), void *))              \
  F(compile_context_create, void *, (void *))                                                                   \
  F(compile_context_free, void, (void *))                                                                       \
  F(set_newline, int, (void *, uint32_t))                                                                       \
  F(match_context_create, void *, (void *))                                                                     \
  F(match_context_free, void, (void *))                                                                         \
  F(set_match_limit, int, (void *, uint32_t))                                                                   \
  F(compile, void *, (const unsigned char *, size_t, uint32_t, int *, size_t *, void *))                        \
  F(code_free, void, (void *))                                                                                  \
  F(match_data_create_from_pattern, void *, (const void *, void *))                                             \
  F(match_data_free, void, (void *))                                                                            \
  F(match, int, (const void *, const unsigned char *, size_t, size_t, uint32_t, void *, void *))                \
  F(get_ovector_pointer, size_t *, (void *))                                                                    \
  F(get_error_message, int, (int, unsigned char *, size_t))
#define DECLARE(name, result, parameters) static result(*name) parameters;
PCRE2_FUNCTIONS(DECLARE)
#undef DECLARE

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *missing = ""; /* what PCRE2 lacks; NULL: nothing */
static char why_not[256];
static void *general; /* a context: memory comes from src/base; without one it comes from libc */

static void *get_memory(size_t bytes, void *user) {
  (void)user;
  return kr_alloc(bytes);
}
static void free_memory(void *block, void *user) {
  (void)user;
  kr_free(block);
}

static void load_pcre2(void) {
  const char *why = "";
  kr_dlib *lib = kr_dlib_open("libpcre2-8.so.0", &why); /* stays loaded */
  snprintf(why_not, sizeof why_not, "%s", lib ? "" : why);
  missing = lib ? NULL : why_not;
#define FIND(name, result, parameters)                    \
  if (!missing) {                                         \
    union {                                               \
      void *object;                                       \
      result(*function) parameters;                       \
    } found = {kr_dlib_find(lib, "pcre2_" #name "_8")};   \
    name = found.function;                                \
    if (!found.object) missing = "it has no pcre2_" #name; \
  }
  PCRE2_FUNCTIONS(FIND)
#undef FIND
  if (!missing) general = general_context_create(get_memory, free_memory, NULL);
}

static int32_t open_pcre2(const char *pattern) {
  pthread_once(&once, load_pcre2);
  KR_CHECK(!missing, KRAIT_ERR_UNSUPPORTED,
           "the expression %.100s needs the library PCRE2, which cannot be opened (%s): install libpcre2-8 (Debian: "
           "libpcre2-8-0)",
           pattern, missing);
  return KRAIT_OK;
}

/* ---- from Oniguruma's syntax to PCRE2's ---- */

/* Unicode's White_Space; PCRE2's \s has U+180E, too. */
#define SPACES                                                                                         \
  "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}" \
  "\\x{3000}"
#define NO_SPACES                                                                                           \
  "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"         \
  "\\x{200b}-\\x{2027}"                                                                                   \
  "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{d7ff}\\x{e000}-\\x{10ffff}"

typedef struct rewriting {
  const char *at;
  char out[4 * LONGEST_PATTERN];
  size_t n, atom; /* atom: where the last one starts in out */
  size_t open[64]; /* where the open groups start */
  int n_open, is_in_class;
} rewriting;

static int32_t add_pattern(rewriting *r, const char *text, size_t n) {
  KR_CHECK(r->n + n < sizeof r->out, KRAIT_ERR_UNSUPPORTED, "an expression of more than %zu bytes", sizeof r->out);
  memcpy(r->out + r->n, text, n);
  r->n += n;
  r->out[r->n] = 0;
  return KRAIT_OK;
}

static int32_t begin_atom(rewriting *r) {
  if (!r->is_in_class) r->atom = r->n;
  return KRAIT_OK;
}

static int32_t rewrite_escape(rewriting *r) {
  const char c = r->at[1];
  begin_atom(r);
  if (c == 's' || c == 'S') {
    const char *set = c == 's' ? SPACES : NO_SPACES;
    r->at += 2;
    if (!r->is_in_class) KR_TRY(add_pattern(r, "[", 1));
    KR_TRY(add_pattern(r, set, strlen(set)));
    return r->is_in_class ? KRAIT_OK : add_pattern(r, "]", 1);
  }
  const int is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  KR_CHECK(c && (!is_letter || strchr("rntfvdDpPxu", c)), KRAIT_ERR_UNSUPPORTED, "\\%c is not supported", c ? c : ' ');
  if (c == 'u') {
    char code[16];
    const size_t n = strspn(r->at + 2, "0123456789abcdefABCDEF");
    KR_CHECK(n >= 4, KRAIT_ERR_FILE_FORMAT, "\\u has no four digits");
    snprintf(code, sizeof code, "\\x{%.4s}", r->at + 2);
    r->at += 6;
    return add_pattern(r, code, strlen(code));
  }
  size_t n = 2;
  if (c == 'p' || c == 'P' || c == 'x') {
    const char *end = r->at[2] == '{' ? strchr(r->at, '}') : NULL;
    KR_CHECK(end || c == 'x', KRAIT_ERR_FILE_FORMAT, "\\%c has no {name}", c);
    if (end) n = (size_t)(end - r->at) + 1;
  }
  KR_TRY(add_pattern(r, r->at, n));
  r->at += n;
  return KRAIT_OK;
}

/* A quantifier of the form {n,m} and then +: there it repeats what is before it, and is not possessive. */
static int32_t rewrite_interval(rewriting *r) {
  const char *end = strchr(r->at, '}');
  const size_t n = strspn(r->at + 1, "0123456789,");
  if (!end || r->at + 1 + n != end || n == 0) return add_pattern(r, r->at++, 1); /* a plain brace */
  KR_TRY(add_pattern(r, r->at, n + 2));
  r->at = end + 1;
  if (*r->at != '+') return KRAIT_OK;
  KR_TRY(add_pattern(r, "(?:)", 4));
  memmove(r->out + r->atom + 3, r->out + r->atom, r->n - 4 - r->atom);
  memcpy(r->out + r->atom, "(?:", 3);
  r->out[r->n - 1] = ')';
  return add_pattern(r, r->at++, 1);
}

static int32_t rewrite_class(rewriting *r) {
  if (*r->at == '[') {
    KR_CHECK(!r->is_in_class, KRAIT_ERR_UNSUPPORTED, "a class inside a class is not supported");
    begin_atom(r);
    r->is_in_class = 1;
    KR_TRY(add_pattern(r, r->at++, 1));
    if (*r->at == '^') KR_TRY(add_pattern(r, r->at++, 1));
    KR_CHECK(*r->at != ']', KRAIT_ERR_FILE_FORMAT, "an empty class");
    return KRAIT_OK;
  }
  r->is_in_class = 0;
  return add_pattern(r, r->at++, 1);
}

static int32_t rewrite_group(rewriting *r) {
  if (*r->at == '(') {
    KR_CHECK(r->n_open < 64, KRAIT_ERR_UNSUPPORTED, "more than 64 groups in each other");
    r->open[r->n_open++] = r->n;
  } else if (r->n_open) {
    r->atom = r->open[--r->n_open];
  }
  return add_pattern(r, r->at++, 1);
}

static int32_t rewrite_pattern(rewriting *r) {
  while (*r->at) {
    const char c = *r->at;
    KR_CHECK(strncmp(r->at, "&&", 2) != 0 || !r->is_in_class, KRAIT_ERR_UNSUPPORTED, "&& is not supported");
    if (c == '\\') KR_TRY(rewrite_escape(r));
    else if (c == '[' || (c == ']' && r->is_in_class)) KR_TRY(rewrite_class(r));
    else if (r->is_in_class) KR_TRY(add_pattern(r, r->at++, 1));
    else if (c == '(' || c == ')') KR_TRY(rewrite_group(r));
    else if (c == '{') KR_TRY(rewrite_interval(r));
    else {
      if (!strchr("*+?|", c)) begin_atom(r);
      const size_t n = 1 + strspn(r->at + 1, "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91"
                                             "\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f\xa0\xa1\xa2\xa3"
                                             "\xa4\xa5\xa6\xa7\xa8\xa9\xaa\xab\xac\xad\xae\xaf\xb0\xb1\xb2\xb3\xb4\xb5"
                                             "\xb6\xb7\xb8\xb9\xba\xbb\xbc\xbd\xbe\xbf");
      KR_TRY(add_pattern(r, r->at, n));
      r->at += n;
    }
  }
  return KRAIT_OK;
}

/* ---- expressions ---- */

struct kr_regex {
  void *code, *limits; /* the compiled expression; a match context */
};

static int32_t compile_pattern(const char *pattern, const rewriting *r, kr_regex *regex) {
  int error = 0;
  size_t at = 0;
  unsigned char text[128] = "";
  void *how = compile_context_create(general);
  regex->limits = match_context_create(general);
  KR_CHECK(how && regex->limits, KRAIT_ERR_NO_MEMORY, "no memory for an expression");
  set_newline(how, PCRE2_NEWLINE_LF);
  set_match_limit(regex->limits, MOST_STEPS);
  regex->code = compile((const unsigned char *)r->out, r->n,
                        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at, how);
  compile_context_free(how);
  if (regex->code) return KRAIT_OK;
  get_error_message(error, text, sizeof text);
  return kr_fail(KRAIT_ERR_FILE_FORMAT, "the expression %.100s: %s", pattern, (const char *)text);
}

int32_t kr_regex_open(const char *pattern, kr_regex **out) {
  *out = NULL;
  KR_CHECK(strlen(pattern) <= LONGEST_PATTERN, KRAIT_ERR_UNSUPPORTED, "an expression of more than %d bytes",
           LONGEST_PATTERN);
  KR_CHECK(*pattern, KRAIT_ERR_FILE_FORMAT, "an empty expression");
  KR_TRY(open_pcre2(pattern));
  kr_regex *regex = *out = kr_zalloc(sizeof *regex);
  rewriting *r = kr_zalloc(sizeof *r);
  int32_t status =
      regex && r ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for an expression");
  if (status >= 0) {
    r->at = pattern;
    status = rewrite_pattern(r);
    if (status < 0 && status != KRAIT_ERR_NO_MEMORY) {
      char detail[128];
      snprintf(detail, sizeof detail, "%s", krait_error_detail());
      status = kr_fail(status, "the expression %.100s: %s", pattern, detail);
    }
  }
  if (status >= 0) status = compile_pattern(pattern, r, regex);
  kr_free(r);
  if (status < 0) kr_regex_close(out);
  return status;
}

void kr_regex_close(kr_regex **handle) {
  kr_regex *regex = *handle;
  if (!regex) return;
  if (regex->code) code_free(regex->code);
  if (regex->limits) match_context_free(regex->limits);
  kr_free(regex);
  *handle = NULL;
}

int32_t kr_regex_scan_begin(const kr_regex *regex, const char *text, size_t n, kr_regex_scan *scan) {
  *scan = (kr_regex_scan){.regex = regex, .text = text, .n = n};
  scan->match = match_data_create_from_pattern(regex->code, general);
  KR_CHECK(scan->match, KRAIT_ERR_NO_MEMORY, "no memory to search a text");
  return KRAIT_OK;
}

int32_t kr_regex_next(kr_regex_scan *scan, size_t *start, size_t *end) {
  const int found = match(scan->regex->code, (const unsigned char *)scan->text, scan->n, scan->from,
                          PCRE2_NOTEMPTY | PCRE2_NO_UTF_CHECK, scan->match, scan->regex->limits);
  *start = *end = scan->n;
  if (found == PCRE2_ERROR_NOMATCH) return KRAIT_OK;
  KR_CHECK(found != PCRE2_ERROR_NOMEMORY, KRAIT_ERR_NO_MEMORY, "no memory to search a text");
  KR_CHECK(found > 0, KRAIT_ERR_UNSUPPORTED,
           "the tokenizer's expression takes too many steps at byte %zu of a text (PCRE2's error %d)", scan->from,
           found);
  const size_t *span = get_ovector_pointer(scan->match);
  *start = span[0], *end = scan->from = span[1];
  return KRAIT_OK;
}

void kr_regex_scan_end(kr_regex_scan *scan) {
  if (scan->match) match_data_free(scan->match);
  scan->match = NULL;
}

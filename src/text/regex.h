/* regex.h: regular expressions of tokenizers that split.h does not know, by PCRE2, which is opened when the first is
 * needed. They mean what they mean in Oniguruma, with which the tokenizers package reads them: where PCRE2 differs, an
 * expression is rewritten, or refused. */
#ifndef KR_REGEX_H
#define KR_REGEX_H

#include <stddef.h>
#include <stdint.h>

typedef struct kr_regex kr_regex;

/* KRAIT_ERR_UNSUPPORTED: without PCRE2, or for what is not supported; KRAIT_ERR_FILE_FORMAT: not an expression. Any
 * number of threads may use it. */
int32_t kr_regex_open(const char *pattern, kr_regex **regex);
void kr_regex_close(kr_regex **regex);

/* A text being searched. */
typedef struct kr_regex_scan {
  const kr_regex *regex;
  void *match; /* PCRE2's */
  const char *text;
  size_t n, from;
} kr_regex_scan;
int32_t kr_regex_scan_begin(const kr_regex *regex, const char *text, size_t n, kr_regex_scan *scan);
/* The next match that is not empty; start is n if there is none. */
int32_t kr_regex_next(kr_regex_scan *scan, size_t *start, size_t *end);
void kr_regex_scan_end(kr_regex_scan *scan);

#endif

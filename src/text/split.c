/* split.c: the alternatives of an expression in order, each as one lookahead; linear time in the length of a piece. */
#include "split.h"

#include <string.h>

#include "unicode.h"
#include "utf8.h"

static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char qwen2[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

int32_t kr_split_find(const char *pattern) {
  return strcmp(pattern, gpt2) == 0 ? KR_SPLIT_GPT2 : strcmp(pattern, qwen2) == 0 ? KR_SPLIT_QWEN2 : KR_SPLIT_NONE;
}

enum { LETTER, NUMBER, SPACE, OTHER, END };

typedef struct scan {
  const char *text;
  size_t n;
} scan;

/* The class of the character at `at`, and the start of the next one. */
static int class_at(const scan *s, size_t at, size_t *next, uint32_t *code) {
  uint32_t value = 0;
  *next = at;
  if (code) *code = 0;
  if (at >= s->n) return END;
  const int bytes = kr_utf8_read(s->text + at, s->n - at, &value);
  *next = at + (size_t)(bytes ? bytes : 1);
  if (code) *code = value;
  return kr_is_letter(value) ? LETTER : kr_is_number(value) ? NUMBER : kr_is_space(value) ? SPACE : OTHER;
}

static size_t end_of_class(const scan *s, size_t at, int class) {
  size_t next;
  while (class_at(s, at, &next, NULL) == class) at = next;
  return at;
}

static int is_newline(const scan *s, size_t at) { return at < s->n && (s->text[at] == '\r' || s->text[at] == '\n'); }

/* 's and similar; with any_case also in capitals, and with the long s, which folds to s. 0: none starts here. */
static size_t contraction(const scan *s, size_t at, int any_case) {
  static const char *const tails[] = {"s", "t", "re", "ve", "m", "ll", "d"};
  if (s->text[at] != '\'') return 0;
  if (any_case && s->n - at >= 3 && memcmp(s->text + at + 1, "\xc5\xbf", 2) == 0) return at + 3;
  for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
    const size_t n = strlen(tails[i]);
    size_t k = 0;
    while (k < n && at + 1 + k < s->n && (s->text[at + 1 + k] | (any_case ? 0x20 : 0)) == tails[i][k]) k++;
    if (k == n) return at + 1 + n;
  }
  return 0;
}

/* \s+(?!\S)|\s+: a run of spaces leaves its last one to the next piece. */
static size_t spaces(const scan *s, size_t from) {
  size_t at = from, last = from, next;
  while (class_at(s, at, &next, NULL) == SPACE) last = at, at = next;
  return at < s->n && last > from ? last : at;
}

static size_t next_gpt2(const scan *s, size_t from) {
  size_t next, end = contraction(s, from, 0);
  if (end) return end;
  const size_t start = s->text[from] == ' ' ? from + 1 : from;
  const int class = class_at(s, start, &next, NULL);
  if (class == LETTER || class == NUMBER || class == OTHER) return end_of_class(s, next, class);
  return spaces(s, from);
}

static size_t next_qwen2(const scan *s, size_t from) {
  size_t next, after, end = contraction(s, from, 1);
  if (end) return end;
  const int class = class_at(s, from, &next, NULL), following = class_at(s, next, &after, NULL);
  if (class == LETTER) return end_of_class(s, next, LETTER);
  if (class != NUMBER && !is_newline(s, from) && following == LETTER) return end_of_class(s, after, LETTER);
  if (class == NUMBER) return next;
  if (class == OTHER || (s->text[from] == ' ' && following == OTHER)) {
    for (end = end_of_class(s, next, OTHER); is_newline(s, end); end++) {}
    return end;
  }
  const size_t run = end_of_class(s, from, SPACE);
  for (end = run; end > from && !is_newline(s, end - 1); end--) {}
  return end > from ? end : spaces(s, from);
}

size_t kr_split_next(int32_t rule, const char *text, size_t n, size_t from) {
  const scan s = {text, n};
  return rule == KR_SPLIT_GPT2 ? next_gpt2(&s, from) : rule == KR_SPLIT_QWEN2 ? next_qwen2(&s, from) : n;
}

/* split.c: the alternatives of an expression in order, each as one lookahead; linear time in the length of a piece. */
#include "split.h"

#include <string.h>

#include "unicode.h"
#include "utf8.h"

/* Of contractions in any case, words, numbers, other characters, line ends, spaces. */
enum { NO_CONTRACTIONS, FIRST, BEHIND_WORDS };
enum { LETTERS, LETTERS_AND_MARKS, BY_CASE };
typedef struct published {
  const char *pattern;
  int32_t contractions, words, most_digits, has_slash; /* has_slash: others end with slashes, too */
} published;

#define SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define OTHERS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CAPITALS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALLS "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define BEFORE "[^\\r\\n\\p{L}\\p{N}]?"
static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const published rules[] = {
    [KR_SPLIT_QWEN2] = {SHORT_FORMS "|" BEFORE "\\p{L}+|\\p{N}|" OTHERS SPACES, FIRST, LETTERS, 1, 0},
    [KR_SPLIT_LLAMA3] = {SHORT_FORMS "|" BEFORE "\\p{L}+|\\p{N}{1,3}|" OTHERS SPACES, FIRST, LETTERS, 3, 0},
    [KR_SPLIT_QWEN35] = {SHORT_FORMS "|" BEFORE
                                     "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES,
                         FIRST, LETTERS_AND_MARKS, 1, 0},
    [KR_SPLIT_TEKKEN] = {BEFORE CAPITALS "*" SMALLS "+|" BEFORE CAPITALS "+" SMALLS "*|"
                                         "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
                         NO_CONTRACTIONS, BY_CASE, 1, 1},
    [KR_SPLIT_O200K] = {BEFORE CAPITALS "*" SMALLS "+" SHORT_FORMS "?|" BEFORE CAPITALS "+" SMALLS "*" SHORT_FORMS "?|"
                                        "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
                        BEHIND_WORDS, BY_CASE, 3, 1},
};
enum { N_RULES = sizeof rules / sizeof *rules };

int32_t kr_split_find(const char *pattern) {
  if (strcmp(pattern, gpt2) == 0) return KR_SPLIT_GPT2;
  for (int32_t rule = KR_SPLIT_QWEN2; rule < N_RULES; rule++)
    if (strcmp(pattern, rules[rule].pattern) == 0) return rule;
  return KR_SPLIT_NONE;
}

const char *kr_split_pattern(int32_t rule) { return rule == KR_SPLIT_GPT2 ? gpt2 : rules[rule].pattern; }

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
  if (at >= s->n || s->text[at] != '\'') return 0;
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

/* ---- words of capitals, then small letters ---- */

enum { CAPITAL = 1, SMALL = 2 }; /* what a character can be: letters without case, and marks, both */

static int case_at(const scan *s, size_t at, size_t *next) {
  uint32_t code;
  const int class = class_at(s, at, next, &code);
  if (class == END) return 0;
  if (class != LETTER) return kr_is_mark(code) ? CAPITAL | SMALL : 0;
  const int is = kr_letter_case(code);
  return is > 0 ? CAPITAL : is < 0 ? SMALL : CAPITAL | SMALL;
}

static size_t end_of_case(const scan *s, size_t at, int wanted) {
  size_t next;
  while (case_at(s, at, &next) & wanted) at = next;
  return at;
}

/* CAPITALS*SMALLS+: small letters behind the run, else the last character of it that can be one. 0: none. */
static size_t small_word(const scan *s, size_t from) {
  size_t at = from, next, end = 0;
  for (int is; (is = case_at(s, at, &next)) & CAPITAL; at = next)
    if (is & SMALL) end = next;
  return case_at(s, at, &next) & SMALL ? end_of_case(s, at, SMALL) : end;
}

/* CAPITALS+SMALLS* */
static size_t capital_word(const scan *s, size_t from) {
  const size_t at = end_of_case(s, from, CAPITAL);
  return at > from ? end_of_case(s, at, SMALL) : 0;
}

/* Each with one other character before it, or without. */
static size_t word_by_case(const scan *s, size_t from) {
  size_t next, end = 0;
  const int class = class_at(s, from, &next, NULL);
  const int has_before = (class == SPACE || class == OTHER) && !is_newline(s, from);
  if (has_before) end = small_word(s, next);
  if (!end) end = small_word(s, from);
  if (!end && has_before) end = capital_word(s, next);
  return end ? end : capital_word(s, from);
}

/* ---- the others ---- */

static int class_of_rule(const published *p, const scan *s, size_t at, size_t *next) {
  uint32_t code;
  const int class = class_at(s, at, next, &code);
  return class == OTHER && p->words == LETTERS_AND_MARKS && kr_is_mark(code) ? LETTER : class;
}

static size_t end_of_rule(const published *p, const scan *s, size_t at, int class) {
  size_t next;
  while (class_of_rule(p, s, at, &next) == class) at = next;
  return at;
}

/* Letters, with one other character before them, or without. 0: none. */
static size_t word(const published *p, const scan *s, size_t from) {
  size_t next, after;
  if (p->words == BY_CASE) return word_by_case(s, from);
  const int class = class_of_rule(p, s, from, &next);
  if (class == LETTER) return end_of_rule(p, s, next, LETTER);
  return class != NUMBER && !is_newline(s, from) && class_of_rule(p, s, next, &after) == LETTER
             ? end_of_rule(p, s, after, LETTER)
             : 0;
}

static size_t next_published(const published *p, const scan *s, size_t from) {
  size_t next, after, end = p->contractions == FIRST ? contraction(s, from, 1) : 0;
  if (end) return end;
  if ((end = word(p, s, from)) != 0) {
    const size_t with = p->contractions == BEHIND_WORDS ? contraction(s, end, 1) : 0;
    return with ? with : end;
  }
  const int class = class_of_rule(p, s, from, &next);
  if (class == NUMBER) {
    for (int i = 1; i < p->most_digits && class_at(s, next, &after, NULL) == NUMBER; i++) next = after;
    return next;
  }
  if (class == OTHER || (s->text[from] == ' ' && class_of_rule(p, s, next, &after) == OTHER)) {
    end = end_of_rule(p, s, next, OTHER);
    while (is_newline(s, end) || (p->has_slash && end < s->n && s->text[end] == '/')) end++;
    return end;
  }
  const size_t run = end_of_class(s, from, SPACE);
  for (end = run; end > from && !is_newline(s, end - 1); end--) {}
  return end > from ? end : spaces(s, from);
}

size_t kr_split_next(int32_t rule, const char *text, size_t n, size_t from) {
  const scan s = {text, n};
  if (rule == KR_SPLIT_NONE) return n;
  return rule == KR_SPLIT_GPT2 ? next_gpt2(&s, from) : next_published(&rules[rule], &s, from);
}

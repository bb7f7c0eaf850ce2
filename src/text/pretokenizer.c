/* pretokenizer.c: a step gets a piece and passes its parts to the next step. Where its expression matches everywhere
 * and each match is a piece, parts are passed on as they are found; else all matches are found first, because what
 * becomes of one depends on its neighbours. */
#include "pretokenizer.h"

#include <string.h>

#include "alloc.h"
#include "buffer.h"
#include "regex.h"
#include "split.h"
#include "status.h"
#include "unicode.h"
#include "utf8.h"

enum { MOST_STEPS = 16, LONGEST_TEXT = 64 };
typedef enum { RULE, EXPRESSION, LITERAL, CHARACTERS, THREE_DIGITS, METASPACE, BYTE_LEVEL } step_kind;
typedef enum { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS } step_behavior;
typedef enum { NEVER, AT_START, ALWAYS } step_prefix;

typedef struct step {
  step_kind kind;
  step_behavior behavior;
  int32_t is_inverted;
  int32_t rule;                /* of split.h */
  kr_regex *regex;
  char text[LONGEST_TEXT + 1]; /* a literal; Metaspace's replacement */
  size_t n_text;
  int (*is_in)(uint32_t code); /* of CHARACTERS */
  step_prefix prefix;          /* of METASPACE, BYTE_LEVEL: whether a space goes before a piece without one */
  int32_t is_whole;            /* of METASPACE: it does not cut */
} step;

struct kr_pretokenizer {
  step steps[MOST_STEPS];
  int n, byte_step; /* the step after which text is in the alphabet of bytes; -1: none */
  char letters[256][3]; /* of each byte, UTF-8; their lengths */
  uint8_t n_letters[256];
  int16_t byte_of[KR_BYTE_LETTERS];
};

/* ---- bytes as characters ---- */

/* Printable bytes stand for themselves, the others are mapped to the characters from U+0100 on. */
static int prints(int byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174; }

void kr_byte_table(int16_t *byte_of) {
  int more = 256;
  for (int c = 0; c < KR_BYTE_LETTERS; c++) byte_of[c] = -1;
  for (int byte = 0; byte < 256; byte++) byte_of[prints(byte) ? byte : more++] = (int16_t)byte;
}

int kr_bytes_unwrite(const int16_t *byte_of, const char *text, size_t n, char *bytes, size_t *n_bytes) {
  uint32_t code;
  *n_bytes = 0;
  for (size_t i = 0; i < n;) {
    const int length = kr_utf8_read(text + i, n - i, &code);
    if (!length || code >= KR_BYTE_LETTERS || byte_of[code] < 0) return 0;
    bytes[(*n_bytes)++] = (char)byte_of[code];
    i += (size_t)length;
  }
  return 1;
}

static void make_letters(kr_pretokenizer *p) {
  kr_byte_table(p->byte_of);
  for (int c = 0; c < KR_BYTE_LETTERS; c++) {
    const int byte = p->byte_of[c];
    if (byte >= 0) p->n_letters[byte] = (uint8_t)kr_utf8_write((uint32_t)c, p->letters[byte]);
  }
}

/* ---- reading ---- */

#define FORMAT_CHECK(condition, ...) KR_CHECK(condition, KRAIT_ERR_FILE_FORMAT, __VA_ARGS__)

static const char *text_in(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}

static int32_t read_behavior(const json_t *json, const char *label, step *s) {
  static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
  const char *name = text_in(json, "behavior");
  for (int i = 0; i < 5; i++)
    if (strcmp(name, names[i]) == 0) return s->behavior = (step_behavior)i, KRAIT_OK;
  return kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: its pre-tokenizer has the unknown behavior '%.32s'", label, name);
}

static int32_t read_literal(const char *text, const char *label, step *s) {
  s->n_text = strlen(text);
  FORMAT_CHECK(s->n_text >= 1 && s->n_text <= LONGEST_TEXT, "%s: its pre-tokenizer splits by a text of %zu bytes",
               label, s->n_text);
  memcpy(s->text, text, s->n_text + 1);
  return KRAIT_OK;
}

static int32_t read_split(const json_t *json, const char *label, step *s) {
  const json_t *pattern = json_object_get(json, "pattern");
  const char *regex = json_string_value(json_object_get(pattern, "Regex"));
  s->is_inverted = json_is_true(json_object_get(json, "invert"));
  KR_TRY(read_behavior(json, label, s));
  s->kind = LITERAL;
  if (!regex) return read_literal(text_in(pattern, "String"), label, s);
  const int is_each_match = s->is_inverted ? s->behavior == REMOVED : s->behavior == ISOLATED;
  s->rule = kr_split_find(regex);
  s->kind = s->rule != KR_SPLIT_NONE && is_each_match ? RULE : EXPRESSION;
  if (s->kind == RULE) return KRAIT_OK;
  s->kind = strcmp(regex, "[0-9][0-9][0-9]") == 0 ? THREE_DIGITS : EXPRESSION;
  if (s->kind == THREE_DIGITS) return KRAIT_OK;
  const int32_t status = kr_regex_open(regex, &s->regex);
  return status < 0 ? kr_fail(status, "%s: its pre-tokenizer: %s", label, krait_error_detail()) : KRAIT_OK;
}

static int32_t read_metaspace(const json_t *json, const char *label, step *s) {
  const char *replacement = text_in(json, "replacement"), *scheme = text_in(json, "prepend_scheme");
  const json_t *split = json_object_get(json, "split"), *adds = json_object_get(json, "add_prefix_space");
  s->kind = METASPACE;
  s->behavior = MERGED_WITH_NEXT;
  s->is_whole = json_is_false(split);
  if (!*scheme) scheme = json_is_false(adds) ? "never" : "always";
  FORMAT_CHECK(strcmp(scheme, "always") == 0 || strcmp(scheme, "first") == 0 || strcmp(scheme, "never") == 0,
               "%s: its pre-tokenizer has the unknown prepend_scheme '%.32s'", label, scheme);
  s->prefix = *scheme == 'a' ? ALWAYS : *scheme == 'f' ? AT_START : NEVER;
  return read_literal(*replacement ? replacement : "\xe2\x96\x81", label, s);
}

static int32_t read_byte_level(kr_pretokenizer *p, const json_t *json, const char *label, step *s) {
  FORMAT_CHECK(p->byte_step < 0, "%s: its pre-tokenizer has two ByteLevel", label);
  s->kind = BYTE_LEVEL;
  s->rule = json_is_false(json_object_get(json, "use_regex")) ? KR_SPLIT_NONE : KR_SPLIT_GPT2;
  s->prefix = json_is_true(json_object_get(json, "add_prefix_space")) ? ALWAYS : NEVER;
  p->byte_step = p->n;
  return KRAIT_OK;
}

static int32_t read_step(kr_pretokenizer *p, const json_t *json, const char *label) {
  const char *type = text_in(json, "type");
  FORMAT_CHECK(p->n < MOST_STEPS, "%s: its pre-tokenizer has more than %d steps", label, MOST_STEPS);
  step *s = &p->steps[p->n];
  *s = (step){.kind = CHARACTERS, .behavior = REMOVED, .is_in = kr_is_space};
  int32_t status = KRAIT_OK;
  if (strcmp(type, "ByteLevel") == 0) status = read_byte_level(p, json, label, s);
  else if (strcmp(type, "Split") == 0) status = read_split(json, label, s);
  else if (strcmp(type, "Metaspace") == 0) status = read_metaspace(json, label, s);
  else if (strcmp(type, "Digits") == 0) {
    s->is_in = kr_is_number;
    s->behavior = json_is_true(json_object_get(json, "individual_digits")) ? ISOLATED : CONTIGUOUS;
  } else if (strcmp(type, "Punctuation") == 0) {
    s->is_in = kr_is_punctuation;
    s->behavior = ISOLATED;
    if (json_object_get(json, "behavior")) status = read_behavior(json, label, s);
  } else if (strcmp(type, "WhitespaceSplit") != 0)
    status = kr_fail(KRAIT_ERR_FILE_FORMAT,
                     "%s: its pre-tokenizer is '%.32s'; ByteLevel, Split, Metaspace, Digits, Punctuation, "
                     "WhitespaceSplit and Sequences of them are supported",
                     label, type);
  p->n++; /* also after a failure: its expression is closed */
  return status;
}

static int32_t read_steps(kr_pretokenizer *p, const json_t *json, const char *label, int depth) {
  const json_t *item;
  size_t i;
  FORMAT_CHECK(json_is_object(json) && depth < 4, "%s: its pre-tokenizer is not an object", label);
  if (strcmp(text_in(json, "type"), "Sequence") != 0) return read_step(p, json, label);
  json_array_foreach(json_object_get(json, "pretokenizers"), i, item) KR_TRY(read_steps(p, item, label, depth + 1));
  return KRAIT_OK;
}

int32_t kr_pretokenizer_open(const json_t *json, const char *label, kr_pretokenizer **out) {
  kr_pretokenizer *p = *out = kr_zalloc(sizeof *p);
  KR_CHECK(p, KRAIT_ERR_NO_MEMORY, "%s: no memory for its pre-tokenizer", label);
  p->byte_step = -1;
  make_letters(p);
  const int32_t status = !json || json_is_null(json) ? KRAIT_OK : read_steps(p, json, label, 0);
  if (status < 0) kr_pretokenizer_close(out);
  return status;
}

void kr_pretokenizer_close(kr_pretokenizer **handle) {
  kr_pretokenizer *p = *handle;
  if (!p) return;
  for (int i = 0; i < p->n; i++) kr_regex_close(&p->steps[i].regex);
  kr_free(p);
  *handle = NULL;
}

int kr_pretokenizer_is_of_bytes(const kr_pretokenizer *p) { return p->byte_step >= 0; }

int kr_pretokenizer_keeps_text(const kr_pretokenizer *p) {
  for (int i = 0; i < p->n; i++) {
    const step *s = &p->steps[i];
    if (s->kind == METASPACE || (s->kind == BYTE_LEVEL && s->prefix != NEVER)) return 0;
    if (s->kind != RULE && s->kind != BYTE_LEVEL && s->behavior == REMOVED) return 0;
  }
  return 1;
}

/* ---- matches ---- */

typedef struct span {
  size_t from, to;
  int is_match;
} span;

typedef struct spans {
  span *at;
  size_t n, capacity;
} spans;

static int32_t add_span(spans *list, size_t from, size_t to, int is_match) {
  if (from == to) return KRAIT_OK;
  if (list->n == list->capacity) {
    const size_t wanted = list->capacity ? 2 * list->capacity : 64;
    span *grown = kr_realloc(list->at, list->capacity * sizeof *grown, wanted * sizeof *grown);
    KR_CHECK(grown, KRAIT_ERR_NO_MEMORY, "no memory for the %zu parts of a text", wanted);
    list->at = grown;
    list->capacity = wanted;
  }
  list->at[list->n++] = (span){from, to, is_match};
  return KRAIT_OK;
}

static int32_t match_expression(const step *s, const char *text, size_t n, spans *list) {
  kr_regex_scan scan;
  size_t at = 0, start, end;
  int32_t status = kr_regex_scan_begin(s->regex, text, n, &scan);
  while (status >= 0 && at < n) {
    status = kr_regex_next(&scan, &start, &end);
    if (status >= 0) status = add_span(list, at, start, 0);
    if (status >= 0) status = add_span(list, start, end, 1);
    at = end;
  }
  kr_regex_scan_end(&scan);
  return status;
}

/* The length of a match at this position; 0: none. */
static size_t match_at(const step *s, const char *text, size_t n, size_t at) {
  uint32_t code = 0;
  if (s->kind == LITERAL || s->kind == METASPACE)
    return n - at >= s->n_text && memcmp(text + at, s->text, s->n_text) == 0 ? s->n_text : 0;
  if (s->kind == THREE_DIGITS) {
    size_t k = 0;
    while (k < 3 && at + k < n && text[at + k] >= '0' && text[at + k] <= '9') k++;
    return k == 3 ? 3 : 0;
  }
  const int length = kr_utf8_read(text + at, n - at, &code);
  return s->is_in(code) ? (size_t)length : 0;
}

static int32_t match_step(const step *s, const char *text, size_t n, spans *list) {
  size_t from = 0;
  if (s->kind == EXPRESSION) return match_expression(s, text, n, list);
  for (size_t at = 0; at < n;) {
    const size_t length = match_at(s, text, n, at);
    if (!length) {
      const int more = kr_utf8_read(text + at, n - at, NULL);
      at += more ? (size_t)more : 1;
      continue;
    }
    KR_TRY(add_span(list, from, at, 0));
    KR_TRY(add_span(list, at, at + length, 1));
    from = at += length;
  }
  return add_span(list, from, n, 0);
}

/* Joins and drops spans in place. */
static void apply_behavior(step_behavior behavior, spans *list) {
  size_t kept = 0;
  if (behavior == ISOLATED) return;
  if (behavior == MERGED_WITH_NEXT) { /* from the back: each match with what is behind it, if that is no match */
    int was_match = 0;
    size_t front = list->n;
    for (size_t i = list->n; i-- > 0;) {
      const span one = list->at[i];
      if (one.is_match && !was_match && front < list->n) list->at[front].from = one.from;
      else list->at[--front] = one;
      was_match = one.is_match;
    }
    memmove(list->at, list->at + front, (list->n - front) * sizeof *list->at);
    list->n -= front;
    return;
  }
  int was_match = 0;
  for (size_t i = 0; i < list->n; i++) {
    const span one = list->at[i];
    if (behavior == REMOVED && one.is_match) continue;
    const int joins = behavior == CONTIGUOUS              ? kept && one.is_match == was_match
                      : behavior == MERGED_WITH_PREVIOUS ? kept && one.is_match && !was_match
                                                          : 0;
    if (joins) list->at[kept - 1].to = one.to;
    else list->at[kept++] = one;
    was_match = one.is_match;
  }
  list->n = kept;
}

/* ---- cutting ---- */

typedef struct cutting {
  const kr_pretokenizer *p;
  kr_piece_fn *fn;
  void *user;
} cutting;

static int32_t run_step(const cutting *c, int k, const char *text, size_t n, int is_start);

static int32_t run_matches(const cutting *c, int k, const char *text, size_t n, int is_start) {
  const step *s = &c->p->steps[k];
  spans list = {0};
  int32_t status = match_step(s, text, n, &list);
  for (size_t i = 0; status >= 0 && s->is_inverted && i < list.n; i++) list.at[i].is_match ^= 1;
  if (status >= 0) apply_behavior(s->behavior, &list);
  for (size_t i = 0; status >= 0 && i < list.n; i++)
    status = run_step(c, k + 1, text + list.at[i].from, list.at[i].to - list.at[i].from,
                      is_start && list.at[i].from == 0);
  kr_free(list.at);
  return status;
}

/* Each piece of a rule; behind a ByteLevel in its alphabet, if a step still looks at it. */
static int32_t run_rule(const cutting *c, int k, const char *text, size_t n, int is_start) {
  const step *s = &c->p->steps[k];
  const int is_written = s->kind == BYTE_LEVEL && k + 1 < c->p->n;
  kr_buffer written = {0};
  int32_t status = KRAIT_OK;
  for (size_t from = 0, to; from < n && status >= 0; from = to) {
    to = kr_split_next(s->rule, text, n, from);
    written.n = 0;
    for (size_t i = from; is_written && i < to && status >= 0; i++) {
      const unsigned char byte = (unsigned char)text[i];
      status = kr_buffer_add(&written, c->p->letters[byte], c->p->n_letters[byte]);
    }
    if (status >= 0)
      status = run_step(c, k + 1, is_written ? written.at : text + from, is_written ? written.n : to - from,
                        is_start && from == 0);
  }
  kr_buffer_free(&written);
  return status;
}

static int starts_with(const char *text, size_t n, const char *with, size_t n_with) {
  return n >= n_with && memcmp(text, with, n_with) == 0;
}

/* A space before the piece, if it has none. */
static int32_t run_byte_level(const cutting *c, int k, const char *text, size_t n, int is_start) {
  kr_buffer with = {0};
  if (c->p->steps[k].prefix == NEVER || *text == ' ') return run_rule(c, k, text, n, is_start);
  int32_t status = kr_buffer_add(&with, " ", 1);
  if (status >= 0) status = kr_buffer_add(&with, text, n);
  if (status >= 0) status = run_rule(c, k, with.at, with.n, is_start);
  kr_buffer_free(&with);
  return status;
}

static int32_t replace_spaces(const step *s, const char *text, size_t n, int is_start, kr_buffer *out) {
  const int has_prefix = *text == ' ' || starts_with(text, n, s->text, s->n_text);
  if (!has_prefix && (s->prefix == ALWAYS || (s->prefix == AT_START && is_start)))
    KR_TRY(kr_buffer_add(out, s->text, s->n_text));
  for (size_t i = 0, to; i < n; i = to) {
    for (to = i; to < n && text[to] != ' '; to++) {}
    KR_TRY(kr_buffer_add(out, text + i, to - i));
    if (to == n) break;
    KR_TRY(kr_buffer_add(out, s->text, s->n_text));
    to++;
  }
  return KRAIT_OK;
}

static int32_t run_metaspace(const cutting *c, int k, const char *text, size_t n, int is_start) {
  const step *s = &c->p->steps[k];
  kr_buffer replaced = {0};
  int32_t status = replace_spaces(s, text, n, is_start, &replaced);
  if (status >= 0)
    status = s->is_whole ? run_step(c, k + 1, replaced.at, replaced.n, is_start)
                         : run_matches(c, k, replaced.at, replaced.n, is_start);
  kr_buffer_free(&replaced);
  return status;
}

/* Behind the last step: what is in the alphabet of bytes becomes bytes. */
static int32_t pass_piece(const cutting *c, const char *text, size_t n) {
  const kr_pretokenizer *p = c->p;
  if (p->byte_step < 0 || p->byte_step + 1 == p->n) return c->fn(c->user, text, n);
  char few[256], *bytes = n <= sizeof few ? few : kr_alloc(n);
  size_t n_bytes;
  KR_CHECK(bytes, KRAIT_ERR_NO_MEMORY, "no memory for a piece of %zu bytes", n);
  const int is_written = kr_bytes_unwrite(p->byte_of, text, n, bytes, &n_bytes);
  const int32_t status = is_written ? c->fn(c->user, bytes, n_bytes) : c->fn(c->user, text, n);
  if (bytes != few) kr_free(bytes);
  return status;
}

static int32_t run_step(const cutting *c, int k, const char *text, size_t n, int is_start) {
  if (n == 0) return KRAIT_OK;
  if (k == c->p->n) return pass_piece(c, text, n);
  const step_kind kind = c->p->steps[k].kind;
  if (kind == RULE) return run_rule(c, k, text, n, is_start);
  if (kind == BYTE_LEVEL) return run_byte_level(c, k, text, n, is_start);
  if (kind == METASPACE) return run_metaspace(c, k, text, n, is_start);
  return run_matches(c, k, text, n, is_start);
}

int32_t kr_pretokenize(const kr_pretokenizer *p, const char *text, size_t n, int is_start, kr_piece_fn *fn,
                       void *user) {
  return run_step(&(cutting){p, fn, user}, 0, text, n, is_start);
}

/* normalizer.c: a list of changes, one after another. */
#include "normalizer.h"

#include <string.h>

#include "alloc.h"
#include "buffer.h"
#include "regex.h"
#include "status.h"
#include "unicode.h"
#include "utf8.h"

enum { MOST_CHANGES = 16, LONGEST_CONTENT = 64 };
/* A text may grow to MOST_GROWTH times its length and some bytes more: several changes could make each byte 64^16. The
 * forms that Unicode has make at most 18 characters of one. */
enum { MOST_GROWTH = 64, SOME_BYTES = 4096 };
typedef enum { FORM, PREPEND, REPLACE, REPLACE_EXPRESSION, STRIP } change_kind;

typedef struct change {
  change_kind kind;
  int32_t form, strips_left, strips_right;
  char from[LONGEST_CONTENT + 1], to[LONGEST_CONTENT + 1]; /* of REPLACE; PREPEND has to */
  size_t n_from, n_to;
  kr_regex *regex;
} change;

struct kr_normalizer {
  change changes[MOST_CHANGES];
  int n;
};

#define FORMAT_CHECK(condition, ...) KR_CHECK(condition, KRAIT_ERR_FILE_FORMAT, __VA_ARGS__)

static const char *content_of(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}

static int32_t read_content(const char *text, const char *label, char *to, size_t *n) {
  *n = strlen(text);
  FORMAT_CHECK(*n <= LONGEST_CONTENT, "%s: its normalizer has a text of %zu bytes", label, *n);
  memcpy(to, text, *n + 1);
  return KRAIT_OK;
}

static int32_t read_replace(const json_t *json, const char *label, change *c) {
  const json_t *pattern = json_object_get(json, "pattern");
  const char *regex = json_string_value(json_object_get(pattern, "Regex")), *text = content_of(pattern, "String");
  c->kind = regex ? REPLACE_EXPRESSION : REPLACE;
  KR_TRY(read_content(content_of(json, "content"), label, c->to, &c->n_to));
  FORMAT_CHECK(regex || *text, "%s: its normalizer replaces an empty text", label);
  if (!regex) return read_content(text, label, c->from, &c->n_from);
  const int32_t status = kr_regex_open(regex, &c->regex);
  return status < 0 ? kr_fail(status, "%s: its normalizer: %s", label, krait_error_detail()) : KRAIT_OK;
}

static int32_t read_change(kr_normalizer *z, const json_t *json, const char *label) {
  static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
  const char *type = content_of(json, "type");
  FORMAT_CHECK(z->n < MOST_CHANGES, "%s: its normalizer has more than %d parts", label, MOST_CHANGES);
  change *c = &z->changes[z->n++];
  for (int i = 0; i < 4; i++)
    if (strcmp(type, forms[i]) == 0) return c->form = i, KRAIT_OK;
  if (strcmp(type, "Replace") == 0) return read_replace(json, label, c);
  c->kind = strcmp(type, "Prepend") == 0 ? PREPEND : STRIP;
  if (c->kind == PREPEND) return read_content(content_of(json, "prepend"), label, c->to, &c->n_to);
  FORMAT_CHECK(strcmp(type, "Strip") == 0,
               "%s: its normalizer is '%.32s'; NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip and Sequences of them are "
               "supported",
               label, type);
  c->strips_left = json_is_true(json_object_get(json, "strip_left"));
  c->strips_right = json_is_true(json_object_get(json, "strip_right"));
  return KRAIT_OK;
}

static int32_t read_changes(kr_normalizer *z, const json_t *json, const char *label, int depth) {
  const json_t *item;
  size_t i;
  FORMAT_CHECK(json_is_object(json) && depth < 4, "%s: its normalizer is not an object", label);
  if (strcmp(content_of(json, "type"), "Sequence") != 0) return read_change(z, json, label);
  json_array_foreach(json_object_get(json, "normalizers"), i, item) KR_TRY(read_changes(z, item, label, depth + 1));
  return KRAIT_OK;
}

int32_t kr_normalizer_open(const json_t *json, const char *label, kr_normalizer **out) {
  kr_normalizer *z = *out = kr_zalloc(sizeof *z);
  KR_CHECK(z, KRAIT_ERR_NO_MEMORY, "%s: no memory for its normalizer", label);
  const int32_t status = !json || json_is_null(json) ? KRAIT_OK : read_changes(z, json, label, 0);
  if (status < 0) kr_normalizer_close(out);
  return status;
}

void kr_normalizer_close(kr_normalizer **handle) {
  kr_normalizer *z = *handle;
  if (!z) return;
  for (int i = 0; i < z->n; i++) kr_regex_close(&z->changes[i].regex);
  kr_free(z);
  *handle = NULL;
}

int kr_normalizer_keeps_text(const kr_normalizer *z) { return z->n == 0; }

/* ---- changes ---- */

/* A text being changed. */
typedef struct changing {
  kr_buffer out;
  size_t most; /* bytes */
} changing;

static int32_t add_changed(changing *to, const char *text, size_t n) {
  FORMAT_CHECK(to->out.n <= to->most && n <= to->most - to->out.n,
               "the tokenizer's normalizer makes a text more than %d times as long", MOST_GROWTH);
  return kr_buffer_add(&to->out, text, n);
}

static int32_t replace_text(const change *c, const char *text, size_t n, changing *out) {
  for (size_t at = 0; at < n;) {
    const char *found = memchr(text + at, *c->from, n - at);
    size_t next = found ? (size_t)(found - text) : n;
    KR_TRY(add_changed(out, text + at, next - at));
    if (!found) break;
    const int is_match = n - next >= c->n_from && memcmp(found, c->from, c->n_from) == 0;
    KR_TRY(is_match ? add_changed(out, c->to, c->n_to) : add_changed(out, found, 1));
    at = next + (is_match ? c->n_from : 1);
  }
  return KRAIT_OK;
}

static int32_t replace_expression(const change *c, const char *text, size_t n, changing *out) {
  kr_regex_scan scan;
  size_t at = 0, start, end;
  int32_t status = kr_regex_scan_begin(c->regex, text, n, &scan);
  while (status >= 0 && at < n) {
    status = kr_regex_next(&scan, &start, &end);
    if (status >= 0) status = add_changed(out, text + at, start - at);
    if (status >= 0 && end > start) status = add_changed(out, c->to, c->n_to);
    at = end;
  }
  kr_regex_scan_end(&scan);
  return status;
}

static int32_t strip_text(const change *c, const char *text, size_t n, changing *out) {
  size_t from = 0, to = 0;
  uint32_t code;
  for (int length; c->strips_left && from < n; from += (size_t)length) {
    length = kr_utf8_read(text + from, n - from, &code);
    if (!length || !kr_is_space(code)) break;
  }
  for (size_t at = from; at < n;) {
    const int length = kr_utf8_read(text + at, n - at, &code);
    at += length ? (size_t)length : 1;
    if (!c->strips_right || !length || !kr_is_space(code)) to = at;
  }
  return to > from ? add_changed(out, text + from, to - from) : KRAIT_OK;
}

static int32_t apply_change(const change *c, const char *text, size_t n, changing *out) {
  if (c->kind == REPLACE) return replace_text(c, text, n, out);
  if (c->kind == REPLACE_EXPRESSION) return replace_expression(c, text, n, out);
  if (c->kind == STRIP) return strip_text(c, text, n, out);
  KR_TRY(add_changed(out, c->to, c->n_to)); /* before it */
  return add_changed(out, text, n);
}

/* A form by itself says whether anything changes; what others make replaces the text. */
static int32_t apply_next(const change *c, size_t most, char **normal, const char *text, size_t *n) {
  const char *from = *normal ? *normal : text;
  char *changed = NULL;
  changing to = {.most = most};
  int32_t status = KRAIT_OK;
  if (*n == 0) return KRAIT_OK;
  if (c->kind == FORM) {
    size_t n_changed;
    status = kr_normalize(c->form, from, *n, &changed, &n_changed);
    if (changed) *n = n_changed;
  } else {
    status = kr_buffer_reserve(&to.out, *n + 1);
    if (status >= 0) status = apply_change(c, from, *n, &to);
    if (status >= 0) changed = to.out.at, *n = to.out.n;
    else kr_buffer_free(&to.out);
  }
  if (changed) kr_free(*normal), *normal = changed;
  return status;
}

int32_t kr_normalizer_apply(const kr_normalizer *z, const char *text, size_t n, char **normal, size_t *n_normal) {
  const size_t most = n < (SIZE_MAX - SOME_BYTES) / MOST_GROWTH ? MOST_GROWTH * n + SOME_BYTES : SIZE_MAX;
  int32_t status = KRAIT_OK;
  *normal = NULL;
  *n_normal = n;
  for (int i = 0; i < z->n && status >= 0; i++) status = apply_next(&z->changes[i], most, normal, text, n_normal);
  if (status < 0) kr_free(*normal), *normal = NULL;
  return status;
}

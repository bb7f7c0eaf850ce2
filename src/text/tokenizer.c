/* tokenizer.c: encodes: added tokens are cut out of the raw text, the rest is normalized, those added tokens that are
 * normalized are cut out of that, and the remainder is cut into pieces and merged. If several added tokens match at a
 * position, the longest is used. */
#include "tokenizer.h"

#include <string.h>

#include "alloc.h"
#include "status.h"
#include "tokenizer_parts.h"
#include "unicode.h"
#include "utf8.h"

/* ---- pieces ---- */

typedef struct target {
  const kr_tokenizer *t;
  kr_ids *ids;
} target;

/* Where a character is not in the vocabulary: its bytes, or the unknown token, once for all in a row if those are
 * joined; *is_open: the last token is such a one. Returns how many tokens there are. */
static int64_t add_unknown(const kr_tokenizer *t, const char *text, size_t n, int32_t *tokens, int64_t n_tokens,
                           int *is_open) {
  int has_all = t->has_byte_fallback;
  for (size_t i = 0; i < n; i++) has_all = has_all && t->byte_token[(unsigned char)text[i]] >= 0;
  for (size_t i = 0; has_all && i < n; i++) tokens[n_tokens++] = t->byte_token[(unsigned char)text[i]];
  if (has_all || t->unknown < 0) return n_tokens;
  if (!*is_open || !t->joins_unknown) tokens[n_tokens++] = t->unknown;
  *is_open = 1;
  return n_tokens;
}

static int64_t look_up_characters(const kr_tokenizer *t, const char *text, size_t n, int32_t *tokens) {
  int64_t n_tokens = 0;
  int is_open = 0;
  for (size_t at = 0, length; at < n; at += length) {
    const int read = kr_utf8_read(text + at, n - at, NULL);
    length = read ? (size_t)read : 1;
    const int32_t id = kr_vocabulary_find(t->pieces, text + at, length);
    if (id >= 0) tokens[n_tokens++] = id, is_open = 0;
    else n_tokens = add_unknown(t, text + at, length, tokens, n_tokens, &is_open);
  }
  return n_tokens;
}

static int32_t encode_piece(void *user, const char *text, size_t n) {
  const target *to = user;
  const kr_tokenizer *t = to->t;
  const int32_t whole = t->takes_whole_pieces ? kr_vocabulary_find(t->pieces, text, n) : -1;
  if (whole >= 0) return kr_ids_add(to->ids, whole);
  int32_t few[64], *tokens = n <= 64 ? few : kr_alloc_array(n, sizeof *tokens);
  KR_CHECK(tokens, KRAIT_ERR_NO_MEMORY, "no memory for %zu bytes of text", n);
  int64_t n_tokens = (int64_t)n;
  if (!t->is_of_bytes) n_tokens = look_up_characters(t, text, n, tokens);
  else for (size_t i = 0; i < n; i++) tokens[i] = t->byte_token[(unsigned char)text[i]];
  const int32_t status = kr_bpe_merge(t->bpe, tokens, n_tokens, to->ids);
  if (tokens != few) kr_free(tokens);
  return status;
}

/* ---- added tokens ---- */

static const kr_added_token *added_at(const kr_tokenizer *t, const char *text, size_t n, int is_normalized) {
  const int first = (unsigned char)*text;
  for (int32_t i = t->first_added[first]; i < t->first_added[first + 1]; i++) {
    const kr_added_token *a = &t->added[i];
    if (a->is_normalized == is_normalized && a->n <= n && memcmp(a->content, text, a->n) == 0) return a;
  }
  return NULL;
}

/* The start of the character before `at`. */
static size_t character_before(const char *text, size_t at) {
  do at--;
  while (at > 0 && (unsigned char)text[at] >> 6 == 2);
  return at;
}

static int is_word_beside(const char *text, size_t n, size_t from, size_t to) {
  uint32_t before = ' ', after = ' ';
  if (from > 0) kr_utf8_read(text + character_before(text, from), n, &before);
  if (to < n) kr_utf8_read(text + to, n - to, &after);
  return kr_is_word(before) || kr_is_word(after);
}

static size_t skip_spaces_back(const char *text, size_t n, size_t at, size_t least) {
  for (uint32_t code; at > least;) {
    const size_t before = character_before(text, at);
    if (!kr_utf8_read(text + before, n - before, &code) || !kr_is_space(code)) break;
    at = before;
  }
  return at < least ? least : at;
}

static size_t skip_spaces(const char *text, size_t n, size_t at) {
  uint32_t code;
  for (int length; at < n && (length = kr_utf8_read(text + at, n - at, &code)) != 0 && kr_is_space(code);)
    at += (size_t)length;
  return at;
}

typedef struct part {
  const char *text;
  size_t n;
  int is_start; /* of what is encoded */
} part;

static int32_t encode_around(const target *to, part whole, int is_normalized, uint32_t flags);

/* Text between added tokens of one kind. */
static int32_t encode_rest(const target *to, part rest, int is_normalized, uint32_t flags) {
  const kr_tokenizer *t = to->t;
  char *normal;
  if (rest.n == 0) return KRAIT_OK;
  if (is_normalized)
    return kr_pretokenize(t->pretokenizer, rest.text, rest.n, rest.is_start, encode_piece, (void *)to);
  KR_TRY(kr_normalizer_apply(t->normalizer, rest.text, rest.n, &normal, &rest.n));
  if (normal) rest.text = normal;
  const int32_t status = encode_around(to, rest, 1, flags);
  kr_free(normal);
  return status;
}

static int32_t encode_around(const target *to, part whole, int is_normalized, uint32_t flags) {
  const char *text = whole.text;
  size_t from = 0;
  for (size_t at = 0; at < whole.n;) {
    const kr_added_token *a = added_at(to->t, text + at, whole.n - at, is_normalized);
    size_t start = at, end = at + (a ? a->n : 1);
    at = end;
    if (!a || (a->is_special && flags & KR_ENCODE_PLAIN)) continue;
    if (a->is_single_word && is_word_beside(text, whole.n, start, end)) continue;
    if (a->strips_left) start = skip_spaces_back(text, whole.n, start, from);
    if (a->strips_right) end = skip_spaces(text, whole.n, end);
    if (start > from)
      KR_TRY(encode_rest(to, (part){text + from, start - from, whole.is_start && from == 0}, is_normalized, flags));
    KR_TRY(kr_ids_add(to->ids, a->id));
    from = end;
  }
  return encode_rest(to, (part){text + from, whole.n - from, whole.is_start && from == 0}, is_normalized, flags);
}

int32_t kr_tokenizer_encode(const kr_tokenizer *t, const char *text, size_t n, uint32_t flags, kr_ids *ids) {
  const size_t good = kr_utf8_check(text, n);
  KR_CHECK(good == n, KRAIT_ERR_ARGUMENT, "the text is not UTF-8: byte 0x%02x at %zu; convert it to UTF-8",
           (unsigned char)text[good], good);
  const int is_whole = (flags & KR_ENCODE_WHOLE) != 0;
  for (int32_t i = 0; is_whole && i < t->n_before; i++) KR_TRY(kr_ids_add(ids, t->before[i]));
  KR_TRY(encode_around(&(target){t, ids}, (part){text, n, !(flags & KR_ENCODE_INSIDE)}, 0, flags));
  for (int32_t i = 0; is_whole && i < t->n_after; i++) KR_TRY(kr_ids_add(ids, t->after[i]));
  return KRAIT_OK;
}

/* ---- queries ---- */

int64_t kr_tokenizer_size(const kr_tokenizer *t) { return t->n_tokens; }

const char *kr_tokenizer_bytes(const kr_tokenizer *t, int32_t id, size_t *n) {
  const int is_token = id >= 0 && id < t->n_tokens && t->tokens[id].name;
  *n = is_token ? t->tokens[id].n : 0;
  return is_token ? t->tokens[id].bytes : "";
}

int kr_tokenizer_is_special(const kr_tokenizer *t, int32_t id) {
  return id >= 0 && id < t->n_tokens && t->tokens[id].is_special;
}

int32_t kr_tokenizer_find_added(const kr_tokenizer *t, const char *content) {
  for (int32_t i = 0; i < t->n_added; i++)
    if (strcmp(t->tokens[t->added[i].id].name, content) == 0) return t->added[i].id;
  return -1;
}

int32_t kr_tokenizer_special_at(const kr_tokenizer *t, const char *text, size_t n, size_t *length) {
  for (int is_normalized = 0; n && is_normalized < 2; is_normalized++) {
    const kr_added_token *a = added_at(t, text, n, is_normalized);
    if (a && a->is_special) return *length = a->n, a->id;
  }
  return -1;
}

void kr_tokenizer_set_template(kr_tokenizer *t, int32_t before, int32_t after) {
  t->before[0] = before, t->n_before = before >= 0;
  t->after[0] = after, t->n_after = after >= 0;
}

#ifdef KR_FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Fuzz target, a tokenizer, a NUL, a text: an accepted tokenizer of bytes must reproduce the text if nothing changes
 * it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const uint8_t *gap = memchr(data, 0, size);
  const size_t n = gap ? (size_t)(gap - data) : size, n_text = gap ? size - n - 1 : 0;
  kr_tokenizer *t = NULL;
  kr_ids ids = {0};
  const char *text = gap ? (const char *)gap + 1 : "";
  if (kr_tokenizer_open_memory(data, n, "fuzz", &t) >= 0 && kr_tokenizer_encode(t, text, n_text, 0, &ids) >= 0 &&
      t->is_of_bytes && kr_normalizer_keeps_text(t->normalizer) && kr_pretokenizer_keeps_text(t->pretokenizer)) {
    size_t at = 0;
    int strips = 0;
    for (int32_t i = 0; i < t->n_added; i++) strips |= t->added[i].strips_left | t->added[i].strips_right;
    for (int64_t i = 0; !strips && i < ids.n; i++) {
      size_t length;
      const char *bytes = kr_tokenizer_bytes(t, ids.at[i], &length);
      if (length > n_text - at || memcmp(bytes, text + at, length) != 0) __builtin_trap();
      at += length;
    }
    if (!strips && at != n_text) __builtin_trap();
  }
  kr_ids_free(&ids);
  kr_tokenizer_close(&t);
  return 0;
}
#endif

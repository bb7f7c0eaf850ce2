/* tokenizer.c: reads tokenizer.json, and encodes: special tokens are cut out of the raw text, the rest is normalized,
 * the other added tokens are cut out of that, and the remainder is split by the rule and merged. If several added
 * tokens match at a position, the longest is used. */
#include "tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "arena.h"
#include "mapfile.h"
#include "split.h"
#include "status.h"
#include "unicode.h"
#include "utf8.h"

enum { MOST_TOKENS = 1 << 22, MOST_TOKEN_BYTES = 1 << 16 };

typedef struct token {
  const char *bytes;
  uint32_t n;
  int32_t is_special;
} token;

typedef struct added {
  const char *content;
  size_t n;
  int32_t id, is_special, is_normalized;
} added;

struct kr_tokenizer {
  kr_arena *arena;
  const char *label;
  kr_bpe *bpe;
  token *tokens;
  int64_t n_tokens;
  added *added; /* by first byte, then the longest first */
  int32_t n_added, first_added[257];
  int32_t byte_token[256]; /* -1: none */
  int32_t rule, normalizes;
};

/* ---- bytes as characters: GPT-2's table ---- */

/* Printable bytes stand for themselves, the others are mapped to the characters from U+0100 on. */
static int prints(int byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174; }

/* byte_of[c] of the characters below 0x144; -1: stands for none. */
static void make_byte_table(int16_t *byte_of) {
  int more = 256;
  for (int c = 0; c < 0x144; c++) byte_of[c] = -1;
  for (int byte = 0; byte < 256; byte++) byte_of[prints(byte) ? byte : more++] = (int16_t)byte;
}

/* The bytes of a vocabulary token; 0: it is not written in that alphabet. */
static int unwrite(const int16_t *byte_of, const char *text, size_t n, char *bytes, size_t *n_bytes) {
  uint32_t code;
  *n_bytes = 0;
  for (size_t i = 0; i < n;) {
    const int length = kr_utf8_read(text + i, n - i, &code);
    if (!length || code >= 0x144 || byte_of[code] < 0) return 0;
    bytes[(*n_bytes)++] = (char)byte_of[code];
    i += (size_t)length;
  }
  return 1;
}

/* ---- reading ---- */

#define FORMAT_CHECK(condition, ...) KR_CHECK(condition, KRAIT_ERR_FILE_FORMAT, __VA_ARGS__)

static const char *type_of(const json_t *object) {
  const char *type = json_string_value(json_object_get(object, "type"));
  return type ? type : "";
}
static int is_true(const json_t *object, const char *key) { return json_is_true(json_object_get(object, key)); }

/* Absent, null, false or an empty text. */
static int is_off(const json_t *object, const char *key) {
  const json_t *v = json_object_get(object, key);
  return !v || json_is_null(v) || json_is_false(v) || (json_is_string(v) && json_string_length(v) == 0);
}

static int32_t read_id(const kr_tokenizer *t, const json_t *value, const char *name, int32_t *id) {
  const json_int_t i = json_integer_value(value);
  FORMAT_CHECK(json_is_integer(value) && i >= 0 && i < MOST_TOKENS, "%s: token '%.64s' has no id from 0 to %d",
               t->label, name, MOST_TOKENS - 1);
  *id = (int32_t)i;
  return KRAIT_OK;
}

static int32_t put_token(kr_tokenizer *t, int32_t id, const char *bytes, size_t n, int is_special) {
  const token *there = &t->tokens[id];
  FORMAT_CHECK(n <= MOST_TOKEN_BYTES, "%s: token %d has %zu bytes", t->label, id, n);
  FORMAT_CHECK(!there->bytes || (there->n == n && memcmp(there->bytes, bytes, n) == 0), "%s: two tokens have id %d",
               t->label, id);
  t->tokens[id] = (token){kr_arena_copy(t->arena, bytes, n), (uint32_t)n, is_special};
  KR_CHECK(!kr_arena_failed(t->arena), KRAIT_ERR_NO_MEMORY, "%s: no memory for its tokens", t->label);
  return KRAIT_OK;
}

/* One more than the highest id of vocabulary and added tokens. */
static int32_t count_tokens(kr_tokenizer *t, json_t *vocab, const json_t *list) {
  const char *name;
  json_t *value;
  size_t i;
  int32_t id;
  json_object_foreach(vocab, name, value) {
    KR_TRY(read_id(t, value, name, &id));
    if (id >= t->n_tokens) t->n_tokens = id + 1;
  }
  json_array_foreach(list, i, value) {
    const char *content = json_string_value(json_object_get(value, "content"));
    KR_TRY(read_id(t, json_object_get(value, "id"), content ? content : "", &id));
    if (id >= t->n_tokens) t->n_tokens = id + 1;
  }
  t->tokens = kr_alloc_array((size_t)t->n_tokens, sizeof *t->tokens);
  KR_CHECK(t->tokens, KRAIT_ERR_NO_MEMORY, "%s: no memory for %lld tokens", t->label, (long long)t->n_tokens);
  return KRAIT_OK;
}

static int32_t read_vocabulary(kr_tokenizer *t, json_t *vocab) {
  const char *name;
  json_t *value;
  int16_t byte_of[0x144];
  char bytes[4096];
  int32_t id;
  make_byte_table(byte_of);
  for (int i = 0; i < 256; i++) t->byte_token[i] = -1;
  json_object_foreach(vocab, name, value) {
    size_t n = strlen(name), n_bytes = 0;
    KR_TRY(read_id(t, value, name, &id));
    FORMAT_CHECK(n <= sizeof bytes, "%s: a token of %zu bytes", t->label, n);
    const int is_written = unwrite(byte_of, name, n, bytes, &n_bytes);
    KR_TRY(put_token(t, id, is_written ? bytes : name, is_written ? n_bytes : n, 0));
    if (is_written && n_bytes == 1) t->byte_token[(unsigned char)*bytes] = id;
  }
  for (int i = 0; i < 256; i++) /* bytes that never occur in UTF-8 may be missing */
    FORMAT_CHECK(t->byte_token[i] >= 0 || i == 0xc0 || i == 0xc1 || i > 0xf4,
                 "%s: its vocabulary has no token for byte 0x%02x; only byte-level tokenizers are supported", t->label,
                 i);
  return KRAIT_OK;
}

/* "a b", or ["a", "b"]. */
static int32_t read_merge(kr_tokenizer *t, json_t *vocab, const json_t *merge, size_t index) {
  char left[4096], merged[8192];
  const char *text = json_string_value(merge), *right = json_string_value(json_array_get(merge, 1)),
             *first = json_string_value(json_array_get(merge, 0));
  size_t n = first ? strlen(first) : 0;
  if (text) {
    const char *gap = *text ? strchr(text + 1, ' ') : NULL;
    first = text, right = gap ? gap + 1 : NULL, n = gap ? (size_t)(gap - text) : 0;
  }
  FORMAT_CHECK(right && n > 0 && n < sizeof left && strlen(right) < sizeof left,
               "%s: merge %zu is not a pair of tokens", t->label, index);
  memcpy(left, first, n);
  left[n] = 0;
  memcpy(merged, first, n);
  memcpy(merged + n, right, strlen(right) + 1);
  int32_t ids[3];
  const char *const names[] = {left, right, merged};
  for (int i = 0; i < 3; i++) {
    json_t *id = json_object_get(vocab, names[i]);
    FORMAT_CHECK(id, "%s: merge %zu names '%.64s', which is not in the vocabulary", t->label, index, names[i]);
    KR_TRY(read_id(t, id, names[i], &ids[i]));
  }
  kr_bpe_add(t->bpe, ids[0], ids[1], ids[2]);
  return KRAIT_OK;
}

static int32_t read_merges(kr_tokenizer *t, json_t *vocab, const json_t *merges) {
  json_t *merge;
  size_t i;
  FORMAT_CHECK(json_is_array(merges), "%s: its model has no merges; only byte pair encoding is supported", t->label);
  KR_TRY(kr_bpe_open((int64_t)json_array_size(merges), &t->bpe));
  json_array_foreach(merges, i, merge) KR_TRY(read_merge(t, vocab, merge, i));
  return KRAIT_OK;
}

static int32_t read_model(kr_tokenizer *t, const json_t *root, const json_t *added_tokens) {
  static const char *const unsupported[] = {
      "dropout",       "unk_token",    "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
      "byte_fallback", "ignore_merges"};
  const json_t *model = json_object_get(root, "model");
  json_t *vocab = json_object_get(model, "vocab");
  FORMAT_CHECK(json_is_object(model) && (strcmp(type_of(model), "BPE") == 0 || !*type_of(model)),
               "%s: its model is '%.32s'; only byte pair encoding is supported", t->label, type_of(model));
  FORMAT_CHECK(json_is_object(vocab), "%s: its model has no vocabulary", t->label);
  for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++) /* NeoX has an unk_token that no byte needs */
    FORMAT_CHECK(is_off(model, unsupported[i]) || i == 1, "%s: its model has %s, which is not supported", t->label,
                 unsupported[i]);
  KR_TRY(count_tokens(t, vocab, added_tokens));
  KR_TRY(read_vocabulary(t, vocab));
  return read_merges(t, vocab, json_object_get(model, "merges"));
}

static int order_added(const void *a, const void *b) {
  const added *x = a, *y = b;
  const int first = (unsigned char)*x->content - (unsigned char)*y->content;
  return first ? first : x->n != y->n ? (x->n < y->n ? 1 : -1) : x->id - y->id;
}

static int32_t read_added_token(kr_tokenizer *t, const json_t *item) {
  static const char *const unsupported[] = {"single_word", "lstrip", "rstrip"};
  const char *content = json_string_value(json_object_get(item, "content"));
  char *normal = NULL;
  size_t n_normal;
  FORMAT_CHECK(content && *content, "%s: an added token without content", t->label);
  for (int i = 0; i < 3; i++)
    FORMAT_CHECK(is_off(item, unsupported[i]), "%s: added token '%.64s' has %s, which is not supported", t->label,
                 content, unsupported[i]);
  added *a = &t->added[t->n_added++];
  *a = (added){content, strlen(content), 0, is_true(item, "special"), is_true(item, "normalized")};
  KR_TRY(read_id(t, json_object_get(item, "id"), content, &a->id));
  KR_TRY(put_token(t, a->id, content, a->n, a->is_special));
  a->content = t->tokens[a->id].bytes;
  if (!a->is_normalized || !t->normalizes) return KRAIT_OK;
  KR_TRY(kr_nfc(content, a->n, &normal, &n_normal));
  if (normal) a->content = kr_arena_copy(t->arena, normal, n_normal), a->n = n_normal;
  kr_free(normal);
  return KRAIT_OK;
}

static int32_t read_added(kr_tokenizer *t, const json_t *list) {
  json_t *item;
  size_t i;
  t->added = kr_alloc_array(json_array_size(list) + 1, sizeof *t->added);
  KR_CHECK(t->added, KRAIT_ERR_NO_MEMORY, "%s: no memory for its added tokens", t->label);
  json_array_foreach(list, i, item) KR_TRY(read_added_token(t, item));
  KR_CHECK(!kr_arena_failed(t->arena), KRAIT_ERR_NO_MEMORY, "%s: no memory for its added tokens", t->label);
  qsort(t->added, (size_t)t->n_added, sizeof *t->added, order_added);
  for (int byte = 0, at = 0; byte <= 256; byte++) {
    while (at < t->n_added && (unsigned char)*t->added[at].content < byte) at++;
    t->first_added[byte] = at;
  }
  return KRAIT_OK;
}

static int32_t read_byte_level(kr_tokenizer *t, const json_t *step, int32_t *rule) {
  FORMAT_CHECK(!is_true(step, "add_prefix_space"), "%s: its pre-tokenizer has add_prefix_space, which is not supported",
               t->label);
  const json_t *use_regex = json_object_get(step, "use_regex");
  *rule = json_is_false(use_regex) ? KR_SPLIT_NONE : KR_SPLIT_GPT2;
  return KRAIT_OK;
}

/* A ByteLevel alone, or a Split by one of the known expressions and a ByteLevel that does not split. */
static int32_t read_pre_tokenizer(kr_tokenizer *t, const json_t *pre) {
  const json_t *list = json_object_get(pre, "pretokenizers"), *split = json_array_get(list, 0),
               *last = json_array_get(list, json_array_size(list) - 1);
  if (strcmp(type_of(pre), "ByteLevel") == 0) return read_byte_level(t, pre, &t->rule);
  FORMAT_CHECK(strcmp(type_of(pre), "Sequence") == 0 && json_array_size(list) >= 1 && json_array_size(list) <= 2 &&
                   strcmp(type_of(last), "ByteLevel") == 0,
               "%s: its pre-tokenizer is '%.32s', of another form than GPT-NeoX's or Qwen2's", t->label, type_of(pre));
  KR_TRY(read_byte_level(t, last, &t->rule));
  if (json_array_size(list) == 1) return KRAIT_OK;
  const char *pattern = json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex")),
             *behavior = json_string_value(json_object_get(split, "behavior"));
  FORMAT_CHECK(strcmp(type_of(split), "Split") == 0 && t->rule == KR_SPLIT_NONE && pattern && behavior &&
                   strcmp(behavior, "Isolated") == 0 && !is_true(split, "invert"),
               "%s: its pre-tokenizer has another form than GPT-NeoX's or Qwen2's", t->label);
  t->rule = kr_split_find(pattern);
  FORMAT_CHECK(t->rule != KR_SPLIT_NONE, "%s: its pre-tokenizer splits by an unknown expression: %.100s", t->label,
               pattern);
  return KRAIT_OK;
}

static int32_t read_normalizer(kr_tokenizer *t, const json_t *normalizer) {
  const json_t *list = json_object_get(normalizer, "normalizers");
  if (!normalizer || json_is_null(normalizer) || (json_is_array(list) && json_array_size(list) == 0)) return KRAIT_OK;
  if (json_array_size(list) == 1) normalizer = json_array_get(list, 0);
  FORMAT_CHECK(strcmp(type_of(normalizer), "NFC") == 0, "%s: its normalizer is '%.32s'; only NFC is supported",
               t->label, type_of(normalizer));
  t->normalizes = 1;
  return KRAIT_OK;
}

/* A ByteLevel only changes offsets; a template may add tokens around the text, but those written by save_pretrained add
 * none. */
static int32_t read_post_processor(const kr_tokenizer *t, const json_t *post) {
  const json_t *single = json_object_get(post, "single"), *part;
  size_t i;
  if (!post || json_is_null(post) || strcmp(type_of(post), "ByteLevel") == 0) return KRAIT_OK;
  FORMAT_CHECK(strcmp(type_of(post), "TemplateProcessing") == 0 && json_array_size(single) > 0,
               "%s: its post-processor is '%.32s', which is not supported", t->label, type_of(post));
  json_array_foreach(single, i, part) {
    const char *name = json_string_value(json_object_get(json_object_get(part, "SpecialToken"), "id"));
    FORMAT_CHECK(!name, "%s: its post-processor adds '%.64s' to every text, which is not supported", t->label, name);
  }
  FORMAT_CHECK(json_array_size(single) == 1 && json_object_get(json_array_get(single, 0), "Sequence"),
               "%s: its post-processor is a template of unknown form", t->label);
  return KRAIT_OK;
}

static int32_t read_tree(kr_tokenizer *t, const json_t *root) {
  const json_t *list = json_object_get(root, "added_tokens");
  FORMAT_CHECK(json_is_object(root), "%s: no tokenizer.json", t->label);
  KR_TRY(read_post_processor(t, json_object_get(root, "post_processor")));
  KR_TRY(read_normalizer(t, json_object_get(root, "normalizer")));
  KR_TRY(read_pre_tokenizer(t, json_object_get(root, "pre_tokenizer")));
  KR_TRY(read_model(t, root, list));
  return read_added(t, list);
}

int32_t kr_tokenizer_open_tree(const json_t *root, const char *label, kr_tokenizer **out) {
  kr_tokenizer *t = *out = kr_zalloc(sizeof *t);
  KR_CHECK(t, KRAIT_ERR_NO_MEMORY, "no memory for a tokenizer");
  t->arena = kr_arena_open();
  t->label = t->arena ? kr_arena_copy(t->arena, label, strlen(label)) : "";
  const int32_t status = t->arena ? read_tree(t, root) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a tokenizer");
  if (status < 0) kr_tokenizer_close(out);
  return status;
}

int32_t kr_tokenizer_open_memory(const void *bytes, size_t n_bytes, const char *label, kr_tokenizer **out) {
  json_error_t error;
  *out = NULL;
  json_t *root = json_loadb(bytes, n_bytes, 0, &error);
  KR_CHECK(root, KRAIT_ERR_FILE_FORMAT, "%s: line %d: %s", label, error.line, error.text);
  const int32_t status = kr_tokenizer_open_tree(root, label, out);
  json_decref(root);
  return status;
}

int32_t kr_tokenizer_open(const char *path, kr_tokenizer **tokenizer) {
  kr_mapfile file;
  *tokenizer = NULL;
  KR_TRY(kr_mapfile_open(path, &file));
  const int32_t status = kr_tokenizer_open_memory(file.bytes, file.n_bytes, path, tokenizer);
  kr_mapfile_close(&file);
  return status;
}

void kr_tokenizer_close(kr_tokenizer **tokenizer) {
  kr_tokenizer *t = *tokenizer;
  if (!t) return;
  kr_bpe_close(&t->bpe);
  if (t->arena) kr_arena_close(&t->arena);
  kr_free(t->tokens);
  kr_free(t->added);
  kr_free(t);
  *tokenizer = NULL;
}

/* ---- encoding ---- */

static int32_t encode_piece(const kr_tokenizer *t, const char *text, size_t n, kr_ids *ids) {
  int32_t few[64], *tokens = n <= 64 ? few : kr_alloc_array(n, sizeof *tokens);
  KR_CHECK(tokens, KRAIT_ERR_NO_MEMORY, "no memory for %zu bytes of text", n);
  for (size_t i = 0; i < n; i++) tokens[i] = t->byte_token[(unsigned char)text[i]];
  const int32_t status = kr_bpe_merge(t->bpe, tokens, (int64_t)n, ids);
  if (tokens != few) kr_free(tokens);
  return status;
}

static int32_t encode_pieces(const kr_tokenizer *t, const char *text, size_t n, kr_ids *ids) {
  for (size_t from = 0, to; from < n; from = to) {
    to = kr_split_next(t->rule, text, n, from);
    KR_TRY(encode_piece(t, text + from, to - from, ids));
  }
  return KRAIT_OK;
}

static const added *added_at(const kr_tokenizer *t, const char *text, size_t n, int is_normalized, uint32_t flags) {
  const int first = (unsigned char)*text;
  for (int32_t i = t->first_added[first]; i < t->first_added[first + 1]; i++) {
    const added *a = &t->added[i];
    if (a->is_normalized != is_normalized || (a->is_special && flags & KR_ENCODE_PLAIN)) continue;
    if (a->n <= n && memcmp(a->content, text, a->n) == 0) return a;
  }
  return NULL;
}

static int32_t encode_normal(const kr_tokenizer *t, const char *text, size_t n, uint32_t flags, kr_ids *ids);

/* Text between added tokens of one kind. */
static int32_t encode_rest(const kr_tokenizer *t, const char *text, size_t n, int is_normalized, uint32_t flags,
                           kr_ids *ids) {
  char *normal = NULL;
  size_t n_normal = 0;
  if (n == 0) return KRAIT_OK;
  if (is_normalized) return encode_pieces(t, text, n, ids);
  if (t->normalizes) KR_TRY(kr_nfc(text, n, &normal, &n_normal));
  const int32_t status = encode_normal(t, normal ? normal : text, normal ? n_normal : n, flags, ids);
  kr_free(normal);
  return status;
}

static int32_t encode_around(const kr_tokenizer *t, const char *text, size_t n, int is_normalized, uint32_t flags,
                             kr_ids *ids) {
  size_t from = 0;
  for (size_t at = 0; at < n;) {
    const added *a = added_at(t, text + at, n - at, is_normalized, flags);
    if (!a) {
      at++;
      continue;
    }
    KR_TRY(encode_rest(t, text + from, at - from, is_normalized, flags, ids));
    KR_TRY(kr_ids_add(ids, a->id));
    from = at += a->n;
  }
  return encode_rest(t, text + from, n - from, is_normalized, flags, ids);
}

static int32_t encode_normal(const kr_tokenizer *t, const char *text, size_t n, uint32_t flags, kr_ids *ids) {
  return encode_around(t, text, n, 1, flags, ids);
}

int32_t kr_tokenizer_encode(const kr_tokenizer *t, const char *text, size_t n, uint32_t flags, kr_ids *ids) {
  const size_t good = kr_utf8_check(text, n);
  KR_CHECK(good == n, KRAIT_ERR_ARGUMENT, "the text is not UTF-8: byte 0x%02x at %zu; convert it to UTF-8",
           (unsigned char)text[good], good);
  return encode_around(t, text, n, 0, flags, ids);
}

/* ---- queries ---- */

int64_t kr_tokenizer_size(const kr_tokenizer *t) { return t->n_tokens; }

const char *kr_tokenizer_bytes(const kr_tokenizer *t, int32_t id, size_t *n) {
  const int is_token = id >= 0 && id < t->n_tokens && t->tokens[id].bytes;
  *n = is_token ? t->tokens[id].n : 0;
  return is_token ? t->tokens[id].bytes : "";
}

int kr_tokenizer_is_special(const kr_tokenizer *t, int32_t id) {
  return id >= 0 && id < t->n_tokens && t->tokens[id].is_special;
}

int32_t kr_tokenizer_find_added(const kr_tokenizer *t, const char *content) {
  for (int32_t i = 0; i < t->n_added; i++)
    if (strcmp(t->tokens[t->added[i].id].bytes, content) == 0) return t->added[i].id;
  return -1;
}

#ifdef KR_FUZZ
#include <stdio.h>
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Fuzz target, a tokenizer, a NUL, a text: an accepted tokenizer must reproduce the text if nothing normalizes it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const uint8_t *gap = memchr(data, 0, size);
  const size_t n = gap ? (size_t)(gap - data) : size, n_text = gap ? size - n - 1 : 0;
  kr_tokenizer *t = NULL;
  kr_ids ids = {0};
  const char *text = gap ? (const char *)gap + 1 : "";
  if (kr_tokenizer_open_memory(data, n, "fuzz", &t) >= 0 && kr_tokenizer_encode(t, text, n_text, 0, &ids) >= 0 &&
      !t->normalizes) {
    size_t at = 0;
    for (int64_t i = 0; i < ids.n; i++) {
      size_t length;
      const char *bytes = kr_tokenizer_bytes(t, ids.at[i], &length);
      if (length > n_text - at || memcmp(bytes, text + at, length) != 0) __builtin_trap();
      at += length;
    }
    if (at != n_text) __builtin_trap();
  }
  kr_ids_free(&ids);
  kr_tokenizer_close(&t);
  return 0;
}
#endif

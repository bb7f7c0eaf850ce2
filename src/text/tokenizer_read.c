/* tokenizer_read.c: reads tokenizer.json. */
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "mapfile.h"
#include "status.h"
#include "tokenizer_parts.h"
#include "utf8.h"

enum { MOST_TOKENS = 1 << 22, LONGEST_NAME = 4096, MOST_REPLACEMENTS = 4 };

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

/* ---- decoders: names to text ---- */

typedef struct decoder {
  int32_t is_byte_level, has_byte_fallback, n_replacements;
  const char *from[MOST_REPLACEMENTS], *to[MOST_REPLACEMENTS];
  int16_t byte_of[KR_BYTE_LETTERS];
} decoder;

static int32_t add_replacement(const kr_tokenizer *t, decoder *d, const char *from, const char *to) {
  FORMAT_CHECK(d->n_replacements < MOST_REPLACEMENTS && from && *from && to,
               "%s: its decoder's Replace is not supported", t->label);
  d->from[d->n_replacements] = from;
  d->to[d->n_replacements++] = to;
  return KRAIT_OK;
}

/* Fuse joins what is joined anyway; Strip is about the beginning and the end of a whole text. */
static int32_t read_decoder(const kr_tokenizer *t, const json_t *json, int depth, decoder *d) {
  const char *type = type_of(json), *mark = json_string_value(json_object_get(json, "replacement"));
  const json_t *item;
  size_t i;
  if (!json || json_is_null(json)) return KRAIT_OK;
  if (strcmp(type, "ByteLevel") == 0) return d->is_byte_level = 1, KRAIT_OK;
  if (strcmp(type, "ByteFallback") == 0) return d->has_byte_fallback = 1, KRAIT_OK;
  if (strcmp(type, "Fuse") == 0 || strcmp(type, "Strip") == 0) return KRAIT_OK;
  if (strcmp(type, "Metaspace") == 0) return add_replacement(t, d, mark ? mark : "\xe2\x96\x81", " ");
  if (strcmp(type, "Replace") == 0)
    return add_replacement(t, d, json_string_value(json_object_get(json_object_get(json, "pattern"), "String")),
                           json_string_value(json_object_get(json, "content")));
  FORMAT_CHECK(strcmp(type, "Sequence") == 0 && depth < 4,
               "%s: its decoder is '%.32s'; ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip and Sequences of "
               "them are supported",
               t->label, type);
  json_array_foreach(json_object_get(json, "decoders"), i, item) KR_TRY(read_decoder(t, item, depth + 1, d));
  return KRAIT_OK;
}

/* <0xE2> */
static int byte_in(const char *name, size_t n) {
  static const char digits[] = "0123456789ABCDEF";
  if (n != 6 || memcmp(name, "<0x", 3) != 0 || name[5] != '>') return -1;
  const char *high = memchr(digits, name[3], 16), *low = memchr(digits, name[4], 16);
  return high && low ? (int)((high - digits) * 16 + (low - digits)) : -1;
}

/* The text that a name stands for; out has room for LONGEST_NAME. */
static size_t decode_name(const decoder *d, const char *name, size_t n, char *out) {
  size_t used = 0;
  const int byte = d->has_byte_fallback ? byte_in(name, n) : -1;
  if (byte >= 0) return *out = (char)byte, 1;
  for (size_t at = 0; at < n;) {
    int k = 0;
    size_t n_from = 0;
    for (; k < d->n_replacements; k++) {
      n_from = strlen(d->from[k]);
      if (n - at >= n_from && memcmp(name + at, d->from[k], n_from) == 0) break;
    }
    const int is_replaced = k < d->n_replacements;
    const char *from = is_replaced ? d->to[k] : name + at;
    const size_t n_more = is_replaced ? strlen(from) : 1;
    if (used + n_more > LONGEST_NAME) break;
    memcpy(out + used, from, n_more);
    used += n_more;
    at += is_replaced ? n_from : 1;
  }
  return used;
}

/* ---- tokens ---- */

static int32_t put_token(kr_tokenizer *t, int32_t id, const char *name, const char *bytes, size_t n, int is_special) {
  kr_token *to = &t->tokens[id];
  FORMAT_CHECK(!to->name || strcmp(to->name, name) == 0 || (to->n == n && memcmp(to->bytes, bytes, n) == 0),
               "%s: two tokens have id %d", t->label, id);
  to->name = kr_arena_copy(t->arena, name, strlen(name));
  const size_t n_name = strlen(to->name);
  to->bytes = n == n_name && memcmp(name, bytes, n) == 0 ? to->name : kr_arena_copy(t->arena, bytes, n);
  to->n = (uint32_t)n, to->is_special = is_special;
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
  return kr_vocabulary_open((int64_t)json_object_size(vocab), &t->pieces);
}

/* Of bytes: a token is its bytes. Of characters: it is found by its name, and its text is what the decoder makes. */
static int32_t read_token(kr_tokenizer *t, const decoder *d, int32_t id, const char *name) {
  char bytes[LONGEST_NAME];
  const size_t n = strlen(name);
  size_t n_bytes = 0;
  FORMAT_CHECK(n <= sizeof bytes, "%s: a token of %zu bytes", t->label, n);
  if (!t->is_of_bytes) {
    const int byte = byte_in(name, n);
    KR_TRY(put_token(t, id, name, bytes, decode_name(d, name, n, bytes), 0));
    if (byte >= 0) t->byte_token[byte] = id;
    kr_vocabulary_add(t->pieces, t->tokens[id].name, n, id);
    return KRAIT_OK;
  }
  const int is_written = kr_bytes_unwrite(d->byte_of, name, n, bytes, &n_bytes);
  if (!is_written) return put_token(t, id, name, name, n, 0);
  KR_TRY(put_token(t, id, name, bytes, n_bytes, 0));
  if (n_bytes == 1) t->byte_token[(unsigned char)*bytes] = id;
  kr_vocabulary_add(t->pieces, t->tokens[id].bytes, n_bytes, id);
  return KRAIT_OK;
}

static int32_t read_vocabulary(kr_tokenizer *t, json_t *vocab, const decoder *d) {
  const char *name;
  json_t *value;
  int32_t id;
  for (int i = 0; i < 256; i++) t->byte_token[i] = -1;
  json_object_foreach(vocab, name, value) {
    KR_TRY(read_id(t, value, name, &id));
    KR_TRY(read_token(t, d, id, name));
  }
  for (int i = 0; t->is_of_bytes && i < 256; i++) /* bytes that never occur in UTF-8 may be missing */
    FORMAT_CHECK(t->byte_token[i] >= 0 || i == 0xc0 || i == 0xc1 || i > 0xf4,
                 "%s: its vocabulary has no token for byte 0x%02x", t->label, i);
  return KRAIT_OK;
}

/* "a b", or ["a", "b"]. */
static int32_t read_merge(kr_tokenizer *t, json_t *vocab, const json_t *merge, size_t index) {
  char left[LONGEST_NAME], merged[2 * LONGEST_NAME];
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
  static const char *const unsupported[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
  const json_t *model = json_object_get(root, "model");
  json_t *vocab = json_object_get(model, "vocab");
  const char *unknown = json_string_value(json_object_get(model, "unk_token"));
  decoder d = {0};
  FORMAT_CHECK(json_is_object(model) && (strcmp(type_of(model), "BPE") == 0 || !*type_of(model)),
               "%s: its model is '%.32s'; only byte pair encoding is supported", t->label, type_of(model));
  FORMAT_CHECK(json_is_object(vocab), "%s: its model has no vocabulary", t->label);
  for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
    FORMAT_CHECK(is_off(model, unsupported[i]), "%s: its model has %s, which is not supported", t->label,
                 unsupported[i]);
  t->has_byte_fallback = is_true(model, "byte_fallback");
  t->takes_whole_pieces = is_true(model, "ignore_merges");
  t->joins_unknown = is_true(model, "fuse_unk");
  t->unknown = -1;
  kr_byte_table(d.byte_of);
  KR_TRY(read_decoder(t, json_object_get(root, "decoder"), 0, &d));
  FORMAT_CHECK(!t->is_of_bytes || (!d.has_byte_fallback && !d.n_replacements),
               "%s: its decoder does not belong to a ByteLevel pre-tokenizer", t->label);
  FORMAT_CHECK(t->is_of_bytes || !d.is_byte_level, "%s: its decoder is ByteLevel, its pre-tokenizer is not", t->label);
  KR_TRY(count_tokens(t, vocab, added_tokens));
  KR_TRY(read_vocabulary(t, vocab, &d));
  if (unknown && !t->is_of_bytes) t->unknown = kr_vocabulary_find(t->pieces, unknown, strlen(unknown));
  FORMAT_CHECK(!unknown || t->is_of_bytes || t->unknown >= 0, "%s: its unk_token '%.64s' is not in the vocabulary",
               t->label, unknown);
  return read_merges(t, vocab, json_object_get(model, "merges"));
}

/* ---- added tokens ---- */

static int order_added(const void *a, const void *b) {
  const kr_added_token *x = a, *y = b;
  const int first = (unsigned char)*x->content - (unsigned char)*y->content;
  return first ? first : x->n != y->n ? (x->n < y->n ? 1 : -1) : x->id - y->id;
}

static int32_t read_added_token(kr_tokenizer *t, const json_t *item) {
  const char *content = json_string_value(json_object_get(item, "content"));
  char *normal = NULL;
  size_t n_normal;
  FORMAT_CHECK(content && *content, "%s: an added token without content", t->label);
  kr_added_token *a = &t->added[t->n_added];
  *a = (kr_added_token){.content = content,
                        .n = strlen(content),
                        .is_special = is_true(item, "special"),
                        .is_normalized = is_true(item, "normalized"),
                        .strips_left = is_true(item, "lstrip"),
                        .strips_right = is_true(item, "rstrip"),
                        .is_single_word = is_true(item, "single_word")};
  FORMAT_CHECK(a->n <= LONGEST_NAME, "%s: an added token of %zu bytes", t->label, a->n);
  KR_TRY(read_id(t, json_object_get(item, "id"), content, &a->id));
  KR_TRY(put_token(t, a->id, content, content, a->n, a->is_special));
  a->content = t->tokens[a->id].name;
  t->n_added++;
  if (!a->is_normalized) return KRAIT_OK;
  KR_TRY(kr_normalizer_apply(t->normalizer, content, a->n, &normal, &n_normal));
  if (normal) a->content = kr_arena_copy(t->arena, normal, n_normal), a->n = n_normal;
  kr_free(normal);
  FORMAT_CHECK(a->n, "%s: nothing is left of the added token '%.64s' when it is normalized", t->label, content);
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

/* ---- post-processors ---- */

/* The ids of a template's token, before or after the text. */
static int32_t add_template_token(kr_tokenizer *t, const json_t *post, const char *name, int is_after) {
  const json_t *ids = json_object_get(json_object_get(json_object_get(post, "special_tokens"), name), "ids"), *id;
  int32_t *to = is_after ? t->after : t->before, *n = is_after ? &t->n_after : &t->n_before;
  size_t i;
  FORMAT_CHECK(json_array_size(ids), "%s: its post-processor adds '%.64s', of which it has no ids", t->label, name);
  json_array_foreach(ids, i, id) {
    FORMAT_CHECK(*n < KR_MOST_TEMPLATE, "%s: its post-processor adds more than %d tokens", t->label, KR_MOST_TEMPLATE);
    KR_TRY(read_id(t, id, name, &to[*n]));
    FORMAT_CHECK(to[*n] < t->n_tokens, "%s: its post-processor adds token %d, which does not exist", t->label, to[*n]);
    (*n)++;
  }
  return KRAIT_OK;
}

static int32_t read_template(kr_tokenizer *t, const json_t *post) {
  const json_t *single = json_object_get(post, "single"), *part;
  int n_texts = 0;
  size_t i;
  FORMAT_CHECK(!t->n_before && !t->n_after, "%s: its post-processor has two templates", t->label);
  json_array_foreach(single, i, part) {
    const char *name = json_string_value(json_object_get(json_object_get(part, "SpecialToken"), "id"));
    if (name) KR_TRY(add_template_token(t, post, name, n_texts));
    else n_texts += json_object_get(part, "Sequence") ? 1 : 2;
  }
  FORMAT_CHECK(n_texts == 1, "%s: its post-processor is a template of unknown form", t->label);
  return KRAIT_OK;
}

/* A ByteLevel only changes offsets. */
static int32_t read_post_processor(kr_tokenizer *t, const json_t *post, int depth) {
  const json_t *item;
  size_t i;
  if (!post || json_is_null(post) || strcmp(type_of(post), "ByteLevel") == 0) return KRAIT_OK;
  if (strcmp(type_of(post), "TemplateProcessing") == 0) return read_template(t, post);
  FORMAT_CHECK(strcmp(type_of(post), "Sequence") == 0 && depth < 4,
               "%s: its post-processor is '%.32s'; ByteLevel, TemplateProcessing and Sequences of them are supported",
               t->label, type_of(post));
  json_array_foreach(json_object_get(post, "processors"), i, item) KR_TRY(read_post_processor(t, item, depth + 1));
  return KRAIT_OK;
}

/* ---- files ---- */

static int32_t read_tree(kr_tokenizer *t, const json_t *root) {
  const json_t *list = json_object_get(root, "added_tokens");
  FORMAT_CHECK(json_is_object(root), "%s: no tokenizer.json", t->label);
  KR_TRY(kr_normalizer_open(json_object_get(root, "normalizer"), t->label, &t->normalizer));
  KR_TRY(kr_pretokenizer_open(json_object_get(root, "pre_tokenizer"), t->label, &t->pretokenizer));
  t->is_of_bytes = kr_pretokenizer_is_of_bytes(t->pretokenizer);
  KR_TRY(read_model(t, root, list));
  KR_TRY(read_added(t, list));
  return read_post_processor(t, json_object_get(root, "post_processor"), 0);
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
  kr_normalizer_close(&t->normalizer);
  kr_pretokenizer_close(&t->pretokenizer);
  kr_vocabulary_close(&t->pieces);
  kr_bpe_close(&t->bpe);
  if (t->arena) kr_arena_close(&t->arena);
  kr_free(t->tokens);
  kr_free(t->added);
  kr_free(t);
  *tokenizer = NULL;
}

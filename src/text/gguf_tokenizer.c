/* gguf_tokenizer.c: tokenizer.ggml.* as tokenizer.json: llama.cpp has names for pre-tokenizers instead of expressions,
 * and of SentencePiece's models (tokenizer.ggml.model "llama") scores instead of merges. */
#include "gguf_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "arena.h"
#include "gguf.h"
#include "half.h"
#include "split.h"
#include "status.h"
#include "utf8.h"

enum { NORMAL = 1, UNKNOWN = 2, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 }; /* of token_type; the rest are special */
enum { MOST_NAME = 256 };

#define FORMAT_CHECK(condition, ...) KR_CHECK(condition, KRAIT_ERR_FILE_FORMAT, __VA_ARGS__)

static int is_text(const kr_gguf_value *v, const char *text) {
  uint64_t at = 0;
  size_t n;
  const char *found = kr_gguf_text(v, &at, &n);
  return found && n == strlen(text) && memcmp(found, text, n) == 0;
}

/* ---- pre-tokenizers ---- */

/* llama.cpp's names; DIGITS: each digit alone, then GPT-2's rule; FALCON: that of FalconMamba's tokenizer.json. */
enum { DIGITS = 1000, FALCON };
typedef struct pre {
  const char *name;
  int32_t rule, composes, takes_whole_pieces, begins; /* NFC; ignore_merges; a token for the beginning, if the file does
                                                         not say */
} pre;
static const pre pres[] = {{"gpt-2", KR_SPLIT_GPT2, 0, 0, 0},       {"mpt", KR_SPLIT_GPT2, 1, 0, 0},
                           {"olmo", KR_SPLIT_GPT2, 1, 0, 0},        {"gpt-neox", KR_SPLIT_GPT2, 1, 0, 0},
                           {"qwen2", KR_SPLIT_QWEN2, 1, 0, 0},      {"qwen35", KR_SPLIT_QWEN35, 1, 0, 0},
                           {"llama-bpe", KR_SPLIT_LLAMA3, 0, 1, 1}, {"llama3", KR_SPLIT_LLAMA3, 0, 1, 1},
                           {"falcon-h1", KR_SPLIT_LLAMA3, 0, 1, 1}, {"falcon3", KR_SPLIT_LLAMA3, 0, 1, 1},
                           {"lfm2", KR_SPLIT_LLAMA3, 0, 1, 1},      {"dbrx", KR_SPLIT_LLAMA3, 0, 0, 0},
                           {"smaug-bpe", KR_SPLIT_LLAMA3, 0, 0, 0}, {"tekken", KR_SPLIT_TEKKEN, 0, 1, 1},
                           {"gpt-4o", KR_SPLIT_O200K, 0, 0, 0},     {"llama4", KR_SPLIT_O200K, 0, 0, 0},
                           {"refact", DIGITS, 0, 0, 0},             {"starcoder", DIGITS, 0, 0, 0},
                           {"smollm", DIGITS, 0, 0, 0},             {"falcon", FALCON, 0, 0, 0}};
enum { N_PRES = sizeof pres / sizeof *pres };

static const pre *pre_of(const char *name, size_t n) {
  for (int i = 0; i < N_PRES; i++)
    if (strlen(pres[i].name) == n && memcmp(pres[i].name, name, n) == 0) return &pres[i];
  return NULL;
}

static int32_t find_pre(const kr_gguf *g, const pre **found) {
  const int is_qwen2 = is_text(kr_gguf_find(g, "general.architecture"), "qwen2");
  const kr_gguf_value *v = kr_gguf_find(g, "tokenizer.ggml.pre");
  uint64_t at = 0;
  size_t n = 0, used = 0;
  char names[MOST_NAME] = "";
  const char *name = v ? kr_gguf_text(v, &at, &n) : is_qwen2 ? "qwen2" : "gpt-neox";
  if (!name) name = "";
  *found = pre_of(name, v ? n : strlen(name));
  if (*found) return KRAIT_OK;
  for (int i = 0; i < N_PRES; i++)
    used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", pres[i].name);
  return kr_fail(KRAIT_ERR_UNSUPPORTED,
                 "%s: its tokenizer.ggml.pre is '%.*s'; only %s are supported: give a tokenizer with --tokenizer",
                 g->label, (int)(n < 40 ? n : 40), name, names);
}

static json_t *split_json(const char *pattern) {
  return json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", pattern, "behavior", "Isolated",
                   "invert", 0);
}

static json_t *level_json(int has_rule) {
  return json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", has_rule);
}

static json_t *pre_json(const pre *p) {
  json_t *steps;
  if (p->rule == KR_SPLIT_GPT2) return level_json(1);
  if (p->rule == DIGITS)
    steps = json_pack("[{s:s, s:b}, o]", "type", "Digits", "individual_digits", 1, level_json(1));
  else if (p->rule == FALCON)
    steps = json_pack("[{s:s, s:s}, o, {s:s, s:b}, o]", "type", "Punctuation", "behavior", "Contiguous", level_json(1),
                      "type", "Digits", "individual_digits", 0, split_json("[0-9][0-9][0-9]"));
  else
    steps = json_pack("[o, o]", split_json(kr_split_pattern(p->rule)), level_json(0));
  return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps);
}

/* ---- tokens ---- */

/* Every token as one of the vocabulary, or as an added one. */
static int32_t add_tokens(const kr_gguf *g, json_t *vocab, json_t *added) {
  const kr_gguf_value *tokens = kr_gguf_find(g, "tokenizer.ggml.tokens"),
                      *type = kr_gguf_find(g, "tokenizer.ggml.token_type");
  uint64_t at = 0;
  size_t n;
  FORMAT_CHECK(tokens && kr_gguf_text(tokens, &(uint64_t){0}, &n),
               "%s: it has no tokenizer.ggml.tokens; give a tokenizer with --tokenizer", g->label);
  FORMAT_CHECK(
      !type || (type->type == 9 && type->count == tokens->count && (type->item_type == 4 || type->item_type == 5)),
      "%s: tokenizer.ggml.token_type is not a list of %llu whole numbers", g->label, (unsigned long long)tokens->count);
  for (uint64_t i = 0; i < tokens->count; i++) {
    const char *text = kr_gguf_text(tokens, &at, &n);
    const int kind = type ? type->at[4 * i] : NORMAL, is_word = kind == NORMAL || kind == BYTE;
    if (kind == UNUSED) continue;
    json_t *name = memchr(text, 0, n) ? NULL : json_stringn(text, n);
    FORMAT_CHECK(name, "%s: token %llu is not UTF-8", g->label, (unsigned long long)i);
    int failed = (is_word || kind == UNKNOWN) &&
                 json_object_set_new(vocab, json_string_value(name), json_integer((json_int_t)i));
    if (!is_word)
      failed |=
          json_array_append_new(added, json_pack("{s:I, s:O, s:b, s:b}", "id", (json_int_t)i, "content", name,
                                                 "special", kind != USER_DEFINED, "normalized", kind == USER_DEFINED));
    json_decref(name);
    KR_CHECK(!failed, KRAIT_ERR_NO_MEMORY, "%s: no memory for its tokens", g->label);
  }
  return KRAIT_OK;
}

static int32_t add_merges(const kr_gguf *g, json_t *merges) {
  const kr_gguf_value *v = kr_gguf_find(g, "tokenizer.ggml.merges");
  uint64_t at = 0;
  size_t n;
  FORMAT_CHECK(
      v && v->item_type == 8,
      "%s: it has no tokenizer.ggml.merges; only byte pair encoding is supported: give a tokenizer with --tokenizer",
      g->label);
  for (uint64_t i = 0; i < v->count; i++) {
    const char *text = kr_gguf_text(v, &at, &n);
    json_t *merge = json_stringn(text, n);
    FORMAT_CHECK(merge, "%s: merge %llu is not UTF-8", g->label, (unsigned long long)i);
    KR_CHECK(json_array_append_new(merges, merge) == 0, KRAIT_ERR_NO_MEMORY, "%s: no memory for its merges", g->label);
  }
  return KRAIT_OK;
}

/* ---- SentencePiece: merges from scores ---- */

typedef struct pair {
  const char *left, *right; /* of the arena */
  float score;              /* of the token that they make */
  int64_t left_id, right_id;
} pair;

/* As the original library does it: better scores first, then longer parts, then lower tokens. */
static int order_pairs(const void *a, const void *b) {
  const pair *x = a, *y = b;
  if (x->score != y->score) return x->score > y->score ? -1 : 1;
  const size_t left[] = {strlen(x->left), strlen(y->left)}, right[] = {strlen(x->right), strlen(y->right)};
  if (left[0] != left[1]) return left[0] > left[1] ? -1 : 1;
  if (right[0] != right[1]) return right[0] > right[1] ? -1 : 1;
  if (x->left_id != y->left_id) return x->left_id < y->left_id ? -1 : 1;
  return x->right_id < y->right_id ? -1 : x->right_id > y->right_id;
}

static int32_t add_pairs(const json_t *vocab, const char *name, float score, kr_arena *arena, kr_list *pairs) {
  char left[MOST_NAME];
  const size_t n = strlen(name);
  if (n >= sizeof left) return KRAIT_OK;
  for (size_t at = 0; at < n;) {
    const int length = kr_utf8_read(name + at, n - at, NULL);
    at += length ? (size_t)length : 1;
    memcpy(left, name, at);
    left[at] = 0;
    const json_t *left_id = json_object_get(vocab, left), *right_id = at < n ? json_object_get(vocab, name + at) : NULL;
    if (!left_id || !right_id) continue;
    pair *p = kr_list_push(arena, pairs);
    *p = (pair){kr_arena_copy(arena, left, at), kr_arena_copy(arena, name + at, n - at), score,
                json_integer_value(left_id), json_integer_value(right_id)};
    KR_CHECK(!kr_arena_failed(arena), KRAIT_ERR_NO_MEMORY, "no memory for the merges of a vocabulary");
  }
  return KRAIT_OK;
}

static int32_t collect_pairs(const kr_gguf *g, json_t *vocab, kr_arena *arena, kr_list *pairs) {
  const kr_gguf_value *scores = kr_gguf_find(g, "tokenizer.ggml.scores");
  const char *name;
  json_t *id;
  FORMAT_CHECK(scores && scores->type == 9 && scores->item_type == 6,
               "%s: it has no tokenizer.ggml.scores; give a tokenizer with --tokenizer", g->label);
  json_object_foreach(vocab, name, id) {
    const uint64_t i = (uint64_t)json_integer_value(id);
    uint32_t bits = 0;
    FORMAT_CHECK(i < scores->count, "%s: token %llu has no score", g->label, (unsigned long long)i);
    for (int k = 0; k < 4; k++) bits |= (uint32_t)scores->at[4 * i + (uint64_t)k] << 8 * k;
    const float score = kr_bits_float(bits);
    FORMAT_CHECK(score == score, "%s: the score of token %llu is not a number", g->label, (unsigned long long)i);
    KR_TRY(add_pairs(vocab, name, score, arena, pairs));
  }
  return KRAIT_OK;
}

static int32_t add_scored_merges(const kr_gguf *g, json_t *vocab, json_t *merges) {
  kr_arena *arena = kr_arena_open();
  kr_list pairs = KR_LIST(pair);
  int32_t status = arena ? collect_pairs(g, vocab, arena, &pairs)
                         : kr_fail(KRAIT_ERR_NO_MEMORY, "%s: no memory for its merges", g->label);
  if (status >= 0 && pairs.n) qsort(pairs.at, pairs.n, sizeof(pair), order_pairs);
  for (size_t i = 0; status >= 0 && i < pairs.n; i++) {
    const pair *p = KR_AT(pairs, pair, i);
    if (json_array_append_new(merges, json_pack("[s, s]", p->left, p->right)) != 0)
      status = kr_fail(KRAIT_ERR_NO_MEMORY, "%s: no memory for its merges", g->label);
  }
  if (arena) kr_arena_close(&arena);
  return status;
}

/* ---- the whole ---- */

static int flag_of(const kr_gguf *g, const char *key, int fallback) {
  int64_t value = fallback;
  return kr_gguf_whole(kr_gguf_find(g, key), &value) ? value != 0 : fallback;
}

/* A template that puts the token for the beginning before every text; null without one. */
static json_t *template_json(const kr_gguf *g, int begins) {
  int64_t bos = -1;
  if (!flag_of(g, "tokenizer.ggml.add_bos_token", begins) ||
      !kr_gguf_whole(kr_gguf_find(g, "tokenizer.ggml.bos_token_id"), &bos))
    return json_null();
  return json_pack("{s:s, s:[{s:{s:s}}, {s:{s:s}}], s:{s:{s:s, s:[I]}}}", "type", "TemplateProcessing", "single",
                   "SpecialToken", "id", "bos", "Sequence", "id", "A", "special_tokens", "bos", "id", "bos", "ids",
                   (json_int_t)bos);
}

static int32_t make_of_bytes(const kr_gguf *g, json_t **tokenizer, json_t *vocab, json_t *merges, json_t *added) {
  const pre *p;
  KR_TRY(find_pre(g, &p));
  *tokenizer =
      json_pack("{s:o, s:o, s:o, s:{s:s, s:b, s:O, s:O}, s:O}", "normalizer",
                p->composes ? json_pack("{s:s}", "type", "NFC") : json_null(), "pre_tokenizer", pre_json(p),
                "post_processor", template_json(g, p->begins), "model", "type", "BPE", "ignore_merges",
                p->takes_whole_pieces, "vocab", vocab, "merges", merges, "added_tokens", added);
  KR_TRY(add_tokens(g, vocab, added));
  return add_merges(g, merges);
}

static int32_t make_of_characters(const kr_gguf *g, json_t **tokenizer, json_t *vocab, json_t *merges,
                                  json_t *added) {
  static const char mark[] = "\xe2\x96\x81";
  json_t *changes = json_array();
  int failed = flag_of(g, "tokenizer.ggml.add_space_prefix", 1) &&
               json_array_append_new(changes, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", mark));
  failed |= json_array_append_new(
      changes, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", " ", "content", mark));
  *tokenizer = failed ? NULL
                      : json_pack("{s:{s:s, s:O}, s:o, s:{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]}, s:{s:s, s:b, "
                                  "s:b, s:O, s:O}, s:O}",
                                  "normalizer", "type", "Sequence", "normalizers", changes, "post_processor",
                                  template_json(g, 1), "decoder", "type", "Sequence", "decoders", "type", "Replace",
                                  "pattern", "String", mark, "content", " ", "type", "ByteFallback", "type", "Fuse",
                                  "model", "type", "BPE", "byte_fallback", 1, "fuse_unk", 1, "vocab", vocab, "merges",
                                  merges, "added_tokens", added);
  json_decref(changes);
  KR_TRY(add_tokens(g, vocab, added));
  return add_scored_merges(g, vocab, merges);
}

static int32_t make_tokenizer(const kr_gguf *g, json_t **tokenizer) {
  const kr_gguf_value *model = kr_gguf_find(g, "tokenizer.ggml.model");
  const int is_of_bytes = is_text(model, "gpt2");
  FORMAT_CHECK(is_of_bytes || is_text(model, "llama"),
               "%s: its tokenizer.ggml.model is not 'gpt2' or 'llama', which are supported: give a tokenizer with "
               "--tokenizer",
               g->label);
  json_t *vocab = json_object(), *merges = json_array(), *added = json_array();
  int32_t status = (is_of_bytes ? make_of_bytes : make_of_characters)(g, tokenizer, vocab, merges, added);
  if (status >= 0 && !*tokenizer) status = kr_fail(KRAIT_ERR_NO_MEMORY, "%s: no memory for its tokenizer", g->label);
  json_decref(vocab), json_decref(merges), json_decref(added);
  if (status < 0) json_decref(*tokenizer), *tokenizer = NULL;
  return status;
}

int32_t kr_gguf_tokenizer(const unsigned char *bytes, size_t n_bytes, const char *label, json_t **tokenizer) {
  kr_gguf g;
  *tokenizer = NULL;
  KR_TRY(kr_gguf_open(bytes, n_bytes, label, &g));
  const int32_t status = make_tokenizer(&g, tokenizer);
  kr_gguf_close(&g);
  return status;
}

#ifdef KR_FUZZ
#include "tokenizer.h"
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Fuzz target: the tokenizer of a GGUF file, which is then opened. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  json_t *tree = NULL;
  kr_tokenizer *t = NULL;
  if (kr_gguf_tokenizer(data, size, "fuzz", &tree) < 0) return 0;
  kr_tokenizer_open_tree(tree, "fuzz", &t);
  kr_tokenizer_close(&t);
  json_decref(tree);
  return 0;
}
#endif

/* tokenizer.c: UTF-8 in pieces, NFC, pre-tokenization, merges, added tokens, the chat template, errors; the recorded
 * texts of every form of tokenizer, and a round trip over a mebibyte of random Unicode. */
#include "../test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "alloc.h"
#include "chat.h"
#include "gguf_tokenizer.h"
#include "split.h"
#include "status.h"
#include "tokenizer.h"
#include "unicode.h"
#include "utf8.h"

/* ---- UTF-8 ---- */

static void bytes_become_whole_characters(void **state) {
  static const char in[] =
      "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \x80\xe2\x82z\xf0\x9f\x98\xc3\xa9\xed\xa0\x80\xc0\xff";
  static const char want[] =
      "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 "
      "\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd";
  (void)state;
  for (size_t piece = 1; piece < sizeof in; piece++) {
    char out[300];
    size_t n = 0;
    kr_utf8_stream stream = {0};
    for (size_t i = 0; i < sizeof in - 1; i += piece)
      n += kr_utf8_push(&stream, in + i, i + piece < sizeof in ? piece : sizeof in - 1 - i, out + n);
    n += kr_utf8_end(&stream, out + n);
    assert_int_equal(n, sizeof want - 1);
    assert_memory_equal(out, want, n);
  }
  kr_utf8_stream stream = {0};
  char out[32];
  assert_int_equal(kr_utf8_push(&stream, "\xf0\x9f", 2, out), 0);
  assert_int_equal(kr_utf8_end(&stream, out), 3);
  assert_int_equal(kr_utf8_end(&stream, out), 0);
}

static void assert_nfc(const char *text, const char *want) {
  char *normal = NULL;
  size_t n = strlen(text);
  assert_int_equal(kr_normalize(KR_FORM_C, text, strlen(text), &normal, &n), KRAIT_OK);
  assert_int_equal(normal ? n : strlen(text), strlen(want));
  assert_memory_equal(normal ? normal : text, want, strlen(want));
  kr_free(normal);
}

static void form_c(void **state) {
  (void)state;
  assert_nfc("caf\xc3\xa9", "caf\xc3\xa9");
  assert_nfc("cafe\xcc\x81", "caf\xc3\xa9");
  assert_nfc("a\xcc\x81\xcc\xa3", "\xe1\xba\xa1\xcc\x81");          /* dot below before acute */
  assert_nfc("\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c"); /* Hangul */
  assert_nfc("\xed\x95\x9c\xe1\x86\xa7z", "\xed\x95\x9c\xe1\x86\xa7z"); /* U+11A7 is no final consonant */
  assert_nfc("\xea\xb0\x80\xe1\x86\xa7\xe1\x86\xa8\xcc\x81", "\xea\xb0\x80\xe1\x86\xa7\xe1\x86\xa8\xcc\x81");
  assert_nfc("\xe2\x84\xa6\xe0\xa5\x98", "\xce\xa9\xe0\xa4\x95\xe0\xa4\xbc"); /* Ohm; a composition exclusion */
}

/* A run of marks must not take quadratic time. */
static void long_runs_of_marks(void **state) {
  enum { N = 200000 };
  char *text = malloc(4 * N), *normal = NULL;
  size_t n = 0, n_normal = 0;
  (void)state;
  for (int i = 0; i < N; i++) memcpy(text + n, i % 2 ? "\xcc\xa3" : "\xcc\x81", 2), n += 2;
  const clock_t start = clock();
  assert_int_equal(kr_normalize(KR_FORM_C, text, n, &normal, &n_normal), KRAIT_OK);
  assert_int_equal(n_normal, n);
  assert_memory_equal(normal, "\xcc\xa3\xcc\xa3", 4);
  assert_memory_equal(normal + n - 4, "\xcc\x81\xcc\x81", 4);
  assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 2);
  kr_free(normal);
  free(text);
}

/* ---- pre-tokenization ---- */

/* want: the pieces separated by '|'. */
static void assert_cut(int32_t rule, const char *text, const char *want) {
  char got[400];
  size_t n = strlen(text), used = 0;
  for (size_t from = 0, to; from < n; from = to) {
    to = kr_split_next(rule, text, n, from);
    if (to <= from || to > n) fail_msg("a piece of '%s' from %zu to %zu", text, from, to);
    used += (size_t)snprintf(got + used, sizeof got - used, "%s%.*s", from ? "|" : "", (int)(to - from), text + from);
  }
  assert_string_equal(got, want);
}

static void cuts(void **state) {
  (void)state;
  assert_cut(KR_SPLIT_GPT2, "It's we've 'S don't", "It|'s| we|'ve| '|S| don|'t");
  assert_cut(KR_SPLIT_GPT2, "a  b   ", "a| | b|   ");
  assert_cut(KR_SPLIT_GPT2, "x1234 56!?\n\n y", "x|1234| 56|!?|\n\n| y");
  assert_cut(KR_SPLIT_GPT2, "\t\tx \xc3\xa9t\xc3\xa9\xc2\xa0z", "\t|\t|x| \xc3\xa9t\xc3\xa9|\xc2\xa0|z");
  assert_cut(KR_SPLIT_QWEN2, "It'S WE'VE x1234 56", "It|'S| WE|'VE| x|1|2|3|4| |5|6");
  assert_cut(KR_SPLIT_QWEN2, "a!!\n\nb \n \n  c\t\td", "a|!!\n\n|b| \n \n| | c|\t|\td");
  assert_cut(KR_SPLIT_QWEN2, "(word) #+-\r\n x", "(word|)| #+-\r\n| x");
  assert_cut(KR_SPLIT_QWEN2, "  \n", "  \n");
  assert_cut(KR_SPLIT_QWEN2, "'\xc5\xbf" "a", "'\xc5\xbf|a");
  assert_cut(KR_SPLIT_QWEN2, " \xcc\x81" "a", " \xcc\x81|a");
  assert_cut(KR_SPLIT_LLAMA3, "x12345 It'S", "x|123|45| It|'S");
  assert_cut(KR_SPLIT_QWEN35, " \xcc\x81" "a\xcc\x81 12", " \xcc\x81" "a\xcc\x81| |1|2");
  assert_cut(KR_SPLIT_TEKKEN, "HTTPServer fooBar ABC It's a//\n", "HTTPServer| foo|Bar| ABC| It|'s| a|//\n");
  assert_cut(KR_SPLIT_TEKKEN, "!\xcc\x81" "A \xe6\xb5\xb7x\xe6\xb5\xb7", "!\xcc\x81|A| \xe6\xb5\xb7x\xe6\xb5\xb7");
  assert_cut(KR_SPLIT_O200K, "fooBar's WE'VE 1234", "foo|Bar's| WE'VE| |123|4");
}

/* As the original library has it: by Unicode 8, whatever came or changed since. */
static void punctuation_of_unicode_8(void **state) {
  static const uint32_t is[] = {'!', '$', '~', 0xa1, 0x2019, 0x166d, 0x111c9, 0x3002, 0x1da8b},
                        is_not[] = {'0', 'a', ' ', 0xa0, 0xa6, 0xa2, 0x61d, 0xa76, 0x2e43, 0x1e95e, 0x1da8c, 0x10ffff};
  (void)state;
  for (size_t i = 0; i < sizeof is / sizeof *is; i++) assert_true(kr_is_punctuation(is[i]));
  for (size_t i = 0; i < sizeof is_not / sizeof *is_not; i++) assert_false(kr_is_punctuation(is_not[i]));
}

/* ---- a small tokenizer ---- */

typedef struct options {
  const char *normalizer, *pre, *merges, *added, *drop, *post, *model;
} options;

static void add_char(char *to, int byte, int *more) {
  const int prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  to[kr_utf8_write((uint32_t)(prints ? byte : (*more)++), to)] = 0;
}

/* The 256 bytes as tokens 0 to 255, then the given tokens. */
static char *make(const options *o) {
  char *text = malloc(20000), one[8];
  int more = 256,
      used = sprintf(text,
                     "{\"normalizer\": %s, \"pre_tokenizer\": %s, \"post_processor\": %s, \"added_tokens\": [%s], "
                     "\"model\": {%s \"vocab\": {",
                     o->normalizer ? o->normalizer : "null",
                     o->pre ? o->pre : "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}",
                     o->post ? o->post : "null", o->added ? o->added : "", o->model ? o->model : "\"type\": \"BPE\",");
  for (int byte = 0; byte < 256; byte++) {
    add_char(one, byte, &more);
    if (o->drop && strcmp(one, o->drop) == 0) continue;
    used += sprintf(text + used, "\"%s%s\": %d, ", *one == '"' || *one == '\\' ? "\\" : "", one, byte);
  }
  sprintf(text + used, "\"ab\": 256, \"abab\": 257, \"bc\": 258, \"aa\": 259, \"aaa\": 260}, \"merges\": %s}}",
          o->merges ? o->merges : "[\"a b\", \"ab ab\", [\"b\", \"c\"], \"a a\", \"aa a\"]");
  return text;
}

static int32_t open_made(const options *o, kr_tokenizer **t) {
  char *text = make(o);
  const int32_t status = kr_tokenizer_open_memory(text, strlen(text), "made", t);
  free(text);
  return status;
}

static void assert_ids(const kr_tokenizer *t, const char *text, uint32_t flags, int n, const int32_t *want) {
  kr_ids ids = {0};
  assert_int_equal(kr_tokenizer_encode(t, text, strlen(text), flags, &ids), KRAIT_OK);
  assert_int_equal(ids.n, n);
  assert_memory_equal(ids.at, want, (size_t)n * sizeof *want);
  kr_ids_free(&ids);
}
#define IDS(t, text, flags, ...) \
  assert_ids(t, text, flags, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), (int32_t[]){__VA_ARGS__})

static void merges_by_rank(void **state) {
  kr_tokenizer *t;
  (void)state;
  assert_int_equal(open_made(&(options){0}, &t), KRAIT_OK);
  IDS(t, "ababab", 0, 257, 256);
  IDS(t, "abc", 0, 256, 'c');
  IDS(t, "aaaa", 0, 259, 259); /* both pairs of letters before aa a */
  IDS(t, "aaa", 0, 260);
  IDS(t, "aab", 0, 'a', 256);
  IDS(t, "bcab", 0, 258, 256);
  IDS(t, "\xc3\xa9", 0, 0xc3, 0xa9);
  kr_ids ids = {0};
  assert_int_equal(kr_tokenizer_encode(t, "ab\xff", 3, 0, &ids), KRAIT_ERR_ARGUMENT);
  assert_non_null(strstr(krait_error_detail(), "not UTF-8: byte 0xff at 2"));
  kr_ids_free(&ids);
  kr_tokenizer_close(&t);
}

static void a_pair_that_comes_twice(void **state) {
  kr_tokenizer *t;
  (void)state;
  assert_int_equal(open_made(&(options){.merges = "[\"a b\", \"b c\", \"a b\"]"}, &t), KRAIT_OK);
  IDS(t, "abc", 0, 'a', 258);
  kr_tokenizer_close(&t);
}

#define ADDED(content, id, special, normalized) \
  "{\"id\": " #id ", \"content\": \"" content "\", \"special\": " #special ", \"normalized\": " #normalized "}"

static void added_tokens_come_first(void **state) {
  kr_tokenizer *t;
  size_t n;
  (void)state;
  assert_int_equal(
      open_made(&(options){.normalizer = "{\"type\": \"NFC\"}",
                           .added = ADDED("<|end|>", 300, true, false) "," ADDED("  ", 301, false, true) "," ADDED(
                               "   ", 302, false, true) "," ADDED("\xc3\xa9!", 303, false, true)},
                &t),
      KRAIT_OK);
  IDS(t, "a<|end|>b", 0, 'a', 300, 'b');
  IDS(t, "a<|end|>", KR_ENCODE_PLAIN, 'a', '<', '|', 'e', 'n', 'd', '|', '>');
  IDS(t, "   b", 0, 302, 'b');
  IDS(t, "     b", 0, 302, 301, 'b');
  IDS(t, "e\xcc\x81!", 0, 303); /* after normalisation */
  assert_int_equal(kr_tokenizer_find_added(t, "<|end|>"), 300);
  assert_int_equal(kr_tokenizer_find_added(t, "ab"), -1);
  assert_true(kr_tokenizer_is_special(t, 300) && !kr_tokenizer_is_special(t, 301) && !kr_tokenizer_is_special(t, 256) &&
              !kr_tokenizer_is_special(t, 9999));
  assert_string_equal(kr_tokenizer_bytes(t, 257, &n), "abab");
  kr_tokenizer_bytes(t, 299, &n);
  assert_int_equal(n, 0);
  kr_tokenizer_bytes(t, -1, &n);
  assert_int_equal(n, 0);
  assert_int_equal(kr_tokenizer_size(t), 304);
  kr_tokenizer_close(&t);
}

#define SEQUENCE "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}"
#define TEMPLATE(single) "{\"type\": \"TemplateProcessing\", \"single\": [" single "], \"special_tokens\": {}}"

static void a_template_that_adds_nothing(void **state) {
  kr_tokenizer *t;
  (void)state;
  assert_int_equal(open_made(&(options){.post = TEMPLATE(SEQUENCE)}, &t), KRAIT_OK);
  IDS(t, "abc", 0, 256, 'c');
  kr_tokenizer_close(&t);
}

#define SPLIT(regex, behavior)                                                                                     \
  "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" regex "\"}, "   \
  "\"behavior\": \"" behavior "\"}, {\"type\": \"ByteLevel\", \"use_regex\": false}]}"

/* What an expression does not support, by status: the library that reads it may be missing. */
static void unsupported_expressions(void **state) {
  static const char *const expressions[] = {SPLIT("\\\\w+", "Isolated"), SPLIT("a\\\\b", "Isolated"),
                                            SPLIT("[a-z&&[^b]]", "Isolated"), SPLIT("x[[:alpha:]]", "Isolated")};
  kr_tokenizer *t;
  (void)state;
  for (size_t i = 0; i < sizeof expressions / sizeof *expressions; i++) {
    assert_int_equal(open_made(&(options){.pre = expressions[i]}, &t), KRAIT_ERR_UNSUPPORTED);
    assert_non_null(strstr(krait_error_detail(), "is not supported"));
  }
}

/* An expression without an end of its work is an error, not a hang. */
static void endless_expressions(void **state) {
  enum { N = 200 };
  kr_tokenizer *t;
  kr_ids ids = {0};
  char text[N];
  (void)state;
  memset(text, 'a', N);
  text[N - 1] = '!';
  assert_int_equal(open_made(&(options){.pre = SPLIT("(?:a|a)+$", "Isolated")}, &t), KRAIT_OK);
  assert_int_equal(kr_tokenizer_encode(t, text, N, 0, &ids), KRAIT_ERR_UNSUPPORTED);
  assert_non_null(strstr(krait_error_detail(), "takes too many steps"));
  kr_ids_free(&ids);
  kr_tokenizer_close(&t);
}

static void refusals(void **state) {
  static const struct {
    options o;
    const char *words;
  } cases[] = {
      {{.merges = "null"}, "no merges"},
      {{.merges = "[\"ab\"]"}, "merge 0 is not a pair"},
      {{.merges = "[\"a b\", \"a z\"]"}, "merge 1 names 'az'"},
      {{.drop = "a", .merges = "[]"}, "no token for byte 0x61"},
      {{.model = "\"type\": \"Unigram\","}, "its model is 'Unigram'"},
      {{.model = "\"dropout\": 0.1,"}, "its model has dropout"},
      {{.normalizer = "{\"type\": \"BertNormalizer\"}"}, "its normalizer is 'BertNormalizer'; NFC, "},
      {{.normalizer = "{\"type\": \"Replace\", \"pattern\": {\"String\": \"\"}, \"content\": \"a\"}"},
       "replaces an empty text"},
      {{.pre = "{\"type\": \"UnicodeScripts\"}"}, "its pre-tokenizer is 'UnicodeScripts'; ByteLevel, "},
      {{.pre = "{\"type\": \"Metaspace\", \"prepend_scheme\": \"last\"}"}, "unknown prepend_scheme 'last'"},
      {{.pre = SPLIT("x+", "Sideways")}, "unknown behavior 'Sideways'"},
      {{.pre = SPLIT("", "Isolated")}, "an empty expression"},
      {{.pre = SPLIT("(x", "Isolated")}, "the expression (x: missing closing parenthesis"},
      {{.post = "{\"type\": \"TemplateProcessing\"}"}, "a template of unknown form"},
      {{.post = "{\"type\": \"BertProcessing\", \"single\": [" SEQUENCE "]}"},
       "its post-processor is 'BertProcessing'"},
      {{.post = TEMPLATE("{\"SpecialToken\": {\"id\": \"<s>\"}}, " SEQUENCE)}, "adds '<s>', of which it has no ids"},
      {{.post = TEMPLATE(SEQUENCE ", " SEQUENCE)}, "a template of unknown form"},
      {{.added = ADDED("x", 300, false, false) "," ADDED("y", 300, false, false)}, "two tokens have id 300"},
      {{.added = ADDED("x", -1, false, false)}, "no id"},
      {{.added = ADDED("", 300, false, false)}, "without content"},
  };
  kr_tokenizer *t;
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(open_made(&cases[i].o, &t), KRAIT_ERR_FILE_FORMAT);
    assert_null(t);
    if (!strstr(krait_error_detail(), cases[i].words))
      fail_msg("'%s' lacks '%s'", krait_error_detail(), cases[i].words);
  }
  assert_int_equal(kr_tokenizer_open_memory("[", 1, "made", &t), KRAIT_ERR_FILE_FORMAT);
  assert_int_equal(kr_tokenizer_open_memory("[]", 2, "made", &t), KRAIT_ERR_FILE_FORMAT);
  assert_int_equal(kr_tokenizer_open("/nowhere/tokenizer.json", &t), KRAIT_ERR_FILE_OPEN);
}

/* Parts that each make 64 letters of one. */
static void a_normalizer_that_grows(void **state) {
  enum { PARTS = 5 };
  char many[80], normalizer[PARTS * 160];
  size_t n = (size_t)snprintf(normalizer, sizeof normalizer, "{\"type\": \"Sequence\", \"normalizers\": [");
  kr_tokenizer *t;
  kr_ids ids = {0};
  (void)state;
  memset(many, 'a', 64), many[64] = 0;
  for (int i = 0; i < PARTS; i++)
    n += (size_t)snprintf(normalizer + n, sizeof normalizer - n,
                          "%s{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"%s\"}",
                          i ? ", " : "", many);
  snprintf(normalizer + n, sizeof normalizer - n, "]}");
  assert_int_equal(open_made(&(options){.normalizer = normalizer}, &t), KRAIT_OK);
  assert_int_equal(kr_tokenizer_encode(t, "aaaa", 4, 0, &ids), KRAIT_ERR_FILE_FORMAT);
  assert_non_null(strstr(krait_error_detail(), "normalizer makes a text more than 64 times as long"));
  kr_ids_free(&ids);
  kr_tokenizer_close(&t);
}

/* One piece of 2^20 letters, much faster than a quadratic merge. */
static void a_long_word(void **state) {
  enum { N = 1 << 20 };
  kr_tokenizer *t;
  kr_ids ids = {0};
  char *text = malloc(N);
  (void)state;
  memset(text, 'a', N);
  assert_int_equal(open_made(&(options){0}, &t), KRAIT_OK);
  const clock_t start = clock();
  assert_int_equal(kr_tokenizer_encode(t, text, N, 0, &ids), KRAIT_OK);
  assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 10);
  assert_int_equal(ids.n, N / 2);
  assert_int_equal(ids.at[0], 259);
  kr_ids_free(&ids);
  kr_tokenizer_close(&t);
  free(text);
}

/* ---- the recorded texts ---- */

static json_t *golden_json(const char *folder, const char *name) {
  char path[1000];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return json_load_file(path, JSON_ALLOW_NUL, NULL);
}

static kr_tokenizer *golden_tokenizer(const char *folder) {
  char path[1000];
  kr_tokenizer *t = NULL;
  snprintf(path, sizeof path, "%s/tokenizer.json", folder);
  kr_tokenizer_open(path, &t);
  if (!t) fail_msg("%s", krait_error_detail());
  return t;
}
#define GOLDEN "tests/golden/tokenizers/"

static size_t decode(const kr_tokenizer *t, const kr_ids *ids, char *out) {
  kr_utf8_stream stream = {0};
  size_t used = 0, n;
  for (int64_t i = 0; i < ids->n; i++) {
    const char *bytes = kr_tokenizer_bytes(t, ids->at[i], &n);
    used += kr_utf8_push(&stream, bytes, n, out + used);
  }
  return used + kr_utf8_end(&stream, out + used);
}

/* 1: the text has these tokens. */
static int has_ids(const kr_tokenizer *t, const json_t *text, uint32_t flags, const json_t *want, kr_ids *ids) {
  ids->n = 0;
  assert_int_equal(kr_tokenizer_encode(t, json_string_value(text), json_string_length(text), flags, ids), KRAIT_OK);
  int is_same = ids->n == (int64_t)json_array_size(want);
  for (int64_t k = 0; is_same && k < ids->n; k++)
    is_same = ids->at[k] == json_integer_value(json_array_get(want, (size_t)k));
  return is_same;
}

/* Decoding of a whole text drops the first space of a vocabulary that adds one. */
static int is_decoded(const kr_tokenizer *t, const kr_ids *ids, const json_t *want) {
  const size_t n_want = json_string_length(want);
  char *out = malloc(64 * (size_t)ids->n + 3 * n_want + 100);
  const size_t n = decode(t, ids, out);
  const int drops = n == n_want + 1 && *out == ' ';
  const int is_same = n - (size_t)drops == n_want && memcmp(out + drops, json_string_value(want), n_want) == 0;
  free(out);
  return is_same;
}

/* The number of texts in the folder's cases.json of which something differs. */
static size_t compare_recorded(const char *folder, size_t *n) {
  kr_tokenizer *t = golden_tokenizer(folder);
  json_t *cases = golden_json(folder, "cases.json"), *one;
  kr_ids ids = {0};
  size_t i, n_wrong = 0;
  *n = json_array_size(cases);
  json_array_foreach(cases, i, one) {
    const json_t *text = json_object_get(one, "text"), *want = json_object_get(one, "ids"),
                 *whole = json_object_get(one, "whole"), *decoded = json_object_get(one, "decoded");
    const int is_whole = has_ids(t, text, KR_ENCODE_WHOLE, whole ? whole : want, &ids);
    const int is_same = has_ids(t, text, 0, want, &ids), is_back = is_decoded(t, &ids, decoded ? decoded : text);
    if (is_same && is_back && is_whole) continue;
    if (n_wrong++ < 5)
      print_error("%s: case %zu '%s': %s\n", folder, i, json_string_value(text),
                  !is_same ? "other tokens" : !is_back ? "another text" : "another template");
  }
  kr_ids_free(&ids);
  json_decref(cases);
  kr_tokenizer_close(&t);
  return n_wrong;
}

static void recorded_texts(void **state) {
  static const char *const kinds[] = {"neox",   "qwen2", "llama3", "qwen35",    "tekken",    "o200k", "tiktoken",
                                      "falcon", "digits", "cut",   "llama", "codestral", "metaspace", "gemma", "added"};
  char folder[100];
  (void)state;
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    size_t n = 0;
    snprintf(folder, sizeof folder, GOLDEN "%s", kinds[k]);
    assert_int_equal(compare_recorded(folder, &n), 0);
    assert_true(n >= 100);
  }
}

/* ---- tokenizers of GGUF files ---- */

typedef struct gguf_bytes {
  unsigned char *at;
  size_t n;
} gguf_bytes;

static void put_bytes(gguf_bytes *g, const void *bytes, size_t n) {
  memcpy(g->at + g->n, bytes, n);
  g->n += n;
}
static void put_number(gguf_bytes *g, uint64_t number, int n) { put_bytes(g, &number, (size_t)n); }
static void put_text(gguf_bytes *g, const char *text) {
  put_number(g, strlen(text), 8);
  put_bytes(g, text, strlen(text));
}
static void put_value(gguf_bytes *g, const char *key, const char *value) {
  put_text(g, key), put_number(g, 8, 4), put_text(g, value);
}
static void put_array(gguf_bytes *g, const char *key, uint32_t type, size_t n) {
  put_text(g, key), put_number(g, 9, 4), put_number(g, type, 4), put_number(g, n, 8);
}

/* The recorded tokenizer as a file with this pre-tokenizer's name. */
static gguf_bytes gguf_of(const json_t *tree, const char *pre) {
  const json_t *model = json_object_get(tree, "model"), *merges = json_object_get(model, "merges"),
               *added = json_object_get(tree, "added_tokens"), *value;
  const char *names[2000] = {NULL}, *name;
  char both[200];
  int32_t types[2000] = {0};
  gguf_bytes g = {malloc(1 << 17), 0};
  size_t n = 0, i;
  json_object_foreach(json_object_get(model, "vocab"), name, value) names[json_integer_value(value)] = name, n++;
  json_array_foreach(added, i, value) {
    const json_int_t id = json_integer_value(json_object_get(value, "id"));
    n += !names[id];
    names[id] = json_string_value(json_object_get(value, "content")), types[id] = 3;
  }
  put_bytes(&g, "GGUF", 4), put_number(&g, 3, 4), put_number(&g, 0, 8), put_number(&g, 6, 8);
  put_value(&g, "tokenizer.ggml.model", "gpt2"), put_value(&g, "tokenizer.ggml.pre", pre);
  put_array(&g, "tokenizer.ggml.tokens", 8, n);
  for (i = 0; i < n; i++) put_text(&g, names[i]);
  put_array(&g, "tokenizer.ggml.token_type", 5, n);
  for (i = 0; i < n; i++) put_number(&g, types[i] ? 3 : 1, 4);
  put_array(&g, "tokenizer.ggml.merges", 8, json_array_size(merges));
  json_array_foreach(merges, i, value) {
    snprintf(both, sizeof both, "%s %s", json_string_value(json_array_get(value, 0)),
             json_string_value(json_array_get(value, 1)));
    put_text(&g, both);
  }
  put_text(&g, "tokenizer.ggml.bos_token_id"), put_number(&g, 4, 4), put_number(&g, 0, 4);
  return g;
}

static kr_tokenizer *open_gguf(const gguf_bytes *g) {
  json_t *tree = NULL;
  kr_tokenizer *t = NULL;
  if (kr_gguf_tokenizer(g->at, g->n, "made", &tree) < 0 || kr_tokenizer_open_tree(tree, "made", &t) < 0)
    fail_msg("%s", krait_error_detail());
  json_decref(tree);
  return t;
}

static void gguf_names_of_pre_tokenizers(void **state) {
  static const char *const kinds[][2] = {
      {"llama3", "llama-bpe"}, {"tekken", "tekken"}, {"o200k", "gpt-4o"}, {"falcon", "falcon"}};
  char folder[100];
  (void)state;
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    snprintf(folder, sizeof folder, GOLDEN "%s", kinds[k][0]);
    json_t *tree = golden_json(folder, "tokenizer.json"), *cases = golden_json(folder, "cases.json"), *one;
    const gguf_bytes g = gguf_of(tree, kinds[k][1]);
    kr_tokenizer *t = open_gguf(&g);
    kr_ids ids = {0};
    size_t i;
    json_array_foreach(cases, i, one) {
      const json_t *whole = json_object_get(one, "whole"), *want = whole ? whole : json_object_get(one, "ids");
      if (!has_ids(t, json_object_get(one, "text"), KR_ENCODE_WHOLE, want, &ids))
        fail_msg("%s: case %zu '%s'", kinds[k][1], i, json_string_value(json_object_get(one, "text")));
    }
    kr_ids_free(&ids);
    kr_tokenizer_close(&t);
    json_decref(tree), json_decref(cases);
    free(g.at);
  }
}

/* SentencePiece's scores: the better pair first; bytes for what has no token; a space and a token at the beginning. */
static void gguf_scores(void **state) {
  static const char *const names[] = {"<unk>", "<s>", "<0xC3>", "<0xA9>", "\xe2\x96\x81", "a", "b", "ab", "ba", "aba",
                                      "\xe2\x96\x81" "a"};
  static const float scores[] = {0, 0, 0, 0, 0, 0, 0, -2, -1, -4, -3};
  static const int32_t types[] = {2, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1};
  enum { N_NAMES = sizeof names / sizeof *names };
  gguf_bytes g = {malloc(4096), 0};
  (void)state;
  put_bytes(&g, "GGUF", 4), put_number(&g, 3, 4), put_number(&g, 0, 8), put_number(&g, 5, 8);
  put_value(&g, "tokenizer.ggml.model", "llama");
  put_array(&g, "tokenizer.ggml.tokens", 8, N_NAMES);
  for (int i = 0; i < N_NAMES; i++) put_text(&g, names[i]);
  put_array(&g, "tokenizer.ggml.token_type", 5, N_NAMES);
  for (int i = 0; i < N_NAMES; i++) put_number(&g, (uint64_t)types[i], 4);
  put_array(&g, "tokenizer.ggml.scores", 6, N_NAMES);
  for (int i = 0; i < N_NAMES; i++) put_bytes(&g, &scores[i], 4);
  put_text(&g, "tokenizer.ggml.bos_token_id"), put_number(&g, 4, 4), put_number(&g, 1, 4);
  kr_tokenizer *t = open_gguf(&g);
  IDS(t, "aba", KR_ENCODE_WHOLE, 1, 10, 8);                /* ba, then the mark and a: not ab, aba */
  IDS(t, "ab\xc3\xa9 b", KR_ENCODE_PLAIN, 4, 7, 2, 3, 4, 6); /* ab before the mark and a */
  size_t n;
  assert_string_equal(kr_tokenizer_bytes(t, 10, &n), " a");
  assert_memory_equal(kr_tokenizer_bytes(t, 2, &n), "\xc3", 1);
  kr_tokenizer_close(&t);
  free(g.at);
}

static uint32_t next_random(uint64_t *seed) {
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*seed >> 33);
}

static size_t random_text(char *text, size_t n_bytes) {
  static const uint32_t ranges[] = {0x80, 0x80, 0x250, 0x3000, 0x3000, 0x110000};
  uint64_t seed = 18;
  size_t n = 0;
  while (n + 4 <= n_bytes) {
    const uint32_t code = next_random(&seed) % ranges[next_random(&seed) % 6];
    if (code && (code < 0xd800 || code > 0xdfff)) n += (size_t)kr_utf8_write(code, text + n);
  }
  return n;
}

static void round_trip(const char *folder) {
  enum { BYTES = 1 << 20 };
  kr_tokenizer *t = golden_tokenizer(folder);
  char *text = malloc(BYTES), *out = malloc(8 * BYTES), *normal = NULL;
  kr_ids ids = {0};
  const size_t n = random_text(text, BYTES);
  size_t n_normal = n;
  assert_int_equal(kr_tokenizer_encode(t, text, n, 0, &ids), KRAIT_OK);
  assert_int_equal(kr_normalize(KR_FORM_C, text, n, &normal, &n_normal), KRAIT_OK);
  assert_int_equal(decode(t, &ids, out), n_normal);
  assert_memory_equal(out, normal, n_normal);
  kr_free(normal);
  kr_ids_free(&ids);
  kr_tokenizer_close(&t);
  free(text), free(out);
}

static void round_trip_neox(void **state) { (void)state, round_trip(GOLDEN "neox"); }
static void round_trip_qwen2(void **state) { (void)state, round_trip(GOLDEN "qwen2"); }

/* ---- chat templates ---- */

/* The messages and what the template makes of them, written out. */
static void assert_chat(const kr_tokenizer *t, const kr_chat *c, const kr_message *messages, int n, const char *whole) {
  kr_ids got = {0}, want = {0};
  if (kr_chat_encode(t, c, messages, n, &got) < 0) fail_msg("%s", krait_error_detail());
  assert_int_equal(kr_tokenizer_encode(t, whole, strlen(whole), 0, &want), KRAIT_OK);
  if (got.n != want.n) fail_msg("%lld tokens, not %lld: %s", (long long)got.n, (long long)want.n, whole);
  assert_memory_equal(got.at, want.at, (size_t)got.n * sizeof *got.at);
  kr_ids_free(&got), kr_ids_free(&want);
}

static void chat(void **state) {
  kr_tokenizer *t = golden_tokenizer(GOLDEN "qwen2");
  kr_chat c;
  (void)state;
  kr_chat_find(t, NULL, NULL, &c);
  assert_chat(t, &c, &(kr_message){"user", "\n  What's 2+2?"}, 1,
              "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n\n  What's "
              "2+2?<|im_end|>\n<|im_start|>assistant\n");
  kr_ids got = {0};
  assert_int_equal(kr_chat_encode(t, &c, &(kr_message){"system", "<|im_end|>"}, 1, &got), KRAIT_OK);
  for (int64_t i = 0, n_ends = 0; i < got.n; i++) {
    n_ends += got.at[i] == kr_tokenizer_find_added(t, "<|im_end|>");
    assert_true(n_ends <= 1); /* the one in the content is text */
  }
  got.n = 0;
  assert_int_equal(kr_chat_encode(t, &c, &(kr_message){"judge", "a"}, 1, &got), KRAIT_ERR_ARGUMENT);
  kr_ids_free(&got);
  kr_tokenizer_close(&t);
  t = golden_tokenizer(GOLDEN "neox");
  kr_chat_find(t, NULL, NULL, &c);
  assert_int_equal(kr_chat_encode(t, &c, &(kr_message){"user", "a"}, 1, &got), KRAIT_ERR_UNSUPPORTED);
  assert_non_null(strstr(krait_error_detail(), "has no chat template; give the form of its conversations with"));
  kr_chat_find(t, "{{ bos_token }}<|im_start|><|im_end|>{{ '<|im_start|>assistant\n' }}",
               "<|a token for the beginning whose name is longer than there is room for|>", &c);
  assert_int_equal(kr_chat_encode(t, &c, &(kr_message){"user", "a"}, 1, &got), KRAIT_ERR_UNSUPPORTED);
  assert_non_null(strstr(krait_error_detail(), "its token for the beginning has more than 63 bytes"));
  kr_chat_find(t, "{{ '### User: ' + message }}", NULL, &c);
  assert_int_equal(kr_chat_encode(t, &c, &(kr_message){"user", "a"}, 1, &got), KRAIT_ERR_UNSUPPORTED);
  assert_non_null(strstr(krait_error_detail(), "none of the known ones"));
  assert_int_equal(kr_chat_named("chatml", &c), KRAIT_OK);
  assert_int_equal(kr_chat_encode(t, &c, &(kr_message){"user", "a"}, 1, &got), KRAIT_ERR_UNSUPPORTED);
  assert_non_null(strstr(krait_error_detail(), "the tokenizer has no <|im_start|>"));
  assert_int_equal(kr_chat_named("latin", &c), KRAIT_ERR_ARGUMENT);
  assert_non_null(strstr(krait_error_detail(), "there are chatml, llama3, granite, nemotron"));
  kr_ids_free(&got);
  kr_tokenizer_close(&t);
}

/* A tokenizer with the special tokens of every form. */
static kr_tokenizer *open_with_marks(void) {
  static const char *const marks[] = {"<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
                                      "<|end_header_id|>", "<|eot_id|>", "<|start_of_role|>", "<|end_of_role|>",
                                      "<|end_of_text|>", "<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"};
  char added[2000];
  size_t used = 0;
  kr_tokenizer *t = NULL;
  for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
    used += (size_t)snprintf(added + used, sizeof added - used,
                             "%s{\"id\": %zu, \"content\": \"%s\", \"special\": true}", i ? "," : "", 300 + i,
                             marks[i]);
  assert_int_equal(open_made(&(options){.added = added}, &t), KRAIT_OK);
  return t;
}

/* Each form by the text of a template, as published, cut down to what decides. */
static void forms_of_chat(void **state) {
  static const kr_message both[] = {{"system", " Be brief. "}, {"user", " hi "}};
  kr_tokenizer *t = open_with_marks();
  kr_chat c;
  (void)state;
  kr_chat_find(t,
               "{{- '<|im_start|>system\\n' + m + '<|im_end|>\\n' }}{{- '<|im_start|>system\\nYou are "
               "Qwen.<|im_end|>\\n' }}{{- '<|im_start|>assistant\\n' }}",
               NULL, &c);
  assert_chat(t, &c, both + 1, 1,
              "<|im_start|>system\nYou are Qwen.<|im_end|>\n<|im_start|>user\n hi <|im_end|>\n<|im_start|>assistant\n");
  assert_chat(t, &c, both, 2,
              "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\n hi "
              "<|im_end|>\n<|im_start|>assistant\n");
  kr_chat_find(t, "{{ bos_token }}<|im_start|><|im_end|>{{ '<|im_start|>assistant\n<think>\n' }}",
               "<|begin_of_text|>", &c);
  assert_chat(t, &c, both + 1, 1,
              "<|begin_of_text|><|im_start|>user\n hi <|im_end|>\n<|im_start|>assistant\n<think>\n");
  kr_chat_find(t, "<|im_start|><|im_end|>{{ '<|im_start|>model ' }}", NULL, &c);
  assert_null(c.form);
  kr_chat_find(t, "{{- bos_token }}<|start_header_id|><|eot_id|>", "<|begin_of_text|>", &c);
  assert_chat(t, &c, both + 1, 1,
              "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|><|start_header_id|>assistant"
              "<|end_header_id|>\n\n");
  kr_chat_find(t, "{{- bos_token }}<|start_header_id|><|eot_id|>Cutting Knowledge Date: December 2023",
               "<|begin_of_text|>", &c);
  assert_chat(t, &c, both, 2,
              "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December "
              "2023\nToday Date: 26 Jul 2024\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
              "hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
  kr_chat_find(t, "{%- set g4_default_system_message = 'Help.' %}<|start_of_role|><|end_of_text|>", NULL, &c);
  assert_chat(t, &c, both + 1, 1,
              "<|start_of_role|>system<|end_of_role|>Help.<|end_of_text|>\n<|start_of_role|>user<|end_of_role|> hi "
              "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>");
  kr_chat_find(t, "<|start_of_role|><|end_of_text|>{{ strftime_now('%Y') }}", NULL, &c);
  assert_null(c.form);
  kr_chat_find(t, "<SPECIAL_10>System\n<SPECIAL_11>Assistant\n<think>\n", NULL, &c);
  assert_chat(t, &c, both + 1, 1, "<SPECIAL_10>System\n\n<SPECIAL_11>User\n hi \n<SPECIAL_11>Assistant\n<think>\n");
  kr_tokenizer_close(&t);
}

/* Behind an answer that has ended, or has not, a conversation goes on as if it had been written at once. */
static void a_conversation_goes_on(void **state) {
  static const kr_message first = {"user", "a"}, second = {"user", "b"};
  static const char *const names[] = {"chatml", "llama3", "granite", "nemotron"};
  static const char *const wholes[] = {
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nok<|im_end|>\n<|im_start|>user\nb<|im_end|>\n"
      "<|im_start|>assistant\n",
      "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_id|>assistant"
      "<|end_header_id|>\n\nok<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nb<|eot_id|><|start_header_id|>"
      "assistant<|end_header_id|>\n\n",
      "<|start_of_role|>user<|end_of_role|>a<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>ok"
      "<|end_of_text|>\n"
      "<|start_of_role|>user<|end_of_role|>b<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
      "<SPECIAL_11>User\na\n<SPECIAL_11>Assistant\nok\n<SPECIAL_12>\n<SPECIAL_11>User\nb\n<SPECIAL_11>Assistant\n"};
  kr_tokenizer *t = open_with_marks();
  (void)state;
  for (int i = 0; i < 4; i++)
    for (int is_ended = 0; is_ended < 2; is_ended++) {
      kr_chat c;
      kr_ids got = {0}, want = {0};
      assert_int_equal(kr_chat_named(names[i], &c), KRAIT_OK);
      assert_int_equal(kr_chat_encode(t, &c, &first, 1, &got), KRAIT_OK);
      const char *answer = i == 3 && is_ended ? "ok\n" : "ok"; /* its line end comes before the end */
      assert_int_equal(kr_tokenizer_encode(t, answer, strlen(answer), KR_ENCODE_INSIDE, &got), KRAIT_OK);
      if (is_ended) assert_int_equal(kr_ids_add(&got, kr_chat_end(t, &c)), KRAIT_OK);
      assert_int_equal(kr_chat_encode(t, &c, &second, 1, &got), KRAIT_OK);
      assert_int_equal(kr_tokenizer_encode(t, wholes[i], strlen(wholes[i]), 0, &want), KRAIT_OK);
      if (got.n != want.n || memcmp(got.at, want.at, (size_t)got.n * sizeof *got.at) != 0)
        fail_msg("%s, %d: other tokens", names[i], is_ended);
      kr_ids_free(&got), kr_ids_free(&want);
    }
  kr_tokenizer_close(&t);
}

/* With folders: only their recorded texts, as many as tests/golden/tokenizers/make.py has written. */
int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bytes_become_whole_characters),
      cmocka_unit_test(form_c),
      cmocka_unit_test(long_runs_of_marks),
      cmocka_unit_test(cuts),
      cmocka_unit_test(punctuation_of_unicode_8),
      cmocka_unit_test(merges_by_rank),
      cmocka_unit_test(a_pair_that_comes_twice),
      cmocka_unit_test(added_tokens_come_first),
      cmocka_unit_test(a_template_that_adds_nothing),
      cmocka_unit_test(unsupported_expressions),
      cmocka_unit_test(endless_expressions),
      cmocka_unit_test(refusals),
      cmocka_unit_test(a_normalizer_that_grows), cmocka_unit_test(a_long_word),
      cmocka_unit_test(recorded_texts),
      cmocka_unit_test(gguf_names_of_pre_tokenizers),
      cmocka_unit_test(gguf_scores),
      cmocka_unit_test(round_trip_neox),
      cmocka_unit_test(round_trip_qwen2),
      cmocka_unit_test(chat),
      cmocka_unit_test(forms_of_chat),
      cmocka_unit_test(a_conversation_goes_on),
  };
  size_t n, n_wrong = 0, n_all = 0;
  for (int i = 1; i < argc; i++) {
    const size_t wrong = compare_recorded(argv[i], &n);
    printf("%s: %zu of %zu texts equal\n", argv[i], n - wrong, n);
    n_wrong += wrong, n_all += n;
  }
  return argc == 1 ? cmocka_run_group_tests(tests, NULL, NULL) : n_wrong > 0 || n_all == 0;
}

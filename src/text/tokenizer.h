/* tokenizer.h: tokenizer.json: text to tokens and back. Immutable after open; any number of threads may use it.
 *
 * Supported: byte pair encoding of bytes (GPT-2's way) or of characters (SentencePiece's, with byte fallback); the
 * normalizers, pre-tokenizers and decoders that normalizer.h, pretokenizer.h and tokenizer_read.c name; added tokens,
 * special or not; templates around a text. Anything else in the file is refused by name, because its tokens would be
 * wrong. */
#ifndef KR_TOKENIZER_H
#define KR_TOKENIZER_H

#include <jansson.h>

#include "bpe.h"

typedef struct kr_tokenizer kr_tokenizer;

int32_t kr_tokenizer_open(const char *path, kr_tokenizer **tokenizer);
int32_t kr_tokenizer_open_memory(const void *bytes, size_t n_bytes, const char *label, kr_tokenizer **tokenizer);
/* The same as a tree, which is not kept. */
int32_t kr_tokenizer_open_tree(const json_t *root, const char *label, kr_tokenizer **tokenizer);
void kr_tokenizer_close(kr_tokenizer **tokenizer);

int64_t kr_tokenizer_size(const kr_tokenizer *t); /* one more than the highest token */
enum {
  KR_ENCODE_PLAIN = 1,  /* names of special tokens are treated as plain text */
  KR_ENCODE_INSIDE = 2, /* the text continues another: nothing is done that is done at a beginning */
  KR_ENCODE_WHOLE = 4   /* with the template's tokens around it, such as one for the beginning */
};
/* Appends; text that is not UTF-8 is KRAIT_ERR_ARGUMENT. */
int32_t kr_tokenizer_encode(const kr_tokenizer *t, const char *text, size_t n, uint32_t flags, kr_ids *ids);
/* The bytes of a token, not always whole characters (see kr_utf8_push in utf8.h); n is 0 for an invalid token. */
const char *kr_tokenizer_bytes(const kr_tokenizer *t, int32_t id, size_t *n);
int kr_tokenizer_is_special(const kr_tokenizer *t, int32_t id);
int32_t kr_tokenizer_find_added(const kr_tokenizer *t, const char *content); /* "<|im_end|>"; -1: there is none */
/* The special token whose name text begins with, and the name's length; -1: there is none. */
int32_t kr_tokenizer_special_at(const kr_tokenizer *t, const char *text, size_t n, size_t *length);
/* What is put around whole texts, instead of what the file says: a token before and one after; -1: none. */
void kr_tokenizer_set_template(kr_tokenizer *t, int32_t before, int32_t after);

#endif

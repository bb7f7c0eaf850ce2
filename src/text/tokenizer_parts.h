/* tokenizer_parts.h: what a tokenizer consists of: read by tokenizer_read.c, used by tokenizer.c. */
#ifndef KR_TOKENIZER_PARTS_H
#define KR_TOKENIZER_PARTS_H

#include "arena.h"
#include "normalizer.h"
#include "pretokenizer.h"
#include "tokenizer.h"
#include "vocabulary.h"

enum { KR_MOST_TEMPLATE = 8 };

typedef struct kr_token {
  const char *name, *bytes; /* as in the file; as text, which the decoder makes of it */
  uint32_t n;               /* of bytes; 0 and no name: there is no such token */
  int32_t is_special;
} kr_token;

/* Cut out of the text before all else; of the normalized text where is_normalized. */
typedef struct kr_added_token {
  const char *content; /* normalized, too */
  size_t n;
  int32_t id, is_special, is_normalized;
  int32_t strips_left, strips_right, is_single_word; /* spaces beside it belong to it; not inside of words */
} kr_added_token;

struct kr_tokenizer {
  kr_arena *arena;
  const char *label;
  kr_normalizer *normalizer;
  kr_pretokenizer *pretokenizer;
  kr_vocabulary *pieces; /* by bytes, or by names: see is_of_bytes */
  kr_bpe *bpe;
  kr_token *tokens;
  int64_t n_tokens;
  kr_added_token *added; /* by first byte, then the longest first */
  int32_t n_added, first_added[257];
  int32_t is_of_bytes;      /* a piece is bytes, each of which is a token; else characters */
  int32_t byte_token[256];  /* -1: none; of characters: what stands for one that is not in the vocabulary */
  int32_t has_byte_fallback, takes_whole_pieces, joins_unknown; /* byte_fallback, ignore_merges, fuse_unk */
  int32_t unknown;                                              /* unk_token; -1: none */
  int32_t before[KR_MOST_TEMPLATE], after[KR_MOST_TEMPLATE], n_before, n_after; /* the template's tokens */
};

#endif

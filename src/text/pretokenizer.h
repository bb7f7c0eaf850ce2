/* pretokenizer.h: how text is cut into the pieces that are encoded one by one: tokenizer.json's pre_tokenizer, a list
 * of steps, each of which cuts what the one before it has left, and may change it. */
#ifndef KR_PRETOKENIZER_H
#define KR_PRETOKENIZER_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kr_pretokenizer kr_pretokenizer;

/* json may be NULL or null: one piece. label: of the file, for messages. */
int32_t kr_pretokenizer_open(const json_t *json, const char *label, kr_pretokenizer **pretokenizer);
void kr_pretokenizer_close(kr_pretokenizer **pretokenizer);

/* Whether the vocabulary is one of bytes: pieces are then bytes, whatever the alphabet that steps saw. */
int kr_pretokenizer_is_of_bytes(const kr_pretokenizer *p);
int kr_pretokenizer_keeps_text(const kr_pretokenizer *p); /* the pieces, joined, are the text */

typedef int32_t kr_piece_fn(void *user, const char *piece, size_t n);
/* is_start: text is the beginning of what is encoded. */
int32_t kr_pretokenize(const kr_pretokenizer *p, const char *text, size_t n, int is_start, kr_piece_fn *fn, void *user);

/* ---- bytes as characters: GPT-2's table ---- */
enum { KR_BYTE_LETTERS = 0x144 }; /* all of its characters are below this */
/* byte_of[c]: the byte that character c stands for; -1: none. */
void kr_byte_table(int16_t *byte_of);
/* The bytes of a text in that alphabet, n at most; 0: it is not written in it. */
int kr_bytes_unwrite(const int16_t *byte_of, const char *text, size_t n, char *bytes, size_t *n_bytes);

#endif

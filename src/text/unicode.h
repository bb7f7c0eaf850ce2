/* unicode.h: Unicode: character classes, accents, and normalization form C. Uses utf8proc. */
#ifndef KR_UNICODE_H
#define KR_UNICODE_H

#include <stddef.h>
#include <stdint.h>

int kr_is_letter(uint32_t code); /* \p{L} */
int kr_is_number(uint32_t code); /* \p{N} */
int kr_is_space(uint32_t code);  /* \s: White_Space */

/* A letter with an accent is a letter and a combining mark; of others, *letter is code and *mark 0. */
void kr_split_mark(uint32_t code, uint32_t *letter, uint32_t *mark);

/* *normal: text in form C, to be freed with kr_free, or NULL if text already is. text must be UTF-8. */
int32_t kr_nfc(const char *text, size_t n, char **normal, size_t *n_normal);

#endif

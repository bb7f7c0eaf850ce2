/* unicode.h: Unicode: character classes, accents, and normalization forms. Uses utf8proc. */
#ifndef KR_UNICODE_H
#define KR_UNICODE_H

#include <stddef.h>
#include <stdint.h>

int kr_is_letter(uint32_t code); /* \p{L} */
int kr_is_number(uint32_t code); /* \p{N} */
int kr_is_mark(uint32_t code);   /* \p{M} */
int kr_is_space(uint32_t code);  /* \s: White_Space */
int kr_is_punctuation(uint32_t code); /* \p{P} of Unicode 8, and of ASCII also the symbols */
int kr_is_word(uint32_t code);        /* \w, as far as letters, marks, numbers and connectors go */
int kr_letter_case(uint32_t code);    /* 1: upper or title case, -1: lower, 0: neither */

/* A letter with an accent is a letter and a combining mark; of others, *letter is code and *mark 0. */
void kr_split_mark(uint32_t code, uint32_t *letter, uint32_t *mark);

enum { KR_FORM_C, KR_FORM_D, KR_FORM_KC, KR_FORM_KD };
/* *normal: text in this form, to be freed with kr_free, or NULL if nothing in it changes. text must be UTF-8. */
int32_t kr_normalize(int32_t form, const char *text, size_t n, char **normal, size_t *n_normal);

#endif

/* vocabulary.h: finds a token by its text: a table by open addressing. */
#ifndef KR_VOCABULARY_H
#define KR_VOCABULARY_H

#include <stddef.h>
#include <stdint.h>

typedef struct kr_vocabulary kr_vocabulary;

int32_t kr_vocabulary_open(int64_t most_tokens, kr_vocabulary **vocabulary);
void kr_vocabulary_close(kr_vocabulary **vocabulary);
/* text is not copied; most_tokens calls at most. One that is there keeps its token. */
void kr_vocabulary_add(kr_vocabulary *vocabulary, const char *text, size_t n, int32_t id);
int32_t kr_vocabulary_find(const kr_vocabulary *vocabulary, const char *text, size_t n); /* -1: there is none */

#endif

/* bpe.h: byte pair encoding: pairs of tokens are merged, lowest rank first, until none is left. */
#ifndef KR_BPE_H
#define KR_BPE_H

#include <stddef.h>
#include <stdint.h>

typedef struct kr_bpe kr_bpe;

int32_t kr_bpe_open(int64_t most_merges, kr_bpe **bpe);
void kr_bpe_close(kr_bpe **bpe);
/* Merges in the order of their ranks. Of a pair that comes twice the last counts, as in the original library. */
void kr_bpe_add(kr_bpe *bpe, int32_t left, int32_t right, int32_t merged);

/* A growing list of tokens. */
typedef struct kr_ids {
  int32_t *at;
  int64_t n, capacity;
} kr_ids;
int32_t kr_ids_add(kr_ids *ids, int32_t id);
int32_t kr_ids_reserve(kr_ids *ids, int64_t n); /* the next n additions need no memory */
void kr_ids_free(kr_ids *ids);

/* Merges n tokens and appends the result; n log n. */
int32_t kr_bpe_merge(const kr_bpe *bpe, const int32_t *tokens, int64_t n, kr_ids *out);

#endif

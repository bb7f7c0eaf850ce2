/* vocabulary.c: see vocabulary.h. */
#include "vocabulary.h"

#include <string.h>

#include "alloc.h"
#include "status.h"

typedef struct entry {
  const char *text; /* NULL: free */
  uint32_t n;
  int32_t id;
} entry;

struct kr_vocabulary {
  entry *entries;
  uint64_t mask;
};

int32_t kr_vocabulary_open(int64_t most_tokens, kr_vocabulary **out) {
  uint64_t slots = 16;
  while (slots < 2 * (uint64_t)most_tokens) slots *= 2;
  kr_vocabulary *v = *out = kr_zalloc(sizeof *v);
  if (v) v->entries = kr_alloc_array((size_t)slots, sizeof *v->entries);
  if (v && v->entries) return v->mask = slots - 1, KRAIT_OK;
  kr_vocabulary_close(out);
  return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a vocabulary of %lld tokens", (long long)most_tokens);
}

void kr_vocabulary_close(kr_vocabulary **v) {
  if (!*v) return;
  kr_free((*v)->entries);
  kr_free(*v);
  *v = NULL;
}

/* The text's entry, or the free one for it. */
static entry *entry_of(const kr_vocabulary *v, const char *text, size_t n) {
  uint64_t h = 0xcbf29ce484222325u;
  for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
  for (h ^= h >> 29;; h++) {
    entry *e = &v->entries[h & v->mask];
    if (!e->text || (e->n == n && memcmp(e->text, text, n) == 0)) return e;
  }
}

void kr_vocabulary_add(kr_vocabulary *v, const char *text, size_t n, int32_t id) {
  entry *e = entry_of(v, text, n);
  if (!e->text) *e = (entry){text, (uint32_t)n, id};
}

int32_t kr_vocabulary_find(const kr_vocabulary *v, const char *text, size_t n) {
  const entry *e = entry_of(v, text, n);
  return e->text ? e->id : -1;
}

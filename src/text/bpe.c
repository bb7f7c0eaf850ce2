/* bpe.c: a table of pairs by open addressing; a piece is a linked list of tokens, and a heap orders its pairs by rank
 * and position. A pair in the heap whose tokens have changed meanwhile is skipped. */
#include "bpe.h"

#include "alloc.h"
#include "status.h"

typedef struct pair {
  int32_t left, right, merged, rank;
} pair;

struct kr_bpe {
  pair *pairs; /* merged < 0: free */
  uint64_t mask;
  int32_t n;
};

int32_t kr_bpe_open(int64_t most_merges, kr_bpe **out) {
  uint64_t slots = 16;
  while (slots < 2 * (uint64_t)most_merges) slots *= 2;
  kr_bpe *bpe = *out = kr_zalloc(sizeof *bpe);
  if (bpe) bpe->pairs = kr_alloc_array((size_t)slots, sizeof *bpe->pairs);
  if (!bpe || !bpe->pairs) {
    kr_bpe_close(out);
    return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for %lld merges", (long long)most_merges);
  }
  bpe->mask = slots - 1;
  for (uint64_t i = 0; i < slots; i++) bpe->pairs[i].merged = -1;
  return KRAIT_OK;
}

void kr_bpe_close(kr_bpe **bpe) {
  if (!*bpe) return;
  kr_free((*bpe)->pairs);
  kr_free(*bpe);
  *bpe = NULL;
}

/* The pair's slot, or the free slot for it. */
static pair *slot_of(const kr_bpe *bpe, int32_t left, int32_t right) {
  uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
  h ^= h >> 29;
  for (;; h++) {
    pair *p = &bpe->pairs[h & bpe->mask];
    if (p->merged < 0 || (p->left == left && p->right == right)) return p;
  }
}

void kr_bpe_add(kr_bpe *bpe, int32_t left, int32_t right, int32_t merged) {
  pair *p = slot_of(bpe, left, right);
  *p = (pair){left, right, merged, bpe->n++};
}

int32_t kr_ids_reserve(kr_ids *ids, int64_t n) {
  int64_t wanted = ids->capacity ? ids->capacity : 64;
  while (wanted < ids->n + n) wanted *= 2;
  if (wanted == ids->capacity) return KRAIT_OK;
  int32_t *grown = kr_realloc(ids->at, (size_t)ids->capacity * sizeof *grown, (size_t)wanted * sizeof *grown);
  KR_CHECK(grown, KRAIT_ERR_NO_MEMORY, "no memory for %lld tokens", (long long)wanted);
  ids->at = grown;
  ids->capacity = wanted;
  return KRAIT_OK;
}

int32_t kr_ids_add(kr_ids *ids, int32_t id) {
  KR_TRY(kr_ids_reserve(ids, 1));
  ids->at[ids->n++] = id;
  return KRAIT_OK;
}

void kr_ids_free(kr_ids *ids) {
  kr_free(ids->at);
  *ids = (kr_ids){0};
}

typedef struct node {
  int32_t id;
  int64_t before, after; /* -1: none */
} node;

typedef struct candidate {
  int32_t rank, merged, left, right;
  int64_t at;
} candidate;

typedef struct work {
  const kr_bpe *bpe;
  node *nodes;
  candidate *heap;
  int64_t n_heap;
} work;

static int comes_before(const candidate *a, const candidate *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(work *w, int64_t at) {
  if (at < 0 || w->nodes[at].after < 0) return;
  const int32_t left = w->nodes[at].id, right = w->nodes[w->nodes[at].after].id;
  const pair *p = slot_of(w->bpe, left, right);
  if (p->merged < 0) return;
  const candidate c = {p->rank, p->merged, left, right, at};
  int64_t i = w->n_heap++;
  for (; i > 0 && comes_before(&c, &w->heap[(i - 1) / 2]); i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
  w->heap[i] = c;
}

static candidate pop(work *w) {
  const candidate first = w->heap[0], last = w->heap[--w->n_heap];
  int64_t i = 0;
  for (int64_t child; (child = 2 * i + 1) < w->n_heap; i = child) {
    if (child + 1 < w->n_heap && comes_before(&w->heap[child + 1], &w->heap[child])) child++;
    if (!comes_before(&w->heap[child], &last)) break;
    w->heap[i] = w->heap[child];
  }
  w->heap[i] = last;
  return first;
}

static void merge_all(work *w) {
  while (w->n_heap) {
    const candidate c = pop(w);
    node *left = &w->nodes[c.at];
    if (left->id != c.left || left->after < 0 || w->nodes[left->after].id != c.right) continue;
    node *right = &w->nodes[left->after];
    left->id = c.merged;
    left->after = right->after;
    right->id = -1;
    if (left->after >= 0) w->nodes[left->after].before = c.at;
    push(w, left->before);
    push(w, c.at);
  }
}

int32_t kr_bpe_merge(const kr_bpe *bpe, const int32_t *tokens, int64_t n, kr_ids *out) {
  if (n == 1) return kr_ids_add(out, tokens[0]);
  if (n <= 0) return KRAIT_OK;
  node few[64];
  candidate few_candidates[192]; /* n - 1 pairs initially, and two for each merge */
  work w = {.bpe = bpe, .nodes = few, .heap = few_candidates};
  void *block = NULL;
  if (n > 64) {
    block = kr_alloc_array((size_t)n, sizeof *w.nodes + 3 * sizeof *w.heap);
    KR_CHECK(block, KRAIT_ERR_NO_MEMORY, "no memory for a piece of %lld tokens", (long long)n);
    w.heap = block;
    w.nodes = (node *)(w.heap + 3 * n);
  }
  for (int64_t i = 0; i < n; i++) w.nodes[i] = (node){tokens[i], i - 1, i + 1 < n ? i + 1 : -1};
  for (int64_t i = 0; i < n; i++) push(&w, i);
  merge_all(&w);
  int32_t status = KRAIT_OK;
  for (int64_t i = 0; i >= 0 && status >= 0; i = w.nodes[i].after) status = kr_ids_add(out, w.nodes[i].id);
  kr_free(block);
  return status;
}

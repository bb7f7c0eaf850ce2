/* rotary_turn.h: which features form a pair, and where a sequence's tokens are, for the rows of rotary and
 * attention_append. */
#ifndef KR_ROTARY_TURN_H
#define KR_ROTARY_TURN_H

#include "op_args.h"
#include "view.h"

static inline int64_t kr_rotary_first(uint32_t flags, int64_t r) {
  return flags & KRAIT_ROTARY_INTERLEAVED ? 2 * r : r;
}
static inline int64_t kr_rotary_second(uint32_t flags, int64_t r, int64_t R) {
  return flags & KRAIT_ROTARY_INTERLEAVED ? 2 * r + 1 : r + R;
}

typedef struct kr_rotary_span { /* n tokens from (row, first); position: the first one's */
  int64_t row, first, n, position;
} kr_rotary_span;

static inline kr_rotary_span kr_rotary_span_at(const kr_rotary_args *a, int64_t b) {
  kr_rotary_span s = {b, 0, a->L, kr_has(&a->offsets) ? kr_get_i32(&a->offsets, kr_at1(&a->offsets, b)) : 0};
  if (!kr_has(&a->cu_seqlens)) return s;
  s.row = 0;
  s.first = kr_get_i32(&a->cu_seqlens, kr_at1(&a->cu_seqlens, b));
  s.n = kr_get_i32(&a->cu_seqlens, kr_at1(&a->cu_seqlens, b + 1)) - s.first;
  return s;
}

int32_t kr_rotary_check_indices(const kr_rotary_args *a); /* reads host memory */

/* attention_append: whether the tokens of sequence b are written, and the first one's position. */
int32_t kr_append_check_indices(const kr_attention_append_args *a);
static inline int64_t kr_append_position(const kr_attention_append_args *a, int64_t b) {
  return kr_has(&a->cache_seqlens) ? kr_get_i32(&a->cache_seqlens, kr_at1(&a->cache_seqlens, b)) : 0;
}
static inline int64_t kr_append_row(const kr_attention_append_args *a, int64_t b) {
  return kr_has(&a->cache_batch_idx) ? kr_get_i32(&a->cache_batch_idx, kr_at1(&a->cache_batch_idx, b)) : b;
}
/* Offset of position j, head 0, in the cache. */
static inline int64_t kr_append_at(const kr_attention_append_args *a, const kr_view *cache, int64_t b,
                                   int64_t j) {
  if (!kr_has(&a->block_table)) return kr_at2(cache, kr_append_row(a, b), j);
  return kr_at2(cache, kr_get_i32(&a->block_table, kr_at2(&a->block_table, b, j / a->Lk)), j % a->Lk);
}

#endif

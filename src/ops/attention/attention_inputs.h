/* attention_inputs.h: the inputs common to attention and its gradient, from either args struct; the location of a
 * sequence's queries and keys, which keys a query sees, which of them dropout keeps. For CPU implementations: index
 * tensors are read from host memory. */
#ifndef KR_ATTENTION_INPUTS_H
#define KR_ATTENTION_INPUTS_H

#include "op_args.h"
#include "view.h"

typedef struct kr_attention_inputs {
  const char *op;
  int takes_narrow_keys; /* k and v of 16 bits beside q of float32 */
  uint32_t flags;
  int64_t B, Lq, Lk, H, Hk, D, Dv, Bk, n_pages, max_q, max_k;
  int64_t left, right; /* a query sees keys from i + nk - nq - left to i + nk - nq + right; far beyond any length if
                        * unlimited */
  float scale, softcap, dropout;
  const kr_view *q, *k, *v, *cu_seqlens_q, *cu_seqlens_k, *seqused_q, *seqused_k, *leftpad_k, *cache_batch_idx,
      *block_table, *alibi_slopes, *sinks, *rng;
} kr_attention_inputs;

kr_attention_inputs kr_attention_inputs_of(const kr_attention_args *args);
kr_attention_inputs kr_attention_bwd_inputs_of(const kr_attention_bwd_args *args);
/* Rules beyond the table's; reads no tensor. */
int32_t kr_attention_check_rules(const kr_attention_inputs *in);
/* Offsets, lengths and rows: afterwards, everything a CPU implementation reads through index tensors is in range. */
int32_t kr_attention_check_indices(const kr_attention_inputs *in);

/* Sequence b: queries 0..nq-1 of n_rows allocated; keys 0..nk-1 of n_key_rows. */
typedef struct kr_attention_sequence {
  int64_t b, nq, n_rows, nk, n_key_rows;
  int64_t q_row, q_first; /* of q, out and lse: first index, and the token that is query 0 */
  int64_t k_row, k_first; /* of k and v; with pages k_row is unused */
} kr_attention_sequence;

kr_attention_sequence kr_attention_sequence_at(const kr_attention_inputs *in, int64_t b);
int64_t kr_attention_most_keys(const kr_attention_inputs *in); /* the longest sequence's */

/* Offsets of query i and key j, head 0, in a view like q, or k and v. */
static inline int64_t kr_attention_query(const kr_attention_sequence *s, const kr_view *view, int64_t i) {
  return kr_at2(view, s->q_row, s->q_first + i);
}
static inline int64_t kr_attention_key(const kr_attention_inputs *in, const kr_attention_sequence *s,
                                       const kr_view *view, int64_t j) {
  if (!kr_has(in->block_table)) return kr_at2(view, s->k_row, s->k_first + j);
  return kr_at2(view, kr_get_i32(in->block_table, kr_at2(in->block_table, s->b, j / in->Lk)), j % in->Lk);
}
static inline int64_t kr_attention_lse(const kr_attention_sequence *s, const kr_view *lse, int64_t h, int64_t i) {
  return kr_at3(lse, s->q_row, h, s->q_first + i);
}

/* Keys first..end-1; none where end <= first. */
static inline int64_t kr_attention_first(const kr_attention_inputs *in, const kr_attention_sequence *s, int64_t i) {
  const int64_t first = i + s->nk - s->nq - in->left;
  return first > 0 ? first : 0;
}
static inline int64_t kr_attention_end(const kr_attention_inputs *in, const kr_attention_sequence *s, int64_t i) {
  const int64_t end = i + s->nk - s->nq + in->right + 1;
  return end < s->nk ? end : s->nk;
}

/* The dropout generator: 16 bytes for queries i and i ^ 8 with i % 16 / 8 == 0, and keys j, j + 1 of four groups of 8.
 * */
void kr_attention_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);
typedef struct kr_attention_dropout {
  uint32_t key[2], stream, threshold; /* threshold: bytes below it are kept */
  float scale;                        /* 1 / (1 - dropout) */
} kr_attention_dropout;
kr_attention_dropout kr_attention_dropout_of(const kr_attention_inputs *in);
int kr_attention_keeps(const kr_attention_dropout *d, int64_t b_head, int64_t i, int64_t j); /* b_head: b H + h */

#endif

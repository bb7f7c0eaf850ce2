/* lm_slots.h: the states of a model's slots, in the context's memory. */
#ifndef KR_LM_SLOTS_H
#define KR_LM_SLOTS_H

#include "lm_config.h"
#include "token_cache.h"

typedef struct kr_lm_slots {
  const krait_ctx *ctx;
  const kr_lm_config *c;
  int64_t n;            /* slots */
  int32_t dtype;        /* of activations */
  int32_t token_dtype;  /* of states per token: keys and values */
  int32_t is_narrow;    /* kr_lm_narrow_states */
  char *fixed;          /* by block: its first state of all slots, then the next; not those per token */
  int32_t borrows;      /* fixed is the owner's, given before opening */
  int64_t *at;          /* offset of each block's states, and the end */
  kr_token_cache cache; /* states per token, with capacity for the longest text */
  int32_t *lengths;     /* of each slot's text: only tokens that were read completely count */
  uint8_t *is_lost;     /* by slot: a call that failed has left its states half computed */
} kr_lm_slots;

/* The caller sets ctx, c, n, dtype and token_dtype. */
int32_t kr_lm_slots_open(kr_lm_slots *s);
void kr_lm_slots_close(kr_lm_slots *s);
/* Where states are after is_narrow or token_dtype has changed, which needs no more memory; resets all slots. */
int32_t kr_lm_slots_lay_out(kr_lm_slots *s);
int32_t kr_lm_slots_reset(kr_lm_slots *s, int64_t slot);
int32_t kr_lm_slots_check(const kr_lm_slots *s, int64_t slot); /* one of them, and not lost */
/* Whether states cannot return to what they were before a run: they are overwritten. */
static inline int kr_lm_slots_has_fixed(const kr_lm_slots *s) { return s->at[s->c->n_blocks] > 0; }

int32_t kr_lm_slots_dtype(const kr_lm_slots *s, const kr_lm_state *state);
int64_t kr_lm_slots_bytes(const kr_lm_slots *s, const kr_lm_state *state); /* of a slot; per token: of a token */
/* All states of fixed size of a block, of one slot. */
int64_t kr_lm_slots_block_bytes(const kr_lm_slots *s, const kr_lm_block *block);
char *kr_lm_slots_at(const kr_lm_slots *s, int64_t block, int k, int64_t slot);

/* Of a model (lm.c). */
struct kr_lm;
kr_lm_slots *kr_lm_slots_of(struct kr_lm *model);
int32_t kr_lm_reserve_tokens(struct kr_lm *model, int64_t n); /* capacity for texts of n tokens */

#endif

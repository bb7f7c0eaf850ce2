/* lm_slots.c: recurrent states are in one piece of memory for all slots and blocks. */
#include "lm_slots.h"

#include <string.h>

#include "alloc.h"
#include "status.h"

int32_t kr_lm_slots_dtype(const kr_lm_slots *s, const kr_lm_state *state) {
  if (state->is_per_token) return s->token_dtype;
  return state->is_narrowable && s->is_narrow ? s->dtype : KRAIT_F32;
}

int64_t kr_lm_slots_bytes(const kr_lm_slots *s, const kr_lm_state *state) {
  int64_t n = (int64_t)krait_dtype_bytes(kr_lm_slots_dtype(s, state));
  for (int i = 0; i < state->n_dims; i++) n *= state->size[i];
  return n;
}

int64_t kr_lm_slots_block_bytes(const kr_lm_slots *s, const kr_lm_block *block) {
  int64_t n = 0;
  for (int k = 0; k < block->n_states; k++)
    if (!block->states[k].is_per_token) n += kr_lm_slots_bytes(s, &block->states[k]);
  return n;
}

char *kr_lm_slots_at(const kr_lm_slots *s, int64_t block, int k, int64_t slot) {
  const kr_lm_block *b = &s->c->blocks[block];
  int64_t at = s->at[block];
  if (b->states[k].is_per_token) return kr_token_cache_at(&s->cache, b->states[k].nth, slot);
  for (int i = 0; i < k; i++)
    if (!b->states[i].is_per_token) at += s->n * kr_lm_slots_bytes(s, &b->states[i]);
  return s->fixed + at + slot * kr_lm_slots_bytes(s, &b->states[k]);
}

static void add_offsets(kr_lm_slots *s) {
  for (int64_t i = 0; i < s->c->n_blocks; i++)
    s->at[i + 1] = s->at[i] + s->n * kr_lm_slots_block_bytes(s, &s->c->blocks[i]);
}

static void set_token_bytes(kr_lm_slots *s) {
  for (int64_t i = 0; i < s->c->n_blocks; i++)
    for (int k = 0; k < s->c->blocks[i].n_states; k++) {
      const kr_lm_state *state = &s->c->blocks[i].states[k];
      if (state->is_per_token) s->cache.token_bytes[state->nth] = (uint64_t)kr_lm_slots_bytes(s, state);
    }
}

int32_t kr_lm_slots_open(kr_lm_slots *s) {
  const kr_lm_config *c = s->c;
  s->at = kr_alloc_array((size_t)c->n_blocks + 1, sizeof *s->at);
  s->lengths = kr_alloc_array((size_t)s->n, sizeof *s->lengths);
  s->is_lost = kr_alloc_array((size_t)s->n, sizeof *s->is_lost);
  KR_CHECK(s->at && s->lengths && s->is_lost, KRAIT_ERR_NO_MEMORY, "no memory for the states of %lld sequences",
           (long long)s->n);
  s->cache = (kr_token_cache){
      .ctx = s->ctx, .n = c->n_per_token, .n_slots = s->n, .ropes = c->ropes, .n_ropes = c->n_ropes};
  KR_TRY(kr_token_cache_open(&s->cache));
  set_token_bytes(s);
  add_offsets(s);
  if (s->borrows || !kr_lm_slots_has_fixed(s)) return KRAIT_OK;
  return kr_mem_get(s->ctx, "the states", (uint64_t)s->at[c->n_blocks], &s->fixed);
}

void kr_lm_slots_close(kr_lm_slots *s) {
  if (s->cache.ctx) kr_token_cache_close(&s->cache);
  if (s->fixed && !s->borrows) kr_mem_free(s->ctx, s->fixed);
  kr_free(s->at);
  kr_free(s->lengths);
  kr_free(s->is_lost);
  *s = (kr_lm_slots){0};
}

int32_t kr_lm_slots_lay_out(kr_lm_slots *s) {
  set_token_bytes(s);
  add_offsets(s);
  memset(s->is_lost, 1, (size_t)s->n * sizeof *s->is_lost); /* until it is reset */
  for (int64_t slot = 0; slot < s->n; slot++) KR_TRY(kr_lm_slots_reset(s, slot));
  return KRAIT_OK;
}

/* ---- slots ---- */

static int32_t check_slot(const kr_lm_slots *s, int64_t slot) {
  KR_CHECK(slot >= 0 && slot < s->n, KRAIT_ERR_ARGUMENT, "slot %lld is not one of the model's %lld", (long long)slot,
           (long long)s->n);
  return KRAIT_OK;
}

int32_t kr_lm_slots_check(const kr_lm_slots *s, int64_t slot) {
  KR_TRY(check_slot(s, slot));
  KR_CHECK(!s->is_lost[slot], KRAIT_ERR_ARGUMENT,
           "an earlier call failed while it read tokens, and the text's states are lost: start again with "
           "krait_lm_reset");
  return KRAIT_OK;
}

int32_t kr_lm_slots_reset(kr_lm_slots *s, int64_t slot) {
  KR_TRY(check_slot(s, slot));
  s->is_lost[slot] = 1;
  s->lengths[slot] = 0;
  for (int64_t i = 0; i < s->c->n_blocks; i++)
    for (int k = 0; k < s->c->blocks[i].n_states; k++) {
      const kr_lm_state *state = &s->c->blocks[i].states[k];
      if (!state->is_per_token)
        KR_TRY(kr_mem_fill(s->ctx, kr_lm_slots_at(s, i, k, slot), 0, (uint64_t)kr_lm_slots_bytes(s, state)));
    }
  s->is_lost[slot] = 0;
  return KRAIT_OK;
}

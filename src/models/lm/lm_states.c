/* lm_states.c: a slot's states as named tensors, and what they belong to. */
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "lm.h"
#include "lm_slots.h"
#include "status.h"
#include "view.h"

/* ---- states ---- */

typedef struct mover {
  kr_lm_slots *slots;
  int64_t slot;
  kr_lm_state_fn fn;
  void *user;
  int is_out;
} mover;

/* A state in host memory: n elements of a type at `stored`, as float32 at `host`. */
typedef struct buffer {
  float *host;
  kr_view stored;
  int64_t n;
  char *at; /* in the context's memory */
} buffer;

/* fn fills host in, or reads it. */
static int32_t move_buffer(const mover *v, const buffer *f, const char *name, int32_t n_dims, const int64_t *shape) {
  const krait_ctx *ctx = v->slots->ctx;
  const uint64_t bytes = (uint64_t)f->n * krait_dtype_bytes(f->stored.dtype);
  if (v->is_out) {
    KR_TRY(kr_mem_read(ctx, f->stored.data, f->at, bytes));
    for (int64_t i = 0; i < f->n; i++) f->host[i] = (float)kr_get(&f->stored, i);
    return v->fn(v->user, name, n_dims, shape, f->host);
  }
  KR_TRY(v->fn(v->user, name, n_dims, shape, f->host));
  for (int64_t i = 0; i < f->n; i++) kr_put(&f->stored, i, (double)f->host[i]);
  KR_TRY(kr_mem_put(ctx, f->at, f->stored.data, bytes));
  return kr_mem_wait(ctx);
}

static int32_t move_state(const mover *v, int64_t block, int k) {
  const kr_lm_block *b = &v->slots->c->blocks[block];
  const kr_lm_state *s = &b->states[k];
  int64_t shape[4] = {v->slots->lengths[v->slot]}, n = 1;
  const int32_t first = s->is_per_token != 0, n_dims = first + s->n_dims;
  char name[32];
  for (int d = 0; d < s->n_dims; d++) shape[first + d] = s->size[d];
  for (int d = 0; d < n_dims; d++) n *= shape[d];
  float *host = kr_alloc_array(2 * (size_t)n + 1, sizeof *host);
  KR_CHECK(host, KRAIT_ERR_NO_MEMORY, "no memory for a state");
  snprintf(name, sizeof name, "%s.%lld", s->name, (long long)b->layer);
  const buffer f = {.host = host,
                    .stored = {.data = host + n, .dtype = kr_lm_slots_dtype(v->slots, s)},
                    .n = n,
                    .at = kr_lm_slots_at(v->slots, block, k, v->slot)};
  const int32_t status = move_buffer(v, &f, name, n_dims, shape);
  kr_free(host);
  return status;
}

static int32_t move_states(const mover *v) {
  const kr_lm_config *c = v->slots->c;
  for (int64_t i = 0; i < c->n_blocks; i++)
    for (int k = 0; k < c->blocks[i].n_states; k++) KR_TRY(move_state(v, i, k));
  return KRAIT_OK;
}

int64_t kr_lm_n_states(const kr_lm *m) {
  const kr_lm_config *c = kr_lm_config_of(m);
  int64_t n = 0;
  for (int64_t i = 0; i < c->n_blocks; i++) n += c->blocks[i].n_states;
  return n;
}

int32_t kr_lm_states_out(kr_lm *m, int64_t slot, kr_lm_state_fn take, void *user) {
  KR_TRY(kr_lm_check(m, slot));
  return move_states(&(mover){kr_lm_slots_of(m), slot, take, user, 1});
}

int32_t kr_lm_states_in(kr_lm *m, int64_t slot, int64_t n_tokens, kr_lm_state_fn give, void *user) {
  kr_lm_slots *s = kr_lm_slots_of(m);
  KR_CHECK(slot >= 0 && slot < s->n, KRAIT_ERR_ARGUMENT, "slot %lld is not one of the model's %lld", (long long)slot,
           (long long)s->n);
  KR_CHECK(n_tokens >= 0 && n_tokens <= INT32_MAX / 2, KRAIT_ERR_ARGUMENT, "a text of %lld tokens",
           (long long)n_tokens);
  s->is_lost[slot] = 1;
  KR_TRY(kr_lm_reserve_tokens(m, n_tokens));
  s->lengths[slot] = (int32_t)n_tokens;
  KR_TRY(move_states(&(mover){s, slot, give, user, 0}));
  s->is_lost[slot] = 0;
  return KRAIT_OK;
}

/* ---- fingerprints ---- */

/* FNV-1a. */
static uint64_t hash_bytes(uint64_t hash, const void *data, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * 1099511628211u;
  return hash;
}
#define HASH(hash, value) hash_bytes(hash, &(value), sizeof(value))

/* Name, type, shape and contents: all of a small tensor, of a large one SAMPLES places spread over it. */
static uint64_t hash_tensor(const kr_weight *item) {
  enum { SAMPLES = 32, PLACE = 128 };
  const uint8_t *data = item->data;
  uint64_t hash = hash_bytes(14695981039346656037u, item->name, strlen(item->name) + 1);
  hash = HASH(hash, item->dtype);
  hash = hash_bytes(hash, item->shape, (uint64_t)item->n_dims * sizeof *item->shape);
  if (item->bytes <= SAMPLES * PLACE) return hash_bytes(hash, data, item->bytes);
  for (uint64_t k = 0; k < SAMPLES; k++)
    hash = hash_bytes(hash, data + (item->bytes - PLACE) / (SAMPLES - 1) * k, PLACE);
  return hash;
}

/* What changes a state: the blocks, with their sizes. */
static uint64_t hash_config(const kr_lm_config *c) {
  const int64_t whole[] = {c->d, c->is_rms, c->tied, c->n_ropes};
  const double real[] = {(double)c->eps, c->norm_offset, c->embedding_scale};
  uint64_t hash = HASH(1, whole);
  hash = HASH(hash, real);
  for (int32_t i = 0; i < c->n_ropes; i++) {
    hash = hash_bytes(hash, c->ropes[i].frequencies, (uint64_t)c->ropes[i].n * sizeof(double));
    hash = HASH(hash, c->ropes[i].factor);
  }
  for (int64_t i = 0; i < c->n_blocks; i++) {
    const kr_lm_block *b = &c->blocks[i];
    hash = hash_bytes(hash, b->kind->name, strlen(b->kind->name) + 1);
    hash = hash_bytes(HASH(hash, b->layer), b->sizes, b->kind->sizes_bytes);
    hash = HASH(HASH(HASH(hash, b->reads), b->in_scale), b->out_scale);
  }
  return hash;
}

void kr_lm_fingerprint(const kr_lm *m, const kr_model_folder *folder, char *text, size_t n) {
  const kr_lm_config *c = kr_lm_config_of(m);
  uint64_t hash = hash_config(c);
  const kr_weight *item;
  for (int64_t i = 0; (item = kr_model_folder_at(folder, i)); i++) hash += hash_tensor(item); /* in any order */
  if (kr_lm_converted_to(m)) hash += (uint64_t)kr_lm_converted_to(m);
  snprintf(text, n, "%s %lld %lld %016llx", c->family->name, (long long)c->n_layers, (long long)c->V,
           (unsigned long long)hash);
}

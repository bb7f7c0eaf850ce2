/* lm_family.c: detects the kind of language model in a folder. */
#include "lm_family.h"

#include <stdio.h>
#include <string.h>

#include "status.h"

static void describe_lm_family(kr_lm *m) {
#define TAKE(c) \
  m->V = (c)->V, m->n_used = (c)->n_used, m->n_layers = (c)->n_layers, m->eos = (c)->eos, m->n_eos = (c)->n_eos
  if (m->qwen2)
    TAKE(kr_qwen2_config_of(m->qwen2));
  else
    TAKE(kr_mamba_lm_config_of(m->mamba));
#undef TAKE
}

int32_t kr_lm_open(const krait_ctx *ctx, const kr_model_folder *folder, int64_t n_slots, int64_t n_tokens,
                    kr_lm *m) {
  *m = (kr_lm){0};
  KR_TRY(kr_qwen2_is(folder) ? kr_qwen2_open(ctx, folder, n_slots, n_tokens, &m->qwen2)
                             : kr_mamba_lm_open(ctx, folder, n_slots, n_tokens, &m->mamba));
  describe_lm_family(m);
  return KRAIT_OK;
}

int32_t kr_lm_open_random(const krait_ctx *ctx, const kr_mamba_lm_config *mamba, const kr_qwen2_config *qwen2,
                           int32_t dtype, int64_t n_slots, kr_lm *m) {
  *m = (kr_lm){0};
  KR_TRY(qwen2 ? kr_qwen2_open_random(ctx, qwen2, dtype, n_slots, &m->qwen2)
               : kr_mamba_lm_open_random(ctx, mamba, dtype, n_slots, &m->mamba));
  describe_lm_family(m);
  return KRAIT_OK;
}

void kr_lm_close(kr_lm *m) {
  kr_mamba_lm_close(&m->mamba);
  kr_qwen2_close(&m->qwen2);
}

uint64_t kr_lm_bytes(const kr_lm *m) { return m->qwen2 ? kr_qwen2_bytes(m->qwen2) : kr_mamba_lm_bytes(m->mamba); }

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

/* What changes a state, except for sizes, which the tensors have. */
static uint64_t hash_mamba(const kr_mamba_lm_config *c) {
  const kr_mamba_lm_attention *a = &c->attention;
  const int64_t sizes[] = {c->mixer, c->G, c->is_rms, a->H, a->Hk, a->D, a->R, a->is_interleaved};
  const float reals[] = {c->eps, c->dt_eps, a->scale, a->base};
  const uint64_t hash = hash_bytes(HASH(1, sizes), a->layers, (uint64_t)c->n_layers);
  return HASH(hash, reals);
}
static uint64_t hash_qwen2(const kr_qwen2_config *c) {
  const int64_t sizes[] = {c->H, c->Hk, c->D, c->is_tied};
  const uint64_t hash = HASH(HASH(1, sizes), c->eps);
  return HASH(hash, c->base);
}

void kr_lm_fingerprint(const kr_lm *m, const kr_model_folder *folder, char *text, size_t n) {
  uint64_t hash = m->qwen2 ? hash_qwen2(kr_qwen2_config_of(m->qwen2)) : hash_mamba(kr_mamba_lm_config_of(m->mamba));
  const kr_weight *item;
  for (int64_t i = 0; (item = kr_model_folder_at(folder, i)); i++) hash += hash_tensor(item); /* in any order */
  snprintf(text, n, "%s %lld %lld %016llx", m->qwen2 ? "qwen2" : "mamba_lm", (long long)m->n_layers, (long long)m->V,
           (unsigned long long)hash);
}

/* ---- calls ---- */

int32_t kr_any_check(const kr_lm *m, int64_t slot) {
  return m->qwen2 ? KRAIT_OK : kr_mamba_lm_check(m->mamba, slot);
}

int32_t kr_lm_reset(kr_lm *m, int64_t slot) {
  return m->qwen2 ? kr_qwen2_reset(m->qwen2, slot) : kr_mamba_lm_reset(m->mamba, slot);
}

int32_t kr_lm_prefill(kr_lm *m, int64_t slot, const int32_t *ids, const void *rows, int64_t n, int all,
                    float *logits) {
  KR_CHECK(!rows || m->qwen2, KRAIT_ERR_UNSUPPORTED, "this language model does not support embedded rows");
  return m->qwen2 ? kr_qwen2_prefill(m->qwen2, slot, ids, rows, n, all, logits)
                  : kr_mamba_lm_prefill(m->mamba, slot, ids, n, all, logits);
}

int32_t kr_lm_step(kr_lm *m, int64_t B, const int32_t *slots, const int32_t *ids, float *logits, int32_t *argmax) {
  return m->qwen2 ? kr_qwen2_step(m->qwen2, B, slots, ids, logits, argmax)
                  : kr_mamba_lm_step(m->mamba, B, slots, ids, logits, argmax);
}

int32_t kr_lm_step_again(kr_lm *m) {
  return m->qwen2 ? kr_qwen2_step_again(m->qwen2) : kr_mamba_lm_step_again(m->mamba);
}
int32_t kr_lm_profile_by_kernel(kr_lm *m, kr_runner_profile_fn fn, void *user) {
  return m->qwen2 ? kr_qwen2_profile_by_kernel(m->qwen2, fn, user) : kr_mamba_lm_profile_by_kernel(m->mamba, fn, user);
}
int32_t kr_lm_graph_of(kr_lm *m, int64_t n, const kr_graph **graph) {
  return m->qwen2 ? kr_qwen2_graph_of(m->qwen2, n, 0, graph) : kr_mamba_lm_graph_of(m->mamba, n, graph);
}
int32_t kr_lm_wait(const kr_lm *m) { return m->qwen2 ? kr_qwen2_wait(m->qwen2) : kr_mamba_lm_wait(m->mamba); }

int32_t kr_lm_states_out(kr_lm *m, int64_t slot, kr_mamba_lm_state_fn take, void *user) {
  return m->qwen2 ? kr_qwen2_states_out(m->qwen2, slot, take, user)
                  : kr_mamba_lm_states_out(m->mamba, slot, take, user);
}

int32_t kr_lm_states_in(kr_lm *m, int64_t slot, int64_t n_tokens, kr_mamba_lm_state_fn give, void *user) {
  return m->qwen2 ? kr_qwen2_states_in(m->qwen2, slot, n_tokens, give, user)
                  : kr_mamba_lm_states_in(m->mamba, slot, n_tokens, give, user);
}

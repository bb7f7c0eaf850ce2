/* mamba_lm.c: a model with the states of its slots, and cached graphs: one for decode steps per number of sequences,
 * and one for prompt chunks per recent length. */
#include "mamba_lm.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "kv_cache.h"
#include "status.h"
#include "view.h"

enum {
  MOST_GRAPHS = 8,
  PREFILL_CHUNK = 1024,
  SCORE_CHUNK = 128 /* logits of a whole chunk need much more memory */
};

struct kr_mamba_lm {
  const krait_ctx *ctx;
  kr_mamba_lm_config config;
  kr_mamba_lm_weights weights;
  int64_t n_slots;
  char *states; /* in the context's memory: for each layer the conv states of all slots, then the ssm states of all
                   slots */
  int64_t *at;  /* offset of each layer's states, and the end */
  kr_kv_cache cache; /* of attention layers, with capacity for the longest text */
  int32_t *lengths;  /* of each slot's text */
  uint8_t *is_lost;  /* by slot: a call that failed has left its states half computed */
  kr_mamba_lm_graph graphs[MOST_GRAPHS];
  uint64_t clock;
  int whole;       /* kr_mamba_lm_choose_fused */
  char *device;    /* on a GPU: ids, slots, logits */
  uint64_t logits_floats; /* capacity */
};

static int64_t conv_bytes(const kr_mamba_lm *m, int64_t layer) {
  return kr_mamba_lm_taps(&m->config, layer) ? kr_mamba_lm_channels(&m->config, layer) *
                                                   (kr_mamba_lm_taps(&m->config, layer) - 1) * (int64_t)sizeof(float)
                                             : 0;
}
static int64_t ssm_bytes(const kr_mamba_lm *m, int64_t layer) {
  const kr_mamba_lm_config *c = &m->config;
  return c->attention.layers[layer] ? 0 : c->Di * c->N * (int64_t)krait_dtype_bytes(c->state_dtype);
}
static uint64_t state_bytes(const kr_mamba_lm *m) { return (uint64_t)m->at[m->config.n_layers]; }
static char *conv_of(const kr_mamba_lm *m, int64_t layer, int64_t slot) {
  return m->states + m->at[layer] + slot * conv_bytes(m, layer);
}
static char *ssm_of(const kr_mamba_lm *m, int64_t layer, int64_t slot) {
  return conv_of(m, layer, m->n_slots) + slot * ssm_bytes(m, layer);
}
/* ---- memory of the context ---- */

static int32_t get_block(const kr_mamba_lm *m, const char *what, size_t bytes, void **block) {
  if (m->ctx->cuda) {
    KR_TRY(kr_cuda_alloc(m->ctx->cuda, bytes, block));
    return kr_cuda_fill(m->ctx->cuda, *block, 0, bytes, NULL);
  }
  *block = kr_zalloc(bytes);
  KR_CHECK(*block, KRAIT_ERR_NO_MEMORY, "no memory for %s: %zu bytes", what, bytes);
  return KRAIT_OK;
}

static void free_mamba_lm_block(const kr_mamba_lm *m, void *block) {
  if (m->ctx->cuda) kr_cuda_free(m->ctx->cuda, block);
  else kr_free(block);
}

static int32_t put(const kr_mamba_lm *m, void *to, const void *from, size_t bytes) {
  if (m->ctx->cuda) return kr_cuda_copy_in(m->ctx->cuda, to, from, bytes, NULL);
  if (from) memcpy(to, from, bytes);
  return KRAIT_OK;
}

static int32_t get(const kr_mamba_lm *m, void *to, const void *from, size_t bytes) {
  if (m->ctx->cuda) {
    KR_TRY(kr_cuda_copy_out(m->ctx->cuda, to, from, bytes, NULL));
    return kr_cuda_wait(m->ctx->cuda, NULL);
  }
  memcpy(to, from, bytes);
  return KRAIT_OK;
}

/* ---- open and close ---- */

static int32_t get_states(kr_mamba_lm *m) {
  const int64_t n = m->config.n_layers;
  m->at = kr_alloc_array((size_t)n + 1, sizeof *m->at);
  m->lengths = kr_alloc_array((size_t)m->n_slots, sizeof *m->lengths);
  m->is_lost = kr_alloc_array((size_t)m->n_slots, sizeof *m->is_lost);
  KR_CHECK(m->at && m->lengths && m->is_lost, KRAIT_ERR_NO_MEMORY, "no memory for the states of %lld sequences",
           (long long)m->n_slots);
  const kr_mamba_lm_attention *a = &m->config.attention;
  m->cache = (kr_kv_cache){.ctx = m->ctx,
                           .n_layers = n,
                           .n_slots = m->n_slots,
                           .token_bytes = (uint64_t)(a->Hk * a->D) * krait_dtype_bytes(m->weights.dtype),
                           .attention = a->layers,
                           .n_pairs = a->R,
                           .base = (double)a->base};
  KR_TRY(kr_kv_cache_open(&m->cache));
  for (int64_t i = 0; i < n; i++) m->at[i + 1] = m->at[i] + m->n_slots * (conv_bytes(m, i) + ssm_bytes(m, i));
  return get_block(m, "the states", (size_t)state_bytes(m), (void **)&m->states);
}

static void close_mamba_lm_graphs(kr_mamba_lm *m) {
  for (int i = 0; i < MOST_GRAPHS; i++) kr_mamba_lm_graph_close(&m->graphs[i]);
}

int32_t kr_mamba_lm_narrow_states(kr_mamba_lm *m) {
  close_mamba_lm_graphs(m);
  m->config.state_dtype = m->weights.dtype;
  for (int64_t i = 0; i < m->config.n_layers; i++)
    m->at[i + 1] = m->at[i] + m->n_slots * (conv_bytes(m, i) + ssm_bytes(m, i));
  for (int64_t slot = 0; slot < m->n_slots; slot++)
    KR_TRY(kr_mamba_lm_reset(m, slot)); /* they need less than is
                                      available */
  return KRAIT_OK;
}

/* Makes room for texts of n tokens; the capacity is part of the graphs' shapes. */
static int32_t reserve_kv(kr_mamba_lm *m, int64_t n) {
  if (!m->config.attention.n || n <= m->cache.capacity) return KRAIT_OK;
  close_mamba_lm_graphs(m);
  return kr_kv_cache_grow(&m->cache, n);
}

int32_t kr_mamba_lm_open(const krait_ctx *ctx, const kr_model_folder *folder, int64_t n_slots, int64_t n_tokens,
                    kr_mamba_lm **model) {
  kr_mamba_lm *m = *model = kr_zalloc(sizeof *m);
  KR_CHECK(m, KRAIT_ERR_NO_MEMORY, "no memory for a model");
  m->ctx = ctx, m->n_slots = n_slots;
  int32_t status = kr_mamba_lm_config_read(folder, &m->config);
  if (n_tokens > 0 && n_tokens < m->config.n_used) m->config.n_used = n_tokens;
  if (status >= 0) status = kr_mamba_lm_weights_read(ctx, folder, &m->config, &m->weights);
  if (status >= 0) status = get_states(m);
  if (status < 0) kr_mamba_lm_close(model);
  return status;
}

int32_t kr_mamba_lm_open_random(const krait_ctx *ctx, const kr_mamba_lm_config *config, int32_t dtype, int64_t n_slots,
                           kr_mamba_lm **model) {
  kr_mamba_lm *m = *model = kr_zalloc(sizeof *m);
  KR_CHECK(m, KRAIT_ERR_NO_MEMORY, "no memory for a model");
  m->ctx = ctx, m->n_slots = n_slots, m->config = *config;
  int32_t status = kr_mamba_lm_weights_random(ctx, config, dtype, &m->weights);
  if (status >= 0) status = get_states(m);
  if (status < 0) kr_mamba_lm_close(model);
  return status;
}

void kr_mamba_lm_close(kr_mamba_lm **model) {
  kr_mamba_lm *m = *model;
  if (!m) return;
  close_mamba_lm_graphs(m);
  kr_mamba_lm_weights_free(m->ctx, &m->weights);
  kr_kv_cache_close(&m->cache);
  free_mamba_lm_block(m, m->states);
  free_mamba_lm_block(m, m->device);
  kr_free(m->at);
  kr_free(m->lengths);
  kr_free(m->is_lost);
  kr_free(m);
  *model = NULL;
}

const kr_mamba_lm_config *kr_mamba_lm_config_of(const kr_mamba_lm *m) { return &m->config; }
uint64_t kr_mamba_lm_bytes(const kr_mamba_lm *m) { return m->weights.bytes; }

/* ---- graphs ---- */

/* The graph of this run: a cached one, or a new one in place of the least recently used. */
static int32_t get_mamba_lm_graph(kr_mamba_lm *m, const kr_mamba_lm_run *run, kr_mamba_lm_graph **graph) {
  kr_mamba_lm_graph *oldest = m->graphs;
  for (int i = 0; i < MOST_GRAPHS; i++) {
    kr_mamba_lm_graph *g = *graph = &m->graphs[i];
    const kr_mamba_lm_run *r = &g->run;
    if (g->g && r->B == run->B && r->L == run->L && r->is_step == run->is_step && r->all == run->all &&
        r->whole == run->whole && r->apart == run->apart)
      return KRAIT_OK;
    if (g->used < oldest->used || !g->g) oldest = g;
    if (!oldest->g) break;
  }
  *graph = oldest;
  kr_mamba_lm_graph_close(oldest);
  return kr_mamba_lm_graph_open(m->ctx, &m->config, &m->weights, run, m->n_slots, m->cache.capacity, oldest);
}

enum { IDS_BYTES = 4 * PREFILL_CHUNK, N_LISTS = 4 }; /* ids, slots, lengths, best; then logits */

/* Buffers for inputs and outputs. */
static int32_t mamba_lm_reserve_slots(kr_mamba_lm *m, uint64_t floats) {
  if (m->device && floats <= m->logits_floats) return KRAIT_OK;
  free_mamba_lm_block(m, m->device);
  m->device = NULL;
  KR_TRY(get_block(m, "logits", N_LISTS * IDS_BYTES + (size_t)floats * sizeof(float), (void **)&m->device));
  m->logits_floats = floats;
  return KRAIT_OK;
}

static int32_t bind_layer(kr_mamba_lm *m, const kr_mamba_lm_graph *g, int64_t i, int64_t slot) {
  const uint64_t text = kr_kv_cache_at(&m->cache, slot);
  if (g->conv[i] && !g->all_conv) KR_TRY(kr_runner_bind(g->runner, g->conv[i], conv_of(m, i, slot)));
  if (g->ssm[i] && !g->all_ssm) KR_TRY(kr_runner_bind(g->runner, g->ssm[i], ssm_of(m, i, slot)));
  if (g->keys[i]) KR_TRY(kr_runner_bind(g->runner, g->keys[i], m->cache.keys[i] + text));
  return g->values[i] ? kr_runner_bind(g->runner, g->values[i], m->cache.values[i] + text) : KRAIT_OK;
}

static int32_t bind_mamba_lm(kr_mamba_lm *m, const kr_mamba_lm_graph *g, int64_t slot) {
  for (int64_t i = 0; i < m->config.n_layers; i++) KR_TRY(bind_layer(m, g, i, slot));
  if (g->all_conv) KR_TRY(kr_runner_bind(g->runner, g->all_conv, conv_of(m, 0, slot)));
  if (g->all_ssm) KR_TRY(kr_runner_bind(g->runner, g->all_ssm, ssm_of(m, 0, slot)));
  KR_TRY(kr_runner_bind(g->runner, g->ids, m->device));
  if (g->slots) KR_TRY(kr_runner_bind(g->runner, g->slots, m->device + IDS_BYTES));
  if (g->argmax) KR_TRY(kr_runner_bind(g->runner, g->argmax, m->device + 3 * IDS_BYTES));
  if (g->lengths) KR_TRY(kr_runner_bind(g->runner, g->lengths, m->device + 2 * IDS_BYTES));
  if (g->cos) KR_TRY(kr_runner_bind(g->runner, g->cos, m->cache.cos));
  if (g->sin) KR_TRY(kr_runner_bind(g->runner, g->sin, m->cache.sin));
  return kr_runner_bind(g->runner, g->logits, m->device + N_LISTS * IDS_BYTES);
}

/* Slots and lengths of a run's sequences. */
static int32_t put_mamba_lm_lists(kr_mamba_lm *m, const kr_mamba_lm_run *run, int64_t slot, const int32_t *slots) {
  int32_t lengths[PREFILL_CHUNK];
  for (int64_t b = 0; b < run->B; b++) lengths[b] = m->lengths[slots ? slots[b] : slot];
  if (run->is_step) KR_TRY(put(m, m->device + IDS_BYTES, slots, (size_t)run->B * sizeof *slots));
  return m->config.attention.n ? put(m, m->device + 2 * IDS_BYTES, lengths, (size_t)run->B * sizeof *lengths)
                               : KRAIT_OK;
}

static int32_t reserve_all(kr_mamba_lm *m, const kr_mamba_lm_run *run, int64_t slot, const int32_t *slots,
                           uint64_t floats) {
  int64_t longest = 0;
  for (int64_t b = 0; b < run->B; b++) {
    const int64_t n = m->lengths[slots ? slots[b] : slot] + run->L;
    longest = n > longest ? n : longest;
  }
  KR_TRY(reserve_kv(m, longest));
  return mamba_lm_reserve_slots(m, floats);
}

static int32_t run_mamba_lm(kr_mamba_lm *m, const kr_mamba_lm_run *run, int64_t slot, const int32_t *slots,
                            const int32_t *ids, float *logits, int32_t *argmax) {
  const uint64_t rows = (uint64_t)(run->is_step ? run->B
                                   : run->all   ? run->L
                                                : 1),
                 floats = rows * (uint64_t)m->config.V;
  kr_mamba_lm_graph *g;
  for (int64_t i = 0; i < run->B * run->L; i++)
    KR_CHECK(ids[i] >= 0 && ids[i] < m->config.V, KRAIT_ERR_ARGUMENT, "token %d is not one of the model's %lld", ids[i],
             (long long)m->config.V);
  KR_TRY(reserve_all(m, run, slot, slots, floats));
  KR_TRY(get_mamba_lm_graph(m, run, &g));
  g->used = ++m->clock;
  KR_TRY(bind_mamba_lm(m, g, slot));
  KR_TRY(put(m, m->device, ids, (size_t)(run->B * run->L) * sizeof *ids));
  KR_TRY(put_mamba_lm_lists(m, run, slot, slots));
  KR_TRY(kr_runner_prepare(g->runner));
  for (int64_t b = 0; b < run->B; b++) m->is_lost[slots ? slots[b] : slot] = 1; /* until everything has succeeded */
  KR_TRY(kr_runner_run(g->runner, NULL));
  if (argmax) KR_TRY(get(m, argmax, m->device + 3 * IDS_BYTES, (size_t)run->B * sizeof *argmax));
  if (logits) KR_TRY(get(m, logits, m->device + N_LISTS * IDS_BYTES, (size_t)floats * sizeof(float)));
  for (int64_t b = 0; b < run->B; b++) {
    m->lengths[slots ? slots[b] : slot] += (int32_t)run->L;
    m->is_lost[slots ? slots[b] : slot] = 0;
  }
  return KRAIT_OK;
}

/* ---- requests of callers ---- */

static int32_t check_mamba_lm_slot(const kr_mamba_lm *m, int64_t slot) {
  KR_CHECK(slot >= 0 && slot < m->n_slots, KRAIT_ERR_ARGUMENT, "slot %lld is not one of the model's %lld",
           (long long)slot, (long long)m->n_slots);
  return KRAIT_OK;
}

int32_t kr_mamba_lm_check(const kr_mamba_lm *m, int64_t slot) {
  KR_TRY(check_mamba_lm_slot(m, slot));
  KR_CHECK(!m->is_lost[slot], KRAIT_ERR_ARGUMENT, KR_TEXT_IS_LOST);
  return KRAIT_OK;
}

int32_t kr_mamba_lm_reset(kr_mamba_lm *m, int64_t slot) {
  KR_TRY(check_mamba_lm_slot(m, slot));
  m->is_lost[slot] = 1;
  m->lengths[slot] = 0;
  for (int64_t i = 0; i < m->config.n_layers; i++) {
    char *const parts[] = {conv_of(m, i, slot), ssm_of(m, i, slot)};
    const size_t bytes[] = {(size_t)conv_bytes(m, i), (size_t)ssm_bytes(m, i)};
    for (int k = 0; k < 2; k++) {
      if (m->ctx->cuda) KR_TRY(kr_cuda_fill(m->ctx->cuda, parts[k], 0, bytes[k], NULL));
      else memset(parts[k], 0, bytes[k]);
    }
  }
  m->is_lost[slot] = 0;
  return KRAIT_OK;
}

static int32_t read_mamba_lm_pieces(kr_mamba_lm *m, int64_t slot, const int32_t *ids, int64_t n, int all,
                                    float *logits) {
  const int64_t most = all ? SCORE_CHUNK : PREFILL_CHUNK;
  for (int64_t at = 0, L; at < n; at += L) {
    L = n - at < most ? n - at : most;
    KR_TRY(run_mamba_lm(m, &(kr_mamba_lm_run){.B = 1, .L = L, .all = all}, slot, NULL, ids + at,
               all           ? logits + at * m->config.V
               : at + L == n ? logits
                             : NULL,
               NULL));
  }
  return KRAIT_OK;
}

int32_t kr_mamba_lm_prefill(kr_mamba_lm *m, int64_t slot, const int32_t *ids, int64_t n, int all, float *logits) {
  KR_TRY(kr_mamba_lm_check(m, slot));
  KR_CHECK(n >= 1, KRAIT_ERR_ARGUMENT, "there are no tokens to read");
  const int32_t before = m->lengths[slot], status = read_mamba_lm_pieces(m, slot, ids, n, all, logits);
  m->is_lost[slot] |= status < 0 && m->lengths[slot] != before; /* earlier pieces have been read */
  return status;
}

int32_t kr_mamba_lm_step(kr_mamba_lm *m, int64_t B, const int32_t *slots, const int32_t *ids, float *logits,
                         int32_t *argmax) {
  KR_CHECK(B >= 1 && B <= PREFILL_CHUNK, KRAIT_ERR_ARGUMENT, "a step of %lld sequences; it takes 1 to %d", (long long)B,
           PREFILL_CHUNK);
  for (int64_t b = 0; b < B; b++) KR_TRY(kr_mamba_lm_check(m, slots[b]));
  return run_mamba_lm(m, &(kr_mamba_lm_run){.B = B, .L = 1, .is_step = 1, .whole = m->whole > 0, .apart = m->whole < 0},
                      0, slots, ids, logits, argmax);
}

static const kr_mamba_lm_graph *mamba_lm_latest_of(const kr_mamba_lm *m) {
  const kr_mamba_lm_graph *latest = m->graphs;
  for (int i = 1; i < MOST_GRAPHS; i++)
    if (m->graphs[i].used > latest->used) latest = &m->graphs[i];
  return latest;
}

int32_t kr_mamba_lm_profile_by_kernel(kr_mamba_lm *m, kr_runner_profile_fn fn, void *user) {
  const kr_mamba_lm_graph *latest = mamba_lm_latest_of(m);
  KR_CHECK(latest->g, KRAIT_ERR_ARGUMENT, "there was no run before");
  return kr_runner_profile_by_kernel(latest->runner, fn, user);
}

int32_t kr_mamba_lm_graph_of(kr_mamba_lm *m, int64_t n, const kr_graph **graph) {
  kr_mamba_lm_graph *found;
  KR_CHECK(n >= 0 && n <= PREFILL_CHUNK, KRAIT_ERR_ARGUMENT, "a graph reads 1 to %d tokens at once", PREFILL_CHUNK);
  KR_TRY(reserve_kv(m, n + 1));
  KR_TRY(get_mamba_lm_graph(m, &(kr_mamba_lm_run){.B = 1, .L = n ? n : 1, .is_step = n == 0}, &found));
  *graph = found->g;
  return KRAIT_OK;
}

int32_t kr_mamba_lm_step_again(kr_mamba_lm *m) {
  const kr_mamba_lm_graph *latest = mamba_lm_latest_of(m);
  KR_CHECK(latest->g && latest->run.is_step, KRAIT_ERR_ARGUMENT, "there was no step before");
  return kr_runner_run(latest->runner, NULL);
}

void kr_mamba_lm_choose_fused(kr_mamba_lm *m, int whole) { m->whole = whole; }
int kr_mamba_lm_was_fused(const kr_mamba_lm *m) {
  return mamba_lm_latest_of(m)->run.is_step && mamba_lm_latest_of(m)->all_ssm;
}

int32_t kr_mamba_lm_wait(const kr_mamba_lm *m) { return m->ctx->cuda ? kr_cuda_wait(m->ctx->cuda, NULL) : KRAIT_OK; }

/* ---- states ---- */

typedef struct mover {
  kr_mamba_lm_state_fn fn;
  void *user;
  int is_out;
} mover;

/* Stored as dtype, exposed as float32. */
static int32_t move_mamba_lm_one(kr_mamba_lm *m, const mover *v, const char *kind, int64_t layer, int32_t n_dims,
                        const int64_t *shape, void *at, int32_t dtype) {
  int64_t n = 1;
  char name[32];
  for (int i = 0; i < n_dims; i++) n *= shape[i];
  const size_t bytes = (size_t)n * krait_dtype_bytes(dtype);
  float *host = kr_alloc_array(2 * (size_t)n + 1, sizeof *host);
  KR_CHECK(host, KRAIT_ERR_NO_MEMORY, "no memory for a state");
  const krait_view stored = {.data = host + n, .dtype = dtype};
  snprintf(name, sizeof name, "%s.%lld", kind, (long long)layer);
  int32_t status = v->is_out ? get(m, stored.data, at, bytes) : KRAIT_OK;
  for (int64_t i = 0; v->is_out && i < n; i++) host[i] = (float)kr_get(&stored, i);
  if (status >= 0) status = v->fn(v->user, name, n_dims, shape, host);
  for (int64_t i = 0; !v->is_out && i < n; i++) kr_put(&stored, i, (double)host[i]);
  if (status >= 0 && !v->is_out) status = put(m, at, stored.data, bytes);
  if (status >= 0 && !v->is_out && m->ctx->cuda) status = kr_cuda_wait(m->ctx->cuda, NULL);
  kr_free(host);
  return status;
}

static int32_t move_layer(kr_mamba_lm *m, int64_t slot, int64_t i, const mover *v) {
  const kr_mamba_lm_config *c = &m->config;
  const kr_mamba_lm_attention *a = &c->attention;
  if (conv_bytes(m, i))
    KR_TRY(move_mamba_lm_one(m, v, "conv", i, 2, (int64_t[]){kr_mamba_lm_channels(c, i), kr_mamba_lm_taps(c, i) - 1},
                             conv_of(m, i, slot), KRAIT_F32));
  if (!a->layers[i])
    return move_mamba_lm_one(m, v, "ssm", i, 3, (int64_t[]){c->H, c->P, c->N}, ssm_of(m, i, slot), c->state_dtype);
  const uint64_t text = kr_kv_cache_at(&m->cache, slot);
  const int64_t shape[] = {m->lengths[slot], a->Hk, a->D};
  KR_TRY(move_mamba_lm_one(m, v, "keys", i, 3, shape, m->cache.keys[i] + text, m->weights.dtype));
  return move_mamba_lm_one(m, v, "values", i, 3, shape, m->cache.values[i] + text, m->weights.dtype);
}

static int32_t move_mamba_lm_states(kr_mamba_lm *m, int64_t slot, const mover *v) {
  for (int64_t i = 0; i < m->config.n_layers; i++) KR_TRY(move_layer(m, slot, i, v));
  return KRAIT_OK;
}

int32_t kr_mamba_lm_states_out(kr_mamba_lm *m, int64_t slot, kr_mamba_lm_state_fn take, void *user) {
  KR_TRY(kr_mamba_lm_check(m, slot));
  return move_mamba_lm_states(m, slot, &(mover){take, user, 1});
}

int32_t kr_mamba_lm_states_in(kr_mamba_lm *m, int64_t slot, int64_t n_tokens, kr_mamba_lm_state_fn give, void *user) {
  KR_TRY(check_mamba_lm_slot(m, slot));
  KR_CHECK(n_tokens >= 0 && n_tokens <= INT32_MAX / 2, KRAIT_ERR_ARGUMENT, "a text of %lld tokens",
           (long long)n_tokens);
  m->is_lost[slot] = 1;
  KR_TRY(reserve_kv(m, n_tokens));
  m->lengths[slot] = (int32_t)n_tokens;
  KR_TRY(move_mamba_lm_states(m, slot, &(mover){give, user, 0}));
  m->is_lost[slot] = 0;
  return KRAIT_OK;
}

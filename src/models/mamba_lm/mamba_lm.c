/* mamba_lm.c: a model with the states of its slots, and the graphs that run over them: one for steps of each number of sequences, one for pieces of a
 * prompt of each length that came lately. */
#include "mamba_lm.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "status.h"

enum { MOST_GRAPHS = 8, PIECE = 1024, PIECE_ALL = 128 }; /* logits of a whole piece take much more memory */

struct kr_mlm {
  const krait_ctx *ctx;
  kr_mlm_config config;
  kr_mlm_weights weights;
  int64_t n_slots, conv_floats, ssm_floats; /* of a layer and slot */
  float *states;   /* where the context computes: of each layer the conv states of all slots, then the ssm states of all slots */
  kr_mlm_graph graphs[MOST_GRAPHS];
  uint64_t clock;
  char *device;    /* a GPU's: ids, slots, logits */
  uint64_t logits_floats; /* room for so many */
};

static uint64_t state_bytes(const kr_mlm *m) { return (uint64_t)(m->config.n_layers * m->n_slots * (m->conv_floats + m->ssm_floats)) * sizeof(float); }
static float *conv_of(const kr_mlm *m, int64_t layer, int64_t slot) { return m->states + layer * m->n_slots * (m->conv_floats + m->ssm_floats) + slot * m->conv_floats; }
static float *ssm_of(const kr_mlm *m, int64_t layer, int64_t slot) { return conv_of(m, layer, m->n_slots) + slot * m->ssm_floats; }

/* ---- open and close ---- */

static int32_t get_states(kr_mlm *m) {
  const kr_mlm_config *c = &m->config;
  m->conv_floats = (c->mixer == KR_MIXER_MAMBA1 ? c->Di : c->Di + 2 * c->G * c->N) * (c->W - 1);
  m->ssm_floats = c->Di * c->N;
  if (m->ctx->cuda) {
    KR_TRY(kr_cuda_alloc(m->ctx->cuda, (size_t)state_bytes(m), (void **)&m->states));
    return kr_cuda_fill(m->ctx->cuda, m->states, 0, (size_t)state_bytes(m), NULL);
  }
  m->states = kr_zalloc((size_t)state_bytes(m));
  KR_CHECK(m->states, KRAIT_ERR_NO_MEMORY, "no memory for the states of %lld sequences: %llu bytes", (long long)m->n_slots, (unsigned long long)state_bytes(m));
  return KRAIT_OK;
}

int32_t kr_mlm_open(const krait_ctx *ctx, const kr_model_folder *folder, int64_t n_slots, kr_mlm **model) {
  kr_mlm *m = *model = kr_zalloc(sizeof *m);
  KR_CHECK(m, KRAIT_ERR_NO_MEMORY, "no memory for a model");
  m->ctx = ctx, m->n_slots = n_slots;
  int32_t status = kr_mlm_config_read(folder, &m->config);
  if (status >= 0) status = kr_mlm_weights_read(ctx, folder, &m->config, &m->weights);
  if (status >= 0) status = get_states(m);
  if (status < 0) kr_mlm_close(model);
  return status;
}

int32_t kr_mlm_open_random(const krait_ctx *ctx, const kr_mlm_config *config, int32_t dtype, int64_t n_slots, kr_mlm **model) {
  kr_mlm *m = *model = kr_zalloc(sizeof *m);
  KR_CHECK(m, KRAIT_ERR_NO_MEMORY, "no memory for a model");
  m->ctx = ctx, m->n_slots = n_slots, m->config = *config;
  int32_t status = kr_mlm_weights_random(ctx, config, dtype, &m->weights);
  if (status >= 0) status = get_states(m);
  if (status < 0) kr_mlm_close(model);
  return status;
}

void kr_mlm_close(kr_mlm **model) {
  kr_mlm *m = *model;
  if (!m) return;
  for (int i = 0; i < MOST_GRAPHS; i++) kr_mlm_graph_close(&m->graphs[i]);
  kr_mlm_weights_free(m->ctx, &m->weights);
  if (m->ctx->cuda) {
    kr_cuda_free(m->ctx->cuda, m->states);
    kr_cuda_free(m->ctx->cuda, m->device);
  } else {
    kr_free(m->states);
    kr_free(m->device);
  }
  kr_free(m);
  *model = NULL;
}

const kr_mlm_config *kr_mlm_config_of(const kr_mlm *m) { return &m->config; }
uint64_t kr_mlm_bytes(const kr_mlm *m) { return m->weights.bytes; }

/* ---- graphs ---- */

/* The graph of this run: one that is there, or a new one in the place of that which was used least lately. */
static int32_t get_graph(kr_mlm *m, const kr_mlm_run *run, kr_mlm_graph **graph) {
  kr_mlm_graph *oldest = m->graphs;
  for (int i = 0; i < MOST_GRAPHS; i++) {
    kr_mlm_graph *g = *graph = &m->graphs[i];
    const kr_mlm_run *r = &g->run;
    if (g->g && r->B == run->B && r->L == run->L && r->is_step == run->is_step && r->all == run->all) return KRAIT_OK;
    if (g->used < oldest->used || !g->g) oldest = g;
    if (!oldest->g) break;
  }
  *graph = oldest;
  kr_mlm_graph_close(oldest);
  return kr_mlm_graph_open(m->ctx, &m->config, &m->weights, run, m->n_slots, oldest);
}

enum { IDS_BYTES = 4 * PIECE }; /* ids, then slots, then logits */

/* Room for ids, slots and logits where the context computes. */
static int32_t get_room(kr_mlm *m, uint64_t floats) {
  const size_t bytes = 2 * IDS_BYTES + (size_t)floats * sizeof(float);
  if (m->device && floats <= m->logits_floats) return KRAIT_OK;
  if (m->ctx->cuda) {
    kr_cuda_free(m->ctx->cuda, m->device);
    m->device = NULL;
    KR_TRY(kr_cuda_alloc(m->ctx->cuda, bytes, (void **)&m->device));
  } else {
    kr_free(m->device);
    m->device = kr_alloc(bytes);
    KR_CHECK(m->device, KRAIT_ERR_NO_MEMORY, "no memory for the logits of %llu tokens", (unsigned long long)(floats / (uint64_t)m->config.V));
  }
  m->logits_floats = floats;
  return KRAIT_OK;
}

static int32_t put(const kr_mlm *m, void *to, const void *from, size_t bytes) {
  if (m->ctx->cuda) return kr_cuda_copy_in(m->ctx->cuda, to, from, bytes, NULL);
  if (from) memcpy(to, from, bytes);
  return KRAIT_OK;
}

static int32_t get(const kr_mlm *m, void *to, const void *from, size_t bytes) {
  if (m->ctx->cuda) {
    KR_TRY(kr_cuda_copy_out(m->ctx->cuda, to, from, bytes, NULL));
    return kr_cuda_wait(m->ctx->cuda, NULL);
  }
  memcpy(to, from, bytes);
  return KRAIT_OK;
}

static int32_t bind(kr_mlm *m, const kr_mlm_graph *g, int64_t slot) {
  for (int64_t i = 0; i < m->config.n_layers; i++) {
    KR_TRY(kr_runner_bind(g->runner, g->conv[i], conv_of(m, i, slot)));
    KR_TRY(kr_runner_bind(g->runner, g->ssm[i], ssm_of(m, i, slot)));
  }
  KR_TRY(kr_runner_bind(g->runner, g->ids, m->device));
  if (g->slots) KR_TRY(kr_runner_bind(g->runner, g->slots, m->device + IDS_BYTES));
  return kr_runner_bind(g->runner, g->logits, m->device + 2 * IDS_BYTES);
}

static int32_t run(kr_mlm *m, const kr_mlm_run *run, int64_t slot, const int32_t *slots, const int32_t *ids, float *logits) {
  const uint64_t rows = (uint64_t)(run->is_step ? run->B : run->all ? run->L : 1), floats = rows * (uint64_t)m->config.V;
  kr_mlm_graph *g;
  for (int64_t i = 0; i < run->B * run->L; i++) KR_CHECK(ids[i] >= 0 && ids[i] < m->config.V, KRAIT_ERR_ARGUMENT, "token %d is not one of the model's %lld", ids[i], (long long)m->config.V);
  KR_TRY(get_room(m, floats));
  KR_TRY(get_graph(m, run, &g));
  g->used = ++m->clock;
  KR_TRY(bind(m, g, slot));
  KR_TRY(put(m, m->device, ids, (size_t)(run->B * run->L) * sizeof *ids));
  if (run->is_step) KR_TRY(put(m, m->device + IDS_BYTES, slots, (size_t)run->B * sizeof *slots));
  KR_TRY(kr_runner_run(g->runner, NULL));
  return logits ? get(m, logits, m->device + 2 * IDS_BYTES, (size_t)floats * sizeof(float)) : KRAIT_OK;
}

/* ---- what callers ask for ---- */

static int32_t check_slot(const kr_mlm *m, int64_t slot) {
  KR_CHECK(slot >= 0 && slot < m->n_slots, KRAIT_ERR_ARGUMENT, "slot %lld is not one of the model's %lld", (long long)slot, (long long)m->n_slots);
  return KRAIT_OK;
}

int32_t kr_mlm_reset(kr_mlm *m, int64_t slot) {
  KR_TRY(check_slot(m, slot));
  for (int64_t i = 0; i < m->config.n_layers; i++) {
    float *const parts[] = {conv_of(m, i, slot), ssm_of(m, i, slot)};
    const size_t bytes[] = {(size_t)m->conv_floats * sizeof(float), (size_t)m->ssm_floats * sizeof(float)};
    for (int k = 0; k < 2; k++) {
      if (m->ctx->cuda) KR_TRY(kr_cuda_fill(m->ctx->cuda, parts[k], 0, bytes[k], NULL));
      else memset(parts[k], 0, bytes[k]);
    }
  }
  return KRAIT_OK;
}

int32_t kr_mlm_read(kr_mlm *m, int64_t slot, const int32_t *ids, int64_t n, int all, float *logits) {
  const int64_t most = all ? PIECE_ALL : PIECE;
  KR_TRY(check_slot(m, slot));
  KR_CHECK(n >= 1, KRAIT_ERR_ARGUMENT, "there are no tokens to read");
  for (int64_t at = 0, L; at < n; at += L) {
    L = n - at < most ? n - at : most;
    KR_TRY(run(m, &(kr_mlm_run){.B = 1, .L = L, .all = all}, slot, NULL, ids + at, all ? logits + at * m->config.V : at + L == n ? logits : NULL));
  }
  return KRAIT_OK;
}

int32_t kr_mlm_step(kr_mlm *m, int64_t B, const int32_t *slots, const int32_t *ids, float *logits) {
  KR_CHECK(B >= 1 && B <= PIECE, KRAIT_ERR_ARGUMENT, "a step of %lld sequences; it takes 1 to %d", (long long)B, PIECE);
  for (int64_t b = 0; b < B; b++) KR_TRY(check_slot(m, slots[b]));
  return run(m, &(kr_mlm_run){.B = B, .L = 1, .is_step = 1}, 0, slots, ids, logits);
}

/* ---- states ---- */

typedef struct mover {
  kr_mlm_state_fn fn;
  void *user;
  int is_out;
} mover;

static int32_t move_one(kr_mlm *m, const mover *v, const char *kind, int64_t layer, int32_t n_dims, const int64_t *shape, float *at) {
  int64_t n = 1;
  char name[32];
  for (int i = 0; i < n_dims; i++) n *= shape[i];
  float *host = kr_alloc_array((size_t)n, sizeof *host);
  KR_CHECK(host, KRAIT_ERR_NO_MEMORY, "no memory for a state");
  snprintf(name, sizeof name, "%s.%lld", kind, (long long)layer);
  int32_t status = v->is_out ? get(m, host, at, (size_t)n * sizeof *host) : KRAIT_OK;
  if (status >= 0) status = v->fn(v->user, name, n_dims, shape, host);
  if (status >= 0 && !v->is_out) status = put(m, at, host, (size_t)n * sizeof *host);
  if (status >= 0 && !v->is_out && m->ctx->cuda) status = kr_cuda_wait(m->ctx->cuda, NULL);
  kr_free(host);
  return status;
}

static int32_t move_states(kr_mlm *m, int64_t slot, const mover *v) {
  const kr_mlm_config *c = &m->config;
  KR_TRY(check_slot(m, slot));
  for (int64_t i = 0; i < c->n_layers; i++) {
    KR_TRY(move_one(m, v, "conv", i, 2, (int64_t[]){m->conv_floats / (c->W - 1), c->W - 1}, conv_of(m, i, slot)));
    KR_TRY(move_one(m, v, "ssm", i, 3, (int64_t[]){c->H, c->P, c->N}, ssm_of(m, i, slot)));
  }
  return KRAIT_OK;
}

int32_t kr_mlm_states_out(kr_mlm *m, int64_t slot, kr_mlm_state_fn take, void *user) { return move_states(m, slot, &(mover){take, user, 1}); }
int32_t kr_mlm_states_in(kr_mlm *m, int64_t slot, kr_mlm_state_fn give, void *user) { return move_states(m, slot, &(mover){give, user, 0}); }

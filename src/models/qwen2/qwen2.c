/* qwen2.c: a model with the keys and values of its slots, and cached graphs: one for decode steps per number of
 * sequences, and one for prompt chunks per recent length. */
#include "qwen2.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "kv_cache.h"
#include "status.h"
#include "view.h"

enum {
  MOST_GRAPHS = 8,
  PREFILL_CHUNK = 4096,
  SCORE_CHUNK = 128, /* logits of a whole chunk need much more memory */
  MOST_STEP = 1024
};
enum {
  LIST_BYTES = 4 * PREFILL_CHUNK,
  IDS = 0,
  SLOTS = LIST_BYTES,
  LENGTHS = 2 * LIST_BYTES,
  BEST = 3 * LIST_BYTES,
  LOGITS = 4 * LIST_BYTES
};

struct kr_qwen2 {
  const krait_ctx *ctx;
  kr_qwen2_config c;
  kr_qwen2_weights w;
  int64_t n_slots;
  kr_kv_cache cache; /* with capacity for the longest text */
  int32_t *lengths;  /* of each slot's text: only tokens that were read completely count */
  kr_qwen2_graph graphs[MOST_GRAPHS];
  uint64_t clock;
  char *lists; /* in the context's memory: ids, slots, lengths, best, then logits */
  uint64_t logits_floats;
};

static void close_qwen2_graphs(kr_qwen2 *m) {
  for (int i = 0; i < MOST_GRAPHS; i++) kr_qwen2_graph_close(&m->graphs[i]);
}

/* Makes room for texts of n tokens; the capacity is part of the graphs' shapes. */
static int32_t qwen2_reserve_slots(kr_qwen2 *m, int64_t n) {
  if (n <= m->cache.capacity) return KRAIT_OK;
  close_qwen2_graphs(m);
  return kr_kv_cache_grow(&m->cache, n);
}

/* ---- open and close ---- */

static int32_t open_qwen2_all(kr_qwen2 *m, const kr_model_folder *folder, int32_t dtype) {
  m->lengths = kr_alloc_array((size_t)m->n_slots, sizeof *m->lengths);
  KR_CHECK(m->lengths, KRAIT_ERR_NO_MEMORY, "no memory for %lld sequences", (long long)m->n_slots);
  KR_TRY(kr_qwen2_weights_open(m->ctx, folder, &m->c, dtype, &m->w));
  m->cache = (kr_kv_cache){.ctx = m->ctx,
                           .n_layers = m->c.n_layers,
                           .n_slots = m->n_slots,
                           .token_bytes = (uint64_t)(m->c.Hk * m->c.D) * krait_dtype_bytes(m->w.dtype),
                           .n_pairs = m->c.D / 2,
                           .base = m->c.base};
  return kr_kv_cache_open(&m->cache);
}

static int32_t make(const krait_ctx *ctx, int64_t n_slots, kr_qwen2 **model) {
  kr_qwen2 *m = *model = kr_zalloc(sizeof *m);
  KR_CHECK(m, KRAIT_ERR_NO_MEMORY, "no memory for a model");
  m->ctx = ctx, m->n_slots = n_slots;
  return KRAIT_OK;
}

int32_t kr_qwen2_open(const krait_ctx *ctx, const kr_model_folder *folder, int64_t n_slots, int64_t n_tokens,
                      kr_qwen2 **model) {
  KR_TRY(make(ctx, n_slots, model));
  kr_qwen2 *m = *model;
  int32_t status = kr_qwen2_config_read(folder, &m->c);
  if (n_tokens > 0 && n_tokens < m->c.n_used) m->c.n_used = n_tokens;
  if (status >= 0) status = open_qwen2_all(m, folder, 0);
  if (status < 0) kr_qwen2_close(model);
  return status;
}

int32_t kr_qwen2_open_random(const krait_ctx *ctx, const kr_qwen2_config *config, int32_t dtype, int64_t n_slots,
                             kr_qwen2 **model) {
  KR_TRY(make(ctx, n_slots, model));
  (*model)->c = *config;
  const int32_t status = open_qwen2_all(*model, NULL, dtype);
  if (status < 0) kr_qwen2_close(model);
  return status;
}

void kr_qwen2_close(kr_qwen2 **model) {
  kr_qwen2 *m = *model;
  if (!m) return;
  close_qwen2_graphs(m);
  kr_kv_cache_close(&m->cache);
  kr_qwen2_weights_close(&m->w);
  kr_mem_free(m->ctx, m->lists);
  kr_free(m->lengths);
  kr_free(m);
  *model = NULL;
}

const kr_qwen2_config *kr_qwen2_config_of(const kr_qwen2 *m) { return &m->c; }
uint64_t kr_qwen2_bytes(const kr_qwen2 *m) { return m->w.bytes; }
int32_t kr_qwen2_dtype(const kr_qwen2 *m) { return m->w.dtype; }
int32_t kr_qwen2_wait(const kr_qwen2 *m) { return m->ctx->cuda ? kr_cuda_wait(m->ctx->cuda, NULL) : KRAIT_OK; }

/* ---- runs ---- */

/* The graph of this run: a cached one, or a new one in place of the least recently used. */
static int32_t get_qwen2_graph(kr_qwen2 *m, const kr_qwen2_run *run, kr_qwen2_graph **graph) {
  kr_qwen2_graph *oldest = m->graphs;
  for (int i = 0; i < MOST_GRAPHS; i++) {
    kr_qwen2_graph *g = *graph = &m->graphs[i];
    const kr_qwen2_run *r = &g->run;
    if (g->g && r->B == run->B && r->L == run->L && r->is_step == run->is_step && r->all == run->all &&
        r->with_rows == run->with_rows)
      return KRAIT_OK;
    if (g->used < oldest->used) oldest = g;
  }
  *graph = oldest;
  kr_qwen2_graph_close(oldest);
  return kr_qwen2_graph_open(m->ctx, &m->c, &m->w, run, m->n_slots, m->cache.capacity, oldest);
}

static int32_t get_lists(kr_qwen2 *m, uint64_t floats) {
  if (m->lists && floats <= m->logits_floats) return KRAIT_OK;
  kr_mem_free(m->ctx, m->lists);
  m->lists = NULL;
  KR_TRY(kr_mem_get(m->ctx, "logits", LOGITS + floats * sizeof(float), &m->lists));
  m->logits_floats = floats;
  return KRAIT_OK;
}

static int32_t bind_qwen2(kr_qwen2 *m, const kr_qwen2_graph *g, int64_t slot, const void *rows) {
  const struct {
    kr_tensor t;
    const void *at;
  } all[] = {{g->ids, m->lists + IDS},     {g->rows, rows},
             {g->slots, m->lists + SLOTS}, {g->lengths, m->lists + LENGTHS},
             {g->cos, m->cache.cos},       {g->sin, m->cache.sin},
             {g->argmax, m->lists + BEST},   {g->logits, m->lists + LOGITS}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i].t) KR_TRY(kr_runner_bind(g->runner, all[i].t, (void *)(uintptr_t)all[i].at));
  for (int64_t i = 0; i < 2 * m->c.n_layers; i++)
    KR_TRY(kr_runner_bind(g->runner, g->keys[i], m->cache.keys[i] + kr_kv_cache_at(&m->cache, slot)));
  return KRAIT_OK;
}

static int32_t put_qwen2_lists(kr_qwen2 *m, const kr_qwen2_run *run, int64_t slot, const int32_t *slots,
                               const int32_t *ids) {
  int32_t lengths[MOST_STEP];
  for (int64_t b = 0; b < run->B; b++) lengths[b] = m->lengths[slots ? slots[b] : slot];
  KR_TRY(kr_mem_put(m->ctx, m->lists + IDS, ids, (uint64_t)(run->B * run->L) * sizeof *ids));
  if (slots) KR_TRY(kr_mem_put(m->ctx, m->lists + SLOTS, slots, (uint64_t)run->B * sizeof *slots));
  return kr_mem_put(m->ctx, m->lists + LENGTHS, lengths, (uint64_t)run->B * sizeof *lengths);
}

static int32_t run_qwen2(kr_qwen2 *m, const kr_qwen2_run *run, int64_t slot, const int32_t *slots, const int32_t *ids,
                   const void *rows, float *logits, int32_t *argmax) {
  const uint64_t floats = (uint64_t)((run->is_step ? run->B : run->all ? run->L : 1) * m->c.V);
  int64_t longest = 0;
  kr_qwen2_graph *g;
  for (int64_t i = 0; i < run->B * run->L; i++)
    KR_CHECK(ids[i] >= (rows ? -1 : 0) && ids[i] < m->c.V, KRAIT_ERR_ARGUMENT,
             "token %d is not one of the model's %lld", ids[i], (long long)m->c.V);
  for (int64_t b = 0; b < run->B; b++) {
    const int64_t n = m->lengths[slots ? slots[b] : slot] + run->L;
    longest = n > longest ? n : longest;
  }
  KR_TRY(qwen2_reserve_slots(m, longest));
  KR_TRY(get_lists(m, floats));
  KR_TRY(get_qwen2_graph(m, run, &g));
  g->used = ++m->clock;
  KR_TRY(bind_qwen2(m, g, slot, rows));
  KR_TRY(put_qwen2_lists(m, run, slot, slots, ids));
  KR_TRY(kr_runner_run(g->runner, NULL));
  if (argmax) KR_TRY(kr_mem_read(m->ctx, argmax, m->lists + BEST, (uint64_t)run->B * sizeof *argmax));
  if (logits) KR_TRY(kr_mem_read(m->ctx, logits, m->lists + LOGITS, floats * sizeof *logits));
  for (int64_t b = 0; b < run->B; b++) m->lengths[slots ? slots[b] : slot] += (int32_t)run->L;
  return KRAIT_OK;
}

/* ---- requests of callers ---- */

static int32_t check_qwen2_slot(const kr_qwen2 *m, int64_t slot) {
  KR_CHECK(slot >= 0 && slot < m->n_slots, KRAIT_ERR_ARGUMENT, "slot %lld is not one of the model's %lld",
           (long long)slot, (long long)m->n_slots);
  return KRAIT_OK;
}

int32_t kr_qwen2_reset(kr_qwen2 *m, int64_t slot) {
  KR_TRY(check_qwen2_slot(m, slot));
  m->lengths[slot] = 0;
  return KRAIT_OK;
}

static int32_t read_qwen2_pieces(kr_qwen2 *m, int64_t slot, const int32_t *ids, const void *rows, int64_t n, int all,
                           float *logits) {
  const int64_t most = all ? SCORE_CHUNK : PREFILL_CHUNK;
  const uint64_t row_bytes = (uint64_t)m->c.d * krait_dtype_bytes(m->w.dtype);
  for (int64_t at = 0, L; at < n; at += L) {
    L = n - at < most ? n - at : most;
    KR_TRY(run_qwen2(m, &(kr_qwen2_run){.B = 1, .L = L, .all = all, .with_rows = rows != NULL}, slot, NULL, ids + at,
               rows ? (const char *)rows + (uint64_t)at * row_bytes : NULL,
               all           ? logits + at * m->c.V
               : at + L == n ? logits
                             : NULL,
               NULL));
  }
  return KRAIT_OK;
}

int32_t kr_qwen2_prefill(kr_qwen2 *m, int64_t slot, const int32_t *ids, const void *rows, int64_t n, int all,
                      float *logits) {
  KR_TRY(check_qwen2_slot(m, slot));
  KR_CHECK(n >= 1, KRAIT_ERR_ARGUMENT, "there are no tokens to read");
  KR_TRY(qwen2_reserve_slots(m, m->lengths[slot] + n));
  const int32_t before = m->lengths[slot], status = read_qwen2_pieces(m, slot, ids, rows, n, all, logits);
  if (status < 0) m->lengths[slot] = before; /* what was written after it does not count */
  return status;
}

int32_t kr_qwen2_step(kr_qwen2 *m, int64_t B, const int32_t *slots, const int32_t *ids, float *logits,
                      int32_t *argmax) {
  KR_CHECK(B >= 1 && B <= MOST_STEP, KRAIT_ERR_ARGUMENT, "a step of %lld sequences; it takes 1 to %d", (long long)B,
           MOST_STEP);
  for (int64_t b = 0; b < B; b++) KR_TRY(check_qwen2_slot(m, slots[b]));
  return run_qwen2(m, &(kr_qwen2_run){.B = B, .L = 1, .is_step = 1}, 0, slots, ids, NULL, logits, argmax);
}

static const kr_qwen2_graph *qwen2_latest_of(const kr_qwen2 *m) {
  const kr_qwen2_graph *latest = m->graphs;
  for (int i = 1; i < MOST_GRAPHS; i++)
    if (m->graphs[i].used > latest->used) latest = &m->graphs[i];
  return latest;
}

int32_t kr_qwen2_profile_by_kernel(kr_qwen2 *m, kr_runner_profile_fn fn, void *user) {
  const kr_qwen2_graph *latest = qwen2_latest_of(m);
  KR_CHECK(latest->g, KRAIT_ERR_ARGUMENT, "there was no run before");
  return kr_runner_profile_by_kernel(latest->runner, fn, user);
}

int32_t kr_qwen2_graph_of(kr_qwen2 *m, int64_t n, int with_rows, const kr_graph **graph) {
  kr_qwen2_graph *found;
  KR_CHECK(n >= 0 && n <= PREFILL_CHUNK, KRAIT_ERR_ARGUMENT, "a graph reads 1 to %d tokens at once", PREFILL_CHUNK);
  KR_TRY(qwen2_reserve_slots(m, n + 1));
  KR_TRY(
      get_qwen2_graph(m, &(kr_qwen2_run){.B = 1, .L = n ? n : 1, .is_step = n == 0, .with_rows = with_rows}, &found));
  *graph = found->g;
  return KRAIT_OK;
}

int32_t kr_qwen2_step_again(kr_qwen2 *m) {
  const kr_qwen2_graph *latest = qwen2_latest_of(m);
  KR_CHECK(latest->g && latest->run.is_step, KRAIT_ERR_ARGUMENT, "there was no step before");
  return kr_runner_run(latest->runner, NULL);
}

/* ---- states ---- */

/* Stored in the weights' type, exposed as float32. fn fills host in, or reads it. */
static int32_t move_qwen2_one(kr_qwen2 *m, const char *kind, int64_t i, char *at, int64_t n_tokens,
                              kr_qwen2_state_fn fn, void *user, int is_out) {
  const int64_t shape[] = {n_tokens, m->c.Hk, m->c.D}, n = shape[0] * shape[1] * shape[2];
  const uint64_t bytes = (uint64_t)n_tokens * m->cache.token_bytes;
  char name[32];
  float *host = kr_alloc_array(2 * (size_t)n + 1, sizeof *host);
  KR_CHECK(host, KRAIT_ERR_NO_MEMORY, "no memory for %lld tokens' keys", (long long)n_tokens);
  const krait_view stored = {.data = host + n, .dtype = m->w.dtype};
  snprintf(name, sizeof name, "%s.%lld", kind, (long long)i);
  int32_t status = is_out ? kr_mem_read(m->ctx, stored.data, at, bytes) : KRAIT_OK;
  for (int64_t k = 0; is_out && k < n; k++) host[k] = (float)kr_get(&stored, k);
  if (status >= 0) status = fn(user, name, 3, shape, host);
  for (int64_t k = 0; !is_out && status >= 0 && k < n; k++) kr_put(&stored, k, (double)host[k]);
  if (status >= 0 && !is_out) status = kr_mem_put(m->ctx, at, stored.data, bytes);
  if (status >= 0 && !is_out) status = kr_qwen2_wait(m);
  kr_free(host);
  return status;
}

static int32_t move_qwen2_states(kr_qwen2 *m, int64_t slot, kr_qwen2_state_fn fn, void *user, int is_out) {
  const uint64_t text = kr_kv_cache_at(&m->cache, slot);
  for (int64_t i = 0; i < m->c.n_layers; i++) {
    KR_TRY(move_qwen2_one(m, "keys", i, m->cache.keys[i] + text, m->lengths[slot], fn, user, is_out));
    KR_TRY(move_qwen2_one(m, "values", i, m->cache.values[i] + text, m->lengths[slot], fn, user, is_out));
  }
  return KRAIT_OK;
}

int32_t kr_qwen2_states_out(kr_qwen2 *m, int64_t slot, kr_qwen2_state_fn take, void *user) {
  KR_TRY(check_qwen2_slot(m, slot));
  return move_qwen2_states(m, slot, take, user, 1);
}

int32_t kr_qwen2_states_in(kr_qwen2 *m, int64_t slot, int64_t n_tokens, kr_qwen2_state_fn give, void *user) {
  KR_TRY(check_qwen2_slot(m, slot));
  KR_CHECK(n_tokens >= 1 && n_tokens <= INT32_MAX / 2, KRAIT_ERR_ARGUMENT, "a text of %lld tokens",
           (long long)n_tokens);
  KR_TRY(qwen2_reserve_slots(m, n_tokens));
  m->lengths[slot] = (int32_t)n_tokens;
  const int32_t status = move_qwen2_states(m, slot, give, user, 0);
  if (status < 0) m->lengths[slot] = 0;
  return status;
}

/* lm.c: a model with the states of its slots, and its graphs. */
#include "lm.h"

#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "lm_graph.h"
#include "lm_slots.h"
#include "status.h"

enum {
  MOST_CHUNK = 4096,  /* tokens of a prompt in one run */
  STATE_CHUNK = 1024, /* of a model with recurrent states */
  SCORE_CHUNK = 128,  /* logits of a whole chunk need much more memory */
  MOST_STEP = 1024
};
enum { /* lists of a run, in the context's memory */
       LIST_BYTES = 4 * MOST_CHUNK,
       IDS = 0,
       SLOTS = LIST_BYTES,
       LENGTHS = 2 * LIST_BYTES,
       BEST = 3 * LIST_BYTES,
       LOGITS = 4 * LIST_BYTES
};

struct kr_lm {
  kr_lm_config *c;
  kr_lm_weights w;
  kr_lm_slots slots;
  kr_lm_graph_list graphs;
  int fused; /* kr_lm_choose_fused */
  char *lists;
  uint64_t logits_floats; /* capacity */
};

/* ---- families ---- */

int32_t kr_lm_family_of(const kr_model_folder *folder, const kr_lm_family **family) {
  char known[256] = "";
  const kr_model_source source = {.folder = folder};
  for (size_t i = 0; i < kr_n_model_kinds; i++) {
    const kr_model_kind *kind = kr_model_kinds[i];
    if (!kind->lm) continue;
    *family = kind->lm;
    if (kind->detect(&source)) return KRAIT_OK;
    const size_t n = strlen(known);
    snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", kind->lm->models);
  }
  return kr_fail(KRAIT_ERR_WEIGHTS, "%s: config.json says '%.40s'; krait supports %s", kr_model_folder_label(folder),
                 kr_lm_json_text(kr_model_folder_config(folder), "model_type", ""), known);
}

int32_t kr_lm_find_published(const char *name, kr_lm_config **config) {
  char known[256] = "";
  *config = NULL;
  for (size_t i = 0; i < kr_n_model_kinds; i++) {
    const kr_lm_family *family = kr_model_kinds[i]->lm;
    if (!family || !family->find_published) continue;
    KR_TRY(family->find_published(name, config));
    if (*config) return KRAIT_OK;
    const size_t n = strlen(known);
    snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", family->published);
  }
  return kr_fail(KRAIT_ERR_ARGUMENT, "the sizes of '%s' are unknown; use %s", name, known);
}

/* ---- open and close ---- */

static int32_t open_lm_model(const krait_ctx *ctx, const kr_model_folder *folder, kr_lm_config *c, int32_t dtype,
                             int64_t n_slots, kr_lm **model) {
  kr_lm *m = *model = kr_zalloc(sizeof *m);
  if (!m) kr_lm_config_close(&c);
  KR_CHECK(m, KRAIT_ERR_NO_MEMORY, "no memory for a model");
  m->c = c;
  int32_t status = kr_lm_weights_open(ctx, folder, c, dtype, &m->w);
  m->slots = (kr_lm_slots){.ctx = ctx, .c = c, .n = n_slots, .dtype = m->w.dtype, .token_dtype = m->w.dtype};
  if (status >= 0) status = kr_lm_slots_open(&m->slots);
  if (status < 0) kr_lm_close(model);
  return status;
}

int32_t kr_lm_open(const krait_ctx *ctx, const kr_model_folder *folder, int64_t n_slots, int64_t n_tokens,
                   kr_lm **model) {
  return kr_lm_open_as(ctx, folder, 0, n_slots, n_tokens, model);
}

int32_t kr_lm_open_as(const krait_ctx *ctx, const kr_model_folder *folder, int32_t dtype, int64_t n_slots,
                      int64_t n_tokens, kr_lm **model) {
  const kr_lm_family *family;
  kr_lm_config *c = NULL;
  *model = NULL;
  KR_TRY(kr_lm_family_of(folder, &family));
  KR_TRY(family->read(folder, &c));
  if (n_tokens > 0 && n_tokens < c->n_used) c->n_used = n_tokens;
  return open_lm_model(ctx, folder, c, dtype, n_slots, model);
}

int32_t kr_lm_open_random(const krait_ctx *ctx, kr_lm_config *config, int32_t dtype, int64_t n_slots, kr_lm **model) {
  return open_lm_model(ctx, NULL, config, dtype, n_slots, model);
}

void kr_lm_close(kr_lm **model) {
  kr_lm *m = *model;
  if (!m) return;
  const krait_ctx *ctx = m->slots.ctx;
  kr_lm_graph_list_close(&m->graphs);
  kr_mem_free(ctx, m->lists);
  kr_lm_slots_close(&m->slots);
  kr_lm_weights_close(&m->w);
  kr_lm_config_close(&m->c);
  kr_free(m);
  *model = NULL;
}

const kr_lm_config *kr_lm_config_of(const kr_lm *m) { return m->c; }
int32_t kr_lm_dtype(const kr_lm *m) { return m->w.dtype; }
int32_t kr_lm_converted_to(const kr_lm *m) { return m->slots.ctx->cuda ? m->w.loader.as : 0; }
uint64_t kr_lm_bytes(const kr_lm *m) { return m->w.bytes; }
int32_t kr_lm_wait(const kr_lm *m) { return kr_mem_wait(m->slots.ctx); }

int32_t kr_lm_narrow_states(kr_lm *m) {
  kr_lm_graph_list_close(&m->graphs);
  m->slots.is_narrow = 1;
  return kr_lm_slots_lay_out(&m->slots);
}

int32_t kr_lm_narrow_keys(kr_lm *m) {
  if (m->slots.ctx->cuda || (m->w.stored != KRAIT_F16 && m->w.stored != KRAIT_BF16)) return KRAIT_OK;
  kr_lm_graph_list_close(&m->graphs);
  m->slots.token_dtype = KRAIT_F16;
  return kr_lm_slots_lay_out(&m->slots);
}

/* ---- graphs ---- */

/* Capacity for texts of n tokens, which is part of the graphs' shapes. */
static int32_t reserve_tokens(kr_lm *m, int64_t n) {
  if (!m->c->n_per_token || n <= m->slots.cache.capacity) return KRAIT_OK;
  kr_lm_graph_list_close(&m->graphs);
  return kr_token_cache_grow(&m->slots.cache, n);
}

static int32_t get_lm_graph(kr_lm *m, const kr_lm_run *run, kr_lm_graph **graph) {
  return kr_lm_graph_list_get(&m->graphs, m->c, &m->w, &m->slots, run, graph);
}

/* Buffers for inputs and outputs. */
static int32_t reserve_lists(kr_lm *m, uint64_t floats) {
  if (m->lists && floats <= m->logits_floats) return KRAIT_OK;
  kr_mem_free(m->slots.ctx, m->lists);
  m->lists = NULL;
  KR_TRY(kr_mem_get(m->slots.ctx, "logits", LOGITS + floats * sizeof(float), &m->lists));
  m->logits_floats = floats;
  return KRAIT_OK;
}

static int32_t bind_lm(kr_lm *m, const kr_lm_graph *g, int64_t slot, const void *rows) {
  const struct {
    kr_tensor t;
    const void *at;
  } all[] = {{g->ids, m->lists + IDS},     {g->rows, rows},
             {g->slots, m->lists + SLOTS}, {g->lengths, m->lists + LENGTHS},
             {g->argmax, m->lists + BEST}, {g->logits, m->lists + LOGITS}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i].t) KR_TRY(kr_runner_bind(g->runner, all[i].t, (void *)(uintptr_t)all[i].at));
  for (int32_t i = 0; i < m->c->n_ropes; i++) {
    KR_TRY(kr_runner_bind(g->runner, g->cos[i], (void *)(uintptr_t)kr_token_cache_cos(&m->slots.cache, i)));
    KR_TRY(kr_runner_bind(g->runner, g->sin[i], (void *)(uintptr_t)kr_token_cache_sin(&m->slots.cache, i)));
  }
  return kr_lm_graph_bind_states(g, &m->slots, slot);
}

/* ---- runs ---- */

/* A run's sequences: of a step by slots, else the slot. */
typedef struct request {
  kr_lm_run run;
  int64_t slot;
  const int32_t *slots, *ids;
  const void *rows;
  float *logits;
  int32_t *argmax;
} request;

static int64_t slot_of(const request *q, int64_t b) { return q->slots ? q->slots[b] : q->slot; }

static int32_t put_lists(kr_lm *m, const request *q) {
  const krait_ctx *ctx = m->slots.ctx;
  const uint64_t B = (uint64_t)q->run.B, L = (uint64_t)q->run.L;
  int32_t lengths[MOST_STEP];
  for (int64_t b = 0; b < q->run.B; b++) lengths[b] = m->slots.lengths[slot_of(q, b)];
  KR_TRY(kr_mem_put(ctx, m->lists + IDS, q->ids, B * L * sizeof *q->ids));
  if (q->slots) KR_TRY(kr_mem_put(ctx, m->lists + SLOTS, q->slots, B * sizeof *q->slots));
  return m->c->n_per_token ? kr_mem_put(ctx, m->lists + LENGTHS, lengths, B * sizeof *lengths) : KRAIT_OK;
}

static int32_t check_ids(const kr_lm *m, const request *q) {
  const int32_t least = q->rows ? -1 : 0;
  for (int64_t i = 0; i < q->run.B * q->run.L; i++)
    KR_CHECK(q->ids[i] >= least && q->ids[i] < m->c->V, KRAIT_ERR_ARGUMENT, "token %d is not one of the model's %lld",
             q->ids[i], (long long)m->c->V);
  return KRAIT_OK;
}

static int64_t longest_after(const kr_lm *m, const request *q) {
  int64_t longest = 0;
  for (int64_t b = 0; b < q->run.B; b++) {
    const int64_t n = m->slots.lengths[slot_of(q, b)] + q->run.L;
    longest = n > longest ? n : longest;
  }
  return longest;
}

/* Everything that can fail before states change. */
static int32_t prepare_run(kr_lm *m, const request *q, uint64_t floats, kr_lm_graph **g) {
  KR_TRY(check_ids(m, q));
  KR_TRY(reserve_tokens(m, longest_after(m, q)));
  KR_TRY(reserve_lists(m, floats));
  KR_TRY(get_lm_graph(m, &q->run, g));
  (*g)->used = ++m->graphs.clock;
  KR_TRY(bind_lm(m, *g, q->slot, q->rows));
  KR_TRY(put_lists(m, q));
  return kr_runner_prepare((*g)->runner);
}

static int32_t run_lm(kr_lm *m, const request *q) {
  const krait_ctx *ctx = m->slots.ctx;
  const uint64_t floats = (uint64_t)((q->run.is_step ? q->run.B : q->run.all ? q->run.L : 1) * m->c->V);
  const uint8_t is_lost = (uint8_t)kr_lm_slots_has_fixed(&m->slots);
  kr_lm_graph *g;
  KR_TRY(prepare_run(m, q, floats, &g));
  for (int64_t b = 0; b < q->run.B; b++) m->slots.is_lost[slot_of(q, b)] = is_lost; /* until all has succeeded */
  KR_TRY(kr_runner_run(g->runner, NULL));
  if (q->argmax) KR_TRY(kr_mem_read(ctx, q->argmax, m->lists + BEST, (uint64_t)q->run.B * sizeof *q->argmax));
  if (q->logits) KR_TRY(kr_mem_read(ctx, q->logits, m->lists + LOGITS, floats * sizeof *q->logits));
  for (int64_t b = 0; b < q->run.B; b++) {
    m->slots.lengths[slot_of(q, b)] += (int32_t)q->run.L;
    m->slots.is_lost[slot_of(q, b)] = 0;
  }
  return KRAIT_OK;
}

/* ---- requests of callers ---- */

int32_t kr_lm_check(const kr_lm *m, int64_t slot) { return kr_lm_slots_check(&m->slots, slot); }
int32_t kr_lm_reset(kr_lm *m, int64_t slot) { return kr_lm_slots_reset(&m->slots, slot); }

static int64_t chunk_of(const kr_lm *m) { return kr_lm_slots_has_fixed(&m->slots) ? STATE_CHUNK : MOST_CHUNK; }

static int32_t prefill_chunks(kr_lm *m, request *q, int64_t n) {
  const int64_t most = q->run.all ? SCORE_CHUNK : chunk_of(m);
  const uint64_t row_bytes = (uint64_t)m->c->d * krait_dtype_bytes(m->w.dtype);
  float *const logits = q->logits;
  for (int64_t at = 0; at < n; at += q->run.L) {
    q->run.L = n - at < most ? n - at : most;
    q->logits = q->run.all ? logits + at * m->c->V : at + q->run.L == n ? logits : NULL;
    KR_TRY(run_lm(m, q));
    q->ids += q->run.L;
    if (q->rows) q->rows = (const char *)q->rows + (uint64_t)q->run.L * row_bytes;
  }
  return KRAIT_OK;
}

int32_t kr_lm_prefill(kr_lm *m, int64_t slot, const int32_t *ids, const void *rows, int64_t n, int all, float *logits) {
  KR_TRY(kr_lm_check(m, slot));
  KR_CHECK(n >= 1, KRAIT_ERR_ARGUMENT, "there are no tokens to read");
  KR_TRY(reserve_tokens(m, m->slots.lengths[slot] + n));
  request q = {
      .run = {.B = 1, .all = all, .with_rows = rows != NULL}, .slot = slot, .ids = ids, .rows = rows, .logits = logits};
  const int32_t before = m->slots.lengths[slot], status = prefill_chunks(m, &q, n);
  if (status < 0 && m->slots.lengths[slot] != before) { /* earlier chunks have been read */
    m->slots.is_lost[slot] = (uint8_t)kr_lm_slots_has_fixed(&m->slots);
    m->slots.lengths[slot] = before; /* what keys and values have after it does not count */
  }
  return status;
}

int32_t kr_lm_step(kr_lm *m, int64_t B, const int32_t *slots, const int32_t *ids, float *logits, int32_t *argmax) {
  KR_CHECK(B >= 1 && B <= MOST_STEP, KRAIT_ERR_ARGUMENT, "a step of %lld sequences; it takes 1 to %d", (long long)B,
           MOST_STEP);
  for (int64_t b = 0; b < B; b++) KR_TRY(kr_lm_check(m, slots[b]));
  return run_lm(m, &(request){.run = {.B = B, .L = 1, .is_step = 1, .fused = m->fused},
                              .slots = slots,
                              .ids = ids,
                              .logits = logits,
                              .argmax = argmax});
}

int32_t kr_lm_read_logits(const kr_lm *m, int64_t B, float *logits) {
  return kr_mem_read(m->slots.ctx, logits, m->lists + LOGITS, (uint64_t)(B * m->c->V) * sizeof *logits);
}

/* ---- timing and tests ---- */

static const kr_lm_graph *latest_of(const kr_lm *m) {
  const kr_lm_graph *const all = m->graphs.list, *latest = all;
  for (int i = 1; i < KR_LM_MOST_GRAPHS; i++)
    if (all[i].used > latest->used) latest = &all[i];
  return latest;
}

int32_t kr_lm_step_again(kr_lm *m) {
  const kr_lm_graph *latest = latest_of(m);
  KR_CHECK(latest->g && latest->run.is_step, KRAIT_ERR_ARGUMENT, "there was no step before");
  return kr_runner_run(latest->runner, NULL);
}

void kr_lm_choose_fused(kr_lm *m, int fused) { m->fused = fused; }
int kr_lm_was_fused(const kr_lm *m) { return latest_of(m)->run.is_step && latest_of(m)->all[0]; }

int32_t kr_lm_profile_by_kernel(kr_lm *m, kr_runner_profile_fn fn, void *user) {
  const kr_lm_graph *latest = latest_of(m);
  KR_CHECK(latest->g, KRAIT_ERR_ARGUMENT, "there was no run before");
  return kr_runner_profile_by_kernel(latest->runner, fn, user);
}

int32_t kr_lm_graph_of(kr_lm *m, int64_t n, int with_rows, const kr_graph **graph) {
  kr_lm_graph *found;
  KR_CHECK(n >= 0 && n <= chunk_of(m), KRAIT_ERR_ARGUMENT, "a graph reads 1 to %lld tokens at once",
           (long long)chunk_of(m));
  KR_TRY(reserve_tokens(m, n + 1));
  KR_TRY(get_lm_graph(m, &(kr_lm_run){.B = 1, .L = n ? n : 1, .is_step = n == 0, .with_rows = with_rows}, &found));
  *graph = found->g;
  return KRAIT_OK;
}

static int32_t pass_lm_graphs(kr_lm *m, kr_model_graph_fn *fn, void *user) {
  enum { PROMPT = 256 };
  const kr_graph *g;
  KR_TRY(kr_lm_graph_of(m, PROMPT, 0, &g));
  KR_TRY(fn(user, "a prompt of 256 tokens", g));
  KR_TRY(kr_lm_graph_of(m, 0, 0, &g));
  return fn(user, "a step of one sequence", g);
}

int32_t kr_lm_graphs(const krait_ctx *ctx, const kr_model_source *source, kr_model_graph_fn *fn, void *user) {
  kr_lm *m = NULL;
  int32_t status = kr_lm_open(ctx, source->folder, 1, 0, &m);
  if (status >= 0) status = pass_lm_graphs(m, fn, user);
  kr_lm_close(&m);
  return status;
}

const kr_lm_weights *kr_lm_weights_of(const kr_lm *m) { return &m->w; }
kr_lm_slots *kr_lm_slots_of(kr_lm *m) { return &m->slots; }
int32_t kr_lm_reserve_tokens(kr_lm *m, int64_t n) { return reserve_tokens(m, n); }

/* seedvr_stream.c: the transformer part by part: its weights come from the host layer by layer, each while the one
 * before it runs; graphs of a layer serve all layers of its kind. */
#include "alloc.h"
#include "ctx.h"
#include "seedvr.h"
#include "status.h"

enum { KINDS = 8, PLACES = 2 }; /* of layers; a layer's weights and rows alternate between two places */

struct kr_seedvr_stream {
  const krait_ctx *ctx;
  const kr_seedvr_config *c;
  kr_seedvr_weights *w;
  int64_t size[3], n_text;
  kr_seedvr_graph head, tail, blocks[KINDS][PLACES];
  void *arena, *rows[PLACES], *emb;
  uint64_t arena_bytes;
};

static int kind_of(const kr_seedvr_stream *s, int64_t layer) {
  const kr_seedvr_layer *l = &s->w->layers[layer];
  return s->c->is_shifted[layer] | (l->n_parts == 1) << 1 | (l->text_ends != 0) << 2;
}

/* tables_of: NULL: it makes its own. */
static kr_seedvr_graph stream_part(const kr_seedvr_stream *s, int32_t part, int64_t layer,
                               const kr_seedvr_graph *tables_of) {
  return (kr_seedvr_graph){.size = {s->size[0], s->size[1], s->size[2]}, .n_text = s->n_text, .part = part,
                           .from = layer, .n_layers = 1, .tables_of = tables_of, .arena = s->arena,
                           .arena_bytes = s->arena_bytes};
}

/* ---- how much ---- */

static int32_t count_part(const kr_seedvr_stream *s, int32_t part, int64_t layer, const kr_seedvr_graph *tables_of,
                          uint64_t *most) {
  kr_seedvr_graph g = stream_part(s, part, layer, tables_of);
  g.only_planned = 1;
  KR_TRY(kr_seedvr_graph_open(s->ctx, s->c, s->w, &g));
  if (kr_graph_bytes(g.g) > *most) *most = kr_graph_bytes(g.g);
  kr_seedvr_graph_close(&g);
  return KRAIT_OK;
}

static uint64_t rows_bytes(const kr_seedvr_stream *s) {
  return (uint64_t)((s->size[0] * s->size[1] * s->size[2] + s->n_text) * s->c->C) * krait_dtype_bytes(s->w->dtype);
}
static uint64_t emb_bytes(const kr_seedvr_stream *s) { return (uint64_t)(6 * s->c->C) * sizeof(float); }

/* The largest graph, of which `tables` has the tables. */
static int32_t count_arena(kr_seedvr_stream *s, const kr_seedvr_graph *tables) {
  int seen[KINDS] = {0};
  uint64_t most = kr_graph_bytes(tables->g);
  KR_TRY(count_part(s, KR_SEEDVR_TAIL, 0, tables, &most));
  for (int64_t i = 0; i < s->c->n_layers; i++)
    if (!seen[kind_of(s, i)]++) KR_TRY(count_part(s, KR_SEEDVR_BLOCKS, i, tables, &most));
  s->arena_bytes = most;
  return KRAIT_OK;
}

static int32_t count_stream(kr_seedvr_stream *s, uint64_t *tables_bytes) {
  kr_seedvr_graph head = stream_part(s, KR_SEEDVR_HEAD, 0, NULL);
  head.only_planned = 1;
  if (!s->w->layer_bytes) KR_TRY(kr_seedvr_weights_count_parts(s->w));
  KR_TRY(kr_seedvr_graph_open(s->ctx, s->c, s->w, &head));
  const int32_t status = count_arena(s, &head);
  *tables_bytes = head.layout[0].bytes + head.layout[1].bytes;
  kr_seedvr_graph_close(&head);
  return status;
}

int32_t kr_seedvr_stream_bytes(const krait_ctx *ctx, const kr_seedvr_config *c, kr_seedvr_weights *w,
                               const int64_t size[3], int64_t n_text, uint64_t *bytes) {
  kr_seedvr_stream s = {.ctx = ctx, .c = c, .w = w, .size = {size[0], size[1], size[2]}, .n_text = n_text};
  uint64_t tables_bytes = 0;
  KR_TRY(count_stream(&s, &tables_bytes));
  *bytes = s.arena_bytes + tables_bytes + PLACES * (rows_bytes(&s) + w->layer_bytes) + emb_bytes(&s) + w->ends.used;
  return KRAIT_OK;
}

/* ---- running ---- */

static int32_t open_stream(kr_seedvr_stream *s) {
  uint64_t tables_bytes;
  KR_TRY(count_stream(s, &tables_bytes));
  KR_TRY(kr_seedvr_weights_hold_ends(s->w));
  KR_TRY(kr_mem_get(s->ctx, "a layer", s->arena_bytes, &s->arena));
  for (int i = 0; i < PLACES; i++) KR_TRY(kr_mem_get(s->ctx, "rows of tokens", rows_bytes(s), &s->rows[i]));
  KR_TRY(kr_mem_get(s->ctx, "the modulation", emb_bytes(s), &s->emb));
  s->head = stream_part(s, KR_SEEDVR_HEAD, 0, NULL), s->tail = stream_part(s, KR_SEEDVR_TAIL, 0, &s->head);
  KR_TRY(kr_seedvr_graph_open(s->ctx, s->c, s->w, &s->head));
  KR_TRY(kr_runner_bind(s->head.runner, s->head.out, s->rows[0]));
  KR_TRY(kr_runner_bind(s->head.runner, s->head.emb_out, s->emb));
  KR_TRY(kr_seedvr_graph_open(s->ctx, s->c, s->w, &s->tail));
  KR_TRY(kr_runner_bind(s->tail.runner, s->tail.rows, s->rows[s->c->n_layers % PLACES]));
  return kr_runner_bind(s->tail.runner, s->tail.emb, s->emb);
}

int32_t kr_seedvr_stream_open(const krait_ctx *ctx, const kr_seedvr_config *c, kr_seedvr_weights *w,
                              const int64_t size[3], int64_t n_text, kr_seedvr_stream **out) {
  kr_seedvr_stream *s = *out = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory for a transformer");
  s->ctx = ctx, s->c = c, s->w = w, s->n_text = n_text;
  for (int i = 0; i < 3; i++) s->size[i] = size[i];
  const int32_t status = open_stream(s);
  if (status < 0) kr_seedvr_stream_close(out);
  return status;
}

void kr_seedvr_stream_close(kr_seedvr_stream **handle) {
  kr_seedvr_stream *s = handle ? *handle : NULL;
  if (!s) return;
  *handle = NULL;
  for (int i = 0; i < KINDS * PLACES; i++) kr_seedvr_graph_close(&s->blocks[i / PLACES][i % PLACES]);
  kr_seedvr_graph_close(&s->tail);
  kr_seedvr_graph_close(&s->head);
  for (int i = 0; i < PLACES; i++) kr_mem_free(s->ctx, s->rows[i]);
  kr_mem_free(s->ctx, s->emb);
  kr_mem_free(s->ctx, s->arena);
  kr_free(s);
}

/* The graph of a layer whose weights are in their place. */
static int32_t need_block(kr_seedvr_stream *s, int64_t layer, kr_seedvr_graph **block) {
  const int place = (int)(layer % PLACES);
  kr_seedvr_graph *g = *block = &s->blocks[kind_of(s, layer)][place];
  if (g->g) return KRAIT_OK;
  *g = stream_part(s, KR_SEEDVR_BLOCKS, layer, &s->head);
  KR_TRY(kr_seedvr_graph_open(s->ctx, s->c, s->w, g));
  KR_TRY(kr_runner_bind(g->runner, g->rows, s->rows[place]));
  KR_TRY(kr_runner_bind(g->runner, g->emb, s->emb));
  return kr_runner_bind(g->runner, g->out, s->rows[1 - place]);
}

int32_t kr_seedvr_stream_run(kr_seedvr_stream *s, void *patches, void *text, void *sinusoids, void *out) {
  KR_TRY(kr_runner_bind(s->head.runner, s->head.patches, patches));
  KR_TRY(kr_runner_bind(s->head.runner, s->head.text, text));
  KR_TRY(kr_runner_bind(s->head.runner, s->head.sinusoids, sinusoids));
  KR_TRY(kr_runner_bind(s->tail.runner, s->tail.out, out));
  KR_TRY(kr_runner_run(s->head.runner, NULL));
  KR_TRY(kr_seedvr_weights_hold_layer(s->w, 0));
  for (int64_t i = 0; i < s->c->n_layers; i++) {
    kr_seedvr_graph *block;
    KR_TRY(need_block(s, i, &block));
    KR_TRY(kr_mem_wait(s->ctx)); /* the layer before it, whose place the next one gets */
    KR_TRY(kr_runner_run(block->runner, NULL));
    if (i + 1 < s->c->n_layers) KR_TRY(kr_seedvr_weights_hold_layer(s->w, i + 1));
  }
  return kr_runner_run(s->tail.runner, NULL);
}

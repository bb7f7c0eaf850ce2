/* lm_graph.c: the model as calls of a graph: embedding, blocks on a residual stream in float32, output matrix. */
#include "lm_graph.h"

#include <stdio.h>

#include "alloc.h"
#include "ctx.h"
#include "status.h"

/* ---- states ---- */

/* Of all blocks alike: their fixed states, as rows and columns, are parts of one tensor. NULL: blocks differ. */
static const kr_lm_block *find_alike(const kr_lm_config *c) {
  const kr_lm_block *first = NULL;
  for (int64_t i = 0; i < c->n_blocks; i++) {
    const kr_lm_block *b = &c->blocks[i];
    if (!b->n_states) continue;
    if (!first) first = b;
    if (b->n_states != first->n_states) return NULL;
    for (int k = 0; k < b->n_states; k++) {
      const kr_lm_state *s = &b->states[k], *f = &first->states[k];
      int same = !s->is_per_token && s->n_dims == f->n_dims && s->is_narrowable == f->is_narrowable;
      for (int d = 0; same && d < s->n_dims; d++) same = s->size[d] == f->size[d];
      if (!same) return NULL;
    }
  }
  return first;
}

int32_t kr_lm_state_dtype(const kr_lm_builder *b, const kr_lm_state *state) {
  return kr_lm_slots_dtype(b->slots, state);
}

/* (n, ...): a state of n slots. */
static kr_dims dims_of_state(const kr_lm_builder *b, const kr_lm_state *s, int64_t n) {
  if (s->is_per_token) return KR_DIMS(n, b->slots->cache.capacity, s->size[0], s->size[1]);
  return s->n_dims == 3 ? KR_DIMS(n, s->size[0], s->size[1], s->size[2]) : KR_DIMS(n, s->size[0], s->size[1]);
}

/* (blocks, n, rows, columns) of all blocks' state k. */
static kr_dims dims_of_all(const kr_lm_builder *b, const kr_lm_state *s, int64_t n) {
  const int64_t columns = s->size[s->n_dims - 1];
  int64_t rows = 1;
  for (int d = 0; d + 1 < s->n_dims; d++) rows *= s->size[d];
  return KR_DIMS(b->c->n_stateful, n, rows, columns);
}

kr_view kr_lm_states_layout(const kr_lm_builder *b, const kr_lm_block *block, int k) {
  static float aligned[4] __attribute__((aligned(256)));
  const kr_lm_state *s = &block->states[k];
  const kr_dims dims = dims_of_all(b, s, 1);
  const int32_t dtype = kr_lm_state_dtype(b, s);
  const int64_t all = b->slots->n * kr_lm_slots_block_bytes(b->slots, block), columns = dims.size[3];
  return (kr_view){.data = aligned,
                      .dtype = dtype,
                      .stride = {all / (int64_t)krait_dtype_bytes(dtype), dims.size[2] * columns, columns, 1}};
}

kr_tensor kr_lm_record_all_states(kr_lm_builder *b, const kr_lm_block *block, int k, int64_t n) {
  kr_view layout = kr_lm_states_layout(b, block, k);
  layout.data = NULL; /* bound later */
  return b->to->all[k] =
             kr_graph_output_like(b->rows.g, block->states[k].name, &layout, dims_of_all(b, &block->states[k], n));
}

/* Prompts of a model whose blocks have the same states copy those of all blocks at once. */
static void record_states_together(kr_lm_builder *b, const kr_lm_block *first) {
  kr_graph *g = b->rows.g;
  for (int k = 0; k < first->n_states; k++) {
    const kr_lm_state *s = &first->states[k];
    kr_lm_record_all_states(b, first, k, 1);
    b->new_all[k] = kr_graph_temp(g, KRAIT_F32, dims_of_all(b, s, 1));
    for (int64_t i = 0; i < b->c->n_blocks; i++)
      if (b->c->blocks[i].n_states)
        b->to->states[i][k] =
            kr_graph_reshape(g, kr_graph_slice(g, b->to->all[k], 0, b->c->blocks[i].nth, 1), dims_of_state(b, s, 1));
  }
}

static void record_states_apart(const kr_lm_builder *b) {
  const int64_t n = b->run.is_step ? b->slots->n : 1;
  char name[32];
  for (int64_t i = 0; i < b->c->n_blocks; i++)
    for (int k = 0; k < b->c->blocks[i].n_states; k++) {
      const kr_lm_state *s = &b->c->blocks[i].states[k];
      snprintf(name, sizeof name, "%s.%lld", s->name, (long long)b->c->blocks[i].layer);
      b->to->states[i][k] = kr_graph_output(b->rows.g, name, kr_lm_state_dtype(b, s), dims_of_state(b, s, n));
    }
}

/* Whether strides of all blocks' states are whole elements. */
static int are_strides_whole(const kr_lm_builder *b, const kr_lm_block *first) {
  const int64_t all = b->slots->n * kr_lm_slots_block_bytes(b->slots, first);
  for (int k = 0; k < first->n_states; k++)
    if (all % (int64_t)krait_dtype_bytes(kr_lm_state_dtype(b, &first->states[k]))) return 0;
  return 1;
}

static void record_states(kr_lm_builder *b) {
  const kr_lm_block *first = b->run.is_step ? NULL : find_alike(b->c);
  if (first && are_strides_whole(b, first))
    record_states_together(b, first);
  else
    record_states_apart(b);
}

kr_tensor kr_lm_state_of(const kr_lm_builder *b, const kr_lm_block *block, int k) {
  return b->to->states[block - b->c->blocks][k];
}

static void name_copy(const kr_lm_block *block, int k, char name[32]) {
  snprintf(name, 32, "%s_state", block->states[k].name);
}

/* A block's part of a tensor of all, or a tensor of its own. */
static kr_tensor part_of(const kr_lm_builder *b, const kr_lm_block *block, int k, kr_tensor all) {
  const kr_dims dims = dims_of_state(b, &block->states[k], 1);
  return all ? kr_graph_reshape(b->rows.g, kr_graph_slice(b->rows.g, all, 0, block->nth, 1), dims)
             : kr_graph_temp(b->rows.g, KRAIT_F32, dims);
}

kr_tensor kr_lm_state_before(kr_lm_builder *b, const kr_lm_block *block, int k) {
  const kr_lm_state *s = &block->states[k];
  const kr_tensor stored = kr_lm_state_of(b, block, k), all = b->to->all[k];
  char name[32];
  name_copy(block, k, name);
  if (kr_lm_state_dtype(b, s) == KRAIT_F32) return stored;
  if (all && !b->old_all[k]) {
    b->old_all[k] = kr_graph_temp(b->rows.g, KRAIT_F32, dims_of_all(b, s, 1));
    copy(&b->rows, name, all, b->old_all[k]);
  }
  const kr_tensor before = part_of(b, block, k, b->old_all[k]);
  if (!all) copy(&b->rows, name, stored, before);
  return before;
}

kr_tensor kr_lm_state_after(kr_lm_builder *b, const kr_lm_block *block, int k) {
  return part_of(b, block, k, b->new_all[k]);
}

void kr_lm_state_keep(kr_lm_builder *b, const kr_lm_block *block, int k, kr_tensor after) {
  char name[32];
  name_copy(block, k, name);
  if (!b->new_all[k]) copy(&b->rows, name, after, kr_lm_state_of(b, block, k));
}

/* After the last block. */
static void keep_all_states(kr_lm_builder *b) {
  char name[32];
  for (int k = 0; k < KR_LM_MOST_STATES; k++) {
    if (!b->new_all[k]) continue;
    name_copy(find_alike(b->c), k, name);
    copy(&b->rows, name, b->new_all[k], b->to->all[k]);
  }
}

/* ---- what blocks share ---- */

kr_tensor kr_lm_channels(const kr_lm_builder *b, kr_tensor rows) {
  if (!b->run.is_step) return as_channels(&b->rows, rows);
  return kr_graph_reshape(b->rows.g, rows, KR_DIMS(b->rows.rows, kr_graph_dims(b->rows.g, rows).size[1], 1));
}

kr_tensor kr_lm_convolve(kr_lm_builder *b, const kr_lm_block *block, int k, kr_tensor x, const kr_weight_ref *w,
                         const kr_weight_ref *bias, int64_t W, int32_t activation) {
  const kr_token_builder *r = &b->rows;
  const int64_t C = block->states[k].size[0];
  const kr_tensor out = new_rows(r, C), state = kr_lm_state_of(b, block, k), taps = weight(r, "conv", w, C, W),
                  row = weight(r, "conv_bias", bias, C);
  if (b->run.is_step) {
    kr_graph_call(r->g, "conv", &kr_op_causal_conv1d_update,
                  &(kr_causal_conv1d_update_args){.activation = activation,
                                                     .x = view(r, kr_lm_channels(b, x)),
                                                     .conv_state = view(r, state),
                                                     .weight = view(r, taps),
                                                     .bias = view(r, row),
                                                     .conv_state_indices = view(r, b->to->slots),
                                                     .out = view(r, kr_lm_channels(b, out))});
    return out;
  }
  const kr_tensor after = kr_lm_state_after(b, block, k);
  kr_graph_call(r->g, "conv", &kr_op_causal_conv1d,
                &(kr_causal_conv1d_args){.activation = activation,
                                            .x = view(r, kr_lm_channels(b, x)),
                                            .weight = view(r, taps),
                                            .bias = view(r, row),
                                            .initial_states = view(r, state),
                                            .out = view(r, kr_lm_channels(b, out)),
                                            .final_states = view(r, after)});
  kr_lm_state_keep(b, block, k, after);
  return out;
}

kr_tensor kr_lm_result(const kr_lm_builder *b, const kr_lm_block *block, const char *name, kr_tensor x,
                       const kr_linear *p) {
  kr_linear scaled = *p;
  const int has_bias = p->bias && p->bias->data;
  if (!has_bias) scaled.scale = (float)block->out_scale;
  const kr_tensor out = kr_record_linear(&b->rows, name, x, &scaled);
  if (has_bias && block->out_scale != 0) scale_into(&b->rows, "out_scale", block->out_scale, out, out);
  return out;
}

/* ---- the whole ---- */

static void record_inputs(kr_lm_builder *b) {
  const kr_lm_config *c = b->c;
  kr_graph *g = b->rows.g;
  const int64_t capacity = b->slots->cache.capacity;
  kr_lm_graph *to = b->to;
  to->ids = kr_graph_input(g, "ids", KRAIT_I32, KR_DIMS(b->rows.rows));
  if (b->run.with_rows) to->rows = kr_graph_input(g, "rows", b->rows.dtype, KR_DIMS(b->rows.rows, c->d));
  if (b->run.is_step) to->slots = kr_graph_input(g, "slots", KRAIT_I32, KR_DIMS(b->rows.rows));
  if (c->n_per_token) to->lengths = kr_graph_input(g, "lengths", KRAIT_I32, KR_DIMS(b->run.B));
  for (int32_t i = 0; i < c->n_ropes; i++) {
    to->cos[i] = kr_graph_input(g, "cos", KRAIT_F32, KR_DIMS(capacity, c->ropes[i].n));
    to->sin[i] = kr_graph_input(g, "sin", KRAIT_F32, KR_DIMS(capacity, c->ropes[i].n));
  }
}

static kr_tensor embed_tokens(const kr_lm_builder *b, const kr_lm_weights *w) {
  const kr_token_builder *r = &b->rows;
  const kr_tensor table = weight(r, "embedding", &w->embedding, b->c->V, b->c->d),
                  x = kr_record_gather(r, "embedding", table, b->to->ids, new_rows(r, b->c->d));
  if (b->c->embedding_scale != 0) scale_into(r, "embedding_scale", b->c->embedding_scale, x, x);
  if (b->to->rows) add_into(r, "rows", x, b->to->rows, x);
  return x;
}

/* Adds h to the stream, if one is given; returns its norm. */
static kr_tensor norm_stream(const kr_lm_builder *b, const char *name, kr_tensor h, kr_tensor *stream,
                             const kr_weight_ref *w, const kr_weight_ref *bias) {
  const int64_t d = kr_graph_dims(b->rows.g, h).size[1];
  char bias_name[40];
  snprintf(bias_name, sizeof bias_name, "%s_bias", name);
  return norm_of(&b->rows, name, h, stream, .weight = weight(&b->rows, name, w, d),
                 .bias = weight(&b->rows, bias_name, bias, d), .eps = b->c->eps, .is_rms = b->c->is_rms);
}

/* Adds h to the stream; returns it in the activations' type. */
static kr_tensor pass_stream(const kr_lm_builder *b, kr_tensor h, kr_tensor *stream) {
  const kr_tensor sum = kr_graph_temp(b->rows.g, KRAIT_F32, kr_graph_dims(b->rows.g, h));
  if (*stream)
    add_into(&b->rows, "stream", h, *stream, sum);
  else
    copy(&b->rows, "stream", h, sum);
  *stream = sum;
  return kr_record_cast(&b->rows, "stream", sum);
}

/* The stream, to which h is added, and behind it the embedding. */
static kr_tensor join_embedded(kr_lm_builder *b, kr_tensor h) {
  const kr_token_builder *r = &b->rows;
  const int64_t d = b->c->d;
  const kr_tensor both = new_rows(r, 2 * d);
  copy(r, "stream", pass_stream(b, h, &b->stream), columns(r, both, 0, d));
  copy(r, "embedded", b->embedded, columns(r, both, d, d));
  return both;
}

/* What a block reads: x the block before it did, h is that one's result. */
static kr_tensor read_stream(kr_lm_builder *b, const kr_lm_block *block, kr_tensor x, kr_tensor h) {
  kr_tensor stream = b->stream, *to = block->reads == KR_LM_READS_SUM ? &stream : &b->stream;
  if (block->reads == KR_LM_READS_SAME) return x;
  if (block->reads == KR_LM_READS_EMBEDDED) h = join_embedded(b, h);
  if (block->reads == KR_LM_READS_EMBEDDED || block->reads == KR_LM_READS_RESULT) to = NULL;
  if (block->norm) return norm_stream(b, block->norm, h, to, &block->norm_weight, &block->norm_bias);
  return to ? pass_stream(b, h, to) : h;
}

/* The block's result for x, with its scales and its norm. */
static kr_tensor record_lm_block(kr_lm_builder *b, const kr_lm_block *block, kr_tensor x) {
  kr_tensor in = x;
  if (block->in_scale != 0) {
    in = new_rows(&b->rows, b->c->d);
    scale_into(&b->rows, "in_scale", block->in_scale, x, in);
  }
  const kr_tensor out = block->kind->record(b, block, in);
  return block->post ? norm_of(&b->rows, block->post, out, NULL,
                               .weight = weight(&b->rows, block->post, &block->post_weight, b->c->d), .eps = b->c->eps,
                               .is_rms = b->c->is_rms)
                     : out;
}

/* Returns what the last block adds to the stream. */
static kr_tensor record_blocks(kr_lm_builder *b, kr_tensor h) {
  kr_tensor x = 0;
  for (int64_t i = 0; i < b->c->n_blocks; i++) {
    const kr_lm_block *block = &b->c->blocks[i];
    const kr_tensor before = h;
    if (block == b->joined) continue;
    b->rows.layer = block->layer;
    x = read_stream(b, block, x, h);
    h = record_lm_block(b, block, x);
    if (block->reads == KR_LM_READS_SAME) add_into(&b->rows, "beside", h, before, h);
  }
  b->rows.layer = -1;
  keep_all_states(b);
  return h;
}

static void record_logits(kr_lm_builder *b, const kr_lm_weights *w, kr_tensor x) {
  const kr_token_builder *r = &b->rows;
  kr_lm_graph *to = b->to;
  to->logits = kr_graph_output(r->g, "logits", KRAIT_F32, KR_DIMS(kr_graph_dims(r->g, x).size[0], b->c->V));
  linear(r, "head", x, .w = &w->head, .N = b->c->V, .K = b->c->d, .out = to->logits,
         .scale = (float)b->c->logits_scale);
  if (!b->run.is_step) return;
  to->argmax = kr_graph_output(r->g, "best", KRAIT_I32, KR_DIMS(r->rows));
  kr_graph_call(
      r->g, "best", &kr_op_argmax_rows,
      &(kr_argmax_rows_args){.x = view(r, columns(r, to->logits, 0, b->c->n_used)), .out = view(r, to->argmax)});
}

/* The kind of all blocks, if they are of one that can be one call. */
static const kr_lm_block_kind *find_fused(const kr_lm_builder *b) {
  const kr_lm_block_kind *kind = b->c->blocks[0].kind;
  if (b->c->embedding_scale != 0 || b->c->norm_offset != 0) return NULL;
  if (!b->run.is_step || b->run.fused < 0 || !kind->can_fuse) return NULL;
  for (int64_t i = 1; i < b->c->n_blocks; i++)
    if (b->c->blocks[i].kind != kind) return NULL;
  return kind->can_fuse(b) ? kind : NULL;
}

static void record_lm(kr_lm_builder *b, const kr_lm_weights *w) {
  kr_graph *g = b->rows.g;
  const kr_lm_block_kind *fused = find_fused(b);
  kr_tensor x;
  record_inputs(b);
  if (!fused) record_states(b);
  b->embedded = embed_tokens(b, w);
  if (fused) {
    x = norm_of(&b->rows, "norm_f", fused->record_fused(b, b->embedded), NULL,
                .weight = weight(&b->rows, "norm_f", &w->norm_f, b->c->d),
                .bias = weight(&b->rows, "norm_f_bias", &w->norm_f_bias, b->c->d), .eps = b->c->eps,
                .is_rms = b->c->is_rms);
  } else {
    kr_tensor h = record_blocks(b, b->embedded);
    if (!b->run.is_step && !b->run.all) { /* of the last token */
      h = kr_graph_slice(g, h, 0, b->rows.rows - 1, 1);
      b->stream = kr_graph_slice(g, b->stream, 0, b->rows.rows - 1, 1);
    }
    x = norm_stream(b, "norm_f", h, &b->stream, &w->norm_f, &w->norm_f_bias);
  }
  record_logits(b, w, x);
}

int32_t kr_lm_graph_open(const kr_lm_config *c, const kr_lm_weights *w, const kr_lm_slots *slots, const kr_lm_run *run,
                         kr_lm_graph *to) {
  *to = (kr_lm_graph){.run = *run, .states = kr_alloc_array((size_t)c->n_blocks, sizeof *to->states)};
  int32_t status = to->states ? kr_graph_open(&to->g) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a graph");
  kr_lm_builder b = {.rows = {.g = to->g,
                              .ctx = slots->ctx,
                              .dtype = w->dtype,
                              .rows = run->B * run->L,
                              .layer = -1,
                              .reads_qweight = run->is_step},
                     .c = c,
                     .run = *run,
                     .to = to,
                     .slots = slots};
  if (status >= 0) record_lm(&b, w);
  if (status >= 0) status = kr_graph_plan(to->g, slots->ctx, 0);
  if (status >= 0) status = kr_runner_open(to->g, &to->runner);
  if (status < 0) kr_lm_graph_close(to);
  return status;
}

void kr_lm_graph_close(kr_lm_graph *graph) {
  kr_runner_close(&graph->runner);
  kr_graph_close(&graph->g);
  kr_free(graph->states);
  *graph = (kr_lm_graph){0};
}

int32_t kr_lm_graph_list_get(kr_lm_graph_list *graphs, const kr_lm_config *c, const kr_lm_weights *w,
                             const kr_lm_slots *slots, const kr_lm_run *run, kr_lm_graph **graph) {
  kr_lm_graph *oldest = graphs->list;
  for (int i = 0; i < KR_LM_MOST_GRAPHS; i++) {
    kr_lm_graph *g = *graph = &graphs->list[i];
    const kr_lm_run *r = &g->run;
    if (g->g && r->B == run->B && r->L == run->L && r->is_step == run->is_step && r->all == run->all &&
        r->with_rows == run->with_rows && r->fused == run->fused)
      return KRAIT_OK;
    if (!g->g || (oldest->g && g->used < oldest->used)) oldest = g;
  }
  *graph = oldest;
  kr_lm_graph_close(oldest);
  return kr_lm_graph_open(c, w, slots, run, oldest);
}

void kr_lm_graph_list_close(kr_lm_graph_list *graphs) {
  for (int i = 0; i < KR_LM_MOST_GRAPHS; i++) kr_lm_graph_close(&graphs->list[i]);
}

int32_t kr_lm_graph_bind_states(const kr_lm_graph *graph, const kr_lm_slots *slots, int64_t slot) {
  const kr_lm_config *c = slots->c;
  int64_t first = 0;
  while (first < c->n_blocks - 1 && !c->blocks[first].n_states) first++;
  for (int k = 0; k < KR_LM_MOST_STATES; k++)
    if (graph->all[k]) KR_TRY(kr_runner_bind(graph->runner, graph->all[k], kr_lm_slots_at(slots, first, k, slot)));
  for (int64_t i = 0; i < c->n_blocks; i++)
    for (int k = 0; k < c->blocks[i].n_states; k++)
      if (graph->states[i][k] && !graph->all[k])
        KR_TRY(kr_runner_bind(graph->runner, graph->states[i][k], kr_lm_slots_at(slots, i, k, slot)));
  return KRAIT_OK;
}

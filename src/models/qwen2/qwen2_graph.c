/* qwen2_graph.c: the model as calls of a graph, for B sequences of one token or for L tokens of one. Rows are
 * tokens. */
#include <stdio.h>

#include "alloc.h"
#include "op_list.h"
#include "qwen2.h"
#include "status.h"

typedef struct builder {
  kr_graph *g;
  const kr_qwen2_config *c;
  const kr_qwen2_weights *w;
  int64_t i, R; /* layer; rows: tokens of this run */
  kr_qwen2_graph *to;
} builder;

static krait_view qwen2_view(const builder *b, kr_tensor t) { return kr_graph_view(b->g, t); }
static kr_tensor qwen2_new_rows(const builder *b, int64_t columns) {
  return kr_graph_temp(b->g, b->w->dtype, KR_DIMS(b->R, columns));
}

static kr_tensor qwen2_weight(const builder *b, const char *name, const kr_weight_ref *t, kr_dims dims) {
  char full[64];
  snprintf(full, sizeof full, "%lld.%s", (long long)b->i, name);
  return t->data ? kr_graph_weight(b->g, full, t->dtype, dims, t->data) : 0;
}

static krait_view transposed(const builder *b, kr_tensor matrix) {
  return qwen2_view(b, kr_graph_permute(b->g, matrix, (int[]){1, 0}));
}

/* Rows times a weight stored as (N outputs, K inputs). */
static void project_qwen2(const builder *b, const char *name, kr_tensor rows, const kr_weight_ref *w, int64_t N,
                          int64_t K, kr_tensor bias, kr_tensor out) {
  char full[64];
  if (w->dtype != KRAIT_I32) {
    kr_graph_call(b->g, name, &kr_op_gemm,
                  &(krait_gemm_args){.A = qwen2_view(b, rows),
                                     .Bmat = transposed(b, qwen2_weight(b, name, w, KR_DIMS(N, K))),
                                     .bias = qwen2_view(b, bias),
                                     .out = qwen2_view(b, out)});
    return;
  }
  if (!w->scales) {
    const kr_tensor qweight = qwen2_weight(b, name, w, KR_DIMS(N, K / 256 * 36));
    kr_graph_call(b->g, name, &kr_op_gemm_q4k,
                  &(krait_gemm_q4k_args){.A = qwen2_view(b, rows),
                                         .qweight = qwen2_view(b, qweight),
                                         .bias = qwen2_view(b, bias),
                                         .out = qwen2_view(b, out)});
    return;
  }
  snprintf(full, sizeof full, "%lld.%s.scales", (long long)b->i, name);
  const kr_tensor qweight = qwen2_weight(b, name, w, KR_DIMS(N, K / 4)),
                  scales = kr_graph_weight(b->g, full, KRAIT_F16, KR_DIMS(N, K / 32), w->scales);
  kr_graph_call(b->g, name, &kr_op_gemm_q8,
                &(krait_gemm_q8_args){.A = qwen2_view(b, rows),
                                      .qweight = qwen2_view(b, qweight),
                                      .scales = qwen2_view(b, scales),
                                      .bias = qwen2_view(b, bias),
                                      .out = qwen2_view(b, out)});
}

/* The residual stream is float32; adds h, and returns its norm. The first h starts the stream. */
static kr_tensor add_qwen2_norm(const builder *b, const char *name, kr_tensor h, kr_tensor *stream,
                                const kr_weight_ref *w) {
  const kr_tensor sum = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(b->R, b->c->d)), out = qwen2_new_rows(b, b->c->d);
  kr_graph_call(b->g, name, &kr_op_add_norm,
                &(krait_add_norm_args){.call.flags = KRAIT_NORM_RMS,
                                       .eps = b->c->eps,
                                       .x = qwen2_view(b, h),
                                       .residual = qwen2_view(b, *stream),
                                       .weight = qwen2_view(b, qwen2_weight(b, name, w, KR_DIMS(b->c->d))),
                                       .out = qwen2_view(b, out),
                                       .residual_out = qwen2_view(b, sum)});
  *stream = sum;
  return out;
}

/* Queries, keys and values: one product if their matrices are adjacent in memory. */
static kr_tensor project_heads(const builder *b, const kr_qwen2_layer *l, kr_tensor x) {
  static const char *const names[] = {"q", "k", "v"}, *const biases[] = {"q_bias", "k_bias", "v_bias"};
  const int64_t sizes[] = {b->c->H * b->c->D, b->c->Hk * b->c->D, b->c->Hk * b->c->D},
                all = sizes[0] + sizes[1] + sizes[2];
  const kr_tensor out = qwen2_new_rows(b, all);
  if (b->w->is_joined) {
    project_qwen2(b, "qkv", x, &l->qkv[0], all, b->c->d, qwen2_weight(b, "qkv_bias", &l->qkv_bias[0], KR_DIMS(all)),
                  out);
    return out;
  }
  for (int64_t j = 0, from = 0; j < 3; from += sizes[j++])
    project_qwen2(b, names[j], x, &l->qkv[j], sizes[j], b->c->d,
                  qwen2_weight(b, biases[j], &l->qkv_bias[j], KR_DIMS(sizes[j])),
                  kr_graph_slice(b->g, out, 1, from, sizes[j]));
  return out;
}

/* Columns of rows as heads: (B,L,H,D), where B or L is 1. */
static kr_tensor qwen2_as_heads(const builder *b, kr_tensor rows, int64_t from, int64_t H) {
  const kr_qwen2_run *run = &b->to->run;
  return kr_graph_reshape(b->g, kr_graph_slice(b->g, rows, 1, from * b->c->D, H * b->c->D),
                          KR_DIMS(run->B, run->L, H, b->c->D));
}

static kr_tensor qwen2_attend(const builder *b, const kr_qwen2_layer *l, kr_tensor x) {
  const kr_qwen2_config *c = b->c;
  const kr_qwen2_run *run = &b->to->run;
  const kr_tensor qkv = project_heads(b, l, x), y = qwen2_new_rows(b, c->H * c->D), h = qwen2_new_rows(b, c->d),
                  used = kr_graph_temp(b->g, KRAIT_I32, KR_DIMS(run->B));
  const kr_tensor q = kr_graph_temp(b->g, b->w->dtype, KR_DIMS(run->B, run->L, c->H, c->D)), keys = b->to->keys[b->i],
                  values = b->to->values[b->i];
  const krait_view cos = qwen2_view(b, b->to->cos), sin = qwen2_view(b, b->to->sin),
                   lengths = qwen2_view(b, b->to->lengths), slots = qwen2_view(b, b->to->slots);
  kr_graph_call(b->g, "rotary", &kr_op_rotary,
                &(krait_rotary_args){.x = qwen2_view(b, qwen2_as_heads(b, qkv, 0, c->H)),
                                     .cos = cos,
                                     .sin = sin,
                                     .offsets = lengths,
                                     .out = qwen2_view(b, q)});
  kr_graph_call(b->g, "append", &kr_op_attention_append,
                &(krait_attention_append_args){.k = qwen2_view(b, qwen2_as_heads(b, qkv, c->H, c->Hk)),
                                               .v = qwen2_view(b, qwen2_as_heads(b, qkv, c->H + c->Hk, c->Hk)),
                                               .cos = cos,
                                               .sin = sin,
                                               .cache_seqlens = lengths,
                                               .cache_batch_idx = slots,
                                               .k_cache = qwen2_view(b, keys),
                                               .v_cache = qwen2_view(b, values),
                                               .seqused = qwen2_view(b, used)});
  kr_graph_call(
      b->g, "attention", &kr_op_attention,
      &(krait_attention_args){.call.flags = KRAIT_ATTENTION_CAUSAL,
                              .q = qwen2_view(b, q),
                              .k = qwen2_view(b, keys),
                              .v = qwen2_view(b, values),
                              .seqused_k = qwen2_view(b, used),
                              .cache_batch_idx = slots,
                              .out = qwen2_view(b, kr_graph_reshape(b->g, y, KR_DIMS(run->B, run->L, c->H, c->D)))});
  project_qwen2(b, "o", y, &l->o, c->d, c->H * c->D, 0, h);
  return h;
}

/* silu(gate x) * (up x): one product if the weights are not quantized, otherwise two. */
static void gate(const builder *b, const kr_qwen2_layer *l, kr_tensor x, kr_tensor hidden) {
  const kr_qwen2_config *c = b->c;
  if (l->gate_up[0].dtype != KRAIT_I32 && l->gate_up[1].dtype != KRAIT_I32) {
    const kr_tensor gate = qwen2_weight(b, "gate", &l->gate_up[0], KR_DIMS(c->F, c->d)),
                    up = qwen2_weight(b, "up", &l->gate_up[1], KR_DIMS(c->F, c->d));
    kr_graph_call(b->g, "gate_up", &kr_op_gemm,
                  &(krait_gemm_args){.activation = KRAIT_ACT_SILU,
                                     .A = qwen2_view(b, x),
                                     .Bmat = transposed(b, gate),
                                     .B2 = transposed(b, up),
                                     .out = qwen2_view(b, hidden)});
    return;
  }
  const kr_tensor up = qwen2_new_rows(b, c->F);
  project_qwen2(b, "gate", x, &l->gate_up[0], c->F, c->d, 0, hidden);
  project_qwen2(b, "up", x, &l->gate_up[1], c->F, c->d, 0, up);
  kr_graph_pointwise(
      b->g, "gated",
      (krait_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .activation = KRAIT_ACT_SILU, .x_scale = 1}, hidden,
      up, hidden);
}

static kr_tensor feed_forward_qwen2(const builder *b, const kr_qwen2_layer *l, kr_tensor x) {
  const kr_tensor hidden = qwen2_new_rows(b, b->c->F), h = qwen2_new_rows(b, b->c->d);
  gate(b, l, x, hidden);
  project_qwen2(b, "down", hidden, &l->down, b->c->d, b->c->F, 0, h);
  return h;
}

/* ---- the whole ---- */

static kr_tensor embed_qwen2(const builder *b) {
  const kr_qwen2_config *c = b->c;
  const kr_tensor table = kr_graph_weight(b->g, "embedding", b->w->embedding.dtype, KR_DIMS(c->V, c->d),
                                          b->w->embedding.data),
                  x = qwen2_new_rows(b, c->d);
  kr_graph_call(b->g, "embedding", &kr_op_gather_rows,
                &(krait_gather_rows_args){
                    .table = qwen2_view(b, table), .index = qwen2_view(b, b->to->ids), .out = qwen2_view(b, x)});
  if (b->to->rows)
    kr_graph_pointwise(b->g, "rows", (krait_pointwise_args){.x_scale = 1, .y_scale = 1}, x, b->to->rows, x);
  return x;
}

static void record_inputs(const builder *b, int64_t n_slots, int64_t capacity) {
  const kr_qwen2_config *c = b->c;
  kr_qwen2_graph *to = b->to;
  char name[32];
  to->ids = kr_graph_input(b->g, "ids", KRAIT_I32, KR_DIMS(b->R));
  if (to->run.with_rows) to->rows = kr_graph_input(b->g, "rows", b->w->dtype, KR_DIMS(b->R, c->d));
  if (to->run.is_step) to->slots = kr_graph_input(b->g, "slots", KRAIT_I32, KR_DIMS(b->R));
  to->lengths = kr_graph_input(b->g, "lengths", KRAIT_I32, KR_DIMS(to->run.B));
  to->cos = kr_graph_input(b->g, "cos", KRAIT_F32, KR_DIMS(capacity, c->D / 2));
  to->sin = kr_graph_input(b->g, "sin", KRAIT_F32, KR_DIMS(capacity, c->D / 2));
  for (int64_t i = 0; i < 2 * c->n_layers; i++) {
    snprintf(name, sizeof name, "%s.%lld", i < c->n_layers ? "keys" : "values", (long long)(i % c->n_layers));
    to->keys[i] =
        kr_graph_output(b->g, name, b->w->dtype, KR_DIMS(to->run.is_step ? n_slots : 1, capacity, c->Hk, c->D));
  }
}

static void record_qwen2(builder *b, int64_t n_slots, int64_t capacity) {
  const kr_qwen2_config *c = b->c;
  kr_qwen2_graph *to = b->to;
  kr_tensor stream = 0;
  record_inputs(b, n_slots, capacity);
  kr_tensor h = embed_qwen2(b);
  for (b->i = 0; b->i < c->n_layers; b->i++) {
    const kr_qwen2_layer *l = &b->w->layers[b->i];
    h = qwen2_attend(b, l, add_qwen2_norm(b, "norm", h, &stream, &l->norm));
    h = feed_forward_qwen2(b, l, add_qwen2_norm(b, "norm2", h, &stream, &l->norm2));
  }
  if (!to->run.is_step && !to->run.all) { /* of the last token */
    h = kr_graph_slice(b->g, h, 0, b->R - 1, 1);
    stream = kr_graph_slice(b->g, stream, 0, b->R - 1, 1);
    b->R = 1;
  }
  to->logits = kr_graph_output(b->g, "logits", KRAIT_F32, KR_DIMS(b->R, c->V));
  project_qwen2(b, "head", add_qwen2_norm(b, "norm", h, &stream, &b->w->norm), &b->w->head, c->V, c->d, 0, to->logits);
  if (!to->run.is_step) return;
  to->argmax = kr_graph_output(b->g, "best", KRAIT_I32, KR_DIMS(b->R));
  kr_graph_call(b->g, "best", &kr_op_argmax_rows,
                &(krait_argmax_rows_args){.x = qwen2_view(b, kr_graph_slice(b->g, to->logits, 1, 0, c->n_used)),
                                          .out = qwen2_view(b, to->argmax)});
}

int32_t kr_qwen2_graph_open(const krait_ctx *ctx, const kr_qwen2_config *c, const kr_qwen2_weights *w,
                            const kr_qwen2_run *run, int64_t n_slots, int64_t capacity, kr_qwen2_graph *to) {
  *to = (kr_qwen2_graph){.run = *run, .keys = kr_alloc_array(2 * (size_t)c->n_layers, sizeof *to->keys)};
  if (to->keys) to->values = to->keys + c->n_layers;
  int32_t status = to->keys ? kr_graph_open(&to->g) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a graph");
  builder b = {.g = to->g, .c = c, .w = w, .R = run->B * run->L, .to = to};
  if (status >= 0) record_qwen2(&b, n_slots, capacity);
  if (status >= 0) status = kr_graph_plan(to->g, ctx, 0);
  if (status >= 0) status = kr_runner_open(to->g, &to->runner);
  if (status < 0) kr_qwen2_graph_close(to);
  return status;
}

void kr_qwen2_graph_close(kr_qwen2_graph *graph) {
  kr_runner_close(&graph->runner);
  kr_graph_close(&graph->g);
  kr_free(graph->keys);
  *graph = (kr_qwen2_graph){0};
}

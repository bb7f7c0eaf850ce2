/* block_attention.c: causal attention over a slot's keys and values. Fields: q, k, v, or qkv in one matrix; conv;
 * q_norm, k_norm; head_gate; o; and biases; of adapters q_in, q_out, k_in, ... */
#include "block_given.h"

#include <string.h>

#include "status.h"

typedef struct attention_weights {
  /* If they are joined, the first contains all; q with a gate: all of q, then all of the gate. */
  kr_weight_ref qkv[3], qkv_bias[3];
  kr_weight_ref o, o_bias, conv, conv_bias, head_gate;
  kr_weight_ref q_norm, k_norm; /* of heads: q_norm contains both */
  kr_weight_ref adapter_in[3], adapter_out[3]; /* (rank,in), (rows,rank) */
  int32_t is_joined;                           /* one product */
} attention_weights;

/* The number of a block's states: a convolution's comes first. */
static int keys_of(const kr_lm_attention_sizes *s) { return s->W > 0; }

static int32_t list_attention_states(const kr_lm_block *block, kr_lm_state *states) {
  const kr_lm_attention_sizes *s = block->sizes;
  const int keys = keys_of(s);
  if (keys) states[0] = (kr_lm_state){.name = "conv", .n_dims = 2, .size = {(s->H + 2 * s->Hk) * s->D, s->W - 1}};
  states[keys] = (kr_lm_state){.name = "keys", .is_per_token = 1, .n_dims = 2, .size = {s->Hk, s->D}};
  states[keys + 1] = (kr_lm_state){.name = "values", .is_per_token = 1, .n_dims = 2, .size = {s->Hk, s->D}};
  return keys + 2;
}

static int64_t width_of(const kr_lm_attention_sizes *s) { return s->in ? s->in : s->d; }

/* ---- weights ---- */

/* Of q with a gate the file has each head's query, then its gate. */
static int64_t row_of_q(const void *user, int64_t i) {
  const kr_lm_attention_sizes *s = user;
  const int64_t is_gate = i / (s->H * s->D), head = i / s->D % s->H;
  return (2 * head + is_gate) * s->D + i % s->D;
}

static int32_t load_gated_heads(kr_lm_loader *l, const kr_lm_attention_sizes *s, attention_weights *w) {
  KR_TRY(kr_lm_load_reordered(l, "q", KR_SIZES(2 * s->H * s->D, width_of(s)), row_of_q, s, &w->qkv[0]));
  KR_TRY(kr_lm_load(l, "k", 1, KR_SIZES(s->Hk * s->D, width_of(s)), &w->qkv[1]));
  return kr_lm_load(l, "v", 1, KR_SIZES(s->Hk * s->D, width_of(s)), &w->qkv[2]);
}

static int32_t load_heads(kr_lm_loader *l, const kr_lm_attention_sizes *s, attention_weights *w) {
  const int64_t q = s->H * s->D, k = s->Hk * s->D, in = width_of(s);
  if (s->gate == KR_LM_GATE_IN_Q) return load_gated_heads(l, s, w);
  w->is_joined = kr_lm_is_on_gpu(l) || kr_lm_has_key(l, "qkv");
  if (kr_lm_has_key(l, "qkv")) {
    KR_TRY(kr_lm_load(l, "qkv", 1, KR_SIZES(q + 2 * k, in), &w->qkv[0]));
    return kr_lm_load(l, "qkv_bias", 0, KR_SIZES(q + 2 * k), &w->qkv_bias[0]);
  }
  KR_TRY(kr_lm_load_rows(l, 3, (const char *const[]){"q", "k", "v"}, 1,
                         (kr_sizes[]){KR_SIZES(q, in), KR_SIZES(k, in), KR_SIZES(k, in)}, w->qkv));
  return kr_lm_load_rows(l, 3, (const char *const[]){"q_bias", "k_bias", "v_bias"}, 0,
                         (kr_sizes[]){KR_SIZES(q), KR_SIZES(k), KR_SIZES(k)}, w->qkv_bias);
}

static int32_t load_qk_norm(kr_lm_loader *l, const kr_lm_attention_sizes *s, attention_weights *w) {
  const kr_lm_norm_part of_heads[] = {{"q_norm", s->D, s->H}, {"k_norm", s->D, s->Hk}};
  if (s->qk_norm == KR_LM_NO_QK_NORM) return KRAIT_OK;
  if (s->qk_norm == KR_LM_NORM_OF_HEADS) {
    KR_TRY(kr_lm_load_norms(l, 2, of_heads, &w->q_norm));
    w->k_norm = w->q_norm;
    w->k_norm.data = (const float *)w->q_norm.data + s->H * s->D;
    return KRAIT_OK;
  }
  KR_TRY(kr_lm_load_norm(l, "q_norm", s->H * s->D, 1, &w->q_norm));
  return kr_lm_load_norm(l, "k_norm", s->Hk * s->D, 1, &w->k_norm);
}

static int32_t load_heads_adapters(kr_lm_loader *l, const kr_lm_attention_sizes *s, attention_weights *w) {
  const kr_sizes in = KR_SIZES(s->rank, width_of(s)), q = KR_SIZES(s->H * s->D, s->rank),
                 k = KR_SIZES(s->Hk * s->D, s->rank);
  if (!s->rank) return KRAIT_OK;
  KR_TRY(kr_lm_load_rows(l, 3, (const char *const[]){"q_in", "k_in", "v_in"}, 1, (kr_sizes[]){in, in, in},
                         w->adapter_in));
  return kr_lm_load_rows(l, 3, (const char *const[]){"q_out", "k_out", "v_out"}, 1, (kr_sizes[]){q, k, k},
                         w->adapter_out);
}

static int32_t load_own_attention(kr_lm_loader *l, const kr_lm_attention_sizes *s, attention_weights *w) {
  const int64_t C = (s->H + 2 * s->Hk) * s->D;
  KR_TRY(load_heads(l, s, w));
  KR_TRY(load_qk_norm(l, s, w));
  if (s->gate == KR_LM_GATE_OF_HEADS) KR_TRY(kr_lm_load(l, "head_gate", 1, KR_SIZES(s->H, width_of(s)), &w->head_gate));
  if (s->W) {
    KR_TRY(kr_lm_load(l, "conv", 1, KR_SIZES(C, 1, s->W), &w->conv));
    KR_TRY(kr_lm_load(l, "conv_bias", 1, KR_SIZES(C), &w->conv_bias));
  }
  KR_TRY(kr_lm_load(l, "o", 1, KR_SIZES(s->d, s->H * s->D), &w->o));
  return kr_lm_load(l, "o_bias", 0, KR_SIZES(s->d), &w->o_bias);
}

static int32_t load_attention(kr_lm_loader *l, const kr_lm_block *block) {
  attention_weights *w = block->weights;
  if (block->shared)
    *w = *(const attention_weights *)block->shared->weights;
  else
    KR_TRY(load_own_attention(l, block->sizes, w));
  return load_heads_adapters(l, block->sizes, w);
}

/* n rows of `width` values, and behind them the next. */
static int lies_behind(const kr_weight_ref *w, const kr_weight_ref *next, int64_t n, int64_t width) {
  return (const char *)next->data == (const char *)w->data + (size_t)(n * width) * krait_dtype_bytes(w->dtype);
}

static int are_behind(const kr_weight_ref *three, const kr_lm_attention_sizes *s, int64_t width) {
  return lies_behind(&three[0], &three[1], s->H * s->D, width) &&
         lies_behind(&three[1], &three[2], s->Hk * s->D, width);
}

void kr_lm_attention_give(const kr_lm_block *block, const kr_lm_given_attention *from) {
  const kr_lm_attention_sizes *s = block->sizes;
  attention_weights *w = block->weights;
  *w = (attention_weights){.o = from->o, .q_norm = from->qk_norm};
  memcpy(w->qkv, from->qkv, sizeof w->qkv);
  memcpy(w->qkv_bias, from->bias, sizeof w->qkv_bias);
  w->is_joined = are_behind(w->qkv, s, width_of(s)) && (!w->qkv_bias[0].data || are_behind(w->qkv_bias, s, 1));
}

/* ---- queries, keys, values ---- */

/* Rows; qk: queries and keys, if they are neighbours, or 0; gate: what the result is multiplied by, before its sigmoid,
 * or 0. */
typedef struct head_rows {
  kr_tensor q, k, v, qk, gate;
} head_rows;

/* Queries, keys and values as columns: one product if their matrices are adjacent in memory. */
static kr_tensor project_heads(const kr_token_builder *r, const kr_lm_attention_sizes *s, const attention_weights *w,
                               kr_tensor x) {
  static const char *const names[] = {"q", "k", "v"};
  const int64_t sizes[] = {s->H * s->D, s->Hk * s->D, s->Hk * s->D}, all = sizes[0] + sizes[1] + sizes[2];
  if (w->is_joined) return linear(r, "qkv", x, .w = w->qkv, .bias = w->qkv_bias, .N = all, .K = width_of(s));
  const kr_tensor out = new_rows(r, all);
  for (int64_t j = 0, from = 0; j < 3; from += sizes[j++])
    linear(r, names[j], x, .w = &w->qkv[j], .bias = &w->qkv_bias[j], .N = sizes[j], .K = width_of(s),
           .out = columns(r, out, from, sizes[j]));
  return out;
}

/* qkv += out(in x). */
static void adapt_heads(const kr_token_builder *r, const kr_lm_attention_sizes *s, const attention_weights *w,
                        kr_tensor x, kr_tensor qkv) {
  static const char *const names[][2] = {{"q_in", "q_out"}, {"k_in", "k_out"}, {"v_in", "v_out"}};
  const int64_t sizes[] = {s->H * s->D, s->Hk * s->D, s->Hk * s->D}, R = s->rank;
  const kr_tensor narrow = new_rows(r, 3 * R);
  if (w->is_joined) linear(r, "qkv_in", x, .w = w->adapter_in, .N = 3 * R, .K = width_of(s), .out = narrow);
  for (int64_t j = 0, from = 0; j < 3; from += sizes[j++]) {
    const kr_tensor part = columns(r, narrow, j * R, R), rows = columns(r, qkv, from, sizes[j]);
    if (!w->is_joined) linear(r, names[j][0], x, .w = &w->adapter_in[j], .N = R, .K = width_of(s), .out = part);
    linear(r, names[j][1], part, .w = &w->adapter_out[j], .N = sizes[j], .K = R, .residual = rows, .out = rows);
  }
}

static head_rows project_attention(kr_lm_builder *b, const kr_lm_block *block, kr_tensor x) {
  const kr_lm_attention_sizes *s = block->sizes;
  const attention_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const int64_t q = s->H * s->D, k = s->Hk * s->D;
  if (s->gate == KR_LM_GATE_IN_Q) {
    const kr_tensor both = linear(r, "q", x, .w = &w->qkv[0], .N = 2 * q, .K = width_of(s));
    return (head_rows){.q = columns(r, both, 0, q),
                       .k = linear(r, "k", x, .w = &w->qkv[1], .N = k, .K = width_of(s)),
                       .v = linear(r, "v", x, .w = &w->qkv[2], .N = k, .K = width_of(s)),
                       .gate = columns(r, both, q, q)};
  }
  kr_tensor qkv = project_heads(r, s, w, x);
  if (s->rank) adapt_heads(r, s, w, x, qkv);
  if (keys_of(s)) qkv = kr_lm_convolve(b, block, 0, qkv, &w->conv, &w->conv_bias, s->W, KRAIT_ACT_NONE);
  return (head_rows){.q = columns(r, qkv, 0, q),
                     .k = columns(r, qkv, q, k),
                     .v = columns(r, qkv, q + k, k),
                     .qk = columns(r, qkv, 0, q + k)};
}

/* The norm of every head, or of all their features. */
static void norm_heads(const kr_lm_builder *b, const kr_lm_attention_sizes *s, const char *name, kr_tensor rows,
                       const kr_weight_ref *w, int64_t heads, kr_tensor out) {
  const kr_token_builder *r = &b->rows;
  const int64_t n = heads * s->D;
  kr_graph_call(r->g, name, &kr_op_gated_norm,
                &(kr_gated_norm_args){.call.flags = KRAIT_GATED_NORM_RMS,
                                      .group_size = s->qk_norm == KR_LM_NORM_OF_ALL ? n : s->D,
                                      .eps = b->c->eps,
                                      .x = view(r, rows),
                                      .weight = view(r, weight(r, name, w, n)),
                                      .out = view(r, out)});
}

/* Neighbours by one call, into memory of their own: a step's attention then norms them itself (norm_in_attention);
 * else in place. */
static void norm_queries_and_keys(const kr_lm_builder *b, const kr_lm_attention_sizes *s, const attention_weights *w,
                                  head_rows *h) {
  const kr_token_builder *r = &b->rows;
  const int64_t q = s->H * s->D, k = s->Hk * s->D;
  if (s->qk_norm == KR_LM_NORM_OF_HEADS && h->qk) {
    const kr_tensor out = new_rows(r, q + k);
    norm_heads(b, s, "qk_norm", h->qk, &w->q_norm, s->H + s->Hk, out);
    h->q = columns(r, out, 0, q), h->k = columns(r, out, q, k);
    return;
  }
  norm_heads(b, s, "q_norm", h->q, &w->q_norm, s->H, h->q);
  norm_heads(b, s, "k_norm", h->k, &w->k_norm, s->Hk, h->k);
}

static kr_tensor rotate_queries(const kr_lm_builder *b, const kr_lm_attention_sizes *s, kr_tensor q) {
  const kr_token_builder *r = &b->rows;
  const kr_tensor out = kr_graph_temp(r->g, r->dtype, kr_graph_dims(r->g, q));
  kr_graph_call(r->g, "rotary", &kr_op_rotary,
                &(kr_rotary_args){.call.flags = s->is_interleaved ? KRAIT_ROTARY_INTERLEAVED : 0,
                                     .x = view(r, q),
                                     .cos = view(r, b->to->cos[s->rope]),
                                     .sin = view(r, b->to->sin[s->rope]),
                                     .offsets = view(r, b->to->lengths),
                                     .out = view(r, out)});
  return out;
}

/* ---- the whole ---- */

/* (B, L, heads, D) */
static kr_tensor as_head_dims(const kr_lm_builder *b, const kr_lm_attention_sizes *s, kr_tensor rows, int64_t heads) {
  return kr_graph_reshape(b->rows.g, rows, KR_DIMS(b->run.B, b->run.L, heads, s->D));
}

static kr_tensor append_keys(const kr_lm_builder *b, const kr_lm_block *block, const head_rows *h) {
  const kr_lm_attention_sizes *s = block->sizes;
  const kr_token_builder *r = &b->rows;
  const int keys = keys_of(s);
  const kr_tensor used = kr_graph_temp(r->g, KRAIT_I32, KR_DIMS(b->run.B));
  kr_graph_call(r->g, "append", &kr_op_attention_append,
                &(kr_attention_append_args){.call.flags = s->is_interleaved ? KRAIT_ROTARY_INTERLEAVED : 0,
                                               .k = view(r, as_head_dims(b, s, h->k, s->Hk)),
                                               .v = view(r, as_head_dims(b, s, h->v, s->Hk)),
                                               .cos = view(r, s->R ? b->to->cos[s->rope] : 0),
                                               .sin = view(r, s->R ? b->to->sin[s->rope] : 0),
                                               .cache_seqlens = view(r, b->to->lengths),
                                               .cache_batch_idx = view(r, b->to->slots),
                                               .k_cache = view(r, kr_lm_state_of(b, block, keys)),
                                               .v_cache = view(r, kr_lm_state_of(b, block, keys + 1)),
                                               .seqused = view(r, used)});
  return used;
}

static void attend(const kr_lm_builder *b, const kr_lm_block *block, kr_tensor q, kr_tensor used, kr_tensor y) {
  const kr_lm_attention_sizes *s = block->sizes;
  const kr_token_builder *r = &b->rows;
  const int keys = keys_of(s);
  kr_graph_call(r->g, "attention", &kr_op_attention,
                &(kr_attention_args){
                    .call.flags = KRAIT_ATTENTION_CAUSAL | (s->window ? KRAIT_ATTENTION_WINDOW : 0),
                    .window_left = s->window ? s->window - 1 : 0,
                    .scale = (float)s->scale,
                    .q = view(r, q),
                    .k = view(r, kr_lm_state_of(b, block, keys)),
                    .v = view(r, kr_lm_state_of(b, block, keys + 1)),
                    .seqused_k = view(r, used),
                    .cache_batch_idx = view(r, b->to->slots),
                    .out = view(r, as_head_dims(b, s, y, s->H))});
}

/* y times the sigmoid of its gate. */
static void gate_heads(const kr_lm_builder *b, const kr_lm_attention_sizes *s, const attention_weights *w, kr_tensor x,
                       kr_tensor gate, kr_tensor y) {
  const kr_token_builder *r = &b->rows;
  const kr_pointwise_args sigmoid = {
      .call.flags = KRAIT_POINTWISE_PRODUCT, .activation = KRAIT_ACT_SIGMOID, .x_scale = 1};
  const kr_dims heads = KR_DIMS(r->rows, s->H, s->D);
  if (s->gate == KR_LM_GATE_IN_Q) kr_graph_pointwise(r->g, "gate", sigmoid, gate, y, y);
  if (s->gate != KR_LM_GATE_OF_HEADS) return;
  const kr_tensor of_heads = linear(r, "head_gate", x, .w = &w->head_gate, .N = s->H, .K = width_of(s)),
                  spread = kr_graph_expand(r->g, kr_graph_reshape(r->g, of_heads, KR_DIMS(r->rows, s->H, 1)), heads),
                  all = kr_graph_reshape(r->g, y, heads);
  kr_graph_pointwise(r->g, "gate", sigmoid, spread, all, all);
}

static kr_tensor record_attention(kr_lm_builder *b, const kr_lm_block *block, kr_tensor x) {
  const kr_lm_attention_sizes *s = block->sizes;
  const attention_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  head_rows h = project_attention(b, block, x);
  if (s->qk_norm) norm_queries_and_keys(b, s, w, &h);
  kr_tensor q = as_head_dims(b, s, h.q, s->H);
  const kr_tensor y = new_rows(r, s->H * s->D);
  if (s->R) q = rotate_queries(b, s, q);
  attend(b, block, q, append_keys(b, block, &h), y);
  gate_heads(b, s, w, x, h.gate, y);
  return result_of(b, block, "o", y, .w = &w->o, .bias = &w->o_bias, .N = s->d, .K = s->H * s->D);
}

const kr_lm_block_kind kr_lm_attention = {.name = "attention",
                                          .sizes_bytes = sizeof(kr_lm_attention_sizes),
                                          .weights_bytes = sizeof(attention_weights),
                                          .load = load_attention,
                                          .list_states = list_attention_states,
                                          .record = record_attention};

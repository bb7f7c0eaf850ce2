/* block_attention.c: causal attention over a slot's keys and values. Fields: q, k, v, or qkv in one matrix; conv; o;
 * and biases. */
#include "lm_blocks.h"
#include "lm_builder.h"
#include "status.h"

typedef struct attention_weights {
  kr_weight_ref qkv[3], qkv_bias[3]; /* if they are joined, the first contains all */
  kr_weight_ref o, o_bias, conv, conv_bias;
  int32_t is_joined; /* one product */
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

static int32_t load_heads(kr_lm_loader *l, const kr_lm_attention_sizes *s, attention_weights *w) {
  const int64_t q = s->H * s->D, k = s->Hk * s->D;
  w->is_joined = kr_lm_is_on_gpu(l) || kr_lm_has_key(l, "qkv");
  if (kr_lm_has_key(l, "qkv")) {
    KR_TRY(kr_lm_load(l, "qkv", 1, KR_SIZES(q + 2 * k, s->d), &w->qkv[0]));
    return kr_lm_load(l, "qkv_bias", 0, KR_SIZES(q + 2 * k), &w->qkv_bias[0]);
  }
  KR_TRY(kr_lm_load_rows(l, 3, (const char *const[]){"q", "k", "v"}, 1,
                         (kr_sizes[]){KR_SIZES(q, s->d), KR_SIZES(k, s->d), KR_SIZES(k, s->d)}, w->qkv));
  return kr_lm_load_rows(l, 3, (const char *const[]){"q_bias", "k_bias", "v_bias"}, 0,
                         (kr_sizes[]){KR_SIZES(q), KR_SIZES(k), KR_SIZES(k)}, w->qkv_bias);
}

static int32_t load_attention(kr_lm_loader *l, const kr_lm_block *block) {
  const kr_lm_attention_sizes *s = block->sizes;
  attention_weights *w = block->weights;
  const int64_t C = (s->H + 2 * s->Hk) * s->D;
  KR_TRY(load_heads(l, s, w));
  if (s->W) {
    KR_TRY(kr_lm_load(l, "conv", 1, KR_SIZES(C, 1, s->W), &w->conv));
    KR_TRY(kr_lm_load(l, "conv_bias", 1, KR_SIZES(C), &w->conv_bias));
  }
  KR_TRY(kr_lm_load(l, "o", 1, KR_SIZES(s->d, s->H * s->D), &w->o));
  return kr_lm_load(l, "o_bias", 0, KR_SIZES(s->d), &w->o_bias);
}

/* Queries, keys and values as columns: one product if their matrices are adjacent in memory. */
static kr_tensor project_heads(const kr_token_builder *r, const kr_lm_attention_sizes *s, const attention_weights *w,
                               kr_tensor x) {
  static const char *const names[] = {"q", "k", "v"};
  const int64_t sizes[] = {s->H * s->D, s->Hk * s->D, s->Hk * s->D}, all = sizes[0] + sizes[1] + sizes[2];
  if (w->is_joined) return linear(r, "qkv", x, .w = w->qkv, .bias = w->qkv_bias, .N = all, .K = s->d);
  const kr_tensor out = new_rows(r, all);
  for (int64_t j = 0, from = 0; j < 3; from += sizes[j++])
    linear(r, names[j], x, .w = &w->qkv[j], .bias = &w->qkv_bias[j], .N = sizes[j], .K = s->d,
           .out = columns(r, out, from, sizes[j]));
  return out;
}

static kr_tensor rotate_queries(const kr_lm_builder *b, const kr_lm_attention_sizes *s, kr_tensor q) {
  const kr_token_builder *r = &b->rows;
  const kr_tensor out = kr_graph_temp(r->g, r->dtype, kr_graph_dims(r->g, q));
  kr_graph_call(r->g, "rotary", &kr_op_rotary,
                &(kr_rotary_args){.call.flags = s->is_interleaved ? KRAIT_ROTARY_INTERLEAVED : 0,
                                     .x = view(r, q),
                                     .cos = view(r, b->to->cos),
                                     .sin = view(r, b->to->sin),
                                     .offsets = view(r, b->to->lengths),
                                     .out = view(r, out)});
  return out;
}

static kr_tensor record_attention(kr_lm_builder *b, const kr_lm_block *block, kr_tensor x) {
  const kr_lm_attention_sizes *s = block->sizes;
  const attention_weights *w = block->weights;
  const kr_token_builder *r = &b->rows;
  const int keys = keys_of(s);
  const kr_dims heads = KR_DIMS(b->run.B, b->run.L, s->H, s->D), kv = KR_DIMS(b->run.B, b->run.L, s->Hk, s->D);
  const kr_view k_cache = view(r, kr_lm_state_of(b, block, keys)),
                   v_cache = view(r, kr_lm_state_of(b, block, keys + 1)), slots = view(r, b->to->slots);
  kr_tensor qkv = project_heads(r, s, w, x);
  if (keys) qkv = kr_lm_convolve(b, block, 0, qkv, &w->conv, &w->conv_bias, s->W, KRAIT_ACT_NONE);
  kr_tensor q = as_heads(r, qkv, 0, heads);
  const kr_tensor y = new_rows(r, s->H * s->D), used = kr_graph_temp(r->g, KRAIT_I32, KR_DIMS(b->run.B));
  if (s->R) q = rotate_queries(b, s, q);
  kr_graph_call(r->g, "append", &kr_op_attention_append,
                &(kr_attention_append_args){.call.flags = s->is_interleaved ? KRAIT_ROTARY_INTERLEAVED : 0,
                                               .k = view(r, as_heads(r, qkv, s->H, kv)),
                                               .v = view(r, as_heads(r, qkv, s->H + s->Hk, kv)),
                                               .cos = view(r, s->R ? b->to->cos : 0),
                                               .sin = view(r, s->R ? b->to->sin : 0),
                                               .cache_seqlens = view(r, b->to->lengths),
                                               .cache_batch_idx = slots,
                                               .k_cache = k_cache,
                                               .v_cache = v_cache,
                                               .seqused = view(r, used)});
  kr_graph_call(r->g, "attention", &kr_op_attention,
                &(kr_attention_args){.call.flags = KRAIT_ATTENTION_CAUSAL,
                                        .scale = (float)s->scale,
                                        .q = view(r, q),
                                        .k = k_cache,
                                        .v = v_cache,
                                        .seqused_k = view(r, used),
                                        .cache_batch_idx = slots,
                                        .out = view_as(r, y, heads)});
  return linear(r, "o", y, .w = &w->o, .bias = &w->o_bias, .N = s->d, .K = s->H * s->D);
}

const kr_lm_block_kind kr_lm_attention = {.name = "attention",
                                          .sizes_bytes = sizeof(kr_lm_attention_sizes),
                                          .weights_bytes = sizeof(attention_weights),
                                          .load = load_attention,
                                          .list_states = list_attention_states,
                                          .record = record_attention};

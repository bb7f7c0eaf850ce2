/* graph_rewrite_step.c: the rewrites of a decode step on a GPU, where one kernel less saves a microsecond: an RMS norm
 * is merged into the product that reads it, which normalises the row while it waits for its weights; the norm's
 * addition into the product before it; its gate into the scan before it; a convolution's step into the product that
 * computes its inputs; a product that computes time steps into the scan that uses them; the rotary embedding of queries
 * into the call that appends keys, and that call into attention. Applied if a GPU implementation of the fused op
 * accepts the call: few rows. */
#include <stddef.h>
#include <string.h>

#include <krait/blocks.h>

#include "graph_rewrite.h"
#include "op_list.h"

#define TENSOR(node, op, view) kr_node_tensor(node, offsetof(krait_##op##_args, view))

/* ---- norms in products ---- */

/* The norm's part of the call; returns its output. 0: another kind of norm. */
static kr_tensor read_norm(const kr_graph *g, const kr_node *node, krait_norm_gemm_args *to) {
#define VIEW(op, view) kr_graph_view(g, TENSOR(node, op, view))
  if (node->op == &kr_op_add_norm) {
    const krait_add_norm_args *a = (const krait_add_norm_args *)node->args;
    if (a->call.flags != KRAIT_NORM_RMS || TENSOR(node, add_norm, x1) || TENSOR(node, add_norm, rowscale) ||
        TENSOR(node, add_norm, bias) || TENSOR(node, add_norm, weight1) || TENSOR(node, add_norm, out1))
      return 0;
    to->eps = a->eps, to->x = VIEW(add_norm, x), to->residual = VIEW(add_norm, residual),
    to->weight = VIEW(add_norm, weight), to->residual_out = VIEW(add_norm, residual_out);
    return TENSOR(node, add_norm, out);
  }
  if (node->op == &kr_op_gated_norm) {
    const krait_gated_norm_args *a = (const krait_gated_norm_args *)node->args;
    if (a->call.flags != (KRAIT_GATED_NORM_RMS | KRAIT_GATED_NORM_GATE_FIRST) || a->group_size != a->M ||
        TENSOR(node, gated_norm, bias))
      return 0;
    to->eps = a->eps, to->x = VIEW(gated_norm, x), to->z = VIEW(gated_norm, z), to->weight = VIEW(gated_norm, weight);
    return TENSOR(node, gated_norm, out);
  }
  return 0;
#undef VIEW
}

/* The call with its sizes, as a implementation's refuse function needs it; recording uses tensor names instead. */
static int is_taken(const krait_ctx *ctx, const kr_op *op, const void *call) {
  _Alignas(16) unsigned char args[1024];
  if (op->args_bytes > sizeof args) return 0;
  memcpy(args, call, op->args_bytes);
  ((krait_call *)args)->size = op->args_bytes;
  for (int i = 0; i < op->sig->n_tensors; i++) kr_sig_view(op->sig, args, i)->reserved = 0;
  const kr_impl *impl = kr_op_resolve(op, ctx, args, NULL);
  return impl && !(impl->needs & KRAIT_CAP_CPU);
}

/* Puts the call in place of the nodes n and n + 1. */
static int replace_two(kr_graph *g, size_t n, const char *name, const kr_op *op, const void *call) {
  kr_graph_call(g, name, op, call);
  if (kr_graph_status(g) < 0) return 0;
  kr_graph_move_last(g, n);
  kr_graph_drop(g, n + 2);
  kr_graph_drop(g, n + 1);
  return 1;
}

static int is_empty(const kr_graph *g, kr_tensor t) { return kr_dims_elements(kr_graph_dims(g, t)) == 0; }

/* Whether the norm or the product writes what the norm reads, which other blocks of the fused kernel may still be
 * reading. */
static int is_in_place(const kr_graph *g, const kr_node *norm, kr_tensor out) {
  const kr_tensor sum = norm->op == &kr_op_add_norm ? TENSOR(norm, add_norm, residual_out) : 0;
  for (int32_t i = 0; i < norm->n_uses; i++) {
    const int32_t read = KR_PART(g, norm->uses[i].tensor)->storage;
    if (norm->uses[i].role == KR_IN && (read == KR_PART(g, out)->storage || (sum && read == KR_PART(g, sum)->storage)))
      return 1;
  }
  return 0;
}

/* A product with at most a bias. */
static int is_known_product(const kr_node *node) {
  const krait_gemm_args *a = (const krait_gemm_args *)node->args;
  return kr_product_is_plain(node) && a->activation == KRAIT_ACT_NONE && !TENSOR(node, gemm, residual);
}

/* The product's part of the call; what it reads. 0: another kind of call. */
static kr_tensor read_product(const kr_graph *g, const kr_node *node, krait_norm_gemm_args *to, kr_tensor *out) {
#define VIEW(op, view) kr_graph_view(g, TENSOR(node, op, view))
  if (is_known_product(node)) {
    const krait_gemm_args *of = (const krait_gemm_args *)node->args;
    to->M = of->M, to->N = of->N, to->K = of->K;
    to->Bmat = VIEW(gemm, Bmat), to->bias = VIEW(gemm, bias), to->out = VIEW(gemm, out);
    *out = TENSOR(node, gemm, out);
    return TENSOR(node, gemm, A);
  }
  if (node->op == &kr_op_gemm_q8) {
    const krait_gemm_q8_args *of = (const krait_gemm_q8_args *)node->args;
    to->M = of->M, to->N = of->N, to->K = 32 * of->S, to->S = of->S;
    to->qweight = VIEW(gemm_q8, qweight), to->scales = VIEW(gemm_q8, scales), to->bias = VIEW(gemm_q8, bias),
    to->out = VIEW(gemm_q8, out);
    *out = TENSOR(node, gemm_q8, out);
    return TENSOR(node, gemm_q8, A);
  }
  return 0;
#undef VIEW
}

int kr_norm_in_product(kr_graph *g, const krait_ctx *ctx, size_t n) {
  krait_norm_gemm_args a = {0};
  if (!ctx || !ctx->cuda || n + 1 >= g->nodes.n) return 0;
  const kr_node *product = KR_NODE(g, n + 1);
  kr_tensor out = 0;
  const kr_tensor x = read_product(g, product, &a, &out), normed = x ? read_norm(g, KR_NODE(g, n), &a) : 0;
  if (!normed || kr_graph_only_reader(g, n, normed) != (int32_t)n + 1 ||
      KR_PART(g, x)->storage != KR_PART(g, normed)->storage || is_in_place(g, KR_NODE(g, n), out) || is_empty(g, x))
    return 0;
  return is_taken(ctx, &kr_op_norm_gemm, &a) && replace_two(g, n, product->name, &kr_op_norm_gemm, &a);
}

/* ---- the addition of such a norm, in the product before it ---- */

/* Otherwise each block of a norm's product would repeat the addition. */
int kr_sum_in_product(kr_graph *g, const krait_ctx *ctx, size_t n) {
  if (!ctx || !ctx->cuda || n + 1 >= g->nodes.n || !is_known_product(KR_NODE(g, n)) ||
      KR_NODE(g, n + 1)->op != &kr_op_norm_gemm)
    return 0;
  kr_node *product = KR_NODE(g, n), *norm = KR_NODE(g, n + 1);
  const kr_tensor out = TENSOR(product, gemm, out), x = TENSOR(norm, norm_gemm, x),
                  stream = TENSOR(norm, norm_gemm, residual), sum = TENSOR(norm, norm_gemm, residual_out);
  if (!stream || !sum || kr_graph_dtype(g, stream) != KRAIT_F32 || kr_graph_dtype(g, sum) != KRAIT_F32 ||
      kr_graph_only_reader(g, n, out) != (int32_t)n + 1 || KR_PART(g, x)->storage != KR_PART(g, out)->storage ||
      is_empty(g, x))
    return 0;
  krait_gemm_args p = *(const krait_gemm_args *)product->args;
  krait_norm_gemm_args a = *(const krait_norm_gemm_args *)norm->args;
  p.residual = kr_graph_view(g, stream), p.out = a.x = kr_graph_view(g, sum);
  a.residual = a.residual_out = (krait_view){0};
  if (!is_taken(ctx, &kr_op_gemm, &p) || !is_taken(ctx, &kr_op_norm_gemm, &a)) return 0;
  kr_node_set(g, product, offsetof(krait_gemm_args, residual), KR_IN, stream);
  kr_node_set(g, product, offsetof(krait_gemm_args, out), KR_OUT, sum);
  kr_node_set(g, norm, offsetof(krait_norm_gemm_args, x), KR_IN, sum);
  kr_node_set(g, norm, offsetof(krait_norm_gemm_args, residual), KR_IN, 0);
  kr_node_set(g, norm, offsetof(krait_norm_gemm_args, residual_out), KR_OUT, 0);
  return 1;
}

/* ---- the gate of such a norm, in the scan before it ---- */

/* Otherwise each block of a norm's product would repeat the gate. */
int kr_gate_in_update(kr_graph *g, const krait_ctx *ctx, size_t n) {
  if (!ctx || !ctx->cuda || n + 1 >= g->nodes.n || KR_NODE(g, n)->op != &kr_op_state_update ||
      KR_NODE(g, n + 1)->op != &kr_op_norm_gemm)
    return 0;
  kr_node *update = KR_NODE(g, n), *product = KR_NODE(g, n + 1);
  const kr_tensor out = TENSOR(update, state_update, out), x = TENSOR(product, norm_gemm, x),
                  z = TENSOR(product, norm_gemm, z);
  if (!z || TENSOR(update, state_update, z) || kr_graph_only_reader(g, n, out) != (int32_t)n + 1 ||
      KR_PART(g, x)->storage != KR_PART(g, out)->storage || is_empty(g, out) ||
      !kr_graph_can_reshape(g, z, kr_graph_dims(g, out)))
    return 0;
  krait_state_update_args u = *(const krait_state_update_args *)update->args;
  krait_norm_gemm_args p = *(const krait_norm_gemm_args *)product->args;
  const kr_tensor gate = kr_graph_reshape(g, z, kr_graph_dims(g, out));
  u.z = kr_graph_view(g, gate), p.z = (krait_view){0};
  if (!is_taken(ctx, &kr_op_state_update, &u) || !is_taken(ctx, &kr_op_norm_gemm, &p)) return 0;
  kr_node_set(g, update, offsetof(krait_state_update_args, z), KR_IN, gate);
  kr_node_set(g, product, offsetof(krait_norm_gemm_args, z), KR_IN, 0);
  return 1;
}

/* ---- a convolution's step after the product ---- */

/* The column of the matrix at which (rows, channels, one step) starts, if these are columns of it; -1: they are not. */
static int64_t columns_from(const kr_graph *g, kr_tensor x, kr_tensor matrix) {
  const kr_part *part = KR_PART(g, x), *of = KR_PART(g, matrix);
  const int64_t bytes = (int64_t)krait_dtype_bytes(of->dtype), at = part->at_bytes - of->at_bytes, from = at / bytes;
  if (part->storage != of->storage || part->dims.size[0] != of->dims.size[0] || part->dims.size[2] != 1 || at < 0 ||
      at % bytes || of->stride[1] != 1 || (part->dims.size[1] > 1 && part->stride[1] != 1) ||
      (part->dims.size[0] > 1 && part->stride[0] != of->stride[0]))
    return -1;
  return from + part->dims.size[1] <= of->dims.size[1] ? from : -1;
}

int kr_conv_in_product(kr_graph *g, const krait_ctx *ctx, size_t n) {
  if (!ctx || !ctx->cuda || n + 1 >= g->nodes.n || KR_NODE(g, n)->op != &kr_op_norm_gemm ||
      KR_NODE(g, n + 1)->op != &kr_op_causal_conv1d_update)
    return 0;
  const kr_node *product = KR_NODE(g, n), *conv = KR_NODE(g, n + 1);
  const krait_causal_conv1d_update_args *c = (const krait_causal_conv1d_update_args *)conv->args;
  const kr_tensor out = TENSOR(product, norm_gemm, out), y = TENSOR(conv, causal_conv1d_update, out),
                  x = TENSOR(conv, causal_conv1d_update, x);
  krait_norm_gemm_args a = *(const krait_norm_gemm_args *)product->args;
  if (TENSOR(product, norm_gemm, conv_weight) || c->L != 1 || c->S != c->W - 1 || c->activation != KRAIT_ACT_SILU ||
      TENSOR(conv, causal_conv1d_update, cache_seqlens) || KR_PART(g, y)->storage == KR_PART(g, out)->storage ||
      is_empty(g, x))
    return 0;
  const kr_dims dims = kr_graph_dims(g, x);
  a.C = dims.size[1], a.W = c->W, a.n_states = c->n_states, a.conv_from = columns_from(g, x, out);
  if (a.conv_from < 0) return 0;
  for (int32_t i = 0; i < product->n_uses; i++)
    *kr_view_in(&a, product->uses[i].offset) = kr_graph_view(g, product->uses[i].tensor);
#define VIEW(name) kr_graph_view(g, TENSOR(conv, causal_conv1d_update, name))
  a.conv_weight = VIEW(weight), a.conv_bias = VIEW(bias), a.conv_state = VIEW(conv_state),
  a.conv_state_indices = VIEW(conv_state_indices);
#undef VIEW
  a.conv_out = kr_graph_view(g, kr_graph_reshape(g, y, KR_DIMS(dims.size[0], dims.size[1])));
  return is_taken(ctx, &kr_op_norm_gemm, &a) && replace_two(g, n, product->name, &kr_op_norm_gemm, &a);
}

/* ---- time steps in the scan ---- */

/* Without the dimension of the one head. */
static krait_view without_head(kr_graph *g, kr_tensor t, int at) {
  kr_dims dims = kr_graph_dims(g, t);
  if (!t) return (krait_view){0};
  for (int i = at; i + 1 < dims.n; i++) dims.size[i] = dims.size[i + 1];
  dims.n--;
  return kr_graph_view(g, kr_graph_reshape(g, t, dims));
}

int kr_dt_in_update(kr_graph *g, const krait_ctx *ctx, size_t n) {
  if (!ctx || !ctx->cuda || n + 1 >= g->nodes.n || !kr_product_is_plain(KR_NODE(g, n)) ||
      KR_NODE(g, n + 1)->op != &kr_op_state_update)
    return 0;
  const kr_node *product = KR_NODE(g, n), *update = KR_NODE(g, n + 1);
  const krait_state_update_args *u = (const krait_state_update_args *)update->args;
  const kr_tensor dt = TENSOR(product, gemm, out), A = TENSOR(product, gemm, A), B = TENSOR(product, gemm, Bmat),
                  taken = TENSOR(update, state_update, dt);
  if (u->H != 1 || TENSOR(product, gemm, bias) || TENSOR(product, gemm, residual) ||
      ((const krait_gemm_args *)product->args)->activation != KRAIT_ACT_NONE || is_empty(g, dt) || is_empty(g, A) ||
      kr_graph_only_reader(g, n, dt) != (int32_t)n + 1 || KR_PART(g, taken)->storage != KR_PART(g, dt)->storage)
    return 0;
#define WITHOUT_HEAD(view, at) without_head(g, TENSOR(update, state_update, view), at)
  const krait_dt_state_update_args a = {
      .call.flags = u->call.flags,
      .B = u->B,
      .D = u->P,
      .N = u->N,
      .R = kr_graph_dims(g, A).size[1],
      .n_states = u->n_states,
      .state = WITHOUT_HEAD(state, 1),
      .x = WITHOUT_HEAD(x, 1),
      .r = kr_graph_view(g, A),
      .dt_weight = kr_graph_view(g, kr_graph_permute(g, B, (int[]){1, 0})),
      .A = WITHOUT_HEAD(A, 0),
      .Bmat = WITHOUT_HEAD(Bmat, 1),
      .Cmat = WITHOUT_HEAD(Cmat, 1),
      .Dvec = WITHOUT_HEAD(Dvec, 0),
      .dt_bias = WITHOUT_HEAD(dt_bias, 0),
      .z = WITHOUT_HEAD(z, 1),
      .state_batch_indices = kr_graph_view(g, TENSOR(update, state_update, state_batch_indices)),
      .out = WITHOUT_HEAD(out, 1)};
#undef WITHOUT_HEAD
  return is_taken(ctx, &kr_op_dt_state_update, &a) && replace_two(g, n, update->name, &kr_op_dt_state_update, &a);
}

/* ---- rotary embedding of queries in the call that appends keys and values ---- */

int kr_rotary_with_append(kr_graph *g, const krait_ctx *ctx, size_t n) {
  if (!ctx || !ctx->cuda || n + 1 >= g->nodes.n || KR_NODE(g, n)->op != &kr_op_rotary ||
      KR_NODE(g, n + 1)->op != &kr_op_attention_append)
    return 0;
  const kr_node *turn = KR_NODE(g, n), *append = KR_NODE(g, n + 1);
  const krait_rotary_args *r = (const krait_rotary_args *)turn->args;
  const krait_attention_append_args *p = (const krait_attention_append_args *)append->args;
#define SAME(a, b) (TENSOR(turn, rotary, a) == TENSOR(append, attention_append, b))
  if (!SAME(cos, cos) || !SAME(sin, sin) || !SAME(offsets, cache_seqlens) || r->call.flags != p->call.flags ||
      TENSOR(turn, rotary, cu_seqlens) || TENSOR(append, attention_append, block_table) || r->D != p->D ||
      r->L != p->L || KR_PART(g, TENSOR(turn, rotary, x))->storage == KR_PART(g, TENSOR(turn, rotary, out))->storage)
    return 0;
#undef SAME
#define VIEW(name) kr_graph_view(g, TENSOR(append, attention_append, name))
  const krait_rotary_append_args a = {.call.flags = r->call.flags,
                                      .B = r->B,
                                      .L = r->L,
                                      .H = r->H,
                                      .Hk = p->Hk,
                                      .D = r->D,
                                      .Dv = p->Dv,
                                      .R = r->R,
                                      .T = r->T,
                                      .Bk = p->Bk,
                                      .Lk = p->Lk,
                                      .q = kr_graph_view(g, TENSOR(turn, rotary, x)),
                                      .k = VIEW(k),
                                      .v = VIEW(v),
                                      .cos = VIEW(cos),
                                      .sin = VIEW(sin),
                                      .cache_seqlens = VIEW(cache_seqlens),
                                      .cache_batch_idx = VIEW(cache_batch_idx),
                                      .k_cache = VIEW(k_cache),
                                      .v_cache = VIEW(v_cache),
                                      .out = kr_graph_view(g, TENSOR(turn, rotary, out)),
                                      .seqused = VIEW(seqused)};
#undef VIEW
  return is_taken(ctx, &kr_op_rotary_append, &a) && replace_two(g, n, append->name, &kr_op_rotary_append, &a);
}

/* ---- that call in the attention that follows ---- */

/* Attention of a step's queries to its own keys and all before them, and nothing else. */
static int is_step(const kr_node *append, const kr_node *node) {
  const krait_rotary_append_args *r = (const krait_rotary_append_args *)append->args;
  const krait_attention_args *a = (const krait_attention_args *)node->args;
#define SAME(a, b) (TENSOR(append, rotary_append, a) == TENSOR(node, attention, b))
#define ABSENT(name) (TENSOR(node, attention, name) == 0)
  return a->Lq == 1 && r->L == 1 && a->D == a->Dv && r->Dv == r->D && a->H == r->H && a->Hk == r->Hk &&
         a->call.flags == KRAIT_ATTENTION_CAUSAL && a->softcap == 0 && a->dropout == 0 && SAME(out, q) &&
         SAME(k_cache, k) && SAME(v_cache, v) && SAME(seqused, seqused_k) && SAME(cache_batch_idx, cache_batch_idx) &&
         TENSOR(append, rotary_append, cache_seqlens) && TENSOR(append, rotary_append, seqused) &&
         ABSENT(cu_seqlens_q) && ABSENT(cu_seqlens_k) && ABSENT(seqused_q) && ABSENT(leftpad_k) &&
         ABSENT(block_table) && ABSENT(alibi_slopes) && ABSENT(sinks) && ABSENT(rng) && ABSENT(lse);
#undef SAME
#undef ABSENT
}

int kr_append_in_attention(kr_graph *g, const krait_ctx *ctx, size_t n) {
  if (!ctx || !ctx->cuda || n + 1 >= g->nodes.n || KR_NODE(g, n)->op != &kr_op_rotary_append ||
      KR_NODE(g, n + 1)->op != &kr_op_attention || !is_step(KR_NODE(g, n), KR_NODE(g, n + 1)))
    return 0;
  const kr_node *append = KR_NODE(g, n), *attention = KR_NODE(g, n + 1);
  const krait_rotary_append_args *r = (const krait_rotary_append_args *)append->args;
  const int32_t next = (int32_t)n + 1;
  if (kr_graph_only_reader(g, n, TENSOR(append, rotary_append, out)) != next ||
      kr_graph_only_reader(g, n, TENSOR(append, rotary_append, seqused)) != next)
    return 0;
#define VIEW(name) kr_graph_view(g, TENSOR(append, rotary_append, name))
  const krait_attention_step_args a = {.call.flags = r->call.flags,
                                       .B = r->B,
                                       .H = r->H,
                                       .Hk = r->Hk,
                                       .D = r->D,
                                       .R = r->R,
                                       .T = r->T,
                                       .Bk = r->Bk,
                                       .Lk = r->Lk,
                                       .scale = ((const krait_attention_args *)attention->args)->scale,
                                       .q = VIEW(q),
                                       .k = VIEW(k),
                                       .v = VIEW(v),
                                       .cos = VIEW(cos),
                                       .sin = VIEW(sin),
                                       .cache_seqlens = VIEW(cache_seqlens),
                                       .cache_batch_idx = VIEW(cache_batch_idx),
                                       .k_cache = VIEW(k_cache),
                                       .v_cache = VIEW(v_cache),
                                       .out = kr_graph_view(g, TENSOR(attention, attention, out))};
#undef VIEW
  return is_taken(ctx, &kr_op_attention_step, &a) && replace_two(g, n, attention->name, &kr_op_attention_step, &a);
}

/* graph_rules.c: the gradient of each op as calls. Most ops name a gradient op in their signature, which maps its
 * tensors; ops whose gradient consists of calls of other ops have a rule here. */
#include <stddef.h>
#include <string.h>

#include "graph_rewrite.h"
#include "graph_rules.h"
#include "gemm/gemm_plain.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

/* ---- ops with a gradient op ---- */

/* A gradient that the op can write only in one type, such as sums in float32, goes to a tensor of another type through
 * a temp. */
static kr_tensor written_as(kr_graph *g, const kr_sig *sig, const void *args, int which, kr_tensor at) {
  const uint32_t types = kr_sig_types_of(sig, args, kr_sig_facts(sig, args), which), own = 1u << kr_graph_dtype(g, at);
  if (!types || types & (types - 1) || types & own || kr_graph_dtype(g, at) == KRAIT_F64) return at;
  return kr_graph_temp(g, (int32_t)__builtin_ctz(types), kr_graph_dims(g, at));
}

/* The gradient of a norm without addition adds the other contributions to its input, passed as that of residual_out. */
static kr_view *place_of_sum(const kr_node *node, int which, void *args) {
  const kr_add_norm_args *a = (const kr_add_norm_args *)node->args;
  if (node->op != &kr_op_add_norm || kr_has(&a->residual) || kr_has(&a->residual_out) || kr_has(&a->x1) ||
      kr_has(&a->rowscale) ||
      node->op->sig->gradient->tensors[which].offset != offsetof(kr_add_norm_bwd_args, dx))
    return NULL;
  return &((kr_add_norm_bwd_args *)args)->dresidual_out;
}

/* Whether this dimension is the only one that the tensor was expanded over. */
static int is_expanded_over(const kr_part *p, int dimension) {
  for (int i = 0; i < p->dims.n; i++)
    if (p->dims.size[i] > 1 && (p->stride[i] == 0) != (i == dimension)) return 0;
  return 1;
}

/* The SSD's gradient of one D for all channels of a head is their sum, Mamba 3's of one angle for all heads theirs. */
static int adds_up_itself(const kr_graph *g, const kr_op *op, size_t offset, kr_tensor of) {
  if (op == &kr_op_mamba3 && offset == offsetof(kr_mamba3_bwd_args, dangles))
    return is_expanded_over(KR_PART(g, of), 2);
  return op == &kr_op_ssd && offset == offsetof(kr_ssd_bwd_args, dDvec) && kr_graph_dtype(g, of) == KRAIT_F32 &&
         is_expanded_over(KR_PART(g, of), 1);
}

static void record_gradient_op(kr_back *b, const kr_node *node) {
  kr_graph *g = kr_back_graph(b);
  const kr_sig *forward = node->op->sig, *sig = forward->gradient;
  unsigned char *args = kr_arena_alloc(g->arena, sig->args_bytes);
  kr_back_target targets[KR_MOST_VIEWS];
  kr_tensor written[KR_MOST_VIEWS];
  int n_targets = 0;
  if (kr_arena_failed(g->arena)) return;
  kr_sig_begin_gradient(forward, node->args, args);
  for (int i = 0; i < sig->n_tensors; i++) {
    const kr_sig_tensor *s = &sig->tensors[i];
    kr_view *view = kr_sig_view(sig, args, i);
    *view = (kr_view){0};
    for (int k = 0; k < 2 && s->rereads[k] >= 0 && !view->data; k++)
      *view = kr_graph_view(g, kr_back_value(b, kr_back_tensor(node, forward->tensors[s->rereads[k]].offset)));
    if (s->gradient_of < 0) continue;
    const kr_tensor of = kr_back_tensor(node, forward->tensors[s->gradient_of].offset);
    if (s->role == KR_IN) *view = kr_graph_view(g, kr_back_gradient(b, of));
    else {
      kr_view *const sum = place_of_sum(node, i, args);
      kr_back_target *const target = &targets[n_targets];
      const kr_tensor at = sum                                ? kr_back_begin_adding(b, of, target)
                           : of && adds_up_itself(g, node->op, s->offset, of) ? kr_back_begin_sums(b, of, target)
                                                              : kr_back_begin(b, of, target);
      if (sum && targets[n_targets].adding) *sum = kr_graph_view(g, at);
      written[n_targets] = at ? written_as(g, sig, args, i, at) : 0;
      *view = kr_graph_view(g, written[n_targets++]);
    }
  }
  int n_wanted = 0;
  for (int i = 0; i < n_targets; i++) n_wanted += targets[i].at != 0;
  if (!n_wanted) return;
  kr_graph_call(g, kr_back_name(b, "bwd"), sig->op, args);
  for (int i = 0; i < n_targets; i++) {
    if (written[i] != targets[i].at)
      kr_graph_pointwise(g, kr_back_name(b, "cast"), (kr_pointwise_args){.x_scale = 1}, written[i], 0,
                         targets[i].at);
    kr_back_end(b, &targets[i]);
  }
}

/* ---- products: out = residual + act(A B + bias) ---- */

static kr_tensor turned(kr_graph *g, kr_tensor t) { return t ? kr_graph_permute(g, t, (int[]){1, 0}) : 0; }

/* out = A B, or added to what is there. */
static void multiply(kr_back *b, const char *what, kr_tensor A, kr_tensor B, kr_tensor bias, kr_tensor out,
                     int adding) {
  kr_graph *g = kr_back_graph(b);
  const kr_view to = kr_graph_view(g, out);
  kr_graph_call(g, kr_back_name(b, what), &kr_op_gemm,
                &(kr_gemm_args){.A = kr_graph_view(g, A),
                                   .Bmat = kr_graph_view(g, B),
                                   .bias = kr_graph_view(g, bias),
                                   .residual = adding ? to : (kr_view){0},
                                   .out = to});
}

static int is_half(const kr_graph *g, kr_tensor t) {
  return kr_graph_dtype(g, t) == KRAIT_F16 || kr_graph_dtype(g, t) == KRAIT_BF16;
}
static int is_wide(const kr_graph *g, kr_tensor left, kr_tensor right, kr_tensor out) {
  return kr_graph_dtype(g, out) == KRAIT_F32 && is_half(g, left) && is_half(g, right);
}

/* The product whose rows are contiguous where the result's are; a result whose type is neither A's nor float32 goes
 * through a temp of A's type. */
static void multiply_into(kr_back *b, const char *what, kr_tensor A, kr_tensor B, const kr_back_target *target) {
  kr_graph *g = kr_back_graph(b);
  if (!target->at || kr_graph_status(g) < 0) return;
  if (kr_graph_dims(g, A).size[1] == 0) { /* of no rows: sums of nothing */
    if (!target->adding)
      kr_graph_pointwise(g, kr_back_name(b, what), (kr_pointwise_args){.x_scale = 0}, 0, 0, target->at);
    return;
  }
  const kr_part into = *KR_PART(g, target->at);
  const int across = into.dims.n == 2 && into.stride[1] != 1 && into.stride[0] == 1;
  const kr_tensor left = across ? turned(g, B) : A, right = across ? turned(g, A) : B,
                  out = across ? turned(g, target->at) : target->at;
  if (kr_graph_dtype(g, left) == kr_graph_dtype(g, out) || is_wide(g, left, right, out)) {
    multiply(b, what, left, right, 0, out, target->adding);
    return;
  }
  const kr_tensor product = kr_graph_temp(g, kr_graph_dtype(g, left), kr_graph_dims(g, out));
  multiply(b, what, left, right, 0, product, 0);
  kr_graph_pointwise(g, kr_back_name(b, "cast"), (kr_pointwise_args){.x_scale = 1, .y_scale = 1}, product,
                     target->adding ? out : 0, out);
}

static void record_gemm_gradient(kr_back *b, const kr_node *node) {
  kr_graph *g = kr_back_graph(b);
  const kr_gemm_args *a = (const kr_gemm_args *)node->args;
#define TENSOR(view) kr_back_tensor(node, offsetof(kr_gemm_args, view))
  const kr_tensor A = TENSOR(A), B = TENSOR(Bmat), bias = TENSOR(bias), residual = TENSOR(residual), out = TENSOR(out);
#undef TENSOR
  const int plain = a->P == 0 && !kr_back_tensor(node, offsetof(kr_gemm_args, B2)) &&
                    !kr_back_tensor(node, offsetof(kr_gemm_args, row_scale)) && (a->scale == 0 || a->scale == 1);
  if (!plain) {
    kr_graph_fail(g, KRAIT_ERR_UNSUPPORTED, "graph: node %s: no gradient of a gemm with P, scale, row_scale or B2",
                  node->name);
    return;
  }
  kr_tensor d = kr_back_gradient(b, out);
  if (!kr_gemm_is_plain(node->args)) {
    kr_graph_fail(g, KRAIT_ERR_UNSUPPORTED, "graph: node %s: only a plain product has a gradient", node->name);
    return;
  }
  if (a->activation != KRAIT_ACT_NONE) { /* the activation's input is recomputed */
    const kr_tensor before = kr_graph_temp(g, a->A.dtype, kr_graph_dims(g, out)),
                    slope = kr_graph_temp(g, a->A.dtype, kr_graph_dims(g, out));
    multiply(b, "again", kr_back_value(b, A), kr_back_value(b, B), kr_back_value(b, bias), before, 0);
    kr_graph_pointwise(
        g, kr_back_name(b, "slope"),
        (kr_pointwise_args){
            .call.flags = KRAIT_POINTWISE_PRODUCT | KRAIT_POINTWISE_SLOPE, .activation = a->activation, .x_scale = 1},
        before, d, slope);
    d = slope;
  }
  kr_back_target to;
  if (kr_back_begin_adding(b, A, &to))
    multiply_into(b, "dA", d, turned(g, kr_back_value(b, B)), &to), kr_back_end(b, &to);
  if (kr_back_begin_adding(b, B, &to))
    multiply_into(b, "dB", turned(g, kr_back_value(b, A)), d, &to), kr_back_end(b, &to);
  if (kr_back_begin(b, bias, &to)) {
    kr_graph_call(g, kr_back_name(b, "dbias"), &kr_op_sum_rows,
                  &(kr_sum_rows_args){.x = kr_graph_view(g, d), .out = kr_graph_view(g, to.at)});
    kr_back_end(b, &to);
  }
  kr_back_pass(b, out, residual);
}

/* ---- pointwise: out = f(x) x_scale + y y_scale, or f(x) y x_scale ---- */

static void record_pointwise_gradient(kr_back *b, const kr_node *node) {
  kr_graph *g = kr_back_graph(b);
  const kr_pointwise_args *a = (const kr_pointwise_args *)node->args;
  const uint32_t product = KRAIT_POINTWISE_PRODUCT, slope = KRAIT_POINTWISE_SLOPE;
  const kr_tensor x = kr_back_tensor(node, offsetof(kr_pointwise_args, x)),
                  y = kr_back_tensor(node, offsetof(kr_pointwise_args, y)),
                  out = kr_back_tensor(node, offsetof(kr_pointwise_args, out));
  const int is_product = (a->call.flags & product) != 0, is_linear = a->activation == KRAIT_ACT_NONE;
  const kr_tensor d = kr_back_gradient(b, out);
  kr_back_target to;
  if (a->call.flags & slope) {
    kr_graph_fail(g, KRAIT_ERR_UNSUPPORTED, "graph: node %s: second derivatives are not supported", node->name);
    return;
  }
  if (!is_product && y && a->y_scale == 1) kr_back_pass(b, out, y);
  else if (kr_back_begin(b, y, &to)) {
    const kr_pointwise_args with_x = {.call.flags = product, .activation = a->activation, .x_scale = a->x_scale},
                               scaled = {.x_scale = a->y_scale};
    if (is_product) kr_graph_pointwise(g, kr_back_name(b, "dy"), with_x, kr_back_value(b, x), d, to.at);
    else kr_graph_pointwise(g, kr_back_name(b, "dy"), scaled, d, 0, to.at);
    kr_back_end(b, &to);
  }
  if (!is_product && is_linear && a->x_scale == 1) {
    kr_back_pass(b, out, x);
    return;
  }
  if (!kr_back_begin(b, x, &to)) return;
  kr_tensor other = d;
  if (is_product && y && !is_linear) { /* f'(x) dout first, then times y */
    other = kr_graph_temp(g, kr_graph_dtype(g, d), kr_graph_dims(g, d));
    kr_graph_pointwise(g, kr_back_name(b, "gate"), (kr_pointwise_args){.call.flags = product, .x_scale = 1},
                       kr_back_value(b, y), d, other);
  }
  if (!is_linear)
    kr_graph_pointwise(
        g, kr_back_name(b, "dx"),
        (kr_pointwise_args){.call.flags = product | slope, .activation = a->activation, .x_scale = a->x_scale},
        kr_back_value(b, x), other, to.at);
  else
    kr_graph_pointwise(g, kr_back_name(b, "dx"), (kr_pointwise_args){.call.flags = product, .x_scale = a->x_scale},
                       d, is_product ? kr_back_value(b, y) : 0, to.at);
  kr_back_end(b, &to);
}

static void record_sum_rows_gradient(kr_back *b, const kr_node *node) {
  kr_graph *g = kr_back_graph(b);
  const kr_tensor x = kr_back_tensor(node, offsetof(kr_sum_rows_args, x)),
                  d = kr_back_gradient(b, kr_back_tensor(node, offsetof(kr_sum_rows_args, out)));
  kr_back_target to;
  if (!kr_back_begin(b, x, &to)) return;
  const kr_dims dims = kr_graph_dims(g, x);
  const kr_tensor rows = kr_graph_expand(g, kr_graph_reshape(g, d, KR_DIMS(1, dims.size[1])), dims);
  kr_graph_pointwise(g, kr_back_name(b, "dx"), (kr_pointwise_args){.x_scale = 1}, rows, 0, to.at);
  kr_back_end(b, &to);
}

/* ---- attention, rotary embedding ---- */

static void record_attention_gradient(kr_back *b, const kr_node *node) {
  static const struct {
    size_t offset;
    const char *name;
  } caches[] = {{offsetof(kr_attention_args, block_table), "block_table"},
                {offsetof(kr_attention_args, cache_batch_idx), "cache_batch_idx"},
                {offsetof(kr_attention_args, leftpad_k), "leftpad_k"}};
  for (size_t i = 0; i < sizeof caches / sizeof *caches; i++)
    if (kr_back_tensor(node, caches[i].offset)) {
      kr_graph_fail(kr_back_graph(b), KRAIT_ERR_UNSUPPORTED, "graph: node %s: no gradient of attention with %s",
                    node->name, caches[i].name);
      return;
    }
  if (!kr_back_tensor(node, offsetof(kr_attention_args, lse))) {
    kr_graph_fail(kr_back_graph(b), KRAIT_ERR_ARGUMENT,
                  "graph: node %s: the gradient of attention reads lse: request it", node->name);
    return;
  }
  record_gradient_op(b, node);
}

static void record_rotary_gradient(kr_back *b, const kr_node *node) {
  kr_graph *g = kr_back_graph(b);
  kr_rotary_args a = *(const kr_rotary_args *)node->args;
#define TENSOR(view) kr_back_tensor(node, offsetof(kr_rotary_args, view))
  const kr_tensor d = kr_back_gradient(b, TENSOR(out));
  kr_back_target to;
  if (kr_back_begin(b, TENSOR(cos), &to) || kr_back_begin(b, TENSOR(sin), &to)) {
    kr_graph_fail(g, KRAIT_ERR_UNSUPPORTED, "graph: node %s: cos and sin of a rotary embedding have no gradient",
                  node->name);
    return;
  }
  if (!kr_back_begin(b, TENSOR(x), &to)) return;
  a.call.flags ^= KRAIT_ROTARY_INVERSE;
  a.x = kr_graph_view(g, d), a.out = kr_graph_view(g, to.at);
  a.cos = kr_graph_view(g, kr_back_value(b, TENSOR(cos))), a.sin = kr_graph_view(g, kr_back_value(b, TENSOR(sin)));
  a.offsets = kr_graph_view(g, kr_back_value(b, TENSOR(offsets))),
  a.cu_seqlens = kr_graph_view(g, kr_back_value(b, TENSOR(cu_seqlens)));
#undef TENSOR
  kr_graph_call(g, kr_back_name(b, "dx"), &kr_op_rotary, &a);
  kr_back_end(b, &to);
}

/* ---- pools: the gradient of a mean or sum is the same in all rows, and is added with broadcasting ---- */

static void record_pool_gradient(kr_back *b, const kr_node *node) {
  kr_graph *g = kr_back_graph(b);
  const kr_pool_args *a = (const kr_pool_args *)node->args;
  const kr_tensor x = kr_back_tensor(node, offsetof(kr_pool_args, x)),
                  d = kr_back_gradient(b, kr_back_tensor(node, offsetof(kr_pool_args, out)));
  kr_back_target to;
  if (a->call.flags & KRAIT_POOL_MAX) {
    record_gradient_op(b, node);
    return;
  }
  if (!kr_back_begin_adding(b, x, &to)) return;
  const float share = a->call.flags & KRAIT_POOL_SUM ? 1 : (float)(1 / (double)a->S);
  const kr_tensor rows = kr_graph_expand(g, kr_graph_reshape(g, d, KR_DIMS(a->B, 1, a->C)), kr_graph_dims(g, x));
  kr_graph_pointwise(g, kr_back_name(b, "dx"), (kr_pointwise_args){.x_scale = share, .y_scale = 1}, rows,
                     to.adding ? to.at : 0, to.at);
  kr_back_end(b, &to);
}

/* ---- unfold and fold: each is the other's gradient; their args are the same ---- */

static void record_window_gradient(kr_back *b, const kr_node *node) {
  kr_graph *g = kr_back_graph(b);
  kr_unfold_args a = *(const kr_unfold_args *)node->args;
  const kr_tensor x = kr_back_tensor(node, offsetof(kr_unfold_args, x)),
                  d = kr_back_gradient(b, kr_back_tensor(node, offsetof(kr_unfold_args, out)));
  kr_back_target to;
  if (!kr_back_begin(b, x, &to)) return;
  a.x = kr_graph_view(g, d), a.out = kr_graph_view(g, to.at);
  kr_graph_call(g, kr_back_name(b, "dx"), node->op == &kr_op_fold ? &kr_op_unfold : &kr_op_fold, &a);
  kr_back_end(b, &to);
}

/* ---- products with a constant matrix ---- */

static void record_transform_gradient(kr_back *b, const kr_node *node) {
  kr_graph *g = kr_back_graph(b);
  const kr_tensor x = kr_back_tensor(node, offsetof(kr_transform_args, x)),
                  matrix = kr_back_tensor(node, offsetof(kr_transform_args, matrix));
  const kr_tensor d = kr_back_gradient(b, kr_back_tensor(node, offsetof(kr_transform_args, out)));
  kr_back_target to;
  if (!kr_back_begin(b, x, &to)) return;
  kr_graph_call(g, kr_back_name(b, "dx"), &kr_op_transform,
                &(kr_transform_args){.x = kr_graph_view(g, d),
                                        .matrix = kr_graph_view(g, turned(g, kr_back_value(b, matrix))),
                                        .out = kr_graph_view(g, to.at)});
  kr_back_end(b, &to);
}

/* ---- spectral norm: u and v are constants ---- */

static void record_spectral_norm_gradient(kr_back *b, const kr_node *node) {
  kr_graph *g = kr_back_graph(b);
#define VALUE(view) kr_graph_view(g, kr_back_value(b, kr_back_tensor(node, offsetof(kr_spectral_norm_args, view))))
  const kr_tensor weight = kr_back_tensor(node, offsetof(kr_spectral_norm_args, weight)),
                  out = kr_back_tensor(node, offsetof(kr_spectral_norm_args, out));
  kr_back_target to;
  if (!kr_back_begin(b, weight, &to)) return;
  kr_graph_call(g, kr_back_name(b, "dweight"), &kr_op_spectral_norm_bwd,
                &(kr_spectral_norm_bwd_args){.out = VALUE(out),
                                                .u = VALUE(u_out),
                                                .v = VALUE(v_out),
                                                .sigma = VALUE(sigma),
                                                .dout = kr_graph_view(g, kr_back_gradient(b, out)),
                                                .dweight = kr_graph_view(g, to.at)});
  kr_back_end(b, &to);
#undef VALUE
}

/* ---- which ---- */

static const struct {
  const kr_op *op;
  kr_rule *record;
} own_rules[] = {{&kr_op_attention, record_attention_gradient},
                 {&kr_op_gemm, record_gemm_gradient},
                 {&kr_op_pointwise, record_pointwise_gradient},
                 {&kr_op_pool, record_pool_gradient},
                 {&kr_op_rotary, record_rotary_gradient},
                 {&kr_op_sum_rows, record_sum_rows_gradient},
                 {&kr_op_unfold, record_window_gradient},
                 {&kr_op_fold, record_window_gradient},
                 {&kr_op_spectral_norm, record_spectral_norm_gradient},
                 {&kr_op_transform, record_transform_gradient}};

static kr_rule *own_rule(const kr_op *op) {
  for (size_t i = 0; i < sizeof own_rules / sizeof *own_rules; i++)
    if (own_rules[i].op == op) return own_rules[i].record;
  return NULL;
}

kr_rule *kr_rule_of(const kr_op *op) {
  kr_rule *own = own_rule(op);
  return own ? own : op->sig->gradient ? record_gradient_op : NULL;
}

int kr_rule_reaches(const kr_op *op, size_t offset) {
  const int own = own_rule(op) != NULL && !op->sig->gradient;
  for (int i = 0; i < op->sig->n_tensors; i++) {
    const kr_sig_tensor *s = &op->sig->tensors[i];
    if (s->offset == offset) return s->role == KR_IN && (own ? s->tensor_class != KR_CLASS_INDEX : s->gradient >= 0);
  }
  return 0;
}

/* graph_rewrite_norm.c: the rewrite of a GPU's step: an RMS norm goes into the one product that reads it, which norms
 * the row while it waits for its weights. Where a row of norm_gemm takes that: of one row or two. */
#include <stddef.h>

#include <krait/blocks.h>

#include "graph_rewrite.h"
#include "op_list.h"

#define TENSOR(node, op, view) kr_node_tensor(node, offsetof(krait_##op##_args, view))

/* What the product has beside what norm_gemm knows. */
static int is_known_product(const kr_node *product) {
  const krait_gemm_args *a = (const krait_gemm_args *)product->args;
  return product->op == &kr_op_gemm && a->P == 0 && (a->scale == 0 || a->scale == 1) &&
         (a->activation == KRAIT_ACT_NONE || a->activation == KRAIT_ACT_SILU) && !TENSOR(product, gemm, residual) &&
         !TENSOR(product, gemm, bias2) && !TENSOR(product, gemm, row_scale) && !TENSOR(product, gemm, factor);
}

/* The norm's part of the call; its output. 0: another kind of norm. */
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

/* Sizes are what the row's refusal looks at; recording finds them from the shapes. */
static int is_taken(const kr_graph *g, const krait_ctx *ctx, const krait_norm_gemm_args *of, kr_tensor x,
                    kr_tensor out) {
  krait_norm_gemm_args a = *of;
  krait_view *const views[] = {&a.x, &a.z, &a.residual, &a.weight, &a.Bmat, &a.bias, &a.B2, &a.out, &a.residual_out};
  for (size_t i = 0; i < sizeof views / sizeof *views; i++) views[i]->reserved = 0;
  a.call.size = sizeof a;
  a.M = kr_graph_dims(g, out).size[0], a.N = kr_graph_dims(g, out).size[1], a.K = kr_graph_dims(g, x).size[1];
  const kr_row *row = kr_op_resolve(&kr_op_norm_gemm, ctx, &a, NULL);
  return row && !(row->needs & KRAIT_CAP_CPU);
}

/* Whether the norm or the product writes what the norm reads: other blocks of the one kernel still do. */
static int is_in_place(const kr_graph *g, const kr_node *norm, kr_tensor out) {
  const kr_tensor sum = norm->op == &kr_op_add_norm ? TENSOR(norm, add_norm, residual_out) : 0;
  for (int32_t i = 0; i < norm->n_uses; i++) {
    const int32_t read = KR_PART(g, norm->uses[i].tensor)->storage;
    if (norm->uses[i].role == KR_IN && (read == KR_PART(g, out)->storage || (sum && read == KR_PART(g, sum)->storage)))
      return 1;
  }
  return 0;
}

int kr_norm_in_product(kr_graph *g, const krait_ctx *ctx, size_t n) {
  krait_norm_gemm_args a = {0};
  if (!ctx || !ctx->cuda || n + 1 >= g->nodes.n || !is_known_product(KR_NODE(g, n + 1))) return 0;
  const kr_tensor normed = read_norm(g, KR_NODE(g, n), &a);
  const kr_node *product = KR_NODE(g, n + 1);
  const kr_tensor x = TENSOR(product, gemm, A), out = TENSOR(product, gemm, out);
  if (!normed || kr_graph_only_reader(g, n, normed) != (int32_t)n + 1 ||
      KR_PART(g, x)->storage != KR_PART(g, normed)->storage)
    return 0;
  if (is_in_place(g, KR_NODE(g, n), out)) return 0;
  a.activation = ((const krait_gemm_args *)product->args)->activation;
  a.Bmat = kr_graph_view(g, TENSOR(product, gemm, Bmat)), a.B2 = kr_graph_view(g, TENSOR(product, gemm, B2)),
  a.bias = kr_graph_view(g, TENSOR(product, gemm, bias)), a.out = kr_graph_view(g, out);
  if (kr_dims_elements(kr_graph_dims(g, x)) == 0 || !is_taken(g, ctx, &a, x, out)) return 0;
  kr_graph_call(g, product->name, &kr_op_norm_gemm, &a);
  if (kr_graph_status(g) < 0) return 0;
  kr_graph_move_last(g, n);
  kr_graph_drop(g, n + 2);
  kr_graph_drop(g, n + 1);
  return 1;
}

/* graph_rewrite.c: the rewrites: additions, activations and (on a CPU) multiplications merged into products, additions
 * into norms, and on a CPU operands in the layout of the fast products. */
#include "graph_rewrite.h"

#include <stddef.h>
#include <string.h>

#include "gemm/gemm_plain.h"
#include "op_list.h"
#include "status.h"

/* ---- nodes ---- */

kr_tensor kr_node_tensor(const kr_node *node, size_t offset) {
  for (int32_t i = 0; i < node->n_uses; i++)
    if (node->uses[i].offset == offset) return node->uses[i].tensor;
  return 0;
}

void kr_node_set(kr_graph *g, kr_node *node, size_t offset, int32_t role, kr_tensor t) {
  kr_view *view = kr_view_in(node->args, offset);
  int32_t i = 0;
  *view = kr_graph_view(g, t);
  view->reserved = 0;
  while (i < node->n_uses && node->uses[i].offset != offset) i++;
  if (!t) {
    if (i < node->n_uses) node->uses[i] = node->uses[--node->n_uses];
    return;
  }
  if (i == node->n_uses) node->n_uses++; /* it has space for every tensor of the op */
  node->uses[i] = (kr_use){offset, role, t};
}

/* Dimensions of one element left out, neighbours that one stride reaches merged: alike for all views of the same
 * elements in the same order. */
static int merged_dims(const kr_part *p, int64_t *size, int64_t *stride) {
  int n = 0;
  for (int i = 0; i < p->dims.n; i++) {
    if (p->dims.size[i] == 1) continue;
    if (n && stride[n - 1] == p->stride[i] * p->dims.size[i])
      size[n - 1] *= p->dims.size[i], stride[n - 1] = p->stride[i];
    else size[n] = p->dims.size[i], stride[n++] = p->stride[i];
  }
  return n;
}

int kr_graph_same_part(const kr_graph *g, kr_tensor a, kr_tensor b) {
  const kr_part *x = KR_PART(g, a), *y = KR_PART(g, b);
  int64_t size[2][4], stride[2][4];
  if (x->storage != y->storage || x->at_bytes != y->at_bytes) return 0;
  const int n = merged_dims(x, size[0], stride[0]);
  return n == merged_dims(y, size[1], stride[1]) && memcmp(size[0], size[1], (size_t)n * sizeof **size) == 0 &&
         memcmp(stride[0], stride[1], (size_t)n * sizeof **stride) == 0;
}

int32_t kr_graph_only_reader(const kr_graph *g, size_t writer, kr_tensor t) {
  const int32_t storage = KR_PART(g, t)->storage;
  int32_t reader = -1;
  if (KR_STORAGE(g, storage)->home != KR_HOME_TEMP) return -1;
  for (size_t n = 0; n < g->nodes.n; n++)
    for (int32_t i = 0; i < KR_NODE(g, n)->n_uses; i++) {
      const kr_use *u = &KR_NODE(g, n)->uses[i];
      if (KR_PART(g, u->tensor)->storage != storage || (n == writer && u->role == KR_OUT)) continue;
      if (u->role != KR_IN || n < writer || reader >= 0 || !kr_graph_same_part(g, u->tensor, t)) return -1;
      reader = (int32_t)n;
    }
  return reader;
}

void kr_graph_move_last(kr_graph *g, size_t n) {
  kr_node last = *KR_NODE(g, g->nodes.n - 1);
  last.lane = KR_NODE(g, n)->lane;
  memmove(KR_NODE(g, n + 1), KR_NODE(g, n), (g->nodes.n - 1 - n) * sizeof last);
  *KR_NODE(g, n) = last;
}

void kr_graph_drop(kr_graph *g, size_t n) {
  memmove(KR_NODE(g, n), KR_NODE(g, n + 1), (g->nodes.n - 1 - n) * sizeof(kr_node));
  g->nodes.n--;
}

void kr_graph_read_instead(kr_graph *g, kr_tensor t, kr_tensor other) {
  if (kr_graph_status(g) < 0) return;
  const int32_t from = KR_PART(g, t)->storage, to = KR_PART(g, other)->storage;
  for (size_t n = 0; n < g->nodes.n; n++)
    for (int32_t i = 0; i < KR_NODE(g, n)->n_uses; i++) {
      const kr_use u = KR_NODE(g, n)->uses[i];
      const kr_tensor moved =
          u.role == KR_IN && KR_PART(g, u.tensor)->storage == from ? kr_graph_moved(g, u.tensor, to) : 0;
      if (moved) kr_node_set(g, KR_NODE(g, n), u.offset, u.role, moved);
    }
}

/* Whether any node between two nodes writes t's elements: a call that reads t must then not move from one to the
 * other. */
static int is_written_between(const kr_graph *g, size_t from, size_t to, kr_tensor t) {
  const kr_box box = kr_box_of(g, t);
  for (size_t n = from + 1; n < to; n++)
    for (int32_t i = 0; i < KR_NODE(g, n)->n_uses; i++) {
      const kr_use *u = &KR_NODE(g, n)->uses[i];
      if (!(u->role & KR_OUT) || KR_PART(g, u->tensor)->storage != KR_PART(g, t)->storage) continue;
      const kr_box other = kr_box_of(g, u->tensor);
      if (kr_boxes_meet(&box, &other)) return 1;
    }
  return 0;
}

/* The same elements as a matrix, rows before columns, like the product's output; 0: not without a copy. */
static kr_tensor as_matrix(kr_graph *g, kr_tensor t, kr_dims dims) {
  return kr_graph_can_reshape(g, t, dims) ? kr_graph_reshape(g, t, dims) : 0;
}

#define GEMM(view) offsetof(kr_gemm_args, view)
#define POINTWISE(view) offsetof(kr_pointwise_args, view)
#define NORM(view) offsetof(kr_add_norm_args, view)

/* ---- into products ---- */

static int lies_in_rows(const kr_view *v) { return v->dtype == KRAIT_F32 && v->stride[1] == 1; }

static int is_plain_product(const kr_node *node) { return node->op == &kr_op_gemm && kr_gemm_is_plain(node->args); }

/* A pointwise call of exactly this kind on the product's result, which nothing else reads; -1: there is none. */
static int32_t follower(const kr_graph *g, size_t n, uint32_t flags, int32_t activation) {
  const kr_node *node = KR_NODE(g, n);
  const int32_t at = kr_graph_only_reader(g, n, kr_node_tensor(node, GEMM(out)));
  if (at < 0 || KR_NODE(g, at)->op != &kr_op_pointwise) return -1;
  const kr_pointwise_args *p = (const kr_pointwise_args *)KR_NODE(g, at)->args;
  const int plain = p->call.flags == flags && p->x_scale == 1 && p->activation == activation &&
                    p->out.dtype == ((const kr_gemm_args *)node->args)->out.dtype;
  return plain ? at : -1;
}

/* The product replaces the call after it. */
static int replace_follower(kr_graph *g, size_t n, size_t at, kr_tensor out) {
  const kr_node product = *KR_NODE(g, n);
  *KR_NODE(g, at) = product;
  kr_node_set(g, KR_NODE(g, at), GEMM(out), KR_OUT, out);
  kr_graph_drop(g, n);
  return 1;
}

static int inputs_stay(const kr_graph *g, size_t n, size_t at) {
  const kr_node *node = KR_NODE(g, n);
  for (int32_t i = 0; i < node->n_uses; i++)
    if (node->uses[i].role == KR_IN && is_written_between(g, n, at, node->uses[i].tensor)) return 0;
  return 1;
}

static int add_into_product(kr_graph *g, const krait_ctx *ctx, size_t n) {
  (void)ctx;
  if (!is_plain_product(KR_NODE(g, n)) || kr_node_tensor(KR_NODE(g, n), GEMM(residual))) return 0;
  const int32_t at = follower(g, n, 0, KRAIT_ACT_NONE);
  if (at < 0 || !inputs_stay(g, n, (size_t)at)) return 0;
  const kr_node *sum = KR_NODE(g, at);
  const kr_pointwise_args *p = (const kr_pointwise_args *)sum->args;
  const kr_tensor product = kr_node_tensor(KR_NODE(g, n), GEMM(out)), x = kr_node_tensor(sum, POINTWISE(x)),
                  y = kr_node_tensor(sum, POINTWISE(y));
  if (!x || !y || p->y_scale != 1 || x == y) return 0;
  const kr_tensor other = kr_graph_same_part(g, x, product) ? y : x;
  const kr_dims dims = kr_graph_dims(g, product);
  const kr_tensor residual = as_matrix(g, other, dims), out = as_matrix(g, kr_node_tensor(sum, POINTWISE(out)), dims);
  const int fits = residual && out && kr_graph_dtype(g, residual) == kr_graph_dtype(g, out);
  const int in_place = fits && KR_PART(g, residual)->storage == KR_PART(g, out)->storage,
            active = ((const kr_gemm_args *)KR_NODE(g, n)->args)->activation != KRAIT_ACT_NONE;
  if (!fits || (in_place && active)) return 0;
  kr_node_set(g, KR_NODE(g, n), GEMM(residual), KR_IN, residual);
  return replace_follower(g, n, (size_t)at, out);
}

static int activate_in_product(kr_graph *g, const krait_ctx *ctx, size_t n) {
  (void)ctx;
  const kr_gemm_args *a = (const kr_gemm_args *)KR_NODE(g, n)->args;
  if (!is_plain_product(KR_NODE(g, n)) || a->activation != KRAIT_ACT_NONE ||
      kr_node_tensor(KR_NODE(g, n), GEMM(residual)))
    return 0;
  const int32_t at = follower(g, n, 0, KRAIT_ACT_SILU);
  if (at < 0 || !inputs_stay(g, n, (size_t)at) || kr_node_tensor(KR_NODE(g, at), POINTWISE(y))) return 0;
  const kr_tensor out = as_matrix(g, kr_node_tensor(KR_NODE(g, at), POINTWISE(out)),
                                  kr_graph_dims(g, kr_node_tensor(KR_NODE(g, n), GEMM(out))));
  if (!out) return 0;
  ((kr_gemm_args *)KR_NODE(g, n)->args)->activation = KRAIT_ACT_SILU;
  return replace_follower(g, n, (size_t)at, out);
}

/* What the CPU's fast products accept: other products are left unchanged, because with a factor or a gate they are no
 * longer plain. */
static int is_fast_on_cpu(const krait_ctx *ctx, const kr_node *node) {
  const kr_gemm_args *a = (const kr_gemm_args *)node->args;
  return ctx && !ctx->cuda && is_plain_product(node) && !kr_node_tensor(node, GEMM(residual)) &&
         lies_in_rows(&a->A) && a->Bmat.dtype == KRAIT_F32;
}

static int multiply_in_product(kr_graph *g, const krait_ctx *ctx, size_t n) {
  if (!is_fast_on_cpu(ctx, KR_NODE(g, n))) return 0;
  const int32_t at = follower(g, n, KRAIT_POINTWISE_PRODUCT, KRAIT_ACT_NONE);
  if (at < 0 || !inputs_stay(g, n, (size_t)at)) return 0;
  const kr_node *call = KR_NODE(g, at);
  const kr_tensor product = kr_node_tensor(KR_NODE(g, n), GEMM(out)), x = kr_node_tensor(call, POINTWISE(x)),
                  y = kr_node_tensor(call, POINTWISE(y));
  if (!x || !y || x == y) return 0;
  const kr_dims dims = kr_graph_dims(g, product);
  const kr_tensor factor = as_matrix(g, kr_graph_same_part(g, x, product) ? y : x, dims),
                  out = as_matrix(g, kr_node_tensor(call, POINTWISE(out)), dims);
  if (!factor || !out || kr_graph_dtype(g, factor) != KRAIT_F32 || KR_PART(g, out)->stride[1] != 1 ||
      KR_PART(g, factor)->storage == KR_PART(g, out)->storage)
    return 0;
  kr_node_set(g, KR_NODE(g, n), GEMM(factor), KR_IN, factor);
  return replace_follower(g, n, (size_t)at, out);
}

/* The one call that reads a product's storage, if it is the product of its halves of N columns; -1: there is none. */
static int32_t gate_behind(kr_graph *g, size_t n, kr_tensor out, int64_t N) {
  const int32_t storage = KR_PART(g, out)->storage;
  const kr_tensor halves[] = {kr_graph_slice(g, out, 1, 0, N), kr_graph_slice(g, out, 1, N, N)};
  int32_t at = -1;
  if (KR_STORAGE(g, storage)->home != KR_HOME_TEMP) return -1;
  for (size_t k = 0; k < g->nodes.n; k++)
    for (int32_t i = 0; i < KR_NODE(g, k)->n_uses; i++) {
      const kr_use *u = &KR_NODE(g, k)->uses[i];
      if (KR_PART(g, u->tensor)->storage != storage || k == n) continue;
      if (u->role != KR_IN || k < n || (at >= 0 && (size_t)at != k)) return -1;
      at = (int32_t)k;
    }
  if (at < 0 || KR_NODE(g, at)->op != &kr_op_pointwise) return -1;
  const kr_pointwise_args *a = (const kr_pointwise_args *)KR_NODE(g, at)->args;
  const kr_tensor x = kr_node_tensor(KR_NODE(g, at), POINTWISE(x)), y = kr_node_tensor(KR_NODE(g, at), POINTWISE(y));
  const int is_gate = x && y && kr_graph_same_part(g, x, halves[0]) && kr_graph_same_part(g, y, halves[1]) &&
                      a->call.flags == KRAIT_POINTWISE_PRODUCT && a->x_scale == 1 && a->activation == KRAIT_ACT_NONE;
  return is_gate ? at : -1;
}

static int gate_in_product(kr_graph *g, const krait_ctx *ctx, size_t n) {
  if (!is_fast_on_cpu(ctx, KR_NODE(g, n))) return 0;
  kr_node *node = KR_NODE(g, n);
  kr_gemm_args *a = (kr_gemm_args *)node->args;
  const int64_t N = a->N / 2;
  if (a->N % 2 || a->out.dtype != KRAIT_F32 || a->activation != KRAIT_ACT_NONE) return 0;
  const int32_t at = gate_behind(g, n, kr_node_tensor(node, GEMM(out)), N);
  if (at < 0 || !inputs_stay(g, n, (size_t)at)) return 0;
  const kr_tensor B = kr_node_tensor(node, GEMM(Bmat)), bias = kr_node_tensor(node, GEMM(bias)),
                  out = as_matrix(g, kr_node_tensor(KR_NODE(g, at), POINTWISE(out)), KR_DIMS(a->M, N));
  if (!out || KR_PART(g, out)->stride[1] != 1) return 0;
  kr_node_set(g, node, GEMM(Bmat), KR_IN, kr_graph_slice(g, B, 1, 0, N));
  kr_node_set(g, node, GEMM(B2), KR_IN, kr_graph_slice(g, B, 1, N, N));
  if (bias) kr_node_set(g, node, GEMM(bias), KR_IN, kr_graph_slice(g, bias, 0, 0, N));
  if (bias) kr_node_set(g, node, GEMM(bias2), KR_IN, kr_graph_slice(g, bias, 0, N, N));
  a->N = N;
  return replace_follower(g, n, (size_t)at, out);
}

/* ---- into norms ---- */

/* h = x + y, then norm(h): the norm adds, and writes h where others read it. */
static int add_into_norm(kr_graph *g, const krait_ctx *ctx, size_t n) {
  (void)ctx;
  kr_node *sum = KR_NODE(g, n);
  const kr_pointwise_args *p = (const kr_pointwise_args *)sum->args;
  if (sum->op != &kr_op_pointwise || p->call.flags || p->activation != KRAIT_ACT_NONE || p->x_scale != 1 ||
      p->y_scale != 1)
    return 0;
  const kr_tensor x = kr_node_tensor(sum, POINTWISE(x)), y = kr_node_tensor(sum, POINTWISE(y)),
                  out = kr_node_tensor(sum, POINTWISE(out));
  if (!x || !y || n + 1 >= g->nodes.n || KR_NODE(g, n + 1)->op != &kr_op_add_norm) return 0;
  const kr_node *norm = KR_NODE(g, n + 1);
  const kr_tensor h = kr_node_tensor(norm, NORM(x));
  if (!kr_graph_same_part(g, h, out) || kr_node_tensor(norm, NORM(x1)) || kr_node_tensor(norm, NORM(residual)) ||
      kr_node_tensor(norm, NORM(rowscale)) || kr_node_tensor(norm, NORM(residual_out)))
    return 0;
  const kr_dims dims = kr_graph_dims(g, h);
  const int32_t dtype = kr_graph_dtype(g, h), storage = KR_PART(g, h)->storage;
  const kr_tensor a = as_matrix(g, x, dims), b = as_matrix(g, y, dims);
  const int in_place = KR_PART(g, x)->storage == storage || KR_PART(g, y)->storage == storage ||
                       KR_PART(g, kr_node_tensor(norm, NORM(out)))->storage == storage;
  if (!a || !b || in_place || kr_graph_dtype(g, a) != dtype || kr_graph_dtype(g, b) != dtype) return 0;
  kr_node fused = *norm;
  kr_node_set(g, &fused, NORM(x), KR_IN, a);
  kr_node_set(g, &fused, NORM(residual), KR_IN, b);
  kr_node_set(g, &fused, NORM(residual_out), KR_OUT, h);
  *KR_NODE(g, n + 1) = fused;
  kr_graph_drop(g, n);
  return 1;
}

/* ---- operands in the layout of the CPU's products ---- */

/* A float32 copy without gaps, made before node n; the node is then at n + 1. */
static kr_tensor float_rows(kr_graph *g, size_t n, const char *name, kr_tensor t) {
  const kr_tensor rows = kr_graph_temp(g, KRAIT_F32, kr_graph_dims(g, t));
  kr_graph_pointwise(g, name, (kr_pointwise_args){.x_scale = 1}, t, 0, rows);
  if (g->status < 0 || kr_arena_failed(g->arena)) return 0;
  kr_graph_move_last(g, n);
  return rows;
}

/* The transposed product, if its left factor is the smaller one to transpose. */
static void flip_product(kr_graph *g, kr_node *node) {
  const kr_tensor A = kr_node_tensor(node, GEMM(A)), B = kr_node_tensor(node, GEMM(Bmat)),
                  out = kr_node_tensor(node, GEMM(out)), residual = kr_node_tensor(node, GEMM(residual));
  const kr_dims a = kr_graph_dims(g, A), b = kr_graph_dims(g, B);
  kr_gemm_args *args = (kr_gemm_args *)node->args;
  if (kr_node_tensor(node, GEMM(bias)) || kr_dims_elements(b) >= kr_dims_elements(a) ||
      kr_graph_dtype(g, B) != kr_graph_dtype(g, A))
    return;
  const int order[] = {1, 0};
  kr_node_set(g, node, GEMM(A), KR_IN, kr_graph_permute(g, B, order));
  kr_node_set(g, node, GEMM(Bmat), KR_IN, kr_graph_permute(g, A, order));
  kr_node_set(g, node, GEMM(out), KR_OUT, kr_graph_permute(g, out, order));
  if (residual) kr_node_set(g, node, GEMM(residual), KR_IN, kr_graph_permute(g, residual, order));
  args->M = b.size[1], args->N = a.size[0];
}

static int rows_for_product(kr_graph *g, const krait_ctx *ctx, size_t n) {
  kr_node *node = KR_NODE(g, n);
  if (!ctx || ctx->cuda || !is_plain_product(node)) return 0;
  const kr_gemm_args *a = (const kr_gemm_args *)node->args;
  if (a->A.dtype == KRAIT_F64 || a->out.dtype == KRAIT_F64 ||
      kr_op_resolve(node->op, ctx, node->args, NULL) != &node->op->impls[node->op->n_impls - 1])
    return 0;
  if (!lies_in_rows(&a->A)) flip_product(g, node);
  const kr_tensor A = kr_node_tensor(node, GEMM(A)), B = kr_node_tensor(node, GEMM(Bmat)),
                  out = kr_node_tensor(node, GEMM(out)), residual = kr_node_tensor(node, GEMM(residual));
  const int turn_A = !lies_in_rows(&a->A), cast_B = a->Bmat.dtype != KRAIT_F32,
            move_out = !lies_in_rows(&a->out) || (residual && !lies_in_rows(&a->residual));
  if (!turn_A && !cast_B && !move_out) return 0;
  const char *name = node->name;
  if (turn_A) kr_node_set(g, KR_NODE(g, n + 1), GEMM(A), KR_IN, float_rows(g, n, name, A)), n++;
  if (cast_B) kr_node_set(g, KR_NODE(g, n + 1), GEMM(Bmat), KR_IN, float_rows(g, n, name, B)), n++;
  if (!move_out || g->status < 0) return 1;
  const kr_tensor rows = kr_graph_temp(g, KRAIT_F32, kr_graph_dims(g, out));
  kr_node_set(g, KR_NODE(g, n), GEMM(out), KR_OUT, rows);
  kr_node_set(g, KR_NODE(g, n), GEMM(residual), KR_IN, 0);
  kr_graph_pointwise(g, name, (kr_pointwise_args){.x_scale = 1, .y_scale = 1}, rows, residual, out);
  if (g->status >= 0) kr_graph_move_last(g, n + 1);
  return 1;
}

/* ---- all ---- */

static const kr_rewrite first_rewrites[] = {{"activate_in_product", activate_in_product},
                                            {"add_into_product", add_into_product},
                                            {"gate_in_product", gate_in_product},
                                            {"multiply_in_product", multiply_in_product},
                                            {"add_into_norm", add_into_norm}};
static const kr_rewrite last_rewrite = {"rows_for_product", rows_for_product};
enum { N_FIRST = sizeof first_rewrites / sizeof *first_rewrites };

static int is_off(const kr_graph *g, const char *name) {
  for (size_t i = 0; i < g->rewrites_off.n; i++)
    if (strcmp(*KR_AT(g->rewrites_off, const char *, i), name) == 0 ||
        strcmp(*KR_AT(g->rewrites_off, const char *, i), "all") == 0)
      return 1;
  return 0;
}

int32_t kr_graph_rewrite(kr_graph *g, const krait_ctx *ctx, const kr_rewrite *list, size_t n_list) {
  for (size_t i = 0; i < n_list; i++) {
    if (is_off(g, list[i].name)) continue;
    for (size_t n = 0; n < g->nodes.n && g->status >= 0; n++)
      for (int again = 0; again < 8 && n < g->nodes.n && list[i].apply(g, ctx, n); again++) {}
  }
  return kr_graph_status(g);
}

static int32_t apply_op_rewrite(kr_graph *g, const krait_ctx *ctx, const kr_op_rewrite *rewrite) {
  for (size_t n = 0; n < g->nodes.n && g->status >= 0 && !is_off(g, rewrite->name); n++)
    for (int again = 0; again < 8 && kr_rewrite_apply(rewrite, g, ctx, n); again++) {}
  return kr_graph_status(g);
}

int32_t kr_graph_rewrite_all(kr_graph *g, const krait_ctx *ctx) {
  KR_TRY(kr_graph_rewrite(g, ctx, first_rewrites, N_FIRST));
  for (int32_t i = 0; i < kr_n_op_list; i++)
    for (const kr_op_rewrite *r = kr_op_list[i]->rewrites; r && r->name; r++) KR_TRY(apply_op_rewrite(g, ctx, r));
  return kr_graph_rewrite(g, ctx, &last_rewrite, 1);
}

static int is_known_rewrite(const char *name) {
  for (size_t i = 0; i < N_FIRST; i++)
    if (strcmp(first_rewrites[i].name, name) == 0) return 1;
  for (int32_t i = 0; i < kr_n_op_list; i++)
    for (const kr_op_rewrite *r = kr_op_list[i]->rewrites; r && r->name; r++)
      if (strcmp(r->name, name) == 0) return 1;
  return strcmp(last_rewrite.name, name) == 0 || strcmp(name, "all") == 0;
}

void kr_graph_rewrite_off(kr_graph *g, const char *name) {
  if (!is_known_rewrite(name)) {
    kr_graph_fail(g, KRAIT_ERR_ARGUMENT, "graph: there is no rewrite '%s'", name);
    return;
  }
  const char **off = kr_list_push(g->arena, &g->rewrites_off);
  *off = kr_arena_copy(g->arena, name, strlen(name));
}

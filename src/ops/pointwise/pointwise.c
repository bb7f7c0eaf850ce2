/* pointwise.c: costs and implementations of elementwise operations between other operators, and of the sum over rows;
 * pointwise_ref.c has the equations. Error bound: float32 1e-5 of the result's scale, 16-bit storage: one rounding. */
#include "op_list.h"
#include "pointwise/pointwise_walk.h"
#include "view.h"

static void count_pointwise(const void *args, kr_cost *cost) {
  const kr_pointwise_args *a = args;
  const double n = (double)a->I * (double)a->J * (double)a->K * (double)a->N, silu = a->activation == KRAIT_ACT_SILU;
  cost->flops = n * (2 + (kr_has(&a->y) ? 2 : 0) + 4 * silu);
  cost->bytes = n * (double)krait_dtype_bytes(a->out.dtype);
  if (kr_has(&a->x)) cost->bytes += n * (double)krait_dtype_bytes(a->x.dtype);
  if (kr_has(&a->y)) cost->bytes += n * (double)krait_dtype_bytes(a->y.dtype);
  cost->exps = n * silu;
}

static void count_sum_rows(const void *args, kr_cost *cost) {
  const kr_sum_rows_args *a = args;
  cost->flops = (double)a->R * (double)a->M;
  cost->bytes =
      cost->flops * (double)krait_dtype_bytes(a->x.dtype) + (double)a->M * (double)krait_dtype_bytes(a->out.dtype);
}

const char *kr_pointwise_refuse_gate(const kr_pointwise_args *a) {
  const int fits = a->I == 2 && kr_has(&a->x) && kr_has(&a->y);
  return kr_is_gate(a) && !fits ? "a gate's gradients need x, y and I = 2" : NULL;
}

static const char *refuse_gate(const krait_ctx *ctx, const void *args) {
  return (void)ctx, kr_pointwise_refuse_gate(args);
}
static const char *refuse_pointwise(const krait_ctx *ctx, const void *args) {
  const kr_pointwise_args *a = args;
  if (a->x.dtype == KRAIT_F64 || a->y.dtype == KRAIT_F64 || a->out.dtype == KRAIT_F64) return "float64 tensors";
  return refuse_gate(ctx, args);
}
static const char *refuse_sum_rows(const krait_ctx *ctx, const void *args) {
  const kr_sum_rows_args *a = args;
  (void)ctx;
  return a->x.dtype == KRAIT_F64 || a->out.dtype == KRAIT_F64 ? "float64 tensors" : NULL;
}

static const kr_impl pointwise_impls[] = {
    KR_CUDA_IMPLS(pointwise)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_pointwise, kr_pointwise_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, refuse_gate, kr_pointwise_ref, NULL},
};
static const kr_impl sum_rows_impls[] = {
    KR_CUDA_IMPLS(sum_rows)
#define KR_ISA(isa, cap) {"simd_" #isa, KRAIT_CAP_CPU | cap, refuse_sum_rows, kr_sum_rows_##isa, NULL},
#include "isa.def"
#undef KR_ISA
    {"ref", KRAIT_CAP_CPU, NULL, kr_sum_rows_ref, NULL},
};

KR_OP_DEFINE(pointwise, pointwise_impls, NULL, count_pointwise, kr_pointwise_case, 600, .takes_pdl = 1)
KR_OP_DEFINE(sum_rows, sum_rows_impls, NULL, count_sum_rows, kr_sum_rows_case, 300)

/* ---- loop nest ---- */

/* Whether a dimension of these strides can be merged into dimension d of the loop nest, in every view. */
static int continues(const kr_walk *w, int d, const int64_t *stride) {
  for (int v = 0; v < KR_WALK_VIEWS; v++)
    if (stride[v] != w->stride[v][d] * w->n[d]) return 0;
  return 1;
}

kr_walk kr_walk_of(const kr_pointwise_args *a) {
  const kr_view *views[KR_WALK_VIEWS] = {&a->out, &a->x, &a->y};
  const int64_t n[4] = {kr_is_gate(a) ? 1 : a->I, a->J, a->K, a->N};
  kr_walk w = {.n = {1, 1, 1, 1}};
  int order[4], n_dims = 0, to = 4;
  for (int d = 0; d < 4; d++) { /* out's longest stride first */
    if (n[d] == 1) continue;
    int k = n_dims++;
    for (; k > 0 && a->out.stride[order[k - 1]] < a->out.stride[d]; k--) order[k] = order[k - 1];
    order[k] = d;
  }
  for (int i = n_dims - 1; i >= 0; i--) {
    int64_t stride[KR_WALK_VIEWS];
    for (int v = 0; v < KR_WALK_VIEWS; v++) stride[v] = kr_has(views[v]) ? views[v]->stride[order[i]] : 0;
    if (to < 4 && continues(&w, to, stride)) {
      w.n[to] *= n[order[i]];
      continue;
    }
    to--;
    w.n[to] = n[order[i]];
    for (int v = 0; v < KR_WALK_VIEWS; v++) w.stride[v][to] = stride[v];
  }
  return w;
}

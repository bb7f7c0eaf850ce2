/* mamba_inner_graph.c: the composed rows of mamba_inner and its gradient: the block's graph, planned into the call's
 * scratch. The gradient's reference is the same graph in float64 on reference implementations. */
#include "graph_kernel_cache.h"
#include "mamba_block.h"
#include "mamba_inner/mamba_inner_chain.h"
#include "block_ops.h"

typedef kr_mamba_inner_args inner_args;
typedef kr_mamba_inner_bwd_args bwd_args;

enum { MOST = 24 };
typedef struct recorded {
  kr_graph *g;
  const void *args;
  kr_mamba_block block;
  kr_gradient wanted[MOST];
  int n_wanted;
} recorded;

#define INPUT(field, ...) b->field = kr_graph_own_argument(r->g, r->args, &a->field, #field, KR_DIMS(__VA_ARGS__))
#define INPUT_OF(field, dims) b->field = kr_graph_own_argument(r->g, r->args, &a->field, #field, dims)

static void mamba_inner_want(recorded *r, const char *name, kr_tensor of, const kr_view *view) {
  const kr_tensor at = of ? kr_graph_argument(r->g, r->args, view, KR_OUT, name, kr_graph_dims(r->g, of)) : 0;
  if (at) r->wanted[r->n_wanted++] = (kr_gradient){of, at};
}

static kr_dims parameter_dims(const inner_args *a, uint32_t constant) {
  if (a->call.flags & constant) return KR_DIMS(a->D, a->N);
  return KR_DIMS(a->B, 1, a->N, a->A.dtype == KRAIT_C64 ? 2 * a->L : a->L);
}

static kr_dims mamba_inner_out_dims(const inner_args *a) {
  return a->M ? KR_DIMS(a->B, a->L, a->M) : KR_DIMS(a->B, a->D, a->L);
}

/* OWN: intermediates have the type of xz, which a GPU's tensor cores take, if kr_inner_is_short allows it. */
enum { OWN = -1 };
static int32_t type_between(const inner_args *a, int32_t dtype) {
  return dtype != OWN ? dtype : kr_inner_is_short(a) ? a->xz.dtype : KRAIT_F32;
}

/* a: the call's args, or the gradient's, which start alike. */
static void record_mamba_inner_inputs(recorded *r, int32_t dtype) {
  const inner_args *a = r->args;
  const int64_t B_columns = kr_inner_columns(a, &a->Bmat), C_columns = kr_inner_columns(a, &a->Cmat);
  kr_mamba_block *b = &r->block;
  *b = (kr_mamba_block){.flags = a->call.flags, .eps = a->eps, .dtype = type_between(a, dtype)};
  INPUT(xz, a->B, 2 * a->D, a->L);
  INPUT(conv_weight, a->D, a->W);
  INPUT(conv_bias, a->D);
  INPUT(x_proj_weight, a->R + B_columns + C_columns, a->D);
  INPUT(dt_proj_weight, a->D, a->R);
  INPUT(out_proj_weight, a->M, a->D);
  INPUT(out_proj_bias, a->M);
  INPUT(A, a->D, a->N);
  INPUT(A_reverse, a->D, a->N);
  INPUT_OF(Bmat, parameter_dims(a, KRAIT_SCAN_B_CONSTANT));
  INPUT_OF(Cmat, parameter_dims(a, KRAIT_SCAN_C_CONSTANT));
  INPUT(Dvec, a->D);
  INPUT(delta_bias, a->D);
  INPUT(B_proj_bias, B_columns);
  INPUT(C_proj_bias, C_columns);
  INPUT(dt_norm_weight, a->D);
  INPUT(B_norm_weight, a->N);
  INPUT(C_norm_weight, a->N);
}

static void record_mamba_inner_forward(kr_graph *g, const void *args, int32_t dtype) {
  const inner_args *a = args;
  recorded r = {.g = g, .args = args};
  record_mamba_inner_inputs(&r, dtype);
  r.block.out = kr_graph_argument(g, args, &a->out, KR_OUT, "out", mamba_inner_out_dims(a));
  kr_mamba_block_record(g, &r.block);
}

static void record_mamba_inner_backward(kr_graph *g, const void *args, int32_t dtype) {
  const bwd_args *d = args;
  recorded r = {.g = g, .args = args};
  record_mamba_inner_inputs(&r, dtype);
  const kr_mamba_block *b = &r.block;
  const kr_dims out = mamba_inner_out_dims(args);
  r.block.out = kr_graph_temp(g, b->dtype, out); /* unused: its producers are eliminated */
  kr_mamba_block_record(g, b);
#define WANT(field) mamba_inner_want(&r, "d" #field, b->field, &d->d##field)
  WANT(xz), WANT(conv_weight), WANT(conv_bias), WANT(x_proj_weight), WANT(dt_proj_weight), WANT(out_proj_weight),
      WANT(out_proj_bias), WANT(A), WANT(A_reverse);
  WANT(Dvec), WANT(delta_bias), WANT(B_proj_bias), WANT(C_proj_bias), WANT(dt_norm_weight), WANT(B_norm_weight),
      WANT(C_norm_weight);
  mamba_inner_want(&r, "dB", b->Bmat, &d->dB), mamba_inner_want(&r, "dC", b->Cmat, &d->dC);
  const kr_gradient seed = {b->out, kr_graph_argument(g, args, &d->dout, KR_IN, "dout", out)};
  kr_graph_backward(g, &seed, 1, r.wanted, r.n_wanted);
}

KR_GRAPH_IMPL(mamba_inner_composed, mamba_inner, record_mamba_inner_forward, KRAIT_F32, 0)
KR_GRAPH_IMPL(mamba_inner_cuda, mamba_inner, record_mamba_inner_forward, OWN, 0)
KR_GRAPH_IMPL(mamba_inner_bwd_composed, mamba_inner_bwd, record_mamba_inner_backward, KRAIT_F32, 0)
KR_GRAPH_IMPL(mamba_inner_bwd_cuda, mamba_inner_bwd, record_mamba_inner_backward, OWN, 0)
KR_GRAPH_IMPL(mamba_inner_bwd_ref, mamba_inner_bwd, record_mamba_inner_backward, KRAIT_F64, KR_PLAN_REFERENCE)

/* mamba2_inner_graph.c: the implementations of mamba2_inner and its gradient: the block's graph, planned into the
 * call's scratch; as a reference implementation, on the operators' reference implementations with float64
 * intermediates, or the tensors' 16-bit type, to which the block rounds. */
#include "graph_kernel_cache.h"
#include "mamba2_block.h"
#include "mamba2_inner/mamba2_inner_impls.h"
#include "block_ops.h"

typedef kr_mamba2_inner_args inner_args;
typedef kr_mamba2_inner_bwd_args bwd_args;

/* The gradient's args start with the forward ones. */
_Static_assert(offsetof(inner_args, out) == offsetof(bwd_args, zxbcdt), "one head");

enum { MOST = 16 };
typedef struct recorded {
  kr_graph *g;
  const inner_args *args;
  kr_mamba2_block block;
  kr_gradient wanted[MOST], seeds[2];
  int n_wanted, n_seeds;
} recorded;

static int64_t inner_columns(const inner_args *a) { return a->F + a->H * a->P; }
static int64_t channels(const inner_args *a) { return a->H * a->P + 2 * a->G * a->N; }
static int64_t columns(const inner_args *a) { return 2 * a->F + a->H * a->P + channels(a) + a->H; }
static kr_dims mamba2_inner_out_dims(const inner_args *a) {
  return KR_DIMS(a->B, a->L, a->M ? a->M : inner_columns(a));
}
static kr_dims state_dims(const inner_args *a) { return KR_DIMS(a->B, a->H, a->P, a->N); }

static kr_tensor argument(recorded *r, const kr_view *view, int32_t role, const char *name, kr_dims dims) {
  return kr_graph_argument(r->g, r->args, view, role, name, dims);
}

static void record_mamba2_inner_inputs(recorded *r, int32_t dtype) {
  const inner_args *a = r->args;
  kr_mamba2_block *b = &r->block;
  const int is_half = a->x.dtype == KRAIT_F16 || a->x.dtype == KRAIT_BF16;
  *b = (kr_mamba2_block){.P = a->P,
                         .G = a->G,
                         .F = a->F,
                         .activation = a->activation,
                         .norm_before_gate = (a->call.flags & KRAIT_MAMBA2_NORM_BEFORE_GATE) != 0,
                         .log_A = (a->call.flags & KRAIT_MAMBA2_LOG_A) != 0,
                         .tf32 = (a->call.flags & KRAIT_MAMBA2_TF32) != 0,
                         .eps = a->eps,
                         .dt_min = a->dt_min,
                         .dt_max = a->dt_max,
                         .dtype = is_half ? a->x.dtype : dtype};
#define INPUT(field, ...) b->field = kr_graph_own_argument(r->g, a, &a->field, #field, KR_DIMS(__VA_ARGS__))
  INPUT(x, a->B, a->L, a->K ? a->K : columns(a));
  INPUT(in_proj_weight, columns(a), a->K);
  INPUT(in_proj_bias, columns(a));
  INPUT(conv_weight, channels(a), a->W);
  INPUT(conv_bias, channels(a));
  INPUT(dt_bias, a->H);
  INPUT(A, a->H);
  if (a->Dvec.stride[1]) INPUT(Dvec, a->H, a->P);
  else INPUT(Dvec, a->H, 1);
  INPUT(norm_weight, a->H * a->P);
  INPUT(out_proj_weight, a->M, inner_columns(a));
  INPUT(out_proj_bias, a->M);
  INPUT(initial_states, a->B, a->H, a->P, a->N);
  b->seq_idx = argument(r, &a->seq_idx, KR_IN, "seq_idx", KR_DIMS(a->B, a->L));
#undef INPUT
}

/* Broadcasts D if given per head. */
static void record_block(recorded *r) {
  const kr_tensor D = r->block.Dvec;
  if (D) r->block.Dvec = kr_graph_expand(r->g, D, KR_DIMS(r->args->H, r->args->P));
  kr_mamba2_block_record(r->g, &r->block);
  r->block.Dvec = D;
}

static void record_mamba2_inner_forward(kr_graph *g, const void *args, int32_t dtype) {
  const inner_args *a = args;
  recorded r = {.g = g, .args = a};
  record_mamba2_inner_inputs(&r, dtype);
  kr_mamba2_block *b = &r.block;
  b->out = argument(&r, &a->out, KR_OUT, "out", mamba2_inner_out_dims(a));
  b->final_states = argument(&r, &a->final_states, KR_OUT, "final_states", state_dims(a));
  b->zxbcdt = argument(&r, &a->zxbcdt, KR_OUT, "zxbcdt", KR_DIMS(a->B, a->L, columns(a)));
  b->xBC = argument(&r, &a->xBC, KR_OUT, "xBC", KR_DIMS(a->B, a->L, channels(a)));
  b->y = argument(&r, &a->y, KR_OUT, "y", KR_DIMS(a->B, a->L, a->H * a->P));
  b->gated = argument(&r, &a->gated, KR_OUT, "gated", KR_DIMS(a->B, a->L, inner_columns(a)));
  record_block(&r);
}

static void mamba2_inner_want(recorded *r, const char *name, kr_tensor of, const kr_view *view) {
  const kr_tensor at = of ? argument(r, view, KR_OUT, name, kr_graph_dims(r->g, of)) : 0;
  if (at) r->wanted[r->n_wanted++] = (kr_gradient){of, at};
}

static void record_mamba2_inner_backward(kr_graph *g, const void *args, int32_t dtype) {
  const bwd_args *d = args;
  recorded r = {.g = g, .args = args};
  record_mamba2_inner_inputs(&r, dtype);
  kr_mamba2_block *b = &r.block;
  b->out = kr_graph_temp(g, b->dtype, mamba2_inner_out_dims(args)); /* unused: its producers are eliminated */
  const kr_tensor dfinal = argument(&r, &d->dfinal_states, KR_IN, "dfinal_states", state_dims(args));
  if (dfinal) b->final_states = kr_graph_temp(g, KRAIT_F32, state_dims(args));
  record_block(&r);
#define WANT(field) mamba2_inner_want(&r, "d" #field, b->field, &d->d##field)
  WANT(x), WANT(in_proj_weight), WANT(in_proj_bias), WANT(conv_weight), WANT(conv_bias), WANT(dt_bias), WANT(A),
      WANT(Dvec), WANT(norm_weight);
  WANT(out_proj_weight), WANT(out_proj_bias), WANT(initial_states);
#undef WANT
  r.seeds[r.n_seeds++] = (kr_gradient){b->out, argument(&r, &d->dout, KR_IN, "dout", mamba2_inner_out_dims(args))};
  if (dfinal) r.seeds[r.n_seeds++] = (kr_gradient){b->final_states, dfinal};
  kr_graph_backward(g, r.seeds, r.n_seeds, r.wanted, r.n_wanted);
  if (b->in_proj_weight) kr_graph_use_kept(g, args, &d->zxbcdt, "zxbcdt", b->zxbcdt);
  kr_graph_use_kept(g, args, &d->xBC, "xBC", b->xBC);
  kr_graph_use_kept(g, args, &d->y, "y", b->y);
  if (b->out_proj_weight) kr_graph_use_kept(g, args, &d->gated, "gated", b->gated);
}

KR_GRAPH_IMPL(mamba2_inner_composed, mamba2_inner, record_mamba2_inner_forward, KRAIT_F32, 0)
KR_GRAPH_IMPL(mamba2_inner_bwd_composed, mamba2_inner_bwd, record_mamba2_inner_backward, KRAIT_F32, 0)
KR_GRAPH_IMPL(mamba2_inner_ref, mamba2_inner, record_mamba2_inner_forward, KRAIT_F64, KR_PLAN_REFERENCE)
KR_GRAPH_IMPL(mamba2_inner_bwd_ref, mamba2_inner_bwd, record_mamba2_inner_backward, KRAIT_F64, KR_PLAN_REFERENCE)

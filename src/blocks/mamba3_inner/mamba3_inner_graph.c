/* mamba3_inner_graph.c: the implementations of mamba3_inner and its gradient: the block's graph, planned into the
 * call's scratch; as a reference implementation, on the operators' reference implementations with float64
 * intermediates, or the tensors' 16-bit type, to which the block rounds. */
#include "block_ops.h"
#include "contract.h"
#include "graph_kernel_cache.h"
#include "mamba3_block.h"
#include "mamba3_inner/mamba3_inner_impls.h"
#include "status.h"
#include "view.h"

typedef kr_mamba3_inner_args mamba3_args;
typedef kr_mamba3_inner_bwd_args mamba3_bwd_args;

enum { MOST = 20, STATES = 4 };
typedef struct mamba3_recorded {
  kr_graph *g;
  const mamba3_args *args; /* the gradient's args start with the forward ones */
  kr_mamba3_block block;
  kr_gradient wanted[MOST], seeds[1 + STATES];
  int n_wanted, n_seeds;
} mamba3_recorded;

static int64_t mamba3_vectors(const mamba3_args *a) { return a->V * a->N; }
static int64_t mamba3_width(const mamba3_args *a) { return 2 * a->H * a->P + 2 * mamba3_vectors(a) + 3 * a->H + a->M; }
static kr_dims mamba3_out_dims(const mamba3_args *a) { return KR_DIMS(a->B, a->L, a->D ? a->D : a->H * a->P); }
static kr_dims mamba3_state_dims(const mamba3_args *a, int which) {
  const int64_t n = kr_has(&a->cu_seqlens) ? a->S : a->B;
  switch (which) {
    case 0: return KR_DIMS(n, a->H, a->M);
    case 1: return KR_DIMS(n, a->H, a->P, a->N);
    case 2: return KR_DIMS(n, a->R, a->H, a->N);
    default: return KR_DIMS(n, a->H, a->P);
  }
}

static kr_tensor mamba3_argument(mamba3_recorded *r, const kr_view *view, int32_t role, const char *name,
                                 kr_dims dims) {
  return kr_graph_argument(r->g, r->args, view, role, name, dims);
}

static void record_mamba3_inner_inputs(mamba3_recorded *r, int32_t dtype) {
  const mamba3_args *a = r->args;
  kr_mamba3_block *b = &r->block;
  const int is_half = a->x.dtype == KRAIT_F16 || a->x.dtype == KRAIT_BF16;
  *b = (kr_mamba3_block){.P = a->P,
                         .G = a->G,
                         .M = a->M,
                         .halves = (a->call.flags & KRAIT_MAMBA3_HALVES) != 0,
                         .softplus_A = (a->call.flags & KRAIT_MAMBA3_SOFTPLUS_A) != 0,
                         .A_floor = a->A_floor,
                         .BC_eps = a->BC_eps,
                         .eps = a->eps,
                         .dtype = is_half ? a->x.dtype : dtype,
                         .wide = dtype};
#define INPUT(field, ...) b->field = kr_graph_own_argument(r->g, a, &a->field, #field, KR_DIMS(__VA_ARGS__))
  INPUT(x, a->B, a->L, a->K ? a->K : mamba3_width(a));
  INPUT(in_proj_weight, mamba3_width(a), a->K);
  INPUT(dt_bias, a->H);
  INPUT(B_norm, a->N), INPUT(C_norm, a->N);
  INPUT(B_bias, a->H, a->R, a->N), INPUT(C_bias, a->H, a->R, a->N);
  INPUT(Dvec, a->H);
  INPUT(mimo_x, a->H, a->R, a->P), INPUT(mimo_z, a->H, a->R, a->P), INPUT(mimo_o, a->H, a->R, a->P);
  INPUT(norm_weight, a->H, a->P);
  INPUT(out_proj_weight, a->D, a->H * a->P);
#undef INPUT
#define STATE(field, which) b->field = kr_graph_own_argument(r->g, a, &a->field, #field, mamba3_state_dims(a, which))
  STATE(initial_angles, 0), STATE(initial_states, 1), STATE(initial_B, 2), STATE(initial_x, 3);
#undef STATE
  b->cu_seqlens = mamba3_argument(r, &a->cu_seqlens, KR_IN, "cu_seqlens", KR_DIMS(a->S + 1));
}

static void record_mamba3_inner_forward(kr_graph *g, const void *args, int32_t dtype) {
  const mamba3_args *a = args;
  mamba3_recorded r = {.g = g, .args = a};
  record_mamba3_inner_inputs(&r, dtype);
  kr_mamba3_block *b = &r.block;
#define OUTPUT(field, dims) b->field = mamba3_argument(&r, &a->field, KR_OUT, #field, dims)
  OUTPUT(out, mamba3_out_dims(a));
  OUTPUT(final_angles, mamba3_state_dims(a, 0)), OUTPUT(final_states, mamba3_state_dims(a, 1));
  OUTPUT(final_B, mamba3_state_dims(a, 2)), OUTPUT(final_x, mamba3_state_dims(a, 3));
  OUTPUT(columns, KR_DIMS(a->B, a->L, mamba3_width(a)));
  OUTPUT(BC, KR_DIMS(a->B, a->L, 2 * mamba3_vectors(a)));
  OUTPUT(dt, KR_DIMS(a->B, a->L, a->H)), OUTPUT(log_decay, KR_DIMS(a->B, a->L, a->H));
  OUTPUT(y, KR_DIMS(a->B, a->L, a->H * a->P)), OUTPUT(kept, KR_DIMS(a->B, a->H, a->n_kept));
#undef OUTPUT
  kr_mamba3_block_record(g, b);
}

static void want_of_mamba3(mamba3_recorded *r, const char *name, kr_tensor of, const kr_view *view) {
  const kr_tensor at = of ? mamba3_argument(r, view, KR_OUT, name, kr_graph_dims(r->g, of)) : 0;
  if (at) r->wanted[r->n_wanted++] = (kr_gradient){of, at};
}

/* A final state whose gradient is given. */
static kr_tensor seed_mamba3_state(mamba3_recorded *r, int which, const kr_view *gradient, const char *name) {
  const kr_dims dims = mamba3_state_dims(r->args, which);
  const kr_tensor d = mamba3_argument(r, gradient, KR_IN, name, dims);
  if (!d) return 0;
  const kr_tensor state = kr_graph_temp(r->g, which < 2 ? r->block.wide : gradient->dtype, dims);
  r->seeds[r->n_seeds++] = (kr_gradient){state, d};
  return state;
}

static void record_mamba3_inner_backward(kr_graph *g, const void *args, int32_t dtype) {
  const mamba3_bwd_args *d = args;
  mamba3_recorded r = {.g = g, .args = args};
  record_mamba3_inner_inputs(&r, dtype);
  kr_mamba3_block *b = &r.block;
  b->out = kr_graph_temp(g, b->dtype, mamba3_out_dims(args)); /* unused: its producers are eliminated */
  r.seeds[r.n_seeds++] = (kr_gradient){b->out, mamba3_argument(&r, &d->dout, KR_IN, "dout", mamba3_out_dims(args))};
  b->final_angles = seed_mamba3_state(&r, 0, &d->dfinal_angles, "dfinal_angles");
  b->final_states = seed_mamba3_state(&r, 1, &d->dfinal_states, "dfinal_states");
  b->final_B = seed_mamba3_state(&r, 2, &d->dfinal_B, "dfinal_B");
  b->final_x = seed_mamba3_state(&r, 3, &d->dfinal_x, "dfinal_x");
  if (kr_has(&d->kept)) b->kept = kr_graph_temp(g, KRAIT_F32, KR_DIMS(d->B, d->H, d->n_kept));
  kr_mamba3_block_record(g, b);
#define WANT(field) want_of_mamba3(&r, "d" #field, b->field, &d->d##field)
  WANT(x), WANT(in_proj_weight), WANT(dt_bias), WANT(B_norm), WANT(C_norm), WANT(B_bias), WANT(C_bias), WANT(Dvec);
  WANT(mimo_x), WANT(mimo_z), WANT(mimo_o), WANT(norm_weight), WANT(out_proj_weight);
  WANT(initial_angles), WANT(initial_states), WANT(initial_B), WANT(initial_x);
#undef WANT
  kr_graph_backward(g, r.seeds, r.n_seeds, r.wanted, r.n_wanted);
  if (b->in_proj_weight) kr_graph_use_kept(g, args, &d->columns, "columns", b->columns);
  kr_graph_use_kept(g, args, &d->BC, "BC", b->BC);
  kr_graph_use_kept(g, args, &d->dt, "dt", b->dt);
  kr_graph_use_kept(g, args, &d->log_decay, "log_decay", b->log_decay);
  if (b->out_proj_weight) kr_graph_use_kept(g, args, &d->y, "y", b->y);
  kr_graph_use_kept(g, args, &d->kept, "kept", b->kept);
}

KR_GRAPH_IMPL(mamba3_inner_composed, mamba3_inner, record_mamba3_inner_forward, KRAIT_F32, 0)
KR_GRAPH_IMPL(mamba3_inner_bwd_composed, mamba3_inner_bwd, record_mamba3_inner_backward, KRAIT_F32, 0)
KR_GRAPH_IMPL(mamba3_inner_ref, mamba3_inner, record_mamba3_inner_forward, KRAIT_F64, KR_PLAN_REFERENCE)
KR_GRAPH_IMPL(mamba3_inner_bwd_ref, mamba3_inner_bwd, record_mamba3_inner_backward, KRAIT_F64, KR_PLAN_REFERENCE)

/* In host memory offsets are looked at before anything runs, so that the error is this operator's. */
static int32_t check_offsets_of_mamba3(const char *op, const mamba3_args *a) {
  return kr_has(&a->cu_seqlens) ? kr_need_offsets(op, "cu_seqlens", &a->cu_seqlens, a->S, a->L) : KRAIT_OK;
}
int32_t kr_mamba3_inner_on_host(const krait_ctx *ctx, const void *args) {
  KR_TRY(check_offsets_of_mamba3("mamba3_inner", args));
  return kr_mamba3_inner_composed(ctx, args);
}
int32_t kr_mamba3_inner_bwd_on_host(const krait_ctx *ctx, const void *args) {
  KR_TRY(check_offsets_of_mamba3("mamba3_inner_bwd", args));
  return kr_mamba3_inner_bwd_composed(ctx, args);
}

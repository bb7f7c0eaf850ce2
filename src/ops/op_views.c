/* op_views.c: the sizes of every tensor of a call and whether it is read or written, as ops.h says them: for copying a call's
 * tensors to where it can run (src/runtime/round_trip.c). tests/ops/views.c holds this list against the walker's cases. */
#include "mamba_inner/mamba_inner_chain.h"
#include "op_list.h"

enum { IN = 1, OUT = 2, INOUT = 3 };

static void use(kr_view_uses *u, const krait_view *view, int role, int n_dims, const int64_t *shape) {
  if (!view->data) return;
  kr_view_use *to = &u->list[u->n++];
  *to = (kr_view_use){.offset = (size_t)((const char *)view - (const char *)u->args), .role = role, .n_dims = n_dims};
  for (int i = 0; i < n_dims; i++) to->shape[i] = shape[i];
}
#define USE(view, role, ...) use(u, &a->view, role, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})
#define ARGS(op) const krait_##op##_args *a = u->args

void kr_causal_conv1d_views(kr_view_uses *u) {
  ARGS(causal_conv1d);
  USE(x, IN, a->B, a->D, a->L), USE(weight, IN, a->D, a->W), USE(bias, IN, a->D), USE(seq_idx, IN, a->B, a->L), USE(initial_states, IN, a->B, a->D, a->W - 1);
  USE(out, OUT, a->B, a->D, a->L), USE(final_states, OUT, a->B, a->D, a->W - 1);
}

void kr_causal_conv1d_bwd_views(kr_view_uses *u) {
  ARGS(causal_conv1d_bwd);
  USE(x, IN, a->B, a->D, a->L), USE(weight, IN, a->D, a->W), USE(bias, IN, a->D), USE(seq_idx, IN, a->B, a->L), USE(initial_states, IN, a->B, a->D, a->W - 1);
  USE(dout, IN, a->B, a->D, a->L), USE(dfinal_states, IN, a->B, a->D, a->W - 1), USE(dx, OUT, a->B, a->D, a->L);
  USE(dweight, OUT, a->D, a->W), USE(dbias, OUT, a->D), USE(dinitial_states, OUT, a->B, a->D, a->W - 1);
}

void kr_causal_conv1d_update_views(kr_view_uses *u) {
  ARGS(causal_conv1d_update);
  USE(x, IN, a->B, a->D, a->L), USE(conv_state, INOUT, a->n_states, a->D, a->S), USE(weight, IN, a->D, a->W), USE(bias, IN, a->D);
  USE(cache_seqlens, IN, a->B), USE(conv_state_indices, IN, a->B), USE(out, OUT, a->B, a->D, a->L);
}

void kr_causal_conv1d_varlen_states_views(kr_view_uses *u) {
  ARGS(causal_conv1d_varlen_states);
  USE(x, IN, a->total, a->D), USE(cu_seqlens, IN, a->S + 1), USE(states, OUT, a->S, a->D, a->state_len);
}

void kr_selective_scan_views(kr_view_uses *u) {
  ARGS(selective_scan);
  const int64_t states = a->cu_seqlens.data ? a->S : a->B, steps = a->A.dtype == KRAIT_C64 ? 2 * a->L : a->L;
  USE(u, IN, a->B, a->D, a->L), USE(delta, IN, a->B, a->D, a->L), USE(z, IN, a->B, a->D, a->L), USE(A, IN, a->D, a->N), USE(A_reverse, IN, a->D, a->N);
  if (a->call.flags & KRAIT_SCAN_B_CONSTANT) USE(Bmat, IN, a->D, a->N);
  else USE(Bmat, IN, a->B, a->G, a->N, steps);
  if (a->call.flags & KRAIT_SCAN_C_CONSTANT) USE(Cmat, IN, a->D, a->N);
  else USE(Cmat, IN, a->B, a->G, a->N, steps);
  USE(Dvec, IN, a->D), USE(delta_bias, IN, a->D), USE(initial_state, IN, states, a->D, a->N), USE(seq_idx, IN, a->B, a->L), USE(cu_seqlens, IN, a->S + 1);
  USE(out, OUT, a->B, a->D, a->L), USE(last_state, OUT, states, a->D, a->N);
}

void kr_selective_scan_bwd_views(kr_view_uses *u) {
  ARGS(selective_scan_bwd);
  const int64_t states = a->cu_seqlens.data ? a->S : a->B, steps = a->A.dtype == KRAIT_C64 ? 2 * a->L : a->L;
  USE(u, IN, a->B, a->D, a->L), USE(delta, IN, a->B, a->D, a->L), USE(z, IN, a->B, a->D, a->L), USE(A, IN, a->D, a->N), USE(A_reverse, IN, a->D, a->N);
  if (a->call.flags & KRAIT_SCAN_B_CONSTANT) USE(Bmat, IN, a->D, a->N), USE(dB, OUT, a->D, a->N);
  else USE(Bmat, IN, a->B, a->G, a->N, steps), USE(dB, OUT, a->B, a->G, a->N, steps);
  if (a->call.flags & KRAIT_SCAN_C_CONSTANT) USE(Cmat, IN, a->D, a->N), USE(dC, OUT, a->D, a->N);
  else USE(Cmat, IN, a->B, a->G, a->N, steps), USE(dC, OUT, a->B, a->G, a->N, steps);
  USE(Dvec, IN, a->D), USE(delta_bias, IN, a->D), USE(initial_state, IN, states, a->D, a->N), USE(seq_idx, IN, a->B, a->L), USE(cu_seqlens, IN, a->S + 1);
  USE(dout, IN, a->B, a->D, a->L), USE(dlast_state, IN, states, a->D, a->N);
  USE(du, OUT, a->B, a->D, a->L), USE(ddelta, OUT, a->B, a->D, a->L), USE(dz, OUT, a->B, a->D, a->L), USE(dA, OUT, a->D, a->N), USE(dA_reverse, OUT, a->D, a->N);
  USE(dDvec, OUT, a->D), USE(ddelta_bias, OUT, a->D), USE(dinitial_state, OUT, states, a->D, a->N);
}

void kr_state_update_views(kr_view_uses *u) {
  ARGS(state_update);
  USE(state, INOUT, a->n_states, a->H, a->P, a->N), USE(x, IN, a->B, a->H, a->P), USE(dt, IN, a->B, a->H, a->P), USE(A, IN, a->H, a->P, a->N);
  USE(Bmat, IN, a->B, a->G, a->N), USE(Cmat, IN, a->B, a->G, a->N), USE(Dvec, IN, a->H, a->P), USE(dt_bias, IN, a->H, a->P), USE(z, IN, a->B, a->H, a->P);
  USE(state_batch_indices, IN, a->B), USE(out, OUT, a->B, a->H, a->P);
}

void kr_add_norm_views(kr_view_uses *u) {
  ARGS(add_norm);
  USE(x, IN, a->R, a->M), USE(x1, IN, a->R, a->M), USE(residual, IN, a->R, a->M), USE(rowscale, IN, a->R);
  USE(weight, IN, a->M), USE(bias, IN, a->M), USE(weight1, IN, a->M), USE(bias1, IN, a->M);
  USE(out, OUT, a->R, a->M), USE(out1, OUT, a->R, a->M), USE(residual_out, OUT, a->R, a->M);
}

void kr_add_norm_bwd_views(kr_view_uses *u) {
  ARGS(add_norm_bwd);
  USE(v, IN, a->R, a->M), USE(rowscale, IN, a->R), USE(weight, IN, a->M), USE(weight1, IN, a->M);
  USE(dout, IN, a->R, a->M), USE(dout1, IN, a->R, a->M), USE(dresidual_out, IN, a->R, a->M);
  USE(dx, OUT, a->R, a->M), USE(dx1, OUT, a->R, a->M), USE(dresidual, OUT, a->R, a->M);
  USE(dweight, OUT, a->M), USE(dbias, OUT, a->M), USE(dweight1, OUT, a->M), USE(dbias1, OUT, a->M);
}

void kr_gated_norm_views(kr_view_uses *u) {
  ARGS(gated_norm);
  USE(x, IN, a->R, a->M), USE(z, IN, a->R, a->M), USE(weight, IN, a->M), USE(bias, IN, a->M), USE(out, OUT, a->R, a->M);
}

void kr_gated_norm_bwd_views(kr_view_uses *u) {
  ARGS(gated_norm_bwd);
  USE(x, IN, a->R, a->M), USE(z, IN, a->R, a->M), USE(weight, IN, a->M), USE(bias, IN, a->M), USE(dout, IN, a->R, a->M);
  USE(dx, OUT, a->R, a->M), USE(dz, OUT, a->R, a->M), USE(dweight, OUT, a->M), USE(dbias, OUT, a->M);
}

void kr_gemm_views(kr_view_uses *u) {
  ARGS(gemm);
  USE(A, IN, a->M, a->K), USE(Bmat, IN, a->K, a->N), USE(bias, IN, a->N), USE(residual, IN, a->M, a->N), USE(out, OUT, a->M, a->N);
}

/* The inputs that mamba_inner and its gradient share: the head of both structs is the same. */
static void use_inner_inputs(kr_view_uses *u, int64_t b, int64_t c) {
  ARGS(mamba_inner);
  const int64_t steps = a->A.dtype == KRAIT_C64 ? 2 * a->L : a->L;
  USE(xz, IN, a->B, 2 * a->D, a->L), USE(conv_weight, IN, a->D, a->W), USE(conv_bias, IN, a->D), USE(x_proj_weight, IN, a->R + b + c, a->D);
  USE(dt_proj_weight, IN, a->D, a->R), USE(out_proj_weight, IN, a->M, a->D), USE(out_proj_bias, IN, a->M), USE(A, IN, a->D, a->N), USE(A_reverse, IN, a->D, a->N);
  if (a->call.flags & KRAIT_SCAN_B_CONSTANT) USE(Bmat, IN, a->D, a->N);
  else USE(Bmat, IN, a->B, 1, a->N, steps);
  if (a->call.flags & KRAIT_SCAN_C_CONSTANT) USE(Cmat, IN, a->D, a->N);
  else USE(Cmat, IN, a->B, 1, a->N, steps);
  USE(Dvec, IN, a->D), USE(delta_bias, IN, a->D), USE(B_proj_bias, IN, b), USE(C_proj_bias, IN, c);
  USE(dt_norm_weight, IN, a->D), USE(B_norm_weight, IN, a->N), USE(C_norm_weight, IN, a->N);
}

void kr_mamba_inner_views(kr_view_uses *u) {
  ARGS(mamba_inner);
  use_inner_inputs(u, kr_inner_columns(a, &a->Bmat), kr_inner_columns(a, &a->Cmat));
  if (a->M) USE(out, OUT, a->B, a->L, a->M);
  else USE(out, OUT, a->B, a->D, a->L);
}

void kr_mamba_inner_bwd_views(kr_view_uses *u) {
  ARGS(mamba_inner_bwd);
  const krait_mamba_inner_args *inputs = u->args;
  const int64_t b = kr_inner_columns(inputs, &inputs->Bmat), c = kr_inner_columns(inputs, &inputs->Cmat), steps = a->A.dtype == KRAIT_C64 ? 2 * a->L : a->L;
  use_inner_inputs(u, b, c);
  if (a->M) USE(dout, IN, a->B, a->L, a->M);
  else USE(dout, IN, a->B, a->D, a->L);
  USE(dxz, OUT, a->B, 2 * a->D, a->L), USE(dconv_weight, OUT, a->D, a->W), USE(dconv_bias, OUT, a->D), USE(dx_proj_weight, OUT, a->R + b + c, a->D);
  USE(ddt_proj_weight, OUT, a->D, a->R), USE(dout_proj_weight, OUT, a->M, a->D), USE(dout_proj_bias, OUT, a->M), USE(dA, OUT, a->D, a->N), USE(dA_reverse, OUT, a->D, a->N);
  if (a->call.flags & KRAIT_SCAN_B_CONSTANT) USE(dB, OUT, a->D, a->N);
  else USE(dB, OUT, a->B, 1, a->N, steps);
  if (a->call.flags & KRAIT_SCAN_C_CONSTANT) USE(dC, OUT, a->D, a->N);
  else USE(dC, OUT, a->B, 1, a->N, steps);
  USE(dDvec, OUT, a->D), USE(ddelta_bias, OUT, a->D), USE(dB_proj_bias, OUT, b), USE(dC_proj_bias, OUT, c);
  USE(ddt_norm_weight, OUT, a->D), USE(dB_norm_weight, OUT, a->N), USE(dC_norm_weight, OUT, a->N);
}

/* mamba_block.c: intermediates are rows (b, l) of D (or other) columns, so that products use them directly and the scan
 * reads B and C where x_proj wrote them. */
#include "mamba_block.h"

#include "op_list.h"

typedef struct inner {
  kr_graph *g;
  const kr_mamba_block *b;
  int64_t B, D, L, N, R;
  int is_complex;
} inner;

static kr_tensor dims_turned(kr_graph *g, kr_tensor t) { return kr_graph_permute(g, t, (int[]){1, 0}); }
static kr_view mamba_block_view(const inner *i, kr_tensor t) { return kr_graph_view(i->g, t); }

/* Rows (b, l) of the working type, as a matrix; and the same as (B,D,L). */
static kr_tensor mamba_block_new_rows(const inner *i, int64_t columns) {
  return kr_graph_temp(i->g, i->b->dtype, KR_DIMS(i->B * i->L, columns));
}
static kr_tensor mamba_block_as_channels(const inner *i, kr_tensor rows) {
  return kr_graph_permute(i->g, kr_graph_reshape(i->g, rows, KR_DIMS(i->B, i->L, kr_graph_dims(i->g, rows).size[1])),
                          (int[]){0, 2, 1});
}

static void copy_mamba_block(const inner *i, const char *name, kr_tensor from, kr_tensor to) {
  kr_graph_pointwise(i->g, name, (kr_pointwise_args){.x_scale = 1}, from, 0, to);
}

/* Rows times a weight stored (columns, inputs). */
static void project_mamba_block(const inner *i, const char *name, kr_tensor rows, kr_tensor weight, kr_tensor bias,
                                kr_tensor out) {
  kr_graph_call(i->g, name, &kr_op_gemm,
                &(kr_gemm_args){.A = mamba_block_view(i, rows),
                                   .Bmat = mamba_block_view(i, dims_turned(i->g, weight)),
                                   .bias = mamba_block_view(i, bias),
                                   .out = mamba_block_view(i, out)});
}

static kr_tensor normed(const inner *i, const char *name, kr_tensor rows, kr_tensor weight) {
  if (!weight) return rows;
  return kr_graph_call(i->g, name, &kr_op_add_norm,
                       &(kr_add_norm_args){.call.flags = KRAIT_NORM_RMS,
                                              .eps = i->b->eps,
                                              .x = mamba_block_view(i, rows),
                                              .weight = mamba_block_view(i, weight),
                                              .out = kr_graph_auto()});
}

/* One step, with the states updated in place. */
static int is_step(const inner *i) { return i->b->scan_state && i->b->scan_state == i->b->scan_state_out; }

static void step_conv(const inner *i, kr_tensor x, kr_tensor u) {
  kr_graph_call(i->g, "conv", &kr_op_causal_conv1d_update,
                &(kr_causal_conv1d_update_args){.activation = KRAIT_ACT_SILU,
                                                   .x = mamba_block_view(i, x),
                                                   .conv_state = mamba_block_view(i, i->b->conv_states),
                                                   .weight = mamba_block_view(i, i->b->conv_weight),
                                                   .bias = mamba_block_view(i, i->b->conv_bias),
                                                   .out = mamba_block_view(i, mamba_block_as_channels(i, u))});
}

/* silu(conv(x)) as rows. */
static kr_tensor convolve_mamba_block(const inner *i) {
  const kr_tensor u = mamba_block_new_rows(i, i->D);
  kr_tensor x = kr_graph_slice(i->g, i->b->xz, 1, 0, i->D);
  if (kr_graph_dtype(i->g, x) != i->b->dtype) {
    const kr_tensor cast = mamba_block_as_channels(i, mamba_block_new_rows(i, i->D));
    copy_mamba_block(i, "x", x, cast);
    x = cast;
  }
  if (is_step(i) && i->b->conv_states) return step_conv(i, x, u), u;
  kr_graph_call(i->g, "conv", &kr_op_causal_conv1d,
                &(kr_causal_conv1d_args){.call.flags = i->b->flags & KRAIT_SCAN_REVERSE ? KRAIT_CONV1D_REVERSE : 0,
                                            .activation = KRAIT_ACT_SILU,
                                            .x = mamba_block_view(i, x),
                                            .weight = mamba_block_view(i, i->b->conv_weight),
                                            .bias = mamba_block_view(i, i->b->conv_bias),
                                            .initial_states = mamba_block_view(i, i->b->conv_states),
                                            .final_states = mamba_block_view(i, i->b->conv_states_out),
                                            .out = mamba_block_view(i, mamba_block_as_channels(i, u))});
  return u;
}

/* Zeros for dt, then the biases of B and C: one bias for all columns. */
static kr_tensor columns_bias(const inner *i, int64_t n_columns, int64_t B_columns, int64_t C_columns) {
  const kr_tensor from_B = i->b->B_proj_bias, from_C = i->b->C_proj_bias;
  if (!from_B && !from_C) return 0;
  const kr_tensor bias = kr_graph_temp(i->g, i->b->dtype, KR_DIMS(n_columns));
  const kr_tensor parts[] = {kr_graph_slice(i->g, bias, 0, 0, i->R), kr_graph_slice(i->g, bias, 0, i->R, B_columns),
                             kr_graph_slice(i->g, bias, 0, n_columns - C_columns, C_columns)};
  const kr_tensor sources[] = {0, from_B, from_C};
  for (int k = 0; k < 3; k++)
    kr_graph_pointwise(i->g, "bias", (kr_pointwise_args){.x_scale = sources[k] != 0}, sources[k], 0, parts[k]);
  return bias;
}

/* Rows of columns as the scan reads them: (B,1,N,L), or (B,1,N,2L) with interleaved real and imaginary parts. */
static kr_tensor scan_parameter(const inner *i, kr_tensor rows) {
  if (!i->is_complex)
    return kr_graph_permute(i->g, kr_graph_reshape(i->g, rows, KR_DIMS(i->B, i->L, 1, i->N)), (int[]){0, 2, 3, 1});
  const kr_tensor pairs = kr_graph_temp(i->g, i->b->dtype, KR_DIMS(i->B, 1, i->N, 2 * i->L));
  const kr_tensor from =
      kr_graph_permute(i->g, kr_graph_reshape(i->g, rows, KR_DIMS(i->B, i->L, i->N, 2)), (int[]){0, 2, 1, 3});
  copy_mamba_block(i, "pairs", from, kr_graph_reshape(i->g, pairs, KR_DIMS(i->B, i->N, i->L, 2)));
  return pairs;
}

/* (B,D,1), or a matrix, with one head in the middle. */
static kr_view one_head(const inner *i, kr_tensor t) {
  const kr_dims d = kr_graph_dims(i->g, t);
  if (d.n == 3) return mamba_block_view(i, kr_graph_permute(i->g, t, (int[]){0, 2, 1}));
  return mamba_block_view(i, kr_graph_reshape(i->g, t, KR_DIMS(d.size[0], 1, d.size[1])));
}
static kr_view of_head(const inner *i, kr_tensor t, kr_dims dims) {
  return t ? mamba_block_view(i, kr_graph_reshape(i->g, t, dims)) : (kr_view){0};
}

/* B and C as scan_parameter returns them. */
static void step_scan(const inner *i, kr_tensor u, kr_tensor delta, kr_tensor B, kr_tensor C, kr_tensor out) {
  const kr_mamba_block *b = i->b;
  const kr_dims rows = KR_DIMS(i->B, 1, i->N), channels = KR_DIMS(1, i->D);
  kr_graph_call(
      i->g, "scan", &kr_op_state_update,
      &(kr_state_update_args){.call.flags = b->flags & KRAIT_SCAN_SOFTPLUS ? KRAIT_UPDATE_SOFTPLUS : 0,
                                 .state = of_head(i, b->scan_state, KR_DIMS(i->B, 1, i->D, i->N)),
                                 .x = one_head(i, u),
                                 .dt = one_head(i, delta),
                                 .A = of_head(i, b->A, KR_DIMS(1, i->D, i->N)),
                                 .Bmat = of_head(i, B, rows),
                                 .Cmat = of_head(i, C, rows),
                                 .Dvec = of_head(i, b->Dvec, channels),
                                 .dt_bias = of_head(i, b->delta_bias, channels),
                                 .z = one_head(i, kr_graph_slice(i->g, b->xz, 1, i->D, i->D)),
                                 .out = one_head(i, out)});
}

static void scan_mamba_block(const inner *i, kr_tensor u, kr_tensor delta, kr_tensor B, kr_tensor C, kr_tensor out) {
  const kr_mamba_block *b = i->b;
  if (is_step(i)) {
    step_scan(i, u, delta, B, C, out);
    return;
  }
  kr_graph_call(i->g, "scan", &kr_op_selective_scan,
                &(kr_selective_scan_args){.call.flags = b->flags,
                                             .u = mamba_block_view(i, mamba_block_as_channels(i, u)),
                                             .delta = mamba_block_view(i, mamba_block_as_channels(i, delta)),
                                             .A = mamba_block_view(i, b->A),
                                             .A_reverse = mamba_block_view(i, b->A_reverse),
                                             .Bmat = mamba_block_view(i, B),
                                             .Cmat = mamba_block_view(i, C),
                                             .G = 1,
                                             .Dvec = mamba_block_view(i, b->Dvec),
                                             .z = mamba_block_view(i, kr_graph_slice(i->g, b->xz, 1, i->D, i->D)),
                                             .delta_bias = mamba_block_view(i, b->delta_bias),
                                             .initial_state = mamba_block_view(i, b->scan_state),
                                             .last_state = mamba_block_view(i, b->scan_state_out),
                                             .out = mamba_block_view(i, out)});
}

/* y, gated, into out: directly, or projected. */
static void finish(const inner *i, kr_tensor u, kr_tensor delta, kr_tensor B, kr_tensor C) {
  const kr_mamba_block *b = i->b;
  const int same = kr_graph_dtype(i->g, b->out) == b->dtype;
  if (!b->out_proj_weight && same) {
    scan_mamba_block(i, u, delta, B, C, b->out);
    return;
  }
  const kr_tensor y = mamba_block_new_rows(i, i->D);
  scan_mamba_block(i, u, delta, B, C, mamba_block_as_channels(i, y));
  if (!b->out_proj_weight) {
    copy_mamba_block(i, "out", mamba_block_as_channels(i, y), b->out);
    return;
  }
  const int64_t M = kr_graph_dims(i->g, b->out).size[2];
  const kr_dims rows = KR_DIMS(i->B * i->L, M);
  const int direct = same && kr_graph_can_reshape(i->g, b->out, rows);
  const kr_tensor out = direct ? kr_graph_reshape(i->g, b->out, rows) : mamba_block_new_rows(i, M);
  project_mamba_block(i, "out_proj", y, b->out_proj_weight, b->out_proj_bias, out);
  if (!direct) copy_mamba_block(i, "out", kr_graph_reshape(i->g, out, KR_DIMS(i->B, i->L, M)), b->out);
}

/* A weight in the block's type, for products with its rows. */
static kr_tensor factor_of(const inner *i, kr_tensor weight) {
  if (kr_graph_dtype(i->g, weight) == i->b->dtype) return weight;
  const kr_tensor factor = kr_graph_temp(i->g, i->b->dtype, kr_graph_dims(i->g, weight));
  copy_mamba_block(i, "factor", weight, factor);
  kr_graph_wide_gradient(i->g, factor);
  return factor;
}

/* [dt_proj x_proj's rows of dt; its rows of B and C] u. */
static void record_merged(const inner *i) {
  kr_graph *g = i->g;
  const int64_t both = 2 * i->N;
  const kr_tensor x_proj = i->b->x_proj_weight,
                  weight = kr_graph_temp(g, kr_graph_dtype(g, x_proj), KR_DIMS(i->D + both, i->D)),
                  u = convolve_mamba_block(i), all = mamba_block_new_rows(i, i->D + both);
  project_mamba_block(i, "dt_weight", i->b->dt_proj_weight, dims_turned(g, kr_graph_slice(g, x_proj, 0, 0, i->R)), 0,
          kr_graph_slice(g, weight, 0, 0, i->D));
  copy_mamba_block(i, "x_weight", kr_graph_slice(g, x_proj, 0, i->R, both), kr_graph_slice(g, weight, 0, i->D, both));
  project_mamba_block(i, "x_proj", u, factor_of(i, weight), 0, all);
  finish(i, u, kr_graph_slice(g, all, 1, 0, i->D), scan_parameter(i, kr_graph_slice(g, all, 1, i->D, i->N)),
         scan_parameter(i, kr_graph_slice(g, all, 1, i->D + i->N, i->N)));
}

void kr_mamba_block_record(kr_graph *g, const kr_mamba_block *b) {
  if (kr_graph_status(g) < 0) return;
  const kr_dims xz = kr_graph_dims(g, b->xz), A = kr_graph_dims(g, b->A);
  const inner i = {g,
                   b,
                   xz.size[0],
                   A.size[0],
                   xz.size[2],
                   A.size[1],
                   kr_graph_dims(g, b->dt_proj_weight).size[1],
                   kr_graph_dtype(g, b->A) == KRAIT_C64};
  const int64_t wide = i.is_complex ? 2 * i.N : i.N, B_columns = b->Bmat ? 0 : wide, C_columns = b->Cmat ? 0 : wide,
                n_columns = i.R + B_columns + C_columns;
  if (b->is_merged) {
    record_merged(&i);
    return;
  }
  const kr_tensor u = convolve_mamba_block(&i), proj = mamba_block_new_rows(&i, n_columns),
                  delta = mamba_block_new_rows(&i, i.D);
  project_mamba_block(&i, "x_proj", u, b->x_proj_weight, columns_bias(&i, n_columns, B_columns, C_columns), proj);
  project_mamba_block(&i, "dt_proj", kr_graph_slice(g, proj, 1, 0, i.R), b->dt_proj_weight, 0, delta);
  const kr_tensor delta_normed = normed(&i, "dt_norm", delta, b->dt_norm_weight);
  kr_tensor B = b->Bmat, C = b->Cmat;
  if (!B) B = scan_parameter(&i, normed(&i, "B_norm", kr_graph_slice(g, proj, 1, i.R, B_columns), b->B_norm_weight));
  if (!C)
    C = scan_parameter(
        &i, normed(&i, "C_norm", kr_graph_slice(g, proj, 1, n_columns - C_columns, C_columns), b->C_norm_weight));
  finish(&i, u, delta_normed, B, C);
}

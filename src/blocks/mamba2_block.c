/* mamba2_block.c: intermediates are rows (b, l) of columns: in_proj's output is written once, and consumers of some of
 * its columns read them in place, as their gradients are written in place. */
#include "mamba2_block.h"

#include "op_list.h"

typedef struct inner {
  kr_graph *g;
  kr_mamba2_block *b;
  int64_t B, L, H, P, G, N, F;
} inner;

static kr_view mamba2_block_view(const inner *i, kr_tensor t) { return kr_graph_view(i->g, t); }
static kr_tensor mamba2_block_new_rows(const inner *i, int64_t columns) {
  return kr_graph_temp(i->g, i->b->dtype, KR_DIMS(i->B, i->L, columns));
}
static kr_tensor columns_of(const inner *i, kr_tensor t, int64_t from, int64_t n) {
  return kr_graph_slice(i->g, t, 2, from, n);
}
static kr_tensor mamba2_block_as_channels(const inner *i, kr_tensor t) {
  return kr_graph_permute(i->g, t, (int[]){0, 2, 1});
}
static kr_tensor as_matrix(const inner *i, kr_tensor t) {
  return kr_graph_reshape(i->g, t, KR_DIMS(i->B * i->L, kr_graph_dims(i->g, t).size[2]));
}
static kr_tensor as_heads(const inner *i, kr_tensor t, int64_t heads, int64_t each) {
  return kr_graph_reshape(i->g, t, KR_DIMS(i->B, i->L, heads, each));
}
static void copy_mamba2_block(const inner *i, const char *name, kr_tensor from, kr_tensor to) {
  kr_graph_pointwise(i->g, name, (kr_pointwise_args){.x_scale = 1}, from, 0, to);
}

/* Whether t, of the working type, can be viewed as a matrix with one row per token. */
static int is_rows(const inner *i, kr_tensor t) {
  return kr_graph_dtype(i->g, t) == i->b->dtype &&
         kr_graph_can_reshape(i->g, t, KR_DIMS(i->B * i->L, kr_graph_dims(i->g, t).size[2]));
}

/* What a step may write directly for `out` (0: none): `out` itself, or rows that finish_rows copies there. */
static kr_tensor begin_rows(const inner *i, kr_tensor out, int64_t columns) {
  return out && is_rows(i, out) ? out : mamba2_block_new_rows(i, columns);
}
static kr_tensor finish_rows(const inner *i, const char *name, kr_tensor rows, kr_tensor out) {
  if (out && out != rows) copy_mamba2_block(i, name, rows, out);
  return rows;
}

/* Rows times a weight stored (columns, inputs). */
static void project_mamba2_block(const inner *i, const char *name, kr_tensor rows, kr_tensor weight, kr_tensor bias,
                                 kr_tensor out) {
  kr_graph_call(i->g, name, &kr_op_gemm,
                &(kr_gemm_args){.A = mamba2_block_view(i, as_matrix(i, rows)),
                                   .Bmat = mamba2_block_view(i, kr_graph_permute(i->g, weight, (int[]){1, 0})),
                                   .bias = mamba2_block_view(i, bias),
                                   .out = mamba2_block_view(i, as_matrix(i, out))});
}

static kr_tensor project_in(const inner *i) {
  kr_mamba2_block *b = i->b;
  kr_tensor x = b->x;
  if (!is_rows(i, x)) {
    x = mamba2_block_new_rows(i, kr_graph_dims(i->g, x).size[2]);
    copy_mamba2_block(i, "x", b->x, x);
  }
  if (!b->in_proj_weight) return x;
  const kr_tensor rows = begin_rows(i, b->zxbcdt, kr_graph_dims(i->g, b->in_proj_weight).size[0]);
  project_mamba2_block(i, "in_proj", x, b->in_proj_weight, b->in_proj_bias, rows);
  return finish_rows(i, "zxbcdt", rows, b->zxbcdt);
}

static kr_tensor convolve_mamba2_block(const inner *i, kr_tensor rows) {
  const kr_tensor out = begin_rows(i, i->b->xBC, kr_graph_dims(i->g, rows).size[2]);
  kr_graph_call(i->g, "conv", &kr_op_causal_conv1d,
                &(kr_causal_conv1d_args){.activation = i->b->activation,
                                            .x = mamba2_block_view(i, mamba2_block_as_channels(i, rows)),
                                            .weight = mamba2_block_view(i, i->b->conv_weight),
                                            .bias = mamba2_block_view(i, i->b->conv_bias),
                                            .seq_idx = mamba2_block_view(i, i->b->seq_idx),
                                            .out = mamba2_block_view(i, mamba2_block_as_channels(i, out))});
  return finish_rows(i, "xBC", out, i->b->xBC);
}

/* y of x, B and C, the columns of xBC, into out; z: apply the gate, 0: do not. */
static void scan_mamba2_block(const inner *i, kr_tensor xBC, kr_tensor dt, kr_tensor z, kr_tensor out) {
  const kr_mamba2_block *b = i->b;
  const int64_t D = i->H * i->P, S = i->G * i->N;
  const kr_tensor A =
      b->log_A ? kr_graph_temp(i->g, b->dtype == KRAIT_F64 ? KRAIT_F64 : KRAIT_F32, KR_DIMS(i->H)) : b->A;
  if (b->log_A)
    kr_graph_pointwise(i->g, "A", (kr_pointwise_args){.activation = KRAIT_ACT_EXP, .x_scale = -1}, b->A, 0, A);
  kr_graph_call(i->g, "ssd", &kr_op_ssd,
                &(kr_ssd_args){.call.flags = KRAIT_SSD_SOFTPLUS | (b->tf32 ? KRAIT_SSD_TF32 : 0),
                                  .dt_min = b->dt_min,
                                  .dt_max = b->dt_max,
                                  .x = mamba2_block_view(i, as_heads(i, columns_of(i, xBC, 0, D), i->H, i->P)),
                                  .dt = mamba2_block_view(i, dt),
                                  .A = mamba2_block_view(i, A),
                                  .Bmat = mamba2_block_view(i, as_heads(i, columns_of(i, xBC, D, S), i->G, i->N)),
                                  .Cmat = mamba2_block_view(i, as_heads(i, columns_of(i, xBC, D + S, S), i->G, i->N)),
                                  .Dvec = mamba2_block_view(i, b->Dvec),
                                  .z = z ? mamba2_block_view(i, as_heads(i, z, i->H, i->P)) : (kr_view){0},
                                  .dt_bias = mamba2_block_view(i, b->dt_bias),
                                  .initial_states = mamba2_block_view(i, b->initial_states),
                                  .seq_idx = mamba2_block_view(i, b->seq_idx),
                                  .out = mamba2_block_view(i, as_heads(i, out, i->H, i->P)),
                                  .final_states = mamba2_block_view(i, b->final_states)});
}

static void norm(const inner *i, kr_tensor y, kr_tensor z, kr_tensor out) {
  const kr_mamba2_block *b = i->b;
  kr_graph_call(i->g, "norm", &kr_op_gated_norm,
                &(kr_gated_norm_args){
                    .call.flags = KRAIT_GATED_NORM_RMS | (b->norm_before_gate ? 0 : KRAIT_GATED_NORM_GATE_FIRST),
                    .eps = b->eps,
                    .group_size = i->H * i->P / i->G,
                    .x = mamba2_block_view(i, as_matrix(i, y)),
                    .z = mamba2_block_view(i, as_matrix(i, z)),
                    .weight = mamba2_block_view(i, b->norm_weight),
                    .out = mamba2_block_view(i, as_matrix(i, out))});
}

/* The scan, gated and normalised, into the last columns of `gated`, the MLP part into the first. */
static void mix(const inner *i, kr_tensor zxbcdt, kr_tensor gated) {
  kr_mamba2_block *b = i->b;
  const int64_t F = i->F, D = i->H * i->P, C = D + 2 * i->G * i->N;
  const kr_tensor z = columns_of(i, zxbcdt, 2 * F, D), dt = columns_of(i, zxbcdt, 2 * F + D + C, i->H),
                  h = columns_of(i, gated, F, D);
  const kr_tensor xBC = b->xBC = convolve_mamba2_block(i, columns_of(i, zxbcdt, 2 * F + D, C));
  if (b->norm_weight) {
    const kr_tensor y = begin_rows(i, b->y, D);
    scan_mamba2_block(i, xBC, dt, 0, y);
    b->y = finish_rows(i, "y", y, b->y);
    norm(i, b->y, z, h);
  } else {
    scan_mamba2_block(i, xBC, dt, z, h);
  }
  if (F)
    kr_graph_pointwise(
        i->g, "mlp",
        (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .activation = KRAIT_ACT_SILU, .x_scale = 1},
        columns_of(i, zxbcdt, 0, F), columns_of(i, zxbcdt, F, F), columns_of(i, gated, 0, F));
}

void kr_mamba2_block_record(kr_graph *g, kr_mamba2_block *b) {
  if (kr_graph_status(g) < 0) return;
  const kr_dims x = kr_graph_dims(g, b->x);
  const int64_t H = kr_graph_dims(g, b->A).size[0], channels = kr_graph_dims(g, b->conv_weight).size[0];
  const inner i = {g, b, x.size[0], x.size[1], H, b->P, b->G, (channels - H * b->P) / (2 * b->G), b->F};
  b->zxbcdt = project_in(&i);
  const kr_tensor to = b->out_proj_weight ? b->gated : b->out;
  const kr_tensor gated = begin_rows(&i, to, i.F + H * i.P);
  mix(&i, b->zxbcdt, gated);
  b->gated = finish_rows(&i, "gated", gated, to);
  if (!b->out_proj_weight) return;
  const kr_tensor out = begin_rows(&i, b->out, kr_graph_dims(g, b->out).size[2]);
  project_mamba2_block(&i, "out_proj", gated, b->out_proj_weight, b->out_proj_bias, out);
  finish_rows(&i, "out", out, b->out);
}

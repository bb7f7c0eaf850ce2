/* mamba_lm_graph.c: the model as calls of a graph, for B sequences of one token (with the single-token ops) or for L
 * tokens of one sequence (with the parallel ops). Rows are tokens; mixers read channels through views of rows. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "mamba_lm.h"
#include "op_list.h"
#include "status.h"

typedef struct builder {
  kr_graph *g;
  const krait_ctx *ctx;
  const kr_mamba_lm_config *c;
  const kr_mamba_lm_layer *layer;
  int32_t dtype;
  int64_t i, R;  /* layer; rows: tokens of this run */
  kr_mamba_lm_graph *to;
  kr_tensor new_conv, old_ssm, new_ssm; /* float32, of all layers (layers,1,...), if their states are one tensor */
} builder;

static krait_view mamba_lm_view(const builder *b, kr_tensor t) { return kr_graph_view(b->g, t); }

/* A weight under the layer's name. */
static kr_tensor mamba_lm_weight(const builder *b, const char *name, const kr_mamba_lm_tensor *t, kr_dims dims) {
  char full[96];
  snprintf(full, sizeof full, "%lld.%s", (long long)b->i, name);
  return t->data ? kr_graph_weight(b->g, full, t->dtype, dims, t->data) : 0;
}
#define WEIGHT(name, ...) mamba_lm_weight(b, #name, &b->layer->name, KR_DIMS(__VA_ARGS__))

static kr_tensor mamba_lm_new_rows(const builder *b, int64_t columns) {
  return kr_graph_temp(b->g, b->dtype, KR_DIMS(b->R, columns));
}

/* Whether a GPU's step reads a weight's 8-bit data directly: for few rows. */
enum { MOST_BY_QWEIGHT = 2 };
static int reads_8_bits(const builder *b, const kr_mamba_lm_tensor *w, kr_tensor rows) {
  return w->qweight && b->to->run.is_step && b->R <= MOST_BY_QWEIGHT && b->ctx->caps & KRAIT_CAP_CUDA_AMPERE &&
         kr_graph_view(b->g, rows).stride[0] % 8 == 0;
}

/* Rows times a weight stored as (N outputs, K inputs), into out, or into new rows if that is 0. */
static kr_tensor project_into(const builder *b, const char *name, kr_tensor rows, const kr_mamba_lm_tensor *w,
                              int64_t N, int64_t K, kr_tensor bias, kr_tensor out) {
  if (!out) out = mamba_lm_new_rows(b, N);
  if (w->dtype == KRAIT_I32 && !w->scales) {
    const kr_tensor qweight = mamba_lm_weight(b, name, w, KR_DIMS(N, K / 256 * 36));
    return kr_graph_call(b->g, name, &kr_op_gemm_q4k,
                         &(krait_gemm_q4k_args){.A = mamba_lm_view(b, rows),
                                                .qweight = mamba_lm_view(b, qweight),
                                                .bias = mamba_lm_view(b, bias),
                                                .out = mamba_lm_view(b, out)});
  }
  const int by_words = reads_8_bits(b, w, rows);
  if (w->scales || by_words) {
    const kr_mamba_lm_tensor bytes = {.data = by_words ? w->qweight : w->data, .dtype = KRAIT_I32};
    char full[96];
    snprintf(full, sizeof full, "%lld.%s.scales", (long long)b->i, name);
    const kr_tensor qweight = mamba_lm_weight(b, name, &bytes, KR_DIMS(N, K / 4)),
                    scales = kr_graph_weight(b->g, full, KRAIT_F16, KR_DIMS(N, K / 32),
                                             by_words ? w->qscales : w->scales);
    return kr_graph_call(b->g, name, &kr_op_gemm_q8,
                         &(krait_gemm_q8_args){.A = mamba_lm_view(b, rows),
                                               .qweight = mamba_lm_view(b, qweight),
                                               .scales = mamba_lm_view(b, scales),
                                               .bias = mamba_lm_view(b, bias),
                                               .out = mamba_lm_view(b, out)});
  }
  const kr_tensor matrix = mamba_lm_weight(b, name, w, KR_DIMS(N, K));
  return kr_graph_call(b->g, name, &kr_op_gemm,
                       &(krait_gemm_args){.A = mamba_lm_view(b, rows),
                                          .Bmat = mamba_lm_view(b, kr_graph_permute(b->g, matrix, (int[]){1, 0})),
                                          .bias = mamba_lm_view(b, bias),
                                          .out = mamba_lm_view(b, out)});
}
#define PROJECT(name, rows, N, K, bias) project_into(b, #name, rows, &b->layer->name, N, K, bias, 0)

static kr_tensor norm_of(const builder *b, const char *name, kr_tensor x, kr_tensor w, kr_tensor bias, float eps) {
  return kr_graph_call(
      b->g, name, &kr_op_add_norm,
      &(krait_add_norm_args){.call.flags = b->c->is_rms || !w ? KRAIT_NORM_RMS : 0,
                             .eps = eps,
                             .x = mamba_lm_view(b, x),
                             .weight = mamba_lm_view(b, w),
                             .bias = mamba_lm_view(b, bias),
                             .out = mamba_lm_view(b, kr_graph_temp(b->g, b->dtype, kr_graph_dims(b->g, x)))});
}

static void copy_mamba_lm(const builder *b, const char *name, kr_tensor from, kr_tensor to) {
  kr_graph_pointwise(b->g, name, (krait_pointwise_args){.x_scale = 1}, from, 0, to);
}

/* ---- shared by the mixers ---- */

/* (R,C) as (1,C,L) of the parallel ops, or (B,C,1) of the step's. */
static kr_tensor mamba_lm_as_channels(const builder *b, kr_tensor rows) {
  const int64_t C = kr_graph_dims(b->g, rows).size[1];
  return b->to->run.is_step
             ? kr_graph_reshape(b->g, rows, KR_DIMS(b->R, C, 1))
             : kr_graph_permute(b->g, kr_graph_reshape(b->g, rows, KR_DIMS(1, b->R, C)), (int[]){0, 2, 1});
}

/* A layer's states in float32: its part of the tensor of all layers, or new ones. */
static kr_tensor layer_states(const builder *b, kr_tensor all, kr_dims dims) {
  return all ? kr_graph_reshape(b->g, kr_graph_slice(b->g, all, 0, b->i, 1), dims)
             : kr_graph_temp(b->g, KRAIT_F32, dims);
}

/* act(conv(x)) as rows of C channels; updates the layer's state. */
static kr_tensor convolve(const builder *b, kr_tensor x, int64_t C, int32_t activation) {
  const int64_t W = kr_mamba_lm_taps(b->c, b->i);
  const kr_tensor out = mamba_lm_new_rows(b, C), state = b->to->conv[b->i],
                  w = mamba_lm_weight(b, "conv", &b->layer->conv, KR_DIMS(C, W)), bias = WEIGHT(conv_bias, C);
  if (b->to->run.is_step) {
    kr_graph_call(b->g, "conv", &kr_op_causal_conv1d_update,
                  &(krait_causal_conv1d_update_args){.activation = activation,
                                                     .x = mamba_lm_view(b, mamba_lm_as_channels(b, x)),
                                                     .conv_state = mamba_lm_view(b, state),
                                                     .weight = mamba_lm_view(b, w),
                                                     .bias = mamba_lm_view(b, bias),
                                                     .conv_state_indices = mamba_lm_view(b, b->to->slots),
                                                     .out = mamba_lm_view(b, mamba_lm_as_channels(b, out))});
    return out;
  }
  const kr_tensor after = layer_states(b, b->new_conv, KR_DIMS(1, C, W - 1));
  kr_graph_call(b->g, "conv", &kr_op_causal_conv1d,
                &(krait_causal_conv1d_args){.activation = activation,
                                            .x = mamba_lm_view(b, mamba_lm_as_channels(b, x)),
                                            .weight = mamba_lm_view(b, w),
                                            .bias = mamba_lm_view(b, bias),
                                            .initial_states = mamba_lm_view(b, state),
                                            .out = mamba_lm_view(b, mamba_lm_as_channels(b, out)),
                                            .final_states = mamba_lm_view(b, after)});
  if (!b->new_conv) copy_mamba_lm(b, "conv_state", after, state);
  return out;
}

/* ---- Mamba-1 ---- */

static void scan_mamba_lm(const builder *b, kr_tensor u, kr_tensor delta, kr_tensor B, kr_tensor C, kr_tensor z,
                          kr_tensor y) {
  const kr_mamba_lm_config *c = b->c;
  const kr_tensor A = WEIGHT(A, c->Di, c->N), D = WEIGHT(D, c->Di), bias = WEIGHT(dt_bias, c->Di),
                  state = b->to->ssm[b->i];
  if (b->to->run.is_step) {
    const kr_dims rows = KR_DIMS(b->R, 1, c->Di), states = KR_DIMS(b->R, 1, c->N), one = KR_DIMS(1, c->Di);
#define AS(t, dims) mamba_lm_view(b, kr_graph_reshape(b->g, t, dims))
    kr_graph_call(b->g, "scan", &kr_op_state_update,
                  &(krait_state_update_args){.call.flags = KRAIT_UPDATE_SOFTPLUS,
                                             .state = mamba_lm_view(b, state),
                                             .x = AS(u, rows),
                                             .dt = AS(delta, rows),
                                             .A = AS(A, KR_DIMS(1, c->Di, c->N)),
                                             .Bmat = AS(B, states),
                                             .Cmat = AS(C, states),
                                             .Dvec = AS(D, one),
                                             .dt_bias = AS(bias, one),
                                             .z = AS(z, rows),
                                             .state_batch_indices = mamba_lm_view(b, b->to->slots),
                                             .out = AS(y, rows)});
    return;
  }
  const kr_dims one_slot = KR_DIMS(1, c->Di, c->N), steps = KR_DIMS(1, b->R, 1, c->N);
  const kr_tensor after = layer_states(b, b->new_ssm, one_slot), stored = kr_graph_reshape(b->g, state, one_slot),
                  before = c->state_dtype == KRAIT_F32 ? stored : layer_states(b, b->old_ssm, one_slot);
  if (before != stored && !b->old_ssm) copy_mamba_lm(b, "ssm_state", stored, before);
  kr_graph_call(
      b->g, "scan", &kr_op_selective_scan,
      &(krait_selective_scan_args){
          .call.flags = KRAIT_SCAN_SOFTPLUS,
          .G = 1,
          .u = mamba_lm_view(b, mamba_lm_as_channels(b, u)),
          .delta = mamba_lm_view(b, mamba_lm_as_channels(b, delta)),
          .A = mamba_lm_view(b, A),
          .Bmat = mamba_lm_view(b, kr_graph_permute(b->g, kr_graph_reshape(b->g, B, steps), (int[]){0, 2, 3, 1})),
          .Cmat = mamba_lm_view(b, kr_graph_permute(b->g, kr_graph_reshape(b->g, C, steps), (int[]){0, 2, 3, 1})),
          .Dvec = mamba_lm_view(b, D),
          .z = mamba_lm_view(b, mamba_lm_as_channels(b, z)),
          .delta_bias = mamba_lm_view(b, bias),
          .initial_state = mamba_lm_view(b, before),
          .out = mamba_lm_view(b, mamba_lm_as_channels(b, y)),
          .last_state = mamba_lm_view(b, after)});
  if (!b->new_ssm) copy_mamba_lm(b, "ssm_state", after, stored);
}

static kr_tensor mix_mamba1(const builder *b, kr_tensor x) {
  const kr_mamba_lm_config *c = b->c;
  const kr_tensor xz = PROJECT(in_proj, x, 2 * c->Di, c->d, WEIGHT(in_proj_bias, 2 * c->Di));
  const kr_tensor u = convolve(b, kr_graph_slice(b->g, xz, 1, 0, c->Di), c->Di, KRAIT_ACT_SILU),
                  y = mamba_lm_new_rows(b, c->Di);
  const kr_tensor columns = PROJECT(x_proj, u, c->R + 2 * c->N, c->Di, 0);
  kr_tensor dt = kr_graph_slice(b->g, columns, 1, 0, c->R), B = kr_graph_slice(b->g, columns, 1, c->R, c->N),
            C = kr_graph_slice(b->g, columns, 1, c->R + c->N, c->N);
  if (c->dt_eps > 0) { /* FalconMamba */
    dt = norm_of(b, "dt_norm", dt, 0, 0, c->dt_eps);
    B = norm_of(b, "B_norm", B, 0, 0, c->dt_eps);
    C = norm_of(b, "C_norm", C, 0, 0, c->dt_eps);
  }
  scan_mamba_lm(b, u, PROJECT(dt_proj, dt, c->Di, c->R, 0), B, C, kr_graph_slice(b->g, xz, 1, c->Di, c->Di), y);
  return PROJECT(out_proj, y, c->d, c->Di, WEIGHT(out_proj_bias, c->d));
}

/* ---- Mamba-2 ---- */

/* A value for each head as (H,P), or (H,P,N). */
static kr_tensor for_heads(const builder *b, kr_tensor t, int with_states) {
  const kr_mamba_lm_config *c = b->c;
  return with_states ? kr_graph_expand(b->g, kr_graph_reshape(b->g, t, KR_DIMS(c->H, 1, 1)), KR_DIMS(c->H, c->P, c->N))
                     : kr_graph_expand(b->g, kr_graph_reshape(b->g, t, KR_DIMS(c->H, 1)), KR_DIMS(c->H, c->P));
}

static void scan_heads(const builder *b, kr_tensor x, kr_tensor dt, kr_tensor B, kr_tensor C, kr_tensor y) {
  const kr_mamba_lm_config *c = b->c;
  const kr_tensor A = WEIGHT(A, c->H), bias = WEIGHT(dt_bias, c->H), state = b->to->ssm[b->i];
  const kr_tensor D = b->layer->D_per_channel ? WEIGHT(D, c->H, c->P) : for_heads(b, WEIGHT(D, c->H), 0);
  if (b->to->run.is_step) {
    const kr_dims heads = KR_DIMS(b->R, c->H, c->P), groups = KR_DIMS(b->R, c->G, c->N);
    kr_graph_call(
        b->g, "scan", &kr_op_state_update,
        &(krait_state_update_args){
            .call.flags = KRAIT_UPDATE_SOFTPLUS,
            .state = mamba_lm_view(b, state),
            .x = AS(x, heads),
            .dt = mamba_lm_view(b, kr_graph_expand(b->g, kr_graph_reshape(b->g, dt, KR_DIMS(b->R, c->H, 1)), heads)),
            .A = mamba_lm_view(b, for_heads(b, A, 1)),
            .Bmat = AS(B, groups),
            .Cmat = AS(C, groups),
            .Dvec = mamba_lm_view(b, D),
            .dt_bias = mamba_lm_view(b, for_heads(b, bias, 0)),
            .state_batch_indices = mamba_lm_view(b, b->to->slots),
            .out = AS(y, heads)});
    return;
  }
  const kr_tensor after = layer_states(b, b->new_ssm, KR_DIMS(1, c->H, c->P, c->N));
  kr_graph_call(b->g, "scan", &kr_op_ssd,
                &(krait_ssd_args){.call.flags = KRAIT_SSD_SOFTPLUS,
                                  .x = AS(x, KR_DIMS(1, b->R, c->H, c->P)),
                                  .dt = AS(dt, KR_DIMS(1, b->R, c->H)),
                                  .A = mamba_lm_view(b, A),
                                  .Bmat = AS(B, KR_DIMS(1, b->R, c->G, c->N)),
                                  .Cmat = AS(C, KR_DIMS(1, b->R, c->G, c->N)),
                                  .Dvec = mamba_lm_view(b, D),
                                  .dt_bias = mamba_lm_view(b, bias),
                                  .initial_states = mamba_lm_view(b, state),
                                  .out = AS(y, KR_DIMS(1, b->R, c->H, c->P)),
                                  .final_states = mamba_lm_view(b, after)});
  if (!b->new_ssm) copy_mamba_lm(b, "ssm_state", after, state);
}

/* Columns [from, from + n) of the product with a weight, at their position in the whole product. */
static void project_rows(const builder *b, const char *name, kr_tensor rows, kr_tensor w, int64_t from, int64_t n,
                         kr_tensor bias, kr_tensor all) {
  const kr_tensor part = kr_graph_permute(b->g, kr_graph_slice(b->g, w, 0, from, n), (int[]){1, 0}),
                  own_bias = bias ? kr_graph_slice(b->g, bias, 0, from, n) : 0;
  kr_graph_call(b->g, name, &kr_op_gemm,
                &(krait_gemm_args){.A = mamba_lm_view(b, rows),
                                   .Bmat = mamba_lm_view(b, part),
                                   .bias = mamba_lm_view(b, own_bias),
                                   .out = mamba_lm_view(b, kr_graph_slice(b->g, all, 1, from, n))});
}

static kr_tensor mix_mamba2(const builder *b, kr_tensor x) {
  const kr_mamba_lm_config *c = b->c;
  const int64_t GN = c->G * c->N, C = c->Di + 2 * GN;
  const int64_t n_rows = c->Di + C + c->H;
  const kr_tensor all = kr_graph_slice(b->g, mamba_lm_new_rows(b, (n_rows + 63) / 64 * 64), 1, 0, n_rows),
                  bias = WEIGHT(in_proj_bias, n_rows); /* rows start at cache lines */
  if (b->to->run.is_step || b->layer->in_proj.dtype == KRAIT_I32) {
    project_into(b, "in_proj", x, &b->layer->in_proj, n_rows, c->d, bias, all);
  } else { /* dt separately: its few columns would need their own tile, which tensor copies store slowly */
    const kr_tensor w = WEIGHT(in_proj, n_rows, c->d);
    project_rows(b, "in_proj", x, w, 0, n_rows - c->H, bias, all);
    project_rows(b, "in_proj_dt", x, w, n_rows - c->H, c->H, bias, all);
  }
  const kr_tensor xBC = convolve(b, kr_graph_slice(b->g, all, 1, c->Di, C), C, KRAIT_ACT_SILU),
                  y = mamba_lm_new_rows(b, c->Di), gated = mamba_lm_new_rows(b, c->Di);
  scan_heads(b, kr_graph_slice(b->g, xBC, 1, 0, c->Di), kr_graph_slice(b->g, all, 1, c->Di + C, c->H),
             kr_graph_slice(b->g, xBC, 1, c->Di, GN), kr_graph_slice(b->g, xBC, 1, c->Di + GN, GN), y);
  kr_graph_call(b->g, "gate_norm", &kr_op_gated_norm,
                &(krait_gated_norm_args){.call.flags = KRAIT_GATED_NORM_RMS | KRAIT_GATED_NORM_GATE_FIRST,
                                         .group_size = c->Di / c->G,
                                         .eps = 1e-5f,
                                         .x = mamba_lm_view(b, y),
                                         .z = mamba_lm_view(b, kr_graph_slice(b->g, all, 1, 0, c->Di)),
                                         .weight = mamba_lm_view(b, WEIGHT(gate_norm, c->Di)),
                                         .out = mamba_lm_view(b, gated)});
  return PROJECT(out_proj, gated, c->d, c->Di, WEIGHT(out_proj_bias, c->d));
}

/* ---- attention ---- */

/* Columns of rows as heads: (B,L,H,D), where B or L is 1. */
static kr_tensor mamba_lm_as_heads(const builder *b, kr_tensor rows, int64_t from, int64_t H) {
  const kr_mamba_lm_run *run = &b->to->run;
  const int64_t D = b->c->attention.D;
  return kr_graph_reshape(b->g, kr_graph_slice(b->g, rows, 1, from * D, H * D), KR_DIMS(run->B, run->L, H, D));
}

static kr_tensor mamba_lm_attend(const builder *b, kr_tensor x) {
  const kr_mamba_lm_config *c = b->c;
  const kr_mamba_lm_attention *a = &c->attention;
  const kr_mamba_lm_run *run = &b->to->run;
  const int64_t C = kr_mamba_lm_channels(c, b->i);
  kr_tensor qkv = PROJECT(in_proj, x, C, c->d, WEIGHT(in_proj_bias, C));
  if (a->W) qkv = convolve(b, qkv, C, KRAIT_ACT_NONE);
  kr_tensor q = mamba_lm_as_heads(b, qkv, 0, a->H);
  const kr_tensor y = mamba_lm_new_rows(b, a->H * a->D), used = kr_graph_temp(b->g, KRAIT_I32, KR_DIMS(run->B)),
                  cos = b->to->cos, sin = b->to->sin, keys = b->to->keys[b->i], values = b->to->values[b->i];
  if (a->R) {
    const kr_tensor turned = kr_graph_temp(b->g, b->dtype, KR_DIMS(run->B, run->L, a->H, a->D));
    kr_graph_call(b->g, "rotary", &kr_op_rotary,
                  &(krait_rotary_args){.call.flags = a->is_interleaved ? KRAIT_ROTARY_INTERLEAVED : 0,
                                       .x = mamba_lm_view(b, q),
                                       .cos = mamba_lm_view(b, cos),
                                       .sin = mamba_lm_view(b, sin),
                                       .offsets = mamba_lm_view(b, b->to->lengths),
                                       .out = mamba_lm_view(b, turned)});
    q = turned;
  }
  kr_graph_call(b->g, "append", &kr_op_attention_append,
                &(krait_attention_append_args){.call.flags = a->is_interleaved ? KRAIT_ROTARY_INTERLEAVED : 0,
                                               .k = mamba_lm_view(b, mamba_lm_as_heads(b, qkv, a->H, a->Hk)),
                                               .v = mamba_lm_view(b, mamba_lm_as_heads(b, qkv, a->H + a->Hk, a->Hk)),
                                               .cos = mamba_lm_view(b, a->R ? cos : 0),
                                               .sin = mamba_lm_view(b, a->R ? sin : 0),
                                               .cache_seqlens = mamba_lm_view(b, b->to->lengths),
                                               .cache_batch_idx = mamba_lm_view(b, b->to->slots),
                                               .k_cache = mamba_lm_view(b, keys),
                                               .v_cache = mamba_lm_view(b, values),
                                               .seqused = mamba_lm_view(b, used)});
  kr_graph_call(
      b->g, "attention", &kr_op_attention,
      &(krait_attention_args){.call.flags = KRAIT_ATTENTION_CAUSAL,
                              .scale = a->scale,
                              .q = mamba_lm_view(b, q),
                              .k = mamba_lm_view(b, keys),
                              .v = mamba_lm_view(b, values),
                              .seqused_k = mamba_lm_view(b, used),
                              .cache_batch_idx = mamba_lm_view(b, b->to->slots),
                              .out = mamba_lm_view(b, kr_graph_reshape(b->g, y, KR_DIMS(run->B, run->L, a->H, a->D)))});
  return PROJECT(out_proj, y, c->d, a->H * a->D, WEIGHT(out_proj_bias, c->d));
}

/* ---- all layers of a step as one call ---- */

enum { AS_DATA, AS_WORDS, AS_SCALES };

static const void *part_of(const kr_mamba_lm_tensor *t, int which) {
  return which == AS_WORDS ? t->qweight : which == AS_SCALES ? t->qscales : t->scales ? NULL : t->data;
}

/* Tensors of one kind as (layers, ...): their addresses must be equally spaced. dims: of one layer. Absent if a layer's
 * is. */
static krait_view layered(const kr_mamba_lm_weights *w, int64_t n_layers, size_t offset, int which, kr_dims dims,
                          int *fits) {
  const kr_mamba_lm_tensor *first = (const kr_mamba_lm_tensor *)((const char *)&w->layers[0] + offset);
  const int32_t dtype = which == AS_WORDS ? KRAIT_I32 : which == AS_SCALES ? KRAIT_F16 : first->dtype;
  const char *start = part_of(first, which);
  const int64_t bytes = (int64_t)krait_dtype_bytes(dtype), elements = dims.size[0] * (dims.n > 1 ? dims.size[1] : 1);
  int64_t distance = elements * bytes;
  for (int64_t i = 0; i < n_layers; i++) {
    const kr_mamba_lm_tensor *t = (const kr_mamba_lm_tensor *)((const char *)&w->layers[i] + offset);
    const char *at = part_of(t, which);
    if (i == 1 && at && start) distance = at - start;
    *fits = *fits && !at == !start && t->dtype == first->dtype && (!at || at - start == i * distance);
  }
  if (!start) return (krait_view){0};
  *fits = *fits && distance > 0 && distance % bytes == 0;
  return (krait_view){
      .data = (void *)start, .dtype = dtype, .stride = {distance / bytes, dims.n > 1 ? dims.size[1] : 1, 1}};
}

/* States of all layers and slots, as laid out by mamba_lm.c; only strides and type are used. */
static krait_view layered_states(const kr_mamba_lm_config *c, int32_t dtype, int64_t n_slots, int64_t rows,
                                 int64_t columns) {
  static float aligned[4] __attribute__((aligned(256)));
  const int64_t bytes = (int64_t)krait_dtype_bytes(dtype),
                slot = kr_mamba_lm_channels(c, 0) * (c->W - 1) * (int64_t)sizeof(float) +
                       c->Di * c->N * (int64_t)krait_dtype_bytes(c->state_dtype);
  return (krait_view){.data = aligned, .dtype = dtype, .stride = {n_slots * slot / bytes, rows * columns, columns, 1}};
}

static int is_uniform(const kr_mamba_lm_config *c, const kr_mamba_lm_weights *w) {
  int plain = !c->attention.n && !c->F && c->dt_eps == 0 && c->is_rms;
  for (int64_t i = 0; i < c->n_layers; i++) {
    const kr_mamba_lm_layer *l = &w->layers[i];
    plain = plain && (l->in_proj.dtype != KRAIT_I32 || l->in_proj.scales) &&
            (l->out_proj.dtype != KRAIT_I32 || l->out_proj.scales) && !l->norm_bias.data && !l->in_proj_bias.data &&
            !l->out_proj_bias.data && !l->D_per_channel;
  }
  return plain;
}

/* The products' weights in 8 bits instead of 16. */
static void describe_words(const kr_mamba_lm_config *c, const kr_mamba_lm_weights *w, int64_t rows,
                           krait_mamba_decode_args *a, int *fits) {
  const int64_t columns = c->R + 2 * c->N;
#define OF_Q8(name, which, n, k) layered(w, c->n_layers, offsetof(kr_mamba_lm_layer, name), which, KR_DIMS(n, k), fits)
  *fits = *fits && c->d % 32 == 0 && c->Di % 32 == 0;
  a->SD = c->d / 32, a->SE = c->Di / 32;
  a->in_proj_qweight = OF_Q8(in_proj, AS_WORDS, rows, c->d / 4),
  a->in_proj_scales = OF_Q8(in_proj, AS_SCALES, rows, c->d / 32);
  a->x_proj_qweight = OF_Q8(x_proj, AS_WORDS, columns, c->Di / 4),
  a->x_proj_scales = OF_Q8(x_proj, AS_SCALES, columns, c->Di / 32);
  a->out_proj_qweight = OF_Q8(out_proj, AS_WORDS, c->d, c->Di / 4),
  a->out_proj_scales = OF_Q8(out_proj, AS_SCALES, c->d, c->Di / 32);
  *fits = *fits && a->out_proj_qweight.data && !a->x_proj_qweight.data == !a->x_proj.data;
  a->in_proj = a->x_proj = a->out_proj = (krait_view){0};
}

/* The call, with addresses if known. 0: the layers are not of its kind. */
static int describe_decode(const kr_mamba_lm_config *c, const kr_mamba_lm_weights *w, int64_t B, int64_t n_slots,
                           krait_mamba_decode_args *a) {
  static float aligned[4] __attribute__((aligned(256)));
  const int64_t C = kr_mamba_lm_channels(c, 0), is_first = c->mixer == KR_MIXER_MAMBA1,
                rows = is_first ? 2 * c->Di : c->Di + C + c->H;
  int fits = is_uniform(c, w) && (c->state_dtype == KRAIT_F32 || n_slots * c->Di * c->N % 2 == 0);
  if (!fits) return 0;
#define LAYERED(name, ...) \
  layered(w, c->n_layers, offsetof(kr_mamba_lm_layer, name), AS_DATA, KR_DIMS(__VA_ARGS__), &fits)
  *a = (krait_mamba_decode_args){.B = B,
                                 .Y = c->n_layers,
                                 .D = c->d,
                                 .E = c->Di,
                                 .N = c->N,
                                 .W = c->W,
                                 .R = is_first ? c->R : 0,
                                 .H = c->H,
                                 .G = c->G,
                                 .n_states = n_slots,
                                 .eps = c->eps,
                                 .x = {.data = aligned, .dtype = w->dtype, .stride = {c->d, 1}},
                                 .norm_weight = LAYERED(norm, c->d),
                                 .in_proj = LAYERED(in_proj, rows, c->d),
                                 .conv_weight = LAYERED(conv, C, c->W),
                                 .conv_bias = LAYERED(conv_bias, C),
                                 .x_proj = LAYERED(x_proj, c->R + 2 * c->N, c->Di),
                                 .dt_proj = LAYERED(dt_proj, c->Di, c->R),
                                 .dt_bias = LAYERED(dt_bias, is_first ? c->Di : c->H),
                                 .Dvec = LAYERED(D, is_first ? c->Di : c->H),
                                 .gate_norm = LAYERED(gate_norm, c->Di),
                                 .out_proj = LAYERED(out_proj, c->d, c->Di),
                                 .conv_state = layered_states(c, KRAIT_F32, n_slots, C, c->W - 1),
                                 .ssm_state = layered_states(c, c->state_dtype, n_slots, c->Di, c->N),
                                 .state_batch_indices = {.data = aligned, .dtype = KRAIT_I32, .stride = {1}},
                                 .out = {.data = aligned, .dtype = KRAIT_F32, .stride = {c->d, 1}}};
  a->A = is_first ? LAYERED(A, c->Di, c->N) : LAYERED(A, c->H);
  if (w->layers[0].in_proj.qweight) describe_words(c, w, rows, a, &fits);
  return fits && a->in_proj.data != a->in_proj_qweight.data; /* one of them */
}

/* One launch of all layers is faster than separate calls if kernels wait for the previous one to end, or if weights of
 * 8 bits meet more sequences than calls read them for; for few sequences, because a phase processes them one after
 * another between two barriers. If kernels start before the previous one has ended it is slower (H200, ms per step:
 * 130m 0.40 against 0.30, 2.8b 2.39 against 2.12), but for wide layers by Hopper's row, which streams their weights
 * (2.8b 1.37 against 1.79, with q8_0 1.10 against 1.39; 2.7b 1.48 against 1.82, with q8_0 1.14 against 1.58). */
enum { MOST_TOGETHER = 4 };

static int is_quicker_whole(const krait_ctx *ctx, const kr_mamba_lm_weights *w, const kr_impl *impl, int64_t B) {
  if (impl->needs & KRAIT_CAP_CPU || B > MOST_TOGETHER) return 0;
  return impl->needs & KRAIT_CAP_CUDA_HOPPER || (w->layers[0].in_proj.qweight && B > MOST_BY_QWEIGHT) ||
         !kr_cuda_has_pdl(ctx->cuda);
}

static int takes_whole(const krait_ctx *ctx, const kr_mamba_lm_config *c, const kr_mamba_lm_weights *w,
                       const kr_mamba_lm_run *run, int64_t n_slots, krait_mamba_decode_args *a) {
  int32_t status = KRAIT_OK;
  if (!run->is_step || run->apart || !describe_decode(c, w, run->B, n_slots, a)) return 0;
  if (run->whole) return 1;
  const kr_impl *impl = ctx->cuda ? kr_op_resolve(&kr_op_mamba_decode, ctx, a, &status) : NULL;
  return impl && is_quicker_whole(ctx, w, impl, run->B);
}

static krait_view stacked(const builder *b, const char *name, const krait_view *v, kr_dims dims) {
  return v->data ? mamba_lm_view(b, kr_graph_input_like(b->g, name, v, dims)) : (krait_view){0};
}

/* x: rows of the embedding; returns the residual stream after all layers. */
static kr_tensor record_whole(const builder *b, const krait_mamba_decode_args *of, int64_t n_slots, kr_tensor x) {
  const kr_mamba_lm_config *c = b->c;
  const int64_t Y = c->n_layers, C = kr_mamba_lm_channels(c, 0), is_first = c->mixer == KR_MIXER_MAMBA1,
                rows = is_first ? 2 * c->Di : c->Di + C + c->H;
  krait_mamba_decode_args a = *of;
  krait_view conv = of->conv_state, ssm = of->ssm_state;
  conv.data = ssm.data = NULL;
  const kr_tensor out = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(b->R, c->d));
  b->to->all_conv = kr_graph_output_like(b->g, "conv", &conv, KR_DIMS(Y, n_slots, C, c->W - 1));
  b->to->all_ssm = kr_graph_output_like(b->g, "ssm", &ssm, KR_DIMS(Y, n_slots, c->Di, c->N));
#define STACKED(field, ...) a.field = stacked(b, #field, &of->field, KR_DIMS(Y, __VA_ARGS__))
  STACKED(norm_weight, c->d), STACKED(in_proj, rows, c->d), STACKED(conv_weight, C, c->W), STACKED(conv_bias, C),
      STACKED(x_proj, c->R + 2 * c->N, c->Di), STACKED(dt_proj, c->Di, c->R);
  STACKED(dt_bias, is_first ? c->Di : c->H), STACKED(Dvec, is_first ? c->Di : c->H), STACKED(gate_norm, c->Di),
      STACKED(out_proj, c->d, c->Di);
  STACKED(in_proj_qweight, rows, c->d / 4), STACKED(x_proj_qweight, c->R + 2 * c->N, c->Di / 4),
      STACKED(out_proj_qweight, c->d, c->Di / 4);
  STACKED(in_proj_scales, rows, c->d / 32), STACKED(x_proj_scales, c->R + 2 * c->N, c->Di / 32),
      STACKED(out_proj_scales, c->d, c->Di / 32);
  if (is_first) STACKED(A, c->Di, c->N);
  else STACKED(A, c->H);
  a.x = mamba_lm_view(b, x), a.state_batch_indices = mamba_lm_view(b, b->to->slots),
  a.conv_state = mamba_lm_view(b, b->to->all_conv), a.ssm_state = mamba_lm_view(b, b->to->all_ssm),
  a.out = mamba_lm_view(b, out);
  kr_graph_call(b->g, "layers", &kr_op_mamba_decode, &a);
  return out;
}

/* ---- the whole ---- */

/* The residual stream is float32; adds h, and returns its norm. The first h starts the stream. */
static kr_tensor add_mamba_lm_norm(const builder *b, const char *name, kr_tensor h, kr_tensor *stream, kr_tensor w,
                          kr_tensor bias) {
  const kr_tensor sum = kr_graph_temp(b->g, KRAIT_F32, kr_graph_dims(b->g, h));
  const kr_tensor out = kr_graph_temp(b->g, b->dtype, kr_graph_dims(b->g, h));
  kr_graph_call(b->g, name, &kr_op_add_norm,
                &(krait_add_norm_args){.call.flags = b->c->is_rms ? KRAIT_NORM_RMS : 0,
                                       .eps = b->c->eps,
                                       .x = mamba_lm_view(b, h),
                                       .residual = mamba_lm_view(b, *stream),
                                       .weight = mamba_lm_view(b, w),
                                       .bias = mamba_lm_view(b, bias),
                                       .out = mamba_lm_view(b, out),
                                       .residual_out = mamba_lm_view(b, sum)});
  *stream = sum;
  return out;
}

/* fc2 (a silu(b)), where fc1 outputs a, then b. */
static kr_tensor feed_forward_mamba_lm(const builder *b, kr_tensor x) {
  const int64_t F = b->c->F;
  const kr_tensor w = WEIGHT(fc1, 2 * F, b->c->d), bias = WEIGHT(fc1_bias, 2 * F), hidden = mamba_lm_new_rows(b, F);
#define HALF(i) mamba_lm_view(b, kr_graph_permute(b->g, kr_graph_slice(b->g, w, 0, (i) * F, F), (int[]){1, 0}))
#define HALF_BIAS(i) mamba_lm_view(b, bias ? kr_graph_slice(b->g, bias, 0, (i) * F, F) : 0)
  kr_graph_call(b->g, "fc1", &kr_op_gemm,
                &(krait_gemm_args){.activation = KRAIT_ACT_SILU,
                                   .A = mamba_lm_view(b, x),
                                   .Bmat = HALF(1),
                                   .B2 = HALF(0),
                                   .bias = HALF_BIAS(1),
                                   .bias2 = HALF_BIAS(0),
                                   .out = mamba_lm_view(b, hidden)});
  return PROJECT(fc2, hidden, b->c->d, F, WEIGHT(fc2_bias, b->c->d));
}

static kr_tensor record_layers(builder *b, const kr_mamba_lm_weights *w, kr_tensor h, kr_tensor *stream) {
  const kr_mamba_lm_config *c = b->c;
  for (b->i = 0; b->i < c->n_layers; b->i++) {
    b->layer = &w->layers[b->i];
    const kr_tensor x = add_mamba_lm_norm(b, "norm", h, stream, WEIGHT(norm, c->d), WEIGHT(norm_bias, c->d));
    h = (c->attention.layers[b->i] ? mamba_lm_attend : c->mixer == KR_MIXER_MAMBA1 ? mix_mamba1 : mix_mamba2)(b, x);
    if (c->F)
      h = feed_forward_mamba_lm(
          b, add_mamba_lm_norm(b, "norm2", h, stream, WEIGHT(norm2, c->d), WEIGHT(norm2_bias, c->d)));
  }
  return h;
}

static kr_tensor state(const builder *b, const char *kind, int64_t i, int32_t dtype, kr_dims dims) {
  char name[32];
  snprintf(name, sizeof name, "%s.%lld", kind, (long long)i);
  return kr_graph_output(b->g, name, dtype, dims);
}

/* All layers' states of one slot, if all layers are of one kind. */
static void record_layered_states(builder *b, int64_t n_slots) {
  const kr_mamba_lm_config *c = b->c;
  const int64_t Y = c->n_layers, C = kr_mamba_lm_channels(c, 0), W = c->W;
  krait_view conv = layered_states(c, KRAIT_F32, n_slots, C, W - 1),
             ssm = layered_states(c, c->state_dtype, n_slots, c->Di, c->N);
  kr_mamba_lm_graph *to = b->to;
  conv.data = ssm.data = NULL; /* bound later */
  to->all_conv = kr_graph_output_like(b->g, "conv", &conv, KR_DIMS(Y, 1, C, W - 1));
  to->all_ssm = kr_graph_output_like(b->g, "ssm", &ssm, KR_DIMS(Y, 1, c->Di, c->N));
  b->new_conv = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(Y, 1, C, W - 1));
  b->new_ssm = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(Y, 1, c->Di, c->N));
  for (int64_t i = 0; i < Y; i++) {
    to->conv[i] = kr_graph_reshape(b->g, kr_graph_slice(b->g, to->all_conv, 0, i, 1), KR_DIMS(1, C, W - 1));
    to->ssm[i] = kr_graph_reshape(b->g, kr_graph_slice(b->g, to->all_ssm, 0, i, 1), KR_DIMS(1, c->H, c->P, c->N));
  }
  if (c->mixer != KR_MIXER_MAMBA1 || c->state_dtype == KRAIT_F32) return;
  b->old_ssm = kr_graph_temp(b->g, KRAIT_F32, KR_DIMS(Y, 1, c->Di, c->N));
  copy_mamba_lm(b, "ssm_state", to->all_ssm, b->old_ssm);
}

/* The persistent tensors: of all slots for steps, otherwise of one. */
static void record_states(const builder *b, int64_t n_slots, int64_t capacity) {
  const kr_mamba_lm_config *c = b->c;
  const kr_mamba_lm_attention *a = &c->attention;
  kr_mamba_lm_graph *to = b->to;
  const int64_t n = to->run.is_step ? n_slots : 1;
  for (int64_t i = 0; i < c->n_layers; i++) {
    if (kr_mamba_lm_taps(c, i))
      to->conv[i] = state(b, "conv", i, KRAIT_F32, KR_DIMS(n, kr_mamba_lm_channels(c, i), kr_mamba_lm_taps(c, i) - 1));
    if (!a->layers[i]) to->ssm[i] = state(b, "ssm", i, c->state_dtype, KR_DIMS(n, c->H, c->P, c->N));
    if (a->layers[i])
      to->keys[i] = state(b, "keys", i, b->dtype, KR_DIMS(n, capacity, a->Hk, a->D)),
      to->values[i] = state(b, "values", i, b->dtype, KR_DIMS(n, capacity, a->Hk, a->D));
  }
  if (a->n) to->lengths = kr_graph_input(b->g, "lengths", KRAIT_I32, KR_DIMS(to->run.B));
  if (a->R)
    to->cos = kr_graph_input(b->g, "cos", KRAIT_F32, KR_DIMS(capacity, a->R)),
    to->sin = kr_graph_input(b->g, "sin", KRAIT_F32, KR_DIMS(capacity, a->R));
}

static void record_mamba_lm(builder *b, const krait_ctx *ctx, const kr_mamba_lm_weights *w, int64_t n_slots,
                            int64_t capacity) {
  const kr_mamba_lm_config *c = b->c;
  kr_mamba_lm_graph *to = b->to;
  kr_tensor stream = 0;
  krait_mamba_decode_args decode;
  const int is_whole = takes_whole(ctx, c, w, &to->run, n_slots, &decode);
  to->ids = kr_graph_input(b->g, "ids", KRAIT_I32, KR_DIMS(b->R));
  if (to->run.is_step) to->slots = kr_graph_input(b->g, "slots", KRAIT_I32, KR_DIMS(b->R));
  if (!to->run.is_step && !c->attention.n) record_layered_states(b, n_slots);
  else if (!is_whole) record_states(b, n_slots, capacity);
  const kr_tensor table =
                      kr_graph_weight(b->g, "embedding", w->embedding.dtype, KR_DIMS(c->V, c->d), w->embedding.data),
                  x = mamba_lm_new_rows(b, c->d);
  kr_graph_call(b->g, "embedding", &kr_op_gather_rows,
                &(krait_gather_rows_args){
                    .table = mamba_lm_view(b, table), .index = mamba_lm_view(b, to->ids), .out = mamba_lm_view(b, x)});
  kr_tensor h = is_whole ? record_whole(b, &decode, n_slots, x) : record_layers(b, w, x, &stream);
  if (b->new_conv) copy_mamba_lm(b, "conv_state", b->new_conv, to->all_conv);
  if (b->new_ssm) copy_mamba_lm(b, "ssm_state", b->new_ssm, to->all_ssm);
  if (!to->run.is_step && !to->run.all) { /* of the last token */
    h = kr_graph_slice(b->g, h, 0, b->R - 1, 1);
    stream = kr_graph_slice(b->g, stream, 0, b->R - 1, 1);
    b->R = 1;
  }
  const kr_mamba_lm_layer last = {.norm = w->norm_f, .norm_bias = w->norm_f_bias};
  b->layer = &last;
  const kr_tensor last_x =
      is_whole ? norm_of(b, "norm_f", h, WEIGHT(norm, c->d), 0, c->eps)
               : add_mamba_lm_norm(b, "norm_f", h, &stream, WEIGHT(norm, c->d), WEIGHT(norm_bias, c->d));
  to->logits = kr_graph_output(b->g, "logits", KRAIT_F32, KR_DIMS(b->R, c->V));
  project_into(b, "head", last_x, &w->head, c->V, c->d, 0, to->logits);
  if (!to->run.is_step) return;
  to->argmax = kr_graph_output(b->g, "best", KRAIT_I32, KR_DIMS(b->R));
  kr_graph_call(b->g, "best", &kr_op_argmax_rows,
                &(krait_argmax_rows_args){.x = mamba_lm_view(b, kr_graph_slice(b->g, to->logits, 1, 0, c->n_used)),
                                          .out = mamba_lm_view(b, to->argmax)});
}

int32_t kr_mamba_lm_graph_open(const krait_ctx *ctx, const kr_mamba_lm_config *c, const kr_mamba_lm_weights *w,
                               const kr_mamba_lm_run *run, int64_t n_slots, int64_t capacity, kr_mamba_lm_graph *to) {
  *to = (kr_mamba_lm_graph){.run = *run, .conv = kr_alloc_array(4 * (size_t)c->n_layers, sizeof *to->conv)};
  if (to->conv) to->ssm = to->conv + c->n_layers, to->keys = to->ssm + c->n_layers, to->values = to->keys + c->n_layers;
  int32_t status = to->conv ? kr_graph_open(&to->g) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a graph");
  builder b = {.g = to->g, .ctx = ctx, .c = c, .dtype = w->dtype, .R = run->B * run->L, .to = to};
  if (status >= 0) record_mamba_lm(&b, ctx, w, n_slots, capacity);
  if (status >= 0) status = kr_graph_plan(to->g, ctx, 0);
  if (status >= 0) status = kr_runner_open(to->g, &to->runner);
  if (status < 0) kr_mamba_lm_graph_close(to);
  return status;
}

void kr_mamba_lm_graph_close(kr_mamba_lm_graph *graph) {
  kr_runner_close(&graph->runner);
  kr_graph_close(&graph->g);
  kr_free(graph->conv);
  *graph = (kr_mamba_lm_graph){0};
}

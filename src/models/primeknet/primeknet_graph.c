/* primeknet_graph.c: PrimeKnet as calls of a graph. Biases in front of a norm that measures are left out: they cancel
 * in it, and so do their gradients. */
#include "primeknet_graph.h"

#include <krait/blocks.h>
#include <stdio.h>
#include <string.h>

#include "mamba_block.h"
#include "op_list.h"
#include "primeknet_parameters.h"
#include "primeknet_weights.h"

enum { MAX_PREFIX = 96 };

typedef struct maker {
  kr_graph *g;
  const kr_pk_config *c;
  kr_pk_parameter_fn *parameter;
  void *user;
  const kr_pk_graph *io;
  int64_t B, T;
  int32_t dtype,
      rows_dtype; /* of parameters and spectra; of what lies between the operators of encoder, blocks and decoders */
  int one_sided; /* filters of this part see no later position; so their keys say */
  int is_piece;  /* of the map, that stays in the cache */
} maker;

/* ---- parameters: each scope of the table becomes a struct of tensors and its reader; `number` is what '#' stands for
 * ---- */

static kr_tensor take(const maker *m, const char *prefix, const char *key, int64_t number, kr_dims dims) {
  char name[KR_PK_MAX_NAME];
  return m->parameter(m->user, m->g, pk_key(name, prefix, key, m->one_sided, number), dims);
}

#define FIELD(field, key, ...) kr_tensor field;
#define READ(field, key, ...) p.field = take(m, prefix, key, number, KR_DIMS(__VA_ARGS__));

typedef struct pk_encoder_p { KR_PK_ENCODER_KEYS(FIELD) } pk_encoder_p;
typedef struct pk_dense_p { KR_PK_DENSE_KEYS(FIELD) } pk_dense_p;
typedef struct pk_block_p { KR_PK_BLOCK_KEYS(FIELD) } pk_block_p;
typedef struct pk_attention_p { KR_PK_ATTENTION_KEYS(FIELD) } pk_attention_p;
typedef struct pk_moving_p { KR_PK_MOVING_KEYS(FIELD) } pk_moving_p;
typedef struct pk_running_p { KR_PK_RUNNING_KEYS(FIELD) } pk_running_p;
typedef struct pk_wrap_p { KR_PK_WRAP_KEYS(FIELD) } pk_wrap_p;
typedef struct pk_mamba_p { KR_PK_MAMBA_KEYS(FIELD) } pk_mamba_p;
typedef struct pk_recurrent_p { KR_PK_RECURRENT_KEYS(FIELD) } pk_recurrent_p;
typedef struct pk_prime_p { KR_PK_PRIME_KEYS(FIELD) } pk_prime_p;
typedef struct pk_mask_p { KR_PK_MASK_KEYS(FIELD) } pk_mask_p;
typedef struct pk_phase_p { KR_PK_PHASE_KEYS(FIELD) } pk_phase_p;

/* ---- small words ---- */

static krait_view view(const maker *m, kr_tensor t) { return kr_graph_view(m->g, t); }
static kr_tensor reshape(const maker *m, kr_tensor t, kr_dims dims) { return kr_graph_reshape(m->g, t, dims); }
static kr_tensor new_tensor(const maker *m, kr_dims dims) { return kr_graph_temp(m->g, m->dtype, dims); }
static kr_tensor new_rows(const maker *m, kr_dims dims) { return kr_graph_temp(m->g, m->rows_dtype, dims); }
/* (B,F,T,C) as (B,T,F,C), and back. */
static kr_tensor framewise(const maker *m, kr_tensor x) { return kr_graph_permute(m->g, x, (int[]){0, 2, 1, 3}); }
/* A map that lies frame by frame. */
static kr_tensor new_frames(const maker *m, int64_t F, int64_t C) {
  return framewise(m, new_rows(m, KR_DIMS(m->B, m->T, F, C)));
}
/* A parameter that there was no memory for has no type; the graph fails behind it. */
static int32_t type_of(const maker *m, kr_tensor x) { return x ? kr_graph_dtype(m->g, x) : m->dtype; }
static kr_tensor new_like(const maker *m, kr_tensor x) {
  return kr_graph_temp(m->g, type_of(m, x), kr_graph_dims(m->g, x));
}
static kr_tensor columns(const maker *m, kr_tensor rows, int64_t from, int64_t n) {
  return kr_graph_slice(m->g, rows, 1, from, n);
}
static kr_tensor turned(const maker *m, kr_tensor t) { return kr_graph_permute(m->g, t, (int[]){1, 0}); }

static void copy(const maker *m, const char *name, kr_tensor from, kr_tensor to) {
  kr_graph_pointwise(m->g, name, (krait_pointwise_args){.x_scale = 1}, from, 0, to);
}

/* In another type, if it has not that already. */
static kr_tensor cast(const maker *m, const char *name, kr_tensor x, int32_t dtype) {
  if (!x || kr_graph_dtype(m->g, x) == dtype) return x;
  const kr_tensor out = kr_graph_temp(m->g, dtype, kr_graph_dims(m->g, x));
  copy(m, name, x, out);
  return out;
}

/* A weight as products of these rows take it; its gradient stays as it is. */
static kr_tensor factor_for(const maker *m, kr_tensor rows, kr_tensor weight) {
  if (!weight || type_of(m, rows) == kr_graph_dtype(m->g, weight)) return weight;
  const kr_tensor factor = cast(m, "factor", weight, type_of(m, rows));
  kr_graph_wide_gradient(m->g, factor);
  return factor;
}

static kr_tensor add(const maker *m, const char *name, kr_tensor x, kr_tensor y) {
  const kr_tensor out = new_like(m, x);
  kr_graph_pointwise(m->g, name, (krait_pointwise_args){.x_scale = 1, .y_scale = 1}, x, y, out);
  return out;
}

/* out, or a new tensor like x. */
static kr_tensor multiply_into(const maker *m, const char *name, kr_tensor x, kr_tensor y, kr_tensor out) {
  if (!out) out = new_like(m, x);
  kr_graph_pointwise(m->g, name, (krait_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .x_scale = 1}, x, y,
                     out);
  return out;
}
static kr_tensor multiply(const maker *m, const char *name, kr_tensor x, kr_tensor y) {
  return multiply_into(m, name, x, y, 0);
}

/* A vector beside every row. */
static kr_tensor beside(const maker *m, kr_tensor v, int64_t rows) {
  const kr_dims d = kr_graph_dims(m->g, v);
  int64_t n = 1;
  for (int i = 0; i < d.n; i++) n *= d.size[i];
  return kr_graph_spread(m->g, reshape(m, v, KR_DIMS(1, n)), KR_DIMS(rows, n));
}

/* rows times a weight (outputs, inputs), plus bias, plus residual; into out or a new tensor. */
static kr_tensor product(const maker *m, const char *name, kr_tensor rows, kr_tensor weight, kr_tensor bias,
                         kr_tensor residual, kr_tensor out) {
  const kr_dims x = kr_graph_dims(m->g, rows), w = kr_graph_dims(m->g, weight);
  if (!out) out = kr_graph_temp(m->g, type_of(m, rows), KR_DIMS(x.size[0], w.size[0]));
  return kr_graph_call(m->g, name, &kr_op_gemm,
                       &(krait_gemm_args){.A = view(m, rows),
                                          .Bmat = view(m, turned(m, factor_for(m, rows, weight))),
                                          .bias = view(m, bias),
                                          .residual = view(m, residual),
                                          .out = view(m, out)});
}

/* A kernel of length 1 as a matrix. */
static kr_tensor matrix(const maker *m, kr_tensor weight) {
  const kr_dims d = kr_graph_dims(m->g, weight);
  return reshape(m, weight, KR_DIMS(d.size[0], d.size[1]));
}

/* Gradients may compute t again: it is large, and what it comes from is there. */
static kr_tensor not_kept(const maker *m, kr_tensor t) {
  if (m->io->recompute) kr_graph_recompute(m->g, t);
  return t;
}

/* y comes from x through a part of the model that gradients may run again. */
static kr_tensor part_of(const maker *m, kr_tensor x, kr_tensor y) {
  if (m->io->recompute) kr_graph_recompute_since(m->g, x, y);
  return y;
}

static kr_tensor channel_norm(const maker *m, kr_tensor rows, kr_tensor weight, kr_tensor bias) {
  return kr_graph_call(
      m->g, "norm", &kr_op_add_norm,
      &(krait_add_norm_args){
          .eps = 1e-6f, .x = view(m, rows), .weight = view(m, weight), .bias = view(m, bias), .out = kr_graph_ask()});
}

/* ---- norms with their PReLU ---- */

typedef struct norm {
  const char *place;                       /* of its keys, with what follows it: "dense_encoder.dense_conv_1.1." */
  kr_tensor before, weight, bias, slope;   /* before: the bias of the product in front */
} norm;

static kr_tensor mean_of(const maker *m, kr_tensor x) {
  const kr_dims d = kr_graph_dims(m->g, x);
  kr_tensor mean = x;
  const kr_dims steps[] = {KR_DIMS(d.size[0] * d.size[1], d.size[2], d.size[3]),
                           KR_DIMS(1, d.size[0] * d.size[1], d.size[3])};
  for (int k = 0; k < 2; k++)
    mean = kr_graph_call(m->g, "batch_mean", &kr_op_pool,
                         &(krait_pool_args){.x = view(m, reshape(m, mean, steps[k])), .out = kr_graph_ask()});
  return mean; /* (1, C) */
}

/* What running statistics are to come closer to: the mean with the bias that the product has left out, and the unbiased
 * variance. */
static void measure(const maker *m, const norm *n, kr_tensor x) {
  const kr_dims d = kr_graph_dims(m->g, x);
  const int64_t C = d.size[3], number = 0;
  const double positions = (double)(d.size[0] * d.size[1] * d.size[2]);
  const char *prefix = n->place;
  const maker measured = {.g = m->g, .c = m->c, .parameter = m->io->measured, .user = m->user};
  pk_running_p p;
  x = cast(m, "batch_floats", x, m->dtype);
  const kr_tensor mean = mean_of(m, x), apart = new_tensor(m, d);
  kr_graph_pointwise(m->g, "batch_apart", (krait_pointwise_args){.x_scale = 1, .y_scale = -1}, x,
                     kr_graph_spread(m->g, reshape(m, mean, KR_DIMS(1, 1, 1, C)), d), apart);
  const kr_tensor var = mean_of(m, multiply(m, "batch_square", apart, apart));
  m = &measured;
  KR_PK_RUNNING_KEYS(READ)
  kr_graph_pointwise(m->g, "running_mean", (krait_pointwise_args){.x_scale = 1, .y_scale = 1},
                     reshape(m, mean, KR_DIMS(C)), n->before, p.mean);
  kr_graph_pointwise(m->g, "running_var",
                     (krait_pointwise_args){.x_scale = (float)(positions / (positions > 1 ? positions - 1 : 1))},
                     reshape(m, var, KR_DIMS(C)), 0, p.var);
}

/* x (B, ., ., C), normalised over all positions, with norm: batch also over B, through PReLU; into out of the same
 * shape or a new tensor. */
static kr_tensor norm_and_slope(const maker *m, const norm *n, kr_tensor x, kr_tensor out) {
  const kr_dims d = kr_graph_dims(m->g, x);
  const int64_t over = m->c->streams ? d.size[0] : 1;
  const kr_dims flat = KR_DIMS(d.size[0] / over, over * d.size[1] * d.size[2], d.size[3]);
  if (!out) out = new_like(m, x);
  if (m->c->streams) measure(m, n, x);
  kr_graph_call(m->g, m->c->streams ? "batch_norm" : "instance_norm", &kr_op_instance_norm,
                &(krait_instance_norm_args){.eps = (float)KR_PK_NORM_EPS,
                                            .x = view(m, reshape(m, x, flat)),
                                            .weight = view(m, n->weight),
                                            .bias = view(m, n->bias),
                                            .slope = view(m, n->slope),
                                            .out = view(m, reshape(m, out, flat))});
  return out;
}

/* max(x, 0) + slope min(x, 0) by channels. */
static kr_tensor slope_below(const maker *m, kr_tensor x, kr_tensor slope, kr_tensor out) {
  const kr_dims d = kr_graph_dims(m->g, x), channels = KR_DIMS(1, 1, 1, d.size[3]);
  const kr_tensor below = new_like(m, x), less = new_tensor(m, kr_graph_dims(m->g, slope));
  if (!out) out = new_like(m, x);
  kr_graph_pointwise(m->g, "slope_less", (krait_pointwise_args){.x_scale = -1, .y_scale = 1}, 0, slope, less);
  kr_graph_pointwise(m->g, "below",
                     (krait_pointwise_args){.activation = KRAIT_ACT_RELU, .x_scale = -1, .y_scale = 1}, x, x, below);
  const kr_tensor factors = kr_graph_spread(m->g, reshape(m, less, channels), d);
  kr_graph_pointwise(m->g, "sloped", (krait_pointwise_args){.x_scale = 1, .y_scale = 1},
                     multiply(m, "below_slope", below, factors), x, out);
  return out;
}

/* The norm with running statistics: a factor and a summand for each channel, which is its bias then. */
static kr_tensor fixed_scale(const maker *m, const norm *n, kr_tensor *bias) {
  const maker fixed = {.g = m->g, .c = m->c, .parameter = m->io->fixed, .user = m->user};
  const kr_dims d = kr_graph_dims(m->g, n->weight);
  const kr_tensor scale = take(&fixed, n->place, "scale", 0, d), shift = take(&fixed, n->place, "shift", 0, d);
  *bias = add(m, "norm_bias", multiply(m, "norm_bias", n->before, scale), shift);
  return scale;
}

/* Rows times a weight (outputs, inputs) through a norm, as positions of these dimensions. */
static kr_tensor product_and_norm(const maker *m, const char *name, kr_tensor rows, kr_tensor weight, const norm *n,
                                  kr_dims dims, kr_tensor out) {
  if (!m->io->fixed) return norm_and_slope(m, n, reshape(m, product(m, name, rows, weight, 0, 0, 0), dims), out);
  kr_tensor bias;
  const kr_dims w = kr_graph_dims(m->g, weight);
  const kr_tensor scale = fixed_scale(m, n, &bias),
                  factors = kr_graph_spread(m->g, reshape(m, scale, KR_DIMS(w.size[0], 1)), w);
  const kr_tensor x = product(m, name, rows, multiply(m, "norm_weight", weight, factors), bias, 0, 0);
  return slope_below(m, reshape(m, x, dims), n->slope, out);
}

/* The same of a map (B, ., ., C) that is there. */
static kr_tensor norm_of(const maker *m, const norm *n, kr_tensor x) {
  if (!m->io->fixed) return norm_and_slope(m, n, x, 0);
  kr_tensor bias;
  const kr_dims d = kr_graph_dims(m->g, x), channels = KR_DIMS(1, 1, 1, d.size[3]);
  const kr_tensor factors = kr_graph_spread(m->g, reshape(m, fixed_scale(m, n, &bias), channels), d),
                  summands = kr_graph_spread(m->g, reshape(m, bias, channels), d);
  return slope_below(m, add(m, "norm_shift", multiply(m, "norm_scale", x, factors), summands), n->slope, 0);
}

/* ---- frames of the runs before ---- */

/* What n frames of the past stand before in a state (B, ., n + T, C); or, without a past, just frames. */
static kr_tensor room_with_past(const maker *m, const char *name, kr_dims dims, int64_t n) {
  if (!m->io->has_past) return new_rows(m, dims);
  dims.size[2] += n;
  return kr_graph_state(m->g, name, m->rows_dtype, dims);
}
static kr_tensor newest(const maker *m, kr_tensor room) {
  return kr_graph_slice(m->g, room, 2, kr_graph_dims(m->g, room).size[2] - m->T, m->T);
}

/* Behind the last call that reads it: its last n frames become the first, a piece at a time that does not overlap. */
static void keep_past(const maker *m, kr_tensor room, int64_t n) {
  for (int64_t k = 0; k < n && m->io->has_past; k += m->T) {
    const int64_t some = n - k < m->T ? n - k : m->T;
    copy(m, "past", kr_graph_slice(m->g, room, 2, m->T + k, some), kr_graph_slice(m->g, room, 2, k, some));
  }
}

/* A state that one call reads and another tensor of it becomes. */
static kr_tensor state_of(const maker *m, const char *name, kr_dims dims, kr_tensor *next) {
  *next = m->io->has_past ? new_tensor(m, dims) : 0;
  return m->io->has_past ? kr_graph_state(m->g, name, m->dtype, dims) : 0;
}

/* One filter a channel over x (B,F,T,C): taps (C,1,along frequency) or (C,1,along time,along frequency). */
static kr_tensor filter(const maker *m, const char *name, kr_tensor x, kr_tensor taps, kr_tensor bias,
                        int64_t time_dilation) {
  const kr_dims d = kr_graph_dims(m->g, taps);
  if (d.n == 0) return 0; /* the graph has failed before */
  const int64_t KH = d.size[d.n - 1], KW = d.n == 4 ? d.size[2] : 1;
  const kr_tensor weight = kr_graph_permute(m->g, reshape(m, taps, KR_DIMS(d.size[0], KW, KH)), (int[]){0, 2, 1}),
                  out = new_like(m, x);
  const int one_sided = m->one_sided;
  return kr_graph_call(m->g, name, &kr_op_depthwise_conv,
                       &(krait_depthwise_conv_args){.DH = 1,
                                                    .DW = time_dilation,
                                                    .PH = one_sided && d.n == 3 ? KH - 1 : (KH - 1) / 2,
                                                    .PW = (one_sided ? KW - 1 : (KW - 1) / 2) * time_dilation,
                                                    .x = view(m, x),
                                                    .weight = view(m, weight),
                                                    .bias = view(m, bias),
                                                    .out = view(m, out)});
}

/* ---- encoder and decoders ---- */

static int64_t dense_past(const maker *m) { return m->c->depth ? (int64_t)1 << m->c->depth : 0; }

/* A dense block's filter over x, which its past stands before: a filter along frequency for each tap in time. */
static kr_tensor filter_with_past(const maker *m, kr_tensor x, kr_tensor taps, kr_tensor bias, int64_t time_dilation) {
  const int64_t I = kr_graph_dims(m->g, taps).size[0], before = kr_graph_dims(m->g, x).size[2] - m->T;
  if (!m->io->has_past) return filter(m, "dense_filter", x, taps, bias, time_dilation);
  kr_tensor sum = 0;
  for (int64_t k = 0; k < 3; k++) {
    const kr_tensor part = filter(
        m, "dense_filter", kr_graph_slice(m->g, x, 2, before - (2 - k) * time_dilation, m->T),
        kr_graph_slice(m->g, reshape(m, taps, KR_DIMS(I, 1, 3, 3)), 2, k, 1), k ? 0 : bias, time_dilation);
    sum = sum ? add(m, "dense_filter", sum, part) : part;
  }
  return sum;
}

/* all (B,F,T,depth C) has the block's input in its last C columns; what its layers give stands before it, newest first.
 * Returns the last output. */
static kr_tensor dense_block(const maker *m, const char *place, kr_tensor all) {
  const int64_t C = m->c->C, depth = m->c->depth;
  const kr_dims d = kr_graph_dims(m->g, all);
  kr_tensor last = all;
  for (int64_t i = 0; i < depth; i++) {
    char prefix[MAX_PREFIX];
    const int64_t I = (i + 1) * C, number = 0;
    pk_dense_p p;
    snprintf(prefix, sizeof prefix, "%s.dense_block.dense_block.%lld.", place, (long long)i);
    KR_PK_DENSE_KEYS(READ)
    const kr_tensor x = kr_graph_slice(m->g, all, 3, (depth - 1 - i) * C, I);
    const kr_tensor filtered = not_kept(m, filter_with_past(m, x, p.taps, p.taps_b, (int64_t)1 << i));
    const kr_tensor to = i + 1 < depth ? newest(m, kr_graph_slice(m->g, all, 3, (depth - 2 - i) * C, C)) : 0;
    snprintf(prefix + strlen(prefix), sizeof prefix - strlen(prefix), "2.");
    last = product_and_norm(m, "dense_mix", reshape(m, filtered, KR_DIMS(d.size[0] * d.size[1] * m->T, I)),
                            matrix(m, p.w), &(norm){prefix, p.b, p.norm_w, p.norm_b, p.slope},
                            KR_DIMS(d.size[0], d.size[1], m->T, C), to);
  }
  keep_past(m, all, dense_past(m));
  return depth ? last : newest(m, all);
}

/* Room for a dense block over F bins; the last C columns are where its input goes. */
static kr_tensor dense_room(const maker *m, int64_t F, kr_tensor *input) {
  const int64_t n = m->c->depth > 0 ? m->c->depth : 1;
  const kr_tensor all = room_with_past(m, "dense", KR_DIMS(m->B, F, m->T, n * m->c->C), dense_past(m));
  *input = newest(m, kr_graph_slice(m->g, all, 3, (n - 1) * m->c->C, m->c->C));
  return all;
}

/* (output, input, 1, 3), or of transposed convolutions (input, output, 1, 3), with the taps in the middle. */
static kr_tensor taps_in_middle(const maker *m, kr_tensor weight) {
  const int64_t C = m->c->C;
  const kr_tensor by_tap = new_tensor(m, KR_DIMS(C, 3, C));
  copy(m, "by_tap", kr_graph_permute(m->g, reshape(m, weight, KR_DIMS(C, C, 3)), (int[]){0, 2, 1}), by_tap);
  return by_tap;
}

/* A weight (outputs, inputs) as fused products take it: rows of float16, or outputs side by side. */
static kr_tensor laid_out(const maker *m, kr_tensor weight) {
  const kr_dims d = kr_graph_dims(m->g, weight);
  const int halves = m->io->fused == KR_PK_HALF_FACTORS;
  const kr_tensor to = halves ? kr_graph_temp(m->g, KRAIT_F16, d)
                              : turned(m, kr_graph_temp(m->g, KRAIT_F32, KR_DIMS(d.size[1], d.size[0])));
  copy(m, "factor", weight, to);
  return to;
}
/* Taps (channels, k) with the channels of a tap side by side. */
static kr_tensor by_taps(const maker *m, kr_tensor taps) {
  const kr_dims d = kr_graph_dims(m->g, taps);
  const kr_tensor to = turned(m, new_tensor(m, KR_DIMS(d.size[1], d.size[0])));
  copy(m, "taps", taps, to);
  return to;
}

/* ---- inference: dense blocks, and convolutions with their norms, as calls ---- */

static int in_calls(const maker *m) { return m->io->in_slices || m->io->fused; }

/* A dense block; lift: its input is the encoder's. */
static kr_tensor dense_call(const maker *m, const char *place, kr_tensor x, const pk_encoder_p *lift) {
  const int64_t C = m->c->C, L = m->c->depth, N = C * L * (L + 1) / 2, number = 0;
  const int by_tap = m->io->fused != KR_PK_APART;
  const kr_tensor out = by_tap ? new_like(m, x) : new_frames(m, kr_graph_dims(m->g, x).size[1], C),
                  taps = by_tap ? kr_graph_permute(m->g, new_tensor(m, KR_DIMS(3, 3, N)), (int[]){2, 0, 1})
                                : new_tensor(m, KR_DIMS(N, 3, 3)),
                  taps_b = new_tensor(m, KR_DIMS(N)), weight = new_tensor(m, KR_DIMS(C, N)),
                  norm_w = new_tensor(m, KR_DIMS(L, C)), norm_b = new_tensor(m, KR_DIMS(L, C)),
                  slope = new_tensor(m, KR_DIMS(L, C));
  for (int64_t i = 0; i < L; i++) {
    char prefix[MAX_PREFIX];
    const int64_t I = (i + 1) * C, first = C * i * (i + 1) / 2;
    pk_dense_p p;
    snprintf(prefix, sizeof prefix, "%s.dense_block.dense_block.%lld.", place, (long long)i);
    KR_PK_DENSE_KEYS(READ)
#define PUT(from, dims, to, dim, at, n) copy(m, "dense", reshape(m, from, dims), kr_graph_slice(m->g, to, dim, at, n))
    PUT(p.taps, KR_DIMS(I, 3, 3), taps, 0, first, I);
    PUT(p.taps_b, KR_DIMS(I), taps_b, 0, first, I);
    PUT(p.w, KR_DIMS(C, I), weight, 1, first, I);
    PUT(p.norm_w, KR_DIMS(1, C), norm_w, 0, i, 1);
    PUT(p.norm_b, KR_DIMS(1, C), norm_b, 0, i, 1);
    PUT(p.slope, KR_DIMS(1, C), slope, 0, i, 1);
#undef PUT
  }
  return kr_graph_call(m->g, "dense", &kr_op_dense_block,
                       &(krait_dense_block_args){.call.flags =
                                                     (m->one_sided ? KRAIT_DENSE_ONE_SIDED : 0) |
                                                     (m->io->fused == KR_PK_HALF_FACTORS ? KRAIT_DENSE_TF32 : 0),
                                                 .eps = (float)KR_PK_NORM_EPS,
                                                 .x = view(m, x),
                                                 .taps = view(m, taps),
                                                 .taps_bias = view(m, taps_b),
                                                 .weight = view(m, by_tap ? laid_out(m, weight) : weight),
                                                 .norm_weight = view(m, norm_w),
                                                 .norm_bias = view(m, norm_b),
                                                 .slope = view(m, slope),
                                                 .lift = view(m, lift ? matrix(m, lift->lift_w) : 0),
                                                 .lift_weight = view(m, lift ? lift->lift_norm_w : 0),
                                                 .lift_bias = view(m, lift ? lift->lift_norm_b : 0),
                                                 .lift_slope = view(m, lift ? lift->lift_slope : 0),
                                                 .out = view(m, out)});
}

/* A convolution along frequency, or its transpose, with its norm: weight (outputs, taps, inputs) in any strides. */
static kr_tensor conv_norm(const maker *m, const char *name, uint32_t flags, int64_t step, kr_tensor x,
                           kr_tensor weight, const norm *n) {
  const kr_dims d = kr_graph_dims(m->g, x), w = kr_graph_dims(m->g, weight);
  const int64_t F = flags & KRAIT_CONV_NORM_TRANSPOSED ? (d.size[1] - 1) * step + w.size[1]
                                                       : (d.size[1] - w.size[1]) / step + 1;
  const kr_tensor by_tap = kr_graph_permute(m->g, new_tensor(m, KR_DIMS(w.size[1], w.size[2], w.size[0])),
                                            (int[]){2, 0, 1}),
                  out = m->io->in_slices ? new_frames(m, F, w.size[0])
                                         : new_tensor(m, KR_DIMS(m->B, F, m->T, w.size[0]));
  copy(m, "taps", weight, by_tap);
  return kr_graph_call(m->g, name, &kr_op_conv_norm,
                       &(krait_conv_norm_args){.call.flags = flags,
                                               .S = step,
                                               .eps = (float)KR_PK_NORM_EPS,
                                               .x = view(m, x),
                                               .weight = view(m, by_tap),
                                               .norm_weight = view(m, n->weight),
                                               .norm_bias = view(m, n->bias),
                                               .slope = view(m, n->slope),
                                               .out = view(m, out)});
}

static kr_tensor encoder(const maker *m, kr_tensor features) {
  const int64_t C = m->c->C, F = m->c->F, F2 = m->c->F2, number = 0, rows = m->B * F * m->T;
  const char *prefix = "dense_encoder.";
  pk_encoder_p p;
  kr_tensor input;
  KR_PK_ENCODER_KEYS(READ)
  const norm lift_norm = {"dense_encoder.dense_conv_1.1.", p.lift_b, p.lift_norm_w, p.lift_norm_b, p.lift_slope},
             down_norm = {"dense_encoder.dense_conv_2.1.", p.down_b, p.down_norm_w, p.down_norm_b, p.down_slope};
  if (in_calls(m)) {
    const kr_tensor down_w = kr_graph_permute(m->g, reshape(m, p.down_w, KR_DIMS(C, C, 3)), (int[]){0, 2, 1});
    kr_tensor x = features;
    if (m->io->fused || !m->c->depth)
      x = conv_norm(m, "lift", 0, 1, x, reshape(m, p.lift_w, KR_DIMS(C, 1, 2)), &lift_norm);
    if (m->c->depth) x = dense_call(m, "dense_encoder", x, m->io->fused ? NULL : &p);
    return conv_norm(m, "down", 0, 2, x, down_w, &down_norm);
  }
  const kr_tensor all = dense_room(m, F, &input);
  const int is_cast = m->rows_dtype != m->dtype; /* of two features only: the norm is of what is not rounded */
  const kr_tensor lifted = product_and_norm(m, "lift", reshape(m, features, KR_DIMS(rows, 2)), matrix(m, p.lift_w),
                                            &lift_norm, KR_DIMS(m->B, F, m->T, C), is_cast ? 0 : input);
  if (is_cast) copy(m, "lift", lifted, input);
  const kr_tensor dense = dense_block(m, "dense_encoder", all);
  /* every other frequency with its two neighbours above: (tap, input) by output */
  const kr_tensor windows = new_rows(m, KR_DIMS(m->B, F2, m->T, 3 * C));
  kr_graph_call(m->g, "down_windows", &kr_op_unfold,
                &(krait_unfold_args){.KH = 3, .KW = 1, .SH = 2, .SW = 1, .x = view(m, dense), .out = view(m, windows)});
  not_kept(m, windows);
  return product_and_norm(m, "down", reshape(m, windows, KR_DIMS(m->B * F2 * m->T, 3 * C)),
                          reshape(m, taps_in_middle(m, p.down_w), KR_DIMS(C, 3 * C)), &down_norm,
                          KR_DIMS(m->B, F2, m->T, C), 0);
}

/* The way back to F bins: (B,F2,T,3n), a tap after the other, added where they belong. */
static kr_tensor fold_up(const maker *m, kr_tensor x, int64_t n) {
  const kr_tensor out = new_rows(m, KR_DIMS(m->B, m->c->F, m->T, n));
  return kr_graph_call(m->g, "up_fold", &kr_op_fold,
                       &(krait_fold_args){.KH = 3, .KW = 1, .SH = 2, .SW = 1, .x = view(m, x), .out = view(m, out)});
}

/* The rows (positions,C) of a map in the order in which it lies; and a map of such rows, as `like` lies. */
static kr_tensor rows_of(const maker *m, kr_tensor map) {
  const kr_dims d = kr_graph_dims(m->g, map), rows = KR_DIMS(d.size[0] * d.size[1] * d.size[2], d.size[3]);
  return reshape(m, kr_graph_can_reshape(m->g, map, rows) ? map : framewise(m, map), rows);
}
static kr_tensor map_of(const maker *m, kr_tensor rows, kr_tensor like) {
  const kr_dims d = kr_graph_dims(m->g, like), all = KR_DIMS(d.size[0] * d.size[1] * d.size[2], d.size[3]);
  const int64_t n = kr_graph_dims(m->g, rows).size[1];
  if (kr_graph_can_reshape(m->g, like, all)) return reshape(m, rows, KR_DIMS(d.size[0], d.size[1], d.size[2], n));
  return framewise(m, reshape(m, rows, KR_DIMS(d.size[0], d.size[2], d.size[1], n)));
}

static kr_tensor decoder_block(const maker *m, const char *place, kr_tensor x) {
  kr_tensor input;
  if (in_calls(m)) return m->c->depth ? dense_call(m, place, x, NULL) : x;
  const kr_tensor all = dense_room(m, m->c->F2, &input);
  copy(m, "decoder_input", x, input);
  return dense_block(m, place, all);
}

/* A few numbers for each of the rows, in float32: what angles are made of. */
static kr_tensor few_products(const maker *m, const char *name, kr_tensor rows, kr_tensor weight, kr_tensor bias,
                              kr_tensor out) {
  const kr_dims d = kr_graph_dims(m->g, rows);
  if (!m->io->fused) return product(m, name, rows, weight, bias, 0, out);
  const int64_t n = d.size[0], N = kr_graph_dims(m->g, weight).size[0];
  if (!out) out = new_tensor(m, KR_DIMS(n, N));
  kr_graph_call(m->g, name, &kr_op_map_product,
                &(krait_map_product_args){.eps = 1e-6f,
                                          .x = view(m, reshape(m, rows, KR_DIMS(1, 1, n, d.size[1]))),
                                          .weight = view(m, weight),
                                          .bias = view(m, bias),
                                          .out = view(m, reshape(m, out, KR_DIMS(1, 1, n, N)))});
  return out;
}

/* (B,F,T) as (B,T,F): what belongs to a frequency is then spread over dimensions side by side. */
static kr_tensor by_frame(const maker *m, kr_tensor plane) {
  return kr_graph_permute(m->g, plane, (int[]){0, 2, 1});
}

/* slope (last_w u + last_b), by frame: u has one number for each bin. */
static kr_tensor sloped(const maker *m, const pk_mask_p *p, kr_tensor u) {
  const int64_t F = m->c->F;
  const kr_dims plane = KR_DIMS(m->B, F, m->T), frames = KR_DIMS(m->B, m->T, F), bins = KR_DIMS(F);
#define SPREAD(t) kr_graph_spread(m->g, reshape(m, t, KR_DIMS(1, 1, F)), frames)
  const kr_tensor slope = reshape(m, p->sigmoid_slope, bins);
  if (!in_calls(m)) {
    const kr_tensor last = product(m, "last", reshape(m, u, KR_DIMS(m->B * F * m->T, 1)), matrix(m, p->last_w),
                                   p->last_b, 0, 0);
    return multiply(m, "slope", by_frame(m, reshape(m, last, plane)), SPREAD(slope));
  }
  const kr_tensor one[] = {reshape(m, p->last_w, KR_DIMS(1)), p->last_b};
  const kr_tensor factor = multiply(m, "slope", slope, kr_graph_spread(m->g, one[0], bins)),
                  summand = multiply(m, "slope", slope, kr_graph_spread(m->g, one[1], bins));
  return add(m, "slope", multiply(m, "slope", by_frame(m, reshape(m, u, plane)), SPREAD(factor)), SPREAD(summand));
#undef SPREAD
}

static void mask_decoder(const maker *m, kr_tensor x, kr_tensor mag_in, kr_tensor mag) {
  const kr_tensor dense = decoder_block(m, "mask_decoder", x);
  const int64_t C = m->c->C, F = m->c->F, number = 0;
  const char *prefix = "mask_decoder.";
  pk_mask_p p;
  KR_PK_MASK_KEYS(READ)
  /* the product behind the transposed convolution goes into its weights: (input, tap) */
  const kr_tensor taps = product(m, "merge", reshape(m, taps_in_middle(m, p.up_w), KR_DIMS(3 * C, C)),
                                 matrix(m, p.merge_w), 0, 0, 0),
                  rows = few_products(m, "up", rows_of(m, dense), turned(m, reshape(m, taps, KR_DIMS(C, 3))), 0, 0),
                  up = cast(m, "up", fold_up(m, map_of(m, rows, dense), 1), m->dtype);
  const kr_tensor before = reshape(m, product(m, "up_bias", reshape(m, p.up_b, KR_DIMS(1, C)),
                                              matrix(m, p.merge_w), p.merge_b, 0, 0), KR_DIMS(1));
  const kr_tensor u = norm_of(m, &(norm){"mask_decoder.mask_conv.2.", before, p.norm_w, p.norm_b, p.slope}, up);
  kr_graph_pointwise(
      m->g, "mask",
      (krait_pointwise_args){
          .call.flags = KRAIT_POINTWISE_PRODUCT, .activation = KRAIT_ACT_SIGMOID, .x_scale = (float)m->c->sigmoid_beta},
      sloped(m, &p, u), by_frame(m, mag_in), by_frame(m, mag));
}

static void phase_decoder(const maker *m, kr_tensor x, kr_tensor pha) {
  const int64_t C = m->c->C, F = m->c->F, n = m->B * F * m->T, number = 0;
  const char *prefix = "phase_decoder.";
  pk_phase_p p;
  kr_tensor u;
  const kr_tensor dense = decoder_block(m, "phase_decoder", x);
  KR_PK_PHASE_KEYS(READ)
  const norm own = {"phase_decoder.phase_conv.1.", p.up_b, p.norm_w, p.norm_b, p.slope};
  if (in_calls(m))
    u = conv_norm(m, "phase_up", KRAIT_CONV_NORM_TRANSPOSED, 2, dense,
                  kr_graph_permute(m->g, reshape(m, p.up_w, KR_DIMS(C, C, 3)), (int[]){1, 2, 0}), &own);
  else {
    const kr_tensor taps = turned(m, reshape(m, taps_in_middle(m, p.up_w), KR_DIMS(C, 3 * C)));
    u = norm_of(m, &own, fold_up(m, map_of(m, product(m, "up", rows_of(m, dense), taps, 0, 0, 0), dense), C));
  }
  const kr_tensor weight = new_tensor(m, KR_DIMS(2, C)), bias = new_tensor(m, KR_DIMS(2)),
                  weights[] = {matrix(m, p.real_w), matrix(m, p.imag_w)}, biases[] = {p.real_b, p.imag_b};
  for (int i = 0; i < 2; i++) {
    copy(m, "phase_weight", weights[i], kr_graph_slice(m->g, weight, 0, i, 1));
    copy(m, "phase_bias", biases[i], kr_graph_slice(m->g, bias, 0, i, 1));
  }
  const kr_tensor aligned = columns(m, new_rows(m, KR_DIMS(n, m->rows_dtype == m->dtype ? 2 : 8)), 0, 2),
                  parts = cast(m, "phase_parts", few_products(m, "phase_parts", rows_of(m, u), weight, bias, aligned),
                               m->dtype);
#define PART(k) view(m, reshape(m, map_of(m, columns(m, parts, k, 1), u), KR_DIMS(m->B, F, m->T)))
  kr_graph_call(m->g, "phase", &kr_op_to_polar,
                &(krait_to_polar_args){.power = 1, .re = PART(0), .im = PART(1), .pha = view(m, pha)});
#undef PART
}

/* ---- the two stages; x: rows (B F2 T, C) ---- */

/* x + beta (W h + b), beta in the weights. */
static kr_tensor scaled_back(const maker *m, kr_tensor h, kr_tensor weight, kr_tensor bias, kr_tensor beta,
                             kr_tensor x) {
  const kr_dims w = kr_graph_dims(m->g, weight);
  const kr_tensor scaled = turned(m, multiply(m, "scale_weight", turned(m, weight), beside(m, beta, w.size[1])));
  return product(m, "out", h, scaled, multiply(m, "scale_bias", bias, reshape(m, beta, KR_DIMS(w.size[0]))), x, 0);
}

/* g (rows, C), each frame times the product of what the last eleven were. */
static kr_tensor attend_moving(const maker *m, const char *prefix, const pk_attention_p *attention, kr_tensor g) {
  const int64_t C = m->c->C, K = KR_PK_MOVING_FRAMES, number = 0;
  const kr_dims map = KR_DIMS(m->B, m->c->F2, m->T, C), rows = kr_graph_dims(m->g, g);
  pk_moving_p p;
  KR_PK_MOVING_KEYS(READ)
  kr_tensor frames = reshape(m, g, map);
  if (m->io->has_past) {
    const kr_tensor room = room_with_past(m, "moving", map, K - 1);
    copy(m, "moving", frames, newest(m, room)), frames = room;
  }
  const int by_time[] = {0, 2, 1, 3};
  const kr_tensor out = new_like(m, frames);
  kr_graph_call(m->g, "moving", &kr_op_depthwise_conv,
                &(krait_depthwise_conv_args){.DH = 1,
                                             .DW = 1,
                                             .PH = K - 1,
                                             .x = view(m, kr_graph_permute(m->g, frames, by_time)),
                                             .weight = view(m, reshape(m, p.taps, KR_DIMS(C, K, 1))),
                                             .out = view(m, kr_graph_permute(m->g, out, by_time))});
  keep_past(m, frames, K - 1);
  kr_tensor moving = out;
  if (m->io->has_past) copy(m, "moving", newest(m, out), moving = new_rows(m, map));
  return not_kept(m, multiply(m, "attended", g,
                              product(m, "attention", reshape(m, moving, rows), matrix(m, attention->attn_w),
                                      attention->attn_b, 0, 0)));
}

static kr_tensor attention(const maker *m, const char *stage, int64_t b, int64_t n, int along_time, kr_tensor x) {
  const int64_t C = m->c->C, K = along_time ? 1 : 3, number = 0, F2 = m->c->F2, rows = m->B * F2 * m->T;
  char prefix[MAX_PREFIX];
  pk_attention_p p;
  snprintf(prefix, sizeof prefix, "sequence_block.%lld.%s.%lld.0.", (long long)b, stage, (long long)n);
  KR_PK_ATTENTION_KEYS(READ)
  const kr_tensor normed = not_kept(m, channel_norm(m, x, p.norm_w, p.norm_b));
  kr_tensor gate;
  if (along_time) { /* filters of length 1 go into the product */
    const kr_tensor taps = reshape(m, p.taps, KR_DIMS(2 * C)),
                    weight = multiply(m, "gate_weight", turned(m, matrix(m, p.gate_w)), beside(m, taps, C));
    gate = product(m, "gate", normed, turned(m, weight),
                   add(m, "gate_bias", multiply(m, "gate_bias", p.gate_b, taps), p.taps_b), 0, 0);
  } else {
    const kr_tensor wide = product(m, "gate", normed, matrix(m, p.gate_w), p.gate_b, 0, 0);
    gate = reshape(m, filter(m, "gate_filter", reshape(m, wide, KR_DIMS(m->B, F2, m->T, 2 * C)), p.taps, p.taps_b, 1),
                   KR_DIMS(rows, 2 * C));
  }
  const kr_tensor g = multiply(m, "gated", columns(m, gate, 0, C), columns(m, gate, C, C));
  if (along_time && m->c->streams)
    return scaled_back(m, attend_moving(m, prefix, &p, g), matrix(m, p.out_w), p.out_b, p.beta, x);
  /* the mean of each sequence, and its product beside every position */
  const kr_dims sequences = along_time ? KR_DIMS(m->B * F2, m->T, C) : KR_DIMS(m->B, F2, m->T * C);
  const int64_t n_means = along_time ? m->B * F2 : m->B * m->T;
  const kr_tensor mean = kr_graph_call(
      m->g, "mean", &kr_op_pool, &(krait_pool_args){.x = view(m, reshape(m, g, sequences)), .out = kr_graph_ask()});
  const kr_tensor scale =
      product(m, "attention", reshape(m, mean, KR_DIMS(n_means, C)), matrix(m, p.attn_w), p.attn_b, 0, 0);
  const kr_tensor spread =
      kr_graph_spread(m->g, reshape(m, scale, KR_DIMS(sequences.size[0], 1, sequences.size[2])), sequences);
  const kr_tensor scaled =
      reshape(m, not_kept(m, multiply(m, "attended", reshape(m, g, sequences), spread)), KR_DIMS(rows, C));
  return scaled_back(m, scaled, matrix(m, p.out_w), p.out_b, p.beta, x);
}

/* weight (outputs, H) behind proj_conv1: weight W1 and weight b1 + bias. */
static kr_tensor behind_first(const maker *m, const pk_wrap_p *w, kr_tensor weight, kr_tensor bias,
                              kr_tensor *both_bias) {
  const int64_t n = kr_graph_dims(m->g, weight).size[0], H = kr_graph_dims(m->g, weight).size[1];
  *both_bias = reshape(m, product(m, "in_bias", reshape(m, w->in_b, KR_DIMS(1, H)), weight, bias, 0, 0), KR_DIMS(n));
  return product(m, "in_weight", weight, turned(m, matrix(m, w->in_w)), 0, 0, 0);
}

static kr_tensor mamba(const maker *m, const char *before, const pk_wrap_p *w, kr_tensor normed,
                       kr_tensor *out_weight) {
  const int64_t H = m->c->hidden, E = m->c->d_inner, N = m->c->d_state, R = m->c->dt_rank, W = m->c->d_conv, number = 0,
                sequences = m->B * m->c->F2;
  char prefix[MAX_PREFIX + 8];
  pk_mamba_p p;
  kr_tensor bias;
  snprintf(prefix, sizeof prefix, "%smamba.", before);
  KR_PK_MAMBA_KEYS(READ)
  const kr_tensor weight = behind_first(m, w, p.in_w, 0, &bias), A = new_tensor(m, KR_DIMS(E, N)),
                  y = new_rows(m, KR_DIMS(sequences, m->T, E));
  const kr_tensor xz = reshape(m, product(m, "in", normed, weight, bias, 0, 0), KR_DIMS(sequences, m->T, 2 * E));
  kr_graph_pointwise(m->g, "A", (krait_pointwise_args){.activation = KRAIT_ACT_EXP, .x_scale = -1}, p.A_log, 0, A);
  kr_tensor conv_next = 0, scan_next;
  const kr_tensor conv_state = W > 1 ? state_of(m, "conv_state", KR_DIMS(sequences, E, W - 1), &conv_next) : 0,
                  scan_state = state_of(m, "scan_state", KR_DIMS(sequences, E, N), &scan_next);
  kr_mamba_block_record(m->g, &(kr_mamba_block){.flags = KRAIT_SCAN_SOFTPLUS,
                                                .dtype = m->rows_dtype,
                                                .is_merged = m->rows_dtype != m->dtype,
                                                .xz = kr_graph_permute(m->g, xz, (int[]){0, 2, 1}),
                                                .conv_weight = reshape(m, p.conv_w, KR_DIMS(E, W)),
                                                .conv_bias = p.conv_b,
                                                .x_proj_weight = p.x_w,
                                                .dt_proj_weight = p.dt_w,
                                                .delta_bias = p.dt_b,
                                                .A = A,
                                                .Dvec = p.D,
                                                .conv_states = conv_state,
                                                .conv_states_out = conv_next,
                                                .scan_state = scan_state,
                                                .scan_state_out = scan_next,
                                                .out = kr_graph_permute(m->g, y, (int[]){0, 2, 1})});
  if (conv_state) copy(m, "conv_state", conv_next, conv_state);
  if (scan_state) copy(m, "scan_state", scan_next, scan_state);
  *out_weight = product(m, "out_weight", matrix(m, w->out_w), turned(m, p.out_w), 0, 0, 0);
  return reshape(m, y, KR_DIMS(sequences * m->T, E));
}

static kr_tensor recurrent(const maker *m, const char *before, const pk_wrap_p *w, kr_tensor normed,
                           kr_tensor *out_weight) {
  const int is_lstm = m->c->stage == KR_PK_LSTM;
  const int64_t H = m->c->hidden, G = is_lstm ? 4 : 3, sequences = m->B * m->c->F2;
  char prefix[MAX_PREFIX + 8];
  kr_tensor x = normed;
  snprintf(prefix, sizeof prefix, "%s%s.", before, is_lstm ? "lstm" : "gru");
  for (int64_t number = 0; number < m->c->layers; number++) {
    pk_recurrent_p p;
    KR_PK_RECURRENT_KEYS(READ)
    kr_tensor bias = p.ih_b;
    const kr_tensor weight = number ? p.ih_w : behind_first(m, w, p.ih_w, p.ih_b, &bias),
                    gates = cast(m, "gates", product(m, "gates", x, weight, bias, 0, 0), m->dtype);
    const kr_tensor h =
        kr_graph_call(m->g, "recurrence", &kr_op_rnn,
                      &(krait_rnn_args){.call.flags = is_lstm ? KRAIT_RNN_LSTM : 0,
                                        .x = view(m, reshape(m, gates, KR_DIMS(sequences, m->T, G * H))),
                                        .weight = view(m, p.hh_w),
                                        .bias = view(m, p.hh_b),
                                        .out = kr_graph_ask(),
                                        .cells = is_lstm && !m->is_piece ? kr_graph_ask() : (krait_view){0}});
    x = cast(m, "gates", reshape(m, h, KR_DIMS(sequences * m->T, H)), m->rows_dtype);
  }
  *out_weight = matrix(m, w->out_w);
  return x;
}

static pk_wrap_p wrap_of(const maker *m, const char *stage, int64_t b, int64_t n, int64_t H) {
  const int64_t C = m->c->C, number = 0;
  char prefix[MAX_PREFIX];
  pk_wrap_p p;
  snprintf(prefix, sizeof prefix, "sequence_block.%lld.%s.%lld.1.", (long long)b, stage, (long long)n);
  KR_PK_WRAP_KEYS(READ)
  return p;
}

static kr_tensor time_network(const maker *m, int64_t b, int64_t n, kr_tensor x) {
  const pk_wrap_p p = wrap_of(m, "time_stage", b, n, m->c->hidden);
  char prefix[MAX_PREFIX];
  kr_tensor weight = 0;
  snprintf(prefix, sizeof prefix, "sequence_block.%lld.time_stage.%lld.1.", (long long)b, (long long)n);
  const kr_tensor normed = not_kept(m, channel_norm(m, x, p.norm_w, p.norm_b));
  const kr_tensor y =
      m->c->stage == KR_PK_MAMBA ? mamba(m, prefix, &p, normed, &weight) : recurrent(m, prefix, &p, normed, &weight);
  return scaled_back(m, y, weight, p.out_b, p.beta, x);
}

static kr_tensor prime_network(const maker *m, int64_t b, int64_t n, kr_tensor x) {
  const int64_t C = m->c->C, H = m->c->n_kernels * C, rows = kr_graph_dims(m->g, x).size[0];
  char prefix[MAX_PREFIX];
  snprintf(prefix, sizeof prefix, "sequence_block.%lld.freq_stage.%lld.1.", (long long)b, (long long)n);
  const pk_wrap_p w = wrap_of(m, "freq_stage", b, n, H);
  const kr_tensor normed = not_kept(m, channel_norm(m, x, w.norm_w, w.norm_b)), in_w = matrix(m, w.in_w),
                  h = m->is_piece ? 0 : product(m, "in", normed, in_w, w.in_b, 0, 0),
                  gated = new_rows(m, KR_DIMS(rows, H));
  for (int32_t j = 0; j < m->c->n_kernels; j++) {
    const int64_t K = m->c->kernels[j], number = K;
    pk_prime_p p;
    KR_PK_PRIME_KEYS(READ)
    /* a piece's chunks stay in the cache one after the other */
    const kr_tensor own = h ? columns(m, h, j * C, C)
                            : product(m, "in", normed, kr_graph_slice(m->g, in_w, 0, j * C, C),
                                      kr_graph_slice(m->g, w.in_b, 0, j * C, C), 0, 0),
                    chunk = reshape(m, own, KR_DIMS(m->B, m->c->F2, m->T, C));
    const kr_tensor filtered =
        reshape(m, not_kept(m, filter(m, "prime_filter", chunk, p.attn_taps, p.attn_taps_b, 1)), KR_DIMS(rows, C));
    const kr_tensor other = reshape(m, filter(m, "prime_conv", chunk, p.conv_taps, p.conv_taps_b, 1), KR_DIMS(rows, C));
    multiply_into(m, "prime_gated", product(m, "prime_mix", filtered, matrix(m, p.attn_w), p.attn_b, 0, 0), other,
                  columns(m, gated, j * C, C));
  }
  return scaled_back(m, gated, matrix(m, w.out_w), w.out_b, w.beta, x);
}

/* ---- inference on a GPU: fused operators over maps (B,F2,T,C), what surrounds a product within it; parameters are
 * constants of the plan ---- */

/* The norm's own weight and bias go into the product behind it. */
static kr_tensor behind_norm(const maker *m, kr_tensor weight, kr_tensor bias, kr_tensor norm_w, kr_tensor norm_b,
                             kr_tensor *both_bias) {
  const kr_dims d = kr_graph_dims(m->g, weight);
  *both_bias = reshape(m, product(m, "norm_bias", reshape(m, norm_b, KR_DIMS(1, d.size[1])), weight, bias, 0, 0),
                       KR_DIMS(d.size[0]));
  return multiply(m, "norm_weight", weight, beside(m, norm_w, d.size[0]));
}
static kr_tensor beta_times(const maker *m, kr_tensor beta, kr_tensor weight, kr_tensor *bias) {
  const kr_dims w = kr_graph_dims(m->g, weight);
  *bias = multiply(m, "scale_bias", *bias, reshape(m, beta, KR_DIMS(w.size[0])));
  return turned(m, multiply(m, "scale_weight", turned(m, weight), beside(m, beta, w.size[1])));
}

static kr_tensor map_product(const maker *m, const char *name, kr_tensor x, kr_tensor weight, kr_tensor bias,
                             krait_map_product_args a) {
  kr_dims d = kr_graph_dims(m->g, x);
  d.size[3] = kr_graph_dims(m->g, weight).size[0] / (a.call.flags & KRAIT_MAP_GATE ? 2 : 1);
  if (m->io->fused == KR_PK_HALF_FACTORS) a.call.flags |= KRAIT_MAP_TF32;
  a.eps = 1e-6f;
  a.x = view(m, x), a.weight = view(m, laid_out(m, weight)), a.bias = view(m, bias);
  if (!a.out.data) a.out = view(m, new_tensor(m, d));
  return kr_graph_call(m->g, name, &kr_op_map_product, &a);
}

/* What the end of a stage adds besides: beta x of where the stage began; x 0: nothing. */
typedef struct stage_skip {
  kr_tensor x, beta;
} stage_skip;
static krait_view skip_scale(const maker *m, const stage_skip *s) {
  return s->x ? view(m, reshape(m, s->beta, KR_DIMS(m->c->C))) : (krait_view){0};
}

/* The products' pairs side by side. */
static kr_tensor in_pairs(const maker *m, kr_tensor weight, int64_t inputs) {
  const int64_t C = kr_graph_dims(m->g, weight).size[0] / 2;
  const kr_tensor pairs = new_tensor(m, KR_DIMS(C, 2, inputs));
  copy(m, "pairs", kr_graph_permute(m->g, reshape(m, weight, KR_DIMS(2, C, inputs)), (int[]){1, 0, 2}), pairs);
  return reshape(m, pairs, inputs > 1 ? KR_DIMS(2 * C, inputs) : KR_DIMS(2 * C));
}

static kr_tensor fused_gate(const maker *m, const pk_attention_p *p, int along_time, kr_tensor x) {
  const int64_t C = m->c->C, K = along_time ? 1 : 3;
  kr_tensor bias, weight = behind_norm(m, matrix(m, p->gate_w), p->gate_b, p->norm_w, p->norm_b, &bias);
  if (along_time) { /* filters of length 1 go into the product */
    const kr_tensor taps = reshape(m, p->taps, KR_DIMS(2 * C));
    weight = turned(m, multiply(m, "gate_weight", turned(m, weight), beside(m, taps, C)));
    bias = add(m, "gate_bias", multiply(m, "gate_bias", bias, taps), p->taps_b);
    const kr_tensor whole = new_tensor(m, KR_DIMS(2 * C, C));
    copy(m, "gate_weight", weight, whole);
    return map_product(m, "gate", x, in_pairs(m, whole, C), in_pairs(m, bias, 1),
                       (krait_map_product_args){.call.flags = KRAIT_MAP_NORM | KRAIT_MAP_GATE});
  }
  const kr_tensor both = map_product(m, "gate", x, weight, bias, (krait_map_product_args){.call.flags = KRAIT_MAP_NORM}),
                  g = new_like(m, x);
  return kr_graph_call(m->g, "gate_filter", &kr_op_gated_filter,
                       &(krait_gated_filter_args){.P = m->one_sided ? K - 1 : (K - 1) / 2,
                                                  .x = view(m, both),
                                                  .weight = view(m, by_taps(m, reshape(m, p->taps, KR_DIMS(2 * C, K)))),
                                                  .bias = view(m, p->taps_b),
                                                  .out = view(m, g)});
}

static kr_tensor fused_attention(const maker *m, const char *stage, int64_t b, int64_t n, int along_time,
                                 kr_tensor x) {
  const int64_t C = m->c->C, K = along_time ? 1 : 3, number = 0, F2 = m->c->F2,
                length = along_time ? F2 : m->T; /* sequences of a window */
  char prefix[MAX_PREFIX];
  pk_attention_p p;
  snprintf(prefix, sizeof prefix, "sequence_block.%lld.%s.%lld.0.", (long long)b, stage, (long long)n);
  KR_PK_ATTENTION_KEYS(READ)
  const kr_tensor g = fused_gate(m, &p, along_time, x),
                  weight = turned(m, new_tensor(m, KR_DIMS(C, C))), factors = new_tensor(m, KR_DIMS(m->B, length, C));
  copy(m, "attention", matrix(m, p.attn_w), weight);
  kr_graph_call(m->g, "attention", &kr_op_mean_product,
                &(krait_mean_product_args){
                    .x = view(m, along_time ? g : kr_graph_permute(m->g, g, (int[]){0, 2, 1, 3})),
                    .weight = view(m, weight),
                    .bias = view(m, p.attn_b),
                    .out = view(m, factors)});
  const kr_tensor spread = kr_graph_spread(
      m->g, reshape(m, factors, along_time ? KR_DIMS(m->B, F2, 1, C) : KR_DIMS(m->B, 1, m->T, C)),
      KR_DIMS(m->B, F2, m->T, C));
  kr_tensor bias = p.out_b;
  const kr_tensor out = beta_times(m, p.beta, matrix(m, p.out_w), &bias);
  return map_product(m, "out", g, out, bias,
                     (krait_map_product_args){.factors = view(m, spread), .residual = view(m, x)});
}

static kr_tensor fused_mamba(const maker *m, const char *before, const pk_wrap_p *w, kr_tensor x,
                             kr_tensor *out_weight) {
  const int64_t H = m->c->hidden, E = m->c->d_inner, N = m->c->d_state, R = m->c->dt_rank, W = m->c->d_conv, number = 0,
                sequences = m->B * m->c->F2, X = (R + 2 * N + 15) / 16 * 16;
  const kr_dims map = KR_DIMS(m->B, m->c->F2, m->T, E), lines = KR_DIMS(sequences, m->T, E);
  char prefix[MAX_PREFIX + 8];
  pk_mamba_p p;
  kr_tensor bias;
  snprintf(prefix, sizeof prefix, "%smamba.", before);
  KR_PK_MAMBA_KEYS(READ)
  const kr_tensor first = behind_first(m, w, p.in_w, 0, &bias),
                  weight = behind_norm(m, first, bias, w->norm_w, w->norm_b, &bias), A = new_tensor(m, KR_DIMS(E, N)),
                  xc = new_tensor(m, map), proj = new_tensor(m, KR_DIMS(m->B, m->c->F2, m->T, X));
  const kr_tensor xz = map_product(
      m, "in", x, weight, bias,
      (krait_map_product_args){.call.flags = KRAIT_MAP_NORM | KRAIT_MAP_SILU, .silu_from = E});
  kr_graph_pointwise(m->g, "A", (krait_pointwise_args){.activation = KRAIT_ACT_EXP, .x_scale = -1}, p.A_log, 0, A);
  map_product(m, "x_proj", kr_graph_slice(m->g, xz, 3, 0, E), p.x_w, 0,
              (krait_map_product_args){.conv_weight = view(m, reshape(m, p.conv_w, KR_DIMS(E, W))),
                                       .conv_bias = view(m, p.conv_b),
                                       .out = view(m, kr_graph_slice(m->g, proj, 3, 0, R + 2 * N)),
                                       .conv_out = view(m, xc)});
  const kr_tensor u = reshape(m, xc, lines);
  kr_graph_call(m->g, "scan", &kr_op_projected_scan,
                &(krait_projected_scan_args){
                    .u = view(m, u),
                    .proj = view(m, reshape(m, proj, KR_DIMS(sequences, m->T, X))),
                    .dt_weight = view(m, by_taps(m, p.dt_w)),
                    .dt_bias = view(m, p.dt_b),
                    .A = view(m, A),
                    .Dvec = view(m, p.D),
                    .z = view(m, reshape(m, kr_graph_slice(m->g, xz, 3, E, E), lines)),
                    .out = view(m, u)});
  *out_weight = product(m, "out_weight", matrix(m, w->out_w), turned(m, p.out_w), 0, 0, 0);
  (void)H;
  return xc;
}

/* Layer by layer, or two at once where the factors are float16. */
static kr_tensor fused_recurrent(const maker *m, const char *before, const pk_wrap_p *w, kr_tensor x,
                                 kr_tensor *out_weight) {
  const int is_lstm = m->c->stage == KR_PK_LSTM, is_pair = m->io->fused == KR_PK_HALF_FACTORS && m->c->layers > 1;
  const int64_t C = m->c->C, H = m->c->hidden, G = is_lstm ? 4 : 3, sequences = m->B * m->c->F2;
  const kr_dims map = KR_DIMS(m->B, m->c->F2, m->T, H), lines = KR_DIMS(sequences, m->T, H);
  char prefix[MAX_PREFIX + 8];
  kr_tensor weights[2], biases[2], own[2], own_biases[2];
  snprintf(prefix, sizeof prefix, "%s%s.", before, is_lstm ? "lstm" : "gru");
  for (int64_t number = 0; number < m->c->layers; number++) {
    const int64_t i = number < 2 ? number : 1;
    pk_recurrent_p p;
    KR_PK_RECURRENT_KEYS(READ)
    weights[i] = p.ih_w, biases[i] = p.ih_b, own[i] = p.hh_w, own_biases[i] = p.hh_b;
    if (number == 0) {
      weights[0] = behind_first(m, w, p.ih_w, p.ih_b, &biases[0]);
      weights[0] = behind_norm(m, weights[0], biases[0], w->norm_w, w->norm_b, &biases[0]);
    }
    const kr_tensor h = new_tensor(m, lines);
    if (is_pair && number < 2) {
      if (number == 1)
        kr_graph_call(m->g, "recurrences", &kr_op_rnn_pair,
                      &(krait_rnn_pair_args){
                          .call.flags = (is_lstm ? KRAIT_RNN_LSTM : 0) | KRAIT_RNN_TF32 | KRAIT_RNN_NORM,
                          .eps = 1e-6f,
                          .x = view(m, reshape(m, x, KR_DIMS(sequences, m->T, C))),
                          .in_weight = view(m, laid_out(m, weights[0])),
                          .in_bias = view(m, biases[0]),
                          .weight = view(m, laid_out(m, own[0])),
                          .bias = view(m, own_biases[0]),
                          .in_weight2 = view(m, laid_out(m, weights[1])),
                          .in_bias2 = view(m, biases[1]),
                          .weight2 = view(m, laid_out(m, own[1])),
                          .bias2 = view(m, own_biases[1]),
                          .out = view(m, h)}),
            x = reshape(m, h, map);
      continue;
    }
    const kr_tensor gates =
        map_product(m, "gates", x, weights[i], biases[i],
                    (krait_map_product_args){.call.flags = number ? 0 : KRAIT_MAP_NORM});
    kr_graph_call(m->g, "recurrence", &kr_op_rnn,
                  &(krait_rnn_args){.call.flags = is_lstm ? KRAIT_RNN_LSTM : 0,
                                    .x = view(m, reshape(m, gates, KR_DIMS(sequences, m->T, G * H))),
                                    .weight = view(m, by_taps(m, p.hh_w)),
                                    .bias = view(m, p.hh_b),
                                    .out = view(m, h)});
    x = reshape(m, h, map);
  }
  *out_weight = matrix(m, w->out_w);
  return x;
}

static kr_tensor fused_time_network(const maker *m, int64_t b, int64_t n, kr_tensor x, const stage_skip *s) {
  const pk_wrap_p p = wrap_of(m, "time_stage", b, n, m->c->hidden);
  char prefix[MAX_PREFIX];
  kr_tensor weight = 0, bias = p.out_b;
  snprintf(prefix, sizeof prefix, "sequence_block.%lld.time_stage.%lld.1.", (long long)b, (long long)n);
  const kr_tensor y = m->c->stage == KR_PK_MAMBA ? fused_mamba(m, prefix, &p, x, &weight)
                                                 : fused_recurrent(m, prefix, &p, x, &weight);
  weight = beta_times(m, p.beta, weight, &bias);
  return map_product(m, "out", y, weight, bias,
                     (krait_map_product_args){
                         .residual = view(m, x), .skip = view(m, s->x), .skip_scale = skip_scale(m, s)});
}

static kr_tensor fused_prime_network(const maker *m, int64_t b, int64_t n, kr_tensor x, const stage_skip *s) {
  const int64_t C = m->c->C, J = m->c->n_kernels, H = J * C;
  char prefix[MAX_PREFIX];
  int64_t n_taps = 0;
  snprintf(prefix, sizeof prefix, "sequence_block.%lld.freq_stage.%lld.1.", (long long)b, (long long)n);
  for (int64_t j = 0; j < J; j++) n_taps += m->c->kernels[j];
  const pk_wrap_p w = wrap_of(m, "freq_stage", b, n, H);
  kr_tensor bias, out_bias = w.out_b;
  const kr_tensor in = behind_norm(m, matrix(m, w.in_w), w.in_b, w.norm_w, w.norm_b, &bias),
                  out_weight = beta_times(m, w.beta, matrix(m, w.out_w), &out_bias),
                  taps = turned(m, new_tensor(m, KR_DIMS(n_taps, C))),
                  gate_taps = turned(m, new_tensor(m, KR_DIMS(n_taps, C))), taps_bias = new_tensor(m, KR_DIMS(H)),
                  gate_bias = new_tensor(m, KR_DIMS(H)), weight = new_tensor(m, KR_DIMS(H, C)),
                  weight_bias = new_tensor(m, KR_DIMS(H)), out = new_like(m, x);
  for (int64_t j = 0, first = 0; j < J; first += m->c->kernels[j++]) {
    const int64_t K = m->c->kernels[j], number = K;
    pk_prime_p p;
    KR_PK_PRIME_KEYS(READ)
    copy(m, "taps", reshape(m, p.attn_taps, KR_DIMS(C, K)), columns(m, taps, first, K));
    copy(m, "taps", reshape(m, p.conv_taps, KR_DIMS(C, K)), columns(m, gate_taps, first, K));
    copy(m, "taps", p.attn_taps_b, kr_graph_slice(m->g, taps_bias, 0, j * C, C));
    copy(m, "taps", p.conv_taps_b, kr_graph_slice(m->g, gate_bias, 0, j * C, C));
    copy(m, "mix", matrix(m, p.attn_w), kr_graph_slice(m->g, weight, 0, j * C, C));
    copy(m, "mix", p.attn_b, kr_graph_slice(m->g, weight_bias, 0, j * C, C));
  }
  const kr_tensor chunks =
      map_product(m, "in", x, in, bias, (krait_map_product_args){.call.flags = KRAIT_MAP_NORM});
  krait_filter_bank_args a = {.call.flags = (m->one_sided ? KRAIT_FILTER_BANK_ONE_SIDED : 0) |
                                            (m->io->fused == KR_PK_HALF_FACTORS ? KRAIT_FILTER_BANK_TF32 : 0),
                              .J = J,
                              .x = view(m, chunks),
                              .taps = view(m, taps),
                              .taps_bias = view(m, taps_bias),
                              .gate_taps = view(m, gate_taps),
                              .gate_bias = view(m, gate_bias),
                              .weight = view(m, laid_out(m, weight)),
                              .weight_bias = view(m, weight_bias),
                              .out_weight = view(m, laid_out(m, out_weight)),
                              .out_bias = view(m, out_bias),
                              .residual = view(m, x),
                              .skip = view(m, s->x),
                              .skip_scale = skip_scale(m, s),
                              .out = view(m, out)};
  for (int64_t j = 0; j < J; j++) (&a.K1)[j] = m->c->kernels[j];
  return kr_graph_call(m->g, "prime", &kr_op_filter_bank, &a);
}

/* A stage with at least one part, over rows. */
static kr_tensor fused_stage(const maker *m, int64_t b, int along_time, kr_tensor beta, kr_tensor rows) {
  const int64_t n_parts = along_time ? m->c->n_time : m->c->n_freq;
  const kr_tensor x = reshape(m, rows, KR_DIMS(m->B, m->c->F2, m->T, m->c->C));
  kr_tensor y = x;
  for (int64_t n = 0; n < n_parts; n++) {
    const stage_skip s = {n + 1 == n_parts ? x : 0, beta};
    const kr_tensor attended = fused_attention(m, along_time ? "time_stage" : "freq_stage", b, n, along_time, y);
    y = along_time ? fused_time_network(m, b, n, attended, &s) : fused_prime_network(m, b, n, attended, &s);
  }
  return reshape(m, y, kr_graph_dims(m->g, rows));
}

static pk_block_p skips(const maker *m, int64_t b) {
  const int64_t C = m->c->C, number = 0;
  char prefix[MAX_PREFIX];
  pk_block_p p;
  snprintf(prefix, sizeof prefix, "sequence_block.%lld.", (long long)b);
  KR_PK_BLOCK_KEYS(READ)
  return p;
}

/* Into out, of as many elements in any strides, or a new tensor. */
static kr_tensor stage(const maker *given, int64_t b, int along_time, const pk_block_p *p, kr_tensor x,
                       kr_tensor out) {
  maker own = *given;
  const maker *m = &own;
  own.one_sided = given->one_sided && (along_time || !given->c->streams);
  const int64_t n_parts = along_time ? m->c->n_time : m->c->n_freq, rows = m->B * m->c->F2 * m->T;
  kr_tensor y = x;
  if (m->io->fused && n_parts) return fused_stage(m, b, along_time, along_time ? p->beta_t : p->beta_f, x);
  for (int64_t n = 0; n < n_parts; n++) {
    const kr_tensor attended =
        part_of(m, y, attention(m, along_time ? "time_stage" : "freq_stage", b, n, along_time, y));
    y = part_of(m, attended, along_time ? time_network(m, b, n, attended) : prime_network(m, b, n, attended));
  }
  const char *name = along_time ? "time_skip" : "freq_skip";
  const kr_tensor skip = multiply(m, name, x, beside(m, along_time ? p->beta_t : p->beta_f, rows));
  if (!out) return add(m, name, y, skip);
  const kr_dims dims = kr_graph_dims(m->g, out);
  kr_graph_pointwise(m->g, name, (krait_pointwise_args){.x_scale = 1, .y_scale = 1}, reshape(m, y, dims),
                     reshape(m, skip, dims), out);
  return out;
}

/* A stage of a slice: positions' sequences along time, or frames. */
typedef struct stage_part {
  const maker *m;
  int64_t block;
  int along_time;
} stage_part;

static void stage_slice(void *user, kr_graph *g, kr_tensor x, kr_tensor out) {
  const stage_part *part = user;
  const kr_dims dims = kr_graph_dims(g, x), rows = KR_DIMS(dims.size[0] * dims.size[1], dims.size[2]);
  kr_pk_config piece = *part->m->c;
  maker own = *part->m;
  own.g = g, own.is_piece = 1, own.c = &piece, own.T = dims.size[1], piece.F2 = dims.size[0];
  const pk_block_p p = skips(&own, part->block);
  const kr_tensor copied = new_tensor(&own, dims);
  copy(&own, "piece", x, copied); /* out is x */
  stage(&own, part->block, part->along_time, &p, reshape(&own, copied, rows), out);
}

/* Positions of a slice along time: of a recurrence as many as it takes at once. */
enum { SEQUENCES = 4 };

/* The blocks in place, x (1,F2,T,C). */
static void blocks_in_slices(const maker *m, kr_tensor x) {
  const kr_tensor map = reshape(m, x, KR_DIMS(m->c->F2, m->T, m->c->C));
  for (int64_t b = 0; b < m->c->n_blocks; b++)
    for (int along_time = 1; along_time >= 0; along_time--) {
      stage_part part = {m, b, along_time};
      const int64_t n = along_time && m->c->stage != KR_PK_MAMBA ? SEQUENCES : 1;
      kr_graph_each(m->g, along_time ? "time_stage" : "freq_stage", !along_time, n, stage_slice, &part, map, map);
    }
}

void kr_pk_graph_record(kr_graph *g, const kr_pk_config *config, kr_pk_parameter_fn *parameter, void *user,
                        kr_pk_graph *io) {
  if (kr_graph_status(g) < 0) return;
  const kr_dims in = kr_graph_dims(g, io->com_in), plane = KR_DIMS(in.size[0], in.size[1], in.size[2]);
  const maker m = {.g = g,
                   .c = config,
                   .parameter = parameter,
                   .user = user,
                   .io = io,
                   .B = in.size[0],
                   .T = in.size[2],
                   .dtype = kr_graph_dtype(g, io->com_in),
                   .rows_dtype = io->halves ? io->halves : kr_graph_dtype(g, io->com_in),
                   .one_sided = config->causal};
#define PART(tensor, k) view(&m, reshape(&m, kr_graph_slice(g, tensor, 3, k, 1), plane))
  /* rows of two in rows of four, which are aligned */
  const kr_tensor features =
      kr_graph_slice(g, io->in_slices ? new_frames(&m, in.size[1], 4)
                                        : new_tensor(&m, KR_DIMS(in.size[0], in.size[1], in.size[2], 4)), 3, 0, 2);
  kr_graph_call(g, "features", &kr_op_to_polar,
                &(krait_to_polar_args){.power = 1,
                                       .re = PART(io->com_in, 0),
                                       .im = PART(io->com_in, 1),
                                       .mag = PART(features, 0),
                                       .pha = PART(features, 1)});
  io->mag_in = reshape(&m, kr_graph_slice(g, features, 3, 0, 1), plane);
  if (!io->mag) io->mag = new_tensor(&m, plane);
  if (!io->pha) io->pha = new_tensor(&m, plane);
  kr_tensor x = encoder(&m, features);
  if (io->in_slices) blocks_in_slices(&m, x);
  for (int64_t b = 0; b < config->n_blocks && !io->in_slices; b++) {
    const pk_block_p p = skips(&m, b);
    x = reshape(&m, x, KR_DIMS(m.B * config->F2 * m.T, config->C));
    x = stage(&m, b, 0, &p, stage(&m, b, 1, &p, x, 0), 0);
  }
  x = reshape(&m, x, KR_DIMS(m.B, config->F2, m.T, config->C));
  if (io->fused) kr_graph_lane(g, 2);
  mask_decoder(&m, x, io->mag_in, io->mag);
  if (io->fused) kr_graph_lane(g, 1);
  phase_decoder(&m, x, io->pha);
  kr_graph_lane(g, 0);
  if (io->com)
    kr_graph_call(g, "com", &kr_op_from_polar,
                  &(krait_from_polar_args){.power = 1,
                                           .mag = view(&m, io->mag),
                                           .pha = view(&m, io->pha),
                                           .re = PART(io->com, 0),
                                           .im = PART(io->com, 1)});
#undef PART
}

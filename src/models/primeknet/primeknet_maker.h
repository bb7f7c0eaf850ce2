/* primeknet_maker.h: the words in which primeknet_graph.c and primeknet_stages.c record PrimeKnet: its parameters by
 * the table of keys, and calls that both use. */
#ifndef KR_PRIMEKNET_MAKER_H
#define KR_PRIMEKNET_MAKER_H

#include <krait/blocks.h>
#include <stdio.h>
#include <string.h>

#include "op_list.h"
#include "primeknet_graph.h"
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

static inline kr_tensor take(const maker *m, const char *prefix, const char *key, int64_t number, kr_dims dims) {
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

static inline krait_view view(const maker *m, kr_tensor t) { return kr_graph_view(m->g, t); }
static inline kr_tensor reshape(const maker *m, kr_tensor t, kr_dims dims) { return kr_graph_reshape(m->g, t, dims); }
static inline kr_tensor new_tensor(const maker *m, kr_dims dims) { return kr_graph_temp(m->g, m->dtype, dims); }
static inline kr_tensor new_rows(const maker *m, kr_dims dims) { return kr_graph_temp(m->g, m->rows_dtype, dims); }
/* (B,F,T,C) as (B,T,F,C), and back. */
static inline kr_tensor framewise(const maker *m, kr_tensor x) {
  return kr_graph_permute(m->g, x, (int[]){0, 2, 1, 3});
}
/* A map that lies frame by frame. */
static inline kr_tensor new_frames(const maker *m, int64_t F, int64_t C) {
  return framewise(m, new_rows(m, KR_DIMS(m->B, m->T, F, C)));
}
/* A parameter that there was no memory for has no type; the graph fails behind it. */
static inline int32_t type_of(const maker *m, kr_tensor x) { return x ? kr_graph_dtype(m->g, x) : m->dtype; }
static inline kr_tensor new_like(const maker *m, kr_tensor x) {
  return kr_graph_temp(m->g, type_of(m, x), kr_graph_dims(m->g, x));
}
static inline kr_tensor columns(const maker *m, kr_tensor rows, int64_t from, int64_t n) {
  return kr_graph_slice(m->g, rows, 1, from, n);
}
static inline kr_tensor turned(const maker *m, kr_tensor t) { return kr_graph_permute(m->g, t, (int[]){1, 0}); }

static inline void copy(const maker *m, const char *name, kr_tensor from, kr_tensor to) {
  kr_graph_pointwise(m->g, name, (krait_pointwise_args){.x_scale = 1}, from, 0, to);
}

/* In another type, if it has not that already. */
static inline kr_tensor cast(const maker *m, const char *name, kr_tensor x, int32_t dtype) {
  if (!x || kr_graph_dtype(m->g, x) == dtype) return x;
  const kr_tensor out = kr_graph_temp(m->g, dtype, kr_graph_dims(m->g, x));
  copy(m, name, x, out);
  return out;
}

/* A weight as products of these rows take it; its gradient stays as it is. */
static inline kr_tensor factor_for(const maker *m, kr_tensor rows, kr_tensor weight) {
  if (!weight || type_of(m, rows) == kr_graph_dtype(m->g, weight)) return weight;
  const kr_tensor factor = cast(m, "factor", weight, type_of(m, rows));
  kr_graph_wide_gradient(m->g, factor);
  return factor;
}

static inline kr_tensor add(const maker *m, const char *name, kr_tensor x, kr_tensor y) {
  const kr_tensor out = new_like(m, x);
  kr_graph_pointwise(m->g, name, (krait_pointwise_args){.x_scale = 1, .y_scale = 1}, x, y, out);
  return out;
}

/* out, or a new tensor like x. */
static inline kr_tensor multiply_into(const maker *m, const char *name, kr_tensor x, kr_tensor y, kr_tensor out) {
  if (!out) out = new_like(m, x);
  kr_graph_pointwise(m->g, name, (krait_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .x_scale = 1}, x, y,
                     out);
  return out;
}
static inline kr_tensor multiply(const maker *m, const char *name, kr_tensor x, kr_tensor y) {
  return multiply_into(m, name, x, y, 0);
}

/* A vector beside every row. */
static inline kr_tensor beside(const maker *m, kr_tensor v, int64_t rows) {
  const kr_dims d = kr_graph_dims(m->g, v);
  int64_t n = 1;
  for (int i = 0; i < d.n; i++) n *= d.size[i];
  return kr_graph_spread(m->g, reshape(m, v, KR_DIMS(1, n)), KR_DIMS(rows, n));
}

/* rows times a weight (outputs, inputs), plus bias, plus residual; into out or a new tensor. */
static inline kr_tensor product(const maker *m, const char *name, kr_tensor rows, kr_tensor weight, kr_tensor bias,
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
static inline kr_tensor matrix(const maker *m, kr_tensor weight) {
  const kr_dims d = kr_graph_dims(m->g, weight);
  return reshape(m, weight, KR_DIMS(d.size[0], d.size[1]));
}

/* Gradients may compute t again: it is large, and what it comes from is there. */
static inline kr_tensor not_kept(const maker *m, kr_tensor t) {
  if (m->io->recompute) kr_graph_recompute(m->g, t);
  return t;
}

/* y comes from x through a part of the model that gradients may run again. */
static inline kr_tensor part_of(const maker *m, kr_tensor x, kr_tensor y) {
  if (m->io->recompute) kr_graph_recompute_since(m->g, x, y);
  return y;
}

static inline kr_tensor channel_norm(const maker *m, kr_tensor rows, kr_tensor weight, kr_tensor bias) {
  return kr_graph_call(
      m->g, "norm", &kr_op_add_norm,
      &(krait_add_norm_args){
          .eps = 1e-6f, .x = view(m, rows), .weight = view(m, weight), .bias = view(m, bias), .out = kr_graph_ask()});
}

/* ---- frames of the runs before ---- */

/* What n frames of the past stand before in a state (B, ., n + T, C); or, without a past, just frames. */
static inline kr_tensor room_with_past(const maker *m, const char *name, kr_dims dims, int64_t n) {
  if (!m->io->has_past) return new_rows(m, dims);
  dims.size[2] += n;
  return kr_graph_state(m->g, name, m->rows_dtype, dims);
}
static inline kr_tensor newest(const maker *m, kr_tensor room) {
  return kr_graph_slice(m->g, room, 2, kr_graph_dims(m->g, room).size[2] - m->T, m->T);
}

/* Behind the last call that reads it: its last n frames become the first, a piece at a time that does not overlap. */
static inline void keep_past(const maker *m, kr_tensor room, int64_t n) {
  for (int64_t k = 0; k < n && m->io->has_past; k += m->T) {
    const int64_t some = n - k < m->T ? n - k : m->T;
    copy(m, "past", kr_graph_slice(m->g, room, 2, m->T + k, some), kr_graph_slice(m->g, room, 2, k, some));
  }
}

/* A state that one call reads and another tensor of it becomes. */
static inline kr_tensor state_of(const maker *m, const char *name, kr_dims dims, kr_tensor *next) {
  *next = m->io->has_past ? new_tensor(m, dims) : 0;
  return m->io->has_past ? kr_graph_state(m->g, name, m->dtype, dims) : 0;
}

/* One filter a channel over x (B,F,T,C): taps (C,1,along frequency) or (C,1,along time,along frequency). */
static inline kr_tensor filter(const maker *m, const char *name, kr_tensor x, kr_tensor taps, kr_tensor bias,
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

/* A weight (outputs, inputs) as fused products take it: rows of float16, or outputs side by side. */
static inline kr_tensor laid_out(const maker *m, kr_tensor weight) {
  const kr_dims d = kr_graph_dims(m->g, weight);
  const int halves = m->io->fused == KR_PK_HALF_FACTORS;
  const kr_tensor to = halves ? kr_graph_temp(m->g, KRAIT_F16, d)
                              : turned(m, kr_graph_temp(m->g, KRAIT_F32, KR_DIMS(d.size[1], d.size[0])));
  copy(m, "factor", weight, to);
  return to;
}
/* Taps (channels, k) with the channels of a tap side by side. */
static inline kr_tensor by_taps(const maker *m, kr_tensor taps) {
  const kr_dims d = kr_graph_dims(m->g, taps);
  const kr_tensor to = turned(m, new_tensor(m, KR_DIMS(d.size[1], d.size[0])));
  copy(m, "taps", taps, to);
  return to;
}

/* A stage of block b along time or frequency (primeknet_stages.c) and its skip, x: rows (B F2 T, C); into out, of as
 * many elements in any strides, or a new tensor. */
kr_tensor pk_stage(const maker *m, int64_t b, int along_time, kr_tensor beta, kr_tensor x, kr_tensor out);

#endif

/* builder.h: shorthands of graph builders for rows and maps: rows (n, C) are the positions of a map (B,F,T,C), in that
 * order. */
#ifndef KR_BUILDER_H
#define KR_BUILDER_H

#include "map_blocks.h"
#include "primeknet_ops.h"

static inline int is_fused(const kr_builder *w) { return w->mode >= KR_BUILD_FUSED_F32; }
static inline int has_halves(const kr_builder *w) { return w->mode == KR_BUILD_FUSED_F16; }

/* ---- tensors and views ---- */

static inline kr_view view(const kr_builder *w, kr_tensor t) { return kr_graph_view(w->g, t); }
static inline kr_dims dims_of(const kr_builder *w, kr_tensor t) { return kr_graph_dims(w->g, t); }
static inline kr_tensor reshape(const kr_builder *w, kr_tensor t, kr_dims dims) {
  return kr_graph_reshape(w->g, t, dims);
}
static inline kr_tensor new_tensor(const kr_builder *w, kr_dims dims) { return kr_graph_temp(w->g, w->dtype, dims); }
static inline kr_tensor new_rows(const kr_builder *w, kr_dims dims) { return kr_graph_temp(w->g, w->rows_dtype, dims); }
/* A parameter that could not be allocated has no type; the graph fails later. */
static inline int32_t type_of(const kr_builder *w, kr_tensor x) { return x ? kr_graph_dtype(w->g, x) : w->dtype; }
static inline kr_tensor new_like(const kr_builder *w, kr_tensor x) {
  return kr_graph_temp(w->g, type_of(w, x), dims_of(w, x));
}
static inline kr_tensor columns(const kr_builder *w, kr_tensor rows, int64_t from, int64_t n) {
  return kr_graph_slice(w->g, rows, 1, from, n);
}
static inline kr_tensor transposed(const kr_builder *w, kr_tensor t) {
  return t ? kr_graph_permute(w->g, t, (int[]){1, 0}) : 0;
}
/* A kernel of length 1 as a matrix. */
static inline kr_tensor matrix(const kr_builder *w, kr_tensor weight) {
  const kr_dims d = dims_of(w, weight);
  return reshape(w, weight, KR_DIMS(d.size[0], d.size[1]));
}
/* A vector broadcast to every row. */
static inline kr_tensor beside(const kr_builder *w, kr_tensor v, int64_t rows) {
  const kr_dims d = dims_of(w, v);
  int64_t n = 1;
  for (int i = 0; i < d.n; i++) n *= d.size[i];
  return kr_graph_expand(w->g, reshape(w, v, KR_DIMS(1, n)), KR_DIMS(rows, n));
}
/* A vector broadcast to every position. */
static inline kr_tensor at_positions(const kr_builder *w, kr_tensor v, kr_dims map) {
  return kr_graph_expand(w->g, reshape(w, v, KR_DIMS(1, 1, 1, map.size[3])), map);
}

/* Rows as (B,F,T,.) and as sequences along time. */
static inline kr_tensor as_map(const kr_builder *w, kr_tensor rows) {
  return rows ? reshape(w, rows, KR_DIMS(w->B, w->F, w->T, dims_of(w, rows).size[1])) : 0;
}
static inline kr_tensor as_sequences(const kr_builder *w, kr_tensor rows) {
  return reshape(w, rows, KR_DIMS(w->B * w->F, w->T, dims_of(w, rows).size[1]));
}
/* (B,F,T,C) as (B,T,F,C), and back. */
static inline kr_tensor framewise(const kr_builder *w, kr_tensor x) {
  return kr_graph_permute(w->g, x, (int[]){0, 2, 1, 3});
}
/* A map, frame by frame in that mode. */
static inline kr_tensor new_map(const kr_builder *w, int64_t F, int64_t C) {
  return w->mode == KR_BUILD_PER_FRAME ? framewise(w, new_rows(w, KR_DIMS(w->B, w->T, F, C)))
                                : new_rows(w, KR_DIMS(w->B, F, w->T, C));
}
/* A map's rows in memory order; and a map of such rows, laid out like `like`. */
static inline kr_tensor rows_of(const kr_builder *w, kr_tensor map) {
  const kr_dims d = dims_of(w, map), rows = KR_DIMS(d.size[0] * d.size[1] * d.size[2], d.size[3]);
  return reshape(w, kr_graph_can_reshape(w->g, map, rows) ? map : framewise(w, map), rows);
}
static inline kr_tensor map_of(const kr_builder *w, kr_tensor rows, kr_tensor like) {
  const kr_dims d = dims_of(w, like), all = KR_DIMS(d.size[0] * d.size[1] * d.size[2], d.size[3]);
  const int64_t n = dims_of(w, rows).size[1];
  if (kr_graph_can_reshape(w->g, like, all)) return reshape(w, rows, KR_DIMS(d.size[0], d.size[1], d.size[2], n));
  return framewise(w, reshape(w, rows, KR_DIMS(d.size[0], d.size[2], d.size[1], n)));
}

/* ---- calls ---- */

static inline void copy(const kr_builder *w, const char *name, kr_tensor from, kr_tensor to) {
  kr_graph_pointwise(w->g, name, (kr_pointwise_args){.x_scale = 1}, from, 0, to);
}

/* Converts to dtype if necessary. */
static inline kr_tensor cast(const kr_builder *w, const char *name, kr_tensor x, int32_t dtype) {
  if (!x || kr_graph_dtype(w->g, x) == dtype) return x;
  const kr_tensor out = kr_graph_temp(w->g, dtype, dims_of(w, x));
  copy(w, name, x, out);
  return out;
}

/* A weight in the type needed with 16-bit rows; its gradient keeps the weight's type. */
static inline kr_tensor factor_for(const kr_builder *w, kr_tensor rows, kr_tensor weight) {
  const int32_t type = type_of(w, rows);
  if (!weight || type == kr_graph_dtype(w->g, weight) || krait_dtype_bytes(type) != 2) return weight;
  const kr_tensor factor = cast(w, "factor", weight, type);
  kr_graph_wide_gradient(w->g, factor);
  return factor;
}

static inline kr_tensor add(const kr_builder *w, const char *name, kr_tensor x, kr_tensor y) {
  const kr_tensor out = new_like(w, x);
  kr_graph_pointwise(w->g, name, (kr_pointwise_args){.x_scale = 1, .y_scale = 1}, x, y, out);
  return out;
}

/* Into out, or a new tensor like x. */
static inline kr_tensor multiply_into(const kr_builder *w, const char *name, kr_tensor x, kr_tensor y, kr_tensor out) {
  if (!out) out = new_like(w, x);
  kr_graph_pointwise(w->g, name, (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .x_scale = 1}, x, y,
                     out);
  return out;
}
static inline kr_tensor multiply(const kr_builder *w, const char *name, kr_tensor x, kr_tensor y) {
  return multiply_into(w, name, x, y, 0);
}

/* rows times a weight (outputs, inputs), plus bias, plus residual; into out or a new tensor. */
static inline kr_tensor product(const kr_builder *w, const char *name, kr_tensor rows, kr_tensor weight, kr_tensor bias,
                                kr_tensor residual, kr_tensor out) {
  if (!out) out = kr_graph_temp(w->g, type_of(w, rows), KR_DIMS(dims_of(w, rows).size[0], dims_of(w, weight).size[0]));
  return kr_graph_call(w->g, name, &kr_op_gemm,
                       &(kr_gemm_args){.call.flags = w->has_tf32 ? KRAIT_GEMM_TF32 : 0,
                                          .A = view(w, rows),
                                          .Bmat = view(w, transposed(w, factor_for(w, rows, weight))),
                                          .bias = view(w, bias),
                                          .residual = view(w, residual),
                                          .out = view(w, out)});
}

static inline kr_tensor channel_norm(const kr_builder *w, kr_tensor rows, kr_tensor weight, kr_tensor bias, float eps) {
  return kr_graph_call(
      w->g, "norm", &kr_op_add_norm,
      &(kr_add_norm_args){
          .eps = eps, .x = view(w, rows), .weight = view(w, weight), .bias = view(w, bias), .out = kr_graph_auto()});
}

/* Depthwise filter over x (B,F,T,C): taps (C,1,along frequency) or (C,1,along time,along frequency); into out or a new
 * tensor. */
static inline kr_tensor filter(const kr_builder *w, const char *name, kr_tensor x, kr_tensor taps, kr_tensor bias,
                               int64_t time_dilation, kr_tensor out) {
  const kr_dims d = dims_of(w, taps);
  if (d.n == 0) return 0; /* the graph has already failed */
  const int64_t KH = d.size[d.n - 1], KW = d.n == 4 ? d.size[2] : 1;
  kr_tensor weight = kr_graph_permute(w->g, reshape(w, taps, KR_DIMS(d.size[0], KW, KH)), (int[]){0, 2, 1});
  if (w->has_past) { /* constants: laid out once, not for every frame */
    const kr_tensor laid = kr_graph_permute(w->g, new_tensor(w, KR_DIMS(KH, KW, d.size[0])), (int[]){2, 0, 1});
    copy(w, "taps", weight, laid);
    weight = laid;
  }
  return kr_graph_call(w->g, name, &kr_op_depthwise_conv,
                       &(kr_depthwise_conv_args){.DH = 1,
                                                    .DW = time_dilation,
                                                    .PH = w->one_sided && d.n == 3 ? KH - 1 : (KH - 1) / 2,
                                                    .PW = (w->one_sided ? KW - 1 : (KW - 1) / 2) * time_dilation,
                                                    .x = view(w, x),
                                                    .weight = view(w, weight),
                                                    .bias = view(w, bias),
                                                    .out = view(w, out ? out : new_rows(w, dims_of(w, x)))});
}

/* A weight (outputs, inputs) in the fused products' layout: float16 rows, or contiguous outputs. */
static inline kr_tensor laid_out(const kr_builder *w, kr_tensor weight) {
  const kr_dims d = dims_of(w, weight);
  const kr_tensor to = has_halves(w) ? kr_graph_temp(w->g, KRAIT_F16, d)
                                     : transposed(w, kr_graph_temp(w->g, KRAIT_F32, KR_DIMS(d.size[1], d.size[0])));
  copy(w, "factor", weight, to);
  return to;
}
/* Taps (channels, k), transposed: contiguous channels per tap. */
static inline kr_tensor by_taps(const kr_builder *w, kr_tensor taps) {
  const kr_dims d = dims_of(w, taps);
  const kr_tensor to = transposed(w, new_tensor(w, KR_DIMS(d.size[1], d.size[0])));
  copy(w, "taps", taps, to);
  return to;
}

/* ---- what gradients recompute ---- */

/* They may recompute t: it is large, and its inputs are available. */
static inline kr_tensor not_kept(const kr_builder *w, kr_tensor t) {
  if (w->recompute) kr_graph_recompute(w->g, t);
  return t;
}
/* Marks the part of the model from x to y for recomputation. */
static inline kr_tensor part_of(const kr_builder *w, kr_tensor x, kr_tensor y) {
  if (w->recompute) kr_graph_recompute_since(w->g, x, y);
  return y;
}

/* ---- frames of earlier runs ---- */

/* Space for frames preceded by n past ones, in a state (B, ., n + T, C); without a past, for the frames only. */
static inline kr_tensor room_with_past(const kr_builder *w, const char *name, kr_dims dims, int64_t n) {
  if (!w->has_past) return new_rows(w, dims);
  dims.size[2] += n;
  return kr_graph_state(w->g, name, w->rows_dtype, dims);
}
static inline kr_tensor newest(const kr_builder *w, kr_tensor capacity) {
  return kr_graph_slice(w->g, capacity, 2, dims_of(w, capacity).size[2] - w->T, w->T);
}
/* After the last call that reads it: moves its last n frames to the front, in non-overlapping pieces. */
static inline void keep_past(const kr_builder *w, kr_tensor capacity, int64_t n) {
  for (int64_t k = 0; k < n && w->has_past; k += w->T) {
    const int64_t some = n - k < w->T ? n - k : w->T;
    copy(w, "past", kr_graph_slice(w->g, capacity, 2, w->T + k, some), kr_graph_slice(w->g, capacity, 2, k, some));
  }
}

#endif

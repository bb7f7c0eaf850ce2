/* map_product_graph.c: products with what surrounds them as one call, or one by one; map_product as a graph of norm,
 * convolution, product and sums, in its reference row on the operators' reference rows, in float64 between two of
 * them. */
#include "graph_kept.h"
#include "map_product/map_product_rows.h"
#include "words.h"

typedef krait_map_product_args product_args;

/* ---- what models record ---- */

kr_tensor kr_map_product_record(const kr_words *w, const char *name, kr_tensor rows, kr_tensor weight, kr_tensor bias,
                                product_args a) {
  const int64_t M = dims_of(w, weight).size[0] / (a.call.flags & KRAIT_MAP_GATE ? 2 : 1);
  const kr_tensor out = a.out.data ? 0 : new_tensor(w, KR_DIMS(dims_of(w, rows).size[0], M));
  if (has_halves(w)) a.call.flags |= KRAIT_MAP_TF32;
  a.eps = 1e-6f;
  a.x = view(w, as_map(w, rows)), a.weight = view(w, laid_out(w, weight)), a.bias = view(w, bias);
  if (out) a.out = view(w, as_map(w, out));
  kr_graph_call(w->g, name, &kr_op_map_product, &a);
  return out;
}

/* Of a gate's two halves in pairs: (2C,inputs) or (2C). */
static kr_tensor in_pairs(const kr_words *w, kr_tensor t) {
  const kr_dims d = dims_of(w, t);
  const int64_t C = d.size[0] / 2, inputs = d.n > 1 ? d.size[1] : 1;
  const kr_tensor pairs = new_tensor(w, KR_DIMS(C, 2, inputs));
  copy(w, "pairs", kr_graph_permute(w->g, reshape(w, t, KR_DIMS(2, C, inputs)), (int[]){1, 0, 2}), pairs);
  return reshape(w, pairs, d);
}

kr_tensor kr_behind_norm_record(const kr_words *w, kr_tensor norm_weight, kr_tensor norm_bias, kr_tensor weight,
                                kr_tensor *bias) {
  const kr_dims d = dims_of(w, weight);
  const kr_tensor both = product(w, "norm_bias", reshape(w, norm_bias, KR_DIMS(1, d.size[1])), weight, *bias, 0, 0);
  *bias = reshape(w, both, KR_DIMS(d.size[0]));
  return multiply(w, "norm_weight", weight, beside(w, norm_weight, d.size[0]));
}

kr_tensor kr_normed_product_record(const kr_words *w, const char *name, kr_tensor x, kr_tensor norm_weight,
                                   kr_tensor norm_bias, kr_tensor weight, kr_tensor bias, product_args a) {
  if (!is_fused(w))
    return product(w, name, not_kept(w, channel_norm(w, x, norm_weight, norm_bias)), weight, bias, 0, 0);
  weight = kr_behind_norm_record(w, norm_weight, norm_bias, weight, &bias);
  if (a.call.flags & KRAIT_MAP_GATE) weight = in_pairs(w, weight), bias = in_pairs(w, bias);
  a.call.flags |= KRAIT_MAP_NORM;
  return kr_map_product_record(w, name, x, weight, bias, a);
}

kr_tensor kr_scaled_weight_record(const kr_words *w, const kr_back_product *b, kr_tensor *bias) {
  const kr_dims d = dims_of(w, b->weight);
  const kr_tensor weight =
      turned(w, multiply(w, "scale_weight", turned(w, b->weight), beside(w, b->beta, d.size[1])));
  *bias = multiply(w, "scale_bias", b->bias, reshape(w, b->beta, KR_DIMS(d.size[0])));
  return weight;
}

kr_tensor kr_back_record(const kr_words *w, kr_tensor h, const kr_back_product *b) {
  kr_tensor bias, weight = kr_scaled_weight_record(w, b, &bias);
  if (!is_fused(w)) return product(w, "out", h, weight, bias, b->x, 0);
  return kr_map_product_record(
      w, "out", h, weight, bias,
      (product_args){.factors = view(w, b->factors),
                     .residual = view(w, as_map(w, b->x)),
                     .skip = view(w, as_map(w, b->skip)),
                     .skip_scale = view(w, b->skip ? reshape(w, b->skip_scale, KR_DIMS(dims_of(w, weight).size[0])) : 0)});
}

kr_tensor kr_few_products_record(const kr_words *w, const char *name, kr_tensor rows, kr_tensor weight, kr_tensor bias,
                                 kr_tensor out) {
  const kr_dims d = dims_of(w, rows);
  if (!is_fused(w)) return product(w, name, rows, weight, bias, 0, out);
  const int64_t n = d.size[0], N = dims_of(w, weight).size[0];
  if (!out) out = new_tensor(w, KR_DIMS(n, N));
  kr_graph_call(w->g, name, &kr_op_map_product,
                &(product_args){.eps = 1e-6f,
                                .x = view(w, reshape(w, rows, KR_DIMS(1, 1, n, d.size[1]))),
                                .weight = view(w, weight),
                                .bias = view(w, bias),
                                .out = view(w, reshape(w, out, KR_DIMS(1, 1, n, N)))});
  return out;
}

/* ---- the operator's rows ---- */

/* x factor + y summand, or x y. */
static kr_tensor combined(kr_graph *g, const char *name, uint32_t flags, kr_tensor x, kr_tensor y, kr_tensor out) {
  kr_graph_pointwise(g, name, (krait_pointwise_args){.call.flags = flags, .x_scale = 1, .y_scale = 1}, x, y, out);
  return out;
}
static kr_tensor spread(kr_graph *g, kr_tensor v, kr_dims map) {
  return v ? kr_graph_spread(g, kr_graph_reshape(g, v, KR_DIMS(1, 1, 1, map.size[3])), map) : 0;
}

/* silu of a causal convolution along W; a copy of it is conv_out. */
static kr_tensor convolved(kr_graph *g, const product_args *a, int32_t dtype, kr_tensor x, kr_tensor weight,
                           kr_tensor bias, kr_tensor conv_out) {
  const kr_dims rows = KR_DIMS(a->B * a->H, a->W, a->C);
  const kr_tensor made = kr_graph_temp(g, dtype, KR_DIMS(a->B, a->H, a->W, a->C));
#define CHANNELS(t) kr_graph_view(g, kr_graph_permute(g, kr_graph_reshape(g, t, rows), (int[]){0, 2, 1}))
  kr_graph_call(g, "convolution", &kr_op_causal_conv1d,
                &(krait_causal_conv1d_args){.activation = KRAIT_ACT_SILU,
                                            .x = CHANNELS(x),
                                            .weight = kr_graph_view(g, weight),
                                            .bias = kr_graph_view(g, bias),
                                            .out = CHANNELS(made)});
#undef CHANNELS
  return kr_graph_pointwise(g, "conv_out", (krait_pointwise_args){.x_scale = 1}, made, 0, conv_out), made;
}

static void record(kr_graph *g, const void *args, int32_t dtype) {
  const product_args *a = args;
  const int64_t n = a->B * a->H * a->W;
  const kr_dims map = KR_DIMS(a->B, a->H, a->W, a->C), to = KR_DIMS(a->B, a->H, a->W, a->M);
#define INPUT(field, ...) \
  const kr_tensor field = kr_graph_argument(g, a, &a->field, KR_IN, #field, KR_DIMS(__VA_ARGS__))
  INPUT(x, a->B, a->H, a->W, a->C);
  INPUT(factors, a->B, a->H, a->W, a->C);
  INPUT(conv_weight, a->C, a->K);
  INPUT(conv_bias, a->C);
  INPUT(weight, a->N, a->C);
  INPUT(bias, a->N);
  INPUT(residual, a->B, a->H, a->W, a->M);
  INPUT(skip, a->B, a->H, a->W, a->M);
  INPUT(skip_scale, a->M);
#undef INPUT
  const kr_tensor out = kr_graph_argument(g, a, &a->out, KR_OUT, "out", to),
                  conv_out = kr_graph_argument(g, a, &a->conv_out, KR_OUT, "conv_out", map),
                  own = kr_graph_temp(g, dtype, map), made = kr_graph_temp(g, dtype, KR_DIMS(n, a->N));
  kr_tensor v = combined(g, "x", factors ? KRAIT_POINTWISE_PRODUCT : 0, x, factors, own);
  if (conv_weight) v = convolved(g, a, dtype, own, conv_weight, conv_bias, conv_out);
  kr_tensor rows = kr_graph_reshape(g, v, KR_DIMS(n, a->C));
  if (a->call.flags & KRAIT_MAP_NORM)
    rows = kr_graph_call(g, "norm", &kr_op_add_norm,
                         &(krait_add_norm_args){.eps = a->eps,
                                                .x = kr_graph_view(g, rows),
                                                .out = kr_graph_view(g, kr_graph_temp(g, dtype, KR_DIMS(n, a->C)))});
  kr_graph_call(g, "product", &kr_op_gemm,
                &(krait_gemm_args){.call.flags = a->call.flags & KRAIT_MAP_TF32 ? KRAIT_GEMM_TF32 : 0,
                                   .A = kr_graph_view(g, rows),
                                   .Bmat = kr_graph_view(g, kr_graph_permute(g, weight, (int[]){1, 0})),
                                   .bias = kr_graph_view(g, bias),
                                   .out = kr_graph_view(g, made)});
  if (a->call.flags & KRAIT_MAP_SILU) {
    const kr_tensor end = kr_graph_slice(g, made, 1, a->silu_from, a->N - a->silu_from);
    kr_graph_pointwise(g, "silu", (krait_pointwise_args){.activation = KRAIT_ACT_SILU, .x_scale = 1}, end, 0, end);
  }
  kr_tensor y = made;
  if (a->call.flags & KRAIT_MAP_GATE) {
    const kr_tensor pairs = kr_graph_reshape(g, made, KR_DIMS(n, a->M, 2));
    y = combined(g, "gate", KRAIT_POINTWISE_PRODUCT, kr_graph_slice(g, pairs, 2, 0, 1),
                 kr_graph_slice(g, pairs, 2, 1, 1), kr_graph_temp(g, dtype, KR_DIMS(n, a->M, 1)));
  }
  y = kr_graph_reshape(g, y, to);
  if (skip) {
    const kr_tensor scaled = combined(g, "skip", KRAIT_POINTWISE_PRODUCT, skip, spread(g, skip_scale, to),
                                      kr_graph_temp(g, dtype, to));
    y = combined(g, "skip", 0, y, scaled, kr_graph_temp(g, dtype, to));
  }
  combined(g, "residual", 0, y, residual, out);
}

KR_GRAPH_ROW(map_product_composed, map_product, record, KRAIT_F32, 0)
KR_GRAPH_ROW(map_product_ref, map_product, record, KRAIT_F64, KR_PLAN_REFERENCE)

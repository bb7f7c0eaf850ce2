/* map_product_graph.c: products with prologue and epilogue as one call, or as separate ones; map_product as a graph of
 * norm, convolution, product and sums, as the reference implementation on the operators' reference implementations with
 * float64 intermediates. */
#include "graph_kernel_cache.h"
#include "map_product/map_product_impls.h"
#include "builder.h"

typedef kr_map_product_args product_args;

/* ---- what models record ---- */

kr_tensor kr_map_product_record(const kr_builder *w, const char *name, kr_tensor rows, kr_tensor weight, kr_tensor bias,
                                product_args a) {
  const int64_t M = dims_of(w, weight).size[0] / (a.call.flags & KR_MAP_GATE ? 2 : 1);
  const kr_tensor out = a.out.data ? 0 : new_tensor(w, KR_DIMS(dims_of(w, rows).size[0], M));
  if (has_halves(w)) a.call.flags |= KR_MAP_TF32;
  a.eps = KR_CHANNEL_EPS;
  a.x = view(w, as_map(w, rows)), a.weight = view(w, laid_out(w, weight)), a.bias = view(w, bias);
  if (out) a.out = view(w, as_map(w, out));
  kr_graph_call(w->g, name, &kr_op_map_product, &a);
  return out;
}

/* Interleaves a gate's two halves: (2C,inputs) or (2C). */
static kr_tensor in_pairs(const kr_builder *w, kr_tensor t) {
  const kr_dims d = dims_of(w, t);
  const int64_t C = d.size[0] / 2, inputs = d.n > 1 ? d.size[1] : 1;
  const kr_tensor pairs = new_tensor(w, KR_DIMS(C, 2, inputs));
  copy(w, "pairs", kr_graph_permute(w->g, reshape(w, t, KR_DIMS(2, C, inputs)), (int[]){1, 0, 2}), pairs);
  return reshape(w, pairs, d);
}

kr_tensor kr_behind_norm_record(const kr_builder *w, kr_tensor norm_weight, kr_tensor norm_bias, kr_tensor weight,
                                kr_tensor *bias) {
  const kr_dims d = dims_of(w, weight);
  const kr_tensor both = product(w, "norm_bias", reshape(w, norm_bias, KR_DIMS(1, d.size[1])), weight, *bias, 0, 0);
  *bias = reshape(w, both, KR_DIMS(d.size[0]));
  return multiply(w, "norm_weight", weight, beside(w, norm_weight, d.size[0]));
}

kr_tensor kr_normed_product_record(const kr_builder *w, const char *name, kr_tensor x, kr_tensor norm_weight,
                                   kr_tensor norm_bias, kr_tensor weight, kr_tensor bias, product_args a) {
  if (!is_fused(w)) {
    const kr_tensor normed = not_kept(w, channel_norm(w, x, norm_weight, norm_bias, KR_CHANNEL_EPS));
    return product(w, name, normed, weight, bias, 0, 0);
  }
  weight = kr_behind_norm_record(w, norm_weight, norm_bias, weight, &bias);
  if (a.call.flags & KR_MAP_GATE) weight = in_pairs(w, weight), bias = in_pairs(w, bias);
  a.call.flags |= KR_MAP_NORM;
  return kr_map_product_record(w, name, x, weight, bias, a);
}

kr_tensor kr_scaled_weight_record(const kr_builder *w, const kr_back_product *b, kr_tensor *bias) {
  const kr_dims d = dims_of(w, b->weight);
  const kr_tensor weight =
      transposed(w, multiply(w, "scale_weight", transposed(w, b->weight), beside(w, b->beta, d.size[1])));
  *bias = multiply(w, "scale_bias", b->bias, reshape(w, b->beta, KR_DIMS(d.size[0])));
  return weight;
}

kr_tensor kr_back_record(const kr_builder *w, kr_tensor h, const kr_back_product *b) {
  kr_tensor bias, weight = kr_scaled_weight_record(w, b, &bias);
  if (!is_fused(w)) return product(w, "out", h, weight, bias, b->x, 0);
  const kr_dims channels = KR_DIMS(dims_of(w, weight).size[0]);
  return kr_map_product_record(
      w, "out", h, weight, bias,
      (product_args){.factors = view(w, b->factors),
                     .residual = view(w, as_map(w, b->x)),
                     .skip = view(w, as_map(w, b->skip)),
                     .skip_scale = view(w, b->skip ? reshape(w, b->skip_scale, channels) : 0)});
}

kr_tensor kr_few_products_record(const kr_builder *w, const char *name, kr_tensor rows, kr_tensor weight,
                                 kr_tensor bias, kr_tensor out) {
  const kr_dims d = dims_of(w, rows);
  if (!is_fused(w)) return product(w, name, rows, weight, bias, 0, out);
  const int64_t n = d.size[0], N = dims_of(w, weight).size[0];
  if (!out) out = new_tensor(w, KR_DIMS(n, N));
  kr_graph_call(w->g, name, &kr_op_map_product,
                &(product_args){.eps = KR_CHANNEL_EPS,
                                .x = view(w, reshape(w, rows, KR_DIMS(1, 1, n, d.size[1]))),
                                .weight = view(w, weight),
                                .bias = view(w, bias),
                                .out = view(w, reshape(w, out, KR_DIMS(1, 1, n, N)))});
  return out;
}

/* ---- the operator's rows ---- */

void kr_sum_record(const kr_builder *w, kr_tensor y, kr_tensor residual, kr_tensor skip, kr_tensor skip_scale,
                   kr_tensor out) {
  const kr_dims map = dims_of(w, out);
  if (skip) {
    const kr_tensor scaled = new_tensor(w, map);
    y = add(w, "skip", y, multiply_into(w, "skip", skip, at_positions(w, skip_scale, map), scaled));
  }
  kr_graph_pointwise(w->g, "residual", (kr_pointwise_args){.x_scale = 1, .y_scale = 1}, y, residual, out);
}

/* silu of a causal convolution along W; conv_out gets a copy. */
static kr_tensor convolved(const kr_builder *w, kr_tensor x, kr_tensor weight, kr_tensor bias, kr_tensor conv_out) {
  const kr_dims map = dims_of(w, x), rows = KR_DIMS(map.size[0] * map.size[1], map.size[2], map.size[3]);
  const kr_tensor made = new_tensor(w, map);
#define CHANNELS(t) view(w, kr_graph_permute(w->g, reshape(w, t, rows), (int[]){0, 2, 1}))
  kr_graph_call(w->g, "convolution", &kr_op_causal_conv1d,
                &(kr_causal_conv1d_args){.activation = KRAIT_ACT_SILU,
                                            .x = CHANNELS(x),
                                            .weight = view(w, weight),
                                            .bias = view(w, bias),
                                            .out = CHANNELS(made)});
#undef CHANNELS
  return copy(w, "conv_out", made, conv_out), made;
}

static void record_map_product(kr_graph *g, const void *args, int32_t dtype) {
  const product_args *a = args;
  const int64_t n = a->B * a->H * a->W;
  const kr_builder w = {.g = g,
                      .dtype = dtype,
                      .rows_dtype = dtype,
                      .B = a->B,
                      .F = a->H,
                      .T = a->W,
                      .has_tf32 = (a->call.flags & KR_MAP_TF32) != 0};
  KR_GRAPH_INPUT(x, a->B, a->H, a->W, a->C);
  KR_GRAPH_INPUT(factors, a->B, a->H, a->W, a->C);
  KR_GRAPH_INPUT(conv_weight, a->C, a->K);
  KR_GRAPH_INPUT(conv_bias, a->C);
  KR_GRAPH_INPUT(weight, a->N, a->C);
  KR_GRAPH_INPUT(bias, a->N);
  KR_GRAPH_INPUT(residual, a->B, a->H, a->W, a->M);
  KR_GRAPH_INPUT(skip, a->B, a->H, a->W, a->M);
  KR_GRAPH_INPUT(skip_scale, a->M);
  const kr_dims map = KR_DIMS(a->B, a->H, a->W, a->C), to = KR_DIMS(a->B, a->H, a->W, a->M);
  const kr_tensor out = kr_graph_argument(g, a, &a->out, KR_OUT, "out", to),
                  conv_out = kr_graph_argument(g, a, &a->conv_out, KR_OUT, "conv_out", map),
                  own = new_tensor(&w, map);
  if (factors) multiply_into(&w, "x", x, factors, own);
  else copy(&w, "x", x, own);
  kr_tensor rows =
      reshape(&w, conv_weight ? convolved(&w, own, conv_weight, conv_bias, conv_out) : own, KR_DIMS(n, a->C));
  if (a->call.flags & KR_MAP_NORM) rows = channel_norm(&w, rows, 0, 0, a->eps);
  kr_tensor y = product(&w, "product", rows, weight, bias, 0, 0);
  if (a->call.flags & KR_MAP_SILU) {
    const kr_tensor end = columns(&w, y, a->silu_from, a->N - a->silu_from);
    kr_graph_pointwise(g, "silu", (kr_pointwise_args){.activation = KRAIT_ACT_SILU, .x_scale = 1}, end, 0, end);
  }
  if (a->call.flags & KR_MAP_GATE) {
    const kr_tensor pairs = reshape(&w, y, KR_DIMS(n, a->M, 2));
    y = multiply(&w, "gate", kr_graph_slice(g, pairs, 2, 0, 1), kr_graph_slice(g, pairs, 2, 1, 1));
  }
  kr_sum_record(&w, reshape(&w, y, to), residual, skip, skip_scale, out);
}

KR_GRAPH_IMPL(map_product_composed, map_product, record_map_product, KRAIT_F32, 0)
KR_GRAPH_IMPL(map_product_ref, map_product, record_map_product, KRAIT_F64, KR_PLAN_REFERENCE)

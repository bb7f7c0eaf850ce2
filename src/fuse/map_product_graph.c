/* map_product_graph.c: map_product as a graph of norm, convolution, product and sums; in its reference row on the
 * operators' reference rows, in float64 between two of them. */
#include <krait/blocks.h>

#include "graph_kept.h"
#include "map_product/map_product_rows.h"
#include "op_list.h"

typedef krait_map_product_args product_args;

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
                  copy = kr_graph_temp(g, dtype, map), product = kr_graph_temp(g, dtype, KR_DIMS(n, a->N));
  kr_tensor v = combined(g, "x", factors ? KRAIT_POINTWISE_PRODUCT : 0, x, factors, copy);
  if (conv_weight) v = convolved(g, a, dtype, copy, conv_weight, conv_bias, conv_out);
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
                                   .out = kr_graph_view(g, product)});
  if (a->call.flags & KRAIT_MAP_SILU) {
    const kr_tensor end = kr_graph_slice(g, product, 1, a->silu_from, a->N - a->silu_from);
    kr_graph_pointwise(g, "silu", (krait_pointwise_args){.activation = KRAIT_ACT_SILU, .x_scale = 1}, end, 0, end);
  }
  kr_tensor y = product;
  if (a->call.flags & KRAIT_MAP_GATE) {
    const kr_tensor pairs = kr_graph_reshape(g, product, KR_DIMS(n, a->M, 2));
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

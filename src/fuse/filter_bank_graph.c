/* filter_bank_graph.c: filter_bank as a graph of filters and products; in its reference row on the operators' reference
 * rows, in float64 between two of them. */
#include <krait/blocks.h>

#include "filter_bank/filter_bank_rows.h"
#include "graph_kept.h"
#include "op_list.h"

typedef krait_filter_bank_args bank_args;

static kr_tensor input(kr_graph *g, const bank_args *a, const krait_view *view, const char *name, kr_dims dims) {
  return kr_graph_argument(g, a, view, KR_IN, name, dims);
}

/* A filter a channel of taps (C,K) over x (B,H,W,C). */
static kr_tensor filter(kr_graph *g, const bank_args *a, kr_tensor x, kr_tensor taps, kr_tensor bias, int32_t dtype) {
  const int64_t K = kr_graph_dims(g, taps).size[1];
  return kr_graph_call(
      g, "filter", &kr_op_depthwise_conv,
      &(krait_depthwise_conv_args){
          .DH = 1,
          .DW = 1,
          .PH = a->call.flags & KRAIT_FILTER_BANK_ONE_SIDED ? K - 1 : (K - 1) / 2,
          .x = kr_graph_view(g, x),
          .weight = kr_graph_view(g, kr_graph_reshape(g, taps, KR_DIMS(a->C, K, 1))),
          .bias = kr_graph_view(g, bias),
          .out = kr_graph_view(g, kr_graph_temp(g, dtype, KR_DIMS(a->B, a->H, a->W, a->C)))});
}

static kr_tensor product(kr_graph *g, const bank_args *a, kr_tensor rows, kr_tensor weight, kr_tensor bias,
                         int32_t dtype) {
  const kr_tensor out = kr_graph_temp(g, dtype, KR_DIMS(kr_graph_dims(g, rows).size[0], a->C));
  return kr_graph_call(
      g, "product", &kr_op_gemm,
      &(krait_gemm_args){.call.flags = a->call.flags & KRAIT_FILTER_BANK_TF32 ? KRAIT_GEMM_TF32 : 0,
                         .A = kr_graph_view(g, rows),
                         .Bmat = kr_graph_view(g, kr_graph_permute(g, weight, (int[]){1, 0})),
                         .bias = kr_graph_view(g, bias),
                         .out = kr_graph_view(g, out)});
}

static void record(kr_graph *g, const void *args, int32_t dtype) {
  const bank_args *a = args;
  const int64_t C = a->C, JC = a->J * C, n = a->B * a->H * a->W;
  const kr_dims map = KR_DIMS(a->B, a->H, a->W, C);
#define INPUT(field, ...) const kr_tensor field = input(g, a, &a->field, #field, KR_DIMS(__VA_ARGS__))
  INPUT(x, a->B, a->H, a->W, JC);
  INPUT(taps, C, a->K);
  INPUT(taps_bias, JC);
  INPUT(gate_taps, C, a->K);
  INPUT(gate_bias, JC);
  INPUT(weight, JC, C);
  INPUT(weight_bias, JC);
  INPUT(out_weight, C, JC);
  INPUT(out_bias, C);
  INPUT(residual, a->B, a->H, a->W, C);
  INPUT(skip, a->B, a->H, a->W, C);
  INPUT(skip_scale, C);
#undef INPUT
  const kr_tensor out = kr_graph_argument(g, a, &a->out, KR_OUT, "out", map),
                  gated = kr_graph_temp(g, dtype, KR_DIMS(n, JC));
  for (int64_t j = 0, first = 0; j < a->J; first += kr_filter_bank_lengths(a)[j++]) {
    const int64_t K = kr_filter_bank_lengths(a)[j];
#define OWN(t) kr_graph_slice(g, t, 0, j * C, C)
    const kr_tensor chunk = kr_graph_slice(g, x, 3, j * C, C),
                    one = filter(g, a, chunk, kr_graph_slice(g, taps, 1, first, K), OWN(taps_bias), dtype),
                    other = filter(g, a, chunk, kr_graph_slice(g, gate_taps, 1, first, K), OWN(gate_bias), dtype),
                    mixed =
                        product(g, a, kr_graph_reshape(g, one, KR_DIMS(n, C)), OWN(weight), OWN(weight_bias), dtype);
#undef OWN
    kr_graph_pointwise(g, "gate", (krait_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .x_scale = 1}, mixed,
                       kr_graph_reshape(g, other, KR_DIMS(n, C)), kr_graph_slice(g, gated, 1, j * C, C));
  }
  kr_tensor sum = kr_graph_reshape(g, product(g, a, gated, out_weight, out_bias, dtype), map);
  if (skip) {
    const kr_tensor scale = kr_graph_spread(g, kr_graph_reshape(g, skip_scale, KR_DIMS(1, 1, 1, C)), map),
                    scaled = kr_graph_temp(g, dtype, map), both = kr_graph_temp(g, dtype, map);
    kr_graph_pointwise(g, "skip", (krait_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .x_scale = 1}, skip,
                       scale, scaled);
    kr_graph_pointwise(g, "skip", (krait_pointwise_args){.x_scale = 1, .y_scale = 1}, sum, scaled, both);
    sum = both;
  }
  kr_graph_pointwise(g, "residual", (krait_pointwise_args){.x_scale = 1, .y_scale = 1}, sum, residual, out);
}

KR_GRAPH_ROW(filter_bank_composed, filter_bank, record, KRAIT_F32, 0)
KR_GRAPH_ROW(filter_bank_ref, filter_bank, record, KRAIT_F64, KR_PLAN_REFERENCE)

/* gated_filter_graph.c: filtered gates as calls of a graph; gated_filter as a graph of a filter and a product, as the
 * reference implementation on the operators' reference implementations with a float64 intermediate. */
#include "gated_filter/gated_filter_impls.h"
#include "graph_kernel_cache.h"
#include "builder.h"

/* Filters of length 1 are folded into the product. */
kr_tensor kr_gate_record(const kr_builder *w, const kr_gate *p, kr_tensor x) {
  const kr_dims d = dims_of(w, p->taps);
  const int64_t C = d.size[0] / 2, K = d.size[2];
  kr_tensor weight = matrix(w, p->weight), bias = p->bias;
  if (K == 1) {
    const kr_tensor taps = reshape(w, p->taps, KR_DIMS(2 * C));
    weight =
        transposed(w, multiply(w, "gate_weight", transposed(w, weight), beside(w, taps, dims_of(w, weight).size[1])));
    bias = add(w, "gate_bias", multiply(w, "gate_bias", bias, taps), p->taps_bias);
  }
  kr_tensor wide = kr_normed_product_record(w, "gate", x, p->norm_weight, p->norm_bias, weight, bias,
                                            (kr_map_product_args){.call.flags = K == 1 ? KR_MAP_GATE : 0});
  if (is_fused(w) && K == 1) return wide;
  if (is_fused(w)) {
    const kr_tensor g = new_tensor(w, KR_DIMS(dims_of(w, wide).size[0], C));
    kr_graph_call(w->g, "gate_filter", &kr_op_gated_filter,
                  &(kr_gated_filter_args){.P = w->one_sided ? K - 1 : (K - 1) / 2,
                                             .x = view(w, as_map(w, wide)),
                                             .weight = view(w, by_taps(w, reshape(w, p->taps, KR_DIMS(2 * C, K)))),
                                             .bias = view(w, p->taps_bias),
                                             .out = view(w, as_map(w, g))});
    return g;
  }
  if (K > 1)
    wide = reshape(w, filter(w, "gate_filter", as_map(w, wide), p->taps, p->taps_bias, 1, 0), dims_of(w, wide));
  return multiply(w, "gated", columns(w, wide, 0, C), columns(w, wide, C, C));
}

static void record_gated_filter(kr_graph *g, const void *args, int32_t dtype) {
  const kr_gated_filter_args *a = args;
  const kr_builder w = {.g = g, .dtype = dtype, .rows_dtype = dtype};
  KR_GRAPH_INPUT(x, a->B, a->H, a->W, 2 * a->C);
  KR_GRAPH_INPUT(weight, 2 * a->C, a->K);
  KR_GRAPH_INPUT(bias, 2 * a->C);
  const kr_tensor out = kr_graph_argument(g, a, &a->out, KR_OUT, "out", KR_DIMS(a->B, a->H, a->W, a->C)),
                  both = new_tensor(&w, dims_of(&w, x));
  kr_graph_call(g, "filter", &kr_op_depthwise_conv,
                &(kr_depthwise_conv_args){.DH = 1,
                                             .DW = 1,
                                             .PH = a->P,
                                             .x = view(&w, x),
                                             .weight = view(&w, reshape(&w, weight, KR_DIMS(2 * a->C, a->K, 1))),
                                             .bias = view(&w, bias),
                                             .out = view(&w, both)});
  multiply_into(&w, "gate", kr_graph_slice(g, both, 3, 0, a->C), kr_graph_slice(g, both, 3, a->C, a->C), out);
}

KR_GRAPH_IMPL(gated_filter_composed, gated_filter, record_gated_filter, KRAIT_F32, 0)
KR_GRAPH_IMPL(gated_filter_ref, gated_filter, record_gated_filter, KRAIT_F64, KR_PLAN_REFERENCE)

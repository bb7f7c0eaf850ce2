/* gated_filter_graph.c: gated_filter as a graph of a filter and a product; in its reference row on the operators'
 * reference rows, in float64 between the two. */
#include <krait/blocks.h>

#include "gated_filter/gated_filter_rows.h"
#include "graph_kept.h"
#include "op_list.h"

static void record(kr_graph *g, const void *args, int32_t dtype) {
  const krait_gated_filter_args *a = args;
  const kr_dims wide = KR_DIMS(a->B, a->H, a->W, 2 * a->C);
  const kr_tensor x = kr_graph_argument(g, a, &a->x, KR_IN, "x", wide),
                  weight = kr_graph_argument(g, a, &a->weight, KR_IN, "weight", KR_DIMS(2 * a->C, a->K)),
                  bias = kr_graph_argument(g, a, &a->bias, KR_IN, "bias", KR_DIMS(2 * a->C)),
                  out = kr_graph_argument(g, a, &a->out, KR_OUT, "out", KR_DIMS(a->B, a->H, a->W, a->C)),
                  both = kr_graph_temp(g, dtype, wide);
  kr_graph_call(g, "filter", &kr_op_depthwise_conv,
                &(krait_depthwise_conv_args){
                    .DH = 1,
                    .DW = 1,
                    .PH = a->P,
                    .x = kr_graph_view(g, x),
                    .weight = kr_graph_view(g, kr_graph_reshape(g, weight, KR_DIMS(2 * a->C, a->K, 1))),
                    .bias = kr_graph_view(g, bias),
                    .out = kr_graph_view(g, both)});
  kr_graph_pointwise(g, "gate", (krait_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .x_scale = 1},
                     kr_graph_slice(g, both, 3, 0, a->C), kr_graph_slice(g, both, 3, a->C, a->C), out);
}

KR_GRAPH_ROW(gated_filter_composed, gated_filter, record, KRAIT_F32, 0)
KR_GRAPH_ROW(gated_filter_ref, gated_filter, record, KRAIT_F64, KR_PLAN_REFERENCE)

/* mean_product_graph.c: mean_product as a graph of a pool and a product; in its reference row on the operators'
 * reference rows, in float64 between the two. */
#include <krait/blocks.h>

#include "graph_kept.h"
#include "mean_product/mean_product_rows.h"
#include "op_list.h"

static void copy(kr_graph *g, const char *name, kr_tensor from, kr_tensor to) {
  kr_graph_pointwise(g, name, (krait_pointwise_args){.x_scale = 1}, from, 0, to);
}

static void record(kr_graph *g, const void *args, int32_t dtype) {
  const krait_mean_product_args *a = args;
  const int64_t n = a->I * a->J, C = a->C;
  const kr_dims sequences = KR_DIMS(n, a->S, C), rows = KR_DIMS(n, C), map = KR_DIMS(a->I, a->J, a->S, C);
  const kr_tensor weight = kr_graph_argument(g, a, &a->weight, KR_IN, "weight", KR_DIMS(C, C)),
                  bias = kr_graph_argument(g, a, &a->bias, KR_IN, "bias", KR_DIMS(C)),
                  out = kr_graph_argument(g, a, &a->out, KR_OUT, "out", KR_DIMS(a->I, a->J, C)),
                  mean = kr_graph_temp(g, dtype, rows);
  kr_tensor x = kr_graph_argument(g, a, &a->x, KR_IN, "x", map), to = kr_graph_temp(g, dtype, rows);
  if (!kr_graph_can_reshape(g, x, sequences)) {
    const kr_tensor apart = x;
    copy(g, "sequences", apart, x = kr_graph_temp(g, dtype, map));
  }
  kr_graph_call(g, "mean", &kr_op_pool,
                &(krait_pool_args){.x = kr_graph_view(g, kr_graph_reshape(g, x, sequences)),
                                   .out = kr_graph_view(g, mean)});
  kr_graph_call(g, "product", &kr_op_gemm,
                &(krait_gemm_args){.A = kr_graph_view(g, mean),
                                   .Bmat = kr_graph_view(g, kr_graph_permute(g, weight, (int[]){1, 0})),
                                   .bias = kr_graph_view(g, bias),
                                   .out = kr_graph_view(g, to)});
  copy(g, "out", kr_graph_reshape(g, to, KR_DIMS(a->I, a->J, C)), out);
}

KR_GRAPH_ROW(mean_product_composed, mean_product, record, KRAIT_F32, 0)
KR_GRAPH_ROW(mean_product_ref, mean_product, record, KRAIT_F64, KR_PLAN_REFERENCE)

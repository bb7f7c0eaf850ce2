/* conv_norm_graph.c: conv_norm as a graph of windows, product and norm; in its reference row on the operators'
 * reference rows, in float64 between two of them. */
#include <krait/blocks.h>

#include "conv_norm/conv_norm_rows.h"
#include "graph_kept.h"
#include "op_list.h"

typedef krait_conv_norm_args conv_args;

static kr_tensor copied(kr_graph *g, const char *name, kr_tensor from, int32_t dtype, kr_dims dims) {
  const kr_tensor to = kr_graph_temp(g, dtype, dims);
  kr_graph_pointwise(g, name, (krait_pointwise_args){.x_scale = 1}, from, 0, to);
  return to;
}

/* Rows (n,inputs) times a weight (outputs,inputs). */
static kr_tensor product(kr_graph *g, kr_tensor rows, kr_tensor weight, int32_t dtype) {
  return kr_graph_call(
      g, "product", &kr_op_gemm,
      &(krait_gemm_args){.A = kr_graph_view(g, rows),
                         .Bmat = kr_graph_view(g, kr_graph_permute(g, weight, (int[]){1, 0})),
                         .out = kr_graph_view(g, kr_graph_temp(g, dtype, KR_DIMS(kr_graph_dims(g, rows).size[0],
                                                                                 kr_graph_dims(g, weight).size[0])))});
}

static kr_tensor convolved(kr_graph *g, const conv_args *a, kr_tensor x, kr_tensor weight, int32_t dtype) {
  const kr_tensor windows = kr_graph_temp(g, dtype, KR_DIMS(a->B, a->OH, a->W, a->K * a->C)),
                  own = copied(g, "weight", weight, KRAIT_F32, KR_DIMS(a->N, a->K, a->C));
  kr_graph_call(g, "windows", &kr_op_unfold,
                &(krait_unfold_args){.KH = a->K,
                                     .KW = 1,
                                     .SH = a->S,
                                     .SW = 1,
                                     .x = kr_graph_view(g, x),
                                     .out = kr_graph_view(g, windows)});
  return product(g, kr_graph_reshape(g, windows, KR_DIMS(a->B * a->OH * a->W, a->K * a->C)),
                 kr_graph_reshape(g, own, KR_DIMS(a->N, a->K * a->C)), dtype);
}

static kr_tensor convolved_back(kr_graph *g, const conv_args *a, kr_tensor x, kr_tensor weight, int32_t dtype) {
  const kr_tensor own = copied(g, "weight", kr_graph_permute(g, weight, (int[]){1, 0, 2}), KRAIT_F32,
                               KR_DIMS(a->K, a->N, a->C)),
                  taps = product(g, kr_graph_reshape(g, x, KR_DIMS(a->B * a->H * a->W, a->C)),
                                 kr_graph_reshape(g, own, KR_DIMS(a->K * a->N, a->C)), dtype),
                  y = kr_graph_temp(g, dtype, KR_DIMS(a->B, a->OH, a->W, a->N));
  kr_graph_call(g, "fold", &kr_op_fold,
                &(krait_fold_args){
                    .KH = a->K,
                    .KW = 1,
                    .SH = a->S,
                    .SW = 1,
                    .x = kr_graph_view(g, kr_graph_reshape(g, taps, KR_DIMS(a->B, a->H, a->W, a->K * a->N))),
                    .out = kr_graph_view(g, y)});
  return y;
}

static void record(kr_graph *g, const void *args, int32_t dtype) {
  const conv_args *a = args;
  const kr_dims items = KR_DIMS(a->B, a->OH * a->W, a->N), map = KR_DIMS(a->B, a->OH, a->W, a->N);
#define INPUT(field, ...) \
  const kr_tensor field = kr_graph_argument(g, a, &a->field, KR_IN, #field, KR_DIMS(__VA_ARGS__))
  INPUT(x, a->B, a->H, a->W, a->C);
  INPUT(weight, a->N, a->K, a->C);
  INPUT(norm_weight, a->N);
  INPUT(norm_bias, a->N);
  INPUT(slope, a->N);
#undef INPUT
  const kr_tensor out = kr_graph_argument(g, a, &a->out, KR_OUT, "out", map),
                  own = copied(g, "x", x, dtype, KR_DIMS(a->B, a->H, a->W, a->C)),
                  y = a->call.flags & KRAIT_CONV_NORM_TRANSPOSED ? convolved_back(g, a, own, weight, dtype)
                                                                 : convolved(g, a, own, weight, dtype),
                  normed = kr_graph_temp(g, dtype, items);
  kr_graph_call(g, "norm", &kr_op_instance_norm,
                &(krait_instance_norm_args){.eps = a->eps,
                                            .x = kr_graph_view(g, kr_graph_reshape(g, y, items)),
                                            .weight = kr_graph_view(g, norm_weight),
                                            .bias = kr_graph_view(g, norm_bias),
                                            .slope = kr_graph_view(g, slope),
                                            .out = kr_graph_view(g, normed)});
  kr_graph_pointwise(g, "out", (krait_pointwise_args){.x_scale = 1}, kr_graph_reshape(g, normed, map), 0, out);
}

KR_GRAPH_ROW(conv_norm_composed, conv_norm, record, KRAIT_F32, 0)
KR_GRAPH_ROW(conv_norm_ref, conv_norm, record, KRAIT_F64, KR_PLAN_REFERENCE)

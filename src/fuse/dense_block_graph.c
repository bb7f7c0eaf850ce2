/* dense_block_graph.c: dense_block as a graph of filters, products and norms; in its reference row on the operators'
 * reference rows, in float64 between two of them. */
#include <krait/blocks.h>

#include "dense_block/dense_block_rows.h"
#include "graph_kept.h"
#include "op_list.h"

static void copy(kr_graph *g, const char *name, kr_tensor from, kr_tensor to) {
  kr_graph_pointwise(g, name, (krait_pointwise_args){.x_scale = 1}, from, 0, to);
}

/* rows (n, inputs) times a part of weights (outputs, inputs). */
static void product(kr_graph *g, const krait_dense_block_args *a, const char *name, kr_tensor rows, kr_tensor weight,
                    kr_tensor out) {
  kr_graph_call(g, name, &kr_op_gemm,
                &(krait_gemm_args){.call.flags = a->call.flags & KRAIT_DENSE_TF32 ? KRAIT_GEMM_TF32 : 0,
                                   .A = kr_graph_view(g, rows),
                                   .Bmat = kr_graph_view(g, kr_graph_permute(g, weight, (int[]){1, 0})),
                                   .out = kr_graph_view(g, out)});
}

static void norm(kr_graph *g, const krait_dense_block_args *a, kr_tensor mixed, kr_tensor weight, kr_tensor bias,
                 kr_tensor slope, kr_tensor out) {
  const kr_dims items = KR_DIMS(a->B, a->H * a->W, a->C);
  kr_graph_call(g, "norm", &kr_op_instance_norm,
                &(krait_instance_norm_args){.eps = a->eps,
                                            .x = kr_graph_view(g, kr_graph_reshape(g, mixed, items)),
                                            .weight = kr_graph_view(g, weight),
                                            .bias = kr_graph_view(g, bias),
                                            .slope = kr_graph_view(g, slope),
                                            .out = kr_graph_view(g, kr_graph_reshape(g, out, items))});
}

/* Newest first, in one tensor, in which each layer's output stands before its sources; x0 is the last of them. */
static void record(kr_graph *g, const void *args, int32_t dtype) {
  const krait_dense_block_args *a = args;
  const int64_t C = a->C, L = a->L, n = a->B * a->H * a->W;
  const kr_dims map = KR_DIMS(a->B, a->H, a->W, C);
#define INPUT(field, ...) \
  const kr_tensor field = kr_graph_argument(g, a, &a->field, KR_IN, #field, KR_DIMS(__VA_ARGS__))
  INPUT(x, a->B, a->H, a->W, a->K);
  INPUT(taps, a->N, 3, 3);
  INPUT(taps_bias, a->N);
  INPUT(weight, C, a->N);
  INPUT(norm_weight, L, C);
  INPUT(norm_bias, L, C);
  INPUT(slope, L, C);
  INPUT(lift, C, a->K);
  INPUT(lift_weight, C);
  INPUT(lift_bias, C);
  INPUT(lift_slope, C);
#undef INPUT
  const kr_tensor out = kr_graph_argument(g, a, &a->out, KR_OUT, "out", map),
                  all = kr_graph_temp(g, dtype, KR_DIMS(a->B, a->H, a->W, (L + 1) * C));
  const kr_tensor first_source = kr_graph_slice(g, all, 3, L * C, C);
  if (lift) {
    const kr_tensor own = kr_graph_temp(g, dtype, KR_DIMS(a->B, a->H, a->W, a->K)),
                    lifted = kr_graph_temp(g, dtype, KR_DIMS(n, C));
    copy(g, "x", x, own);
    product(g, a, "lift", kr_graph_reshape(g, own, KR_DIMS(n, a->K)), lift, lifted);
    norm(g, a, lifted, lift_weight, lift_bias, lift_slope, first_source);
  } else copy(g, "x", x, first_source);
  for (int64_t i = 0; i < L; i++) {
    const int64_t I = (i + 1) * C, first = C * i * (i + 1) / 2, past = a->call.flags & KRAIT_DENSE_ONE_SIDED ? 2 : 1;
    const kr_tensor filtered = kr_graph_temp(g, dtype, KR_DIMS(a->B, a->H, a->W, I)),
                    mixed = kr_graph_temp(g, dtype, KR_DIMS(n, C)), own = kr_graph_slice(g, taps, 0, first, I);
#define OF_LAYER(t) kr_graph_reshape(g, kr_graph_slice(g, t, 0, i, 1), KR_DIMS(C))
    kr_graph_call(g, "filter", &kr_op_depthwise_conv,
                  &(krait_depthwise_conv_args){.DH = 1,
                                               .DW = (int64_t)1 << i,
                                               .PH = 1,
                                               .PW = past << i,
                                               .x = kr_graph_view(g, kr_graph_slice(g, all, 3, (L - i) * C, I)),
                                               .weight = kr_graph_view(g, kr_graph_permute(g, own, (int[]){0, 2, 1})),
                                               .bias = kr_graph_view(g, kr_graph_slice(g, taps_bias, 0, first, I)),
                                               .out = kr_graph_view(g, filtered)});
    product(g, a, "mix", kr_graph_reshape(g, filtered, KR_DIMS(n, I)), kr_graph_slice(g, weight, 1, first, I), mixed);
    norm(g, a, mixed, OF_LAYER(norm_weight), OF_LAYER(norm_bias), OF_LAYER(slope),
         kr_graph_slice(g, all, 3, (L - 1 - i) * C, C));
#undef OF_LAYER
  }
  copy(g, "out", kr_graph_slice(g, all, 3, 0, C), out);
}

KR_GRAPH_ROW(dense_block_composed, dense_block, record, KRAIT_F32, 0)
KR_GRAPH_ROW(dense_block_ref, dense_block, record, KRAIT_F64, KR_PLAN_REFERENCE)

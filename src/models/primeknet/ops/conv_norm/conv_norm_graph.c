/* conv_norm_graph.c: a convolution along frequency with its norm as one call, or as a graph of unfold, product and
 * norm; as the reference implementation, on the operators' reference implementations with float64 intermediates. */
#include "conv_norm/conv_norm_impls.h"
#include "graph_kernel_cache.h"
#include "builder.h"

kr_tensor kr_fold_record(const kr_builder *w, int64_t K, int64_t step, kr_tensor x) {
  if (!x || !K) return 0; /* the graph has already failed */
  const kr_dims d = dims_of(w, x);
  const kr_tensor out = new_rows(w, KR_DIMS(d.size[0], (d.size[1] - 1) * step + K, d.size[2], d.size[3] / K));
  return kr_graph_call(
      w->g, "up_fold", &kr_op_fold,
      &(kr_fold_args){.KH = K, .KW = 1, .SH = step, .SW = 1, .x = view(w, x), .out = view(w, out)});
}

static kr_tensor conv_norm_called(const kr_builder *w, const char *name, uint32_t flags, int64_t step, kr_tensor x,
                        kr_tensor weight, const kr_norm *n) {
  const kr_dims d = dims_of(w, x), k = dims_of(w, weight);
  const int64_t F = flags & KR_CONV_NORM_TRANSPOSED ? (d.size[1] - 1) * step + k.size[1]
                                                       : (d.size[1] - k.size[1]) / step + 1;
  const kr_tensor by_tap = kr_graph_permute(w->g, new_tensor(w, KR_DIMS(k.size[1], k.size[2], k.size[0])),
                                            (int[]){2, 0, 1}),
                  out = new_map(w, F, k.size[0]);
  copy(w, "taps", weight, by_tap);
  return kr_graph_call(w->g, name, &kr_op_conv_norm,
                       &(kr_conv_norm_args){.call.flags = flags,
                                               .S = step,
                                               .eps = n->eps,
                                               .x = view(w, x),
                                               .weight = view(w, by_tap),
                                               .norm_weight = view(w, n->weight),
                                               .norm_bias = view(w, n->bias),
                                               .slope = view(w, n->slope),
                                               .out = view(w, out)});
}

/* Outputs (or inputs) outermost, taps in the middle. */
static kr_tensor taps_in_middle(const kr_builder *w, kr_tensor weight, const int *order) {
  const kr_tensor turned_weight = kr_graph_permute(w->g, weight, order), own = new_tensor(w, dims_of(w, turned_weight));
  copy(w, "by_tap", turned_weight, own);
  return own;
}

static kr_tensor conv_norm_graph_composed(const kr_builder *w, const char *name, int64_t step, kr_tensor x,
                                          kr_tensor weight, const kr_norm *n) {
  const kr_dims d = dims_of(w, x), k = dims_of(w, weight);
  const int64_t N = k.size[0], K = k.size[1], F = (d.size[1] - K) / step + 1, columns = K * d.size[3];
  const kr_tensor windows = new_rows(w, KR_DIMS(d.size[0], F, d.size[2], columns));
  kr_graph_call(w->g, "windows", &kr_op_unfold,
                &(kr_unfold_args){.KH = K, .KW = 1, .SH = step, .SW = 1, .x = view(w, x), .out = view(w, windows)});
  not_kept(w, windows);
  return kr_product_norm_record(w, name, reshape(w, windows, KR_DIMS(d.size[0] * F * d.size[2], columns)),
                                reshape(w, taps_in_middle(w, weight, (int[]){0, 1, 2}), KR_DIMS(N, columns)), n,
                                KR_DIMS(d.size[0], F, d.size[2], N), 0);
}

static kr_tensor composed_back(const kr_builder *w, const char *name, int64_t step, kr_tensor x, kr_tensor weight,
                               const kr_norm *n) {
  const kr_dims k = dims_of(w, weight);
  const kr_tensor taps = transposed(w, reshape(w, taps_in_middle(w, weight, (int[]){2, 1, 0}),
                                           KR_DIMS(k.size[2], k.size[1] * k.size[0])));
  return kr_norm_record(
      w, n, kr_fold_record(w, k.size[1], step, map_of(w, product(w, name, rows_of(w, x), taps, 0, 0, 0), x)), 0);
}

kr_tensor kr_conv_norm_record(const kr_builder *w, const char *name, uint32_t flags, int64_t step, kr_tensor x,
                              kr_tensor weight, const kr_norm *n) {
  if (w->mode != KR_BUILD_OPS) return conv_norm_called(w, name, flags, step, x, weight, n);
  return flags & KR_CONV_NORM_TRANSPOSED ? composed_back(w, name, step, x, weight, n)
                                            : conv_norm_graph_composed(w, name, step, x, weight, n);
}

static void record_conv_norm(kr_graph *g, const void *args, int32_t dtype) {
  const kr_conv_norm_args *a = args;
  const kr_builder w = {.g = g, .dtype = dtype, .rows_dtype = dtype, .B = a->B, .F = a->H, .T = a->W};
  KR_GRAPH_INPUT(x, a->B, a->H, a->W, a->C);
  KR_GRAPH_INPUT(weight, a->N, a->K, a->C);
  KR_GRAPH_INPUT(norm_weight, a->N);
  KR_GRAPH_INPUT(norm_bias, a->N);
  KR_GRAPH_INPUT(slope, a->N);
  const kr_tensor out = kr_graph_argument(g, a, &a->out, KR_OUT, "out", KR_DIMS(a->B, a->OH, a->W, a->N)),
                  own = new_tensor(&w, KR_DIMS(a->B, a->H, a->W, a->C));
  copy(&w, "x", x, own);
  copy(&w, "out",
       kr_conv_norm_record(&w, "product", a->call.flags, a->S, own, weight,
                           &(kr_norm){.weight = norm_weight, .bias = norm_bias, .slope = slope, .eps = a->eps}),
       out);
}

KR_GRAPH_IMPL(conv_norm_composed, conv_norm, record_conv_norm, KRAIT_F32, 0)
KR_GRAPH_IMPL(conv_norm_ref, conv_norm, record_conv_norm, KRAIT_F64, KR_PLAN_REFERENCE)

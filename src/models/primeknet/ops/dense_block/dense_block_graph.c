/* dense_block_graph.c: a dense block as one call, or as a graph of filters, products and norms; as the reference
 * implementation, on the operators' reference implementations with float64 intermediates. */
#include "dense_block/dense_block_impls.h"
#include "graph_kernel_cache.h"
#include "builder.h"

/* ---- one call ---- */

static void put(const kr_builder *w, kr_tensor from, kr_dims dims, kr_tensor to, int dim, int64_t at, int64_t n) {
  copy(w, "dense", reshape(w, from, dims), kr_graph_slice(w->g, to, dim, at, n));
}

static kr_tensor dense_block_called(const kr_builder *w, const kr_dense_block *b, kr_tensor x) {
  const int64_t C = b->C, L = b->L, N = C * L * (L + 1) / 2;
  const kr_tensor out = new_map(w, dims_of(w, x).size[1], C),
                  taps = is_fused(w) ? kr_graph_permute(w->g, new_tensor(w, KR_DIMS(3, 3, N)), (int[]){2, 0, 1})
                                     : new_tensor(w, KR_DIMS(N, 3, 3)),
                  taps_bias = new_tensor(w, KR_DIMS(N)), weight = new_tensor(w, KR_DIMS(C, N)),
                  norm_weight = new_tensor(w, KR_DIMS(L, C)), norm_bias = new_tensor(w, KR_DIMS(L, C)),
                  slope = new_tensor(w, KR_DIMS(L, C));
  for (int64_t i = 0; i < L; i++) {
    const kr_dense_layer *l = &b->layers[i];
    const int64_t I = (i + 1) * C, first = C * i * (i + 1) / 2;
    put(w, l->taps, KR_DIMS(I, 3, 3), taps, 0, first, I);
    put(w, l->taps_bias, KR_DIMS(I), taps_bias, 0, first, I);
    put(w, l->weight, KR_DIMS(C, I), weight, 1, first, I);
    put(w, l->norm.weight, KR_DIMS(1, C), norm_weight, 0, i, 1);
    put(w, l->norm.bias, KR_DIMS(1, C), norm_bias, 0, i, 1);
    put(w, l->norm.slope, KR_DIMS(1, C), slope, 0, i, 1);
  }
  return kr_graph_call(w->g, "dense", &kr_op_dense_block,
                       &(kr_dense_block_args){.call.flags = (w->one_sided ? KR_DENSE_ONE_SIDED : 0) |
                                                               (has_halves(w) ? KR_DENSE_TF32 : 0),
                                                 .eps = b->layers[0].norm.eps,
                                                 .x = view(w, x),
                                                 .taps = view(w, taps),
                                                 .taps_bias = view(w, taps_bias),
                                                 .weight = view(w, is_fused(w) ? laid_out(w, weight) : weight),
                                                 .norm_weight = view(w, norm_weight),
                                                 .norm_bias = view(w, norm_bias),
                                                 .slope = view(w, slope),
                                                 .lift = view(w, b->lift ? matrix(w, b->lift) : 0),
                                                 .lift_weight = view(w, b->lift_norm.weight),
                                                 .lift_bias = view(w, b->lift_norm.bias),
                                                 .lift_slope = view(w, b->lift_norm.slope),
                                                 .out = view(w, out)});
}

/* ---- unfused ---- */

/* A layer's filter over x, which is preceded by its past: one filter along frequency per tap in time. */
static kr_tensor filter_with_past(const kr_builder *w, kr_tensor x, kr_tensor taps, kr_tensor bias, int64_t dilation) {
  const int64_t I = dims_of(w, taps).size[0], before = dims_of(w, x).size[2] - w->T;
  if (!w->has_past) return filter(w, "dense_filter", x, taps, bias, dilation, 0);
  kr_tensor sum = 0;
  for (int64_t k = 0; k < 3; k++) {
    const kr_tensor tap = kr_graph_slice(w->g, reshape(w, taps, KR_DIMS(I, 1, 3, 3)), 2, k, 1),
                    part = filter(w, "dense_filter", kr_graph_slice(w->g, x, 2, before - (2 - k) * dilation, w->T), tap,
                                  k ? 0 : bias, dilation, 0);
    sum = sum ? add(w, "dense_filter", sum, part) : part;
  }
  return sum;
}

/* The lift's output, made of few numbers, is not rounded before its norm. */
static void put_input(const kr_builder *w, const kr_dense_block *b, kr_tensor x, kr_tensor input) {
  const kr_dims d = dims_of(w, x);
  kr_tensor first = x;
  if (b->lift)
    first = kr_product_norm_record(w, "lift", reshape(w, x, KR_DIMS(d.size[0] * d.size[1] * d.size[2], d.size[3])),
                                   matrix(w, b->lift), &b->lift_norm, KR_DIMS(d.size[0], d.size[1], d.size[2], b->C),
                                   w->rows_dtype == w->dtype ? input : 0);
  if (first != input) copy(w, "dense_input", first, input);
}

/* A single tensor holds each layer's output before its sources, newest first, ending with the block's input. */
static kr_tensor dense_block_graph_composed(const kr_builder *w, const kr_dense_block *b, kr_tensor x) {
  const kr_dims d = dims_of(w, x);
  const int64_t C = b->C, L = b->L, n = L > 0 ? L : 1, past = L ? (int64_t)1 << L : 0;
  const kr_tensor all = room_with_past(w, "dense", KR_DIMS(d.size[0], d.size[1], w->T, n * C), past);
  kr_tensor last = newest(w, kr_graph_slice(w->g, all, 3, (n - 1) * C, C));
  put_input(w, b, x, last);
  for (int64_t i = 0; i < L; i++) {
    const kr_dense_layer *l = &b->layers[i];
    const int64_t I = (i + 1) * C;
    const kr_tensor sources = kr_graph_slice(w->g, all, 3, (L - 1 - i) * C, I),
                    filtered = not_kept(w, filter_with_past(w, sources, l->taps, l->taps_bias, (int64_t)1 << i)),
                    to = i + 1 < L ? newest(w, kr_graph_slice(w->g, all, 3, (L - 2 - i) * C, C)) : 0;
    last = kr_product_norm_record(w, "dense_mix", reshape(w, filtered, KR_DIMS(d.size[0] * d.size[1] * w->T, I)),
                                  matrix(w, l->weight), &l->norm, KR_DIMS(d.size[0], d.size[1], w->T, C), to);
  }
  keep_past(w, all, past);
  return last;
}

kr_tensor kr_dense_block_record(const kr_builder *w, const kr_dense_block *b, kr_tensor x) {
  return w->mode == KR_BUILD_OPS ? dense_block_graph_composed(w, b, x) : b->L ? dense_block_called(w, b, x) : x;
}

/* ---- the operator's rows ---- */

static void record_dense_block(kr_graph *g, const void *args, int32_t dtype) {
  const kr_dense_block_args *a = args;
  const int64_t C = a->C, L = a->L;
  const kr_builder w = {.g = g,
                      .dtype = dtype,
                      .rows_dtype = dtype,
                      .B = a->B,
                      .F = a->H,
                      .T = a->W,
                      .one_sided = (a->call.flags & KR_DENSE_ONE_SIDED) != 0,
                      .has_tf32 = (a->call.flags & KR_DENSE_TF32) != 0};
  KR_GRAPH_INPUT(x, a->B, a->H, a->W, a->K);
  KR_GRAPH_INPUT(taps, a->N, 3, 3);
  KR_GRAPH_INPUT(taps_bias, a->N);
  KR_GRAPH_INPUT(weight, C, a->N);
  KR_GRAPH_INPUT(norm_weight, L, C);
  KR_GRAPH_INPUT(norm_bias, L, C);
  KR_GRAPH_INPUT(slope, L, C);
  KR_GRAPH_INPUT(lift, C, a->K);
  KR_GRAPH_INPUT(lift_weight, C);
  KR_GRAPH_INPUT(lift_bias, C);
  KR_GRAPH_INPUT(lift_slope, C);
  const kr_tensor out = kr_graph_argument(g, a, &a->out, KR_OUT, "out", KR_DIMS(a->B, a->H, a->W, C)),
                  own = new_tensor(&w, KR_DIMS(a->B, a->H, a->W, a->K));
  const float eps = a->eps;
  kr_dense_block b = {.C = C,
                      .L = L,
                      .lift = lift,
                      .lift_norm = {.weight = lift_weight, .bias = lift_bias, .slope = lift_slope, .eps = eps}};
  for (int64_t i = 0; i < L; i++) {
    const int64_t I = (i + 1) * C, first = C * i * (i + 1) / 2;
#define OF_LAYER(t) reshape(&w, kr_graph_slice(g, t, 0, i, 1), KR_DIMS(C))
    b.layers[i] = (kr_dense_layer){
        .taps = reshape(&w, kr_graph_slice(g, taps, 0, first, I), KR_DIMS(I, 1, 3, 3)),
        .taps_bias = kr_graph_slice(g, taps_bias, 0, first, I),
        .weight = kr_graph_slice(g, weight, 1, first, I),
        .norm = {.weight = OF_LAYER(norm_weight), .bias = OF_LAYER(norm_bias), .slope = OF_LAYER(slope), .eps = eps}};
#undef OF_LAYER
  }
  copy(&w, "x", x, own);
  copy(&w, "out", dense_block_graph_composed(&w, &b, own), out);
}

KR_GRAPH_IMPL(dense_block_composed, dense_block, record_dense_block, KRAIT_F32, 0)
KR_GRAPH_IMPL(dense_block_ref, dense_block, record_dense_block, KRAIT_F64, KR_PLAN_REFERENCE)

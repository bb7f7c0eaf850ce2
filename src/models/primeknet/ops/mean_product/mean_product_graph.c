/* mean_product_graph.c: products of means as calls of a graph; mean_product as a graph of a pool and a product, as the
 * reference implementation on the operators' reference implementations with a float64 intermediate. */
#include "graph_kernel_cache.h"
#include "mean_product/mean_product_impls.h"
#include "builder.h"

/* Broadcast over the positions of each sequence. */
static kr_tensor fused_factors(const kr_builder *w, kr_tensor rows, int along_time, kr_tensor weight, kr_tensor bias) {
  const int64_t C = dims_of(w, rows).size[1];
  const kr_tensor own = transposed(w, new_tensor(w, KR_DIMS(C, C))),
                  out = new_tensor(w, KR_DIMS(w->B, along_time ? w->F : w->T, C)), map = as_map(w, rows);
  copy(w, "attention", weight, own);
  kr_graph_call(w->g, "attention", &kr_op_mean_product,
                &(kr_mean_product_args){.x = view(w, along_time ? map : framewise(w, map)),
                                           .weight = view(w, own),
                                           .bias = view(w, bias),
                                           .out = view(w, out)});
  const kr_dims one = along_time ? KR_DIMS(w->B, w->F, 1, C) : KR_DIMS(w->B, 1, w->T, C);
  return kr_graph_expand(w->g, reshape(w, out, one), KR_DIMS(w->B, w->F, w->T, C));
}

kr_tensor kr_mean_record(const kr_builder *w, kr_tensor rows, int along_time, kr_tensor weight, kr_tensor bias,
                         kr_tensor *factors) {
  const kr_dims d = dims_of(w, rows);
  const int64_t C = d.size[1], n = w->B * (along_time ? w->F : w->T);
  *factors = is_fused(w) ? fused_factors(w, rows, along_time, weight, bias) : 0;
  if (*factors) return rows;
  const kr_dims sequences = along_time ? KR_DIMS(n, w->T, C) : KR_DIMS(w->B, w->F, w->T * C);
  const kr_tensor g = reshape(w, rows, sequences);
  const kr_tensor mean =
      kr_graph_call(w->g, "mean", &kr_op_pool, &(kr_pool_args){.x = view(w, g), .out = kr_graph_auto()});
  const kr_tensor scale = product(w, "attention", reshape(w, mean, KR_DIMS(n, C)), weight, bias, 0, 0);
  const kr_tensor spread =
      kr_graph_expand(w->g, reshape(w, scale, KR_DIMS(sequences.size[0], 1, sequences.size[2])), sequences);
  return reshape(w, not_kept(w, multiply(w, "attended", g, spread)), d);
}

static void record_mean_product(kr_graph *g, const void *args, int32_t dtype) {
  const kr_mean_product_args *a = args;
  const int64_t n = a->I * a->J, C = a->C;
  const kr_builder w = {.g = g, .dtype = dtype, .rows_dtype = dtype};
  const kr_dims sequences = KR_DIMS(n, a->S, C);
  KR_GRAPH_INPUT(x, a->I, a->J, a->S, C);
  KR_GRAPH_INPUT(weight, C, C);
  KR_GRAPH_INPUT(bias, C);
  const kr_tensor out = kr_graph_argument(g, a, &a->out, KR_OUT, "out", KR_DIMS(a->I, a->J, C)),
                  mean = new_tensor(&w, KR_DIMS(n, C));
  kr_tensor lying = x;
  if (!kr_graph_can_reshape(g, x, sequences)) copy(&w, "sequences", x, lying = new_tensor(&w, dims_of(&w, x)));
  kr_graph_call(g, "mean", &kr_op_pool,
                &(kr_pool_args){.x = view(&w, reshape(&w, lying, sequences)), .out = view(&w, mean)});
  copy(&w, "out", reshape(&w, product(&w, "product", mean, weight, bias, 0, 0), KR_DIMS(a->I, a->J, C)), out);
}

KR_GRAPH_IMPL(mean_product_composed, mean_product, record_mean_product, KRAIT_F32, 0)
KR_GRAPH_IMPL(mean_product_ref, mean_product, record_mean_product, KRAIT_F64, KR_PLAN_REFERENCE)

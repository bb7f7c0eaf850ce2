/* norm_block.c: norms with their PReLU as calls of a graph. A bias before a norm that measures is omitted: it cancels,
 * and so does its gradient. */
#include "builder.h"

static kr_tensor mean_of(const kr_builder *w, kr_tensor x) {
  const kr_dims d = dims_of(w, x);
  kr_tensor mean = x;
  const kr_dims steps[] = {KR_DIMS(d.size[0] * d.size[1], d.size[2], d.size[3]),
                           KR_DIMS(1, d.size[0] * d.size[1], d.size[3])};
  for (int k = 0; k < 2; k++)
    mean = kr_graph_call(w->g, "batch_mean", &kr_op_pool,
                         &(kr_pool_args){.x = view(w, reshape(w, mean, steps[k])), .out = kr_graph_auto()});
  return mean; /* (1, C) */
}

static void measure_norm_block(const kr_builder *w, const kr_norm *n, kr_tensor x) {
  const kr_dims d = dims_of(w, x), channels = KR_DIMS(d.size[3]);
  const double positions = (double)(d.size[0] * d.size[1] * d.size[2]);
  x = cast(w, "batch_floats", x, w->dtype);
  const kr_tensor mean = mean_of(w, x), apart = new_tensor(w, d);
  kr_graph_pointwise(w->g, "batch_apart", (kr_pointwise_args){.x_scale = 1, .y_scale = -1}, x,
                     at_positions(w, mean, d), apart);
  const kr_tensor var = mean_of(w, multiply(w, "batch_square", apart, apart));
  kr_graph_pointwise(w->g, "running_mean", (kr_pointwise_args){.x_scale = 1, .y_scale = 1},
                     reshape(w, mean, channels), n->before, n->mean);
  kr_graph_pointwise(w->g, "running_var",
                     (kr_pointwise_args){.x_scale = (float)(positions / (positions > 1 ? positions - 1 : 1))},
                     reshape(w, var, channels), 0, n->var);
}

static kr_tensor measured_norm(const kr_builder *w, const kr_norm *n, kr_tensor x, kr_tensor out) {
  const kr_dims d = dims_of(w, x);
  const int64_t over = n->over_batch && d.n ? d.size[0] : 1; /* no dimensions: the graph has already failed */
  const kr_dims flat = KR_DIMS(d.size[0] / over, over * d.size[1] * d.size[2], d.size[3]);
  if (!out) out = new_like(w, x);
  if (n->mean) measure_norm_block(w, n, x);
  kr_graph_call(w->g, n->over_batch ? "batch_norm" : "instance_norm", &kr_op_instance_norm,
                &(kr_instance_norm_args){.eps = n->eps,
                                            .x = view(w, reshape(w, x, flat)),
                                            .weight = view(w, n->weight),
                                            .bias = view(w, n->bias),
                                            .slope = view(w, n->slope),
                                            .out = view(w, reshape(w, out, flat))});
  return out;
}

/* max(x, 0) + slope min(x, 0), per channel. */
static kr_tensor slope_below(const kr_builder *w, kr_tensor x, kr_tensor slope, kr_tensor out) {
  const kr_tensor below = new_like(w, x), less = new_tensor(w, dims_of(w, slope));
  if (!out) out = new_like(w, x);
  kr_graph_pointwise(w->g, "slope_less", (kr_pointwise_args){.x_scale = -1, .y_scale = 1}, 0, slope, less);
  kr_graph_pointwise(w->g, "below",
                     (kr_pointwise_args){.activation = KRAIT_ACT_RELU, .x_scale = -1, .y_scale = 1}, x, x, below);
  const kr_tensor factors = at_positions(w, less, dims_of(w, x));
  kr_graph_pointwise(w->g, "sloped", (kr_pointwise_args){.x_scale = 1, .y_scale = 1},
                     multiply(w, "below_slope", below, factors), x, out);
  return out;
}

/* A known norm is a scale and a shift per channel. */
static kr_tensor known_summand(const kr_builder *w, const kr_norm *n) {
  return add(w, "norm_bias", multiply(w, "norm_bias", n->before, n->scale), n->shift);
}

kr_tensor kr_norm_record(const kr_builder *w, const kr_norm *n, kr_tensor x, kr_tensor out) {
  if (!n->scale) return measured_norm(w, n, x, out);
  const kr_dims d = dims_of(w, x);
  const kr_tensor summands = at_positions(w, known_summand(w, n), d),
                  scaled = multiply(w, "norm_scale", x, at_positions(w, n->scale, d));
  return slope_below(w, add(w, "norm_shift", scaled, summands), n->slope, out);
}

kr_tensor kr_product_norm_record(const kr_builder *w, const char *name, kr_tensor rows, kr_tensor weight,
                                 const kr_norm *n, kr_dims dims, kr_tensor out) {
  if (!n->scale) return measured_norm(w, n, reshape(w, product(w, name, rows, weight, 0, 0, 0), dims), out);
  const kr_dims d = dims_of(w, weight);
  const kr_tensor bias = known_summand(w, n),
                  factors = kr_graph_expand(w->g, reshape(w, n->scale, KR_DIMS(d.size[0], 1)), d),
                  x = product(w, name, rows, multiply(w, "norm_weight", weight, factors), bias, 0, 0);
  return slope_below(w, reshape(w, x, dims), n->slope, out);
}

/* rnn_pair_graph.c: recurrent layers as calls of a graph, the first two fused if operands are float16; rnn_pair as a
 * graph of norm, products and recurrences, as the reference implementation on the operators' reference implementations
 * with float64 intermediates. */
#include "graph_kernel_cache.h"
#include "rnn_pair/rnn_pair_impls.h"
#include "builder.h"

typedef kr_rnn_pair_args pair_args;

/* Into out (sequences,T,H), or 0: a new tensor. */
static kr_tensor recurrence(const kr_builder *w, uint32_t flags, kr_tensor gates, kr_tensor weight, kr_tensor bias,
                            kr_tensor out, int has_cells) {
  return kr_graph_call(w->g, "recurrence", &kr_op_rnn,
                       &(kr_rnn_args){.call.flags = flags,
                                         .x = view(w, as_sequences(w, gates)),
                                         .weight = view(w, weight),
                                         .bias = view(w, bias),
                                         .out = out ? view(w, out) : kr_graph_auto(),
                                         .cells = has_cells ? kr_graph_auto() : (kr_view){0}});
}

/* ---- what models record ---- */

/* Includes the norm and the input products. */
static kr_tensor two_layers(const kr_builder *w, const kr_rnn_layer *l, uint32_t flags, kr_tensor norm_weight,
                            kr_tensor norm_bias, kr_tensor x) {
  const kr_tensor h = new_tensor(w, KR_DIMS(dims_of(w, x).size[0], dims_of(w, l->weight).size[1]));
  kr_tensor bias = l[0].in_bias;
  const kr_tensor first = kr_behind_norm_record(w, norm_weight, norm_bias, l[0].in_weight, &bias);
  kr_graph_call(w->g, "recurrences", &kr_op_rnn_pair,
                &(pair_args){.call.flags = flags | KR_RNN_TF32 | KR_RNN_NORM,
                             .eps = KR_CHANNEL_EPS,
                             .x = view(w, as_sequences(w, x)),
                             .in_weight = view(w, laid_out(w, first)),
                             .in_bias = view(w, bias),
                             .weight = view(w, laid_out(w, l[0].weight)),
                             .bias = view(w, l[0].bias),
                             .in_weight2 = view(w, laid_out(w, l[1].in_weight)),
                             .in_bias2 = view(w, l[1].in_bias),
                             .weight2 = view(w, laid_out(w, l[1].weight)),
                             .bias2 = view(w, l[1].bias),
                             .out = view(w, as_sequences(w, h))});
  return h;
}

kr_tensor kr_rnn_layers_record(const kr_builder *w, const kr_rnn_layer *layers, int64_t n, int is_lstm,
                               kr_tensor norm_weight, kr_tensor norm_bias, kr_tensor x) {
  const int is_pair = has_halves(w) && n > 1;
  const uint32_t flags = is_lstm ? KRAIT_RNN_LSTM : 0;
  const kr_map_product_args nothing_else = {0};
  if (is_pair) x = two_layers(w, layers, flags, norm_weight, norm_bias, x);
  for (int64_t i = is_pair ? 2 : 0; i < n; i++) {
    const kr_rnn_layer *l = &layers[i];
    kr_tensor gates;
    if (i == 0)
      gates = kr_normed_product_record(w, "gates", x, norm_weight, norm_bias, l->in_weight, l->in_bias, nothing_else);
    else if (is_fused(w)) gates = kr_map_product_record(w, "gates", x, l->in_weight, l->in_bias, nothing_else);
    else gates = product(w, "gates", x, l->in_weight, l->in_bias, 0, 0);
    gates = cast(w, "gates", gates, w->dtype);
    const int has_cells = is_lstm && !w->is_piece && !is_fused(w); /* for the gradient */
    const kr_tensor h =
        recurrence(w, flags, gates, is_fused(w) ? by_taps(w, l->weight) : l->weight, l->bias, 0, has_cells);
    x = cast(w, "gates", reshape(w, h, KR_DIMS(dims_of(w, x).size[0], dims_of(w, l->weight).size[1])), w->rows_dtype);
  }
  return x;
}

/* ---- the operator's rows ---- */

static void record_rnn_pair(kr_graph *g, const void *args, int32_t dtype) {
  const pair_args *a = args;
  const uint32_t lstm = a->call.flags & KRAIT_RNN_LSTM;
  const int64_t gates = (lstm ? 4 : 3) * a->H;
  const kr_builder w = {.g = g,
                      .dtype = dtype,
                      .rows_dtype = dtype,
                      .B = a->B,
                      .F = 1,
                      .T = a->L,
                      .has_tf32 = (a->call.flags & KR_RNN_TF32) != 0};
  KR_GRAPH_INPUT(x, a->B, a->L, a->C);
  KR_GRAPH_INPUT(in_weight, gates, a->C);
  KR_GRAPH_INPUT(in_bias, gates);
  KR_GRAPH_INPUT(weight, gates, a->H);
  KR_GRAPH_INPUT(bias, gates);
  KR_GRAPH_INPUT(in_weight2, gates, a->H);
  KR_GRAPH_INPUT(in_bias2, gates);
  KR_GRAPH_INPUT(weight2, gates, a->H);
  KR_GRAPH_INPUT(bias2, gates);
  const kr_tensor out = kr_graph_argument(g, a, &a->out, KR_OUT, "out", KR_DIMS(a->B, a->L, a->H)),
                  own = new_tensor(&w, KR_DIMS(a->B, a->L, a->C));
  copy(&w, "x", x, own);
  kr_tensor rows = reshape(&w, own, KR_DIMS(a->B * a->L, a->C));
  if (a->call.flags & KR_RNN_NORM) rows = channel_norm(&w, rows, 0, 0, a->eps);
  const kr_tensor h = recurrence(&w, lstm, product(&w, "gates", rows, in_weight, in_bias, 0, 0),
                                 cast(&w, "weight", weight, dtype), bias, 0, 0);
  rows = reshape(&w, h, KR_DIMS(a->B * a->L, a->H));
  recurrence(&w, lstm, product(&w, "gates", rows, in_weight2, in_bias2, 0, 0), cast(&w, "weight", weight2, dtype),
             bias2, out, 0);
}

KR_GRAPH_IMPL(rnn_pair_composed, rnn_pair, record_rnn_pair, KRAIT_F32, 0)
KR_GRAPH_IMPL(rnn_pair_ref, rnn_pair, record_rnn_pair, KRAIT_F64, KR_PLAN_REFERENCE)

/* rnn_pair_graph.c: layers of a recurrence as calls of a graph, the first two at once where factors are float16;
 * rnn_pair as a graph of norm, products and recurrences, in its reference row on the operators' reference rows, in
 * float64 between two of them. */
#include "graph_kept.h"
#include "rnn/rnn_pair_rows.h"
#include "words.h"

typedef krait_rnn_pair_args pair_args;

/* ---- what models record ---- */

/* The norm and the inputs' products included. */
static kr_tensor two_layers(const kr_words *w, const kr_rnn_layer *l, uint32_t flags, kr_tensor norm_weight,
                            kr_tensor norm_bias, kr_tensor x) {
  const kr_tensor h = new_tensor(w, KR_DIMS(dims_of(w, x).size[0], dims_of(w, l->weight).size[1]));
  kr_tensor bias = l[0].in_bias;
  const kr_tensor first = kr_behind_norm_record(w, norm_weight, norm_bias, l[0].in_weight, &bias);
  kr_graph_call(w->g, "recurrences", &kr_op_rnn_pair,
                &(pair_args){.call.flags = flags | KRAIT_RNN_TF32 | KRAIT_RNN_NORM,
                             .eps = 1e-6f,
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

kr_tensor kr_rnn_layers_record(const kr_words *w, const kr_rnn_layer *layers, int64_t n, int is_lstm,
                               kr_tensor norm_weight, kr_tensor norm_bias, kr_tensor x) {
  const int is_pair = has_halves(w) && n > 1;
  const uint32_t flags = is_lstm ? KRAIT_RNN_LSTM : 0;
  const krait_map_product_args nothing_else = {0};
  if (is_pair) x = two_layers(w, layers, flags, norm_weight, norm_bias, x);
  for (int64_t i = is_pair ? 2 : 0; i < n; i++) {
    const kr_rnn_layer *l = &layers[i];
    kr_tensor gates;
    if (i == 0)
      gates = kr_normed_product_record(w, "gates", x, norm_weight, norm_bias, l->in_weight, l->in_bias, nothing_else);
    else if (is_fused(w)) gates = kr_map_product_record(w, "gates", x, l->in_weight, l->in_bias, nothing_else);
    else gates = product(w, "gates", x, l->in_weight, l->in_bias, 0, 0);
    gates = cast(w, "gates", gates, w->dtype);
    const int has_cells = is_lstm && !w->is_piece && !is_fused(w); /* a gradient reads them */
    const kr_tensor h = kr_graph_call(w->g, "recurrence", &kr_op_rnn,
                                      &(krait_rnn_args){.call.flags = flags,
                                                        .x = view(w, as_sequences(w, gates)),
                                                        .weight = view(w, is_fused(w) ? by_taps(w, l->weight) : l->weight),
                                                        .bias = view(w, l->bias),
                                                        .out = kr_graph_ask(),
                                                        .cells = has_cells ? kr_graph_ask() : (krait_view){0}});
    x = cast(w, "gates", reshape(w, h, KR_DIMS(dims_of(w, x).size[0], dims_of(w, l->weight).size[1])), w->rows_dtype);
  }
  return x;
}

/* ---- the operator's rows ---- */

typedef struct recorded {
  kr_graph *g;
  const pair_args *a;
  int64_t gates;
  int32_t dtype; /* between two calls */
} recorded;

static kr_tensor input(const recorded *r, const krait_view *view, const char *name, kr_dims dims) {
  return kr_graph_argument(r->g, r->a, view, KR_IN, name, dims);
}

/* t without gaps, of the type between two calls. */
static kr_tensor copied(const recorded *r, const char *name, kr_tensor t) {
  const kr_tensor copy = kr_graph_temp(r->g, r->dtype, kr_graph_dims(r->g, t));
  kr_graph_pointwise(r->g, name, (krait_pointwise_args){.x_scale = 1}, t, 0, copy);
  return copy;
}

/* One layer over rows (B L, inputs); out: (B,L,H), or 0: a new tensor. */
static kr_tensor layer(const recorded *r, kr_tensor rows, kr_tensor in_weight, kr_tensor in_bias, kr_tensor weight,
                       kr_tensor bias, kr_tensor out) {
  const pair_args *a = r->a;
  const kr_tensor gates = kr_graph_temp(r->g, r->dtype, KR_DIMS(a->B * a->L, r->gates));
  const int same = kr_graph_dtype(r->g, weight) == r->dtype;
  if (!out) out = kr_graph_temp(r->g, r->dtype, KR_DIMS(a->B, a->L, a->H));
  kr_graph_call(r->g, "gates", &kr_op_gemm,
                &(krait_gemm_args){.call.flags = a->call.flags & KRAIT_RNN_TF32 ? KRAIT_GEMM_TF32 : 0,
                                   .A = kr_graph_view(r->g, rows),
                                   .Bmat = kr_graph_view(r->g, kr_graph_permute(r->g, in_weight, (int[]){1, 0})),
                                   .bias = kr_graph_view(r->g, in_bias),
                                   .out = kr_graph_view(r->g, gates)});
  return kr_graph_call(
      r->g, "recurrence", &kr_op_rnn,
      &(krait_rnn_args){.call.flags = a->call.flags & KRAIT_RNN_LSTM,
                        .x = kr_graph_view(r->g, kr_graph_reshape(r->g, gates, KR_DIMS(a->B, a->L, r->gates))),
                        .weight = kr_graph_view(r->g, same ? weight : copied(r, "weight", weight)),
                        .bias = kr_graph_view(r->g, bias),
                        .out = kr_graph_view(r->g, out)});
}

static void record(kr_graph *g, const void *args, int32_t dtype) {
  const pair_args *a = args;
  const recorded r = {g, a, (a->call.flags & KRAIT_RNN_LSTM ? 4 : 3) * a->H, dtype};
  const kr_dims flat = KR_DIMS(a->B * a->L, a->C);
  kr_tensor x = input(&r, &a->x, "x", KR_DIMS(a->B, a->L, a->C));
  if (!kr_graph_can_reshape(g, x, flat)) x = copied(&r, "rows", x);
  x = kr_graph_reshape(g, x, flat);
  if (a->call.flags & KRAIT_RNN_NORM)
    x = kr_graph_call(
        g, "norm", &kr_op_add_norm,
        &(krait_add_norm_args){
            .eps = a->eps, .x = kr_graph_view(g, x), .out = kr_graph_view(g, kr_graph_temp(g, dtype, flat))});
#define INPUT(field, ...) const kr_tensor field = input(&r, &a->field, #field, KR_DIMS(__VA_ARGS__))
  INPUT(in_weight, r.gates, a->C);
  INPUT(in_bias, r.gates);
  INPUT(weight, r.gates, a->H);
  INPUT(bias, r.gates);
  INPUT(in_weight2, r.gates, a->H);
  INPUT(in_bias2, r.gates);
  INPUT(weight2, r.gates, a->H);
  INPUT(bias2, r.gates);
#undef INPUT
  const kr_tensor out = kr_graph_argument(g, a, &a->out, KR_OUT, "out", KR_DIMS(a->B, a->L, a->H)),
                  h = layer(&r, x, in_weight, in_bias, weight, bias, 0);
  layer(&r, kr_graph_reshape(g, h, KR_DIMS(a->B * a->L, a->H)), in_weight2, in_bias2, weight2, bias2, out);
}

KR_GRAPH_ROW(rnn_pair_composed, rnn_pair, record, KRAIT_F32, 0)
KR_GRAPH_ROW(rnn_pair_ref, rnn_pair, record, KRAIT_F64, KR_PLAN_REFERENCE)

/* filter_bank_graph.c: a bank of filters as one call, or as a graph of filters and products; as the reference
 * implementation, on the operators' reference implementations with float64 intermediates. */
#include "filter_bank/filter_bank_impls.h"
#include "graph_kernel_cache.h"
#include "builder.h"

typedef kr_filter_bank_args bank_args;

/* ---- one call ---- */

/* After the first product, h: (rows, J C). */
static kr_tensor filter_bank_called(const kr_builder *w, const kr_filter_bank *b, const kr_back_product *back,
                                    kr_tensor h) {
  const int64_t J = b->J, H = dims_of(w, h).size[1], C = H / J;
  int64_t n_taps = 0;
  for (int64_t j = 0; j < J; j++) n_taps += dims_of(w, b->chunks[j].taps).size[2];
  const kr_tensor taps = transposed(w, new_tensor(w, KR_DIMS(n_taps, C))),
                  gate_taps = transposed(w, new_tensor(w, KR_DIMS(n_taps, C))), taps_bias = new_tensor(w, KR_DIMS(H)),
                  gate_bias = new_tensor(w, KR_DIMS(H)), weight = new_tensor(w, KR_DIMS(H, C)),
                  weight_bias = new_tensor(w, KR_DIMS(H)), out = new_like(w, back->x);
  kr_tensor out_bias, out_weight = kr_scaled_weight_record(w, back, &out_bias);
  bank_args a = {.call.flags = (w->one_sided ? KR_FILTER_BANK_ONE_SIDED : 0) |
                               (has_halves(w) ? KR_FILTER_BANK_TF32 : 0),
                 .J = J};
  for (int64_t j = 0, first = 0; j < J; first += (&a.K1)[j++]) {
    const kr_filter_chunk *p = &b->chunks[j];
    const int64_t K = (&a.K1)[j] = dims_of(w, p->taps).size[2];
#define PUT(from, to) copy(w, "chunk", from, kr_graph_slice(w->g, to, 0, j * C, C))
    copy(w, "taps", reshape(w, p->taps, KR_DIMS(C, K)), columns(w, taps, first, K));
    copy(w, "taps", reshape(w, p->gate_taps, KR_DIMS(C, K)), columns(w, gate_taps, first, K));
    PUT(p->taps_bias, taps_bias);
    PUT(p->gate_bias, gate_bias);
    PUT(matrix(w, p->weight), weight);
    PUT(p->bias, weight_bias);
#undef PUT
  }
  a.x = view(w, as_map(w, h));
  a.taps = view(w, taps), a.taps_bias = view(w, taps_bias);
  a.gate_taps = view(w, gate_taps), a.gate_bias = view(w, gate_bias);
  a.weight = view(w, laid_out(w, weight)), a.weight_bias = view(w, weight_bias);
  a.out_weight = view(w, laid_out(w, out_weight)), a.out_bias = view(w, out_bias);
  a.residual = view(w, as_map(w, back->x)), a.skip = view(w, as_map(w, back->skip));
  a.skip_scale = view(w, back->skip ? reshape(w, back->skip_scale, KR_DIMS(C)) : 0);
  a.out = view(w, as_map(w, out));
  kr_graph_call(w->g, "bank", &kr_op_filter_bank, &a);
  return out;
}

/* ---- unfused ---- */

/* A chunk's part of the gates (rows, J C). */
static void gate_chunk(const kr_builder *w, const kr_filter_chunk *p, kr_tensor map, kr_tensor gates) {
  const kr_dims rows = dims_of(w, gates);
  const kr_tensor filtered =
      reshape(w, not_kept(w, filter(w, "bank_filter", map, p->taps, p->taps_bias, 1, 0)), rows);
  const kr_tensor other = reshape(w, filter(w, "bank_gate", map, p->gate_taps, p->gate_bias, 1, 0), rows);
  multiply_into(w, "bank_gated", product(w, "bank_mix", filtered, matrix(w, p->weight), p->bias, 0, 0), other, gates);
}

kr_tensor kr_filter_bank_record(const kr_builder *w, const kr_filter_bank *b, const kr_back_product *back) {
  const int64_t rows = dims_of(w, back->x).size[0], H = dims_of(w, b->in_weight).size[0], C = H / b->J;
  const kr_tensor in_weight = matrix(w, b->in_weight);
  if (is_fused(w))
    return filter_bank_called(w, b, back,
                  kr_normed_product_record(w, "in", back->x, b->norm_weight, b->norm_bias, in_weight, b->in_bias,
                                           (kr_map_product_args){0}));
  const kr_tensor normed = not_kept(w, channel_norm(w, back->x, b->norm_weight, b->norm_bias, KR_CHANNEL_EPS)),
                  h = w->is_piece ? 0 : product(w, "in", normed, in_weight, b->in_bias, 0, 0),
                  gates = new_rows(w, KR_DIMS(rows, H));
  for (int64_t j = 0; j < b->J; j++) { /* a piece's chunks stay in cache, one after another */
    const kr_tensor own = h ? columns(w, h, j * C, C)
                            : product(w, "in", normed, kr_graph_slice(w->g, in_weight, 0, j * C, C),
                                      kr_graph_slice(w->g, b->in_bias, 0, j * C, C), 0, 0);
    gate_chunk(w, &b->chunks[j], as_map(w, own), columns(w, gates, j * C, C));
  }
  return kr_back_record(w, gates, back);
}

/* ---- the operator's rows ---- */

static void record_filter_bank(kr_graph *g, const void *args, int32_t dtype) {
  const bank_args *a = args;
  const int64_t C = a->C, JC = a->J * C, n = a->B * a->H * a->W;
  const kr_dims map = KR_DIMS(a->B, a->H, a->W, C);
  const kr_builder w = {.g = g,
                      .dtype = dtype,
                      .rows_dtype = dtype,
                      .B = a->B,
                      .F = a->H,
                      .T = a->W,
                      .one_sided = (a->call.flags & KR_FILTER_BANK_ONE_SIDED) != 0,
                      .has_tf32 = (a->call.flags & KR_FILTER_BANK_TF32) != 0};
  KR_GRAPH_INPUT(x, a->B, a->H, a->W, JC);
  KR_GRAPH_INPUT(taps, C, a->K);
  KR_GRAPH_INPUT(taps_bias, JC);
  KR_GRAPH_INPUT(gate_taps, C, a->K);
  KR_GRAPH_INPUT(gate_bias, JC);
  KR_GRAPH_INPUT(weight, JC, C);
  KR_GRAPH_INPUT(weight_bias, JC);
  KR_GRAPH_INPUT(out_weight, C, JC);
  KR_GRAPH_INPUT(out_bias, C);
  KR_GRAPH_INPUT(residual, a->B, a->H, a->W, C);
  KR_GRAPH_INPUT(skip, a->B, a->H, a->W, C);
  KR_GRAPH_INPUT(skip_scale, C);
  const kr_tensor out = kr_graph_argument(g, a, &a->out, KR_OUT, "out", map), gates = new_tensor(&w, KR_DIMS(n, JC));
  for (int64_t j = 0, first = 0; j < a->J; first += kr_filter_bank_lengths(a)[j++]) {
    const int64_t K = kr_filter_bank_lengths(a)[j];
#define OWN(t) kr_graph_slice(g, t, 0, j * C, C)
#define TAPS(t) reshape(&w, kr_graph_slice(g, t, 1, first, K), KR_DIMS(C, 1, K))
    gate_chunk(&w,
               &(kr_filter_chunk){.taps = TAPS(taps),
                                  .taps_bias = OWN(taps_bias),
                                  .weight = OWN(weight),
                                  .bias = OWN(weight_bias),
                                  .gate_taps = TAPS(gate_taps),
                                  .gate_bias = OWN(gate_bias)},
               kr_graph_slice(g, x, 3, j * C, C), columns(&w, gates, j * C, C));
#undef TAPS
#undef OWN
  }
  const kr_tensor rows = product(&w, "product", gates, out_weight, out_bias, 0, 0);
  kr_sum_record(&w, as_map(&w, rows), residual, skip, skip_scale, out);
}

KR_GRAPH_IMPL(filter_bank_composed, filter_bank, record_filter_bank, KRAIT_F32, 0)
KR_GRAPH_IMPL(filter_bank_ref, filter_bank, record_filter_bank, KRAIT_F64, KR_PLAN_REFERENCE)

/* projected_scan_graph.c: the inside of a Mamba block as two calls; projected_scan as a graph of product, scan and
 * gate, as the reference implementation on the operators' reference implementations with float64 intermediates. */
#include "graph_kernel_cache.h"
#include "projected_scan/projected_scan_impls.h"
#include "builder.h"

/* The convolution with x_proj, then the scan with step size and gate. */
kr_tensor kr_projected_mamba_record(const kr_builder *w, const kr_mamba_block *b, kr_tensor xz) {
  const int64_t E = dims_of(w, b->A).size[0], N = dims_of(w, b->A).size[1], R = dims_of(w, b->dt_proj_weight).size[1],
                n = dims_of(w, xz).size[0], X = (R + 2 * N + 15) / 16 * 16; /* rows of whole cache lines */
  const kr_tensor u = new_tensor(w, KR_DIMS(n, E)), proj = new_tensor(w, KR_DIMS(n, X));
  kr_map_product_record(w, "x_proj", columns(w, xz, 0, E), b->x_proj_weight, 0,
                        (kr_map_product_args){.conv_weight = view(w, b->conv_weight),
                                                 .conv_bias = view(w, b->conv_bias),
                                                 .out = view(w, as_map(w, columns(w, proj, 0, R + 2 * N))),
                                                 .conv_out = view(w, as_map(w, u))});
  kr_graph_call(w->g, "scan", &kr_op_projected_scan,
                &(kr_projected_scan_args){.u = view(w, as_sequences(w, u)),
                                             .proj = view(w, as_sequences(w, proj)),
                                             .dt_weight = view(w, by_taps(w, b->dt_proj_weight)),
                                             .dt_bias = view(w, b->delta_bias),
                                             .A = view(w, b->A),
                                             .Dvec = view(w, b->Dvec),
                                             .z = view(w, as_sequences(w, columns(w, xz, E, E))),
                                             .out = view(w, as_sequences(w, u))});
  return u;
}

/* (B,L,n) of the working type, as contiguous rows. */
static kr_tensor plain_rows(kr_graph *g, int32_t dtype, const char *name, kr_tensor t) {
  const kr_dims d = kr_graph_dims(g, t), flat = KR_DIMS(d.size[0] * d.size[1], d.size[2]);
  if (kr_graph_dtype(g, t) == dtype && kr_graph_can_reshape(g, t, flat)) return t;
  const kr_tensor copy = kr_graph_temp(g, dtype, d);
  kr_graph_pointwise(g, name, (kr_pointwise_args){.x_scale = 1}, t, 0, copy);
  return copy;
}

static void record_projected_scan(kr_graph *g, const void *args, int32_t dtype) {
  const kr_projected_scan_args *a = args;
  const int64_t B = a->B, L = a->L, D = a->D, N = a->N, R = a->R;
  const kr_dims rows = KR_DIMS(B * L, D), map = KR_DIMS(B, L, D);
  KR_GRAPH_INPUT(u, B, L, D);
  KR_GRAPH_INPUT(proj, B, L, a->X);
  KR_GRAPH_INPUT(dt_weight, D, R);
  KR_GRAPH_INPUT(dt_bias, D);
  KR_GRAPH_INPUT(A, D, N);
  KR_GRAPH_INPUT(Dvec, D);
  KR_GRAPH_INPUT(z, B, L, D);
  const kr_tensor out = kr_graph_argument(g, a, &a->out, KR_OUT, "out", map), delta = kr_graph_temp(g, dtype, rows),
                  y = kr_graph_temp(g, dtype, map), input = plain_rows(g, dtype, "u", u),
                  wide = plain_rows(g, dtype, "proj", proj);
#define VIEW(t) kr_graph_view(g, t)
#define CHANNELS(t) VIEW(kr_graph_permute(g, t, (int[]){0, 2, 1}))
#define STATES(from) \
  VIEW(kr_graph_permute(g, kr_graph_reshape(g, kr_graph_slice(g, wide, 2, from, N), KR_DIMS(B, L, 1, N)), \
                        (int[]){0, 2, 3, 1}))
  kr_graph_call(g, "step", &kr_op_gemm,
                &(kr_gemm_args){
                    .A = VIEW(kr_graph_reshape(g, kr_graph_slice(g, wide, 2, 0, R), KR_DIMS(B * L, R))),
                    .Bmat = VIEW(kr_graph_permute(g, dt_weight, (int[]){1, 0})),
                    .out = VIEW(delta)});
  kr_graph_call(g, "scan", &kr_op_selective_scan,
                &(kr_selective_scan_args){.call.flags = KRAIT_SCAN_SOFTPLUS,
                                             .G = 1,
                                             .u = CHANNELS(input),
                                             .delta = CHANNELS(kr_graph_reshape(g, delta, map)),
                                             .A = VIEW(A),
                                             .Bmat = STATES(R),
                                             .Cmat = STATES(R + N),
                                             .Dvec = VIEW(Dvec),
                                             .delta_bias = VIEW(dt_bias),
                                             .out = CHANNELS(y)});
  kr_graph_pointwise(g, "gate", (kr_pointwise_args){.call.flags = KRAIT_POINTWISE_PRODUCT, .x_scale = 1}, y, z, out);
#undef STATES
#undef CHANNELS
#undef VIEW
}

KR_GRAPH_IMPL(projected_scan_composed, projected_scan, record_projected_scan, KRAIT_F32, 0)
KR_GRAPH_IMPL(projected_scan_ref, projected_scan, record_projected_scan, KRAIT_F64, KR_PLAN_REFERENCE)

/* gated_norm_ref.c: the gated norm and its gradient, written to be read (specs: layernorm_gated). Per group of
 * features, with gate(z) = silu(z), 1 without z, and norm as in add_norm_ref.c:
 *   norm first: out = (norm(x) weight + bias) gate(z);   gate first: out = norm(x gate(z)) weight + bias
 * Backward: with do the gradient of norm(.) weight + bias, w = do weight, dh = (w - xhat mean(w xhat) - mean(w)) r:
 *   norm first: do = dout gate, dx = dh, dz = dout (xhat weight + bias) gate'(z)
 *   gate first: do = dout, dx = dh gate, dz = dh x gate'(z);   dweight = sum do xhat, dbias = sum do. */
#include <math.h>
#include <string.h>

#include "norm_impls.h"
#include "op_list.h"
#include "view.h"

typedef struct group {
  const kr_gated_norm_bwd_args *a; /* the forward call uses its inputs only */
  int64_t r, first, size;
  double mean, scale; /* 1 / sqrt(var + eps) */
} group;

static int gates_first(const kr_gated_norm_bwd_args *a) {
  return (a->call.flags & KRAIT_GATED_NORM_GATE_FIRST) != 0;
}
static double get(const kr_view *v, int64_t r, int64_t m) { return kr_get(v, kr_at2(v, r, m)); }
static double gated_norm_feature(const kr_view *v, int64_t m, double other) {
  return kr_has(v) ? kr_get(v, kr_at1(v, m)) : other;
}

static double gate(const kr_gated_norm_bwd_args *a, int64_t r, int64_t m) {
  if (!kr_has(&a->z)) return 1;
  double z = get(&a->z, r, m);
  return z / (1 + exp(-z));
}
static double gate_slope(const kr_gated_norm_bwd_args *a, int64_t r, int64_t m) {
  double z = get(&a->z, r, m), s = 1 / (1 + exp(-z));
  return s * (1 + z / (1 + exp(z)));
}
static double normed(const kr_gated_norm_bwd_args *a, int64_t r, int64_t m) {
  return get(&a->x, r, m) * (gates_first(a) ? gate(a, r, m) : 1);
}

static group measure_gated_norm(const kr_gated_norm_bwd_args *a, int64_t r, int64_t first) {
  group g = {a, r, first, a->group_size, 0, 0};
  double square = 0, n = (double)g.size;
  for (int64_t m = first; m < first + g.size && !(a->call.flags & KRAIT_GATED_NORM_RMS); m++)
    g.mean += normed(a, r, m) / n;
  for (int64_t m = first; m < first + g.size; m++)
    square += (normed(a, r, m) - g.mean) * (normed(a, r, m) - g.mean) / n;
  g.scale = 1 / sqrt(square + (double)a->eps);
  return g;
}

static double affine(const group *g, int64_t m) {
  return (normed(g->a, g->r, m) - g->mean) * g->scale * gated_norm_feature(&g->a->weight, m, 1) +
         gated_norm_feature(&g->a->bias, m, 0);
}

int32_t kr_gated_norm_ref(const krait_ctx *ctx, const void *args) {
  const kr_gated_norm_args *f = args;
  const kr_gated_norm_bwd_args a = {.call = f->call,
                                       .R = f->R,
                                       .M = f->M,
                                       .group_size = f->group_size,
                                       .eps = f->eps,
                                       .x = f->x,
                                       .z = f->z,
                                       .weight = f->weight,
                                       .bias = f->bias};
  (void)ctx;
  for (int64_t r = 0; r < a.R; r++)
    for (int64_t first = 0; first < a.M; first += a.group_size) {
      group g = measure_gated_norm(&a, r, first);
      for (int64_t m = first; m < first + g.size; m++)
        kr_put(&f->out, kr_at2(&f->out, r, m), affine(&g, m) * (gates_first(&a) ? 1 : gate(&a, r, m)));
    }
  return KRAIT_OK;
}

/* sums: dweight, dbias, each [M]. */
static void gated_norm_ref_group_back(const group *g, double *sums) {
  const kr_gated_norm_bwd_args *a = g->a;
  const int is_rms = (a->call.flags & KRAIT_GATED_NORM_RMS) != 0, first_gate = gates_first(a);
  const double n = (double)g->size;
  double along = 0, level = 0;
  for (int64_t m = g->first; m < g->first + g->size; m++) {
    double xhat = (normed(a, g->r, m) - g->mean) * g->scale,
           d = get(&a->dout, g->r, m) * (first_gate ? 1 : gate(a, g->r, m));
    along += d * gated_norm_feature(&a->weight, m, 1) * xhat / n;
    level += is_rms ? 0 : d * gated_norm_feature(&a->weight, m, 1) / n;
    sums[m] += d * xhat;
    sums[a->M + m] += d;
  }
  for (int64_t m = g->first; m < g->first + g->size; m++) {
    double xhat = (normed(a, g->r, m) - g->mean) * g->scale, dout = get(&a->dout, g->r, m),
           d = dout * (first_gate ? 1 : gate(a, g->r, m));
    double dh = (d * gated_norm_feature(&a->weight, m, 1) - xhat * along - level) * g->scale;
    if (kr_has(&a->dx)) kr_put(&a->dx, kr_at2(&a->dx, g->r, m), dh * (first_gate ? gate(a, g->r, m) : 1));
    if (kr_has(&a->dz))
      kr_put(&a->dz, kr_at2(&a->dz, g->r, m),
             (first_gate ? dh * get(&a->x, g->r, m) : dout * affine(g, m)) * gate_slope(a, g->r, m));
  }
}

uint64_t kr_gated_norm_bwd_ref_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  return 2 * (uint64_t)((const kr_gated_norm_bwd_args *)args)->M * sizeof(double);
}

int32_t kr_gated_norm_bwd_ref(const krait_ctx *ctx, const void *args) {
  const kr_gated_norm_bwd_args *a = args;
  double *sums = a->call.scratch;
  (void)ctx;
  memset(sums, 0, 2 * (size_t)a->M * sizeof *sums);
  for (int64_t r = 0; r < a->R; r++)
    for (int64_t first = 0; first < a->M; first += a->group_size) {
      group g = measure_gated_norm(a, r, first);
      gated_norm_ref_group_back(&g, sums);
    }
  for (int64_t m = 0; m < a->M; m++) {
    if (kr_has(&a->dweight)) kr_put(&a->dweight, kr_at1(&a->dweight, m), sums[m]);
    if (kr_has(&a->dbias)) kr_put(&a->dbias, kr_at1(&a->dbias, m), sums[a->M + m]);
  }
  return KRAIT_OK;
}

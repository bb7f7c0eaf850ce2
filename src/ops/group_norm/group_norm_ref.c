/* group_norm_ref.c: the norm over groups of channels, written to be read; double accumulation. For each (b, g), with
 * the mean and the biased variance over S and the C / G channels of the group:
 *   out = act((x - mean) / sqrt(var + eps) weight + bias) */
#include <math.h>

#include "op_list.h"
#include "view.h"

typedef struct group {
  int64_t b, first, n; /* its channels */
  double mean, scale;
} group;

static void measure_group(const kr_group_norm_args *a, group *g) {
  const double n = (double)a->S * (double)g->n;
  double squares = 0;
  g->mean = 0;
  for (int64_t i = 0; i < a->S * g->n; i++)
    g->mean += kr_get(&a->x, kr_at3(&a->x, g->b, i / g->n, g->first + i % g->n)) / n;
  for (int64_t i = 0; i < a->S * g->n; i++) {
    const double d = kr_get(&a->x, kr_at3(&a->x, g->b, i / g->n, g->first + i % g->n)) - g->mean;
    squares += d * d / n;
  }
  g->scale = 1 / sqrt(squares + (double)a->eps);
}

int32_t kr_group_norm_ref(const krait_ctx *ctx, const void *args) {
  const kr_group_norm_args *a = args;
  (void)ctx;
  for (int64_t i = 0; i < a->B * a->G; i++) {
    group g = {.b = i / a->G, .first = i % a->G * (a->C / a->G), .n = a->C / a->G};
    measure_group(a, &g);
    for (int64_t k = 0; k < a->S * g.n; k++) {
      const int64_t s = k / g.n, c = g.first + k % g.n;
      double v = (kr_get(&a->x, kr_at3(&a->x, g.b, s, c)) - g.mean) * g.scale;
      if (kr_has(&a->weight)) v *= kr_get(&a->weight, kr_at1(&a->weight, c));
      if (kr_has(&a->bias)) v += kr_get(&a->bias, kr_at1(&a->bias, c));
      kr_put(&a->out, kr_at3(&a->out, g.b, s, c), a->activation == KRAIT_ACT_SILU ? v / (1 + exp(-v)) : v);
    }
  }
  return KRAIT_OK;
}

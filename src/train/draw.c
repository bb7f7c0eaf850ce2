/* draw.c: see draw.h. */
#include "draw.h"

#include <math.h>
#include <string.h>

static uint64_t mix(uint64_t x) { /* splitmix64 */
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
double kr_draw_uniform(uint64_t seed, uint64_t stream, uint64_t i) {
  return (double)(mix(mix(seed ^ mix(stream)) + i) >> 11) * 0x1p-53;
}

static int ends(const char *name, const char *with) {
  const size_t n = strlen(name), m = strlen(with);
  return n >= m && strcmp(name + n - m, with) == 0;
}

/* Uniform within 1 / sqrt(fan in); a bias uses that of the weight before it. */
static void draw_parameter(kr_parameters *p, const kr_pk_config *config, uint64_t seed, int64_t index, uint64_t stream,
                           double *reach) {
  const kr_parameter *item = &p->items[index];
  float *value = p->value + item->at;
  const int is_norm =
      strstr(item->name, "norm.") || (item->dims.n == 1 && index + 1 < p->n_items && ends(item->name, ".weight") &&
                                      !strstr(item->name, "gru") && !strstr(item->name, "lstm"));
  int64_t inputs = 1;
  for (int i = 1; i < item->dims.n; i++) inputs *= item->dims.size[i];
  if (item->dims.n > 1) *reach = 1 / sqrt((double)inputs);
  if (strstr(item->name, "gru.") || strstr(item->name, "lstm.")) *reach = 1 / sqrt((double)config->hidden);
  if (strstr(item->name, "dt_proj.weight")) *reach = 1 / sqrt((double)config->dt_rank);
  for (int64_t i = 0; i < item->n; i++) {
    const double r = kr_draw_uniform(seed, stream + (uint64_t)index, (uint64_t)i);
    double v = (2 * r - 1) * *reach;
    if (ends(item->name, "A_log")) v = log((double)(i % config->d_state + 1));
    else if (ends(item->name, "mamba.D") || ends(item->name, "slope")) v = 1;
    else if (ends(item->name, "beta") || ends(item->name, "beta_t") || ends(item->name, "beta_f") ||
             ends(item->name, "position_bias"))
      v = 0;
    else if (ends(item->name, "dt_proj.bias")) {
      const double dt = fmax(exp(r * (log(0.1) - log(0.001)) + log(0.001)), 1e-4);
      v = dt + log(-expm1(-dt));
    } else if (is_norm) v = ends(item->name, ".bias") ? 0 : 1;
    value[i] = (float)v;
  }
}

/* After a one-dimensional instance norm weight: its bias starts at 0, and a PReLU at 0.25. */
static void draw_norms(kr_parameters *p) {
  for (int64_t i = 0; i + 1 < p->n_items; i++) {
    const kr_parameter *weight = &p->items[i], *bias = &p->items[i + 1],
                       *slope = i + 2 < p->n_items ? &p->items[i + 2] : NULL;
    if (weight->dims.n != 1 || !ends(weight->name, ".weight") || !ends(bias->name, ".bias") ||
        strncmp(weight->name, bias->name, strlen(weight->name) - 6) != 0)
      continue;
    for (int64_t k = 0; k < bias->n; k++) p->value[bias->at + k] = 0;
    for (int64_t k = 0;
         slope && slope->dims.n == 1 && ends(slope->name, ".weight") && !strstr(slope->name, "norm") && k < slope->n;
         k++)
      p->value[slope->at + k] = 0.25f;
  }
}

void kr_draw_parameters(kr_parameters *p, const kr_pk_config *config, uint64_t seed, uint64_t stream) {
  double reach = 1;
  for (int64_t i = 0; i < p->n_items; i++) draw_parameter(p, config, seed, i, stream, &reach);
  draw_norms(p);
}

void kr_draw_statistics(kr_parameters *p) {
  for (int64_t i = 0; i < p->n_items; i++)
    for (int64_t k = 0; k < p->items[i].n; k++)
      p->value[p->items[i].at + k] = ends(p->items[i].name, "var") ? 1 : 0;
}

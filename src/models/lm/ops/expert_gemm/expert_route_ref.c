/* expert_route_ref.c: the K best experts of a row and their weights (op_args.h has the equation), in double. NaN is
 * less than everything. */
#include "expert_gemm/expert_route.h"

#include <math.h>

#include "alloc.h"
#include "lm_ops.h"
#include "status.h"
#include "view.h"

static double score_of(const kr_expert_route_args *a, double x) {
  return a->scores == KR_ROUTE_SIGMOID ? 1 / (1 + exp(-x)) : x;
}

static int is_better(double x, double than) { return x > than || (x == x && than != than); }

/* The experts of the best groups get their place in `choice`; those of the others minus infinity. */
static void leave_best_groups(const kr_expert_route_args *a, double *choice) {
  const int64_t n = a->E / a->n_groups;
  double sums[KR_ROUTE_MOST_GROUPS];
  for (int64_t g = 0; g < a->n_groups; g++) {
    double best = -INFINITY, second = -INFINITY;
    for (int64_t e = g * n; e < (g + 1) * n; e++) {
      if (choice[e] > best)
        second = best, best = choice[e];
      else if (choice[e] > second)
        second = choice[e];
    }
    sums[g] = n > 1 ? best + second : best;
  }
  for (int64_t g = 0; g < a->n_groups; g++) {
    int64_t n_before = 0;
    for (int64_t o = 0; o < a->n_groups; o++) n_before += sums[o] > sums[g] || (sums[o] == sums[g] && o < g);
    for (int64_t e = g * n; e < (g + 1) * n && n_before >= a->best_groups; e++) choice[e] = -INFINITY;
  }
}

/* The best that is not taken: of equal ones the first. */
static int64_t take_best(const kr_expert_route_args *a, const double *choice, uint8_t *taken) {
  int64_t best = -1;
  for (int64_t e = 0; e < a->E; e++)
    if (!taken[e] && (best < 0 || is_better(choice[e], choice[best]))) best = e;
  taken[best] = 1;
  return best;
}

/* Of all experts: what weights are a part of. *most is subtracted from x before the exponential. */
static double sum_exponentials(const kr_expert_route_args *a, int64_t t, const int64_t *chosen, double *most) {
  const int of_all = a->scores == KR_ROUTE_ALL;
  const int64_t n = of_all ? a->E : a->K;
  double sum = 0;
  *most = kr_get(&a->x, kr_at2(&a->x, t, chosen[0]));
  for (int64_t i = 0; i < n; i++) sum += exp(kr_get(&a->x, kr_at2(&a->x, t, of_all ? i : chosen[i])) - *most);
  return sum;
}

static void write_row(const kr_expert_route_args *a, int64_t t, const int64_t *chosen) {
  const int is_sigmoid = a->scores == KR_ROUTE_SIGMOID;
  double weights[KR_ROUTE_MOST_EXPERTS], most = 0, total = 0;
  const double sum = is_sigmoid ? 1 : sum_exponentials(a, t, chosen, &most);
  for (int64_t k = 0; k < a->K; k++) {
    const double x = kr_get(&a->x, kr_at2(&a->x, t, chosen[k]));
    weights[k] = is_sigmoid ? score_of(a, x) : exp(x - most) / sum;
    total += weights[k];
  }
  const double by = (double)a->scale / (a->call.flags & KR_ROUTE_NORMED ? total + (double)a->eps : 1);
  for (int64_t k = 0; k < a->K; k++) {
    ((int32_t *)a->index.data)[kr_at2(&a->index, t, k)] = (int32_t)chosen[k];
    kr_put(&a->weights, kr_at2(&a->weights, t, k), weights[k] * by);
  }
}

void kr_expert_route_row(const kr_expert_route_args *a, int64_t t) {
  double choice[KR_ROUTE_MOST_EXPERTS];
  int64_t chosen[KR_ROUTE_MOST_EXPERTS];
  uint8_t taken[KR_ROUTE_MOST_EXPERTS] = {0};
  for (int64_t e = 0; e < a->E; e++)
    choice[e] = score_of(a, kr_get(&a->x, kr_at2(&a->x, t, e))) +
                (kr_has(&a->bias) ? kr_get(&a->bias, kr_at1(&a->bias, e)) : 0);
  if (a->n_groups > 1) leave_best_groups(a, choice);
  for (int64_t k = 0; k < a->K; k++) chosen[k] = take_best(a, choice, taken);
  write_row(a, t, chosen);
}

int32_t kr_expert_route_ref(const krait_ctx *ctx, const void *args) {
  const kr_expert_route_args *a = args;
  (void)ctx;
  for (int64_t t = 0; t < a->T; t++) kr_expert_route_row(a, t);
  return KRAIT_OK;
}

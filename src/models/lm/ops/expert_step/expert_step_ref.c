/* expert_step_ref.c: in double, scores = router x; the choice and its weights as of expert_route (expert_route_ref.c);
 * out = sum over the choices of weight down (silu(gate x) * up x), plus shared_scale times the same of the MLP for all
 * rows. */
#include <math.h>

#include "expert_gemm/expert_route.h"
#include "expert_step/expert_step.h"
#include "lm_ops.h"
#include "status.h"
#include "view.h"

static double dot_rows(const kr_view *x, int64_t x_at, const kr_view *w, int64_t w_at, int64_t step, int64_t n) {
  const int64_t x_step = x->stride[1];
  double sum = 0;
  for (int64_t k = 0; k < n; k++) sum += kr_get(x, x_at + k * x_step) * kr_get(w, w_at + k * step);
  return sum;
}

/* sum[m] += by * down silu(gate x) * up x; from: where the three matrices begin. */
static void add_mlp(const kr_expert_step_args *a, int64_t t, const kr_view *const w[3], const int64_t from[3],
                    int64_t F, double by, double *sum) {
  const int last = w[0] == &a->gate; /* the dimension of rows */
  for (int64_t f = 0; f < F; f++) {
    double v[2];
    for (int i = 0; i < 2; i++)
      v[i] = dot_rows(&a->x, t * a->x.stride[0], w[i], from[i] + f * w[i]->stride[last], w[i]->stride[last + 1], a->M);
    const double hidden = by * v[0] / (1 + exp(-v[0])) * v[1];
    for (int64_t m = 0; m < a->M; m++)
      sum[m] += hidden * kr_get(w[2], from[2] + m * w[2]->stride[last] + f * w[2]->stride[last + 1]);
  }
}

static void choose_of_scores(const kr_expert_step_args *a, double *scores, int32_t *index, float *weights) {
  const kr_expert_route_args route = {
      .call.flags = a->call.flags & KR_ROUTE_NORMED,
      .T = 1, .E = a->E, .K = a->K, .n_groups = 1, .best_groups = 1,
      .scores = a->scores, .eps = a->eps, .scale = a->scale,
      .x = {.data = scores, .dtype = KRAIT_F64, .stride = {a->E, 1}},
      .index = {.data = index, .dtype = KRAIT_I32, .stride = {a->K, 1}},
      .weights = {.data = weights, .dtype = KRAIT_F32, .stride = {a->K, 1}}};
  kr_expert_route_row(&route, 0);
}

uint64_t kr_expert_step_ref_scratch(const krait_ctx *ctx, const void *args) {
  (void)ctx;
  return (uint64_t)((const kr_expert_step_args *)args)->M * sizeof(double);
}

int32_t kr_expert_step_ref(const krait_ctx *ctx, const void *args) {
  const kr_expert_step_args *a = args;
  const kr_view *const experts[] = {&a->gate, &a->up, &a->down},
                *const shared[] = {&a->shared_gate, &a->shared_up, &a->shared_down};
  double scores[KR_ROUTE_MOST_EXPERTS], *sum = a->call.scratch;
  int32_t index[KR_ROUTE_MOST_EXPERTS];
  float weights[KR_ROUTE_MOST_EXPERTS];
  (void)ctx;
  for (int64_t t = 0; t < a->T; t++) {
    for (int64_t e = 0; e < a->E; e++)
      scores[e] = dot_rows(&a->x, t * a->x.stride[0], &a->router, e * a->router.stride[0], a->router.stride[1], a->M);
    choose_of_scores(a, scores, index, weights);
    for (int64_t m = 0; m < a->M; m++) sum[m] = 0;
    for (int64_t k = 0; k < a->K; k++) {
      const int64_t e = index[k];
      add_mlp(a, t, experts, (int64_t[]){e * a->gate.stride[0], e * a->up.stride[0], e * a->down.stride[0]}, a->F,
              (double)weights[k], sum);
    }
    if (kr_has(&a->shared_gate)) add_mlp(a, t, shared, (int64_t[]){0, 0, 0}, a->S, (double)a->shared_scale, sum);
    for (int64_t m = 0; m < a->M; m++) kr_put(&a->out, kr_at2(&a->out, t, m), sum[m]);
  }
  return KRAIT_OK;
}

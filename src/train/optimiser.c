/* optimiser.c: see optimiser.h: AdamW (Loshchilov & Hutter 2019) in float32, as PyTorch orders its operations; on a GPU
 * by the kernels of optimiser.cu. */
#include "optimiser.h"

#include <math.h>

#include "optimiser_params.h"
#include "status.h"

static const kr_kernel adamw = {"optimiser", "kr_optimiser_adamw"}, add = {"optimiser", "kr_optimiser_add"},
                       squares = {"optimiser", "kr_optimiser_squares"},
                       squares_sum = {"optimiser", "kr_optimiser_squares_sum"};

static float *on_device(const kr_parameters *p, float *host) { return p->device + (host - p->value); }
static kr_grid grid_of(int64_t n) {
  return (kr_grid){.x = (uint32_t)((n + KR_OPTIMISER_THREADS - 1) / KR_OPTIMISER_THREADS),
                   .block = KR_OPTIMISER_THREADS};
}

/* ---- a step ---- */

static kr_optimiser_params optimiser_plan_of(const kr_parameters *p, const kr_adamw *o, double scale, double decay) {
  const double t = (double)o->step;
  return (kr_optimiser_params){.value = p->value,
                             .m = p->m,
                             .v = p->v,
                             .average = decay > 0 ? p->average : NULL,
                             .gradient = p->gradient,
                             .n = p->n,
                             .scale = (float)scale,
                             .keep = (float)(1 - o->lr * o->weight_decay),
                             .beta1 = (float)o->beta1,
                             .beta2 = (float)o->beta2,
                             .step = (float)(o->lr / (1 - pow(o->beta1, t))),
                             .root = (float)sqrt(1 - pow(o->beta2, t)),
                             .eps = (float)o->eps,
                             .average_keep = (float)decay,
                             .average_take = (float)(1 - decay)};
}

static void update_range(void *user, int64_t begin, int64_t end, int worker) {
  const kr_optimiser_params *u = user;
  float *restrict value = u->value, *restrict m = u->m, *restrict v = u->v, *restrict average = u->average;
  const float *restrict gradient = u->gradient;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const float g = gradient[i] * u->scale;
    m[i] = m[i] + (g - m[i]) * (1 - u->beta1);
    v[i] = v[i] * u->beta2 + g * g * (1 - u->beta2);
    value[i] = value[i] * u->keep - u->step * m[i] / (sqrtf(v[i]) / u->root + u->eps);
  }
  for (int64_t i = begin; i < end && average; i++)
    average[i] = u->average_keep * average[i] + u->average_take * value[i];
}

int32_t kr_optimiser_step(const krait_ctx *ctx, kr_parameters *p, const kr_adamw *options, double scale, double decay) {
  kr_optimiser_params u = optimiser_plan_of(p, options, scale, decay);
  if (!p->device) {
    kr_parallel(ctx, p->n, 65536, update_range, &u);
    return KRAIT_OK;
  }
  u.value = on_device(p, p->value), u.m = on_device(p, p->m), u.v = on_device(p, p->v),
  u.gradient = on_device(p, p->gradient), u.average = u.average ? on_device(p, p->average) : NULL;
  const kr_grid grid = grid_of(p->n);
  return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &adamw, &grid, &u, sizeof u);
}

/* ---- gradients ---- */

int32_t kr_optimiser_accumulate(const krait_ctx *ctx, kr_parameters *p, float *total, int64_t at, int64_t n) {
  if (p->device) {
    const kr_optimiser_params u = {.gradient = on_device(p, p->gradient),
                                 .total = total,
                                 .n = p->n,
                                 .total_keep = at ? 1 : 0,
                                 .by = at + 1 < n ? 0 : (float)n};
    const kr_grid grid = grid_of(p->n);
    return kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &add, &grid, &u, sizeof u);
  }
  for (int64_t i = 0; i < p->n; i++) total[i] = (at ? total[i] : 0) + p->gradient[i];
  for (int64_t i = 0; i < p->n && at + 1 == n; i++) p->gradient[i] = total[i] / (float)n;
  return KRAIT_OK;
}

int32_t kr_optimiser_sum(const krait_ctx *ctx, float *parts, int64_t n_parts, int64_t n, float *to) {
  const kr_grid grid = grid_of(n);
  for (int64_t k = 0; k < n_parts; k++) {
    const kr_optimiser_params u = {.gradient = parts + k * n, .total = to, .n = n, .total_keep = k ? 1 : 0};
    KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &add, &grid, &u, sizeof u));
  }
  return KRAIT_OK;
}

int64_t kr_optimiser_scratch_bytes(void) { return (KR_OPTIMISER_PARTS + 1) * (int64_t)sizeof(double); }

int32_t kr_optimiser_norm(const krait_ctx *ctx, const kr_parameters *p, void *scratch, double *norm) {
  double sum = 0;
  if (p->device) {
    const kr_optimiser_params u = {.gradient = on_device(p, p->gradient), .squares = scratch, .n = p->n};
    KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &squares,
                          &(kr_grid){.x = KR_OPTIMISER_PARTS, .block = KR_OPTIMISER_THREADS}, &u, sizeof u));
    KR_TRY(kr_cuda_launch(ctx->cuda, KRAIT_CAP_CUDA_BASE, &squares_sum,
                          &(kr_grid){.x = 1, .block = KR_OPTIMISER_THREADS}, &u, sizeof u));
    KR_TRY(kr_cuda_copy_out(ctx->cuda, &sum, u.squares + KR_OPTIMISER_PARTS, sizeof sum, NULL));
    KR_TRY(kr_cuda_wait(ctx->cuda, NULL));
  }
  for (int64_t i = 0; i < p->n && !p->device; i++) sum += (double)p->gradient[i] * (double)p->gradient[i];
  *norm = sqrt(sum);
  return KRAIT_OK;
}

/* seedvr_sampler.c: Euler steps with guidance, and the noise. */
#include "seedvr_sampler.h"

#include <math.h>

#include "alloc.h"
#include "ctx.h"
#include "random.h"
#include "status.h"

double kr_seedvr_time(int64_t steps, int64_t i) {
  return KR_SEEDVR_TIMES * (1 - (double)i / (double)steps);
}

static double line_through(double x0, double y0, double x1, double y1, double x) {
  return y0 + (y1 - y0) / (x1 - x0) * (x - x0);
}

double kr_seedvr_shift(double t, const int64_t shape[3]) {
  const double frames = (double)((shape[0] - 1) * 4 + 1), area = 64.0 * (double)shape[1] * (double)shape[2],
               u = t / KR_SEEDVR_TIMES;
  const double s = frames > 1 ? line_through(256.0 * 256 * 37, 1, 1280.0 * 720 * 145, 5, frames * area)
                              : line_through(256.0 * 256, 1, 1024.0 * 1024, 3.2, area);
  return KR_SEEDVR_TIMES * s * u / (1 + (s - 1) * u);
}

void kr_seedvr_mix(double t, int64_t n, float *x, const float *noise) {
  const double u = t / KR_SEEDVR_TIMES;
  for (int64_t i = 0; i < n; i++) x[i] = (float)((1 - u) * (double)x[i] + u * (double)noise[i]);
}

static double deviation_of(const float *x, int64_t n) {
  double mean = 0, squares = 0;
  for (int64_t i = 0; i < n; i++) mean += (double)x[i] / (double)n;
  for (int64_t i = 0; i < n; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
  return sqrt(squares / (double)(n > 1 ? n - 1 : 1));
}

void kr_seedvr_guide(const kr_sampling *s, const float *negative, float *v) {
  const int64_t C = s->n_channels;
  for (int64_t row = 0; row < s->n_rows; row++, v += C, negative += C) {
    const double positive = deviation_of(v, C);
    for (int64_t c = 0; c < C; c++)
      v[c] = (float)((double)negative[c] + s->scale * ((double)v[c] - (double)negative[c]));
    const double own = s->rescale != 0 ? deviation_of(v, C) : 0,
                 by = own > 0 ? s->rescale * positive / own + 1 - s->rescale : 1;
    for (int64_t c = 0; c < C; c++) v[c] = (float)(by * (double)v[c]);
  }
}

/* From time t to the next: x_0 and x_T of v, mixed anew. */
static void step_to(const kr_sampling *s, double t, double next, const float *v, float *x) {
  const double u = t / KR_SEEDVR_TIMES, w = next / KR_SEEDVR_TIMES;
  for (int64_t i = 0; i < s->n_rows * s->n_channels; i++) {
    const double end = (double)x[i] - u * (double)v[i], begin = (double)x[i] + (1 - u) * (double)v[i];
    x[i] = (float)((1 - w) * end + w * begin);
  }
}

static int32_t sample_with(const kr_sampling *s, float *x, float *v, float *negative) {
  for (int64_t i = 0; i < s->steps; i++) {
    const double t = kr_seedvr_time(s->steps, i), next = i + 1 < s->steps ? kr_seedvr_time(s->steps, i + 1) : 0;
    if (s->watch) KR_TRY(s->watch(s->user, i, t, x));
    KR_TRY(s->velocity(s->user, x, t, 0, v));
    if (s->scale != 1) {
      KR_TRY(s->velocity(s->user, x, t, 1, negative));
      kr_seedvr_guide(s, negative, v);
    }
    step_to(s, t, next, v, x);
  }
  return KRAIT_OK;
}

int32_t kr_seedvr_sample(const kr_sampling *s, float *x) {
  const size_t n = (size_t)(s->n_rows * s->n_channels);
  KR_CHECK(s->steps >= 1, KRAIT_ERR_ARGUMENT, "%lld sampling steps: must be at least 1", (long long)s->steps);
  float *v = kr_alloc_array(n, sizeof *v), *negative = kr_alloc_array(n, sizeof *negative);
  const int32_t status =
      v && negative ? sample_with(s, x, v, negative) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for latents");
  kr_free(v);
  kr_free(negative);
  return status;
}

typedef struct drawing {
  uint64_t seed, batch, purpose;
  float *to;
} drawing;

static void draw_values(void *user, int64_t begin, int64_t end, int worker) {
  const drawing *d = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    kr_random random = kr_random_for(d->seed, d->batch, (uint64_t)i, d->purpose);
    d->to[i] = (float)kr_random_normal(&random);
  }
}

void kr_seedvr_noise(const krait_ctx *ctx, uint64_t seed, uint64_t batch, uint64_t purpose, int64_t n, float *to) {
  kr_parallel(ctx, n, 1 << 12, draw_values, &(drawing){seed, batch, purpose, to});
}

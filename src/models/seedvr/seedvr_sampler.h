/* seedvr_sampler.h: SeedVR's schedule, guidance and noise (MODEL.md). Latents are rows of n_channels. Times run from
 * 1000, all noise, to 0; x_t = (1 - t/1000) x_0 + (t/1000) x_T; the model gives v = x_T - x_0. */
#ifndef KR_SEEDVR_SAMPLER_H
#define KR_SEEDVR_SAMPLER_H

#include <krait/krait.h>

#define KR_SEEDVR_TIMES 1000.0

/* The i-th of exactly `steps` times. */
double kr_seedvr_time(int64_t steps, int64_t i);
/* The time t for latents of this shape; upstream hands in (h, w, channels). */
double kr_seedvr_shift(double t, const int64_t shape[3]);
/* (1 - t) x + t noise, in place. */
void kr_seedvr_mix(double t, int64_t n, float *x, const float *noise);

/* v of x at a time; is_negative: with the negative text. */
typedef int32_t (*kr_velocity_fn)(void *user, const float *x, double t, int is_negative, float *v);
typedef struct kr_sampling {
  int64_t steps, n_rows, n_channels;
  double scale, rescale; /* scale 1: without the negative text; rescale 0: none */
  kr_velocity_fn velocity;
  /* Before each evaluation, the i-th; or NULL. */
  int32_t (*watch)(void *user, int64_t i, double t, const float *x);
  void *user;
} kr_sampling;
/* x: noise, becomes x_0. */
int32_t kr_seedvr_sample(const kr_sampling *s, float *x);
/* v := negative + scale (v - negative), then rescaled row by row. */
void kr_seedvr_guide(const kr_sampling *s, const float *negative, float *v);

/* n values of a normal distribution, by the context's threads: value i depends on seed, batch of the film, purpose and
 * i alone (random.h), on every device. */
void kr_seedvr_noise(const krait_ctx *ctx, uint64_t seed, uint64_t batch, uint64_t purpose, int64_t n, float *to);

#endif

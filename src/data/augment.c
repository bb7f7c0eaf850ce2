/* augment.c: rumble, gain, speed, band, tilt and clipping (augment.h). */
#include "augment.h"

#include <math.h>
#include <string.h>

#include "convolve.h"
#include "mix.h"
#include "resample.h"
#include "status.h"

enum { HZ = 16000 };

void kr_augment_gain(kr_random *random, float *x, int64_t n, double most_db) {
  enum { KNOT = HZ / 2 };
  double from = kr_random_between(random, -most_db, most_db);
  for (int64_t at = 0; at < n; at += KNOT) {
    const double to = kr_random_between(random, -most_db, most_db);
    for (int64_t i = at; i < n && i < at + KNOT; i++) {
      const double share = (double)(i - at) / KNOT, smooth = share * share * (3 - 2 * share);
      x[i] *= (float)pow(10, (from + (to - from) * smooth) / 20);
    }
    from = to;
  }
}

void kr_augment_rumble(kr_random *random, float *x, int64_t n) {
  enum { BEFORE = HZ / 2, MOST_POLES = 4 }; /* warm-up, so that the filters have settled */
  const double two_pi = 6.283185307179586, hz = 8 * pow(50 / 8.0, kr_random_unit(random)),
               share = 1 - exp(-two_pi * hz / HZ), slow_share = 1 - exp(-two_pi * 4 / HZ);
  const int n_poles = (int)kr_random_whole(random, 2, MOST_POLES);
  double poles[MOST_POLES] = {0}, slow = 0;
  for (int64_t i = -BEFORE; i < n; i++) {
    double v = kr_random_normal(random);
    for (int k = 0; k < n_poles; k++) v = poles[k] += share * (v - poles[k]);
    slow += slow_share * (v - slow);
    if (i >= 0) x[i] = (float)(v - slow);
  }
  kr_augment_gain(random, x, n, 6);
}

typedef struct capacity {
  float *to;
  int64_t left;
} capacity;

static int32_t take_augment(void *user, const float *samples, int64_t n) {
  capacity *r = user;
  const int64_t used = n < r->left ? n : r->left;
  memcpy(r->to, samples, (size_t)used * sizeof *samples);
  r->to += used;
  r->left -= used;
  return KRAIT_OK;
}

int32_t kr_augment_speed(const float *x, int64_t n_in, double speed, float *out, int64_t n_out) {
  capacity r = {out, n_out};
  kr_resampler *resampler = NULL;
  memset(out, 0, (size_t)n_out * sizeof *out);
  const int32_t in_hz = (int32_t)lround(HZ * speed / 100) * 100; /* whole hundreds: short filters */
  KR_TRY(kr_resampler_open(in_hz, HZ, (kr_sink){take_augment, &r}, &resampler));
  int32_t status = kr_resampler_push(resampler, x, n_in);
  if (status == KRAIT_OK) status = kr_resampler_finish(resampler, kr_resampled_length(n_in, in_hz, HZ));
  kr_resampler_close(&resampler);
  return status;
}

typedef double (*gain_of)(const void *user, int64_t bin);

typedef struct edge {
  double hz, bin_hz, tilt_db;
} edge;

/* Attenuates by 60 dB within a tenth above the edge. */
static double edge_gain(const void *user, int64_t bin) {
  const edge *e = user;
  const double hz = (double)bin * e->bin_hz, above = (hz - e->hz) / (0.1 * e->hz);
  return above <= 0 ? 1 : above >= 1 ? 0 : 0.5 + 0.5 * cos(3.141592653589793 * above);
}

static double tilt_gain(const void *user, int64_t bin) {
  const edge *e = user;
  return pow(10, e->tilt_db * log2(fmax((double)bin * e->bin_hz / e->hz, 1)) / 20);
}

static int32_t filter(float *x, int64_t n, gain_of gain, edge e) {
  kr_convolver *convolver = NULL;
  KR_TRY(kr_convolver_open(kr_power_of_two(n + 1024), &convolver));
  e.bin_hz = (double)HZ / (double)kr_convolver_size(convolver);
  memcpy(x, kr_convolver_filter(convolver, x, n, gain, &e), (size_t)n * sizeof *x);
  kr_convolver_close(&convolver);
  return KRAIT_OK;
}

int32_t kr_augment_band(float *x, int64_t n, double hz) { return filter(x, n, edge_gain, (edge){.hz = hz}); }

int32_t kr_augment_tilt(float *x, int64_t n, double hz, double tilt_db) {
  return filter(x, n, tilt_gain, (edge){.hz = hz, .tilt_db = tilt_db});
}

enum { N_KNOTS = 7 };
typedef struct colour {
  double knots_db[N_KNOTS], tilt_db, bin_hz;
} colour;

static double colour_gain(const void *user, int64_t bin) {
  const colour *c = user;
  const double hz = fmax((double)bin * c->bin_hz, 30), at = log2(hz / 30) / log2(HZ / 2 / 30.0) * (N_KNOTS - 1);
  const int i = at >= N_KNOTS - 1 ? N_KNOTS - 2 : (int)at;
  const double share = at - i, smooth = share * share * (3 - 2 * share);
  return pow(
      10, (c->knots_db[i] * (1 - smooth) + c->knots_db[i + 1] * smooth + c->tilt_db * log2(fmax(hz, 60) / 1000)) / 20);
}

int32_t kr_augment_curve(kr_random *random, float *x, int64_t n, double spread_db, double tilt_db) {
  kr_convolver *convolver = NULL;
  KR_TRY(kr_convolver_open(kr_power_of_two(n + 1024), &convolver));
  colour c = {.tilt_db = tilt_db, .bin_hz = (double)HZ / (double)kr_convolver_size(convolver)};
  for (int i = 0; i < N_KNOTS; i++) c.knots_db[i] = spread_db * kr_random_normal(random);
  memcpy(x, kr_convolver_filter(convolver, x, n, colour_gain, &c), (size_t)n * sizeof *x);
  kr_convolver_close(&convolver);
  return KRAIT_OK;
}

void kr_augment_clip(float *x, int64_t n, double share) {
  const float most = (float)(kr_peak(x, n) * share);
  for (int64_t i = 0; i < n; i++) x[i] = fminf(fmaxf(x[i], -most), most);
}

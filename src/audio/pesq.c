/* pesq.c: PESQ from two signals to a number: levels, the handset or wide-band filter, alignment, comparison, mapping to
 * opinion scores. */
#include "pesq.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "convolve.h"
#include "pesq_parts.h"
#include "status.h"

enum { SHORTEST = KR_PESQ_HZ / 4 };

/* ---- filters given as decibels at some frequencies, straight lines between ---- */
typedef struct point {
  double hz, db;
} point;
typedef struct curve {
  const point *points;
  int n;
  double bin_hz, reference_db; /* the gain at 1 kHz is 1 */
} curve;

/* Levels are compared in the telephone band. */
static const point level_band[] = {{0, -500}, {300, -500}, {350, 0}, {3250, 0}, {3500, -500}, {8000, -500}};
/* A telephone's receiving side (intermediate reference system). */
static const point handset[] = {{0, -200},  {50, -40}, {100, -20},   {125, -12},  {160, -6}, {200, 0},
                                {250, 4},   {300, 6},  {350, 8},     {400, 10},   {500, 11}, {600, 12},
                                {3250, 12}, {3500, 4}, {4000, -200}, {8000, -200}};

static double decibels(const curve *c, double hz) {
  int i = 1;
  while (i < c->n - 1 && c->points[i].hz < hz) i++;
  const point *a = &c->points[i - 1], *b = &c->points[i];
  return ((hz - a->hz) * b->db + (b->hz - hz) * a->db) / (b->hz - a->hz);
}

static double curve_gain(const void *user, int64_t bin) {
  const curve *c = user;
  return pow(10, (decibels(c, (double)bin * c->bin_hz) - c->reference_db) / 20);
}

static const float *filter(kr_convolver *convolver, const point *points, int n_points, const float *x, int64_t n) {
  curve c = {points, n_points, (double)KR_PESQ_HZ / (double)kr_convolver_size(convolver), 0};
  c.reference_db = decibels(&c, 1000);
  return kr_convolver_filter(convolver, x, n, curve_gain, &c);
}

/* ---- sections of second order ---- */
enum { MOST_SECTIONS = 12 };
/* The band-pass for delays. */
static const kr_pesq_section delay_band[MOST_SECTIONS] = {
    {0.325631521, -0.086782860, -0.238848661, -1.079416490, 0.434583902},
    {0.403961804, -0.556985881, 0.153024077, -0.415115835, 0.696590244},
    {4.736162769, 3.287251046, 1.753289019, -1.859599046, 0.876284034},
    {0.365373469, 0, 0, -0.634626531, 0},
    {0.884811506, 0, 0, -0.256725271, 0.141536777},
    {0.723593055, -1.447186099, 0.723593044, -1.129587469, 0.657232737},
    {1.644910855, -1.817280902, 1.249658063, -1.778403899, 0.801724355},
    {0.633692689, -0.284644314, -0.319789663, 0, 0},
    {1.032763031, 0.268428979, 0.602913323, 0, 0},
    {1.001616361, -0.823749013, 0.439731942, -0.885778255, 0},
    {0.752472096, -0.375388990, 0.188977609, -0.077258216, 0.247230734},
    {1.023700575, 0.001661628, 0.521284240, -0.183867259, 0.354324187}};

/* All sections sample by sample, so that they overlap; decayed values are flushed to zero, because denormal numbers
 * would take a hundred times as long. */
static void filter_by_sections(const kr_pesq_section *sections, int n_sections, float *x, int64_t n) {
  double z1[MOST_SECTIONS] = {0}, z2[MOST_SECTIONS] = {0};
  for (int64_t i = 0; i < n; i++) {
    double v = x[i];
    for (int k = 0; k < n_sections; k++) {
      const kr_pesq_section *s = &sections[k];
      const double z = v - s->a1 * z1[k] - s->a2 * z2[k];
      v = s->b0 * z + s->b1 * z1[k] + s->b2 * z2[k];
      z2[k] = z1[k];
      z1[k] = z;
    }
    x[i] = fabs(v) < 1e-15 ? 0 : (float)v;
  }
}

/* ---- the steps ---- */
static int32_t set_level(kr_pesq_signal *s, int64_t n, kr_convolver *convolver) {
  const double target = 1e7;
  const int64_t n_heard = n - 2 * KR_PESQ_MARGIN + KR_PESQ_TAIL;
  const float *band =
      filter(convolver, level_band, sizeof level_band / sizeof *level_band, s->samples + KR_PESQ_MARGIN, n_heard);
  double power = 0;
  for (int64_t i = 0; i < n_heard; i++) power += (double)band[i] * band[i];
  power /= (double)n_heard;
  KR_CHECK(power > 0 && isfinite(power), KRAIT_ERR_UNSUPPORTED, "PESQ: a signal is silent or not finite");
  const float gain = (float)sqrt(target / power);
  for (int64_t i = 0; i < n; i++) s->samples[i] *= gain;
  return KRAIT_OK;
}

static void filter_input(kr_pesq_signal *s, int64_t n, int mode, kr_convolver *convolver) {
  enum { RAMP = 16 };
  float *first = s->samples + KR_PESQ_MARGIN, *end = s->samples + n - KR_PESQ_MARGIN;
  if (mode == KR_PESQ_NARROW) {
    const int64_t n_heard = n - 2 * KR_PESQ_MARGIN + KR_PESQ_TAIL;
    memcpy(first, filter(convolver, handset, sizeof handset / sizeof *handset, first, n_heard),
           (size_t)n_heard * sizeof(float));
    return;
  }
  for (int i = 1; i < RAMP; i++) {
    first[i - 1] *= (float)i / RAMP;
    end[-i] *= (float)i / RAMP;
  }
  filter_by_sections(&kr_pesq_wide_input, 1, first, n - 2 * KR_PESQ_MARGIN);
}

/* Removes the offset, fades the ends, and keeps only the band that carries the rhythm of speech. */
static void filter_for_delays(kr_pesq_signal *s, int64_t n) {
  float *first = s->aligned_by + KR_PESQ_MARGIN;
  const int64_t n_signal = n - 2 * KR_PESQ_MARGIN;
  memcpy(s->aligned_by, s->samples, (size_t)(n + KR_PESQ_TAIL) * sizeof(float));
  double mean = 0;
  for (int64_t i = 0; i < n_signal; i++) mean += first[i];
  mean /= (double)n; /* as in the standard, over both margins too */
  for (int64_t i = 0; i < n_signal; i++) first[i] -= (float)mean;
  for (int i = 0; i < KR_PESQ_STEP; i++) {
    first[i] *= ((float)i + 0.5f) / KR_PESQ_STEP;
    first[n_signal - 1 - i] *= ((float)i + 0.5f) / KR_PESQ_STEP;
  }
  filter_by_sections(delay_band, MOST_SECTIONS, s->aligned_by, n + KR_PESQ_TAIL);
}

static int32_t prepare(kr_pesq_signal *s, const float *samples, int64_t n_samples, int64_t n, int mode,
                       kr_convolver *convolver) {
  const size_t n_all = (size_t)(n + KR_PESQ_TAIL), n_steps = (size_t)(n / KR_PESQ_STEP);
  s->samples = kr_alloc_array(n_all, sizeof(float));
  s->aligned_by = kr_alloc_array(n_all, sizeof(float));
  s->level = kr_alloc_array(n_steps, sizeof(float));
  s->logs = kr_alloc_array(n_steps, sizeof(float));
  KR_CHECK(s->samples && s->aligned_by && s->level && s->logs, KRAIT_ERR_NO_MEMORY, "no memory for PESQ");
  memcpy(s->samples + KR_PESQ_MARGIN, samples, (size_t)n_samples * sizeof(float));
  KR_TRY(set_level(s, n, convolver));
  filter_input(s, n, mode, convolver);
  filter_for_delays(s, n);
  return KRAIT_OK;
}

static void release(kr_pesq_signal *s) {
  kr_free(s->samples);
  kr_free(s->aligned_by);
  kr_free(s->level);
  kr_free(s->logs);
}

static double to_opinion(double score, int mode) {
  return 0.999 + 4 / (1 + exp(mode == KR_PESQ_WIDE ? 3.8224 - 1.3669 * score : 4.6607 - 1.4945 * score));
}

int32_t kr_pesq(const float *clean, const float *other, int64_t n, int mode, double *mos) {
  *mos = NAN;
  KR_CHECK(n >= SHORTEST, KRAIT_ERR_UNSUPPORTED, "PESQ: the signals are shorter than 0.25 s");
  kr_pesq_pair *pair = kr_zalloc(sizeof *pair);
  KR_CHECK(pair, KRAIT_ERR_NO_MEMORY, "no memory for PESQ");
  kr_convolver *convolver = NULL;
  double score = 0;
  pair->n = n + 2 * KR_PESQ_MARGIN;
  int32_t status = kr_convolver_open(kr_power_of_two(n + KR_PESQ_TAIL), &convolver);
  if (status == KRAIT_OK) status = prepare(&pair->clean, clean, n, pair->n, mode, convolver);
  if (status == KRAIT_OK) status = prepare(&pair->other, other, n, pair->n, mode, convolver);
  if (status == KRAIT_OK) status = kr_pesq_align(pair);
  if (status == KRAIT_OK) status = kr_pesq_compare(pair, &score);
  if (status == KRAIT_OK) *mos = to_opinion(score, mode);
  kr_convolver_close(&convolver);
  release(&pair->clean);
  release(&pair->other);
  kr_free(pair);
  return status;
}

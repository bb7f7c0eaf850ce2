/* pesq.c: PESQ from two signals to a number: levels, the handset or wide-band filter, alignment, comparison, mapping to
 * opinion scores. */
#include "pesq.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "convolve.h"
#include "lane_fft.h"
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

/* Per bin, over the transform's length. */
static void set_gains(const point *points, int n_points, int64_t n_fft, float *gains) {
  curve c = {points, n_points, (double)KR_PESQ_HZ / (double)n_fft, 0};
  c.reference_db = decibels(&c, 1000);
  for (int64_t bin = 0; bin <= n_fft / 2; bin++)
    gains[bin] = (float)(pow(10, (decibels(&c, (double)bin * c.bin_hz) - c.reference_db) / 20) / (double)n_fft);
}

struct kr_pesq_listener {
  int mode;
  int64_t n;
  kr_pesq_pair pair;
  kr_lane_fft fft;
  float *level_gains, *handset_gains; /* handset_gains: NULL in wide-band */
  kr_pesq_aligner *aligner;
  kr_pesq_model *model;
};

/* n samples, with zeros after them; the result is as long as the transform. */
static const float *filter_by_gains(kr_pesq_listener *l, const float *gains, const float *x, int64_t n) {
  kr_lane_fft *fft = &l->fft;
  memcpy(fft->re, x, (size_t)n * sizeof *x);
  memset(fft->re + n, 0, (size_t)(fft->n - n) * sizeof *x);
  memset(fft->im, 0, (size_t)fft->n * sizeof *x);
  kr_lane_fft_run(fft, 1);
  for (int64_t k = 0; k <= fft->n / 2; k++)
    fft->re_next[k] = fft->im[k] * gains[k], fft->im_next[k] = fft->re[k] * gains[k];
  for (int64_t k = 1; k < fft->n / 2; k++) /* a real signal's other half; re and im are exchanged, for the inverse */
    fft->re_next[fft->n - k] = -fft->re_next[k], fft->im_next[fft->n - k] = fft->im_next[k];
  kr_lane_fft_turn(fft);
  kr_lane_fft_run(fft, 1);
  return fft->im;
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

typedef struct bank {
  double b0[MOST_SECTIONS], b1[MOST_SECTIONS], b2[MOST_SECTIONS], a1[MOST_SECTIONS], a2[MOST_SECTIONS];
  double z1[MOST_SECTIONS], z2[MOST_SECTIONS], in[MOST_SECTIONS], out[MOST_SECTIONS];
} bank;

/* In every round each section takes what the one before it made in the last round, so that all are independent: vector
 * instructions, as long as the compiler does not know n and write them out one by one. */
static __attribute__((noinline)) void run_round(bank *b, int n) {
  for (int k = 0; k < n; k++) {
    const double z = b->in[k] - b->a1[k] * b->z1[k] - b->a2[k] * b->z2[k];
    b->out[k] = b->b0[k] * z + b->b1[k] * b->z1[k] + b->b2[k] * b->z2[k];
    b->z2[k] = b->z1[k];
    b->z1[k] = z;
  }
}

/* Decayed values are flushed to zero, because denormal numbers would take a hundred times as long. */
static void filter_by_sections(const kr_pesq_section *sections, int n_sections, float *x, int64_t n) {
  bank b = {0};
  const int last = n_sections - 1;
  for (int k = 0; k < n_sections; k++)
    b.b0[k] = sections[k].b0, b.b1[k] = sections[k].b1, b.b2[k] = sections[k].b2, b.a1[k] = sections[k].a1,
    b.a2[k] = sections[k].a2;
  for (int64_t i = 0; i < n + last; i++) {
    b.in[0] = i < n ? (double)x[i] : 0;
    run_round(&b, n_sections);
    if (i >= last) x[i - last] = fabs(b.out[last]) < 1e-15 ? 0 : (float)b.out[last];
    memcpy(b.in + 1, b.out, (size_t)last * sizeof *b.in);
  }
}

/* ---- the steps ---- */
static int32_t set_level(kr_pesq_listener *l, kr_pesq_signal *s) {
  const double target = 1e7;
  const int64_t n = l->pair.n, n_heard = n - 2 * KR_PESQ_MARGIN + KR_PESQ_TAIL;
  const float *band = filter_by_gains(l, l->level_gains, s->samples + KR_PESQ_MARGIN, n_heard);
  double power = 0;
  for (int64_t i = 0; i < n_heard; i++) power += (double)band[i] * band[i];
  power /= (double)n_heard;
  KR_CHECK(power > 0 && isfinite(power), KRAIT_ERR_UNSUPPORTED, "PESQ: a signal is silent or not finite");
  const float gain = (float)sqrt(target / power);
  for (int64_t i = 0; i < n; i++) s->samples[i] *= gain;
  return KRAIT_OK;
}

static void filter_input(kr_pesq_listener *l, kr_pesq_signal *s) {
  enum { RAMP = 16 };
  const int64_t n = l->pair.n;
  float *first = s->samples + KR_PESQ_MARGIN, *end = s->samples + n - KR_PESQ_MARGIN;
  if (l->mode == KR_PESQ_NARROW) {
    const int64_t n_heard = n - 2 * KR_PESQ_MARGIN + KR_PESQ_TAIL;
    memcpy(first, filter_by_gains(l, l->handset_gains, first, n_heard), (size_t)n_heard * sizeof(float));
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

/* From the samples to level and logs. */
static int32_t prepare(kr_pesq_listener *l, kr_pesq_signal *s, const float *samples) {
  memset(s->samples, 0, (size_t)(l->pair.n + KR_PESQ_TAIL) * sizeof(float));
  memcpy(s->samples + KR_PESQ_MARGIN, samples, (size_t)l->n * sizeof(float));
  KR_TRY(set_level(l, s));
  filter_input(l, s);
  filter_for_delays(s, l->pair.n);
  kr_pesq_find_speech(l->aligner, s);
  return KRAIT_OK;
}

static double to_opinion(double score, int mode) {
  return 0.999 + 4 / (1 + exp(mode == KR_PESQ_WIDE ? 3.8224 - 1.3669 * score : 4.6607 - 1.4945 * score));
}

static int32_t open_signal(kr_pesq_signal *s, int64_t n) {
  const size_t n_all = (size_t)(n + KR_PESQ_TAIL), n_steps = (size_t)(n / KR_PESQ_STEP);
  s->samples = kr_alloc_array(n_all, sizeof(float));
  s->aligned_by = kr_alloc_array(n_all, sizeof(float));
  s->level = kr_alloc_array(n_steps, sizeof(float));
  s->logs = kr_alloc_array(n_steps, sizeof(float));
  KR_CHECK(s->samples && s->aligned_by && s->level && s->logs, KRAIT_ERR_NO_MEMORY, "no memory for PESQ");
  return KRAIT_OK;
}

static void close_signal(kr_pesq_signal *s) {
  kr_free(s->samples);
  kr_free(s->aligned_by);
  kr_free(s->level);
  kr_free(s->logs);
}

static int32_t open_listener(kr_pesq_listener *l) {
  const int64_t n_fft = kr_power_of_two(l->n + KR_PESQ_TAIL);
  const size_t n_gains = (size_t)n_fft / 2 + 1;
  KR_TRY(kr_lane_fft_open(n_fft, 1, &l->fft));
  KR_TRY(open_signal(&l->pair.clean, l->pair.n));
  KR_TRY(open_signal(&l->pair.other, l->pair.n));
  l->level_gains = kr_alloc_array(n_gains, sizeof(float));
  if (l->mode == KR_PESQ_NARROW) l->handset_gains = kr_alloc_array(n_gains, sizeof(float));
  KR_CHECK(l->level_gains && (l->handset_gains || l->mode == KR_PESQ_WIDE), KRAIT_ERR_NO_MEMORY, "no memory for PESQ");
  set_gains(level_band, sizeof level_band / sizeof *level_band, n_fft, l->level_gains);
  if (l->handset_gains) set_gains(handset, sizeof handset / sizeof *handset, n_fft, l->handset_gains);
  KR_TRY(kr_pesq_aligner_open(&l->pair, &l->aligner));
  return kr_pesq_model_open(&l->pair, &l->model);
}

int32_t kr_pesq_open(int64_t n, int mode, kr_pesq_listener **listener) {
  KR_CHECK(n >= SHORTEST, KRAIT_ERR_UNSUPPORTED, "PESQ: the signals are shorter than 0.25 s");
  kr_pesq_listener *l = *listener = kr_zalloc(sizeof *l);
  KR_CHECK(l, KRAIT_ERR_NO_MEMORY, "no memory for PESQ");
  l->n = n, l->mode = mode, l->pair.n = n + 2 * KR_PESQ_MARGIN;
  const int32_t status = open_listener(l);
  if (status < 0) kr_pesq_close(listener);
  return status;
}

void kr_pesq_close(kr_pesq_listener **listener) {
  kr_pesq_listener *l = *listener;
  if (!l) return;
  kr_pesq_model_close(&l->model), kr_pesq_aligner_close(&l->aligner);
  close_signal(&l->pair.clean), close_signal(&l->pair.other);
  kr_lane_fft_close(&l->fft);
  kr_free(l->level_gains), kr_free(l->handset_gains), kr_free(l);
  *listener = NULL;
}

int32_t kr_pesq_hear_clean(kr_pesq_listener *l, const float *clean) {
  KR_TRY(prepare(l, &l->pair.clean, clean));
  kr_pesq_hear_clean_side(l->model);
  return KRAIT_OK;
}

int32_t kr_pesq_hear_other(kr_pesq_listener *l, const float *other, double *mos) {
  double score;
  *mos = NAN;
  KR_TRY(prepare(l, &l->pair.other, other));
  KR_TRY(kr_pesq_align(l->aligner));
  KR_TRY(kr_pesq_compare(l->model, &score));
  *mos = to_opinion(score, l->mode);
  return KRAIT_OK;
}

int32_t kr_pesq(const float *clean, const float *other, int64_t n, int mode, double *mos) {
  kr_pesq_listener *l = NULL;
  *mos = NAN;
  int32_t status = kr_pesq_open(n, mode, &l);
  if (status == KRAIT_OK) status = kr_pesq_hear_clean(l, clean);
  if (status == KRAIT_OK) status = kr_pesq_hear_other(l, other, mos);
  kr_pesq_close(&l);
  return status;
}

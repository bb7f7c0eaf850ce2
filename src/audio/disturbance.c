/* disturbance.c: see disturbance.h. The forward pass follows pesq_model.c, from samples to one number; the backward
 * pass reverses it. Decisions by thresholds are treated as constants. */
#include "disturbance.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "any_fft.h"
#include "pesq_parts.h"
#include "status.h"

enum {
  FRAME = KR_PESQ_FRAME,
  HOP = FRAME / 2,
  N_BANDS = KR_PESQ_BANDS,
  N_BINS = FRAME / 2 + 1,
  SYLLABLE = 20,
  FIRST_BIN = 11,
  LAST_BIN = 104
};
static const double target_power = 1e7, least_power = 1e-12, loudest = 45, symmetric_share = 0.1,
                    asymmetric_share = 0.0309;

typedef struct side {
  double (*powers)[N_BANDS];  /* of frames and bands, as compared */
  double (*given)[N_BANDS];   /* before what is compensated */
  double (*slope)[N_BANDS];   /* of the result by what is compared */
  float *re, *im;             /* spectra of the frames */
  double power;               /* in speech's band */
} side;

struct kr_disturbance {
  int64_t n, n_frames;
  kr_any_fft *fft;
  float window[FRAME], frame[FRAME];
  double weight[N_BINS];      /* of a bin's power in its band, the input filter with it */
  int band[N_BINS];
  kr_pesq_ear ear;
  double width;               /* of all bands */
  side clean, other;
  unsigned char *is_spoken;
  double *audible, *other_audible, *ratio, *gain; /* of the frames */
  double *symmetric, *asymmetric, *symmetric_slope, *asymmetric_slope, *audible_slope;
  double filter[N_BANDS], clean_mean[N_BANDS];
};

static int32_t open_side(side *s, int64_t n_frames) {
  s->powers = kr_alloc_array((size_t)n_frames, sizeof *s->powers);
  s->given = kr_alloc_array((size_t)n_frames, sizeof *s->given);
  s->slope = kr_alloc_array((size_t)n_frames, sizeof *s->slope);
  s->re = kr_alloc_array((size_t)(n_frames * N_BINS), sizeof *s->re);
  s->im = kr_alloc_array((size_t)(n_frames * N_BINS), sizeof *s->im);
  return s->powers && s->given && s->slope && s->re && s->im
             ? KRAIT_OK
             : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for what is heard");
}

static void close_side(side *s) {
  void *const blocks[] = {s->powers, s->given, s->slope, s->re, s->im};
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) kr_free(blocks[i]);
}

/* |H|^2 of the wide-band input filter. */
static double input_power(int bin) {
  const double w = 6.283185307179586 * bin / FRAME, c1 = cos(w), c2 = cos(2 * w), s1 = sin(w), s2 = sin(2 * w);
  const kr_pesq_section f = kr_pesq_wide_input;
  const double br = f.b0 + f.b1 * c1 + f.b2 * c2, bi = f.b1 * s1 + f.b2 * s2, ar = 1 + f.a1 * c1 + f.a2 * c2,
               ai = f.a1 * s1 + f.a2 * s2;
  return (br * br + bi * bi) / (ar * ar + ai * ai);
}

static void set_disturbance_tables(kr_disturbance *d) {
  for (int i = 0; i < FRAME; i++) d->window[i] = (float)(0.5 - 0.5 * cos(6.283185307179586 * i / FRAME));
  kr_pesq_open_ear(&d->ear);
  for (int b = 0, bin = 0; b < N_BANDS; b++) {
    if (b > 0) d->width += kr_pesq_bands[b].width_bark;
    for (int k = 0; k < kr_pesq_bands[b].n_bins; k++, bin++)
      d->band[bin] = b,
      d->weight[bin] = bin > 0 ? kr_pesq_bands[b].correction * kr_pesq_power_scale * input_power(bin) : 0;
  }
}

int32_t kr_disturbance_open(int64_t n, kr_disturbance **disturbance) {
  kr_disturbance *d = *disturbance = kr_zalloc(sizeof *d);
  KR_CHECK(d, KRAIT_ERR_NO_MEMORY, "no memory for what is heard");
  d->n = n, d->n_frames = (n - FRAME) / HOP + 1;
  set_disturbance_tables(d);
  double **const rows[] = {&d->audible,   &d->other_audible, &d->ratio,           &d->gain,
                           &d->symmetric, &d->asymmetric,    &d->symmetric_slope, &d->asymmetric_slope,
                           &d->audible_slope};
  int32_t status = n >= FRAME
                       ? KRAIT_OK
                       : kr_fail(KRAIT_ERR_ARGUMENT, "a signal of %lld samples is shorter than a frame", (long long)n);
  if (status >= 0) status = open_side(&d->clean, d->n_frames);
  if (status >= 0) status = open_side(&d->other, d->n_frames);
  if (status >= 0) status = kr_any_fft_open(FRAME, &d->fft);
  if (status >= 0) {
    d->is_spoken = kr_alloc_array((size_t)d->n_frames, 1);
    int failed = !d->is_spoken;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
      *rows[i] = kr_alloc_array((size_t)d->n_frames, sizeof(double)), failed |= !*rows[i];
    if (failed) status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for what is heard");
  }
  if (status < 0) kr_disturbance_close(disturbance);
  return status;
}

void kr_disturbance_close(kr_disturbance **disturbance) {
  kr_disturbance *d = *disturbance;
  if (!d) return;
  void *const blocks[] = {d->is_spoken, d->audible,    d->other_audible,   d->ratio,           d->gain,
                          d->symmetric, d->asymmetric, d->symmetric_slope, d->asymmetric_slope, d->audible_slope};
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) kr_free(blocks[i]);
  close_side(&d->clean), close_side(&d->other), kr_any_fft_close(&d->fft), kr_free(d);
  *disturbance = NULL;
}

/* ---- forward ---- */

static void transform_disturbance(kr_disturbance *d, side *s, const float *samples) {
  for (int64_t f = 0; f < d->n_frames; f++) {
    for (int i = 0; i < FRAME; i++) d->frame[i] = samples[f * HOP + i] * d->window[i];
    kr_any_fft_forward(d->fft, d->frame, s->re + f * N_BINS, s->im + f * N_BINS);
  }
}

static double bin_power(const side *s, int64_t f, int k) {
  const double re = (double)s->re[f * N_BINS + k], im = (double)s->im[f * N_BINS + k];
  return re * re + im * im;
}

/* The power between 325 and 3250 Hz. Squares of half-overlapping windows add up to 3/4. */
static double power_share(const kr_disturbance *d) { return 2.0 / FRAME / 0.75 / (double)(d->n + KR_PESQ_TAIL); }
static double speech_power(const kr_disturbance *d, const side *s) {
  double sum = 0;
  for (int64_t f = 0; f < d->n_frames; f++)
    for (int k = FIRST_BIN; k <= LAST_BIN; k++) sum += bin_power(s, f, k);
  return sum * power_share(d);
}

/* Of the signal at the standard's level. */
static void fill_bands(const kr_disturbance *d, side *s) {
  const double level = target_power / s->power;
  for (int64_t f = 0; f < d->n_frames; f++) {
    memset(s->given[f], 0, sizeof s->given[f]);
    for (int k = 1; k < N_BINS - 1; k++) s->given[f][d->band[k]] += bin_power(s, f, k) * d->weight[k] * level;
  }
}

/* Whether a band counts in a sum of bands above `factor` times the hearing threshold. */
static int is_audible(const kr_disturbance *d, int b, double power, double factor) {
  return b > 0 && power > factor * d->ear.threshold[b];
}
static double disturbance_audible_power(const kr_disturbance *d, const double *powers, double factor) {
  double sum = 0;
  for (int b = 1; b < N_BANDS; b++) sum += is_audible(d, b, powers[b], factor) ? powers[b] : 0;
  return sum;
}

/* In a mean over speech all bands count, the lowest as well. */
static int is_in_mean(const kr_disturbance *d, int64_t f, int b, double power) {
  return d->is_spoken[f] && power > 100 * d->ear.threshold[b];
}
static double disturbance_mean_of_speech(const kr_disturbance *d, const side *s, int b) {
  double sum = 0;
  for (int64_t f = 0; f < d->n_frames; f++)
    if (is_in_mean(d, f, b, s->given[f][b])) sum += s->given[f][b];
  return sum / (double)d->n_frames;
}

static void compensate(kr_disturbance *d) {
  for (int64_t f = 0; f < d->n_frames; f++)
    d->is_spoken[f] = disturbance_audible_power(d, d->clean.given[f], 100) >= 1e7;
  for (int b = 0; b < N_BANDS; b++) {
    d->clean_mean[b] = disturbance_mean_of_speech(d, &d->clean, b);
    d->filter[b] =
        fmin(fmax((disturbance_mean_of_speech(d, &d->other, b) + 1000) / (d->clean_mean[b] + 1000), 0.01), 100);
    for (int64_t f = 0; f < d->n_frames; f++) d->clean.powers[f][b] = d->clean.given[f][b] * d->filter[b];
  }
  for (int64_t f = 0; f < d->n_frames; f++) {
    d->audible[f] = disturbance_audible_power(d, d->clean.powers[f], 1);
    d->other_audible[f] = disturbance_audible_power(d, d->other.given[f], 1);
    d->ratio[f] = (d->audible[f] + 5e3) / (d->other_audible[f] + 5e3);
    d->gain[f] = f > 0 ? 0.2 * d->gain[f - 1] + 0.8 * d->ratio[f] : d->ratio[f];
    for (int b = 0; b < N_BANDS; b++)
      d->other.powers[f][b] = d->other.given[f][b] * fmin(fmax(d->gain[f], 3e-4), 5);
  }
}

/* For one band: the audible difference, its derivatives with respect to the two loudnesses, and its extra weight as
 * added sound. */
typedef struct heard {
  double d, by_clean, by_other, factor;
} heard;

static heard compare_disturbance(const kr_disturbance *d, int b, double clean, double other) {
  const double c = kr_pesq_loudness(&d->ear, b, clean), o = kr_pesq_loudness(&d->ear, b, other);
  const double factor = pow((other + 50) / (clean + 50), 1.2);
  heard h = {.factor = factor > 12 ? 12 : factor < 3 ? 0 : factor};
  if (o - c > 0.25 * c) h.by_clean = -1.25, h.by_other = 1;
  else if (c - o > 0.25 * o) h.by_clean = -1, h.by_other = 1.25;
  h.d = h.by_clean * c + h.by_other * o;
  return h;
}

/* Loud frames mask more. */
static double hidden(double audible) { return pow((audible + 1e5) / 1e7, 0.04); }

static void compare_frames(kr_disturbance *d) {
  for (int64_t f = 0; f < d->n_frames; f++) {
    double squares = 0, sum = 0;
    for (int b = 1; b < N_BANDS; b++) {
      const heard h = compare_disturbance(d, b, d->clean.powers[f][b], d->other.powers[f][b]);
      const double x = h.d * kr_pesq_bands[b].width_bark;
      squares += x * x, sum += fabs(x) * h.factor;
    }
    d->symmetric[f] = sqrt(squares * d->width), d->asymmetric[f] = sum;
  }
}

/* Half-overlapping syllables by their sixth power, these by their squares; slope receives the derivatives. */
static double disturbance_over_time(const kr_disturbance *d, const double *x, double *slope) {
  double sum = 0, n = 0;
  for (int64_t f = 0; f < d->n_frames; f++) slope[f] = 0;
  for (int64_t start = 0; start < d->n_frames; start += SYLLABLE / 2, n++) {
    double sixths = 0;
    for (int64_t f = start; f < start + SYLLABLE && f < d->n_frames; f++) sixths += pow(x[f], 6);
    const double value = pow(sixths / SYLLABLE, 1 / 6.0);
    for (int64_t f = start; f < start + SYLLABLE && f < d->n_frames && value > 1e-6; f++)
      slope[f] += pow(x[f], 5) / pow(value, 4) / SYLLABLE; /* value times its derivative */
    sum += value * value;
  }
  const double result = sqrt(sum / n);
  for (int64_t f = 0; f < d->n_frames; f++) slope[f] = result > 1e-6 ? slope[f] / (n * result) : 0;
  return result;
}

/* Both sums over time; derivatives with respect to the frames' disturbances before weighting, and to the masking
 * power. */
static double weigh(kr_disturbance *d) {
  double result = 0;
  double *const of[] = {d->symmetric, d->asymmetric}, *const slope[] = {d->symmetric_slope, d->asymmetric_slope};
  const double share[] = {symmetric_share, asymmetric_share};
  for (int64_t f = 0; f < d->n_frames; f++) d->audible_slope[f] = 0;
  for (int k = 0; k < 2; k++) {
    for (int64_t f = 0; f < d->n_frames; f++) of[k][f] = fmin(of[k][f] / hidden(d->audible[f]), loudest);
    result += share[k] * disturbance_over_time(d, of[k], slope[k]);
    for (int64_t f = 0; f < d->n_frames; f++) {
      if (of[k][f] >= loudest) slope[k][f] = 0;
      d->audible_slope[f] -= share[k] * slope[k][f] * of[k][f] * 0.04 / (d->audible[f] + 1e5);
      slope[k][f] *= share[k] / hidden(d->audible[f]);
    }
  }
  return result;
}

/* ---- back ---- */

/* Gradients of the compared powers. */
static void frames_back(kr_disturbance *d) {
  for (int64_t f = 0; f < d->n_frames; f++) {
    const double root =
        d->symmetric[f] * hidden(d->audible[f]); /* sqrt(squares width); clipped at the maximum its derivative is 0 */
    for (int b = 0; b < N_BANDS; b++) {
      const double clean = d->clean.powers[f][b], other = d->other.powers[f][b], w = kr_pesq_bands[b].width_bark;
      const heard h = compare_disturbance(d, b, clean, other);
      double by_d = d->asymmetric_slope[f] * h.factor * w * (h.d < 0 ? -1 : 1);
      if (root > 1e-9) by_d += d->symmetric_slope[f] * h.d * w * w * d->width / root;
      const double by_factor = h.factor > 0 && h.factor < 12
                                   ? d->asymmetric_slope[f] * fabs(h.d) * w * 1.2 * h.factor
                                   : 0; /* times that of the logarithm of its base */
      d->clean.slope[f][b] =
          b ? by_d * h.by_clean * kr_pesq_loudness_slope(&d->ear, b, clean) - by_factor / (clean + 50) : 0;
      d->other.slope[f][b] =
          b ? by_d * h.by_other * kr_pesq_loudness_slope(&d->ear, b, other) + by_factor / (other + 50) : 0;
    }
  }
}

/* Gradients of the frames' inputs: through each frame's gain, which depends on earlier frames, and through the filter.
 * The clean signal needs none. */
static void compensation_back(kr_disturbance *d) {
  double of_gain = 0;
  for (int64_t f = d->n_frames - 1; f >= 0; f--) {
    const double gain = d->gain[f], used = fmin(fmax(gain, 3e-4), 5);
    of_gain *= 0.2;
    for (int b = 0; b < N_BANDS && gain == used; b++) of_gain += d->other.slope[f][b] * d->other.given[f][b];
    const double of_ratio = f > 0 ? 0.8 * of_gain : of_gain;
    d->audible_slope[f] += of_ratio / (d->other_audible[f] + 5e3);
    const double of_other = -of_ratio * d->ratio[f] / (d->other_audible[f] + 5e3);
    for (int b = 0; b < N_BANDS; b++) {
      d->other.slope[f][b] =
          d->other.slope[f][b] * used + (is_audible(d, b, d->other.given[f][b], 1) ? of_other : 0);
      if (is_audible(d, b, d->clean.powers[f][b], 1)) d->clean.slope[f][b] += d->audible_slope[f];
    }
  }
  for (int b = 0; b < N_BANDS; b++) {
    double of_filter = 0;
    for (int64_t f = 0; f < d->n_frames; f++) of_filter += d->clean.slope[f][b] * d->clean.given[f][b];
    if (d->filter[b] <= 0.01 || d->filter[b] >= 100) continue;
    const double of_mean = of_filter / (d->clean_mean[b] + 1000) / (double)d->n_frames;
    for (int64_t f = 0; f < d->n_frames; f++)
      if (is_in_mean(d, f, b, d->other.given[f][b])) d->other.slope[f][b] += of_mean;
  }
}

/* Gradients of the samples; the level normalisation couples them. */
static void spectra_back(kr_disturbance *d, float *gradient) {
  side *s = &d->other;
  const double level = target_power / s->power;
  double of_level = 0;
  for (int64_t f = 0; f < d->n_frames; f++)
    for (int b = 0; b < N_BANDS; b++) of_level += s->slope[f][b] * s->given[f][b];
  const double of_power = -of_level / s->power * power_share(d);
  memset(gradient, 0, (size_t)d->n * sizeof *gradient);
  for (int64_t f = 0; f < d->n_frames; f++) {
    float *const re = s->re + f * N_BINS, *const im = s->im + f * N_BINS;
    for (int k = 0; k < N_BINS; k++) {
      const double slope = (k < N_BINS - 1 ? s->slope[f][d->band[k]] * d->weight[k] * level : 0) +
                           (k >= FIRST_BIN && k <= LAST_BIN ? of_power : 0);
      re[k] *= (float)slope, im[k] *= (float)slope;
    }
    kr_any_fft_inverse(d->fft, re, im, d->frame);
    for (int i = 0; i < FRAME; i++) gradient[f * HOP + i] += d->frame[i] * d->window[i];
  }
}

double kr_disturbance_run(kr_disturbance *d, const float *clean, const float *other, float *gradient) {
  transform_disturbance(d, &d->clean, clean), transform_disturbance(d, &d->other, other);
  d->clean.power = speech_power(d, &d->clean), d->other.power = speech_power(d, &d->other);
  if (d->clean.power < least_power || d->other.power < least_power) {
    if (gradient) memset(gradient, 0, (size_t)d->n * sizeof *gradient);
    return 0;
  }
  fill_bands(d, &d->clean), fill_bands(d, &d->other);
  compensate(d);
  compare_frames(d);
  const double value = weigh(d);
  if (!gradient) return value;
  frames_back(d);
  compensation_back(d);
  spectra_back(d, gradient);
  return value;
}

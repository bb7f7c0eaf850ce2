/* pesq_model.c: the audible difference: loudness of both signals in 49 Bark bands, frame by frame; the differences are
 * summed over bands, syllables and time. Bad frames are aligned and compared again. */
#include <math.h>
#include <string.h>

#include "alloc.h"
#include "convolve.h"
#include "pesq_parts.h"
#include "spectrum.h"
#include "status.h"

enum { FRAME = KR_PESQ_FRAME, HOP = FRAME / 2, N_BANDS = KR_PESQ_BANDS, N_BINS = FRAME / 2 };

const kr_pesq_band kr_pesq_bands[N_BANDS] = {
    {1, 0.157344, 100.000000, 77.1}, {1, 0.317994, 99.999992, 63.9},  {1, 0.322441, 100.000000, 48.5},
    {1, 0.326934, 100.000008, 36.9}, {1, 0.331474, 100.000008, 30.7}, {1, 0.336061, 100.000015, 25.9},
    {1, 0.340697, 99.999992, 20.2},  {1, 0.345381, 99.999969, 16.6},  {2, 0.350114, 50.000027, 12.5},
    {1, 0.354897, 100.000000, 9.9},  {1, 0.359729, 99.999969, 6.9},   {1, 0.364611, 100.000015, 4.9},
    {1, 0.369544, 99.999947, 2.8},   {1, 0.374529, 100.000061, 1.0},  {2, 0.379565, 53.047077, -0.1},
    {1, 0.384653, 110.000046, -1.4}, {1, 0.389794, 117.991989, -2.5}, {2, 0.394989, 65.000000, -3.4},
    {2, 0.400236, 68.760147, -4.1},  {2, 0.405538, 69.999931, -4.8},  {2, 0.410894, 71.428818, -5.3},
    {2, 0.416306, 75.000038, -5.7},  {2, 0.421773, 76.843384, -5.9},  {2, 0.427297, 80.968781, -6.0},
    {2, 0.432877, 88.646126, -6.0},  {3, 0.438514, 63.864388, -6.0},  {3, 0.444209, 68.155350, -6.0},
    {3, 0.449962, 72.547775, -5.8},  {3, 0.455774, 75.584831, -5.4},  {4, 0.461645, 58.379192, -5.1},
    {3, 0.467577, 80.950836, -4.7},  {4, 0.473569, 64.135651, -4.3},  {5, 0.479621, 54.384785, -4.0},
    {4, 0.485736, 73.821884, -3.6},  {5, 0.491912, 64.437073, -3.3},  {6, 0.498151, 59.176456, -3.1},
    {6, 0.504454, 65.521278, -3.0},  {7, 0.510819, 61.399822, -3.0},  {8, 0.517250, 58.144047, -2.9},
    {9, 0.523745, 57.004543, -2.8},  {9, 0.530308, 64.126297, -2.8},  {12, 0.536934, 54.311001, -2.8},
    {12, 0.543629, 61.114979, -2.9}, {15, 0.550390, 55.077751, -3.2}, {16, 0.557220, 56.849335, -3.7},
    {18, 0.564119, 55.628868, -4.3}, {21, 0.571085, 53.137054, -4.4}, {25, 0.578125, 54.985844, -3.8},
    {20, 0.585232, 79.546974, -2.7},
};
static const double loudness_scale = 0.1866055;

void kr_pesq_open_ear(kr_pesq_ear *ear) {
  double centre = 0;
  for (int b = 0; b < N_BANDS; b++) {
    centre += kr_pesq_bands[b].width_bark / 2;
    ear->threshold[b] = pow(10, kr_pesq_bands[b].threshold_db / 10);
    ear->exponent[b] = 0.23 * pow(centre < 4 ? fmin(6 / (centre + 2), 2) : 1, 0.15);
    ear->scale[b] = loudness_scale * pow(ear->threshold[b] / 0.5, ear->exponent[b]);
    centre += kr_pesq_bands[b].width_bark / 2;
  }
}

double kr_pesq_loudness(const kr_pesq_ear *ear, int b, double power) {
  const double threshold = ear->threshold[b], e = ear->exponent[b];
  return power > threshold ? ear->scale[b] * (pow(0.5 + 0.5 * power / threshold, e) - 1) : 0;
}

double kr_pesq_loudness_slope(const kr_pesq_ear *ear, int b, double power) {
  const double threshold = ear->threshold[b], e = ear->exponent[b];
  return power > threshold ? ear->scale[b] * e * pow(0.5 + 0.5 * power / threshold, e - 1) * 0.5 / threshold : 0;
}

struct kr_pesq_model {
  const kr_pesq_pair *pair;
  kr_spectrum *spectrum;
  int64_t n_frames, n_all;               /* n_all: samples with margins and tail */
  int64_t first;                         /* frame of the clean signal that is not near silence */
  kr_pesq_ear ear;
  float (*heard)[N_BANDS], (*clean)[N_BANDS], (*other)[N_BANDS]; /* power per frame and band; of the clean signal as
                                                                     it is, and with the other's filter */
  double *symmetric, *asymmetric;        /* disturbances of the frames */
  double *audible;                       /* power of the clean frames */
  unsigned char *is_silent, *is_bad;
  float *shifted, *reshifted;            /* the other signal, moved to where the clean one is */
};
typedef struct kr_pesq_model model;

/* Power per band of one frame. */
static void band_powers(const model *m, const float *samples, float *out) {
  float power[N_BINS + 1];
  kr_spectrum_power(m->spectrum, samples, power);
  power[0] = 0;
  for (int b = 0, bin = 0; b < N_BANDS; b++) {
    double sum = 0;
    for (int k = 0; k < kr_pesq_bands[b].n_bins; k++) sum += power[bin++];
    out[b] = (float)(sum * kr_pesq_bands[b].correction * kr_pesq_power_scale);
  }
}

/* Sums the bands above `factor` times the hearing threshold. */
static double pesq_audible_power(const model *m, const float *powers, double factor) {
  double sum = 0;
  for (int b = 1; b < N_BANDS; b++)
    if (powers[b] > factor * m->ear.threshold[b]) sum += powers[b];
  return sum;
}

/* The delay of the other signal at the clean one's `sample`. */
static int64_t delay_at(const kr_pesq_pair *pair, int64_t sample) {
  int i = pair->n_utterances - 1;
  while (i > 0 && pair->utterances[i].start * KR_PESQ_STEP > sample) i--;
  return pair->utterances[i].delay;
}

static void hear_other_side(model *m) {
  for (int64_t f = 0; f < m->n_frames; f++) {
    const int64_t at = KR_PESQ_MARGIN + f * HOP, other_at = at + delay_at(m->pair, at);
    if (other_at > 0 && other_at + FRAME < m->n_all) band_powers(m, m->pair->other.samples + other_at, m->other[f]);
    else memset(m->other[f], 0, sizeof m->other[f]);
  }
}

static double pesq_mean_of_speech(const model *m, float (*powers)[N_BANDS], int b) {
  double sum = 0;
  for (int64_t f = 0; f < m->n_frames; f++)
    if (!m->is_silent[f] && powers[f][b] > 100 * m->ear.threshold[b]) sum += powers[f][b];
  return sum / (double)((m->n_all - 2 * KR_PESQ_MARGIN) / HOP - 1);
}

/* A constant filter between the two is less audible: it is applied to the clean signal, within 20 dB. */
static void compensate_filter(model *m) {
  for (int b = 0; b < N_BANDS; b++) {
    const double ratio = (pesq_mean_of_speech(m, m->other, b) + 1000) / (pesq_mean_of_speech(m, m->heard, b) + 1000);
    const float gain = (float)(ratio > 100 ? 100 : ratio < 0.01 ? 0.01 : ratio);
    for (int64_t f = 0; f < m->n_frames; f++) m->clean[f][b] = m->heard[f][b] * gain;
  }
}

/* The bands' width by the mean of |x| width, or by the root of that of its squares. */
static double over_bands(const double *x, int is_squared) {
  double sum = 0, width = 0;
  for (int b = 1; b < N_BANDS; b++) {
    const double v = fabs(x[b]) * kr_pesq_bands[b].width_bark;
    sum += is_squared ? v * v : v;
    width += kr_pesq_bands[b].width_bark;
  }
  return (is_squared ? sqrt(sum / width) : sum / width) * width;
}

/* The audible part of a difference, given the quieter of two sounds. */
static double unmasked(double clean, double other) {
  const double mask = 0.25 * fmin(clean, other), d = other - clean;
  return d > mask ? d - mask : d < -mask ? d + mask : 0;
}

/* One frame's disturbances; *gain follows the other signal's level, slowly. */
static void compare_frame(model *m, int64_t f, double *gain, double *symmetric, double *asymmetric) {
  double heard[N_BANDS];
  m->audible[f] = pesq_audible_power(m, m->clean[f], 1);
  const double ratio = (m->audible[f] + 5e3) / (pesq_audible_power(m, m->other[f], 1) + 5e3);
  *gain = f > 0 ? 0.2 * *gain + 0.8 * ratio : ratio;
  const double scale = *gain > 5 ? 5 : *gain < 3e-4 ? 3e-4 : *gain;
  for (int b = 0; b < N_BANDS; b++) {
    m->other[f][b] = (float)(m->other[f][b] * scale);
    heard[b] = unmasked(kr_pesq_loudness(&m->ear, b, m->clean[f][b]), kr_pesq_loudness(&m->ear, b, m->other[f][b]));
  }
  *symmetric = over_bands(heard, 1);
  for (int b = 0; b < N_BANDS; b++) { /* added sound disturbs more than missing sound */
    const double factor = pow((m->other[f][b] + 50.0) / (m->clean[f][b] + 50.0), 1.2);
    heard[b] *= factor > 12 ? 12 : factor < 3 ? 0 : factor;
  }
  *asymmetric = over_bands(heard, 0);
}

/* Frames in a section that the other signal lacks do not count. */
static void skip_lost_frames(model *m) {
  for (int i = 1; i < m->pair->n_utterances; i++) {
    const kr_pesq_utterance *a = &m->pair->utterances[i - 1], *b = a + 1;
    const int64_t jump = b->delay - a->delay;
    if (jump >= -HOP) continue;
    const int64_t starts = ((b->start - KR_PESQ_MARGIN_STEPS) * KR_PESQ_STEP + b->delay) / HOP,
                  ends = ((a->end - KR_PESQ_MARGIN_STEPS) * KR_PESQ_STEP + a->delay) / HOP;
    int64_t f = starts < ends ? starts : ends;
    const int64_t last = ((b->start - KR_PESQ_MARGIN_STEPS) * KR_PESQ_STEP - jump) / HOP + 1;
    for (f = f < 0 ? 0 : f; f <= last && f < m->n_frames - 1; f++) m->symmetric[f] = m->asymmetric[f] = 0;
  }
}

/* ---- bad frames ---- */
static void shift_other(model *m) {
  const int64_t end = m->n_all - KR_PESQ_MARGIN;
  for (int64_t i = KR_PESQ_MARGIN; i < end; i++) {
    const int64_t j = i + delay_at(m->pair, i);
    m->shifted[i] = m->pair->other.samples[j < KR_PESQ_MARGIN ? KR_PESQ_MARGIN : j >= end ? end - 1 : j];
  }
}

/* Above 30, with up to three better frames between: runs of at least 5 are examined again. */
static int mark_bad(model *m) {
  enum { REACH = 2 };
  int any = 0;
  for (int64_t f = 0; f < m->n_frames; f++) m->is_bad[f] = 0;
  for (int64_t f = REACH; f < m->n_frames - 1 - REACH; f++) {
    int before = 0, after = 0;
    for (int64_t k = 0; k <= REACH; k++) {
      before |= f - k > 0 && m->symmetric[f - k] > 30;
      after |= f + k > 0 && m->symmetric[f + k] > 30;
    }
    any |= m->is_bad[f] = before && after;
  }
  return any;
}

/* The additional shift of a bad run of frames; 0 if none matches. */
static int32_t find_shift(const model *m, int64_t begin, int64_t end, int64_t *shift) {
  enum { REACH = 4 * FRAME };
  const int64_t n = end - begin, n_all = n + 2 * REACH, last = m->n_all - KR_PESQ_MARGIN - 1;
  kr_convolver *convolver = NULL;
  *shift = 0;
  KR_TRY(kr_convolver_open(kr_power_of_two(2 * n_all), &convolver));
  float *clean = kr_alloc_array((size_t)n_all, sizeof *clean), *other = kr_alloc_array((size_t)n_all, sizeof *other);
  double clean_power = 0, other_power = 0, best = 0;
  for (int64_t i = 0; clean && other && i < n_all; i++) {
    const int64_t j = begin - REACH + i;
    clean[i] = i >= REACH && i < REACH + n ? fabsf(m->pair->clean.samples[j]) : 0;
    other[i] = fabsf(m->shifted[j < KR_PESQ_MARGIN ? KR_PESQ_MARGIN : j > last ? last : j]);
    clean_power += (double)clean[i] * clean[i];
    other_power += (double)other[i] * other[i];
  }
  const int64_t size = kr_convolver_size(convolver);
  if (clean && other && clean_power / (double)size > 1e-6 && other_power / (double)size > 1e-6) {
    const float *at = kr_convolver_correlate(convolver, clean, n_all, other, n_all);
    for (int64_t k = -REACH; k < REACH; k++) {
      const double v = fabs((double)at[k < 0 ? k + size : k]) / sqrt(clean_power * other_power);
      if (v > best) best = v, *shift = k;
    }
    if (best < 0.5) *shift = 0;
  }
  const int32_t status = clean && other ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for PESQ");
  kr_free(clean);
  kr_free(other);
  kr_convolver_close(&convolver);
  return status;
}

/* Shifts frames [first, end) by the best match. */
static int32_t reshift_run(model *m, int64_t first, int64_t end) {
  const int64_t begin = first * HOP + KR_PESQ_MARGIN, stop = end * HOP + FRAME + KR_PESQ_MARGIN, n = m->pair->n;
  int64_t shift = 0;
  KR_TRY(find_shift(m, begin, stop, &shift));
  for (int64_t i = begin; i < stop; i++)
    m->reshifted[i] = m->shifted[i + shift < 0 ? 0 : i + shift >= n ? n - 1 : i + shift];
  return KRAIT_OK;
}

/* The smaller disturbance of the first and this comparison. */
static void compare_run(model *m, int64_t first, int64_t end) {
  double gain = 1;
  for (int64_t f = first; f < end; f++) band_powers(m, m->reshifted + KR_PESQ_MARGIN + f * HOP, m->other[f]);
  for (int64_t f = first; f < end; f++) {
    double symmetric, asymmetric;
    compare_frame(m, f, &gain, &symmetric, &asymmetric);
    m->symmetric[f] = fmin(m->symmetric[f], symmetric);
    m->asymmetric[f] = fmin(m->asymmetric[f], asymmetric);
  }
}

/* The next run of at least 5 bad frames from *first on that ends before the last frame; its end, or 0. */
static int64_t next_bad_run(const model *m, int64_t *first) {
  for (int64_t f = *first; f < m->n_frames;) {
    while (f < m->n_frames && !m->is_bad[f]) f++;
    *first = f;
    while (f < m->n_frames && m->is_bad[f]) f++;
    if (f < m->n_frames && f - *first >= 5) return f;
  }
  return 0;
}

static int32_t repair_bad_frames(model *m) {
  if (!mark_bad(m)) return KRAIT_OK;
  shift_other(m);
  memcpy(m->reshifted, m->shifted, (size_t)m->n_all * sizeof(float));
  for (int64_t first = 0, end; (end = next_bad_run(m, &first)) > 0; first = end) KR_TRY(reshift_run(m, first, end));
  for (int64_t first = 0, end; (end = next_bad_run(m, &first)) > 0; first = end) compare_run(m, first, end);
  return KRAIT_OK;
}

/* ---- over time ---- */
/* Later parts of long recordings have more weight. */
static double time_weight(const model *m, int64_t frame) {
  if (m->n_frames <= 1000) return 1;
  const double n = (double)((m->pair->n - 2 * KR_PESQ_MARGIN) / HOP - 1), share = fmin((n - 1000) / 5500, 0.5);
  return 1 - share + share * (double)frame / n;
}

/* Half-overlapping syllables of 20 frames by their sixth power, these by their squares. */
static double pesq_over_time(const model *m, const double *disturbance, int64_t first) {
  enum { SYLLABLE = 20 };
  double sum = 0, weights = 0;
  for (int64_t start = first; start < m->n_frames; start += SYLLABLE / 2) {
    double syllable = 0;
    for (int64_t f = start; f < start + SYLLABLE && f < m->n_frames; f++) syllable += pow(disturbance[f], 6);
    const double weight = time_weight(m, start - first), value = weight * pow(syllable / SYLLABLE, 1 / 6.0);
    sum += value * value;
    weights += weight * weight;
  }
  return sqrt(sum / weights);
}

/* Samples of near silence from the start (direction 1) or the end (-1) of the clean signal. */
static int64_t quiet_samples(const model *m, int64_t from, int direction) {
  int64_t n = 0;
  for (; n < m->pair->n / 2; n++) {
    double sum = 0;
    for (int k = 0; k < 5; k++) sum += fabs((double)m->pair->clean.samples[from + direction * (n + k)]);
    if (sum >= 500) break;
  }
  return n;
}

int32_t kr_pesq_model_open(const kr_pesq_pair *pair, kr_pesq_model **opened) {
  const int64_t n_all = pair->n + KR_PESQ_TAIL;
  const size_t n_frames = (size_t)((n_all - 2 * KR_PESQ_MARGIN) / HOP);
  float window[FRAME];
  model *m = *opened = kr_zalloc(sizeof *m);
  KR_CHECK(m, KRAIT_ERR_NO_MEMORY, "no memory for PESQ");
  for (int i = 0; i < FRAME; i++) window[i] = (float)(0.5 - 0.5 * cos(6.283185307179586 * i / FRAME));
  kr_pesq_open_ear(&m->ear);
  m->pair = pair, m->n_all = n_all;
  m->heard = kr_alloc_array(n_frames, sizeof *m->heard);
  m->clean = kr_alloc_array(n_frames, sizeof *m->clean);
  m->other = kr_alloc_array(n_frames, sizeof *m->other);
  m->symmetric = kr_alloc_array(n_frames, sizeof(double));
  m->asymmetric = kr_alloc_array(n_frames, sizeof(double));
  m->audible = kr_alloc_array(n_frames, sizeof(double));
  m->is_silent = kr_alloc_array(n_frames, 1);
  m->is_bad = kr_alloc_array(n_frames, 1);
  m->shifted = kr_alloc_array((size_t)n_all, sizeof(float));
  m->reshifted = kr_alloc_array((size_t)n_all, sizeof(float));
  int32_t status = m->heard && m->clean && m->other && m->symmetric && m->asymmetric && m->audible && m->is_silent &&
                           m->is_bad && m->shifted && m->reshifted
                       ? kr_spectrum_open(FRAME, window, FRAME, &m->spectrum)
                       : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for PESQ");
  if (status < 0) kr_pesq_model_close(opened);
  return status;
}

void kr_pesq_model_close(kr_pesq_model **opened) {
  model *m = *opened;
  if (!m) return;
  kr_spectrum_close(&m->spectrum);
  void *const blocks[] = {m->heard,     m->clean,  m->other, m->symmetric, m->asymmetric, m->audible,
                          m->is_silent, m->is_bad, m->shifted, m->reshifted, m};
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) kr_free(blocks[i]);
  *opened = NULL;
}

/* Loud frames hide more. */
static void weigh_by_loudness(model *m) {
  for (int64_t f = 0; f < m->n_frames; f++) {
    const double h = pow((m->audible[f] + 1e5) / 1e7, 0.04);
    m->symmetric[f] = fmin(m->symmetric[f] / h, 45);
    m->asymmetric[f] = fmin(m->asymmetric[f] / h, 45);
  }
}

void kr_pesq_hear_clean_side(kr_pesq_model *m) {
  const int64_t n_heard = m->n_all - 2 * KR_PESQ_MARGIN;
  m->first = quiet_samples(m, KR_PESQ_MARGIN, 1) / HOP;
  m->n_frames = (n_heard - quiet_samples(m, m->n_all - KR_PESQ_MARGIN - 1, -1)) / HOP;
  for (int64_t f = 0; f < m->n_frames; f++) {
    band_powers(m, m->pair->clean.samples + KR_PESQ_MARGIN + f * HOP, m->heard[f]);
    m->is_silent[f] = pesq_audible_power(m, m->heard[f], 100) < 1e7;
  }
}

int32_t kr_pesq_compare(kr_pesq_model *m, double *score) {
  double gain = 1;
  hear_other_side(m);
  compensate_filter(m);
  for (int64_t f = 0; f < m->n_frames; f++) compare_frame(m, f, &gain, &m->symmetric[f], &m->asymmetric[f]);
  skip_lost_frames(m);
  KR_TRY(repair_bad_frames(m));
  weigh_by_loudness(m);
  *score = 4.5 - 0.1 * pesq_over_time(m, m->symmetric, m->first) - 0.0309 * pesq_over_time(m, m->asymmetric, m->first);
  return KRAIT_OK;
}

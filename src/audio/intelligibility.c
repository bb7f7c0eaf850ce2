/* intelligibility.c: see intelligibility.h. Unlike STOI's, frames that are left out are not joined to a new signal
 * before they are transformed. What a threshold decides is taken as decided. */
#include "intelligibility.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "any_fft.h"
#include "status.h"

enum { FRAME = 400, HOP = FRAME / 2, N_FFT = 2 * FRAME, N_BINS = N_FFT / 2 + 1, N_BANDS = 15, SEGMENT = 30 };
static const double PI = 3.14159265358979323846, tiny = 1e-12, quiet = 1e-4 /* 40 dB */,
                    clip = 6.623413251903491 /* 1 and 15 dB */;

typedef double bands[N_BANDS];

struct kr_intelligibility {
  int64_t n, n_frames, n_kept;
  kr_any_fft *fft;
  float window[FRAME], samples[N_FFT], re[N_BINS], im[N_BINS];
  int first_bin[N_BANDS + 1];
  int64_t *kept;                /* where frames begin in which there is speech */
  bands *clean, *other, *slope; /* of the frames kept: amplitudes, and the sum of correlations by the other one's */
  double *energy;               /* of all clean frames */
};

static void set_tables(kr_intelligibility *s) {
  for (int i = 0; i < FRAME; i++) s->window[i] = (float)(0.5 - 0.5 * cos(2 * PI * (i + 1) / (FRAME + 1)));
  for (int b = 0; b <= N_BANDS; b++) s->first_bin[b] = (int)lround(150 * pow(2, (2 * b - 1) / 6.0) * N_FFT / 16000);
}

int32_t kr_intelligibility_open(int64_t n, kr_intelligibility **intelligibility) {
  kr_intelligibility *s = *intelligibility = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory for what is understood");
  set_tables(s);
  s->n = n, s->n_frames = n < FRAME ? 0 : (n - FRAME) / HOP + 1;
  int32_t status = s->n_frames
                       ? kr_any_fft_open(N_FFT, &s->fft)
                       : kr_fail(KRAIT_ERR_ARGUMENT, "a signal of %lld samples is shorter than a frame", (long long)n);
  s->kept = kr_alloc_array((size_t)s->n_frames, sizeof *s->kept);
  s->energy = kr_alloc_array((size_t)s->n_frames, sizeof *s->energy);
  bands **const all[] = {&s->clean, &s->other, &s->slope};
  int failed = !s->kept || !s->energy;
  for (int k = 0; k < 3; k++) *all[k] = kr_alloc_array((size_t)s->n_frames, sizeof **all[k]), failed |= !*all[k];
  if (status >= 0 && failed) status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for what is understood");
  if (status < 0) kr_intelligibility_close(intelligibility);
  return status;
}

void kr_intelligibility_close(kr_intelligibility **intelligibility) {
  kr_intelligibility *s = *intelligibility;
  if (!s) return;
  kr_any_fft_close(&s->fft);
  kr_free(s->kept), kr_free(s->energy), kr_free(s->clean), kr_free(s->other), kr_free(s->slope), kr_free(s);
  *intelligibility = NULL;
}

/* Frames 40 dB below the loudest one have no speech. */
static void keep_frames(kr_intelligibility *s, const float *clean) {
  double loudest = 0;
  for (int64_t f = 0; f < s->n_frames; f++) {
    s->energy[f] = 0;
    for (int i = 0; i < FRAME; i++) {
      const double v = (double)s->window[i] * (double)clean[f * HOP + i];
      s->energy[f] += v * v;
    }
    loudest = fmax(loudest, s->energy[f]);
  }
  s->n_kept = 0;
  for (int64_t f = 0; f < s->n_frames; f++)
    if (s->energy[f] > tiny && s->energy[f] > loudest * quiet) s->kept[s->n_kept++] = f * HOP;
}

static void transform(kr_intelligibility *s, const float *samples) {
  for (int i = 0; i < FRAME; i++) s->samples[i] = samples[i] * s->window[i];
  memset(s->samples + FRAME, 0, FRAME * sizeof *s->samples);
  kr_any_fft_forward(s->fft, s->samples, s->re, s->im);
}

static void take_amplitudes(kr_intelligibility *s, const float *samples, bands *amplitudes) {
  for (int64_t f = 0; f < s->n_kept; f++) {
    transform(s, samples + s->kept[f]);
    for (int b = 0; b < N_BANDS; b++) {
      double power = 0;
      for (int k = s->first_bin[b]; k < s->first_bin[b + 1]; k++)
        power += (double)s->re[k] * (double)s->re[k] + (double)s->im[k] * (double)s->im[k];
      amplitudes[f][b] = sqrt(power);
    }
  }
}

static double dot(const double *x, const double *y) {
  double sum = 0;
  for (int i = 0; i < SEGMENT; i++) sum += x[i] * y[i];
  return sum;
}
static void take_mean(double *x) {
  double mean = 0;
  for (int i = 0; i < SEGMENT; i++) mean += x[i] / SEGMENT;
  for (int i = 0; i < SEGMENT; i++) x[i] -= mean;
}

/* The correlation of a band in a segment, with the other signal at the clean one's energy and clipped; its slope is
 * added. */
static double correlate(kr_intelligibility *s, int64_t first, int b) {
  double x[SEGMENT], y[SEGMENT], u[SEGMENT], v[SEGMENT], slope[SEGMENT];
  for (int i = 0; i < SEGMENT; i++) u[i] = x[i] = s->clean[first + i][b], y[i] = s->other[first + i][b];
  const double yy = dot(y, y);
  if (yy <= tiny) return 0;
  const double gain = sqrt(dot(x, x) / yy);
  for (int i = 0; i < SEGMENT; i++) v[i] = fmin(gain * y[i], clip * x[i]);
  take_mean(u), take_mean(v);
  const double uu = dot(u, u), vv = dot(v, v);
  if (uu <= tiny || vv <= tiny) return 0;
  const double c = dot(u, v) / sqrt(uu * vv);
  for (int i = 0; i < SEGMENT; i++)
    slope[i] = gain * y[i] < clip * x[i] ? gain * (u[i] / sqrt(uu * vv) - c * v[i] / vv) : 0;
  const double along = dot(slope, y) / yy; /* the gain's part */
  for (int i = 0; i < SEGMENT; i++) s->slope[first + i][b] += slope[i] - along * y[i];
  return c;
}

/* gradient += scale times the slopes, by samples. */
static void take_back(kr_intelligibility *s, const float *other, double scale, float *gradient) {
  for (int64_t f = 0; f < s->n_kept; f++) {
    transform(s, other + s->kept[f]);
    memset(s->re, 0, (size_t)s->first_bin[0] * sizeof *s->re);
    memset(s->im, 0, (size_t)s->first_bin[0] * sizeof *s->im);
    for (int b = 0; b < N_BANDS; b++) {
      const double of_bin = s->other[f][b] > 0 ? scale / 2 * s->slope[f][b] / s->other[f][b] : 0;
      for (int k = s->first_bin[b]; k < s->first_bin[b + 1]; k++) s->re[k] *= (float)of_bin, s->im[k] *= (float)of_bin;
    }
    const int end = s->first_bin[N_BANDS];
    memset(s->re + end, 0, (size_t)(N_BINS - end) * sizeof *s->re);
    memset(s->im + end, 0, (size_t)(N_BINS - end) * sizeof *s->im);
    kr_any_fft_inverse(s->fft, s->re, s->im, s->samples);
    for (int i = 0; i < FRAME; i++) gradient[s->kept[f] + i] += s->window[i] * s->samples[i];
  }
}

double kr_intelligibility_lack(kr_intelligibility *s, const float *clean, const float *other, double scale,
                               float *gradient) {
  keep_frames(s, clean);
  const int64_t n_segments = s->n_kept - SEGMENT + 1;
  if (gradient) memset(gradient, 0, (size_t)s->n * sizeof *gradient);
  if (n_segments < 1) return 0;
  take_amplitudes(s, clean, s->clean), take_amplitudes(s, other, s->other);
  memset(s->slope, 0, (size_t)s->n_kept * sizeof *s->slope);
  double sum = 0;
  for (int64_t first = 0; first < n_segments; first++)
    for (int b = 0; b < N_BANDS; b++) sum += correlate(s, first, b);
  const double share = 1 / (double)(n_segments * N_BANDS);
  if (gradient) take_back(s, other, -scale * share, gradient);
  return 1 - sum * share;
}

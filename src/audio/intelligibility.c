/* intelligibility.c: see intelligibility.h. Unlike in STOI, the remaining frames are not joined to a new signal before
 * they are transformed. Decisions by thresholds are treated as constants. */
#include "intelligibility.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "any_fft.h"
#include "status.h"

enum {
  FRAME = 400,
  HOP = FRAME / 2,
  N_FFT = 2 * FRAME,
  N_BINS = N_FFT / 2 + 1,
  N_BANDS = 15,
  SEGMENT = 30,
  N_KEPT = 214 /* bins of all bands, and below */
};
static const double PI = 3.14159265358979323846, tiny = 1e-12, quiet = 1e-4 /* 40 dB */,
                    clip = 6.623413251903491 /* 1 and 15 dB */;

typedef double bands[N_BANDS];

struct kr_intelligibility {
  int64_t n_frames, n_kept;
  kr_any_fft *fft;
  float window[FRAME], samples[N_FFT], re[N_BINS], im[N_BINS];
  int first_bin[N_BANDS + 1];
  int64_t *kept;                /* where frames begin in which there is speech */
  bands *clean, *other, *slope; /* of the frames kept: amplitudes, and the sum of correlations by the other one's */
  float *other_re, *other_im;   /* of the frames kept, N_KEPT bins */
  double *energy;               /* of all clean frames */
};

static void set_intelligibility_tables(kr_intelligibility *s) {
  for (int i = 0; i < FRAME; i++) s->window[i] = (float)(0.5 - 0.5 * cos(2 * PI * (i + 1) / (FRAME + 1)));
  for (int b = 0; b <= N_BANDS; b++) s->first_bin[b] = (int)lround(150 * pow(2, (2 * b - 1) / 6.0) * N_FFT / 16000);
}

int32_t kr_intelligibility_open(int64_t n, kr_intelligibility **intelligibility) {
  kr_intelligibility *s = *intelligibility = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory for what is understood");
  set_intelligibility_tables(s);
  s->n_frames = n < FRAME ? 0 : (n - FRAME) / HOP + 1;
  int32_t status = s->n_frames
                       ? kr_any_fft_open(N_FFT, &s->fft)
                       : kr_fail(KRAIT_ERR_ARGUMENT, "a signal of %lld samples is shorter than a frame", (long long)n);
  s->kept = kr_alloc_array((size_t)s->n_frames, sizeof *s->kept);
  s->energy = kr_alloc_array((size_t)s->n_frames, sizeof *s->energy);
  bands **const all[] = {&s->clean, &s->other, &s->slope};
  s->other_re = kr_alloc_array((size_t)(s->n_frames * N_KEPT), sizeof *s->other_re);
  s->other_im = kr_alloc_array((size_t)(s->n_frames * N_KEPT), sizeof *s->other_im);
  int failed = !s->kept || !s->energy || !s->other_re || !s->other_im;
  for (int k = 0; k < 3; k++) *all[k] = kr_alloc_array((size_t)s->n_frames, sizeof **all[k]), failed |= !*all[k];
  if (status >= 0 && failed) status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for what is understood");
  if (status < 0) kr_intelligibility_close(intelligibility);
  return status;
}

void kr_intelligibility_close(kr_intelligibility **intelligibility) {
  kr_intelligibility *s = *intelligibility;
  if (!s) return;
  kr_any_fft_close(&s->fft);
  kr_free(s->kept), kr_free(s->energy), kr_free(s->other_re), kr_free(s->other_im), kr_free(s->clean),
      kr_free(s->other), kr_free(s->slope), kr_free(s);
  *intelligibility = NULL;
}

/* Frames 40 dB below the loudest one are treated as pauses. */
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

static void take_amplitudes(kr_intelligibility *s, const float *samples, bands *amplitudes) {
  memset(s->samples + FRAME, 0, FRAME * sizeof *s->samples);
  for (int64_t f = 0; f < s->n_kept; f++) {
    for (int i = 0; i < FRAME; i++) s->samples[i] = samples[s->kept[f] + i] * s->window[i];
    kr_any_fft_forward(s->fft, s->samples, s->re, s->im);
    for (int b = 0; b < N_BANDS; b++) {
      double power = 0;
      for (int k = s->first_bin[b]; k < s->first_bin[b + 1]; k++)
        power += (double)s->re[k] * (double)s->re[k] + (double)s->im[k] * (double)s->im[k];
      amplitudes[f][b] = sqrt(power);
    }
    memcpy(s->other_re + f * N_KEPT, s->re, N_KEPT * sizeof *s->re); /* the last to be taken is the other signal */
    memcpy(s->other_im + f * N_KEPT, s->im, N_KEPT * sizeof *s->im);
  }
}

/* Of each band, over a segment. */
static void dots(double x[][N_BANDS], double y[][N_BANDS], double *sums) {
  memset(sums, 0, N_BANDS * sizeof *sums);
  for (int i = 0; i < SEGMENT; i++)
    for (int b = 0; b < N_BANDS; b++) sums[b] += x[i][b] * y[i][b];
}
static void take_means(double x[][N_BANDS]) {
  double mean[N_BANDS] = {0};
  for (int i = 0; i < SEGMENT; i++)
    for (int b = 0; b < N_BANDS; b++) mean[b] += x[i][b] / SEGMENT;
  for (int i = 0; i < SEGMENT; i++)
    for (int b = 0; b < N_BANDS; b++) x[i][b] -= mean[b];
}

/* The sum of a segment's correlations, with the other signal at the clean one's energy and clipped; their slopes are
 * added. A silent or constant band contributes to neither. */
static double correlate(kr_intelligibility *s, int64_t first) {
  bands *const x = s->clean + first, *const y = s->other + first, u[SEGMENT], v[SEGMENT];
  bands xx, yy, uu, vv, uv, gain, of_u, of_v, along = {0};
  double sum = 0;
  dots(x, x, xx), dots(y, y, yy);
  for (int b = 0; b < N_BANDS; b++) gain[b] = yy[b] > tiny ? sqrt(xx[b] / yy[b]) : 0;
  memcpy(u, x, sizeof u);
  for (int i = 0; i < SEGMENT; i++)
    for (int b = 0; b < N_BANDS; b++) v[i][b] = fmin(gain[b] * y[i][b], clip * x[i][b]);
  take_means(u), take_means(v);
  dots(u, u, uu), dots(v, v, vv), dots(u, v, uv);
  for (int b = 0; b < N_BANDS; b++) {
    const int is_any = uu[b] > tiny && vv[b] > tiny;
    const double c = is_any ? uv[b] / sqrt(uu[b] * vv[b]) : 0;
    of_u[b] = is_any ? gain[b] / sqrt(uu[b] * vv[b]) : 0, of_v[b] = is_any ? gain[b] * c / vv[b] : 0;
    sum += c;
  }
  for (int i = 0; i < SEGMENT; i++)
    for (int b = 0; b < N_BANDS; b++) {
      const double slope = gain[b] * y[i][b] < clip * x[i][b] ? of_u[b] * u[i][b] - of_v[b] * v[i][b] : 0;
      s->slope[first + i][b] += slope, along[b] += slope * y[i][b];
    }
  for (int b = 0; b < N_BANDS; b++) along[b] = yy[b] > tiny ? along[b] / yy[b] : 0; /* the gain's part */
  for (int i = 0; i < SEGMENT; i++)
    for (int b = 0; b < N_BANDS; b++) s->slope[first + i][b] -= along[b] * y[i][b];
  return sum;
}

/* gradient += scale times the slopes, by samples. */
static void take_back(kr_intelligibility *s, double scale, float *gradient) {
  memset(s->re, 0, sizeof s->re), memset(s->im, 0, sizeof s->im);
  for (int64_t f = 0; f < s->n_kept; f++) {
    const float *const re = s->other_re + f * N_KEPT, *const im = s->other_im + f * N_KEPT;
    for (int b = 0; b < N_BANDS; b++) {
      const float of_bin = s->other[f][b] > 0 ? (float)(scale / 2 * s->slope[f][b] / s->other[f][b]) : 0;
      for (int k = s->first_bin[b]; k < s->first_bin[b + 1]; k++) s->re[k] = of_bin * re[k], s->im[k] = of_bin * im[k];
    }
    kr_any_fft_inverse(s->fft, s->re, s->im, s->samples);
    for (int i = 0; i < FRAME; i++) gradient[s->kept[f] + i] += s->window[i] * s->samples[i];
  }
}

double kr_intelligibility_lack(kr_intelligibility *s, const float *clean, const float *other, double scale,
                               float *gradient) {
  keep_frames(s, clean);
  const int64_t n_segments = s->n_kept - SEGMENT + 1;
  if (n_segments < 1) return 0;
  take_amplitudes(s, clean, s->clean), take_amplitudes(s, other, s->other);
  memset(s->slope, 0, (size_t)s->n_kept * sizeof *s->slope);
  double sum = 0;
  for (int64_t first = 0; first < n_segments; first++) sum += correlate(s, first);
  const double share = 1 / (double)(n_segments * N_BANDS);
  if (gradient) take_back(s, -scale * share, gradient);
  return 1 - sum * share;
}

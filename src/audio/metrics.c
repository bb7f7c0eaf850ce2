/* metrics.c: SI-SDR, segmental SNR and STOI as streams (definitions in metrics.h). */
#include "metrics.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "spectrum.h"
#include "status.h"

static const double PI = 3.14159265358979323846;
static const double EPS = 2.220446049250313e-16; /* as the published scripts add it */

/* ---- SI-SDR ---- */
void kr_si_sdr_push(kr_si_sdr *s, const float *clean, const float *other, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const double c = clean[i], x = other[i];
    s->cc += c * c;
    s->cx += c * x;
    s->xx += x * x;
  }
}

double kr_si_sdr_db(const kr_si_sdr *s) {
  if (s->cc <= 0) return NAN;
  const double target = s->cx * s->cx / s->cc, rest = s->xx - target;
  return 10 * log10((target + EPS) / ((rest > 0 ? rest : 0) + EPS));
}

double kr_si_sdr_lack(const float *clean, const float *other, int64_t n, double scale, float *gradient) {
  const double best = 1e3;
  kr_si_sdr s = {0};
  kr_si_sdr_push(&s, clean, other, n);
  const double a = s.cc > 0 ? s.cx / s.cc : 0, target = a * s.cx, rest = fmax(s.xx - target, 0);
  if (target < EPS) {
    for (int64_t i = 0; i < n; i++) gradient[i] = 0;
    return 0;
  }
  const double ratio = best * rest / target, slope = scale * 20 / log(10) * best / (1 + ratio) / target;
  for (int64_t i = 0; i < n; i++) {
    const double c = a * (double)clean[i], x = other[i];
    gradient[i] = (float)(slope * (x - c - rest / target * c));
  }
  return 10 * log10(1 + ratio);
}

/* ---- segmental SNR ---- */
static double frame_snr_db(const kr_segsnr *s) {
  double signal = 0, noise = 0;
  for (int i = 0; i < KR_SEGSNR_FRAME; i++) {
    const double w = 0.5 * (1 - cos(2 * PI * (i + 1) / (KR_SEGSNR_FRAME + 1)));
    const double c = w * s->clean[i], d = c - w * s->other[i];
    signal += c * c;
    noise += d * d;
  }
  const double db = 10 * log10(signal / (noise + EPS) + EPS);
  return db < -10 ? -10 : db > 35 ? 35 : db;
}

void kr_segsnr_push(kr_segsnr *s, const float *clean, const float *other, int64_t n) {
  enum { CAPACITY = KR_SEGSNR_FRAME + KR_SEGSNR_HOP };
  while (n > 0) {
    const int step = n < CAPACITY - s->n_kept ? (int)n : CAPACITY - s->n_kept;
    memcpy(s->clean + s->n_kept, clean, (size_t)step * sizeof(float));
    memcpy(s->other + s->n_kept, other, (size_t)step * sizeof(float));
    clean += step;
    other += step;
    n -= step;
    s->n_kept += step;
    if (s->n_kept < CAPACITY) return;
    s->sum_db += frame_snr_db(s);
    s->n_frames++;
    s->n_kept = KR_SEGSNR_FRAME;
    memmove(s->clean, s->clean + KR_SEGSNR_HOP, KR_SEGSNR_FRAME * sizeof(float));
    memmove(s->other, s->other + KR_SEGSNR_HOP, KR_SEGSNR_FRAME * sizeof(float));
  }
}

double kr_segsnr_db(const kr_segsnr *s) { return s->n_frames ? s->sum_db / (double)s->n_frames : NAN; }

/* ---- STOI ---- */
enum { FRAME = 256, HOP = 128, N_FFT = 512, N_BANDS = 15, SEGMENT = 30 };

typedef struct side { /* of the clean or of the other signal */
  float recent[FRAME + 1];        /* the frame being filled, and one sample more */
  float joined[3][FRAME];         /* the last three kept frames, windowed: oldest first */
  double bands[SEGMENT][N_BANDS]; /* ring of band amplitudes */
} side;

struct kr_stoi {
  kr_spectrum *spectrum;
  float window[FRAME];
  int first_bin[N_BANDS], end_bin[N_BANDS];
  double loudest_db;     /* of the clean frames */
  float scan[FRAME + 1];
  int n_scan, n_recent;
  side clean, other;
  int64_t n_kept;        /* frames that were not silent */
  int64_t n_bands;       /* frames of band amplitudes: n_kept - 1 */
  double sum;
  int64_t n_segments;
};

static int nearest_bin(double hz) {
  const double step = (double)KR_STOI_HZ / N_FFT;
  int best = 0;
  for (int k = 1; k <= N_FFT / 2; k++)
    if (fabs(k * step - hz) < fabs(best * step - hz)) best = k;
  return best;
}

int32_t kr_stoi_open(kr_stoi **stoi) {
  kr_stoi *s = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory for STOI");
  s->loudest_db = -INFINITY;
  for (int i = 0; i < FRAME; i++) s->window[i] = (float)(0.5 - 0.5 * cos(2 * PI * (i + 1) / (FRAME + 1)));
  for (int b = 0; b < N_BANDS; b++) {
    s->first_bin[b] = nearest_bin(150 * pow(2, (2 * b - 1) / 6.0));
    s->end_bin[b] = nearest_bin(150 * pow(2, (2 * b + 1) / 6.0));
  }
  int32_t status = kr_spectrum_open(N_FFT, s->window, FRAME, &s->spectrum);
  if (status < 0) kr_stoi_close(&s);
  else *stoi = s;
  return status;
}

void kr_stoi_close(kr_stoi **stoi) {
  if (!*stoi) return;
  kr_spectrum_close(&(*stoi)->spectrum);
  kr_free(*stoi);
  *stoi = NULL;
}

static double frame_db(const kr_stoi *s, const float *frame) {
  double energy = 0;
  for (int i = 0; i < FRAME; i++) {
    const double v = (double)s->window[i] * frame[i];
    energy += v * v;
  }
  return 20 * log10(sqrt(energy) + EPS);
}

void kr_stoi_scan(kr_stoi *s, const float *clean, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    s->scan[s->n_scan++] = clean[i];
    if (s->n_scan <= FRAME) continue;
    s->loudest_db = fmax(s->loudest_db, frame_db(s, s->scan));
    s->n_scan -= HOP;
    memmove(s->scan, s->scan + HOP, (size_t)s->n_scan * sizeof(float));
  }
}

/* Overlap-adding the kept frames gives a new signal; its frame j consists of kept frame j and the halves of its
 * neighbours. */
static void band_amplitudes(const kr_stoi *s, const side *of, double *bands) {
  float frame[FRAME], power[N_FFT / 2 + 1];
  for (int i = 0; i < HOP; i++) {
    frame[i] = of->joined[1][i] + of->joined[0][HOP + i];
    frame[HOP + i] = of->joined[1][HOP + i] + of->joined[2][i];
  }
  kr_spectrum_power(s->spectrum, frame, power);
  for (int b = 0; b < N_BANDS; b++) {
    double sum = 0;
    for (int k = s->first_bin[b]; k < s->end_bin[b]; k++) sum += power[k];
    bands[b] = sqrt(sum);
  }
}

/* Correlation of the clean band with the other one, scaled to equal energy and clipped, over the last 30 frames. */
static double band_correlation(const kr_stoi *s, int b) {
  double x[SEGMENT], y[SEGMENT], xx = 0, yy = 0, x_mean = 0, y_mean = 0;
  for (int i = 0; i < SEGMENT; i++) {
    x[i] = s->clean.bands[i][b];
    y[i] = s->other.bands[i][b];
    xx += x[i] * x[i];
    yy += y[i] * y[i];
  }
  const double scale = sqrt(xx) / (sqrt(yy) + EPS), clip = 1 + pow(10, 15 / 20.0);
  for (int i = 0; i < SEGMENT; i++) {
    y[i] = fmin(y[i] * scale, x[i] * clip);
    x_mean += x[i] / SEGMENT;
    y_mean += y[i] / SEGMENT;
  }
  double xy = 0;
  xx = yy = 0;
  for (int i = 0; i < SEGMENT; i++) {
    const double u = x[i] - x_mean, v = y[i] - y_mean;
    xy += u * v;
    xx += u * u;
    yy += v * v;
  }
  return xy / ((sqrt(xx) + EPS) * (sqrt(yy) + EPS));
}

static void keep_frame(const kr_stoi *s, side *of) {
  memmove(of->joined[0], of->joined[1], sizeof of->joined[0] * 2);
  for (int i = 0; i < FRAME; i++) of->joined[2][i] = s->window[i] * of->recent[i];
}

static void take_metrics_frame(kr_stoi *s) {
  if (s->loudest_db - 40 - frame_db(s, s->clean.recent) >= 0) return;
  keep_frame(s, &s->clean);
  keep_frame(s, &s->other);
  if (++s->n_kept < 2) return;
  const int slot = (int)(s->n_bands++ % SEGMENT);
  band_amplitudes(s, &s->clean, s->clean.bands[slot]);
  band_amplitudes(s, &s->other, s->other.bands[slot]);
  if (s->n_bands < SEGMENT) return;
  for (int b = 0; b < N_BANDS; b++) s->sum += band_correlation(s, b);
  s->n_segments++;
}

void kr_stoi_push(kr_stoi *s, const float *clean, const float *other, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    s->clean.recent[s->n_recent] = clean[i];
    s->other.recent[s->n_recent++] = other[i];
    if (s->n_recent <= FRAME) continue;
    take_metrics_frame(s);
    s->n_recent -= HOP;
    memmove(s->clean.recent, s->clean.recent + HOP, (size_t)s->n_recent * sizeof(float));
    memmove(s->other.recent, s->other.recent + HOP, (size_t)s->n_recent * sizeof(float));
  }
}

double kr_stoi_value(const kr_stoi *s) { return s->n_segments ? s->sum / (double)(s->n_segments * N_BANDS) : NAN; }

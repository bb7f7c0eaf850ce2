/* quality.c: LLR and WSS, the composite measures of Hu and Loizou (2008), and every measure at once. */
#include "quality.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "metrics.h"
#include "pesq.h"
#include "resample.h"
#include "spectrum.h"
#include "status.h"

enum { HZ = 16000, FRAME = 480, HOP = FRAME / 4, ORDER = 16 };
static const double PI = 3.14159265358979323846;

static double frame_weight(int i) { return 0.5 * (1 - cos(2 * PI * (i + 1) / (FRAME + 1))); }

/* As the usual scripts, without the last. */
static int64_t n_frames_of(int64_t n) {
  return n < FRAME ? 0 : (n - FRAME) / HOP;
}

static int compare_quality(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double mean_of_lowest(double *values, int64_t n) {
  const int64_t used = (int64_t)rint((double)n * 0.95);
  double sum = 0;
  qsort(values, (size_t)n, sizeof *values, compare_quality);
  for (int64_t i = 0; i < used; i++) sum += values[i];
  return used > 0 ? sum / (double)used : NAN;
}

/* ---- log-likelihood ratio ---- */
static void autocorrelate(const double *x, double *r) {
  for (int k = 0; k <= ORDER; k++) {
    r[k] = 0;
    for (int i = 0; i + k < FRAME; i++) r[k] += x[i] * x[i + k];
  }
}

/* Levinson-Durbin: the predictor's error filter a[0] = 1, a[1] .. a[ORDER]. 0 for silence. */
static int predict(const double *r, double *a) {
  double error = r[0];
  memset(a, 0, (ORDER + 1) * sizeof *a);
  a[0] = 1;
  for (int i = 1; i <= ORDER; i++) {
    double sum = 0, old[ORDER + 1];
    for (int k = 0; k < i; k++) sum += a[k] * r[i - k];
    if (!(error > 0)) return 0;
    const double reflection = -sum / error;
    memcpy(old, a, sizeof old);
    for (int k = 1; k <= i; k++) a[k] = old[k] + reflection * old[i - k];
    error *= 1 - reflection * reflection;
  }
  return 1;
}

/* The residual energy of the signal with autocorrelation r after the error filter a. */
static double residual(const double *a, const double *r) {
  double sum = 0;
  for (int i = 0; i <= ORDER; i++)
    for (int k = 0; k <= ORDER; k++) sum += a[i] * a[k] * r[i > k ? i - k : k - i];
  return sum;
}

int32_t kr_llr(const float *clean, const float *other, int64_t n, double *llr) {
  const int64_t n_frames = n_frames_of(n);
  double *values = kr_alloc_array((size_t)n_frames + 1, sizeof *values);
  int64_t count = 0;
  KR_CHECK(values, KRAIT_ERR_NO_MEMORY, "no memory for LLR");
  for (int64_t f = 0; f < n_frames; f++) {
    double c[FRAME], x[FRAME], r_clean[ORDER + 1], r_other[ORDER + 1], a_clean[ORDER + 1], a_other[ORDER + 1];
    for (int i = 0; i < FRAME; i++)
      c[i] = frame_weight(i) * clean[f * HOP + i], x[i] = frame_weight(i) * other[f * HOP + i];
    autocorrelate(c, r_clean);
    autocorrelate(x, r_other);
    if (!predict(r_clean, a_clean) || !predict(r_other, a_other)) continue;
    const double value = log(residual(a_other, r_clean) / residual(a_clean, r_clean));
    if (isfinite(value)) values[count++] = value;
  }
  *llr = mean_of_lowest(values, count);
  kr_free(values);
  return KRAIT_OK;
}

/* ---- weighted spectral slopes ---- */
enum { N_BANDS = 25, N_SLOPES = N_BANDS - 1, N_FFT = 1024, N_BINS = N_FFT / 2 };
static const double centre_hz[N_BANDS] = {
    50,      120,     190,     260,     330,     400,     470,     540,     617.372, 703.378, 798.717, 904.128, 1020.38,
    1148.30, 1288.72, 1442.54, 1610.70, 1794.16, 1993.93, 2211.08, 2446.71, 2701.97, 2978.04, 3276.17, 3597.63};
static const double width_hz[N_BANDS] = {
    70,      70,      70,      70,      70,      70,      70,      77.3724, 86.0056, 95.3398, 105.411, 116.256, 127.914,
    140.423, 153.823, 168.154, 183.457, 199.776, 217.153, 235.631, 255.255, 276.072, 298.126, 321.465, 346.136};

typedef struct wss_work {
  kr_spectrum *spectrum;
  double filters[N_BANDS][N_BINS];
} wss_work;

/* Bell curves of equal sum, truncated at -30 dB. */
static int32_t open_wss(wss_work *w) {
  float window[FRAME];
  const double least = exp(-30 / (2 * 2.303));
  for (int i = 0; i < FRAME; i++)
    window[i] = (float)(frame_weight(i) /
                        32768); /* the usual scripts divide samples of whatever scale by this, and cut at -100 dB */
  for (int b = 0; b < N_BANDS; b++)
    for (int k = 0; k < N_BINS; k++) {
      const double away = (k - floor(centre_hz[b] / (HZ / 2) * N_BINS)) / (width_hz[b] / (HZ / 2) * N_BINS),
                   v = exp(-11 * away * away) * width_hz[0] / width_hz[b];
      w->filters[b][k] = v > least ? v : 0;
    }
  return kr_spectrum_open(N_FFT, window, FRAME, &w->spectrum);
}

static void band_levels(const wss_work *w, const float *frame, double *db) {
  float power[N_FFT / 2 + 1];
  kr_spectrum_power(w->spectrum, frame, power);
  for (int b = 0; b < N_BANDS; b++) {
    double sum = 0;
    for (int k = 0; k < N_BINS; k++) sum += w->filters[b][k] * power[k];
    db[b] = 10 * log10(sum > 1e-10 ? sum : 1e-10);
  }
}

/* Klatt's weights: near the loudest band and near a local peak. */
static void slope_weights(const double *db, double *slopes, double *weights) {
  double most = db[0];
  for (int b = 0; b < N_BANDS; b++) most = fmax(most, db[b]);
  for (int b = 0; b < N_SLOPES; b++) slopes[b] = db[b + 1] - db[b];
  for (int b = 0; b < N_SLOPES; b++) {
    int at = b;
    if (slopes[b] > 0) {
      while (at < N_SLOPES && slopes[at] > 0) at++;
      at--; /* one before the peak, as in the usual scripts */
    } else {
      while (at >= 0 && slopes[at] <= 0) at--;
      at++;
    }
    weights[b] = 20 / (20 + most - db[b]) / (1 + db[at] - db[b]);
  }
}

static double frame_wss(const wss_work *w, const float *clean, const float *other) {
  double db[2][N_BANDS], slopes[2][N_SLOPES], weights[2][N_SLOPES], sum = 0, total = 0;
  band_levels(w, clean, db[0]);
  band_levels(w, other, db[1]);
  for (int i = 0; i < 2; i++) slope_weights(db[i], slopes[i], weights[i]);
  for (int b = 0; b < N_SLOPES; b++) {
    const double weight = (weights[0][b] + weights[1][b]) / 2, d = slopes[0][b] - slopes[1][b];
    sum += weight * d * d;
    total += weight;
  }
  return sum / total;
}

int32_t kr_wss(const float *clean, const float *other, int64_t n, double *wss) {
  const int64_t n_frames = n_frames_of(n);
  wss_work *w = kr_zalloc(sizeof *w);
  double *values = kr_alloc_array((size_t)n_frames + 1, sizeof *values);
  int32_t status = w && values ? open_wss(w) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for WSS");
  for (int64_t f = 0; status == KRAIT_OK && f < n_frames; f++)
    values[f] = frame_wss(w, clean + f * HOP, other + f * HOP);
  if (status == KRAIT_OK) *wss = mean_of_lowest(values, n_frames);
  if (w) kr_spectrum_close(&w->spectrum);
  kr_free(w);
  kr_free(values);
  return status;
}

/* ---- all ---- */
static int32_t to_stoi_rate(const float *x, int64_t n, kr_queue *queue) {
  kr_resampler *resampler = NULL;
  KR_TRY(kr_resampler_open(HZ, KR_STOI_HZ, (kr_sink){kr_queue_push, queue}, &resampler));
  int32_t status = kr_resampler_push(resampler, x, n);
  if (status == KRAIT_OK) status = kr_resampler_finish(resampler, kr_resampled_length(n, HZ, KR_STOI_HZ));
  kr_resampler_close(&resampler);
  return status;
}

static int32_t measure_stoi(const float *clean, const float *other, int64_t n, double *value) {
  kr_queue a = {0}, b = {0};
  kr_stoi *stoi = NULL;
  int32_t status = kr_stoi_open(&stoi);
  if (status == KRAIT_OK) status = to_stoi_rate(clean, n, &a);
  if (status == KRAIT_OK) status = to_stoi_rate(other, n, &b);
  if (status == KRAIT_OK) {
    kr_stoi_scan(stoi, kr_queue_front(&a), kr_queue_count(&a));
    kr_stoi_push(stoi, kr_queue_front(&a), kr_queue_front(&b), kr_queue_count(&a));
    *value = kr_stoi_value(stoi);
  }
  kr_stoi_close(&stoi);
  kr_queue_free(&a);
  kr_queue_free(&b);
  return status;
}

static double opinion(double v) { return v < 1 ? 1 : v > 5 ? 5 : v; }

int32_t kr_quality_of(const float *clean, const float *other, int64_t n, kr_quality *q) {
  kr_si_sdr si_sdr = {0};
  kr_segsnr segsnr = {0};
  *q = (kr_quality){NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
  if (n <= 0) return KRAIT_OK;
  kr_si_sdr_push(&si_sdr, clean, other, n);
  kr_segsnr_push(&segsnr, clean, other, n);
  q->si_sdr_db = kr_si_sdr_db(&si_sdr);
  if (isnan(q->si_sdr_db)) return KRAIT_OK; /* the clean one is silent */
  q->segsnr_db = kr_segsnr_db(&segsnr);
  KR_TRY(kr_llr(clean, other, n, &q->llr));
  KR_TRY(kr_wss(clean, other, n, &q->wss));
  KR_TRY(measure_stoi(clean, other, n, &q->stoi));
  const int32_t status = kr_pesq(clean, other, n, KR_PESQ_WIDE, &q->pesq);
  if (status < 0 && status != KRAIT_ERR_UNSUPPORTED) return status;
  if (isnan(q->pesq)) return KRAIT_OK;
  q->csig = opinion(3.093 - 1.029 * q->llr + 0.603 * q->pesq - 0.009 * q->wss);
  q->cbak = opinion(1.634 + 0.478 * q->pesq - 0.007 * q->wss + 0.063 * q->segsnr_db);
  q->covl = opinion(1.594 + 0.805 * q->pesq - 0.512 * q->llr - 0.007 * q->wss);
  return KRAIT_OK;
}

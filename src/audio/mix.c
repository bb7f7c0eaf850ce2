/* mix.c: levels, ratios and rooms (mix.h). */
#include "mix.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "convolve.h"
#include "status.h"

static const double EPS = 1e-6; /* as in the usual scripts: avoids division by zero for silence */

double kr_rms(const float *x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
  return n > 0 ? sqrt(sum / (double)n) : 0;
}

float kr_peak(const float *x, int64_t n) {
  float peak = 0;
  for (int64_t i = 0; i < n; i++) peak = fmaxf(peak, fabsf(x[i]));
  return peak;
}

void kr_scale(float *x, int64_t n, double factor) {
  for (int64_t i = 0; i < n; i++) x[i] = (float)(x[i] * factor);
}

double kr_set_level(float *x, int64_t n, double db) {
  const double to_peak = 1 / (kr_peak(x, n) + EPS),
               factor = to_peak * pow(10, db / 20) / (kr_rms(x, n) * to_peak + EPS);
  kr_scale(x, n, factor);
  return factor;
}

double kr_snr_gain(const float *speech, const float *noise, int64_t n, double snr_db) {
  return kr_rms(speech, n) / pow(10, snr_db / 20) / (kr_rms(noise, n) + EPS);
}

/* The response up to `early` samples after its peak, then a straight fade of the same length. */
static void cut_response(const float *rir, int64_t n_rir, int64_t early, float *cut) {
  int64_t peak = 0;
  for (int64_t i = 0; i < n_rir; i++)
    if (fabsf(rir[i]) > fabsf(rir[peak])) peak = i;
  for (int64_t i = 0; i < n_rir; i++) {
    const int64_t after = i - peak - early;
    cut[i] = after <= 0 ? rir[i] : after >= early ? 0 : rir[i] * (1 - (float)after / (float)early);
  }
}

int32_t kr_reverberate(float *x, int64_t n, const float *rir, int64_t n_rir, int64_t early_samples, float *early) {
  const int64_t n_used = n_rir < n ? n_rir : n; /* the rest is cut off in any case */
  kr_convolver *convolver = NULL;
  KR_TRY(kr_convolver_open(kr_power_of_two(n + n_used), &convolver));
  int32_t status = KRAIT_OK;
  if (early && early_samples > 0) {
    float *cut = kr_alloc_array((size_t)n_used, sizeof *cut);
    if (cut) {
      cut_response(rir, n_used, early_samples, cut);
      memcpy(early, kr_convolver_convolve(convolver, x, n, cut, n_used), (size_t)n * sizeof *x);
    } else {
      status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a room response");
    }
    kr_free(cut);
  }
  if (status == KRAIT_OK) memcpy(x, kr_convolver_convolve(convolver, x, n, rir, n_used), (size_t)n * sizeof *x);
  kr_convolver_close(&convolver);
  return status;
}

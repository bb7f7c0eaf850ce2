/* enhance_samples.c: runs samples in memory through a denoiser; reads and writes no files. */
#include "public_names.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "enhance.h"
#include "job.h"
#include "status.h"
#include "windows.h"

enum { BLOCK = 4096 };

/* Results go to *out, which moves on. */
static int32_t store_results(kr_job *job, kr_windows *windows, int is_end, float **out) {
  for (;;) {
    const float *samples = NULL;
    int64_t n;
    KR_TRY(kr_job_pull(job, windows, is_end, &samples, &n));
    if (!n) return KRAIT_OK;
    memcpy(*out, samples, (size_t)n * sizeof(float));
    *out += n;
  }
}

static int32_t run_scaled(kr_job *job, kr_windows *windows, const float *in, int64_t n_samples, float gain,
                          float *out) {
  float block[BLOCK];
  for (int64_t i = 0, taken; i < n_samples; i += taken) {
    const int64_t n = n_samples - i < BLOCK ? n_samples - i : BLOCK;
    for (int64_t k = 0; k < n; k++) block[k] = in[i + k] * gain;
    taken = kr_windows_push(windows, block, n);
    KR_TRY(store_results(job, windows, 0, &out));
  }
  kr_windows_end(windows);
  return store_results(job, windows, 1, &out);
}

static int32_t find_mean_square(const float *in, int64_t n_samples, double *mean_square) {
  double sum = 0;
  for (int64_t i = 0; i < n_samples; i++) {
    KR_CHECK(isfinite(in[i]), KRAIT_ERR_ARGUMENT, "in[%lld] is not a finite number", (long long)i);
    sum += (double)in[i] * in[i];
  }
  *mean_square = sum / (double)n_samples;
  return KRAIT_OK;
}

/* At the model's rate; mean_square is that of the recording, whatever its rate, as for files. */
static int32_t enhance_level(const kr_denoiser *denoiser, double mean_square, const float *in, float *out,
                             int64_t n_samples, krait_progress_fn progress, void *user) {
  const float gain = kr_job_gain(denoiser, mean_square);
  kr_job job;
  KR_TRY(kr_job_begin(&job, denoiser, n_samples, 1));
  job.n_samples = n_samples;
  job.progress = progress;
  job.user = user;
  kr_windows *windows = NULL;
  KR_TRY(kr_job_open_windows(&job, &windows));
  int32_t status = run_scaled(&job, windows, in, n_samples, gain, out);
  kr_job_close_windows(&job, &windows);
  for (int64_t i = 0; i < n_samples && status == KRAIT_OK; i++) {
    out[i] /= gain;
    if (!isfinite(out[i]))
      status = kr_fail(KRAIT_ERR_UNSUPPORTED, "the model's result is not a finite number at sample %lld", (long long)i);
  }
  return status;
}

int32_t kr_enhance_samples(const kr_denoiser *denoiser, const float *in, float *out, int64_t n_samples,
                           krait_progress_fn progress, void *user) {
  double mean_square;
  KR_CHECK(in && out && n_samples >= 0, KRAIT_ERR_ARGUMENT, "in and out must not be NULL, n_samples not negative");
  if (n_samples == 0) return KRAIT_OK;
  KR_TRY(find_mean_square(in, n_samples, &mean_square));
  return enhance_level(denoiser, mean_square, in, out, n_samples, progress, user);
}

int32_t krait_enhance_samples(krait_denoiser_session *session, const float *in, float *out, int64_t n_samples,
                              krait_progress_fn progress, void *user) {
  kr_denoiser denoiser;
  KR_CHECK(session, KRAIT_ERR_ARGUMENT, "session must not be NULL");
  KR_TRY(kr_session_denoiser(session, &denoiser));
  return kr_enhance_samples(&denoiser, in, out, n_samples, progress, user);
}

/* ---- at other rates ---- */

static int32_t push_to_band(kr_band *band, const float *in, int64_t n_samples) {
  for (int64_t i = 0; i < n_samples; i += BLOCK)
    KR_TRY(kr_band_push(band, in + i, n_samples - i < BLOCK ? n_samples - i : BLOCK));
  return kr_band_end_input(band);
}

/* All at once: low has n_low samples. */
static int32_t enhance_through(const kr_denoiser *denoiser, kr_band *band, const float *in, float *out,
                               int64_t n_samples, float *low, int64_t n_low, krait_progress_fn progress, void *user) {
  double mean_square;
  KR_TRY(find_mean_square(in, n_samples, &mean_square));
  KR_TRY(push_to_band(band, in, n_samples));
  KR_TRY(kr_band_low_pull(band, low, n_low));
  KR_TRY(enhance_level(denoiser, mean_square, low, low, n_low, progress, user));
  KR_TRY(kr_band_return(band, low, n_low));
  KR_TRY(kr_band_end_return(band));
  kr_band_pull(band, out, n_samples);
  return KRAIT_OK;
}

int32_t krait_enhance_channel(krait_denoiser_session *session, const krait_voice_options *options,
                              const krait_voice_controls *controls, const float *in, float *out, int64_t n_samples,
                              krait_progress_fn progress, void *user) {
  kr_denoiser denoiser;
  krait_voice_options known;
  kr_band_controls mixed = {1, INFINITY, 0};
  kr_band *band = NULL;
  KR_CHECK(session && options && in && out && n_samples >= 0, KRAIT_ERR_ARGUMENT,
           "session, options, in and out must not be NULL, n_samples not negative");
  KR_TRY(kr_voice_take_options(options, KR_BAND_LEAST_HZ, KR_BAND_MOST_HZ, &known));
  if (controls) KR_TRY(kr_voice_take_controls(controls, &mixed));
  KR_TRY(kr_session_denoiser(session, &denoiser));
  if (n_samples == 0) return KRAIT_OK;
  KR_TRY(kr_band_open(&(kr_band_options){.rate_hz = known.rate_hz,
                                         .is_narrow = (known.flags & KRAIT_VOICE_NARROW) != 0,
                                         .looks_back = (known.flags & KRAIT_VOICE_LOOKS_BACK) != 0,
                                         .block_samples = BLOCK},
                      &band));
  kr_band_set(band, &mixed);
  const int64_t n_low = (n_samples * KR_BAND_LOW_HZ + known.rate_hz - 1) / known.rate_hz;
  float *low = kr_alloc_array((size_t)n_low, sizeof *low);
  int32_t status = low ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for %lld samples", (long long)n_low);
  if (status >= 0) status = enhance_through(&denoiser, band, in, out, n_samples, low, n_low, progress, user);
  kr_free(low);
  kr_band_close(&band);
  return status;
}

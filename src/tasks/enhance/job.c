/* job.c: window sizes, level rule and bookkeeping around each window. */
#include "job.h"

#include <math.h>
#include <string.h>

#include "clock.h"
#include "status.h"

/* docs/speed/primeknet-cpu.md: from 4 s on, windows of any length score like one window, and memory grows with their
 * length. */
enum { WINDOW_MS = 6000, OVERLAP_MS = 500, FADE_MS = 250 };
/* The model was trained on recordings between these levels (dB of full scale, root mean square). */
static const double QUIETEST_DB = -35, LOUDEST_DB = -15;

/* Windows of equal length, as few as possible: a recording that is slightly longer than one window is not computed
 * twice. */
static kr_windows_shape choose_shape(int64_t longest, int64_t n_samples) {
  kr_windows_shape shape = {longest, OVERLAP_MS * KR_MODEL_HZ / 1000, FADE_MS * KR_MODEL_HZ / 1000};
  if (shape.overlap > longest / 4) shape.overlap = longest / 4;
  if (shape.fade > shape.overlap) shape.fade = shape.overlap;
  const int64_t n_windows = kr_windows_count(&shape, n_samples);
  if (n_windows > 1) shape.window = (n_samples + (n_windows - 1) * shape.overlap + n_windows - 1) / n_windows;
  else shape = (kr_windows_shape){n_samples < 2 ? 2 : n_samples, 1, 1};
  return shape;
}

static int is_silent(const float *samples, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (samples[i] != 0) return 0;
  return 1;
}

/* NaN would become silence in integer samples. */
static int32_t check_job_finite(const kr_job *job, const float *samples, int64_t n) {
  int64_t i = 0;
  while (i < n && isfinite(samples[i])) i++;
  KR_CHECK(
      i == n, KRAIT_ERR_UNSUPPORTED,
      "the model's result is not finite in window %lld; the weights are damaged or not meant for this kind of audio",
      (long long)job->n_windows_done);
  return KRAIT_OK;
}

static int32_t tell_progress(const kr_job *job) {
  if (!job->progress) return KRAIT_OK;
  const int64_t done = (int64_t)((double)job->n_samples * (double)job->n_windows_done / (double)job->n_windows);
  return job->progress(job->user, done, job->n_samples) ? kr_fail(KRAIT_ERR_CANCELLED, "stopped on request") : KRAIT_OK;
}

/* Ends a period in which windows were in flight, or none was. */
static void count_time(kr_job *job, int is_busy) {
  const int64_t now = kr_clock_ns();
  if (job->since_ns) job->compute_ns += now - job->since_ns;
  job->since_ns = is_busy ? now : 0;
}

/* A silent window stays silent, without noise added by the model. On return all earlier windows are complete. */
static int32_t compute_windows(kr_job *job, const kr_window_batch *batch) {
  const kr_denoiser *denoiser = job->denoiser;
  const float *in[KR_WINDOWS_AT_ONCE];
  float *out[KR_WINDOWS_AT_ONCE];
  int64_t n = 0;
  KR_TRY(tell_progress(job));
  count_time(job, 1);
  for (int64_t i = 0; i < batch->n; i++)
    if (is_silent(batch->in[i], batch->n_samples)) memset(batch->out[i], 0, (size_t)batch->n_samples * sizeof(float));
    else in[n] = batch->in[i], out[n++] = batch->out[i];
  int32_t status = KRAIT_OK;
  if (n) status = denoiser->run(denoiser->user, n, in, out, batch->n_samples);
  else if (denoiser->finish) status = denoiser->finish(denoiser->user);
  count_time(job, n && denoiser->finish);
  return status;
}

static int32_t finish_windows(kr_job *job) {
  const int32_t status = job->denoiser->finish(job->denoiser->user);
  count_time(job, 0);
  return status;
}

int32_t kr_job_open_windows(const kr_job *job, kr_windows **windows) {
  return kr_windows_open(&job->shape, job->at_once, job->denoiser->finish != NULL, windows);
}

void kr_job_close_windows(const kr_job *job, kr_windows **windows) {
  if (*windows && kr_windows_is_ahead(*windows)) job->denoiser->finish(job->denoiser->user);
  kr_windows_close(windows);
}

int32_t kr_job_pull(kr_job *job, kr_windows *windows, int is_end, const float **samples, int64_t *n) {
  kr_window_part part;
  *n = 0;
  while (!kr_windows_pull(windows, &part)) {
    const kr_window_batch *batch = kr_windows_due(windows);
    if (batch) {
      KR_TRY(compute_windows(job, batch));
      kr_windows_computed(windows);
    } else if (is_end && kr_windows_is_ahead(windows)) {
      KR_TRY(finish_windows(job));
      kr_windows_settle(windows);
    } else return KRAIT_OK;
  }
  job->n_windows_done++;
  KR_TRY(check_job_finite(job, part.result, part.n_result));
  *samples = part.samples, *n = part.n;
  return tell_progress(job);
}

int32_t kr_job_begin(kr_job *job, const kr_denoiser *denoiser, int64_t n_samples, int32_t n_channels) {
  const int64_t longest = denoiser->window_samples > 0 ? denoiser->window_samples : WINDOW_MS * KR_MODEL_HZ / 1000;
  *job = (kr_job){.denoiser = denoiser, .shape = choose_shape(longest, n_samples), .at_once = 1};
  const int64_t n = kr_windows_count(&job->shape, n_samples), most = n < KR_WINDOWS_AT_ONCE ? n : KR_WINDOWS_AT_ONCE;
  job->n_windows = n * n_channels;
  if (!denoiser->at_once || n < 2) return KRAIT_OK;
  return denoiser->at_once(denoiser->user, most, job->shape.window, &job->at_once);
}

float kr_job_gain(const kr_denoiser *denoiser, double mean_square) {
  if (!(mean_square > 1e-20)) return 1;
  const double level_db = 10 * log10(mean_square);
  double gain_db = 0;
  if (denoiser->level == KR_LEVEL_UNIT_RMS) gain_db = -level_db;
  else if (level_db < QUIETEST_DB) gain_db = QUIETEST_DB - level_db;
  else if (level_db > LOUDEST_DB) gain_db = LOUDEST_DB - level_db;
  return (float)pow(10, gain_db / 20);
}

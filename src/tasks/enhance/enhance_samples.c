/* enhance_samples.c: runs samples in memory through a denoiser; reads and writes no files. */
#include "public_names.h"

#include <math.h>
#include <string.h>

#include "enhance.h"
#include "job.h"
#include "status.h"
#include "windows.h"

enum { BLOCK = 4096 };

typedef struct cursor {
  float *samples;
} cursor;

static int32_t store(void *user, const float *samples, int64_t n) {
  cursor *at = user;
  memcpy(at->samples, samples, (size_t)n * sizeof(float));
  at->samples += n;
  return KRAIT_OK;
}

static int32_t push_scaled(kr_windows *windows, const float *in, int64_t n_samples, float gain) {
  float block[BLOCK];
  for (int64_t i = 0; i < n_samples; i += BLOCK) {
    const int64_t n = n_samples - i < BLOCK ? n_samples - i : BLOCK;
    for (int64_t k = 0; k < n; k++) block[k] = in[i + k] * gain;
    KR_TRY(kr_windows_push(windows, block, n));
  }
  return kr_windows_finish(windows);
}

int32_t kr_enhance_samples(const kr_denoiser *denoiser, const float *in, float *out, int64_t n_samples,
                           krait_progress_fn progress, void *user) {
  KR_CHECK(in && out && n_samples >= 0, KRAIT_ERR_ARGUMENT, "in and out must not be NULL, n_samples not negative");
  double sum = 0;
  for (int64_t i = 0; i < n_samples; i++) {
    KR_CHECK(isfinite(in[i]), KRAIT_ERR_ARGUMENT, "in[%lld] is not a finite number", (long long)i);
    sum += (double)in[i] * in[i];
  }
  if (n_samples == 0) return KRAIT_OK;
  const float gain = kr_job_gain(denoiser, sum / (double)n_samples);
  kr_job job;
  KR_TRY(kr_job_begin(&job, denoiser, n_samples, 1));
  job.n_samples = n_samples;
  job.progress = progress;
  job.user = user;
  cursor at = {out};
  kr_windows *windows = NULL;
  KR_TRY(kr_windows_open(&job.shape, &job.runner, (kr_sink){store, &at}, &windows));
  int32_t status = push_scaled(windows, in, n_samples, gain);
  kr_windows_close(&windows);
  for (int64_t i = 0; i < n_samples && status == KRAIT_OK; i++) {
    out[i] /= gain;
    if (!isfinite(out[i]))
      status = kr_fail(KRAIT_ERR_UNSUPPORTED, "the model's result is not a finite number at sample %lld", (long long)i);
  }
  return status;
}

int32_t krait_enhance_samples(krait_denoiser_session *session, const float *in, float *out, int64_t n_samples,
                              krait_progress_fn progress, void *user) {
  kr_denoiser denoiser;
  KR_CHECK(session, KRAIT_ERR_ARGUMENT, "session must not be NULL");
  KR_TRY(kr_session_denoiser(session, &denoiser));
  return kr_enhance_samples(&denoiser, in, out, n_samples, progress, user);
}

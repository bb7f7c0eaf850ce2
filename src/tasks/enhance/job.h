/* job.h: one run of a denoiser over one recording: the windows of its channels, level, silence, time, progress. */
#ifndef KR_JOB_H
#define KR_JOB_H

#include "denoiser.h"
#include "windows.h"

enum { KR_MODEL_HZ = 16000 };

typedef struct kr_job {
  const kr_denoiser *denoiser;
  kr_windows_shape shape;
  int64_t at_once; /* windows of a channel that are computed together */
  int64_t n_windows, n_windows_done; /* over all channels */
  int64_t n_samples;                 /* of the file, per channel: for progress reports */
  krait_progress_fn progress;
  void *user;
  int64_t compute_ns; /* while windows are in flight */
  int64_t since_ns;   /* since when; 0: none is in flight */
} kr_job;

/* For n_samples (16 kHz) in each of n_channels channels. */
int32_t kr_job_begin(kr_job *job, const kr_denoiser *denoiser, int64_t n_samples, int32_t n_channels);
int32_t kr_job_open_windows(const kr_job *job, kr_windows **windows); /* of one channel */
void kr_job_close_windows(const kr_job *job, kr_windows **windows);   /* waits for what is being computed */
/* The next samples of a channel's result, computing what is due; n 0: more must be pushed. At is_end everything that
 * was pushed comes out. The samples stay until the next call. */
int32_t kr_job_pull(kr_job *job, kr_windows *windows, int is_end, const float **samples, int64_t *n);
/* The gain applied before the model to a recording of this power (mean square), and divided out after it. */
float kr_job_gain(const kr_denoiser *denoiser, double mean_square);

#endif

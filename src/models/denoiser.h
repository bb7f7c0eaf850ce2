/* denoiser.h: the seam between a model that cleans one window of speech and the code that runs it over recordings.
 * A model's session fills it in (kr_session_denoiser); tests fill it with gains and delays. */
#ifndef KR_DENOISER_H
#define KR_DENOISER_H

#include <krait/model.h>

#include "stft_live.h"

/* How loud the samples must be that the model gets. */
enum {
  KR_LEVEL_AS_IS = 0, /* as recorded, but brought to the edge of the range that the model was trained on when outside */
  KR_LEVEL_UNIT_RMS = 1 /* root mean square 1 over the recording ("normalize" = "rms" in the weights' metadata) */
};

enum { KR_WINDOWS_AT_ONCE = 16 }; /* at most: the host holds each twice */

typedef struct kr_denoiser {
  /* Cleans n windows of n_samples >= 1 of mono 16 kHz, each by itself: out[k] has n_samples too and does not overlap
   * in[k]. Sizes that do not fit the model's frames are padded inside. in has been read when it returns. */
  int32_t (*run)(void *user, int64_t n, const float *const *in, float *const *out, int64_t n_samples);
  /* NULL: run has written out when it returns. Else out is there behind this (nothing to do is no failure), or behind
   * the next run; what a failure leaves is lost, and nothing is written later. */
  int32_t (*finish)(void *user);
  /* NULL: one. How many of n_windows such windows a call should take. */
  int32_t (*at_once)(void *user, int64_t n_windows, int64_t n_samples, int64_t *n);
  void *user;
  int32_t level;           /* KR_LEVEL_* */
  int64_t window_samples;  /* longest window worth running at once (memory grows with it); 0: the caller's default */
  /* NULL, or of a model that takes sound as it comes by itself: the session's stream, at its beginning. */
  int32_t (*live)(void *user, kr_stft_live **live);
} kr_denoiser;

/* Written by the room that knows the session: model.c. */
int32_t kr_session_denoiser(krait_session *session, kr_denoiser *denoiser);

#endif

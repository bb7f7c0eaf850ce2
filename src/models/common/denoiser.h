/* denoiser.h: the interface between a model that denoises one window of speech and the code that runs it on recordings.
 * A model's session fills it in (kr_session_denoiser); tests fill it with gains and delays. */
#ifndef KR_DENOISER_H
#define KR_DENOISER_H

#include <krait/enhance.h>

#include "stft_live.h"

/* The level of the model's input. */
enum {
  KR_LEVEL_AS_IS = 0, /* as recorded, but clamped to the level range that the model was trained on */
  KR_LEVEL_UNIT_RMS = 1 /* root mean square 1 over the recording ("normalize" = "rms" in the weights' metadata) */
};

enum { KR_WINDOWS_AT_ONCE = 16 }; /* the maximum: the host stores each twice */

typedef struct kr_denoiser {
  /* Denoises n windows of n_samples >= 1 of mono 16 kHz, each separately: out[k] also has n_samples and does not
   * overlap in[k]. Sizes that are not whole frames are padded internally. in has been read when it returns. */
  int32_t (*run)(void *user, int64_t n, const float *const *in, float *const *out, int64_t n_samples);
  /* NULL: run has written out when it returns. Otherwise out is available after this call (which may have nothing to
   * do), or after the next run; after a failure pending output is lost, and nothing is written later. */
  int32_t (*finish)(void *user);
  /* NULL: one. The number of windows per call, out of n_windows. */
  int32_t (*at_once)(void *user, int64_t n_windows, int64_t n_samples, int64_t *n);
  void *user;
  int32_t level;           /* KR_LEVEL_* */
  int64_t window_samples;  /* longest useful window (memory grows with it); 0: the caller's default */
  /* NULL, or for a streaming model: the session's stream, at its beginning. */
  int32_t (*live)(void *user, kr_stft_live **live);
} kr_denoiser;

/* Implemented by model.c, which knows the session. A stream takes its session: *holder is the session until it is given
 * back, or NULL from when the session was closed first; meanwhile everything else refuses the session. */
int32_t kr_session_denoiser(krait_denoiser_session *session, kr_denoiser *denoiser);
int32_t kr_session_check_free(const krait_denoiser_session *session); /* not taken */
int32_t kr_session_take(krait_denoiser_session *session, krait_denoiser_session **holder);
void kr_session_give_back(krait_denoiser_session **holder);

#endif

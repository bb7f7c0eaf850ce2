/* denoiser.h: the seam between a model that cleans one window of speech and the code that runs it over recordings.
 * A model's session fills it in (kr_session_denoiser); tests fill it with gains and delays. */
#ifndef KR_DENOISER_H
#define KR_DENOISER_H

#include <krait/model.h>

/* How loud the samples must be that the model gets. */
enum {
  KR_LEVEL_AS_IS = 0, /* as recorded, but brought to the edge of the range that the model was trained on when outside */
  KR_LEVEL_UNIT_RMS = 1 /* root mean square 1 over the recording ("normalize" = "rms" in the weights' metadata) */
};

/* Of a model that takes sound as it comes by itself; user as below. Behind is_end, which gives all that is left, and
 * behind a failure it begins anew. */
typedef struct kr_denoiser_live {
  int32_t (*open)(void *user);                            /* before the others, any number of times */
  int64_t (*due)(const void *user, int64_t n_samples);    /* samples given when so many have come since the beginning */
  int32_t (*push)(void *user, const float *in, int64_t n_samples, int is_end, float *out, int64_t *n_out);
  int64_t (*latency)(const void *user);                   /* samples that are not given yet: at most so many */
} kr_denoiser_live;

typedef struct kr_denoiser {
  /* Cleans n_samples >= 1 of mono 16 kHz as one window: out has n_samples too and does not overlap in. Sizes that do
   * not fit the model's frames are padded inside. */
  int32_t (*run)(void *user, const float *in, float *out, int64_t n_samples);
  void *user;
  int32_t level;           /* KR_LEVEL_* */
  int64_t window_samples;  /* longest window worth running at once (memory grows with it); 0: the caller's default */
  const kr_denoiser_live *live; /* or NULL */
} kr_denoiser;

/* Written by the room that knows the session: model.c. */
int32_t kr_session_denoiser(krait_session *session, kr_denoiser *denoiser);

#endif

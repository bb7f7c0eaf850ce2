/* band.h: the way of one channel around a model that cleans speech at 16 kHz: down to that rate and back up; beside it
 * what lies above the model's band, with a gain that follows the model's; how probable speech is; and the mixture of
 * dry and clean sound. The caller passes what comes out below through its model and returns it, sample for sample:
 *
 *   kr_band_push -> kr_band_low_pull -> the model -> kr_band_return -> kr_band_pull
 *
 * Nothing is removed from or added to the number of samples, and nothing is shifted: output sample n is input sample n,
 * cleaned. How much later it comes is kr_band_latency. Results do not depend on the sizes of the blocks. */
#ifndef KR_BAND_H
#define KR_BAND_H

#include "stream.h"

enum { KR_BAND_LOW_HZ = 16000, KR_BAND_LEAST_HZ = 1000, KR_BAND_MOST_HZ = 768000 };

typedef struct kr_band_options {
  int32_t rate_hz;
  int32_t is_narrow;     /* drops what lies above the model's band */
  int32_t looks_back;    /* the gate opens LOOK_BACK earlier than speech is recognised, which is waited for */
  int32_t tells_speech;  /* kr_band_speech is asked, or a gate is set after the beginning */
  int64_t model_latency; /* of the caller's model, at 16 kHz; for more than that, and for blocks of more than
                            block_samples, memory is allocated later */
  int64_t block_samples;
} kr_band_options;

typedef struct kr_band_controls {
  double mix;      /* 1: clean, 0: dry */
  double limit_db; /* attenuates by at most this; INFINITY: no limit */
  double gate;     /* silence where speech is less probable; 0: never */
} kr_band_controls;

typedef struct kr_band kr_band;
int32_t kr_band_open(const kr_band_options *options, kr_band **band);
void kr_band_close(kr_band **band);
void kr_band_begin(kr_band *band); /* starts again, with the same controls, which hold at once */
/* From the next output on; a change while it runs is smoothed. */
void kr_band_set(kr_band *band, const kr_band_controls *controls);
/* Samples at rate_hz that kr_band_pull may lag behind kr_band_push. */
int64_t kr_band_latency(const kr_band *band);

int32_t kr_band_push(kr_band *band, const float *in, int64_t n);
int64_t kr_band_low_ready(const kr_band *band);
int32_t kr_band_low_pull(kr_band *band, float *low, int64_t n); /* n <= ready */
int32_t kr_band_return(kr_band *band, const float *cleaned, int64_t n);
int64_t kr_band_ready(const kr_band *band);
void kr_band_pull(kr_band *band, float *out, int64_t n); /* n <= ready */
/* At the end of the input: silence, so that what belongs to the last sample can be pulled below; and when n_low samples
 * have been returned, so that the rest can be pulled above. */
int32_t kr_band_end_input(kr_band *band);
int32_t kr_band_end_return(kr_band *band);
/* For the last sample that was pulled, or rather the 6 ms around it: how probable speech is. */
double kr_band_speech(const kr_band *band);

#endif

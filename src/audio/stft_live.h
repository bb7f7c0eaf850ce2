/* stft_live.h: sound as it comes through whatever goes by frames of compressed spectra (stft.h: hops of n_fft / 4),
 * chunk by chunk. */
#ifndef KR_STFT_LIVE_H
#define KR_STFT_LIVE_H

#include <stdint.h>

#include "pool.h"

typedef struct kr_stft_live_options {
  int64_t n_fft, chunk; /* frames at a time */
  double power;
  kr_pool *pool;
  void *user;
  int32_t (*begin)(void *user); /* what comes next is the beginning */
  /* The next n <= chunk frames, from number `first` of com (F,T,2) to the same of mag and pha (F,T). Behind fewer than
   * a chunk only a beginning follows. */
  int32_t (*frames)(void *user, const float *com, int64_t T, int64_t first, int64_t n, float *mag, float *pha);
} kr_stft_live_options;

typedef struct kr_stft_live kr_stft_live;
int32_t kr_stft_live_open(const kr_stft_live_options *options, kr_stft_live **live);
void kr_stft_live_close(kr_stft_live **live);
void kr_stft_live_begin(kr_stft_live *live); /* anew, whatever it has heard */
int64_t kr_stft_live_latency(const kr_stft_live *live);
/* What is due when n samples have been heard since the beginning. */
int64_t kr_stft_live_due(const kr_stft_live *live, int64_t n);
/* out: room for all that becomes due; is_end: for all that is left. Behind that, and behind a failure, it begins anew.
 * */
int32_t kr_stft_live_push(kr_stft_live *live, const float *in, int64_t n, int is_end, float *out, int64_t *n_out);

#endif

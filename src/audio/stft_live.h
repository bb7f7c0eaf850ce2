/* stft_live.h: streams audio through anything that processes frames of compressed spectra (stft.h: hops of n_fft / 4),
 * chunk by chunk. A chunk is computed while the samples of the next one arrive, in equal shares: no push takes much
 * longer than its samples' part of the work. After kr_stft_live_open nothing here allocates or locks, if the pool has
 * one thread. */
#ifndef KR_STFT_LIVE_H
#define KR_STFT_LIVE_H

#include <stdint.h>

#include "pool.h"

typedef struct kr_stft_live_options {
  int64_t n_fft, chunk; /* frames at a time */
  double power;
  kr_pool *pool;
  void *user;
  int32_t (*begin)(void *user); /* the next frames are the beginning of a stream */
  /* A chunk in three parts. take: the next n <= chunk frames are those from number `first` of com (F,T,2) on; after
   * less than a full chunk, only a new beginning may follow. work: computes until this share of the whole is done, and
   * may do less. give: the rest, and the same frames of mag and pha (F,T). */
  int32_t (*take)(void *user, const float *com, int64_t T, int64_t first, int64_t n);
  int32_t (*work)(void *user, double share);
  int32_t (*give)(void *user, int64_t T, int64_t first, int64_t n, float *mag, float *pha);
} kr_stft_live_options;

typedef struct kr_stft_live kr_stft_live;
int32_t kr_stft_live_open(const kr_stft_live_options *options, kr_stft_live **live);
void kr_stft_live_close(kr_stft_live **live);
void kr_stft_live_begin(kr_stft_live *live); /* starts again, whatever it has processed */
int64_t kr_stft_live_latency(const kr_stft_live *live);
/* The number of samples due after n input samples since the beginning. */
int64_t kr_stft_live_due(const kr_stft_live *live, int64_t n);
/* out: space for all samples that become due; is_end: for all remaining ones. After that, and after a failure, it
 * starts again. */
int32_t kr_stft_live_push(kr_stft_live *live, const float *in, int64_t n, int is_end, float *out, int64_t *n_out);

#endif

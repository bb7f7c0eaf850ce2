/* mixture.h: adds a room response and noise to a recording, block by block, for demonstrations. */
#ifndef KR_MIXTURE_H
#define KR_MIXTURE_H

#include <stdint.h>

typedef struct kr_mixture kr_mixture;

/* At hz, for n_channels; noise_path and rir_path (either may be NULL) are resampled to it, first channels. snr_db
 * refers to the reverberated speech over all channels. */
int32_t kr_mixture_open(const char *noise_path, const char *rir_path, double snr_db, int32_t hz, int32_t n_channels,
                        kr_mixture **mixture);
void kr_mixture_close(kr_mixture **mixture);
/* The first pass over interleaved frames, in order: measures them. Then kr_mixture_begin, and the same frames again,
 * mixed in place. */
int32_t kr_mixture_measure(kr_mixture *mixture, const float *frames, int64_t n_frames);
int32_t kr_mixture_begin(kr_mixture *mixture);
int32_t kr_mixture_mix(kr_mixture *mixture, float *frames, int64_t n_frames);

#endif

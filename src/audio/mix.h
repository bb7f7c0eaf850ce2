/* mix.h: mixes speech and noise at a given signal-to-noise ratio, with room responses and at given levels, for
 * training, evaluation and demonstrations. Decibels refer to the root mean square, full scale 1. */
#ifndef KR_MIX_H
#define KR_MIX_H

#include <stdint.h>

double kr_rms(const float *x, int64_t n);
float kr_peak(const float *x, int64_t n);
void kr_scale(float *x, int64_t n, double factor);

/* Normalises x to a peak of 1, then to db; silence is unchanged. Returns the factor applied to x. */
double kr_set_level(float *x, int64_t n, double db);
/* The factor that brings the noise snr_db below the speech. */
double kr_snr_gain(const float *speech, const float *noise, int64_t n, double snr_db);
/* Convolves x with the room impulse response rir, cut to x's length. early_samples > 0: early (n, or NULL) receives x
 * with only that much of the response after its peak, faded out over the same length. */
int32_t kr_reverberate(float *x, int64_t n, const float *rir, int64_t n_rir, int64_t early_samples, float *early);

#endif

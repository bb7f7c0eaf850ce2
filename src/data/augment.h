/* augment.h: augmentations: rumble, slow gain changes, other speeds, band limits, spectral tilt, clipping, codecs. */
#ifndef KR_AUGMENT_H
#define KR_AUGMENT_H

#include <stdint.h>

#include "random.h"

/* Fills x with a rumble: noise that falls by 12 to 24 dB per octave from 8 to 50 Hz on, without content below 4 Hz,
 * with slow gain changes. */
void kr_augment_rumble(kr_random *random, float *x, int64_t n);
/* Changes the gain of x by up to most_db, along a smooth curve with one knot every half second. */
void kr_augment_gain(kr_random *random, float *x, int64_t n, double most_db);
/* x (n_in samples) played `speed` times as fast, to exactly n_out samples. */
int32_t kr_augment_speed(const float *x, int64_t n_in, double speed, float *out, int64_t n_out);
/* A low-pass with its edge at hz; the same hz gives the same phase. */
int32_t kr_augment_band(float *x, int64_t n, double hz);
/* A smooth gain over log frequency: knots an octave and a half apart with standard deviation spread_db, and a tilt of
 * tilt_db per octave around 1 kHz. */
int32_t kr_augment_curve(kr_random *random, float *x, int64_t n, double spread_db, double tilt_db);
/* Changes x by tilt_db per octave above hz. */
int32_t kr_augment_tilt(float *x, int64_t n, double hz, double tilt_db);
/* Clips at this share of the peak. */
void kr_augment_clip(float *x, int64_t n, double share);

#endif

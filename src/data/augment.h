/* augment.h: what else may happen to speech on its way: rumble, slow swells, other speeds, fewer bands, clipping,
 * codecs. */
#ifndef KR_AUGMENT_H
#define KR_AUGMENT_H

#include <stdint.h>

#include "random.h"

/* x becomes a rumble: noise that falls by 12 to 24 dB an octave from 8 to 50 Hz on, without what lies below 4 Hz, and
 * swells. */
void kr_augment_rumble(kr_random *random, float *x, int64_t n);
/* x swells and fades by up to most_db, along a smooth curve with a knot each half second. */
void kr_augment_gain(kr_random *random, float *x, int64_t n, double most_db);
/* x (n_in samples) played `speed` times as fast, to exactly n_out samples. */
int32_t kr_augment_speed(const float *x, int64_t n_in, double speed, float *out, int64_t n_out);
/* A low-pass whose edge lies at hz, of the same phase for whatever is given the same hz. */
int32_t kr_augment_band(float *x, int64_t n, double hz);
/* A smooth gain over log frequency: knots an octave and a half apart, spread_db their deviation, and tilt_db an octave
 * from 1 kHz. */
int32_t kr_augment_curve(kr_random *random, float *x, int64_t n, double spread_db, double tilt_db);
/* Cut off at share of the peak. */
void kr_augment_clip(float *x, int64_t n, double share);

#endif

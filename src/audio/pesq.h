/* pesq.h: the perceptual evaluation of speech quality of ITU-T P.862 (2001) as a number from 1 (bad) to about 4.6 (the
 * same signal), at 16 kHz: with P.862.2's wide-band input and mapping, or P.862.1's narrow-band ones. Written from the
 * method's description; docs/METRICS.md compares it with other programs. */
#ifndef KR_PESQ_H
#define KR_PESQ_H

#include <stdint.h>

enum { KR_PESQ_WIDE, KR_PESQ_NARROW };

/* Both signals have n samples at 16 kHz; the result is independent of their levels. May be called from several threads.
 * KRAIT_ERR_UNSUPPORTED, and NaN in *mos: shorter than 1/4 s, silent, or no speech was found in the clean one. */
int32_t kr_pesq(const float *clean, const float *other, int64_t n, int mode, double *mos);

#endif

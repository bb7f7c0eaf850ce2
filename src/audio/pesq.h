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

/* The same in two steps, for many pairs of n samples, with the memory and tables of one at a time: what depends on the
 * clean signal alone, then any number of others beside it. */
typedef struct kr_pesq_listener kr_pesq_listener;
int32_t kr_pesq_open(int64_t n, int mode, kr_pesq_listener **listener);
void kr_pesq_close(kr_pesq_listener **listener);
int32_t kr_pesq_hear_clean(kr_pesq_listener *listener, const float *clean);
int32_t kr_pesq_hear_other(kr_pesq_listener *listener, const float *other, double *mos);

#endif

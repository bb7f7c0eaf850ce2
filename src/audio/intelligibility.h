/* intelligibility.h: 1 - STOI (metrics.h), and its gradient with respect to the samples: STOI's bands and segments at
 * 16 kHz, with frames of 25 ms. */
#ifndef KR_INTELLIGIBILITY_H
#define KR_INTELLIGIBILITY_H

#include <stdint.h>

typedef struct kr_intelligibility kr_intelligibility;

/* For signals of n samples at 16 kHz, 400 at least. One thread at a time. */
int32_t kr_intelligibility_open(int64_t n, kr_intelligibility **intelligibility);
void kr_intelligibility_close(kr_intelligibility **intelligibility);
/* 1 minus the score; 0 with less than 30 frames (0.4 s) of speech. Independent of levels. Adds to gradient (n) `scale`
 * times the gradient with respect to the other signal's samples; NULL: only the value. */
double kr_intelligibility_lack(kr_intelligibility *intelligibility, const float *clean, const float *other,
                               double scale, float *gradient);

#endif

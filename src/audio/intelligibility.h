/* intelligibility.h: how much STOI (metrics.h) lacks of 1, and which samples make it so: its bands and segments at
 * 16 kHz, for frames of 25 ms. */
#ifndef KR_INTELLIGIBILITY_H
#define KR_INTELLIGIBILITY_H

#include <stdint.h>

typedef struct kr_intelligibility kr_intelligibility;

/* For signals of n samples at 16 kHz, 400 at least. One thread at a time. */
int32_t kr_intelligibility_open(int64_t n, kr_intelligibility **intelligibility);
void kr_intelligibility_close(kr_intelligibility **intelligibility);
/* 1 less the score; 0 with less than 30 frames (0.4 s) of speech. Levels do not matter. To gradient (n) is added
 * `scale` times that by samples of the other one; NULL: the value alone. */
double kr_intelligibility_lack(kr_intelligibility *intelligibility, const float *clean, const float *other,
                               double scale, float *gradient);

#endif

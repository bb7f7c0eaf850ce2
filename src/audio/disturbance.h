/* disturbance.h: the audible difference between two signals, and its gradient with respect to the samples: the model of
 * ITU-T P.862 (pesq_model.c) for signals that need no alignment. */
#ifndef KR_DISTURBANCE_H
#define KR_DISTURBANCE_H

#include <stdint.h>

typedef struct kr_disturbance kr_disturbance;

/* For signals of n samples at 16 kHz, 512 at least. One thread at a time. */
int32_t kr_disturbance_open(int64_t n, kr_disturbance **disturbance);
void kr_disturbance_close(kr_disturbance **disturbance);
/* About 4.5 minus the raw score; 0 for equal signals, and if one is silent. Independent of levels. gradient (n) with
 * respect to the other signal's samples; NULL: only the value. */
double kr_disturbance_run(kr_disturbance *disturbance, const float *clean, const float *other, float *gradient);

#endif

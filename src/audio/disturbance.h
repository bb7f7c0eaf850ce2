/* disturbance.h: how much of the difference between two signals an ear hears, and which samples make it so: the model
 * of ITU-T P.862 (pesq_model.c) for signals that need no alignment, with its gradient. */
#ifndef KR_DISTURBANCE_H
#define KR_DISTURBANCE_H

#include <stdint.h>

typedef struct kr_disturbance kr_disturbance;

/* For signals of n samples at 16 kHz, 512 at least. One thread at a time. */
int32_t kr_disturbance_open(int64_t n, kr_disturbance **disturbance);
void kr_disturbance_close(kr_disturbance **disturbance);
/* About 4.5 less the raw score; 0 for the same signals, and where one is silent. Levels do not matter. gradient (n), by
 * samples of the other one; NULL: the value alone. */
double kr_disturbance_run(kr_disturbance *disturbance, const float *clean, const float *other, float *gradient);

#endif

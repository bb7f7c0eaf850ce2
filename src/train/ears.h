/* ears.h: perceptual losses: the distance of a model's output from clean signals by several metrics, on the host's
 * threads, one item each. */
#ifndef KR_EARS_H
#define KR_EARS_H

#include "pool.h"

enum {
  KR_EARS_DISTURBANCE, /* audio/disturbance */
  KR_EARS_OPINION,     /* the shortfall of PESQ's score from the best: the disturbance mapped by P.862.2's curve */
  KR_EARS_SI_SDR,      /* the shortfall of SI-SDR from 30 dB (audio/metrics) */
  KR_EARS_STOI,        /* 1 - STOI (audio/intelligibility) */
  KR_EARS_TERMS
};

typedef struct kr_ears kr_ears;

/* For up to `most` signals of n samples. */
int32_t kr_ears_open(kr_pool *pool, int64_t n, int64_t most, kr_ears **ears);
void kr_ears_close(kr_ears **ears);
/* clean, made, pull (items, n); sums over items, 0 for terms without weight. pull: the gradient of the weighted sum
 * with respect to made's samples; or NULL. */
void kr_ears_hear(kr_ears *ears, int64_t items, const float *clean, const float *made,
                  const double weights[KR_EARS_TERMS], float *pull, double sums[KR_EARS_TERMS]);

#endif

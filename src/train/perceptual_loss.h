/* perceptual_loss.h: perceptual losses: the distance of a model's output from clean signals by several metrics, on the
 * host's threads, one item each. */
#ifndef KR_PERCEPTUAL_LOSS_H
#define KR_PERCEPTUAL_LOSS_H

#include "pool.h"

enum {
  KR_PERCEPTUAL_LOSS_DISTURBANCE, /* audio/disturbance */
  KR_PERCEPTUAL_LOSS_PESQ, /* the shortfall of PESQ's score from the best: the disturbance mapped by P.862.2's curve */
  KR_PERCEPTUAL_LOSS_SI_SDR, /* the shortfall of SI-SDR from 30 dB (audio/metrics) */
  KR_PERCEPTUAL_LOSS_STOI,   /* 1 - STOI (audio/intelligibility) */
  KR_PERCEPTUAL_LOSS_TERMS
};

typedef struct kr_perceptual_loss kr_perceptual_loss;

/* For up to `most` signals of n samples. */
int32_t kr_perceptual_loss_open(kr_pool *pool, int64_t n, int64_t most, kr_perceptual_loss **perceptual);
void kr_perceptual_loss_close(kr_perceptual_loss **perceptual);
/* clean, made, pull (items, n); sums over items, 0 for terms without weight. pull: the gradient of the weighted sum
 * with respect to made's samples; or NULL. */
void kr_perceptual_loss_hear(kr_perceptual_loss *perceptual, int64_t items, const float *clean, const float *made,
                  const double weights[KR_PERCEPTUAL_LOSS_TERMS], float *pull, double sums[KR_PERCEPTUAL_LOSS_TERMS]);

#endif

/* quality.h: all scores of speech against its clean version, for two signals in memory at 16 kHz (docs/METRICS.md). */
#ifndef KR_QUALITY_H
#define KR_QUALITY_H

#include <stdint.h>

typedef struct kr_quality {
  double pesq, csig, cbak, covl;  /* opinion scores */
  double segsnr_db, si_sdr_db, stoi;
  double llr, wss;                /* parts of the composite ones: lower is better */
} kr_quality;

/* May be called from several threads. Undefined measures (too short, silent, no speech found) are NaN. */
int32_t kr_quality_of(const float *clean, const float *other, int64_t n, kr_quality *quality);

/* Per frame of 30 ms, hop 7.5 ms; the mean of the lowest 95 %. NaN when shorter than a frame. */
int32_t kr_llr(const float *clean, const float *other, int64_t n,
               double *llr); /* log-likelihood ratio of linear predictors of order 16; frames without sound left out */
int32_t kr_wss(const float *clean, const float *other, int64_t n,
               double *wss); /* weighted spectral slopes (Klatt 1982) over 25 critical bands */

#endif

/* ssd_hopper_bwd_params.h: parameters of the SSD gradient's warpgroup kernel (ssd_hopper_bwd.cu). */
#ifndef KR_SSD_HOPPER_BWD_PARAMS_H
#define KR_SSD_HOPPER_BWD_PARAMS_H

#include "ssd_bwd_params.h"
#include "ssd_hopper_params.h"

#define KR_SSD_HOPPER_BWD_THREADS 384
#define KR_SSD_HOPPER_BWD_STAGES 3
/* B and C; stages of x, dy, state tiles and step sizes; dx; three quarters of C B^T; D, barriers. */
#define KR_SSD_HOPPER_BWD_SHARED(N)                                                                        \
  (1024u + KR_SSD_HOPPER_TILE * (2 * ((N) / 64) + KR_SSD_HOPPER_BWD_STAGES * (2 + 2 * ((N) / 64)) + 1) + \
   KR_SSD_HOPPER_TILE * 3 / 2 + KR_SSD_HOPPER_BWD_STAGES * KR_SSD_STEPS_BYTES + 2 * KR_SSD_P * 4 + 256)

typedef struct kr_ssd_hopper_bwd_params {
  kr_ssd_map x, dy, Bmat, Cmat, dx;
  kr_ssd_bwd_params q; /* S and M: tiles as stored by kr_ssd_hopper_states */
} kr_ssd_hopper_bwd_params;

#endif

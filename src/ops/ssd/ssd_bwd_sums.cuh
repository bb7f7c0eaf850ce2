/* ssd_bwd_sums.cuh: what kernels of the SSD's gradient on tensor cores leave of each chunk of a head for
 * kr_ssd_bwd_finish: sums for each token. */
#ifndef KR_SSD_BWD_SUMS_CUH
#define KR_SSD_BWD_SUMS_CUH

#include "ssd_mma.cuh"

#include "ssd_bwd_plan.h"

/* (B,H,chunks) */
typedef struct token_sums {
  kr_float4
      of[Q];      /* from the state before, to what comes after, <M, x (outer) B>, given to later tokens of the chunk */
  float taken[Q]; /* from earlier ones */
  float through, pad[3];
} token_sums;

KR_DEV token_sums *sums_at(const kr_ssd_bwd_plan &p, int b, int h, int64_t chunk) {
  return (token_sums *)p.tokens + ((int64_t)b * p.f.H + h) * p.n_chunks + chunk;
}

#endif

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

/* The size of token j's step as 2^(a_i - from_j) has it. A gradient of a step is what tokens gave less what others took
 * of it, nearly all of which may cancel: both sides must round alike, and sums a of fast decays have few digits. */
KR_DEV float given_size(const chunk_steps &s, int j) { return kr_exp2(s.a[j] - s.from[j]); }

#endif

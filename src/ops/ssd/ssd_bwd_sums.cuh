/* ssd_bwd_sums.cuh: the per-token sums that the SSD gradient's chunked kernels store for each chunk of a head, for
 * kr_ssd_bwd_finish. */
#ifndef KR_SSD_BWD_SUMS_CUH
#define KR_SSD_BWD_SUMS_CUH

#include "ssd_steps.cuh"

#include "ssd_bwd_params.h"

/* (B,H,chunks). Of float32, whose sums over pairs of tokens (j before i) may not be differences: in place of what is
 * given, the pairs with j < t <= i, except, from token 32 on, those with j < 32; in place of what is taken, a token's
 * pairs with these. */
typedef struct token_sums {
  kr_float4
      of[Q];      /* from the state before, to the states after, <M, x (outer) B>, given to the chunk's later tokens */
  float taken[Q]; /* taken from earlier ones */
  float through, pad[3];
} token_sums;

KR_DEV token_sums *sums_at(const kr_ssd_bwd_params &p, int b, int h, int64_t chunk) {
  return (token_sums *)p.tokens + ((int64_t)b * p.f.H + h) * p.n_chunks + chunk;
}

/* Token j's step size as implied by 2^(a_i - from_j). A step's gradient is what tokens gave minus what others took,
 * which nearly cancel: both sides must round alike, and a has few digits under fast decay. */
KR_DEV float given_size(const chunk_steps &s, int j) { return kr_exp2(s.a[j] - s.from[j]); }

#endif

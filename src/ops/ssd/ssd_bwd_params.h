/* ssd_bwd_params.h: parameters of the SSD gradient's kernels, beside the forward params: one time direction per launch,
 * every tensor as strides in scan order. */
#ifndef KR_SSD_BWD_PARAMS_H
#define KR_SSD_BWD_PARAMS_H

#include "ssd_params.h"

#define KR_SSD_BWD_THREADS 256
#define KR_SSD_BWD_ADDERS 512 /* threads that reduce a head's parts */
#define KR_SSD_BWD_TOKENS_BYTES (20 * KR_SSD_CHUNK + 16) /* sums stored per chunk of a head */
#define KR_SSD_BWD_STATES_SHARED(N) (2 * KR_SSD_CHUNK * (KR_SSD_P + (N)) * 2 + 2 * KR_SSD_STEPS_BYTES)
#define KR_SSD_BWD_INNER_SHARED(N, stages)                                                                     \
  ((stages) * 4 * KR_SSD_P * (KR_SSD_CHUNK + (N)) + 4 * KR_SSD_CHUNK * (N) + 2 * KR_SSD_CHUNK * KR_SSD_CHUNK + \
   2 * KR_SSD_STEPS_BYTES + 4 * (2 * (8 * KR_SSD_CHUNK + 8) + 4 * KR_SSD_CHUNK + 8 * KR_SSD_P + KR_SSD_P))

/* Of float32, whose factors are in `parts` float16 parts: states are passed on 64 at a time. */
#define KR_SSD_BWD_FLOATS_SLICE 64
#define KR_SSD_BWD_FLOATS_SCALES 16 /* bytes behind a state tile */
#define KR_SSD_BWD_FLOATS_STATES_SHARED                                                                 \
  (2 * 4 * KR_SSD_CHUNK * (KR_SSD_P + KR_SSD_BWD_FLOATS_SLICE) + 2 * KR_SSD_STEPS_BYTES + 4 * KR_SSD_CHUNK + \
   4 * 3 * (KR_SSD_THREADS / 32))
#define KR_SSD_BWD_FLOATS_INNER_SHARED(N, parts)                                                            \
  (((parts) == 1 ? 8 * KR_SSD_CHUNK * KR_SSD_P : 0) + 2 * (parts) * KR_SSD_CHUNK * (2 * KR_SSD_P + (N)) + \
   2 * (parts) * KR_SSD_P * (N) + KR_SSD_BWD_FLOATS_SCALES + (3 - (parts)) * KR_SSD_STEPS_BYTES +         \
   4 * 2 * (KR_SSD_BWD_THREADS / 32) + 4 * (7 * KR_SSD_CHUNK + 8))
#define KR_SSD_BWD_FLOATS_ROLES(dz) ((dz) ? 3 : 2) /* blocks per chunk and share of a group's heads */
#define KR_SSD_BWD_FLOATS_MATRICES_SHARED(N) (4 * KR_SSD_CHUNK * (KR_SSD_CHUNK + 2 * (N)))

typedef struct kr_ssd_bwd_params {
  kr_ssd_params f;
  kr_ssd_tensor dx, ddt, dlog_decay, dB, dC;
  kr_ssd_tensor dfinal, dinitial;          /* (b, h, t: channel, n) */
  kr_ssd_tensor all_dx, all_dd; /* float32, with both directions: stored by the first, added by the last */
  kr_ssd_tensor sum_B, sum_C;   /* float32 (B,L,G,N); dB and dC themselves, if these are float32 beside 16
                                   bits and no blocks share heads */
  kr_ssd_tensor dA, dbias, dD;             /* h, n */
  void *S, *M;                             /* (B,H,chunks,P,N): state before, state gradient after each chunk */
  float *M_scale;                          /* of M, as f.kept_scale */
  void *tokens;                            /* (B,H,chunks) of KR_SSD_BWD_TOKENS_BYTES */
  float *parts;                            /* (B,chunks,H,P + 2): dD, dA and dt_bias's gradient, summed over a chunk */
  kr_ssd_tensor gated;                     /* dout of a call with a gate, where f.dout is dy (after the gate) */
  int32_t n_stages;                        /* heads in shared memory at once, 1 or 2 */
  int32_t n_splits; /* blocks that share a group's heads; sum_B and sum_C are then (n_splits,B,L,G,N) */
  int32_t leaves_sums; /* the chunked 16-bit kernels leave sum_B and sum_C, not dB and dC */
  float *W;         /* float32: (n_splits,B,chunks,groups,KR_SSD_CHUNK,KR_SSD_CHUNK), sums over heads */
  int32_t n_parts;  /* of the states */
  int32_t part;     /* slice of the states, if more than a kernel takes; from 1 on it adds to dx and tokens */
  int32_t has_states;                      /* S is there already */
  int32_t gates_eight;                     /* the gate's threads have eight channels each */
  int32_t n_chunks, adds, keeps;           /* adds: to the other direction's part; keeps: stores one for it */
} kr_ssd_bwd_params;

#endif

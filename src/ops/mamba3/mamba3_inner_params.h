/* mamba3_inner_params.h: parameters of the kernels that take a walked gradient of Mamba 3's scan chunk by chunk
 * (mamba3_inner.cu). */
#ifndef KR_MAMBA3_INNER_PARAMS_H
#define KR_MAMBA3_INNER_PARAMS_H

#include "../ssd/ssd_hopper_bwd_params.h"
#include "mamba3_params.h"
#include "mamba3_walk_params.h"

#define KR_MAMBA3_INNER_M 32      /* most pairs that turn */
#define KR_MAMBA3_INNER_TOKENS 64 /* whose gradients of biases are one sum: a chunk's */
#define KR_MAMBA3_INNER_THREADS 512
/* Bytes of a block's shared memory, with those up to a multiple of 1024. */
#define KR_MAMBA3_INNER_SHARED 232448

/* q: as of the SSD's gradient on warpgroups of every head's keys and queries, but heads, dB, dC, sum_B and sum_C are of
 * groups. */
typedef struct kr_mamba3_inner_params {
  kr_ssd_map x, dy, Bmat, Cmat, dx;
  kr_ssd_bwd_params q;
  kr_view B, C, B_bias, C_bias;
  const unsigned char *packets;  /* (B,H,chunks) */
  const float *gamma, *products; /* (B,H,L): as of kr_mamba3_params and kr_mamba3_bwd_params */
  const void *dq, *dk;           /* float32 (B,H,L,N), of heads in q.f.spoilt */
  void *rows_q, *rows_k;         /* (B,H,L,N): of such heads, to be computed again token by token */
  float *psi;                    /* (B,H,L,M) */
  float *later;                  /* (B,H,spans,M): its sums over KR_MAMBA3_SPAN tokens */
  float *factors;                /* as of kr_mamba3_bwd_params, for dD; or absent */
  float *biases;                 /* (B chunks,H,2,N): as of kr_mamba3_bwd_params, of KR_MAMBA3_INNER_TOKENS */
  int32_t M, packet_bytes, n_parts;
} kr_mamba3_inner_params;

#endif

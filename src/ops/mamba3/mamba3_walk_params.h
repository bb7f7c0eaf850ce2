/* mamba3_walk_params.h: parameters of the kernels that scan Mamba 3 on warpgroups without rows in memory
 * (mamba3_walk.cu, mamba3_packets.cu), and what a packet is. */
#ifndef KR_MAMBA3_WALK_PARAMS_H
#define KR_MAMBA3_WALK_PARAMS_H

#include "../ssd/ssd_hopper_params.h"
#include "mamba3_params.h"

#define KR_MAMBA3_WALK_N 128    /* most states */
#define KR_MAMBA3_WALK_THREADS 128 /* of a warpgroup */
/* Bytes of a block's shared memory besides rotations, from a multiple of 1024 on. */
#define KR_MAMBA3_WALK_BESIDE 102400
#define KR_MAMBA3_PACKET_THREADS 128
#define KR_MAMBA3_PACKET_HEADS 8 /* most heads of a block that makes packets */

/* All that a head's chunk of 64 tokens needs besides x, z, B and C, (B,H,chunks): its step sizes, then its rotations,
 * cosine and sine in float16, of pairs up to a multiple of 32. A lane of the walk has of every eight pairs two of two
 * tokens: [m / 8][lane][m / 4 % 2][second token]; lane: 32 (t / 16) + 4 (t % 8) + m % 4, second token: t / 8 % 2. */
#define KR_MAMBA3_STEPS_BYTES 1408
#define KR_MAMBA3_TURNS_BYTES(M) (((M) + 31) / 32 * 8192)

/* Decays and weights of a chunk's tokens, as ssd_steps.cuh has them. a: log2 of the decay since the chunk began; from:
 * a less log2 of the weight with which a token's key reaches later ones, w; left: the part of w that is left where the
 * chunk ends; reach: of the state before the chunk; own: weight of a token's key for its own output. */
typedef struct kr_mamba3_chunk_steps {
  float a[KR_MAMBA3_CHUNK], from[KR_MAMBA3_CHUNK], left[KR_MAMBA3_CHUNK], reach[KR_MAMBA3_CHUNK], own[KR_MAMBA3_CHUNK];
  float keeps, none[31];
} kr_mamba3_chunk_steps;

/* A unit is a head of a batch row over all of time. All units in sequence, in chunks, are cut into ranges of equal
 * length, one per block, none shorter than a unit. f.n_spans: chunks; f.angles_before: sums of a chunk's turns, then
 * what is before it. For a gradient that follows (S and y): these and f.dots are left beside the output. For the
 * gradient without these (S): f.out is dy before the gate, and dz, f.q, f.k, f.dots and f.skips are left, and S. For
 * the walk back f.x is dy, and S are the gradients of the states after chunks; with y f.x is dout, and dy and dz are
 * left. */
typedef struct kr_mamba3_walk_params {
  kr_ssd_map x, z, Bmat, Cmat, q, k, dout; /* of the walk back: q is dy's, k is dz's */
  kr_mamba3_params f;
  float *states;      /* [block]: a state handed to the next block, in a warpgroup's fragments */
  int32_t *ready;     /* [block] */
  int32_t *spoilt;    /* (B,H): heads to be computed again token by token, since NaN or infinity was met */
  kr_view dz;         /* of the gradient, or absent */
  void *S;            /* (B,chunks,H): states before chunks as operands, of S_bytes each */
  unsigned char *y;   /* (B,chunks,H): output before the gate, a tile each; or absent */
  int32_t S_bytes, packet_heads;
  int32_t keeps_rows; /* of the gradient: f.q and f.k */
  int32_t n_blocks, per_block, longer; /* a range has per_block chunks, of the first `longer` blocks one more */
} kr_mamba3_walk_params;

#endif

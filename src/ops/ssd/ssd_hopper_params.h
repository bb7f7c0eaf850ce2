/* ssd_hopper_params.h: parameters of the SSD's warpgroup kernels (ssd_hopper.cu): boxes of x, B and C, and the work
 * partition. A unit is a few heads' blocks of 64 channels, of one group and batch row, over all of time. All units in
 * sequence, in chunks of KR_SSD_CHUNK tokens, are cut into ranges of equal length, one per block. */
#ifndef KR_SSD_HOPPER_PARAMS_H
#define KR_SSD_HOPPER_PARAMS_H

#include "ssd_params.h"

/* For a kernel of up to N states: heads per block, one warpgroup each; chunks of C in shared memory (else two). */
#define KR_SSD_HOPPER_HEADS(N) ((N) > 128 ? 2 : 3)
#define KR_SSD_HOPPER_THREADS(N) (128 * (KR_SSD_HOPPER_HEADS(N) + 1))
#define KR_SSD_HOPPER_C_STAGES(N) ((N) > 128 ? 1 : 2)
#define KR_SSD_HOPPER_TILE (KR_SSD_CHUNK * 128) /* bytes of 64 tokens or channels by 64 columns */
/* Tiles in shared memory: with output C, two stages of B and x, states, outputs; for state passing, more such
 * stages. */
#define KR_SSD_HOPPER_TILES(N, outputs) ((N) > 128 ? 26 : (N) > 64 ? (outputs) ? 23 : 26 : (outputs) ? 16 : 19)
#define KR_SSD_HOPPER_STEPS_STAGES 4
#define KR_SSD_HOPPER_STEPS_BYTES (5 * 4 * KR_SSD_CHUNK + 16)
/* Remaining bytes: step sizes, D of all heads, barriers. */
#define KR_SSD_HOPPER_BESIDE(N)                                                                             \
  ((KR_SSD_HOPPER_HEADS(N) * (KR_SSD_HOPPER_STEPS_STAGES * KR_SSD_HOPPER_STEPS_BYTES + KR_SSD_P * 4) + 384 + \
    1023) /                                                                                                  \
   1024 * 1024)
#define KR_SSD_HOPPER_SHARED(N, outputs) \
  (1024u + KR_SSD_HOPPER_BESIDE(N) + KR_SSD_HOPPER_TILE * KR_SSD_HOPPER_TILES(N, outputs))

/* A driver's tensor map: (channel, token, head, batch). */
typedef struct __attribute__((aligned(64))) kr_ssd_map {
  uint64_t words[16];
} kr_ssd_map;

typedef struct kr_ssd_hopper_params {
  kr_ssd_map x, Bmat, Cmat, dy, z;
  kr_ssd_params p;
  int32_t n_ways, back; /* state before each chunk and, backwards (with dy and C for x and B), state gradient after
                           each: 2: the second half of the units; back: all of them */
  int32_t n_units, per_group, n_groups,
      n_heads; /* per_group: units per group; n_heads: heads per unit, at most those of a block */
  int32_t n_chunks, n_blocks, per_block,
      longer;     /* a block takes per_block chunks of the sequence of all units, the first `longer` blocks one more */
  int32_t adds; /* accumulates output and spoilt flags: for states beyond what a kernel takes, in the parts after the
                   first */
  int32_t joins;  /* 1: pieces start from the end states of those before; 0: from the state the previous block hands
                     over */
  float *states;  /* [piece or block][head of the block][fragment of a warpgroup's state] */
  float *initial; /* [unit][head of the block][fragment], or absent */
  kr_ssd_tensor dfinal, dinitial; /* counterparts of p.initial and p.final in the backward direction */
  float *decays;  /* [piece][head of the block]: as segment_decay */
  void *S, *M;    /* (B,H,blocks of channels,chunks) of states in shared-memory layout, and of gradients; S with output:
                     or absent */
  int32_t *ready; /* [block][head of the block] */
} kr_ssd_hopper_params;

#endif

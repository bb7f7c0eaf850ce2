/* ssd_hopper_plan.h: what the host tells the SSD's kernels for warpgroups (ssd_hopper.cu): boxes of x, B and C, and how
 * the work is cut. A unit is a few heads' blocks of 64 channels, of one group and batch row, over all of time. Units
 * after one another, chunk by chunk of KR_SSD_CHUNK tokens, are cut into ranges of the same length, one a block. */
#ifndef KR_SSD_HOPPER_PLAN_H
#define KR_SSD_HOPPER_PLAN_H

#include "ssd_plan.h"

/* Of a kernel for up to N states: heads of a block, each with a warpgroup; chunks of C in shared memory (else two). */
#define KR_SSD_HOPPER_HEADS(N) ((N) > 128 ? 2 : 3)
#define KR_SSD_HOPPER_THREADS(N) (128 * (KR_SSD_HOPPER_HEADS(N) + 1))
#define KR_SSD_HOPPER_C_STAGES(N) ((N) > 128 ? 1 : 2)
#define KR_SSD_HOPPER_TILE (KR_SSD_CHUNK * 128) /* bytes of 64 tokens or channels by 64 columns */
/* Tiles in shared memory: of the kernel with output C, two stages of B and x, states, outputs; of walks that leave
 * states more of such stages. */
#define KR_SSD_HOPPER_TILES(N, outputs) ((N) > 128 ? 26 : (N) > 64 ? (outputs) ? 23 : 26 : (outputs) ? 16 : 19)
#define KR_SSD_HOPPER_STEPS_STAGES 4
#define KR_SSD_HOPPER_STEPS_BYTES (5 * 4 * KR_SSD_CHUNK + 16)
/* Bytes beside them: step sizes, D of all heads, barriers. */
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

typedef struct kr_ssd_hopper_plan {
  kr_ssd_map x, Bmat, Cmat, dy;
  kr_ssd_plan p;
  int32_t n_ways, back; /* states before chunks and, on the way back, which takes dy and C as the other takes x and B,
                           their gradients after chunks: 2: the second half of the units; back: all of them */
  int32_t n_units, per_group, n_groups,
      n_heads; /* per_group: units of a group; n_heads: of a unit, at most those of a block */
  int32_t n_chunks, n_blocks, per_block,
      longer;     /* a block takes per_block chunks of those of all units, the first `longer` blocks one more */
  int32_t adds; /* output, and heads told spoilt, to what is there: of more states than a kernel takes, those behind the
                   first */
  int32_t joins;  /* 1: pieces begin with what the ends of those before leave; 0: with what the block before hands
                     over */
  float *states;  /* [piece or block][head of the block][fragment of a warpgroup's state] */
  float *initial; /* [unit][head of the block][fragment], or absent */
  kr_ssd_tensor dfinal, dinitial; /* what p.initial and p.final are for the way back */
  float *decays;  /* [piece][head of the block]: as segment_decay */
  void *S, *M;    /* (B,H,blocks of channels,chunks) of states as they lie in shared memory, and of gradients */
  int32_t *ready; /* [block][head of the block] */
} kr_ssd_hopper_plan;

#endif

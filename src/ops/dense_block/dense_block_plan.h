/* dense_block_plan.h: what the kernel of dense_block.cu takes; host and device read the same struct. */
#ifndef KR_DENSE_BLOCK_PLAN_H
#define KR_DENSE_BLOCK_PLAN_H

#include <stdint.h>

#include "tile64.h"

enum { KR_DENSE_BLOCK_LAYERS = 16 };

/* One layer, its norm left to do. Maps are (B,H,W,C) without gaps. A block has KR_TILE_SIDE positions along H of as
 * many along W; grid: x W, y H, z B. */
typedef struct kr_dense_block_plan {
  const float *sources[KR_DENSE_BLOCK_LAYERS]; /* newest first */
  const float *taps, *taps_bias; /* from the first source's on: 9 a channel, `tap` apart, channels side by side */
  const void *weight;            /* so; float32: outputs of an input side by side; float16: inputs of an output */
  float *out, *partial; /* tile_norm.h */
  int32_t H, W, C, n_sources, dilation, one_sided, tap, weight_row;
} kr_dense_block_plan;

#endif

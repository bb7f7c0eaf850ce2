/* dense_block_params.h: kernel parameters of dense_block.cu, the same struct for host and device. */
#ifndef KR_DENSE_BLOCK_PARAMS_H
#define KR_DENSE_BLOCK_PARAMS_H

#include <stdint.h>

#include "tile64.h"

enum { KR_DENSE_BLOCK_LAYERS = 16 };

/* One layer before its norm. Maps are contiguous (B,H,W,C). A block has KR_TILE_SIDE positions along H of as many along
 * W; grid: x W, y H, z B. */
typedef struct kr_dense_block_params {
  const float *sources[KR_DENSE_BLOCK_LAYERS]; /* newest first */
  const float *taps, *taps_bias; /* from the first source: 9 per channel, `tap` apart, channels contiguous */
  const void *weight;            /* likewise; float32: contiguous outputs per input; float16: inputs per output */
  float *out, *partial; /* tile_norm.h */
  int32_t H, W, C, n_sources, dilation, one_sided, tap, weight_row;
} kr_dense_block_params;

#endif

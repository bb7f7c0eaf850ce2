/* filter_bank_params.h: kernel parameters of filter_bank.cu, the same struct for host and device. */
#ifndef KR_FILTER_BANK_PARAMS_H
#define KR_FILTER_BANK_PARAMS_H

#include <stdint.h>

#include "tile64.h"

enum { KR_FILTER_BANK_CHUNKS = 8 };

/* A block has KR_TILE_SIDE positions along H of as many along W; grid: x W, y H, z B. Strides in elements; channels are
 * contiguous, and rows of out, residual and skip evenly spaced, `row` apart. */
typedef struct kr_filter_bank_params {
  const float *x, *taps, *taps_bias, *gate_taps, *gate_bias, *weight_bias, *out_bias, *residual, *skip, *skip_scale;
  const void *weight, *out_weight; /* float32: contiguous outputs per input; float16: inputs per output */
  float *out;
  int64_t x_b, x_h;
  int32_t H, W, C, n_chunks, one_sided;
  int32_t x_w, tap, gate_tap, weight_row, out_weight_row, row;
  int32_t K[KR_FILTER_BANK_CHUNKS];
} kr_filter_bank_params;

#endif

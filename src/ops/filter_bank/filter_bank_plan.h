/* filter_bank_plan.h: what the kernel of filter_bank.cu takes; host and device read the same struct. */
#ifndef KR_FILTER_BANK_PLAN_H
#define KR_FILTER_BANK_PLAN_H

#include <stdint.h>

#include "tile64.h"

enum { KR_FILTER_BANK_CHUNKS = 8 };

/* A block has KR_TILE_SIDE positions along H of as many along W; grid: x W, y H, z B. Strides in elements; channels lie
 * side by side, and rows of out, residual and skip one behind the other, `row` apart. */
typedef struct kr_filter_bank_plan {
  const float *x, *taps, *taps_bias, *gate_taps, *gate_bias, *weight_bias, *out_bias, *residual, *skip, *skip_scale;
  const void *weight, *out_weight; /* float32: outputs of an input side by side; float16: inputs of an output */
  float *out;
  int64_t x_b, x_h;
  int32_t H, W, C, n_chunks, one_sided;
  int32_t x_w, tap, gate_tap, weight_row, out_weight_row, row;
  int32_t K[KR_FILTER_BANK_CHUNKS];
} kr_filter_bank_plan;

#endif

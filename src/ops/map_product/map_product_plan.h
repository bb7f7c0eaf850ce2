/* map_product_plan.h: what the kernels of map_product.cu take; host and device read the same struct. */
#ifndef KR_MAP_PRODUCT_PLAN_H
#define KR_MAP_PRODUCT_PLAN_H

#include <stdint.h>

#include "rows.h"
#include "tile64.h"

/* Outputs of which sixteen lanes that share a position keep all weights; a block's positions and threads. */
enum { KR_MAP_FEW = 4, KR_MAP_FEW_ROWS = 64, KR_MAP_FEW_THREADS = 128 };

/* A row is a position; rows lie one behind the other, in x and conv_out as in out, residual and skip. Grid: x tiles of
 * rows, y of columns, tiles_per_block of them by one block. */
typedef struct kr_map_product_plan {
  const float *x, *factors, *conv_weight, *conv_bias, *bias, *residual, *skip, *skip_scale;
  const void *weight; /* float32: outputs of an input side by side; float16: inputs of an output */
  float *out, *conv_out;
  int64_t n_rows, factors_b, factors_h, factors_w;
  kr_divisor W, item; /* positions along W; of an item */
  int32_t C, N, K, gate, silu_from; /* silu_from: N without */
  int32_t x_row, conv_row, out_row, weight_row, tiles_per_block;
  int32_t weight_output; /* few outputs: from one to the next; inputs are weight_row apart */
  float eps;
} kr_map_product_plan;

#endif

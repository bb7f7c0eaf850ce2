/* map_product_params.h: kernel parameters of map_product.cu, the same struct for host and device. */
#ifndef KR_MAP_PRODUCT_PARAMS_H
#define KR_MAP_PRODUCT_PARAMS_H

#include <stdint.h>

#include "rows.h"
#include "tile64.h"

/* Few outputs: all weights fit the sixteen lanes that share a position; positions and threads per block. */
enum { KR_MAP_FEW = 4, KR_MAP_FEW_ROWS = 64, KR_MAP_FEW_THREADS = 128 };

/* A row is a position; rows are evenly spaced, in x and conv_out as in out, residual and skip. Grid: x tiles of rows, y
 * of columns, tiles_per_block of them per block. */
typedef struct kr_map_product_params {
  const float *x, *factors, *conv_weight, *conv_bias, *bias, *residual, *skip, *skip_scale;
  const void *weight; /* float32: contiguous outputs per input; float16: inputs per output */
  float *out, *conv_out;
  int64_t n_rows, factors_b, factors_h, factors_w;
  kr_divisor W, item; /* positions along W; per item */
  int32_t C, N, K, gate, silu_from; /* silu_from: N if unused */
  int32_t x_row, conv_row, out_row, weight_row, tiles_per_block;
  int32_t weight_output; /* few outputs: output stride; inputs are weight_row apart */
  float eps;
} kr_map_product_params;

#endif

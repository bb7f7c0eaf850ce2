/* conv_norm_params.h: kernel parameters of conv_norm.cu, the same struct for host and device. */
#ifndef KR_CONV_NORM_PARAMS_H
#define KR_CONV_NORM_PARAMS_H

#include <stdint.h>

#include "rows.h"
#include "tile64.h"

enum { KR_CONV_NORM_TAPS = 16 };

/* The outputs that share taps: all, or for a transposed convolution every S-th. Rows are their positions, h by h; for
 * row (h, w) tap k reads x at h step + offset[k] and the output is at h out_step + out_offset. Grid: x tiles of an
 * item's rows, y of columns, z items. */
typedef struct kr_conv_norm_params {
  const float *x, *weight; /* contiguous outputs per input, inputs weight_row apart */
  float *out, *partial;    /* tile_norm.h */
  int64_t rows_per_item, x_b, x_h, tap_at[KR_CONV_NORM_TAPS]; /* tap_at: offset of a tap's weights */
  kr_divisor W;
  int32_t H, OH, C, N, n_taps, step, offset[KR_CONV_NORM_TAPS], out_step, out_offset;
  int32_t x_w, weight_row, n_tiles, first_tile; /* tiles per item, over all its outputs */
} kr_conv_norm_params;

#endif

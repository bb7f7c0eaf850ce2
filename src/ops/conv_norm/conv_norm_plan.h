/* conv_norm_plan.h: what the kernels of conv_norm.cu take; host and device read the same struct. */
#ifndef KR_CONV_NORM_PLAN_H
#define KR_CONV_NORM_PLAN_H

#include <stdint.h>

#include "rows.h"
#include "tile64.h"

enum { KR_CONV_NORM_TAPS = 16 };

/* The outputs that take the same taps: all, or of a transposed convolution those S apart. Rows are their positions, h
 * by h; of row (h, w) tap k reads x at h step + offset[k] and gives the output at h out_step + out_offset. Grid: x
 * tiles of an item's rows, y of columns, z items. */
typedef struct kr_conv_norm_plan {
  const float *x, *weight; /* outputs of an input side by side, inputs weight_row apart */
  float *out, *partial;    /* tile_norm.h */
  int64_t rows_per_item, x_b, x_h, tap_at[KR_CONV_NORM_TAPS]; /* where a tap's weights begin */
  kr_divisor W;
  int32_t H, OH, C, N, n_taps, step, offset[KR_CONV_NORM_TAPS], out_step, out_offset;
  int32_t x_w, weight_row, n_tiles, first_tile; /* tiles of an item, of all its outputs */
} kr_conv_norm_plan;

#endif

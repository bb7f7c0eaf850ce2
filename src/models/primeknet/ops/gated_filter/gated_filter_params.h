/* gated_filter_params.h: kernel parameters of gated_filter.cu, the same struct for host and device. */
#ifndef KR_GATED_FILTER_PARAMS_H
#define KR_GATED_FILTER_PARAMS_H

#include <stdint.h>

enum { KR_GATED_FILTER_THREADS = 160 }; /* at most: as many positions along H as fit, by groups of four channels */

/* Grid: x positions along W, y groups along H, z B. Strides in floats; contiguous channels. */
typedef struct kr_gated_filter_params {
  const float *x, *weight, *bias;
  float *out;
  int64_t x_b, x_h, out_b, out_h;
  int32_t H, C, K, P, x_w, out_w, tap; /* tap: weight's tap stride */
} kr_gated_filter_params;

#endif

/* mean_product_params.h: kernel parameters of mean_product.cu, the same struct for host and device. */
#ifndef KR_MEAN_PRODUCT_PARAMS_H
#define KR_MEAN_PRODUCT_PARAMS_H

#include <stdint.h>

#include "rows.h"

/* One block per (i, j). Strides in floats; contiguous channels, and contiguous outputs per input. */
typedef struct kr_mean_product_params {
  const float *x, *weight, *bias;
  float *out; /* contiguous (I,J,C) */
  int64_t x_i, x_j, x_s;
  int32_t S, C, weight_in; /* weight_in: input stride */
  kr_divisor J;
} kr_mean_product_params;

#endif

/* mean_product_plan.h: what the kernel of mean_product.cu takes; host and device read the same struct. */
#ifndef KR_MEAN_PRODUCT_PLAN_H
#define KR_MEAN_PRODUCT_PLAN_H

#include <stdint.h>

#include "rows.h"

/* A block for each (i, j). Strides in floats; channels, and outputs of an input, lie side by side. */
typedef struct kr_mean_product_plan {
  const float *x, *weight, *bias;
  float *out; /* (I,J,C) without gaps */
  int64_t x_i, x_j, x_s;
  int32_t S, C, weight_in; /* weight_in: from input to input */
  kr_divisor J;
} kr_mean_product_plan;

#endif

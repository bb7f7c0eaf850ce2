/* planted.h: the planted kernels' argument, for device and host. */
#ifndef KR_PLANTED_H
#define KR_PLANTED_H
#include <stdint.h>
typedef struct kr_planted_plan {
  const float *x;
  float *out;
  int32_t n;
} kr_planted_plan;
#endif

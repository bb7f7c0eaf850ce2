/* planted.h: the planted kernels' argument, for device and host. */
#ifndef KR_PLANTED_H
#define KR_PLANTED_H
#include <stdint.h>
enum { KR_PLANTED_BLOCKS = 3, KR_PLANTED_WORDS = 512 };
typedef struct kr_planted_params {
  const float *x;
  float *out;
  int32_t n;
  uint64_t *words; /* KR_PLANTED_WORDS zeros, for kernels of several blocks */
} kr_planted_params;
#endif

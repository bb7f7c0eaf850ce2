/* limits_params.h: the arguments of limits.cu. */
#ifndef KR_LIMITS_PARAMS_H
#define KR_LIMITS_PARAMS_H

#include <stdint.h>

/* Operations of a thread and round: chains times steps. */
enum {
  KR_LIMIT_THREADS = 256,
  KR_LIMIT_CHAINS = 8,
  KR_LIMIT_STEPS = 8
};

typedef struct kr_limit_params {
  float *out; /* a value for each thread */
  float factor, summand;
  int32_t rounds;
  int32_t reserved;
} kr_limit_params;

#endif

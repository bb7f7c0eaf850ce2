/* limits_plan.h: the arguments of limits.cu. */
#ifndef KR_LIMITS_PLAN_H
#define KR_LIMITS_PLAN_H

#include <stdint.h>

enum {
  KR_LIMIT_THREADS = 256,
  KR_LIMIT_CHAINS = 8,
  KR_LIMIT_STEPS = 8
}; /* operations of a thread and round: chains times steps */

typedef struct kr_limit_plan {
  float *out; /* a value for each thread */
  float factor, summand;
  int32_t rounds;
  int32_t reserved;
} kr_limit_plan;

#endif

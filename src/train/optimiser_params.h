/* optimiser_params.h: the arguments of the kernels in optimiser.cu; shared by host and device. */
#ifndef KR_OPTIMISER_PARAMS_H
#define KR_OPTIMISER_PARAMS_H

#include <stdint.h>

enum { KR_OPTIMISER_THREADS = 256, KR_OPTIMISER_PARTS = 256 };

typedef struct kr_optimiser_params {
  float *value, *m, *v, *average, *gradient, *total; /* average, total: may be NULL */
  double *squares; /* (KR_OPTIMISER_PARTS + 1): of the parts, then of all */
  int64_t n;
  float scale, keep, beta1, beta2, step, root, eps; /* as in parameters.c */
  float average_keep, average_take;
  float total_keep, by; /* total = total_keep total + gradient; gradient = total * by, if by is not 0 */
} kr_optimiser_params;

#endif

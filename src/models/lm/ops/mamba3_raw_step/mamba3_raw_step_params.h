/* mamba3_raw_step_params.h: parameters of the kernels of Mamba 3's step from in_proj's columns. */
#ifndef KR_MAMBA3_RAW_STEP_PARAMS_H
#define KR_MAMBA3_RAW_STEP_PARAMS_H

#include "lm_op_args.h"

#define KR_RAW_STEP_MOST_THREADS 512

typedef struct kr_mamba3_raw_step_params {
  kr_mamba3_raw_step_args a;
  int32_t H, P, N, M, heads, threads; /* heads: of a group */
  int32_t lanes;                      /* N / 4: those that share a channel, four states each */
} kr_mamba3_raw_step_params;

#endif

/* mamba3_raw_step_params.h: parameters of the kernels of Mamba 3's step from in_proj's columns. */
#ifndef KR_MAMBA3_RAW_STEP_PARAMS_H
#define KR_MAMBA3_RAW_STEP_PARAMS_H

#include "lm_op_args.h"

#define KR_RAW_STEP_MOST_THREADS 512 /* of a head */
#define KR_RAW_STEP_PART_THREADS 128 /* of a part of a head, and of a head where there are many */

typedef struct kr_mamba3_raw_step_params {
  kr_mamba3_raw_step_args a;
  int32_t H, P, N, M, heads, threads; /* heads: of a group */
  int32_t parts;                      /* of a head: the blocks of a cluster */
  int32_t lanes;                      /* N / 4: those that share a channel, four states each */
  float share;                        /* 1 / N */
} kr_mamba3_raw_step_params;

#endif

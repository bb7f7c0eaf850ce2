/* mamba3_raw_step_params.h: parameters of the kernels of Mamba 3's step from in_proj's columns. */
#ifndef KR_MAMBA3_RAW_STEP_PARAMS_H
#define KR_MAMBA3_RAW_STEP_PARAMS_H

#include "lm_op_args.h"
#include "rows.h"

#define KR_RAW_STEP_THREADS 128 /* of a block, at most */

typedef struct kr_mamba3_raw_step_params {
  kr_mamba3_raw_step_args a;
  kr_divisor H, heads, parts; /* heads: of a group; parts: blocks of a head */
  int32_t P, N, M, threads;
  int32_t lanes, lanes_shift; /* N / 4: those that share a channel, four states each */
  int32_t n_warps;            /* of a head's blocks together */
  float inverse_N, one; /* one: 1 */
} kr_mamba3_raw_step_params;

#endif

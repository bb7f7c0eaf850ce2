/* mamba3_step_params.h: parameters of the kernels of Mamba 3's step. */
#ifndef KR_MAMBA3_STEP_PARAMS_H
#define KR_MAMBA3_STEP_PARAMS_H

#include "op_args.h"

#define KR_MAMBA3_STEP_THREADS 256

typedef struct kr_mamba3_step_params {
  kr_mamba3_step_args a;
  int32_t lanes;  /* of a channel's states, four each: a power of two up to 32 */
  int32_t row_N, row_P; /* floats of rows in shared memory */
} kr_mamba3_step_params;

/* Of a block: keys before and now, queries, inputs before and now, and y of all ranks, the gate, cosines and sines. */
#define KR_MAMBA3_STEP_FLOATS(R, row_N, row_P) ((R) * (3 * (row_N) + 3 * (row_P)) + (row_P) + 2 * 256)

#endif

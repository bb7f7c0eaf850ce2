/* mamba3_decay_params.h: kernel parameters of mamba3_decay.cu, the same struct for host and device. */
#ifndef KR_MAMBA3_DECAY_PARAMS_H
#define KR_MAMBA3_DECAY_PARAMS_H

#include "op_args.h"
#include "rows.h"

/* Of the gradient: a block takes 32 heads, its warps rows in turn; parts of the rows, each with its own sums. */
enum { KR_DECAY_THREADS = 256, KR_DECAY_HEADS = 32, KR_DECAY_MOST_PARTS = 512 };

typedef struct kr_mamba3_decay_params {
  kr_mamba3_decay_args a;
  kr_divisor heads;
  uint32_t n_threads;
} kr_mamba3_decay_params;

typedef struct kr_mamba3_decay_bwd_params {
  kr_mamba3_decay_bwd_args a;
  float *partial; /* (n_parts, H), or NULL: no sums */
  int64_t rows;   /* of a part */
  int32_t n_parts, reserved;
} kr_mamba3_decay_bwd_params;

#endif

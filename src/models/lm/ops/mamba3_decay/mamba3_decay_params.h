/* mamba3_decay_params.h: kernel parameters of mamba3_decay.cu, the same struct for host and device. */
#ifndef KR_MAMBA3_DECAY_PARAMS_H
#define KR_MAMBA3_DECAY_PARAMS_H

#include "lm_op_args.h"
#include "rows.h"

enum { KR_DECAY_THREADS = 256 };

typedef struct kr_mamba3_decay_params {
  kr_mamba3_decay_args a;
  kr_divisor heads;
  uint32_t n_threads;
} kr_mamba3_decay_params;

#endif

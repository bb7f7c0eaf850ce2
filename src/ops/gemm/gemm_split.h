/* gemm_split.h: parameters of the kernels that split both factors of a product; the same for host and device. */
#ifndef KR_GEMM_SPLIT_H
#define KR_GEMM_SPLIT_H

#include "gemm_params.h"

typedef struct kr_split_factor {
  kr_split_params split;   /* unscale: one for each row; where K lies across rows, for each place along a row */
  uint32_t *largest;       /* bits of the largest magnitude, [batch][run of rows][line] */
  int32_t n_runs, run;     /* runs of `run` rows; n_runs 0: K lies along rows */
  int32_t log_warps, none; /* log2 of the warps that split a row along which K lies */
} kr_split_factor;

typedef struct kr_split_factors {
  kr_split_factor of[2];
  int32_t n_first, none; /* blocks of the first */
} kr_split_factors;

enum { KR_SPLIT_THREADS = 256, KR_SPLIT_COLUMNS = 128, KR_SPLIT_PIECES = 4 };

#endif

/* gemm_split.h: parameters of the kernels that split factors across whose rows K lies; the same for host and device. */
#ifndef KR_GEMM_SPLIT_H
#define KR_GEMM_SPLIT_H

#include "gemm_params.h"

/* Halves with a scale for each place along a row: split.unscale has one for each. */
typedef struct kr_split_across_params {
  kr_split_params split;
  uint32_t *largest;   /* bits of the largest magnitude, [batch][run of rows][line] */
  int32_t n_runs, run; /* runs of `run` rows; n_runs 0: K lies along rows, or the parts are not halves */
} kr_split_across_params;
enum { KR_SPLIT_COLUMNS = 128 };

#endif

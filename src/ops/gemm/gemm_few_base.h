/* gemm_few_base.h: parameters of the kernels for few rows on every GPU; one struct for host and device. */
#ifndef KR_GEMM_FEW_BASE_H
#define KR_GEMM_FEW_BASE_H

#include "gemm_params.h"

/* Columns of a warp; k of a warp's step; rows of a block. */
enum { KR_FEW_BASE_COLUMNS = 4, KR_FEW_BASE_RUN = 256, KR_FEW_BASE_ROWS = 4, KR_FEW_BASE_THREADS = 256 };

typedef struct kr_gemm_few_base_params {
  kr_gemm_params params;
  int32_t n_splits; /* warps that share K: 1, 2, 4 or 8 */
  int32_t n_chunks; /* blocks of KR_FEW_BASE_ROWS rows */
} kr_gemm_few_base_params;

#endif

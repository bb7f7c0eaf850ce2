/* gemm_long.h: what the device code of very many rows times a small matrix is told; host and device read the same. */
#ifndef KR_GEMM_LONG_H
#define KR_GEMM_LONG_H

#include "gemm_plan.h"

/* Tiles of KR_LONG_BM rows and all columns. */
enum { KR_LONG_BM = 64, KR_LONG_THREADS = 256, KR_LONG_MOST = 256 };

typedef struct kr_gemm_long_plan {
  kr_gemm_plan plan;
  int32_t n_tiles, n_blocks;
} kr_gemm_long_plan;

#endif

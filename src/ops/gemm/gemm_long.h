/* gemm_long.h: what the device code of very many rows times a small matrix is told, and of small products of very many
 * terms; host and device read the same. */
#ifndef KR_GEMM_LONG_H
#define KR_GEMM_LONG_H

#include "gemm_plan.h"

/* Tiles of KR_LONG_BM rows and all columns. */
enum { KR_LONG_BM = 64, KR_LONG_THREADS = 256, KR_LONG_MOST = 256 };

typedef struct kr_gemm_long_plan {
  kr_gemm_plan plan;
  int32_t n_tiles, n_blocks;
} kr_gemm_long_plan;

/* Products of many terms: of each row of K that a stage has KR_TERMS_PAD bytes more than the elements; 64 bytes of a
 * column of K a stage. */
enum { KR_TERMS_STAGES = 4, KR_TERMS_STAGE_BYTES = 64 };
#define KR_TERMS_PAD(element_bytes) ((element_bytes) == 4 ? 32 : 16)
#define KR_TERMS_SHARED_BYTES(M, N, element_bytes)                                     \
  ((uint32_t)(KR_TERMS_STAGES * (KR_TERMS_STAGE_BYTES / (element_bytes)) *             \
              (((M) + (N)) * (element_bytes) + 2 * KR_TERMS_PAD(element_bytes))))

#endif

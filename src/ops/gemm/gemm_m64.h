/* gemm_m64.h: parameters of the kernel for up to 64 rows; one struct for host and device. */
#ifndef KR_GEMM_M64_H
#define KR_GEMM_M64_H

#include "gemm_params.h"

/* A stage is 128 of K, of all rows and of TILE columns, in boxes of 64. One block per multiprocessor, to maximize bytes
 * in flight; of its shared memory some is left to blocks of the next kernel. */
enum {
  KR_SOME_ROWS = 64,
  KR_SOME_THREADS = 160,
  KR_SOME_MOST_SPLITS = 8,
  KR_SOME_BOXES = 2,
  KR_SOME_K = 128,
  KR_SOME_MOST_TILE = 96
};
#define KR_SOME_SUMS_ROW(TILE) ((TILE) + 4) /* in floats */
#define KR_SOME_BOX_BYTES(TILE) (((TILE) + KR_SOME_ROWS) * 128)
#define KR_SOME_STAGE_BYTES(TILE) (KR_SOME_BOXES * KR_SOME_BOX_BYTES(TILE))
#define KR_SOME_REST_BYTES(TILE) (KR_SOME_ROWS * KR_SOME_SUMS_ROW(TILE) * 4 + 1024 + 256)
#define KR_SOME_SHARED_BYTES(TILE, n_stages) ((n_stages) * KR_SOME_STAGE_BYTES(TILE) + KR_SOME_REST_BYTES(TILE))
#define KR_SOME_MOST_STAGES(TILE) ((223 * 1024 - KR_SOME_REST_BYTES(TILE)) / KR_SOME_STAGE_BYTES(TILE))

typedef struct kr_gemm_m64_params {
  kr_gemm_map weights, rows;
  int32_t tile;               /* columns per block */
  int32_t n_steps, n_splits;  /* stages of K, dealt to the n_splits blocks of a cluster, a power of two */
  int32_t n_stages;           /* in the ring; one suffices if a block has no more */
  int32_t is_plain, is_whole; /* is_plain: out has packs of the factors' type, and nothing is added; is_whole: the same
                               * or float32, and K is not split; only then, and of KR_SOME_MOST_TILE columns, may
                               * there be more tiles than blocks */
  void *out;
  int64_t out_row;
  kr_gemm_params params;
} kr_gemm_m64_params;

#endif

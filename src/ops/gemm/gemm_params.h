/* gemm_params.h: kernel parameters of products; the same structs for host and device. */
#ifndef KR_GEMM_PARAMS_H
#define KR_GEMM_PARAMS_H

#include <stdint.h>

#include "rows.h"

/* A batch of P matrices; strides in elements. */
typedef struct kr_gemm_matrix {
  void *data;                 /* NULL: absent */
  int64_t row, column, batch; /* of A: m and k; of B: k and n; of out: m and n; of a vector: `row` only */
  int32_t dtype, packs;       /* packs: 16-byte accesses along the contiguous dimension are aligned */
} kr_gemm_matrix;

typedef struct kr_gemm_params {
  kr_gemm_matrix A, B, B2, out, residual, bias, bias2, row_scale;
  float *partial; /* split-K partial sums, [split][batch][M][partial_row] */
  int64_t partial_row;
  int32_t M, N, K, P;
  int32_t n_m, n_n, group; /* tiles of the result, in groups of `group` tile rows for L2 reuse */
  kr_divisor by_tiles, by_P, by_group, by_rows,
      by_last_rows;          /* tiles of a product; products; tiles of a group; rows of a group and of the last */
  int32_t n_splits, k_split; /* k_split: k per split, a multiple of the stage's */
  int32_t sum_lanes;         /* threads that reduce the parts of eight columns: 1, 4 or 32 */
  int32_t activation;
  float scale;
} kr_gemm_params;

/* A driver's tensor map. */
typedef struct __attribute__((aligned(64))) kr_gemm_map {
  uint64_t words[16];
} kr_gemm_map;

typedef struct kr_gemm_hopper_params {
  kr_gemm_map A, B, B2, out; /* out: only if of 16 bits */
  kr_gemm_params params;
  const float *unscale_m, *unscale_n; /* of rows of A and columns of B in halves, or absent; batch after batch */
} kr_gemm_hopper_params;

/* Tiles of 128 x BN; a stage is 64 of K. */
enum { KR_HOPPER_BM = 128, KR_HOPPER_BK = 64, KR_HOPPER_THREADS = 384, KR_HOPPER_SLACK_BYTES = 1024 + 2048 + 256 };
#define KR_HOPPER_STAGES(BN) ((BN) == 256 ? 3 : (BN) == 192 ? 4 : (BN) == 128 ? 5 : 6)
#define KR_HOPPER_SHARED_BYTES(BN) \
  (KR_HOPPER_STAGES(BN) * (KR_HOPPER_BM + (BN)) * 128 + KR_HOPPER_BM * (BN) * 2 + KR_HOPPER_SLACK_BYTES)

/* Float32 factors as two float16 parts each, the second this much too large; tiles of 128 x 128. */
enum { KR_N_HALVES = 2, KR_HOPPER_HALVES_BN = 128, KR_HOPPER_HALVES_STAGES = 3 };
enum { KR_HOPPER_TF32_BN = 256 }; /* columns of a tile of factors in one such part */
#define KR_HALVES_APART 2048.0f
#define KR_HOPPER_HALVES_SHARED_BYTES \
  (KR_HOPPER_HALVES_STAGES * KR_N_HALVES * (KR_HOPPER_BM + KR_HOPPER_HALVES_BN) * 128 + KR_HOPPER_SLACK_BYTES)

/* A float32 matrix becomes two float16 ones or (n_parts 1) the first of them, a bfloat16 one a single one: batch p of
 * part i is batch i P + p of `to`, with the same contiguous dimension, rows (across) of `line` elements. */
typedef struct kr_split_params {
  const void *from;
  uint16_t *to;
  int64_t from_across, from_along, from_batch; /* strides in elements */
  int64_t line;                                /* a multiple of eight */
  float *unscale;                              /* one over the scales, batch after batch */
  int32_t n_along, n_across, P, packs, n_parts, dtype; /* dtype: of from */
} kr_split_params;

/* Tiles of 128 x BN by BN threads; a stage is 64 bytes of K. */
enum { KR_AMPERE_BM = 128, KR_AMPERE_K_BYTES = 64, KR_AMPERE_STAGES = 4 };
#define KR_AMPERE_SHARED_BYTES(BN, STAGES) ((uint32_t)((STAGES) * (KR_AMPERE_BM + (BN)) * KR_AMPERE_K_BYTES))
#define KR_TURING_STAGES 2 /* one in shared memory, one on its way there */
enum { KR_FEW_ROWS = 16, KR_FEW_COLUMNS = 16, KR_FEW_THREADS = 256 };
enum { KR_BASE_BM = 128, KR_BASE_BN = 128, KR_BASE_BK = 16, KR_BASE_THREADS = 128, KR_SUM_THREADS = 128 };

#endif

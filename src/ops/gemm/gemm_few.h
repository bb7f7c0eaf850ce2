/* gemm_few.h: what the device code of a few rows times weights is told; host and device read the same struct. */
#ifndef KR_GEMM_FEW_H
#define KR_GEMM_FEW_H

#include "gemm_plan.h"
#include "row_lanes.h"

/* Columns whose weights a warp reads together; their k at a time; warps of a block at most, and rows. */
enum { KR_FEW_GROUP = 4, KR_FEW_RUN = 256, KR_FEW_MOST_WARPS = 10, KR_FEW_LANES_ROWS = 2 };

/* First what every call needs: the first use of 64 bytes of parameters costs a kernel as much as memory does. */
typedef struct kr_few_plan {
  const void *A, *B, *B2; /* A NULL: zeros, to which a norm adds */
  void *out;
  int64_t A_row, B_column, B2_column, out_row;
  const float *added; /* with is_plain: a residual, or NULL */
  int64_t added_row;
  int32_t M, N, K, P, n_splits, n_groups; /* n_splits: warps that share a K; n_groups: of them, in a block */
  int32_t activation, is_plain; /* is_plain: nothing but `added` is, out (float32, or the factors' type) has packs */
  float scale;
  int32_t out_dtype, state_ahead; /* state_ahead: KR_CALL_STATE_AHEAD */
  kr_normed norm; /* of norm_gemm */
  kr_conv_step conv;
  kr_gemm_plan plan; /* else, and where P > 1 */
  int32_t n_fours; /* of columns of a warp, as the kernel has it */
} kr_few_plan;

#endif

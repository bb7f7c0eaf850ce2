/* gemm_m16.h: parameters of the kernels for few rows; one struct for host and device. */
#ifndef KR_GEMM_M16_H
#define KR_GEMM_M16_H

#include "gemm_params.h"
#include "row_lanes.h"

/* Columns whose weights a warp loads together; k per step; most warps per block; most rows. */
enum { KR_FEW_GROUP = 4, KR_FEW_RUN = 256, KR_FEW_MOST_WARPS = 10, KR_FEW_LANES_ROWS = 2 };
/* Most warps of a gated product with a norm: its registers leave four such blocks a multiprocessor, of float32 two. */
enum { KR_FEW_GATED_WARPS = 8 };
/* The same where a warp has two runs: five such blocks. */
enum { KR_FEW_GATED_DEEP_WARPS = 4 };

/* Fields that every call needs come first: the first use of 64 parameter bytes costs a memory latency. */
typedef struct kr_gemm_m16_params {
  const void *A, *B, *B2; /* A NULL: zeros, to which a norm adds */
  void *out;
  int64_t A_row, B_column, B2_column, out_row;
  const float *added; /* with is_plain: a residual, or NULL */
  int64_t added_row;
  int32_t M, N, K, P, n_splits, n_groups; /* n_splits: warps sharing K; n_groups: such groups per block */
  int32_t activation, is_plain; /* is_plain: only `added` is added, out (float32 or the factors' type) has packs */
  float scale;
  int32_t out_dtype, state_ahead; /* state_ahead: KR_CALL_STATE_PDL */
  kr_normed norm; /* of norm_gemm */
  kr_conv_step conv;
  kr_gemm_params params; /* otherwise, and where P > 1 */
  int32_t n_fours; /* groups of four columns per warp in the kernel */
} kr_gemm_m16_params;

#endif

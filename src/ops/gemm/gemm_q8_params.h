/* gemm_q8_params.h: parameters of the kernels for one or two rows times 8-bit weights; one struct for host and device.
 */
#ifndef KR_GEMM_Q8_PARAMS_H
#define KR_GEMM_Q8_PARAMS_H

#include <stdint.h>

#include "row_lanes.h"

/* Outputs whose weights a warp loads together; k per step; most warps per block; most rows. */
enum { KR_Q8_GROUP = 4, KR_Q8_WIDE = 8, KR_Q8_RUN = 512, KR_Q8_MOST_WARPS = 10, KR_Q8_ROWS = 2 };

typedef struct kr_q8_params {
  const void *A, *qweight, *scales, *bias;
  void *out;
  int64_t A_row, qweight_row, scales_row, out_row, out_column, bias_step; /* qweight_row: in bytes */
  int32_t M, N, K, n_splits, n_groups; /* n_splits: warps sharing K; n_groups: such groups per block */
  int32_t out_dtype, bias_dtype;
  int32_t scale_packs; /* groups of eight scales are aligned */
  int32_t state_ahead; /* KR_CALL_STATE_PDL */
  kr_normed norm;      /* of norm_gemm, like the conv; A NULL: zeros, to which the norm adds */
  kr_conv_step conv;
} kr_q8_params;

#endif

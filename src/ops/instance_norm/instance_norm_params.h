/* instance_norm_params.h: kernel parameters of instance_norm.cu, the same structs for host and device. */
#ifndef KR_INSTANCE_NORM_PARAMS_H
#define KR_INSTANCE_NORM_PARAMS_H

#include "op_args.h"

enum { KR_MIDDLE_THREADS = 256, KR_MIDDLE_PARTS = 128, KR_MIDDLE_SUMS = 3 };

/* Over the middle of (B,S,C). `lanes` adjacent threads (a power of two up to 32) take as many channels, the block's
 * others further rows. */
typedef struct kr_middle_params {
  kr_view x, weight, bias, slope, out; /* out: or dx */
  kr_view dout, dweight, dbias, dslope;
  float *partial; /* (B, n_parts, 3, C): shifted sums, or the gradient's sums */
  float *stats;   /* (B, 4, C): mean, 1 / deviation; then the means of dz and dz xhat */
  int64_t B, S, C, rows; /* rows per part */
  float eps, inverse_S;
  uint32_t lanes, n_parts, n_channels; /* blocks along C */
  int32_t kind;   /* pooling: KRAIT_POOL_SUM, KRAIT_POOL_MAX or 0 */
} kr_middle_params;

#endif

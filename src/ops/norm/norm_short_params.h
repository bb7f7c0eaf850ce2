/* norm_short_params.h: kernel parameters of norm_short.cu; host and device share the struct. */
#ifndef KR_NORM_SHORT_PARAMS_H
#define KR_NORM_SHORT_PARAMS_H

#include "op_args.h"

enum { KR_SHORT_THREADS = 256, KR_SHORT_ROWS = 4, KR_SHORT_PARTS = 1024, KR_SHORT_MOST = 128 };

/* Rows of M = 4 lanes features, all of one type. */
typedef struct kr_norm_short_params {
  const void *x, *dout, *second; /* second: gradient of residual_out, or NULL; dx may alias it */
  const float *weight, *bias;    /* may be NULL */
  void *out;                     /* or dx; may be NULL */
  float *partial;                /* (n_parts, 2, M) */
  kr_view dweight, dbias;
  int64_t R, x_row, out_row, dout_row, second_row, rows; /* rows: per part, a multiple of a block's rows */
  int32_t M, lanes, n_parts, rms;
  float eps, inverse_M;
} kr_norm_short_params;

#endif

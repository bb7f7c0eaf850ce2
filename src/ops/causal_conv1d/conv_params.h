/* conv_params.h: kernel parameters of the convolution. Tensors are in scan order (rows.h): a reversed convolution is
 * the forward one on flipped views. */
#ifndef KR_CONV_PARAMS_H
#define KR_CONV_PARAMS_H

#include "rows.h"

enum {
  KR_CONV_TAPS = 4,
  KR_CONV_THREADS = 256,
  KR_CONV_FAR_THREADS = 128 /* forward, channels-last: evenly many per multiprocessor */,
  KR_CONV_WALK = 128,
  KR_CONV_MOST_TAPS = 128,
  KR_CONV_FEW_PARTS = 16,
  KR_CONV_RUN = 16 /* forward, channels-last: steps per thread */,
  KR_CONV_AHEAD = 5 /* backward, channels-last: step pairs in flight */
};

typedef struct kr_conv_params {
  int64_t B, D, L, W;
  kr_divisor packs_per_row, rows, runs; /* division by packs per row (or of D), by D, by runs */
  int64_t run_packs;          /* packs per run of a long row, a multiple of 32 */
  int64_t x_step, out_step, dout_step, dx_step; /* channels-last: bytes per step */
  int32_t run_steps;          /* steps per run, a multiple of 4 */
  int32_t taps_packed;        /* weight is (D,4) float32, 16-byte aligned */
  int32_t silu, n_parts;      /* n_parts: blocks that share a channel's gradient sums */
  int32_t quads, fours;       /* four steps of x and out are one aligned access; four taps, and four biases, are */
  kr_rows x, out, dout, dx;
  kr_rows initial, final, dinitial, dfinal; /* (batch, row, W-1) */
  const void *weight, *bias;
  int64_t weight_d, weight_w, bias_d;
  int32_t weight_dtype, bias_dtype;
  const int32_t *seq_idx;
  int64_t seq_b, seq_t;
  void *dweight, *dbias;
  int64_t dweight_d, dweight_w, dbias_d;
  int32_t dweight_dtype, dbias_dtype;
  float *part;                /* (D, n_parts, W + 1): sums of the weights' and the bias's gradient */
} kr_conv_params;

#endif

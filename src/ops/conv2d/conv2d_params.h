/* conv2d_params.h: kernel parameters of conv2d.cu, the same structs for host and device. */
#ifndef KR_CONV2D_PARAMS_H
#define KR_CONV2D_PARAMS_H

#include "op_args.h"
#include "rows.h"

enum {
  KR_CONV_THREADS = 256,      /* 32 channels times 8 positions along W */
  KR_CONV_STRIP = 8,          /* outputs along H per thread */
  KR_CONV_BLOCKS = 1400,      /* above so many, a thread takes several strips */
  KR_CONV_TAPS = 8,           /* taps along H per thread of the gradient */
  KR_CONV_COLUMNS = 8,        /* positions along W per block of the gradient */
  KR_CONV_MOST_TAPS = 384,    /* with weights in shared memory */
  KR_WINDOW_THREADS = 256,
};

/* out = bias + filtered in; flip: taps mirrored, for the gradient of in. */
typedef struct kr_filter_params {
  kr_view in, weight, bias, out;
  int64_t B, H, W, C;
  int32_t KH, KW, DH, DW, PH, PW, flip;
  uint32_t n_columns, n_runs, n_channels; /* blocks along W, H, C; then B */
  int32_t n_strips;                       /* strips per block */
} kr_filter_params;

/* partial (parts, taps + 1, C): gradient sums of the taps, then of the bias; parts are (b, block along W). */
typedef struct kr_taps_params {
  kr_view x, dout, dweight, dbias;
  float *partial;
  int64_t B, H, W, C;
  int32_t KH, KW, DH, DW, PH, PW;
  uint32_t n_columns, n_groups, n_channels; /* blocks along W, groups of taps, blocks along C; then B */
} kr_taps_params;

typedef struct kr_windows_plan {
  kr_view x, out;
  int64_t n; /* elements of out */
  int32_t H, W, OH, OW, KH, KW, SH, SW, PH, PW;
  kr_divisor C, inner, columns, rows; /* unfold: C, K, OW, OH and KW below; fold: C (inner), W, H */
  kr_divisor taps;                    /* KW */
} kr_windows_plan;

#endif

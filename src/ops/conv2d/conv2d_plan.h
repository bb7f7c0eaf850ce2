/* conv2d_plan.h: what the kernels of conv2d.cu take; host and device read the same structs. */
#ifndef KR_CONV2D_PLAN_H
#define KR_CONV2D_PLAN_H

#include <krait/ops.h>

#include "rows.h"

enum {
  KR_CONV_THREADS = 256,      /* 32 channels times 8 positions along W */
  KR_CONV_STRIP = 8,          /* outputs along H that a thread makes together */
  KR_CONV_BLOCKS = 1400,      /* where there are so many, a thread makes several strips */
  KR_CONV_TAPS = 8,           /* taps along H whose gradients a thread sums together */
  KR_CONV_COLUMNS = 8,        /* positions along W of a block that sums */
  KR_CONV_MOST_TAPS = 384,    /* their weights lie in shared memory */
  KR_WINDOW_THREADS = 256,
};

/* out = bias + filtered in; flip: with the taps the other way round, as the gradient of in has it. */
typedef struct kr_filter_plan {
  krait_view in, weight, bias, out;
  int64_t B, H, W, C;
  int32_t KH, KW, DH, DW, PH, PW, flip;
  uint32_t n_columns, n_runs, n_channels; /* blocks along W, H, C; then comes B */
  int32_t n_strips;                       /* of a block */
} kr_filter_plan;

/* partial (parts, taps + 1, C): sums of the taps, then of the bias; parts are (b, block along W). */
typedef struct kr_taps_plan {
  krait_view x, dout, dweight, dbias;
  float *partial;
  int64_t B, H, W, C;
  int32_t KH, KW, DH, DW, PH, PW;
  uint32_t n_columns, n_groups, n_channels; /* blocks along W, groups of taps, blocks along C; then comes B */
} kr_taps_plan;

typedef struct kr_windows_plan {
  krait_view x, out;
  int64_t n; /* elements of out */
  int32_t H, W, OH, OW, KH, KW, SH, SW, PH, PW;
  kr_divisor C, inner, columns, rows; /* unfold: C, K, OW, OH and KW below; fold: C (inner), W, H */
  kr_divisor taps;                    /* KW */
} kr_windows_plan;

#endif

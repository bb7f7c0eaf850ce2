/* rnn_plan.h: what the kernels of rnn.cu take; host and device read the same structs. */
#ifndef KR_RNN_PLAN_H
#define KR_RNN_PLAN_H

#include <krait/ops.h>

enum {
  KR_RNN_THREADS = 256,
  KR_RNN_SEQUENCES = 8,     /* of a block */
  KR_RNN_MOST_UNITS = 192,  /* H: what 48 KiB of shared memory hold */
  KR_RNN_SUM_TILE = 64,     /* rows and columns of dweight that a block sums */
  KR_RNN_SUM_DEPTH = 16,    /* steps under way */
  KR_RNN_SUM_PARTS = 64,
};

typedef struct kr_rnn_plan {
  krait_view x, weight, bias, out, cells, dout;
  krait_view dx, dweight, dbias; /* dx: or scratch in its place */
  float *turned;  /* (H, gates H): the weight, units outermost */
  float *scaled;  /* (B,L,H): GRU's dU of n, which is not its dx */
  float *partial; /* (n_parts, gates H, H + 1): dweight, then dbias */
  int64_t B, L, H, rows; /* rows: of B L in a part */
  int32_t gates, is_lstm, n_parts;
} kr_rnn_plan;

#endif

/* rnn_plan.h: what the kernels of rnn.cu take; host and device read the same structs. */
#ifndef KR_RNN_PLAN_H
#define KR_RNN_PLAN_H

#include <krait/ops.h>

#include "rows.h"

enum {
  KR_RNN_THREADS = 256,
  KR_RNN_SEQUENCES = 8,     /* of a block */
  KR_RNN_MOST_UNITS = 160,  /* H: what 48 KiB of shared memory hold */
  KR_RNN_MOST_WIDE = 2048,  /* the same of one sequence a block */
  KR_RNN_SUM_TILE = 64,     /* rows and columns of dweight that a block sums */
  KR_RNN_SUM_DEPTH = 16,    /* steps under way */
  KR_RNN_SUM_PARTS = 256,
  KR_RNN_BACK_SEQUENCES = 16, /* of a block of rnn_64_back.cu, and its shared memory */
  KR_RNN_BACK_BYTES_GRU = 116224,
  KR_RNN_BACK_BYTES_LSTM = 155136,
};

typedef struct kr_rnn_plan {
  krait_view x, weight, bias, out, cells, dout;
  krait_view dx, dweight, dbias; /* dx: or scratch in its place */
  float *turned;  /* (H, gates H): the weight, units outermost */
  float *scaled;  /* (B,L,H): GRU's dU of n, which is not its dx */
  float *partial; /* (n_parts, gates H, H + 1): dweight, then dbias */
  int64_t B, L, H, rows; /* rows: of B L in a part */
  int32_t gates, is_lstm, n_parts;
  kr_divisor steps; /* L */
} kr_rnn_plan;

/* One layer by kernels whose blocks keep the weight in registers, or of many units: strides in floats; units, and the
 * gates of a step, lie side by side. */
typedef struct kr_rnn_64_plan {
  const float *x, *weight, *bias;
  float *out, *cells; /* cells: by tensor cores alone; or NULL */
  int64_t B, x_b, out_b, cells_b;
  int32_t x_t, out_t, cells_t, weight_gate, weight_unit, bias_gate;
  int32_t L, H, gates; /* gates 3: GRU, 4: LSTM */
} kr_rnn_64_plan;

/* Two layers of 64 units in one launch: blocks n_blocks.. have the second one. A block has two, four or eight
 * sequences, and so much shared memory for each; 32 threads more, unless it has eight, exchange messages. */
enum { KR_RNN_PAIR_THREADS = 256, KR_RNN_SEQUENCE_BYTES = 9312 };
typedef struct kr_rnn_pair_layer {
  const uint16_t *in_weight, *weight; /* float16: gates by inputs, which lie side by side */
  const float *in_bias, *bias;
  int32_t in_gate, own_gate, in_bias_gate, bias_gate; /* from gate to gate */
} kr_rnn_pair_layer;
typedef struct kr_rnn_pair_plan {
  const float *x;
  kr_rnn_pair_layer layers[2];
  float *between, *out; /* (B,L,64): the first layer's states, the second one's */
  int32_t *progress;    /* a zero per first block: steps for the second layer */
  int64_t B, x_b, out_b;
  int32_t x_t, out_t, L, C, gates, n_blocks;
  float eps;            /* of the norm in front; below 0: there is none */
} kr_rnn_pair_plan;

#endif

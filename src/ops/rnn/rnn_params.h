/* rnn_params.h: kernel parameters of rnn.cu, the same structs for host and device. */
#ifndef KR_RNN_PARAMS_H
#define KR_RNN_PARAMS_H

#include "op_args.h"
#include "rows.h"

enum {
  KR_RNN_THREADS = 256,
  KR_RNN_SEQUENCES = 8,     /* per block */
  KR_RNN_MOST_UNITS = 160,  /* H: limited by 48 KiB of shared memory */
  KR_RNN_MOST_WIDE = 2048,  /* the same for one sequence per block */
  KR_RNN_SUM_TILE = 64,     /* rows and columns of dweight per block */
  KR_RNN_SUM_DEPTH = 16,    /* steps staged at a time */
  KR_RNN_SUM_PARTS = 256,
  KR_RNN_BACK_SEQUENCES = 16, /* per block of rnn_64_back.cu, and its shared memory */
  KR_RNN_BACK_BYTES_GRU = 116224,
  KR_RNN_BACK_BYTES_LSTM = 155136,
};

typedef struct kr_rnn_params {
  kr_view x, weight, bias, out, cells, dout;
  kr_view dx, dweight, dbias; /* dx may be scratch */
  float *turned;  /* (H, gates H): the weight, units outermost */
  float *scaled;  /* (B,L,H): GRU's dU of n, which differs from its dx */
  float *partial; /* (n_parts, gates H, H + 1): dweight, then dbias */
  int64_t B, L, H, rows; /* rows: of B L, per part */
  int32_t gates, is_lstm, n_parts;
  kr_divisor steps; /* L */
} kr_rnn_params;

/* One layer, weights in registers, or with many units: strides in floats; a step's units and gates are contiguous. */
typedef struct kr_rnn_64_params {
  const float *x, *weight, *bias;
  float *out, *cells; /* cells: tensor cores only; or NULL */
  int64_t B, x_b, out_b, cells_b;
  int32_t x_t, out_t, cells_t, weight_gate, weight_unit, bias_gate;
  int32_t L, H, gates; /* gates 3: GRU, 4: LSTM */
} kr_rnn_64_params;

#endif

/* conv_state_params.h: kernel parameters of the convolution with a running state and of packed sequences' states. */
#ifndef KR_CONV_STATE_PARAMS_H
#define KR_CONV_STATE_PARAMS_H

#include "op_args.h"
#include "row_lanes.h"
#include "rows.h"

enum {
  KR_CONV_UPDATE_THREADS = 64,
  KR_CONV_UPDATE_TAPS = 4,
  KR_CONV_UPDATE_ANY_THREADS = 32,
  KR_CONV_UPDATE_MOST_TAPS = 128
};

typedef struct kr_conv_update_params {
  kr_causal_conv1d_update_args a;
  kr_divisor D;
} kr_conv_update_params;

/* One step of four taps by groups of four channels. */
typedef struct kr_conv_step_params {
  kr_conv_step step;
  const void *x;
  int64_t x_row;
  kr_divisor fours;
  int32_t B, state_ahead; /* state_ahead: KR_CALL_STATE_PDL */
} kr_conv_step_params;

typedef struct kr_varlen_params {
  kr_causal_conv1d_varlen_states_args a;
  kr_divisor D, state_len;
} kr_varlen_params;

#endif

/* conv_state_plan.h: what the host tells the kernels of the running convolution and of packed sequences' states. */
#ifndef KR_CONV_STATE_PLAN_H
#define KR_CONV_STATE_PLAN_H

#include <krait/ops.h>

#include "rows.h"

enum {
  KR_CONV_UPDATE_THREADS = 128,
  KR_CONV_UPDATE_TAPS = 4,
  KR_CONV_UPDATE_ANY_THREADS = 32,
  KR_CONV_UPDATE_MOST_TAPS = 128
};

typedef struct kr_conv_update_plan {
  krait_causal_conv1d_update_args a;
  kr_divisor D;
} kr_conv_update_plan;

typedef struct kr_varlen_plan {
  krait_causal_conv1d_varlen_states_args a;
  kr_divisor D, state_len;
} kr_varlen_plan;

#endif

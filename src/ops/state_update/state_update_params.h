/* state_update_params.h: kernel parameters of a scan step; host and device share the struct. */
#ifndef KR_STATE_UPDATE_PARAMS_H
#define KR_STATE_UPDATE_PARAMS_H

#include "op_args.h"
#include "rows.h"

enum { KR_DT_PACKS = 5 }; /* packs of eight inputs per lane, for the time step's product */
/* Kernels for many sequences: states of a channel, channels per block, sequences per block for float32 states or states
 * as narrow as the inputs, and for these where blocks are few; most packs of eight inputs of the time step's product.
 */
enum {
  KR_UPDATE_ROW_STATES = 16,
  KR_UPDATE_ROWS_CHANNELS = 64,
  KR_UPDATE_ROWS_WIDE = 4,
  KR_UPDATE_ROWS_SAME = 8,
  KR_UPDATE_ROWS_FEW = 4
};
enum { KR_UPDATE_STEP_PACKS = 20 };

typedef struct kr_update_params {
  kr_state_update_args a;
  kr_divisor P, H, heads_per_group;
  int32_t lanes, lanes_shift; /* threads per channel, a power of two up to 32 */
  const void *r, *dt_weight;  /* dt_state_update only */
  int64_t r_row, dt_row;
  int32_t packs;
} kr_update_params;

#endif
